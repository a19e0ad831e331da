"""Exports say what the run says: in ONNX Runtime, in timm, and read back from a folder for the hub."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dissensus import backbones
from dissensus._core import extras
from dissensus._core.errors import DissensusError, RunError, UnknownNameError
from dissensus._core.outputs import assembling
from dissensus.backbones import engines, onnx_runtime, surgery
from dissensus.cli import main
from dissensus.detection import pretrained
from dissensus.detection.detector import Detector
from dissensus.detection.members import Outputs
from dissensus.detection.threshold import TENSORS, Threshold
from dissensus.export import EXPORTS, Written, checkpoint, export, graph, onnx, parity, register, targets
from dissensus.features import FeatureSet
from dissensus.functional import scores
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.models.norms import NORMS
from dissensus.training import new_ensemble
from dissensus.training._fit import fit
from dissensus.training.run import Run
from tests.conftest import blobs, linear
from tests.damage import sealed

needs_onnx = pytest.mark.skipif(bool(extras.missing("onnx")), reason="needs the extra onnx")
SIZE = 32
NAMES = ("ant", "bee", "cow")


def fitted(seed=0, members=4):
    """An ensemble on blobs that is sure of much and unsure of some."""
    return fit(linear(members, seed), blobs(noise=1.5), "deep-ensemble", epochs=8, lr=0.05, progress=False)


def of_images(name="lite0", layers=2, weights=None, members=3):
    """Members far apart, none of whose weights is what it began with."""
    backbone = backbones.create(name, weights, layers, size=SIZE)
    ensemble = Ensemble(backbone.new_tail(3), members=members)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in ensemble.parameters():
            value.add_(0.2 * torch.randn(value.shape, generator=generator))
    return Detector(ensemble, NAMES, backbone=backbone)


def pixels(count, seed=0):
    """Patches of colour, from flat to noisy."""
    generator = np.random.default_rng(seed)
    made = []
    for i in range(count):
        side = (1, 2, 4, 8, SIZE)[i % 5]
        small = generator.integers(256, size=(side, side, 3), dtype=np.uint8)
        made.append(np.asarray(Image.fromarray(small).resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
    return torch.from_numpy(np.stack(made))


@pytest.fixture
def run(tmp_path):
    """A calibrated run on features that name no trunk."""
    folder = tmp_path / "run"
    fit(linear(), blobs(noise=1.5), "sed-a2d", epochs=2, out=folder, progress=False)
    Detector.load(folder).calibrate(blobs(seed=1, noise=1.5), score="pds").save(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A calibrated run on lite0, one on features as they are, and PNG files to predict."""
    folder = tmp_path_factory.mktemp("photos")
    backbone = backbones.create("lite0", layers=1, size=SIZE)
    engine = engines.create("eager", backbone)
    about = {"backbone": backbone.describe()}
    train = FeatureSet.from_arrays(engine(pixels(60)), torch.arange(60) % 3, provenance=about)
    fit(new_ensemble(train, 3), train, "sed-a2d", epochs=3, out=folder / "run", progress=False)
    fit(new_ensemble(train, 3, norm="none"), train, "sed-a2d", epochs=3, out=folder / "raw", progress=False)
    held_out = FeatureSet.from_arrays(engine(pixels(60, seed=1)), provenance=about)
    Detector.load(folder / "run").calibrate(held_out, 0.1, "feature_norm+pds").save(folder / "run")
    for i, array in enumerate(pixels(12, seed=2).numpy()):
        Image.fromarray(array).save(folder / f"{i:02d}.png")
    return folder


# ONNX


@pytest.mark.slow
def test_a_run_of_int8_features_is_not_exported_with_a_float_trunk(photos, tmp_path):
    detector = Detector.load(photos / "run")
    detector.members.engine = "onnx-int8"
    with pytest.raises(DissensusError, match="the export runs the trunk in float32; this run was trained on"):
        onnx.write(detector, tmp_path / "detector.onnx")
    assert list(tmp_path.iterdir()) == []


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(301, 177), (177, 302), (96, 96)])
def test_the_recipe_of_the_document_makes_the_same_pixels(shape, photos, tmp_path, monkeypatch):
    detector = Detector.load(photos / "run")
    if not (photos / "detector.onnx").exists():
        onnx.write(detector, photos / "detector.onnx")
    monkeypatch.chdir(tmp_path)
    shutil.copy(photos / "detector.onnx", tmp_path)
    smooth = Image.fromarray(np.random.default_rng(0).integers(256, size=(6, 8, 3), dtype=np.uint8))
    smooth.resize(shape, Image.Resampling.BICUBIC).save("photo.jpg", quality=95)
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    recipe = next(part for part in text.split("\n\n    import json")[1:]).split("\n\nAnother")[0]
    found: dict[str, Any] = {}
    exec(textwrap.dedent("    import json" + recipe), found)
    expected = detector.predict(["photo.jpg"])
    assert found["label"][0] == expected.label[0]
    assert found["score"][0] == pytest.approx(float(expected.score[0]), abs=2e-3)  # a grey level in some pixels
    (again,) = re.findall(r"\n    (verdict = session\.run.*)\n", text)
    exec(again.replace("0.01", "1.0"), found)
    assert found["verdict"].tolist() == [True]


