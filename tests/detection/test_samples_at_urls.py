"""Images at URLs as samples: the same predictions as of local copies, in this process and in forked workers."""

from __future__ import annotations

import pytest
import torch

from dissensus._core.errors import DataError, DissensusError
from dissensus.detection.detector import Detector
from dissensus.detection.samples import resolve, stream_of
from dissensus.features import is_features
from tests.storage import upload


@pytest.fixture(params=["memory", "bucket"])
def url(request):
    return request.getfixturevalue(request.param)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_predictions_are_those_of_local_copies(pictures, tmp_path, url):
    detector = Detector.load(pictures / "run")
    paths = sorted((pictures / "images" / "blue").iterdir())[:3]
    expected = detector.predict(paths)
    urls = [upload(path, f"{url}/few/{path.name}") for path in paths]
    (tmp_path / "list.txt").write_text("\n".join(path.name for path in paths))
    upload(tmp_path / "list.txt", f"{url}/few/list.txt")
    verdicts = detector.predict(f"{url}/few")
    assert torch.equal(verdicts.score, expected.score)
    assert verdicts.names == tuple(urls)
    gone = f"{url}/few/gone.png"
    for workers, source in ((0, f"{url}/few"), (0, f"{url}/few/list.txt"), (0, [*urls, gone]), (2, [*urls, gone])):
        streamed = list(detector.stream(source, batch_size=2, workers=workers))
        assert [v.score for v in streamed[:3]] == pytest.approx(expected.score.tolist(), abs=1e-5)
        assert [v.error for v in streamed[3:]] == ["there is nothing at this address"] * isinstance(source, list)
    with pytest.raises(DataError, match=r"gone.png is not \(there is nothing at this address\): leave it out"):
        detector.predict([gone])


def test_what_a_url_names(pictures, url):
    upload(pictures / "images" / "red", f"{url}/red")
    assert not is_features(f"{url}/red")
    assert not is_features(f"{url}/red/00.png")
    assert len(resolve(f"{url}/red").source) == 40
    assert resolve(f"{url}/red/00.png") == ([f"{url}/red/00.png"], (f"{url}/red/00.png",))
    assert resolve("https://example.org/photo?id=3").source == ["https://example.org/photo?id=3"]
    assert resolve(f"file://{pictures}/images/red/00.png").source == [f"{pictures}/images/red/00.png"]
    assert next(iter(stream_of(f"{url}/red"))) == f"{url}/red/00.png"
    with pytest.raises(DataError, match=r"there is nothing at .*nothing: check the URL"):
        resolve(f"{url}/nothing")


def test_no_permission_and_no_such_protocol(bucket, denied):
    with pytest.raises(DissensusError, match="nonsense:// is not"):
        resolve("nonsense://bucket/photos")
    denied()
    with pytest.raises(DataError, match=rf"cannot use {bucket}/photos: permission denied"):
        resolve(f"{bucket}/photos")
