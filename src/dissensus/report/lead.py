"""The main point of a page in a few sentences: what is caught, what one model does, accuracy under shift and inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dissensus.evaluation.results import BASELINES
from dissensus.evaluation.tables import Value
from dissensus.functional.metrics import FALSE_ALARMS
from dissensus.report.summary import EACH, Summary, percent

Of = Callable[[str], Value | None]  # family -> value


def sentences(summary: Summary, score: str) -> list[str]:
    """The sentences on top of a page, for one score."""
    results = summary.results
    outside, shifts = results.families("ood"), results.families("shift", "groups")
    found = []

    def caught(row: str, family: str) -> Value | None:
        return summary.caught(row, score, family)

    shares = summary.means(caught, outside)
    if shares:
        kept = {row: share for row, share in shares.items() if summary.keeps(row)} or shares
        best, names = _best(kept)
        among = "" if len(kept) == len(shares) else "Of the methods that keep their accuracy, "
        verb = "catch" if len(names) > 1 else "catches"
        most = " the most OOD samples:" if len(names) < len(shares) else ""
        values = share(lambda family: caught(best, family), outside, "of")
        near = _near(summary, kept, outside, best, names)
        found.append(
            f"{among}{_joined(names)} {verb}{most} {values}, by {score} at {FALSE_ALARMS:.0%} false alarms{near}."
        )
        found += _alone(summary, outside)
    shifted = summary.means(results.accuracy, shifts)
    if len(shifted) > 1:
        best, names = _best(shifted)
        values = share(lambda family: results.accuracy(best, family), shifts, "on")
        if len(names) == len(shifted):
            found.append(f"All methods are equally accurate on shifted sets: {values}.")
        else:
            verb = "are" if len(names) > 1 else "is"
            near = _near(summary, shifted, shifts, best, names)
            found.append(f"{_joined(names)} {verb} the most accurate on shifted sets: {values}{near}.")
    return [*found, *_inside(summary)]


def share(value: Of, families: Sequence[str], word: str) -> str:
    """The values on families: each of them, or the mean and the lowest of many."""
    values = {family: known for family in families if (known := value(family)) is not None}
    if len(values) <= EACH:
        return ", ".join(f"{percent(known)} {word} {family}" for family, known in values.items())
    mean = Value(float(np.mean([known.mean for known in values.values()])))
    least = min(values, key=lambda family: values[family].mean)
    return f"{percent(mean)} on average over {len(values)} sets, the least {word} {least} ({percent(values[least])})"


def _best(means: Mapping[str, float]) -> tuple[str, list[str]]:
    """The row of the highest mean, and all rows that show the same figure."""
    best = max(means, key=lambda row: means[row])
    return best, [row for row, mean in means.items() if f"{mean:.1%}" == f"{means[best]:.1%}"]


def _near(
    summary: Summary, means: Mapping[str, float], families: Sequence[str], best: str, names: Sequence[str]
) -> str:
    """The rows whose distance to the best may be luck."""
    luck = float(np.mean([summary.luck(best, family, means[best]) for family in families]))
    near = [row for row, mean in means.items() if row not in names and means[best] - mean <= luck]
    others = "the others" if len(near) > 1 and len(near) + len(names) == len(means) else _joined(near) if near else ""
    return f"; the lead over {others} may be chance" if near else ""


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _alone(summary: Summary, outside: Sequence[str]) -> list[str]:
    """What single models catch with common scores."""
    single = summary.results.single
    parts = []
    for score, name in BASELINES.items():
        caught = {family: summary.caught(single, score, family) for family in outside}
        if any(caught.values()):
            parts.append(f"{name} catches {share(caught.__getitem__, outside, 'of')}")
    return [f"What one model does without an ensemble: {'; '.join(parts)}."] if parts else []


def _inside(summary: Summary) -> list[str]:
    results = summary.results
    values = [value for row in results.rows if (value := results.accuracy(row, results.inside)) is not None]
    texts = {percent(value): value.mean for value in values}
    if not texts:
        return []
    if len(texts) == 1:
        return [f"Accuracy on {results.inside} is {next(iter(texts))}."]
    low, *_, high = sorted(texts, key=lambda text: texts[text])
    return [f"Accuracy on {results.inside} lies between {low} and {high}."]
