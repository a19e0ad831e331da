"""What the documentation site adds to docs/: the reference, the command line, equations, links."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import dissensus
from dissensus.cli import COMMANDS, parser
from dissensus.functional.scores import SCORES
from website import commands, docstrings, equations, hooks, reference

ROOT = Path(__file__).parent.parent


def test_every_public_name_has_a_docstring():
    assert reference.undocumented() == []


def test_every_public_name_is_in_the_reference():
    pages = reference.pages()
    whole = "\n".join(pages.values())
    for module, names in reference.public().items():
        for name in names:
            home = ".".join(reference.homes()[module, name])
            assert f"::: {home}\n" in whole, home
    assert set(dissensus.__all__) >= set(reference.public()["dissensus"])
    assert {"Detector", "fit", "extract", "Ensemble"} <= set(reference.public()["dissensus"])
    assert "pds" in reference.public()["dissensus.functional.scores"]
    assert "::: dissensus.detection.Detector\n" in pages["reference/detection.md"]


def test_the_command_line_page_has_every_command_flag_and_default():
    page = commands.page()
    _, actions = parser.build()
    for name, of_command in actions.items():
        section = page.partition(f"## dissensus {name}\n")[2].partition("\n## ")[0]
        assert COMMANDS[name].example in section
        for action in of_command.values():
            assert all(flag in section for flag in action.option_strings), (name, action.dest)
    assert "(default: cosine)" in page
    assert "%%" not in page


def test_names_to_choose_from_are_those_of_the_registries():
    page = commands.names()
    assert all(f"| `{name}` |" in page for name in SCORES)


def test_equations_of_all_pages_become_mathml():
    """No LaTeX is left over that the browser would show as it is."""
    import markdown

    text = (ROOT / "docs" / "how-it-works.md").read_text()
    extensions = ["tables", "pymdownx.arithmatex"]
    html = markdown.markdown(text, extensions=extensions, extension_configs={extensions[1]: {"generic": True}})
    html = equations.to_mathml(html)
    assert html.count('display="block"') == text.count("$$") // 2
    assert not re.search(r"\\[a-zA-Z]+|\$|arithmatex", html)


def test_examples_in_docstrings_are_fenced():
    text = "Purpose.\n\n    >>> f(\n    ...     1)\n    2\n\nMore."
    assert docstrings.fenced(text) == "Purpose.\n\n    ```pycon\n    >>> f(\n    ...     1)\n    2\n    ```\n\nMore."


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("scale.md", "[x](../examples/spark_predictions.py)", "[x](examples/spark_predictions.md)"),
        ("scale.md", "[x](../CONTRIBUTING.md#rules)", "[x](contributing.md#rules)"),
        ("scale.md", "[x](images.md#urls)", "[x](images.md#urls)"),
        ("index.md", "[x](docs/images.md), [y](examples)", "[x](images.md), [y](examples/own_images.md)"),
        ("contributing.md", "![x](docs/flow.svg)", "![x](flow.svg)"),
    ],
)
def test_links_within_the_repository_lead_to_pages(page, link, expected):
    assert hooks.on_page_markdown(link, SimpleNamespace(file=SimpleNamespace(src_uri=page))) == expected


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        ('<script src="https://cdn.example/x.js">', True),
        ('<link href="https://fonts.example/x.css" rel="stylesheet">', True),
        ('<a href="https://arxiv.example">', False),
        ('<link rel="stylesheet" href="assets/x.css">', False),
    ],
)
def test_what_pages_load_from_other_servers_is_found(html, loads):
    assert bool(hooks.LOADED.search(html)) == loads


def test_the_quickstart_is_what_the_readme_says():
    readme, quickstart = (ROOT / "README.md").read_text(), (ROOT / "docs" / "quickstart.md").read_text()
    (shell,) = re.findall(r"```sh\n(dissensus run .*?)```", readme, flags=re.DOTALL)
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    lines = [*shell.splitlines(), *filter(None, example.splitlines())]
    position = 0
    for line in lines:  # in the order printed
        position = quickstart.index(line, position)
