"""Helpers of the tests of tune."""

from __future__ import annotations

import itertools

from dissensus import tune
from dissensus.adaptation import search, trials
from dissensus.adaptation.choose import Choice


def quiet(features, **options):
    """Tune three members without messages."""
    return tune(features, **{"members": 3, "progress": False, **options})


def trained(monkeypatch):
    """Trainings from now on, by method."""
    from dissensus.adaptation import _tune

    seen, original = [], trials.fit

    def counting(ensemble, features, method, *rest, **keywords):
        seen.append(method)
        return original(ensemble, features, method, *rest, **keywords)

    monkeypatch.setattr(trials, "fit", counting)
    monkeypatch.setattr(_tune, "fit", counting)
    return seen


def ticking(monkeypatch):
    """Let 100 seconds pass whenever the clock is read."""
    ticks = itertools.count(step=100)
    monkeypatch.setattr(search.Clock, "passed", property(lambda self: next(ticks)))


def picking(monkeypatch, candidate, score):
    """Choose this from now on."""

    def choose(self):
        full = {(e.candidate, e.score): e for e in self.entries if e.share == search.FULL}
        return Choice(full[candidate, score], full[search.INCUMBENT, search.expressions(self._fitted())[0]], "Picked.")

    monkeypatch.setattr(search.Search, "choose", choose)
