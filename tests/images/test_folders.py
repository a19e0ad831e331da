"""Folders of images: listing, labels, links, permissions, and errors."""

import os

import numpy as np
import pytest

from dissensus.images import BadImage, ImageSet
from tests.images.samples import RED, refused, tree, write

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything, and Windows has no such rights"
)


def test_class_folders(tmp_path):
    images = ImageSet.find(tree(tmp_path / "my photos"))
    assert images.names == ("cat/δύο 二.png", "dog/b.JPG", "dog/deep/a.png")
    assert images.classes == ("cat", "dog")
    assert images.labels.dtype == np.int64
    assert images.labels.tolist() == [0, 1, 1]
    assert images.groups is None
    assert len(images) == 3
    assert images.image(0).getpixel((0, 0)) == (0, 0, 0)
    assert images.image(2).getpixel((0, 0)) == RED
    assert repr(images) == "ImageSet(3 images, 2 classes, 'cat/δύο 二.png'...)"


def test_flat_folder_is_unlabelled(tmp_path):
    write(tmp_path, {"b.png": RED, "a.png": RED})
    (tmp_path / "empty").mkdir()
    images = ImageSet.find(str(tmp_path))
    assert images.names == ("a.png", "b.png")
    assert images.labels is None
    assert images.classes == ()


def test_mixed_folder_is_refused_unless_unlabelled(tmp_path):
    write(tree(tmp_path), {"top.png": RED})
    with refused("class folders or all at the top.*'top.png'.*unlabelled"):
        ImageSet.find(tmp_path)
    images = ImageSet.find(tmp_path, unlabelled=True)
    assert len(images) == 4
    assert images.labels is None


def test_empty_class_folder_is_refused(tmp_path):
    (tree(tmp_path) / "bird").mkdir()
    with refused("every class folder holds images.*bird holds none: add some"):
        ImageSet.find(tmp_path)
    assert len(ImageSet.find(tmp_path, unlabelled=True)) == 3


def test_links_are_followed_without_cycles(tmp_path):
    tree(tmp_path / "a")
    root = tmp_path / "b"
    (root / "class").mkdir(parents=True)
    (root / "linked").symlink_to(tmp_path / "a" / "dog")
    (root / "class" / "one.png").symlink_to(tmp_path / "a" / "dog" / "deep" / "a.png")
    (root / "class" / "gone.png").symlink_to(tmp_path / "nowhere")
    (root / "class" / "up").symlink_to(root)
    (root / "class" / "self").symlink_to(root / "class")
    images = ImageSet.find(root)
    assert images.names == ("class/gone.png", "class/one.png", "linked/b.JPG", "linked/deep/a.png")
    assert images.image(1).getpixel((0, 0)) == RED
    with pytest.raises(BadImage, match="no such file"):
        images.image(0)


def test_paths_without_images(tmp_path):
    write(tmp_path, {"x/readme.md": b"", "one.jpg": RED, "a.zip": b"", "a.npz": b"", "a.tar.gz": b"", "b.TGZ": b""})
    write(tmp_path, {"f/index.json": b"{}", "f/img_emb/img_emb_00000.npy": b"", "packed/a.tgz": b""})
    for name, match in {
        "nothing": "does not exist: check the path",
        "x": r"\.jpg \.jpeg .*\.heif; .*x holds none",
        "one.jpg": "a single image: give its folder",
        "a.zip": r"a folder, a list .*\.csv.*got .*a.zip",
        "a.npz": "holds arrays: pass features",
        "a.tar.gz": "must not be compressed.*gunzip",
        "b.TGZ": "must not be compressed.*gunzip",
        "packed": "must not be compressed.*a.tgz.*gunzip",
        "f": "holds features",
    }.items():
        with refused(match):
            ImageSet.find(tmp_path / name)
    with refused("column options"):
        ImageSet.find(tmp_path / "x", only={"split": 0})
    with refused("leave base out"):
        ImageSet.find(tmp_path / "x", base=tmp_path)
    with refused("does not exist"):
        ImageSet.find(tmp_path / "nothing")


@needs_permissions
def test_permissions(tmp_path):
    root = tree(tmp_path / "a")
    (root / "dog" / "b.JPG").chmod(0)
    with pytest.raises(BadImage, match=r"\Apermission denied\Z"):
        ImageSet.find(root).image(1)
    (root / "dog").chmod(0)
    try:
        with refused("dog is not, permission denied: change"):
            ImageSet.find(root)
        with refused("permission denied"):
            ImageSet.find(root / "dog")
    finally:
        (root / "dog").chmod(0o700)


def test_permission_denied_is_reported(tmp_path, monkeypatch):
    """As above, where the tests run as root."""
    images = ImageSet.find(tree(tmp_path))

    def deny(path, *args, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", deny)
    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(BadImage, match=r"\Apermission denied\Z"):
        images.image(0)
    with refused("is not, permission denied: change its permissions"):
        ImageSet.find(tmp_path)
