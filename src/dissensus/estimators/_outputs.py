"""What the members of a fitted estimator say about samples, in float64, so that it does not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.evaluation import predictions
from dissensus.functional import expressions
from dissensus.models.ensemble import Ensemble

Floats = NDArray[np.floating[Any]]


@torch.inference_mode()
def outputs(ensemble: Ensemble, scaler: StandardScaler | None, X: Floats) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield members' logits (M, b, C) and standardised features (b, d) of samples (n, d), batch by batch."""
    params = {name: value.double() for name, value in ensemble.stacked().items()}
    size = predictions.batch_size(ensemble, X.shape[1:])
    for start in range(0, len(X), size):
        x = X[start : start + size].astype(np.float64)
        features = torch.from_numpy(x if scaler is None else scaler.transform(x))
        logits = ensemble.run(params, features)
        if not logits.isfinite().all():
            raise DataError(f"values are too large; rows {start} to {start + len(x) - 1} have no finite logits")
        yield logits, features


def values(ensemble: Ensemble, scaler: StandardScaler | None, X: Floats, names: Sequence[str]) -> list[Tensor]:
    """Return the values of these scores, (n,) each, float64."""
    parts = [expressions.values(names, *both, ensemble.fitted) for both in outputs(ensemble, scaler, X)]
    return [torch.cat(batches).double() for batches in zip(*parts, strict=True)]
