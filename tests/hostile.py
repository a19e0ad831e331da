"""Files as an attacker, a bad disk or a careless download leaves them: the same ones for the same seed.

    names = hostile.write(folder, count=1000, seed=0)

Small images of every format are cut, flipped, spliced and given lying headers; the rest are pipes, devices, links to
themselves, archives, bombs, programs and empty files, under names that control terminals and begin formulas.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

FORMATS = {
    "JPEG": ".jpg", "PNG": ".png", "GIF": ".gif", "TIFF": ".tif", "WEBP": ".webp", "BMP": ".bmp", "PPM": ".ppm",
    "JPEG2000": ".jp2", "AVIF": ".avif",
}  # fmt: skip
ENDINGS = (*FORMATS.values(), ".heic", ".JPEG")
SIZES = (0, 1, 7, 255, 2**12, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
NAMES = (
    "{}", "\x1b[2J{}", "{}\n[out]", "=cmd|' -C calc'!{}", "-{}", "@{}", "\t{}", "'+{}", "\udcff{}", "\u202egpj{}",
    "{} " + "x" * 180, "\x9b31m{}", 'a"b,{}', "{};ls", "+1{}",
)  # fmt: skip


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(rng: np.random.Generator, width: int = 24, height: int = 20) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@cache
def whole(kind: str) -> bytes:
    """A small image in a format."""
    return encoded(noise(np.random.default_rng(0)), kind)


def _any(rng: np.random.Generator) -> tuple[str, bytes]:
    kind = str(rng.choice(list(FORMATS)))
    return kind, whole(kind)


# --- mutations of images ----------------------------------------------------------------------------------


def cut(rng: np.random.Generator) -> bytes:
    data = _any(rng)[1]
    return data[: int(rng.integers(1, len(data)))]


def flipped(rng: np.random.Generator) -> bytes:
    data = bytearray(_any(rng)[1])
    near = len(data) if rng.random() < 0.5 else min(len(data), 64)  # half of them in the header
    for at in rng.integers(0, near, int(rng.integers(1, 9))).tolist():
        data[at] ^= 1 << int(rng.integers(8))
    return bytes(data)


def overwritten(rng: np.random.Generator) -> bytes:
    data = _any(rng)[1]
    at, size = int(rng.integers(len(data))), int(rng.integers(1, 64))
    return data[:at] + rng.bytes(size) + data[at + size :]


def spliced(rng: np.random.Generator) -> bytes:
    first, second = _any(rng)[1], _any(rng)[1]
    return first[: int(rng.integers(len(first)))] + second[int(rng.integers(len(second))) :]


def lying(rng: np.random.Generator) -> bytes:
    """The header states another width and height."""
    kind, data = _any(rng)
    width, height = (int(rng.choice(SIZES)) for _ in range(2))
    if kind == "PPM":
        return data.replace(b"24 20", f"{width} {height}".encode(), 1)
    if kind == "PNG":
        header = struct.pack(">II", width, height) + data[24:29]
        return data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]
    wide, at = {
        "GIF": ("<HH", 6), "BMP": ("<II", 18), "WEBP": ("<HH", 26), "JPEG": (">HH", data.find(b"\xff\xc0") + 5),
        "TIFF": ("<IxxxxxxxxI", data.find(struct.pack("<HHI", 256, 4, 1)) + 8),
        "JPEG2000": (">II", data.find(b"ihdr") + 4), "AVIF": (">II", data.find(b"ispe") + 8),
    }[kind]  # fmt: skip
    most = 2**16 - 1 if "H" in wide else 2**32 - 1
    field = struct.pack(wide, min(width, most), min(height, most))
    return data[:at] + field + data[at + len(field) :]


def mistaken(rng: np.random.Generator) -> bytes:
    """A whole image; its ending is drawn like that of all others."""
    return _any(rng)[1]


def padded(rng: np.random.Generator) -> bytes:
    return _any(rng)[1] + rng.bytes(int(rng.integers(1, 4000)))


MUTATIONS: Sequence[Callable[[np.random.Generator], bytes]] = (
    cut, flipped, overwritten, spliced, lying, mistaken, padded
)  # fmt: skip


# --- files made for it ------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(kind: bytes, start: bytes) -> bytes:
    """A PNG with a chunk that unpacks to 100 MB of zeros."""
    data = whole("PNG")
    return data[:33] + chunk(kind, start + _zeros()) + data[33:]


@cache
def _zeros() -> bytes:
    return zlib.compress(bytes(10**8), 1)


def png(width: int, height: int, data: bytes = bytes(1000)) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("../../a.jpg", whole("JPEG"))
    else:
        with tarfile.open(fileobj=file, mode="w") as tar:
            member = tarfile.TarInfo("../a.jpg")
            member.size = len(whole("JPEG"))
            tar.addfile(member, io.BytesIO(whole("JPEG")))
    return file.getvalue()


def frames(kind: str) -> bytes:
    pictures = [Image.new("RGB", (9, 7), colour) for colour in ("red", "blue", "green")]
    return encoded(pictures[0], kind, save_all=True, append_images=pictures[1:], duration=50)


def endless_tiff() -> bytes:
    """A TIFF whose directory of pages refers to itself."""
    data = bytearray(whole("TIFF"))
    at = struct.unpack_from("<I", data, 4)[0]
    after = at + 2 + 12 * struct.unpack_from("<H", data, at)[0]
    struct.pack_into("<I", data, after, at)
    return bytes(data)


MADE: Sequence[Callable[[], bytes]] = (
    bytes,
    lambda: b"\0" * 5000,
    lambda: b"\xff" * 5000,
    lambda: b"once upon a time\n" * 40,
    lambda: b"<html><script>alert(1)</script>",
    lambda: b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a 'ha'><!ENTITY b '&a;&a;'>]><svg>&b;</svg>",
    lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/tmp/x) (w) file\n",
    lambda: b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
    lambda: b"#!/bin/sh\nexit 1\n",
    lambda: pickle.dumps(["no", "image"]),
    lambda: gzip.compress(whole("JPEG"), mtime=0),
    lambda: archive("zip"),
    lambda: archive("tar"),
    lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200),
    lambda: b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(200),
    lambda: b"P3 9000 9000 255\n" + b"1 " * 2000,
    lambda: b"P6 1 1 999999999\n" + bytes(9),
    lambda: png(20_000, 20_000),
    lambda: png(10_000, 10_000),
    lambda: png(2**31 - 1, 1),
    lambda: png(1, 2**31 - 1),
    lambda: png(0, 9),
    lambda: bomb(b"zTXt", b"x\0\0"),
    lambda: bomb(b"iCCP", b"x\0\0"),
    endless_tiff,
    lambda: encoded(Image.new("1", (4000, 4000)), "PNG"),
    lambda: encoded(Image.new("L", (30_000, 1)), "PNG"),
    lambda: encoded(Image.new("L", (1, 30_000)), "PNG"),
    *[lambda kind=kind: encoded(Image.new("RGB", (1, 1)), kind) for kind in FORMATS],
    lambda: encoded(Image.new("P", (9, 7), 3), "PNG"),
    lambda: encoded(Image.new("CMYK", (9, 7), 3), "JPEG"),
    lambda: encoded(Image.new("CMYK", (9, 7), 3), "TIFF"),
    lambda: encoded(Image.new("I;16", (9, 7), 999), "PNG"),
    lambda: encoded(Image.new("I;16", (9, 7), 999), "TIFF"),
    lambda: encoded(Image.new("F", (9, 7), 0.5), "TIFF"),
    lambda: encoded(Image.new("LA", (9, 7), (3, 99)), "PNG"),
    *[lambda kind=kind: frames(kind) for kind in ("GIF", "PNG", "WEBP", "TIFF", "AVIF")],
)


# What the header of an .npy file states for type and shape; NumPy evaluates it as Python.
BAD_HEADERS = {
    "minus": ("'<f4'", "-" * 5000 + "1"),
    "brackets": ("'<f4'", "(" * 5000 + ")" * 5000),
    "no type": ("()", "(3, 2)"),
    "half a type": ("('<f4',)", "(3, 2)"),
    "negative": ("'<f4'", "(-3, 2)"),
    "huge": ("'<f4'", "(2**62,)"),
    "endless": ("'<f4'", "(" + "9" * 400 + ",)"),
}


def npy(header: str) -> bytes:
    """An .npy file with one of `BAD_HEADERS`."""
    kind, shape = BAD_HEADERS[header]
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + bytes(24)


# --- what is no file ---------------------------------------------------------------------------------------


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.parent / ".pipe") if not (path.parent / ".pipe").exists() else None
    path.symlink_to(".pipe")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def itself(path: Path) -> None:
    path.symlink_to(path.name)


def nothing(path: Path) -> None:
    path.symlink_to("gone")


def sparse(path: Path) -> None:
    """40 GB of zeros that take no space."""
    with path.open("wb") as file:
        file.write(whole("BMP"))
        file.truncate(40 * 10**9)


def statistics(path: Path) -> None:
    """A file that says it has no bytes, and has some."""
    path.symlink_to("/proc/self/status")


PLACED: Sequence[Callable[[Path], None]] = (
    pipe, link_to_a_pipe, device, terminal, itself, nothing, sparse, statistics
)  # fmt: skip


def write(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Write `count` files into a folder; return their names.

    Of ten, seven are mutations of images, two are made for it, and one is no file at all.
    """
    names = []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        group, turn = i % 10, i // 10
        names.append(f"{NAMES[i % len(NAMES)].format(f'{i:05}')}{rng.choice(ENDINGS)}")
        path = folder / names[-1]
        if group < 7:
            path.write_bytes(MUTATIONS[group](rng))
        elif group < 9:
            path.write_bytes(MADE[(2 * turn + group - 7) % len(MADE)]())
        else:
            PLACED[turn % len(PLACED)](path)
    return names
