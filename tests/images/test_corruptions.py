"""Corruptions: each runs on today's libraries, depends on its arguments alone, and gives the package's own pixels."""

import importlib
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.images import corruptions
from dissensus.images.corruptions import CORRUPTIONS, check, corrupt

RANDOM = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform"),
)
STOOD_IN = ("pkg_resources", "scipy.ndimage.interpolation")


def picture(width=64, height=48, seed=0):
    """Waves of three colours with a little grain: detail to blur, and room above and below to brighten."""
    rows, columns = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(columns / 7 + c) * np.cos(rows / 5 - c) for c in range(3)], axis=-1)
    grain = np.random.default_rng(seed).normal(0, 12, waves.shape)
    return Image.fromarray(np.clip(waves + grain, 0, 255).astype(np.uint8))


def plain(level, width=64, height=48):
    return Image.new("RGB", (width, height), (level,) * 3)


def distance(a, b):
    return np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).mean()


def by_package(image, name, severity):
    """The package's own entry, which draws from numpy's global state."""
    corrupt(image, name, severity, 0)  # the package is loaded and adapted
    result = importlib.import_module("imagecorruptions").corrupt(np.asarray(image), severity, name)
    return Image.fromarray(result)


@pytest.fixture
def global_state():
    """Numpy's global state as it was, for tests that seed it."""
    state = np.random.get_state()
    yield
    np.random.set_state(state)


@pytest.fixture
def fresh(monkeypatch):
    """The package as if it had not been imported in this process."""
    corruptions._functions.cache_clear()
    for name in ("imagecorruptions", "imagecorruptions.corruptions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield monkeypatch
    corruptions._functions.cache_clear()


def test_the_15_are_the_packages_in_its_order():
    corrupt(picture(), "fog", 1, 0)  # the package is loaded
    assert list(CORRUPTIONS) == importlib.import_module("imagecorruptions").get_corruption_names("common")


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_same_size_changed_and_repeatable(name, severity, capsys):
    image = picture()
    before = image.tobytes()
    result = corrupt(image, name, severity, 3)
    assert (result.mode, result.size) == ("RGB", (64, 48))
    assert result.tobytes() != before
    assert image.tobytes() == before
    assert corrupt(image, name, severity, 3).tobytes() == result.tobytes()
    assert (corrupt(image, name, severity, 4).tobytes() != result.tobytes()) == (name in RANDOM)
    assert capsys.readouterr() == ("", "")  # the package prints where its shapes do not fit


@pytest.mark.parametrize("size", [(32, 32), (33, 97), (128, 128), (225, 131), (224, 224), (40, 700)])
def test_sizes(size, capsys):
    for name in CORRUPTIONS:
        assert corrupt(picture(*size), name, 5, 0).size == size
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_severity_five_is_farther_than_one(name):
    image = picture(96, 80)
    near, far = (np.mean([distance(image, corrupt(image, name, s, seed)) for seed in range(3)]) for s in (1, 5))
    assert far > near


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_pixels_are_the_packages_for_the_same_seed(name, global_state):
    """Glass blur too, which is ours: the package's own function, a loop over pairs of draws, is what it meets here."""
    image = picture(48, 40)
    for severity in (1, 2, 3, 4, 5):
        np.random.seed(11)
        expected = by_package(image, name, severity)
        assert corrupt(image, name, severity, 11).tobytes() == expected.tobytes()


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_glass_blur_given_the_same_offsets(severity):
    """The loop as the package writes it, over offsets that no seed gives."""
    pixels = np.asarray(picture(20, 30)).copy()
    _, reach, rounds = corruptions.GLASS[severity - 1]
    count = rounds * (30 - 2 * reach) * (20 - 2 * reach)
    offsets = np.random.default_rng(severity).integers(-reach, reach, size=(count, 2))
    result = corruptions._scatter(pixels, offsets, reach, rounds)
    remaining = iter(offsets)
    for _ in range(rounds):
        for h in range(30 - reach, reach, -1):
            for w in range(20 - reach, reach, -1):
                dx, dy = next(remaining)
                pixels[h, w], pixels[h + dy, w + dx] = pixels[h + dy, w + dx], pixels[h, w]
    assert next(remaining, None) is None
    np.testing.assert_array_equal(result, pixels)


def test_glass_blur_is_many_times_faster(global_state):
    def seconds(function, *arguments):
        start = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - start

    image = picture(96, 96)
    ours = min(seconds(corrupt, image, "glass_blur", 5, 0) for _ in range(3))
    assert seconds(by_package, image, "glass_blur", 5) > 8 * ours


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_global_state_neither_read_nor_changed(name, global_state):
    np.random.seed(1)
    first = corrupt(picture(), name, 5, 2).tobytes()
    after = np.random.random()
    np.random.seed(1)
    assert np.random.random() == after
    assert corrupt(picture(), name, 5, 2).tobytes() == first


def test_the_generator_is_given_back_after_a_failure(monkeypatch):
    def broken(image, severity):
        raise RuntimeError("broken")

    monkeypatch.setitem(corruptions._functions(), "fog", broken)
    with pytest.raises(RuntimeError, match="broken"):
        corrupt(picture(), "fog", 1, 0)
    assert corruptions._RANDOM.get() is np.random


@pytest.mark.parametrize("level", [0, 128, 255])
def test_plain_images(level):
    for name in CORRUPTIONS:
        for severity in (1, 5):
            corrupt(plain(level), name, severity, 0)


@pytest.mark.parametrize("name", ["brightness", "frost", "snow"])
def test_white_stays_white_instead_of_wrapping(name):
    assert np.asarray(corrupt(plain(255), name, 1, 0)).min() == 255


@pytest.mark.parametrize(("value", "expected"), [(300.0, 255), (256, 255), (-3.0, 0), (254.9, 254)])
def test_values_are_clipped_then_cut_off(value, expected, monkeypatch):
    monkeypatch.setitem(corruptions._functions(), "fog", lambda image, severity: np.full((48, 64, 3), value))
    assert set(corrupt(picture(), "fog", 1, 0).tobytes()) == {expected}


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 40), (28, 28), (31, 100), (100, 31)])
def test_small_images(size):
    for name in CORRUPTIONS:
        for severity in (1, 5):
            assert corrupt(picture(*size), name, severity, 0).size == size


