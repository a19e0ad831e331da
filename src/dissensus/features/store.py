"""Store: a folder that features are written to; it is complete or has no index.

`FeatureWriter` fills one row by row. `extract` fills one shard by shard, in several processes, and continues after a
kill: see `extraction`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dissensus._core import documents
from dissensus._core.errors import DataError, RunError
from dissensus._core.files import cannot_write, is_temporary, make_folder, remove_empty, remove_temporaries
from dissensus._core.locks import locked
from dissensus._core.places import is_remote, storage_errors
from dissensus.features import _metadata
from dissensus.features._shards import (
    FEATURES,
    INDEX,
    METADATA,
    Index,
    Shard,
    Shards,
    belongs,
    metadata_file,
    write_shard,
)
from dissensus.functional.arrays import Array

LOCK = "plan.lock"
WORKER_LOCKS = "plan.*.lock"


class Store:
    """A folder that one command at a time writes features to.

    Every file is written atomically. The index comes last; it makes the folder a feature set. The folder may be at a
    URL, where nothing is locked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def finished(self) -> bool:
        """Whether the folder is a feature set."""
        return (self.folder / INDEX).is_file()

    def contents(self) -> set[str]:
        """Return the names of the folder's files, without locks and temporary files of killed commands."""
        if not self.folder.is_dir():
            if self.folder.exists():
                raise DataError(f"features are a folder; {self.folder} is a file: choose another")
            return set()
        names = [path.name for path in self.folder.iterdir()]
        unexpected = [name for name in names if not belongs(name)]
        for name in (FEATURES, METADATA):
            if name in names and (self.folder / name).is_dir():
                inner = [path.name for path in (self.folder / name).iterdir()]
                unexpected += [f"{name}/{file}" for file in inner if not file.lstrip(".").startswith(f"{name}_")]
                if all(map(is_temporary, inner)):
                    names.remove(name)
        if unexpected:
            raise DataError(f"features need an empty folder; {self.folder} holds {min(unexpected)!r}: choose another")
        return {name for name in names if not is_temporary(name) and not name.endswith(".lock")}

    @contextlib.contextmanager
    def claimed(self, check: Callable[[], None]) -> Iterator[None]:
        """Hold the folder for this command. Folders that it created and left empty are removed.

        `check` raises if the contents of the folder are not acceptable. It is called again under the lock, since
        another command may have finished in between.
        """
        with storage_errors(self.folder):
            self._check(check)
        if is_remote(self.folder):
            with self._marked():
                yield
            return
        folders = [self.folder / FEATURES, self.folder / METADATA, self.folder]
        created = [path for path in (*folders, *self.folder.parents) if not path.exists()]
        with contextlib.ExitStack() as stack:
            stack.callback(remove_empty, created)
            with self.writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.folder / LOCK))
                self._check_workers()
            check()
            with self.writing():
                self.make_folders()
                for folder in folders:
                    remove_temporaries(folder)
            yield

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        """Mark a folder at a URL as unfinished while it is written, for readers; a kill leaves the mark."""
        mark = self.folder / LOCK
        with self.writing():
            mark.write_bytes(b"")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # keep the error that ended the block
                mark.unlink(missing_ok=True)

    def make_folders(self) -> None:
        """Create the folders of the shards."""
        for name in (FEATURES, METADATA):
            make_folder(self.folder / name)

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except DataError:
            if not is_remote(self.folder) and (self.folder / LOCK).exists():
                with self.writing(), locked(self.folder / LOCK):  # another command may be about to complete it
                    pass
            raise

    @contextlib.contextmanager
    def joined(self, rank: int) -> Iterator[None]:
        """Hold a lock of its own in another process of the command that has claimed the folder.

        It outlives the first process if that one is killed; until then no other command gets the folder.
        """
        with contextlib.ExitStack() as stack:
            with self.writing():
                stack.enter_context(locked(self.folder / WORKER_LOCKS.replace("*", str(rank))))
            yield

    def alone(self) -> bool:
        """Whether all other processes of the command have ended; waits for a moment."""
        try:
            self._check_workers()
        except RunError:
            return False
        return True

    def _check_workers(self) -> None:
        for path in [] if is_remote(self.folder) else self.folder.glob(WORKER_LOCKS):
            with locked(path, wait=2):
                pass

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Raise a `DataError` for anything that cannot be written or locked."""
        try:
            with storage_errors(self.folder):
                yield
        except RunError as error:
            raise DataError(str(error)) from error
        except OSError as error:
            raise DataError(str(cannot_write(self.folder, error))) from error

    def write_shard(self, number: int, features: Array, metadata: pa.Table) -> Shard:
        """Write a shard: features (n, ...) and a table of n rows."""
        with self.writing():
            return write_shard(self.folder, number, features, metadata)

    def write(self, name: str, document: documents.Document) -> None:
        """Write a JSON document."""
        with self.writing():
            documents.write(self.folder / name, document)

    def write_index(
        self,
        shards: Sequence[Shard],
        provenance: Mapping[str, Any],
        *,
        classes: Sequence[str] | None,
        group_names: Sequence[str],
        columns: Sequence[str],
        **fields: Any,
    ) -> None:
        """Write the index of these shards, which makes the folder a set.

        Args:
            shards: The shards.
            provenance: Where the features come from.
            classes: The names of the classes; None: the labels that occur, sorted, numbers in numerical order.
            group_names: The names of the groups.
            columns: Those of the metadata.
            fields: The other fields of `Index`.
        """
        from dissensus import __version__  # here: the package imports its modules

        counts: dict[str | int, int] = {}
        for shard in shards if "label" in columns else ():
            values, inverse = _metadata.distinct(self.folder / metadata_file(shard.number), "label")
            for value, count in zip(values, np.bincount(inverse, minlength=len(values)).tolist(), strict=True):
                counts[value] = counts.get(value, 0) + count
        names = ordered(map(str, counts)) if classes is None else tuple(classes)
        numbered = any(isinstance(value, int) for value in counts)
        index = Index(
            written_by=f"dissensus {__version__}",
            count=sum(shard.rows for shard in shards),
            columns=tuple(columns),  # type: ignore[arg-type]  # checked by the document
            classes=names,
            class_counts=tuple(counts.get(i if numbered else name, 0) for i, name in enumerate(names))
            if "label" in columns
            else (),
            group_names=tuple(group_names),
            provenance=dict(provenance),
            shards=Shards.of(shards),
            **fields,
        )
        self.write(INDEX, index)

    def clear(self) -> None:
        """Remove everything but the lock, the index first. Call it only in a folder that was empty when claimed."""
        with contextlib.suppress(OSError):  # keep the error that made it necessary
            (self.folder / INDEX).unlink(missing_ok=True)
            for path in sorted(self.folder.iterdir()):
                if path.name in (FEATURES, METADATA):
                    for file in path.iterdir():
                        file.unlink(missing_ok=True)
                elif belongs(path.name) and path.name != LOCK:
                    path.unlink(missing_ok=True)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names sorted, in numerical order if all are whole numbers."""
    values = sorted(set(names))
    if all(value.isascii() and value.removeprefix("-").isdigit() for value in values):
        values.sort(key=int)
    return tuple(values)
