"""Images on a web server that states no sizes, ignores ranges and never ends: no more is read than is allowed."""

from __future__ import annotations

import http.server
import threading

import pytest

from dissensus.images import BadImage, ImageSet, ImageStream, _files, read_image
from tests.images.samples import plain, refused

MOST = 2**16


class Endless(http.server.BaseHTTPRequestHandler):
    """Answers with an image or zeros, whatever part was requested."""

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(plain() if "image" in self.path else b"")
        try:
            while "whole" not in self.path and self.server.sent < 2**28:
                self.wfile.write(bytes(2**20))
                self.server.sent += 2**20
        except OSError:  # the client has left
            pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(_files, "MAX_BYTES", MOST)
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    made.sent = 0
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
    assert made.sent < 2**27, "it was read without bound"


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_an_image_without_end(url):
    assert read_image(f"{url}/whole/image.png").size == (8, 6)
    with pytest.raises(BadImage, match="more than the limit of"):
        read_image(f"{url}/image.png")


def test_a_part_is_not_taken_from_the_beginning_of_a_whole_file(url):
    assert _files.read_part(f"{url}/image.png", 0, 4) == plain()[:4]
    assert _files.read_part(f"{url}/image.png", 4, 0) == b""
    with pytest.raises(OSError, match="the server sends whole files only"):
        _files.read_part(f"{url}/image.png", 4, 4)


@pytest.mark.parametrize("name", ["x.tar", "x.parquet"])
def test_what_is_read_at_any_place_needs_a_size(name, url):
    with refused("the server does not say how large it is"):
        ImageSet.find(f"{url}/{name}")


def test_lists_and_streams_without_end(url):
    with refused("line 1 of .*x.txt has more"):
        ImageSet.find(f"{url}/x.txt")
    assert list(ImageStream.find(f"{url}/x.tar").samples(0)) == []
