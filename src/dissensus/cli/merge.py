"""dissensus merge: join the parts that a job array wrote."""

from __future__ import annotations

from dissensus._core.terminal import show
from dissensus.cli.command import command, say


@command("merge", "dissensus merge parts/1 parts/2 --out features/photos")
def merge(parts: list[str], *, out: str) -> None:
    """Join the parts that `extract --part K/N` or `predict --part K/N` wrote, after checking that all are there.

    The result has the same bytes as if one command had done the work. The parts are kept.

    Args:
        parts: all parts, in any order: feature folders, or files of verdicts.
        out: the feature folder, or the file of verdicts, to write.
    """
    from dissensus.cli import parts as verdicts
    from dissensus.features import merge as join

    if any(map(verdicts.is_verdicts, parts)):
        rows = verdicts.join(parts, out)
        say(f"{rows:,} verdicts of {len(parts)} parts")
    else:
        features = join(parts, out)
        bad = features.provenance.get("bad", 0)
        unread = f"; {bad} images could not be read" if bad else ""
        say(f"{len(features):,} rows of {len(parts)} parts{unread}")
    show(out)
