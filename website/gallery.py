"""Pictures of reports and pages for docs/gallery.md, by headless Chromium.

python -m website.gallery runs/demo/report.html
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.browser import browser

FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "gallery"
LARGEST = 200_000  # bytes of a picture


class Shot(NamedTuple):
    """A picture: the width of the window, the colours, and the part of the page, from an element down."""

    name: str
    width: int
    colours: str
    selector: str = "body"
    height: int = 900


SHOTS = (
    Shot("summary-light", 1280, "light"),
    Shot("summary-dark", 1280, "dark"),
    Shot("charts", 1280, "light", "#runs"),
    Shot("histograms", 1280, "light", "#runs .charts", 344),
    Shot("examples", 1280, "light", "#examples", 700),
    Shot("phone", 390, "light", height=760),
)


def take(report: Path, folder: Path) -> None:
    """Write one PNG of 256 colours per shot."""
    if not report.is_file():
        raise SystemExit(f"{report} is not there: dissensus demo --out {report.parent}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        for shot in SHOTS:
            page.open(report, width=shot.width, height=shot.height, prefers_color_scheme=shot.colours)
            shown = f"[...document.querySelectorAll({shot.selector!r})].find(one => one.getClientRects().length)"
            where = f"{shown}.getBoundingClientRect().top + scrollY"
            path = folder / f"{shot.name}.png"
            page.shot(path, top=max(0, int(page.eval(where))), height=shot.height)
            Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
            if path.stat().st_size > LARGEST:
                raise SystemExit(f"{path} has {path.stat().st_size} bytes; a picture has at most {LARGEST}")
            print(path)


if __name__ == "__main__":
    take(Path(sys.argv[1]), FIGURES)
