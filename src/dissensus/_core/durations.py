"""Durations in messages."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time as one would say it.

    >>> duration(42.3), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
