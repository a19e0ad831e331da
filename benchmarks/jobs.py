"""The case `job`: from features to an evaluated ensemble, as a user would do it with each library.

A job trains on labelled features, predicts a test set and OOD samples, and computes accuracy and AUROC.

- ours: `fit` with its defaults (sed-a2d), `Detector.calibrate` on held-out samples and `predict`; the default score.
- torch-uncertainty: `deep_ensembles` trained as in the case `peers`; mean probabilities, maximum softmax probability.
- TorchEnsemble: `VotingClassifier.fit` and `predict`; the same score.
- scikit-learn: `LogisticRegression(max_iter=1000)`; the same score.

Members are as many everywhere. Those of the other libraries are our linear tails, trained with AdamW and the batch size
and learning rate that our options resolve to for it; they make as many passes over the training set as ours do. Ours
have our default optimiser, adam-mini. Accuracy and AUROC are reported with the ratio: time says nothing about jobs that
end with unequal results.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks import peers
from benchmarks.measure import Bar, Comparison, Side, Sizes, compare
from benchmarks.steps import cpu_fabric
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.models import tails
from dissensus.training import TrainOptions, fit, new_ensemble
from dissensus.training.options import Settings, Task

JOBS = 5  # the most repeats of a job, which takes many seconds


class Data(NamedTuple):
    """Features (N, D) and labels (N,)."""

    x: Tensor
    labels: Tensor
    held_out: Tensor
    test: Tensor
    answers: Tensor
    ood: Tensor


class Outcome(NamedTuple):
    """What a job ends with."""

    accuracy: float  # on the test set
    auroc: float  # of its score, OOD samples against the test set


Job = Callable[[], Outcome]


def job(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare a whole job with each library with ours."""
    peers.require()
    M, ours = sizes.members, our_job(sizes)()
    what = f"{sizes.job_rows} rows, {sizes.features} features, {sizes.job_classes} classes"
    return [
        _compared(f"job-{name}", f"{title}, features to accuracy and AUROC, {what}", make, sizes, ours, repeats)
        for name, title, make in (
            ("torch-uncertainty", f"torch-uncertainty, M={M}", torch_uncertainty_job),
            ("torchensemble", f"TorchEnsemble, M={M}", torchensemble_job),
            ("scikit-learn", "LogisticRegression", logistic_regression_job),
        )
    ]


def _compared(
    name: str, title: str, make: Callable[[Sizes], Job], sizes: Sizes, ours: Outcome, repeats: int
) -> Comparison:
    theirs = make(sizes)()
    note = ", ".join(
        f"{what} {one:.3f} / {other:.3f}" for what, one, other in zip(Outcome._fields, theirs, ours, strict=True)
    )
    result = compare(
        name,
        Side(title, partial(make, sizes), burst=1),
        Side(f"ours, sed-a2d, M={sizes.members}", partial(our_job, sizes), burst=1),
        Bar(">", 1.0),
        min(repeats, JOBS),
        warm_up=1,
    )
    return replace(result, note=note)


def random_data(sizes: Sizes) -> Data:
    """Draw classes around random directions, with noise that shares some directions; OOD samples are other classes."""
    generator = torch.Generator().manual_seed(0)
    D, C, N = sizes.features, sizes.job_classes, sizes.job_rows
    centres = 6 / math.sqrt(D) * torch.randn(2 * C, D, generator=generator)  # of length 6, where noise has deviation 1
    shared = 0.3 * torch.randn(16, D, generator=generator)

    def draw(labels: Tensor) -> Tensor:
        own = torch.randn(len(labels), D, generator=generator)
        common = torch.randn(len(labels), len(shared), generator=generator) @ shared
        return F.relu(1 + centres[labels] + own + common)  # pooled features are not negative

    few = N // 5
    train, test = torch.arange(N) % C, torch.arange(few) % C
    return Data(draw(train), train, draw(test), draw(test), test, draw(C + test))


