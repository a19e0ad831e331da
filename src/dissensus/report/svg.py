"""Axes and plot areas as inline SVG. Colours are CSS classes of the page (s0, s1, ...), for light and dark schemes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 350, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 19, 18, 44
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SERIES = 8  # colours, dashes and markers that the page distinguishes


@dataclass(frozen=True)
class Axis:
    """Values to pixels. `kind` is linear, sqrt or log; ticks are values with their labels."""

    name: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    kind: str = "linear"

    def share(self, value: float) -> float:
        """Where the value lies between the ends: 0 to 1."""
        low, high, v = (self._bent(x) for x in (self.low, self.high, min(max(value, self.low), self.high)))
        return (v - low) / (high - low) if high > low else 0.5

    def _bent(self, value: float) -> float:
        if self.kind == "sqrt":
            return math.sqrt(max(value, 0.0))
        return math.log10(value) if self.kind == "log" else value


def axis(name: str, low: float, high: float, *, wish: int = 5) -> Axis:
    """A linear axis whose ends and ticks are round numbers."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    step = _round_step((high - low) / wish)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(name, first * step, last * step, _ticks(step, range(first, last + 1)))


def tight_axis(name: str, low: float, high: float, *, wish: int = 5, whole: bool = False) -> Axis:
    """A linear axis that ends where the data end; `whole` for ticks at whole numbers."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    step = _round_step((high - low) / wish)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    inside = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return Axis(name, low, high, _ticks(step, inside))


def log_axis(name: str, low: float, high: float) -> Axis:
    """Powers of ten around positive values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    every = max(1, (last - first) // 5)
    ticks = tuple((10.0**p, _power(p)) for p in range(first, last + 1, every))
    return Axis(f"{name} (log scale)", 10.0**first, 10.0**last, ticks, "log")


def _power(exponent: int) -> str:
    """A power of ten, short enough to stay beside the name of its axis."""
    if abs(exponent) < 4:
        return f"{10.0**exponent:g}"
    return "10" + str(exponent).translate(SUPERSCRIPT)


def _short(value: float) -> str:
    """A value, as a power of ten where that is shorter."""
    plain = f"{value:g}"
    if len(plain) < 5 or value <= 0:
        return plain
    exponent = math.floor(math.log10(value))
    factor = f"{value / 10.0**exponent:.3g}"
    power = "10" + str(exponent).translate(SUPERSCRIPT)
    return power if factor == "1" else min(plain, f"{factor}·{power}", key=len)


def share_axis(name: str) -> Axis:
    """0 to 100%."""
    return Axis(name, 0, 1, tuple((v / 100, f"{v}%") for v in (0, 20, 40, 60, 80, 100)))


def places_axis(name: str, values: Sequence[float]) -> Axis:
    """Evenly spaced values, for gaps that differ too much for a scale."""
    return Axis(f"{name} (uneven steps)", -0.3, len(values) - 0.7, tuple((i, _short(v)) for i, v in enumerate(values)))


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(nice for nice in (1, 2, 2.5, 5, 10) if nice * power >= step * (1 - 1e-9))


def _ticks(step: float, counts: Iterable[int]) -> tuple[tuple[float, str], ...]:
    # as many decimals as the step has: 0.25 -> 2
    digits = next(d for d in range(13) if d == 12 or abs(round(step, d) - step) < 1e-9 * step)
    return tuple((k * step, f"{k * step + 0.0:.{digits}f}" if digits < 5 else f"{k * step:g}") for k in counts)


class Plot:
    """A plot area; `svg` adds axes, names and a text alternative to what was drawn."""

    def __init__(self, x: Axis, y: Axis, height: int = HEIGHT) -> None:
        self.x, self.y, self.height = x, y, height
        self.marks: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        return (
            LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT),
            self.height - BOTTOM - self.y.share(y) * (self.height - TOP - BOTTOM),
        )

    def line(self, points: Sequence[tuple[float, float]], series: int, *, shape: str = "line") -> None:
        """A line through the points; `shape` is a class of the page: line, outline, area, band, guide."""
        path = _path([self.at(*point) for point in points])
        self.marks.append(f'<path class="{shape} s{series % SERIES}" d="{path}{"Z" if shape == "band" else ""}"/>')

    def marker(self, x: float, y: float, series: int, size: float = 3.5) -> None:
        """A point whose shape identifies the series."""
        px, py = self.at(x, y)
        self.marks.append(f'<path class="mark s{series % SERIES}" d="{marker(px, py, series, size)}"/>')

    def text(self, x: float, y: float, words: str) -> None:
        """Words above a point."""
        px, py = self.at(x, y)
        near = 3.5 * len(words)  # half of their width, about
        anchor = "start" if px < LEFT + near else "end" if px > WIDTH - RIGHT - near else "middle"
        self.marks.append(text(px, py - 5, words, anchor))

    def svg(self, label: str) -> Markup:
        """The whole plot; `label` describes it in words."""
        bottom, right = self.height - BOTTOM, WIDTH - RIGHT
        parts = []
        grid = ""
        for value, name in self.y.ticks:
            py = self.at(self.x.low, value)[1]
            grid += f"M{LEFT} {py:.1f}H{right}"
            parts.append(text(LEFT - 5, py + 3.5, name, "end"))
        for value, name in self.x.ticks:
            px = self.at(value, self.y.low)[0]
            grid += f"M{px:.1f} {bottom}v4"
            parts.append(text(px, bottom + 16, name))
        parts.insert(0, f'<path class="grid" d="{grid}"/>')
        parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        parts.append(text((LEFT + right) / 2, self.height - 6, self.x.name, kind="name"))
        parts.append(turned_text(11, (TOP + bottom) / 2, self.y.name))
        return frame(WIDTH, self.height, label, "".join([*parts, *self.marks]))


