"""JoinedEnsemble: the members of several ensembles, each on the features of its own backbone.

A row of joined features is the features of every backbone, one after the other, as one vector. On disk a joined
ensemble is `joined.json`, which names the folders of its parts; their weights are not copied.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from dissensus._core import documents
from dissensus._core.digests import digest
from dissensus._core.errors import DissensusError, RunError, ShapeError
from dissensus._core.files import make_folder
from dissensus._core.places import filesystem, is_remote, is_url, place
from dissensus.functional.fitted import FittedScore
from dissensus.functional.parts import MARK, PartScore, part_name
from dissensus.models.ensemble import Ensemble, Tail

INFO = "joined.json"


class PartInfo(documents.Part):
    """A part of a joined ensemble."""

    name: Annotated[str, Field(min_length=1)]
    ensemble: str  # its folder, relative to that of joined.json; on other storage its path or URL
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]  # of its features, for one sample
    fingerprint: str  # of its members' weights


class JoinedInfo(documents.Document):
    """joined.json."""

    remedy: ClassVar[str] = "join the runs again: dissensus join RUN RUN --out JOINED"

    format: Literal["dissensus-joined-2"] = "dissensus-joined-2"
    parts: Annotated[tuple[PartInfo, ...], Field(min_length=2)]


class JoinedEnsemble(Ensemble):
    """The members of several ensembles: joined features (B, D) -> logits (M, B, C), M members in all.

    Args:
        parts: Ensembles by name, with the same classes.
        shapes: The shape of one sample's features, by the same names.

    Attributes:
        fitted: The fitted scores of every part, named SCORE@PART; read-only.

    Raises:
        DissensusError: If there are fewer than two parts, or their numbers of classes differ.
    """

    def __init__(self, parts: Mapping[str, Ensemble], shapes: Mapping[str, Sequence[int]]) -> None:
        nn.Module.__init__(self)
        if len(parts) < 2:
            raise DissensusError(f"a joined ensemble has two or more parts; got {len(parts)}: use the ensemble itself")
        counts = {name: part.classes for name, part in parts.items()}
        if len(set(counts.values())) > 1:
            raise DissensusError(f"parts must have the same classes; got {counts}: train them on the same data")
        self.names, self.shapes = tuple(parts), {name: tuple(shapes[name]) for name in parts}
        self.parts = nn.ModuleList(parts.values())
        methods = dict.fromkeys(part.method for part in parts.values())
        self.seed, self.method = self._part(0).seed, next(iter(methods)) if len(methods) == 1 else None
        self.fitted = _PartScores(self)  # type: ignore[assignment]  # nothing may be set

    def _part(self, i: int) -> Ensemble:
        part = self.parts[i]
        assert isinstance(part, Ensemble)
        return part

    @property
    def by_name(self) -> dict[str, Ensemble]:
        """The parts by name."""
        return {name: self._part(i) for i, name in enumerate(self.names)}

    @property
    def width(self) -> int:
        """D, the number of values per row of joined features."""
        return sum(map(math.prod, self.shapes.values()))

    def columns(self, name: str) -> slice:
        """Where the features of a part are in a row of joined features."""
        return _ranges(math.prod(shape) for shape in self.shapes.values())[self.names.index(name)]

    def members(self, name: str) -> slice:
        """The members of a part."""
        return _ranges(map(len, self.by_name.values()))[self.names.index(name)]

    def forward(self, x: Tensor, index: Tensor | Sequence[int] | None = None) -> Tensor:
        """Logits of all members, (B, D) -> (M, B, C), or of those in `index`, in its order."""
        each = [part(x[:, self.columns(name)].reshape(-1, *self.shapes[name])) for name, part in self.by_name.items()]
        logits = torch.cat(each)
        return logits if index is None else logits[torch.as_tensor(index, device=logits.device)]

    def __len__(self) -> int:
        return sum(map(len, self.by_name.values()))

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(part)} on {name}" for name, part in self.by_name.items())
        return f"JoinedEnsemble({len(self)} members, {parts}, {self.classes} classes)"

    @property
    def fingerprint(self) -> str:
        """A sha256 of names, shapes and the members' weights."""
        return digest([[name, self.shapes[name], part.fingerprint] for name, part in self.by_name.items()])

    @property
    def score_digests(self) -> dict[str, str]:
        """A sha256 of the state of each fitted score, by its name with the part."""
        return {
            part_name(score, name): value
            for name, part in self.by_name.items()
            for score, value in part.score_digests.items()
        }

    @property
    def about(self) -> dict[str, Any] | None:
        """None: there is no single tail."""
        return None

    @property
    def classes(self) -> int | None:
        """Number of classes."""
        return self._part(0).classes

    def check_features(
        self, shape: Sequence[int], source: str, remedy: str = "use features of all backbones, in the same order"
    ) -> None:
        """Raise `ShapeError` if rows of features of that shape are not joined features of the parts."""
        if tuple(shape) != (self.width,):
            raise ShapeError(
                f"the ensemble takes the features of {', '.join(self.names)} as one vector of width {self.width}; "
                f"{source} has rows of shape {tuple(shape)}: {remedy}"
            )

    @property
    def tail(self) -> nn.Module:  # type: ignore[override]
        """Raise: every part has its own tail."""
        self._refuse()

    def stacked(self) -> dict[str, Tensor]:
        """Raise: members on several backbones have no weights in common."""
        self._refuse()

    def soup(self, *args: Any, **options: Any) -> nn.Module:
        """Raise: members on several backbones have no weights in common."""
        self._refuse()

    def mix(self, *args: Any, **options: Any) -> dict[str, Tensor]:
        """Raise: members on several backbones have no weights in common."""
        self._refuse()

    def member(self, i: int) -> nn.Module:
        """Raise: a member takes the features of its own backbone."""
        self._refuse()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Raise: a joined ensemble is made of saved ones, by `write`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DissensusError(
            f"members on several backbones have no weights in common; these are on {' and '.join(self.names)}: "
            "use one part"
        )

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tail: Tail | None = None) -> JoinedEnsemble:
        """Read the parts that joined.json names.

        Args:
            folder: The folder of joined.json.
            tail: The tail of every part, if it is not registered in `TAILS`.

        Raises:
            RunError: If joined.json or a part is missing, damaged, or not the one that was joined.
        """
        folder = place(folder)
        info = documents.read(JoinedInfo, folder / INFO)
        parts = dict[str, Ensemble]()
        for part in info.parts:
            where = _locate(folder, part.ensemble)
            if not where.is_dir():
                raise RunError(
                    f"a joined run needs its parts; {part.name} is not at {_normal(where)}: move them "
                    f"together, or {JoinedInfo.remedy}"
                )
            parts[part.name] = Ensemble.load(where, tail)
            if parts[part.name].fingerprint != part.fingerprint:
                raise RunError(
                    f"a joined run holds for the members it was made of; {_normal(where)} has others now: "
                    f"{JoinedInfo.remedy}"
                )
        try:
            return cls(parts, {part.name: part.shape for part in info.parts})
        except DissensusError as error:
            raise RunError(f"{folder / INFO} is damaged ({error})") from error


