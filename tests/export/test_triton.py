"""Models for Triton: what config.pbtxt says is what the file does, by Triton's own schema."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from dissensus._core import extras
from dissensus.backbones import onnx_runtime
from dissensus.detection.detector import Detector
from dissensus.export import export, triton
from dissensus.training._fit import fit
from tests.conftest import blobs, linear
from tests.export.test_export import command, refuse

pytestmark = pytest.mark.skipif(bool(extras.missing("onnx")), reason="needs the extra onnx")
TYPES = {"TYPE_UINT8": "tensor(uint8)", "TYPE_FP32": "tensor(float)", "TYPE_FP64": "tensor(double)",
         "TYPE_INT64": "tensor(int64)", "TYPE_BOOL": "tensor(bool)"}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton") / "run"
    fit(linear(), blobs(noise=1.5), "sed-a2d", epochs=2, out=folder, progress=False)
    Detector.load(folder).calibrate(blobs(300, seed=1, noise=1.5), 0.1, "mahalanobis+pds").save(folder)
    return folder


@pytest.fixture(scope="module")
def model(run):
    export(run, "triton", run.parent / "models" / "blobs")
    return run.parent / "models" / "blobs"


def schema() -> Any:
    """Triton's protobuf classes, without importing gRPC, which the package around them needs."""
    found = importlib.util.find_spec("tritonclient")
    assert found is not None
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # made by an older protobuf
        spec.loader.exec_module(module)
    return module


def parse(text: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(text, schema().ModelConfig())


def test_the_configuration_is_that_of_the_file(model):
    config = parse((model / "config.pbtxt").read_text())
    assert (config.platform, config.max_batch_size) == ("onnxruntime_onnx", 64)
    assert config.HasField("dynamic_batching")
    assert not config.name, "Triton takes the name of the folder, which may be renamed"
    session = onnxruntime.InferenceSession(model / "1" / "model.onnx")
    assert not session.get_overridable_initializers(), "Triton refuses optional inputs where it batches"
    for told, there in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [entry.name for entry in told] == [entry.name for entry in there]
        for entry, tensor in zip(told, there, strict=True):
            assert not isinstance(tensor.shape[0], int), "the first axis is the batch"
            assert (list(entry.dims), TYPES[schema().DataType.Name(entry.data_type)]) == (tensor.shape[1:], tensor.type)
    about = {key: value.string_value for key, value in config.parameters.items()}
    assert about == session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["0", "1", "2"]
    assert about["lowest_false_alarms"] == repr(1 / 151)  # a half calibrates the combination
    assert sorted(path.name for path in model.rglob("*")) == ["1", "config.pbtxt", "model.onnx"]


@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_requests_that_triton_joins_get_what_the_detector_says(rate, run, model):
    detector = Detector.load(run)
    detector.threshold = detector.threshold.at(rate)
    batch = blobs(40, seed=3, noise=2.5).rows(slice(None))
    rates = torch.full((40, 1), rate, dtype=torch.float64)
    session = onnx_runtime.session(model / "1" / "model.onnx")
    whole = session(batch, false_alarms=rates)
    expected, logits = detector.predict(batch), detector.members(batch).logits
    assert whole["member_probs"].shape == (40, 4, 3)
    torch.testing.assert_close(whole["member_probs"].transpose(0, 1), logits.softmax(-1), rtol=1e-4, atol=1e-4)
    assert torch.equal(whole["label"][:, 0], expected.label)
    clear = (expected.score - expected.threshold).abs() > 1e-3
    assert torch.equal(whole["verdict"][clear, 0], expected.out[clear])
    assert expected.out.any()
    assert not expected.out.all()
    parts = [session(batch[at], false_alarms=rates[at]) for at in (slice(0, 1), slice(1, 40))]
    for name, value in whole.items():
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), value, rtol=1e-5, atol=1e-5)


def test_names_of_classes_survive_the_text_format():
    for name in ("é 犬", 'a "b" \\n', "line\nend", "\x1b[31m"):
        config = parse(f"parameters {{ key: {triton._text(name)} value {{ string_value: {triton._text(name)} }} }}")
        assert {key: value.string_value for key, value in config.parameters.items()} == {name: name}


def test_the_command_says_how_to_start_triton_and_refuses_a_folder_in_use(run, model, tmp_path, capsys):
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert "must be a new or an empty folder" in refuse(capsys, run, "--to", "triton", "--out", model)
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == before
    line = refuse(capsys, run, "--to", "triton", "--out", tmp_path / "m", "--input", "images")
    assert "--input images needs a trunk" in line
    assert list(tmp_path.iterdir()) == []
    (run / "detector.json").rename(run / "kept.json")
    try:
        code, out, err = command(capsys, run, "--to", "triton", "--out", tmp_path / "m")
    finally:
        (run / "kept.json").rename(run / "detector.json")
    assert (code, out) == (0, f"tritonserver --model-repository={tmp_path}\n")
    assert "is not calibrated, so there are no p-values and no verdicts" in err
    config = parse((tmp_path / "m" / "config.pbtxt").read_text())
    assert [entry.name for entry in config.input] == ["features"], "without a calibration there is no rate"
    assert [entry.name for entry in config.output] == ["label", "logits", "member_probs", "score"]
