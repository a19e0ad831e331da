"""JSON and YAML of others: deep, cyclic, exploding or endless, they are one line."""

from __future__ import annotations

import json

import pytest

from dissensus._core import parsing
from dissensus._core.errors import DissensusError
from tests.commands import refuse

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 10))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))
BAD_YAML = {
    "[" * 100_000: "nested more than 50 deep",
    "{a: " * 50_000: "nested more than 50 deep",
    "? " * 100_000: "nested more than 50 deep",
    LAUGHS: "more than 100,000 values, with every alias written out",
    MERGES: "more than 100,000 values, with every alias written out",
    CHAIN: "nested more than 50 deep",
    "a: &a [*a]": "line 1: an alias stands for what it is in",
    "a: &a {b: *a}": "an alias stands for what it is in",
    "a: *b": "found undefined alias",
    "a: 1\na: 2": "line 2: 'a' is given twice",
    "a: 0x" + "f" * 100: "an integer of more than 64 bits",
    "a: 0x" + "f" * 80: "an integer of more than 64 bits",
    "a: " + "1:" * 50_000 + "1": "an integer of more than 64 bits",
    "a: !!python/object/apply:os.system [x]": "line 1: values have no tags",
    "a: !!bool x": "values have no tags",
    "a: !!int ''": "values have no tags",
    "a: !!timestamp x": "values have no tags",
    "a: 2024-13-45": "month must be",
    "a: \x1b": "special characters are not allowed",
    "a: b\n" * 100_000: "up to 262,144 bytes",
}


@pytest.mark.parametrize("text", BAD_YAML, ids=[text[:12] for text in BAD_YAML])
def test_bad_yaml_is_one_line(text, tmp_path, capsys):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(DissensusError, match=BAD_YAML[text]) as caught:
        parsing.read_yaml(path, "a YAML file is needed")
    assert len(str(caught.value)) < 400 + len(str(path))
    assert BAD_YAML[text] in refuse(capsys, "train", "x", "--out", tmp_path / "out", "--config", path)


def test_good_yaml_may_have_aliases(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {lr: 1e-3, n: 0x1f}\nb: {<<: *a, c: [*a, *a]}\n")
    a = {"lr": 0.001, "n": 31}
    assert parsing.read_yaml(path, "") == {"a": a, "b": {**a, "c": [a, a]}}


def test_a_device_is_not_read_without_end(capsys, tmp_path):
    line = refuse(capsys, "train", "x", "--out", tmp_path / "out", "--config", "/dev/zero")
    assert "/dev/zero must be a YAML file of up to 262,144 bytes" in line


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff", b" " * 2**21, b"", b"nan"])
def test_bad_json_is_a_value_error(data):
    with pytest.raises(ValueError, match=r".") as caught:
        parsing.json_value(data)
    assert len(str(caught.value)) < 200


def test_good_json():
    assert parsing.json_value(json.dumps({"label": [1, None]}).encode()) == {"label": [1, None]}
