"""The examples run as notebooks, each in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from website import notebooks

ROOT = Path(__file__).parent.parent
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in notebooks.NOT_EXECUTED]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, monkeypatch):
    """What they print is kept for `make docs`, which need not run them again then."""
    monkeypatch.delenv("DISSENSUS_CACHE", raising=False)
    notebook = notebooks.execute(path)
    text = notebooks.markdown(notebook)
    assert text.startswith("# ")
    assert text.count("```text") >= 2, text
    assert ("![Figure: " in text) == ("plt.show()" in path.read_text())
    notebooks.save(notebook, notebooks.place(path, ROOT / ".cache" / "notebooks"))


def test_an_example_that_fails_is_an_error(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("# %% [markdown]\n# # Broken\n\n# %%\nprint(1 / 0)\n")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        notebooks.cached(script, tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*"))
