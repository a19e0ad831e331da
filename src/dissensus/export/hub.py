"""A folder ready for the Hugging Face hub: members, trunk, calibration, config.json and a model card.

Read back by `Detector.from_pretrained`; see `pretrained` for what is where.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from dissensus import __version__
from dissensus._core.files import assembling, make_folder, replacing, write_json
from dissensus.detection import pretrained
from dissensus.detection.detector import Detector
from dissensus.detection.pretrained import CONFIG, ENSEMBLE, FORMAT, TRUNK
from dissensus.export import card, places
from dissensus.training.options import Settings
from dissensus.training.run import Run


def write(detector: Detector, run: Run, out: Path) -> None:
    """Write the detector of a run into a new folder, with all that it needs to judge images elsewhere."""
    places.check_folder(out)
    about = config(detector, run)
    with assembling(out) as folder:
        make_folder(folder)
        detector.ensemble.save(folder / ENSEMBLE)
        if detector.about is not None:
            state = detector.backbone.trunk.state_dict()
            with replacing(folder / TRUNK) as path:
                save_file({name: value.detach().cpu().clone().contiguous() for name, value in state.items()}, path)
        if detector.threshold is not None:
            detector.threshold.save(folder, detector.identity)
        write_json(folder / CONFIG, about)
        with replacing(folder / "README.md") as path:
            path.write_text(card.text(detector, run, about, title=out.name), encoding="utf-8")
        pretrained.read(folder)  # what cannot be read back is not handed out


def config(detector: Detector, run: Run) -> dict[str, Any]:
    """What `pretrained.read` needs to know, and how the run was trained."""
    names = [f.name for f in fields(Settings)] + ["tail"]
    return {
        "format": FORMAT,
        "library_name": "dissensus",
        "version": __version__,
        "classes": list(detector.classes),
        "aggregate": detector.aggregate,
        "fingerprint": detector.ensemble.fingerprint,
        "calibrated": detector.threshold is not None,
        "backbone": _backbone(detector),
        "trained_on": detector.trained_on,
        "training": {name: run.settings[name] for name in names},
    }


def _backbone(detector: Detector) -> dict[str, Any] | None:
    if detector.about is None:
        return None
    # a file's folder is nobody's business but its owner's
    return {**detector.about, "weights": Path(detector.about["weights"]).name}