def test_small_images_stay_in_place_at_full_strength():
    large = picture()
    box = (7, 9, 7 + 13, 9 + 20)
    small = corrupt(large.crop(box), "brightness", 3, 0)
    assert small.tobytes() == corrupt(large, "brightness", 3, 0).crop(box).tobytes()
    noise = np.concatenate([np.asarray(corrupt(plain(128, 9, 9), "gaussian_noise", 1, s)).ravel() for s in range(20)])
    assert noise.std() == pytest.approx(0.08 * 255, rel=0.05)


def test_hyphens_for_underscores():
    assert corrupt(picture(), "jpeg-compression", 2, 0) == corrupt(picture(), "jpeg_compression", 2, 0)


@pytest.mark.parametrize(("name", "near"), [("gausian_noise", "gaussian_noise"), ("Motion-Blurr", "motion_blur")])
def test_unknown_name_suggests(name, near):
    with pytest.raises(UnknownNameError, match=f"unknown corruption '{name}': did you mean '{near}'"):
        check(name, 1)
    with pytest.raises(UnknownNameError):
        corrupt(picture(), name, 1, 0)


@pytest.mark.parametrize("name", ["gaussian_blur", "spatter", "saturate", "speckle_noise", "np", ""])
def test_what_else_the_package_holds_is_unknown(name):
    with pytest.raises(UnknownNameError):
        check(name, 1)


