"""Adapted ensembles as runs: a folder like that of `train`, with adaptation.json beside run.json."""

from __future__ import annotations

import os
from pathlib import Path

from dissensus._core import documents
from dissensus._core.errors import RunError
from dissensus._core.files import check_folder, make_folder
from dissensus._core.outputs import assembling
from dissensus._core.places import place
from dissensus.adaptation.adapted import Adapted
from dissensus.training.run import ADAPTATION, INFO, Run, versions


def save(adapted: Adapted, run: Run, out: str | os.PathLike[str]) -> Run:
    """Write an adapted ensemble as a run of its own; the folder is complete or absent.

    Args:
        adapted: The result of `adapt`.
        run: The run whose ensemble was adapted; it is not changed.
        out: A new or empty folder.

    Returns:
        The new run.

    Raises:
        RunError: If `out` holds files, lies within `run`, or cannot be written.
    """
    out, members = place(out), len(adapted.ensemble)
    check_out(run, out)
    settings = {**run.info.settings, "members": members, "active": min(int(run.settings["active"]), members)}
    info = run.info.model_copy(update={"settings": settings, "versions": versions(), "notes": (adapted.reason,)})
    with assembling(out) as folder:
        make_folder(folder)
        adapted.ensemble.save(folder / run.ensemble_folder.name)
        documents.write(folder / ADAPTATION, adapted.document)
        documents.write(folder / INFO, info)
    return Run.open(out)


def check_out(run: Run, out: Path) -> None:
    """Raise `RunError` if an adapted run cannot be written there: before the work, not after it."""
    check_folder(out)
    if run.folder.resolve() in out.resolve().parents:
        raise RunError(f"--out must lie outside of the run, which stays as it is; {out} is in it: choose another")
