"""Fitted scores of an ensemble: kept beside its weights, read on first use, refused if they are not those saved."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from torch import Tensor

from dissensus._core.errors import RunError
from dissensus.functional import scores
from dissensus.functional.fitted import FittedScore, Rows
from dissensus.models.ensemble import Ensemble
from dissensus.training import fit_scores
from tests.conftest import blobs, linear
from tests.damage import sealed


@pytest.fixture
def ensemble() -> Ensemble:
    ensemble = linear()
    fit_scores(ensemble, blobs(), ["mahalanobis", "knn"])
    return ensemble


def test_they_are_no_part_of_the_weights(ensemble):
    plain = linear()
    assert list(ensemble.fitted) == ["mahalanobis", "knn"]
    assert list(ensemble.state_dict()) == list(plain.state_dict())
    assert ensemble.fingerprint == plain.fingerprint
    assert len(list(ensemble.parameters())) == len(list(plain.parameters()))
    assert list(ensemble.buffers()) == []


def test_what_is_saved_is_loaded_on_first_use(ensemble, tmp_path):
    ensemble.save(tmp_path)
    loaded = Ensemble.load(tmp_path)
    assert loaded.score_digests == ensemble.score_digests
    assert loaded.fitted._loaded == {}, "nothing was needed yet"
    x = blobs(50, seed=3).rows(slice(None))
    for name in ("mahalanobis", "knn"):
        one, two = (scores.compute(name, e(x), x, e.fitted) for e in (ensemble, loaded))
        assert torch.equal(one, two), name
    assert "bma" not in loaded.fitted
    with pytest.raises(KeyError):
        loaded.fitted["vim"]


def test_saving_again_keeps_them_and_without_any_there_is_no_file(ensemble, tmp_path):
    ensemble.save(tmp_path)
    loaded = Ensemble.load(tmp_path)
    loaded.save(tmp_path)
    loaded.save(tmp_path / "other")
    for folder in (tmp_path, tmp_path / "other"):
        assert Ensemble.load(folder).score_digests == ensemble.score_digests
    del loaded.fitted["knn"]
    assert list(loaded.fitted) == ["mahalanobis"]
    assert len(loaded.fitted) == 1
    loaded.save(tmp_path)
    assert list(Ensemble.load(tmp_path).fitted) == ["mahalanobis"]
    loaded.fitted = {}
    loaded.save(tmp_path)
    assert not (tmp_path / "scores.safetensors").exists()
    assert dict(Ensemble.load(tmp_path).fitted) == {}


def test_a_score_that_is_set_again_has_its_own_digest(ensemble, tmp_path):
    ensemble.save(tmp_path)
    loaded = Ensemble.load(tmp_path)
    other = linear()
    fit_scores(other, blobs(seed=5), ["mahalanobis"])
    loaded.fitted["mahalanobis"] = other.fitted["mahalanobis"]
    assert loaded.score_digests["mahalanobis"] == other.score_digests["mahalanobis"]
    assert loaded.score_digests["mahalanobis"] != ensemble.score_digests["mahalanobis"]
    assert loaded.score_digests["knn"] == ensemble.score_digests["knn"]


def test_copies_and_pickles_have_them(ensemble, tmp_path):
    ensemble.save(tmp_path)
    for one in (ensemble, Ensemble.load(tmp_path)):
        for again in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert again.score_digests == ensemble.score_digests
            assert torch.equal(again.fitted["knn"].state_dict()["bank"], ensemble.fitted["knn"].state_dict()["bank"])


def test_they_follow_the_logits_to_a_device(ensemble):
    x, logits = torch.empty(2, 6, device="meta"), torch.empty(4, 2, 3, device="meta")
    assert scores.compute("mahalanobis", logits, x, copy.deepcopy(ensemble).fitted).device.type == "meta"


def test_damage_is_one_line(ensemble, tmp_path):
    def refused() -> str:
        with pytest.raises(RunError) as caught:
            _ = Ensemble.load(tmp_path).fitted["mahalanobis"]
        message = str(caught.value)
        assert "\n" not in message
        assert str(tmp_path) in message
        assert message.endswith("train the ensemble again")
        return message

    ensemble.save(tmp_path)
    file, document = tmp_path / "scores.safetensors", tmp_path / "ensemble.json"
    whole, info = file.read_bytes(), json.loads(document.read_text())
    file.write_bytes(whole[:-10])
    assert "scores.safetensors is damaged" in refused()
    file.write_bytes(b"nothing")
    assert "scores.safetensors is damaged" in refused()
    file.write_bytes(whole[:-4] + bytes(4))  # values of the last tensor
    messages = [str(error.value) for name in ("mahalanobis", "knn") if (error := _error(tmp_path, name))]
    assert messages
    assert all("is not the one that was saved" in message for message in messages)
    file.unlink()
    assert "there is no file" in refused()
    other = linear()
    fit_scores(other, blobs(seed=5), ["mahalanobis", "knn"])
    other.save(tmp_path / "other")
    file.write_bytes((tmp_path / "other" / "scores.safetensors").read_bytes())
    assert "the score mahalanobis in" in refused()
    file.write_bytes(whole)
    for names, words in (
        ({"mahalanobiss": "a" * 64}, "unknown score 'mahalanobiss': did you mean 'mahalanobis'?"),
        ({"pds": "a" * 64}, "has 'pds' as a fitted score, which is one of logits"),
        ({"vim": "a" * 64}, "the score vim in"),
    ):
        document.write_text(sealed({**info, "scores": names}))
        with pytest.raises(RunError, match=r"train the ensemble again$") as caught:
            _ = Ensemble.load(tmp_path).fitted["vim"]
        assert words in str(caught.value)


def _error(folder, name):
    try:
        with pytest.raises(RunError) as caught:
            _ = Ensemble.load(folder).fitted[name]
    except pytest.fail.Exception:
        return None  # the damage is in the other score
    return caught


def test_a_score_of_yours_is_kept_while_it_is_registered(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "SCORES", scores.SCORES.copy())

    @scores.register
    class Distance(FittedScore):
        """Distance to the mean of the training features."""

        name = "own.distance"  # a dot does not confuse names with those of tensors
        mean: Tensor

        @classmethod
        def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
            return {"mean": torch.cat([x for x, _ in features.batches()]).mean(0)}

        def forward(self, features: Tensor, logits: Tensor) -> Tensor:
            return (features - self.mean).norm(dim=1)

    ensemble = linear()
    fit_scores(ensemble, blobs(), ["own.distance", "mahalanobis"])
    ensemble.save(tmp_path)
    x = blobs(5).rows(slice(None))
    loaded = Ensemble.load(tmp_path)
    assert torch.equal(
        scores.compute("own.distance", loaded(x), x, loaded.fitted),
        (x - blobs().rows(slice(None)).mean(0)).norm(dim=1),
    )
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"unknown score 'own.distance'.*; register it first, or train"):
        Ensemble.load(tmp_path)
