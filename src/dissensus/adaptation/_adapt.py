"""adapt(): from a few labels, the hypothesis that holds in a new place."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import torch
from scipy import special
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError
from dissensus.adaptation import ways
from dissensus.adaptation.adapted import Adapted
from dissensus.adaptation.ways import Blend, Samples
from dissensus.features import FeatureSet
from dissensus.functional.neighbours import KNN
from dissensus.models.ensemble import Ensemble
from dissensus.training.adaptation import Adaptation, By, Way, counted

TRAIN_ROWS = 5_000  # training samples that are looked at, at most
ENOUGH = 50, 10  # labels, and labels per class, from which ways are compared by cross-validation
FOLDS = 5
AGREE = 8  # labels from which a run that gets all of them right is left as it is
ERRORS = 2.0  # standard errors by which another way must be more accurate than the prior
SURE = 0.95
OF_FEATURES = ("mahalanobis", "relative_mahalanobis", "feature_norm", "gaussian", "knn")  # whatever the heads are

WAYS: Mapping[str, Callable[[Samples], Blend]] = {
    "as it is": ways.as_it_is,
    "member": ways.one_member,
    "prior": ways.prior,
    "prior, 3 times weaker": lambda samples: ways.prior(samples, 3),
    "prior, 10 times weaker": lambda samples: ways.prior(samples, 10),
    "head": ways.new_head,
    "head, 3 times weaker decay": lambda samples: ways.new_head(samples, 3),
    "head with training data": lambda samples: ways.new_head(samples, with_training=True),
    "weights": ways.member_weights,
}
"""Every way to use labels, by name; a name begins with what `by` asks for."""
FEW = ("as it is", "member", "prior", "head", "weights")  # shown where there is no cross-validation


def adapt(
    ensemble: Ensemble,
    labelled: FeatureSet,
    by: By = "auto",
    *,
    train: FeatureSet | None = None,
    classes: Sequence[str] | None = None,
    before: Adaptation | None = None,
    run: str | None = None,
) -> Adapted:
    """Choose among the hypotheses of an ensemble with a few labelled samples of the place where it will be used.

    The ways are: one member; a new head with the best member as its prior, weaker as labels grow; a new head from the
    labels alone, or with training data; weights over members; all as it is. With few labels it is the prior, which was
    the best from 1 to 64 labels (docs/adapt.md); with many, cross-validation decides.

    Args:
        ensemble: Trained members.
        labelled: Labelled samples; a handful is enough. `ask` says which to label.
        by: "auto", or the way: "member", "prior", "head" or "weights".
        train: Features that the members were trained on; None: those that the ensemble keeps for the score knn.
        classes: Names of the ensemble's classes; None: those of `labelled`, in its order.
        before: The adaptation that the ensemble is the result of, if it is one.
        run: Where the ensemble is from, for the record.

    Returns:
        The adapted ensemble, with the choice and its reason. Its scores of features are kept; it must be calibrated
        again.

    Raises:
        DissensusError: If the labels cannot be used: unknown classes, contradictions, another width of features.

    Example:
        >>> adapted = adapt(ensemble, labelled)
        >>> print(adapted.table, adapted.reason)
    """
    if by not in get_args(By):
        raise DissensusError(f"adapt goes by {', '.join(get_args(By))}; got {by!r}: choose one of these")
    names = labelled.classes if classes is None else tuple(classes)
    ensemble = _on_cpu(ensemble)
    samples = _samples(ensemble, labelled, names, train)
    n, C, M = len(samples.labels), samples.classes, len(ensemble)
    enough = n >= max(ENOUGH[0], ENOUGH[1] * C)
    accuracy, folds = _cross_validated(samples) if enough else (_on_labels(samples), None)
    way, reason = _choose(by, samples, accuracy, folds)
    blend = WAYS[way](samples)
    adapted = ways.build(ensemble, blend)
    if way != "as it is":
        adapted.fitted = {name: score for name, score in ensemble.fitted.items() if name in OF_FEATURES}
    member = samples.best if way.startswith(("member", "prior")) else None
    document = Adaptation(
        ensemble=ensemble.fingerprint,
        run=run,
        labelled=labelled.fingerprint,
        labels=n,
        per_class={names[c]: int((samples.labels == c).sum()) for c in samples.present},
        by=by,
        way=way if member is None else _named(way, member),
        member=member,
        cross_validated=enough,
        ways=tuple(Way(name=name, accuracy=value, chosen=name == way) for name, value in accuracy.items()),
        reason=reason,
        doubt=_doubt(samples) if member is not None and M > 1 else "",
        before=() if before is None else (*before.before, before.summary),
    )
    return Adapted(adapted, document)


def _named(way: str, member: int) -> str:
    """A way with its member, which people count from 1."""
    return f"{way} on member {member + 1}" if way.startswith("prior") else f"member {member + 1}"


def _on_cpu(ensemble: Ensemble) -> Ensemble:
    """The ensemble on the CPU, in evaluation mode; a copy if it is elsewhere."""
    if next(ensemble.parameters()).device.type == "cpu":
        return ensemble.eval()
    return copy.deepcopy(ensemble).cpu().eval()


def _samples(ensemble: Ensemble, labelled: FeatureSet, names: Sequence[str], train: FeatureSet | None) -> Samples:
    """The labelled samples, checked."""
    if labelled.labels is None:
        raise DataError("adapt needs labels; got an unlabelled set: give class folders, a table with labels, or npz")
    if labelled.passes > 1:
        raise DataError(
            f"labelled samples come once each; got {labelled.passes} augmented passes: extract without --augment"
        )
    ensemble.check_features(labelled.shape, "the labelled set")
    if ensemble.classes is not None and len(names) != ensemble.classes:
        raise DataError(f"classes must name the {ensemble.classes} classes of the ensemble; got {len(names)}: name all")
    present = {labelled.classes[c] for c in set(labelled.labels.tolist())}
    if unknown := sorted(present - set(names)):
        raise DataError(
            f"labels must be classes of the run; {', '.join(map(repr, unknown[:5]))} is not among "
            f"{', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}: correct or remove these labels"
        )
    features = labelled.rows(slice(None))
    labels = torch.tensor([names.index(labelled.classes[c]) for c in labelled.labels.tolist()])
    kept = _consistent(features, labels, names)
    return Samples(ensemble, features[kept], labels[kept], *_training(ensemble, train, names, labelled.shape))


def _consistent(features: Tensor, labels: Tensor, names: Sequence[str]) -> Tensor:
    """The first row of every sample; raise if the same sample has two labels."""
    _, group = torch.unique(features.flatten(1), dim=0, return_inverse=True)
    first: dict[int, int] = {}
    for row, key in enumerate(group.tolist()):
        other = first.setdefault(key, row)
        if labels[other] != labels[row]:
            raise DataError(
                f"a sample has one label; rows {other} and {row} are the same sample, labelled "
                f"{names[int(labels[other])]!r} and {names[int(labels[row])]!r}: correct one"
            )
    return torch.tensor(list(first.values()))


def _training(
    ensemble: Ensemble, train: FeatureSet | None, names: Sequence[str], shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Training features and labels, or a random part of them; `shape` is that of a row."""
    if train is not None:
        if train.labels is None:
            raise DataError("training features need labels; got an unlabelled set: give those that were trained on")
        ensemble.check_features(train.shape, "the training set")
        if train.classes != tuple(names):
            raise DataError(
                f"training features have the classes of the ensemble, in its order; got {len(train.classes)} classes, "
                f"{', '.join(map(repr, train.classes[:3]))}, ...: give those that were trained on"
            )
        rows = _part(len(train) // train.passes)
        return train.rows(rows), train.labels[rows]
    knn = ensemble.fitted.get("knn")
    about = ensemble.about
    kept = isinstance(knn, KNN) and len(shape) == 1 and (about is None or knn.width == about["features"])
    if not isinstance(knn, KNN) or not kept:
        raise DataError(
            "adapt compares with training features; this ensemble keeps none (the score knn does, of vectors): give "
            "them as train= (--train)"
        )
    rows = _part(len(knn.bank))
    return knn.bank[rows].float(), knn.labels[rows]


def _part(count: int) -> Tensor:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[:TRAIN_ROWS].sort().values


def _on_labels(samples: Samples) -> dict[str, float]:
    """Accuracy of the plain ways on the labels that they are fitted to."""
    return {name: _accuracy(WAYS[name](samples), samples) for name in FEW if _possible(name, samples)}


def _possible(name: str, samples: Samples) -> bool:
    """A new head needs two classes to tell apart."""
    return not name.startswith("head") or len(samples.present) > 1


def _accuracy(blend: Blend, samples: Samples) -> float:
    return float((ways.blended_logits(blend, samples).argmax(-1) == samples.labels).double().mean())


def _cross_validated(samples: Samples) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Accuracy of every way on labels that it is not fitted to, and the single answers: name -> (n,) 0 or 1."""
    n = len(samples.labels)
    # every fold has its share of every class
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    order = order[samples.labels[order].sort(stable=True).indices]
    fold = torch.empty(n, dtype=torch.int64)
    fold[order] = torch.arange(n) % FOLDS
    answers = {name: torch.zeros(n, dtype=torch.float64) for name in WAYS if _possible(name, samples)}
    for number in range(FOLDS):
        inside, outside = (fold != number).nonzero().flatten(), (fold == number).nonzero().flatten()
        fitted, tested = samples.subset(inside), samples.subset(outside)
        for name, right in answers.items():
            if _possible(name, fitted):
                logits = ways.blended_logits(WAYS[name](fitted), tested)
                right[outside] = (logits.argmax(-1) == tested.labels).double()
    return {name: float(right.mean()) for name, right in answers.items()}, answers


def _choose(
    by: By, samples: Samples, accuracy: Mapping[str, float], answers: Mapping[str, Tensor] | None
) -> tuple[str, str]:
    """The way, and why."""
    n = len(samples.labels)
    allowed = [name for name in accuracy if by == "auto" or name.startswith(by)]
    if not allowed:
        raise DataError("a new head needs labels of two classes; all labels are of one: label others, or go by prior")
    if by == "auto" and n >= AGREE and accuracy["as it is"] == 1:
        return "as it is", f"The run gets all {n} labels right: nothing to adapt."
    if answers is not None:
        base = "prior" if "prior" in allowed else allowed[0]
        best = max(allowed, key=lambda name: accuracy[name])
        gain = answers[best] - answers[base]
        error = float(gain.std(correction=0)) / math.sqrt(n)
        way = best if float(gain.mean()) > ERRORS * error else base
        versus = f"as it is: {accuracy['as it is']:.1%}"
        return way, f"By {FOLDS}-fold cross-validation on {counted(n)}: {way}, {accuracy[way]:.1%} ({versus})."
    if by != "auto":
        return allowed[0], f"By {by}, as asked."
    missed = n - round(accuracy["as it is"] * n)
    return "prior", (
        f"The run gets {missed} of {counted(n)} wrong, its best member {int((~samples.right[samples.best]).sum())}. "
        "That member is the prior of a new head. With so few labels a rule decides, not their accuracy."
    )


def _doubt(samples: Samples) -> str:
    """Which members the labels cannot tell from the best, and how many more labels would."""
    n, best = len(samples.labels), samples.best
    rivals, needed = list[int](), 0
    for m in range(len(samples.right)):
        wins = int((samples.right[best] & ~samples.right[m]).sum())
        losses = int((~samples.right[best] & samples.right[m]).sum())
        if m != best and _better(wins, losses) < SURE:
            rivals.append(m)
            more = next((k for k in range(1, 1001) if _better(wins * (1 + k / n), losses * (1 + k / n)) >= SURE), 0)
            needed = max(needed, more) if more and needed >= 0 else -1
    if not rivals:
        return ""
    shown = ", ".join(str(m + 1) for m in sorted([best, *rivals])[:8]) + (", ..." if len(rivals) > 7 else "")
    advice = f"label about {needed} more" if needed > 0 else "label samples on which they differ, as `ask` chooses them"
    return f"{counted(n)} cannot tell members {shown} apart: {advice}."


def _better(wins: float, losses: float) -> float:
    """Probability that one member is right more often than another where they differ, with a uniform prior."""
    return float(special.betainc(losses + 1, wins + 1, 0.5))
