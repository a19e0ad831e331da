"""Data sets that are iterated: those of Hugging Face with streaming=True, or any iterable of images."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dissensus._core.errors import DataError, DissensusError
from dissensus.images._datasets import class_names, from_value, plain_label
from dissensus.images._shards import Streamed
from dissensus.images.decoding import BadImage


@dataclass(frozen=True)
class DatasetShards:
    """The shards of a data set; one if it is not divided."""

    dataset: Any
    image: str
    label: str
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    identity: str  # of the data set; distinguishes its contents from those of another

    @classmethod
    def of(cls, dataset: Any, image: str, label: str) -> DatasetShards:
        """Look at a data set; images are not decoded by it, so that a bad one does not stop the others."""
        if isinstance(dataset, Mapping):
            raise DataError(f"images come from one data set; got a dict of {', '.join(map(str, dataset))}: choose one")
        if not hasattr(dataset, "__iter__"):
            raise DataError(f"a stream is iterated; {type(dataset).__name__} cannot be: pass an iterable data set")
        columns = getattr(dataset, "column_names", None)
        if columns is not None and image not in columns:
            raise DataError(f"the data set has no column {image!r}: choose image among {', '.join(columns)}")
        classes = class_names(dataset, label)
        identity = _identity(dataset)
        features = getattr(dataset, "features", None)
        kind: Any = features.get(image) if isinstance(features, Mapping) else None
        if getattr(kind, "decode", False):
            dataset = dataset.cast_column(image, type(kind)(decode=False))
        count = max(1, int(getattr(dataset, "num_shards", 1)))
        names = tuple(f"{i:05}-of-{count:05}" for i in range(count))
        return cls(dataset, image, label, names, None if classes is None else tuple(classes), identity)

    def fingerprint(self, *facts: object) -> str:
        known = [self.identity, self.image, self.label, self.classes, len(self.names)]
        return hashlib.sha256(json.dumps([*known, *facts]).encode()).hexdigest()

    def samples(self, shard: int) -> Iterator[Streamed]:
        whole = len(self.names) == 1
        items = self.dataset if whole else self.dataset.shard(num_shards=len(self.names), index=shard)
        try:
            for i, item in enumerate(_rows(items)):
                yield self._sample(f"{self.names[shard]}/{i}", item)
        except DissensusError:
            raise
        except Exception as error:  # whatever the library behind the data set raises
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise DataError(
                f"a shard is read to its end; {self.names[shard]} of the data set fails with {reason}: "
                "check the data set, your credentials and the network"
            ) from error

    def _sample(self, name: str, item: Any) -> Streamed:
        if isinstance(item, Mapping):
            value, label = item.get(self.image), item.get(self.label)
        else:
            value, label = (*item, None)[:2] if isinstance(item, tuple | list) else (item, None)
        label = plain_label(label)
        if isinstance(label, int) and self.classes is not None and 0 <= label < len(self.classes):
            label = self.classes[label]
        text = None if label is None or label == -1 else str(label)
        try:
            image, digest = from_value(value)
        except BadImage as error:
            return Streamed(name, None, str(error), text, "")
        return Streamed(name, image, None, text, digest)


def _rows(dataset: Any) -> Iterator[Any]:
    """Iterate over all rows, in a worker of a DataLoader too: there, `iter` of Hugging Face returns a part of them."""
    if not hasattr(dataset, "_ex_iterable"):
        yield from dataset
        return
    for batch in dataset.iter(batch_size=1):
        yield {name: values[0] for name, values in batch.items()}


def _identity(dataset: Any) -> str:
    """Return a text that data sets with different contents do not share; random if nothing tells them apart."""
    info = getattr(dataset, "info", None)
    facts = [getattr(info, name, None) for name in ("builder_name", "dataset_name", "config_name", "version")]
    facts += [getattr(dataset, name, None) for name in ("split", "features", "_fingerprint")]
    if facts[-1] is None:
        facts.append(_pipeline(dataset) or secrets.token_hex(32))
    return "\n".join(map(str, facts))


def _pipeline(dataset: Any) -> str | None:
    """Return a hash of what a Hugging Face data set iterates: files, parameters and functions; None if it has none."""
    if not hasattr(dataset, "_ex_iterable"):
        return None
    from datasets.fingerprint import Hasher  # type: ignore[import-untyped]

    settings = ("_formatting", "_distributed", "_shuffling", "_starting_state_dict")
    try:
        parts = [_parameters(dataset._ex_iterable), int(getattr(dataset, "epoch", 0))]
        return str(Hasher.hash([*parts, *(getattr(dataset, name, None) for name in settings)]))
    except Exception:  # whatever an object raises that cannot be pickled, such as a generator or a connection
        return None


def _parameters(value: Any) -> Any:
    """Return what a part of a pipeline is made of, without what differs from run to run."""
    if isinstance(value, list | tuple):
        return [_parameters(item) for item in value]
    builder: Any = getattr(value, "__self__", None)  # of a method
    if hasattr(builder, "config") and hasattr(builder, "cache_dir"):
        return [value.__qualname__, type(builder).__qualname__, builder.config, getattr(builder, "hash", None)]
    if any(cls.__name__ == "_BaseExamplesIterable" for cls in type(value).__mro__):
        parts = {name: part for name, part in vars(value).items() if name != "_state_dict"}  # how far it was read
        return [type(value).__qualname__, {name: _parameters(part) for name, part in sorted(parts.items())}]
    return value
