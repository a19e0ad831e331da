"""Backbones: timm models, frozen, cut into a trunk and a tail."""

from dissensus.backbones.backbone import Backbone, BackboneDescription, create, restore
from dissensus.backbones.weights import LITES, known

__all__ = ["LITES", "Backbone", "BackboneDescription", "create", "known", "restore"]
