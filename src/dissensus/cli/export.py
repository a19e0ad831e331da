"""dissensus export: write a run for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import command, say, uncalibrated


@command("export", "dissensus export runs/mine --to onnx --out detector.onnx")
def export(
    run: str,
    *,
    to: str,
    out: str | None = None,
    input: Literal["images", "features"] | None = None,
    push: str | None = None,
    private: bool = False,
    branch: str | None = None,
    license: str | None = None,
) -> None:
    """Write a run as an ONNX file, a model for Triton, a timm checkpoint, or a folder for the Hugging Face hub.

    onnx: takes pixels or features, optionally also a false-alarm rate, and returns label, logits, members'
    probabilities, score, p-value and verdict, in batches of any size. triton: the same as a folder for a model
    repository of Triton, with config.pbtxt and dynamic batching. timm: the soup, one model with the mean of the
    members' weights; it classifies but does not detect. hub: everything that Detector.from_pretrained needs, trunk
    included, with a model card; --push uploads it, with the token of hf auth login or HF_TOKEN.

    ONNX files and checkpoints are compared with PyTorch first, and agree to 1e-4.

    Args:
        run: a run folder, preferably calibrated: dissensus calibrate.
        to: onnx, triton, timm or hub: dissensus list exports.
        out: the file to write, .onnx or .safetensors, or for hub and triton the folder; hub needs none with --push.
        input: what an ONNX file takes: images as pixels (B, H, W, 3) uint8, the default if the run has a trunk,
            or features.
        push: for hub: the repository to push to, OWNER/NAME, which is created if there is none.
        private: for hub: make a new repository private.
        branch: for hub: the branch to push to, by default main.
        license: for hub: the license of the weights, for the model card, such as mit.
    """
    from dissensus import export as exports

    if out == "":
        raise DissensusError("--out must name something; got an empty name")
    options = {"push": push, "private": private or None, "branch": branch, "license": license}
    written = exports.export(run, to, out, input=input, **options)
    if written.uncalibrated:
        say(uncalibrated(run))
    say(written.usage if written.path is None else f"wrote {_size(written.path)}: {written.usage}")
    show(written.code or str(out))


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{path} ({sum(file.stat().st_size for file in files) / 1e6:,.1f} MB)"
