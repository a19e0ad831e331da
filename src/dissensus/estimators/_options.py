"""Options of training as parameters of an estimator."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from dissensus._core.options import listed
from dissensus.training.options import TUNABLE, TrainOptions

OPTIONS = [each for each in listed(TrainOptions) if each.name in TUNABLE]


def signature(constructor: Callable[..., None]) -> inspect.Signature:
    """Return the signature of a constructor with all options named, by which scikit-learn knows the parameters."""
    found = inspect.signature(constructor)
    plain = [each for each in found.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default) for each in OPTIONS]
    return found.replace(parameters=[*plain, *options])
