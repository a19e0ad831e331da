"""Links of the built site: those within it must lead to a page and an anchor; those that leave it are collected.

python -m website.links site        asks each address that leaves the site once, and prints those that are dead
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
SECONDS = 20  # for an answer
LIST = "links.txt"  # in the site's folder


class _Page(HTMLParser):
    """The targets of a page's links, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note `id`, `href` and `src`, and `name` where it is an anchor."""
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values and (name == "id" or tag == "a")}
        self.links |= {values[name] for name in ("href", "src") if name in values}


Site = Mapping[Path, tuple[set[str], set[str]]]


def read(site: Path) -> Site:
    """Links and anchors of every page; not of 404.html, whose links start at the root of a server."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
            pages[path.resolve()] = page.links, page.anchors
    return pages


def dead(pages: Site) -> list[str]:
    """Links within the site that lead to no file, or to no anchor of a page: "page: link"."""
    missing = []
    for page, (links, _) in pages.items():
        for link in sorted(links):
            address, anchor = urldefrag(link)
            if urlsplit(link).scheme:
                continue
            target = (page.parent / unquote(urlsplit(address).path)).resolve() if address else page
            anchors = pages[target][1] if anchor and target in pages else {unquote(anchor)}
            if not target.is_file() or unquote(anchor) not in anchors:
                missing.append(f"{page.name}: {link}")
    return missing


def external(pages: Site) -> dict[str, list[str]]:
    """Every http address that leaves the site, without its anchor, and the pages that link to it."""
    found: dict[str, list[str]] = {}
    for page, (links, _) in pages.items():
        for address in sorted({urldefrag(link)[0] for link in links if urlsplit(link).scheme in ("http", "https")}):
            found.setdefault(address, []).append(page.name)
    return dict(sorted(found.items()))


def malformed(addresses: Iterable[str]) -> list[str]:
    """Addresses that are not https, or whose host is no public name."""
    return [
        each
        for each in addresses
        if urlsplit(each).scheme != "https" or not HOST.fullmatch(urlsplit(each).netloc) or re.search(r"[\s<>]", each)
    ]


def problem(address: str) -> str | None:
    """Ask for an address; return what is wrong with it, or None if it is there, perhaps not for programs."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}" if error.code in (404, 410) else None
    except OSError as error:  # no such host, no answer
        return str(error)


def main(site: str) -> int:
    """Print the addresses of links.txt that are dead; return the exit code."""
    addresses = (Path(site) / LIST).read_text(encoding="utf-8").split()
    with ThreadPoolExecutor(8) as pool:
        problems = list(pool.map(problem, addresses))
    for address, wrong in zip(addresses, problems, strict=True):
        if wrong:
            print(f"{address}: {wrong}")
    print(f"{len(addresses)} addresses, {sum(map(bool, problems))} dead", file=sys.stderr)
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
