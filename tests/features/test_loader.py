"""The loader gives the pixels of any source in order; the encoder gives their features."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from dissensus import backbones
from dissensus._core.errors import DataError, UnknownNameError
from dissensus.features._sources import Job, source_of
from dissensus.features.encoder import Encoder
from dissensus.features.loader import Reader, load, read_iterable
from dissensus.images import ImageSet, ImageStream
from tests.images.samples import noise, packed, plain, write


@pytest.fixture(scope="module")
def backbone():
    return backbones.create("test_vit", "random", size=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Seven images, the fourth of which is no image."""
    images = {f"{i}.png": b"no" if i == 3 else noise((40, 36), seed=i) for i in range(7)}
    return write(tmp_path_factory.mktemp("loader"), images)


def batches_of(source, backbone, **options):
    with load(source, backbone.transform, **options) as batches:
        return list(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_and_its_paths_give_the_same_batches_in_order(workers, backbone, folder):
    paths = sorted(folder.iterdir())
    by_set = batches_of(ImageSet.find(folder), backbone, batch_size=3, workers=workers)
    by_path = batches_of(iter(paths), backbone, batch_size=3, workers=workers)
    assert [batch.names for batch in by_set] == [["0.png", "1.png", "2.png"], ["3.png", "4.png", "5.png"], ["6.png"]]
    assert [name for batch in by_path for name in batch.names] == [str(path) for path in paths]
    for one, other in zip(by_set, by_path, strict=True):
        assert np.array_equal(one.pixels, other.pixels)
        assert one.errors == other.errors
    assert by_set[1].errors == {0: "not an image"}
    assert by_set[1].readable == [1, 2]
    expected = backbone.transform.centre(Image.open(folder / "4.png").convert("RGB"))
    assert np.array_equal(by_set[1].pixels[0], expected)


def test_images_and_arrays_in_memory_are_read_in_this_process(backbone, folder):
    pictures = [Image.open(folder / f"{i}.png").convert("RGB") for i in (0, 1)]
    (one,) = batches_of(pictures, backbone, workers=2)
    (other,) = batches_of([np.asarray(picture) for picture in pictures], backbone)
    assert np.array_equal(one.pixels, other.pixels)
    assert one.names == ["0", "1"]
    with pytest.raises(DataError, match="either paths or images; got a mixture: pass two lists"):
        batches_of([pictures[0], str(folder / "0.png")], backbone)


def test_an_endless_source_is_read_as_far_as_it_is_needed(backbone, folder):
    taken = []

    def endless():
        for i in itertools.count():
            taken.append(i)
            yield folder / "0.png"

    with load(endless(), backbone.transform, batch_size=2, workers=1) as batches:
        for _ in range(3):
            assert next(batches).pixels.shape == (2, 32, 32, 3)
    assert len(taken) <= 2 * (3 + 2)  # three batches, and two that a worker prefetches


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_names_the_unreadable_image(workers, backbone, folder):
    with pytest.raises(DataError, match=r"every image must be readable; 3\.png is not \(not an image\): leave it out"):
        batches_of(ImageSet.find(folder), backbone, workers=workers, strict=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_cannot_be_read_is_reported_in_one_line(workers, backbone, tmp_path):
    path = packed(tmp_path / "a.tar", {f"{i}.png": plain() for i in range(3)})
    whole = path.read_bytes()
    source = source_of(ImageStream.find(path), Reader(backbone.transform), 1, batch_size=2)

    def names():
        with source.ahead([Job(0, 0, 0)], workers) as batches:
            return [name for batch in batches for name in batch.names]

    assert names() == ["0.png", "1.png", "2.png"]
    for data, message in (
        (packed(tmp_path / "b.tar", {"readme": b""}).read_bytes(), "a shard holds images; .*a.tar holds none"),
        (whole[:1600], "a shard must be a whole tar; .*a.tar is missing, damaged or truncated"),
        (None, "a shard must be a whole tar; .*a.tar is missing"),
    ):
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        with pytest.raises(DataError, match=f"^{message}") as caught:
            names()
        assert type(caught.value) is DataError
        assert "\n" not in str(caught.value)


class Failing(torch.utils.data.IterableDataset):
    """Yields a batch, then raises."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        yield "a batch"
        raise self.error


def test_errors_of_workers():
    for error in (UnknownNameError("score", "msp", ["mss"]), ZeroDivisionError("a defect")):
        with read_iterable(Failing(error), workers=1) as batches:
            assert next(batches) == "a batch"
            with pytest.raises(type(error), match=r"unknown score 'msp'|(?s:Traceback.*a defect)") as caught:
                next(batches)
        assert (str(caught.value) == str(error)) == isinstance(error, UnknownNameError)  # a defect keeps its traceback


def test_the_encoder_gives_the_features_of_readable_images(backbone, folder):
    encoder = Encoder(backbone)
    with encoder.stream(ImageSet.find(folder), batch_size=1, workers=0) as batches:
        features = {batch.names[0]: rows for batch, rows in batches}
    assert features["3.png"].shape == (0, *backbone.shape)
    with torch.inference_mode():
        expected = backbone.trunk(backbone.transform(Image.open(folder / "5.png"))[None])
    torch.testing.assert_close(features["5.png"], expected)
    torch.testing.assert_close(encoder.image(Image.open(folder / "5.png")), expected)
