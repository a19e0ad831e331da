"""Backbones: timm models, frozen, cut into a trunk and a tail."""

from dissensus.backbones.backbone import LITES, Backbone, create, known, restore

__all__ = ["LITES", "Backbone", "create", "known", "restore"]
