"""ImageEnsemble: backbone and ensemble as one module, images in, logits of every member out."""

from __future__ import annotations

import os

from torch import Tensor, nn

from dissensus._core.errors import RunError
from dissensus.backbones import Backbone, engines
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection.detector import Detector
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run


class ImageEnsemble(nn.Module):
    """Images (B, 3, H, W) -> logits (M, B, C), differentiable; the trunk runs once for all members.

    model = ImageEnsemble.load("runs/mine")
    logits = model(torch.stack([model.transform(image) for image in images]))

    Args:
        backbone: The backbone whose trunk to use.
        ensemble: An ensemble trained on its features.
        classes: Names of the classes.

    Attributes:
        transform: The preprocessing, from a PIL image to a tensor (3, H, W).

    Raises:
        ShapeError: If the ensemble does not take the trunk's features.
    """

    def __init__(self, backbone: Backbone, ensemble: Ensemble, classes: tuple[str, ...] = ()) -> None:
        super().__init__()
        ensemble.check_features(backbone.shape, backbone.name)
        self.trunk, self.ensemble = backbone.trunk, ensemble
        self.transform: Preprocessing = backbone.transform
        self.classes = classes
        self.eval()

    @classmethod
    def load(cls, run: str | os.PathLike[str]) -> ImageEnsemble:
        """Load the ensemble of a run folder, on the backbone that its training features came from.

        Raises:
            RunError: If there is no finished run, or it was trained on features that name no backbone or that
                come from the engine onnx-int8.
        """
        Run.open(run).check_single("ImageEnsemble takes one backbone")
        detector = Detector.load(run, calibrated=False)
        if detector.backbone_info is None:
            raise RunError(
                f"images need a trunk; {run} was trained on features that name none: extract them with "
                "dissensus extract, or join the two with ImageEnsemble(backbone, ensemble)"
            )
        if (engine := detector.members.engine) in engines.APPROXIMATE:
            raise RunError(
                f"ImageEnsemble runs the trunk in float32; {run} was trained on features of {engine}, which differ: "
                "use Detector, or extract with another engine and train again"
            )
        return cls(detector.backbone, detector.ensemble, detector.classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (M, B, C)."""
        logits: Tensor = self.ensemble(self.trunk(images))
        return logits
