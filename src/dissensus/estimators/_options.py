"""Options of training as parameters of an estimator, with defaults for small tables."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from dissensus._core.options import listed
from dissensus.training.options import TUNABLE, TrainOptions

# What suits small tables of standardised features, where the defaults of fit() are for the features of a backbone.
TABLES: dict[str, Any] = {"lr": 2e-2, "batch_size": 64, "label_smoothing": 0.1, "member_epochs": None}
# With member_epochs=None: updates that a member makes on a small table, and the fewest passes over a large one.
UPDATES, PASSES = 400, 8
OPTIONS = [
    each._replace(default=TABLES.get(each.name, each.default)) for each in listed(TrainOptions) if each.name in TUNABLE
]


def training_options(given: Mapping[str, Any], samples: int, seed: int) -> TrainOptions:
    """Return the options of `dissensus.fit` from the parameters of an estimator."""
    values = dict(given)
    if values["batch_size"] is None:
        values["batch_size"] = samples
    if values["member_epochs"] is None:
        per_epoch = math.ceil(samples / max(1, values["batch_size"]))  # TrainOptions refuses sizes below 1
        values["member_epochs"] = max(PASSES, math.ceil(UPDATES / per_epoch))
    return TrainOptions(**values, seed=seed)


def signature(constructor: Callable[..., None]) -> inspect.Signature:
    """Return the signature of a constructor with all options named, by which scikit-learn knows the parameters."""
    found = inspect.signature(constructor)
    plain = [each for each in found.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default) for each in OPTIONS]
    return found.replace(parameters=[*plain, *options])
