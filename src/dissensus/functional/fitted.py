"""Fitted scores: OODness of a sample, read from its features by comparing them with the training features.

A fitted score is a class. `fit` reduces the training features to a state of tensors, which is saved with the ensemble;
an instance holds that state and maps features and logits to one value per sample, higher = more OOD:

    state = Mahalanobis.fit(Rows(features, labels), labels)        # tensors by name
    score = Mahalanobis(state)
    score(x, logits)                                               # (B, D), (M, B, C) -> (B,)

Features are vectors to these scores: maps (B, D, H, W) and tokens (B, T, D) are averaged over positions first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus._core.errors import DataError, ShapeError
from dissensus.functional.checks import full_precision

SAMPLE_VALUES = 2**27  # feature values that a state may keep of the training set, 256 MB in float16
BATCH = 4096


class Source(Protocol):
    """Features that can be read in batches, such as a `FeatureSet`."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        """Yield features (b, ...) and the rows that they are."""
        ...


class Head(NamedTuple):
    """The last layer of a model that is linear in its normalised features: weight (C, D), bias (C,)."""

    weight: Tensor
    bias: Tensor


class Moments(NamedTuple):
    """Sums over L2-normalised training features, in float64."""

    counts: Tensor  # (C,) samples per class
    sums: Tensor  # (C, D)
    products: Tensor  # (D, D), sum of u u^T


class Sample(NamedTuple):
    """Rows of the training set: all of them, or a random part of a set that is too large to keep."""

    features: Tensor  # (n, D), as stored: float16 where that loses nothing
    index: Tensor  # (n,) their rows in the training set, ascending


class Rows:
    """The training features of a fitted score, read at most once for each of the summaries it asks for.

    Args:
        features: The training features.
        labels: (N,) their classes, within 0..classes - 1; some classes may be missing.
        classes: How many classes there are.
        logits: Maps features (b, ...) to the members' logits (M, b, C), for scores that are fitted to logits too.
        head: The model's last layer, if it is linear in L2-normalised features times sqrt(D).
    """

    def __init__(
        self,
        features: Source,
        labels: Tensor,
        classes: int,
        *,
        logits: Callable[[Tensor], Tensor] | None = None,
        head: Head | None = None,
    ) -> None:
        if len(labels) != len(features):
            raise ShapeError(f"every row needs a label; got {len(features)} rows and {len(labels)} labels")
        self.features, self.labels, self.classes, self.logits, self.head = features, labels, classes, logits, head

    def __len__(self) -> int:
        return len(self.features)

    def batches(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield the features as vectors (b, D), float32 or float64, and the rows that they are."""
        for x, at in self.features.batches(BATCH):
            yield vectors(x), at

    @cached_property
    def moments(self) -> Moments:
        """Sums of the L2-normalised features per class, and of their products."""
        counts = torch.bincount(self.labels, minlength=self.classes)
        sums = products = torch.zeros(0)
        for x, at in self.batches():
            if not len(products):
                sums = torch.zeros(self.classes, x.shape[1], dtype=torch.float64)
                products = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
            u = unit(x.double())
            sums.index_add_(0, self.labels[at], u)
            products.addmm_(u.T, u)
        return Moments(counts, sums, products)

    @cached_property
    def sample(self) -> Sample:
        """The features themselves; of a set of more than SAMPLE_VALUES values, a random part."""
        first = next(self.batches())[0]
        most = max(1, SAMPLE_VALUES // first.shape[1])
        index = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:most].sort().values
        kept, exact = list[Tensor](), True
        for x, at in self.batches():
            rows = x[index[(index >= at.start) & (index < at.stop)] - at.start]
            exact = exact and bool((rows.half().to(rows) == rows).all())
            kept.append(rows.half() if exact else rows)
        features = torch.cat([part.half() if exact else part.to(first.dtype) for part in kept])
        return Sample(features, index)


class FittedScore(nn.Module):
    """A score of features. Subclasses set `name`, and define `fit` and `forward`; `scores.register` adds them.

    Args:
        state: What `fit` returned; tensors become buffers of the same names.
    """

    name: ClassVar[str]

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for key, value in state.items():
            self.register_buffer(key, value)

    @classmethod
    @abstractmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Return the state that the training features and their labels (N,) lead to."""

    @abstractmethod
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score of vectors (B, D) with members' logits (M, B, C): (B,), higher = more OOD."""

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score of each sample, whatever the form of its features: (B, ...), (M, B, C) -> (B,)."""
        x = vectors(features)
        if x.shape[:1] != logits.shape[1:2]:
            raise ShapeError(
                f"features and logits must be of the same samples; got {tuple(features.shape)} and "
                f"{tuple(logits.shape)}: features are (B, ...), logits (M, B, C)"
            )
        score: Tensor = super().__call__(x, logits)
        if score.shape != x.shape[:1]:
            raise ShapeError(f"score {self.name!r} must return (B,); got {tuple(score.shape)} for {tuple(x.shape)}")
        return score


def vectors(features: Tensor) -> Tensor:
    """Average maps (B, D, H, W) and tokens (B, T, D) over positions: (B, ...) -> (B, D), at least float32."""
    x = full_precision(features)
    if x.ndim == 4:
        return x.mean((2, 3))
    if x.ndim == 3:
        return x.mean(1)
    if x.ndim != 2:
        raise ShapeError(f"features must be (B, D), (B, T, D) or (B, D, H, W); got {tuple(features.shape)}")
    return x


def unit(x: Tensor) -> Tensor:
    """Divide vectors (B, D) by their length; a zero vector stays zero."""
    return F.normalize(x, dim=1)


def check_classes(moments: Moments) -> None:
    """Raise if no class has two samples: nothing says how far apart samples of one class lie."""
    if int(moments.counts.max()) < 2:
        raise DataError(
            f"distances need a class with at least two samples; every one of {len(moments.counts)} classes has "
            "one or none: add samples"
        )
