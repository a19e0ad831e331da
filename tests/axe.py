"""axe-core in a browser: what it finds wrong with the page that is open, for people who see or point less well.

The script comes from the package axe-core-python, or is the file that DISSENSUS_AXE names: a newer version, say.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, Browser

LOOKS = [(width, scheme) for width in (1280, 768, 390) for scheme in ("light", "dark")]
STILL = """document.getAnimations().every(one =>
    one.playState !== 'running' || one.effect.getComputedTiming().iterations === Infinity)"""
RUN = """axe.run(%s, {resultTypes: ['violations']}).then(({violations}) => violations
    .filter(rule => rule.impact === 'serious' || rule.impact === 'critical')
    .flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`)))"""


def script() -> Path | None:
    """The file of axe-core, if there is one."""
    if "DISSENSUS_AXE" in os.environ:
        return Path(os.environ["DISSENSUS_AXE"])
    spec = importlib.util.find_spec("axe_core_python")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("axe.min.js")


needs_axe = pytest.mark.skipif(
    CHROMIUM is None or script() is None, reason="needs Chromium, and pip install axe-core-python"
)


def serious(tab: Browser, part: str = "body") -> list[str]:
    """Every serious or critical violation on the page that is open, or within a part of it."""
    path = script()
    assert path is not None
    if not tab.eval("'axe' in window"):
        tab.eval(path.read_text(encoding="utf-8") + ";0")
    tab.wait(STILL)  # what fades in has little contrast at first
    return tab.eval(RUN % json.dumps(part))
