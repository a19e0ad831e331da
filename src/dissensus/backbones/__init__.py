"""Backbones: timm models, frozen, cut into a trunk and a tail. Names are listed in __init__.pyi."""

import lazy_loader

# Loaded on first use, so that features and runs are read without timm.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
