"""From the tidy frame to what people read: files by suffix, and the summary table of methods."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from dissensus.errors import DissensusError, RunError
from dissensus.evaluate import COLUMNS
from dissensus.files import make_folder, replacing

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


def summary(
    frame: pd.DataFrame, families: Mapping[str, str] | None = None, *, score: str = "pds", aggregate: str = "prediction"
) -> pd.DataFrame:
    """One row a method: accuracy, AUROC, #unique and PDS, each averaged over the sets of a family and over seeds.

    Columns are (group, set). The id accuracy of ensemble *and* members comes first, whatever follows: an AUROC
    without them misleads, since members near chance can make a good detector.
    """
    frame = frame.assign(family=[(families or {}).get(name, name) for name in frame["dataset"]])
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


def as_text(table: pd.DataFrame) -> str:
    """The summary for a terminal: method names at the left, groups above sets, percentages for accuracies."""
    shown = table.copy()
    shown.index = pd.Index(row_names(table))
    blocks = []
    for group in dict.fromkeys(column[0] for column in table.columns):
        percent = group in PERCENT
        block = shown[[column for column in shown.columns if column[0] == group]]
        cells = [[f"{100 * v:.1f}" if percent else f"{v:.3f}" for v in row] for row in block.to_numpy()]
        blocks.append((f"{group} %" if percent else group, [column[1] for column in block.columns], cells))
    return _layout(list(shown.index), blocks)


def row_names(table: pd.DataFrame) -> list[str]:
    """The method, with whatever tells it from other rows of the same method."""
    rows = [dict(zip(KEYS, key, strict=True)) for key in table.index]
    names = []
    for row in rows:
        same = [other for other in rows if other["method"] == row["method"]]
        extra = [f"{key}={row[key]}" for key in KEYS[1:] if len({other[key] for other in same}) > 1]
        names.append(" ".join([str(row["method"]), *extra]))
    return names


def _layout(names: Sequence[str], blocks: Sequence[tuple[str, list[str], list[list[str]]]]) -> str:
    left = max(len(name) for name in [*names, "method"])
    heads, subs, lines = " " * left, "method".ljust(left), [name.ljust(left) for name in names]
    for title, sets, cells in blocks:
        widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(sets)]
        body = sum(widths) + 2 * (len(widths) - 1)
        widths[-1] += max(0, len(title) - body)
        heads += "   " + title.ljust(max(body, len(title)))
        subs += "   " + "  ".join(name.rjust(width) for name, width in zip(sets, widths, strict=True))
        lines = [
            line + "   " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for line, row in zip(lines, cells, strict=True)
        ]
    out = io.StringIO()
    print(heads.rstrip(), subs, "-" * len(subs), *lines, sep="\n", file=out)
    return out.getvalue()
