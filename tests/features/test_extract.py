"""extract(): the features are those of the trunk, in order, whatever the workers; mistakes are one clear line."""

from __future__ import annotations

import json
import os
import re
import signal
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dissensus import backbones
from dissensus._core import documents
from dissensus._core.digests import unverified
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus._core.locks import locked
from dissensus._core.random import mix
from dissensus.backbones import engines
from dissensus.features import FeatureSet, extract
from dissensus.features.extraction import Extraction, Plan
from dissensus.images import ImageSet, corruptions, standins
from tests.damage import damages
from tests.images import conftest as image_fixtures
from tests.images.samples import BAD, GOOD, huge, noise, packed, plain, write
from tests.images.samples import refused as data_refused

thousand = image_fixtures.thousand
QUICK = {"workers": 0, "progress": False}


@pytest.fixture(scope="session")
def backbone():
    return backbones.create("test_vit", "random", size=32)


def pictures(count=20, side=40, **options):
    """Noise that differs from image to image, of three classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side + 8, 3), dtype=np.uint8)
    return ImageSet.from_arrays(pixels, np.arange(count) % 3, **options)


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shards_of(folder):
    return {name: data for name, data in files(folder).items() if name.endswith(".npy")}


def shard_files(*numbers):
    """The names of the files of these shards."""
    return [
        *(f"img_emb/img_emb_{number:05}.npy" for number in numbers),
        *(f"metadata/metadata_{number:05}.parquet" for number in numbers),
    ]


def refused(match):
    """DissensusError whose one line matches."""
    return pytest.raises(DissensusError, match=rf"\A[^\n]*{match}[^\n]*\Z")


def counted(monkeypatch):
    """Images that go through an engine from now on."""
    original, seen = engines.create, []

    def create(*args):
        run = original(*args)

        def counting(pixels):
            seen.append(len(pixels))
            return run(pixels)

        return counting

    monkeypatch.setattr(engines, "create", create)
    return seen


# --- what comes out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_are_the_trunk_of_the_transformed_image(name, dtype, tmp_path):
    backbone, images = backbones.create(name, "random", size=32), pictures(10)
    features = extract(images, backbone, tmp_path / "f", dtype=dtype, batch_size=3, shard_images=4, **QUICK)
    with torch.inference_mode():
        expected = torch.cat([backbone.trunk(backbone.transform(images.image(i))[None]) for i in range(10)])
    torch.testing.assert_close(
        features.rows(slice(None)), expected, rtol=2e-3 if dtype == "float16" else 1e-4, atol=1e-4
    )
    assert features.shape == backbone.shape
    features.verify()


def test_lite0_features_are_those_of_its_trunk(tmp_path):
    backbone, images = backbones.create("lite0", size=64), pictures(5, side=80)
    features = extract(images, backbone, tmp_path / "f", **QUICK)
    with torch.inference_mode():
        expected = torch.cat([backbone.trunk(backbone.transform(images.image(i))[None]) for i in range(5)])
    torch.testing.assert_close(features.rows(slice(None)), expected, rtol=2e-3, atol=2e-3)


def test_labels_groups_and_names_are_carried_over(backbone, tmp_path):
    groups = np.arange(20) % 2
    images = pictures(classes=["ant", "bee", "cat", "dog"], groups=groups, group_names=["land", "water"])
    features = extract(images, backbone, tmp_path / "f", shard_images=7, **QUICK)
    assert features.labels.tolist() == images.labels.tolist()
    assert features.groups.tolist() == groups.tolist()
    assert features.classes == ("ant", "bee", "cat", "dog")
    assert features.group_names == ("land", "water")
    assert features.passes == 1
    about = features.provenance
    assert about["backbone"] == json.loads(json.dumps(backbone.describe()))
    assert about["images"] == images.fingerprint
    assert about["bad"] == 0
    assert sorted(files(tmp_path / "f")) == sorted(["index.json", *shard_files(0, 1, 2)])
    unlabelled = extract(images.without_labels(), backbone, tmp_path / "u", **QUICK)
    assert unlabelled.labels is None
    assert unlabelled.classes == ()


def test_neither_workers_nor_batches_change_a_byte(backbone, tmp_path):
    images = pictures(23)
    options = {"shard_images": 6, "progress": False, "augment": 2, "corruption": "gaussian_noise", "severity": 2}
    for number, (workers, batch_size) in enumerate([(0, 64), (0, 1), (1, 4), (2, 3)]):
        extract(images, backbone, tmp_path / str(number), workers=workers, batch_size=batch_size, **options)
    first = files(tmp_path / "0")
    assert len(first) == 17  # two files per shard, and the index
    assert all(files(tmp_path / str(number)) == first for number in (1, 2, 3))


def test_other_threads_and_generators_are_left_alone(backbone, tmp_path):
    torch.manual_seed(3)
    expected, before = torch.rand(2), np.random.get_state()[1].copy()
    torch.manual_seed(3)
    extract(pictures(6), backbone, tmp_path / "f", augment=1, corruption="fog", workers=1, progress=False)
    assert torch.equal(torch.rand(2), expected)
    assert (np.random.get_state()[1] == before).all()


def test_more_workers_than_cores_give_no_warning(backbone, tmp_path, capfd):
    extract(pictures(4), backbone, tmp_path / "f", workers=len(os.sched_getaffinity(0)) + 1, progress=False)
    assert capfd.readouterr() == ("", "")


def test_passes_differ_and_depend_on_the_seed_alone(backbone, tmp_path):
    images = pictures(9)
    options = {"augment": 3, "shard_images": 4, "progress": False}
    one = extract(images, backbone, tmp_path / "one", workers=0, **options)
    two = extract(images, backbone, tmp_path / "two", workers=2, **options)
    other = extract(images, backbone, tmp_path / "other", workers=0, seed=1, **options)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert len(one) == 27
    assert one.passes == two.passes == 3
    x = one.rows(slice(None)).view(3, 9, -1)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert ((x[a] - x[b]).abs().amax(1) > 1e-3).all()
    assert ((x.flatten(0, 1) - other.rows(slice(None))).abs().amax(1) > 1e-3).all()
    assert one.labels.tolist() == images.labels.tolist() * 3
    seed = mix(0, 2, zlib.crc32(b"4"))  # seed, pass, the image's name
    by_hand = torch.from_numpy(backbone.transform.augmented(images.image(4), seed).copy())[None]
    with torch.inference_mode():
        expected = backbone.trunk(backbone.transform.normalise(by_hand))[0]
    torch.testing.assert_close(x[2, 4], expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("side", [20, 32, 48])
@pytest.mark.parametrize("name", ["gaussian-noise", "glass_blur", "jpeg_compression"])
def test_a_corruption_is_that_of_corruptions(name, side, backbone, tmp_path):
    images = pictures(3, side=side)
    features = extract(images, backbone, tmp_path / "f", corruption=name, severity=4, seed=7, **QUICK)
    for i in range(3):
        seed = mix(7, 0, zlib.crc32(str(i).encode())) % 2**32
        image = images.image(i)
        if side > 32:  # larger than the input: at its resolution
            centre = Image.fromarray(backbone.transform.centre(image))
            pixels = np.asarray(corruptions.corrupt(centre, name, 4, seed))
        else:
            pixels = backbone.transform.centre(corruptions.corrupt(image, name, 4, seed))
        with torch.inference_mode():
            x = backbone.transform.normalise(torch.from_numpy(pixels.copy())[None])
            expected = backbone.trunk(x)[0]
        torch.testing.assert_close(features.rows([i])[0], expected, rtol=2e-3, atol=1e-3)
    assert features.provenance["corruption"] == [name.replace("-", "_"), 4]


@pytest.mark.parametrize("side", [20, 32, 48])
@pytest.mark.parametrize("name", standins.STAND_INS)
def test_a_view_is_that_of_standins(name, side, backbone, tmp_path):
    """The features are those of images to which the view was applied by hand."""
    images = pictures(3, side=side)
    features = extract(images, backbone, tmp_path / "f", view=name, seed=7, **QUICK)
    views = []
    for i in range(3):
        image = images.image(i)
        if side > 32:  # larger than the input: at its resolution
            image = Image.fromarray(backbone.transform.centre(image))
        views.append(np.asarray(standins.apply(image, name, mix(7, 0, zlib.crc32(str(i).encode())) % 2**32)))
    whole = backbones.create("test_vit", "random", size=32, crop=1.0) if side > 32 else backbone  # cropped above
    by_hand = extract(ImageSet.from_arrays(np.stack(views)), whole, tmp_path / "g", **QUICK)
    assert torch.equal(features.rows(slice(None)), by_hand.rows(slice(None)))
    plain = extract(images, backbone, tmp_path / "h", **QUICK)
    assert ((features.rows(slice(None)) - plain.rows(slice(None))).abs().amax(1) > 1e-3).all()
    about = FeatureSet.open(tmp_path / "f").provenance
    assert (about["view"], about["corruption"], about["seed"]) == (name, None, 7)
    assert plain.provenance["view"] is None


def test_a_view_is_drawn_for_each_image_pass_and_seed_whatever_the_workers(backbone, tmp_path):
    one = np.random.default_rng(0).integers(0, 256, (1, 40, 40, 3), dtype=np.uint8)
    images = ImageSet.from_arrays(np.repeat(one, 6, axis=0))  # the same picture
    options = {"view": "jigsaw", "shard_images": 4, "progress": False}
    features = extract(images, backbone, tmp_path / "one", workers=0, **options).rows(slice(None))
    assert len(features.unique(dim=0)) == 6
    extract(images, backbone, tmp_path / "two", workers=2, batch_size=2, **options)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    other = extract(images, backbone, tmp_path / "other", workers=0, seed=1, **options).rows(slice(None))
    assert ((features - other).abs().amax(1) > 1e-3).all()
    passes = extract(images, backbone, tmp_path / "passes", workers=0, augment=2, **options).rows(slice(None))
    assert len(passes.unique(dim=0)) == 12


def test_a_view_of_your_own(backbone, tmp_path, monkeypatch):
    monkeypatch.setitem(standins.VIEWS, "black", lambda image, rng: Image.new("RGB", image.size))
    features = extract(pictures(5), backbone, tmp_path / "f", view="black", workers=2, progress=False)
    assert len(features.rows(slice(None)).unique(dim=0)) == 1
    monkeypatch.setitem(standins.VIEWS, "cut", lambda image, rng: image.crop((0, 0, 5, 5)))
    with refused("view 'cut' must return an RGB image of the same size, 32 x 32; got RGB of 5 x 5"):
        extract(pictures(5), backbone, tmp_path / "g", view="cut", workers=2, progress=False)
    assert not (tmp_path / "g").exists()


@pytest.mark.slow
def test_onnx_gives_the_same_features(backbone, tmp_path):
    pytest.importorskip("onnxruntime")
    eager = extract(pictures(6), backbone, tmp_path / "eager", **QUICK)
    onnx = extract(pictures(6), backbone, tmp_path / "onnx", engine="onnx", **QUICK)
    torch.testing.assert_close(onnx.rows(slice(None)), eager.rows(slice(None)), rtol=2e-3, atol=2e-3)


def test_data_sets_of_hugging_face_and_torchvision(backbone, tmp_path):
    datasets, vision = pytest.importorskip("datasets"), pytest.importorskip("torchvision.datasets")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 40, 40, 3), dtype=np.uint8)
    write(tmp_path / "tree", {f"{'cat' if i < 3 else 'dog'}/{i}.png": noise((40, 40), seed=i) for i in range(6)})
    for i in range(6):
        Image.fromarray(pixels[i]).save(tmp_path / "tree" / ("cat" if i < 3 else "dog") / f"{i}.png")
    expected = extract(ImageSet.find(tmp_path / "tree"), backbone, tmp_path / "files", **QUICK)
    tv = ImageSet.from_dataset(vision.ImageFolder(str(tmp_path / "tree")))
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": [0, 0, 0, 1, 1, 1]}
    info = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    hf = ImageSet.from_dataset(datasets.Dataset.from_dict(columns, features=info))
    for name, images in (("tv", tv), ("hf", hf)):
        features = extract(images, backbone, tmp_path / name, workers=2, batch_size=2, progress=False)
        assert features.classes == ("cat", "dog")
        assert features.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert torch.equal(features.rows(slice(None)), expected.rows(slice(None)))


# --- images that cannot be read ---------------------------------------------------------------------------


def test_a_thousand_images_with_twenty_special_ones(thousand, backbone, tmp_path):
    images = ImageSet.find(thousand)
    options = {"workers": 1, "shard_images": 100, "progress": False}
    with data_refused(r"at most 5 of 1000 images may be unreadable; 9 are so far, such as .*bad\.tsv; raise --max-bad"):
        extract(images, backbone, tmp_path / "f", max_bad=0.005, **options)
    listed = (tmp_path / "f" / "bad.tsv").read_text().splitlines()
    assert len(listed) >= 6
    done = {name: (tmp_path / "f" / name).stat().st_mtime_ns for name in shards_of(tmp_path / "f")}
    assert len(done) == 9  # the special ones come last
    features = extract(images, backbone, tmp_path / "f", max_bad=0.02, **options)
    assert {name: (tmp_path / "f" / name).stat().st_mtime_ns for name in done} == done
    assert len(features) == 1000 - len(BAD)
    assert features.provenance["bad"] == len(BAD)
    listed = [line.split("\t") for line in (tmp_path / "f" / "bad.tsv").read_text().splitlines()]
    assert {name.split("/")[-1]: reason for name, reason in listed} == {name: why for name, (_, why) in BAD.items()}
    used = [i for i, name in enumerate(images.names) if name.split("/")[-1] not in BAD]
    assert features.labels.tolist() == images.labels[used].tolist()
    assert {name.split("/")[-1] for name in images.names} >= {*GOOD}
    at = [used.index(i) for i, name in enumerate(images.names) if name.split("/")[-1] in GOOD]
    with torch.inference_mode():
        expected = torch.cat([backbone.trunk(backbone.transform(images.image(used[i]))[None]) for i in at])
    torch.testing.assert_close(features.rows(at), expected, rtol=2e-3, atol=1e-3)


def some_bad(folder, count=30, bad=(4, 5, 17)):
    names = [f"{'cat' if i < count // 2 else 'dog'}/{i:02}.png" for i in range(count)]
    return ImageSet.find(write(folder, {name: b"no" if i in bad else noise(seed=i) for i, name in enumerate(names)}))


@pytest.mark.parametrize("workers", [0, 2])
def test_strict_names_the_first_bad_image(workers, backbone, tmp_path):
    images = some_bad(tmp_path / "tree")
    options = {"workers": workers, "progress": False}
    with data_refused(
        r"every image must be readable; cat/04.png is not \(not an image\): fix it, or leave out --strict"
    ):
        extract(images, backbone, tmp_path / "f", strict=True, max_bad=1, **options)
    assert not (tmp_path / "f").exists()
    extract(images, backbone, tmp_path / "f", max_bad=0.1, shard_images=10, **options)


def test_strict_after_a_lenient_attempt(backbone, tmp_path, monkeypatch):
    images = some_bad(tmp_path / "tree")
    options = {"shard_images": 10, **QUICK}
    with data_refused("at most 2 of 30 images"):
        extract(images, backbone, tmp_path / "f", max_bad=0.09, **options)
    assert sorted(files(tmp_path / "f")) == sorted(["bad.tsv", "plan.json", "shard-00000.json", *shard_files(0)])
    seen = counted(monkeypatch)
    with data_refused("every image must be readable; cat/04.png is not"):
        extract(images, backbone, tmp_path / "f", strict=True, **options)
    assert seen == []


@pytest.mark.parametrize(("share", "allowed"), [(0.29, 29), (0.07, 7), (1 / 3, 33), (0.01, 1), (0.0, 0)])
def test_the_share_of_bad_images_is_exact(share, allowed, backbone, tmp_path):
    images = some_bad(tmp_path / "tree", 100, range(60))
    with data_refused(f"at most {allowed} of 100 images may be unreadable; {allowed + 1} are"):
        extract(images, backbone, tmp_path / "f", max_bad=share, batch_size=1, **QUICK)


def test_a_share_of_a_small_set_allows_one_bad_image(backbone, tmp_path):
    images = some_bad(tmp_path / "tree", 30, [4])
    with data_refused("at most 0 of 30 images may be unreadable; 1 are"):
        extract(images, backbone, tmp_path / "f", max_bad=0, **QUICK)
    features = extract(images, backbone, tmp_path / "f", max_bad=0.01, **QUICK)
    assert (len(features), features.provenance["bad"]) == (29, 1)
    two = some_bad(tmp_path / "other", 30, [4, 5])
    with data_refused("at most 1 of 30 images may be unreadable; 2 are"):
        extract(two, backbone, tmp_path / "g", max_bad=0.01, **QUICK)


def test_a_bad_image_counts_once_however_many_passes(backbone, tmp_path):
    images = some_bad(tmp_path / "tree")
    with data_refused("at most 2 of 30 images may be unreadable; 3 are"):
        extract(images, backbone, tmp_path / "f", augment=4, max_bad=0.09, **QUICK)
    features = extract(images, backbone, tmp_path / "f", augment=4, max_bad=0.1, shard_images=8, **QUICK)
    assert features.passes == 4
    assert len(features) == 4 * 27
    assert features.provenance["bad"] == 3
    assert (tmp_path / "f" / "bad.tsv").read_text().count("\n") == 3
    assert features.labels.tolist() == [0] * 13 + [1] * 14 + features.labels.tolist()[27:]


def test_an_image_that_breaks_between_passes_is_reported_and_then_left_out(backbone, tmp_path, monkeypatch):
    images, reads = some_bad(tmp_path / "tree", bad=()), []
    original = ImageSet.load

    def breaking(self, i):
        reads.append(i)
        if len(reads) == 33:  # image 2 in the second pass
            (tmp_path / "tree" / "cat" / "02.png").write_bytes(b"no")
        return original(self, i)

    monkeypatch.setattr(ImageSet, "load", breaking)
    options = {"augment": 2, "max_bad": 0.1, "shard_images": 10, "batch_size": 5, **QUICK}
    with data_refused("readable in all passes or in none; cat/02.png was in some only.*: run the same command again"):
        extract(images, backbone, tmp_path / "f", **options)
    reads.extend([0] * 100)
    seen = counted(monkeypatch)
    features = extract(images, backbone, tmp_path / "f", **options)
    assert sum(seen) == 2 * 9  # the shards it is in, and no others
    assert len(features) == 2 * 29


def test_a_shard_without_a_readable_image(backbone, tmp_path):
    images = some_bad(tmp_path / "tree", bad=range(10, 20))
    features = extract(images, backbone, tmp_path / "f", max_bad=0.5, shard_images=10, batch_size=4, **QUICK)
    assert len(features) == 20
    assert sorted(shards_of(tmp_path / "f")) == ["img_emb/img_emb_00000.npy", "img_emb/img_emb_00002.npy"]
    assert features.labels.tolist() == [0] * 10 + [1] * 10
    features.verify()


def test_no_readable_image_at_all(backbone, tmp_path):
    images = some_bad(tmp_path / "tree", bad=range(30))
    for _ in range(2):
        with data_refused(
            r"features need an image that can be read; none can, the first is cat/00.png \(not an image\)"
        ):
            extract(images, backbone, tmp_path / "f", max_bad=1, **QUICK)
    assert (tmp_path / "f" / "bad.tsv").read_text().count("\n") == 30


def test_names_with_tabs_and_newlines_stay_on_a_line(backbone, tmp_path):
    images = ImageSet.find(packed(tmp_path / "a.tar", {"a\tb\nc.png": b"", "d.png": plain()}), unlabelled=True)
    extract(images, backbone, tmp_path / "f", max_bad=0.5, **QUICK)
    assert (tmp_path / "f" / "bad.tsv").read_text() == "a\\tb\\nc.png\tempty file\n"


def test_a_decompression_bomb_is_a_bad_image(backbone, tmp_path):
    images = ImageSet.find(packed(tmp_path / "a.tar", {"a.png": huge(30000, 30000), "d.png": plain()}))
    extract(images, backbone, tmp_path / "f", max_bad=0.5, **QUICK)
    assert "30000 x 30000 pixels, more than the limit" in (tmp_path / "f" / "bad.tsv").read_text()


def test_a_long_strip_is_used(backbone, tmp_path):
    images = ImageSet.find(
        packed(tmp_path / "a.tar", {"a.png": plain(size=(60000, 1)), "d.png": plain(size=(1, 60000))})
    )
    assert len(extract(images, backbone, tmp_path / "f", **QUICK)) == 2


def test_a_worker_that_is_killed_is_reported_in_one_line(backbone, tmp_path, monkeypatch):
    main, original = os.getpid(), ImageSet.load

    def dying(self, i):
        if i == 25 and os.getpid() != main:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, i)

    images = pictures(30)
    options = {"shard_images": 5, "batch_size": 5, "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr(ImageSet, "load", dying)
        with refused("a process that reads images was killed, probably for lack of memory: use fewer --workers"):
            extract(images, backbone, tmp_path / "f", workers=1, **options)
    assert len(extract(images, backbone, tmp_path / "f", workers=1, **options)) == 30


# --- folders ----------------------------------------------------------------------------------------------


def test_a_finished_folder_is_returned_at_once(backbone, tmp_path, monkeypatch):
    images = pictures()
    extract(images, backbone, tmp_path / "f", shard_images=7, **QUICK)
    before, seen = files(tmp_path / "f"), counted(monkeypatch)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "f").iterdir()}
    again = extract(images, backbone, tmp_path / "f", shard_images=7, batch_size=5, max_bad=0.5, seed=9, **QUICK)
    assert seen == []
    assert isinstance(again, FeatureSet)
    assert files(tmp_path / "f") == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "f").iterdir()} == times


def test_a_finished_folder_may_be_read_only(backbone, tmp_path, monkeypatch):
    images = pictures(4)
    extract(images, backbone, tmp_path / "f", **QUICK)
    monkeypatch.setattr("dissensus.features.store.locked", None)  # what would write; root may write anywhere
    assert len(extract(images, backbone, tmp_path / "f", **QUICK)) == 4


CHANGES = {
    "backbone name": ({"backbone": "test_resnet"}, "backbone name is test_vit there, test_resnet here"),
    "size": ({"size": 64}, "backbone size is 32 there, 64 here"),
    "images": ({"images": 1}, "images is [0-9a-f]{12} there, [0-9a-f]{12} here"),
    "augment": ({"augment": 1}, "augment is 2 there, 1 here"),
    "seed": ({"seed": 1}, "seed is 0 there, 1 here"),
    "corruption": ({"corruption": "snow"}, r"corruption is \['fog', 1\] there, \['snow', 1\] here"),
    "no corruption": ({"corruption": None}, r"corruption is \['fog', 1\] there, None here"),
    "view": (
        {"corruption": None, "view": "jigsaw"},
        r"corruption is .* there, None here, view is None there, jigsaw here",
    ),
    "severity": ({"severity": 2}, r"corruption is \['fog', 1\] there, \['fog', 2\] here"),
    "dtype": ({"dtype": "float32"}, "dtype is float16 there, float32 here"),
    "shards": ({"shard_images": 5}, "shard_images is 7 there, 5 here"),
}


@pytest.mark.parametrize("finished", [True, False])
def test_another_extraction_into_the_same_folder_is_refused(finished, backbone, tmp_path, monkeypatch):
    images = pictures(14)
    asked = {"augment": 2, "corruption": "fog", "severity": 1, "shard_images": 7, "seed": 0, **QUICK}
    if finished:
        extract(images, backbone, tmp_path / "f", **asked)
    else:
        with monkeypatch.context() as patch:
            break_off_after(patch, 1)
            with pytest.raises(Stop):
                extract(images, backbone, tmp_path / "f", **asked)
    before, seen = files(tmp_path / "f"), counted(monkeypatch)
    for change, match in CHANGES.values():
        change = dict(change)
        other = backbone
        if "backbone" in change or "size" in change:
            other = backbones.create(change.pop("backbone", "test_vit"), "random", size=change.pop("size", 32))
        given = images.subset(slice(1, None)) if change.pop("images", 0) else images
        with data_refused(rf"f holds other features \({match}.*\): choose another folder, or delete it"):
            extract(given, other, tmp_path / "f", **{**asked, **change})
        assert files(tmp_path / "f") == before
    assert seen == []
    moved = replace(backbone, source="elsewhere.safetensors")  # the same weights in another place
    assert len(extract(images, moved, tmp_path / "f", **asked)) == 28


class Stop(Exception):  # noqa: N818
    """What a test throws to break off an extraction."""


def break_off_after(monkeypatch, batches):
    original = engines.create

    def create(*args):
        run, left = original(*args), [batches]

        def breaking(pixels):
            if not left[0]:
                raise Stop
            left[0] -= 1
            return run(pixels)

        return breaking

    monkeypatch.setattr(engines, "create", create)


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "photo.png", "metadata/notes.txt", "img_emb/.hidden"])
def test_other_files_are_refused_and_not_touched(name, backbone, tmp_path):
    write(tmp_path / "f", {name: b"mine"})
    with data_refused(rf"features need an empty folder; .* holds '{name}': choose another"):
        extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    assert files(tmp_path / "f") == {name: b"mine"}


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("shard-00000.json", "is half-written: delete it first"),
        ("img_emb/img_emb_00000.npy", "is half-written: delete it first"),
        ("metadata/metadata_00000.parquet", "is half-written: delete it first"),
        ("metadata", "is half-written: delete it first"),
        ("index.json", r"index\.json is damaged or of another version, input should be an object"),
        ("plan.json", r"plan\.json is damaged or of another version, input should be an object.*: delete the folder"),
    ],
)
def test_half_written_folders_are_refused_and_not_touched(name, match, backbone, tmp_path):
    write(tmp_path / "f", {name: b"[]"})
    with data_refused(match):
        extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    assert files(tmp_path / "f") == {name: b"[]"}


def test_what_another_writer_begins_meanwhile_is_not_touched(backbone, tmp_path, monkeypatch):
    theirs = {".index.json.0a1b2c3d.tmp": b"", "img_emb/img_emb_00000.npy": b"theirs"}

    def late(path, **options):
        write(tmp_path / "f", theirs)
        return locked(path, **options)

    monkeypatch.setattr("dissensus.features.store.locked", late)
    with data_refused("is half-written: delete it first"):
        extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    assert files(tmp_path / "f") == theirs


def test_features_that_were_saved_are_not_written_over(backbone, tmp_path):
    FeatureSet.from_arrays(np.ones((3, 2))).save(tmp_path / "f")
    before = files(tmp_path / "f")
    with data_refused("holds other features"):
        extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    assert files(tmp_path / "f") == before


def test_a_file_or_an_impossible_place_instead_of_a_folder(backbone, tmp_path):
    (tmp_path / "f").write_text("mine")
    with data_refused("features are a folder; .*f is a file: choose another"):
        extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    with data_refused("cannot write .*f/deep: Not a directory; free some space or choose another"):
        extract(pictures(4), backbone, tmp_path / "f" / "deep", **QUICK)
    with data_refused("cannot write /proc/none: .*; free some space or choose another"):
        extract(pictures(4), backbone, "/proc/none", **QUICK)
    assert (tmp_path / "f").read_text() == "mine"


def test_nothing_done_leaves_nothing(backbone, tmp_path, monkeypatch):
    break_off_after(monkeypatch, 0)
    with pytest.raises(Stop):
        extract(pictures(4), backbone, tmp_path / "deep" / "f", **QUICK)
    assert not (tmp_path / "deep").exists()
    (tmp_path / "f").mkdir()
    with pytest.raises(Stop):
        extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    assert files(tmp_path / "f") == {}


def test_a_plan_that_was_not_whole_is_no_hindrance(backbone, tmp_path):
    write(
        tmp_path / "f",
        {
            ".plan.json.0a1b2c3d.tmp": b"{",
            "img_emb/.img_emb_00000.npy.0a1b2c3d.tmp": b"",
            "metadata/.metadata_00000.parquet.0a1b2c3d.tmp": b"",
            "plan.lock": b"",
            "plan.1.lock": b"",
            "plan.stop": b"",
            "bad.tsv": b"",
        },
    )
    extract(pictures(4), backbone, tmp_path / "f", **QUICK)
    assert sorted(files(tmp_path / "f")) == sorted(["index.json", *shard_files(0)])


def begun(backbone, folder, monkeypatch):
    """An extraction that was broken off after the first of three shards."""
    with monkeypatch.context() as patch:
        break_off_after(patch, 1)
        with pytest.raises(Stop):
            extract(pictures(12), backbone, folder, shard_images=4, **QUICK)


def test_every_damage_of_a_plan_is_one_line_that_names_it(backbone, tmp_path, monkeypatch):
    begun(backbone, tmp_path / "f", monkeypatch)
    path = tmp_path / "f" / "plan.json"
    text = path.read_text()
    work = Extraction(tmp_path / "f", documents.read(Plan, path), range(3), 3)
    for field, kind, damaged in damages(json.loads(text)):
        path.write_text(damaged)
        before, problem = files(tmp_path / "f"), ""
        try:
            with unverified(), work.claimed():  # each field by itself, not by the checksum of all
                pass
        except DataError as error:
            problem = str(error)
        assert files(tmp_path / "f") == before
        if not problem:  # the same weights may be in another place, under another name
            assert field.startswith("backbone.") or field == "sha256" or (field, kind) == ("part", "removed"), (
                field,
                kind,
            )
            continue
        assert re.search(r"\A[^\n]*(plan\.json is damaged or of another|holds other features)[^\n]*\Z", problem), (
            problem
        )
    path.write_text(text)
    assert len(extract(pictures(12), backbone, tmp_path / "f", shard_images=4, **QUICK)) == 12


def test_a_shard_with_a_damaged_receipt_is_written_again(backbone, tmp_path, monkeypatch):
    extract(pictures(12), backbone, tmp_path / "whole", shard_images=4, **QUICK)
    begun(backbone, tmp_path / "f", monkeypatch)
    path = tmp_path / "f" / "shard-00000.json"

    def missing():
        return Extraction(tmp_path / "f", None, range(3), 3).missing()

    receipt = json.loads(path.read_text())
    assert missing() == [1, 2]
    for field, kind, text in damages(receipt):
        path.write_text(text)
        assert missing() == [0, 1, 2], (field, kind)
    path.write_text("[]")
    extract(pictures(12), backbone, tmp_path / "f", shard_images=4, **QUICK)
    assert files(tmp_path / "f") == files(tmp_path / "whole")


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"augment": -1}, "augment must be at least 0; got -1"),
        ({"seed": -1}, "seed must be within 0..2147483647; got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"workers": -1}, "workers must be at least 0; got -1"),
        ({"dtype": "float64"}, "dtype must be one of float16, float32; got 'float64'"),
        ({"shard_images": 0}, "shard_images must be at least 1; got 0"),
        ({"max_bad": 1.5}, "max_bad must be a share within 0..1; got 1.5"),
        ({"max_bad": float("nan")}, "max_bad must be finite and a share within 0..1; got nan"),
        ({"corruption": "fog", "severity": 9}, "severity must be one of 1 to 5; got 9"),
        ({"severity": 3}, "severity is of a corruption; got severity=3 and none: add --corruption"),
        ({"corruption": "smog"}, "unknown corruption 'smog': did you mean 'fog'"),
        ({"view": "jigsaws"}, "unknown view 'jigsaws': did you mean 'jigsaw'"),
        (
            {"view": "jigsaw", "corruption": "fog"},
            "an image is corrupted or made a stand-in; got --corruption fog and --view jigsaw: leave one out",
        ),
        ({"engine": "steam"}, "unknown engine 'steam'"),
    ],
)
def test_misuse_is_one_line_and_nothing_is_written(options, match, backbone, tmp_path):
    with refused(match):
        extract(pictures(4), backbone, tmp_path / "f", **{**QUICK, **options})
    assert not (tmp_path / "f").exists()


def test_unknown_names_are_of_their_own_kind(backbone, tmp_path):
    with pytest.raises(UnknownNameError):
        extract(pictures(4), backbone, tmp_path / "f", corruption="smog")


def test_a_missing_extra_is_reported_before_workers_start(backbone, tmp_path, monkeypatch):
    def missing():
        raise DissensusError("imagecorruptions is missing")

    monkeypatch.setattr(corruptions, "_functions", missing)
    with refused("imagecorruptions is missing"):
        extract(pictures(4), backbone, tmp_path / "f", corruption="fog", workers=1)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (7e4, "float16 holds values up to 65504; the features of 9 reach 70000: use --dtype float32"),
        (float("nan"), "features must be finite; those of 9 are not: check the weights"),
        (float("inf"), "features must be finite; those of 9 are not: check the weights"),
    ],
)
def test_features_that_cannot_be_stored_are_named_by_image(value, match, backbone, tmp_path, monkeypatch):
    original, seen = engines.create, []

    def create(*args):
        run = original(*args)

        def breaking(pixels):
            features = run(pixels).clone()
            seen.append(None)
            if len(seen) == 3:
                features[1, 5] = value
            return features

        return breaking

    monkeypatch.setattr(engines, "create", create)
    with data_refused(match):
        extract(pictures(12), backbone, tmp_path / "f", batch_size=4, shard_images=4, **QUICK)
    monkeypatch.undo()
    assert len(shards_of(tmp_path / "f")) == 2  # kept
    assert len(extract(pictures(12), backbone, tmp_path / "f", shard_images=4, **QUICK)) == 12


@pytest.mark.parametrize(("good", "file"), [(0, "metadata_00002.parquet"), (2, "img_emb_00002.npy")])
def test_a_full_disk_keeps_what_is_done_and_the_same_call_goes_on(good, file, backbone, tmp_path, monkeypatch):
    original, syncs = os.fsync, []

    def full(handle):
        syncs.append(None)
        if len(syncs) > 14 + good:  # a plan, two shards of two files with receipts, and their names
            raise OSError(28, "No space left on device")
        original(handle)

    images = pictures(20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with data_refused(f"cannot write .*{file}: No space left on device; free some space"):
            extract(images, backbone, tmp_path / "f", shard_images=4, **QUICK)
    kept = {"plan.json", "shard-00000.json", "shard-00001.json", *shard_files(0, 1)}
    assert files(tmp_path / "f").keys() - {"metadata/metadata_00002.parquet"} == kept  # whole, without a receipt
    seen = counted(monkeypatch)
    extract(images, backbone, tmp_path / "f", shard_images=4, **QUICK)
    assert sum(seen) == 12


def test_bars_count_images_of_all_passes(backbone, tmp_path, monkeypatch, capsys):
    from dissensus.features import _extract as module

    bars = []
    original = module.tqdm

    def shown(**options):
        bars.append(original(**{**options, "disable": False, "mininterval": 0}))
        return bars[-1]

    monkeypatch.setattr(module, "tqdm", shown)
    images = some_bad(tmp_path / "tree")
    with data_refused("at most 1 of 30"):
        extract(images, backbone, tmp_path / "f", max_bad=0.04, shard_images=4, augment=2, batch_size=2, workers=0)
    assert bars[0].total == 60
    extract(images, backbone, tmp_path / "f", max_bad=0.2, shard_images=4, augment=2, batch_size=2, workers=0)
    assert bars[1].initial == 4
    assert bars[1].n == 60
    assert "3 bad" in capsys.readouterr().err
