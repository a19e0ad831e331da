"""dissensus export: a run for elsewhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say, uncalibrated

EXAMPLE = "dissensus export runs/mine --to onnx --out detector.onnx"
PLAIN: Arguments = {
    "run": {"help": "a run folder, best calibrated first: dissensus calibrate"},
}


def export(
    run: str, to: Literal["onnx", "timm", "hub"], out: str, input: Literal["images", "features"] | None = None
) -> None:
    """Write a run as one ONNX file, as a plain timm checkpoint, or as a folder for the Hugging Face hub.

    onnx: pixels or features in; label, logits, members' probabilities, score, p-value and verdict out, in batches of
    any size. timm: the soup, one model with the mean of the members' weights; it classifies, but detects nothing.
    hub: everything that Detector.from_pretrained needs, trunk included, with a model card.

    ONNX files and checkpoints are run against PyTorch first, and agree to 1e-4.

    Args:
        run: a run folder.
        to: onnx, timm or hub.
        out: the file to write, .onnx or .safetensors, or for the hub the folder.
        input: what an .onnx file takes: images as pixels (B, H, W, 3) uint8, the default where the run has a trunk,
            or features.
    """
    from dissensus.detection.detector import Detector
    from dissensus.export import checkpoint, hub, onnx
    from dissensus.training.run import Run

    if not out:
        raise DissensusError("--out must name something; got an empty name")
    if input is not None and to != "onnx":
        raise DissensusError(f"--input is about --to onnx; got it with --to {to}: leave it out")
    detector = Detector.load(run)
    if input == "images" and detector.about is None:
        raise DissensusError(
            f"--input images needs a trunk; {run} was trained on features that name none: use --input features"
        )
    place = Path(out)
    if to == "onnx":
        onnx.write(detector, place, images=None if input is None else input == "images")
        if detector.threshold is None:
            say(uncalibrated(run))
        say(f"wrote {_size(place)} for ONNX Runtime, checked against PyTorch")
        print(out)
    elif to == "timm":
        made = checkpoint.write(detector, place)
        say(f"wrote {_size(place)}: the mean of {len(detector.ensemble)} members' weights, checked against PyTorch")
        print(made.code)
    else:
        hub.write(detector, Run.open(run), place)
        if detector.threshold is None:
            say(uncalibrated(run))
        say(f"wrote {_size(place)}; name its license in README.md, then: hf upload OWNER/NAME {shlex.quote(out)}")
        print(out)


def _size(place: Path) -> str:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return f"{place} ({sum(path.stat().st_size for path in files) / 1e6:,.1f} MB)"