def passes(sizes: Sizes) -> Settings:
    """Return what our options resolve to for AdamW and members that all train at once: epochs, batch size, rates."""
    options = TrainOptions(optimizer="adamw", member_epochs=sizes.job_passes)
    return options.resolve("deep-ensemble", sizes.members, Task(sizes.job_rows))


def our_job(sizes: Sizes) -> Job:
    """Return our job."""
    data = random_data(sizes)

    def run() -> Outcome:
        features = FeatureSet.from_arrays(data.x, data.labels)
        ensemble = new_ensemble(features, sizes.members)
        fit(ensemble, features, member_epochs=sizes.job_passes, progress=False, fabric=cpu_fabric())
        detector = Detector(ensemble, features.classes).calibrate(data.held_out)
        verdicts, ood = detector.predict(data.test), detector.predict(data.ood)
        return _outcome(data, verdicts.label, verdicts.score, ood.score)

    return run


def torch_uncertainty_job(sizes: Sizes) -> Job:
    """Return the job with torch-uncertainty."""
    library, data, settings = peers.require(), random_data(sizes), passes(sizes)

    def run() -> Outcome:
        members = [tails.create("linear", sizes.features, sizes.job_classes) for _ in range(sizes.members)]
        model = library.deep_ensembles(members)
        repeat = library.repeat_target(num_repeats=len(members))
        optimiser = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        for _ in range(settings.epochs):
            for rows in torch.split(torch.randperm(len(data.x)), settings.batch_size):
                optimiser.zero_grad()
                inputs, targets = repeat((data.x[rows], data.labels[rows]))
                F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        with torch.inference_mode():
            return _by_probability(data, lambda x: model(x).softmax(-1).view(len(members), len(x), -1).mean(0))

    return run


def torchensemble_job(sizes: Sizes) -> Job:
    """Return the job with TorchEnsemble."""
    library, data, settings = peers.require(), random_data(sizes), passes(sizes)
    rows = TensorDataset(data.x, data.labels)
    rows.classes = [str(c) for c in range(sizes.job_classes)]  # type: ignore[attr-defined]
    loader = DataLoader(rows, sampler=BatchSampler(RandomSampler(rows), settings.batch_size, False), batch_size=None)
    shape = {"features": sizes.features, "classes": sizes.job_classes}

    def run() -> Outcome:
        model = library.voting_classifier(
            estimator=tails.Linear, estimator_args=shape, n_estimators=sizes.members, cuda=False
        )
        model.set_optimizer("AdamW", lr=settings.lr, weight_decay=settings.weight_decay)
        with contextlib.redirect_stdout(io.StringIO()):
            model.fit(loader, epochs=settings.epochs, save_model=False)
        return _by_probability(data, model.predict)

    return run


def logistic_regression_job(sizes: Sizes) -> Job:
    """Return the job with scikit-learn."""
    data = random_data(sizes)

    def run() -> Outcome:
        model = LogisticRegression(max_iter=1000).fit(data.x.numpy(), data.labels.numpy())
        return _by_probability(data, lambda x: torch.from_numpy(model.predict_proba(x.numpy())))

    return run


def _by_probability(data: Data, predict: Callable[[Tensor], Tensor]) -> Outcome:
    """Accuracy, and AUROC of one minus the largest probability."""
    probs, ood = predict(data.test), predict(data.ood)
    return _outcome(data, probs.argmax(-1), 1 - probs.amax(-1), 1 - ood.amax(-1))


def _outcome(data: Data, labels: Tensor, scores: Tensor, ood_scores: Tensor) -> Outcome:
    joined = torch.cat([scores, ood_scores]).numpy()
    is_ood = np.repeat([0, 1], [len(scores), len(ood_scores)])
    return Outcome(float((labels == data.answers).float().mean()), float(roc_auc_score(is_ood, joined)))
