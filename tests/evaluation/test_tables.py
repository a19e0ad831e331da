"""Table: best values, and the same content as text, Markdown, LaTeX, HTML, CSV and JSON."""

from __future__ import annotations

import doctest
import json
import re

import pytest

from dissensus._core.errors import UnknownNameError
from dissensus.evaluation import tables
from dissensus.evaluation.tables import Column, Row, Table, Value

COLUMNS = (
    Column("accuracy %", "id", percent=True),
    Column("members %", "id", percent=True),
    Column("accuracy %", "C-1", percent=True),
    Column("ECE", "<b>", better="lower"),
    Column("", "a|b_c", better=""),
)
ROWS = (
    Row(("single", "x"), (Value(0.9), Value(0.9), Value(0.8, 0.1, 3), Value(0.2), Value(1.0))),
    Row(("sed & co", "x"), (Value(0.91), Value(0.85), Value(0.85, 0.05, 3), Value(0.1), None)),
    Row(("sed & co", "y"), (Value(0.99), None, None, Value(0.01), Value(7.0)), "paper"),
)
TABLE = Table("Some λ", ("method", "kind"), COLUMNS, ROWS, "A note.")


def test_the_example_runs():
    assert doctest.testmod(tables).failed == 0


def test_the_best_is_higher_or_lower_as_the_column_says_and_never_the_papers():
    assert TABLE.best() == {(1, 0), (0, 1), (1, 2), (1, 3)}
    assert Table("", ("m",), COLUMNS[:1], (Row(("a",), (Value(1),)),)).best() == set(), "one alone is not the best"


@pytest.mark.parametrize("width", [45, 60, 80, 200])
def test_text_fits_its_width_and_keeps_columns_of_a_group_together(width):
    text = TABLE.text(width)
    assert max(map(len, text.splitlines())) <= width
    for part in ("91.0*", "85.0 ± 5.0*", "0.100*", "0.010", "7.000", "sed & co  y (paper)", "A note."):
        assert part in text
    bands = text.count("method")
    assert bands == (1 if width >= 80 else 2 if width == 60 else 3)
    if width == 200:
        assert re.search(r"accuracy % +members % +ECE", text)
        assert re.search(r"id +C-1 +id +<b>", text)


def test_a_group_too_wide_for_the_terminal_is_split():
    columns = tuple(Column("accuracy %", f"corruption-{i}", percent=True) for i in range(12))
    table = Table("", ("method",), columns, (Row(("single",), tuple(Value(i / 12, 0.01, 3) for i in range(12))),))
    text = table.text(80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("accuracy %") == 3
    assert all(f"corruption-{i}" in text for i in range(12))


def test_text_uses_the_terminals_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert TABLE.text() == TABLE.text(60) == str(TABLE)


def test_markdown():
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "| method | kind | accuracy % id | accuracy % C-1 | members % id | ECE <b> | a\\|b_c |"
    assert lines[3] == "| sed & co | x | **91.0** | **85.0 ± 5.0** | 85.0 | **0.100** | - |"
    assert lines[4].startswith("| sed & co | y (paper) | 99.0 |")


def test_latex_escapes_and_marks_the_best():
    text = TABLE.latex()
    assert r"\multicolumn{2}{c}{accuracy \%} & members \%" in text
    assert r"sed \& co & x & \textbf{91.0} & \textbf{85.0 $\pm$ 5.0} & 85.0 & \textbf{0.100} & -" in text
    assert r"a|b\_c" in text
    assert text.count(r"\\") == 5


def test_html_escapes_and_marks_the_best():
    text = TABLE._repr_html_()
    assert "<caption>Some λ</caption>" in text
    assert '<th scope="colgroup" colspan="2">accuracy %</th>' in text
    assert '<th scope="col">&lt;b&gt;</th>' in text
    assert '<td data-value="0.91"><strong>91.0</strong></td>' in text
    assert '<tr class="paper"><th scope="row">sed &amp; co</th><th scope="row">y <small>(paper)</small></th>' in text


def test_csv_and_json_hold_shares_and_deviations():
    assert (
        TABLE.render("csv").splitlines()[0]
        == "method,kind,accuracy id,accuracy C-1,accuracy C-1 ±,members id,ECE <b>,a|b_c,source"
    )
    first, _, last = json.loads(TABLE.render("json"))
    assert (first["accuracy C-1"], first["accuracy C-1 ±"]) == (0.8, 0.1)
    assert (last["members id"], last["source"]) == (None, "paper")
    assert TABLE.render("md") == TABLE.markdown()
    with pytest.raises(UnknownNameError, match="unknown table format 'htm'"):
        TABLE.render("htm")


def test_blank_columns_and_rows_are_left_out():
    columns = (Column("a", "x"), Column("a", "y"))
    table = Table("", ("m",), columns, (Row(("one",), (Value(1), None)), Row(("two",), (None, None))))
    assert table.without_blanks() == Table("", ("m",), columns[:1], (Row(("one",), (Value(1),)),))


def test_an_empty_table_has_its_heads():
    assert Table("", ("method",), (), ()).text().split() == ["method", "------"]
