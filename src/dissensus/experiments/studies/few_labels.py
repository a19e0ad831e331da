"""Worst-group accuracy against the number of labels: a simulated user labels samples of a suite's pool.

Labels are drawn at random, the same for every method, or chosen by `ask`. The baseline that needs no diversity is
last-layer retraining: a new head on the features of the deep ensemble, from the same labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from dissensus.adaptation import adapt, ask
from dissensus.evaluation.outcomes import Curve
from dissensus.evaluation.predictions import predict
from dissensus.evaluation.suite import Suite
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.models.ensemble import Ensemble
from dissensus.training import METHODS, new_ensemble
from dissensus.training.adaptation import By
from dissensus.training.run import Run

COUNTS = (0, 1, 2, 4, 8, 16, 64)
LABELS = 16  # of sentences, of the study `groups` and of the demo
DRAWS, QUICK_DRAWS = 20, 3
ROWS = ("deep-ensemble", "diverse-hps", "a2d", "divdis", "sed-a2d")
DIVERSITY = 1.0  # of methods that disagree on the pool: less leaves members that all follow the cue
LINEAR_MEMBERS, MEMBERS = 8, 4
RETRAINED = "last-layer retraining"
RANDOM, ASKED = "random", "ask"
NOTE = "Mean and deviation over seeds and draws of labels."


class Accuracy(NamedTuple):
    """Of one ensemble on the groups set."""

    worst: float  # the lowest accuracy of a group
    mean: float  # the mean of the groups' accuracies


class Simulation:
    """A user who labels samples of a suite's pool, and the groups set that the adapted ensemble is tested on.

    Args:
        suite: Has the roles groups and labels.
        draws: How often labels are drawn at random.
    """

    def __init__(self, suite: Suite, draws: int) -> None:
        assert suite.labels is not None
        self.labels, self.train, self.draws = suite.labels, suite.train, draws
        self.test = next(s for s in suite.sets if s.role == "groups")

    def test_on_groups(self, ensemble: Ensemble) -> Accuracy:
        """The accuracy of an ensemble as it is."""
        predictions = predict(ensemble, self.test.features, [], subset=self.test.subset)
        groups = self.test.features.groups
        assert predictions.labels is not None
        assert groups is not None
        _, group = torch.unique(groups, return_inverse=True)
        right = (predictions.prediction == predictions.labels).double()
        by_group = group.bincount(weights=right) / group.bincount()
        return Accuracy(float(by_group.min()), float(by_group.mean()))

    def with_labels(self, ensemble: Ensemble, rows: Sequence[int], by: By = "auto") -> Accuracy:
        """The accuracy after adapting to these rows of the pool; a new head from one class is no head at all."""
        labelled = self.labels.subset(rows)
        assert labelled.labels is not None
        if by == "head" and len(set(labelled.labels.tolist())) < 2:
            return self.test_on_groups(ensemble)
        adapted = adapt(ensemble, labelled, by, train=self.train, classes=self.train.classes)
        return self.test_on_groups(adapted.ensemble)

    def at_random(self, ensemble: Ensemble, count: int, seed: int, by: By = "auto") -> list[Accuracy]:
        """One accuracy per draw; the draws of a seed are the same for every ensemble, and larger ones add labels."""
        orders = [np.random.default_rng([seed, draw]).permutation(len(self.labels)) for draw in range(self.draws)]
        return [self.with_labels(ensemble, order[:count].tolist(), by) for order in orders]

    def asked(self, ensemble: Ensemble, count: int) -> Accuracy:
        """The accuracy with the labels of the samples that `ask` chooses."""
        return self.with_labels(ensemble, ask(ensemble, self.labels.unlabelled(), count).rows.tolist())


Measured = dict[tuple[str, str, int], list[Accuracy]]  # by row, source of labels and number of labels


def few_labels(lab: Lab) -> list[Table | Curve | str]:
    """Every method adapted with 0 to 64 labels, random and asked for, and a new head from the same random ones."""
    suite = lab.suite()
    simulation = simulate(lab, suite)
    counts = [count for count in COUNTS if count <= len(simulation.labels)]
    ensembles = trained(lab.run(trials(lab, suite)))
    measured: Measured = {}
    for number, ((method, seed), ensemble) in enumerate(ensembles.items(), start=1):
        lab.tell(f"  labels {number} of {len(ensembles)}: {method}, seed {seed}")
        as_it_is = [simulation.test_on_groups(ensemble)]
        ways: list[tuple[str, By]] = [(method, "auto")]
        if method == ROWS[0]:
            ways.append((RETRAINED, "head"))
        for count in counts:
            for row, by in ways:
                random = simulation.at_random(ensemble, count, seed, by) if count else as_it_is
                measured.setdefault((row, RANDOM, count), []).extend(random)
            asked = [simulation.asked(ensemble, count)] if count else as_it_is
            measured.setdefault((method, ASKED, count), []).extend(asked)
    return [
        _table("worst group %", measured, counts, "worst"),
        _table("mean of the groups %", measured, counts, "mean"),
        _curve("worst group against random labels", measured, counts, RANDOM),
        _curve("worst group against labels that ask chose", measured, counts, ASKED),
        _sentence(measured, max(count for count in counts if count <= LABELS)),
    ]


def simulate(lab: Lab, suite: Suite) -> Simulation:
    """The user of a lab, who draws fewer labels if the lab is quick."""
    return Simulation(suite, QUICK_DRAWS if lab.quick else DRAWS)


def trials(lab: Lab, suite: Suite, methods: Sequence[str] = ROWS) -> list[Trial]:
    """The methods that the suite has a set for, each with as many members as suit the tail."""
    about = new_ensemble(suite.train, 2, tail=lab.tail, norm=lab.norm).about or {}
    members = LINEAR_MEMBERS if about.get("name") == "linear" else MEMBERS
    return [
        Trial(name, name, members, diversity=DIVERSITY if METHODS[name].takes_set else None)
        for name in methods
        if suite.disagree_on is not None or not METHODS[name].takes_set
    ]


def trained(frame: pd.DataFrame) -> dict[tuple[str, int], Ensemble]:
    """The ensembles of `Lab.run` by row and seed."""
    runs = frame[["row", "seed", "run"]].drop_duplicates()
    return {
        (str(row), int(seed)): Ensemble.load(Run.open(folder).ensemble_folder).eval()
        for row, seed, folder in runs.itertuples(index=False)
    }


def selected(lab: Lab, suite: Suite, frame: pd.DataFrame) -> dict[str, Value | None]:
    """Worst group of each row of `Lab.run` after adapting with `LABELS` random labels; empty if there are too few."""
    if suite.labels is None or len(suite.labels) < LABELS:
        return {}
    simulation = simulate(lab, suite)
    worst: dict[str, list[float]] = {}
    for (row, seed), ensemble in trained(frame).items():
        worst.setdefault(row, []).extend(a.worst for a in simulation.at_random(ensemble, LABELS, seed))
    return {row: Value.of(values) for row, values in worst.items()}


def story(lab: Lab, method: str = "divdis") -> tuple[Table, str]:
    """One table about a cue tied to the label: a deep ensemble and a diverse one, as they are and with labels."""
    suite = lab.suite()
    simulation = simulate(lab, suite)
    seed, ensembles = lab.seeds[0], trained(lab.run(trials(lab, suite, (ROWS[0], method))))
    deep, diverse = ensembles[ROWS[0], seed], ensembles[method, seed]
    rows: dict[tuple[str, str], list[Accuracy]] = {
        (ROWS[0], "as it is"): [simulation.test_on_groups(deep)],
        (ROWS[0], f"{RETRAINED}, {LABELS} labels"): simulation.at_random(deep, LABELS, seed, "head"),
        (method, "as it is"): [simulation.test_on_groups(diverse)],
        (method, f"adapted, {LABELS} random labels"): simulation.at_random(diverse, LABELS, seed),
        (method, f"adapted, {LABELS} labels that ask chose"): [simulation.asked(diverse, LABELS)],
    }
    columns = (Column("accuracy %", "worst group", percent=True), Column("accuracy %", "mean of groups", percent=True))
    cells = {names: tuple(map(Value.of, zip(*values, strict=True))) for names, values in rows.items()}
    note = f"Random labels: mean and deviation over {simulation.draws} draws."
    filled = tuple(Row(names, values) for names, values in cells.items())
    table = Table("a cue tied to the label", ("method", "labels"), columns, filled, note)
    before, retrained, _, adapted, _ = (np.mean([accuracy.worst for accuracy in values]) for values in rows.values())
    sentence = (
        f"All training samples have the cue, so a deep ensemble follows it: worst group {before:.2f}. {LABELS} labels "
        f"choose among members that disagree: {adapted:.2f}; {RETRAINED} on the same labels has {retrained:.2f}."
    )
    return table, sentence


def _value(measured: Measured, key: tuple[str, str, int], what: str) -> Value:
    value = Value.of(getattr(accuracy, what) for accuracy in measured[key])
    assert value is not None
    return value


def _table(title: str, measured: Measured, counts: Sequence[int], what: str) -> Table:
    columns = tuple(Column("number of labels", str(count), percent=True) for count in counts)
    rows = [
        Row((row, source), tuple(_value(measured, (row, source, count), what) for count in counts))
        for row, source in dict.fromkeys(key[:2] for key in measured)
    ]
    rows.sort(key=lambda row: row.names[1] == ASKED)
    return Table(title, ("method", "chosen"), columns, tuple(rows), NOTE)


def _curve(title: str, measured: Measured, counts: Sequence[int], source: str) -> Curve:
    rows = dict.fromkeys(row for row, by, _ in measured if by == source)
    lines = {row: tuple(_value(measured, (row, source, count), "worst") for count in counts) for row in rows}
    return Curve(title, "labels", "worst group", tuple(map(float, counts)), lines)


def _sentence(measured: Measured, count: int) -> str:
    def worst(row: str, source: str, count: int) -> str:
        return f"{_value(measured, (row, source, count), 'worst').mean:.2f}"

    rows = list(dict.fromkeys(row for row, _, _ in measured))
    diverse = [row for row in rows if row in METHODS and METHODS[row].takes_set] or [rows[-1]]
    parts = [f"{row} adapted {worst(row, RANDOM, count)} (asked for: {worst(row, ASKED, count)})" for row in diverse]
    parts.append(f"{RETRAINED} on the same labels {worst(RETRAINED, RANDOM, count)}")
    return f"{_labels(count)}, worst group: {', '.join(parts)}; the deep ensemble as it is {worst(ROWS[0], RANDOM, 0)}."


def _labels(count: int) -> str:
    return f"{count} label" if count == 1 else f"{count} labels"
