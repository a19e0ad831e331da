"""What can be done with a set: divided, relabelled, shrunk, fingerprinted, pickled."""

import hashlib
import json
import os
import pickle
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dissensus._core.errors import DataError
from dissensus.images import ImageSet, load_image
from tests.images.samples import RED, Pairs, arrays, listed, packed, plain, refused, tree, write


def test_subset():
    pixels, images = arrays()
    for index in ([4, 1], np.array([4, 1]), torch.tensor([4, -11])):
        some = images.subset(index)
        assert some.names == ("4", "1")
        assert some.labels.tolist() == [1, 1]
        assert np.array_equal(np.asarray(some.subset([1]).image(0)), pixels[1])
    assert len(images.subset(slice(2, None))) == 10
    assert images.subset(images.labels == 2).names == ("2", "5", "8", "11")
    for empty in ([], slice(0, 0), images.labels == 9, 3):
        with refused("at least one image"):
            images.subset(empty)
    with pytest.raises(IndexError):
        images.subset([12])


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    seed=st.integers(0, 9),
    labelled=st.booleans(),
)
@settings(deadline=None)
def test_parts_partition(labels, cuts, seed, labelled):
    pixels = np.zeros((len(labels), 1, 1), np.uint8)
    images = ImageSet.from_arrays(pixels, labels if labelled else None)
    edges = sorted({0.0, 1.0, *cuts})
    names = []
    for low, high in pairwise(edges):
        try:
            part = images.part(low, high, seed)
        except DataError as error:
            assert "widen it" in str(error)  # noqa: PT017
            continue
        assert list(map(int, part.names)) == sorted(map(int, part.names))
        names += part.names
        for label in set(labels) if labelled else ():
            share = (high - low) * labels.count(label)
            assert abs((part.labels == label).sum() - share) <= 1 + 1e-4
    assert sorted(names) == sorted(images.names)


def test_parts():
    _, images = arrays(count=300)
    first, second = images.part(0, 0.1 + 0.2, 0), images.part(0.3, 1, 0)
    assert np.bincount(first.labels).tolist() == [30, 30, 30]
    assert not set(first.names) & set(second.names)
    assert len(first) + len(second) == 300
    assert images.part(0, 0.3, 0).names == first.names
    assert images.part(0, 0.3, 1).names != first.names
    # a class is divided alike, whatever the others and its number
    alone = images.subset(images.labels == 2).relabelled(["2"])
    assert alone.part(0, 0.3, 0).names == first.subset(first.labels == 2).names
    for low, high in ((0.5, 0.5), (-0.1, 1), (0, 1.1), (0.6, 0.4)):
        with refused("within 0..1"):
            images.part(low, high, 0)
    with refused("widen"):
        images.part(0, 0.001, 0)


def test_relabelled(tmp_path):
    images = ImageSet.find(tree(tmp_path), classes=["dog", "bird", "cat"])
    assert images.labels.tolist() == [2, 0, 0]
    assert images.classes == ("dog", "bird", "cat")
    assert images.subset([1]).relabelled(["dog"]).labels.tolist() == [0]  # cat does not occur
    with refused("every class must be one of the 1 given; 1 are not: 'cat': rename .* unlabelled"):
        images.relabelled(["dog"])
    with refused("'a' comes twice"):
        images.relabelled(["a", "a"])
    many = ImageSet.from_arrays(np.zeros((9, 1, 1), np.uint8), range(9))
    with refused(r"'0', '1', '2', '3', '4', \.\.\.: rename"):
        many.relabelled(["x"])
    bare = images.without_labels()
    assert (bare.labels, bare.classes) == (None, ())
    assert ImageSet.find(tmp_path, unlabelled=True, classes=["x"]).classes == ("x",)


def test_shrunk():
    pixels = np.zeros((1, 40, 80, 3), np.uint8)
    pixels[:, :, ::2] = 255
    images = ImageSet.from_arrays(pixels)
    small = images.shrunk(10)
    assert small.image(0).size == (20, 10)
    assert np.ptp(np.asarray(small.image(0))[2:-2, 2:-2]) < 40  # fine stripes turn grey, not into coarse ones
    assert images.shrunk(40).image(0).size == images.shrunk(100).image(0).size == (80, 40)
    assert small.shrunk(20).image(0).size == (20, 10)
    assert small.subset([0]).image(0).size == (20, 10)
    assert len({images.fingerprint, small.fingerprint, images.shrunk(40).fingerprint}) == 3
    assert "shrunk to 10" in repr(small)
    with refused("at least one pixel"):
        images.shrunk(0)