@needs_onnx
def test_every_score_survives_conversion_however_sure_the_members(tmp_path):
    class Every(torch.nn.Module):
        def forward(self, logits):
            return tuple(graph.plain(name)(logits) for name in names)

    for members, names in ((1, ["a2d", "unique"]), (4, list(scores.of_logits()))):
        made = onnx_runtime.convert(Every(), torch.zeros(members, 2, 7), ["logits"], names, axis=1)
        made.save(tmp_path / "scores.onnx")
        run = onnx_runtime.session(tmp_path / "scores.onnx")
        for scale in (0.0, 1.0, 30.0, 1e3, 1e4):
            logits = scale * torch.randn(members, 40, 7, generator=torch.Generator().manual_seed(1))
            for name, got in run(logits).items():
                expected = scores.SCORES[name](logits)
                assert got.shape == (40,)
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


CALIBRATIONS = {
    "plain": {"score": "bma"},
    "combined": {"score": ["pds", "average_entropy", "a2d"]},
    "combined by class": {"score": ["unique", "average_energy"], "by_class": True},
}


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", CALIBRATIONS)
def test_calibrated_scores_p_values_and_verdicts_are_the_same(kind, tmp_path):
    detector = Detector(fitted(), NAMES).calibrate(blobs(600, seed=1, noise=1.5), 0.1, **CALIBRATIONS[kind])
    onnx.write(detector, tmp_path / "d.onnx")
    run = onnx_runtime.session(tmp_path / "d.onnx")
    for count, seed in ((1, 2), (499, 3)):
        batch = blobs(count, seed=seed, noise=2.5).rows(slice(None))
        got, expected = run(batch), detector.predict(batch)
        parity.check(detector, detector.members(batch), got)
        assert torch.equal(got["label"], expected.label)
        assert (got["verdict"] == expected.out).double().mean() > 0.99
        assert ((got["p_value"] - expected.p_value).abs() <= 1e-4).double().mean() > 0.95
        assert torch.equal(
            run(batch, false_alarms=torch.tensor([[0.1]], dtype=torch.float64))["verdict"], got["verdict"]
        )
        rates = torch.linspace(0.02, 0.9, len(batch), dtype=torch.float64)[:, None]  # of each sample
        verdicts = run(batch, false_alarms=rates)["verdict"]
        assert torch.equal(verdicts, detector.threshold.calibrated.p_values(got["score"], got["label"]) <= rates[:, 0])
    assert 0.05 < expected.out.double().mean() < 0.9, "both verdicts must be seen"


@pytest.mark.parametrize("by_class", [False, True])
def test_a_rate_as_an_input_gives_the_verdicts_of_a_threshold_at_this_rate(by_class, monkeypatch):
    values, labels = torch.arange(300.0) // 9, torch.arange(300) % 3  # with ties
    threshold = Threshold.calibrate({"bma": values}, 0.1, labels if by_class else None, NAMES)
    rule, n = graph.Rule(threshold, {}), 100 if by_class else 300
    seen = torch.cat([torch.arange(-1.0, 36.0, 0.5), torch.tensor([torch.inf, -torch.inf])])
    label = torch.arange(len(seen)) % 3
    monkeypatch.setattr(rule, "_score", lambda values: seen)

    def verdicts(*rates):
        column = torch.tensor(rates, dtype=torch.float64)[:, None]
        return rule(torch.zeros(len(seen), 6), torch.zeros(2, len(seen), 3), label, column)[2]

    for rate in (threshold.calibrated.lowest, 0.05, 0.29, 7 / (n + 1), 0.5, n / (n + 1)):
        expected = seen > threshold.at(rate).limits(label)
        assert torch.equal(verdicts(rate), expected), rate
        assert torch.equal(verdicts(*[rate] * len(seen)), expected)
        assert expected.any()
    assert not verdicts(0.99 * threshold.calibrated.lowest).any(), "too few samples for any alarm"
    assert verdicts(1.0).all()
    assert verdicts(torch.nan).all(), "no rate, no all-clear"


