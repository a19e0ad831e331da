"""Splits: parts do not overlap, have their share of every class, and leave something to train on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus._core.errors import DataError
from dissensus.adaptation import splits
from tests.conftest import blobs


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=60), st.integers(0, 1000))
def test_parts_do_not_overlap_and_every_class_can_be_trained(labels, seed):
    labels = np.array(labels)
    held, rest = splits.divide(labels, 0.2, seed)
    assert sorted([*held, *rest]) == list(range(len(labels)))
    assert set(labels[rest]) == set(labels)
    try:
        made = splits.folds(labels, rest, seed)
    except DataError:
        return
    for fold in made:
        parts = [set(fold.fit), set(fold.inside), set(fold.outside)]
        assert not set(held) & set.union(*parts)
        assert sum(map(len, parts)) == len(set.union(*parts))
        assert set(labels[fold.fit]) == set(labels[fold.inside]) | set(fold.kept) == set(fold.kept)
        assert not set(labels[fold.outside]) & set(fold.kept)


def test_shares():
    labels = np.repeat(np.arange(10), 50)
    held, rest = splits.divide(labels, 0.2, 0)
    assert np.bincount(labels[held]).tolist() == [10] * 10
    made = splits.folds(labels, rest, 0)
    assert len(made) == splits.FOLDS
    for fold in made:
        assert len(fold.kept) == 8
        assert len(fold.inside) == 8 * 8
        assert len(fold.outside) == 2 * 8
        assert len(fold.fit) == 8 * 32
    held_out = [set(fold.inside) | set(fold.outside) for fold in made]
    assert len(set.union(*held_out)) == sum(map(len, held_out)), "held-out parts do not overlap"


def test_the_same_seed_gives_the_same_parts():
    labels = np.arange(300) % 7
    one, two, other = (splits.folds(labels, np.arange(300), seed)[0] for seed in (1, 1, 2))
    assert one.inside.tolist() == two.inside.tolist()
    assert one.inside.tolist() != other.inside.tolist()


def test_large_sets_have_one_fold_of_bounded_size(monkeypatch):
    monkeypatch.setattr(splits, "SMALL", 100)
    monkeypatch.setattr(splits, "FIT_ROWS", 90)
    monkeypatch.setattr(splits, "ID_ROWS", 10)
    (fold,) = splits.folds(np.arange(300) % 6, np.arange(300), 0)
    assert (len(fold.fit), len(fold.inside)) == (90, 10)


def test_two_classes_have_none_to_leave_out():
    for fold in splits.folds(np.arange(40) % 2, np.arange(40), 0):
        assert len(fold.outside) == 0
        assert fold.kept.tolist() == [0, 1]


def test_labels_are_counted_among_the_kept_classes():
    features = blobs(120, classes=6)
    fold = splits.folds(features.labels.numpy(), np.arange(120), 0)[0]
    part = fold.relabelled(features, fold.fit)
    assert part.classes == tuple(features.classes[c] for c in fold.kept)
    assert [part.classes[c] for c in part.labels] == [features.classes[c] for c in features.labels[fold.fit]]


def test_samples_that_cannot_be_held_out_are_one_line():
    with pytest.raises(DataError, match="got 5 samples of 5 classes: add samples") as caught:
        splits.folds(np.arange(5), np.arange(5), 0)
    assert "\n" not in str(caught.value)
