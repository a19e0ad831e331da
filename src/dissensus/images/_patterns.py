"""Brace patterns, such as train-{000..999}.tar: many shards in one line, as WebDataset writes them."""

from __future__ import annotations

import os
import re

from dissensus._core.places import as_text, is_url
from dissensus.images._files import PathLike

_BRACES = re.compile(r"\{[^{}]*(\.\.|,)[^{}]*\}")


def is_stream(where: object) -> bool:
    """Whether a path or URL, or one of a list of them, is a brace pattern, for `ImageStream.find`."""
    if isinstance(where, list | tuple):
        return any(map(is_stream, where))
    if not isinstance(where, str | os.PathLike):
        return False
    text = as_text(where)
    return bool(_BRACES.search(text)) and (is_url(text) or not os.path.exists(text))


def expand(where: PathLike) -> list[str]:
    """Return the paths that a pattern stands for; a path without braces stands for itself."""
    if not is_stream(where):
        return [as_text(where)]
    from braceexpand import braceexpand  # with webdataset

    return list(braceexpand(as_text(where)))
