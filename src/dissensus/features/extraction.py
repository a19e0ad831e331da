"""Extraction: a store that is filled shard by shard; after a kill the same command continues with what is missing.

    plan.json                 what was requested; another extraction is refused
    plan.lock, plan.1.lock    held by the processes of the command
    shard-00003.taken         one of them is working on this shard
    shard-00003.json          receipt of a shard that is written: its files, and the images that could not be read

When every shard has its receipt, the receipts become the index of a feature folder and are removed with the plan.
Images that could not be read stay listed in bad.tsv.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import model_validator

from dissensus._core import documents
from dissensus._core.documents import Document
from dissensus._core.errors import DataError
from dissensus._core.files import replacing
from dissensus._core.places import files_in, is_remote
from dissensus.backbones import BackboneDescription
from dissensus.features._metadata import Column
from dissensus.features._provenance import Count
from dissensus.features._shards import FEATURES, INDEX, METADATA, Dtype, Index, Shard
from dissensus.features.store import LOCK, Store
from dissensus.functional.arrays import Array

PLAN, STOP, BAD = "plan.json", "plan.stop", "bad.tsv"
READERS = 16  # threads that read receipts at a URL

Errors = Sequence[tuple[str, str]]  # names of images, as `printable` has them, and why they cannot be read


class Plan(Document):
    """plan.json: everything that the features depend on."""

    error = DataError
    remedy = "delete the folder, or choose another"

    format: Literal["dissensus-plan-3"] = "dissensus-plan-3"
    backbone: BackboneDescription
    images: str  # fingerprint
    augment: int
    corruption: tuple[str, int] | None
    view: str | None
    seed: int | None  # None where nothing is random
    engine: str
    precision: str
    dtype: Dtype
    shard_images: Count | None  # None where the source has shards of its own
    part: tuple[Count, Count] | None = None  # K of N, where the work is divided among commands

    def values(self) -> dict[str, Any]:
        """Return the fields as JSON has them; `part` only if there is one."""
        values = self.model_dump(mode="json", exclude={"format"}, exclude_unset=True)
        return {name: value for name, value in values.items() if name != "part" or value is not None}

    @property
    def key(self) -> str:
        """Ten digits that differ where the features differ."""
        facts = {**self.values(), "backbone": self.backbone.fingerprint}
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]


class Receipt(Document):
    """What became of one shard; `shard` is None if none of its images could be read, and there is no file."""

    error = DataError

    format: Literal["dissensus-shard-3"] = "dissensus-shard-3"
    shard: Shard | None
    columns: tuple[Column, ...]  # of its metadata
    bad: tuple[tuple[str, str], ...]  # name, reason

    @model_validator(mode="after")
    def _check(self) -> Receipt:
        if self.shard is None and not self.bad:
            raise ValueError("a shard has rows or images that cannot be read")
        if self.shard is not None and bool(self.columns) != (self.shard.metadata is not None):
            raise ValueError("a shard has metadata if there are columns")
        return self


class Extraction:
    """A folder that is filled by one command at a time, perhaps in several attempts.

    Args:
        folder: The folder, a path or a URL.
        plan: What is requested.
        steps: The shards of a pass that are written here, of those that there are: a part of them, or all.
        total: How many shards a pass has.
        passes: How many passes there are, one after the other.
    """

    def __init__(self, folder: Path, plan: Plan, steps: range, total: int, passes: int = 1) -> None:
        self.store = Store(folder)
        self.folder, self.plan, self.steps, self.total, self.passes = folder, plan, steps, total, passes
        self.numbers = [turn * total + step for turn in range(passes) for step in steps]
        self._rank, self._world = 0, 1
        self._parent: int | None = None
        self._receipts: dict[int, Receipt] = {}

    @property
    def finished(self) -> bool:
        """Whether the folder is a feature set already."""
        return self.store.finished

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder for this command, in its first process."""
        if self.finished and not any((self.folder / name).exists() for name in (PLAN, LOCK)):
            self._check_contents()
            yield  # without a lock: finished features may be read-only
            return
        with self.store.claimed(self._check_contents):
            self._tidy()
            try:
                if not self.finished and not (self.folder / PLAN).exists():
                    self.store.write(PLAN, self.plan)
                yield
            finally:
                with contextlib.suppress(OSError):  # keep the error that ended the block; the next command tidies
                    if self.store.alone():
                        self._tidy()

    @contextlib.contextmanager
    def joined(self, rank: int) -> Iterator[None]:
        """Work on a folder that the first process of the command has claimed, until that process ends."""
        self._parent = os.getppid()
        with contextlib.nullcontext() if self.finished else self.store.joined(rank):
            yield

    def shared(self, rank: int, world: int) -> None:
        """Share the work with other processes of the command."""
        self._rank, self._world = rank, world

    @property
    def stopped(self) -> bool:
        """Whether another process of the command has failed, or the parent of this one has ended."""
        if self._world == 1:
            return False
        return (self.folder / STOP).exists() or self._parent not in (None, os.getppid())

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """If this process fails, stop the others."""
        try:
            yield
        except BaseException:
            if self._world > 1:
                with contextlib.suppress(OSError):  # such as a full disk, on which the others fail as well
                    (self.folder / STOP).touch()
            raise

    def take(self, number: int) -> bool:
        """Take a shard for this process. Return False if another process has it, or one has failed."""
        if self.stopped:
            return False
        if is_remote(self.folder):  # object stores do not create a file for one process only
            return number % self._world == self._rank
        try:
            open(self.folder / f"shard-{number:05d}.taken", "xb").close()
        except FileExistsError:
            return False
        return True

    def missing(self) -> list[int]:
        """Return the shards that are still to be written, after reading the receipts that are new."""
        sizes = {
            f"{name}/{file}": n for name in (FEATURES, METADATA) for file, n in files_in(self.folder / name).items()
        }
        names = files_in(self.folder)
        unread = [n for n in self.numbers if n not in self._receipts and self._receipt(n).name in names]
        with ThreadPoolExecutor(READERS if is_remote(self.folder) else 1) as pool:
            receipts = {**self._receipts, **dict(zip(unread, pool.map(self._read, unread), strict=True))}
        # A shard may have been removed since, or written where this process does not see it.
        self._receipts = {n: receipt for n, receipt in receipts.items() if receipt and _is_whole(n, receipt, sizes)}
        return [number for number in self.numbers if number not in self._receipts]

    def _read(self, number: int) -> Receipt | None:
        try:
            return documents.read(Receipt, self._receipt(number))
        except DataError:  # damaged: the shard is written again
            return None

    def write(self, number: int, features: Array, metadata: pa.Table, bad: Errors) -> Receipt:
        """Write a shard, then its receipt."""
        shard = self.store.write_shard(number, features, metadata) if len(features) else None
        columns = tuple(metadata.column_names)
        receipt = Receipt(shard=shard, columns=columns, bad=tuple(bad))
        self.store.write(self._receipt(number).name, receipt)
        self._receipts[number] = receipt
        return receipt

    def prepare(self) -> None:
        """Create the folders of a store that another process has claimed, on a node that may not see them yet."""
        with self.store.writing():
            self.store.make_folders()

    @property
    def known_images(self) -> int:
        """How many images were read into the shards of the first pass that are known."""
        known = (self._receipts[step].shard for step in self.steps if step in self._receipts)
        return sum(shard.rows for shard in known if shard is not None)

    def add(self, number: int, receipt: Receipt) -> None:
        """Take note of a shard that another process has written."""
        self._receipts[number] = receipt

    def bad(self) -> dict[str, str]:
        """Return the images of known shards that could not be read, with the reasons."""
        return {name: reason for _, receipt in sorted(self._receipts.items()) for name, reason in receipt.bad}

    def list_bad(self, bad: Errors) -> Path:
        """Write the list of images that could not be read: name, tab, reason."""
        path = self.folder / BAD
        with self.store.writing(), replacing(path) as temporary:
            temporary.write_text("".join(f"{name}\t{reason}\n" for name, reason in bad), encoding="utf-8")
        return path

    def finish(self, **fields: Any) -> None:
        """Write the index of the shards and remove what is no longer needed; `fields` are those of `Index`."""
        if missing := self.missing():
            raise DataError(
                f"all {len(self.numbers)} shards must be there; {self.folder} lacks {len(missing)}, as if removed: "
                "run the same command again"
            )
        receipts = [self._receipts[number] for number in self.numbers]
        self._check_passes()
        shards = [receipt.shard for receipt in receipts if receipt.shard is not None]
        bad = [entry for receipt in receipts[: len(self.steps)] for entry in receipt.bad]
        if bad:
            self.list_bad(bad)
        else:
            (self.folder / BAD).unlink(missing_ok=True)
        if not shards:
            for number in self.numbers:  # nothing to keep: other images may use the folder
                self._receipt(number).unlink(missing_ok=True)
            name, reason = bad[0]
            raise DataError(
                f"features need an image that can be read; none can, the first is {name} ({reason}): see "
                f"{self.folder / BAD}, and choose others"
            )
        columns = {receipt.columns: number for number, receipt in self._receipts.items() if receipt.shard is not None}
        if len(columns) > 1:
            without = next(number for names, number in columns.items() if "label" not in names)
            raise DataError(
                f"all images have a label or none has; those of shard {without} have none: give them labels, or add "
                "--unlabelled"
            )
        provenance = {**self.plan.values(), "passes": self.passes, "bad": len(bad)}
        if self.plan.part is not None:
            provenance |= {"shards": [self.total, self.passes]}
        self.store.write_index(shards, provenance, dtype=self.plan.dtype, columns=next(iter(columns)), **fields)
        self._tidy()

    def _check_passes(self) -> None:
        """Passes must be of the same images; otherwise the shards of an image that changed are made again."""
        for step in self.steps:
            numbers = [turn * self.total + step for turn in range(self.passes)]
            turns = [{name for name, _ in self._receipts[number].bad} for number in numbers]
            if odd := [name for name in turns[0].union(*turns) if not all(name in turn for turn in turns)]:
                for number in numbers:
                    self._receipt(number).unlink(missing_ok=True)
                raise DataError(
                    f"an image must be readable in all passes or in none; {min(odd)} was in some only, as "
                    "if it had changed meanwhile: run the same command again"
                )

    def _receipt(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.json"

    def _tidy(self) -> None:
        """Remove claims of shards, and a plan of which everything or nothing is done.

        The plan goes last, so that a kill in between leaves only files that it explains.
        """
        names = sorted(files_in(self.folder))
        receipts = [name for name in names if name.startswith("shard-") and name.endswith(".json")]
        unneeded = [name for name in names if name.startswith("shard-") and name.endswith(".taken")]
        unneeded += [name for name in (STOP,) if name in names]
        if INDEX in names:
            unneeded += [*receipts, *[PLAN] * (PLAN in names)]
        elif not receipts and PLAN in names:
            shards = [f"{name}/{file}" for name in (FEATURES, METADATA) for file in files_in(self.folder / name)]
            unneeded += [*shards, PLAN]
        for name in unneeded:
            (self.folder / name).unlink(missing_ok=True)

    def _check_contents(self) -> None:
        """Raise unless the folder is empty or holds this extraction, begun or finished."""
        names = self.store.contents()
        if INDEX in names:
            there = documents.read(Index, self.folder / INDEX).provenance
        elif PLAN in names:
            there = documents.read(Plan, self.folder / PLAN).values()
        elif names <= {STOP, BAD}:  # nothing was done yet, or nothing came of it
            return
        else:
            raise DataError(f"features need an empty folder; {self.folder} is half-written: delete it first")
        here = self.plan.values()
        if differing := [key for key in {**here, "part": 0} if not _same(there.get(key), here.get(key))]:
            shown = ", ".join(_difference(key, there.get(key), here.get(key)) for key in differing[:3])
            raise DataError(f"{self.folder} holds other features ({shown}): choose another folder, or delete it")


def _is_whole(number: int, receipt: Receipt, sizes: Mapping[str, int]) -> bool:
    """Whether the files of a shard have the sizes of its receipt."""
    if receipt.shard is None:
        return True
    files = receipt.shard.files.items()
    return receipt.shard.number == number and all(sizes.get(path) == written.bytes for path, written in files)


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, dict) and isinstance(here, dict) and "fingerprint" in here:
        return bool(there.get("fingerprint") == here["fingerprint"])  # the same weights may be elsewhere now
    return bool(there == here)


def _difference(key: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):
        inner = next((name for name in here if there.get(name) != here[name]), key)
        return _difference(f"{key} {inner}", there.get(inner), here.get(inner))
    width = 12 if key.endswith(("images", "fingerprint")) else 60  # the first digits of a sha256 suffice
    return f"{key} is {str(there)[:width]} there, {str(here)[:width]} here"


def bad_names(folder: Path) -> set[str]:
    """Return the images that a finished folder lists as unreadable, by the names in its list."""
    text = (folder / BAD).read_text(encoding="utf-8") if (folder / BAD).is_file() else ""
    return {line.partition("\t")[0] for line in text.split("\n") if line}
