"""Images of every kind, good and bad, and small collections of them."""

import io
import struct
import tarfile
import zlib

import numpy as np
import pytest
from PIL import Image

from dissensus._core.errors import DataError
from dissensus.images import ImageSet

RED, WHITE = (255, 0, 0), (255, 255, 255)


def refused(match):
    """DataError whose one line matches."""
    return pytest.raises(DataError, match=rf"\A[^\n]*{match}[^\n]*\Z")


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(colour=RED, size=(8, 6), kind="PNG", **options):
    return encoded(Image.new("RGB", size, colour), kind, **options)


def noise(size=(32, 32), kind="PNG", seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), kind)


def grey16(values, kind="PNG", dtype=np.uint16):
    return encoded(Image.fromarray(np.array(values, dtype)), kind)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def huge(width, height):
    """A PNG of a few hundred bytes that claims to be large."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def animated():
    frames = [Image.new("P", (5, 5), i) for i in (0, 1)]
    for frame in frames:
        frame.putpalette([255, 0, 0, 0, 0, 255])
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)


def rotated(orientation=6, kind="JPEG"):
    """White on the left half, black on the right, tagged as lying on its side."""
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(pixels).convert("RGB"), kind, exif=exif)


def palette_with_hole():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((0, 0), 0)
    return encoded(image, transparency=0)


def clear_corner(mode):
    image = Image.new(mode, (4, 4), {"RGBA": (255, 0, 0, 255), "LA": (0, 255)}[mode])
    image.putpixel((0, 0), {"RGBA": (0, 0, 255, 0), "LA": (0, 0)}[mode])
    return encoded(image)


GOOD = {
    "cmyk.jpg": encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"),
    "deep.png": grey16([[0, 32768, 65535]]),
    "deep.tif": grey16([[0, 32768, 65535]], "TIFF"),
    "animated.gif": animated(),
    "rgba.png": clear_corner("RGBA"),
    "la.png": clear_corner("LA"),
    "hole.png": palette_with_hole(),
    "rotated.jpg": rotated(),
    "one bit.png": encoded(Image.new("1", (4, 4), 1)),
    "grey.PNG": encoded(Image.new("L", (4, 4), 7)),
    "日本語.gif": encoded(Image.new("P", (4, 4), 1), "GIF"),
}
BAD = {
    "cut.jpg": (noise(kind="JPEG")[:900], "truncated"),
    "cut.png": (noise()[:2000], "truncated"),
    "zero.jpg": (b"", "empty file"),
    "text.jpg": (b"once upon a time", "not an image"),
    "large.png": (huge(20000, 20000), "20000 x 20000 pixels, more than the limit of 89 million"),
    "largish.png": (huge(10000, 10000), "10000 x 10000 pixels, more than the limit of 89 million"),
    "paper.png": (b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n", "not an image"),
    "float.tif": (encoded(Image.new("F", (4, 4), 0.5), "TIFF"), "floating-point pixels"),
    "header.png": (plain()[:20], "truncated"),
}


def write(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(plain(data) if isinstance(data, tuple) else data)
    return root


def tree(root):
    """Two classes: black cats, red dogs."""
    return write(
        root,
        {
            "dog/b.JPG": plain(kind="JPEG"),
            "dog/deep/a.png": RED,
            "cat/δύο 二.png": (0, 0, 0),
            "cat/notes.txt": b"",
            ".hidden/x.png": RED,
            "cat/._x.png": b"",
        },
    )


def listed(folder, text, name="list.txt", **options):
    write(folder, {"a b.png": RED, "sub/c 7.png": (0, 0, 0)})
    (folder / name).write_text(text, encoding="utf-8")
    return ImageSet.find(folder / name, **options)


def packed(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def arrays(count=12, classes=3, **options):
    pixels = np.random.default_rng(0).integers(0, 256, (count, 5, 4, 3), dtype=np.uint8)
    return pixels, ImageSet.from_arrays(pixels, np.arange(count) % classes, **options)


class Pairs:
    """Items (image, label), as torchvision has them; reading counts."""

    def __init__(self, items, **attributes):
        self.items, self.read = items, 0
        self.__dict__.update(attributes)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        self.read += 1
        if isinstance(self.items[i], Exception):
            raise self.items[i]
        return self.items[i]
