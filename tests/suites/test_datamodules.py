"""Data modules of torch-uncertainty and of Lightning as suites."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty.datamodules.abstract import TUDataModule
from torch_uncertainty.datasets.utils import create_train_val_split
from torchvision.datasets import FakeData
from torchvision.transforms import v2

import dissensus
from dissensus import suites
from dissensus._core.errors import DataError, DissensusError
from dissensus.suites import _datamodules
from tests.conftest import blobs
from tests.suites.helpers import by_name, roles

NORMALISED = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])


class Fake(TUDataModule):
    """Images of noise in three classes, as CIFAR10DataModule builds its sets."""

    def __init__(self, val_split=0.25):
        super().__init__("", 8, None, val_split, 0, False, False)
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), NORMALISED])

    def setup(self, stage=None):
        fake = partial(FakeData, image_size=(3, 12, 12), num_classes=3, transform=self.transform)
        if stage == "fit":
            full = fake(32)
            if self.val_split:
                self.train, self.val = create_train_val_split(full, self.val_split, NORMALISED)
            else:
                self.train, self.val = full, fake(12, random_offset=100)
        elif stage == "test":
            self.test = fake(12, random_offset=100)
            self.ood = fake(10, random_offset=200)
            self.shift = fake(9, random_offset=300)
        else:
            raise ValueError(stage)


class Plain(LightningDataModule):
    """Vectors in three classes; a second test loader."""

    def setup(self, stage):
        self.ready = True

    def _loader(self, seed, **options):
        assert self.ready
        features = blobs(60, seed=seed)
        return DataLoader(TensorDataset(features.rows(slice(None)), features.labels), **options)

    def train_dataloader(self):
        return self._loader(0, shuffle=True)

    def val_dataloader(self):
        return self._loader(1)

    def test_dataloader(self):
        return [self._loader(2), self._loader(3)]


@pytest.fixture(scope="module")
def backbone():
    return dissensus.backbones.create("test_vit", "random", 1, size=32)


def test_images_of_torch_uncertainty_go_through_our_backbone(backbone, tmp_path):
    module = Fake()
    suite = suites.from_datamodule(module, backbone=backbone, features=tmp_path, workers=0, progress=False)
    assert suite.name == "Fake"
    assert roles(suite) == {"test": "id", "shift": "shift", "ood": "ood"}
    assert [len(part) for part in (suite.train, suite.held_out, *(s.features for s in suite.sets))] == [
        24,
        8,
        12,
        9,
        10,
    ]
    assert by_name(suite)["ood"].features.labels is None
    # the images are those before the module's transforms, through the backbone's own
    raw = FakeData(12, image_size=(3, 12, 12), num_classes=3, random_offset=100)
    with torch.no_grad():
        expected = backbone.trunk(torch.stack([backbone.transform(raw[i][0]) for i in range(12)]))
    test = by_name(suite)["test"].features
    torch.testing.assert_close(test.rows(slice(None)).float(), expected, rtol=1e-2, atol=1e-2)
    assert test.labels.tolist() == [int(raw[i][1]) for i in range(12)]
    assert module.train.dataset.transform is not None, "the module is as it was"
    assert suite.train_images is not None
    assert len(suite.train_images) == 24


def test_an_encoder_takes_the_modules_own_batches():
    encoder = nn.Flatten()
    suite = suites.from_datamodule(Fake(), encoder=encoder)
    test = by_name(suite)["test"].features
    assert test.shape == (432,)
    assert -1 <= float(test.rows(slice(None)).min()) < -0.9, "normalised by the module"
    ensemble = dissensus.new_ensemble(suite.train, members=2)
    dissensus.fit(ensemble, suite.train, "sed-a2d", epochs=2, progress=False)
    frame = dissensus.evaluate(ensemble, suite.sets, held_out=suite.held_out, progress=False)
    assert set(frame["dataset"]) == {"test", "shift", "ood"}


def test_vectors_of_a_plain_data_module_are_features():
    suite = suites.from_datamodule(Plain(), name="vectors")
    assert roles(suite) == {"test": "id", "ood-1": "ood"}
    np.testing.assert_array_equal(suite.train.rows(slice(None)).numpy(), blobs(60).rows(slice(None)).numpy())
    assert suite.held_out.labels.tolist() == blobs(60, seed=1).labels.tolist()


def test_a_validation_set_that_is_the_test_set_is_left_out():
    messages: list[str] = []
    module = Plain()
    module.val_dataloader = lambda: module.test_dataloader()[0]
    assert suites.from_datamodule(module, notify=messages.append).held_out is None
    assert messages == ["Plain: val is the test set, so there is no held-out set: give the module a val_split"]


def test_the_pixels_of_a_data_set_identify_it():
    first, other = (FakeData(9, (3, 8, 8), 3, random_offset=offset) for offset in (0, 50))
    assert _datamodules._identity(first) != _datamodules._identity(other)


def test_what_cannot_be_used_is_one_line(tmp_path):
    module = Plain()
    module.train_dataloader = lambda: DataLoader(TensorDataset(torch.rand(4, 3, 8, 8), torch.arange(4) % 2))
    with pytest.raises(DataError, match=r"items of the training set of Plain hold an item of type Tensor.*: give its"):
        suites.from_datamodule(module)
    module = Plain()
    module.test_dataloader = lambda: None
    with pytest.raises(DataError, match="Plain has no test set: see its setup"):
        suites.from_datamodule(module)
    with pytest.raises(DissensusError, match="are for images and a backbone; got workers, features: leave it out"):
        suites.from_datamodule(Plain(), workers=0, features=tmp_path)
