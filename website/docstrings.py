"""An extension of griffe: docstrings as Markdown shows them best."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Fill in what is generated at run time, and fence examples that begin with >>>."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of a package that was loaded."""
        self._change(pkg)

    def _change(self, obj: griffe.Object | griffe.Alias) -> None:
        if obj.docstring:
            if "{options}" in obj.docstring.value:
                obj.docstring.value = inspect.getdoc(griffe.dynamic_import(obj.path)) or ""
            obj.docstring.value = fenced(obj.docstring.value)
        for member in obj.members.values():
            if not member.is_alias:
                self._change(member)


def fenced(docstring: str) -> str:
    """Put a fence around every example: lines from >>> to the next empty line."""
    return re.sub(r"(?m)^([ ]*)(>>> .*(?:\n(?!\s*$).*)*)", r"\1```pycon\n\1\2\n\1```", docstring)
