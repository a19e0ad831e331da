"""Streams: shards of a WebDataset and of data sets that are iterated."""

import bz2
import gzip
import io
import lzma
import pickle
from multiprocessing import get_context

import fsspec
import numpy as np
import pytest
import webdataset
from PIL import Image

from dissensus._core.errors import DissensusError
from dissensus.images import ImageSet, ImageStream, digest, is_stream
from tests.images.samples import BAD, RED, packed, plain, refused
from tests.storage import upload


def shard(folder, i, name="train-{:02}.tar"):
    """Three images, one of them bad, with labels of every kind."""
    return packed(
        folder / name.format(i),
        {
            f"{i}a.png": plain((i, 0, 0)),
            f"{i}a.cls": str(i).encode(),
            f"{i}b.jpg": BAD["cut.jpg"][0],
            f"{i}b.json": b'{"label": "dog", "caption": "x"}',
            f"{i}c.JPG": plain(kind="JPEG"),
            f"{i}c.txt": b"a caption",
            f".hidden/{i}.png": plain(),
            f"._{i}.png": plain(),
            "readme": b"",
        },
    )


@pytest.fixture(params=["local", "memory", "bucket"])
def where(request, tmp_path):
    """Three shards."""
    for i in range(3):
        shard(tmp_path / "shards", i)
    if request.param == "local":
        return f"{tmp_path}/shards"
    return upload(tmp_path / "shards", f"{request.getfixturevalue(request.param)}/shards")


def test_brace_patterns(where, tmp_path):
    pattern = f"{where}/train-{{00..02}}.tar"
    assert is_stream(pattern)
    stream = pickle.loads(pickle.dumps(ImageStream.find(pattern)))
    assert len(stream) == 3
    assert stream.shards == tuple(f"{where}/train-0{i}.tar" for i in range(3))
    assert stream.classes is None
    assert "3 shards" in repr(stream)
    for i in range(3):
        first, second, third = stream.samples(i)
        assert first[0] == f"train-0{i}.tar/{i}a.png"
        assert first.image.getpixel((0, 0)) == (i, 0, 0)
        assert first[2:] == (None, str(i), digest(plain((i, 0, 0))))
        assert second == (f"train-0{i}.tar/{i}b.jpg", None, "truncated", "dog", digest(BAD["cut.jpg"][0]))
        assert (third.name, third.image.mode, third.label) == (f"train-0{i}.tar/{i}c.JPG", "RGB", None)
    assert [s.name for s in stream.samples(-1)] == [f"train-02.tar/2{name}" for name in ("a.png", "b.jpg", "c.JPG")]
    same = [ImageStream.find([f"{where}/train-0{{0,1}}.tar", f"{where}/train-02.tar"]), stream]
    same.append(ImageStream.find(f"{tmp_path}/shards/train-{{00..02}}.tar"))  # the original
    assert len({s.fingerprint for s in same}) == 1
    other = [stream.shrunk(3), ImageStream.find(pattern, unlabelled=True), ImageStream.find(f"{where}/train-00.tar")]
    assert len({s.fingerprint for s in [stream, *other]}) == 4
    assert [s.label for s in other[1].samples(0)] == [None] * 3
    assert min(next(other[0].shrunk(9).samples(0)).image.size) == 3
    with refused("at least one pixel"):
        stream.shrunk(0)


def test_names_of_several_tars_as_a_set_has_them(tmp_path):
    for i in range(2):
        packed(tmp_path / f"{i}.tar", {"cat/0.png": plain(), "dog/1.png": plain()})
    paths = [tmp_path / "0.tar", tmp_path / "1.tar"]
    images, stream = ImageSet.from_tar(paths), ImageStream.find(paths)
    samples = [sample for i in range(2) for sample in stream.samples(i)]
    assert [s.name for s in samples] == list(images.names)
    assert len({s.name for s in samples}) == 4
    assert [s.label for s in samples] == ["cat", "dog"] * 2


