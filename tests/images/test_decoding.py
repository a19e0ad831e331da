"""Decoding: every kind of file as RGB, and files that are refused."""

import pickle
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dissensus._core.errors import DataError
from dissensus.images import BadImage, decode, to_rgb
from tests.images.samples import BAD, GOOD, RED, WHITE, animated, chunk, encoded, grey16, noise, plain, rotated


@pytest.mark.parametrize("name", GOOD)
def test_every_readable_kind_becomes_rgb(name):
    image = decode(GOOD[name])
    assert image.mode == "RGB"
    assert np.asarray(image).dtype == np.uint8


@pytest.mark.parametrize("name", BAD)
def test_bad_files_have_a_reason(name):
    data, reason = BAD[name]
    with pytest.raises(BadImage) as caught:
        decode(data)
    assert str(caught.value) == reason
    assert not isinstance(caught.value, DataError)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000"])
def test_formats(kind):
    pixel = decode(plain(kind=kind)).getpixel((3, 3))
    assert np.abs(np.array(pixel) - RED).max() < 4


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bits_are_scaled_not_clipped(name):
    assert np.asarray(decode(GOOD[name]))[0, :, 0].tolist() == [0, 128, 255]


def test_sixteen_bit_pgm_and_big_endian():
    pgm = b"P5 3 1 65535\n" + struct.pack(">3H", 0, 32768, 65535)
    assert np.asarray(decode(pgm))[0, :, 0].tolist() == [0, 128, 255]
    big = Image.frombytes("I;16B", (2, 1), struct.pack(">2H", 257, 65535))
    assert np.asarray(to_rgb(big))[0, :, 0].tolist() == [1, 255]


def test_wide_integers():
    low = Image.fromarray(np.array([[0, 200, 255]], np.int32))
    assert np.asarray(to_rgb(low))[0, :, 1].tolist() == [0, 200, 255]
    high = Image.fromarray(np.array([[0, 257, 65535]], np.int32))
    assert np.asarray(to_rgb(high))[0, :, 1].tolist() == [0, 1, 255]
    for value in (-1, 65536):
        with pytest.raises(BadImage, match="outside 0 to 65535"):
            to_rgb(Image.fromarray(np.array([[0, value]], np.int32)))


def test_transparent_grey_in_sixteen_bits_is_white():
    data = grey16([[5, 65535 // 2]])
    at = data.index(b"IDAT") - 4
    data = data[:at] + chunk(b"tRNS", struct.pack(">H", 5)) + data[at:]
    assert np.asarray(decode(data))[0, :, 0].tolist() == [255, 127]


@pytest.mark.parametrize(("orientation", "corner"), [(1, "left"), (3, "right"), (6, "top"), (8, "bottom")])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_turns_the_image(orientation, corner, kind):
    pixels = np.asarray(decode(rotated(orientation, kind)))[..., 0] > 128
    assert pixels.shape == ((16, 32) if orientation in (1, 3) else (32, 16))
    light = {"left": pixels[:, :4], "right": pixels[:, -4:], "top": pixels[:4], "bottom": pixels[-4:]}
    assert [side for side, part in light.items() if part.all()] == [corner]
    assert np.array_equal(np.asarray(to_rgb(decode(rotated(orientation, kind))))[..., 0] > 128, pixels)  # once only


@pytest.mark.parametrize("name", ["rgba.png", "la.png", "hole.png"])
def test_transparency_becomes_white(name):
    image = decode(GOOD[name])
    assert image.getpixel((0, 0)) == WHITE
    assert image.getpixel((1, 1)) == ((0, 0, 0) if name == "la.png" else RED)


@pytest.mark.parametrize("mode", ["La", "RGBa", "PA", "HSV", "YCbCr"])
def test_rare_modes(mode):
    assert to_rgb(Image.new(mode, (3, 3))).mode == "RGB"


def test_half_transparent_is_mixed_with_white():
    assert decode(encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 127)))).getpixel((0, 0)) == (128, 128, 128)


def test_rgb_with_a_transparent_colour():
    assert decode(plain(transparency=RED)).getpixel((0, 0)) == WHITE


def test_animation_gives_its_first_frame():
    assert decode(animated()).getpixel((2, 2)) == RED


def test_cmyk_keeps_its_colour():
    assert np.abs(np.array(decode(GOOD["cmyk.jpg"]).getpixel((2, 2))) - RED).max() < 10


def test_limit_is_pillows(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    with pytest.raises(BadImage, match="8 x 6 pixels"):
        decode(plain())
    with pytest.raises(BadImage, match="32 x 32 pixels"):
        decode(noise(kind="JPEG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode(plain()).size == (8, 6)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError(), "not enough memory"), (IndexError("no\nsuch"), "damaged: no such"), (KeyError(), "damaged: KeyE")],
)
def test_whatever_a_decoder_raises(monkeypatch, error, reason):
    def broken(*args, **options):
        warnings.warn("odd file", stacklevel=1)
        raise error

    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(BadImage, match=reason):
        decode(b"x")


def test_broken_exif_neither_warns_nor_loses_the_image():
    data = rotated()
    at = data.index(b"Exif\0\0") + 6
    for damage in (b"\xff" * 12, b"MM\0\x2a\xff\xff\xff\xff", b"II\x2a\0\x08\0\0\0\xff\xff"):
        assert decode(data[:at] + damage + data[at + len(damage) :]).size == (32, 16)


@given(st.binary(max_size=200), st.sampled_from([*GOOD]), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_damage_is_a_bad_image_or_an_image(noise, name, at):
    data = GOOD[name]
    reason = "none"
    try:
        assert decode(data[:at] + noise + data[at + len(noise) :]).mode == "RGB"
    except BadImage as bad:
        reason = str(bad)
    assert reason
    assert "\n" not in reason


def test_no_pixels():
    with pytest.raises(BadImage, match="no pixels"):
        to_rgb(Image.new("RGB", (0, 3)))


def test_bad_image_survives_pickling():
    assert str(pickle.loads(pickle.dumps(BadImage("truncated")))) == "truncated"
