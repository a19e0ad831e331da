"""A watched stream in two charts: the wealth of its martingales, and the share of samples called out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from dissensus._core.errors import DissensusError
from dissensus._core.files import replacing
from dissensus.detection.detector import Detector
from dissensus.detection.monitor import Monitor
from dissensus.report import svg
from dissensus.report.charts import Chart, Line, lines
from dissensus.report.svg import Plot

STATE = "watch.json"  # in the folder of a run, where reports look for it
BARS = 40  # stretches of the stream over which the share of samples called out is averaged
LOWEST = 1e-3  # wealth drawn
HEAD = 40  # pixels for title and legend above each chart of a file
# for a file without the style of the page
STYLE = (
    "svg{background:#fff}text{font:11px system-ui,sans-serif;fill:#333}.name{font-size:12px}"
    ".line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.mark{fill:var(--c)}"
    ".grid{fill:none;stroke:#d5d9e0}.axis{fill:none;stroke:#59616f}"
    ".guide{fill:none;stroke:#1d2330;stroke-width:1.2;stroke-dasharray:3 3}.s0{--c:#0072b2}.s1{--c:#d55e00}"
)


class Watched(NamedTuple):
    """A watched stream on the page: charts, a sentence on it, and whether that is an alarm."""

    charts: Sequence[Chart] = ()
    note: str = ""
    alarm: bool = False


def of_run(folder: Path) -> Watched:
    """The stream whose state is in the folder of a run; empty if there is none."""
    if not (folder / STATE).exists():
        return Watched()
    try:
        monitor = Monitor.load(folder / STATE, Detector.load(folder))
    except DissensusError as error:
        return Watched(note=f"Left out: {error}.")
    if not monitor.history:
        return Watched()
    note = monitor.banner or f"No alarm in {monitor.samples:,} samples."
    return Watched(charts_of(monitor), note, monitor.alarm is not None)


def charts_of(monitor: Monitor) -> list[Chart]:
    """Wealth and verdict rate over the samples of a stream that has some."""
    return [_wealth(monitor), _rate(monitor)]


def _wealth(monitor: Monitor) -> Chart:
    limit = math.exp(monitor.limit)
    points = monitor.history
    x = [float(point.samples) for point in points]
    names = list(monitor.tests)
    drawn = {
        name: [min(max(math.exp(min(point.log_wealth[i], 690.0)), LOWEST), 1e300) for point in points]
        for i, name in enumerate(names)
    }
    top = max(limit, *(max(values) for values in drawn.values()))
    plot = Plot(svg.tight_axis("sample", x[0], x[-1]), svg.log_axis("wealth", LOWEST, top))
    plot.line([(x[0], limit), (x[-1], limit)], 0, shape="guide")
    for number, values in enumerate(drawn.values()):
        plot.line(list(zip(x, values, strict=True)), number)
    if monitor.alarm is not None:
        at = min(max(float(monitor.alarm.sample), x[0]), x[-1])
        plot.line([(at, LOWEST), (at, plot.y.high)], 0, shape="guide")
        plot.text(at, plot.y.high, "alarm")
    title = f"Evidence of drift; alarm at {limit:,.0f}"
    now = ", ".join(f"{name} {values[-1]:.3g}" for name, values in drawn.items())
    legend = tuple(
        (svg.swatch(i, "line"), f"{name}, now {values[-1]:.3g}") for i, (name, values) in enumerate(drawn.items())
    )
    return Chart(title, plot.svg(f"{title}. Wealth after {points[-1].samples:,} samples: {now}."), legend)


def _rate(monitor: Monitor) -> Chart:
    """Samples called out, averaged over stretches of the stream, beside the calibrated rate."""
    points = monitor.history
    every = max(1, len(points) // BARS)
    ends = [(0, 0), *((point.samples, point.out) for point in points[every - 1 :: every])]
    x = [float(end) for end, _ in ends[1:]]
    shares = [(out - before) / (end - start) for (start, before), (end, out) in itertools.pairwise(ends)]
    allowed = monitor.threshold.false_alarms
    drawn = [Line("called out", x, shares), Line(f"calibrated for {allowed:.2g}", x, [allowed] * len(x))]
    return lines("Share of samples called out", "sample", "share called out", drawn, table=False)


def drawing(charts: Sequence[Chart]) -> str:
    """Charts, one below the other, as an SVG file that needs no style sheet."""
    height = len(charts) * (svg.HEIGHT + HEAD)
    body = ""
    for number, chart in enumerate(charts):
        top = number * (svg.HEIGHT + HEAD)
        body += svg.text(svg.WIDTH / 2, top + 16, chart.title, kind="name") + _legend(chart, top + 33)
        body += _placed(chart.drawing, y=top + HEAD - 4, height=svg.HEIGHT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * svg.WIDTH}" viewBox="0 0 {svg.WIDTH} {height}">'
        f"<style>{STYLE}</style>{body}</svg>\n"
    )


def _legend(chart: Chart, y: float) -> str:
    """The names of a chart's lines, side by side."""
    body, x = "", 20.0
    for swatch, words in chart.legend:
        body += _placed(swatch, x=x, y=y - 10, width=26, height=12) + svg.text(x + 31, y, words, "start")
        x += 31 + 6 * len(words) + 12
    return body


def _placed(drawing: Markup, **attributes: float) -> str:
    """An SVG image at a place in another."""
    places = " ".join(f'{name}="{value:g}"' for name, value in attributes.items())
    return str(drawing).replace("<svg ", f"<svg {places} ", 1)


def write(path: Path, charts: Sequence[Chart]) -> None:
    """Write `drawing` to a file."""
    with replacing(path) as temporary:
        temporary.write_text(drawing(charts), encoding="utf-8")
