"""Stand-ins: views depend on their arguments alone, keep the size, and do to the pixels what their names say."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.images import standins
from dissensus.images.corruptions import CORRUPTIONS
from dissensus.images.standins import STAND_INS, VIEWS, apply, register

SIZES = [(1, 1), (1, 9), (2, 1), (3, 7), (8, 8), (64, 64), (500, 333)]


def picture(width=64, height=48, seed=0):
    """Noise within 30..220: no two pixels are likely to be equal, and there is room to brighten and darken."""
    return Image.fromarray(np.random.default_rng(seed).integers(30, 220, (height, width, 3), dtype=np.uint8))


def photo(side):
    """Smooth waves, the same at any resolution."""
    y, x = np.mgrid[:side, :side] / side
    waves = np.stack([128 + 80 * np.sin(40 * x + c) * np.cos(30 * y - c) for c in range(3)], axis=-1)
    return Image.fromarray(waves.astype(np.uint8))


def values(image):
    return np.asarray(image, dtype=float)


def colours(image):
    """The pixels as a sorted list of numbers, one per pixel."""
    return np.sort(np.asarray(image).reshape(-1, 3) @ np.array([1, 256, 65536])).tolist()


@pytest.fixture
def own():
    """The registry as it was before the test."""
    before = dict(VIEWS)
    yield
    VIEWS.clear()
    VIEWS.update(before)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STAND_INS)
def test_size_and_mode_are_kept_and_the_image_is_left_alone(name, size):
    image = picture(*size)
    before = image.tobytes()
    for seed in range(12):  # grids of 2 to 8
        view = apply(image, name, seed)
        assert (view.mode, view.size) == ("RGB", size)
    assert image.tobytes() == before


@pytest.mark.parametrize("name", STAND_INS)
def test_equal_arguments_give_equal_pixels_and_other_seeds_do_not(name):
    image = picture(96, 80)
    state = np.random.get_state()[1].copy()
    views = [apply(image, name, seed).tobytes() for seed in (*range(9), 2**32 - 1)]
    assert views == [apply(picture(96, 80), name, seed).tobytes() for seed in (*range(9), 2**32 - 1)]
    assert len(set(views)) == 10 or (name == "recolour" and len(set(views)) > 5)  # it has 18 outcomes
    assert image.tobytes() not in views
    assert (np.random.get_state()[1] == state).all(), "numpy's global generator is left alone"


def test_stand_ins_are_registered_and_none_is_used_in_evaluation():
    assert tuple(VIEWS)[: len(STAND_INS)] == STAND_INS  # examples add others
    assert not set(STAND_INS) & set(CORRUPTIONS)
    assert all(VIEWS[name].__doc__ for name in STAND_INS)


# --- jigsaws ----------------------------------------------------------------------------------------------


def test_a_jigsaw_has_the_pixels_of_an_image_that_all_grids_divide():
    image = picture(840, 840)  # the least common multiple of 2..8
    for seed in range(4):
        assert colours(apply(image, "jigsaw", seed)) == colours(image)


@pytest.mark.parametrize("size", [(840, 840), (1, 2), (2, 2), (3, 7), (50, 33), (500, 333)])
def test_a_jigsaw_is_never_the_image(size):
    image = picture(*size)
    assert all(apply(image, "jigsaw", seed).tobytes() != image.tobytes() for seed in range(40))


def test_a_single_pixel_stays():
    assert apply(picture(1, 1), "jigsaw", 3).tobytes() == picture(1, 1).tobytes()


def test_a_jigsaw_is_the_patches_in_another_order():
    """By hand: with the cells of an image that is the number of its own cell, every grid is a permutation."""
    grids = set()
    for seed in range(60):
        grid = int(np.random.default_rng(seed).integers(2, 9))
        cell = 5
        numbers = np.kron(np.arange(grid * grid).reshape(grid, grid), np.ones((cell, cell), int)).astype(np.uint8)
        image = Image.fromarray(
            np.stack([numbers, *np.mgrid[: grid * cell, : grid * cell] % cell], -1).astype(np.uint8)
        )
        result = np.asarray(apply(image, "jigsaw", seed)).reshape(grid, cell, grid, cell, 3).swapaxes(1, 2)
        assert (result[..., 1:] == np.asarray(image).reshape(grid, cell, grid, cell, 3).swapaxes(1, 2)[..., 1:]).all()
        moved = result[:, :, 0, 0, 0].ravel()
        assert (result[..., 0] == moved.reshape(grid, grid, 1, 1)).all(), "patches are whole"
        assert sorted(moved) == list(range(grid * grid))
        assert (moved != np.arange(grid * grid)).all(), "every patch moves"
        grids.add(grid)
    assert grids == {2, 3, 4, 5, 6, 7, 8}


def test_a_jigsaw_of_any_size_copies_pixels_and_resamples_none():
    image = picture(47, 31)
    known = set(colours(image))
    for seed in range(12):
        view = colours(apply(image, "jigsaw", seed))
        assert set(view) <= known
        assert len(set(view)) > 0.6 * len(known)  # a row or column of a patch is lost, or there twice


# --- corruptions ------------------------------------------------------------------------------------------


def test_speckle_is_multiplicative_normal_and_independent():
    bright, dark = (values(apply(Image.new("RGB", (64, 640), (level,) * 3), "speckle", 1)) for level in (120, 60))
    factors = bright / 120 - 1
    assert abs(factors.mean()) < 0.01
    assert factors.std() == pytest.approx(standins.SPECKLE, rel=0.03)
    assert abs(np.corrcoef(factors.reshape(-1, 3).T) - np.eye(3)).max() < 0.03  # channels
    assert abs(np.corrcoef(factors[1:].ravel(), factors[:-1].ravel())[0, 1]) < 0.03  # grains
    assert abs(bright - 2 * dark).max() <= 2  # rounded each
    assert np.asarray(apply(Image.new("RGB", (9, 9)), "speckle", 1)).max() == 0


def test_box_blur_is_the_mean_over_a_square():
    side, seed = 200, 4
    width = np.random.default_rng(seed).uniform(*standins.BLUR) * side
    radius = (width - 1) / 2
    image = np.zeros((side, side, 3), np.uint8)
    image[100, 100] = 255
    whole, part = int(radius), radius - int(radius)
    line = np.array([part, *[1] * (2 * whole + 1), part]) / width
    expected = np.zeros((side, side))
    at = slice(100 - whole - 1, 100 + whole + 2)
    expected[at, at] = 255 * np.outer(line, line)
    blurred = values(apply(Image.fromarray(image), "box_blur", seed))
    assert abs(blurred - expected[..., None]).max() <= 1.5  # Pillow rounds after each of two passes
    assert blurred.sum() > 0


def test_recolour_keeps_the_channels_but_for_order_and_one_inversion():
    image = picture(8, 6)
    original = [channel.tobytes() for channel in image.split()]
    inverted = [bytes(255 - v for v in channel) for channel in original]
    orders = set()
    for seed in range(200):
        channels = [channel.tobytes() for channel in apply(image, "recolour", seed).split()]
        assert sum(channel in inverted for channel in channels) == 1
        order = tuple((original + inverted).index(channel) for channel in channels)
        assert sorted(i % 3 for i in order) == [0, 1, 2]
        orders.add(order)
    assert len(orders) == 18  # six orders, three channels to invert


@pytest.mark.parametrize("name", ["speckle", "box_blur"])
def test_small_and_large_images_suffer_alike(name):
    def damage(side):
        views = [apply(photo(side), name, seed) for seed in range(4)]
        small = [values(view.resize((64, 64), Image.Resampling.BOX)) for view in views]
        return np.mean([abs(view - values(photo(side).resize((64, 64), Image.Resampling.BOX))) for view in small])

    reference = damage(512)
    assert reference > 4
    for side in (64, 128, 224, 500):
        assert damage(side) == pytest.approx(reference, rel=0.25)


@pytest.mark.parametrize("side", [2, 8, 28, 32])
@pytest.mark.parametrize("name", STAND_INS)
def test_small_images_are_not_spared(name, side):
    image = picture(side, side)
    assert all(abs(values(apply(image, name, seed)) - values(image)).mean() > 5 for seed in range(10))


# --- your own, and mistakes -------------------------------------------------------------------------------


def test_a_view_of_your_own(own):
    @register
    def upside_down(image, rng):
        """The image, turned."""
        return image.rotate(180) if rng.random() < 2 else image

    assert apply(picture(), "upside_down", 0) == picture().rotate(180)
    with pytest.raises(DissensusError, match="every view needs its own name; 'upside_down' is taken"):
        register(upside_down)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (Image.new("L", (64, 48)), "L of 64 x 48"),
        (Image.new("RGB", (48, 64)), "RGB of 48 x 64"),
        (np.zeros((48, 64, 3), np.uint8), "ndarray"),
        (None, "NoneType"),
    ],
)
def test_a_view_of_your_own_that_returns_something_else(result, shown, own):
    @register
    def odd(image, rng):
        return result

    rule = "view 'odd' must return an RGB image of the same size, 64 x 48"
    with pytest.raises(DissensusError, match=rf"\A{rule}; got {shown}: convert and resize it\Z"):
        apply(picture(), "odd", 0)


@pytest.mark.parametrize(("name", "near"), [("jigsaws", "jigsaw"), ("box-blur", "box_blur"), ("recolor", "recolour")])
def test_unknown_name_suggests(name, near):
    with pytest.raises(UnknownNameError, match=f"unknown view '{name}': did you mean '{near}'"):
        apply(picture(), name, 0)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16"])
def test_other_modes_are_refused(mode):
    with pytest.raises(DataError, match=rf"image must be RGB; got mode '{mode}': use image.convert\('RGB'\)"):
        apply(Image.new(mode, (40, 40)), "jigsaw", 0)


def test_no_pixels():
    with pytest.raises(DataError, match="image must have pixels; got 0 x 5"):
        apply(Image.new("RGB", (0, 5)), "jigsaw", 0)


def test_negative_seed():
    with pytest.raises(DissensusError, match="seed must be at least 0; got -1"):
        apply(picture(), "jigsaw", -1)


def test_the_extra_for_corruptions_is_not_needed():
    program = """
import sys
sys.modules["imagecorruptions"] = None
from PIL import Image
from dissensus.images.standins import STAND_INS, apply
print([apply(Image.new("RGB", (5, 4)), name, 0).size for name in STAND_INS])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(5, 4), (5, 4), (5, 4), (5, 4)]\n", "")
