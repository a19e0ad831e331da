"""False alarms and delays of `dissensus watch`: `python -m benchmarks.watch [--suite digits] [--quick]`.

False alarms: undisturbed streams, each with a calibration set of its own, scores that depend on the class, and classes
with random shares. Delays: scores and predicted classes of real samples. Calibration set and stream are drawn with
replacement from the samples that were not trained on, so that both are of one population, whatever their number.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from tabulate import tabulate
from torch import Tensor
from tqdm import tqdm

from dissensus import suites
from dissensus._core.errors import DissensusError
from dissensus.detection.detector import Detector
from dissensus.detection.samples import Resolved
from dissensus.detection.threshold import Threshold
from dissensus.features import FeatureSet
from dissensus.functional import expressions
from dissensus.functional.martingales import Martingale, Ranks
from dissensus.training import fit, new_ensemble

RATE, CALIBRATION = 0.01, (100, 500, 2000)
UNDISTURBED, LENGTH, CLASSES = 1000, 10_000, 8
REPEATS, BEFORE, AFTER = 100, 1000, 5000  # streams per drift; samples before and after it begins
CREEP = 400  # samples at each severity

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


class Pool(NamedTuple):
    """Real samples: the values of each score, predicted and true classes."""

    values: Tensor  # (S, n)
    predicted: Rows
    labels: Rows | None


def alarms(scores: Array, predicted: Array) -> Rows:
    """The sample at which each stream raises the alarm, or -1, from p-values (streams, T)."""
    streams, length = scores.shape
    tests = Martingale((streams,), memories=()), Martingale((streams,))
    rang, limit = np.full(streams, -1), math.log(len(tests) / RATE)
    for t in tqdm(range(length), leave=False, disable=None):
        wealth = np.maximum(tests[0].add(scores[:, t]), tests[1].add(predicted[:, t]))
        rang[(wealth >= limit) & (rang < 0)] = t
    return rang


def p_values(
    scores: Array, predicted: Rows, calibration: Array, labels: Rows, classes: int, random: Generator
) -> tuple[Array, Array]:
    """Those of one stream, by scores and by predicted classes."""
    numbers = np.arange(classes, dtype=np.float64)
    by_class = Ranks.of(labels.astype(np.float64), numbers)
    u, v = random.random((2, len(scores)))
    return Ranks.of(calibration).add(scores, u), by_class.add(predicted.astype(np.float64), v)


def undisturbed(count: int, streams: int, length: int, ties: bool) -> int:
    """How many of undisturbed streams ever raise the alarm, with calibration sets of `count` samples."""
    random, pairs = np.random.default_rng([count, ties]), list[tuple[Array, Array]]()
    for _ in tqdm(range(streams), leave=False, disable=None):
        shares, means = random.dirichlet(np.ones(CLASSES)), random.normal(size=CLASSES)
        labels = random.choice(CLASSES, count + length, p=shares)
        scores = random.normal(means[labels])
        scores = scores.round() if ties else scores
        pairs.append(p_values(scores[count:], labels[count:], scores[:count], labels[:count], CLASSES, random))
    return int((alarms(*map(np.stack, zip(*pairs, strict=True))) >= 0).sum())


def pools(suite: str) -> tuple[dict[str, float], dict[str, Pool]]:
    """Train the default ensemble on a suite; return the scores' weights and the pools: id, C-1 to C-5, new."""
    options = {"backbone": "pixels"} if suite == "digits" else {}
    loaded = suites.load(suite, severities=(1, 2, 3, 4, 5), **options)
    if loaded.held_out is None:
        raise DissensusError(f"a suite for watch needs a held-out set; {suite} has none: choose another")
    ensemble = new_ensemble(loaded.train, members=5)
    fit(
        ensemble,
        loaded.train,
        "sed-a2d",
        disagreement=loaded.disagreement,
        **suites.training(suite),
        progress=False,
    )
    detector, (names, weights) = Detector(ensemble), expressions.choose(None, ensemble.fitted)
    families: dict[str, list[FeatureSet]] = {"id": [loaded.held_out]}
    for one in loaded.sets:
        name = {"id": "id", "ood": "new"}.get(one.role, one.family)
        if one.name != "photos":  # of digits: patches of photographs are no new class
            families.setdefault(name, []).append(one.features)
    return dict(zip(names, weights, strict=True)), {
        name: _pool(detector, sets, names) for name, sets in families.items()
    }


def _pool(detector: Detector, sets: Sequence[FeatureSet], names: Sequence[str]) -> Pool:
    values, predicted, labels = list[Tensor](), list[Tensor](), list[Tensor]()
    for features in sets:
        for outputs in detector.members.outputs(Resolved(features)):
            found = expressions.values(names, outputs.logits, outputs.features, detector.ensemble.fitted)
            values.append(torch.stack([value.float() for value in found]).detach())
            predicted.append(outputs.logits.mean(0).argmax(-1))
        labels += [] if features.labels is None else [features.labels]
    known = torch.cat(labels).numpy() if len(labels) == len(sets) else None
    return Pool(torch.cat(values, 1), torch.cat(predicted).numpy(), known)


