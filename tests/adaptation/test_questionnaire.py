"""The table of questions: what is written can be filled in, saved by a spreadsheet and read again."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import torch

from dissensus import FeatureSet, ImageSet
from dissensus._core.cells import FORMULA
from dissensus._core.errors import DataError
from dissensus.adaptation import Questions, questionnaire, sheet
from tests.trees import images

EVIL = '=cmd|"/C calc"!A0<b>'


def questions(rows, classes=("cat", EVIL)):
    votes = torch.tensor([[1, 0, 1]] * len(rows))
    return Questions(torch.tensor(rows), torch.ones(len(rows)), votes, classes)


def pool(folder):
    images(folder / "new", 4)
    return ImageSet.find(folder / "new")


def cells(text):
    return list(csv.DictReader(text.splitlines()))


def fill(text, label):
    return "\n".join(line.replace(",,", f",{label},", 1) for line in text.splitlines()) + "\n"


def test_images_are_named_from_the_folder_of_the_table(tmp_path):
    text = questionnaire.table(questions([2, 0]), pool(tmp_path), tmp_path)
    assert [row["image"] for row in cells(text)] == ["new/2.png", "new/0.png"]
    (tmp_path / "q.csv").write_text(fill(text, "cat"))
    answers = questionnaire.read(tmp_path / "q.csv")
    assert answers.labels == ("cat", "cat")
    assert answers.paths == tuple(str(tmp_path / "new" / name) for name in ("2.png", "0.png"))
    found = ImageSet.find(tmp_path / "q.csv")
    assert found.image(0).size == (12, 12)


def test_images_elsewhere_have_absolute_paths(tmp_path):
    images_there = pool(tmp_path)
    (tmp_path / "other").mkdir()
    (row,) = cells(questionnaire.table(questions([1]), images_there, tmp_path / "other"))
    assert row["image"] == str(tmp_path / "new" / "1.png")


def test_no_cell_begins_a_formula(tmp_path):
    folder = tmp_path / "-new"
    images(folder, 1)
    os.rename(folder / "0.png", folder / "=1+1.png")
    for at in (tmp_path, folder):
        text = questionnaire.table(questions([0], (EVIL, EVIL)), ImageSet.find(folder), at)
        for row in cells(text):
            assert not any(cell.startswith(FORMULA) for cell in row.values())
        (at / "q.csv").write_text(fill(text, "x"))
        (path,) = questionnaire.read(at / "q.csv").paths
        assert Path(path).is_file()
        assert ImageSet.find(at / "q.csv").image(0)


def test_a_mark_before_a_label_is_taken_off_where_the_class_is_known(tmp_path):
    (tmp_path / "q.csv").write_text("image,label\na.png,'-x\nb.png,'odd\nc.png,'y\n")
    assert questionnaire.read(tmp_path / "q.csv", ("-x", "'odd", "y")).labels == ("-x", "'odd", "y")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_spreadsheets_save_with_other_separators_and_marks(tmp_path, separator):
    text = (
        separator.join(("image", "label", "votes")) + "\r\n" + separator.join(('"a;,\tb.png"', " cat ", "x")) + "\r\n"
    )
    text += separator * 2 + "\r\n" + separator.join(("c.png", "", "")) + "\r\n"
    (tmp_path / "q.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    answers = questionnaire.read(tmp_path / "q.csv")
    assert (answers.labels, answers.paths) == (("cat",), (str(tmp_path / "a;,\tb.png"),))


def test_features_are_named_by_row_with_their_pool(tmp_path):
    features = FeatureSet.from_arrays(torch.randn(6, 2))
    text = questionnaire.table(questions([4, 1]), features, tmp_path)
    assert [row["row"] for row in cells(text)] == ["4", "1"]
    (tmp_path / "q.csv").write_text(fill(text, "cat"))
    answers = questionnaire.read(tmp_path / "q.csv")
    assert questionnaire.choose(answers, features, "pool") == [4, 1]
    with pytest.raises(DataError, match="other is another one: give that pool"):
        questionnaire.choose(answers, FeatureSet.from_arrays(torch.randn(6, 2)), "other")
    (tmp_path / "q.csv").write_text("row,label\n9,cat\n")
    with pytest.raises(DataError, match="pool has no row 9"):
        questionnaire.choose(questionnaire.read(tmp_path / "q.csv"), features, "pool")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,label\na.png,\n", "at least one row needs a label"),
        ("image,label\n", "at least one row needs a label"),
        ("image,label\n,cat\n", "a label without one"),
        ("row,label\n-1,cat\n", "has '-1'"),
        ("row,label\n1.5,cat\n", "has '1.5'"),
        ("row,label,pool\n1,cat,a\n2,cat,b\n", "has rows of 2"),
        ("image,label\na.png,cat,3\n", "row 2 of .* has more"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        questionnaire.read(tmp_path / "q.csv")


def test_a_table_that_is_not_utf_8(tmp_path):
    (tmp_path / "q.csv").write_bytes(b"image,label\na.png,caf\xe9\n")
    with pytest.raises(DataError, match="save it as CSV UTF-8"):
        questionnaire.read(tmp_path / "q.csv")


def test_what_is_a_table_and_what_may_be_overwritten(tmp_path):
    free, filled, other = (tmp_path / name for name in ("free.csv", "filled.csv", "other.csv"))
    free.write_text("image,label\na.png,\n")
    filled.write_text("image,label\na.png,cat\n")
    other.write_text("path,class\na.png,cat\n")
    (tmp_path / "empty.csv").write_text("")
    assert questionnaire.is_table(free)
    assert not questionnaire.is_table(other)
    assert not questionnaire.is_table(tmp_path / "empty.csv")
    assert not questionnaire.is_table(tmp_path)
    assert not questionnaire.is_filled_in(free)
    assert questionnaire.is_filled_in(filled)
    assert questionnaire.is_filled_in(other)


def test_the_sheet_is_one_file_with_pictures_and_escaped_words(tmp_path):
    evil = ("<script>alert(1)</script>", EVIL)
    html = sheet.render(questions([2, 0], evil), pool(tmp_path), "q.csv", "dissensus adapt RUN")
    assert html.count('src="data:image/') == 2
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "http" not in html.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in html
    assert sheet.MARK in html[:1000]
    assert html.count("1 say &lt;script&gt;alert(1)&lt;/script&gt;") == 2
    assert "dissensus adapt RUN" in html


def test_the_sheet_of_features_and_of_an_image_that_is_gone(tmp_path):
    html = sheet.render(questions([3]), FeatureSet.from_arrays(torch.ones(5, 2)), "q.csv", "")
    assert "1. row 3" in html
    there = pool(tmp_path)
    os.remove(tmp_path / "new" / "1.png")
    assert "<img" not in sheet.render(questions([1]), there, "q.csv", "")
