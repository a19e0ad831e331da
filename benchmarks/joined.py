"""Detectors on one backbone and on several joined: `python -m benchmarks.joined --on A B --id SET --ood SET ...`.

A and B are folders, one per backbone, that hold the same sets: A/SET is what `dissensus extract` wrote. Of the id set,
half of each class is for training, a quarter for calibration and a quarter for testing, in three random splits.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tabulate import tabulate

from dissensus._core.errors import DissensusError
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.functional import metrics
from dissensus.models.ensemble import Ensemble
from dissensus.models.joined import JoinedEnsemble
from dissensus.training import fit, new_ensemble

SEEDS = 3
FITTED = ("mahalanobis", "feature_norm", "gaussian", "knn")
SCORES = {"nearest neighbours": "knn", "default score": None}
COLUMNS = ("accuracy %", "AUROC", "worst AUROC", "caught at 5% %", "false alarms %")

Sets = list[FeatureSet]  # one per backbone


def split(features: FeatureSet, seed: int) -> tuple[FeatureSet, FeatureSet, FeatureSet]:
    """Training, calibration and test rows; the same for every backbone."""
    train, rest = features.split(0.5, seed)
    return train, *rest.split(0.5, seed)


def detectors(
    train: Sets, names: Sequence[str], method: str, epochs: int | None, seed: int
) -> Iterator[tuple[str, Detector, list[int]]]:
    """Name, detector and the backbones it takes features of: each backbone alone, then all."""
    ensembles: dict[str, Ensemble] = {}
    for name, features in zip(names, train, strict=True):
        ensembles[name] = new_ensemble(features, 5, seed=seed)
        fit(ensembles[name], features, method, epochs=epochs, seed=seed, scores=FITTED, progress=False)
        yield name, Detector(ensembles[name], features.classes), [len(ensembles) - 1]
    shapes = {name: features.shape for name, features in zip(names, train, strict=True)}
    joined = JoinedEnsemble(ensembles, shapes)
    yield " + ".join(names), Detector(joined, train[0].classes), list(range(len(names)))


def measure(detector: Detector, held_out: Sets, test: Sets, ood: Sequence[Sets], score: str | None) -> list[float]:
    """The COLUMNS of one detector, on one split."""
    detector.calibrate(_one(held_out), 0.05, score)
    inside = detector.predict(_one(test))
    outside = [detector.predict(_one(sets)) for sets in ood]
    labels = test[0].labels
    assert inside.out is not None
    assert labels is not None
    aurocs = [metrics.detection(inside.score, verdicts.score)["auroc"] for verdicts in outside]
    caught = [float(verdicts.out.double().mean()) for verdicts in outside if verdicts.out is not None]
    accuracy = float((inside.label == labels).double().mean())
    alarms = float(inside.out.double().mean())
    return [100 * accuracy, float(np.mean(aurocs)), min(aurocs), 100 * float(np.mean(caught)), 100 * alarms]


def _one(sets: Sets) -> FeatureSet | Sets:
    return sets[0] if len(sets) == 1 else sets


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table: mean over the splits, and the deviation of the AUROC."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joined")
    parser.add_argument("--on", nargs="+", required=True, type=Path, help="a folder of feature sets per backbone")
    parser.add_argument("--id", required=True, help="the name of the id set")
    parser.add_argument("--ood", nargs="+", required=True, help="the names of the OOD sets")
    parser.add_argument("--method", default="sed-a2d")
    parser.add_argument("--epochs", type=int, help="instead of as many as members need to converge")
    options = parser.parse_args(argv)
    names = [folder.name for folder in options.on]
    inside = [FeatureSet.open(folder / options.id) for folder in options.on]
    ood = [[FeatureSet.open(folder / name) for folder in options.on] for name in options.ood]
    values: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for seed in range(SEEDS):
        train, held_out, test = (list(sets) for sets in zip(*(split(each, seed) for each in inside), strict=True))
        for name, detector, places in detectors(train, names, options.method, options.epochs, seed):
            own = [[sets[place] for place in places] for sets in (held_out, test, *ood)]
            for kind, score in SCORES.items():
                values[name, kind].append(measure(detector, own[0], own[1], own[2:], score))
    rows = []
    for (name, kind), runs in sorted(values.items(), key=lambda item: list(SCORES).index(item[0][1])):
        mean, deviation = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1)
        auroc, worst = (f"{mean[i]:.4f} ± {deviation[i]:.4f}" for i in (1, 2))
        rows.append([name, kind, f"{mean[0]:.1f}", auroc, worst, f"{mean[3]:.1f}", f"{mean[4]:.1f}"])
    print(tabulate(rows, ["backbone", "score", *COLUMNS], "pipe", disable_numparse=True))


if __name__ == "__main__":
    try:
        main()
    except DissensusError as error:
        sys.exit(f"benchmarks: error: {error}")
