"""The data sets of a Lightning data module: those of torch-uncertainty, or those behind the usual dataloaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    default_collate,
    default_convert,
)

from dissensus._core.errors import DataError
from dissensus.images._datasets import check_items

ROLES = {"train": "train", "val": "held-out", "test": "id", "shift": "shift", "ood": "ood"}  # of torch-uncertainty
HOOKS = ("lightning.pytorch.core.hooks", "pytorch_lightning.core.hooks")  # where hooks are that nobody defined


@dataclass(frozen=True)
class Part:
    """One set of a data module; `collate` is its own way to make a batch, None the usual one."""

    role: str
    dataset: Any
    collate: Callable[[list[Any]], Any] | None = None


def parts_of(datamodule: Any) -> dict[str, Part]:
    """Return the sets of a data module by name.

    Raises:
        DataError: If there is no training or test set, or one cannot be read item by item.
    """
    kind = type(datamodule).__name__
    if not callable(getattr(datamodule, "setup", None)):
        raise DataError(f"a suite is made from a Lightning data module; got {kind}, which has no setup: pass a module")
    for stage in ("fit", "test"):
        datamodule.setup(stage)
    own = {name: getattr(datamodule, name, None) for name in ROLES}
    if own["train"] is not None and own["test"] is not None:
        parts = {name: Part(ROLES[name], dataset) for name, dataset in own.items() if dataset is not None}
    else:
        parts = _behind_loaders(datamodule, kind)
    for needed in ("train", "test"):
        if needed not in parts:
            raise DataError(f"a suite needs a training and a test set; {kind} has no {needed} set: see its setup")
    for name, part in parts.items():
        check_items(part.dataset)
        if not len(part.dataset):
            raise DataError(f"a set needs at least one item; the {name} set of {kind} is empty: see its setup")
    return parts


def _behind_loaders(datamodule: Any, kind: str) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in ("train", "val", "test"):
        hook = getattr(datamodule, f"{name}_dataloader", None)
        loader = None if hook is None or hook.__module__ in HOOKS else hook()
        loaders = [] if loader is None else loader if isinstance(loader, list | tuple) else [loader]
        for i, each in enumerate(loaders):
            if i and name != "test":
                raise DataError(f"there is one {name} set; {kind} has {len(loaders)}: join them")
            if not isinstance(each, DataLoader):
                raise DataError(
                    f"{name}_dataloader returns a DataLoader or a list of them; that of {kind} has a "
                    f"{type(each).__name__}: return its DataLoaders"
                )
            which = name if i == 0 else f"ood-{i}"
            collate = None if each.collate_fn in (default_collate, default_convert) else each.collate_fn
            parts[which] = Part(ROLES[name] if i == 0 else "ood", _sampled(each, f"that of {which} in {kind}"), collate)
    return parts


def _sampled(loader: DataLoader[Any], which: str) -> Any:
    """Return the data set of a loader, or the part of it that the loader draws from."""
    batches = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches or loader.sampler
    dataset: Any = loader.dataset
    check_items(dataset)
    indices = getattr(sampler, "indices", None)
    if isinstance(sampler, Sampler) and indices is not None:
        return Subset(dataset, [int(i) for i in indices])
    whole = type(sampler) in (SequentialSampler, RandomSampler) and len(sampler) == len(dataset)
    if not whole or getattr(sampler, "replacement", False):
        raise DataError(
            f"a loader reads every item once, in order or shuffled; {which} has a {type(sampler).__name__} that does "
            "not: give it a torch.utils.data.Subset of the items, without a sampler"
        )
    return dataset


def check_collated(parts: Mapping[str, Part], kind: str) -> None:
    """Raise if a set has a collate_fn of its own: without an encoder, items are read one by one."""
    for name, part in parts.items():
        if part.collate is not None:
            raise DataError(
                f"without an encoder, items are read without a collate_fn; {name} of {kind} has one: give an "
                "`encoder`, which takes the module's batches"
            )
