"""Digests: short names for results, which change with everything that they depend on."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(facts: Any) -> str:
    """A sha256 of plain values: numbers, texts, lists and dictionaries, whose order does not matter.

    >>> digest({"seed": 0, "lr": 0.1}) == digest({"lr": 0.1, "seed": 0})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
