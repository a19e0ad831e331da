"""Places: local paths and fsspec URLs, such as s3://bucket/features, behind the interface of `pathlib.Path`.

    folder = place("s3://bucket/runs/mine")       # or "runs/mine", "memory://runs", "file:///runs"
    for name, size in files_in(folder).items():   # one request
        ...
    with local_copy(folder / "weights.safetensors") as path:
        load_file(path)

A local path is a `pathlib.Path`; a URL is a `UPath` of universal-pathlib, which has the same methods. `storage_errors`
turns errors of storage, such as a bucket without permission, into one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from dissensus._core.errors import DataError, DissensusError, RunError

# Protocol -> the package that fsspec needs for it.
PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
}
# Other processes write too, so listings are not cached.
FRESH: dict[str, Any] = {"use_listings_cache": False}
# Errors of cloud libraries that are not an OSError, by the module that defines them.
STORAGE_MODULES = ("botocore", "aiobotocore", "aiohttp", "google", "gcsfs", "azure", "huggingface_hub", "s3fs")


WINDOWS = os.name == "nt"
_DRIVE = re.compile(r"/[A-Za-z]:/")  # file:///C:/photos


def is_url(where: object) -> bool:
    """Whether a path or its text is a URL; file:// is one too."""
    return "://" in str(where)


def as_text(where: str | os.PathLike[str]) -> str:
    """Return a path or URL as text; a URL with file:// is a path."""
    text = os.fspath(where) if not is_url(where) else str(where)
    path = text.removeprefix("file://")
    return path[1:] if WINDOWS and path != text and _DRIVE.match(path) else path


def place(where: str | os.PathLike[str]) -> Path:
    """Return a path with the methods of `pathlib.Path`, for a local path or a URL.

    Raises:
        DissensusError: If the protocol is unknown, or its package is not installed.
    """
    if not is_url(where):
        return Path(where)
    text = as_text(where)
    if not is_url(text):
        return Path(text)
    if hasattr(where, "storage_options"):  # a UPath: its URL does not contain its options
        return cast(Path, where)
    import fsspec
    from upath import UPath

    protocol = text.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        known = (
            f"pip install {PACKAGES[protocol]}" if protocol in PACKAGES else "use s3://, gs://, file:// or memory://"
        )
        raise DissensusError(f"{text} must be a URL that fsspec opens; {protocol}:// is not: {known}") from error
    return cast(Path, UPath(text, **FRESH))  # the same methods, but no subclass


def absolute(where: str) -> str:
    """Return a path that means the same in processes with other working folders; a URL stays as it is."""
    return where if is_url(where) else os.path.abspath(where)


def is_remote(path: Path) -> bool:
    """Whether a place is not on the local file system."""
    return not isinstance(path, Path)


def filesystem(path: Path | str) -> tuple[Any, str]:
    """Return the fsspec file system of a place, for this process (it does not survive a fork), and the path on it."""
    from fsspec.core import url_to_fs

    fs, inside = url_to_fs(str(path), **getattr(path, "storage_options", FRESH))  # fsspec keeps one for each process
    return fs, str(inside)


def files_in(folder: Path) -> dict[str, int]:
    """Return the names and sizes of the files in a folder, by one listing; empty if there is no folder."""
    if not is_remote(folder):
        sizes = dict[str, int]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # a temporary file that another process has renamed
                        if entry.is_file():
                            sizes[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return sizes
    fs, inside = filesystem(folder)
    try:
        entries = fs.ls(inside, detail=True, refresh=True)
    except FileNotFoundError:
        return {}
    return {
        entry["name"].rstrip("/").rpartition("/")[2]: int(entry["size"] or 0)
        for entry in entries
        if entry["type"] == "file" and entry["name"].rstrip("/") != inside.rstrip("/")
    }


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Yield a local file with the contents of `path`: itself, or a temporary copy."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="dissensus-") as folder:
        target = Path(folder) / path.name
        fs, inside = filesystem(path)
        fs.get_file(inside, str(target))
        yield target


def upload(source: Path, target: Path) -> None:
    """Copy a local file to a place on other storage; object stores show it whole or not at all."""
    fs, inside = filesystem(target)
    try:
        fs.put_file(str(source), inside)
    except FileNotFoundError as error:
        raise RunError(
            f"cannot write {target}: there is no such bucket or folder; create it, or choose another"
        ) from error


@contextlib.contextmanager
def storage_errors(where: object, error: type[DissensusError] = DataError, *, missing: bool = True) -> Iterator[None]:
    """Turn errors of storage behind a URL into one line of class `error`; errors of local paths are not changed.

    With `missing=False`, `FileNotFoundError` is not changed either; the caller handles it.
    """
    try:
        yield
    except DissensusError:
        raise
    except Exception as cause:
        absent = isinstance(cause, FileNotFoundError) and not missing
        if absent or not is_url(where) or (problem := storage_problem(cause)) is None:
            raise
        raise error(f"cannot use {where}: {problem}; check the URL, your credentials and the network") from cause


def storage_problem(error: BaseException) -> str | None:
    """Return what is wrong with storage in a few words; None if it is not a storage error."""
    module = type(error).__module__.partition(".")[0]
    if not isinstance(error, OSError) and module not in STORAGE_MODULES:
        return None
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, FileNotFoundError):
        return "there is nothing at this address"
    return " ".join(str(error).split())[:160] or type(error).__name__
