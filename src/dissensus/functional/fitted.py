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
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus.functional.checks import full_precision

SAMPLE_VALUES = 2**27  # feature values that a state may keep of the training set, 256 MB in float16
BATCH = 4096  # training rows per read
PEAK_ROWS = 2**14  # training rows whose logits are computed
CHUNK_VALUES = 2**22  # values of a temporary: 16 MB of float32


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


class Lengths(NamedTuple):
    """Of the n training features that are not zero: log |x|, and how it varies with the direction u."""

    n: int
    mean: float
    deviation: float
    directions: Tensor  # (D,), sum of u
    products: Tensor  # (D,), sum of u log |x|


class Moments(NamedTuple):
    """Sums over L2-normalised training features, in float64, and over the logarithms of their lengths."""

    counts: Tensor  # (C,) samples per class
    sums: Tensor  # (C, D)
    products: Tensor  # (D, D), sum of u u^T
    lengths: Lengths


@dataclass(frozen=True)
class Sample:
    """Rows of the training set: all of them, or a random part of a set that is too large to keep."""

    features: Tensor  # (n, D), as stored: float16 where that loses nothing
    index: Tensor  # (n,) their rows in the training set, ascending
    peaks: Tensor  # (p,) largest mean logit of the `peak_rows`; empty without logits
    peak_rows: Tensor  # (p,) positions in `features`, ascending


