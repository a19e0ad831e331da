"""A script for test_ray.py: extract and predict on a Ray cluster of several nodes on this machine, one of them killed.

Usage: python on_a_cluster.py HOME, where HOME holds photos, run and one (features and verdicts of one process).
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest


def main(home: Path) -> None:
    """Do what the command line does with --on ray, while a node is lost."""
    import ray
    from ray.cluster_utils import Cluster

    from dissensus.cli import main as dissensus

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = [cluster.add_node(num_cpus=1) for _ in range(2)][1]
    ray.init(address=cluster.address, log_to_driver=False)

    def kill() -> None:
        while not list((home / "features").glob("shard-*.json")):
            time.sleep(0.05)
        cluster.remove_node(doomed, allow_graceful=False)
        (home / "killed").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    photos, backbone = str(home / "photos"), ["--backbone", "test_vit", "--weights", "random", "--size", "32"]
    extract = ["extract", photos, *backbone, "--shard-images", "4", "--max-bad", "10%", "--on", "ray"]
    assert dissensus([*extract, "--out", str(home / "features")]) == 0
    thread.join()
    predict = ["predict", str(home / "run"), photos, "--batch-size", "1", "--on", "ray"]
    assert dissensus([*predict, "--out", str(home / "verdicts.csv")]) == 0
    map_batches(home)
    with pytest.raises(SystemExit, match="2"):  # a user's mistake in a task is one line, not Ray's traceback
        dissensus([*extract, "--strict", "--out", str(home / "strict")])
    ray.shutdown()
    cluster.shutdown()


def map_batches(home: Path) -> None:
    """Predict with Ray Data."""
    import ray

    from dissensus import BatchPredictor

    images = ray.data.read_binary_files(str(home / "photos"), include_paths=True)
    verdicts = images.map_batches(BatchPredictor, fn_constructor_args=[str(home / "run")], concurrency=1)
    frame = verdicts.to_pandas().sort_values("path")
    frame.drop(columns="path").assign(name=[Path(path).name for path in frame["path"]]).to_csv(home / "mapped.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
