"""The folder of an extraction under way: finished shards stay, so that a killed one goes on where it was.

    plan.json                 what was asked; another extraction is refused
    shard-00003.safetensors   the features of the images of that shard, written whole
    shard-00003.json          its receipt: rows, bytes, sha256, and the images that could not be read

When every shard has its receipt they become the index of a feature folder and go away with the plan; what could not be
read stays listed in bad.tsv.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dissensus import shards
from dissensus.errors import DataError
from dissensus.files import read_json
from dissensus.shards import INDEX, PARTIAL, Array, Index, Shard
from dissensus.writer import NewFolder

PLAN, LOCK, STOP, BAD = "plan.json", "plan.lock", "plan.stop", "bad.tsv"


@dataclass(frozen=True)
class Receipt:
    """What became of one shard; `sha256` is empty where no image could be read and there is no file."""

    file: str
    rows: int
    bytes: int
    sha256: str
    bad: tuple[tuple[str, str], ...]  # name, reason


class Extraction:
    """A folder that is filled shard by shard, by one command at a time, perhaps in several attempts."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], count: int) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads(json.dumps(plan))
        self.count = count
        self._files = NewFolder(folder)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Take the folder for this command: a new or empty one, or one with the same extraction under way."""
        made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self._refuse_foreign()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise DataError(f"cannot write {self.folder}, {error.strerror or error}: choose another folder") from error
        try:
            _lock(lock, self.folder)
            self._refuse_foreign()  # what another command may have finished since the first look
            if not self.finished:
                self._release()
                if not (self.folder / PLAN).exists():
                    self._files.write(PLAN, [json.dumps(self.plan, indent=1).encode() + b"\n"])
            yield
        finally:
            with contextlib.suppress(OSError):
                (self.folder / LOCK).unlink()
            os.close(lock)
            for path in made:  # an extraction that has written nothing leaves nothing
                with contextlib.suppress(OSError):
                    path.rmdir()

    @property
    def finished(self) -> bool:
        """Whether the folder is a feature set already."""
        return (self.folder / INDEX).is_file()

    def take(self, number: int) -> bool:
        """Take a shard for this process, unless another has it or one has failed: whoever is free takes the next."""
        if (self.folder / STOP).exists():
            return False
        try:
            open(self.folder / f"shard-{number:05d}.taken", "xb").close()
        except FileExistsError:
            return False
        return True

    def stop(self) -> None:
        """Let no process take another shard: one has failed."""
        (self.folder / STOP).touch()

    def receipt(self, number: int) -> Receipt | None:
        """What became of that shard, or None if it is yet to be made."""
        found = read_json(self.folder / f"shard-{number:05d}.json")
        try:
            receipt = Receipt(**{**found, "bad": tuple((name, reason) for name, reason in found["bad"])})
            size = (self.folder / receipt.file).stat().st_size if receipt.rows else 0
        except (TypeError, KeyError, ValueError, OSError):
            return None
        return receipt if size == receipt.bytes else None

    def write(self, number: int, tensors: Mapping[str, Array], bad: Sequence[tuple[str, str]]) -> Receipt:
        """Write a shard, then its receipt."""
        file, rows = f"shard-{number:05d}.safetensors", len(tensors["features"])
        size, sha256 = self._files.write(file, shards.shard_bytes(tensors)) if rows else (0, "")
        receipt = Receipt(file, rows, size, sha256, tuple(bad))
        self._files.write(f"shard-{number:05d}.json", [json.dumps(asdict(receipt)).encode()])
        return receipt

    def list_bad(self, bad: Sequence[tuple[str, str]]) -> Path:
        """Write the list of images that could not be read."""
        lines = [f"{name}\t{reason}\n" for name, reason in bad]
        self._files.write(BAD, [line.encode(errors="surrogateescape") for line in lines])
        return self.folder / BAD

    def finish(self, index: Mapping[str, Any]) -> None:
        """Make the index of the shards, whose receipts must all be there, and tidy up."""
        receipts = [self.receipt(number) for number in range(self.count)]
        made = [Shard(r.file, r.rows, r.bytes, r.sha256) for r in receipts if r is not None and r.rows]
        bad = [entry for r in receipts if r is not None for entry in r.bad]
        if not made:
            first = f"{bad[0][0]}: {bad[0][1]}" if bad else "none given"
            raise DataError(f"no image could be read; the first is {first}: check the images")
        if bad:
            self.list_bad(bad)
        whole = Index(
            **{**index, "provenance": {**index["provenance"], "bad": len(bad)}},
            count=sum(shard.rows for shard in made),
            shards=tuple(made),
        )
        self._files.write(INDEX, [shards.index_bytes(whole)])
        self.tidy()

    def tidy(self) -> None:
        """Remove what only an unfinished extraction needs."""
        self._release()
        for path in [*self.folder.glob("shard-*.json"), *self.folder.glob(f"*{PARTIAL}"), self.folder / PLAN]:
            path.unlink(missing_ok=True)

    def _release(self) -> None:
        """Forget who had taken what."""
        for path in [*self.folder.glob("shard-*.taken"), self.folder / STOP]:
            path.unlink(missing_ok=True)

    def _refuse_foreign(self) -> None:
        names = set(os.listdir(self.folder)) - {LOCK} if self.folder.is_dir() else set()
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError(f"features are a folder; {self.folder} is a file: choose another")
        if foreign := sorted(name for name in names if not shards.ours(name)):
            raise DataError(f"features need an empty folder; {self.folder} holds {foreign[0]!r}: choose another")
        if not names:
            return
        if self.finished:
            found = (read_json(self.folder / INDEX) or {}).get("provenance")
        else:
            found = read_json(self.folder / PLAN)
        if not isinstance(found, dict):
            if names <= {PLAN + PARTIAL}:  # killed before the plan was whole
                return
            raise DataError(f"features need an empty folder; {self.folder} is half-written: delete it first")
        differing = [key for key, value in self.plan.items() if found.get(key) != value]
        if differing:
            told = ", ".join(_difference(key, found.get(key), self.plan[key]) for key in differing[:3])
            raise DataError(f"{self.folder} holds other features ({told}): choose another folder, or delete it")


def _difference(key: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):
        inner = next((name for name in here if there.get(name) != here[name]), key)
        return _difference(f"{key} {inner}", there.get(inner), here.get(inner))
    return f"{key} is {str(there)[:12]} there, {str(here)[:12]} here"


def _lock(handle: int, folder: Path) -> None:
    """Hold the folder against other commands; the system lets go when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this system: two commands at once would each do all the work
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DataError(f"{folder} is being written by another command: wait for it, or choose another") from error