@pytest.mark.parametrize("severity", [0, 6, -1, True, 2.5, 3.0, "3", None])
def test_severity_is_one_of_1_to_5(severity):
    with pytest.raises(DissensusError, match=rf"\Aseverity must be one of 1 to 5; got {severity!r}\Z"):
        check("fog", severity)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range(seed):
    with pytest.raises(DissensusError, match=f"seed must be one of 0 to 4294967295; got {seed}"):
        corrupt(picture(), "fog", 1, seed)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_other_modes_are_refused(mode):
    with pytest.raises(DataError, match=rf"image must be RGB; got mode '{mode}': use image.convert\('RGB'\)"):
        corrupt(Image.new(mode, (40, 40)), "fog", 1, 0)


def test_no_pixels():
    with pytest.raises(DataError, match="image must have pixels; got 0 x 5"):
        corrupt(Image.new("RGB", (0, 5)), "fog", 1, 0)


@pytest.mark.parametrize("missing", ["imagecorruptions", "cv2"])
def test_missing_package(missing, fresh):
    fresh.setitem(sys.modules, missing, None)
    message = r"\Acorruptions need imagecorruptions: pip install '\.\[corruptions\]'\Z"
    with pytest.raises(DissensusError, match=message):
        corrupt(picture(), "fog", 1, 0)


def test_package_that_does_not_load(fresh):
    fresh.setitem(sys.modules, "cv2", ModuleType("cv2"))
    fresh.setitem(sys.modules, "skimage.filters", ModuleType("skimage.filters"))  # no gaussian in it
    with pytest.raises(DissensusError, match="imagecorruptions does not load: cannot import name 'gaussian'"):
        corrupt(picture(), "fog", 1, 0)


@pytest.mark.parametrize("present", [True, False])
def test_modules_are_as_before_the_import(present, fresh):
    others = {name: ModuleType(name) for name in STOOD_IN}
    for name, module in others.items():
        fresh.setitem(sys.modules, name, module) if present else fresh.delitem(sys.modules, name, raising=False)
    corrupt(picture(), "frost", 1, 0)
    for name, module in others.items():
        assert sys.modules.get(name) is (module if present else None)
    assert not hasattr(np, "float_")


def test_modules_are_as_before_a_failed_import(fresh):
    before = {name: sys.modules.get(name) for name in STOOD_IN}
    fresh.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(DissensusError):
        corrupt(picture(), "fog", 1, 0)
    assert {name: sys.modules.get(name) for name in STOOD_IN} == before


def test_threads_do_not_share_a_generator():
    jobs = [(name, seed) for seed in range(6) for name in RANDOM]
    alone = [corrupt(picture(), name, 3, seed).tobytes() for name, seed in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: corrupt(picture(), job[0], 3, job[1]).tobytes(), jobs))
    assert together == alone


@pytest.mark.slow
def test_spawned_process_gives_the_same():
    count = len(CORRUPTIONS)
    arguments = [picture()] * count, CORRUPTIONS, [4] * count, [9] * count
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = list(pool.map(corrupt, *arguments))
    assert [image.tobytes() for image in there] == [corrupt(*job).tobytes() for job in zip(*arguments, strict=True)]


@pytest.mark.slow
def test_first_use_in_a_fresh_process_is_silent():
    """Imports warn once a process: only a new one shows whether the first use is silent, with errors for warnings."""
    program = """
import sys, warnings
import scipy.ndimage  # brings its deprecated module along
from PIL import Image
from dissensus.images.corruptions import CORRUPTIONS, corrupt
assert not {"imagecorruptions", "cv2", "skimage"} & set(sys.modules), "imported before it is needed"
before = [sys.modules.get(name) for name in ("pkg_resources", "scipy.ndimage.interpolation")]
warnings.simplefilter("error")
for name in CORRUPTIONS:
    corrupt(Image.new("RGB", (40, 33), (200, 100, 50)), name, 5, 0)
assert [sys.modules.get(name) for name in ("pkg_resources", "scipy.ndimage.interpolation")] == before
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
