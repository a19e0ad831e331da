"""What is no image under the name of one: each is a bad image with a reason, and the others are read."""

import io
import os
import pickle
import socket
import tarfile
import threading
import warnings

import pytest

from dissensus._core import extras
from dissensus._core.errors import DissensusWarning
from dissensus.images import BadImage, ImageSet, ImageStream, _files, _folders, _tars, decode, decoding, walk
from tests.images.samples import RED, packed, plain, refused, write

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
GOOD = {"a.png": RED, "z.png": RED}
SPECIAL = {
    "pipe.png": "not a regular file",
    "to pipe.png": "not a regular file",
    "zero.png": "not a regular file",
    "socket.png": "not a regular file",
    "self.png": "too many levels of symbolic links",
    "gone.png": "no such file or directory",
    "sparse.png": "40,000 MB, more than the limit of 268 MB",
}


def special(folder):
    """Two images, and everything else that can be called one."""
    write(folder, GOOD)
    os.mkfifo(folder / "pipe.png")
    (folder / "to pipe.png").symlink_to("pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(folder, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket.png")  # the path of a socket is short
        os.close(here)
    (folder / "self.png").symlink_to("self.png")
    (folder / "gone.png").symlink_to("gone")
    with (folder / "sparse.png").open("wb") as file:
        file.truncate(40 * 10**9)
    return folder


def outcomes(images):
    """The reason of each image, "" where there is none."""
    reasons = {}
    for i, name in enumerate(images.names):
        try:
            images.image(i)
            reasons[name] = ""
        except BadImage as error:
            reasons[name] = str(error)
    return reasons


