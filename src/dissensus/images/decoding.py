"""From the bytes of one file to 8-bit RGB.

Whatever is wrong with one image is a BadImage, which the caller counts and lists; the others are still read.
"""

from __future__ import annotations

import hashlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus._core.places import as_text, storage_problem
from dissensus.images._files import read_bytes

SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif",
    ".heic", ".heif",
)  # fmt: skip
"""What the names of image files end with."""

# those of the suffixes; Pillow reads more, and for one of them, EPS, starts another program
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")
# Without a handler, what its decoders log of a damaged file appears on stderr.
logging.getLogger("PIL").addHandler(logging.NullHandler())
SCAN, SCANS = b"\xff\xda", 200  # the marker of a scan in a JPEG file, and the most; a progressive one has about 10


class BadImage(Exception):  # noqa: N818 - not a failure of the program but a property of one file
    """One image that cannot be used; its text is the reason in a few plain words."""


def read_image(path: str) -> Image.Image:
    """Return the image in a file or at a URL, as `to_rgb` converts it.

    Raises:
        BadImage: If it cannot be read or decoded.
        DissensusError: If the URL is of an unknown protocol, or its package is not installed.
    """
    return load_image(path)[0]


def load_image(path: str) -> tuple[Image.Image, str]:
    """Return the image in a file or at a URL, as `read_image`, and the `digest` of the file."""
    with file_errors():
        data = read_bytes(as_text(path))
    return decode(data), digest(data)


def digest(data: bytes) -> str:
    """Return the first 32 hex digits of the sha256 of an encoded image."""
    return hashlib.sha256(data).hexdigest()[:32]


def pixel_digest(image: Image.Image) -> str:
    """Return what `digest` is to files for an image in memory: that of its mode, size and pixels."""
    return digest(f"{image.mode} {image.width} {image.height} ".encode() + image.tobytes())


def decode(data: bytes) -> Image.Image:
    """Return the first image in the bytes of a file, as `to_rgb` converts it.

    Raises:
        BadImage: If the data is empty, damaged, of an unknown format or larger than `PIL.Image.MAX_IMAGE_PIXELS`.
    """
    with decoding_errors():
        return _convert(_open(data, Image.MAX_IMAGE_PIXELS))


def size_of(data: bytes, most: int | None = None) -> tuple[int, int]:
    """Return width and height of the image in the bytes of a file, from its header alone.

    Raises:
        BadImage: As `decode`, as far as the header shows it; or if it has more than `most` pixels.
    """
    with decoding_errors():
        return _open(data, most or Image.MAX_IMAGE_PIXELS).size


def _open(data: bytes, most: int | None) -> Image.Image:
    if not data:
        raise BadImage("empty file")
    try:
        formats = _heif() if _is_heic(data) else FORMATS
        image: Image.Image = Image.open(io.BytesIO(data), formats=formats)
    except Image.DecompressionBombError as error:  # beyond twice Pillow's limit; up to there it only warns
        raise BadImage(_too_large(_dimensions(data), most)) from error
    if most is not None and image.width * image.height > most:
        raise BadImage(_too_large(f"{image.width} x {image.height}", most))
    # A pass over all pixels for each of them, in a few bytes. Within compressed data the marker cannot occur.
    if image.format in ("JPEG", "MPO") and data.count(SCAN) > SCANS:
        raise BadImage(f"more than {SCANS} scans")
    return image


def _is_heic(data: bytes) -> bool:
    """Whether a file is HEIF in any codec but AV1, by the brands in its first box."""
    brands = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
    general = brands[:4] in (b"mif1", b"msf1") and b"avif" not in brands
    return data[4:8] == b"ftyp" and (general or brands[:4] in HEIC)


@cache
def _heif() -> tuple[str, ...]:
    """Add HEIF to the formats that Pillow reads.

    Raises:
        BadImage: If pillow-heif is not installed.
    """
    if extras.missing("heif"):
        raise BadImage(f"HEIC needs {extras.install('heif')}")
    import pillow_heif

    pillow_heif.register_heif_opener()
    return ("HEIF",)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any 8- or 16-bit image to 8-bit RGB, upright as its EXIF says, on white where it is transparent.

    16-bit greyscale is scaled, not clipped.

    Raises:
        BadImage: If the pixels are damaged, or floating-point numbers, whose range is unknown.
    """
    with decoding_errors():
        return _convert(image)


def shrink(image: Image.Image, pixels: int | None) -> Image.Image:
    """Resize an image so that the shorter side has at most `pixels`; None: leave it as it is."""
    shorter = min(image.size)
    if pixels is None or shorter <= pixels:
        return image
    width, height = (round(side * pixels / shorter) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)  # Pillow widens the kernel: no aliasing


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn errors of the file system, or of storage behind a URL, into a BadImage."""
    try:
        yield
    except DissensusError:
        raise
    except OSError as error:
        raise BadImage(error.strerror.lower() if error.strerror else storage_problem(error)) from error
    except ValueError as error:  # a path with a null byte
        raise BadImage(str(error)) from error
    except Exception as error:  # those of cloud libraries have no class in common
        if (problem := storage_problem(error)) is None:
            raise
        raise BadImage(problem) from error


@contextmanager
def decoding_errors() -> Iterator[None]:
    """Silence the warnings of a decoder and turn its errors into a BadImage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata; what matters of them is an error here
        try:
            yield
        except BadImage:
            raise
        # any: on arbitrary bytes decoders raise whatever their code runs into (struct.error, IndexError, SyntaxError,
        # MemoryError of a made-up size, ...), and all of it only means that this file is bad
        except Exception as error:
            raise BadImage(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if any(sign in text.lower() for sign in ("truncated", "eof", "end of file", "not enough image data")):
        return "truncated"
    return f"damaged: {text[:100] or type(error).__name__}"


def _too_large(size: str, most: int | None) -> str:
    return f"{size} pixels, more than the limit of {(most or 0) / 1e6:.2g} million"


def _dimensions(data: bytes) -> str:
    """Read the header of a file that Image.open refuses for its size."""
    for factory, accept in (Image.OPEN[name] for name in FORMATS if name in Image.OPEN):
        if accept is not None and accept(data[:16]) is True:
            width, height = factory(io.BytesIO(data), "").size
            return f"{width} x {height}"
    return "too many"


def _convert(image: Image.Image) -> Image.Image:
    if 0 in image.size:
        raise BadImage("no pixels")
    image.load()
    with suppress(Exception):  # unreadable EXIF may raise anything; the pixels are used as they are
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise BadImage("floating-point pixels")
    if image.mode.startswith("I"):
        return _from_integers(image)
    if image.has_transparency_data:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def _from_integers(image: Image.Image) -> Image.Image:
    grey = np.array(image, np.int32)
    low, high = grey.min(), grey.max()
    if low < 0 or high > 65535:
        raise BadImage(f"integer pixels from {low} to {high}, outside 0 to 65535")
    # mode I is 32 bits wide whatever the file was; the others are 16-bit by name
    eight = (grey if image.mode == "I" and high <= 255 else (grey + 128) // 257).astype(np.uint8)
    if isinstance(clear := image.info.get("transparency"), int):
        eight[grey == clear] = 255
    return Image.fromarray(eight).convert("RGB")
