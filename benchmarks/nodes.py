"""Extraction on one and on two Ray nodes of one core each: `python -m benchmarks.nodes`.

The work is decode-bound: large JPEG files and a tiny trunk. Both nodes are on this machine, so that it needs two idle
cores. Starting the processes of a node takes seconds and is not counted: every cluster extracts once before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from dissensus import ImageSet, backbones, extract

IMAGES, SHARD, REPEATS = 480, 20, 5
SIDE = 1200  # pixels


def main() -> None:
    """Print the median time on one node, on two, and the ratio."""
    argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__).parse_args()
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as name:
        folder = Path(name)
        images = ImageSet.find(_photos(folder / "photos"))
        backbone = backbones.create("test_vit", "random", size=32)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        ray.init(address=cluster.address, log_to_driver=False)
        times = []
        for nodes in (1, 2):
            if nodes == 2:
                cluster.add_node(num_cpus=1)
            seconds = []
            for repeat in range(REPEATS + 1):
                start = time.perf_counter()
                out = folder / f"{nodes}-{repeat}"
                extract(images, backbone, out, on="ray", shard_images=SHARD, progress=False)
                seconds.append(time.perf_counter() - start)
            times.append(statistics.median(seconds[1:]))
        one, two = times
        print(f"{IMAGES} images: {one:.1f} s on one node, {two:.1f} s on two, {one / two:.2f} times as fast")
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def _photos(folder: Path) -> Path:
    """Write smooth random images as large JPEG files, which take long to decode."""
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        coarse = Image.fromarray(generator.integers(0, 256, (64, 64, 3), np.uint8))
        path = folder / ("even", "odd")[number % 2] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((SIDE, SIDE)).save(path, quality=90)
    return folder


if __name__ == "__main__":
    main()
