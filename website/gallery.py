"""Pictures of a report and of the served page for docs/gallery.md, by headless Chromium.

dissensus demo --out runs/demo
python -m website.gallery runs/demo
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from tests.browser import Browser, browser

FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "gallery"
RUN = Path("digits", "sed-a2d")  # the run of the demo that is served
LARGEST = 200_000  # bytes of a picture
SETTLE = 1.0  # seconds for animations of the page to end


class Shot(NamedTuple):
    """A picture: the width of the window, the colours, and the part of the page, from an element down."""

    name: str
    width: int
    colours: str
    selector: str = "body"
    height: int = 900


REPORT = (
    Shot("summary-light", 1280, "light"),
    Shot("summary-dark", 1280, "dark"),
    Shot("charts", 1280, "light", "#runs"),
    Shot("histograms", 1280, "light", "#runs .charts", 344),
    Shot("examples", 1280, "light", "#examples", 700),
    Shot("phone", 390, "light", height=760),
)
ONE = (Shot("page-one", 1280, "light", height=1150), Shot("page-phone", 390, "dark", "#answer", 900))
MANY = Shot("page-many", 1280, "light", height=900)


def take_report(tab: Browser, report: Path, folder: Path) -> None:
    """Write one PNG per shot of a report."""
    for shot in REPORT:
        tab.open(report, width=shot.width, height=shot.height, prefers_color_scheme=shot.colours)
        save(tab, shot, folder)


def take_page(tab: Browser, run: Path, folder: Path) -> None:
    """Write one PNG per shot of the page over a run, with one image and with several."""
    with tempfile.TemporaryDirectory() as uploads, served(run) as url:
        files = images(Path(uploads))
        for shot in ONE:
            tab.open(url, width=shot.width, height=shot.height, prefers_color_scheme=shot.colours)
            tab.wait("!!document.querySelector('#one input[type=file]')")
            tab.upload("#one input[type=file]", files[0])
            tab.wait("!!document.querySelector('#answer h2')")
            save(tab, shot, folder)
        tab.open(url, width=MANY.width, height=MANY.height, prefers_color_scheme=MANY.colours)
        tab.wait("!!document.querySelector('#one input[type=file]')")
        tab.eval("[...document.querySelectorAll('button[role=tab]')].find(t => t.innerText.includes('Many')).click()")
        tab.wait("!!document.querySelector('#many input[type=file]')")
        tab.upload("#many input[type=file]", *files)
        tab.wait(f"document.querySelectorAll('.dv-many li').length == {len(files)}")
        save(tab, MANY, folder)


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The address of a server of a run, which is stopped at the end of the block."""
    command = [sys.executable, "-m", "dissensus", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)


def images(folder: Path) -> list[Path]:
    """Write digits, of which 3 and 9 are new to the demo, and parts of photographs."""
    digits, photographs = load_digits(), load_sample_images().images
    pictures = {f"digit-{digits.target[i]}-{i}.png": np.rint(digits.images[i] * 255 / 16) for i in (18, 1, 4, 13, 19)}
    pictures |= {f"photograph-{i}.png": photograph[:200, 300:500] for i, photograph in enumerate(photographs)}
    for name, pixels in pictures.items():
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
    return [folder / name for name in pictures]


def save(tab: Browser, shot: Shot, folder: Path) -> None:
    """Write a PNG of 256 colours of the part of the page that a shot names."""
    time.sleep(SETTLE)
    shown = f"[...document.querySelectorAll({shot.selector!r})].find(one => one.getClientRects().length)"
    path = folder / f"{shot.name}.png"
    tab.shot(path, top=max(0, int(tab.eval(f"{shown}.getBoundingClientRect().top + scrollY"))), height=shot.height)
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; a picture has at most {LARGEST}")
    print(path)


def main(demo: Path) -> None:
    """Take all pictures of a folder that `dissensus demo` wrote."""
    if not (demo / "report.html").is_file():
        raise SystemExit(f"there is no report in {demo}: dissensus demo --out {demo}")
    FIGURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as tab:
        take_report(tab, demo / "report.html", FIGURES)
        take_page(tab, demo / RUN, FIGURES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
