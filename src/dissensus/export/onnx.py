"""A detector as one ONNX file: pixels or features in; label, logits, members' probabilities, score and verdict out.

import onnxruntime
session = onnxruntime.InferenceSession("detector.onnx")
label, logits, member_probs, score, p_value, verdict = session.run(None, {"images": pixels})    # (B, H, W, 3) uint8
*_, verdict = session.run(None, {"images": pixels, "false_alarms": [[0.01]]})                   # at another rate
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
from dissensus._core.outputs import assembling
from dissensus.backbones import engines, onnx_runtime
from dissensus.detection.detector import Detector
from dissensus.detection.members import Outputs
from dissensus.export import parity
from dissensus.export.graph import OUTPUTS, RATE, Graph, Score
from dissensus.export.targets import MARK, Written, check_file, register
from dissensus.training.run import Run

BATCH_SIZES = (1, 2, 13)  # of the batches on which the file must agree with PyTorch


@register("onnx")
def to_onnx(run: Run, out: Path, *, input: str | None = None) -> Written:
    """One ONNX file: label, logits, members' probabilities, score, p-value and verdict, in batches of any size."""
    detector, images = load(run, input)
    write(detector, out, images=images)
    return Written(out, "for ONNX Runtime, checked against PyTorch", uncalibrated=detector.threshold is None)


def load(run: Run, input: str | None) -> tuple[Detector, bool]:
    """Return the detector of a run, and whether its export takes images: by default, if it has a trunk."""
    detector = Detector.load(run.folder)
    if input == "images" and detector.backbone_info is None:
        raise DissensusError(
            f"--input images needs a trunk; {run.folder} was trained on features that name none: use --input features"
        )
    return detector, detector.backbone_info is not None if input is None else input == "images"


def write(detector: Detector, out: Path, *, images: bool | None = None) -> None:
    """Write one .onnx file that takes pixels, trunk inside, or features; None: pixels if the detector has a trunk."""
    extras.require("onnx", "an export to ONNX")
    check_file(out, ".onnx", _is_export)
    with assembling(out) as path:
        save(detector, path, images=detector.backbone_info is not None if images is None else images)


def save(detector: Detector, path: Path, *, images: bool, batch_first: bool = False) -> None:
    """Write the file, and compare what it computes with PyTorch.

    Args:
        detector: The detector, which is moved to the CPU.
        path: The file to write.
        images: Whether the graph takes pixels.
        batch_first: For Triton: the batch is first in all outputs, and the false-alarm rate has no default.
    """
    detector.to("cpu")
    if images and (engine := detector.members.engine) in engines.APPROXIMATE:
        raise DissensusError(
            f"the export runs the trunk in float32; this run was trained on features of {engine}, which differ: use "
            "--input features, or extract with --engine onnx and train again"
        )
    samples = _samples(detector, images=images)
    graph = Graph(detector, images=images, batch_first=batch_first)
    _save(graph, samples[: BATCH_SIZES[1]], path, _metadata(detector, images=images))
    session, rates = onnx_runtime.session(path), _rates(detector)
    for batch in torch.split(samples, list(BATCH_SIZES)):
        known = outputs_of(detector, batch, images=images)
        if not rates or not batch_first:
            parity.check(detector, known, _member_first(session(batch), batch_first))
        for rate in rates:
            column = torch.full((len(batch), 1), rate, dtype=torch.float64)
            outputs = _member_first(session(batch, **{RATE: column}), batch_first)
            parity.check(detector, known, outputs, false_alarms=rate)


def _rates(detector: Detector) -> tuple[float, ...]:
    """The false-alarm rates to compare verdicts at: the lowest that the calibration supports, the run's, and 1/2."""
    rule = detector.threshold
    return () if rule is None else (rule.calibrated.lowest, rule.false_alarms, 0.5)


def _member_first(outputs: Mapping[str, Tensor], batch_first: bool) -> Mapping[str, Tensor]:
    """Undo what `Graph` does with `batch_first`."""
    if not batch_first:
        return outputs
    columns = {name: value if name == "logits" else value.transpose(0, 1) for name, value in outputs.items()}
    return {name: value if name in ("logits", "member_probs") else value[0] for name, value in columns.items()}


