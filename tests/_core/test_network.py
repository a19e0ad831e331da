"""Servers that cannot be reached, and addresses that cannot be any."""

from __future__ import annotations

import socket

import pytest

from dissensus._core import network


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setattr(network, "getproxies", dict)


def test_a_server_is_reachable_as_long_as_it_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.reachable(f"http://127.0.0.1:{port}/path")
    assert not network.reachable(f"http://127.0.0.1:{port}/path")


@pytest.mark.parametrize("url", ["http://host:abc", "http://host:70000", f"http://{'a' * 70}.org", "http://[::1"])
def test_an_address_that_cannot_be_any_is_not_reachable(url):
    assert network.reachable(url) is False


@pytest.mark.parametrize(("host", "port"), [("a" * 70 + ".org", 80), ("127.0.0.1", 70000)])
def test_connecting_to_what_cannot_be_an_address_is_an_error_of_the_system(host, port):
    with pytest.raises(OSError, match=r"."):
        network.connect(host, port)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://user:password@host", "https://host"),
        ("https://user:p@ss@host:80/path?token=secret#secret", "https://host:80"),
        ("http://host:abc", "http://host:abc"),
        ("user:password@host:80/path", "host:80"),
        ("https://[::1]:80/x", "https://[::1]:80"),
    ],
)
def test_of_an_address_scheme_host_and_port_are_shown(url, text):
    assert network.shown(url) == text
