"""What a path or URL holds: a folder of images, a list, a table, a tar or a folder of tars."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from dissensus._core.errors import DataError
from dissensus._core.places import as_text, is_url
from dissensus.images._files import PathLike, join
from dissensus.images._folders import Folder, is_folder, list_folder, list_remote_folder, walk_folder
from dissensus.images._listing import Listing, listing_errors
from dissensus.images._lists import Columns, list_lines, list_table
from dissensus.images._patterns import is_stream
from dissensus.images._tars import list_tars
from dissensus.images.decoding import SUFFIXES

LISTS, TABLES = (".txt", ".lst", ".list"), (".csv", ".tsv", ".parquet")
LISTINGS = (*LISTS, *TABLES, ".tar")
"""Suffixes of the files that hold or name many images."""
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
FEATURES = (".npz", ".npy", ".safetensors", ".pt")
KINDS = f"a folder, a list ({' '.join(LISTS)}), a table ({' '.join(TABLES)}) or a .tar"


def list_path(where: PathLike, unlabelled: bool, base: PathLike | None, columns: Columns) -> Listing:
    """List the images of a path or URL; see `ImageSet.find`. Those of lists and tables keep their labels."""
    where = as_text(where)
    if is_stream(where):
        raise DataError(f"images are found by one path or URL; {where} is a pattern of shards: use ImageStream.find")
    folder = _is_folder(where)
    suffix = "" if folder else os.path.splitext(where)[1].lower()
    if suffix not in TABLES and columns != Columns():
        raise DataError(
            f"columns are those of a table ({' '.join(TABLES)}); {where} is none: leave the column options out"
        )
    if suffix not in TABLES + LISTS and base is not None:
        raise DataError(f"a base folder is for the paths in a list or table; {where} is neither: leave base out")
    if folder:
        return _list_remote(where, unlabelled) if is_url(where) else _list_local(where, unlabelled)
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
    """Yield every path or URL as given and, for a folder, every image below it, sorted within each folder."""
    for path in map(as_text, paths):
        folder = not is_one_image(path) if is_url(path) else os.path.isdir(path)
        yield from walk_folder(path) if folder else (path,)


def is_one_image(url: str) -> bool:
    """Whether a URL names one image: by its suffix, or since web servers do not list folders."""
    return url.lower().endswith(SUFFIXES) or (
        url.startswith(("http://", "https://")) and not url.lower().endswith(LISTINGS)
    )


def _is_folder(where: str) -> bool:
    """Whether a local path is a folder; a URL is one if it ends in a slash or has no known suffix."""
    if is_url(where):
        return where.endswith("/") or not where.lower().endswith((*LISTINGS, *COMPRESSED, *FEATURES, *SUFFIXES))
    with listing_errors(where):
        os.stat(where)
    return os.path.isdir(where)


def _list_local(where: str, unlabelled: bool) -> Listing:
    with listing_errors(where), os.scandir(where) as entries:
        tars = _only_tars(where, ((entry.name, is_folder(entry)) for entry in entries))
    if tars:
        return list_tars(tars, unlabelled)
    listing = list_folder(where, unlabelled)
    if not len(listing.names):
        raise _no_images(os.path.abspath(where), os.listdir(where))
    return listing


def _list_remote(where: str, unlabelled: bool) -> Listing:
    folder = Folder.find(where)
    if [path for path, _ in folder.files] == [""]:
        raise DataError(f"images come from {KINDS}; {where} is a file of another kind: unpack or list the images")
    if not folder.files:
        raise DataError(f"images come from {KINDS}; there is nothing at {where}: check the URL")
    top = [(name.rstrip("/"), name.endswith("/")) for name in folder.top]
    if tars := _only_tars(folder.url, top):
        return list_tars(tars, unlabelled)
    listing = list_remote_folder(folder, unlabelled)
    if not len(listing.names):
        raise _no_images(folder.url, [name for name, _ in top])
    return listing


def _only_tars(folder: str, entries: Iterable[tuple[str, bool]]) -> list[str]:
    """Return the tars of a folder that holds neither images nor folders, given names and whether each is a folder."""
    others, folders = list[str](), set[str]()
    for name, nested in entries:
        if nested and not name.startswith("."):
            folders.add(name)
        elif not nested and not name.startswith(".") and name.lower().endswith(SUFFIXES):
            return []
        else:
            others.append(name)
    if "img_emb" in folders and ("index.json" in others or "metadata" in folders):
        raise DataError(f"images are expected; {folder} holds features: pass it where features are expected")
    if folders:
        return []
    return [join(folder, name) for name in sorted(others) if name.lower().endswith(".tar") and not name.startswith(".")]


def _no_images(root: str, inside: Sequence[str]) -> DataError:
    if compressed := sorted(name for name in inside if name.lower().endswith(COMPRESSED)):
        return _compressed(join(root, compressed[0]))
    return DataError(
        f"a folder of images holds files ending in {' '.join(SUFFIXES)}; {root} holds none: check the path"
    )


def _compressed(path: str) -> DataError:
    return DataError(
        f"a tar is read at any place, so it must not be compressed; got {path}: decompress it (gunzip) to a plain .tar"
    )
