"""A shard that is cut off while a run reads it is one line, not SIGBUS, and what was trained is kept."""

from __future__ import annotations

import os

import pytest
import torch

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.training import step
from dissensus.training._fit import fit
from tests.conftest import blobs, linear, small_blocks


@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_a_shard_that_is_truncated_during_training_is_one_line(shuffle, tmp_path, monkeypatch):
    small_blocks(monkeypatch)
    features = blobs(300).save(tmp_path / "f", dtype="float32", shard_rows=100)
    shard = tmp_path / "f" / "img_emb" / "img_emb_00001.npy"
    whole, original, steps = shard.read_bytes(), step.Stepper.__call__, []

    def cutting(self, *arguments):
        steps.append(None)
        if len(steps) == 5:
            os.truncate(shard, 1000)
        return original(self, *arguments)

    def train(out):
        options = {"epochs": 4, "batch_size": 32, "shuffle": shuffle, "checkpoint_seconds": 0, "progress": False}
        return fit(linear(), FeatureSet.open(features.folder), out=tmp_path / out, **options)

    with monkeypatch.context() as patch:
        patch.setattr(step.Stepper, "__call__", cutting)
        with pytest.raises(DataError, match=rf"\A[^\n]*{shard.name} is truncated, 1000: copy or write it again\Z"):
            train("run")
    shard.write_bytes(whole)
    for name, value in train("run").stacked().items():  # goes on from the last step
        assert torch.equal(value, train("other").stacked()[name])
