"""The whole journey at URLs: extract, train, calibrate, evaluate, predict, report; and after a kill, the same bytes."""

from __future__ import annotations

import os
import signal

import fsspec
import pytest

from tests.commands import refuse, run
from tests.features.test_extract_resume import BACKBONE, SLOW, contents
from tests.forks import Forks, until
from tests.images.samples import noise, write
from tests.storage import bucket, denied, memory, s3, upload  # noqa: F401 - fixtures


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """40 images of two classes."""
    images = {f"{'cat' if i % 2 else 'dog'}/{i:02}.png": noise((40, 40), seed=i) for i in range(40)}
    return write(tmp_path_factory.mktemp("tree"), images)


def journey(capsys, photos, home):
    """Run every command that reads or writes at `home`; return the verdicts."""
    features, trained = f"{home}/features", f"{home}/runs/mine"
    for command in [
        ["extract", photos, "--out", features, *BACKBONE, "--shard-images", 8, "--workers", 2],
        ["train", features, "--out", trained, "--member-epochs", 3, "--members", 2],
        ["train", features, "--out", trained, "--member-epochs", 3, "--members", 2],  # finished already
        ["calibrate", trained, "--id", features],
        ["evaluate", trained, "--id", features, "--out", f"{home}/results.csv"],
        ["predict", trained, photos, "--out", f"{home}/verdicts.csv", "--workers", 0],
        ["report", trained, "--out", f"{home}/report.html"],
        ["export", trained, "--to", "timm", "--out", f"{home}/soup.safetensors"],
    ]:
        code, _, err = run(capsys, *command)
        assert code == 0, (command, err)
    fs, inside = fsspec.core.url_to_fs(str(home))
    assert {"features", "results.csv", "report.html", "runs", "soup.safetensors", "verdicts.csv"} == {
        path.rstrip("/").rpartition("/")[2] for path in fs.ls(inside, detail=False)
    }
    return fs.cat_file(f"{inside}/verdicts.csv").decode()


def without_paths(verdicts):
    return [line.partition(".png,")[2] for line in verdicts.splitlines()]


@pytest.fixture(scope="module")
def local(tree, tmp_path_factory):
    """What the journey leads to in a local folder."""
    home = tmp_path_factory.mktemp("home")

    class Quiet:
        def readouterr(self):
            class Nothing:
                out = err = ""

            return Nothing()

    return without_paths(journey(Quiet(), tree, home)), contents(home / "features")


def test_in_memory(tree, local, memory, capsys):  # noqa: F811
    photos = upload(tree, f"{memory}/photos")
    assert without_paths(journey(capsys, photos, f"{memory}/home")) == local[0]


@pytest.mark.slow
def test_on_s3(tree, local, bucket, capsys):  # noqa: F811
    photos = upload(tree, f"{bucket}/photos")
    assert without_paths(journey(capsys, photos, f"{bucket}/home")) == local[0]
    fs = fsspec.filesystem("s3")
    inside = f"{bucket.removeprefix('s3://')}/home/features/"
    assert {path.removeprefix(inside): fs.cat_file(path) for path in fs.find(inside)} == local[1]


@pytest.mark.slow
def test_killed_on_s3_and_continued(tree, local, bucket, tmp_path):  # noqa: F811
    """Extraction and training lose at most what was in progress, and end with the same bytes."""
    photos, fs = upload(tree, f"{bucket}/photos"), fsspec.filesystem("s3", use_listings_cache=False)
    inside = f"{bucket.removeprefix('s3://')}/features"
    asked = ["extract", photos, "--out", f"{bucket}/features", *BACKBONE, "--shard-images", 8, "--workers", 0]
    forks = Forks(tmp_path)
    try:
        slow = SLOW.format(seconds=0.3, log=str(tmp_path / "log"))
        command = forks.start(*asked, first=slow)
        until(lambda: command.ended() or len(fs.glob(f"{inside}/shard-*.json")) >= 2)
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL, command.err
        kept = {path: fs.info(path)["LastModified"] for path in fs.glob(f"{inside}/shard-*.json")}
        assert 2 <= len(kept) < 5
        command = forks.run(*asked)
        assert command.code == 0, command.err
    finally:
        forks.close()
    fs.invalidate_cache()
    assert {path.removeprefix(f"{inside}/"): fs.cat_file(path) for path in fs.find(inside)} == local[1]


def test_training_continues_at_a_url(memory, capsys, monkeypatch):  # noqa: F811
    """A run whose checkpoint is at a URL goes on from there, with the same weights and the same log."""
    from dissensus.models.ensemble import Ensemble
    from dissensus.training import _fit
    from dissensus.training.run import Run
    from tests.conftest import blobs, linear

    whole = linear()
    _fit.fit(whole, blobs(), "sed-a2d", epochs=6, batch_size=16, progress=False, out=f"{memory}/whole")
    calls, step = [], _fit.Stepper.__call__

    def interrupted(self, *arguments):
        calls.append(None)
        if len(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    monkeypatch.setattr(_fit.Stepper, "__call__", interrupted)
    options = {"epochs": 6, "batch_size": 16, "progress": False, "checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        _fit.fit(linear(), blobs(), "sed-a2d", **options, out=f"{memory}/part")
    fs, newest = fsspec.filesystem("memory"), f"{memory}/part/checkpoint.safetensors"
    fs.pipe_file(newest, fs.cat_file(newest)[:-1])  # damaged: training goes on from the one before
    monkeypatch.setattr(_fit.Stepper, "__call__", step)
    _fit.fit(linear(), blobs(), "sed-a2d", epochs=6, batch_size=16, progress=False, out=f"{memory}/part")
    assert Ensemble.load(f"{memory}/part/ensemble").fingerprint == Ensemble.load(f"{memory}/whole/ensemble").fingerprint
    lines = [[line["step"] for line in Run.open(f"{memory}/{name}").metrics()] for name in ("whole", "part")]
    assert lines[0] == lines[1]


def test_storage_that_refuses(tree, bucket, denied, tmp_path, capsys):  # noqa: F811
    photos = upload(tree, f"{bucket}/photos")
    asked = ["extract", photos, *BACKBONE, "--workers", 0, "--out"]
    code, _, err = run(capsys, *asked, "s3://no-such-bucket-here/features")
    assert code == 2
    assert "there is nothing at this address" in err.splitlines()[-1]
    assert "no-such-run" in refuse(capsys, "predict", f"{bucket}/no-such-run", tree)
    assert "pip install gcsfs" in refuse(capsys, "extract", tree, *BACKBONE, "--out", "gs://bucket/features")
    assert "nonsense:// is not" in refuse(capsys, "train", "nonsense://features", "--out", tmp_path / "run")
    denied()
    for command in (
        [*asked, tmp_path / "f"],
        ["train", f"{bucket}/features", "--out", tmp_path / "run"],
        ["extract", tree, *BACKBONE, "--out", f"{bucket}/features"],
        ["predict", f"{bucket}/run", tree],
    ):
        code, _, err = run(capsys, *command)
        assert code == 2
        assert "permission denied" in err.splitlines()[-1], command
