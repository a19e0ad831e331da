"""The study few-labels: labels are those of the pool, the same for every method, and a few of them are enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dissensus import suites
from dissensus._core.errors import DissensusError
from dissensus.adaptation import adapt
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.experiments import studies
from dissensus.experiments.studies import few_labels
from dissensus.experiments.studies.few_labels import RETRAINED, Simulation
from dissensus.experiments.studies.lab import Lab
from dissensus.features import FeatureSet
from dissensus.functional import metrics
from dissensus.models.ensemble import Ensemble
from dissensus.training import TrainOptions, fit, new_ensemble

TRAINING = TrainOptions(epochs=20, lr=0.05, batch_size=32)


def planted(seed: int, count: int, *, tied: bool) -> FeatureSet:
    """Two columns that predict the label equally well, unless the second, the cue, is not tied to it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    cue = labels if tied else torch.arange(count) // 2 % 2
    x = torch.stack([2.0 * labels - 1, 2 * (2.0 * cue - 1)], dim=1)
    x = x + 0.1 * torch.randn(count, 2, generator=generator)
    return FeatureSet.from_arrays(x, labels, classes=("a", "b"), groups=2 * labels + cue)


def cued(labels: int = 80) -> Suite:
    pool = planted(3, labels, tied=False)
    sets = (
        SuiteSet("id", "id", planted(1, 40, tied=True)),
        SuiteSet("groups", "groups", planted(2, 80, tied=False)),
    )
    return Suite("cued", "A cue.", planted(0, 120, tied=True), sets, pool=pool.unlabelled(), labels=pool)