class Rows:
    """The training features of a fitted score, read once for all the summaries that scores ask for.

    Args:
        features: The training features.
        labels: (N,) their classes, within 0..classes - 1; some classes may be missing.
        classes: How many classes there are.
        logits: Maps features (b, ...) to the members' logits (M, b, C), for scores that are fitted to logits too.
        head: The model's last layer, if it is linear in L2-normalised features times sqrt(D).
        keep: How many feature values `sample` may hold; a larger set is sampled at random.
    """

    def __init__(
        self,
        features: Source,
        labels: Tensor,
        classes: int,
        *,
        logits: Callable[[Tensor], Tensor] | None = None,
        head: Head | None = None,
        keep: int = SAMPLE_VALUES,
    ) -> None:
        if len(labels) != len(features):
            raise ShapeError(f"every row needs a label; got {len(features)} rows and {len(labels)} labels")
        if not len(labels):
            raise DataError("fitted scores need training features; got none: add samples")
        self.features, self.labels, self.classes, self.logits, self.head = features, labels, classes, logits, head
        self.keep = keep

    def __len__(self) -> int:
        return len(self.features)

    def batches(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield the features as vectors (b, D), float32 or float64, and the rows that they are."""
        for x, at in self._batches():
            yield vectors(x), at

    @property
    def moments(self) -> Moments:
        """Sums of the L2-normalised features per class, and of their products."""
        return self._read[0]

    @property
    def sample(self) -> Sample:
        """The features themselves; of a set of more than `keep` values, a random part."""
        return self._read[1]

    @cached_property
    def dtype(self) -> torch.dtype:
        """Dtype in which features are scored: float32, or float64 if they are."""
        return full_precision(self._first).dtype

    @cached_property
    def _first(self) -> Tensor:
        """The first row (1, ...), which gives the shape and dtype."""
        return next(self.features.batches(1))[0]

    def _batches(self) -> Iterator[tuple[Tensor, slice]]:
        return self.features.batches(min(BATCH, max(1, CHUNK_VALUES // max(1, self._first.numel()))))

    @cached_property
    def _read(self) -> tuple[Moments, Sample]:
        """Everything from one pass, with products summed in float64.

        Float32 products per batch took 1.2 s instead of 3.2 s on 28,400 x 1280 features and were exact to 2e-7 there,
        but to 1e-6 only on 1,167 rows, and to 3e-5 on features that vary little about a large mean.
        """
        D = vectors(self._first).shape[1]
        index = _draw(len(self), max(1, self.keep // max(1, D)))
        peak_rows = _draw(len(index), 0 if self.logits is None else PEAK_ROWS)
        sums = torch.zeros(self.classes, D, dtype=torch.float64)
        products = torch.zeros(D, D, dtype=torch.float64)
        crossed, directions = torch.zeros(2, D, dtype=torch.float64)
        bank, lengths, peaks = _Bank(len(index), D), list[Tensor](), [torch.empty(0)]
        for raw, at in self._batches():
            x = vectors(raw).cpu()
            u = unit(x.double())
            sums.index_add_(0, self.labels[at].cpu(), u)
            products.addmm_(u.T, u)
            some = x.any(1)
            lengths.append(log_norm(x.double())[some])
            crossed += lengths[-1] @ u[some]
            directions += u[some].sum(0)
            bank.add(x[_within(index, at)])
            rows = _within(index[peak_rows], at)
            if self.logits is not None and len(rows):
                peaks.append(self.logits(raw[rows.to(raw.device)]).mean(0).amax(1).cpu())
        if not products.isfinite().all():
            raise DataError("training features must be finite; some are NaN or infinite: extract them again")
        logs = torch.cat(lengths)
        spread = (float(logs.mean()), float(logs.std(correction=0))) if len(logs) else (0.0, 0.0)
        counts = torch.bincount(self.labels.cpu(), minlength=self.classes)
        return Moments(counts, sums, products, Lengths(len(logs), *spread, directions, crossed)), Sample(
            bank.rows, index, torch.cat(peaks), peak_rows
        )


class _Bank:
    """Rows collected into one tensor (n, D), of float16 as long as that loses nothing."""

    def __init__(self, n: int, D: int) -> None:
        self.rows, self.filled = torch.empty(n, D, dtype=torch.float16), 0

    def add(self, rows: Tensor) -> None:
        if self.rows.dtype == torch.float16 and not torch.equal(rows.half().to(rows), rows):
            wider = torch.empty(self.rows.shape, dtype=rows.dtype)
            wider[: self.filled] = self.rows[: self.filled]
            self.rows = wider
        self.rows[self.filled : self.filled + len(rows)] = rows
        self.filled += len(rows)


def _draw(total: int, most: int) -> Tensor:
    """At most `most` of range(total), ascending; always the same."""
    if total <= most:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:most].sort().values


def _within(index: Tensor, at: slice) -> Tensor:
    """Those of an ascending index that a slice holds, counted from its start."""
    first, last = torch.searchsorted(index, torch.tensor([at.start, at.stop])).tolist()
    inside: Tensor = index[first:last] - at.start
    return inside


class FittedScore(nn.Module):
    """A score of features. Subclasses set `name`, and define `fit` and `forward`; `scores.register` adds them.

    Args:
        state: What `fit` returned; tensors become buffers of the same names.
    """

    name: ClassVar[str]
    exportable: ClassVar[bool] = True  # whether `forward` can be traced, for ONNX
    why_not: ClassVar[str] = ""  # the reason, if it cannot
    needs_head: ClassVar[bool] = False  # whether `fit` needs `Rows.head`

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for key, value in state.items():
            self.register_buffer(key, value)

    @property
    def width(self) -> int | None:
        """D of the features that the score was fitted to; None if it takes any."""
        return None

    @property
    def temporary(self) -> int:
        """Values per sample of the largest temporary of `forward`, beside features and logits."""
        return 1

    @classmethod
    @abstractmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Return the state that the training features and their labels (N,) lead to."""

    @classmethod
    def check_head(cls, head: Head | None) -> None:
        """Raise if the score needs a linear head and the model has none."""
        if cls.needs_head and head is None:
            raise DissensusError(
                f"score {cls.name!r} needs members that are linear in L2-normalised features; these are not: "
                "use the tail linear with norm l2, or another score"
            )

    @abstractmethod
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score of vectors (B, D) with members' logits (M, B, C): (B,), higher = more OOD."""

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score of each sample, whatever the form of its features: (B, ...), (M, B, C) -> (B,).

        `forward` is called with a part of the batch at a time; to trace it, call `forward` with `vectors(features)`.
        """
        x = vectors(features)
        if x.shape[:1] != logits.shape[1:2]:
            raise ShapeError(
                f"features and logits must be of the same samples; got {tuple(features.shape)} and "
                f"{tuple(logits.shape)}: features are (B, ...), logits (M, B, C)"
            )
        if self.width is not None and x.shape[1] != self.width:
            raise ShapeError(
                f"score {self.name!r} was fitted to features of width {self.width}; got width {x.shape[1]}: "
                "use features of the same backbone and layer"
            )
        rows = max(1, CHUNK_VALUES // max(1, x.shape[1], logits.shape[2], self.temporary))
        parts = []
        for start in range(0, max(1, len(x)), rows):
            chunk = x[start : start + rows]
            part: Tensor = super().__call__(chunk, logits[:, start : start + rows])
            if part.shape != chunk.shape[:1]:
                raise ShapeError(
                    f"score {self.name!r} must return (B,); got {tuple(part.shape)} for {tuple(chunk.shape)}"
                )
            parts.append(part)
        return torch.cat(parts)


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
    """Divide vectors (..., D) by their length, however long or short; a zero vector stays zero."""
    x = x / _largest(x)
    # the largest entry is 1, so only a zero vector is shorter than that
    direction: Tensor = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1)
    return direction


def log_norm(x: Tensor) -> Tensor:
    """Logarithm of the length of vectors: (B, D) -> (B,); finite, about -87 for a zero vector."""
    largest = _largest(x)
    length: Tensor = (x / largest).norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    return length.log() + largest.squeeze(1).log()


def _largest(x: Tensor) -> Tensor:
    """Largest absolute value of each vector, 1 if it is 0: (..., D) -> (..., 1). Squares of x / it do not overflow."""
    largest = x.abs().amax(-1, keepdim=True)
    return torch.where(largest > 0, largest, 1)


def check_classes(moments: Moments) -> None:
    """Raise if no class has two samples: nothing says how far apart samples of one class lie."""
    if int(moments.counts.max()) < 2:
        raise DataError(
            f"distances need a class with at least two samples; every one of {len(moments.counts)} classes has "
            "one or none: add samples"
        )
