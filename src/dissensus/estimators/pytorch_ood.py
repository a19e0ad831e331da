"""EnsembleDetector: a diverse ensemble as a detector of pytorch-ood, for its metrics and benchmarks.

    detector = EnsembleDetector(encoder, members=5).fit(train_loader)      # trains on the encoder's features
    detector = EnsembleDetector.from_run("runs/mine")                      # or what was trained before
    CIFAR10_OpenOOD(root, transform=detector.transform).evaluate(detector)

Scores are larger for samples that are more likely OOD, in both libraries.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dissensus._core import extras
from dissensus._core.errors import DataError, DissensusError
from dissensus.backbones.joined import parts_of
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection.detector import Detector
from dissensus.estimators.classifier import DissensusClassifier
from dissensus.functional.checks import moved

# Without the extra, the name can be imported as the others of the package; making a detector is what raises.
_Base: Any = object if extras.missing("ood") else importlib.import_module("pytorch_ood.api").FeaturesDetector


def _info() -> Any:
    """Return what pytorch-ood shows of a detector; None without it."""
    if extras.missing("ood"):
        return None
    from pytorch_ood.api import DetectorInfo, Paper, Task

    return DetectorInfo(
        tasks={Task.CLASSIFICATION},
        paper=Paper(
            title="Scalable Ensemble Diversification for OOD Generalization and Detection",
            venue="arXiv",
            year=2024,
            url="https://arxiv.org/abs/2409.16797",
        ),
    )


class EnsembleDetector(_Base):  # type: ignore[misc]  # pytorch-ood has no types
    """A detector of pytorch-ood made of an ensemble on frozen features.

    Args:
        encoder: Images (B, C, H, W) -> features (B, D), such as the trunk of a model, frozen. None: only
            `fit_features` and `predict_features` work.
        members: How many members.
        method: How they are trained: a name in `METHODS` that takes no set to disagree on.
        norm: What members do to features first: l2, layer or none.
        random_state: Decides initial weights, batches and held-out samples.
        options: Further options of `DissensusClassifier`: score_name, calibration, epochs, diversity, ...

    Raises:
        DissensusError: If pytorch-ood is not installed, or an option is unknown.
    """

    requires_fit = True
    info: ClassVar[Any] = _info()

    def __init__(
        self,
        encoder: Callable[[Tensor], Tensor] | None = None,
        members: int = 5,
        method: str = "sed-a2d",
        *,
        norm: str = "l2",
        random_state: int = 0,
        **options: Any,
    ) -> None:
        extras.require("ood", "EnsembleDetector")
        super().__init__()
        self.encoder = encoder
        self.classifier = DissensusClassifier(
            members, method, norm=norm, random_state=random_state, **{"standardize": False, **options}
        )
        self.detector: Detector | None = None
        self._fitted = False

    @classmethod
    def from_run(cls, run: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Self:
        """Use a trained run, with its calibration if it has one; its backbone's trunk is the encoder.

        Args:
            run: A run folder, on one backbone.
            device: Where to run.

        Raises:
            RunError: If there is no finished run, or it is damaged.
            DissensusError: If pytorch-ood is not installed, or the run has several backbones.
        """
        extras.require("ood", "EnsembleDetector")
        loaded = Detector.load(run, device=device)
        if parts_of(loaded.backbone_info):
            raise DissensusError(f"a detector of pytorch-ood has one encoder; {run} has several backbones: use one run")
        detector = cls(None if loaded.backbone_info is None else loaded.backbone.trunk.to(device))
        detector.detector, detector.requires_fit, detector._fitted = loaded, False, True
        return detector

    @property
    def transform(self) -> Preprocessing:
        """Turns an image into the encoder's input, for the data sets of a benchmark; of a run with a backbone.

        Raises:
            DissensusError: If the detector is not of such a run.
        """
        if self.detector is None:
            raise DissensusError("the transform is that of a run's backbone; there is none: use that of your encoder")
        return self.detector.backbone.transform

    def to(self, device: str | torch.device) -> Self:
        """Move encoder and ensemble to a device; an ensemble that was trained by `fit` stays on the CPU."""
        if self.detector is not None:
            self.detector.to(device)
        super().to(device)
        return self

    def fit(self, data_loader: DataLoader[Any]) -> Self:
        """Train an ensemble on the encoder's features of batches (images, labels); labels below 0 are left out."""
        from pytorch_ood.utils import extract_features

        if self.encoder is None:
            raise _exception("ModelNotSetException")
        features, labels = extract_features(data_loader, self.encoder, self.device or "cpu")
        return self.fit_features(features, labels)

    def fit_features(self, x: Tensor, y: Tensor) -> Self:
        """Train an ensemble on features (N, D) with labels (N,); labels below 0 are left out.

        Raises:
            DissensusError: If there are fewer than two classes, or the detector is that of a run.
        """
        from pytorch_ood.utils import is_known

        if self.detector is not None:
            raise DissensusError("the detector of a run is trained already: create one without the run to fit it")
        known = is_known(y)
        self.classifier.fit(_rows(x[known]), y[known].cpu().numpy())
        self._fitted = True
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Score images (B, C, H, W), as the encoder takes them: (B,), larger = more likely OOD."""
        if self.encoder is None:
            raise _exception("ModelNotSetException")
        device = self.device
        with torch.no_grad():
            scores: Tensor = self.predict_features(self.encoder(x if device is None else x.to(device)))
        return scores

    def predict_features(self, x: Tensor) -> Tensor:
        """Score features (B, D); in a run those of its trunk, (B, ...): (B,), larger = more likely OOD."""
        if not self._fitted:
            raise _exception("RequiresFittingException")
        if self.detector is not None:
            self.detector.ensemble.check_features(tuple(x.shape[1:]), "the input")
            return moved(self.detector.predict_outputs(self.detector.members(x)).score, x.device)
        return moved(torch.from_numpy(self.classifier.ood_score(_rows(x))), x.device)


def _exception(name: str) -> Exception:
    """Return an exception of pytorch-ood."""
    raised: Exception = getattr(importlib.import_module("pytorch_ood.api"), name)()
    return raised


def _rows(x: Tensor) -> Any:
    if x.ndim != 2:
        raise DataError(
            f"features must be (B, D); got {tuple(x.shape)}: use an encoder that pools, such as "
            "nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten())"
        )
    return x.detach().cpu().float().numpy()
