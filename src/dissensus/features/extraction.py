"""The folder of an extraction under way: finished shards stay, so that a killed one goes on where it was.

    plan.json                 what was asked; another extraction is refused
    plan.lock                 held by the processes of the command at work
    shard-00003.taken         one of them is at this shard
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

from dissensus._core.errors import DataError
from dissensus._core.files import read_json
from dissensus._core.locks import Lock
from dissensus.features import shards
from dissensus.features.shards import INDEX, PARTIAL, Index, Shard
from dissensus.features.writer import NewFolder
from dissensus.functional.arrays import Array

PLAN, LOCK, STOP, BAD = "plan.json", "plan.lock", "plan.stop", "bad.tsv"

Bad = Sequence[tuple[str, str]]  # names and reasons


@dataclass(frozen=True)
class Receipt:
    """What became of one shard; `sha256` is empty where no image could be read and there is no file."""

    file: str
    rows: int
    bytes: int
    sha256: str
    bad: tuple[tuple[str, str], ...]  # name, reason


class Extraction:
    """A folder that is filled shard by shard, by one command at a time, perhaps in several attempts.

    `count` is the number of shards, the same number for each of the `passes`.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], count: int, passes: int = 1) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads(json.dumps(plan))
        self.count, self.passes = count, passes
        self._files = NewFolder(folder)
        self._parent: int | None = None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Take the folder for this command: a new or empty one, or one with the same extraction under way."""
        self._refuse_others()
        if self.finished and not any((self.folder / name).exists() for name in (PLAN, LOCK)):
            yield  # without a lock: features may lie where nothing can be written
            return
        made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        with self._locked(alone=True) as lock:
            accepted = False
            try:
                self._refuse_others()  # what another command may have finished since the first look
                accepted = True
                self._tidy()
                if not self.finished and not (self.folder / PLAN).exists():
                    self._files.write(PLAN, [json.dumps(self.plan, indent=1).encode() + b"\n"])
                lock.share()  # with the command's other processes, which outlive this one if it is killed
                yield
            finally:
                with contextlib.suppress(OSError):
                    if lock.alone():
                        if accepted:
                            self._tidy()
                        lock.path.unlink()
                    for path in made:  # an extraction that has done nothing leaves nothing
                        path.rmdir()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Work on a folder that the first process of the command has claimed, until that one ends."""
        self._parent = os.getppid()
        with contextlib.nullcontext() if self.finished else self._locked(alone=False):
            yield

    @contextlib.contextmanager
    def _locked(self, *, alone: bool) -> Iterator[Lock]:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = Lock(self.folder / LOCK, alone=alone)
        except BlockingIOError as error:
            raise DataError(
                f"{self.folder} is being written by another command: wait for it, or choose another"
            ) from error
        try:
            yield lock
        finally:
            lock.release()

    @property
    def finished(self) -> bool:
        """Whether the folder is a feature set already."""
        return (self.folder / INDEX).is_file()

    @property
    def stopped(self) -> bool:
        """Whether another process of the command has failed, or this one outlives the one that started it."""
        return (self.folder / STOP).exists() or self._parent not in (None, os.getppid())

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Where this process fails let none of the others go on."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # of a full disk, perhaps, on which the others fail as well
                (self.folder / STOP).touch()
            raise

    def take(self, number: int) -> bool:
        """Take a shard for this process, unless another has it or one has failed: whoever is free takes the next."""
        if self.stopped:
            return False
        try:
            open(self.folder / f"shard-{number:05d}.taken", "xb").close()
        except FileExistsError:
            return False
        return True

    def receipt(self, number: int) -> Receipt | None:
        """What became of that shard, or None if it is yet to be made."""
        found = read_json(self._receipt(number))
        try:
            receipt = Receipt(**{**found, "bad": tuple((name, reason) for name, reason in found["bad"])})
            size = (self.folder / receipt.file).stat().st_size if receipt.rows else 0
        except (TypeError, KeyError, ValueError, OSError):
            return None
        return receipt if size == receipt.bytes else None

    def write(self, number: int, tensors: Mapping[str, Array], bad: Bad) -> None:
        """Write a shard, then its receipt."""
        file, rows = f"shard-{number:05d}.safetensors", len(tensors["features"])
        size, sha256 = self._files.write(file, shards.shard_bytes(tensors)) if rows else (0, "")
        receipt = Receipt(file, rows, size, sha256, tuple(bad))
        self._files.write(self._receipt(number).name, [json.dumps(asdict(receipt)).encode()])

    def bad(self) -> list[tuple[str, str]]:
        """The images of finished shards that could not be read, each once."""
        receipts = [self.receipt(number) for number in range(self.count)]
        return list({name: (name, reason) for r in receipts if r is not None for name, reason in r.bad}.values())

    def list_bad(self, bad: Bad) -> Path:
        """Write the list of images that could not be read: name, tab, reason."""
        lines = [f"{one_line(name)}\t{reason}\n" for name, reason in bad]
        self._files.write(BAD, [line.encode(errors="surrogateescape") for line in lines])
        return self.folder / BAD

    def finish(self, index: Mapping[str, Any]) -> None:
        """Make the index of the shards, whose receipts must all be there, and tidy up."""
        receipts = [receipt for number in range(self.count) if (receipt := self.receipt(number)) is not None]
        if len(receipts) < self.count:
            raise DataError(
                f"all {self.count} shards must be there; {self.folder} has {len(receipts)}, the others were removed: "
                "give the same command again"
            )
        self._refuse_uneven(receipts)
        made = [Shard(r.file, r.rows, r.bytes, r.sha256) for r in receipts if r.rows]
        bad = [entry for r in receipts[: self.count // self.passes] for entry in r.bad]
        if bad:
            self.list_bad(bad)
        else:
            (self.folder / BAD).unlink(missing_ok=True)
        if not made:
            for number in range(self.count):  # nothing to keep: other images may take the folder
                self._receipt(number).unlink(missing_ok=True)
            name, reason = bad[0]
            raise DataError(
                f"features need an image that can be read; none can, the first is {one_line(name)} ({reason}): see "
                f"{self.folder / BAD}, and choose others"
            )
        whole = Index(
            **{**index, "provenance": {**index["provenance"], "bad": len(bad)}},
            count=sum(shard.rows for shard in made),
            shards=tuple(made),
        )
        self._files.write(INDEX, [shards.index_bytes(whole)])
        self._tidy()

    def _refuse_uneven(self, receipts: Sequence[Receipt]) -> None:
        """Passes must be of the same images; where one could be read in some only, those shards are made again."""
        step = self.count // self.passes
        for first in range(step):
            turns = [{name for name, _ in receipt.bad} for receipt in receipts[first::step]]
            if odd := [name for name in turns[0].union(*turns) if not all(name in turn for turn in turns)]:
                for number in range(first, self.count, step):
                    self._receipt(number).unlink(missing_ok=True)
                raise DataError(
                    f"an image must be readable in all passes or in none; {one_line(min(odd))} was in some only, as "
                    "if it had changed meanwhile: give the same command again"
                )

    def _receipt(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.json"

    def _tidy(self) -> None:
        """Remove what no process needs any more: claims, unfinished files, and a plan of which all or nothing is done.

        The plan goes last, so that a kill in between leaves nothing but what it explains.
        """
        receipts = sorted(self.folder.glob("shard-*.json"))
        gone = [*self.folder.glob("shard-*.taken"), self.folder / STOP, *self.folder.glob(f"*{PARTIAL}")]
        if self.finished:
            gone += [*receipts, self.folder / PLAN]
        elif not receipts and (self.folder / PLAN).exists():
            gone += [*self.folder.glob("shard-*.safetensors"), self.folder / PLAN]
        for path in gone:
            path.unlink(missing_ok=True)

    def _refuse_others(self) -> None:
        """Refuse a folder with anything in it but this extraction, begun or finished."""
        if not self.folder.is_dir():
            if self.folder.exists():
                raise DataError(f"features are a folder; {self.folder} is a file: choose another")
            return
        names = {*os.listdir(self.folder)} - {LOCK}
        if foreign := sorted(name for name in names if not shards.ours(name)):
            raise DataError(f"features need an empty folder; {self.folder} holds {foreign[0]!r}: choose another")
        found = read_json(self.folder / (INDEX if self.finished else PLAN))
        found = found.get("provenance") if self.finished and isinstance(found, dict) else found
        if not isinstance(found, dict):
            if names <= {PLAN + PARTIAL, STOP, BAD, BAD + PARTIAL}:  # nothing was done yet, or nothing came of it
                return
            raise DataError(f"features need an empty folder; {self.folder} is half-written: delete it first")
        if differing := [key for key, value in self.plan.items() if not _same(found.get(key), value)]:
            told = ", ".join(_difference(key, found.get(key), self.plan[key]) for key in differing[:3])
            raise DataError(f"{self.folder} holds other features ({told}): choose another folder, or delete it")


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, dict) and isinstance(here, dict) and "fingerprint" in here:
        return bool(there.get("fingerprint") == here["fingerprint"])  # the same weights may lie in another place now
    return bool(there == here)


def _difference(key: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):
        inner = next((name for name in here if there.get(name) != here[name]), key)
        return _difference(f"{key} {inner}", there.get(inner), here.get(inner))
    width = 12 if key.endswith(("images", "fingerprint")) else 60  # of a sha256 the first digits do
    return f"{key} is {str(there)[:width]} there, {str(here)[:width]} here"


def bad_names(folder: Path) -> set[str]:
    """The images that a finished folder lists as unreadable, by the names in its list."""
    text = (folder / BAD).read_bytes().decode(errors="surrogateescape") if (folder / BAD).is_file() else ""
    return {line.partition("\t")[0] for line in text.split("\n") if line}


def one_line(name: str) -> str:
    """A name as the list has it: tabs and line breaks in it are written out."""
    return name.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
