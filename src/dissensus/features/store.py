"""Store: a folder that features are written to; it is complete or has no index.

`FeatureWriter` fills one row by row. `extract` fills one shard by shard, in several processes, and continues after a
kill: see `extraction`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dissensus._core import documents
from dissensus._core.errors import DataError, RunError
from dissensus._core.files import cannot_write, is_temporary, remove_temporaries
from dissensus._core.locks import locked
from dissensus.features._shards import INDEX, Index, Shard, belongs, write_shard
from dissensus.functional.arrays import Array

LOCK = "plan.lock"
WORKER_LOCKS = "plan.*.lock"


class Store:
    """A folder that one command at a time writes features to.

    Every file is written atomically. The index comes last; it makes the folder a feature set.
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
        names = os.listdir(self.folder)
        if unexpected := sorted(name for name in names if not belongs(name)):
            raise DataError(f"features need an empty folder; {self.folder} holds {unexpected[0]!r}: choose another")
        return {name for name in names if not is_temporary(name) and not name.endswith(".lock")}

    @contextlib.contextmanager
    def claimed(self, check: Callable[[], None]) -> Iterator[None]:
        """Hold the folder for this command. Folders that it created and left empty are removed.

        `check` raises if the contents of the folder are not acceptable. It is called again under the lock, since
        another command may have finished in between.
        """
        try:
            check()
        except DataError:
            if (self.folder / LOCK).exists():
                with self.writing(), locked(self.folder / LOCK):  # another command may be about to complete it
                    pass
            raise
        created = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        with contextlib.ExitStack() as stack:
            stack.callback(_remove_empty, created)
            with self.writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.folder / LOCK))
                self._check_workers()
            check()
            remove_temporaries(self.folder)
            yield

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
        for path in self.folder.glob(WORKER_LOCKS):
            with locked(path, wait=2):
                pass

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Raise a `DataError` for anything that cannot be written or locked."""
        try:
            yield
        except RunError as error:
            raise DataError(str(error)) from error
        except OSError as error:
            raise DataError(str(cannot_write(self.folder, error))) from error

    def write_shard(self, number: int, tensors: Mapping[str, Array]) -> Shard:
        """Write the next shard; `tensors` are its columns, features last."""
        with self.writing():
            return write_shard(self.folder, number, tensors)

    def write(self, name: str, document: documents.Document) -> None:
        """Write a JSON document."""
        with self.writing():
            documents.write(self.folder / name, document)

    def write_index(self, shards: Sequence[Shard], provenance: Mapping[str, Any], **fields: Any) -> None:
        """Write the index of these shards, which makes the folder a set; `fields` are the others of `Index`."""
        from dissensus import __version__  # here: the package imports its modules

        index = Index(
            written_by=f"dissensus {__version__}",
            count=sum(shard.rows for shard in shards),
            provenance=dict(provenance),
            shards=tuple(shards),
            **fields,
        )
        self.write(INDEX, index)

    def clear(self) -> None:
        """Remove everything but the lock, the index first. Call it only in a folder that was empty when claimed."""
        with contextlib.suppress(OSError):  # keep the error that made it necessary
            for path in sorted(self.folder.iterdir()):
                if belongs(path.name) and path.name != LOCK:
                    path.unlink(missing_ok=True)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