def lab(tmp_path, suite: Suite | None = None, **options) -> Lab:
    options = {"norm": "none", "quick": True, **options}
    return Lab(lambda **changes: suite or cued(), tmp_path, TRAINING, progress=False, **options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder of several studies: what one has trained, the others find."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def deep() -> Ensemble:
    suite = cued()
    ensemble = new_ensemble(suite.train, 3, norm="none", seed=0)
    fit(ensemble, suite.train, "deep-ensemble", TRAINING, progress=False)
    return ensemble.eval()


def test_accuracy_is_that_of_the_groups(deep):
    accuracy = Simulation(cued(), 1).test_on_groups(deep)
    test = cued().sets[1].features
    right = (deep(test.rows(slice(None))).mean(0).argmax(-1) == test.labels).double()
    assert accuracy.worst == pytest.approx(metrics.worst_group(right, test.groups))
    assert accuracy.mean == pytest.approx(sum(float(right[test.groups == g].mean()) for g in range(4)) / 4)


def test_draws_are_the_same_for_every_ensemble_and_grow_by_adding(deep, monkeypatch):
    seen: list[list[int]] = []
    monkeypatch.setattr(Simulation, "with_labels", lambda self, e, rows, by="auto": seen.append(rows))
    simulation = Simulation(cued(), 2)
    for count, seed in ((4, 0), (4, 0), (8, 0), (4, 1)):
        simulation.at_random(deep, count, seed)
    first, again, more, other = (seen[i : i + 2] for i in range(0, 8, 2))
    assert first == again != other
    assert [rows[:4] for rows in more] == first
    assert first[0] != first[1]
    assert all(len(set(rows)) == 8 for rows in more)


def test_with_labels_is_adapt_on_those_rows(deep):
    suite, rows = cued(), [0, 3, 5, 6]
    simulation = Simulation(suite, 1)
    for by in ("auto", "head"):
        adapted = adapt(deep, suite.labels.subset(rows), by, train=suite.train).ensemble
        assert simulation.with_labels(deep, rows, by) == simulation.test_on_groups(adapted)


def test_a_new_head_from_labels_of_one_class_is_the_ensemble_as_it_is(deep):
    simulation = Simulation(cued(), 1)
    assert simulation.with_labels(deep, [0, 2, 4], "head") == simulation.test_on_groups(deep)


def test_the_study_shows_every_method_and_every_number_of_labels(shared):
    outcome = studies.run("few-labels", lab(shared))
    worst, mean = outcome.tables
    assert [row.names for row in worst.rows] == [row.names for row in mean.rows]
    assert {row.names for row in worst.rows} == {
        *((method, chosen) for method in few_labels.ROWS for chosen in ("random", "ask")),
        (RETRAINED, "random"),
    }
    assert [column.name for column in worst.columns] == ["0", "1", "2", "4", "8", "16", "64"]
    for row, other in zip(worst.rows, mean.rows, strict=True):
        assert all(a.mean <= b.mean + 1e-9 for a, b in zip(row.cells, other.cells, strict=True))
        assert [value.count for value in row.cells] == [1, *[3 if row.names[1] == "random" else 1] * 6]
    cells = {row.names: [value.mean for value in row.cells] for row in worst.rows}
    assert cells["deep-ensemble", "random"][0] == cells[RETRAINED, "random"][0] < 0.3, "the cue"
    assert cells["divdis", "random"][-1] > 0.9
    random, asked = outcome.curves
    assert set(random.lines) == {*few_labels.ROWS, RETRAINED}
    assert set(asked.lines) == set(few_labels.ROWS)
    (note,) = outcome.notes
    assert note.startswith("16 labels, worst group: a2d adapted ")
    assert f"the deep ensemble as it is {cells['deep-ensemble', 'random'][0]:.2f}." in note
    assert note in outcome.text(1000)


def test_seeds_are_pooled_with_draws(shared, monkeypatch):
    monkeypatch.setattr(few_labels, "COUNTS", (0, 4))
    outcome = studies.run("few-labels", lab(shared, seeds=(0, 1)))
    assert {value.count for value in outcome.tables[0].rows[0].cells} == {2, 6}


def test_a_pool_without_a_set_to_disagree_on_and_few_labels(shared):
    suite = replace(cued(labels=10), pool=None)
    outcome = studies.run("few-labels", lab(shared, suite))
    assert {row.names[0] for row in outcome.tables[0].rows} == {"deep-ensemble", "diverse-hps", "sed-a2d", RETRAINED}
    assert [column.name for column in outcome.tables[0].columns] == ["0", "1", "2", "4", "8"]
    assert outcome.notes[0].startswith("8 labels, worst group: sed-a2d adapted ")


@pytest.mark.parametrize(("tail", "members"), [("linear", 8), ("mlp", 4), (None, 8)])
def test_members_by_tail_and_diversity_by_method(tmp_path, tail, members):
    trials = few_labels.trials(lab(tmp_path, tail=tail, norm=None), cued())
    assert {trial.members for trial in trials} == {members}
    assert {trial.method: trial.diversity for trial in trials} == {
        "deep-ensemble": None, "diverse-hps": None, "a2d": 1.0, "divdis": 1.0, "sed-a2d": None,
    }  # fmt: skip


def test_a_suite_without_labels_is_refused(tmp_path):
    bare = replace(cued(), labels=None)
    with pytest.raises(DissensusError, match="study few-labels needs labels; suite cued has none: use dominoes"):
        studies.run("few-labels", lab(tmp_path, bare))


@pytest.mark.parametrize(("labels", "shown"), [(80, True), (12, False)])
def test_groups_shows_what_labels_select(shared, labels, shown):
    (table,) = studies.run("groups", lab(shared, cued(labels))).tables
    names = [column.name for column in table.columns]
    assert names == ["ensemble", "oracle", *["16 labels"] * shown, "groups", "id"]
    assert ("16 labels: adapted" in table.note) == shown
    if shown:
        assert all(row.cells[2].count == few_labels.QUICK_DRAWS for row in table.rows)


def test_the_story_compares_both_ensembles_with_and_without_labels(shared):
    table, sentence = few_labels.story(lab(shared))
    assert [row.names for row in table.rows] == [
        ("deep-ensemble", "as it is"),
        ("deep-ensemble", "last-layer retraining, 16 labels"),
        ("divdis", "as it is"),
        ("divdis", "adapted, 16 random labels"),
        ("divdis", "adapted, 16 labels that ask chose"),
    ]
    assert [row.cells[0].count for row in table.rows] == [1, 3, 1, 3, 1]
    assert f"worst group {table.rows[0].cells[0].mean:.2f}." in sentence
    assert f"disagree: {table.rows[3].cells[0].mean:.2f}; " in sentence


@pytest.mark.slow
def test_dominoes_with_16_labels(tmp_path):
    bench = Lab(
        lambda **changes: suites.load("dominoes"),
        tmp_path,
        TrainOptions(label_smoothing=0.1),
        progress=False,
        tail="mlp",
    )
    table, _ = few_labels.story(bench)
    before, retrained, _, adapted, asked = (row.cells[0].mean for row in table.rows)
    assert before < 0.3
    assert adapted >= 0.85
    assert asked >= 0.85
    assert adapted > retrained
