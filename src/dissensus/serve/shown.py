"""What the page shows of one image, as HTML: verdict, gauge, classes, members, neighbours. Everything is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from markupsafe import Markup, escape

from dissensus.detection.verdicts import Verdict
from dissensus.serve.gauge import gauge
from dissensus.serve.neighbours import Neighbours
from dissensus.serve.service import Seen, Service

FEW = 10  # members that are listed one by one from the start
HEADS = {
    "in": ("✓", "In distribution", "Like the images it was calibrated on."),
    "out": ("!", "Out of distribution", "Unlike the images it was calibrated on: do not rely on the class."),
    "": ("?", "No verdict", "This run is not calibrated."),
    "error": ("✗", "This file cannot be used", ""),
}
EMPTY = Markup('<div class="dv dv-empty">The verdict appears here.</div>')


def card(service: Service, seen: Seen, rate: float | None = None) -> Markup:
    """The whole answer for one image at a false-alarm rate."""
    verdict, limit = service.judge(seen, rate)
    if verdict.error is not None:
        return problem(f"{seen.name}: {verdict.error}")
    used = service.at(rate).threshold
    parts = [_head(verdict, seen)]
    if used is not None and verdict.p_value is not None and verdict.label is not None and limit is not None:
        count = service.calibration(verdict.label)
        of = f" predicted as {verdict.class_name}" if used.calibrated.by_class else ""
        parts += [
            gauge(verdict.p_value, used.false_alarms, count),
            Markup("<p class='dv-words'>{} {}</p>").format(
                in_words(verdict.p_value, count, of), _rule(used.false_alarms, used.name, verdict, limit)
            ),
        ]
    else:
        parts.append(Markup("<p class='dv-words'>Score ({}): {:.4g}, higher = more out of distribution.</p>").format(
            service.detector.score_name, verdict.score))  # fmt: skip
    parts += [_classes(service.chances(seen)), _members(service, seen, verdict)]
    if seen.nearest:
        parts.append(_nearest(service.neighbours, seen))
    return Markup("<div class='dv dv-{}' role='status'>{}</div>").format(verdict.verdict or "none", _join(parts))


def problem(text: str) -> Markup:
    """A card that says what is wrong with what was given."""
    icon, head, _ = HEADS["error"]
    form = "<div class='dv dv-error' role='alert'><h2><span class='icon'>{}</span>{}</h2><p>{}</p></div>"
    return Markup(form).format(icon, head, text)


def in_words(p_value: float, count: int, of: str = "") -> str:
    """A p-value among `count` held-out images, in a sentence."""
    beyond = round(p_value * (count + 1)) - 1
    whole = f"{count:,} held-out images{of}"
    said = (
        "None of the {whole} looks as unusual"
        if not beyond
        else "Of the {whole}, {beyond:,} {look} at least as unusual"
    )
    return said.format(whole=whole, beyond=beyond, look="looks" if beyond == 1 else "look") + f" (p = {p_value:.2g})."


def _rule(rate: float, score: str, verdict: Verdict, limit: float) -> str:
    sign = ">" if verdict.out else "≤"
    return (
        f"At {100 * rate:.3g}% false alarms an image is out when p is at most {rate:.3g}: "
        f"{score} {verdict.score:.4g} {sign} {limit:.4g}."
    )


def _head(verdict: Verdict, seen: Seen) -> Markup:
    icon, head, text = HEADS[verdict.verdict]
    picture = Markup("<img src='{}' alt='{}'>").format(seen.picture, seen.name) if seen.picture else ""
    form = (
        "<h2><span class='icon' aria-hidden='true'>{}</span>{}</h2><div class='dv-top'>{}<div><p>{}</p>"
        "<p class='dv-class'>Class <b>{}</b>, {:.0%} sure</p><p class='dv-name'>{}</p></div></div>"
    )
    return Markup(form).format(icon, head, picture, text, verdict.class_name, verdict.confidence, seen.name)


def _classes(chances: Iterable[tuple[str, float]]) -> Markup:
    row = Markup(
        "<li><span class='name'>{}</span><span class='bar'><i style='width:{:.1f}%'></i></span><b>{:.1%}</b></li>"
    )
    return Markup("<h3>The ensemble's classes</h3><ol class='dv-bars'>{}</ol>").format(
        _join(row.format(name, 100 * prob, prob) for name, prob in chances)
    )


def _members(service: Service, seen: Seen, verdict: Verdict) -> Markup:
    assert seen.logits is not None
    sure = seen.logits.softmax(-1).amax(-1)[:, 0].tolist()
    votes = Counter(verdict.votes).most_common()
    agreeing = sum(count for name, count in votes if name == verdict.class_name)
    row = Markup("<li class='{}'><span>member {}</span> <b>{}</b> <small>{:.0%}</small></li>")
    rows = _join(
        row.format("agrees" if vote == verdict.class_name else "differs", number + 1, vote, sure[number])
        for number, vote in enumerate(verdict.votes)
    )
    said = f"{agreeing} of {len(verdict.votes)} say {verdict.class_name}"
    others = [f"{count} x {name}" for name, count in votes if name != verdict.class_name]
    said += f"; others: {', '.join(others[:8])}{', ...' if len(others) > 8 else ''}." if others else "."
    state = "open" if len(verdict.votes) <= FEW else ""
    form = (
        "<h3>What each member says</h3><p>{}</p>"
        "<details {}><summary>One by one</summary><ul class='dv-members'>{}</ul></details>"
    )
    return Markup(form).format(said, state, rows)


def _nearest(neighbours: Neighbours | None, seen: Seen) -> Markup:
    assert neighbours is not None
    part = f"{len(neighbours.rows):,} of {neighbours.total:,} training images"
    of = f"among {neighbours.total:,}" if len(neighbours.rows) == neighbours.total else f"among {part}, drawn at random"
    picture = Markup("<img src='{}' alt=''>")
    row = Markup("<li>{}<b>{}</b><small>{:.2f}</small><small>{}</small></li>")
    rows = (
        row.format(picture.format(n.picture) if n.picture else "", n.class_name, n.similarity, n.name)
        for n in seen.nearest
    )
    form = "<h3>The nearest training images</h3><p>By the cosine of features, {}.</p><ul class='dv-nearest'>{}</ul>"
    return Markup(form).format(of, _join(rows))


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(escape(part) for part in parts)
