"""LaTeX in pages becomes MathML when the site is built."""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $...$ and $$...$$.
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def to_mathml(html: str) -> str:
    """Replace every equation in a page."""

    def replace(equation: re.Match[str]) -> str:
        display = "block" if equation[1] == "div" else "inline"
        mathml = str(convert(unescape(equation[2]).strip(), display=display))
        return f'<div class="equation">{mathml}</div>' if display == "block" else mathml

    return EQUATION.sub(replace, html)
