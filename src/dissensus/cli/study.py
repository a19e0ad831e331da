"""dissensus study: the paper's tables and figures on a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say

EXAMPLE = "dissensus study detection diversity-weight --suite digits --seeds 3"
PLAIN: Arguments = {
    "names": {"nargs": "+", "metavar": "STUDY", "help": "which studies: dissensus list studies; or all"},
}
# Digits have no groups; dominoes, made of the same scans, have.
COMPANIONS = {("groups", "digits"): "dominoes"}


def study(
    names: list[str],
    suite: str,
    root: str | None = None,
    out: str | None = None,
    seeds: int = 1,
    quick: bool = False,
    backbone: str | None = None,
    weights: str | None = None,
    layers: int | None = None,
    size: int | None = None,
    features: str | None = None,
    engine: Literal["eager", "onnx"] = "eager",
    tail: str | None = None,
    epochs: int | None = None,
    member_epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    label_smoothing: float | None = None,
    diversity: float | None = None,
    confidence: float | None = None,
    format: Literal["text", "md", "tex"] = "text",
    progress: bool = True,
) -> None:
    """Run tables and figures of the paper on a suite; trained ensembles are kept and shared between studies.

    Killed or stopped, the same command goes on with nothing repeated but the run in flight; a second call is instant.

    Args:
        names: which studies; all is all of them that the suite has what it needs for.
        suite: dissensus list suites; or your own YAML file.
        root: the folder that holds the images, for suites of images.
        out: folder for runs and results; by default runs/studies-SUITE.
        seeds: so many runs of each trial; tables show mean and deviation.
        quick: fewer weights, sizes and epochs: to see that it works.
        backbone: by default the suite's.
        weights: a local file, or random; by default the pretrained ones.
        layers: how much of the backbone members own; by default the suite's.
        size: pixels a side; by default the suite's.
        features: where to keep the features; by default the cache.
        engine: how the trunk runs: eager PyTorch, or onnx, which is faster on CPUs.
        tail: linear, mlp, conv or backbone; by default what was cut off, if more than the classifier, else linear.
        epochs: passes over the training set; by default the suite's.
        member_epochs: passes over the training set per member; by default the suite's.
        lr: peak learning rate; by default the suite's.
        batch_size: samples a step; by default the suite's.
        label_smoothing: share of the label that is spread over all classes; by default the suite's.
        diversity: the weight of disagreement where a study does not vary it; by default the suite's.
        confidence: two-stage disagrees where the first stage's confidence is below this; by default the suite's.
        format: how to print tables: text, Markdown (md) or LaTeX (tex).
        progress: show progress bars when stderr is a terminal.
    """
    import torch

    from dissensus import suites
    from dissensus.experiments import studies
    from dissensus.training.options import TrainOptions

    if seeds < 1:
        raise DissensusError(f"seeds must be at least 1; got {seeds}")
    if "all" in names and len(names) > 1:
        raise DissensusError(f"all is all of them; got {' '.join(names)}: name either all or some")
    chosen = list(studies.STUDIES) if names == ["all"] else list(dict.fromkeys(names))
    for name in chosen:
        studies.STUDIES.check(name)
    folder = Path(out or f"runs/studies-{Path(suite).stem}")
    asked: dict[str, Any] = {
        "root": root, "backbone": backbone, "weights": weights, "layers": layers, "size": size, "features": features,
    }  # fmt: skip
    options = {key: value for key, value in asked.items() if value is not None}
    training = suites.training(suite)
    given = {
        "epochs": epochs, "member_epochs": member_epochs, "lr": lr, "batch_size": batch_size,
        "label_smoothing": label_smoothing, "diversity": diversity, "confidence": confidence,
    }  # fmt: skip
    training |= {key: value for key, value in given.items() if value is not None}
    if quick and epochs is None and member_epochs is None:
        training["member_epochs"] = max(1, training.get("member_epochs", TrainOptions.member_epochs) // 4)

    def lab(name: str) -> studies.Lab:
        made = suites.uses_backbone(name)
        own = {**options, "engine": engine, "progress": progress} if made else {}

        def load(**changes: Any) -> suites.Suite:
            return suites.load(name, **{**own, **changes})

        return studies.Lab(
            load, folder, seeds=range(seeds), training=training, quick=quick, progress=progress, tail=tail, tell=say
        )

    threads, main = torch.get_num_threads(), lab(suite)
    say(f"{suite}: features first, of whatever has none yet")
    main.suite()  # what is wrong with it is told before anything is written
    for number, name in enumerate(chosen, start=1):
        say(f"study {number} of {len(chosen)}: {name}")
        other = COMPANIONS.get((name, suite))
        bench = main if other is None else lab(other)
        try:
            studies.check(name, bench)
        except DissensusError as error:
            if names != ["all"]:
                raise
            say(f"  left out: {error}")
            continue
        torch.set_num_threads(1 if bench.suite().train.width < 256 else threads)
        outcome = studies.run(name, bench)
        torch.set_num_threads(threads)
        print({"text": outcome.text, "md": outcome.markdown, "tex": outcome.latex}[format]())
    say(f"results are in {folder}; look at them with: dissensus report {folder}")