def test_fingerprint(tmp_path):
    root = tree(tmp_path / "a")
    first = ImageSet.find(root)
    assert len(first.fingerprint) == 64
    shutil.copytree(root, tmp_path / "b")
    os.utime(tmp_path / "b" / "dog" / "b.JPG", (0, 0))
    again = ImageSet.find(tmp_path / "b")
    assert again.fingerprint == first.fingerprint
    different = [
        first.without_labels(),
        first.subset([0, 1]),
        first.subset([1, 0, 2]),
        first.relabelled(["dog", "cat"]),
    ]
    with open(tmp_path / "b" / "dog" / "b.JPG", "ab") as file:
        file.write(b"\0")
    different.append(ImageSet.find(tmp_path / "b"))
    shutil.copytree(root, tmp_path / "c")
    (tmp_path / "c" / "dog" / "b.JPG").rename(tmp_path / "c" / "dog" / "c.JPG")
    different.append(ImageSet.find(tmp_path / "c"))
    (tmp_path / "c" / "dog").rename(tmp_path / "c" / "wolf")
    different.append(ImageSet.find(tmp_path / "c"))
    pixels, images = arrays()
    different += [images, ImageSet.from_arrays(255 - pixels, images.labels)]
    different.append(ImageSet.from_arrays(pixels, images.labels, groups=images.labels))
    assert len({images.fingerprint for images in [first, *different]}) == len(different) + 1


def test_list_keeps_its_fingerprint_when_copied(tmp_path):
    prints = set()
    for name in ("a", "b"):
        images = listed(tmp_path / name, f"a b.png\n{tmp_path / name}/sub/c 7.png\n")
        prints.add(images.fingerprint)
    assert len(prints) == 1


def test_tar_keeps_its_fingerprint_when_copied(thousand, tmp_path):
    copy = shutil.copy(thousand, tmp_path / "copy.tar")
    assert ImageSet.find(copy).fingerprint == ImageSet.find(thousand).fingerprint


def test_pickling(thousand, tmp_path):
    sets = [ImageSet.find(thousand), ImageSet.find(tree(tmp_path)), arrays()[1]]
    sets.append(ImageSet.from_dataset(Pairs([(plain(), 0)])))
    for images in sets:
        images.image(0)
        again = pickle.loads(pickle.dumps(images.shrunk(3)))
        assert again.names == images.names
        assert again.fingerprint == images.shrunk(3).fingerprint
        assert min(again.image(0).size) == 3


def test_undecodable_file_names(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(plain())
    except OSError:
        pytest.skip("the file system takes only UTF-8")
    images = ImageSet.find(tmp_path)
    assert images.image(0).getpixel((0, 0)) == RED
    assert len(images.fingerprint) == 64
    assert json.dumps(list(images.names))


def test_sets_are_joined_by_name(tmp_path):
    for place, names in (("a", ("cat", "dog")), ("b", ("dog", "eel"))):
        for name in names:
            (tmp_path / place / name).mkdir(parents=True)
            Image.new("RGB", (3, 2), {"a": "red", "b": "blue"}[place]).save(tmp_path / place / name / "0.png")
    first, second = ImageSet.find(tmp_path / "a"), ImageSet.find(tmp_path / "b")
    both = ImageSet.joined({"x": first, "y": second})
    assert both.names == ("x/cat/0.png", "x/dog/0.png", "y/dog/0.png", "y/eel/0.png")
    assert (both.classes, both.labels.tolist()) == (("cat", "dog", "eel"), [0, 1, 1, 2])
    assert (both.group_names, both.groups.tolist()) == (("x", "y"), [0, 0, 1, 1])
    twin = pickle.loads(pickle.dumps(both.subset([3, 0])))
    assert [twin.image(i).getpixel((0, 0)) for i in range(2)] == [(0, 0, 255), (255, 0, 0)]
    grey = ImageSet.from_arrays(np.full((2, 4, 4), 7, np.uint8))
    mixed = ImageSet.joined({"x": first, "z": grey})
    assert mixed.labels is None
    assert mixed.image(3).getpixel((0, 0)) == (7, 7, 7)
    other = ImageSet.joined({"x": first, "z": ImageSet.from_arrays(np.full((2, 4, 4), 8, np.uint8))})
    assert len({s.fingerprint for s in (both, mixed, other)}) == 3
    with refused("names without a slash"):
        ImageSet.joined({"x/y": first})
    with refused("shrunk alike or not at all"):
        ImageSet.joined({"x": first, "y": second.shrunk(1)})


def test_digests(tmp_path):
    data = plain()
    root = write(tmp_path, {"a.png": data, "b.png": plain((0, 0, 0))})
    images = ImageSet.find(root)
    expected = hashlib.sha256(data).hexdigest()[:32]
    assert images.load(0)[1] == load_image(str(root / "a.png"))[1] == expected
    assert images.load(1)[1] != expected
    assert images.shrunk(2).load(0)[1] == expected  # that of the file
    tar = ImageSet.from_tar(packed(tmp_path / "x.tar", {"1.png": data}))
    encoded = ImageSet.from_dataset(Pairs([(data, 0)]))
    assert tar.load(0)[1] == encoded.load(0)[1] == expected
    # in memory: of mode, size and pixels, however the image is given
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    wanted = hashlib.sha256(b"RGB 5 4 " + pixels.tobytes()).hexdigest()[:32]
    assert ImageSet.from_arrays(pixels[None]).load(0)[1] == wanted
    assert ImageSet.from_dataset(Pairs([(Image.fromarray(pixels), 0)])).load(0)[1] == wanted
    turned = ImageSet.from_arrays(pixels.reshape(1, 5, 4, 3))
    assert turned.load(0)[1] != wanted
    assert ImageSet.joined({"x": images, "y": turned}).load(0)[1] == expected
