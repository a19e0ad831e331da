"""new_ensemble: the tail, the norm and the weights that members begin with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dissensus
from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.features import FeatureSet
from dissensus.models import tails
from dissensus.training.create import check_tail, new_ensemble
from tests.conftest import blobs


def extracted(layers: int) -> FeatureSet:
    """Features that name the backbone they could come from."""
    backbone = backbones.create("test_vit", "random", layers, size=32)
    with torch.inference_mode():
        rows = backbone.trunk(torch.randn(6, 3, 32, 32))
    return FeatureSet.from_arrays(rows.clone(), torch.arange(6) % 3, provenance={"backbone": backbone.describe()})


def test_it_is_a_name_of_the_package():
    assert dissensus.new_ensemble is new_ensemble
    ensemble = new_ensemble(blobs())
    assert ensemble.about == {"name": "linear", "features": 6, "classes": 3, "norm": "l2"}
    assert len(ensemble) == 5
    with torch.no_grad():
        torch.testing.assert_close(ensemble(blobs().rows(slice(4))), ensemble(100 * blobs().rows(slice(4))))


@pytest.mark.parametrize("tail", ["linear", "mlp", "conv"])
def test_every_tail_has_a_default_norm_and_takes_another(tail):
    assert new_ensemble(blobs(), 2, tail=tail).tail.norm == ("l2" if tail == "linear" else "none")
    for norm in tails.NORMS:
        assert new_ensemble(blobs(), 2, tail=tail, norm=norm).about["norm"] == norm


@pytest.mark.parametrize(
    ("layers", "tail", "init", "name", "norm"),
    [
        (1, None, "random", "linear", "l2"),
        (1, "linear", "pretrained", "linear", "none"),
        (1, None, "pretrained", "linear", "none"),
        (1, "backbone", "random", "linear", "none"),
        (2, None, "random", "mlp", "none"),
        (2, None, "pretrained", "mlp", "none"),
    ],
)
def test_weights_of_the_backbone_expect_features_as_they_are(layers, tail, init, name, norm, monkeypatch):
    features = extracted(layers)
    tail_of_backbone = tails.build(features.provenance["backbone"]["tail"])
    restored = type("Restored", (), {"tail": tail_of_backbone})
    monkeypatch.setattr(backbones, "restore", lambda about: restored)  # random weights cannot be loaded again
    if layers == 1 and init == "pretrained":  # a head for other classes has nothing in common but its bias's name
        features = FeatureSet.from_arrays(
            features.rows(slice(None)), torch.arange(6) % 3,
            classes=[str(i) for i in range(1000)], provenance=features.provenance,
        )  # fmt: skip
    ensemble = new_ensemble(features, 2, tail=tail, init=init)
    assert (ensemble.about["name"], ensemble.about["norm"]) == (name, norm)
    given = new_ensemble(features, 2, tail=tail, init=init, norm="layer")
    assert given.about == {**ensemble.about, "norm": "layer"}


def test_the_tail_of_features_from_before_norms_is_raw():
    features = extracted(1)
    about = features.provenance["backbone"]
    assert about["tail"].pop("norm") == "none"
    assert new_ensemble(features, 2, tail="backbone").tail.norm == "none"


def test_unknown_names_and_what_does_not_fit(monkeypatch):
    class Plain(nn.Linear):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__(features, classes)

    monkeypatch.setitem(tails.TAILS, "plain", tails.TailType(Plain, {1: 0}))
    assert type(new_ensemble(blobs(), 2, tail="plain").tail) is Plain
    for tail in ("plain", "linear", "backbone"):
        check_tail(tail)
    with pytest.raises(DissensusError, match="tail plain takes no norm; got norm l2"):
        new_ensemble(blobs(), 2, tail="plain", norm="l2")
    with pytest.raises(UnknownNameError, match="unknown norm 'l1': did you mean 'l2'"):
        new_ensemble(blobs(), 2, norm="l1")
    with pytest.raises(UnknownNameError, match="unknown norm 'l1': did you mean 'l2'"):
        check_tail("backbone", "l1")
    with pytest.raises(UnknownNameError, match="unknown tail 'backbones': did you mean 'backbone'"):
        check_tail("backbones")
    with pytest.raises(DissensusError, match="init must be random or pretrained; got 'warm'"):
        new_ensemble(blobs(), 2, init="warm")
    with pytest.raises(DataError, match="tail linear with init pretrained needs a backbone"):
        new_ensemble(blobs(), 2, init="pretrained")
