"""Verdicts: what a detector says about samples, together and one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, overload

import pandas as pd
import torch
from torch import Tensor

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import printable

# A sample that is not called out may still be OOD: no score sees everything.
OUT, NOTHING_UNUSUAL = "out", "nothing unusual"

SHOWN = 8  # rows of a printed or rendered table


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a detector says about one sample.

    Attributes:
        name: The path, or the row number.
        label, class_name: The predicted class, as a number and as a name.
        confidence: Probability of that class.
        score: OOD score, higher = more OOD.
        p_value: How unusual the score is among ID samples; None if the detector is not calibrated.
        out: Whether the sample is called out of distribution; None if the detector is not calibrated.
        votes: Each member's class.
        parts: Name and p-value of each of several scores that are combined, in order; else empty.
        error: Why the sample could not be read; everything but the name is empty then.
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
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def verdict(self) -> str:
        """ "out", "nothing unusual", or "" if the detector is not calibrated."""
        return "" if self.out is None else OUT if self.out else NOTHING_UNUSUAL

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Verdict({self.name!r}, error: {self.error})"
        parts = [f"{self.name!r}", f"{self.class_name} ({self.confidence:.0%})", f"score {self.score:.4g}"]
        parts += [f"p-value {self.p_value:.3g}", self.verdict] if self.p_value is not None else []
        return printable(f"Verdict({', '.join(parts)})")

    def as_dict(self, *, explain: bool = False) -> dict[str, Any]:
        """Return plain values for JSON and tables, the same keys for every sample; `explain` adds votes and parts."""
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
        if not explain:
            return plain
        parts = [{"score": name, "p_value": _rounded(p_value)} for name, p_value in self.parts]
        return plain | {"votes": list(self.votes), "parts": parts}


def _rounded(value: float | None) -> float | None:
    """Round to the seven digits of float32."""
    return None if value is None else float(f"{value:.7g}")


@dataclass(frozen=True, repr=False)
class Verdicts:
    """What a detector says about N samples, as tensors. Iterate or index for one `Verdict` each.

    Attributes:
        label: (N,) predicted classes.
        confidence: (N,) their probabilities.
        score: (N,) OOD scores, higher = more OOD.
        votes: (M, N) each member's class.
        classes: Names of the classes.
        p_value: (N,) how unusual each score is among ID samples; None if the detector is not calibrated.
        threshold: (N,) the score above which a sample of that predicted class is out; None likewise.
        out: (N,) whether the sample is out of distribution; None likewise.
        names: Paths or other names of the samples; empty if they are just numbered.
        parts: (S, N) where several scores are combined, the p-value of each among ID samples; else None.
        scores: Names of the scores; empty if the detector is not calibrated.
    """

    label: Tensor
    confidence: Tensor
    score: Tensor
    votes: Tensor
    classes: tuple[str, ...]
    p_value: Tensor | None = None
    threshold: Tensor | None = None
    out: Tensor | None = None
    names: tuple[str, ...] = ()
    parts: Tensor | None = None
    scores: tuple[str, ...] = ()

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
            return [self[row] for row in range(*i.indices(len(self)))]
        label = int(self.label[i])
        return Verdict(
            name=self.names[i] if self.names else str(i % len(self)),
            label=label,
            class_name=self.classes[label],
            confidence=float(self.confidence[i]),
            score=float(self.score[i]),
            p_value=None if self.p_value is None else float(self.p_value[i]),
            out=None if self.out is None else bool(self.out[i]),
            votes=tuple(self.classes[vote] for vote in self.votes[:, i].tolist()),
            parts=() if self.parts is None else tuple(zip(self.scores, self.parts[:, i].tolist(), strict=True)),
        )

    def __repr__(self) -> str:
        more = f"\n... {len(self) - SHOWN:,} more" if len(self) > SHOWN else ""
        table = printable(self._head().to_string(index=False, na_rep=""), keep="\n")
        return f"{self.summary}\n{table}{more}"

    def _repr_html_(self) -> str:
        more = f"<p>... {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        return f"<p>{escape(self.summary)}</p>{self._head().to_html(index=False, na_rep='', border=0)}{more}"

    @property
    def summary(self) -> str:
        """How many samples there are, and in how many something unusual was found, in a few words."""
        count = f"{len(self):,} sample{'s' * (len(self) != 1)}"
        if self.out is None:
            return f"{count}, not calibrated: scores, but no verdicts"
        out = int(self.out.sum())
        return f"{count}: {out:,} out of distribution, nothing unusual found in {len(self) - out:,}"

    def _head(self) -> pd.DataFrame:
        """Return the first rows, with numbers rounded for reading and without empty columns."""
        return frame(self[:SHOWN], 0).drop(columns=["label", "error"]).dropna(axis=1, how="all").round(4)

    def frame(self) -> pd.DataFrame:
        """Return a DataFrame, one row per sample; the votes are in columns member 1, member 2, ..."""
        return frame(self, len(self.votes)).drop(columns="error")

    def named(self, names: Sequence[str]) -> Verdicts:
        """Return the same verdicts with a name for every sample."""
        return replace(self, names=tuple(names))

    @classmethod
    def concatenate(cls, parts: Sequence[Verdicts]) -> Verdicts:
        """Join the verdicts of several batches."""
        tensors = [name for name, value in vars(parts[0]).items() if isinstance(value, Tensor)]
        joined: Any = {name: torch.cat([getattr(part, name) for part in parts], dim=-1) for name in tensors}
        return replace(parts[0], **joined)


def frame(verdicts: Iterable[Verdict], members: int) -> pd.DataFrame:
    """Return verdicts as a DataFrame: one row each, with the members' votes in columns member 1, member 2, ..."""
    names = [f"member {m + 1}" for m in range(members)]
    rows = [v.as_dict() | dict(zip(names, v.votes or (None,) * members, strict=False)) for v in verdicts]
    return pd.DataFrame(rows)


def class_names(names: Sequence[str], count: int | None) -> tuple[str, ...]:
    """Return a name for each of `count` classes; those without one are numbered."""
    if count is None and not names:
        raise DissensusError("a custom tail needs the names of its classes; got none: give classes=[...]")
    if count is not None and len(names) > count:
        raise DissensusError(f"a class needs a logit; the tail has {count}, got {len(names)} names: check them")
    return (*names, *(str(c) for c in range(len(names), count or 0)))