@needs_onnx
@pytest.mark.parametrize("tail", ["linear", "mlp", "conv"])
@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_is_the_same_also_for_rows_without_direction(tail, norm, tmp_path):
    ensemble = Ensemble(tails.create(tail, 6, 3, norm), members=3)
    with torch.no_grad():
        for value in ensemble.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    onnx.write(Detector(ensemble, NAMES), tmp_path / "d.onnx")
    x = 5 * torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    x[0], x[1], x[2], x[3] = 0, 1000 / 3, 100 * x[5], 1e-6 * x[5]
    outputs = onnx_runtime.session(tmp_path / "d.onnx")(x)
    with torch.inference_mode():
        expected = ensemble(x)
    assert expected.isfinite().all()
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(outputs["logits"], expected.mean(0), **close)
    torch.testing.assert_close(outputs["member_probs"], expected.softmax(-1), **close)
    if norm == "l2":
        for row in (2, 3):
            torch.testing.assert_close(outputs["logits"][row], outputs["logits"][5], **close)


@needs_onnx
def test_another_tail_and_aggregate_and_no_calibration(tmp_path):
    detector = Detector(Ensemble(tails.create("mlp", 6, 3), members=3), NAMES, aggregate="vote")
    onnx.write(detector, tmp_path / "d.onnx")
    batch = blobs(50).rows(slice(None))
    got, expected = onnx_runtime.session(tmp_path / "d.onnx")(batch), detector.predict(batch)
    assert list(got) == ["label", "logits", "member_probs", "score"], "without a calibration there are no verdicts"
    assert torch.equal(got["label"], expected.label)
    torch.testing.assert_close(got["score"], expected.score, rtol=1e-4, atol=1e-4)