@pytest.mark.parametrize("filling", [0, 3 * 2**16])
def test_changed_labels_change_the_fingerprint(tmp_path, memory, filling):
    def stream(label, name="train.tar", where=None):
        files = {"0.png": plain(), "1.bin": bytes(filling), "2.png": plain(), "2.cls": label}
        path = packed(tmp_path / name, files)
        return ImageStream.find(upload(path, f"{where}/{name}") if where else path)

    first = stream(b"1")
    size, fingerprint = (tmp_path / "train.tar").stat().st_size, first.fingerprint
    changed = stream(b"2")
    assert (tmp_path / "train.tar").stat().st_size == size
    assert changed.fingerprint != fingerprint
    assert stream(b"1", where=memory).fingerprint == fingerprint
    assert pickle.loads(pickle.dumps(first)).fingerprint == fingerprint
    late = ImageStream.find(tmp_path / "train.tar")
    (tmp_path / "train.tar").unlink()
    with refused("train.tar does not exist"):
        _ = late.fingerprint


def test_sets_refuse_patterns(where):
    with refused("is a pattern of shards: use ImageStream.find"):
        ImageSet.find(f"{where}/train-{{00..02}}.tar")


def test_what_is_a_pattern(tmp_path):
    (tmp_path / "{a,b}").mkdir()
    assert not is_stream(tmp_path / "{a,b}")  # it is there
    assert is_stream(tmp_path / "{a,c}.tar")
    assert is_stream(["x.tar", "y-{0..3}.tar"])
    assert is_stream("s3://b/{0..9}.tar")
    for not_one in ("s3://bucket/photos", "{}.tar", "{a}", "photos", 3, np.zeros(3), ["a", "b"]):
        assert not is_stream(not_one)


def test_as_a_set_sees_them(thousand):
    """The same names, pixels, digests and labels as random access, and the same reasons for bad images."""
    images, stream = ImageSet.find(thousand), ImageStream.find(thousand)
    samples = list(stream.samples(0))
    assert [s.name for s in samples] == list(images.names)
    assert [s.label for s in samples] == [images.classes[label] for label in images.labels]
    for i in (0, 979, 985):
        image, expected = images.load(i)
        assert np.array_equal(np.asarray(samples[i].image), np.asarray(image))
        assert samples[i].digest == expected
    assert {s.name.split("/")[-1]: s.error for s in samples if s.error} == {n: why for n, (_, why) in BAD.items()}


def test_several_images_of_one_key(tmp_path):
    files = {"x/7.left.png": plain(), "x/7.right.png": plain(), "x/7.cls": b"2", "x/7.right.cls": b"5"}
    path = packed(tmp_path / "a.tar", files | {"y/8.png": plain(), "y/8.cls": b"-1"})
    assert [(s.name, s.label) for s in ImageStream.find(path).samples(0)] == [
        ("x/7.left.png", "2"),
        ("x/7.right.png", "5"),
        ("y/8.png", None),
    ]


def test_bad_labels_are_counted(tmp_path):
    files = {"1.png": plain(), "1.cls": b"dog", "2.png": plain(), "2.json": b"{", "3.png": plain(), "3.cls": b"1"}
    first, second, third = ImageStream.find(packed(tmp_path / "a.tar", files)).samples(0)
    assert (first.image, second.image, third.error) == (None, None, None)
    assert "1.cls has none" in first.error
    assert "2.json has none" in second.error


