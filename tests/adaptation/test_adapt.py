"""adapt: what it does with few labels, with one, with many, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dissensus import FeatureSet, adapt, ask, fit
from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus.adaptation import _adapt
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from tests.conftest import blobs, linear

CLASSES = ("0", "1", "2")


@pytest.fixture(scope="module")
def ensemble():
    return fit(linear(), blobs(), "deep-ensemble", epochs=20, lr=1e-2, batch_size=32, progress=False)


def some(count, seed=3):
    return blobs(count, seed=seed)


def cue(count, tied, seed=0):
    """Two features that tell two classes apart: the first always, the second, larger, only where it is tied."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    sign = 2.0 * labels - 1
    other = sign if tied else 2.0 * torch.randint(2, (count,), generator=generator) - 1
    x = torch.stack([sign, 3 * other], 1) + 0.4 * torch.randn(count, 2, generator=generator)
    return FeatureSet.from_arrays(x, labels)


def of_two_kinds():
    """Four members of which one reads the first feature; the others read the cue."""
    ensemble = Ensemble(tails.Linear(2, 2, "none"), members=4, seed=0)
    with torch.no_grad():
        for m, direction in enumerate([(0.0, 1.0), (0.2, 1.0), (1.0, 0.0), (-0.2, 1.0)]):
            row = torch.tensor(direction)
            ensemble.stacked()["weight"][m] = torch.stack([-row, row])
            ensemble.stacked()["bias"][m] = 0
    return ensemble.eval()


def accuracy(ensemble, features):
    logits = ensemble(features.rows(slice(None))).mean(0)
    return float((logits.argmax(-1) == features.labels).double().mean())


def test_four_questions_find_the_member_that_holds_and_beat_a_new_head():
    ensemble, train, there = of_two_kinds(), cue(200, True), cue(1000, False, seed=1)
    assert accuracy(ensemble, cue(1000, True, seed=2)) > 0.99
    assert accuracy(ensemble, there) < 0.7
    gains = []
    for seed in range(10):
        pool = cue(100, False, seed=10 + seed)
        labelled = pool.subset(ask(ensemble, pool, 4).rows)
        adapted = adapt(ensemble, labelled, train=train)
        gains.append((adapted.document.member, accuracy(adapted.ensemble, there)))
        if len(set(labelled.labels.tolist())) > 1:
            gains[-1] += (accuracy(adapt(ensemble, labelled, "head", train=train).ensemble, there),)
    assert [gain[0] for gain in gains] == [2] * 10
    ours, heads = (np.array([gain[i] for gain in gains if len(gain) > 2]) for i in (1, 2))
    assert len(heads) >= 5
    assert ours.mean() > 0.95
    assert (ours > heads).all()


def test_it_says_what_it_does(ensemble):
    labelled = some(6)
    adapted = adapt(ensemble, labelled, run="runs/mine")
    document = adapted.document
    assert (document.labels, document.per_class) == (6, {"0": 2, "1": 2, "2": 2})
    assert document.ensemble == ensemble.fingerprint
    assert document.labelled == labelled.fingerprint
    assert document.run == "runs/mine"
    assert [way.name for way in document.ways if way.chosen] == ["prior"]
    assert adapted.way == f"prior on member {document.member + 1}"
    assert "on the labels themselves" in adapted.table.text()
    assert document.reason in adapted.reason
    assert "6 labels" in repr(adapted)
    assert len(adapted.ensemble) == 1


def test_the_best_member_and_all_members_are_not_changed(ensemble):
    before = ensemble.fingerprint
    adapted = adapt(ensemble, some(6), "member")
    assert adapted.way == f"member {adapted.document.member + 1}"
    x = some(6).rows(slice(None))
    torch.testing.assert_close(adapted.ensemble(x)[0], ensemble(x)[adapted.document.member])
    assert ensemble.fingerprint == before
    assert adapted.reason.startswith("By member, as asked.")


@pytest.mark.parametrize("by", ["auto", "member", "prior", "weights"])
def test_one_label_is_enough(ensemble, by):
    adapted = adapt(ensemble, some(9).subset([1]), by, classes=CLASSES)
    assert adapted.document.labels == 1
    assert "with 1 label;" in repr(adapted)
    assert "head" not in [way.name for way in adapted.document.ways]


