"""Trained runs for use elsewhere: an ONNX file, a model for Triton, a timm checkpoint, a folder for the hub.

export("runs/mine", "onnx", "detector.onnx")
"""

from __future__ import annotations

import importlib
import pkgutil

from dissensus.export.targets import EXPORTS, Written, export, register

__all__ = ["EXPORTS", "Written", "export", "register"]

for _module in pkgutil.iter_modules(__path__):  # targets register themselves
    importlib.import_module(f"{__name__}.{_module.name}")
