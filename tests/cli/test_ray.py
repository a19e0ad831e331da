"""--on ray: on three nodes, of which one is killed, the bytes of one process; what cannot be reached is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dissensus import backbones
from dissensus._core import cluster
from dissensus._core.errors import DissensusError
from dissensus.detection.detector import Detector
from dissensus.features import extract
from dissensus.images import ImageSet
from dissensus.training import fit, new_ensemble
from tests.commands import refuse, run
from tests.features.test_extract_resume import BACKBONE, contents
from tests.images.samples import noise, write

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Photos, one of them bad, and a calibrated run."""
    home = tmp_path_factory.mktemp("home")
    names = [f"{'cat' if i % 2 else 'dog'}/{i:03}.png" for i in range(70)]
    write(home / "photos", {name: noise((40, 40), seed=i) if i != 31 else b"no" for i, name in enumerate(names)})
    images = ImageSet.find(home / "photos")
    backbone = backbones.create("test_vit", "random", layers=2, size=32)
    features = extract(images, backbone, home / "train", progress=False, workers=0, max_bad=0.1)
    fit(new_ensemble(features, members=2, seed=0), features, epochs=2, out=home / "run", progress=False)
    Detector.load(home / "run").calibrate(features).save(home / "run")
    return home


@pytest.mark.slow
def test_three_nodes_of_which_one_is_killed(home, capsys):
    asked = ["extract", home / "photos", *BACKBONE, "--shard-images", 4, "--max-bad", "10%", "--workers", 0]
    assert run(capsys, *asked, "--out", home / "one")[0] == 0
    one = ["predict", home / "run", home / "photos", "--batch-size", 1, "--workers", 0, "--out", home / "one.csv"]
    assert run(capsys, *one)[0] == 0
    script = Path(__file__).with_name("on_a_cluster.py")
    done = subprocess.run([sys.executable, script, home], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (home / "killed").exists()
    assert contents(home / "features") == contents(home / "one")
    assert (home / "verdicts.csv").read_bytes() == (home / "one.csv").read_bytes()
    assert "dissensus: error: every image must be readable; dog/" not in done.stderr
    assert "every image must be readable; cat/031.png is not" in done.stderr
    mapped, alone = pd.read_csv(home / "mapped.csv"), pd.read_csv(home / "one.csv")
    alone["name"] = [Path(path).name for path in alone["path"]]
    both = mapped.merge(alone, on="name", suffixes=("", "_one"))
    assert len(both) == 70
    assert (both["class"].fillna("") == both["class_one"].fillna("")).all()
    # other batches round differently, and beyond the largest reference the excess is divided by a small number
    np.testing.assert_allclose(both["score"], both["score_one"], rtol=1e-4, atol=1e-4)
    assert mapped["error"].notna().sum() == 1


def test_a_cluster_that_cannot_be_reached(home, tmp_path):
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    code = "import sys; from dissensus.cli import main; sys.exit(main(sys.argv[1:]))"
    asked = ["extract", home / "photos", *BACKBONE, "--out", tmp_path / "f", "--on", "ray"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, asked)],
        capture_output=True, text=True, env=environment, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("dissensus: error: --on ray needs a cluster that can be reached; 127.0.0.1:1 cannot")
    assert line.endswith("check RAY_ADDRESS, or start one with: ray start --head")
    assert not (tmp_path / "f").exists()


def test_what_ray_is_not_for(home, tmp_path, capsys, monkeypatch):
    asked = ["extract", home / "photos", *BACKBONE, "--out", tmp_path / "f", "--on"]
    assert "unknown --on 'spark'" in refuse(capsys, *asked, "spark")
    with pytest.raises(DissensusError, match="work runs on one of local, ray; got on='spark'"):
        cluster.check("spark")
    monkeypatch.setattr(cluster.extras, "missing", lambda extra: ["ray"])
    line = refuse(capsys, *asked, "ray")
    assert line.startswith("--on ray needs ray: pip install ")