def test_labels_of_one_class_are_enough_but_for_a_head(ensemble):
    one = some(30).subset(torch.arange(0, 30, 3))
    assert adapt(ensemble, one).document.per_class == {"0": 10}
    with pytest.raises(DataError, match="a new head needs labels of two classes"):
        adapt(ensemble, one, "head")


def test_labels_that_are_all_right_leave_it_as_it_is(ensemble):
    sure = blobs(100, seed=9, noise=0.01)
    for count in (8, 100):
        adapted = adapt(ensemble, sure.subset(torch.arange(count)))
        assert adapted.way == "as it is"
        assert adapted.ensemble.fingerprint == ensemble.fingerprint
        assert "nothing to adapt" in adapted.reason
        assert set(adapted.ensemble.fitted) == set(ensemble.fitted)
    assert adapt(ensemble, sure.subset(torch.arange(7))).way != "as it is"


def test_a_sample_labelled_twice_counts_once_and_contradictions_raise(ensemble):
    x = some(4).rows(slice(None))
    twice = FeatureSet.from_arrays(torch.cat([x, x[:1]]), [0, 1, 2, 0, 0])
    assert adapt(ensemble, twice).document.labels == 4
    against = FeatureSet.from_arrays(torch.cat([x, x[:1]]), [0, 1, 2, 0, 1])
    with pytest.raises(DataError, match="rows 0 and 4 are the same sample, labelled '0' and '1': correct one"):
        adapt(ensemble, against)


def test_bad_labels_raise(ensemble):
    x = some(6).rows(slice(None))
    with pytest.raises(DataError, match="'cat' is not among '0', '1', '2'"):
        adapt(ensemble, FeatureSet.from_arrays(x, ["cat", "0", "1", "2", "0", "0"]), classes=CLASSES)
    with pytest.raises(DataError, match="needs labels; got an unlabelled set"):
        adapt(ensemble, FeatureSet.from_arrays(x))
    with pytest.raises(ShapeError, match="features of width 6; the labelled set has rows of shape"):
        adapt(ensemble, FeatureSet.from_arrays(x[:, :4], some(6).labels))
    with pytest.raises(DataError, match="classes must name the 3 classes of the ensemble; got 2"):
        adapt(ensemble, FeatureSet.from_arrays(x, [0, 1, 0, 1, 0, 1]))
    with pytest.raises(DissensusError, match="adapt goes by auto, member"):
        adapt(ensemble, some(6), "magic")
    twice = FeatureSet.from_arrays(x, [0, 1, 2, 0, 1, 2], provenance={"passes": 2})
    with pytest.raises(DataError, match="2 augmented passes"):
        adapt(ensemble, twice)


def test_classes_may_come_in_another_order(ensemble):
    labelled = some(9)
    names = [("c", "a", "b")[c] for c in labelled.labels.tolist()]
    renamed = FeatureSet.from_arrays(labelled.rows(slice(None)), names)  # its classes are a, b, c
    one, other = adapt(ensemble, labelled), adapt(ensemble, renamed, classes=("c", "a", "b"))
    assert one.ensemble.fingerprint == other.ensemble.fingerprint


def test_the_order_of_labels_does_not_matter(ensemble):
    labelled = some(9)
    one, other = adapt(ensemble, labelled), adapt(ensemble, labelled.subset(torch.arange(8, -1, -1)))
    assert one.document.member == other.document.member
    x = some(50, seed=8).rows(slice(None))
    torch.testing.assert_close(one.ensemble(x), other.ensemble(x), rtol=1e-3, atol=1e-3)


def test_training_features_are_needed_and_checked(ensemble):
    bare = Ensemble(ensemble.member(0), members=1, init="template")
    with pytest.raises(DataError, match="this ensemble keeps none"):
        adapt(bare, some(6))
    adapt(bare, some(6), train=blobs())
    with pytest.raises(DataError, match="training features need labels"):
        adapt(bare, some(6), train=FeatureSet.from_arrays(blobs().rows(slice(None))))
    with pytest.raises(DataError, match="classes of the ensemble, in its order"):
        adapt(bare, some(6), train=blobs(classes=4))


