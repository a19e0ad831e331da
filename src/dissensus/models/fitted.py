"""Fitted scores of an ensemble on disk: `scores.safetensors`, with the tensors of every score as NAME.TENSOR.

They are read one by one on first use: the state of a score may be hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from dissensus._core import tensors
from dissensus._core.digests import verifying
from dissensus._core.errors import RunError, UnknownNameError
from dissensus.functional import scores
from dissensus.functional.fitted import FittedScore

FILE = "scores.safetensors"
REMEDY = "train the ensemble again"


class SavedScores(MutableMapping[str, FittedScore]):
    """Fitted scores by name, read from a folder on first use.

    Args:
        folder: Where `write` put them.
        digests: Name -> digest of the score's tensors, as `write` returned them.

    Raises:
        RunError: If a score is not registered, or the file is missing.
    """

    def __init__(self, folder: Path, digests: Mapping[str, str]) -> None:
        self._path, self._digests = folder / FILE, dict(digests)
        self._loaded: dict[str, FittedScore] = {}
        for name in self._digests:
            _check_name(folder, name)
        if digests and not self._path.is_file():
            raise RunError(f"there is no file {self._path}: {REMEDY}")

    def __getitem__(self, name: str) -> FittedScore:
        if name not in self._loaded:
            digest = self._digests[name]
            values, _ = tensors.read_some(self._path, lambda key: key.rpartition(".")[0] == name, remedy=REMEDY)
            state = {key.rpartition(".")[2]: value for key, value in values.items()}
            if verifying() and tensors.digest_of(state) != digest:
                raise RunError(f"the score {name} in {self._path} is not the one that was saved: {REMEDY}")
            score = scores.SCORES[name]
            assert isinstance(score, type)  # checked when it was opened
            self._loaded[name] = score(state)
        return self._loaded[name]

    def __setitem__(self, name: str, score: FittedScore) -> None:
        self._digests.pop(name, None)
        self._loaded[name] = score

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._digests.pop(name, None)
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._digests or name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._digests, *self._loaded]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def digest(self, name: str) -> str | None:
        """The digest of a score as it was saved; None if it was set since."""
        return self._digests.get(name)


def write(folder: Path, fitted: Mapping[str, FittedScore]) -> dict[str, str]:
    """Write fitted scores, atomically; without any, no file. Return the digest of each score's tensors by name."""
    if not fitted:
        return {}
    states = {name: dict(score.state_dict()) for name, score in fitted.items()}
    tensors.write(folder / FILE, {f"{name}.{key}": v for name, state in states.items() for key, v in state.items()})
    return {name: tensors.digest_of(state) for name, state in states.items()}


def digests(fitted: Mapping[str, FittedScore]) -> dict[str, str]:
    """Return the digest of each score's tensors by name, without reading what has not been read yet."""
    known = {name: fitted.digest(name) if isinstance(fitted, SavedScores) else None for name in fitted}
    return {name: digest or tensors.digest_of(fitted[name].state_dict()) for name, digest in known.items()}


def _check_name(folder: Path, name: str) -> None:
    try:
        known = scores.is_fitted(name)
    except UnknownNameError as error:
        raise RunError(f"{folder} has a fitted score that is an {error}; register it first, or {REMEDY}") from error
    if not known:
        raise RunError(f"{folder} has {name!r} as a fitted score, which is one of logits: {REMEDY}")
