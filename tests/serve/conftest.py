"""A calibrated run on scans of digits, files that are no images, a running server and a browser."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from dissensus import Detector, Ensemble, ImageSet, backbones, fit
from dissensus.features import extract
from dissensus.models import tails
from dissensus.serve.service import Service

SERVES = importlib.util.find_spec("gradio") is not None
needs_gradio = pytest.mark.skipif(not SERVES, reason="needs gradio: pip install '.[serve]'")


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


def huge() -> bytes:
    """A PNG whose header promises 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def photo() -> bytes:
    file = io.BytesIO()
    Image.fromarray(load_sample_images().images[0][:300, :300]).save(file, "JPEG")
    return file.getvalue()


BAD = {
    "paper.png": (b"%PDF-1.7 nothing to see", "not an image"),
    "empty.png": (b"", "empty file"),
    "half.jpg": (photo()[:4000], "truncated"),
    "huge.png": (huge(), "20000 x 20000 pixels, more than the limit of 40 million"),
}


@pytest.fixture(scope="session")
def scans() -> ImageSet:
    found = load_digits()
    return ImageSet.from_arrays(
        (found.images * 255 / 16).astype(np.uint8), found.target, classes=[str(c) for c in range(10)]
    )


@pytest.fixture(scope="session")
def place(tmp_path_factory, scans) -> Path:
    """A folder with train features, a calibrated run, and some files."""
    folder = tmp_path_factory.mktemp("served")
    backbone = backbones.create("lite0", layers=1, size=64)
    train = extract(scans.subset(slice(0, 500)), backbone, folder / "train", workers=0, progress=False)
    held_out = extract(scans.subset(slice(500, 700)), backbone, folder / "held-out", workers=0, progress=False)
    ensemble = Ensemble(tails.create("linear", train.width, 10), members=4, seed=0)
    fit(
        ensemble, train, "deep-ensemble", epochs=6, lr=1e-2, batch_size=64, label_smoothing=0.1,
        out=folder / "run", progress=False,
    )  # fmt: skip
    shutil.copytree(folder / "run", folder / "plain")
    Detector.load(folder / "run").calibrate(held_out).save(folder / "run")
    (folder / "digit.png").write_bytes(png(np.asarray(scans.image(1000))))
    (folder / "photo.png").write_bytes(_strangest(Detector.load(folder / "run")))
    for name, (data, _) in BAD.items():
        (folder / name).write_bytes(data)
    return folder


def _strangest(detector: Detector) -> bytes:
    """Of some small patches of a photograph, the one that members disagree on most: some do pass for digits."""
    grey = Image.fromarray(load_sample_images().images[0]).convert("L").resize((80, 53))
    patches = [grey.crop((x, y, x + 8, y + 8)) for x in range(0, 72, 8) for y in range(0, 45, 8)]
    return png(patches[int(detector.predict(patches).score.argmax())])


@pytest.fixture(scope="session")
def service(place) -> Iterator[Service]:
    made = Service(Detector.load(place / "run"), "run")
    yield made
    made.close()


class Server:
    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "dissensus", "serve", *map(str, arguments), "--port", "0"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.stderr.read()

    def waiting(self) -> float:
        """How many images wait for a pass."""
        import httpx

        text = httpx.get(f"{self.url}/metrics", timeout=20).text
        return float(text.partition("\ndissensus_queue_images ")[2].split()[0])

    def stop(self, number: int = signal.SIGINT, code: int = 130) -> str:
        self.process.send_signal(number)
        text = self.process.communicate(timeout=20)[1]
        assert self.process.returncode == code
        return text


@pytest.fixture(scope="session")
def server(place):
    made = Server(place / "run", "--train", place / "train", "--examples", place, "--max-upload-mb", 2)
    yield made
    if made.process.poll() is None:
        said = made.stop()
        assert said.endswith("\ndissensus: stopped\n")
        assert said.count("Traceback") == said.count("InvalidPathError: ")  # whoever asks for files is on record
