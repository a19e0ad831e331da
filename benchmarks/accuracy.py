"""Accuracy of the defaults beside scikit-learn's logistic regression: `python -m benchmarks.accuracy [FEATURES ...]`.

Tables come with scikit-learn, some with columns of noise added. FEATURES are folders that `dissensus extract` wrote.
A third of every set is for testing. Logistic regression has the best of five values of C by 3-fold cross-validation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler
from tabulate import tabulate
from tqdm import tqdm

from dissensus._core.errors import DissensusError
from dissensus.features import FeatureSet
from dissensus.models.norms import NORMS
from dissensus.training import fit, new_ensemble

SEEDS = 3
COLUMNS = {"adamw": ("single", "adamw"), "default, single": ("single", None), "default, sed-a2d": ("sed-a2d", None)}

Floats = NDArray[np.float64]


def tables() -> Iterator[tuple[str, Floats, Floats]]:
    """Name, standardised samples (N, D) and labels (N,)."""
    random = np.random.default_rng(0)
    for name in ("wine", "iris", "breast_cancer", "digits"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        X = StandardScaler().fit_transform(X)
        yield name, X, y
        if name in ("wine", "breast_cancer"):
            yield f"{name} and 300 columns of noise", np.c_[X, random.normal(size=(len(X), 300))], y
    y = (np.arange(4000) % 20).astype(np.float64)
    yield (
        "20 classes, 20 of 400 columns matter",
        random.normal(size=(4000, 400)) + 3 * np.eye(20, 400)[y.astype(int)],
        y,
    )


def accuracy(X: Floats, y: Floats, norm: str, seed: int) -> list[float]:
    """Test accuracy of logistic regression, then of the COLUMNS, on one split."""
    train, test, labels, answers = train_test_split(X, y, test_size=1 / 3, random_state=seed, stratify=y)
    features = FeatureSet.from_arrays(train, labels)
    as_members_see = [NORMS[norm](FeatureSet.from_arrays(x).rows(slice(None))).numpy() for x in (train, test)]
    search = GridSearchCV(LogisticRegression(max_iter=300), {"C": [1e-4, 1e-3, 1e-2, 0.1, 1]}, cv=3)
    found = [float(search.fit(as_members_see[0], labels).score(as_members_see[1], answers))]
    for method, optimizer in COLUMNS.values():
        ensemble = new_ensemble(features, 1 if method == "single" else 5, norm=norm, seed=seed)
        fit(ensemble, features, method, optimizer=optimizer, seed=seed, scores=(), progress=False)
        logits = ensemble(FeatureSet.from_arrays(test).rows(slice(None)).to(next(ensemble.parameters()).device))
        found.append(float((logits.mean(0).argmax(-1).cpu().numpy() == answers).mean()))
    return found


def main(folders: list[str]) -> None:
    """Print the table, in percent, mean over the seeds."""
    sets = [(name, X, y, "none") for name, X, y in tables()]
    for folder in folders:
        opened = FeatureSet.open(folder)
        if opened.labels is None:
            raise DissensusError(f"features must be labelled; {folder} is not: extract it from class folders")
        sets.append((folder, opened.rows(slice(None)).double().numpy(), opened.labels.numpy(), "l2"))
    rows = []
    for name, X, y, norm in tqdm(sets, unit="set", disable=None):
        rows.append([name, *100 * np.mean([accuracy(X, y, norm, seed) for seed in range(SEEDS)], axis=0)])
    print(tabulate(rows, ["data", "logistic regression", *COLUMNS], "pipe", ".1f"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DissensusError as error:
        sys.exit(f"benchmarks: error: {error}")
