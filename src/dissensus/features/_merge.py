"""merge(): join the parts of an extraction that was divided among several commands.

    extract(images, backbone, "parts/1", part=(1, 2))        # on one machine
    extract(images, backbone, "parts/2", part=(2, 2))        # on another
    features = merge(["parts/1", "parts/2"], "features")     # the same bytes as one extraction

Files are linked where the file system allows it, else copied.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dissensus._core.errors import DataError, some
from dissensus._core.files import check_folder, replacing
from dissensus._core.places import filesystem, is_remote, local_copy, place, storage_errors, upload
from dissensus.features import _opening
from dissensus.features._shards import Index, Shards
from dissensus.features.extraction import BAD
from dissensus.features.featureset import FeatureSet
from dissensus.features.store import Store, ordered

PathLike = str | os.PathLike[str]


def merge(parts: Sequence[PathLike], out: PathLike) -> FeatureSet:
    """Join all parts of an extraction into one feature folder, with the same bytes as if it had not been divided.

    Args:
        parts: The feature folders that `extract` wrote with `part`, in any order; paths or URLs. They are not changed.
        out: A new or empty folder.

    Returns:
        The features, opened from `out`.

    Raises:
        DataError: If a part is missing, is given twice, or is of another extraction.
    """
    indexes = dict[Path, Index]()
    for part in parts:
        folder = place(part)
        if folder in indexes:
            raise DataError(f"every part is given once; {folder} is given twice: leave one out")
        with storage_errors(folder):
            indexes[folder] = _opening.open_folder(folder).index
    facts = {str(folder): _facts(index) for folder, index in indexes.items()}
    order = check_parts({str(folder): index.provenance.get("part") for folder, index in indexes.items()}, facts)
    sources = sorted(indexes.items(), key=lambda item: order.index(str(item[0])))
    store = Store(place(out))
    check_folder(store.folder)
    with store.claimed(lambda: check_folder_of(store)):
        try:
            store.make_folders()
            for folder, index in sources:
                for shard in index.shards.each():
                    for file in shard.files:
                        with store.writing():
                            _copy(folder / file, store.folder / file)
            bad = "".join(_text(folder / BAD) for folder, _ in sources)
            if bad:
                with store.writing(), replacing(store.folder / BAD) as temporary:
                    temporary.write_text(bad, encoding="utf-8")
            store.write("index.json", _joined([index for _, index in sources]))
        except BaseException:
            store.clear()
            raise
    return FeatureSet.open(out)


def check_folder_of(store: Store) -> None:
    """Raise if another command has written to the folder in the meantime."""
    if store.contents():
        raise DataError(f"features need an empty folder; {store.folder} holds some: choose another")


def check_parts(parts: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of parts in their order.

    Args:
        parts: (K, N) of each part by name; None if it is not a part.
        facts: What must be the same in all parts, by name.

    Raises:
        DataError: If a part is missing or given twice, or the parts do not belong together.
    """
    if not parts:
        raise DataError("parts are joined; none is given: name them all")
    numbers = dict[int, str]()
    counts = {name: part[1] for name, part in parts.items() if part is not None}
    first = next(iter(parts))
    for name, part in parts.items():
        if part is None:
            raise DataError(f"parts come from --part K/N; {name} is a whole: leave it out")
        if counts[first] != part[1]:
            raise DataError(
                f"parts must be of one division; {first} is of {counts[first]}, {name} of {part[1]}: leave one out"
            )
        for key in {**facts[first], **facts[name]}:
            mine, theirs = facts[first].get(key), facts[name].get(key)
            if mine != theirs:
                raise DataError(
                    f"parts must be of one command; {first} has {key} {_short(mine)}, {name} has {_short(theirs)}: run "
                    "the parts with the same options"
                )
        if part[0] in numbers:
            raise DataError(
                f"every part is given once; {numbers[part[0]]} and {name} are both {part[0]}/{part[1]}: leave one out"
            )
        numbers[part[0]] = name
    total = counts[first]
    if missing := [f"{number}/{total}" for number in range(1, total + 1) if number not in numbers]:
        raise DataError(f"all {total} parts must be given; {some(missing)} missing: run them, or name their folders")
    return [numbers[number] for number in sorted(numbers)]


def _facts(index: Index) -> dict[str, Any]:
    """Return what all parts of an extraction share."""
    facts = {name: value for name, value in index.provenance.items() if name not in ("part", "bad", "backbone")}
    backbone = (index.provenance.get("backbone") or {}).copy()
    about = {"columns": index.columns, "shape": index.shape, "dtype": index.dtype, "group_names": index.group_names}
    return {"backbone": backbone.get("name"), "fingerprint": backbone.get("fingerprint"), **facts, **about}


def _joined(indexes: Sequence[Index]) -> Index:
    """Return the index of all parts together."""
    first = indexes[0]
    shards = sorted((shard for index in indexes for shard in index.shards.each()), key=lambda shard: shard.number)
    counts = Counter[str]()
    for index in indexes:
        counts.update(dict(zip(index.classes, index.class_counts, strict=False)))
    same = all(index.classes == first.classes for index in indexes)
    classes = first.classes if same else ordered(name for index in indexes for name in set(index.classes))
    sums = [sum(values) for values in zip(*(index.class_counts for index in indexes), strict=True)] if same else None
    provenance = {name: value for name, value in first.provenance.items() if name not in ("part", "shards")}
    provenance["bad"] = sum(index.provenance.get("bad", 0) for index in indexes)
    return first.model_copy(
        update={
            "count": sum(index.count for index in indexes),
            "classes": classes,
            "class_counts": tuple(counts[name] for name in classes) if sums is None else tuple(sums),
            "provenance": provenance,
            "shards": Shards.of(shards),
        }
    )


def _copy(source: Path, target: Path) -> None:
    """Copy a file between any two places; link it if both are on one local file system."""
    if is_remote(source) and is_remote(target):
        (fs, inside), (there, path) = filesystem(source), filesystem(target)
        if fs is there:
            fs.copy(inside, path)
            return
    if is_remote(target):
        with local_copy(source) as file:
            upload(file, target)
        return
    if is_remote(source):
        with local_copy(source) as file, replacing(target) as temporary:
            shutil.copyfile(file, temporary)
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12] + "..."
