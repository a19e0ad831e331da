"""Events of mkdocs: generated pages, links that leave docs/, equations as MathML, checks of what was built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import commands, equations, links, notebooks, reference

ROOT = Path(__file__).parent.parent
# Files of the repository that are pages of the site, by their links from docs/*.md.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}


# What a page loads: a script, a picture, a style sheet. Links that a reader follows are not among them.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](https?:[^"']+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|icon))[^>]*\bhref=["'](https?:[^"']+)"""
)


INLINE = re.compile(r"<code>[^<]*</code>")
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated."""
    pages = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items()}
    pages |= {"cli.md": commands.page(), "names.md": commands.names()}
    pages |= reference.pages()
    pages |= notebooks.pages(ROOT / "examples", ROOT / ".cache" / "notebooks")
    pages["assets/site.css"] = (ROOT / "website" / "site.css").read_text(encoding="utf-8")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    (section,) = (part["Reference"] for part in config.nav or () if "Reference" in part)
    section += [{path.removeprefix("reference/").removesuffix(".md"): path} for path in sorted(pages) if _module(path)]
    return files


def _module(path: str) -> bool:
    return path.startswith("reference/") and path != "reference/index.md"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links within the repository to pages of the site."""
    here = page.file.src_uri
    if here in PAGES.values():  # written for the root of the repository
        markdown = re.sub(r"\]\((?:docs/)([^)]+)\)", r"](\1)", markdown)
        targets = r"\]\(((?:examples(?:/\w+\.py)?)|[A-Z_]+\.md)(#[^)]*)?\)"
    else:
        targets = r"\]\(\.\./((?:examples(?:/\w+\.py)?)|[A-Z_]+\.md)(#[^)]*)?\)"
    return re.sub(targets, lambda link: f"]({_page_of(link[1])}{link[2] or ''})", markdown)


def _page_of(target: str) -> str:
    if target == "examples":
        return "examples/own_images.md"
    return PAGES.get(target, target.removesuffix(".py") + ".md" if target.endswith(".py") else target)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Write equations as MathML, which browsers show without a script, and keep flags in one piece."""
    return INLINE.sub(lambda code: FLAG.sub(r'<span class="flag">\g<0></span>', code[0]), equations.to_mathml(html))


def on_post_build(config: MkDocsConfig) -> None:
    """Raise unless all public names are in the reference, no link is dead, and nothing is loaded from other servers."""
    site = Path(config.site_dir)
    if absent := reference.absent(site / "objects.inv"):
        raise PluginError(f"public names are missing in the reference: {', '.join(absent)}")
    for path in sorted(site.rglob("*.html")):
        if remote := LOADED.search(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.relative_to(site)} loads {remote[1] or remote[2]} from another server: bundle it")
    pages = links.read(site)
    if dead := links.dead(pages):
        raise PluginError(f"dead links: {', '.join(dead)}")
    addresses = links.external(pages)
    if malformed := links.malformed(addresses):
        raise PluginError(f"addresses must be https://HOST/...: {', '.join(malformed)}")
    (site / links.LIST).write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