@needs_onnx
def test_a_tail_that_does_not_tell_its_width_is_refused(tmp_path):
    custom = torch.nn.Sequential(torch.nn.Linear(6, 3))
    with pytest.raises(DissensusError, match="features need a known width, and this detector has none"):
        onnx.write(Detector(Ensemble(custom, members=3), NAMES), tmp_path / "d.onnx")


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [("lite0", 2), ("test_vit2", 2)])
def test_five_hundred_images_agree_with_pytorch(name, layers, tmp_path):
    detector = of_images(name, layers, None if name == "lite0" else "random")
    engine, batch = engines.create("eager", detector.backbone), pixels(500)
    detector.calibrate(engine(pixels(100, seed=1)), 0.1, "pds", by_class=False)
    onnx.write(detector, tmp_path / "d.onnx")
    run = onnx_runtime.session(tmp_path / "d.onnx")
    parts = [run(some) for some in batch.split(200)]
    got = {key: torch.cat([part[key] for part in parts], int(key == "member_probs")) for key in parts[0]}
    outputs = onnx.outputs_of(detector, batch, images=True)
    logits, expected = outputs.logits, detector.predict_outputs(outputs)
    torch.testing.assert_close(got["logits"], logits.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got["member_probs"], logits.softmax(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(got["score"], expected.score, rtol=0, atol=1e-4)
    assert (got["verdict"] == expected.out).double().mean() > 0.99
    parity.check(detector, outputs, got)


@needs_onnx
@pytest.mark.slow
def test_the_file_says_what_it_is(tmp_path):
    import onnxruntime

    detector = of_images("test_vit", 2, "random")
    detector.calibrate(engines.create("eager", detector.backbone)(pixels(60)), 0.1, "pds")
    onnx.write(detector, tmp_path / "d.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "d.onnx", providers=["CPUExecutionProvider"])
    (entry,), (rate,) = session.get_inputs(), session.get_overridable_initializers()
    assert (entry.name, entry.type, entry.shape) == ("images", "tensor(uint8)", ["batch", SIZE, SIZE, 3])
    assert (rate.name, rate.type, rate.shape) == ("false_alarms", "tensor(double)", ["false_alarms", 1])
    shapes = {output.name: output.shape for output in session.get_outputs()}
    one = ["batch"]
    assert shapes == {
        "label": one, "logits": ["batch", 3], "member_probs": [3, "batch", 3], "score": one, "p_value": one,
        "verdict": one,
    }  # fmt: skip
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(NAMES)
    assert (about["score"], about["false_alarms"], about["input"]) == ("pds", "0.1", "images")
    assert json.loads(about["threshold"]) == pytest.approx(float(detector.threshold.calibrated.thresholds(0.1)[0]))
    assert json.loads(about["preprocessing"]) == {
        "resize": 33, "squash": False, "interpolation": "bicubic", "crop": 32, "mean": [0.5] * 3, "std": [0.5] * 3,
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.onnx"], "one file, and nothing beside it"
    assert (tmp_path / "d.onnx").stat().st_mode & 0o777 == 0o666 & ~_umask()
    onnx.write(detector, tmp_path / "d.onnx", images=False)  # over an earlier export
    got = onnx_runtime.session(tmp_path / "d.onnx")(torch.zeros(5, 64))
    assert got["verdict"].shape == (5,)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@needs_onnx
@pytest.mark.slow
def test_a_score_of_ones_own_is_exported_if_it_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "SCORES", scores.SCORES.copy())

    @scores.register
    def spread(logits):
        return logits.std(dim=0).mean(dim=-1)

    @scores.register
    def numpys(logits):
        return torch.from_numpy(logits.numpy().std(axis=(0, 2)))

    @scores.register
    def burnt(logits):
        return torch.stack([logits[:, i].std() for i in range(logits.shape[1])])

    ensemble, held_out = fitted(), blobs(300, seed=1)
    onnx.write(Detector(ensemble, NAMES).calibrate(held_out, score="spread"), tmp_path / "d.onnx")
    assert onnx_runtime.session(tmp_path / "d.onnx")(torch.zeros(3, 6))["verdict"].shape == (3,)
    for name in ("numpys", "burnt"):
        detector = Detector(ensemble, NAMES).calibrate(held_out, score=["pds", name])
        with pytest.raises(
            DissensusError, match=rf"consist of torch functions.*; {name} does not \(.*\): rewrite it"
        ) as caught:
            onnx.write(detector, tmp_path / "other.onnx")
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["d.onnx"]


@needs_onnx
@pytest.mark.parametrize("name", ["label", "logits", "member_probs", "score", "p_value", "verdict"])
def test_an_output_that_differs_is_refused(name):
    detector = Detector(fitted(), NAMES).calibrate(blobs(300, seed=1, noise=1.5), 0.1, "pds")
    outputs = detector.members(blobs(40, seed=2, noise=2.5).rows(slice(None)))
    logits, expected = outputs.logits, detector.predict_outputs(outputs)
    right = {
        "label": expected.label, "logits": logits.mean(0), "member_probs": logits.softmax(-1), "score": expected.score,
        "p_value": expected.p_value.float(), "verdict": expected.out,
    }  # fmt: skip
    parity.check(detector, outputs, right)
    wrong = {"label": 1 - right["label"], "verdict": ~right["verdict"]}.get(name, right[name] + 1e-2)
    with pytest.raises(DissensusError, match=f"an export must agree with PyTorch; its {name} differs"):
        parity.check(detector, outputs, {**right, name: wrong})


@needs_onnx
def test_a_difference_leaves_no_file(tmp_path, monkeypatch):
    detector = Detector(fitted(), NAMES)
    monkeypatch.setattr(
        onnx, "outputs_of", lambda *a, **k: Outputs(1.001 * detector.ensemble(a[1]).detach() + 0.01, a[1])
    )
    with pytest.raises(DissensusError, match="its logits differs by"):
        onnx.write(detector, tmp_path / "d.onnx")
    assert list(tmp_path.iterdir()) == []


# timm


@pytest.mark.parametrize(
    ("name", "layers", "weights"),
    [
        ("lite0", 1, None),
        ("lite0", 2, None),
        ("test_vit", 2, "random"),
        ("test_vit2", 2, "random"),
        ("test_vit2", 1, "random"),
        ("resnet10t", 1, "random"),
        ("mobilenetv3_small_050", 2, "random"),
        ("mobilenetv4_conv_small", 2, "random"),
    ],
)
def test_timm_loads_the_soup_and_classifies_with_it(name, layers, weights, tmp_path):
    detector = of_images(name, layers, weights)
    code = checkpoint.write(detector, tmp_path / "soup.safetensors")
    found = {"timm": timm}
    exec(code, found)  # what the command prints
    image = Image.fromarray(np.random.default_rng(0).integers(256, size=(50, 70, 3), dtype=np.uint8))
    x = detector.backbone.transform(image)
    difference = (found["transform"](image) - x).abs().max()
    assert difference < 0.05, "timm prepares the image as the detector does, up to some grey levels"
    with torch.inference_mode():
        expected = detector.ensemble.soup()(detector.backbone.trunk(x[None]))
        scale = float(expected.abs().max())
        torch.testing.assert_close(found["model"](x[None]), expected, rtol=0, atol=1e-4 * max(scale, 1))
        member = detector.ensemble.member(0)(detector.backbone.trunk(x[None]))
    assert (member - expected).abs().max() > 0.01 * max(scale, 1), "the soup is not just a member"
    with safe_open(tmp_path / "soup.safetensors", "pt") as file:
        assert json.loads(file.metadata()["classes"]) == list(NAMES)
    checkpoint.write(detector, tmp_path / "soup.safetensors")  # over an earlier export


def test_tails_that_timm_cannot_hold(tmp_path):
    out, remedy = tmp_path / "soup.safetensors", r": export it to onnx or hub"
    lite, vit = of_images("lite0", 1), of_images("test_vit", 2, "random")
    other = Detector(Ensemble(tails.create("mlp", 1280, 3), members=2), NAMES, backbone=lite.backbone)
    rule = r"timm is an export target that cannot hold the tail; lite0 ends in linear \(1280\), this run's members in "
    with pytest.raises(DissensusError, match=rule + r"mlp \(1280 over 5120, scaled\)" + remedy):
        checkpoint.write(other, out)
    scaled = Detector(Ensemble(tails.create("mlp", 64, 3), members=2), NAMES, backbone=vit.backbone)
    with pytest.raises(DissensusError, match="cannot hold the tail; test_vit ends in mlp"):
        checkpoint.write(scaled, out)
    with pytest.raises(DissensusError, match="trained on features that name no backbone" + remedy):
        checkpoint.write(Detector(linear(), NAMES), out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("norm", ["l2", "layer"])
def test_timm_has_no_place_for_a_norm(norm, tmp_path):
    backbone = backbones.create("test_vit", "random", layers=1, size=SIZE)
    detector = Detector(Ensemble(tails.create("linear", 64, 3, norm), members=2), NAMES, backbone=backbone)
    rule = (
        f"timm is an export target that cannot hold the tail; test_vit has no place for norm {norm}, which this run's "
        "members begin with: train with --norm none, or export it to onnx or hub"
    )
    with pytest.raises(DissensusError, match=f"^{re.escape(rule)}$"):
        checkpoint.write(detector, tmp_path / "soup.safetensors")
    assert not list(tmp_path.iterdir())
    raw = Detector(Ensemble(tails.create("linear", 64, 3, "none"), members=2), NAMES, backbone=backbone)
    checkpoint.write(raw, tmp_path / "soup.safetensors")


def test_a_soup_that_timm_would_run_otherwise_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(surgery, "join", lambda model, trunk, tail: None)
    with pytest.raises(DissensusError, match=r"cannot hold the tail; with it, timm's tf_efficientnet_lite0 differs"):
        checkpoint.write(of_images("lite0", 1), tmp_path / "soup.safetensors")
    assert list(tmp_path.iterdir()) == []


# hub


def same_verdicts(one, other, samples):
    a, b = one.predict(samples), other.predict(samples)
    for name in ("label", "confidence", "score", "votes", "p_value", "threshold", "out"):
        assert (getattr(a, name) is None) == (getattr(b, name) is None), name
        assert getattr(a, name) is None or torch.equal(getattr(a, name), getattr(b, name)), name
    assert a.classes == b.classes


def test_a_folder_for_the_hub_gives_the_same_verdicts(photos, tmp_path, monkeypatch):
    detector, out = Detector.load(photos / "run"), tmp_path / "mine"
    detector.save_pretrained(out)
    # the package that the weights came from is not needed any more
    monkeypatch.setattr(
        "dissensus.backbones.weights.from_package", lambda *_: pytest.fail("the trunk is in the folder")
    )
    again = Detector.from_pretrained(out)
    same_verdicts(detector, again, sorted(map(str, photos.glob("*.png"))))
    assert again.backbone.fingerprint == detector.backbone.fingerprint
    assert not again.was_trained_on(FeatureSet.from_arrays(torch.zeros(3, 1280)))
    assert again.trained_on == detector.trained_on
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert files == [
        "README.md", "config.json", next(out.glob(TENSORS)).name, "detector.json", "ensemble/ensemble.json",
        "ensemble/ensemble.safetensors", "ensemble/scores.safetensors", "trunk.safetensors",
    ]  # fmt: skip
    assert all(path.stat().st_mode & 0o044 for path in out.rglob("*.safetensors"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_run_on_features_goes_to_the_hub_too(run, tmp_path, calibrated):
    if not calibrated:
        (run / "detector.json").unlink()
    Detector.load(run).save_pretrained(tmp_path / "mine")
    again = Detector.from_pretrained(str(tmp_path / "mine"))
    same_verdicts(Detector.load(run), again, blobs(50, seed=3))
    assert (again.threshold is not None) == calibrated
    assert not (tmp_path / "mine" / "trunk.safetensors").exists()
    text = (tmp_path / "mine" / "README.md").read_text()
    assert ("The promise: on average over calibrations" in text) == calibrated
    assert ("Not calibrated" in text) != calibrated
    assert ("`nothing unusual`: its score is like those of ID samples" in text) == calibrated
    assert "Members are tails `linear` with norm `none`." in text
    assert "`mahalanobis`, `relative_mahalanobis`, `feature_norm`, `gaussian`, `knn`" in text
    assert "`knn` keeps 120 training features as they are." in text
    assert "(N, 6) float32" in text
    with pytest.raises(DissensusError, match="images need a trunk"):
        again.predict([Image.new("RGB", (8, 8))])


def test_the_card_has_the_runs_own_numbers(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", features=blobs().rows(slice(None)).numpy(), labels=blobs().labels.numpy())
    folder = tmp_path / "run"
    fit(linear(), blobs(), "sed-a2d", epochs=2, out=folder, progress=False)
    Detector.load(folder).save_pretrained(tmp_path / "before")
    assert "not evaluated" in (tmp_path / "before" / "README.md").read_text()
    from dissensus.evaluation import saved
    from dissensus.evaluation._evaluate import measure, predict_sets
    from dissensus.evaluation.suite import SuiteSet

    sets = [SuiteSet("id", "id", blobs(seed=1)), SuiteSet("new_ones", "ood", blobs(seed=2, noise=9.0))]
    ensemble = Ensemble.load(folder / "ensemble")
    samples = predict_sets(ensemble, sets, classes=blobs().classes)
    frame = measure(sets, samples, Run.open(folder).about)
    saved.save(folder, frame, sets, samples, suite="my|suite", classes=blobs().classes)
    Detector.load(folder).save_pretrained(tmp_path / "after")
    text = (tmp_path / "after" / "README.md").read_text()
    rows = frame[(frame["metric"] == "accuracy") & (frame["aggregate"] == "prediction") & (frame["dataset"] == "id")]
    assert f"| accuracy % | id | {100 * float(rows['value'].iloc[0]):.1f} |" in text
    rows = frame[(frame["metric"] == "auroc") & (frame["score"] == "gaussian")]
    assert f"| AUROC gaussian | new\\_ones | {float(rows['value'].iloc[0]):.3f} |" in text
    assert "On the suite my\\|suite:" in text
    card = ModelCard(text)
    assert card.data.library_name == "dissensus"
    assert card.data.license is None, "the license is the user's to choose"
    assert "No license is stated yet" in text
    assert isinstance(yaml.safe_load(text.split("---")[1]), dict)
    config = json.loads((tmp_path / "after" / "config.json").read_text())
    assert config["training"]["method"] == "sed-a2d"
    assert config["training"]["tail"] == {"name": "linear", "features": 6, "classes": 3, "norm": "none"}
    assert "norm none" in text


def test_paths_of_the_users_own_machine_are_not_published(tmp_path):
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "secret.safetensors")
    backbone = backbones.create("test_vit", tmp_path / "secret.safetensors", size=SIZE)
    rows = engines.create("eager", backbone)(pixels(12))
    features = FeatureSet.from_arrays(rows, torch.arange(12) % 3, provenance={"backbone": backbone.describe()})
    fit(new_ensemble(features, 2), features, "deep-ensemble", epochs=1, out=tmp_path / "run", progress=False)
    Detector.load(tmp_path / "run").save_pretrained(tmp_path / "mine")
    for path in tmp_path.glob("mine/*.*"):
        assert str(tmp_path).encode() not in path.read_bytes(), path.name
    again = Detector.from_pretrained(tmp_path / "mine")
    same_verdicts(Detector.load(tmp_path / "run"), again, [Image.new("RGB", (40, 40), "red")])


DAMAGE = {
    "trunk.safetensors": ("weights", r"trunk.safetensors is altered, its sha256 differs: export it again"),
    "ensemble/ensemble.safetensors": (
        "weights",
        r"ensemble.safetensors is altered, its sha256 differs: export it again",
    ),
    "ensemble/scores.safetensors": ("weights", r"the score feature_norm in .* is not the one that was saved: export"),
    "detector.json": ("gone", r"the calibration in .* is missing: there is no detector.json; export it again"),
    TENSORS: ("gone", r"there is no file .*detector-.*.safetensors: export it again"),
    "config.json": ("gone", r"the folder has no config.json; make one with dissensus export"),
}


@pytest.mark.parametrize("name", [*DAMAGE, "half a trunk", "half a config", "no trunk", "another backbone"])
def test_damaged_folders_are_refused(name, photos, tmp_path):
    out = tmp_path / "mine"
    Detector.load(photos / "run").save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    if name in DAMAGE:
        kind, message = DAMAGE[name]
        if kind == "gone":
            next(out.glob(name)).unlink()
        else:
            state = load_file(out / name)
            first = next(key for key, value in state.items() if value.is_floating_point())
            save_file({**state, first: state[first] + 1e-3}, out / name)
    elif name == "half a trunk":
        message = "trunk.safetensors is damaged .*: export it again"
        (out / "trunk.safetensors").write_bytes((out / "trunk.safetensors").read_bytes()[:1000])
    elif name == "no trunk":
        message = "there is no file .*trunk.safetensors: export it again"
        (out / "trunk.safetensors").unlink()
    elif name == "half a config":
        message = "config.json is damaged or of another version, aggregate: field required: export it again"
        (out / "config.json").write_text(sealed({k: v for k, v in config.items() if k != "aggregate"}))
    else:
        message = "trunk.safetensors does not fit the backbone of config.json"
        config["backbone"]["name"] = "test_vit"
        (out / "config.json").write_text(sealed(config))
    with pytest.raises(RunError, match=message) as caught:
        Detector.from_pretrained(out)
    assert "\n" not in str(caught.value)


# the command


def command(capsys, *arguments):
    try:
        code = main(["export", *map(str, arguments)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    output = capsys.readouterr()
    return code, output.out, output.err


def refuse(capsys, *arguments):
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    return err


@needs_onnx
def test_the_command_writes_each_kind(photos, tmp_path, capsys):
    run = photos / "run"
    code, out, err = command(capsys, run, "--to", "onnx", "--out", tmp_path / "new" / "d.onnx", "--input", "features")
    assert (code, out) == (0, f"{tmp_path / 'new' / 'd.onnx'}\n")
    assert "MB): for ONNX Runtime, checked against PyTorch" in err
    assert "warning" not in err
    code, out, err = command(capsys, photos / "raw", "--to", "timm", "--out", tmp_path / "s.safetensors")
    assert code == 0
    assert out.startswith("model = timm.create_model('tf_efficientnet_lite0', num_classes=3, checkpoint_path='")
    assert "mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)" in out
    assert "mean of 3 members' weights" in err
    code, out, err = command(capsys, run, "--to", "hub", "--out", tmp_path / "mine")
    assert (code, out) == (0, f"{tmp_path / 'mine'}\n")
    assert "hf upload OWNER/NAME" in err


def test_a_target_of_yours_takes_one_function(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(targets, "EXPORTS", EXPORTS.copy())

    @register("numpy")
    def to_numpy(run: Run, out: Path, *, input: str = "weights") -> Written:
        """The members' weights as one .npz file."""
        ensemble = Ensemble.load(run.ensemble_folder)
        np.savez(out, **{name: value.detach().numpy() for name, value in ensemble.stacked().items()})
        return Written(out, "for NumPy", f"numpy.load({str(out)!r}) # {input}")

    written = export(run, "numpy", tmp_path / "w.npz")
    assert np.load(tmp_path / "w.npz")["weight"].shape == (4, 3, 6)
    code, out, err = command(capsys, run, "--to", "numpy", "--out", tmp_path / "w.npz")
    assert (code, out) == (0, f"{written.code}\n")
    assert "MB): for NumPy" in err
    with pytest.raises(UnknownNameError, match="unknown export target 'nunpy': did you mean 'numpy'"):
        export(run, "nunpy", tmp_path / "w.npz")


def test_an_uncalibrated_run_is_reported(run, tmp_path, capsys):
    (run / "detector.json").unlink()
    code, _, err = command(capsys, run, "--to", "hub", "--out", tmp_path / "mine")
    assert code == 0
    assert f"{run} is not calibrated, so there are no p-values and no verdicts" in err


def test_misuse_is_one_line_and_leaves_nothing(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.onnx").write_text("no model")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "half").mkdir()
    unfinished = json.loads((run / "run.json").read_text()) | {"status": "running"}
    (tmp_path / "half" / "run.json").write_text(sealed(unfinished))
    before = sorted(tmp_path.rglob("*"))
    cases = [
        ([run, "--to", "onnx", "--out", "{}/d.pt"], "must name a file that ends in .onnx; got"),
        ([run, "--to", "onnx", "--out", ""], "--out must name something"),
        ([run, "--to", "onnx", "--out", "{}/notes.txt/d.onnx"], "cannot make the folder"),
        ([run, "--to", "onnx", "--out", "{}/d.onnx", "--input", "images"], "--input images needs a trunk"),
        ([run, "--to", "hub", "--out", "{}/d", "--input", "images"], "--input is not an option of --to hub"),
        ([run, "--to", "timm", "--out", "{}/s.safetensors"], "features that name no backbone"),
        ([run, "--to", "timm", "--out", "{}/other.safetensors"], "other.safetensors is something else"),
        ([run, "--to", "hub", "--out", "{}/notes.txt"], "notes.txt is a file: choose another --out"),
        ([run, "--to", "hub", "--out", run], "must be a new or an empty folder"),
        ([run, "--to", "hub", "--out", "/"], "--out must name a new folder"),
        ([run, "--to", "coreml", "--out", "{}/d"], "unknown export target 'coreml': known: hub, onnx, timm, triton"),
        (
            [run, "--to", "onx", "--out", "{}/d"],
            "unknown export target 'onx': did you mean 'onnx'? known: hub, onnx, timm, triton",
        ),
        ([run, "--to", "hub"], "--to hub writes a file or folder; got no --out: add --out PATH, or --push OWNER/NAME"),
        ([run, "--to", "timm"], "--to timm writes a file or folder; got no --out: add --out PATH"),
        ([run, "--to", "timm", "--push", "me/it"], "--push is not an option of --to timm: leave it out"),
        ([run, "--to", "hub", "--out", "{}/d", "--private"], "got no --push: add --push OWNER/NAME"),
        (["{}/nowhere", "--to", "hub", "--out", "{}/d"], "no such folder; train one with"),
        (["{}/half", "--to", "hub", "--out", "{}/d"], "is not finished"),
    ]
    if not extras.missing("onnx"):
        cases += [([run, "--to", "onnx", "--out", "{}/other.onnx"], "other.onnx is something else")]
    for arguments, message in cases:
        assert message in refuse(capsys, *[str(a).format(tmp_path) for a in arguments]), arguments
        assert sorted(tmp_path.rglob("*")) == before, arguments
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    output = refuse(capsys, run, "--to", "onnx", "--out", tmp_path / "d.onnx")
    assert "needs onnx, onnxscript, onnxruntime: pip install '.[onnx]'" in output


def test_what_cannot_be_written_is_reported_and_leaves_nothing(run, tmp_path, capsys, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pretrained.documents, "write", full)
    assert "cannot write" in refuse(capsys, run, "--to", "hub", "--out", tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_interrupted_export_leaves_nothing_and_a_killed_one_is_tidied_up(tmp_path):
    out = tmp_path / "mine"

    def interrupted():
        with assembling(out) as path:
            path.mkdir()
            (path / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".mine.01234567.tmp" / "mine").mkdir(parents=True)  # what kill -9 leaves
    (tmp_path / ".mine.01234567.tmp" / "mine" / "half").write_text("x")
    with assembling(out) as path:
        path.write_text("whole")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("mine", "whole")]


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_nothing_written(photos, tmp_path):
    code = "import sys; from dissensus.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["export", str(photos / "run"), "--to", "hub", "--out", str(tmp_path / "mine")]
    slow = "import dissensus.detection.card as card, time; card.create = lambda *a, **k: time.sleep(60); "
    child = subprocess.Popen([sys.executable, "-c", slow + code, *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".mine.*.tmp/mine/config.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err.strip()) == (130, "dissensus: stopped")
    assert list(Path(tmp_path).iterdir()) == []
