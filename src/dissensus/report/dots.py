"""Tables as charts: one line per row, one mark per column of a group; for studies, whose tables have none."""

from __future__ import annotations

from collections.abc import Sequence

from dissensus.evaluation.tables import Row, Table, Value
from dissensus.report import svg
from dissensus.report.charts import Chart

ROWS = 20  # of a chart, at most
GROUPS = 6  # charts of a table, at most
LINE, MARK, CHARACTER = 16, 7, 6.2  # pixels of a line of text, of each further mark in a row, and of a character
NAMES = 0.48  # of the width, at most, for the rows' names


def of_table(table: Table) -> list[Chart]:
    """One chart per group of columns that has two values or more and several different ones."""
    charts = []
    for group, places in list(table.groups.items())[:GROUPS]:
        known = [cell.mean for row in table.rows for j in places if (cell := row.cells[j]) is not None]
        if len(set(known)) > 1:
            charts.append(_chart(table, group, places))
    return charts


def _chart(table: Table, group: str, places: Sequence[int]) -> Chart:
    rows = [row for row in table.rows if any(row.cells[j] is not None for j in places)]
    note = ""
    if len(rows) > ROWS:
        note = f"the first {ROWS} of {len(rows)} rows"
        rows = rows[:ROWS]
    names = [_name(row) for row in rows]
    scale = 100 if table.columns[places[0]].percent else 1
    values = [[_scaled(row.cells[j], scale) for j in places] for row in rows]
    known = [value for row in values for value in row if value is not None]
    x_name = group or table.columns[places[0]].name
    axis = svg.axis(x_name, min(v.mean - v.deviation for v in known), max(v.mean + v.deviation for v in known), wish=4)

    longest = int(NAMES * svg.WIDTH / CHARACTER)
    left = min(NAMES * svg.WIDTH, 14 + CHARACTER * max(len(part) for parts in names for part in parts))
    width = svg.WIDTH - left - svg.RIGHT
    height = 8 + max(LINE * max(map(len, names)), MARK * len(places))
    bottom = len(rows) * height + 6
    body = ""
    for tick, word in axis.ticks:
        px = left + axis.share(tick) * width
        body += f'<path class="grid" d="M{px:.1f} 4V{bottom}"/>' + svg.text(px, bottom + 16, word)
    body += f'<path class="axis" d="M{left:.1f} 4V{bottom}H{left + width:.1f}"/>'
    for number, (name, line) in enumerate(zip(names, values, strict=True)):
        top, printed = 4 + number * height, " printed" if rows[number].source else ""
        for k, part in enumerate(name):
            shown = part if len(part) <= longest else part[: longest - 1] + "…"
            body += svg.text(left - 6, top + height / 2 + 4 + LINE * (k - (len(name) - 1) / 2), shown, "end")
        for series, value in enumerate(line):
            if value is not None:
                y = top + height / 2 + MARK * (series - (len(places) - 1) / 2)
                low, at, high = (left + width * axis.share(value.mean + sign * value.deviation) for sign in (-1, 0, 1))
                body += f'<path class="whisker s{series % svg.SERIES}" d="M{low:.1f} {y:.1f}H{high:.1f}"/>' * (
                    high > low
                )
                body += f'<path class="mark{printed} s{series % svg.SERIES}" d="{svg.marker(at, y, series, 4)}"/>'
    body += svg.text(left + width / 2, bottom + 34, x_name, kind="name")
    title = f"{table.title}: {x_name}" if len(table.groups) > 1 and table.title else table.title or x_name
    words = "; ".join(
        f"{', '.join(name)} " + ", ".join(f"{value.mean:.4g}" for value in line if value is not None)
        for name, line in zip(names, values, strict=True)
    )
    legend = tuple((svg.swatch(i, "dot"), table.columns[j].name) for i, j in enumerate(places)) if group else ()
    return Chart(title, svg.frame(svg.WIDTH, bottom + 42, f"{title}. {words}.", body), legend, note=note)


def _name(row: Row) -> tuple[str, ...]:
    """The first of a row's names, and the others in a second line; "-" stands for none."""
    first, *others = row.labels
    rest = ", ".join(other for other in others if other != "-")
    return (first, rest) if rest else (first,)


def _scaled(value: Value | None, scale: float) -> Value | None:
    return None if value is None else Value(scale * value.mean, scale * value.deviation, value.count)
