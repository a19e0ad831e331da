"""The methods of the paper's main tables, each with several diversity weights."""

from __future__ import annotations

from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.training import methods
from dissensus.training.options import DIVERSITY

ROWS = ("single", "deep-ensemble", "diverse-hps", "divdis", "a2d", "sed-a2d")
WEIGHTS = (0.02, 0.1, 0.5, 1.0, 5.0)
QUICK_WEIGHTS = (0.1, 1.0)


def weights(lab: Lab) -> tuple[float, ...]:
    """The diversity weights to try."""
    return QUICK_WEIGHTS if lab.quick else WEIGHTS


def contenders(lab: Lab, rows: tuple[str, ...] = ROWS, members: int = 5) -> dict[str, list[Trial]]:
    """Method -> its trials: one, or one per weight. Methods that lack a disagreement set are left out."""
    suite, trials = lab.suite(), dict[str, list[Trial]]()
    for name in rows:
        recipe = methods.METHODS[name]
        if recipe.takes_set and suite.disagreement is None:
            lab.tell(f"  {suite.name} goes on without {name}: the suite has no set to disagree on")
            continue
        if recipe.regulariser is None:
            trials[name] = [Trial(name, name, members)]
        else:
            trials[name] = [weighted(name, weight, members) for weight in weights(lab)]
    return trials


def weighted(method: str, weight: float, members: int = 5) -> Trial:
    """A trial of a method with a diversity weight."""
    return Trial(f"{method} λ={weight:g}", method, members, diversity=weight)


def fixed(lab: Lab, trials: list[Trial]) -> Trial:
    """The trial nearest to the suite's own diversity weight, which is chosen without OOD data."""
    weight = lab.training.get("diversity", DIVERSITY)
    return min(trials, key=lambda trial: abs((trial.diversity or weight) - weight))


def weight_of(method: str, *trials: str) -> str:
    """The weights in the names of a method's trials, such as "λ=0.1, λ=1"; "-" where it has none."""
    return ", ".join(dict.fromkeys(name.removeprefix(method).strip() for name in trials)) or "-"