def _metadata(detector: Detector, *, images: bool) -> dict[str, str]:
    """The file's metadata, as text; values that are not plain words are JSON."""
    rule = detector.threshold
    about = {
        MARK: __version__,
        "input": "images" if images else "features",
        "classes": json.dumps(detector.classes),
        "score": detector.score_name,
        "aggregate": detector.aggregate,
    }
    if images:
        about["preprocessing"] = json.dumps(_preprocessing(detector))
    if rule is not None:
        limits = [float(limit) for limit in rule.calibrated.thresholds(rule.false_alarms)]
        about["threshold"] = json.dumps(limits if rule.calibrated.by_class else limits[0])
        about[RATE] = repr(rule.false_alarms)
        about["lowest_false_alarms"] = repr(rule.calibrated.lowest)
        about["promise"] = rule.promise
    return about


def _preprocessing(detector: Detector) -> dict[str, Any]:
    """The steps from an image to the trunk's input, in order."""
    known = detector.backbone.transform
    resize = {"resize": int(known.size / known.crop), "squash": known.squash, "interpolation": known.interpolation}
    return resize | {"crop": known.size, "mean": list(known.mean), "std": list(known.std)}


@torch.inference_mode()
def outputs_of(detector: Detector, batch: Tensor, *, images: bool) -> Outputs:
    """Features and the members' logits in PyTorch, from pixels or from features."""
    return detector.members(engines.create("eager", detector.backbone)(batch) if images else batch)


def _samples(detector: Detector, *, images: bool) -> Tensor:
    """Inputs to trace and compare with: noise, smooth patches of colour and a black image; or features.

    Features are also taken 100 times too large and zero, which scores of lengths and distances must survive.
    """
    generator, count = torch.Generator().manual_seed(0), sum(BATCH_SIZES)
    if detector.backbone_info is None:
        known = detector.ensemble.about
        if images or known is None:
            what = "images need a trunk" if images else "features need a known width"
            raise DissensusError(f"{what}, and this detector has none: load it from a run that dissensus train wrote")
        return _with_extremes(torch.randn(count, known["features"], generator=generator))
    size = detector.backbone.transform.size
    noise = torch.rand(count, 3, size, size, generator=generator)
    patches = F.interpolate(torch.rand(count, 3, 4, 4, generator=generator), size=(size, size), mode="bilinear")
    mixed = torch.where(torch.arange(count)[:, None, None, None] % 4 == 0, noise, patches)
    pixels = (255 * mixed).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    pixels[5] = 0
    return pixels if images else _with_extremes(engines.create("eager", detector.backbone)(pixels))


def _with_extremes(features: Tensor) -> Tensor:
    """The same features, two of them scaled by 100, two zero, and one constant, which a norm could divide by zero."""
    features = features.clone()
    features[[1, 4]] *= 100
    features[[2, 6]], features[5] = 0, 1
    return features


def _save(graph: Graph, batch: Tensor, path: Path, about: Mapping[str, str]) -> None:
    rate = torch.tensor([[float(about.get(RATE, "nan"))]], dtype=torch.float64)
    calibrated = graph.rule is not None
    outputs = OUTPUTS if calibrated else OUTPUTS[:4]
    inputs = {about["input"]: batch, **({RATE: rate.repeat(len(batch), 1)} if calibrated else {})}
    try:
        program = onnx_runtime.convert(graph, tuple(inputs.values()), list(inputs), outputs)
    except Exception as error:  # a trunk, tail or score that cannot be traced may raise anything
        raise _not_traceable(graph, error) from error
    if calibrated and not graph.batch_first:
        onnx_runtime.set_default(program, RATE, rate)
    program.model.metadata_props.update(about)
    program.save(path, external_data=False)


def _not_traceable(graph: Graph, error: Exception) -> DissensusError:
    """The error for what cannot be traced; it names the score, if one of them fails alone."""
    for score in graph.scores:
        width = None if score.fitted is None else score.fitted.width
        try:
            onnx_runtime.convert(_Alone(score), torch.zeros(2, 3, width or 4), ["rows"], ["score"])
        except Exception as cause:  # as above
            return DissensusError(
                f"an exported score must consist of torch functions that take batches of any size; {score.name} does "
                f"not ({_first_words(cause)}): rewrite it, or calibrate with another"
            )
    return DissensusError(f"this run cannot be exported to ONNX ({_first_words(error)}): export it to the hub")


class _Alone(nn.Module):
    """A score of what is both features (B, M, D) and, transposed, logits."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, rows: Tensor) -> Tensor:
        return self.score(rows, rows.transpose(0, 1))  # type: ignore[no-any-return]


def _first_words(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _is_export(path: Path) -> bool:
    import onnx

    try:
        return any(entry.key == MARK for entry in onnx.load(path, load_external_data=False).metadata_props)
    except Exception:  # a file that is not ONNX may raise anything
        return False
