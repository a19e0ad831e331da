"""dissensus demo: the whole job on embedded data."""

from __future__ import annotations

from dissensus._core.places import place
from dissensus._core.terminal import show
from dissensus.cli.command import command, hold


@command("demo", "dissensus demo --out runs/demo")
def demo(*, out: str = "runs/demo", seed: int = 0, member_epochs: int | None = None, progress: bool = True) -> None:
    """Run the whole job on the embedded digits: train every method, evaluate, print a table, write a report.

    Needs no data and no network. A second call finds the trained ensembles and only evaluates them again.

    Args:
        out: folder for results.csv, report.html, the features and one run folder per method.
        seed: decides splits, initial weights and batches.
        member_epochs: passes over the training set per member, instead of the suites' own number.
        progress: show progress bars when stderr is a terminal.
    """
    from dissensus._core.files import check_output
    from dissensus._core.outputs import writing
    from dissensus.experiments.demo import run_demo

    check_output(out)
    hold(writing(out))
    show(run_demo(place(out), seed=seed, member_epochs=member_epochs, progress=progress))
