"""Tars: listing, reading by several processes, labels, and damaged files."""

import io
import os
import pickle
import tarfile
import warnings
from multiprocessing import get_context

import pytest

from dissensus.images import BadImage, ImageSet
from tests.images.samples import BAD, RED, packed, plain, refused


def test_a_thousand_images_of_a_tar(thousand):
    images = ImageSet.find(thousand)
    assert len(images) == 1000
    assert images.classes == ("class 0", "class 1", "class 2", "class 3")
    assert images.names[5] == "photo/class 1/0005.png"
    bad = {}
    for i, name in enumerate(images.names):
        try:
            image = images.image(i)
            assert image.mode == "RGB"
            if i < 980:
                assert image.getpixel((0, 0)) == (i % 256, 0, 0)
            assert images.labels[i] == int(name.split("/")[1][-1])
        except BadImage as error:
            bad[name.split("/")[-1]] = str(error)
    assert bad == {name: reason for name, (_, reason) in BAD.items()}


def _first_pixels(images, index):
    return [images.image(i).getpixel((0, 0))[0] for i in index]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_tar_is_read_by_several_processes(thousand, how):
    images = ImageSet.from_tar(str(thousand))
    index = [list(range(i, 900, 3)) for i in range(2)]
    with warnings.catch_warnings(), get_context(how).Pool(2 if how == "fork" else 1) as pool:
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        pixels = pool.starmap(_first_pixels, [(images, part) for part in index])
        pool.close()
        pool.join()
    assert pixels == [[i % 256 for i in part] for part in index]


def _in_child(images, queue):
    queue.put(_first_pixels(images, range(300)))


def test_forked_reader_does_not_share_its_place_in_the_tar(thousand):
    images = ImageSet.from_tar(thousand)
    images.image(0)
    context = get_context("fork")
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = context.Process(target=_in_child, args=(images, queue))
        child.start()
    mine = _first_pixels(images, range(300))
    assert queue.get(timeout=20) == mine == [i % 256 for i in range(300)]
    child.join()


def test_samples_of_a_webdataset(tmp_path):
    for label in (b"2\n", b'{"label": 2}', b'{"cls": 2, "caption": "x"}'):
        suffix = "json" if label.startswith(b"{") else "cls"
        files = {
            "./7.jpg": plain(kind="JPEG"),
            f"./7.{suffix}": label,
            "x/8.v1.png": plain(),
            f"x/8.v1.{suffix}": label,
        }
        files |= {"x/9.left.png": plain(), f"x/9.{suffix}": label.replace(b"2", b"0")}
        images = ImageSet.find(packed(tmp_path / "s.tar", files))
        assert images.names == ("7.jpg", "x/8.v1.png", "x/9.left.png")
        assert images.labels.tolist() == [2, 2, 0]
        assert images.classes == ("0", "1", "2")
    named = {"1.png": plain(), "1.json": b'{"label": "dog"}', "2.png": plain(), "2.json": b'{"label": "cat"}'}
    images = ImageSet.find(packed(tmp_path / "s.tar", named))
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [1, 0]
    unknown = {"1.png": plain(), "1.cls": b"-1", "2.png": plain(), "2.json": b'{"cls": -1}'}
    assert ImageSet.find(packed(tmp_path / "s.tar", unknown)).labels is None


def test_folder_of_tars(tmp_path):
    for i in range(3):
        packed(tmp_path / f"shard-{i}.tar", {"0.png": plain((i, 0, 0)), "0.cls": str(i).encode(), "0.txt": b""})
    images = ImageSet.find(tmp_path)
    assert images.names == ("shard-0.tar/0.png", "shard-1.tar/0.png", "shard-2.tar/0.png")
    assert images.labels.tolist() == [0, 1, 2]
    assert _first_pixels(images.subset([2, 0]), range(2)) == [2, 0]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="lists open files by /proc")
def test_tars_are_closed_after_each_read(tmp_path):
    paths = [packed(tmp_path / f"{i}.tar", {"0.png": plain((i, 0, 0))}) for i in range(5)]
    images = ImageSet.from_tar(paths)
    before = len(os.listdir("/proc/self/fd"))
    assert _first_pixels(images, [0, 1, 2, 3, 4, 0]) == [0, 1, 2, 3, 4, 0]
    assert len(os.listdir("/proc/self/fd")) == before


def test_flat_tar_is_unlabelled_and_links_are_listed_as_bad(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("in", tarfile.DIRTYPE), ("in/l.png", tarfile.SYMTYPE), ("in/h.png", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "in/1.png"
            tar.addfile(member)
        for name in ("in/1.png", "in/._1.png", "in/" + 150 * "é" + ".PNG"):
            member = tarfile.TarInfo(name)
            member.size = len(plain())
            tar.addfile(member, io.BytesIO(plain()))
    images = ImageSet.find(path)
    assert images.names == ("in/l.png", "in/h.png", "in/1.png", "in/" + 150 * "é" + ".PNG")
    assert images.labels is None
    assert images.image(2).getpixel((0, 0)) == RED


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"readme": b""}, "holds none"),
        ({}, "holds none"),
        ({"1.png": b"", "d/2.png": b""}, "both, such as '1.png'"),
        ({"1.png": b"", "1.cls": b"3", "2.png": b""}, "1 of 2 have none, the first is '2.png'"),
        ({"1.png": b"", "1.cls": b"dog"}, "1.cls in .* has none"),
        ({"1.png": b"", "1.json": b"{"}, "1.json in .* has none"),
        ({"1.png": b"", "1.json": b'{"label": 0.5}'}, "a float"),
    ],
)
def test_bad_tars(tmp_path, files, match):
    with refused(match):
        ImageSet.find(packed(tmp_path / "x.tar", files))


def test_mixed_tar_as_unlabelled(tmp_path):
    path = packed(tmp_path / "x.tar", {"1.png": plain(), "d/2.png": plain()})
    assert ImageSet.find(path, unlabelled=True).labels is None


def test_damaged_tars(tmp_path):
    whole = packed(tmp_path / "x.tar", {f"{i}.png": plain() for i in range(4)}).read_bytes()
    damaged = bytearray(whole)
    damaged[2048:2080] = b"?" * 32
    for data, count in (
        (whole[:1600], 1),  # within an image
        (whole[:2048], 2),  # between two
        (whole[:2100], 2),  # within a header
        (bytes(damaged), 2),
        (whole + whole, 4),
        (b"", 0),
        (b"\x1f\x8b" + bytes(600), 0),
    ):
        (tmp_path / "y.tar").write_bytes(data)
        with refused(f"plain and whole; .*y.tar .* after {count} images"):
            ImageSet.find(tmp_path / "y.tar")


def test_tar_that_shrinks_later(tmp_path):
    path = packed(tmp_path / "x.tar", {"a.png": plain()})
    images = ImageSet.find(path)
    os.truncate(path, 520)
    with pytest.raises(BadImage, match="truncated"):
        images.image(0)
    path.unlink()
    with pytest.raises(BadImage, match="no such file"):
        pickle.loads(pickle.dumps(images)).image(0)
