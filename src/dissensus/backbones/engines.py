"""Engines: ways to run a trunk on batches of pixels. All compute the same features, up to rounding.

run = engines.create("onnx", backbone, device)
features = run(pixels)        # (B, H, W, 3) uint8 -> (B, ...) float32
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus._core.files import cache_folder, make_folder, replacing
from dissensus._core.registry import Registry
from dissensus.backbones import Backbone, onnx_runtime

Engine = Callable[[Tensor], Tensor]
AT_ONCE = 2**18  # pixels
TOLERANCE = 1e-3


def create(name: str, backbone: Backbone, device: torch.device | str = "cpu") -> Engine:
    """Return an engine for this trunk: pixels (B, H, W, 3) uint8 -> features (B, ...) float32, on the CPU.

    Raises:
        DissensusError: If the engine is unknown, not installed, or does not run on the device.
    """
    return ENGINES[name](backbone, torch.device(device))


def eager(backbone: Backbone, device: torch.device) -> Engine:
    """Eager PyTorch, on any device; channels last in memory."""
    trunk = backbone.trunk.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    # On CPUs a few images at a time: the activations of more are so large that their memory is returned to the system
    # and requested again at every layer, which costs a third of the time.
    size = at_once(backbone.transform.size) if device.type == "cpu" else 65536

    @torch.inference_mode()
    def run(pixels: Tensor) -> Tensor:
        parts = []
        for some in torch.split(pixels, size):
            x = backbone.transform.normalise(some.to(device, non_blocking=True))
            features: Tensor = trunk(x)
            parts.append(features.float().cpu())
        return torch.cat(parts).contiguous()

    return run


def at_once(size: int) -> int:
    """Return how many images of `size` x `size` pixels at a time are fastest on CPUs."""
    return max(8, AT_ONCE // size**2)


def onnx(backbone: Backbone, device: torch.device) -> Engine:
    """ONNX Runtime, several times faster on CPUs; checked against PyTorch (needs the extra onnx).

    The export takes some seconds and is kept in the user's cache.
    """
    extras.require("onnx", "engine onnx")
    if device.type != "cpu":
        raise DissensusError(f"engine onnx runs on CPUs; got {device}: use --engine eager there")
    generator = torch.Generator().manual_seed(0)
    shape = (2, backbone.transform.size, backbone.transform.size, 3)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    expected = eager(backbone, device)(pixels)
    path = cache_folder() / "onnx" / f"{backbone.name}-{backbone.fingerprint[:16]}-torch{torch.__version__}.onnx"
    with contextlib.suppress(Exception):  # a missing or damaged file can raise anything; it is exported again
        run = _session(path)
        if _difference(run(pixels), expected) <= TOLERANCE:
            return run
    make_folder(path.parent)
    with replacing(path) as temporary:
        _export(FromPixels(backbone).eval(), pixels, temporary)
    run = _session(path)
    if not (error := _difference(run(pixels), expected)) <= TOLERANCE:
        raise DissensusError(f"engine onnx differs from PyTorch by {error:.1g} for {backbone.name}: use --engine eager")
    return run


def _export(module: nn.Module, pixels: Tensor, path: Path) -> None:
    onnx_runtime.convert(module, pixels, ["pixels"], ["features"]).save(path, external_data=False)


def _session(path: Path) -> Engine:
    run = onnx_runtime.session(path, patient=True)  # workers decode the next images meanwhile
    return lambda pixels: run(pixels)["features"]


def _difference(features: Tensor, expected: Tensor) -> float:
    return float((features - expected).abs().max() / expected.abs().max().clamp(min=1))


class FromPixels(nn.Module):
    """Normalisation and trunk as one module."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.trunk = backbone.trunk
        self.register_buffer("mean", torch.tensor(backbone.transform.mean) * 255)
        self.register_buffer("std", torch.tensor(backbone.transform.std) * 255)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 -> (B, ...)."""
        x = (pixels.float() - self.mean) / self.std
        features: Tensor = self.trunk(x.permute(0, 3, 1, 2))
        return features


ENGINES: Registry[Callable[[Backbone, torch.device], Engine]] = Registry("engine", {"eager": eager, "onnx": onnx})
