"""Engines: whichever runs the trunk, the features are the same, or close for int8."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from dissensus import backbones
from dissensus._core import extras
from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.backbones import engines, int8

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


def test_of_several_that_export_at_once_one_does_and_the_others_wait(vit, stub, tmp_path, monkeypatch):
    export, others = engines._export, []

    def slowly(module, batch, path):
        if not others:  # a thread is refused a lock like another process
            others.append(pool.submit(engines.create, "onnx", vit))
            with pytest.raises(TimeoutError):
                others[0].result(timeout=0.3)
        export(module, batch, path)

    monkeypatch.setattr(engines, "_export", slowly)
    with ThreadPoolExecutor(1) as pool:
        engines.create("onnx", vit)
        others[0].result()
    assert len(stub) == 1
    assert len(list((tmp_path / "onnx").iterdir())) == 1


@pytest.mark.parametrize("missing", [["onnxruntime"], ["onnx", "onnxscript", "onnxruntime"]])
def test_missing_packages_are_named_with_the_remedy(vit, monkeypatch, missing):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in missing else found(name, *rest)
    )
    for name in ("onnx", "onnx-int8"):
        with pytest.raises(
            DissensusError, match=rf"^engine {name} needs {', '.join(missing)}: pip install '\.\[onnx\]'"
        ):
            engines.create(name, vit)


def test_bad_engines_and_devices(vit, monkeypatch):
    with pytest.raises(UnknownNameError, match="unknown engine 'onx': did you mean 'onnx'"):
        engines.create("onx", vit)
    monkeypatch.setitem(extras.EXTRAS, "onnx", ())
    for name in ("onnx", "onnx-int8"):
        with pytest.raises(DissensusError, match=f"engine {name} runs on CPUs; got cuda: use --engine eager"):
            engines.create(name, vit, "cuda")


@needs_onnx
@pytest.mark.slow
def test_int8_is_close_to_eager_on_photographs_and_kept(cache):
    backbone = backbones.create("lite0", layers=1, size=64)
    run = engines.create("onnx-int8", backbone)
    batch = int8.photographs(64, 48)[-9:]  # not those of the calibration
    expected, got = engines.create("eager", backbone)(batch), run(batch)
    errors = (got - expected).norm(dim=1) / expected.norm(dim=1)
    assert 0.01 < errors.mean() < engines.INT8_TOLERANCE, "the trunk must be quantised, and well"
    torch.testing.assert_close(run(batch[:1]), got[:1], rtol=0, atol=1e-4)
    paths = exports(cache, backbone)
    assert [path.name.endswith("-int8.onnx") for path in paths] == [True, False]
    assert 3 * paths[0].stat().st_size < paths[1].stat().st_size, "weights of 8 bits"
    written = paths[0].stat().st_mtime_ns
    engines.create("onnx-int8", backbone)
    assert paths[0].stat().st_mtime_ns == written


def test_int8_that_differs_much_is_refused(vit, stub, monkeypatch):
    monkeypatch.setattr(int8, "quantise", lambda source, target, pixels: target.write_bytes(b"bad"))
    with pytest.raises(DissensusError, match=r"engine onnx-int8 differs from PyTorch by 1 for test_vit: use --engine"):
        engines.create("onnx-int8", vit)


def test_photographs_are_different_crops_and_always_the_same():
    crops = int8.photographs(32, 6)
    assert crops.shape == (6, 32, 32, 3)
    assert crops.dtype == torch.uint8
    assert len({crop.numpy().tobytes() for crop in crops}) == 6
    assert torch.equal(crops, int8.photographs(32, 6))
    assert int8.photographs(600, 2).shape == (2, 600, 600, 3), "larger than the photographs"


@pytest.fixture
def graphs(monkeypatch):
    """A compiler that runs graphs as they are and counts them."""
    torch._dynamo.reset()
    made = []

    def compiler(graph, inputs):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(engines, "COMPILER", compiler)
    yield made
    torch._dynamo.reset()


def test_compile_compiles_once_whatever_the_batch(vit, graphs, monkeypatch):
    monkeypatch.setattr(engines, "AT_ONCE", 9 * vit.transform.size**2)  # so that batches are split, 9 at a time
    run, eager = (engines.create(engine, vit) for engine in ("compile", "eager"))
    for count in (1, 2, 5, 9, 10, 20):
        batch = pixels(vit, count, seed=count)
        torch.testing.assert_close(run(batch), eager(batch), rtol=0, atol=1e-5)
    assert len(graphs) == 1


def test_a_compiler_that_fails_is_one_line(vit, monkeypatch):
    def compiler(graph, inputs):
        raise RuntimeError("No working C++ compiler found\nin a long trace")

    torch._dynamo.reset()
    monkeypatch.setattr(engines, "COMPILER", compiler)
    with pytest.raises(
        DissensusError, match=r"engine compile could not compile test_vit \(.*No working C\+\+"
    ) as caught:
        engines.create("compile", vit)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("install a C++ compiler such as g++, or use --engine eager")
    torch._dynamo.reset()


def test_a_compiler_that_computes_something_else_is_refused(vit, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(
        engines, "COMPILER", lambda graph, inputs: lambda *given: [value + 1 for value in graph.forward(*given)]
    )
    with pytest.raises(DissensusError, match=r"engine compile differs from PyTorch by .* for test_vit"):
        engines.create("compile", vit)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_the_compiler_of_pytorch(vit):
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    small = dataclasses.replace(vit, trunk=trunk)
    torch._dynamo.reset()
    run, eager = (engines.create(engine, small) for engine in ("compile", "eager"))
    for count in (1, 3):
        torch.testing.assert_close(run(pixels(small, count)), eager(pixels(small, count)), rtol=0, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("eager", "onnx", True),
        ("compile", "eager", True),
        ("onnx-int8", "onnx-int8", True),
        ("onnx-int8", "onnx", False),
        ("eager", "onnx-int8", False),
    ],
)
def test_features_of_int8_are_not_mixed_with_others(one, other, same):
    assert engines.interchangeable(one, other) is same


def test_features_depend_on_neither_threads_nor_batches():
    """Images are computed by one thread each, and single images as in a batch; other threads keep their number."""
    backbone = backbones.create("resnet10t", "random", layers=1, size=48)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (21, 48, 48, 3), np.uint8))
    before = torch.get_num_threads()
    try:
        runs = {}
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs[threads] = engines.create("eager", backbone)
            assert torch.equal(runs[threads](pixels), runs[1](pixels))
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == threads
        whole = runs[1](pixels)
        for size in (1, 2, 3, 5, 8):
            assert torch.equal(torch.cat([runs[3](part) for part in torch.split(pixels, size)]), whole)
    finally:
        torch.set_num_threads(before)
