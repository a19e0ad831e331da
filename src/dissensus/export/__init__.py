"""Trained runs for elsewhere: one ONNX file, a timm checkpoint of the soup, a folder for the Hugging Face hub.

onnx.write(detector, Path("detector.onnx"))
checkpoint.write(detector, Path("soup.safetensors"))
hub.write(detector, Run.open("runs/mine"), Path("mine"))
"""

from __future__ import annotations

from dissensus.export import checkpoint, hub, onnx

__all__ = ["checkpoint", "hub", "onnx"]
