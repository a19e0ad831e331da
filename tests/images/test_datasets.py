"""Arrays and data sets: where labels come from, and what items may be."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from dissensus.images import BadImage, ImageSet
from tests.images.samples import BAD, RED, Pairs, arrays, plain, refused, tree


def test_arrays():
    pixels, images = arrays()
    assert np.array_equal(np.asarray(images.image(3)), pixels[3])
    assert images.classes == ("0", "1", "2")
    grey = ImageSet.from_arrays(
        pixels[..., 0], groups=torch.arange(12) % 2, group_names=["a", "b"], names=[*"abcdefghijkl"]
    )
    assert np.array_equal(np.asarray(grey.image(-1))[..., 1], pixels[-1, ..., 0])
    assert grey.names[1] == "b"
    assert grey.group_names == ("a", "b")


def test_bad_arrays():
    for bad in (np.zeros((2, 3, 3)), np.zeros((2, 3), np.uint8), np.zeros((2, 3, 5, 5), np.uint8)):
        with refused("uint8"):
            ImageSet.from_arrays(bad)
    with refused("at least one"):
        ImageSet.from_arrays(np.zeros((0, 3, 3), np.uint8))
    two = np.zeros((2, 3, 3), np.uint8)
    with refused("labels must lie in 0..1"):
        ImageSet.from_arrays(two, [0, 2], classes=["a", "b"])
    with refused("one name"):
        ImageSet.from_arrays(two, names=["a"])


@pytest.mark.parametrize("name", ["targets", "labels", "_labels"])
def test_stored_labels_need_no_reading(name):
    items = [(Image.new("L", (3, 3), i), i % 2) for i in range(4)]
    data = Pairs(items, classes=["a", ("b", "bee")], **{name: torch.tensor([0, 1, 0, 1])})
    images = ImageSet.from_dataset(data)
    assert data.read == 0
    assert images.classes == ("a", "b, bee")
    assert images.labels.tolist() == [0, 1, 0, 1]
    assert images.image(3).getpixel((0, 0)) == (3, 3, 3)
    part = ImageSet.from_dataset(torch.utils.data.Subset(data, [3, 0]))
    assert part.labels.tolist() == [1, 0]
    assert part.classes == ("a", "b, bee")
    turned = Pairs(items, targets=[0, 1, 0, 1], target_transform=lambda y: 1 - y)
    assert ImageSet.from_dataset(turned).labels.tolist() == [1, 0, 1, 0]


def test_labels_are_read_if_not_stored():
    data = Pairs([(plain(), "dog"), (np.zeros((3, 3), np.uint8), "cat")])
    images = ImageSet.from_dataset(data)
    assert data.read == 2
    assert images.classes == ("cat", "dog")
    assert images.image(0).getpixel((0, 0)) == RED
    assert images.image(1).size == (3, 3)
    given = ImageSet.from_dataset(data, classes=["dog", "bird", "cat"])
    assert given.labels.tolist() == [0, 2]
    with refused("among the 1 classes given; row 1 has 'cat'"):
        ImageSet.from_dataset(data, classes=["dog"])
    with refused("classes must have different names; got 2 names for 3"):
        ImageSet.from_dataset(data, classes=["dog", "cat", "dog"])
    bare = Pairs([Image.new("RGB", (2, 2))] * 5)
    assert ImageSet.from_dataset(bare).labels is None
    assert bare.read == 1


def test_items_that_fail():
    items = [(plain(), 0), OSError("image file is truncated"), (torch.zeros(3, 2, 2), 1), (np.zeros((2, 2)), 1)]
    items += [({"bytes": None, "path": "/nowhere.png"}, 1), ({"bytes": plain()}, 1), (np.zeros((2, 2, 7), "u1"), 0)]
    images = ImageSet.from_dataset(Pairs(items, targets=[0] * 7))
    for i, reason in {1: "truncated", 2: "Tensor", 3: "float64", 4: "no such file", 6: "damaged"}.items():
        with pytest.raises(BadImage, match=reason):
            images.image(i)
    assert images.image(5).getpixel((0, 0)) == RED
    for order in (items[:2], items[1::-1]):
        with refused("labels are read with the images; item . fails.*truncated"):
            ImageSet.from_dataset(Pairs(order))


def test_unusable_data_sets():
    with refused("map-style"):
        ImageSet.from_dataset(iter([1]))
    with refused("dict of train, test"):
        ImageSet.from_dataset({"train": 1, "test": 2})
    with refused("a label is an integer or a name; got list"):
        ImageSet.from_dataset(Pairs([1, 2], targets=[[0, 1], [1, 0]]))
    with refused("1 of 2 have none"):
        ImageSet.from_dataset(Pairs([1, 2], targets=[None, 3]))


def test_hugging_face():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"picture": [{"bytes": plain(), "path": None}, {"bytes": BAD["cut.png"][0], "path": None}], "kind": [1, 0]}
    data = datasets.Dataset.from_dict(rows, features=features)
    images = ImageSet.from_dataset(data, image="picture", label="kind")
    assert images.labels.tolist() == [1, 0]
    assert images.classes == ("cat", "dog")
    assert images.image(0).getpixel((0, 0)) == RED
    with pytest.raises(BadImage, match="truncated"):
        images.image(1)
    assert ImageSet.from_dataset(data, image="picture").labels is None
    assert images.fingerprint != ImageSet.from_dataset(data.select([0, 1]), image="picture", label="kind").fingerprint
    undecoded = data.cast_column("picture", datasets.Image(decode=False))
    assert ImageSet.from_dataset(undecoded, image="picture").image(0).getpixel((0, 0)) == RED
    with refused("no column 'image': choose image among picture, kind"):
        ImageSet.from_dataset(data)


def test_torchvision(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    images = ImageSet.from_dataset(datasets.ImageFolder(str(tree(tmp_path))))
    assert images.classes == (".hidden", "cat", "dog")
    assert images.image(len(images) - 1).getpixel((0, 0)) == RED
