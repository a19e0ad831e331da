"""ImageEnsemble: images in, every member's logits out, the trunk run once; and a run folder is all it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from timm import create_model

from dissensus import backbones
from dissensus._core.errors import DissensusError, RunError, ShapeError
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.features import FeatureSet, extract
from dissensus.images import ImageSet
from dissensus.models.ensemble import Ensemble
from dissensus.training import new_ensemble
from dissensus.training._fit import fit
from tests.conftest import blobs, linear

SIZE = 32


def photos(count: int = 12) -> ImageSet:
    pixels = np.random.default_rng(0).integers(256, size=(count, 40, 50, 3), dtype=np.uint8)
    return ImageSet.from_arrays(pixels, [i % 3 for i in range(count)], classes=["ant", "bee", "cow"])


@pytest.fixture(scope="module")
def backbone():
    return backbones.create("lite0", size=SIZE)


@pytest.mark.parametrize(("name", "layers"), [("lite0", 1), ("lite0", 2), ("test_vit2", 2)])
def test_images_to_logits_of_every_member(name, layers):
    backbone = backbones.create(name, None if name == "lite0" else "random", layers, size=SIZE)
    ensemble = Ensemble(backbone.new_tail(3), members=4)
    model, calls = ImageEnsemble(backbone, ensemble), []
    model.trunk.register_forward_hook(lambda *_: calls.append(1))
    images = torch.randn(5, 3, SIZE, SIZE)
    for context in (torch.no_grad(), torch.enable_grad()):
        calls.clear()
        with context:
            logits = model(images)
            assert len(calls) == 1, "the trunk runs once for all members"
            assert logits.shape == (4, 5, 3)
            features = backbone.trunk(images)
            expected = torch.stack([ensemble.member(i)(features) for i in range(4)])
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_one_module_in_eval_mode_whose_trunk_does_not_learn(backbone):
    model = ImageEnsemble(backbone, Ensemble(backbone.new_tail(3), members=2), ("ant", "bee", "cow"))
    assert not model.training
    assert model.classes == ("ant", "bee", "cow")
    model(torch.randn(2, 3, SIZE, SIZE)).sum().backward()
    assert all(value.grad is None for value in model.trunk.parameters())
    assert all(value.grad is not None for value in model.ensemble.parameters())


@pytest.mark.parametrize("init", ["random", "pretrained"])
def test_a_run_folder_is_all_it_takes(backbone, tmp_path, init):
    images = photos()
    features = extract(images, backbone, tmp_path / "features", workers=0, dtype="float32", progress=False)
    ensemble = new_ensemble(features, 3, init=init)
    fit(ensemble, features, "sed-a2d", epochs=1, batch_size=6, out=tmp_path / "run", progress=False)
    model = ImageEnsemble.load(tmp_path / "run")
    assert model.classes == ("ant", "bee", "cow")
    batch = torch.stack([model.transform(images.image(i)) for i in range(len(images))])
    with torch.no_grad():
        logits, expected = model(batch), ensemble(features.rows(slice(None)))
    assert logits.shape == (3, 12, 3)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_features_that_name_no_backbone_are_refused(tmp_path):
    fit(linear(), blobs(), "deep-ensemble", epochs=1, out=tmp_path / "run", progress=False)
    with pytest.raises(RunError, match=r"images need a trunk; .*run was trained on features that name none"):
        ImageEnsemble.load(tmp_path / "run")
    with pytest.raises(RunError, match="no run at"):
        ImageEnsemble.load(tmp_path / "nowhere")


def test_a_backbone_that_changed_is_refused(tmp_path):
    path = tmp_path / "mine.safetensors"
    save_file(create_model("test_vit").state_dict(), path)
    backbone = backbones.create("test_vit", path, size=SIZE)
    with torch.inference_mode():
        rows = backbone.trunk(torch.randn(12, 3, SIZE, SIZE)).clone()
    labels = torch.arange(12) % 3
    features = FeatureSet.from_arrays(rows.numpy(), labels, provenance={"backbone": backbone.describe()})
    fit(new_ensemble(features, 2), features, "deep-ensemble", epochs=1, out=tmp_path / "run", progress=False)
    assert len(ImageEnsemble.load(tmp_path / "run").ensemble) == 2
    save_file({name: 1.1 * value for name, value in load_file(path).items()}, path)
    with pytest.raises(DissensusError, match="the backbone must be the one that computed the features"):
        ImageEnsemble.load(tmp_path / "run")


def test_a_trunk_that_does_not_fit_is_refused(backbone):
    with pytest.raises(
        ShapeError, match=r"takes features of width 6; lite0 has rows of shape \(320, 1, 1\): use the backbone"
    ):
        ImageEnsemble(backbone, linear())
    vit = backbones.create("test_vit", "random", size=SIZE)
    with pytest.raises(ShapeError, match=r"takes features of width 320; test_vit has rows of shape \(64,\)"):
        ImageEnsemble(vit, Ensemble(backbone.new_tail(3), members=2))
