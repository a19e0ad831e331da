"""Contenders: the methods of the paper's main tables, each with the weights of disagreement it may have."""

from __future__ import annotations

from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.training import methods
from dissensus.training.options import DIVERSITY

ROWS = ("single", "deep-ensemble", "diverse-hps", "divdis", "a2d", "sed-a2d")
WEIGHTS = (0.02, 0.1, 0.5, 1.0, 5.0)
QUICK_WEIGHTS = (0.1, 1.0)


def weights(lab: Lab) -> tuple[float, ...]:
    """The weights of disagreement to try."""
    return QUICK_WEIGHTS if lab.quick else WEIGHTS


def contenders(lab: Lab, rows: tuple[str, ...] = ROWS, members: int = 5) -> dict[str, list[Trial]]:
    """Method -> its trials: one, or one for each weight. Methods without a set to disagree on are left out."""
    suite, found = lab.suite(), dict[str, list[Trial]]()
    for name in rows:
        recipe = methods.METHODS[name]
        if recipe.takes_set and suite.disagreement is None:
            lab.tell(f"  {suite.name} goes on without {name}: the suite has no set to disagree on")
            continue
        if recipe.regulariser is None:
            found[name] = [Trial(name, name, members)]
        else:
            found[name] = [weighted(name, weight, members) for weight in weights(lab)]
    return found


def weighted(method: str, weight: float, members: int = 5) -> Trial:
    """A method with a weight of disagreement."""
    return Trial(f"{method} λ={weight:g}", method, members, diversity=weight)


def fixed(lab: Lab, trials: list[Trial]) -> Trial:
    """The trial that the suite's own settings name, chosen before any OOD data was seen."""
    own = lab.training.get("diversity", DIVERSITY)
    return min(trials, key=lambda trial: abs((trial.diversity or own) - own))