def text(x: float, y: float, words: str, anchor: str = "middle", *, kind: str = "") -> str:
    """Words at pixels; `kind` is a class of the page."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def turned_text(x: float, y: float, words: str) -> str:
    """The name of a vertical axis."""
    return f'<text class="name" transform="translate({x} {y}) rotate(-90)" text-anchor="middle">{escape(words)}</text>'


def frame(width: float, height: float, label: str, body: str) -> Markup:
    """An SVG image with a text alternative; `body` is trusted."""
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">{body}</svg>'
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    """Straight lines through pixels; horizontal and vertical ones in short form."""
    texts = [(f"{x:.1f}".removesuffix(".0"), f"{y:.1f}".removesuffix(".0")) for x, y in places]
    path = "M{} {}".format(*texts[0])
    for (x0, y0), (x1, y1) in itertools.pairwise(texts):
        if (x0, y0) != (x1, y1):
            path += f"H{x1}" if y0 == y1 else f"V{y1}" if x0 == x1 else f"L{x1} {y1}"
    return path


def marker(x: float, y: float, series: int, size: float = 3.5) -> str:
    """The path of a circle, square, triangle (either way up) or diamond."""
    r, kind = size, series % 4
    if kind == 0:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0"
    if kind == 1:
        return f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z"
    if kind == 2:
        turn = 1 if series % SERIES < 4 else -1
        return f"M{x:.1f} {y - turn * 1.2 * r:.1f}l{1.2 * r:.1f} {turn * 2 * r:.1f}h{-2.4 * r:.1f}z"
    d = round(1.3 * r, 2)
    return f"M{x:.1f} {y - d:.1f}l{d} {d}l{-d} {d}l{-d} {-d}z"


def swatch(series: int, shape: str) -> Markup:
    """A sample of a series for a legend."""
    n = series % SERIES
    if shape == "area":
        body = f'<path class="area s{n}" d="M2 11V2H24V11Z"/>'
    else:
        body = f'<path class="line s{n}" d="M1 6H25"/>'
        body = "" if shape == "dot" else body
        body += f'<path class="mark s{n}" d="{marker(13, 6, series)}"/>' if shape in ("marked", "dot") else ""
    return Markup(f'<svg class="swatch" viewBox="0 0 26 12" aria-hidden="true">{body}</svg>')


def cell(level: int) -> Markup:
    """A sample of a level of a heat map, 0 to 10, for a legend."""
    body = f'<path class="heat h{level}" d="M1 1h24v10h-24z"/>'
    return Markup(f'<svg class="swatch" viewBox="0 0 26 12" aria-hidden="true">{body}</svg>')
