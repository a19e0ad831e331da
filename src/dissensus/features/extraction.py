"""Extraction: a store that is filled shard by shard; after a kill the same command continues with what is missing.

    plan.json                 what was requested; another extraction is refused
    plan.lock, plan.1.lock    held by the processes of the command
    shard-00003.taken         one of them is working on this shard
    shard-00003.safetensors   the features of the images of that shard
    shard-00003.json          its receipt: rows, bytes, sha256, and the images that could not be read

When every shard has its receipt, the receipts become the index of a feature folder and are removed with the plan.
Images that could not be read stay listed in bad.tsv.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from dissensus._core import documents
from dissensus._core.documents import Document
from dissensus._core.errors import DataError
from dissensus._core.files import replacing
from dissensus.backbones import BackboneDescription
from dissensus.features._provenance import Count
from dissensus.features._shards import INDEX, Dtype, Index, Shard
from dissensus.features.store import LOCK, Store
from dissensus.functional.arrays import Array

PLAN, STOP, BAD = "plan.json", "plan.stop", "bad.tsv"

Errors = Sequence[tuple[str, str]]  # names of images, as `one_line` has them, and why they cannot be read


class Plan(Document):
    """plan.json: everything that the features depend on."""

    error = DataError
    remedy = "delete the folder, or choose another"

    format: Literal["dissensus-plan-1"] = "dissensus-plan-1"
    backbone: BackboneDescription
    images: str  # fingerprint
    augment: int
    corruption: tuple[str, int] | None
    view: str | None
    seed: int | None  # None where nothing is random
    engine: str
    precision: str
    dtype: Dtype
    shard_images: Count

    def values(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return self.model_dump(mode="json", exclude={"format"}, exclude_unset=True)

    @property
    def key(self) -> str:
        """Ten digits that differ where the features differ."""
        facts = {**self.values(), "backbone": self.backbone.fingerprint}
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]


class Receipt(Document):
    """What became of one shard; `shard` is None if none of its images could be read, and there is no file."""

    error = DataError

    format: Literal["dissensus-shard-1"] = "dissensus-shard-1"
    shard: Shard | None
    bad: tuple[tuple[str, str], ...]  # name, reason

    @model_validator(mode="after")
    def _check(self) -> Receipt:
        if self.shard is None and not self.bad:
            raise ValueError("a shard has rows or images that cannot be read")
        return self


class Extraction:
    """A folder that is filled by one command at a time, perhaps in several attempts.

    `count` is the number of shards, the same number for each of the `passes`.
    """

    def __init__(self, folder: Path, plan: Plan, count: int, passes: int = 1) -> None:
        self.store = Store(folder)
        self.folder, self.plan, self.count, self.passes = folder, plan, count, passes
        self._parent: int | None = None

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

    @property
    def stopped(self) -> bool:
        """Whether another process of the command has failed, or the parent of this one has ended."""
        return (self.folder / STOP).exists() or self._parent not in (None, os.getppid())

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """If this process fails, stop the others."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # such as a full disk, on which the others fail as well
                (self.folder / STOP).touch()
            raise

    def take(self, number: int) -> bool:
        """Take a shard for this process. Return False if another process has it, or one has failed."""
        if self.stopped:
            return False
        try:
            open(self.folder / f"shard-{number:05d}.taken", "xb").close()
        except FileExistsError:
            return False
        return True

    def receipt(self, number: int) -> Receipt | None:
        """Return the receipt of a shard; None if the shard is still to be written, or is damaged."""
        try:
            receipt = documents.read(Receipt, self._receipt(number))
            if receipt.shard is None:
                return receipt
            path = self._receipt(number).with_suffix(".safetensors")
            whole = path.name == receipt.shard.file and path.stat().st_size == receipt.shard.bytes
        except (DataError, OSError):
            return None
        return receipt if whole else None

    def write(self, number: int, tensors: Mapping[str, Array], bad: Errors) -> None:
        """Write a shard, then its receipt."""
        shard = self.store.write_shard(number, tensors) if len(tensors["features"]) else None
        self.store.write(self._receipt(number).name, Receipt(shard=shard, bad=tuple(bad)))

    def bad(self) -> dict[str, str]:
        """Return the images of finished shards that could not be read, with the reasons."""
        receipts = [self.receipt(number) for number in range(self.count)]
        return {name: reason for receipt in receipts if receipt is not None for name, reason in receipt.bad}

    def list_bad(self, bad: Errors) -> Path:
        """Write the list of images that could not be read: name, tab, reason."""
        path = self.folder / BAD
        with self.store.writing(), replacing(path) as temporary:
            temporary.write_text("".join(f"{name}\t{reason}\n" for name, reason in bad), encoding="utf-8")
        return path

    def finish(self, **fields: Any) -> None:
        """Write the index of the shards and remove what is no longer needed; `fields` are those of `Index`."""
        receipts = [receipt for number in range(self.count) if (receipt := self.receipt(number)) is not None]
        if len(receipts) < self.count:
            raise DataError(
                f"all {self.count} shards must be there; {self.folder} has {len(receipts)}, the others were removed: "
                "run the same command again"
            )
        self._check_passes(receipts)
        shards = [receipt.shard for receipt in receipts if receipt.shard is not None]
        bad = [entry for receipt in receipts[: self.count // self.passes] for entry in receipt.bad]
        if bad:
            self.list_bad(bad)
        else:
            (self.folder / BAD).unlink(missing_ok=True)
        if not shards:
            for number in range(self.count):  # nothing to keep: other images may use the folder
                self._receipt(number).unlink(missing_ok=True)
            name, reason = bad[0]
            raise DataError(
                f"features need an image that can be read; none can, the first is {name} ({reason}): see "
                f"{self.folder / BAD}, and choose others"
            )
        provenance = {**self.plan.values(), "passes": self.passes, "bad": len(bad)}
        self.store.write_index(shards, provenance, dtype=self.plan.dtype, **fields)
        self._tidy()

    def _check_passes(self, receipts: Sequence[Receipt]) -> None:
        """Passes must be of the same images; otherwise the shards of an image that changed are made again."""
        step = self.count // self.passes
        for first in range(step):
            turns = [{name for name, _ in receipt.bad} for receipt in receipts[first::step]]
            if odd := [name for name in turns[0].union(*turns) if not all(name in turn for turn in turns)]:
                for number in range(first, self.count, step):
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
        receipts = sorted(self.folder.glob("shard-*.json"))
        unneeded = [*self.folder.glob("shard-*.taken"), self.folder / STOP]
        if self.finished:
            unneeded += [*receipts, self.folder / PLAN]
        elif not receipts and (self.folder / PLAN).exists():
            unneeded += [*self.folder.glob("shard-*.safetensors"), self.folder / PLAN]
        for path in unneeded:
            path.unlink(missing_ok=True)

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
        if differing := [key for key in here if not _same(there.get(key), here[key])]:
            shown = ", ".join(_difference(key, there.get(key), here[key]) for key in differing[:3])
            raise DataError(f"{self.folder} holds other features ({shown}): choose another folder, or delete it")


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


def one_line(name: str) -> str:
    """Return a name with tabs, line breaks and bytes that are not UTF-8 written out."""
    name = name.encode("utf-8", "backslashreplace").decode()
    return name.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
