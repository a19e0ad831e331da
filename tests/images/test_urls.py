"""Images at URLs: the same sets as from local copies, read by forked processes, and one line for whatever is wrong."""

import pickle
import shutil

import fsspec
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from dissensus._core.errors import DissensusError
from dissensus.images import BadImage, ImageSet, load_image, read_image, walk
from tests.images.samples import BAD, RED, packed, plain, refused, tree, write
from tests.storage import upload


@pytest.fixture(params=["memory", "bucket"])
def url(request):
    return request.getfixturevalue(request.param)


def same(remote, local):
    assert remote.names == local.names
    assert remote.classes == local.classes
    assert (remote.labels is None) == (local.labels is None)
    assert remote.labels is None or remote.labels.tolist() == local.labels.tolist()
    assert remote.fingerprint == local.fingerprint
    for i in range(len(local)):
        (image, digest), (expected, wanted) = remote.load(i), local.load(i)
        assert np.array_equal(np.asarray(image), np.asarray(expected))
        assert digest == wanted


def test_folders(tmp_path, url):
    upload(tree(tmp_path / "a"), f"{url}/photos")
    remote = ImageSet.find(f"{url}/photos")
    same(remote, ImageSet.find(tmp_path / "a"))
    assert remote.path(1) == f"{url}/photos/dog/b.JPG"
    same(pickle.loads(pickle.dumps(ImageSet.find(f"{url}/photos/"))), remote)
    same(ImageSet.find(f"{url}/photos", unlabelled=True), ImageSet.find(tmp_path / "a", unlabelled=True))
    same(ImageSet.find(f"{url}/photos/dog/deep"), ImageSet.find(tmp_path / "a" / "dog" / "deep"))
    same(ImageSet.find(f"file://{tmp_path}/a"), remote)


def test_listing_sees_what_came_and_went(tmp_path, url):
    fs, inside = fsspec.core.url_to_fs(upload(tree(tmp_path), f"{url}/photos"))
    assert len(ImageSet.find(f"{url}/photos")) == 3
    fs.pipe_file(f"{inside}/dog/new.png", plain())
    assert len(ImageSet.find(f"{url}/photos")) == 4
    fs.rm_file(f"{inside}/dog/new.png")
    images = ImageSet.find(f"{url}/photos")
    assert len(images) == 3
    fs.rm_file(f"{inside}/dog/b.JPG")
    with pytest.raises(BadImage, match="nothing at this address"):
        images.image(1)


def test_lists(tmp_path, url):
    write(tmp_path / "a", {"a b.png": RED, "sub/c.png": (0, 0, 0)})
    (tmp_path / "a" / "list.txt").write_text("a b.png\tdog\nsub/c.png\tcat\ngone.png\tcat\n", encoding="utf-8")
    upload(tmp_path / "a", f"{url}/a")
    remote, local = ImageSet.find(f"{url}/a/list.txt"), ImageSet.find(tmp_path / "a" / "list.txt")
    assert remote._sizes.tolist() == local._sizes.tolist()
    assert remote._sizes[2] == -1
    same(remote.subset([0, 1]), local.subset([0, 1]))
    with pytest.raises(BadImage, match="nothing at this address"):
        remote.image(2)
    # a list here of images there, by URLs of their own, and by a base
    (tmp_path / "urls.txt").write_text(f"{url}/a/a b.png\tdog\n{tmp_path}/a/sub/c.png\tcat\n")
    mixed = ImageSet.find(tmp_path / "urls.txt")
    assert mixed._sizes.tolist() == local._sizes.tolist()[:2]
    assert [mixed.image(i).getpixel((0, 0)) for i in range(2)] == [RED, (0, 0, 0)]
    (tmp_path / "bare.txt").write_text(f"{url}/a/a b.png\tdog\nsub/c.png\tcat\n")
    same(ImageSet.find(tmp_path / "bare.txt", base=f"{url}/a"), local.subset([0, 1]))


