"""Cells of CSV files: none begins a formula, and names come back."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus._core.cells import FORMULA, from_cell, from_cells, to_cell, to_cells

TEXT = st.text("'=+-@\t\rab1 ", max_size=6)


@given(TEXT)
def test_no_cell_begins_a_formula_and_names_come_back(text):
    assert not to_cell(text).startswith(FORMULA)
    assert from_cell(to_cell(text)) == text


@pytest.mark.parametrize("text", ["cat.jpg", "'quoted'", "", "a=b", "5"])
def test_other_texts_stay(text):
    assert to_cell(text) == text == from_cell(text)


def test_frames_keep_their_numbers():
    frame = pd.DataFrame(
        {"=path": ["=1+1", "'-x", float("nan")], "score": [-0.5, 1.0, float("nan")], "out": [True, False, True]}
    )
    text = to_cells(frame).to_csv(index=False)
    assert text.splitlines()[:3] == ["'=path,score,out", "'=1+1,-0.5,True", "''-x,1.0,False"]
    pd.testing.assert_frame_equal(from_cells(pd.read_csv(io.StringIO(text))), frame, check_dtype=False)