def drifts(pools: dict[str, Pool], random: Generator) -> Iterator[tuple[str, Callable[[], list[tuple[str, Rows]]]]]:
    """Name of each drift, and a function that draws what comes after it begins: (pool, rows) in order."""

    def draw(name: str, count: int) -> tuple[str, Rows]:
        return name, random.integers(0, len(pools[name].predicted), count)

    def mixed(share: float) -> list[tuple[str, Rows]]:
        news = random.random(AFTER) < share
        return [draw("new" if new else "id", 1) for new in news]

    def creeping() -> list[tuple[str, Rows]]:
        stages = [draw(f"C-{severity}", CREEP) for severity in range(1, 6)]
        return [*stages, draw("C-5", AFTER - 5 * CREEP)]

    def relabelled() -> list[tuple[str, Rows]]:
        labels = pools["id"].labels
        assert labels is not None
        weight = np.where(labels == 0, 1 / (labels == 0).sum(), 1 / (labels != 0).sum()) / 2
        return [("id", random.choice(len(labels), AFTER, p=weight))]

    yield "corruption, severity 1 to 5", creeping
    for share in (0.05, 0.2, 1.0):
        yield f"new class, {share:.0%}", partial(mixed, share)
    yield "label shift, one class to 50%", relabelled


def delays(
    weights: dict[str, float], pools: dict[str, Pool], count: int, draw: Callable[[], list[tuple[str, Rows]]],
    before: int, repeats: int, random: Generator,
) -> Rows:  # fmt: skip
    """Samples from the beginning of a drift to the alarm, for each repeat: negative before it, AFTER if never."""
    pairs = list[tuple[Array, Array]]()
    inside = pools["id"]
    classes = 1 + int(max(pool.predicted.max() for pool in pools.values()))
    for _ in range(repeats):
        rows = random.integers(0, len(inside.predicted), count)
        drawn = {name: inside.values[i, rows] for i, name in enumerate(weights)}
        threshold = Threshold.calibrate(drawn, 0.05, weights=list(weights.values()))
        scores = {name: threshold.score(list(pool.values)).double().numpy() for name, pool in pools.items()}
        stream = [("id", random.integers(0, len(inside.predicted), before)), *draw()]
        values = np.concatenate([scores[name][places] for name, places in stream])
        predicted = np.concatenate([pools[name].predicted[places] for name, places in stream])
        calibration = threshold.calibrated.values[0].double().numpy()
        pairs.append(p_values(values, predicted, calibration, inside.predicted[rows], classes, random))
    rang = alarms(*map(np.stack, zip(*pairs, strict=True)))
    return np.where(rang < 0, AFTER, rang + 1 - before)


def _cell(found: Rows) -> str:
    never = float((found >= AFTER).mean())
    low, middle, high = (int(q) for q in np.quantile(found, (0.1, 0.5, 0.9), method="higher"))
    if middle >= AFTER:
        return f"never in {never:.0%}"
    text = f"{middle:,} ({low:,} to {high:,})" if high < AFTER else f"{middle:,} (from {low:,})"
    return f"{text}; never in {never:.0%}" if never else text


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch")
    parser.add_argument("--suite", default="digits", help="a suite with a held-out set and corruptions C-1 to C-5")
    parser.add_argument("--quick", action="store_true", help="few and short streams, to check that it runs")
    options = parser.parse_args(argv)
    streams, length, repeats = (20, 300, 3) if options.quick else (UNDISTURBED, LENGTH, REPEATS)
    rows: list[list[str]] = []
    for count, ties in [*((n, False) for n in CALIBRATION), (500, True)]:
        rang = undisturbed(count, streams, length, ties)
        rows.append(
            [f"{count:,}", "whole numbers" if ties else "continuous", f"{rang:,} of {streams:,} ({rang / streams:.1%})"]
        )
    print(tabulate(rows, ["calibration samples", "scores", f"alarms within {length:,} samples"], "pipe"), flush=True)
    random = np.random.default_rng(0)
    weights, real = pools(options.suite)
    for before in (BEFORE, 0):
        rows = []
        for name, draw in drifts(real, random):
            found = [delays(weights, real, count, draw, before, repeats, random) for count in CALIBRATION]
            rows.append([name, *map(_cell, found)])
        print(f"\nDelay until the alarm, drift after {before:,} samples")
        print(tabulate(rows, ["drift", *(f"n = {n:,}" for n in CALIBRATION)], "pipe"), flush=True)


if __name__ == "__main__":
    try:
        main()
    except DissensusError as error:
        sys.exit(f"benchmarks: error: {error}")