def write(folder: Path, parts: Mapping[str, Path], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write joined.json.

    Args:
        folder: Where; created.
        parts: The folders of the ensembles, by name.
        shapes: The shape of one sample's features, by name.
    """
    make_folder(folder)
    entries = [
        PartInfo(
            name=name,
            ensemble=_name(where, folder),
            shape=tuple(shapes[name]),
            fingerprint=Ensemble.load(where).fingerprint,
        )
        for name, where in parts.items()
    ]
    documents.write(folder / INFO, JoinedInfo(parts=tuple(entries)))


def part_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of the ensembles that were joined, by name; empty if `folder` holds a single ensemble."""
    if not (folder / INFO).is_file():
        return {}
    parts = documents.read(JoinedInfo, folder / INFO).parts
    return {part.name: _normal(_locate(folder, part.ensemble)) for part in parts}


def _name(part: Path, folder: Path) -> str:
    """Return how joined.json in `folder` names a part: relative if both are on one file system, under one root."""
    if not is_remote(part) and not is_remote(folder) and part.resolve().anchor == folder.resolve().anchor:
        return Path(os.path.relpath(part.resolve(), folder.resolve())).as_posix()
    if is_remote(part) and is_remote(folder):
        (theirs, at), (ours, start) = filesystem(part.resolve()), filesystem(folder.resolve())
        if theirs == ours and posixpath.commonpath([at, start]).strip("/"):
            return posixpath.relpath(at, start)
    return str(part.resolve())


def _locate(folder: Path, name: str) -> Path:
    """Return the folder of a part by its name in joined.json."""
    if is_url(name) or os.path.isabs(name):
        return place(name)
    return (folder / name).resolve() if is_remote(folder) else folder / name


def _normal(path: Path) -> Path:
    """Return a path without dots."""
    return path if is_remote(path) else Path(os.path.normpath(path))


class _PartScores(Mapping[str, FittedScore]):
    """The fitted scores of all parts, SCORE@PART, each read on first use."""

    def __init__(self, ensemble: JoinedEnsemble) -> None:
        self._scores = {name: part.fitted for name, part in ensemble.by_name.items()}
        self._places = {
            name: (ensemble.columns(name), ensemble.shapes[name], ensemble.members(name)) for name in ensemble.names
        }

    def __getitem__(self, name: str) -> FittedScore:
        score, _, part = name.partition(MARK)
        return PartScore(self._scores[part][score], *self._places[part])

    def __iter__(self) -> Iterator[str]:
        return (part_name(score, part) for part, fitted in self._scores.items() for score in fitted)

    def __len__(self) -> int:
        return sum(map(len, self._scores.values()))

    def __contains__(self, name: object) -> bool:
        score, _, part = str(name).partition(MARK)
        return score in self._scores.get(part, {})


def _ranges(lengths: Any) -> list[slice]:
    """Return consecutive ranges of these lengths."""
    ranges, start = list[slice](), 0
    for length in lengths:
        ranges.append(slice(start, start + length))
        start += length
    return ranges
