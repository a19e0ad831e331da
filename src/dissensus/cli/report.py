"""dissensus report: evaluated runs and studies as one page."""

from __future__ import annotations

from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus._core.terminal import show
from dissensus.cli.command import command, hold, say


@command("report", "dissensus report runs/demo/digits --out page.html")
def report(paths: list[str], *, out: str = "report.html", score: str | None = None) -> None:
    """Make one page of evaluated runs and studies: a summary, tables, charts, examples, how to repeat them.

    The page is one file without any need of a network; all runs must be of one suite.

    Args:
        paths: run folders, folders of runs such as run and demo leave, or study folders.
        out: the page to write, .html.
        score: the score shown first: dissensus list scores; by default the combination that detectors use, if the runs
            were evaluated with held-out features.
    """
    from dissensus import report as pages
    from dissensus._core.outputs import writing
    from dissensus.evaluation._evaluate import COMBINED
    from dissensus.functional import scores

    if score not in (None, COMBINED):
        scores.SCORES.check(score)
    if place(out).suffix.lower() not in (".html", ".htm"):
        raise DissensusError(f"--out must name an .html file; got {out!r}")
    if place(out).is_dir():
        raise DissensusError(f"--out must name a file; {out} is a folder: write {place(out) / 'report.html'}")
    hold(writing(out))
    sources = pages.gather(paths)
    for folder in sources.left_out:
        say(f"left out, not evaluated: {folder}")
    pages.write_page(sources, place(out), score=score)
    say(f"wrote {out}: {len(sources.runs)} runs, {len(sources.outcomes)} studies of {sources.suite}")
    show(out)
