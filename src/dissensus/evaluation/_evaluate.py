"""evaluate(): an ensemble on the sets of a suite -> one tidy frame, one row per value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError, some
from dissensus.evaluation.predictions import Predictions, predict
from dissensus.evaluation.soups import make_soups
from dissensus.evaluation.suite import SuiteSet
from dissensus.features import FeatureSet
from dissensus.features.joined import matched
from dissensus.functional import expressions, metrics, scores
from dissensus.models.ensemble import Ensemble
from dissensus.models.joined import JoinedEnsemble

ABOUT = ("method", "members", "active", "diversity", "seed", "run")
COLUMNS = (*ABOUT, "dataset", "family", "role", "aggregate", "score", "metric", "value")
Protocol = Literal["mask", "vote"]
FULL_SPECTRUM = "full-spectrum"  # the role of rows that compare an ood set with the id set and the sets inside
COMBINED = "combined"  # the name of detectors' default combination among the scores of a frame


def evaluate(
    ensemble: Ensemble,
    sets: Sequence[SuiteSet],
    *,
    about: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    backbone: Mapping[str, Any] | None = None,
    held_out: FeatureSet | None = None,
    pretrained: nn.Module | None = None,
    score_names: Sequence[str] | None = None,
    protocol: Protocol = "mask",
    progress: bool = True,
) -> pd.DataFrame:
    """Measure an ensemble on every set.

    Args:
        ensemble: the trained members.
        sets: one id set, and any number of others. Detection metrics compare each shift and ood set with the id set;
            if shift sets are `inside`, each ood set also with the id set and these: rows of the family with FS, for
            full spectrum.
        about: method, active, diversity, seed and run (a name) for the frame's first columns.
        classes: names of the classes trained on; labelled sets with other names raise. None: not checked.
        backbone: what the run recorded of the trunk trained on; features of another raise. None: not checked.
        held_out: labelled features, not of the test sets, on which greedy and learned soups are chosen, and among
            which the scores of the default combination are ranked; None: none of these is measured.
        pretrained: the backbone's own tail, if it has the members' layers and classes: see `pretrained_tail`. The
            aggregate `wise` mixes members with it; None: it is not measured.
        score_names: which scores; None: all of logits, and the fitted ones that the ensemble has.
        protocol: for sets with a subset of classes, "mask" restricts logits first; "vote" is the authors' protocol.
        progress: show a progress bar when stderr is a terminal.

    Returns:
        A frame with COLUMNS. Metrics of answers come for each aggregate in `aggregates.AGGREGATES`, metrics of
        detection for each score.

    Raises:
        DataError: if the sets do not fit the ensemble or one another.
        ShapeError: if `pretrained` is not a tail like the members'.
        DissensusError: if a score is unknown, or one of features that the ensemble does not have.
    """
    predictions = predict_sets(
        ensemble, sets, classes=classes, backbone=backbone, held_out=held_out, pretrained=pretrained,
        score_names=score_names, protocol=protocol, progress=progress,
    )  # fmt: skip
    return measure(sets, predictions, about)


def predict_sets(
    ensemble: Ensemble,
    sets: Sequence[SuiteSet],
    *,
    classes: Sequence[str] | None = None,
    backbone: Mapping[str, Any] | None = None,
    held_out: FeatureSet | None = None,
    pretrained: nn.Module | None = None,
    score_names: Sequence[str] | None = None,
    protocol: Protocol = "mask",
    progress: bool = True,
) -> dict[str, Predictions]:
    """The first half of `evaluate`: the predictions for every set, by its name. Arguments as there."""
    _check(sets, protocol)
    sets = [replace(s, features=cast(FeatureSet, matched(backbone, s.features, s.name))) for s in sets]
    if held_out is not None:
        held_out = cast(FeatureSet, matched(backbone, held_out, "held-out"))
    for s in sets if held_out is None else [*sets, SuiteSet("held-out", "shift", held_out)]:
        _check_set(ensemble, s, classes)
    names = _score_names(ensemble, score_names)
    # members on several backbones have no weights in common
    soups = {} if isinstance(ensemble, JoinedEnsemble) else make_soups(ensemble, held_out, pretrained)
    combine = None if score_names else _combination(ensemble, held_out)
    bar = tqdm(sets, desc="evaluate", unit="set", leave=False, disable=None if progress else True)
    predictions = {
        s.name: predict(
            ensemble, s.features, names, labelled=s.role != "ood", soups=soups, subset=s.subset, protocol=protocol
        )
        for s in bar
    }
    if combine is not None:
        for each in predictions.values():
            each.scores[COMBINED] = combine(each)
    return predictions


def computed_scores(ensemble: Ensemble, held_out: FeatureSet | None) -> list[str]:
    """The scores that `predict_sets` computes where none are chosen."""
    names, _ = expressions.score_names(expressions.default_score(ensemble.fitted))
    return _score_names(ensemble, None) + [COMBINED] * (held_out is not None and len(names) > 1)


def _combination(ensemble: Ensemble, held_out: FeatureSet | None) -> Callable[[Predictions], Tensor] | None:
    """The score that detectors use by default, ranked among held-out samples; None if something is lacking."""
    if held_out is None or COMBINED not in computed_scores(ensemble, held_out):
        return None
    names, weights = expressions.score_names(expressions.default_score(ensemble.fitted))
    reference = predict(ensemble, held_out, names, labelled=False).scores
    references = [reference[name].float().sort().values for name in names]
    return lambda each: expressions.combine([each.scores[name] for name in names], references, weights)


def measure(
    sets: Sequence[SuiteSet], predictions: Mapping[str, Predictions], about: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """The second half of `evaluate`: every metric of these predictions as a frame with COLUMNS."""
    inside = next(predictions[s.name] for s in sets if s.role == "id")
    members = len(inside.votes)
    described = {"method": "", "active": members, "diversity": 0.0, "seed": 0, "run": "", **(about or {})}
    rows = [
        {"dataset": s.name, "family": s.family or s.name, "role": s.role, **row}
        for s in sets
        for row in _rows(s, predictions[s.name], inside)
    ]
    if shifted := [predictions[s.name] for s in sets if s.role == "shift" and s.inside]:
        rows += _full_spectrum(sets, predictions, [inside, *shifted])
    frame = pd.DataFrame(rows).assign(**{name: described[name] for name in ABOUT if name != "members"})
    return frame.assign(members=members)[list(COLUMNS)]


def _score_names(ensemble: Ensemble, given: Sequence[str] | None) -> list[str]:
    """The scores to compute, each once, the measures of diversity among them; raise if one is unknown or not fitted."""
    for name in given or ():
        if scores.is_fitted(name) and name not in ensemble.fitted:
            raise DissensusError(
                f"score {name!r} must be fitted to training features; this ensemble does not have it: train it again, "
                "or leave it out"
            )
    if not given:
        fitted = [name for name in ensemble.fitted if name not in scores.SCORES]  # known by pattern, not by name
        given = [name for name in scores.SCORES if not scores.is_fitted(name) or name in ensemble.fitted] + fitted
    return list(dict.fromkeys([*given, "pds", "unique"]))


def _check(sets: Sequence[SuiteSet], protocol: str) -> None:
    if protocol not in get_args(Protocol):
        raise DataError(f"protocol must be mask or vote; got {protocol!r}")
    inside = [s for s in sets if s.role == "id"]
    if len(inside) != 1:
        names = ", ".join(s.name for s in inside) or "none"
        raise DataError(f"evaluation needs exactly one id set to compare with; got {names}: give one")
    name, count = Counter(s.name for s in sets).most_common(1)[0]
    if count > 1:
        raise DataError(f"every set needs its own name; {name!r} occurs {count} times: rename one")


def _check_set(ensemble: Ensemble, s: SuiteSet, trained: Sequence[str] | None) -> None:
    """Raise if the ensemble cannot be evaluated on a set, or only wrongly."""
    classes = ensemble.classes
    features, labels = s.features, s.features.labels
    ensemble.check_features(features.shape, s.name)
    if s.role == "ood":
        return
    if labels is None:
        raise DataError(f"sets of role {s.role} need labels; {s.name} has none: give it role ood, or labels")
    if s.role == "groups" and features.groups is None:
        raise DataError(f"a groups set needs groups; {s.name} has none: write its features with groups")
    if classes is not None and int(labels.max()) >= classes:
        raise DataError(
            f"the ensemble has {classes} classes; {s.name} has label {int(labels.max())}: check its classes"
        )
    numbered = features.classes == tuple(str(i) for i in range(len(features.classes)))
    if trained is not None and not numbered and features.classes != tuple(trained):
        raise DataError(
            f"classes must be those of the training set, {some(trained)}; {s.name} has {some(features.classes)}: "
            "number its labels as in training"
        )
    if s.subset is not None and (
        len(set(s.subset)) != len(s.subset)
        or len(s.subset) < 2
        or not 0 <= min(s.subset) <= max(s.subset) < (classes or 2**31)
    ):
        raise DataError(f"a subset lists two or more different classes of the ensemble; {s.name} has {some(s.subset)}")


def _rows(s: SuiteSet, predictions: Predictions, inside: Predictions) -> list[dict[str, Any]]:
    rows = [
        {"aggregate": name, "score": "", "metric": metric, "value": value}
        for name, measured in predictions.metrics.items()
        for metric, value in measured.items()
    ]
    for name, values in predictions.scores.items():
        measured = metrics.compute(scores=values.double())
        if s.role in ("shift", "ood"):
            measured |= metrics.detection(inside.scores[name], values)
        rows += [{"aggregate": "", "score": name, "metric": metric, "value": v} for metric, v in measured.items()]
    return rows


def _full_spectrum(
    sets: Sequence[SuiteSet], predictions: Mapping[str, Predictions], inside: Sequence[Predictions]
) -> list[dict[str, Any]]:
    """Detection metrics of the ood sets, compared with all samples of several sets; families end with FS."""
    pooled = {name: torch.cat([each.scores[name] for each in inside]) for name in inside[0].scores}
    return [
        {"dataset": s.name, "family": f"{s.family or s.name} FS", "role": FULL_SPECTRUM}
        | {"aggregate": "", "score": name, "metric": metric, "value": value}
        for s in sets
        if s.role == "ood"
        for name, id_scores in pooled.items()
        for metric, value in metrics.detection(id_scores, predictions[s.name].scores[name]).items()
    ]
