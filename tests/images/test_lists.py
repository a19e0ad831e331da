"""Lists and tables: names, labels and groups as their lines say."""

import pytest

from dissensus.images import BadImage, ImageSet
from tests.images.samples import RED, listed, refused, write


def test_list_of_paths(tmp_path):
    images = listed(tmp_path, "# mine\n\na b.png\r\nsub/c 7.png\ngone.png\n")
    assert images.names == ("a b.png", "sub/c 7.png", "gone.png")
    assert images.labels is None
    assert images.image(1).getpixel((0, 0)) == (0, 0, 0)
    assert images._sizes[2] == -1
    with pytest.raises(BadImage, match=r"\Ano such file or directory\Z"):
        images.image(2)


def test_list_with_numbers(tmp_path):
    images = listed(tmp_path, "\ufeffa b.png 2\nsub/c 7.png\t0\n", name="list.lst")
    assert images.names == ("a b.png", "sub/c 7.png")
    assert images.labels.tolist() == [2, 0]
    assert images.classes == ("0", "1", "2")
    assert listed(tmp_path, "a b.png -1\nsub/c 7.png -1").labels is None
    assert listed(tmp_path, "a b.png 1\n", unlabelled=True).labels is None


def test_list_with_names(tmp_path):
    images = listed(tmp_path, "a b.png\t日本 dog\nsub/c 7.png\tcat\n")
    assert images.classes == ("cat", "日本 dog")
    assert images.labels.tolist() == [1, 0]


def test_list_elsewhere(tmp_path):
    write(tmp_path / "data", {"x.png": RED})
    images = listed(tmp_path / "lists", f"x.png\n{tmp_path}/data/x.png\n", base=tmp_path / "data")
    assert images.names == ("x.png", "x.png")
    assert images.image(1).getpixel((0, 0)) == RED


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a b.png 1\n# x\nsub/c 7.png\n", "line 3 .*has none"),
        ("a b.png\nsub/c 7.png 3\n", "line 2 .*has one"),
        ("\n#\n", "names none"),
        ("a b.png 0\nsub/c 7.png -1\n", "labels must lie in .*row 1 has -1"),
    ],
)
def test_bad_lists(tmp_path, text, match):
    with refused(match):
        listed(tmp_path, text)


def test_list_must_be_text(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"caf\xe9.png\n")
    with refused("UTF-8"):
        ImageSet.find(tmp_path / "x.txt")


def test_null_byte_in_a_path_is_one_bad_image(tmp_path):
    with pytest.raises(BadImage, match="null"):
        listed(tmp_path, "a\0b.png\n").image(0)


BIRDS = "img_filename,y,place,split\na b.png,10,1,0\nsub/c 7.png,9,0,1\nx.png,9,1,1\n"


def test_table(tmp_path):
    images = listed(tmp_path, BIRDS, name="birds.csv", group_columns=("y", "place"))
    assert images.classes == ("9", "10")
    assert images.labels.tolist() == [1, 0, 0]
    assert images.group_names == ("y=9 place=0", "y=9 place=1", "y=10 place=1")
    assert images.groups.tolist() == [2, 0, 1]
    assert images.image(0).getpixel((0, 0)) == RED
    assert "3 groups" in repr(images)


def test_table_keeps_its_numbers_when_rows_are_left_out(tmp_path):
    images = listed(tmp_path, BIRDS, name="birds.csv", group_columns=["y", "place"], only={"split": 1, "place": "1"})
    assert images.names == ("x.png",)
    assert images.classes == ("9", "10")
    assert len(images.group_names) == 3
    assert images.groups.tolist() == [1]


def test_table_by_tabs_and_chosen_columns(tmp_path):
    text = "label\twhat\tpicture\nx\tNA\ta b.png\ny\tnull\tsub/c 7.png\n"
    images = listed(tmp_path, text, name="t.TSV", image_column="picture", label_column="what")
    assert images.classes == ("NA", "null")
    assert images.names == ("a b.png", "sub/c 7.png")
    assert listed(tmp_path, "path,size\na b.png,3\n", name="t.csv").labels is None
    assert listed(tmp_path, "path,label\na b.png,-1\n", name="t.csv").labels is None


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        (BIRDS, {"label_column": "species"}, "no column 'species': choose among img_filename, y, place, split"),
        (BIRDS, {"group_columns": ["where"]}, "no column 'where'"),
        (BIRDS, {"only": {"split": 7}}, "'split' is 7.* but 0, 1"),
        ("a,b\n1,2\n", {}, "has a, b: give image_column"),
        ("path,label\na.png,1\nb.png,\n", {}, "row 2 .*'label'"),
        ("path,label\na.png,1\n,2\n", {}, "row 2 .*'path'"),
        ("path,label\n", {}, "names none"),
        ("path,label\na.png,1,2\n", {}, "table with a header"),
        ("", {}, "table with a header"),
    ],
)
def test_bad_tables(tmp_path, text, options, match):
    with refused(match):
        listed(tmp_path, text, name="t.csv", **options)
