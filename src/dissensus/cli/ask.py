"""dissensus ask: which samples to label, so that a few labels tell members apart."""

from __future__ import annotations

import shlex
from pathlib import Path

from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus._core.terminal import printable, show
from dissensus.cli.command import command, hold, say


@command("ask", "dissensus ask runs/mine new-photos --count 16")
def ask(
    run: str,
    pool: str,
    *,
    count: int = 16,
    out: str = "questions.csv",
    sheet: str | None = None,
    engine: str | None = None,
    accelerator: str = "auto",
    progress: bool = True,
) -> None:
    """Choose samples of a new place whose labels tell most about which members are right there.

    It writes a table to fill in and a page to look at. With the labels, dissensus adapt finds the member that holds.

    Args:
        run: a run folder, of two members or more.
        pool: unlabelled samples of the place where the run will be used: images as for predict, a feature folder or an
            .npz file; labels are ignored.
        count: how many samples to ask about.
        out: the table to write, .csv; one that is filled in is not overwritten.
        sheet: the page to write, .html; by default beside the table.
        engine: how the trunk runs over images: dissensus list engines; onnx is faster on CPUs. By default eager,
            or onnx-int8 for a run that was trained on its features.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        progress: show a progress bar if stderr is a terminal.
    """
    from tabulate import tabulate

    from dissensus._core.files import replacing
    from dissensus._core.outputs import writing
    from dissensus.adaptation import ask as choose
    from dissensus.adaptation import questionnaire
    from dissensus.adaptation import sheet as sheets
    from dissensus.adaptation._ask import check
    from dissensus.cli import inputs
    from dissensus.detection.detector import Detector
    from dissensus.features import FeatureSet, check_backbone
    from dissensus.training.run import Run

    table = place(out)
    page = table.with_suffix(".html") if sheet is None else place(sheet)
    _check(table, page)
    hold(writing(table))
    hold(writing(page))
    Run.open(run).check_single("ask takes one backbone")
    device = inputs.launch(accelerator=accelerator).device
    detector = Detector.load(run, calibrated=False, engine=engine, device=device)
    check(detector.ensemble, count)  # before the trunk runs over the pool
    samples = inputs.find_pool(pool)
    readable = list(range(len(samples)))
    if isinstance(samples, FeatureSet):
        features = samples
        check_backbone(detector.backbone_info, features, pool)
    else:
        features, readable = detector.members.encode(samples, strict=False, progress=progress)
    questions = choose(detector.ensemble, features, count, classes=detector.classes, progress=progress)
    questions = questions.at(readable)
    text = questionnaire.table(questions, samples, table.parent)
    again = "" if "image" in text.partition("\n")[0] else f" --pool {shlex.quote(pool)}"
    then = f"dissensus adapt {shlex.quote(run)} --labelled {shlex.quote(out)}{again} --out ADAPTED"
    html = sheets.render(questions, samples, table.name, then)
    with replacing(table) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    with replacing(page) as temporary:
        temporary.write_text(html, encoding="utf-8", errors="backslashreplace")
    names = [printable(sheets.sample_name(samples, row)) for row in questions.rows.tolist()]
    rows = [(n, *cells) for n, cells in enumerate(zip(names, questions.reasons, strict=True), 1)]
    show(tabulate(rows, headers=("", "sample", "reason"), tablefmt="plain", disable_numparse=True))
    if left_out := len(samples) - len(readable):
        say(f"{left_out:,} of {len(samples):,} images could not be read and are left out")
    if count > len(questions):
        say(f"the pool has {len(questions):,} samples: all are asked about")
    say(f"wrote {table} to fill in, and {page} to look at; fill in the column label, then: {then}")


def _check(table: Path, page: Path) -> None:
    """Raise if the files cannot be written; labels that were filled in are not overwritten."""
    from dissensus.adaptation import questionnaire, sheet

    if table.suffix.lower() != ".csv" or page.suffix.lower() not in (".html", ".htm"):
        raise DissensusError(f"--out must end in .csv and --sheet in .html; got {str(table)!r} and {str(page)!r}")
    for path in (table, page):
        if path.is_dir():
            raise DissensusError(f"--out and --sheet must name files; {path} is a folder: choose another name")
    if table.exists() and questionnaire.is_filled_in(table):
        raise DissensusError(f"--out must be free, or a table without labels; {table} has some: choose another --out")
    if page.exists() and sheet.MARK.encode() not in page.read_bytes()[:1000]:
        raise DissensusError(f"--sheet must be free, or an earlier sheet; {page} is something else: choose another")
