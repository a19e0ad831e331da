"""Cards: the page's answer for one image, as HTML: verdict, gauge, classes, members, neighbours. Text is escaped."""

from __future__ import annotations

import base64
import math
from collections import Counter

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dissensus.detection.monitor import Monitor
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import NOTHING_UNUSUAL, OUT, Verdict
from dissensus.report import watching
from dissensus.serve.neighbours import Neighbours
from dissensus.serve.service import Inspection, Service

FEW = 10  # members that are listed without a click
HEADLINES = {
    NOTHING_UNUSUAL: ("✓", "Nothing unusual found", "Its score is like those of the calibration images."),
    OUT: ("!", "Out of distribution", "Unlike the calibration images: do not rely on the class."),
    "": ("?", "No verdict", "This run is not calibrated."),
}
CENTRE, RADIUS = (150.0, 142.0), 104.0  # of the gauge
EMPTY = Markup('<div class="dv dv-empty">The verdict appears here.</div>')
PROBLEM = Markup(
    "<div class='dv dv-error' role='alert'><h2><span class='icon' aria-hidden='true'>✗</span>{}</h2><p>{}</p></div>"
)
TEMPLATES = Environment(
    loader=PackageLoader("dissensus", "serve"),
    autoescape=True,
    trim_blocks=True,
    undefined=StrictUndefined,
)


def card(service: Service, inspection: Inspection, rate: float | None = None) -> Markup:
    """Return the card of one image at a false-alarm rate."""
    verdict, limit = service.verdict(inspection, rate)
    if inspection.outputs is None:
        return problem(f"{inspection.name}: {verdict.error}")
    rule = service.rule(rate)
    dial = Markup()
    words = f"Score ({service.detector.score_name}): {verdict.score:.4g}; higher is more out of distribution."
    if rule is not None and verdict.p_value is not None and verdict.label is not None and limit is not None:
        count = len(rule.calibrated.values[verdict.label if rule.calibrated.by_class else 0])
        of = f" predicted as {verdict.class_name}" if rule.calibrated.by_class else ""
        dial = gauge(verdict.p_value, rule.false_alarms, count)
        words = f"{in_words(verdict.p_value, count, of)} {_rule(rule, verdict, limit)}"
    icon, headline, advice = HEADLINES[verdict.verdict]
    html = TEMPLATES.get_template("card.html").render(
        verdict=verdict,
        inspection=inspection,
        icon=icon,
        headline=headline,
        advice=advice,
        gauge=dial,
        words=words,
        parts=[] if rule is None else list(zip(verdict.parts, rule.weights, strict=False)),
        ranked=0 if rule is None or not rule.references else len(rule.references[0]),
        classes=inspection.top,
        votes=_votes(verdict),
        few=FEW,
        confidence=inspection.outputs.logits.softmax(-1).amax(-1)[:, 0].tolist(),
        among=_among(service.neighbours),
        usual=None if service.neighbours is None else service.neighbours.usual,
    )
    return Markup(html)


def problem(text: str, headline: str = "This file cannot be used") -> Markup:
    """Return a card that says what is wrong, by default with a file."""
    return PROBLEM.format(headline, text)


def in_words(p_value: float, count: int, of: str = "") -> str:
    """Return a p-value among `count` held-out images as a sentence."""
    beyond = round(p_value * (count + 1)) - 1
    images = f"{count:,} held-out images{of}"
    if not beyond:
        return f"None of the {images} looks as unusual (p = {p_value:.2g})."
    look = "looks" if beyond == 1 else "look"
    return f"Of the {images}, {beyond:,} {look} at least as unusual (p = {p_value:.2g})."


def _rule(rule: Threshold, verdict: Verdict, limit: float) -> str:
    rate, sign = rule.false_alarms, ">" if verdict.out else "≤"
    score = "the combined score" if verdict.parts else rule.name
    return (
        f"At {100 * rate:.3g}% false alarms, an image is out of distribution if p ≤ {rate:.3g}; "
        f"here {score} {verdict.score:.4g} {sign} {limit:.4g}."
    )


def _votes(verdict: Verdict) -> str:
    votes = Counter(verdict.votes)
    agreeing = votes.pop(verdict.class_name or "", 0)
    others = [f"{name} ({count})" for name, count in votes.most_common()]
    text = f"{agreeing} of {len(verdict.votes)} members predict {verdict.class_name}"
    return text + (f"; others: {', '.join(others[:8])}{', ...' if len(others) > 8 else ''}." if others else ".")


def _among(neighbours: Neighbours | None) -> str:
    if neighbours is None:
        return ""
    searched = len(neighbours.index.rows)
    return f"{searched:,} images" if neighbours.complete else f"a random {searched:,} of the training images"


def gauge(p_value: float, rate: float, count: int) -> Markup:
    """Return an SVG half circle from usual to unusual, with a needle at the p-value and a mark at the false-alarm rate.

    The scale is the logarithm of the p-value, which is the same for every score and keeps the threshold visible; it
    ends at 1 / (count + 1), the smallest p-value. Zones differ in pattern as well as in colour.
    """
    needle, mark = _share(p_value, count), _share(rate, count)
    words = f"p = {p_value:.3g}; {OUT if p_value <= rate else NOTHING_UNUSUAL}: the threshold is at {rate:.3g}"
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


def watched(monitor: Monitor | None) -> str:
    """Return a banner while the alarm is on, and charts of what has come in."""
    if monitor is None or not monitor.history:
        return ""
    banner = Markup("<p class='warn'><b>{}</b></p>").format(monitor.banner) if monitor.banner else ""
    # an image, so that its style stays its own
    drawn = base64.b64encode(watching.drawing(watching.charts_of(monitor)).encode()).decode()
    picture = f"data:image/svg+xml;base64,{drawn}"
    form = "{}<details><summary>What came in: {}, {}</summary><img alt='{}' src='{}'></details>"
    alarm = "no alarm" if monitor.alarm is None else "an alarm"
    words = "Evidence of drift, and share of images called out"
    count = "1 image" if monitor.samples == 1 else f"{monitor.samples:,} images"
    return str(Markup(form).format(banner, count, alarm, words, picture))
