"""Engines: whichever runs the trunk, the features are the same."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from dissensus import backbones
from dissensus._core import extras
from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.backbones import engines

needs_onnx = pytest.mark.skipif(bool(extras.missing("onnx")), reason="needs the extra onnx")
KINDS = {"lite0": None, "test_vit": "random"}  # name -> weights


@pytest.fixture(scope="module")
def vit():
    return backbones.create("test_vit", "random")


def pixels(backbone, count, seed=0):
    side = backbone.transform.size
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, side, side, 3), dtype=torch.uint8, generator=generator)


def exports(cache, backbone):
    return sorted((cache / "onnx").glob(f"{backbone.name}-{backbone.fingerprint[:16]}-*"))


def test_eager_is_the_trunk_on_normalised_images(vit):
    batch = pixels(vit, 3)
    got = engines.create("eager", vit)(batch)
    with torch.inference_mode():
        expected = vit.trunk(vit.transform.normalise(batch).contiguous())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert got.dtype == torch.float32
    assert got.is_contiguous()


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_onnx_equals_eager_whatever_the_batch_and_whatever_was_in_the_cache(name, cache):
    """A damaged export, which lies in the ViT's place, is made again."""
    backbone = backbones.create(name, KINDS[name])
    path = cache / "onnx" / f"{name}-{backbone.fingerprint[:16]}-torch{torch.__version__}.onnx"
    if name == "test_vit":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"cut short")
    eager, onnx = (engines.create(engine, backbone) for engine in ("eager", "onnx"))
    assert exports(cache, backbone) == [path], "nothing is left beside it"
    for count in (1, 2, 5):
        batch = pixels(backbone, count, seed=count)
        expected, got = eager(batch), onnx(batch)
        assert got.shape == (count, *backbone.shape)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)


@pytest.fixture
def stub(vit, monkeypatch, tmp_path):
    """An exporter that writes b"good", and a runtime that computes zeros of anything else; counts exports."""
    monkeypatch.setenv("DISSENSUS_CACHE", str(tmp_path))
    monkeypatch.setitem(extras.EXTRAS, "onnx", ())
    made = []

    def export(module, batch, path):
        made.append(path)
        path.write_bytes(b"good")

    def session(path):
        factor = 1.0 if path.read_bytes() == b"good" else 0.0
        return lambda batch: factor * engines.create("eager", vit)(batch)

    monkeypatch.setattr(engines, "_export", export)
    monkeypatch.setattr(engines, "_session", session)
    return made


def test_an_export_is_kept_and_an_unexpected_one_made_again(vit, stub, tmp_path):
    engines.create("onnx", vit)
    engines.create("onnx", vit)
    assert len(stub) == 1, "the kept file was not used"
    (path,) = exports(tmp_path, vit)
    path.write_bytes(b"other")
    engines.create("onnx", vit)
    assert len(stub) == 2, "an export of something else was taken for this trunk's"
    assert path.read_bytes() == b"good"


def test_an_export_that_differs_is_refused(vit, stub, monkeypatch):
    monkeypatch.setattr(engines, "_export", lambda module, batch, path: path.write_bytes(b"bad"))
    with pytest.raises(DissensusError, match=r"engine onnx differs from PyTorch by .* for test_vit: use --engine"):
        engines.create("onnx", vit)


def test_several_processes_may_export_at_once(vit, stub, tmp_path, monkeypatch):
    """Another process begins and ends its export while this one is in the middle of its own."""
    export, here = engines._export, os.getpid()

    def slowly(module, batch, path):
        export(module, batch, path)
        if os.getpid() == here:
            monkeypatch.setattr(os, "getpid", lambda: here + 1)
            engines.create("onnx", vit)
            monkeypatch.setattr(os, "getpid", lambda: here)

    monkeypatch.setattr(engines, "_export", slowly)
    engines.create("onnx", vit)
    assert len(set(stub)) == 2
    assert len(list((tmp_path / "onnx").iterdir())) == 1


@pytest.mark.parametrize("missing", [["onnxruntime"], ["onnx", "onnxscript", "onnxruntime"]])
def test_missing_packages_are_named_with_the_remedy(vit, monkeypatch, missing):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in missing else found(name, *rest)
    )
    with pytest.raises(DissensusError, match=rf"needs {', '.join(missing)}: pip install '\.\[onnx\]'"):
        engines.create("onnx", vit)


def test_bad_engines_and_devices(vit, monkeypatch):
    with pytest.raises(UnknownNameError, match="unknown engine 'onx': did you mean 'onnx'"):
        engines.create("onx", vit)
    monkeypatch.setitem(extras.EXTRAS, "onnx", ())
    with pytest.raises(DissensusError, match="engine onnx runs on CPUs; got cuda: use --engine eager"):
        engines.create("onnx", vit, "cuda")