def test_shards_that_webdataset_wrote(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "w-0.tar.gz")) as writer:
        for i in range(5):
            writer.write({"__key__": f"sample{i}", "png": Image.new("RGB", (4, 4), (i, 0, 0)), "cls": i})
    samples = list(ImageStream.find(tmp_path / "w-{0..0}.tar.gz").samples(0))
    assert [(s.name, s.image.getpixel((0, 0))[0], s.label) for s in samples] == [
        (f"sample{i}.png", i, str(i)) for i in range(5)
    ]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("tar.gz", gzip.compress), ("tgz", gzip.compress), ("tar.bz2", bz2.compress), ("txz", lzma.compress)],
)
def test_compressed_shards(tmp_path, memory, suffix, compress):
    data = compress(shard(tmp_path, 0).read_bytes())
    fs, inside = fsspec.core.url_to_fs(f"{memory}/a.{suffix}")
    fs.pipe_file(inside, data)
    stream = ImageStream.find(f"{memory}/a.{suffix}")
    assert [s.name for s in stream.samples(0)] == ["0a.png", "0b.jpg", "0c.JPG"]
    for damaged in (data[:-30], data[:50], b""):
        fs.pipe_file(inside, damaged)
        with refused(f"whole tar; {memory}/a.{suffix} is missing, damaged or truncated|cannot use {memory}"):
            list(stream.samples(0))


def test_damaged_shards(tmp_path):
    path = packed(tmp_path / "x.tar", {f"{i}.png": plain() for i in range(4)})
    whole = path.read_bytes()
    bad_header = bytearray(whole)
    bad_header[2048:2080] = b"?" * 32
    for data, count in (
        (whole[:1600], 0),  # within the second image, while the first waits for more members of its key
        (whole[:2048], 1),  # between two
        (whole[:2100], 1),  # within a header
        (bytes(bad_header), 1),
        (whole + whole, 3),
        (b"", 0),
        (b"\x1f\x8b" + bytes(600), 0),
    ):
        path.write_bytes(data)
        names = []
        with refused("whole tar; .*x.tar is missing, damaged or truncated"):
            names.extend(s.name for s in ImageStream.find(path).samples(0))
        assert len(names) == count


def test_shards_that_vanish(where):
    stream = ImageStream.find(f"{where}/train-{{00..02}}.tar")
    fs, inside = fsspec.core.url_to_fs(f"{where}/train-01.tar")
    whole = fs.cat_file(inside)
    fs.pipe_file(inside, whole[:3000])
    fs.invalidate_cache()
    with refused("train-01.tar.*(truncated|changed|check the URL)"):
        list(stream.samples(1))
    fs.rm_file(inside)
    fs.invalidate_cache()
    with refused("train-01.tar.*(missing|nothing at this address)"):
        list(stream.samples(1))
    with refused("train-01.tar.*(does not exist|nothing at this address)"):
        ImageStream.find(f"{where}/train-{{00..02}}.tar")
    assert len(list(stream.samples(2))) == 3
    with refused("at least one shard"):
        ImageStream.find([])


def test_no_permission(tmp_path, bucket, denied):
    stream = ImageStream.find(upload(shard(tmp_path, 0), f"{bucket}/a.tar"))
    denied()
    for use in (lambda: ImageStream.find(f"{bucket}/a.tar"), lambda: list(stream.samples(0))):
        with refused(f"cannot use {bucket}/a.tar: permission denied"):
            use()


def test_protocols(s3):
    with pytest.raises(DissensusError, match="nonsense:// is not"):
        ImageStream.find("nonsense://b/{0..3}.tar")
    with refused("no-such-bucket/0.tar.*(does not exist|nothing at this address)"):
        ImageStream.find("s3://no-such-bucket/{0..3}.tar")


