"""A detector as one ONNX file: pixels or features in; label, logits, members' probabilities, score and verdict out.

import onnxruntime
session = onnxruntime.InferenceSession("detector.onnx")
label, logits, member_probs, score, p_value, verdict = session.run(None, {"images": pixels})    # (B, H, W, 3) uint8
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus import __version__
from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus._core.files import assembling
from dissensus.backbones import engines, tracing
from dissensus.detection.detector import Detector
from dissensus.export import parity, places
from dissensus.export.graph import OUTPUTS, Graph, plain

TRIED = (1, 2, 13)  # sizes of the batches on which the file must agree with PyTorch
MARK = "dissensus"  # the key in the file's metadata that says who wrote it


def write(detector: Detector, out: Path, *, images: bool | None = None) -> None:
    """Write the detector as one .onnx file that takes batches of any size.

    `images` says what it takes: pixels, with normalisation and trunk inside, or features; None: pixels where there is
    a trunk. The file is run against PyTorch first, and refused where it differs by more than 1e-4.
    """
    extras.require("onnx", "an export to ONNX")
    places.check_file(out, ".onnx", _ours)
    images = detector.about is not None if images is None else images
    detector.to("cpu")
    samples = _samples(detector, images=images)
    graph = Graph(detector, images=images)
    with assembling(out) as path:
        _save(graph, samples[: TRIED[1]], path, about=metadata(detector, images=images))
        run = tracing.session(path)
        for some in torch.split(samples, list(TRIED)):
            parity.check(detector, logits_of(detector, some, images=images), run(some))


def metadata(detector: Detector, *, images: bool) -> dict[str, str]:
    """What the file says of itself, as text; whatever is not a plain word is JSON."""
    rule = detector.threshold
    about: dict[str, str] = {
        MARK: __version__,
        "input": "images" if images else "features",
        "classes": json.dumps(detector.classes),
        "score": detector.score_name,
        "aggregate": detector.aggregate,
    }
    if images:
        about["preprocessing"] = json.dumps(preprocessing(detector))
    if rule is not None:
        limits = [float(limit) for limit in rule.calibrated.thresholds(rule.false_alarms)]
        about["threshold"] = json.dumps(limits if rule.calibrated.by_class else limits[0])
        about["false_alarms"] = repr(rule.false_alarms)
        about["promise"] = rule.promise
    return about


def preprocessing(detector: Detector) -> dict[str, Any]:
    """What is done to an image before the trunk, in the order it is done."""
    known = detector.backbone.transform
    resize = {"resize": int(known.size / known.crop), "squash": known.squash, "interpolation": known.interpolation}
    return resize | {"crop": known.size, "mean": list(known.mean), "std": list(known.std)}


@torch.inference_mode()
def logits_of(detector: Detector, batch: Tensor, *, images: bool) -> Tensor:
    """The members' logits (M, B, C) by PyTorch, of pixels or of features."""
    features = engines.create("eager", detector.backbone)(batch) if images else batch
    logits: Tensor = detector.ensemble(features)
    return logits


def _samples(detector: Detector, *, images: bool) -> Tensor:
    """Something to trace and compare with: noise and soft patches of colour, or what the trunk makes of them."""
    generator, count = torch.Generator().manual_seed(0), sum(TRIED)
    if detector.about is None:
        known = detector.ensemble.about
        if images or known is None:
            what = "images need a trunk" if images else "features need a known width"
            raise DissensusError(f"{what}, and this detector names none: make it of a run that dissensus train wrote")
        return torch.randn(count, known["features"], generator=generator)
    size = detector.backbone.transform.size
    noise = torch.rand(count, 3, size, size, generator=generator)
    patches = F.interpolate(torch.rand(count, 3, 4, 4, generator=generator), size=(size, size), mode="bilinear")
    mixed = torch.where(torch.arange(count)[:, None, None, None] % 4 == 0, noise, patches)
    pixels = (255 * mixed).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    return pixels if images else engines.create("eager", detector.backbone)(pixels)


def _save(graph: Graph, batch: Tensor, path: Path, *, about: Mapping[str, str]) -> None:
    outputs = OUTPUTS if graph.rule is not None else OUTPUTS[:4]
    try:
        made = tracing.convert(graph, batch, [about["input"]], outputs)
    except Exception as error:  # whatever a trunk, a tail or a score brings about that cannot be traced
        raise _refusal(graph, error) from error
    made.model.metadata_props.update(about)
    made.save(path, external_data=False)


def _refusal(graph: Graph, error: Exception) -> DissensusError:
    """What cannot be traced, in one line: a score, if one of them fails by itself."""
    for name in [] if graph.rule is None else [score.__name__ for score in graph.rule.scores]:
        try:
            tracing.convert(_Alone(name), torch.zeros(2, 3, 4), ["logits"], ["score"], axis=1)
        except Exception as own:  # as above
            return DissensusError(
                f"a score that is exported must be made of torch functions, for batches of any size; {name} is not "
                f"({_first_words(own)}): rewrite it, or calibrate with another"
            )
    return DissensusError(f"this run cannot be exported to ONNX ({_first_words(error)}): export it to the hub")


class _Alone(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.score = plain(name)

    def forward(self, logits: Tensor) -> Tensor:
        return self.score(logits)


def _first_words(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _ours(path: Path) -> bool:
    import onnx

    try:
        return any(entry.key == MARK for entry in onnx.load(path, load_external_data=False).metadata_props)
    except Exception:  # whatever a file brings about that is none
        return False
