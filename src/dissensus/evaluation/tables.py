"""From the tidy frame to what people read: files by suffix, and the summary table of methods."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import make_folder, replacing
from dissensus.evaluation._evaluate import COLUMNS

SUFFIXES = (".csv", ".json", ".md", ".tex")
PERCENT = ("accuracy", "members", "worst group")  # shown as percentages
KEYS = ["method", "members", "active", "diversity"]


def render(frame: pd.DataFrame, suffix: str, *, index: bool = False) -> str:
    """The frame as text: CSV, JSON (records), Markdown or LaTeX."""
    if suffix == ".csv":
        return str(frame.to_csv(index=index))
    if suffix == ".json":
        return str((frame.reset_index() if index else frame).to_json(orient="records", indent=1)) + "\n"
    if suffix == ".md":
        return str(frame.to_markdown(index=index, floatfmt=".4g")) + "\n"
    if suffix == ".tex":
        return str(frame.style.format(precision=4, escape="latex", na_rep="").hide(axis="index").to_latex(hrules=True))
    raise DissensusError(f"a table is written as {', '.join(SUFFIXES)}; got {suffix!r}: choose one of those")


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write the frame in the format that the suffix names, whole or not at all."""
    text = render(frame, path.suffix)
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read(path: Path) -> pd.DataFrame:
    """A tidy frame from the CSV that `write` wrote."""
    try:
        frame = pd.read_csv(path, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read results from {path}: {error}") from error
    if list(frame.columns) != list(COLUMNS):
        raise RunError(f"{path} is not a table of results: its columns must be {', '.join(COLUMNS)}")
    return frame


def summary(frame: pd.DataFrame, *, score: str = "pds", aggregate: str = "prediction") -> pd.DataFrame:
    """One row a method: accuracy, AUROC, #unique and PDS, each averaged over the sets of a family and over seeds.

    Columns are (group, set). The id accuracy of ensemble *and* members comes first, whatever follows: an AUROC
    without them misleads, since members near chance can make a good detector.
    """
    order = {family: place for place, family in enumerate(dict.fromkeys(frame["family"]))}
    parts: list[tuple[str, pd.DataFrame]] = [
        ("accuracy", _pick(frame, "accuracy", roles=("id",), aggregate=aggregate)),
        ("members", _pick(frame, "accuracy", roles=("id",), aggregate="members")),
        ("accuracy", _pick(frame, "accuracy", roles=("shift", "groups"), aggregate=aggregate)),
        ("worst group", _pick(frame, "worst_group", roles=("groups",), aggregate=aggregate)),
        (f"AUROC {score}", _pick(frame, "auroc", roles=("shift", "ood"), score=score)),
        ("#unique", _pick(frame, "mean", roles=("id", "shift", "ood", "groups"), score="unique")),
        ("PDS", _pick(frame, "mean", roles=("id", "shift", "ood", "groups"), score="pds")),
    ]
    columns = {}
    for group, rows in parts:
        means = rows.groupby([*KEYS, "family"], sort=False)["value"].mean().unstack("family")
        for family in sorted(means.columns, key=lambda name: order[name]):
            columns[(group, family)] = means[family]
    table = pd.DataFrame(columns)
    methods = list(dict.fromkeys(frame["method"]))
    return table.sort_index(key=lambda level: level.map(methods.index) if level.name == "method" else level)


def _pick(
    frame: pd.DataFrame, metric: str, *, roles: Sequence[str], aggregate: str = "", score: str = ""
) -> pd.DataFrame:
    chosen = (frame["metric"] == metric) & frame["role"].isin(roles)
    return frame[chosen & (frame["aggregate"] == aggregate) & (frame["score"] == score)]


def as_text(table: pd.DataFrame, width: int | None = None) -> str:
    """The summary for a terminal of `width` columns (None: this one's): groups of columns that do not fit go below."""
    names = row_names(table)
    width = width or max(80, shutil.get_terminal_size((100, 0)).columns)
    bands: list[list[_Block]] = [[]]
    for group in dict.fromkeys(column[0] for column in table.columns):
        block = _Block(group, table[[column for column in table.columns if column[0] == group]])
        if bands[-1] and _left(names) + sum(3 + other.width for other in [*bands[-1], block]) > width:
            bands.append([])
        bands[-1].append(block)
    return "\n\n".join(_band(names, band) for band in bands) + "\n"


class _Block:
    """One group of columns as text: a title, set names, and a row of cells a method, all `width` wide."""

    def __init__(self, group: str, values: pd.DataFrame) -> None:
        percent = group in PERCENT
        title = f"{group} %" if percent else group
        cells = [[f"{100 * v:.1f}" if percent else f"{v:.3f}" for v in row] for row in values.to_numpy()]
        sets = [str(column[1]) for column in values.columns]
        widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(sets)]
        widths[-1] += max(0, len(title) - sum(widths) - 2 * (len(widths) - 1))
        rows = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in [sets, *cells]]
        self.width = len(rows[0])
        self.lines = [title.ljust(self.width), *rows]


def _left(names: Sequence[str]) -> int:
    return max(len(name) for name in [*names, "method"])


def _band(names: Sequence[str], blocks: Sequence[_Block]) -> str:
    left = [name.ljust(_left(names)) for name in ["", "method", *names]]
    lines = ["   ".join([start, *(block.lines[i] for block in blocks)]) for i, start in enumerate(left)]
    return "\n".join([*lines[:2], "-" * len(lines[0]), *lines[2:]])


def row_names(table: pd.DataFrame) -> list[str]:
    """The method, with whatever tells it from other rows of the same method."""
    rows = [dict(zip(KEYS, key, strict=True)) for key in table.index]
    names = []
    for row in rows:
        same = [other for other in rows if other["method"] == row["method"]]
        extra = [f"{key}={row[key]}" for key in KEYS[1:] if len({other[key] for other in same}) > 1]
        names.append(" ".join([str(row["method"]), *extra]))
    return names
