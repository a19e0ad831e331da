"""Cards: the page's answer for one image, as HTML: verdict, gauge, classes, members, neighbours. Text is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from markupsafe import Markup, escape

from dissensus.detection.verdicts import Verdict
from dissensus.serve.gauge import gauge
from dissensus.serve.neighbours import Neighbours
from dissensus.serve.service import Inspection, Service

FEW = 10  # members that are listed without a click
HEADLINES = {
    "in": ("✓", "In distribution", "Similar to the calibration images."),
    "out": ("!", "Out of distribution", "Unlike the calibration images: do not rely on the class."),
    "": ("?", "No verdict", "This run is not calibrated."),
    "error": ("✗", "This file cannot be used", ""),
}
EMPTY = Markup('<div class="dv dv-empty">The verdict appears here.</div>')


def card(service: Service, inspection: Inspection, rate: float | None = None) -> Markup:
    """Return the card of one image at a false-alarm rate."""
    verdict, limit = service.verdict(inspection, rate)
    if verdict.error is not None:
        return problem(f"{inspection.name}: {verdict.error}")
    rule = service.detector_at(rate).threshold
    parts = [_headline(verdict, inspection)]
    if rule is not None and verdict.p_value is not None and verdict.label is not None and limit is not None:
        count = service.calibration_count(verdict.label)
        of = f" predicted as {verdict.class_name}" if rule.calibrated.by_class else ""
        words = f"{in_words(verdict.p_value, count, of)} {_rule(rule.false_alarms, rule.name, verdict, limit)}"
        parts += [
            gauge(verdict.p_value, rule.false_alarms, count),
            Markup("<p class='dv-words'>{}</p>").format(words),
        ]
    else:
        words = f"Score ({service.detector.score_name}): {verdict.score:.4g}; higher is more out of distribution."
        parts.append(Markup("<p class='dv-words'>{}</p>").format(words))
    parts += [_classes(service.top_classes(inspection)), _members(inspection, verdict)]
    if inspection.nearest:
        parts.append(_nearest(service.neighbours, inspection))
    return Markup("<div class='dv dv-{}' role='status'>{}</div>").format(verdict.verdict or "none", _join(parts))


def problem(text: str) -> Markup:
    """Return a card that says what is wrong with a file."""
    icon, headline, _ = HEADLINES["error"]
    form = "<div class='dv dv-error' role='alert'><h2><span class='icon'>{}</span>{}</h2><p>{}</p></div>"
    return Markup(form).format(icon, headline, text)


def in_words(p_value: float, count: int, of: str = "") -> str:
    """Return a p-value among `count` held-out images as a sentence."""
    beyond = round(p_value * (count + 1)) - 1
    images = f"{count:,} held-out images{of}"
    if not beyond:
        return f"None of the {images} looks as unusual (p = {p_value:.2g})."
    look = "looks" if beyond == 1 else "look"
    return f"Of the {images}, {beyond:,} {look} at least as unusual (p = {p_value:.2g})."


def _rule(rate: float, score: str, verdict: Verdict, limit: float) -> str:
    sign = ">" if verdict.out else "≤"
    return (
        f"At {100 * rate:.3g}% false alarms, an image is out of distribution if p ≤ {rate:.3g}; "
        f"here {score} {verdict.score:.4g} {sign} {limit:.4g}."
    )


def _headline(verdict: Verdict, inspection: Inspection) -> Markup:
    icon, headline, text = HEADLINES[verdict.verdict]
    picture = (
        Markup("<img src='{}' alt='{}'>").format(inspection.picture, inspection.name) if inspection.picture else ""
    )
    form = (
        "<h2><span class='icon' aria-hidden='true'>{}</span>{}</h2><div class='dv-top'>{}<div><p>{}</p>"
        "<p class='dv-class'>Class <b>{}</b>, confidence {:.0%}</p><p class='dv-name'>{}</p></div></div>"
    )
    return Markup(form).format(icon, headline, picture, text, verdict.class_name, verdict.confidence, inspection.name)


def _classes(probabilities: Iterable[tuple[str, float]]) -> Markup:
    row = Markup(
        "<li><span class='name'>{}</span><span class='bar'><i style='width:{:.1f}%'></i></span><b>{:.1%}</b></li>"
    )
    return Markup("<h3>Most probable classes</h3><ol class='dv-bars'>{}</ol>").format(
        _join(row.format(name, 100 * prob, prob) for name, prob in probabilities)
    )


def _members(inspection: Inspection, verdict: Verdict) -> Markup:
    assert inspection.logits is not None
    confidence = inspection.logits.softmax(-1).amax(-1)[:, 0].tolist()
    votes = Counter(verdict.votes).most_common()
    agreeing = sum(count for name, count in votes if name == verdict.class_name)
    row = Markup("<li class='{}'><span>member {}</span> <b>{}</b> <small>{:.0%}</small></li>")
    rows = _join(
        row.format("agrees" if vote == verdict.class_name else "differs", number + 1, vote, confidence[number])
        for number, vote in enumerate(verdict.votes)
    )
    summary = f"{agreeing} of {len(verdict.votes)} members predict {verdict.class_name}"
    others = [f"{name} ({count})" for name, count in votes if name != verdict.class_name]
    summary += f"; others: {', '.join(others[:8])}{', ...' if len(others) > 8 else ''}." if others else "."
    state = "open" if len(verdict.votes) <= FEW else ""
    form = (
        "<h3>Votes of the members</h3><p>{}</p>"
        "<details {}><summary>Each member</summary><ul class='dv-members'>{}</ul></details>"
    )
    return Markup(form).format(summary, state, rows)


def _nearest(neighbours: Neighbours | None, inspection: Inspection) -> Markup:
    assert neighbours is not None
    searched, total = len(neighbours.rows), neighbours.total
    among = f"{total:,}" if searched == total else f"a random {searched:,} of {total:,}"
    picture = Markup("<img src='{}' alt=''>")
    row = Markup("<li>{}<b>{}</b><small>{:.2f}</small><small>{}</small></li>")
    rows = (
        row.format(picture.format(n.picture) if n.picture else "", n.class_name, n.similarity, n.name)
        for n in inspection.nearest
    )
    form = (
        "<h3>Nearest training images</h3><p>By cosine similarity of features, among {} images.</p>"
        "<ul class='dv-nearest'>{}</ul>"
    )
    return Markup(form).format(among, _join(rows))


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(escape(part) for part in parts)
