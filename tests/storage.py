"""Storage behind URLs: a folder in memory and an S3 server on this machine, for tests of any package.

    def test_something(bucket, tmp_path):         # "s3://" and the name of an empty bucket
        upload(tmp_path, f"{bucket}/photos")

The fixtures are known to all tests: see conftest.py.
"""

from __future__ import annotations

import itertools
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of moto's S3 server, which s3fs and boto use until the end of the session, as do child processes."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    settings = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield address
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    server.stop()


@pytest.fixture
def bucket(s3: str) -> str:
    """An empty bucket, and no connections of tests before."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    name = f"bucket-{os.getpid()}-{next(_numbers)}"
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


@pytest.fixture
def denied(s3: str) -> Iterator[Callable[[], None]]:
    """A function that takes all permissions away, until the end of the test."""
    yield lambda: _requests_without_permission(s3, "0")
    _requests_without_permission(s3, "inf")


def _requests_without_permission(address: str, count: str) -> None:
    plain = {"Content-Type": "text/plain"}  # else the server takes it for a form
    request = urllib.request.Request(f"{address}/moto-api/reset-auth", count.encode(), plain, method="POST")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


@pytest.fixture
def memory() -> str:
    """An empty folder in the memory of this process and of those forked from it."""
    return f"memory://folder-{next(_numbers)}"


def upload(folder: Path, url: str) -> str:
    """Copy a local folder or file to a URL, and return the URL."""
    fs, inside = fsspec.core.url_to_fs(url)
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        target = inside if folder.is_file() else f"{inside}/{path.relative_to(folder).as_posix()}"
        fs.makedirs(fs._parent(target), exist_ok=True)
        fs.put_file(str(path), target)
    return url
