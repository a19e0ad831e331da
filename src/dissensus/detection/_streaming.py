"""The verdicts of a stream: in order, in bounded memory, with an error for each image that cannot be read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from dissensus.detection.samples import PathLike, Resolved, Samples, stream_of
from dissensus.detection.verdicts import Verdict
from dissensus.features import FeatureSet
from dissensus.features.joined import JoinedFeatures
from dissensus.features.loader import Batch
from dissensus.images import ImageStream

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector


def stream(
    detector: Detector,
    samples: Samples | ImageStream | Iterable[PathLike],
    batch_size: int,
    workers: int | None,
    shards: Sequence[int] | None,
) -> Iterator[Verdict]:
    """Yield the verdicts of `Detector.stream`, which documents the arguments."""
    source = stream_of(samples)
    if isinstance(source, FeatureSet | JoinedFeatures):
        numbers = map(str, itertools.count())
        for outputs in detector.members.outputs(Resolved(source)):
            names = list(itertools.islice(numbers, len(outputs.features)))
            yield from detector.predict_outputs(outputs).named(names)
        return
    with detector.members.encoder.stream(source, batch_size=batch_size, workers=workers, shards=shards) as batches:
        if not isinstance(source, ImageStream):
            for batch, features in batches:
                yield from _of_batch(detector, batch, features)
            return
        # Shards are read side by side: their verdicts wait until it is their turn.
        order = list(range(len(source)) if shards is None else shards)
        waiting, complete = dict[int, list[Verdict]](), set[int]()
        for batch, features in batches:
            waiting.setdefault(batch.request.shard, []).extend(_of_batch(detector, batch, features))
            complete |= {batch.request.shard} if batch.request.last else set()
            yield from waiting.pop(order[0], ())
            while order and order[0] in complete:
                order.pop(0)
                yield from waiting.pop(order[0], ()) if order else ()


def _of_batch(detector: Detector, batch: Batch, features: Tensor) -> Iterator[Verdict]:
    """Yield a verdict for every image of a batch, whose readable ones have these features."""
    verdicts: Iterator[Verdict] = iter(())
    if len(features):
        names = [batch.names[i] for i in batch.readable]
        verdicts = iter(detector.predict_outputs(detector.members(features)).named(names))
    for position, name in enumerate(batch.names):
        reason = batch.errors.get(position)
        yield next(verdicts) if reason is None else Verdict(name, error=reason)
