"""Parts of an extraction: joined they are the bytes of one extraction; anything else is refused."""

from __future__ import annotations

import json
import shutil

import pytest

from dissensus import backbones
from dissensus._core.errors import DataError, RunError
from dissensus.features import extract, merge
from dissensus.features._extract import steps_of
from dissensus.images import ImageSet
from tests.commands import refuse, run
from tests.features.test_extract_resume import contents
from tests.images.samples import noise, write

SETTINGS = {"shard_images": 3, "workers": 0, "progress": False, "max_bad": 0.2}


@pytest.fixture(scope="module")
def backbone():
    return backbones.create("test_vit", "random", size=32)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """20 images of two classes, two of them bad."""
    names = [f"{'cat' if i % 2 else 'dog'}/{i:02}.png" for i in range(20)]
    images = {name: noise((40, 40), seed=i) if i not in (3, 18) else b"no" for i, name in enumerate(names)}
    return write(tmp_path_factory.mktemp("tree"), images)


@pytest.fixture(scope="module")
def home(tree, backbone, tmp_path_factory):
    """The whole, and the same in three parts, with two augmented passes."""
    home, images = tmp_path_factory.mktemp("home"), ImageSet.find(tree)
    extract(images, backbone, home / "whole", **SETTINGS, augment=2)
    for number in (1, 2, 3):
        extract(images, backbone, home / f"part-{number}", **SETTINGS, augment=2, part=(number, 3))
    return home


def parts(home):
    return [home / f"part-{number}" for number in (3, 1, 2)]


def test_parts_are_the_bytes_of_the_whole(home, tmp_path):
    features = merge(parts(home), tmp_path / "f")
    assert contents(tmp_path / "f") == contents(home / "whole")
    assert features.passes == 2
    assert "part" not in features.provenance
    assert len(list((home / "part-1").rglob("*.npy"))) > 0, "parts are kept"


def test_parts_at_a_url(home, tree, backbone):
    images = ImageSet.find(tree)
    for number in (1, 2, 3):
        extract(images, backbone, f"memory://merge/{number}", **SETTINGS, augment=2, part=(number, 3))
    features = merge([f"memory://merge/{number}" for number in (1, 2, 3)], "memory://merge/whole")
    assert remote("merge/whole") == contents(home / "whole")
    assert len(features) == 36


def remote(folder):
    import fsspec

    fs = fsspec.filesystem("memory")
    return {path.removeprefix(f"/{folder}/"): fs.cat_file(path) for path in fs.find(f"/{folder}")}


def test_a_finished_part_is_kept(home, tree, backbone, tmp_path):
    shutil.copytree(home / "part-2", tmp_path / "f")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "f").rglob("*")}
    extract(ImageSet.find(tree), backbone, tmp_path / "f", **SETTINGS, augment=2, part=(2, 3))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "f").rglob("*")} == before
    with pytest.raises(DataError, match=r"holds other features \(part is \[2, 3\] there, \[1, 3\] here\)"):
        extract(ImageSet.find(tree), backbone, tmp_path / "f", **SETTINGS, augment=2, part=(1, 3))
    with pytest.raises(DataError, match=r"part is \[2, 3\] there, None here"):
        extract(ImageSet.find(tree), backbone, tmp_path / "f", **SETTINGS, augment=2)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_every_shard_is_in_one_part(steps):
    for count in range(1, steps + 1):
        ranges = [steps_of(steps, (number, count)) for number in range(1, count + 1)]
        assert [step for part in ranges for step in part] == list(range(steps))
        assert min(map(len, ranges)) >= 1
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize(
    ("part", "message"),
    [((0, 3), "K from 1 to N; got 0/3"), ((4, 3), "got 4/3"), ((1, 8), "8 parts share 7 shards: use fewer parts")],
)
def test_parts_that_are_none(part, message, tree, backbone, tmp_path):
    with pytest.raises(DataError, match=message):
        extract(ImageSet.find(tree), backbone, tmp_path / "f", **SETTINGS, part=part)
    assert not (tmp_path / "f").exists()


def test_what_is_not_all_parts_of_one_extraction(home, tree, backbone, tmp_path):
    out = tmp_path / "f"
    one, two, three = (home / f"part-{number}" for number in (1, 2, 3))
    shutil.copytree(two, tmp_path / "copy")
    other = backbones.create("test_vit", "random", size=48)
    extract(ImageSet.find(tree), other, tmp_path / "other", **SETTINGS, augment=2, part=(3, 3))
    extract(ImageSet.find(tree), backbone, tmp_path / "half", **SETTINGS, augment=2, part=(1, 2))
    for given, message in [
        ([one, three], "all 3 parts must be given; 2/3 missing"),
        ([one, two, two], "is given twice"),
        ([one, two, tmp_path / "copy", three], "are both 2/3"),
        ([one, two, tmp_path / "other"], "parts must be of one command; .* has fingerprint"),
        ([one, tmp_path / "half"], "of one division; .* is of 3, .* of 2"),
        ([home / "whole"], "is a whole: leave it out"),
        ([one, two, tmp_path / "nothing"], "features are a folder"),
        ([], "none is given"),
    ]:
        with pytest.raises(DataError, match=message):
            merge(given, out)
        assert not out.exists()
    out.mkdir()
    (out / "mine.txt").touch()
    with pytest.raises(RunError, match="must be a new or an empty folder"):
        merge([one, two, three], out)


def test_a_damaged_part_leaves_nothing(home, tmp_path):
    shutil.copytree(home / "part-2", tmp_path / "two")
    path = next((tmp_path / "two" / "img_emb").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is truncated"):
        merge([home / "part-1", tmp_path / "two", home / "part-3"], tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_on_the_command_line(tree, tmp_path, capsys):
    asked = ["extract", tree, "--backbone", "test_vit", "--weights", "random", "--size", 32, "--workers", 0]
    asked += ["--shard-images", 4, "--max-bad", "20%"]
    for number in (1, 2):
        code, _, err = run(capsys, *asked, "--out", tmp_path / f"{number}", "--part", f"{number}/2")
        assert code == 0, err
        assert "join all 2 parts with: dissensus merge PARTS --out FEATURES" in err
    assert run(capsys, *asked, "--out", tmp_path / "whole")[0] == 0
    code, out, err = run(capsys, "merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "f")
    assert (code, out) == (0, f"{tmp_path / 'f'}\n"), err
    assert "18 rows of 2 parts; 2 images could not be read" in err
    assert contents(tmp_path / "f") == contents(tmp_path / "whole")
    assert json.loads((tmp_path / "f" / "index.json").read_text())["count"] == 18
    assert "1/2 missing" in refuse(capsys, "merge", tmp_path / "2", "--out", tmp_path / "g")
    for wrong in ("2", "0/2", "3/2", "a/b", "1/2/3"):
        line = refuse(capsys, *asked, "--out", tmp_path / "h", "--part", wrong)
        assert line == f"--part must be K/N with K from 1 to N, such as 3/8; got '{wrong}'"
