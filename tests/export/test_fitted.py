"""Fitted scores in ONNX: far away, at zero, as maps and tokens, with a reason where one cannot be exported."""

from __future__ import annotations

import json

import pytest
import torch

from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus.backbones import onnx_runtime
from dissensus.detection.detector import Detector
from dissensus.export import graph, onnx, parity
from dissensus.features import FeatureSet
from dissensus.functional import conformal, scores
from dissensus.functional.fitted import FittedScore, Rows
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from dissensus.training.scoring import fit_scores
from tests.conftest import blobs, linear

pytestmark = pytest.mark.skipif(bool(extras.missing("onnx")), reason="needs the extra onnx")
DEFAULT = "4*mahalanobis+2*ensemble_entropy+feature_norm"
NAMES = ("ant", "bee", "cow")


@pytest.fixture(scope="module")
def ensemble():
    return fit(linear(), blobs(noise=1.5), "deep-ensemble", epochs=8, lr=0.05, progress=False)


def calibrated(ensemble, score, by_class=False):
    return Detector(ensemble, NAMES).calibrate(blobs(600, seed=1, noise=1.5), 0.1, score, by_class=by_class)


def rows(count, seed=3):
    """Samples like the training samples, beside some far away, too large, and zero."""
    x = blobs(count, seed=seed, noise=2.5).rows(slice(None))
    x[1::4] *= 100
    x[2::8] = 0
    return x


@pytest.mark.parametrize("score", [DEFAULT, "knn", "vim+relative_mahalanobis", "mahalanobis"])
def test_scores_p_values_and_verdicts_are_the_same(score, ensemble, tmp_path):
    detector = calibrated(ensemble, score)
    onnx.write(detector, tmp_path / "d.onnx")
    run = onnx_runtime.session(tmp_path / "d.onnx")
    for count in (1, 2, 13, 400):
        batch = rows(count)
        got, expected = run(batch), detector.predict(batch)
        parity.check(detector, detector.members(batch), got)
        clear = (expected.score - expected.threshold).abs() > 1e-3 * expected.score.abs().clamp(min=1)
        assert torch.equal(got["verdict"][clear], expected.out[clear])
    assert ((got["score"] - expected.score).abs() <= 1e-3 * expected.score.abs().clamp(min=1)).double().mean() > 0.95
    assert 0.05 < expected.out.double().mean() < 0.95, "both verdicts must be seen"


def test_far_away_samples_are_out_by_the_tail(ensemble, tmp_path):
    detector = calibrated(ensemble, DEFAULT)
    onnx.write(detector, tmp_path / "d.onnx")
    run = onnx_runtime.session(tmp_path / "d.onnx")
    near = blobs(50, seed=2, noise=1.5).rows(slice(None))
    got = [run(scale * near) for scale in (100.0, 1e3, 1e4)]
    assert all(bool(one["verdict"].all()) for one in got)
    assert (got[0]["score"] < got[1]["score"]).all(), "beyond the largest reference, farther away scores higher"
    assert (got[1]["score"] < got[2]["score"]).all()
    assert run(torch.zeros(2, 6))["verdict"].all()


def test_by_class_and_metadata(ensemble, tmp_path):
    import onnxruntime

    detector = calibrated(ensemble, DEFAULT, by_class=True)
    onnx.write(detector, tmp_path / "d.onnx")
    about = onnxruntime.InferenceSession(tmp_path / "d.onnx").get_modelmeta().custom_metadata_map
    assert about["score"] == DEFAULT
    assert len(json.loads(about["threshold"])) == 3
    batch = rows(200)
    parity.check(detector, detector.members(batch), onnx_runtime.session(tmp_path / "d.onnx")(batch))


def test_an_uncalibrated_detector_exports_its_first_score(ensemble, tmp_path):
    detector = Detector(ensemble, NAMES)
    assert detector.score_name == "gaussian"
    onnx.write(detector, tmp_path / "d.onnx")
    batch = rows(20)
    got = onnx_runtime.session(tmp_path / "d.onnx")(batch)
    assert list(got) == ["label", "logits", "member_probs", "score"]
    torch.testing.assert_close(got["score"], detector.predict(batch).score, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "tail"), [((6, 2, 3), "conv"), ((5, 6), "mlp")])
