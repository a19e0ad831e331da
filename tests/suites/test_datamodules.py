"""Data modules of torch-uncertainty and of Lightning as suites."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchvision.datasets import FakeData
from torchvision.transforms import v2

import dissensus
from dissensus import suites
from dissensus._core.errors import DataError, DissensusError
from dissensus.functional import checks
from dissensus.suites import _datamodules
from tests.conftest import blobs
from tests.suites.helpers import by_name, roles

LightningDataModule = pytest.importorskip("lightning.pytorch").LightningDataModule
NORMALISED = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])


@pytest.fixture(scope="module")
def fake():
    """A module of torch-uncertainty, which does not install on every Python."""
    pytest.importorskip("torch_uncertainty")
    from torch_uncertainty.datamodules.abstract import TUDataModule
    from torch_uncertainty.datasets.utils import create_train_val_split

    class Fake(TUDataModule):
        """Images of noise in three classes, as CIFAR10DataModule builds its sets."""

        def __init__(self, val_split=0.25):
            super().__init__("", 8, None, val_split, 0, False, False)
            self.transform = v2.Compose([v2.RandomHorizontalFlip(), NORMALISED])

        def setup(self, stage=None):
            images = partial(FakeData, image_size=(3, 12, 12), num_classes=3, transform=self.transform)
            if stage == "fit":
                full = images(32)
                if self.val_split:
                    self.train, self.val = create_train_val_split(full, self.val_split, NORMALISED)
                else:
                    self.train, self.val = full, images(12, random_offset=100)
            elif stage == "test":
                self.test = images(12, random_offset=100)
                self.ood = images(10, random_offset=200)
                self.shift = images(9, random_offset=300)
            else:
                raise ValueError(stage)

    return Fake


def rows(seed):
    features = blobs(60, seed=seed)
    return TensorDataset(features.rows(slice(None)), features.labels)


class Plain(LightningDataModule):
    """Vectors in three classes; a second test loader."""

    def setup(self, stage):
        self.ready = True

    def _loader(self, seed, **options):
        assert self.ready
        return DataLoader(rows(seed), **options)

    def train_dataloader(self):
        return self._loader(0, shuffle=True)

    def val_dataloader(self):
        return self._loader(1)

    def test_dataloader(self):
        return [self._loader(2), self._loader(3)]


@pytest.fixture(scope="module")
def backbone():
    return dissensus.backbones.create("test_vit", "random", 1, size=32)


def test_images_of_torch_uncertainty_go_through_our_backbone(fake, backbone, tmp_path):
    module = fake()
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


def test_an_encoder_takes_the_modules_own_batches(fake):
    encoder = nn.Flatten()
    suite = suites.from_datamodule(fake(), encoder=encoder)
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


def test_a_validation_set_that_is_the_training_set_is_left_out():
    messages: list[str] = []
    module = Plain()
    module.val_dataloader = module.train_dataloader
    assert suites.from_datamodule(module, notify=messages.append).held_out is None
    assert messages == ["Plain: val is the training set, so there is no held-out set: give the module a val_split"]


def test_a_module_need_not_define_every_hook():
    class Two(LightningDataModule):
        def setup(self, stage): ...

        def train_dataloader(self):
            return DataLoader(rows(0))

        def test_dataloader(self):
            return DataLoader(rows(2))

    suite = suites.from_datamodule(Two())
    assert suite.held_out is None
    assert roles(suite) == {"test": "id"}
    given = LightningDataModule.from_datasets(rows(0), val_dataset=rows(1), test_dataset=rows(2))
    assert len(suites.from_datamodule(given).held_out) == 60
    with pytest.raises(DataError, match="LightningDataModule has no test set: see its setup"):
        suites.from_datamodule(LightningDataModule.from_datasets(rows(0)))


def test_a_sampler_of_some_items_is_a_subset():
    module = Plain()
    module.train_dataloader = lambda: DataLoader(rows(0), sampler=SubsetRandomSampler(range(40)))
    module.val_dataloader = lambda: DataLoader(rows(0), sampler=SubsetRandomSampler(range(40, 60)))
    suite = suites.from_datamodule(module)
    assert torch.equal(suite.train.rows(slice(None)), blobs(60).rows(slice(0, 40)))
    assert torch.equal(suite.held_out.rows(slice(None)), blobs(60).rows(slice(40, 60)))
    for sampler in (
        WeightedRandomSampler(torch.ones(60), 60),
        RandomSampler(rows(0), replacement=True),
        RandomSampler(rows(0), num_samples=8),
    ):
        module.train_dataloader = lambda sampler=sampler: DataLoader(rows(0), sampler=sampler)
        with pytest.raises(DataError, match=r"every item once.*; that of train in Plain has a .*Sampler that does not"):
            suites.from_datamodule(module)


def test_a_collate_fn_is_for_encoders():
    def doubled(items):
        x, y = default_collate(items)
        return 2 * x, y

    module, encoder = Plain(), nn.Sequential(nn.Dropout(), nn.PReLU(init=1.0).requires_grad_(False))
    encoder[1].eval()
    module.train_dataloader = lambda: DataLoader(rows(0), collate_fn=doubled)
    with pytest.raises(DataError, match="train of Plain has one: give an `encoder`, which takes the module's batches"):
        suites.from_datamodule(module)
    suite = suites.from_datamodule(module, encoder=encoder)
    assert torch.equal(suite.train.rows(slice(None)), 2 * blobs(60).rows(slice(None)))
    assert [each.training for each in encoder.modules()] == [True, True, False], "as it was"


def test_batches_are_moved_to_where_the_encoder_is(monkeypatch):
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", {"cpu"})
    given = LightningDataModule.from_datasets(
        *(TensorDataset(x.double(), y) for x, y in (rows(seed).tensors for seed in (0, 1, 2)))
    )
    suite = suites.from_datamodule(given, encoder=nn.Linear(6, 4))
    assert suite.train.shape == (4,)


def test_ood_sets_need_no_labels_with_an_encoder():
    module = Plain()
    alone = DataLoader(blobs(30).rows(slice(None)))
    module.test_dataloader = lambda: [DataLoader(rows(2)), alone]
    assert len(by_name(suites.from_datamodule(module, encoder=nn.Identity()))["ood-1"].features) == 30
    module.val_dataloader = lambda: alone
    with pytest.raises(DataError, match="sets of role held-out need labels; val of Plain has none"):
        suites.from_datamodule(module, encoder=nn.Identity())


def test_every_pixel_of_a_data_set_identifies_it():
    images = [Image.fromarray(np.full((2, 2, 3), i, np.uint8)) for i in range(200)]
    known = _datamodules._identity([(image, 0) for image in images])
    images[101].putpixel((1, 0), (0, 0, 0))
    assert _datamodules._identity([(image, 0) for image in images]) != known


class Endless(IterableDataset):
    def __iter__(self):
        yield from rows(0)

    def __len__(self):
        return 60


def odd(items):
    return partial(DataLoader, items)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda: {"a": DataLoader(rows(0))}, "train_dataloader returns a DataLoader or a list.*Plain has a dict"),
        (odd(Endless()), "read by index; Endless has no length or no items by number"),
        (odd([]), "the train set of Plain is empty: see its setup"),
        (odd([{"text": 1, "label": 0}]), "training set of Plain hold a dict of text, label, not of image: give"),
        (odd([()]), "training set of Plain hold an item without an image: give"),
    ],
)
def test_an_odd_loader_is_one_line(loader, message):
    module = Plain()
    module.train_dataloader = loader
    with pytest.raises(DataError, match=message):
        suites.from_datamodule(module)


def test_what_cannot_be_used_is_one_line(tmp_path):
    with pytest.raises(DataError, match="a Lightning data module; got DataLoader, which has no setup"):
        suites.from_datamodule(DataLoader(rows(0)))
    images = FakeData(12, (3, 8, 8), 3)
    given = LightningDataModule.from_datasets(images, test_dataset=images)
    with pytest.raises(DataError, match=r"items of train of LightningDataModule do not make a batch .*: give it a tr"):
        suites.from_datamodule(given, encoder=nn.Flatten())
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