def _names(stream, i):
    return [sample.name for sample in stream.samples(i)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes_read(tmp_path, bucket):
    for i in range(2):
        upload(shard(tmp_path, i), f"{bucket}/train-{i:02}.tar")
    stream = ImageStream.find(f"{bucket}/train-{{00..01}}.tar")
    assert len(_names(stream, 0)) == 3
    with get_context("fork").Pool(1) as pool:
        assert pool.starmap(_names, [(stream, 0), (stream, 1)]) == [
            [f"train-0{i}.tar/{i}{name}" for name in ("a.png", "b.jpg", "c.JPG")] for i in range(2)
        ]
        pool.close()
        pool.join()


# Data sets that are iterated


def rows(shards=3, count=4):
    """A Hugging Face data set with one bad image per shard, streamed."""
    import datasets

    def generate(parts):
        for part in parts:
            for i in range(count):
                data = BAD["cut.jpg"][0] if i == 2 else plain((part, i, 0))
                yield {"image": {"bytes": data, "path": None}, "label": (part + i) % 2}

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    return datasets.IterableDataset.from_generator(
        generate, features=features, gen_kwargs={"parts": list(range(shards))}
    )


def test_hugging_face_streaming():
    stream = ImageStream.from_dataset(rows())
    assert len(stream) == 3
    assert stream.shards == ("00000-of-00003", "00001-of-00003", "00002-of-00003")
    assert stream.classes == ("cat", "dog")
    for i in range(3):
        samples = list(stream.samples(i))
        assert [s.name for s in samples] == [f"{stream.shards[i]}/{j}" for j in range(4)]
        assert [s.label for s in samples] == [("cat", "dog")[(i + j) % 2] for j in range(4)]
        assert [s.error for s in samples] == [None, None, "truncated", None]
        assert samples[3].image.getpixel((0, 0)) == (i, 3, 0)
        assert samples[3].digest == digest(plain((i, 3, 0)))
    bare = ImageStream.from_dataset(rows(), unlabelled=True)
    assert bare.classes is None
    assert {s.label for s in bare.samples(0)} == {None}
    prints = {s.fingerprint for s in (stream, bare, stream.shrunk(4), ImageStream.from_dataset(rows(2)))}
    assert len(prints) == 4
    assert ImageStream.from_dataset(rows()).fingerprint == stream.fingerprint


def test_fingerprints_of_streamed_data_sets(tmp_path):
    import datasets

    def fingerprint(dataset):
        return ImageStream.from_dataset(dataset).fingerprint

    def parquet(cache):
        path = str(tmp_path / "0.parquet")
        return datasets.load_dataset(
            "parquet", data_files=path, split="train", streaming=True, cache_dir=str(tmp_path / cache)
        )

    listed = datasets.Dataset.from_dict({"image": [plain((i, 0, 0)) for i in range(4)], "label": [0, 1, 0, 1]})
    listed.to_parquet(tmp_path / "0.parquet")
    for create in (lambda: parquet("a"), listed.to_iterable_dataset):
        dataset = create()
        others = [dataset.take(2), dataset.skip(2), dataset.take(3), dataset.shuffle(seed=1), dataset.shuffle(seed=2)]
        others += [dataset.filter(lambda row: row["label"] == 0), dataset.filter(lambda row: row["label"] == 1)]
        assert len({fingerprint(other) for other in [dataset, *others]}) == 8
        assert fingerprint(create().take(2)) == fingerprint(others[0])
        before = fingerprint(dataset)
        assert len(list(dataset)) == 4
        assert fingerprint(dataset) == before  # however much of it was read
    assert fingerprint(parquet("a")) == fingerprint(parquet("b"))
    assert fingerprint(listed) == fingerprint(listed) != fingerprint(listed.select([0, 1]))
    labels = (label for label in (0, 1))  # cannot be examined
    unknown = parquet("a").filter(lambda row: row["label"] in labels)
    first, second = ImageStream.from_dataset(unknown), ImageStream.from_dataset(unknown)
    assert first.fingerprint == first.fingerprint != second.fingerprint


def test_plain_iterables_never_share_a_fingerprint():
    items = [(np.zeros((3, 3), np.uint8), 0)]
    streams = [ImageStream.from_dataset(items), ImageStream.from_dataset(items)]
    streams.append(streams[0].shrunk(2))
    assert len({stream.fingerprint for stream in streams}) == 3
    for stream in streams:
        assert pickle.loads(pickle.dumps(stream)).fingerprint == stream.fingerprint


def test_streamed_data_sets_are_sent_to_other_processes():
    import datasets

    table = {"image": [{"bytes": plain((i, 0, 0)), "path": None} for i in range(6)], "y": [3, 4, 5, 3, 4, 5]}
    features = datasets.Features({"image": datasets.Image(), "y": datasets.Value("int64")})
    dataset = datasets.Dataset.from_dict(table, features=features).to_iterable_dataset(num_shards=2)
    stream = pickle.loads(pickle.dumps(ImageStream.from_dataset(dataset, label="y")))
    samples = [s for i in range(2) for s in stream.samples(i)]
    assert [(s.label, s.image.getpixel((0, 0))[0]) for s in samples] == [
        ("3", 0), ("4", 1), ("5", 2), ("3", 3), ("4", 4), ("5", 5),
    ]  # fmt: skip
    assert stream.classes is None


def test_parquet_shards_on_s3_streamed_by_hugging_face(bucket, tmp_path):
    import datasets

    for i in range(2):
        table = {"image": [{"bytes": plain((i, j, 0)), "path": None} for j in range(3)], "label": [0, 1, 1]}
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
        datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / f"{i}.parquet")
    upload(tmp_path, f"{bucket}/data")
    dataset = datasets.load_dataset(
        "parquet", data_files=f"{bucket}/data/*.parquet", split="train", streaming=True, cache_dir=str(tmp_path / "c")
    )
    stream = ImageStream.from_dataset(dataset)
    assert (len(stream), stream.classes) == (2, ("a", "b"))
    assert [(s.image.getpixel((0, 0)), s.label) for s in stream.samples(1)] == [
        ((1, 0, 0), "a"), ((1, 1, 0), "b"), ((1, 2, 0), "b"),
    ]  # fmt: skip


