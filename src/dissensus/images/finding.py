"""Which kind of place a path is: a folder, a list, a table, a tar or a folder of tars."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dissensus._core.errors import DataError
from dissensus.images.decoding import SUFFIXES
from dissensus.images.folders import list_folder
from dissensus.images.listing import Listing, PathLike, explained
from dissensus.images.lists import read_list, read_table
from dissensus.images.tars import PACKED, list_tars, packed

LISTS, TABLES, FEATURES = (".txt", ".lst", ".list"), (".csv", ".tsv"), (".npz", ".npy", ".safetensors", ".pt")


def find(
    where: PathLike,
    *,
    unlabelled: bool,
    base: PathLike | None,
    image_column: str | None,
    label_column: str | None,
    group_columns: Sequence[str],
    only: Mapping[str, object] | None,
) -> Listing:
    """The images there; see `ImageSet.find`. Lists and tables keep their labels even if `unlabelled`."""
    where = os.fspath(where)
    with explained(where):
        inside = sorted(os.listdir(where)) if os.path.isdir(where) else None
        os.stat(where)
    suffix = os.path.splitext(where)[1].lower() if inside is None else ""
    if suffix not in TABLES and (image_column or label_column or group_columns or only):
        raise DataError(f"columns are those of a .csv or .tsv; {where} is neither: leave the column options out")
    if suffix not in TABLES + LISTS and base is not None:
        raise DataError(f"a base folder is for the paths in a list or table; {where} is neither: leave base out")
    if inside is not None:
        tars = _only_tars(where, inside)
        return list_tars(tars, unlabelled) if tars else list_folder(where, unlabelled)
    if suffix in TABLES:
        return read_table(where, base, image_column, label_column, group_columns, only)
    if suffix in LISTS:
        return read_list(where, base)
    if suffix == ".tar":
        return list_tars([where], unlabelled)
    raise _unknown_kind(where, suffix)


def _only_tars(folder: str, inside: Sequence[str]) -> list[str]:
    """The tars of a folder that holds neither images nor folders; none otherwise."""
    if "index.json" in inside and any(name.startswith("shard-") for name in inside):
        raise DataError(f"images are wanted; {folder} holds features: pass it where features are taken")
    shown = [name for name in inside if not name.startswith(".")]
    if any(name.lower().endswith(SUFFIXES) or os.path.isdir(os.path.join(folder, name)) for name in shown):
        return []
    return [os.path.join(folder, name) for name in shown if name.lower().endswith(".tar")]


def _unknown_kind(where: str, suffix: str) -> DataError:
    kinds = f"a folder, a list ({' '.join(LISTS)}), a table ({' '.join(TABLES)}) or a .tar"
    if where.lower().endswith(PACKED):
        return packed(where)
    if suffix in FEATURES:
        return DataError(f"images come from {kinds}; {where} holds arrays: pass features where features are taken")
    if suffix in SUFFIXES:
        return DataError(f"images come from {kinds}; {where} is a single image: give its folder")
    return DataError(f"images come from {kinds}; got {where}: unpack or list the images")
