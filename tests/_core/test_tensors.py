"""Tensor files: what is written is read; a missing or damaged one is one line."""

from __future__ import annotations

import pytest
import torch

from dissensus._core import digests, tensors
from dissensus._core.errors import DataError, RunError


def test_what_is_written_is_read(tmp_path):
    values = {"a": torch.arange(6.0).view(2, 3).t(), "b": torch.tensor([1, 2])}
    tensors.write(tmp_path / "x.safetensors", values)
    again = tensors.read(tmp_path / "x.safetensors", remedy="")
    assert all(torch.equal(again[name], value) for name, value in values.items())
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("content", [b"", b"nothing", b"\xff" * 100, (2**62).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_is_one_line(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"x\.safetensors is damaged \(.*\): copy it again\Z") as caught:
        tensors.read(path, remedy="copy it again")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*x\.safetensors: copy it again\Z"):
        tensors.read(tmp_path / "x.safetensors", remedy="copy it again", error=DataError)
    with pytest.raises(RunError, match="there is no file"):
        tensors.read(tmp_path, remedy="copy it again")


def test_altered_values_and_the_values_of_another_file_are_noticed(tmp_path):
    path, values = tmp_path / "x.safetensors", {"a": torch.arange(6.0), "b": torch.tensor([True, False])}
    digest = tensors.write(path, values)
    assert digest == tensors.digest_of(tensors.read(path, remedy="", digest=digest))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for expected in (None, digest):
        with pytest.raises(RunError, match=r"x\.safetensors is altered, its sha256 differs: copy it\Z"):
            tensors.read(path, remedy="copy it", digest=expected)
    with digests.unverified():
        assert tensors.read(path, remedy="copy it", digest=digest)["a"].tolist() == values["a"].tolist()
    tensors.write(path, {**values, "a": values["a"] + 1})
    assert tensors.read(path, remedy="")["a"][0] == 1
    with pytest.raises(RunError, match="altered"):
        tensors.read(path, remedy="", digest=digest)


def test_the_file_that_is_replaced_may_be_kept(tmp_path):
    new, old = tmp_path / "new.safetensors", tmp_path / "old.safetensors"
    for value in range(3):
        tensors.write(new, {"a": torch.tensor(value)}, keep=old)
    assert [int(tensors.read(path, remedy="")["a"]) for path in (new, old)] == [2, 1]


def test_values_stay_if_the_file_is_altered_later(tmp_path):
    """A mapped file would change them, and a truncated one end the process by SIGBUS."""
    path = tmp_path / "x.safetensors"
    tensors.write(path, {"x": torch.ones(10_000)})
    values = tensors.read(path, remedy="")["x"]
    with open(path, "rb+") as file:
        file.seek(-40_000, 2)
        file.write(bytes(40_000))
    assert values.sum() == 10_000
