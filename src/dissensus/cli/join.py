"""dissensus join: finished runs on several backbones as one run."""

from __future__ import annotations

import shlex

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import command, say


@command("join", "dissensus join runs/lite0 runs/lite2 --out runs/joined")
def join(runs: list[str], *, out: str) -> None:
    """Join finished runs on different backbones, or on different layers of one, into one run.

    Its members are those of all runs, and an image is decoded once for all backbones. The runs must be trained on the
    same images with the same classes; they stay where they are, and the joined run names them by relative paths.
    Then calibrate it: the p-values of all backbones are combined and calibrated together, so that the false-alarm rate
    is guaranteed whatever they have in common.

    Args:
        runs: two or more run folders that train, tune or run wrote.
        out: the run folder to write.
    """
    from dissensus.training.joined import join as join_runs

    if not out:
        raise DissensusError("--out must name something; got an empty name")
    joined = join_runs(runs, out)
    members = joined.settings["members"]
    say(
        f"joined {' and '.join(joined.parts)}: {members} members; calibrate them together with: dissensus calibrate "
        f"{shlex.quote(out)} --id SAMPLES"
    )
    show(out)
