"""What the documentation site adds to docs/: the reference, the command line, equations, links."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

import dissensus
from dissensus.cli import COMMANDS, parser
from dissensus.functional.scores import SCORES
from website import commands, docstrings, equations, hooks, links, notebooks, reference

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


def test_flags_in_text_are_kept_in_one_piece():
    html = "<p><code>run --methods auto</code> and -x</p><pre><code><span>--out</span></code></pre>"
    expected = html.replace("--methods", '<span class="flag">--methods</span>')
    assert hooks.on_page_content(html, page=None) == expected


@pytest.fixture
def linked(tmp_path):
    """Two pages with good and bad links."""
    (tmp_path / "a").mkdir()
    (tmp_path / "404.html").write_text('<a href="/nowhere.html">')
    (tmp_path / "one.html").write_text(
        '<h1 id="top"></h1><a href="#top"><a href="#gone"><a href="a/two.html#caf%C3%A9"><a href="a/two.html#no">'
        '<a href="https://example.org/x#y"><a href="mailto:x@example.org"><img src="a/picture.png">'
    )
    (tmp_path / "a" / "two.html").write_text('<a name="café"><a href="../one.html"><a href="http://localhost:1">')
    return links.read(tmp_path)


def test_dead_links_within_the_site_are_found(linked):
    assert links.dead(linked) == ["one.html: #gone", "one.html: a/picture.png", "one.html: a/two.html#no"]


def test_addresses_that_leave_the_site_are_collected_and_checked(linked):
    assert links.external(linked) == {"http://localhost:1": ["two.html"], "https://example.org/x": ["one.html"]}
    assert links.malformed(links.external(linked)) == ["http://localhost:1"]
    assert links.malformed(["https://example.org/a b", "https://example", "https://a.b.org"]) == [
        "https://example.org/a b",
        "https://example",
    ]


def test_addresses_that_do_not_answer_are_printed(tmp_path, capsys):
    """404 and no server are dead; 403 is an address that does not like programs."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(int(self.path[1:]))
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / links.LIST).write_text(f"{url}/200\n{url}/403\n{url}/404\n")
        assert links.main(str(tmp_path)) == 1
        printed = capsys.readouterr()
        assert printed.out == f"{url}/404: 404 Not Found\n"
        assert printed.err == "3 addresses, 1 dead\n"
        server.shutdown()
        thread.join()
    assert links.problem(url) is not None
    (tmp_path / links.LIST).write_text("")
    assert links.main(str(tmp_path)) == 0


def test_long_lines_that_examples_print_are_wrapped_but_not_tables():
    prose, table = "word " * 30, "name     " * 30
    lines = notebooks.wrapped(f"{prose}\n\n{table}").splitlines()
    assert [line.split() for line in lines] == [["word"] * 15, ["word"] * 15, [], ["name"] * 30]


def test_examples_show_what_is_printed_as_one_block_and_figures_with_a_text_but_no_messages():
    cell = notebooks.nbformat.v4.new_code_cell("draw()")
    cell.outputs = [
        notebooks.nbformat.v4.new_output("stream", name="stdout", text="one "),
        notebooks.nbformat.v4.new_output("stream", name="stderr", text="progress"),
        notebooks.nbformat.v4.new_output("stream", name="stdout", text="line\n"),
        notebooks.nbformat.v4.new_output("display_data", data={"image/png": "AAAA", "text/plain": "<Figure>"}),
    ]
    heading = notebooks.nbformat.v4.new_markdown_cell("Text.\n\n## The drift")
    notebook = notebooks.nbformat.v4.new_notebook(cells=[heading, cell])
    text, outputs = (
        "Text.\n\n## The drift",
        "```text\none line\n```\n\n![Figure: The drift](data:image/png;base64,AAAA)",
    )
    assert notebooks.markdown(notebook) == f"{text}\n\n```python\ndraw()\n```\n\n{outputs}\n"


def test_the_quickstart_is_what_the_readme_says():
    readme, quickstart = (ROOT / "README.md").read_text(), (ROOT / "docs" / "quickstart.md").read_text()
    (shell,) = re.findall(r"```sh\n(dissensus run .*?)```", readme, flags=re.DOTALL)
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    lines = [*shell.splitlines(), *filter(None, example.splitlines())]
    position = 0
    for line in lines:  # in the order printed
        position = quickstart.index(line, position)
