"""The charts of a page: histogram, ROC, reliability, heat map, bars, lines with deviations; each with its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from dissensus.functional.metrics import FALSE_ALARMS, MISCALIBRATED
from dissensus.report import svg
from dissensus.report.numbers import Array, Histogram, Reliability, Roc
from dissensus.report.svg import Axis, Plot

MARKED = 25  # lines with at most this many points show markers
FINE = 20  # members beyond which the cells of a heat map touch
OVER = 0.7  # share from which the ground of a cell is dark enough for light figures


@dataclass(frozen=True)
class Chart:
    """A drawing with its title and legend, and with its numbers as a table where they are few."""

    title: str
    drawing: Markup
    legend: tuple[tuple[Markup, str], ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a chart: y with an optional deviation at each x; None where there is no value."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    deviation: Sequence[float] = ()


def histogram(title: str, score: str, data: Histogram, inside: str, other: str, limit: float, caught: float) -> Chart:
    """Two sets over a score: the id set filled, the other outlined, and the line above which samples are flagged."""
    edges = data.edges
    top = max(float(data.shares[inside].max()), float(data.shares[other].max()))
    ticks = tuple((v / 100, f"{v}%") for v in (0, 1, 5, 10, 20, 40, 60, 80, 100) if v / 100 <= top * 1.3 or v < 5)
    y = Axis("share of samples", 0, max(ticks[-1][0], top), ticks, "sqrt")
    plot = Plot(svg.tight_axis(f"{score} (right: more OOD)", float(edges[0]), float(edges[-1])), y)
    plot.line(_steps(edges, data.shares[inside]), 0, shape="area")
    plot.line(_steps(edges, data.shares[other]), 1, shape="outline")
    plot.line([(limit, 0), (limit, y.high)], 0, shape="guide")
    plot.text(limit, y.high, f"{FALSE_ALARMS:.0%} line")
    label = (
        f"{title}. Above {limit:.4g}, where at most {FALSE_ALARMS:.0%} of {inside} lie, are {caught:.1%} of {other}."
    )
    rows = tuple(
        (f"{edges[i]:.4g} to {edges[i + 1]:.4g}", *(f"{100 * data.shares[n][i]:.1f}" for n in (inside, other)))
        for i in range(len(edges) - 1)
        if data.shares[inside][i] or data.shares[other][i]
    )
    legend = ((svg.swatch(0, "area"), inside), (svg.swatch(1, "line"), other))
    note = f"{caught:.1%} of {other} are above the line at {limit:.4g}"
    return Chart(title, plot.svg(label), legend, (score, f"{inside} %", f"{other} %"), rows, note)


def _steps(edges: Array, shares: Array) -> list[tuple[float, float]]:
    points = [(float(edges[0]), 0.0)]
    for left, right, share in zip(edges[:-1], edges[1:], shares, strict=True):
        points += [(float(left), float(share)), (float(right), float(share))]
    return [*points, (float(edges[-1]), 0.0)]


def rocs(title: str, curves: Mapping[str, Roc]) -> Chart:
    """Share caught against false alarms, one line per family; the diagonal is guessing."""
    plot = Plot(svg.share_axis("false alarms: id samples flagged"), svg.share_axis("caught"), 270)
    plot.line([(0, 0), (1, 1)], 7, shape="guide")
    for number, curve in enumerate(curves.values(), start=1):
        drawn = curve.thinned()
        plot.line(list(zip(drawn.flagged.tolist(), drawn.caught.tolist(), strict=True)), number)
    shown = (0.01, 0.05, 0.1, 0.2, 0.5)
    rows = tuple(
        (name, f"{curve.area:.3f}", *(f"{100 * curve.at(share):.1f}" for share in shown))
        for name, curve in curves.items()
    )
    label = f"{title}. Area under the curve: " + ", ".join(f"{n} {c.area:.3f}" for n, c in curves.items()) + "."
    legend = tuple(
        (svg.swatch(number, "line"), f"{name}, {curve.area:.3f}")
        for number, (name, curve) in enumerate(curves.items(), start=1)
    )
    heads = ("set", "AUROC", *(f"caught % at {share:.0%}" for share in shown))
    return Chart(
        title, plot.svg(label), legend, heads, rows, "Beside each name: the area under its curve; 0.5 is guessing."
    )


def reliability(title: str, curves: Mapping[str, Reliability]) -> Chart:
    """Accuracy against confidence, one line per family; on the diagonal both are equal."""
    plot = Plot(svg.share_axis("confidence"), svg.share_axis("accuracy"), 270)
    plot.line([(0, 0), (1, 1)], 7, shape="guide")
    for number, curve in enumerate(curves.values()):
        points = list(zip(curve.confidence.tolist(), curve.accuracy.tolist(), strict=True))
        plot.line(points, number)
        for x, y in points:
            plot.marker(x, y, number)
    far = [name for name, curve in curves.items() if curve.error > MISCALIBRATED]
    rows = tuple(
        (name, f"{100 * x:.1f}", f"{100 * y:.1f}", f"{n:.0f}")
        for name, curve in curves.items()
        for x, y, n in zip(curve.confidence, curve.accuracy, curve.count, strict=True)
    )
    words = ", ".join(f"{name} {curve.error:.3f}" for name, curve in curves.items())
    legend = tuple(
        (svg.swatch(number, "marked"), f"{name}, ECE {curve.error:.3f}{' ⚠ high' if name in far else ''}")
        for number, (name, curve) in enumerate(curves.items())
    )
    heads = ("set", "confidence %", "accuracy %", "samples")
    note = "Below the diagonal: overconfident; above: underconfident." + (
        f" ⚠ marks an ECE above {MISCALIBRATED}." if far else ""
    )
    return Chart(title, plot.svg(f"{title}. Expected calibration error: {words}."), legend, heads, rows, note)


def heat_map(title: str, shares: Array) -> Chart:
    """Members against members: the share of equal votes."""
    count, left, top, size = len(shares), 70, 6, 230
    cell = size / count
    levels: dict[int, list[str]] = {}
    for (i, j), share in np.ndenumerate(shares):
        place = f"M{left + j * cell:.1f} {top + i * cell:.1f}h{cell:.1f}v{cell:.1f}h{-cell:.1f}z"
        levels.setdefault(min(10, int(share * 10)), []).append(place)
    fine = " fine" * (count > FINE)
    body = "".join(
        f'<path class="heat{fine} h{level}" d="{"".join(cells)}"/>' for level, cells in sorted(levels.items())
    )
    if count <= 10:
        for (i, j), share in np.ndenumerate(shares):
            x, y = left + (j + 0.5) * cell, top + (i + 0.5) * cell + 4
            body += svg.text(x, y, f"{100 * share:.0f}", kind="over" if share >= OVER else "under")
    every = max(1, count // 10)
    for i in range(0, count, every):
        middle = (i + 0.5) * cell
        body += svg.text(left - 5, top + middle + 4, f"{i + 1}", "end")
        body += svg.text(left + middle, top + size + 14, f"{i + 1}")
    body += svg.text(left + size / 2, top + size + 30, "member", kind="name")
    body += svg.turned_text(left - 26, top + size / 2, "member")
    pairs = shares[~np.eye(count, dtype=bool)] if count > 1 else shares.ravel()
    words = (
        f"Two members predict the same class for {pairs.mean():.1%} on average ({pairs.min():.1%} to {pairs.max():.1%})"
    )
    scale = () if count <= 10 else tuple((svg.cell(level), f"{10 * level}") for level in (0, 2, 4, 6, 8, 10))
    return Chart(title, svg.frame(svg.WIDTH, top + size + 40, f"{title}. {words}.", body), scale, note=words + ".")


def bars(title: str, x_name: str, values: Mapping[str, float], *, low: float = 0.0) -> Chart:
    """Horizontal bars, the value written at each."""
    height, right = 26, 48
    left = min(150.0, 14 + 6.4 * max(map(len, values)))
    axis = svg.axis(x_name, low, max([*values.values(), low + 1e-9]), wish=3)
    width = svg.WIDTH - left - right
    body = ""
    for number, (name, value) in enumerate(values.items()):
        y, length = number * height + 4, axis.share(value) * width
        shown = name if len(name) <= 21 else name[:20] + "…"
        body += svg.text(left - 6, y + 14, shown, "end")
        body += (
            f'<rect class="bar s{min(number, 1)}" x="{left:.1f}" y="{y}" width="{length:.1f}" height="{height - 8}"/>'
        )
        body += svg.text(left + length + 5, y + 14, f"{value:.3f}", "start")
    bottom = len(values) * height + 4
    body += f'<path class="axis" d="M{left:.1f} 0V{bottom}H{left + width:.1f}"/>'
    for tick, name in axis.ticks:
        px = left + axis.share(tick) * width
        body += f'<path class="grid" d="M{px:.1f} {bottom}v4"/>'
        body += svg.text(px, bottom + 16, name)
    body += svg.text(left + width / 2, bottom + 33, x_name, kind="name")
    label = f"{title}. " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()) + "."
    rows = tuple((name, f"{value:.4f}") for name, value in values.items())
    return Chart(title, svg.frame(svg.WIDTH, bottom + 40, label, body), heads=("set", x_name), rows=rows)


def lines(title: str, x_name: str, y_name: str, drawn: Sequence[Line], *, table: bool = True) -> Chart:
    """Lines with a band of one deviation either way; x evenly spaced where its gaps differ too much for a scale."""
    xs = sorted({x for line in drawn for x in line.x})
    gaps = np.diff(xs)
    uneven = len(gaps) > 1 and float(gaps.max()) > 6 * float(gaps.min())
    place = {x: float(i) if uneven else x for i, x in enumerate(xs)}
    known = [v for line in drawn for v in _ends(line)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    y = svg.log_axis(y_name, low, high) if low > 0 and high > 50 * low else svg.axis(y_name, low, high)
    plot = Plot(
        svg.places_axis(x_name, xs)
        if uneven
        else svg.tight_axis(x_name, xs[0], xs[-1], whole=all(x == int(x) for x in xs)),
        y,
    )
    for number, line in enumerate(drawn):
        there = [(i, place[x], v) for i, (x, v) in enumerate(zip(line.x, line.y, strict=True)) if v is not None]
        if line.deviation:
            upper = [(x, v + line.deviation[i]) for i, x, v in there]
            lower = [(x, v - line.deviation[i]) for i, x, v in there]
            if any(line.deviation[i] for i, _, _ in there):
                plot.line([*upper, *lower[::-1]], number, shape="band")
        if there:
            plot.line([(x, v) for _, x, v in there], number)
        for _, x, v in there if len(there) <= MARKED else []:
            plot.marker(x, v, number)
    words = "; ".join(f"{line.name} {_story(line)}" for line in drawn)
    shape = "marked" if len(xs) <= MARKED else "line"
    legend = tuple((svg.swatch(number, shape), line.name) for number, line in enumerate(drawn) if len(drawn) > 1)
    rows = tuple((f"{x:g}", *(_cell(line, x) for line in drawn)) for x in xs) if table and len(xs) <= 60 else ()
    heads = (x_name, *(line.name for line in drawn)) if rows else ()
    return Chart(title, plot.svg(f"{title}. {y_name} against {x_name}: {words}."), legend, heads, rows)


def _ends(line: Line) -> list[float]:
    spread = line.deviation or [0.0] * len(line.y)
    ends = [(v - d, v + d) for v, d in zip(line.y, spread, strict=True) if v is not None]
    return [end for pair in ends for end in pair if math.isfinite(end)]


def _story(line: Line) -> str:
    there = [(x, v) for x, v in zip(line.x, line.y, strict=True) if v is not None]
    if not there:
        return "without values"
    (x0, first), (x1, last) = there[0], there[-1]
    return f"from {first:.4g} at {x0:g} to {last:.4g} at {x1:g}"


def _cell(line: Line, x: float) -> str:
    if x not in line.x or (value := line.y[(i := list(line.x).index(x))]) is None:
        return "-"
    return f"{value:.4g}" + (f" ± {line.deviation[i]:.2g}" if line.deviation and line.deviation[i] else "")
