"""Gauge: how unusual a sample is among the calibration samples, as SVG.

The scale is the logarithm of the p-value, which is the same for every score and keeps the threshold visible. Zones
differ in pattern as well as in colour; colours are CSS classes of the page, for light and dark mode.
"""

from __future__ import annotations

import math

from markupsafe import Markup

CENTRE, RADIUS = (150.0, 142.0), 104.0


def gauge(p_value: float, rate: float, count: int) -> Markup:
    """Return a half circle from usual to unusual, with the needle at the p-value and a mark at the false-alarm rate.

    Args:
        p_value: The p-value among `count` calibration samples.
        rate: The false-alarm rate: the sample is out if the p-value is at most this.
        count: Calibration samples; 1 / (count + 1) is the smallest p-value.
    """
    needle, mark = _share(p_value, count), _share(rate, count)
    words = f"p = {p_value:.3g}; {'out' if p_value <= rate else 'in'}: the threshold is at {rate:.3g}"
    parts = [
        f'<path class="zone-in" d="{_arc(0, mark)}"/>',
        f'<path class="zone-out" d="{_arc(mark, 1)}"/>',
        f'<path class="zone-stripes" d="{_arc(mark, 1)}"/>',
        *_ticks(count),
        f'<path class="mark" d="M{_at(mark, RADIUS - 15)} L{_at(mark, RADIUS + 15)}"/>',
        _label(mark, f"{100 * rate:.3g}%", "mark-text", -29),
        _needle(needle),
    ]
    return Markup(  # nothing here comes from the user
        f'<svg class="gauge" viewBox="-20 0 340 172" role="img" aria-label="{words}">{"".join(parts)}'
        '<text class="end" x="46" y="164">usual</text><text class="end" x="254" y="164">unusual</text></svg>'
    )


def _share(p_value: float, count: int) -> float:
    """Return the position of a p-value on the scale: 0 for 1, 1 for the smallest."""
    return min(1.0, max(0.0, math.log(p_value) / -math.log(count + 1)))


def _at(share: float, radius: float) -> str:
    angle = math.pi * (1 - share)
    return f"{CENTRE[0] + radius * math.cos(angle):.1f} {CENTRE[1] - radius * math.sin(angle):.1f}"


def _arc(start: float, end: float) -> str:
    return f"M{_at(start, RADIUS)} A{RADIUS} {RADIUS} 0 0 1 {_at(end, RADIUS)}"


def _ticks(count: int) -> list[str]:
    powers = range(1, int(math.log10(count + 1)) + 1)
    shares = [(_share(10.0**-power, count), f"1 in {10**power:,}") for power in powers]
    return [
        f'<path class="tick" d="M{_at(share, RADIUS + 10)} L{_at(share, RADIUS + 15)}"/>'
        + _label(share, text, "tick-text", 21)
        for share, text in shares
    ]


def _label(share: float, text: str, css_class: str, offset: float) -> str:
    """Return text `offset` beyond the circle, or inside it if negative."""
    x, y = map(float, _at(share, RADIUS + offset).split())
    anchor = "middle" if 0.4 < share < 0.6 or offset < 0 else "end" if share <= 0.4 else "start"
    return f'<text class="{css_class}" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">{text}</text>'


def _needle(share: float) -> str:
    x, y = CENTRE
    turn = round(180 * share - 90, 1) + 0.0  # no -0.0
    return (
        f'<g class="needle" transform="rotate({turn} {x} {y})">'
        f'<path d="M{x - 5} {y} L{x} {y - RADIUS + 12} L{x + 5} {y} Z"/></g>'
        f'<circle class="hub" cx="{x}" cy="{y}" r="8"/>'
    )
