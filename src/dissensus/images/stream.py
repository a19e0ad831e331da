"""ImageStream: images that are read shard by shard, in order, without listing them first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dissensus._core.errors import DataError
from dissensus.images._files import PathLike, several
from dissensus.images._patterns import expand
from dissensus.images._shards import Shards, Streamed, TarShards
from dissensus.images._streamed_datasets import DatasetShards
from dissensus.images.decoding import shrink


@dataclass(frozen=True, eq=False, repr=False)
class ImageStream:
    """Shards of images: the tars of a WebDataset, or those of a Hugging Face data set that is streamed.

        stream = ImageStream.find("s3://bucket/train-{00000..00999}.tar")
        for i in range(len(stream)):
            for sample in stream.samples(i):
                print(sample.name, sample.label, sample.error or sample.image.size)

    A stream can be pickled; every process opens its own connections.
    """

    _source: Shards
    _unlabelled: bool = False
    _shorter: int | None = None

    @classmethod
    def find(cls, where: PathLike | Sequence[PathLike], *, unlabelled: bool = False) -> ImageStream:
        """Use tars, plain or compressed (.tar.gz), by a brace pattern or a list of paths, patterns and URLs.

        Samples are those of WebDataset: `key.jpg` beside `key.cls` or `key.json`. Without these, the label is the
        folder that holds the image. With several tars, names start with the tar's, as in an `ImageSet`.

        Raises:
            DataError: If there is no shard, or one does not exist.
        """
        return cls(TarShards.find([path for pattern in several(where) for path in expand(pattern)]), unlabelled)

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, image: str = "image", label: str = "label", unlabelled: bool = False
    ) -> ImageStream:
        """Use a data set that is iterated, such as `load_dataset(..., streaming=True)` of Hugging Face.

        Args:
            dataset: An `IterableDataset` of Hugging Face, or any iterable of (image, label) or dicts, as one shard.
            image: The column of images.
            label: The column of labels, if there is one: class indices or names.
            unlabelled: Leave labels out.

        Nothing identifies the contents of a plain iterable, so each such stream has a fingerprint of its own: an
        extraction continues with the same stream or a pickled copy, but not with one that is created again.
        """
        return cls(DatasetShards.of(dataset, image, label), unlabelled)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.shards)

    def __repr__(self) -> str:
        return f"ImageStream({len(self)} shards, {self.shards[0]!r}...)"

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the shards: paths, URLs or numbers."""
        return self._source.names

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if the source knows them beforehand."""
        return None if self._unlabelled else self._source.classes

    @property
    def fingerprint(self) -> str:
        """A sha256 of what the shards are; features are only reused for images of the same fingerprint.

        Of tars: names, sizes, and the first and last 64 KiB, which are read once; the same for a copy elsewhere. Of a
        Hugging Face data set: its files, parameters and transformations. Of any other iterable: random, drawn by
        `from_dataset` and kept when the stream is pickled.
        """
        return self._source.fingerprint(self._unlabelled, self._shorter)

    def samples(self, shard: int) -> Iterator[Streamed]:
        """Yield the samples of a shard in order; one that cannot be decoded has an error instead of an image.

        Raises:
            DataError: If the shard cannot be read, is damaged or ends too early.
        """
        for sample in self._source.samples(range(len(self))[shard]):
            image = sample.image if sample.image is None else shrink(sample.image, self._shorter)
            yield sample._replace(image=image, label=None if self._unlabelled else sample.label)

    def shrunk(self, pixels: int) -> ImageStream:
        """Return the same images, resized so that the shorter side is at most `pixels` (bicubic, antialiased)."""
        if pixels < 1:
            raise DataError(f"the shorter side keeps at least one pixel; got {pixels}: try 256")
        return replace(self, _shorter=min(pixels, self._shorter or pixels))
