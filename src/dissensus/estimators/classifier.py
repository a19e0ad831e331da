"""DissensusClassifier: a diverse ensemble behind scikit-learn's contract, for embeddings and tabular data.

classifier = DissensusClassifier(random_state=0).fit(X, y)
classifier.predict(X_new)        # labels
classifier.is_ood(X_new)         # True where a sample is called out of distribution
"""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus._core.options import documented
from dissensus.detection.threshold import Threshold
from dissensus.estimators import _auto
from dissensus.estimators._options import OPTIONS, signature
from dissensus.estimators._outputs import Floats, outputs, values
from dissensus.estimators._setup import fabric_on, held_out_rows
from dissensus.features import FeatureSet
from dissensus.functional import conformal, expressions, scores
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import _fit as train
from dissensus.training import methods
from dissensus.training.batches import check_sample_weight
from dissensus.training.options import TUNABLE, TrainOptions


@documented(OPTIONS)
class DissensusClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier whose members disagree where it should not be trusted.

    It predicts a class with `predict`, `predict_proba` and `decision_function`, and says whether a sample is like the
    training samples with `ood_score` (higher = more OOD), `score_samples` (its negative, as in scikit-learn's outlier
    detectors) and `is_ood`, which compares the score with a threshold and is True for at most a share `false_alarms`
    of ID samples, on average.

    The threshold is set on a part of the training samples that `fit` holds out. If that part is too small for the rate,
    `fit` trains on all samples, and `is_ood` raises an error that says how many are needed.

    The learning-rate schedule ends with the last step, so there is no `partial_fit`. The same `random_state` gives the
    same classifier.

    Args:
        members: how many members; method "single" has one, whatever is given here.
        method: how they are trained, see `METHODS`; not a2d and divdis, which need a set to disagree on. "auto": what
            `dissensus.tune` chooses, score included; it trains some thirty ensembles.
        tail: what a member is: linear, or mlp, a residual block with layer norms and a linear layer.
        norm: what a member does to samples first: none, l2, layer; None: the default of `tails.create`, l2 for linear.
            l2 suits embeddings, but a small table loses its scale by it: iris 85% instead of 96% accuracy.
        standardize: give every feature mean 0 and variance 1 over the training samples first, as the learning rate
            assumes. Harmless after a StandardScaler; turn it off where features' scales have a meaning.
        score_name: which score `ood_score` is, see `SCORES`: a name, or several whose conformal p-values on held-out
            samples are combined, such as "2*mahalanobis+pds". None: that of detectors, where enough samples are held
            out for a combination; else gaussian, or pds where distances cannot be fitted.
        false_alarms: share of ID samples that `is_ood` may call out.
        calibration: share of the training samples held out for the threshold; 0: none.
        random_state: decides the held-out samples, initial weights, batches and draws.
        device: where to train: cpu, cuda, mps, auto. Predictions are computed on the CPU.
        training: options of `dissensus.fit`, with its defaults:

            {options}

    Attributes:
        classes_: the labels, sorted.
        ensemble_: the trained `Ensemble`, over standardised features.
        scaler_: the fitted StandardScaler, or None.
        threshold_: the `Threshold`, whose `promise` says what to expect; None where nothing was held out.
        score_name_: the score, or the combination of scores, that it is of.
        n_samples_fit_: training samples with a weight above 0, held-out ones included.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    def __init__(
        self,
        members: int = 5,
        method: str = "sed-a2d",
        *,
        tail: str = "linear",
        norm: str | None = "none",
        standardize: bool = True,
        score_name: str | None = None,
        false_alarms: float = 0.05,
        calibration: float = 0.2,
        random_state: int | RandomState | None = None,
        device: str = "cpu",
        **training: Any,
    ) -> None:
        self.members = members
        self.method = method
        self.tail, self.norm = tail, norm
        self.standardize = standardize
        self.score_name = score_name
        self.false_alarms = false_alarms
        self.calibration = calibration
        self.random_state = random_state
        self.device = device
        for name in training:
            if name not in TUNABLE:
                raise UnknownNameError("option", name, inspect.signature(type(self)).parameters)
        for each in OPTIONS:
            setattr(self, each.name, training.get(each.name, each.default))

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on labelled samples.

        Args:
            X: the samples, (n, d).
            y: their labels, (n,), of any kind.
            sample_weight: relative weights (n,) in the loss and hardness of a batch; a sample of weight 0 is left out.
                The threshold is set on held-out samples regardless of their weights.

        Returns:
            The fitted classifier.

        Raises:
            DissensusError: for options, samples or weights that cannot be used.
        """
        samples, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self._check_parameters()
        classes, labels = np.unique(y, return_inverse=True)
        weight = None if sample_weight is None else check_sample_weight(sample_weight, len(samples)).numpy()
        if weight is not None and self.method == _auto.AUTO:
            raise DissensusError("method auto takes no sample weights; got some: leave them out, or name a method")
        used = np.arange(len(samples)) if weight is None else np.flatnonzero(weight)
        if len(present := np.unique(labels[used])) < 2:
            raise DataError(
                f"a classifier needs at least two classes; got one class, {str(classes[present[0]])!r}, in {len(used)} "
                "sample(s) with a weight above 0: add samples of another"
            )
        if weight is not None and np.ptp(weight[used]) == 0:
            weight = None  # equal weights must not differ from none, not even by rounding
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        held_out = used[held_out_rows(labels[used], self.calibration, self._needed(), random)]
        kept = np.setdiff1d(used, held_out)

        weight, x, scaler = None if weight is None else weight[kept], samples[kept], None
        if self.standardize:
            scaler = StandardScaler().set_output(transform="default").fit(x, sample_weight=weight)
            x = scaler.transform(x)
        self.classes_, self.scaler_, self.n_samples_fit_ = classes, scaler, len(used)
        if self.method == _auto.AUTO:
            return self._choose(FeatureSet.from_arrays(x, labels[kept]), samples[held_out], seed)
        # a factory, so that each member is initialised from its own seed
        members = methods.METHODS[self.method].members or self.members
        ensemble = Ensemble(partial(tails.create, self.tail, x.shape[1], len(classes), self.norm), members, seed)
        features = FeatureSet.from_arrays(x, labels[kept])
        options = TrainOptions(**{each.name: getattr(self, each.name) for each in OPTIONS}, seed=seed)
        train.fit(
            ensemble, features, self.method, options, sample_weight=weight, scores=self._fitted_names(len(held_out)),
            progress=False, fabric=fabric_on(self.device),
        )  # fmt: skip
        names, weights = expressions.choose(self.score_name, ensemble.fitted)
        self.ensemble_, self.score_name_, self.threshold_ = ensemble.cpu(), expressions.expression(names, weights), None
        if len(held_out):
            by_name = dict(zip(names, self._values(samples[held_out]), strict=True))
            self.threshold_ = Threshold.calibrate(by_name, self.false_alarms, weights=weights)
        return self

    def _choose(self, features: FeatureSet, held_out: Floats, seed: int) -> Self:
        """Let `tune` choose; the held-out samples set the threshold."""
        if not len(held_out):
            raise self._too_few("method auto")
        x = held_out if self.scaler_ is None else self.scaler_.transform(held_out)
        self.ensemble_, self.threshold_ = _auto.choose(
            features, FeatureSet.from_arrays(x), self.members, self.norm, seed, self.false_alarms
        )
        self.score_name_ = self.threshold_.name
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely label of each sample, by the members' mean logits: (n, d) -> (n,)."""
        logits = self._mean_logits(X)
        labels: NDArray[Any] = self.classes_[logits.argmax(1)]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return probabilities in the order of `classes_`, the softmax of the mean logits: (n, d) -> (n, C)."""
        return _array(torch.from_numpy(self._mean_logits(X)).softmax(-1))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the mean logits (n, C); for two classes the second minus the first, (n,)."""
        logits = self._mean_logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def ood_score(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the score of each sample: (n, d) -> (n,), higher = more OOD.

        It is that of `score_name_`; of several scores, the evidence of their p-values among held-out samples.

        Raises:
            DataError: if `score_name` combines scores, and `fit` held out too few samples for that.
        """
        return self._ood_score(self._checked(X), "ood_score")

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return minus `ood_score`: higher = more normal, as in scikit-learn's outlier detectors."""
        return -self.ood_score(X)

    def is_ood(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each sample is called out of distribution: (n, d) -> (n,).

        At most a share `false_alarms` of ID samples is, on average. `threshold_ = threshold_.at(0.01)` changes the rate
        without training.

        Raises:
            DataError: if `fit` held out too few samples for the rate.
        """
        checked = self._checked(X)
        if self.threshold_ is None:
            raise self._too_few("is_ood")
        limit = self.threshold_.calibrated.thresholds(self.threshold_.false_alarms)
        out: NDArray[np.bool_] = (torch.from_numpy(self._ood_score(checked, "is_ood")).float() > limit).numpy()
        return out

    def _too_few(self, what: str) -> DataError:
        needed = self._needed()
        enough = max(math.ceil(needed / self.calibration), needed + len(self.classes_)) if self.calibration else 0
        remedy = f"fit on {enough} or more, or raise calibration or false_alarms" if enough else "try calibration=0.2"
        return DataError(
            f"{what} at false_alarms={self.false_alarms:g} needs {needed} held-out samples; "
            f"calibration={self.calibration:g} of {self.n_samples_fit_} samples are fewer: {remedy}"
        )

    def _check_parameters(self) -> None:
        """Raise for parameters that `dissensus.fit` does not check, or explains in other words."""
        if self.method == _auto.AUTO:
            _auto.check(self.get_params(), type(self)().get_params())
        elif methods.METHODS[self.method].takes_set:
            raise DissensusError(
                f"{self.method} needs a set to disagree on, which fit(X, y) does not take: "
                f"use method='sed-{self.method}', or dissensus.fit with disagreement="
            )
        if self.score_name is not None:
            expressions.score_names(self.score_name)
        conformal.check_rate(self.false_alarms)
        if not 0 <= self.calibration < 1:
            raise DissensusError(
                f"calibration must be within [0, 1); got {self.calibration:g}: try 0.2, or 0 to hold nothing out"
            )

    def _needed(self) -> int:
        """How many held-out samples the threshold needs: of the default score, at least those of a single one."""
        names = ("",) if self.score_name is None else expressions.score_names(self.score_name)[0]
        return expressions.needed(names, self.false_alarms)

    def _fitted_names(self, held_out: int) -> list[str]:
        """The scores to fit to the training samples, given how many are held out: only those that are used."""
        score = self.score_name or expressions.default_score(scores.of_features())
        names, _ = expressions.score_names(score)
        if self.score_name is None and not expressions.enough(names, held_out, self.false_alarms):
            names = (expressions.default_score(scores.of_features(), alone=True),)
        return [name for name in names if scores.is_fitted(name)]

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self, "ensemble_")
        checked: Floats = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return checked

    def _mean_logits(self, X: ArrayLike) -> NDArray[np.float64]:
        checked = self._checked(X)
        batches = outputs(self.ensemble_, self.scaler_, checked)
        return _array(torch.cat([logits.mean(0) for logits, _ in batches]))

    def _values(self, X: Floats) -> list[Tensor]:
        """The values (n,) of each score in `score_name_`."""
        names, _ = expressions.score_names(self.score_name_)
        return values(self.ensemble_, self.scaler_, X, names)

    def _ood_score(self, X: Floats, what: str) -> NDArray[np.float64]:
        each = self._values(X)
        if len(each) == 1:
            return _array(each[0])
        if self.threshold_ is None:
            raise self._too_few(what)
        return _array(self.threshold_.score(each).double())


DissensusClassifier.__init__.__signature__ = signature(DissensusClassifier.__init__)  # type: ignore[attr-defined]


def _array(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.numpy()
    return array