def test_any_iterable_is_one_shard():
    grey = np.full((4, 5), 7, np.uint8)
    items = [(Image.new("RGB", (3, 3), RED), 1), (grey, -1), ("text", 0), (grey.astype(float), "dog")]
    stream = ImageStream.from_dataset(items)
    assert stream.shards == ("00000-of-00001",)
    first, second, third, fourth = stream.samples(0)
    assert (first.label, second.label, third.label, fourth.label) == ("1", None, "0", "dog")
    assert second.image.getpixel((0, 0)) == (7, 7, 7)
    assert len({first.digest, second.digest}) == 2
    assert (third.error, fourth.error) == ("an item of type str, not an image", "an array of float64, not uint8")
    dicts = ImageStream.from_dataset([{"img": grey, "y": 2}, {"img": grey}], image="img", label="y")
    assert [s.label for s in dicts.samples(0)] == ["2", None]
    assert next(ImageStream.from_dataset([grey]).samples(0)).label is None


def test_bad_data_sets():
    with refused("a dict of train, test: choose one"):
        ImageStream.from_dataset({"train": rows(), "test": rows()})
    with refused("int cannot be"):
        ImageStream.from_dataset(3)
    with refused("no column 'img': choose image among image, label"):
        ImageStream.from_dataset(rows(), image="img")

    def broken():
        yield np.zeros((3, 3), np.uint8), 0
        raise ConnectionError("the hub\nis away")

    samples = ImageStream.from_dataset(broken()).samples(0)
    assert next(samples).image.size == (3, 3)
    with refused("00000-of-00001 of the data set fails with the hub is away"):
        next(samples)
    with refused("a label is an integer or a name; got list"):
        list(ImageStream.from_dataset([(np.zeros((3, 3), np.uint8), [1])]).samples(0))


def test_files_are_closed(tmp_path, monkeypatch):
    files = []
    original = open

    def recording(*args, **options):
        files.append(original(*args, **options))
        return files[-1]

    stream = ImageStream.find(shard(tmp_path, 0))
    monkeypatch.setattr("builtins.open", recording)
    samples = stream.samples(0)
    next(samples)
    samples.close()
    assert files
    assert all(file.closed for file in files if isinstance(file, io.BufferedReader))
