"""What a path holds: a folder of images, a list, a table, a tar or a folder of tars."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from dissensus._core.errors import DataError
from dissensus.images._listing import Files, Listing, PathLike, folder_labels, listing_errors, size_of
from dissensus.images._lists import Columns, list_lines, list_table
from dissensus.images._tars import list_tars
from dissensus.images.decoding import SUFFIXES

LISTS, TABLES = (".txt", ".lst", ".list"), (".csv", ".tsv")
LISTINGS = (*LISTS, *TABLES, ".tar")
"""Suffixes of the files that hold or name many images."""
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
FEATURES = (".npz", ".npy", ".safetensors", ".pt")
KINDS = f"a folder, a list ({' '.join(LISTS)}), a table ({' '.join(TABLES)}) or a .tar"


def list_path(where: PathLike, unlabelled: bool, base: PathLike | None, columns: Columns) -> Listing:
    """List the images of a path; see `ImageSet.find`. Lists and tables keep their labels even if `unlabelled`."""
    where = os.fspath(where)
    with listing_errors(where):
        inside = sorted(os.listdir(where)) if os.path.isdir(where) else None
        os.stat(where)
    suffix = os.path.splitext(where)[1].lower() if inside is None else ""
    if suffix not in TABLES and columns != Columns():
        raise DataError(f"columns are those of a .csv or .tsv; {where} is neither: leave the column options out")
    if suffix not in TABLES + LISTS and base is not None:
        raise DataError(f"a base folder is for the paths in a list or table; {where} is neither: leave base out")
    if inside is not None:
        tars = _only_tars(where, inside)
        return list_tars(tars, unlabelled) if tars else _list_folder(where, unlabelled)
    if suffix in TABLES:
        return list_table(where, base, columns)
    if suffix in LISTS:
        return list_lines(where, base)
    if suffix == ".tar":
        return list_tars([where], unlabelled)
    if where.lower().endswith(COMPRESSED):
        raise _compressed(where)
    if suffix in FEATURES:
        raise DataError(f"images come from {KINDS}; {where} holds arrays: pass features where features are expected")
    if suffix in SUFFIXES:
        raise DataError(f"images come from {KINDS}; {where} is a single image: give its folder")
    raise DataError(f"images come from {KINDS}; got {where}: unpack or list the images")


def walk(paths: Iterable[str]) -> Iterator[str]:
    """Yield every path as given and, for a folder, every image below it, sorted within each folder."""
    for path in paths:
        if os.path.isdir(path):
            yield from (os.path.join(path, name) for name in _scan(path))
        else:
            yield path


def _scan(root: str) -> Iterator[str]:
    """Yield the path under `root` of every image below it; links are followed, hidden files left out."""
    folders = [("", frozenset([os.path.realpath(root)]))]
    while folders:
        prefix, above = folders.pop()
        inner, images = [], []
        with listing_errors(root), os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if (real := os.path.realpath(entry.path)) not in above:  # a link back up would never end
                        inner.append((f"{prefix}{entry.name}/", above | {real}))
                elif entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or entry.is_symlink()):
                    images.append(prefix + entry.name)
        yield from sorted(images)
        folders += sorted(inner, reverse=True)


def _list_folder(root: str, unlabelled: bool) -> Listing:
    root = os.path.abspath(root)
    names = sorted(_scan(root))
    if not names:
        raise _no_images(root)
    labels = None if unlabelled else folder_labels([name.split("/") for name in names], root)
    if labels is not None:
        with os.scandir(root) as scan:
            folders = {entry.name for entry in scan if entry.is_dir() and not os.path.samefile(entry.path, root)}
        if empty := sorted(name for name in folders - set(labels) if not name.startswith(".")):
            raise DataError(
                f"every class folder holds images; {os.path.join(root, empty[0])} holds none: "
                "add some, delete the folder, or hide it with a leading dot"
            )
    sizes = [size_of(os.path.join(root, name)) for name in names]
    return Listing(names=names, reader=Files(root), sizes=sizes, labels=labels)


def _only_tars(folder: str, inside: Sequence[str]) -> list[str]:
    """Return the tars of a folder that holds neither images nor folders; none otherwise."""
    if "index.json" in inside and any(name.startswith("shard-") for name in inside):
        raise DataError(f"images are expected; {folder} holds features: pass it where features are expected")
    shown = [name for name in inside if not name.startswith(".")]
    if any(name.lower().endswith(SUFFIXES) or os.path.isdir(os.path.join(folder, name)) for name in shown):
        return []
    return [os.path.join(folder, name) for name in shown if name.lower().endswith(".tar")]


def _no_images(root: str) -> DataError:
    if compressed := sorted(name for name in os.listdir(root) if name.lower().endswith(COMPRESSED)):
        return _compressed(os.path.join(root, compressed[0]))
    return DataError(
        f"a folder of images holds files ending in {' '.join(SUFFIXES)}; {root} holds none: check the path"
    )


def _compressed(path: str) -> DataError:
    return DataError(
        f"a tar is read at any place, so it must not be compressed; got {path}: decompress it (gunzip) to a plain .tar"
    )
