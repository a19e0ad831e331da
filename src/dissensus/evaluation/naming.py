"""Names for runs side by side: the method, and whatever else differs between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dissensus.training.options import Task, default_rates

HIDDEN = ("train", "samples", "images", "classes", "disagreement", "sample_weight", "start")  # fingerprints and lists


def name_runs(settings: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[tuple[str, str]]:
    """Return for each run the name of its row, which runs that differ only in their seed share, and its name.

    `settings` hold at least method and seed; `folders` are part of the names where nothing else differs.
    """
    plain = [_plain(run) for run in settings]
    keys = [json.dumps({k: v for k, v in run.items() if k != "seed"}, sort_keys=True) for run in plain]
    counts = Counter(zip(keys, (run["seed"] for run in plain), strict=True))
    names = []
    for run, key, folder in zip(plain, keys, folders, strict=True):
        same = [other for other in plain if other["method"] == run["method"]]
        differing = [k for k in run if k != "seed" and len({json.dumps(other.get(k)) for other in same}) > 1]
        row = " ".join([str(run["method"]), *(f"{k}={_short(run[k])}" for k in differing)])
        if counts[key, run["seed"]] > 1 and folder:  # they differ in data or initial weights
            row = f"{row} ({folder})"
        several = len({seed for other, seed in counts if other == key}) > 1
        names.append((row, f"{row}, seed {run['seed']}" if several else row))
    return names


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which people distinguish runs."""
    plain = {k: v for k, v in settings.items() if k not in HIDDEN and not isinstance(v, dict | list)}
    if isinstance(tail := settings.get("tail"), dict):
        plain |= {"tail": tail.get("name"), "norm": tail.get("norm")}
        rates = default_rates(Task(0, tail.get("name"), tail.get("features")))  # they follow from backbone and tail
        plain |= {name: "default" for name, rate in rates.items() if plain.get(name) == rate}
    if isinstance(backbone := settings.get("backbone"), dict) and "joined" in backbone:
        for name in ("tail", "members"):  # of one of several
            plain.pop(name, None)
        plain |= {"lr": "default", "weight_decay": "default"}
    if isinstance(backbone, dict):
        plain["backbone"] = "-".join(str(backbone[k]) for k in ("name", "layers", "size") if k in backbone)
    return plain


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
