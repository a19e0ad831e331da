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
from torch import Tensor, nn

from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus.functional.checks import full_precision
from dissensus.functional.moments import Exchange, Moments, Sample, Summary

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


class Labels(Protocol):
    """Labels (N,) that are read when indexed; a tensor is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Return the labels of these rows."""
        ...


class Rows:
    """The training features of a fitted score, read once for all the summaries that scores ask for.

    Args:
        features: The training features.
        labels: (N,) their classes, within 0..classes - 1; some classes may be missing.
        classes: How many classes there are.
        logits: Maps features (b, ...) to the members' logits (M, b, C), for scores that are fitted to logits too.
        head: The model's last layer, if it is linear in L2-normalised features times sqrt(D).
        keep: How many feature values `sample` may hold; a larger set is sampled at random.
        part: Where several processes share the work, the rows that this one reads, whose slices count from the first
            row of all; parts follow each other in the order of the processes.
        exchange: How these processes put their sums together; each then asks for `moments` or `sample` once.
    """

    def __init__(
        self,
        features: Source,
        labels: Labels,
        classes: int,
        *,
        logits: Callable[[Tensor], Tensor] | None = None,
        head: Head | None = None,
        keep: int = SAMPLE_VALUES,
        part: Source | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        if len(labels) != len(features):
            raise ShapeError(f"every row needs a label; got {len(features)} rows and {len(labels)} labels")
        if not len(labels):
            raise DataError("fitted scores need training features; got none: add samples")
        self.features, self.labels, self.classes, self.logits, self.head = features, labels, classes, logits, head
        self.keep, self.part, self.exchange = keep, part, exchange
        self._outcome: tuple[Moments, Sample] | DissensusError | None = None

    def __len__(self) -> int:
        return len(self.features)

    def batches(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield the features as vectors (b, D), float32 or float64, and the rows that they are."""
        for x, at in self._batches(self.features):
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

    def _batches(self, source: Source) -> Iterator[tuple[Tensor, slice]]:
        return source.batches(min(BATCH, max(1, CHUNK_VALUES // max(1, self._first.numel()))))

    @property
    def _read(self) -> tuple[Moments, Sample]:
        """Everything from one pass; features that do not allow it are read once as well."""
        if self._outcome is None:
            try:
                self._outcome = self._summarise()
            except (DataError, ShapeError) as error:
                self._outcome = error
        if isinstance(self._outcome, DissensusError):
            raise self._outcome
        return self._outcome

    def _summarise(self) -> tuple[Moments, Sample]:
        if self.exchange is None:
            return self._sum(self.features).result()
        summary, failure = None, None
        try:
            summary = self._sum(self.features if self.part is None else self.part)
        except Exception as error:
            failure = error
        self.exchange.agree(failure)
        assert summary is not None  # or it has raised
        return summary.result(self.exchange)

    def _sum(self, source: Source) -> Summary:
        """Sum up the rows of a source, with products in float64.

        Float32 products per batch took 1.2 s instead of 3.2 s on 28,400 x 1280 features and were exact to 2e-7 there,
        but to 1e-6 only on 1,167 rows, and to 3e-5 on features that vary little about a large mean.
        """
        D = vectors(self._first).shape[1]
        peaks = 0 if self.logits is None else PEAK_ROWS
        summary = Summary(len(self), self.classes, D, max(1, self.keep // max(1, D)), len(source), peaks)
        for raw, at in self._batches(source):
            x = vectors(raw).cpu()
            summary.add(x, unit(x.double()), log_norm(x.double()), self.labels[at].cpu(), at, self._peaks(raw))
        return summary

    def _peaks(self, raw: Tensor) -> Callable[[Tensor], Tensor]:
        """Largest mean logits of some rows of a batch."""

        def peaks(rows: Tensor) -> Tensor:
            assert self.logits is not None  # without it no rows are asked for
            return self.logits(raw[rows.to(raw.device)]).mean(0).amax(1).cpu()

        return peaks


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
        """Return the state that the training features and their labels (N,) lead to.

        Of a large set, `labels` is an object that reads labels when it is indexed with a slice or a tensor.
        """

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
