"""Tables 1 to 3 of the paper: diversity, generalization and detection of every method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dissensus.evaluation.results import BASELINES, Measure, Results
from dissensus.evaluation.results import DIVERSITY as DIVERSITY_SCORES
from dissensus.evaluation.tables import Column, Row, Table
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.functional.aggregates import AGGREGATES
from dissensus.training import methods

ROWS = ("single", "deep-ensemble", "diverse-hps", "divdis", "a2d", "sed-a2d")
LARGE_ROWS = ("deep-ensemble", "diverse-hps", "sed-a2d")
WEIGHTS = (0.02, 0.1, 0.5, 1.0, 5.0)  # and the method's own
SOUPS = ("soup", "greedy-soup", "learned-soup", "wise")  # those that were measured are shown
QUICK_WEIGHTS = (0.1, 1.0)
KINDS = {"covariate": "shift", "semantic": "ood"}  # kind of shift -> role of its sets


def diversity(lab: Lab) -> list[Table]:
    """For each method, the weight that detects shifts best and the weight that detects OOD sets best."""
    trials = _trials(lab, ROWS[1:])
    results = _results(lab, trials)
    tables = []
    for kind, role in KINDS.items():
        families = [*results.families("id"), *results.families(role)]
        measures = [Measure("mean", f, score=s, heading=h) for f in families for s, h in DIVERSITY_SCORES.items()]
        best = {method: _best(results, group, role, "pds") for method, group in trials.items()}
        rows = [((method, _weights(method, trial)), trial) for method, trial in best.items()]
        tables.append(results.table(f"{kind} detector", measures, heads=("method", "weight"), rows=rows))
    return tables


def generalization(lab: Lab) -> list[Table]:
    """Every method at its fixed diversity weight, small and large: the paper's table, and one of all soups."""
    large = 10 if lab.quick else 50
    trials = {(name, 1 if name == "single" else 5): _fixed(lab, group) for name, group in _trials(lab, ROWS).items()}
    for name, group in _trials(lab, LARGE_ROWS, members=large).items():
        trial = _fixed(lab, group)
        trials[name, large] = trial.with_name(f"{trial.name} M={large}")
    results = Results(lab.run(list(trials.values())))
    rows = [((name, str(members)), trial.name) for (name, members), trial in trials.items()]

    def table(title: str, kinds: Sequence[str], note: str) -> Table:
        measures = [
            Measure("accuracy", family, kind, heading=AGGREGATES[kind].heading)
            for kind in kinds
            for family in results.families("id", "shift", "groups")
        ]
        return results.table(title, measures, heads=("method", "M"), rows=rows, note=note)

    tables = [
        table(
            "accuracy",
            ("oracle", "prediction", "soup"),
            "oracle: the best member, chosen with the labels of the test set.",
        )
    ]
    soups = [kind for kind in SOUPS if kind in set(results.frame["aggregate"])]
    if len(soups) > 1:
        tables.append(table("accuracy of soups", soups, " ".join(AGGREGATES[kind].summary for kind in soups)))
    return tables


def detection(lab: Lab) -> list[Table]:
    """Two tables: with the best weight for each kind of shift, as in the paper, and with one fixed weight."""
    groups = _trials(lab, ROWS)
    results = _results(lab, groups)
    families = {kind: results.families(role) for kind, role in KINDS.items() if results.families(role)}
    columns = [Column(f"{what} %", kind, percent=True) for what in ("accuracy", "members") for kind in families]
    columns += [Column("AUROC", name) for names in families.values() for name in names]

    def table(title: str, choose: Callable[[list[Trial], str, str], str], note: str) -> Table:
        rows = []
        for score in dict.fromkeys(["bma", "pds", results.headline]):
            for method, trials in groups.items():
                if method == "single" and score == "pds":
                    continue  # one member predicts one class
                chosen = {kind: choose(trials, KINDS[kind], score) for kind in families}
                cells = [
                    results.accuracy(trial, results.inside, what)
                    for what in ("prediction", "members")
                    for trial in chosen.values()
                ]
                cells += [results.auroc(chosen[kind], name, score) for kind in families for name in families[kind]]
                rows.append(Row((method, score, _weights(method, *chosen.values())), tuple(cells)))
        rows += _baselines(results, families)
        return Table(title, ("method", "score", "weight"), tuple(columns), tuple(rows), note)

    return [
        table(
            "oracle: the best weight for each kind of shift",
            lambda trials, role, score: _best(results, trials, role, score),
            "Chosen with the OOD sets, as in the paper: impossible in use.",
        ),
        table(
            "fixed: one weight for all, chosen without OOD data",
            lambda trials, role, score: _fixed(lab, trials).name,
            "The suite's own weight, or the default of the method.",
        ),
    ]


def _baselines(results: Results, families: Mapping[str, Sequence[str]]) -> list[Row]:
    """A single model with common scores."""
    members = results.accuracy(results.single, results.inside, "members")
    rows = []
    for score, name in BASELINES.items():
        aurocs = [results.auroc(results.single, family, score) for names in families.values() for family in names]
        if any(aurocs):
            rows.append(Row((name, score, "-"), (*[members] * (2 * len(families)), *aurocs)))
    return rows


def weighted(method: str, weight: float, members: int = 5) -> Trial:
    """Return a trial of a method with a diversity weight."""
    return Trial(f"{method} λ={weight:g}", method, members, diversity=weight)


def _trials(lab: Lab, names: tuple[str, ...], members: int = 5) -> dict[str, list[Trial]]:
    """Return the trials of each method: one, or one per weight. Methods that lack a disagreement set are left out."""
    suite, trials = lab.suite(), dict[str, list[Trial]]()
    for name in names:
        method = methods.METHODS[name]
        if method.takes_set and suite.disagree_on is None:
            lab.tell(f"  {suite.name} goes on without {name}: the suite has no set to disagree on")
        elif method.regulariser is None:
            trials[name] = [Trial(name, name, members)]
        else:
            weights = {lab.diversity(name), *(QUICK_WEIGHTS if lab.quick else WEIGHTS)}
            trials[name] = [weighted(name, weight, members) for weight in sorted(weights)]
    return trials


def _results(lab: Lab, trials: dict[str, list[Trial]]) -> Results:
    return Results(lab.run([trial for group in trials.values() for trial in group]))


def _best(results: Results, trials: list[Trial], role: str, score: str) -> str:
    """Return the trial with the highest mean AUROC over the sets of a role: a choice that needs OOD data."""

    def quality(trial: str) -> float:
        values = [v.mean for f in results.families(role) if (v := results.auroc(trial, f, score)) is not None]
        return sum(values) / len(values) if values else float("-inf")

    return max((trial.name for trial in trials), key=quality)


def _fixed(lab: Lab, trials: list[Trial]) -> Trial:
    """Return the trial with the method's own diversity weight, which is chosen without OOD data."""
    return next(trial for trial in trials if trial.diversity in (None, lab.diversity(trial.method)))


def _weights(method: str, *trials: str) -> str:
    """Return the weights in the names of a method's trials, such as "λ=0.1, λ=1"; "-" if it has none."""
    return ", ".join(dict.fromkeys(name.removeprefix(method).strip() for name in trials)) or "-"
