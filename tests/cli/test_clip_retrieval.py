"""Commands on folders that clip-retrieval wrote: img_emb/*.npy and metadata/*.parquet, without an index."""

from __future__ import annotations

import numpy as np
import pytest

from dissensus.features import is_features
from tests.commands import refuse, run
from tests.features.test_opening import TEXT, X, clip_folder
from tests.storage import upload
from tests.trees import images


@pytest.mark.parametrize("place", ["local", "memory"])
def test_train_calibrate_and_predict(place, tmp_path, memory, capsys):
    where = clip_folder(tmp_path / "clip", {"label": TEXT}, x=X)
    if place == "memory":
        where = upload(where, f"{memory}/clip")
    assert is_features(where)
    trained = tmp_path / "run"
    for command in (
        ["train", where, "--out", trained, "--members", 2, "--epochs", 2, "--batch-size", 4, "--no-progress"],
        ["calibrate", trained, "--id", where, "--false-alarms", 0.2],
    ):
        code, _, err = run(capsys, *command)
        assert code == 0, err
    code, out, err = run(capsys, "predict", trained, where)
    assert code == 0, err
    assert len(out.splitlines()) == len(X)
    assert "must be the only path" in refuse(capsys, "predict", trained, where, tmp_path)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_what_is_not_features(place, tmp_path, memory, capsys):
    unfinished = clip_folder(tmp_path / "unfinished", {"label": TEXT})
    (unfinished / "plan.json").write_text("{}")
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "0.npy", X)
    images(tmp_path / "photos" / "cat", 2)
    root = upload(tmp_path, f"{memory}/home") if place == "memory" else tmp_path
    assert not any(is_features(f"{root}/{name}") for name in ("unfinished", "arrays", "photos", "nothing"))
    command = ["train", "--out", tmp_path / "run"]
    assert "it was never finished" in refuse(capsys, *command, f"{root}/unfinished")
    assert "arrays does not: check the path" in refuse(capsys, *command, f"{root}/arrays")
    assert "photos is a folder of images: extract them first" in refuse(capsys, *command, f"{root}/photos")
