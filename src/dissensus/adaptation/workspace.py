"""The folder of a tuning.

tuning/PLAN/           stand-ins, finished trials and replaced runs; PLAN is a digest of what they depend on
tuning.csv             all candidates
tuning.json            the choice; the run is beside it
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dissensus._core import documents
from dissensus._core.cells import to_cells
from dissensus._core.errors import RunError
from dissensus._core.files import cannot_write, is_temporary, make_folder, remove_temporaries, replacing
from dissensus._core.places import place
from dissensus.adaptation.tuned import DOCUMENT, TABLE, WORK, Tuning, frame_of
from dissensus.training.run import INFO, TUNING, Run, writing_run

MARK = "made"  # in the work folder: the run is of `tune`


@contextlib.contextmanager
def claimed(out: str | os.PathLike[str] | None, plan: str) -> Iterator[Path]:
    """The folder for work in progress: OUT/tuning, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder = place(out)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"the output must be a folder; {folder} is a file: choose another --out")
    work = folder / WORK / plan
    with writing_run(folder):
        _check(folder, work)
        make_folder(work)
        for unfinished in (work, work / "trials"):
            remove_temporaries(unfinished)
        yield work


def _check(folder: Path, work: Path) -> None:
    """Raise if a folder holds something else than this tuning."""
    known = (folder / INFO).exists() or not folder.is_dir()
    if not known and any(not is_temporary(path.name) and path.name not in TUNING for path in folder.iterdir()):
        raise RunError(f"{folder} holds files that are not of a run; choose another --out, or empty it yourself")
    if (folder / WORK).is_dir() and not work.is_dir():
        raise RunError(
            f"{folder} holds another tuning, of other data, options or version; choose another --out, or remove it "
            "yourself"
        )
    if (folder / INFO).exists() and not (folder / DOCUMENT).exists() and not (work / MARK).exists():
        raise RunError(f"{folder} holds a run that tune did not make; choose another --out, or remove it yourself")


def read_choice(out: str | os.PathLike[str] | None, plan: str) -> Tuning | None:
    """The choice that was made before, if there is one."""
    if out is None or not (place(out) / DOCUMENT).exists():
        return None
    remedy = f"remove {place(out) / DOCUMENT} to choose again"
    document = documents.read(Tuning, place(out) / DOCUMENT, remedy=remedy)
    if document.plan != plan:
        raise RunError(f"{out} holds another tuning; choose another --out, or remove it yourself")
    return document


def write_choice(out: Path, document: Tuning) -> None:
    """Write tuning.csv, then tuning.json: a choice is complete or absent."""
    with replacing(out / TABLE) as temporary:
        temporary.write_text(to_cells(frame_of(document)).to_csv(index=False, float_format="%.6g"), encoding="utf-8")
    documents.write(out / DOCUMENT, document)


def make_way(out: Path, work: Path, settings: Mapping[str, Any]) -> Path | None:
    """Move a run with other settings, and all that was made from it, to the work folder; return where it is then.

    A run that `tune` did not make stays, and `fit` raises.
    """
    replaced = None
    if (out / INFO).exists():
        there = Run.join(out).settings
        if not (work / MARK).exists() or all(there[name] == value for name, value in settings.items()):
            return None
        replaced = next(path for n in itertools.count(1) if not (path := work / f"replaced-{n}").exists())
        make_folder(replaced)
        # run.json last: until then, the folder holds a run
        for path in sorted(out.iterdir(), key=lambda path: path.name == INFO):
            if path.name not in TUNING and not is_temporary(path.name):
                try:
                    path.rename(replaced / path.name)
                except OSError as error:
                    raise cannot_write(path, error) from error
    (work / MARK).touch()
    return replaced
