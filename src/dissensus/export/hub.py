"""Export a detector for the Hugging Face hub: a folder of members, fitted scores, trunk, calibration and a model card.

`Detector.from_pretrained` reads it back; `detection.pretrained` documents the files.
"""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

from dissensus import __version__
from dissensus._core import documents, tensors
from dissensus._core.files import check_folder, make_folder, replacing
from dissensus._core.outputs import assembling
from dissensus.backbones import BackboneDescription
from dissensus.detection import pretrained
from dissensus.detection.detector import Detector
from dissensus.detection.pretrained import CONFIG, ENSEMBLE, TRUNK, HubDocument, TrainedOn
from dissensus.export import card
from dissensus.export.targets import Written, register
from dissensus.training.options import Settings
from dissensus.training.run import Run


@register("hub")
def to_hub(run: Run, out: Path) -> Written:
    """A folder for the Hugging Face hub: all that Detector.from_pretrained needs, with a model card."""
    detector = Detector.load(run.folder)
    write(detector, run, out)
    usage = f"name its license in README.md, then: hf upload OWNER/NAME {shlex.quote(str(out))}"
    return Written(out, usage, uncalibrated=detector.threshold is None)


def write(detector: Detector, run: Run, out: Path) -> None:
    """Write the detector of a run into a new folder, with everything it needs to predict elsewhere."""
    check_folder(out)
    document = _config(detector, run)
    with assembling(out) as folder:
        make_folder(folder)
        detector.ensemble.save(folder / ENSEMBLE)
        if detector.backbone_info is not None:
            state = detector.backbone.trunk.state_dict()
            tensors.write(folder / TRUNK, {name: value.clone() for name, value in state.items()})
        if detector.threshold is not None:
            detector.threshold.save(folder, detector.identity)
        documents.write(folder / CONFIG, document)
        with replacing(folder / "README.md") as path:
            path.write_text(card.text(detector, run, document, title=out.name), encoding="utf-8")
        pretrained.read(folder)  # a folder that cannot be read back is not published


def _config(detector: Detector, run: Run) -> HubDocument:
    names = [f.name for f in fields(Settings)] + ["tail"]
    return HubDocument(
        version=__version__,
        classes=detector.classes,
        aggregate=detector.aggregate,
        fingerprint=detector.ensemble.fingerprint,
        scores=detector.ensemble.score_digests,
        calibrated=detector.threshold is not None,
        backbone=_backbone(detector),
        trained_on=TrainedOn(**detector.trained_on),
        training={name: run.settings[name] for name in names},
    )


def _backbone(detector: Detector) -> BackboneDescription | None:
    if detector.backbone_info is None:
        return None
    # The weights' file name only: its folder is private.
    about = {**detector.backbone_info, "weights": Path(detector.backbone_info["weights"]).name}
    return BackboneDescription.model_validate(about, strict=False)
