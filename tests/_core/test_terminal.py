"""Text for terminals: nothing that controls them comes through."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus._core.terminal import printable, say, show

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x00\u202egpj\u2028\udcff"
ANY = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("photos/cat 1.jpg", "photos/cat 1.jpg"),
        ("δύο 二 👩‍🔬.png", "δύο 二 👩‍🔬.png"),
        ("a\tb\nc\rd", "a\\tb\\nc\\rd"),
        (EVIL, r"\x1b[2J\x1b]0;title\x07\x9b31m\r\x00\u202egpj\u2028\udcff"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_printable(text, expected):
    assert printable(text) == expected


@given(ANY)
def test_whatever_the_text_one_line_without_control_characters(text):
    shown = printable(text)
    shown.encode("utf-8")
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert printable(shown) == shown
    assert len(shown.splitlines()) <= 1


def test_say_prints_one_line_and_show_keeps_the_lines_of_a_table(capsys):
    say(f"cannot read {EVIL}\nnow")
    show(f"a\tb\n{EVIL}", end="")
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert out == f"a\tb\n{printable(EVIL)}"
    assert "\x1b" not in out + err
