"""Verdicts: what a detector says of samples, together and one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import pandas as pd
import torch
from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """What a detector says of one sample; `error` says why it could not be read, and the rest is None then.

    `out` and `p_value` are None where the detector is not calibrated.
    """

    name: str
    label: int | None = None
    class_name: str | None = None
    confidence: float | None = None
    score: float | None = None
    p_value: float | None = None
    out: bool | None = None
    votes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def verdict(self) -> str:
        """ "in", "out", or "" where there is none."""
        return "" if self.out is None else "out" if self.out else "in"

    def as_dict(self, *, votes: bool = False) -> dict[str, Any]:
        """As plain values for JSON and tables: the same keys for every sample."""
        plain = {
            "path": self.name,
            "label": self.label,
            "class": self.class_name,
            "confidence": _rounded(self.confidence),
            "score": _rounded(self.score),
            "p_value": _rounded(self.p_value),
            "verdict": self.verdict or None,
            "error": self.error,
        }
        return plain | ({"votes": list(self.votes)} if votes else {})


def _rounded(value: float | None) -> float | None:
    """To the seven digits that float32 knows."""
    return None if value is None else float(f"{value:.7g}")


@dataclass(frozen=True)
class Verdicts:
    """What a detector says of N samples, as tensors; iterate for one `Verdict` each.

    `p_value`, `threshold` and `out` are None where the detector is not calibrated.
    """

    label: Tensor  # (N,)
    confidence: Tensor  # (N,)
    score: Tensor  # (N,), higher = more OOD
    votes: Tensor  # (M, N), each member's class
    classes: tuple[str, ...]
    p_value: Tensor | None = None  # (N,)
    threshold: Tensor | None = None  # (N,), that of the predicted class
    out: Tensor | None = None  # (N,)
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, i: int) -> Verdict: ...

    @overload
    def __getitem__(self, i: slice) -> list[Verdict]: ...

    def __getitem__(self, i: int | slice) -> Verdict | list[Verdict]:
        if isinstance(i, slice):
            return [self[place] for place in range(*i.indices(len(self)))]
        label = int(self.label[i])
        return Verdict(
            name=self.names[i] if self.names else str(i),
            label=label,
            class_name=self.classes[label],
            confidence=float(self.confidence[i]),
            score=float(self.score[i]),
            p_value=None if self.p_value is None else float(self.p_value[i]),
            out=None if self.out is None else bool(self.out[i]),
            votes=tuple(self.classes[vote] for vote in self.votes[:, i].tolist()),
        )

    def frame(self) -> pd.DataFrame:
        """A row a sample; the votes in columns member 1, member 2, ..."""
        rows = [{key: value for key, value in v.as_dict().items() if key != "error"} for v in self]
        members = {f"member {m + 1}": [self.classes[c] for c in votes.tolist()] for m, votes in enumerate(self.votes)}
        return pd.DataFrame(rows).assign(**members)

    def named(self, names: Sequence[str]) -> Verdicts:
        """The same with a name for every sample."""
        return replace(self, names=tuple(names))

    @classmethod
    def joined(cls, parts: Sequence[Verdicts]) -> Verdicts:
        """Those of several batches as one."""
        first = parts[0]

        def every(name: str, dim: int = 0) -> Any:
            if getattr(first, name) is None:
                return None
            return torch.cat([getattr(part, name) for part in parts], dim)

        return cls(
            label=every("label"),
            confidence=every("confidence"),
            score=every("score"),
            votes=every("votes", 1),
            classes=first.classes,
            p_value=every("p_value"),
            threshold=every("threshold"),
            out=every("out"),
            names=tuple(name for part in parts for name in part.names),
        )
