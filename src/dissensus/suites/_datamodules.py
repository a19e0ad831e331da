"""A Lightning data module as a suite: those of torch-uncertainty, or any with the usual dataloaders.

Images go through one of our backbones, so the transforms of the module's data sets are taken off; with an encoder, the
module's own batches go through that; vectors are features as they are.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError
from dissensus._core.terminal import say
from dissensus.backbones import Backbone
from dissensus.evaluation.suite import Role, Suite, SuiteSet
from dissensus.features import FeatureSet
from dissensus.images import BadImage, ImageSet
from dissensus.images._datasets import class_names, from_value
from dissensus.suites._build import PathLike, _build
from dissensus.suites._locate import Source

Encoder = Callable[[Tensor], Tensor]
PROBED = 64  # images whose pixels identify a data set
BATCH = 256
ROLES = {"train": "train", "val": "held-out", "test": "id", "shift": "shift", "ood": "ood"}  # of torch-uncertainty
GIVE = "give its images as PIL or uint8 (H, W, 3), or an encoder that takes the module's batches"


def from_datamodule(
    datamodule: Any,
    *,
    encoder: Encoder | None = None,
    backbone: str | Backbone = "lite0",
    features: PathLike | None = None,
    name: str | None = None,
    seed: int = 0,
    notify: Callable[[str], None] = say,
    **options: Any,
) -> Suite:
    """Build a suite from a data module; its `prepare_data` is not called.

    Args:
        datamodule: A `TUDataModule` of torch-uncertainty, whose sets are `train`, `val`, `test`, `shift` and `ood`; or
            another with `train_dataloader`, `val_dataloader` and `test_dataloader`, of which the first is the id set
            and the others are OOD.
        encoder: The module's batches (B, ...) -> features (B, ...); None: `backbone` for images, nothing for vectors.
        backbone: For images: its own preprocessing takes the place of the module's transforms.
        features: Folder for the features of images; None: the user's cache.
        name: Of the suite; None: that of the module's class.
        seed: As for every suite.
        notify: Called with one line if the validation set is left out.
        options: Of `extract`: engine, workers, batch_size, ...

    Raises:
        DataError: If a set is missing, unlabelled where labels are needed, or its items cannot be used.
        DissensusError: If an option is given that does not apply.
    """
    sets = dict(_sets(datamodule))
    kind = type(datamodule).__name__
    for needed in ("train", "test"):
        if needed not in sets:
            raise DataError(f"a suite needs a training and a test set; {kind} has no {needed} set: see its setup")
    name = name or kind
    summary = f"The sets of {kind}."
    first = _input(sets["train"][1])
    if encoder is None and not (isinstance(first, Tensor) and first.ndim == 1):
        try:
            from_value(first)
        except BadImage as error:
            raise DataError(f"items of the training set of {kind} hold {error}: {GIVE}") from error
        images = _images(sets)
        _check_held_out(images, kind, notify)
        sources = [Source(each, sets[each][0], images[each]) for each in images]
        created = backbone if isinstance(backbone, Backbone) else backbones.create(backbone, None, 1)
        return _build(name, summary, sources, created, features, seed=seed, **options)
    if options or features is not None:
        given = ", ".join([*options, *(["features"] if features is not None else [])])
        raise DissensusError(f"options of extract are for images and a backbone; got {given}: leave it out")
    rows = {each: _features(dataset, encoder, role, sets, kind) for each, (role, dataset) in sets.items()}
    _check_held_out(rows, kind, notify)
    evaluated = [(each, role) for each, (role, _) in sets.items() if role in get_args(Role)]
    return Suite(
        name=name,
        summary=summary,
        train=rows["train"],
        sets=tuple(SuiteSet(each, role, rows[each]) for each, role in evaluated),
        held_out=rows.get("val"),
    )


def _sets(datamodule: Any) -> Iterator[tuple[str, tuple[Any, Dataset[Any]]]]:
    """Yield name, role and data set of everything that a module has."""
    for stage in ("fit", "test"):
        datamodule.setup(stage)
    own = {name: getattr(datamodule, name, None) for name in ROLES}
    if own["train"] is not None and own["test"] is not None:
        yield from ((name, (ROLES[name], dataset)) for name, dataset in own.items() if dataset is not None)
        return
    for name in ("train", "val", "test"):
        loader = getattr(datamodule, f"{name}_dataloader", lambda: None)()
        loaders = [] if loader is None else loader if isinstance(loader, list | tuple) else [loader]
        for i, each in enumerate(loaders):
            if i and name != "test":
                raise DataError(f"there is one {name} set; {type(datamodule).__name__} has {len(loaders)}: join them")
            yield (name, (ROLES[name], each.dataset)) if i == 0 else (f"ood-{i}", ("ood", each.dataset))


def _input(dataset: Any) -> Any:
    item = _plain(dataset)[0]
    return item["image"] if isinstance(item, Mapping) and "image" in item else item[0]


def _plain(dataset: Any) -> Any:
    """Return a copy of a data set whose items are not transformed; labels are."""
    if isinstance(dataset, Subset):
        return Subset(_plain(dataset.dataset), dataset.indices)
    if isinstance(dataset, ConcatDataset):
        return ConcatDataset([_plain(each) for each in dataset.datasets])
    plain = copy.copy(dataset)
    for attribute in ("transform", "transforms"):
        if getattr(plain, attribute, None) is not None:
            setattr(plain, attribute, None)
    return plain


def _images(sets: Mapping[str, tuple[str, Any]]) -> dict[str, ImageSet]:
    """Return every set as images, labelled as in training."""
    images: dict[str, ImageSet] = {}
    for name, (role, dataset) in sets.items():
        plain = _plain(dataset)
        plain._fingerprint = _identity(plain)  # keeps features of different data apart
        found = ImageSet.from_dataset(plain)
        images[name] = found.without_labels() if role == "ood" else found.relabelled(images.get("train", found).classes)
        if role != "ood" and found.labels is None:
            raise DataError(f"sets of role {role} need labels; {name} has none: give its items as (image, label)")
    return images


def _identity(dataset: Any) -> str:
    """A digest of the number of images and of the pixels of some."""
    digest = hashlib.sha256(str(len(dataset)).encode())
    for i in np.unique(np.linspace(0, len(dataset) - 1, PROBED).astype(int)).tolist():
        item = dataset[i]
        digest.update(from_value(item["image"] if isinstance(item, Mapping) else item[0])[1].encode())
    return digest.hexdigest()


@torch.no_grad()
def _features(
    dataset: Dataset[Any], encoder: Encoder | None, role: str, sets: Mapping[str, tuple[str, Any]], kind: str
) -> FeatureSet:
    """Put the items of a data set, as the module transforms them, through an encoder."""
    parts, labels = list[Tensor](), list[Tensor]()
    for batch in DataLoader(dataset, batch_size=BATCH):
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise DataError(f"items are pairs (input, label); those of {kind} are not: use one for classification")
        parts.append((batch[0] if encoder is None else encoder(batch[0])).detach().cpu())
        labels.append(torch.as_tensor(batch[1]))
    x = torch.cat(parts)
    if role == "ood":
        return FeatureSet.from_arrays(x)
    names = class_names(sets["train"][1], "label")
    return FeatureSet.from_arrays(x, torch.cat(labels).long().reshape(-1), classes=names)


def _check_held_out(found: dict[str, Any], kind: str, notify: Callable[[str], None]) -> None:
    """Leave out a validation set that is the test set, which some modules have by default."""
    if "val" in found and found["val"].fingerprint == found["test"].fingerprint:
        del found["val"]
        notify(f"{kind}: val is the test set, so there is no held-out set: give the module a val_split")
