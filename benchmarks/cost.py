"""Time and cost of large jobs on paper, from the rates of their parts: `python -m benchmarks.cost`.

Every number that is not computed is a constant below, with where it comes from. Nothing here was run at this size.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tabulate import tabulate

GPU_IMAGES = 2583.0  # per second: deit3_base_patch16_224 on an RTX 4090, AMP, timm's published results (PyTorch 2.4)
CORE_IMAGES = 276.0  # per second and core: decode a 500 x 375 JPEG, resize and crop to 224 px (measured, one core)
IMAGE_BYTES = 110e3  # of a JPEG of ImageNet, on average
WIDTH, BYTES = 768, 2  # features of DeiT3-B in float16
GPU_FLOPS = 40e12  # per second that matrix products reach on such a GPU (assumed: half of its TF32 peak)
GPU_BANDWIDTH = 0.8e12  # bytes per second of its memory that are reached (assumed)
LINK = {8: 20e9, 64: 12e9}  # bytes per second of an all-reduce: PCIe within a node, 100 Gbit/s between (assumed)
DISK = 3e9  # bytes per second that a node reads features at (assumed: one NVMe disk)
PASSES = 7  # over the weights of active members per step: gradient, two moments and weight, read or written
DOLLARS = 0.8  # per hour of a GPU with ten cores (assumed)


@dataclass(frozen=True)
class Job:
    """A training set and how it is trained on."""

    name: str
    images: float
    classes: int
    batch: int = 4096
    active: int = 2
    epochs: int = 10

    def extract_seconds(self, gpus: int) -> float:
        """Seconds to run all images through the trunk, given cores enough to decode."""
        return self.images / (GPU_IMAGES * gpus)

    def step_seconds(self, gpus: int) -> float:
        """Seconds of one training step of linear tails: two products, the optimiser's passes, the exchange."""
        weights = self.active * WIDTH * self.classes
        products = 2 * 2 * (self.batch / gpus) * weights / GPU_FLOPS
        passes = PASSES * 4 * weights / GPU_BANDWIDTH
        exchange = 0.0 if gpus == 1 else 2 * 4 * weights / LINK[gpus]
        return products + passes + exchange

    def train_seconds(self, gpus: int) -> float:
        """Seconds of all epochs: of the steps, or of reading the features from disk, whichever takes longer."""
        reading = self.images * WIDTH * BYTES / (DISK * max(1, gpus // 8))
        return self.epochs * max(self.images / self.batch * self.step_seconds(gpus), reading)


JOBS = (Job("ImageNet-21k", 14.2e6, 21_841), Job("1e9 images", 1e9, 1000, epochs=1))


def table() -> str:
    """Return the simulation as a Markdown table."""
    rows = []
    for job in JOBS:
        for gpus in (1, 8, 64):
            extract, train = job.extract_seconds(gpus), job.train_seconds(gpus)
            rows.append([
                job.name, gpus, _duration(extract), _duration(train), f"{gpus * GPU_IMAGES / CORE_IMAGES:.0f}",
                f"{gpus * GPU_IMAGES * IMAGE_BYTES / 1e9:.1f} GB/s", f"{job.images * WIDTH * BYTES / 1e9:,.0f} GB",
                f"${(extract + train) / 3600 * gpus * DOLLARS:,.0f}",
            ])  # fmt: skip
    heads = ["job", "GPUs", "extract", "train", "cores to decode", "images read", "features", "cost"]
    return tabulate(rows, heads, tablefmt="github")


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__).parse_args()
    print(table())


if __name__ == "__main__":
    main()