def test_maps_and_tokens_are_averaged(shape, tail):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, *shape, generator=generator) + torch.arange(90).float().view(-1, *[1] * len(shape)) % 3
    features = FeatureSet.from_arrays(x, torch.arange(90) % 3)
    ensemble = Ensemble(tails.create(tail, 6, 3), members=2)
    fit_scores(ensemble, features)
    for name in ensemble.fitted:
        score = graph.Score(name, ensemble.fitted)
        logits = ensemble(x).detach()
        torch.testing.assert_close(score(x, logits), ensemble.fitted[name](x, logits), rtol=1e-5, atol=1e-5)


def test_the_file_is_single_precision_and_the_detector_stays_as_it_is(tmp_path):
    features = FeatureSet.from_arrays(blobs(noise=1.5).rows(slice(None)), blobs().labels)
    ensemble = fit(linear(), features, "deep-ensemble", epochs=1, progress=False)
    mahalanobis = scores.of_features()["mahalanobis"]
    double = features.rows(slice(None)).double()
    source = type("Doubles", (), {
        "__len__": lambda self: len(double), "batches": lambda self, n: iter([(double, slice(0, len(double)))]),
    })()  # fmt: skip
    ensemble.fitted["mahalanobis"] = mahalanobis(mahalanobis.fit(Rows(source, features.labels, 3), features.labels))
    detector = calibrated(ensemble, "mahalanobis+pds")
    exported = graph.Graph(detector, images=False)
    (score, _) = exported.scores
    assert {value.dtype for value in score.fitted.state_dict().values()} == {torch.float32}
    assert {value.dtype for value in ensemble.fitted["mahalanobis"].state_dict().values()} == {torch.float64}
    onnx.write(detector, tmp_path / "d.onnx")


def test_the_tail_of_the_evidence_is_that_of_the_detector(ensemble):
    detector = calibrated(ensemble, DEFAULT)
    rule = graph.Rule(detector.threshold, ensemble.fitted)
    for i, reference in enumerate(detector.threshold.references):
        values = torch.cat([reference, reference[-1] * torch.tensor([1.5, 2.0, 1e6]), torch.tensor([torch.inf])])
        expected = conformal.Evidence.of(reference)(values)
        torch.testing.assert_close(rule._evidence(i, values), expected, rtol=1e-12, atol=1e-12)


def test_a_score_that_cannot_be_exported_is_refused_with_its_reason(ensemble, tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "SCORES", scores.SCORES.copy())

    @scores.register
    class Elsewhere(FittedScore):
        name = "elsewhere"
        exportable = False
        why_not = "another library computes it"

        @classmethod
        def fit(cls, features, labels):
            return {}

        def forward(self, features, logits):
            return features.norm(dim=1)

    monkeypatch.setitem(ensemble.fitted, "elsewhere", Elsewhere({}))
    detector = calibrated(ensemble, "mahalanobis+elsewhere")
    with pytest.raises(
        DissensusError, match=r"; elsewhere does not \(another library computes it\): calibrate with another, or export"
    ) as caught:
        onnx.write(detector, tmp_path / "d.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_score_that_fails_to_trace_is_named(ensemble, tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "SCORES", scores.SCORES.copy())

    @scores.register
    class Numpys(FittedScore):
        name = "numpys"

        @classmethod
        def fit(cls, features, labels):
            return {}

        def forward(self, features, logits):
            return torch.from_numpy(features.numpy().std(axis=1))

    monkeypatch.setitem(ensemble.fitted, "numpys", Numpys({}))
    detector = calibrated(ensemble, "mahalanobis+numpys")
    with pytest.raises(DissensusError, match=r"consist of torch functions.*; numpys does not \("):
        onnx.write(detector, tmp_path / "d.onnx")