def test_tables(tmp_path, url):
    write(tmp_path / "a", {"x.png": RED, "y.png": (0, 0, 0)})
    table = pd.DataFrame({"path": ["x.png", "y.png", "x.png"], "label": [7, 3, 3], "split": ["a", "b", "a"]})
    table.to_csv(tmp_path / "a" / "t.csv", index=False)
    table.to_csv(tmp_path / "a" / "t.tsv", index=False, sep="\t")
    table.assign(split=table.split.astype("category"), blob=[b"\xff", b"", b"x"], nested=[[1], [], [2]]).to_parquet(
        tmp_path / "a" / "t.parquet"
    )
    upload(tmp_path / "a", f"{url}/a")
    for options in ({}, {"group_columns": ["label", "split"]}, {"only": {"split": "a"}}, {"label_column": "split"}):
        sets = [ImageSet.find(f"{url}/a/t.{kind}", **options) for kind in ("csv", "tsv", "parquet")]
        local = ImageSet.find(tmp_path / "a" / "t.parquet", **options)
        for images in sets:
            same(images, local)
            assert images.group_names == local.group_names
    with refused("no column 'blob': choose among path, label, split"):
        ImageSet.find(f"{url}/a/t.parquet", label_column="blob")
    missing = table.assign(label=pd.array([1, None, 2], "Int64"))
    missing.to_parquet(tmp_path / "m.parquet")
    with refused("row 2 .*m.parquet is empty in column 'label'"):
        ImageSet.find(tmp_path / "m.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with refused("must be a Parquet table"):
        ImageSet.find(tmp_path / "broken.parquet")


def test_tars(tmp_path, url):
    packed(tmp_path / "a" / "0.tar", {"p/cat/1.png": plain(), "p/dog/2.png": plain((0, 0, 9))})
    packed(tmp_path / "b" / "0.tar", {"1.png": plain(), "1.cls": b"1", "2.png": plain(), "2.cls": b"0"})
    packed(tmp_path / "b" / "1.tar", {"3.png": plain((7, 0, 0)), "3.json": b'{"label": 1}'})
    upload(tmp_path, f"{url}/tars")
    same(ImageSet.find(f"{url}/tars/a/0.tar"), ImageSet.find(tmp_path / "a" / "0.tar"))
    same(ImageSet.find(f"{url}/tars/b"), ImageSet.find(tmp_path / "b"))
    several = ImageSet.from_tar([f"{url}/tars/b/0.tar", f"{url}/tars/b/1.tar"])
    same(several, ImageSet.find(tmp_path / "b"))
    fs, inside = fsspec.core.url_to_fs(f"{url}/tars/b/1.tar")
    fs.pipe_file(inside, (tmp_path / "b" / "1.tar").read_bytes()[:560])
    with refused("plain and whole; .*1.tar is damaged, compressed or truncated after 0 images"):
        ImageSet.find(f"{url}/tars/b/1.tar")
    with pytest.raises(BadImage, match="truncated"):
        several.image(2)


def test_single_images_and_walks(tmp_path, url):
    upload(write(tree(tmp_path), {"top.png": RED}), f"{url}/photos")
    image, digest = load_image(f"{url}/photos/top.png")
    assert image.getpixel((0, 0)) == RED
    assert digest == load_image(str(tmp_path / "top.png"))[1]
    assert read_image(f"file://{tmp_path}/top.png").getpixel((0, 0)) == RED
    local = [path.removeprefix(str(tmp_path)) for path in walk([str(tmp_path)])]
    assert list(walk([f"{url}/photos"])) == [f"{url}/photos{name}" for name in local]
    assert list(walk([f"{url}/photos/top.png", f"file://{tmp_path}/top.png"])) == [
        f"{url}/photos/top.png",
        f"{tmp_path}/top.png",
    ]
    assert list(walk([f"{url}/nothing"])) == [f"{url}/nothing"]  # reading it will tell
    for name in ("nothing", "nothing.png"):
        with pytest.raises(BadImage, match=r"\Athere is nothing at this address\Z"):
            read_image(f"{url}/{name}")


class Loaded:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images.load(i)[1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_workers_read(tmp_path, url):
    """Twice, with reads of the parent before: connections of the parent are of no use to a child."""
    write(tmp_path, {f"{i % 2}/{i}.png": (i, 0, 0) for i in range(12)})
    images = ImageSet.find(upload(tmp_path, f"{url}/photos"))
    expected = [images.load(i)[1] for i in range(12)]
    assert len(set(expected)) == 12
    for _ in range(2):
        loader = DataLoader(Loaded(images), batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert list(loader) == expected


def test_what_is_wrong_with_a_folder(tmp_path, url):
    write(tmp_path, {"x/readme.md": b"", "one.jpg": RED, "a.zip": b"", "packed/a.tgz": b"", "mixed/c/1.png": RED})
    write(tmp_path, {"mixed/2.png": RED, "half/c/1.png": RED, "half/d/notes.txt": b""})
    write(tmp_path, {"f/index.json": b"{}", "f/img_emb/img_emb_00000.npy": b"", "d/.hidden/x.png": RED})
    upload(tmp_path, url)
    for name, match in {
        "nothing": "there is nothing at .*nothing: check the URL",
        "nothing.txt": "there is nothing at this address",
        "nothing.tar": "there is nothing at this address",
        "nothing.csv": "there is nothing at this address",
        "x": r"\.jpg \.jpeg .*\.heif; .*x holds none",
        "d": "there is nothing at .*d: check the URL",
        "one.jpg": "a single image: give its folder",
        "a.zip": "a file of another kind",
        "packed": "must not be compressed.*a.tgz.*gunzip",
        "mixed": "class folders or all at the top.*'2.png'.*unlabelled",
        "half": "every class folder holds images; .*half/d holds none",
        "f": "holds features",
        "t-{0..3}.tar": "a pattern of shards: use ImageStream.find",
    }.items():
        with refused(match):
            ImageSet.find(f"{url}/{name}")
    with refused("column options"):
        ImageSet.find(f"{url}/x", only={"split": 0})


def test_a_bucket_that_does_not_exist(s3):
    for name in ("", "/photos", "/a.tar", "/list.txt"):
        with refused("s3://no-such-bucket.*(there is nothing at|check the URL)"):
            ImageSet.find(f"s3://no-such-bucket{name}")


def test_permission_denied(bucket, denied, tmp_path):
    images = ImageSet.find(upload(tree(tmp_path), f"{bucket}/photos"))
    denied()
    for name in ("photos", "photos/list.txt", "a.tar", "t.csv"):
        with refused(f"cannot use {bucket}/{name}: permission denied; check the URL, your credentials"):
            ImageSet.find(f"{bucket}/{name}")
    with pytest.raises(BadImage, match=r"\Apermission denied\Z"):
        images.image(0)


def test_errors_of_cloud_libraries_are_bad_images(bucket, tmp_path, monkeypatch):
    from botocore.exceptions import ConnectTimeoutError, NoCredentialsError

    images = ImageSet.find(upload(tree(tmp_path), f"{bucket}/photos"))
    for error, match in (
        (NoCredentialsError(), "Unable to locate credentials"),
        (ConnectTimeoutError(endpoint_url="x"), "timeout"),
    ):

        async def fail(self, *args, error=error, **options):
            raise error

        monkeypatch.setattr(fsspec.get_filesystem_class("s3"), "_cat_file", fail)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # instances hold copies of their methods
        with pytest.raises(BadImage, match=match):
            images.image(0)


def test_unknown_protocols_and_missing_packages(monkeypatch):
    for use in (ImageSet.find, read_image, lambda url: list(walk([url]))):
        with pytest.raises(DissensusError, match=r"\A.*nonsense:// is not: use s3://.*memory://\Z"):
            use("nonsense://bucket/photos")

    def absent(protocol):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.get_filesystem_class", absent)
    monkeypatch.setattr("fsspec.core.get_filesystem_class", absent)
    for use in (ImageSet.find, read_image, lambda url: list(walk([url]))):
        with pytest.raises(DissensusError, match=r"\As3://bucket/photos must be .*: pip install s3fs\Z"):
            use("s3://bucket/photos")


def test_bad_images_are_bad_at_urls_too(tmp_path, url):
    write(tmp_path, {f"{i}{name[-4:]}": data for i, (name, (data, _)) in enumerate(BAD.items())})
    images = ImageSet.find(upload(tmp_path, f"{url}/bad"))
    reasons = []
    for i in range(len(images)):
        with pytest.raises(BadImage) as caught:
            images.image(i)
        reasons.append(str(caught.value))
    assert reasons == [reason for _, reason in BAD.values()]


def test_sets_of_several_places_are_joined(tmp_path, url):
    local = ImageSet.find(tree(tmp_path / "a"))
    remote = ImageSet.find(upload(tmp_path / "a", f"{url}/photos"))
    both = pickle.loads(pickle.dumps(ImageSet.joined({"here": local, "there": remote})))
    assert both.load(0)[1] == both.load(3)[1]
    shutil.rmtree(tmp_path / "a")
    assert isinstance(both.image(3), Image.Image)