def in_time(function, *arguments):
    """Call in a thread, which must end; a pipe would be waited for."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*arguments)), daemon=True)
    thread.start()
    thread.join(20)
    assert result, "hangs"
    return result[0]


@needs_pipes
def test_folders_lists_and_tables(tmp_path):
    folder = special(tmp_path / "f")
    expected = {**dict.fromkeys(GOOD, ""), **SPECIAL}
    images = ImageSet.find(folder)
    assert in_time(outcomes, images) == expected
    (folder / "list.txt").write_text("".join(f"{name}\n" for name in expected))
    (folder / "table.csv").write_text("image\n" + "".join(f"{name}\n" for name in expected))
    for name in ("list.txt", "table.csv"):
        assert in_time(outcomes, ImageSet.find(folder / name)) == expected
    assert sorted(walk([str(folder)])) == sorted(str(folder / name) for name in expected)


@needs_pipes
def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x.png")
    regular = os.stat(write(tmp_path, {"y.png": RED}) / "y.png")
    monkeypatch.setattr(_files.os, "stat", lambda path: regular)
    with pytest.raises(OSError, match="not a regular file"):
        _files.open_file(str(tmp_path / "x.png"))


@needs_pipes
@pytest.mark.parametrize("name", ["x.txt", "x.csv", "x.tar"])
def test_lists_and_tars_that_are_pipes_or_devices_are_one_line(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with refused(f"cannot read .*{name}: not a regular file"):
        ImageSet.find(tmp_path / name)
    (tmp_path / f"zero{name}").symlink_to("/dev/zero")
    with refused("not a regular file"):
        ImageSet.find(tmp_path / f"zero{name}")


def test_a_list_without_line_breaks_is_one_line(tmp_path):
    with (tmp_path / "x.txt").open("wb") as file:
        file.truncate(40 * 10**9)
    with refused("line 1 of .*x.txt has more"):
        ImageSet.find(tmp_path / "x.txt")


@pytest.mark.parametrize("label", ["9" * 30, "9" * 5000])
def test_labels_of_any_length(label, tmp_path):
    write(tmp_path, GOOD)
    (tmp_path / "x.txt").write_text(f"a.png\t{label}\nz.png\t1\n")
    (tmp_path / "x.csv").write_text(f"image,label,g\na.png,{label},{label}\nz.png,1,1\n")
    assert ImageSet.find(tmp_path / "x.txt").classes == ("1", label)
    assert ImageSet.find(tmp_path / "x.csv", group_columns=["g"]).classes == ("1", label)


def test_a_small_limit_on_bytes_is_a_reason(tmp_path, monkeypatch):
    images = ImageSet.find(write(tmp_path, {"a.png": RED, "b.bmp": plain(kind="BMP", size=(50, 50))}))
    tar = ImageSet.find(packed(tmp_path / "x.tar", {"a.png": plain(), "b.bmp": plain(kind="BMP", size=(50, 50))}))
    monkeypatch.setattr(_files, "MAX_BYTES", 1000)
    for found in (images, tar, ImageSet.find(tmp_path, unlabelled=True)):
        assert [bool(reason) for reason in outcomes(found).values()] == [False, True]
    streamed = ImageStream.find(str(tmp_path / "x.tar")).samples(0)
    assert [sample.error for sample in streamed] == [None, "0 MB, more than the limit of 0 MB"]


def odd_tar(path):
    """An image between members that are none, one of them of 40 GB."""
    with tarfile.open(path, "w") as tar:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("pipe", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(f"{name}.png")
            member.type, member.linkname = kind, "a.png"
            tar.addfile(member)
        member = tarfile.TarInfo("a.png")
        member.size = len(plain())
        tar.addfile(member, io.BytesIO(plain()))
        large = tarfile.TarInfo("large.png")
        large.size = 40 * 2**30
        tar.fileobj.write(large.tobuf(tar.format))
        tar.fileobj.seek(large.size, os.SEEK_CUR)
        tar.offset = tar.fileobj.tell()
    return path


def test_members_of_a_tar_that_are_no_files_or_huge(tmp_path):
    expected = {
        **{f"{name}.png": _tars.NOT_REGULAR for name in ("link", "hard", "pipe")},
        "a.png": "",
        "large.png": "42,950 MB, more than the limit of 268 MB",
    }
    images = ImageSet.find(odd_tar(tmp_path / "x.tar"))
    assert outcomes(images) == expected


def test_members_of_a_stream_that_are_no_files_or_huge(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        member = tarfile.TarInfo("link.png")
        member.type = tarfile.SYMTYPE
        tar.addfile(member)
        for name in ("a.png", "a.left.png", "b.png"):  # one sample is in memory at once
            member = tarfile.TarInfo(name)
            member.size = 600
            tar.addfile(member, io.BytesIO(plain().ljust(600, b"\0")))
    monkeypatch.setattr(_files, "MAX_BYTES", 1000)
    samples = ImageStream.find(str(tmp_path / "x.tar")).samples(0)
    errors = [(sample.name, sample.error) for sample in samples]
    assert errors == [
        ("link.png", _tars.NOT_REGULAR),
        ("a.png", None),
        ("a.left.png", "0 MB, more than the limit of 0 MB"),
        ("b.png", None),
    ]


def headers(kind):
    """A header of a long name, of 40 GB or in a long chain."""

    def header(size):
        member = tarfile.TarInfo("x")
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, size
        return member.tobuf(tarfile.GNU_FORMAT)

    if kind == "large":
        return header(40 * 2**30) + bytes(10_240)
    return (header(1) + b"x".ljust(512, b"\0")) * 5000 + bytes(1024)


@pytest.mark.parametrize("kind", ["large", "chain"])
def test_headers_that_fill_the_memory_or_the_stack(kind, tmp_path):
    (tmp_path / "x.tar").write_bytes(headers(kind))
    with refused("must be plain and whole"):
        ImageSet.find(tmp_path / "x.tar")
    with refused("must be a whole tar"):
        list(ImageStream.find(str(tmp_path / "x.tar")).samples(0))


SIDECARS = {
    "a.json": [
        b"[" * 100_000,
        b'{"label":' * 50_000,
        b'{"label": ' + b"9" * 5000 + b"}",
        b" " * 2**21,
        b'{"label": [[]]}',
    ],
    "a.cls": [b"9" * 5000, b"1" + b" " * 2**20, b"one"],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, all_ in SIDECARS.items() for data in all_])
def test_sidecars_without_bounds(name, data, tmp_path):
    packed(tmp_path / "x.tar", {"a.png": plain(), name: data, "b.png": plain(), "b.cls": b"7"})
    images = ImageSet.find(tmp_path / "x.tar")
    reasons = outcomes(images)
    assert f"a label is an integer in a .cls, an integer or text in a .json; {name} in " in reasons["a.png"]
    assert reasons["b.png"] == ""
    assert images.classes[int(images.labels[1])] == "7"
    assert outcomes(pickle.loads(pickle.dumps(images))) == reasons, "as a worker process has it"
    assert set(outcomes(ImageSet.find(tmp_path / "x.tar", unlabelled=True)).values()) == {""}
    bad, good = ImageStream.find(str(tmp_path / "x.tar")).samples(0)
    assert "a label is an integer" in bad.error
    assert (good.error, good.label) == (None, "7")


def test_links_to_links_do_not_multiply(tmp_path, monkeypatch):
    monkeypatch.setattr(_folders, "VISITS", 5)
    for i in range(20):
        (tmp_path / f"f/{i}").mkdir(parents=True)
        for name in ("x", "y"):
            (tmp_path / f"f/{i}/{name}").symlink_to(f"../{i + 1}")
    write(tmp_path, {"f/20/a.png": RED})
    with refused("by up to 5 ways; .*by more, through links"):
        ImageSet.find(tmp_path / "f", unlabelled=True)


def test_files_that_are_passed_over_are_counted_once(tmp_path):
    folder = write(tmp_path / "f", {**GOOD, "b.txt": b"", "c.TXT": b"", "d.pdf": b"", "e": b"", ".hidden": b""})
    packed(tmp_path / "x.tar", {"a.png": plain(), "a.cls": b"1", "a.caption": b""})
    message = r"4 files are passed over in .*f, without the ending of an image: \.txt, \.pdf, no ending\Z"
    with pytest.warns(DissensusWarning, match=message):
        ImageSet.find(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageSet.find(folder)
        assert len(list(walk([str(folder)]))) == 2
    with pytest.warns(DissensusWarning, match=r"1 file is passed over in .*x\.tar, .* \.caption\Z"):
        ImageSet.find(tmp_path / "x.tar")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageSet.find(write(tmp_path / "g", GOOD))


def test_avif_and_heic():
    assert decode(plain(kind="AVIF")).size == (8, 6)
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(decode(plain())).save(file)
    image = decode(file.getvalue())
    assert (image.mode, image.size) == ("RGB", (8, 6))
    assert image.getpixel((3, 3))[0] > 200


def test_heic_without_its_package_names_it(monkeypatch):
    decoding._heif.cache_clear()
    monkeypatch.setattr(extras, "missing", lambda extra: ["pillow_heif"])
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    with pytest.raises(BadImage, match=r"\AHEIC needs pip install '.*\[heif\]'\Z"):
        decode(heic)
    with pytest.raises(BadImage, match=r"not an image|damaged|truncated"):
        decode(heic.replace(b"heic", b"avif"))


def test_a_verdict_file_is_read_as_a_table(tmp_path):
    folder = write(tmp_path, {"=1.png": RED, "'-2.png": RED, "b.png": RED})
    (folder / "verdicts.csv").write_text("path,class\n'=1.png,'+x\n''-2.png,y\nb.png,y\n")
    images = ImageSet.find(folder / "verdicts.csv")
    assert images.names == ("=1.png", "'-2.png", "b.png")
    assert images.classes == ("+x", "y")
    assert set(outcomes(images).values()) == {""}
