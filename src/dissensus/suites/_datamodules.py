"""A Lightning data module as a suite: those of torch-uncertainty, or any with the usual dataloaders.

Images go through one of our backbones, so the transforms of the module's data sets are taken off; with an encoder, the
module's own batches go through that; vectors are features as they are.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError
from dissensus._core.terminal import say
from dissensus.backbones import Backbone
from dissensus.evaluation.suite import Role, Suite, SuiteSet
from dissensus.features import FeatureSet
from dissensus.functional.checks import moved
from dissensus.images import BadImage, ImageSet
from dissensus.images._datasets import Items, class_names, from_value, input_of
from dissensus.images.decoding import decoding_errors
from dissensus.suites._build import PathLike, _build
from dissensus.suites._loaders import Part, check_collated, parts_of
from dissensus.suites._locate import Source

Encoder = Callable[[Tensor], Tensor]
BATCH = 256
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
            A module is put in evaluation mode meanwhile, and batches are moved to the device of its parameters.
        backbone: For images: its own preprocessing takes the place of the module's transforms.
        features: Folder for the features of images; None: the user's cache.
        name: Of the suite; None: that of the module's class.
        seed: As for every suite.
        notify: Called with one line if the validation set is left out.
        options: Of `extract`: engine, workers, batch_size, ...

    Raises:
        DataError: If a set is missing, unlabelled where labels are needed, its items cannot be used, or its loader
            has a sampler that repeats or leaves out items without naming their indices.
        DissensusError: If an option is given that does not apply.
    """
    parts = parts_of(datamodule)
    kind = type(datamodule).__name__
    name = name or kind
    summary = f"The sets of {kind}."
    if encoder is None:
        check_collated(parts, kind)
        first = _first(parts["train"].dataset, kind)
        if not (isinstance(first, Tensor) and first.ndim == 1):
            images = _images(parts, kind)
            _check_held_out(images, kind, notify)
            sources = [Source(each, parts[each].role, images[each]) for each in images]
            created = backbone if isinstance(backbone, Backbone) else backbones.create(backbone, None, 1)
            return _build(name, summary, sources, created, features, seed=seed, **options)
    if options or features is not None:
        given = ", ".join([*options, *(["features"] if features is not None else [])])
        raise DissensusError(f"options of extract are for images and a backbone; got {given}: leave it out")
    names = class_names(parts["train"].dataset, "label")
    with _evaluating(encoder):
        rows = {each: _features(part, encoder, names, f"{each} of {kind}") for each, part in parts.items()}
    _check_held_out(rows, kind, notify)
    evaluated = [(each, cast(Role, part.role)) for each, part in parts.items() if part.role in get_args(Role)]
    return Suite(
        name=name,
        summary=summary,
        train=rows["train"],
        sets=tuple(SuiteSet(each, role, rows[each]) for each, role in evaluated),
        held_out=rows.get("val"),
    )


def _first(dataset: Any, kind: str) -> Any:
    """Return the first input, as the module has it before transforms: a vector or an image.

    Raises:
        DataError: If it is neither.
    """
    try:
        with decoding_errors():
            first = input_of(_plain(dataset)[0])
        if not (isinstance(first, Tensor) and first.ndim == 1):
            from_value(first)
    except BadImage as error:
        raise DataError(f"items of the training set of {kind} hold {error}: {GIVE}") from error
    return first


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


def _images(parts: Mapping[str, Part], kind: str) -> dict[str, ImageSet]:
    """Return every set as images, labelled as in training."""
    images: dict[str, ImageSet] = {}
    for name, part in parts.items():
        plain = _plain(part.dataset)
        plain._fingerprint = _identity(plain)  # keeps features of different data apart
        found = ImageSet.from_dataset(plain)
        images[name] = (
            found.without_labels() if part.role == "ood" else found.relabelled(images.get("train", found).classes)
        )
        if part.role != "ood" and found.labels is None:
            raise _unlabelled(part, f"{name} of {kind}")
    return images


def _identity(dataset: Any) -> str:
    """A digest of the pixels of all images.

    A sample of them would not tell apart data that differ elsewhere, and the cache would return features of other
    images. This reads every image once more than extraction does.
    """
    digest = hashlib.sha256(str(len(dataset)).encode())
    reader = Items(dataset, "image")
    for i in range(len(dataset)):
        try:
            found = reader.load("", i, -1)[1]
        except BadImage as error:  # extraction counts it and lists it
            found = str(error)
        digest.update(f"{found}\n".encode())
    return digest.hexdigest()


@contextmanager
def _evaluating(encoder: Encoder | None) -> Iterator[None]:
    """Put an encoder that is a module, and all its parts, in evaluation mode for a while."""
    modes = {each: each.training for each in encoder.modules()} if isinstance(encoder, nn.Module) else {}
    try:
        for each in modes:
            each.training = False
        yield
    finally:
        for each, training in modes.items():
            each.training = training


@torch.no_grad()
def _features(part: Part, encoder: Encoder | None, names: list[str] | None, which: str) -> FeatureSet:
    """Put the items of a set, as the module transforms them, through an encoder."""
    first = next(encoder.parameters(), None) if isinstance(encoder, nn.Module) else None
    found, labels = list[Tensor](), list[Tensor]()
    for batch in _batches(part, which):
        try:
            x = input_of(batch)
        except BadImage as error:
            raise DataError(f"a batch is (inputs, labels); {which} has {error}: return pairs") from error
        if not isinstance(x, Tensor):
            raise DataError(f"inputs are tensors; {which} has {type(x).__name__}: add a transform that makes them")
        if part.role != "ood":
            labels.append(_labels(batch, part, len(x), which))
        if encoder is not None:
            x = encoder(x if first is None else moved(x, first.device))
        if not isinstance(x, Tensor):
            raise DataError(f"an encoder returns features (B, ...); got {type(x).__name__}: return one tensor")
        found.append(x.detach().cpu())
    x = torch.cat(found)
    if part.role == "ood":
        return FeatureSet.from_arrays(x)
    return FeatureSet.from_arrays(x, torch.cat(labels), classes=names)


def _batches(part: Part, which: str) -> Iterator[Any]:
    batches = iter(DataLoader(part.dataset, batch_size=BATCH, collate_fn=part.collate))
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except (TypeError, RuntimeError) as error:  # of items that are no tensors, or of different sizes
            reason = str(error).partition("\n")[0]
            raise DataError(f"items of {which} do not make a batch ({reason}): give it a transform") from error
        yield batch


def _labels(batch: Any, part: Part, count: int, which: str) -> Tensor:
    """Return the class indices (B,) of a batch."""
    pair = isinstance(batch, list | tuple) and len(batch) > 1
    values = batch[1] if pair else batch.get("label") if isinstance(batch, Mapping) else None
    if values is None:
        raise _unlabelled(part, which)
    try:
        labels = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        labels = torch.empty(0)
    if labels.is_floating_point() or labels.numel() != count:
        raise DataError(f"labels are class indices; {which} has others: use a module for classification")
    return labels.cpu().long().reshape(-1)


def _unlabelled(part: Part, which: str) -> DataError:
    return DataError(f"sets of role {part.role} need labels; {which} has none: give its items as (input, label)")


def _check_held_out(found: dict[str, Any], kind: str, notify: Callable[[str], None]) -> None:
    """Leave out a validation set that is the test set or the training set, as some modules have by default."""
    for other, called in (("test", "test"), ("train", "training")):
        if "val" in found and found["val"].fingerprint == found[other].fingerprint:
            del found["val"]
            notify(f"{kind}: val is the {called} set, so there is no held-out set: give the module a val_split")
