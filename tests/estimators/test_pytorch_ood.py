"""Our ensembles behind pytorch-ood's API: its metrics and its benchmark protocol run them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from pytorch_ood.api import Detector, ModelNotSetException, RequiresFittingException
from pytorch_ood.benchmark import Benchmark
from pytorch_ood.metrics import OODMetrics
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

import dissensus
from dissensus._core.errors import DataError, DissensusError
from dissensus.estimators import DissensusClassifier, EnsembleDetector, pytorch_ood
from dissensus.functional import checks
from dissensus.images import ImageSet
from dissensus.training import fit, new_ensemble
from tests.conftest import blobs
from tests.trees import classes
from website import reference

QUICK = {"members": 2, "epochs": 15, "lr": 0.05, "batch_size": 32}


class Blobs(Benchmark):
    """Two OOD sets beside the blobs, as benchmarks of pytorch-ood have them: OOD samples have the label -1."""

    ood_names = ("away", "further")

    def train_set(self):
        features = blobs(200)
        return TensorDataset(features.rows(slice(None)), features.labels)

    def test_sets(self, known=True, unknown=True):
        test, generator = blobs(seed=1), torch.Generator().manual_seed(3)
        inside = TensorDataset(test.rows(slice(None)), test.labels)
        outside = [scale * torch.randn(60, 6, generator=generator) for scale in (4, 8)]
        return [ConcatDataset([inside, TensorDataset(x, torch.full((60,), -1))]) for x in outside]


def test_their_benchmark_runs_an_ensemble_trained_by_fit():
    benchmark = Blobs()
    detector = EnsembleDetector(nn.Identity(), **QUICK, norm="none").to("cpu")
    assert isinstance(detector, Detector)
    with pytest.raises(RequiresFittingException):
        detector.predict_features(torch.zeros(2, 6))
    loader = DataLoader(benchmark.train_set(), batch_size=50)
    assert detector.fit(loader) is detector
    away, further = benchmark.evaluate(detector, loader_kwargs={"batch_size": 64})
    assert (away["Dataset"], further["Dataset"]) == Blobs.ood_names
    assert 0.9 < away["AUROC"] <= further["AUROC"]
    # the score is the classifier's, and in their direction
    x, y = next(iter(DataLoader(benchmark.test_sets()[0], batch_size=500)))
    score = detector(x)
    ours = DissensusClassifier(**QUICK, norm="none", standardize=False, random_state=0)
    ours.fit(*(part.numpy() for part in benchmark.train_set().tensors))
    np.testing.assert_allclose(score.numpy(), ours.ood_score(x.numpy()), rtol=1e-6)
    assert score[y < 0].mean() > score[y >= 0].mean()
    result = OODMetrics().update(score, y).compute()
    assert result["AUROC"] == pytest.approx(away["AUROC"], abs=1e-6)


def test_features_alone_and_labels_below_zero():
    features = blobs(120)
    x, y = features.rows(slice(None)), features.labels
    detector = EnsembleDetector(**QUICK)
    noisy = torch.cat([x, 50 + torch.randn(40, 6)]), torch.cat([y, torch.full((40,), -1)])
    detector.fit_features(*noisy)
    assert torch.equal(detector.predict_features(x), EnsembleDetector(**QUICK).fit_features(x, y).predict_features(x))
    for use in (detector.predict, lambda x: detector.fit(DataLoader(TensorDataset(x, y)))):
        with pytest.raises(ModelNotSetException):
            use(x)
    with pytest.raises(DataError, match=r"features must be \(B, D\); got \(2, 6, 4, 4\): use an encoder that pools"):
        detector.predict_features(torch.zeros(2, 6, 4, 4))
    with pytest.raises(DissensusError, match="unknown option 'epoch'"):
        EnsembleDetector(epoch=3)
    with pytest.raises(DissensusError, match="that of a run's backbone; there is none"):
        _ = detector.transform


def test_a_run_scores_images_as_its_detector_does(tmp_path):
    images = ImageSet.find(classes(tmp_path / "photos"))
    backbone = dissensus.backbones.create("test_vit", "random", 1, size=32)
    features = dissensus.extract(images, backbone, tmp_path / "features", workers=0, progress=False)
    fit(new_ensemble(features, members=2), features, "sed-a2d", epochs=3, progress=False, out=tmp_path / "run")
    ours = dissensus.Detector.load(tmp_path / "run")
    detector = EnsembleDetector.from_run(tmp_path / "run")
    batch = torch.stack([detector.transform(images.image(i)) for i in range(len(images))])
    expected = ours.predict(images).score
    torch.testing.assert_close(detector.predict(batch), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(detector.predict_features(features.rows(slice(None))), ours.predict(features).score)
    with pytest.raises(DissensusError, match="the detector of a run is trained already"):
        detector.fit_features(features.rows(slice(None)), features.labels)


def test_without_the_package_only_its_use_is_refused(monkeypatch, tmp_path):
    """Everything of the package can be imported, and the reference lists it."""
    monkeypatch.setitem(sys.modules, "pytorch_ood", None)
    monkeypatch.setitem(sys.modules, "pytorch_ood.api", None)
    monkeypatch.delitem(sys.modules, pytorch_ood.__name__)
    for name, value in {"pytorch_ood": pytorch_ood, "EnsembleDetector": EnsembleDetector}.items():
        monkeypatch.setattr(dissensus.estimators, name, value)  # put back afterwards
        monkeypatch.delattr(dissensus.estimators, name)
    names: dict[str, type] = {}
    exec("from dissensus.estimators import *", names)
    assert names["EnsembleDetector"] is not EnsembleDetector, "imported without the package"
    assert names["DissensusClassifier"] is DissensusClassifier
    for use in (names["EnsembleDetector"], lambda: names["EnsembleDetector"].from_run(tmp_path)):
        with pytest.raises(DissensusError, match=r"EnsembleDetector needs pytorch_ood: pip install '.*\[ood\]'"):
            use()
    assert "EnsembleDetector" in reference.public.__wrapped__()["dissensus.estimators"]


def test_scores_are_on_the_device_of_the_features(monkeypatch):
    features = blobs(60)
    x = features.rows(slice(None))
    detector = EnsembleDetector(**QUICK).fit_features(x, features.labels)
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", {"cpu"})
    assert detector.predict_features(x).dtype == torch.float32