def test_training_features_that_are_kept_are_those_that_would_be_given(ensemble):
    kept, given = adapt(ensemble, some(6)), adapt(ensemble, some(6), train=blobs())
    x = some(20, seed=8).rows(slice(None))
    torch.testing.assert_close(kept.ensemble(x), given.ensemble(x), rtol=1e-3, atol=1e-3)


def test_one_member_is_adapted_without_doubt():
    single = fit(linear(1), blobs(), "single", epochs=5, lr=1e-2, batch_size=32, progress=False)
    adapted = adapt(single, some(6))
    assert adapted.way == "prior on member 1"
    assert adapted.document.doubt == ""


def test_members_that_are_alike_cannot_be_told_apart(ensemble):
    alike = Ensemble(ensemble.member(0), members=3, init="template")
    adapted = adapt(alike, some(6), train=blobs())
    assert adapted.document.member == 0
    assert "6 labels cannot tell members 1, 2, 3 apart: label samples on which they differ" in adapted.document.doubt


def test_members_that_differ_enough_leave_no_doubt():
    there = cue(200, False, seed=4)
    adapted = adapt(of_two_kinds(), there.subset(torch.arange(30)), "member", train=cue(200, True))
    assert adapted.document.member == 2
    assert adapted.document.doubt == ""
    few = adapt(of_two_kinds(), there.subset(torch.arange(3)), "member", train=cue(200, True))
    assert "3 labels cannot tell members" in few.document.doubt


def test_many_labels_are_cross_validated():
    ensemble, there = of_two_kinds(), cue(120, False, seed=5)
    adapted = adapt(ensemble, there, train=cue(200, True))
    document = adapted.document
    assert document.cross_validated
    assert {way.name for way in document.ways} == set(_adapt.WAYS)
    assert "By 5-fold cross-validation on 120 labels" in adapted.reason
    assert "in cross-validation" in adapted.table.text()
    assert accuracy(adapted.ensemble, cue(500, False, seed=6)) > 0.95
    assert adapt(ensemble, there, "weights", train=cue(200, True)).way == "weights"


def test_cross_validation_begins_with_enough_labels():
    ensemble, train = of_two_kinds(), cue(200, True)
    there = cue(60, False, seed=5)
    assert not adapt(ensemble, there.subset(torch.arange(49)), train=train).document.cross_validated
    assert adapt(ensemble, there.subset(torch.arange(50)), train=train).document.cross_validated


def test_a_class_with_one_label_goes_through_cross_validation(ensemble):
    many = some(120)
    labels = many.labels.clone()
    keep = torch.cat([(labels != 2).nonzero().flatten()[:70], (labels == 2).nonzero().flatten()[:1]])
    adapted = adapt(ensemble, many.subset(keep), classes=CLASSES)
    assert adapted.document.per_class["2"] == 1


def test_adapted_again_it_is_recorded(ensemble):
    first = adapt(ensemble, some(6))
    second = adapt(first.ensemble, some(9, seed=4), before=first.document, train=blobs())
    third = adapt(second.ensemble, some(9, seed=5), before=second.document, train=blobs())
    assert second.document.before == (first.document.summary,)
    assert third.document.before == (first.document.summary, second.document.summary)


def test_scores_of_features_are_kept_and_others_are_not():
    names = ("mahalanobis", "knn", "vim")
    ensemble = fit(linear(), blobs(), "deep-ensemble", epochs=5, lr=1e-2, batch_size=32, progress=False, scores=names)
    adapted = adapt(ensemble, some(6))
    assert set(adapted.ensemble.fitted) == {"mahalanobis", "knn"}
    assert set(ensemble.fitted) == {"mahalanobis", "knn", "vim"}


def test_it_is_deterministic(ensemble):
    one, two = adapt(ensemble, some(6)), adapt(ensemble, some(6))
    assert one.document == two.document
    assert one.ensemble.fingerprint == two.ensemble.fingerprint
