"""Ranking: AUROCs and their noise equal naive references, combinations are those of detectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dissensus.adaptation.rank import pool, rank, shares
from dissensus.functional import conformal
from dissensus.functional.comparisons import placements

SETS = {"id": 40, "classes": 15, "jigsaw": 12, "speckle": 12, "box_blur": 12}


def made(seed=0, shift=1.0):
    """Values of three scores on ID samples and stand-ins; views are of the first ID samples."""
    random = np.random.default_rng(seed)
    values = {}
    for name in ("mahalanobis", "pds", "feature_norm"):
        values[name] = {
            each: torch.from_numpy(random.normal(0 if each == "id" else shift, 1, count)).float()
            for each, count in SETS.items()
        }
    samples = {name: torch.arange(count) for name, count in SETS.items()}
    samples["classes"] = samples["classes"] + SETS["id"]
    return values, samples


def naive_auroc(inside, outside):
    return np.mean([[(o > i) + 0.5 * (o == i) for i in inside.tolist()] for o in outside.tolist()])


def test_a_single_score_is_the_mean_over_both_halves():
    values, samples = made()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    ranked = rank("pds", values, samples)
    for name in ("classes", "jigsaw", "speckle"):
        expected = [naive_auroc(values["pds"]["id"][half], values["pds"][name]) for half in (order[::2], order[1::2])]
        assert ranked.aurocs[name] == pytest.approx(np.mean(expected))


def test_a_combination_is_the_evidence_of_detectors_with_references_of_the_other_half():
    values, samples = made()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    names, expected = ("mahalanobis", "pds"), []
    for reference, test in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        references = [values[name]["id"][reference].sort().values for name in names]
        both = [
            conformal.evidence(references, [values[name][each] for name in names], (2.0, 1.0))
            for each in ("id", "jigsaw")
        ]
        expected.append(naive_auroc(both[0][test], both[1]))
    assert rank("2*mahalanobis+pds", values, samples).aurocs["jigsaw"] == pytest.approx(np.mean(expected), abs=1e-6)


def test_the_mean_weighs_kinds_equally_and_corruptions_together():
    values, samples = made()
    ranked = rank("pds", values, samples)
    corruptions = (ranked.aurocs["speckle"] + ranked.aurocs["box_blur"]) / 2
    assert ranked.kinds == pytest.approx(
        {"classes": ranked.aurocs["classes"], "jigsaw": ranked.aurocs["jigsaw"], "corruptions": corruptions}
    )
    assert ranked.mean == pytest.approx((ranked.aurocs["classes"] + ranked.aurocs["jigsaw"] + corruptions) / 3)


def test_the_error_of_independent_sets_is_that_of_delong():
    values, samples = made(seed=3)
    values = {"pds": {name: values["pds"][name] for name in ("id", "classes")}}
    samples = {name: samples[name] for name in ("id", "classes")}
    ranked = rank("pds", values, samples)
    of_id, of_ood = (v.numpy() for v in placements(values["pds"]["id"], values["pds"]["classes"]))
    delong = math.sqrt(of_id.var() / len(of_id) + of_ood.var() / len(of_ood))
    assert ranked.error() == pytest.approx(delong, rel=0.03)  # halves are centred apart
    assert float(ranked.influence.sum()) == pytest.approx(0, abs=1e-12)


def test_the_error_of_a_difference_is_that_of_resampling_samples_with_all_their_parts():
    """A view and its image are drawn together."""
    values, samples = made(seed=1)
    one, two = rank("mahalanobis", values, samples), rank("pds", values, samples)
    random, differences = np.random.default_rng(0), []
    for _ in range(400):
        images, others = random.integers(0, 40, 40), random.integers(0, 15, 15)
        views = torch.tensor([i for i in images.tolist() if i < 12])
        means = []
        for name in ("mahalanobis", "pds"):
            inside = values[name]["id"][torch.from_numpy(images)]
            each = [naive_auroc(inside, values[name][s][views]) for s in ("jigsaw", "speckle", "box_blur")]
            classes = naive_auroc(inside, values[name]["classes"][torch.from_numpy(others)])
            means.append((classes + each[0] + (each[1] + each[2]) / 2) / 3)
        differences.append(means[0] - means[1])
    assert one.error(two) == pytest.approx(np.std(differences), rel=0.2)
    assert one.error(one) == 0
    assert one.error(two) == pytest.approx(two.error(one))


def test_the_spread_between_the_classes_left_out_adds_to_the_error():
    values, samples = made()
    classes = torch.arange(15) % 5
    one, two = (rank(name, values, samples, classes) for name in ("mahalanobis", "pds"))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    each = []
    for name in ("mahalanobis", "pds"):
        inside, outside = values[name]["id"], values[name]["classes"]
        halves = [order[::2], order[1::2]]
        each.append([np.mean([naive_auroc(inside[h], outside[classes == c]) for h in halves]) for c in range(5)])
    assert one.by_class.tolist() == pytest.approx(each[0])
    spread = np.subtract(*each).std(ddof=1) / math.sqrt(5) / 3  # of three kinds
    without = rank("mahalanobis", values, samples).error(rank("pds", values, samples))
    assert one.error(two) == pytest.approx(math.hypot(without, spread))


def part(fold, *names):
    """The values and samples of some sets."""
    values, samples = fold
    values = {score: {name: sets[name] for name in names} for score, sets in values.items()}
    return values, {name: samples[name] for name in names}


def pooled(score, folds, classes):
    share = shares([[name for name in samples if name != "id"] for _, samples in folds])
    return pool([rank(score, *fold, c, s) for fold, c, s in zip(folds, classes, share, strict=True)])


def test_folds_are_pooled_as_independent():
    first, second = (rank("pds", *made(seed)) for seed in (0, 1))
    both = pooled("pds", [made(0), made(1)], [None, None])
    assert both.mean == pytest.approx((first.mean + second.mean) / 2)
    assert both.aurocs["speckle"] == pytest.approx((first.aurocs["speckle"] + second.aurocs["speckle"]) / 2)
    assert both.error() == pytest.approx(math.hypot(first.error(), second.error()) / 2)


def test_a_stand_in_is_averaged_over_the_folds_that_have_it():
    """Mean, error and classes are of the same stand-ins."""
    folds = [part(made(0), "id", "classes", "jigsaw"), part(made(1), "id", "jigsaw")]
    by_class = torch.arange(15) % 5
    both = pooled("pds", folds, [by_class, None])
    classes = rank("pds", *part(made(0), "id", "classes"), by_class)
    jigsaws = [rank("pds", *part(made(seed), "id", "jigsaw")) for seed in (0, 1)]
    assert both.kinds == pytest.approx({"classes": classes.mean, "jigsaw": (jigsaws[0].mean + jigsaws[1].mean) / 2})
    first = classes.influence / 2
    first[:40] += jigsaws[0].influence / 4
    assert both.influence.tolist() == pytest.approx([*first.tolist(), *(jigsaws[1].influence / 4).tolist()])
    spread = float(classes.by_class.std()) / math.sqrt(5) / 2  # of two kinds
    assert both.error() == pytest.approx(math.hypot(float(both.influence.square().sum()) ** 0.5, spread))


def test_shares_sum_to_one():
    first, second = shares([["jigsaw", "speckle"], ["classes", "jigsaw", "speckle", "box_blur"]])
    assert first == pytest.approx({"jigsaw": 1 / 6, "speckle": 1 / 12})
    assert second == pytest.approx({"classes": 1 / 3, "jigsaw": 1 / 6, "speckle": 1 / 12, "box_blur": 1 / 6})
    assert sum([*first.values(), *second.values()]) == pytest.approx(1)
