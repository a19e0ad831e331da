"""ImageEnsemble: backbone and ensemble as one module, images in, logits of every member out."""

from __future__ import annotations

import os

from torch import Tensor, nn

from dissensus import backbones
from dissensus._core.errors import RunError, ShapeError
from dissensus.backbones import Backbone
from dissensus.backbones.transforms import Preprocessing
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run


class ImageEnsemble(nn.Module):
    """Images (B, 3, H, W), as `transform` makes them, -> logits (M, B, C); the trunk runs once for all members.

    model = ImageEnsemble.load("runs/mine")
    logits = model(torch.stack([model.transform(image) for image in images]))
    """

    def __init__(self, backbone: Backbone, ensemble: Ensemble, classes: tuple[str, ...] = ()) -> None:
        super().__init__()
        if not tails.fits(ensemble.about, backbone.shape):
            wanted = (ensemble.about or {})["features"]
            raise ShapeError(
                f"the ensemble must fit the trunk; it takes features of width {wanted}, {backbone.name} gives "
                f"{backbone.shape}: use the backbone that made its training features"
            )
        self.trunk, self.ensemble = backbone.trunk, ensemble
        self.transform: Preprocessing = backbone.transform
        self.classes = classes
        self.eval()

    @classmethod
    def load(cls, run: str | os.PathLike[str]) -> ImageEnsemble:
        """The ensemble of a run folder on the backbone that its training features came from."""
        opened = Run.open(run)
        about = opened.settings.get("backbone")
        if about is None:
            raise RunError(
                f"images need a trunk; {run} was trained on features that name none: extract them with "
                "dissensus extract, or join the two with ImageEnsemble(backbone, ensemble)"
            )
        ensemble = Ensemble.load(opened.ensemble_folder)
        return cls(backbones.restore(about), ensemble, tuple(opened.settings["classes"]))

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (M, B, C)."""
        logits: Tensor = self.ensemble(self.trunk(images))
        return logits
