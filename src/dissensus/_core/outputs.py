"""Outputs: a file or folder belongs to the command that writes it until that command ends.

    with writing(out):              # refused at once if another command is writing it
        verdicts = work()           # may take hours
        with replacing(out) as temporary:
            ...

The lock is a file beside the output, `.NAME.lock`, which the system releases however the process ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dissensus._core.errors import RunError
from dissensus._core.files import (
    cannot_write,
    create,
    flush,
    flush_folder,
    make_folder,
    remove_empty,
    remove_temporaries,
    resolved,
    unique,
)
from dissensus._core.locks import locked
from dissensus._core.places import is_remote, place, storage_errors, upload

_HELD: set[tuple[int, int, Path]] = set()  # by this process: its id, the thread, the output


@contextmanager
def writing(
    out: str | os.PathLike[str],
    *inside: str,
    remedy: str = "wait for it, or choose another",
    wait: float = 0.2,  # for a command that is just ending
) -> Iterator[None]:
    """Hold an output, a file or a folder, while it is made; what killed commands left of it is removed first.

    Within one thread, an output that is held may be held again. Child processes do not inherit it. A URL is not held:
    that one command at a time writes there is up to the user.

    Args:
        out: The file or folder; it need not exist. Its parents are created, and removed again if nothing is written.
        inside: Folders within `out` that belong to it, whose unfinished files are removed too.
        remedy: What the user can do if another command is writing it.
        wait: Seconds to wait for that command.

    Raises:
        RunError: If another command is writing it, or the lock cannot be made.
    """
    if is_remote(place(out)):
        yield
        return
    target = Path(os.path.realpath(place(out)))
    key = (os.getpid(), threading.get_ident(), target)
    if key in _HELD:
        yield
        return
    created = [path for path in target.parents if not path.exists()]
    with ExitStack() as stack:
        stack.callback(remove_empty, created)
        make_folder(target.parent)
        try:
            stack.enter_context(locked(_lock_of(target), wait=wait, what=place(out), remedy=remedy))
        except OSError as error:
            raise cannot_write(place(out), error) from error
        _HELD.add(key)
        stack.callback(_HELD.discard, key)
        remove_temporaries(target.parent, of=target.name)
        for name in ("", *inside):
            remove_temporaries(target / name)
        yield


def _lock_of(target: Path) -> Path:
    """The lock file of an output: beside it, or within a folder that is a volume of its own."""
    name = f".{target.name}.lock"
    if target.is_dir() and (os.path.ismount(target) or not os.access(target.parent, os.W_OK)):
        return target / name
    return target.with_name(name)


@contextmanager
def assembling(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary folder; it is moved to `path` when the block succeeds.

    For folders, and for files whose writer or reader depends on the name. An existing file is replaced; an existing
    folder must be empty. A symbolic link stays, as with `replacing`.

    Args:
        path: The file or folder to create. Its parents are created.

    Raises:
        RunError: If it cannot be written, or another process is writing it.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="dissensus-") as local:
            yield Path(local) / path.name
            with storage_errors(path, RunError):
                for file in sorted(Path(local).rglob("*")):
                    if file.is_file():
                        upload(file, path.parent / file.relative_to(local).as_posix())
        return
    with writing(path):
        yield from _assembled(resolved(path))


def _assembled(path: Path) -> Iterator[Path]:
    make_folder(path.parent)
    folder = unique(path)
    try:
        folder.mkdir()
        mode = create(folder / "mode")
        (folder / "mode").unlink()
        yield folder / path.name
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(mode)
                flush(file)
        if path.is_dir() and (folder / path.name).is_dir():
            path.rmdir()  # it must be empty; Windows does not replace folders
        os.replace(folder / path.name, path)
        flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
