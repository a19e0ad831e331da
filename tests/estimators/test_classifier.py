"""DissensusClassifier: scikit-learn's contract, the promise of is_ood, and sample weights."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dissensus import DissensusClassifier, DissensusError
from dissensus._core.errors import DataError, UnknownNameError
from dissensus.functional import expressions, scores
from dissensus.training import _fit as training

EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": (
        "members are trained in float32: weights and copies agree to 1e-6, the check asks for 1e-7; "
        "test_in_one_batch_a_weight_is_so_many_copies is the same check with that tolerance"
    )
}


@parametrize_with_checks([DissensusClassifier(epochs=20)], expected_failed_checks=lambda _: EXPECTED_TO_FAIL)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def quick(**options) -> DissensusClassifier:
    return DissensusClassifier(**{"epochs": 10, "lr": 2e-2, "random_state": 0, **options})


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600], y[:600]


@pytest.fixture(scope="module")
def fitted(digits):
    return quick().fit(*digits)


def test_defaults_learn_small_tables_as_they_come():
    """Wine's columns go from 0.1 to 1700."""
    X, y = load_wine(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    assert DissensusClassifier(random_state=0).fit(X_train, y_train).score(X_test, y_test) > 0.93


@pytest.mark.parametrize("method", ["single", "deep-ensemble", "diverse-hps", "sed-divdis", "two-stage"])
def test_every_method_without_a_set_learns(method, digits):
    X, y = digits
    classifier = quick(method=method, members=3, confidence=0.9).fit(X[:400], y[:400])
    assert classifier.score(X[400:], y[400:]) > 0.7
    assert len(classifier.ensemble_) == (1 if method == "single" else 3), "single ignores the number of members"
    assert classifier.members == 3, "scikit-learn: fit does not change parameters"


def test_the_norm_is_the_tails_own_unless_given(digits):
    X, y = digits
    raw = quick(epochs=3, norm="none").fit(X, y)
    for given, norm in ((None, "l2"), ("l2", "l2"), ("layer", "layer"), ("none", "none")):
        classifier = quick(epochs=3, norm=given).fit(X, y)
        assert classifier.ensemble_.about["norm"] == norm
        assert np.array_equal(classifier.predict_proba(X), raw.predict_proba(X)) == (norm == "none")
    assert quick(epochs=3, tail="mlp", lr=0.01).fit(X, y).ensemble_.about["norm"] == "none"


@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_answers_agree_with_each_other(tail, digits):
    X, y = digits
    for labels in (y, y % 2):
        classifier = quick(tail=tail, lr=0.01, members=3, epochs=3).fit(X, labels)
        decision, proba = classifier.decision_function(X), classifier.predict_proba(X)
        two = len(classifier.classes_) == 2
        assert decision.shape == ((600,) if two else (600, 10))
        chosen = (decision > 0).astype(int) if two else decision.argmax(1)
        assert np.array_equal(classifier.classes_[chosen], classifier.predict(X))
        assert np.array_equal(classifier.classes_[proba.argmax(1)], classifier.predict(X))
        np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-12)
        assert np.array_equal(classifier.score_samples(X), -classifier.ood_score(X))
        assert classifier.is_ood(X).dtype == bool
        assert classifier.is_ood(X).shape == (600,)


def test_what_is_strange_scores_higher(fitted, digits):
    X, _ = digits
    strange = np.random.default_rng(0).permuted(X[:100], axis=1)
    score = fitted.ood_score(np.r_[X[100:200], strange])
    assert roc_auc_score(np.r_[np.zeros(100), np.ones(100)], score) > 0.9
    assert fitted.is_ood(strange).mean() > 0.5
    assert np.array_equal(fitted.is_ood(X), fitted.ood_score(X).astype(np.float32) > limit(fitted))


def limit(classifier: DissensusClassifier) -> np.float32:
    threshold = classifier.threshold_
    return threshold.calibrated.thresholds(threshold.false_alarms).numpy()[0]


@pytest.mark.parametrize(("score", "size", "calibrating"), [("pds", 1095, 219), ("mahalanobis+pds", 1195, 119)])
def test_false_alarms_are_as_many_as_promised(score, size, calibrating):
    """20 splits of digits, the alarms of all within the binomial 99% interval around 5%.

    With 219 held-out samples the threshold is the 11th highest score: 11 / 220 is 5% to the point. Where scores are
    combined, half of 239 held-out samples rank them, and 119 set the threshold: 6 / 120.
    """
    X, y = load_digits(return_X_y=True)
    rates = []
    for seed in range(20):
        X_train, X_test, y_train, _ = train_test_split(X, y, train_size=size, random_state=seed)
        classifier = quick(epochs=3, members=3, random_state=seed, score_name=score).fit(X_train, y_train)
        assert classifier.threshold_.calibrated.count == calibrating
        rates.append(classifier.is_ood(X_test).mean())
    low, high = stats.binom(20 * (len(X) - size), 0.05).interval(0.99)
    assert low <= (len(X) - size) * sum(rates) <= high


@pytest.mark.parametrize("score", ["knn", "2*mahalanobis+pds", "vim+knn", "vim+bma", None])
def test_every_score_expression_works_and_survives_a_pickle(score, digits):
    X, y = digits
    classifier = quick(score_name=score).fit(X, y)
    assert classifier.score_name_ == (score or expressions.DEFAULT_SCORE)
    names, _ = expressions.score_names(classifier.score_name_)
    needed = [name for name in names if scores.is_fitted(name)]
    assert list(classifier.ensemble_.fitted) == needed, "a score that is not used would only make the pickle larger"
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.ood_score(X), classifier.ood_score(X))
    assert np.array_equal(again.is_ood(X), classifier.is_ood(X))
    assert clone(classifier).score_name == score
    strange = np.random.default_rng(0).permuted(X[:100], axis=1)
    if score == "vim+bma":
        # both read the logits, which grow with the length of features without a norm: shuffled columns look certain
        assert classifier.is_ood(strange).mean() < 0.2
    else:
        assert classifier.is_ood(strange).mean() > 0.2


def test_a_single_fitted_score_is_that_of_standardised_features(digits):
    X, y = digits
    classifier = quick(score_name="mahalanobis").fit(X, y)
    features = torch.from_numpy(classifier.scaler_.transform(X.astype(np.float64)))
    expected = classifier.ensemble_.fitted["mahalanobis"](features, torch.zeros(5, len(X), 10))
    assert expected.dtype == torch.float64
    np.testing.assert_allclose(classifier.ood_score(X), expected.numpy(), rtol=1e-9)


def test_the_default_follows_what_is_held_out():
    X, y = load_iris(return_X_y=True)
    assert quick().fit(X, y).score_name_ == "gaussian"  # 30 held out: enough for one score
    assert quick(calibration=0.3).fit(X, y).score_name_ == expressions.DEFAULT_SCORE
    assert quick(calibration=0).fit(X, y).score_name_ == "gaussian"
    with pytest.warns(UserWarning, match="the score gaussian is left out"):
        assert quick(calibration=0).fit(X[::50], y[::50]).score_name_ == "pds"


def test_a_combination_needs_held_out_samples():
    X, y = load_iris(return_X_y=True)
    classifier = quick(score_name="mahalanobis+pds").fit(X, y)
    assert classifier.threshold_ is None
    for method in (classifier.ood_score, classifier.is_ood):
        with pytest.raises(DataError, match=r"needs 38 held-out samples; .* fit on 190 or more"):
            method(X)


def test_the_rate_can_be_changed_without_training(fitted, digits):
    X, _ = digits
    strict = pickle.loads(pickle.dumps(fitted))
    strict.threshold_ = strict.threshold_.at(0.02)
    assert 0 < strict.is_ood(X).sum() < fitted.is_ood(X).sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"false_alarms=0.05 needs 19 held-out samples; calibration=0.2 of 90 samples are fewer: fit on 95 or more",
        ),
        ({"false_alarms": 0.001}, r"needs 999 held-out samples; .* fit on 4995 or more"),
        ({"calibration": 0}, r"calibration=0 of 90 samples are fewer: try calibration=0.2"),
    ],
)
def test_too_few_samples_to_call_any_out(options, message):
    X, y = load_iris(return_X_y=True)
    classifier = quick(**options).fit(X[::5].repeat(3, 0), y[::5].repeat(3))
    assert classifier.threshold_ is None
    assert classifier.predict(X).shape == classifier.ood_score(X).shape == (150,)
    with pytest.raises(DataError, match=message) as caught:
        classifier.is_ood(X)
    assert "\n" not in str(caught.value)


def test_enough_is_as_much_as_the_refusal_says():
    X, y = load_iris(return_X_y=True)
    some = np.random.default_rng(0).permutation(150)[:95]
    assert quick().fit(X[some], y[some]).threshold_ is not None


def test_rare_classes_stay_in_training():
    """100 samples of as many labels but ten: whatever is held out, every class is learned from one sample at least."""
    X, y = np.random.default_rng(0).normal(size=(100, 4)), np.r_[np.arange(40), np.arange(40), np.zeros(20)]
    classifier = quick(calibration=0.5, score_name="pds").fit(X, y)
    assert len(classifier.classes_) == 40
    assert classifier.threshold_.calibrated.count == 50


def test_strings_pandas_and_set_output(digits):
    X, y = digits
    names = np.array([f"digit {label}" for label in y], dtype=object)
    frame = pd.DataFrame(X, columns=[f"pixel {i}" for i in range(64)])
    pipeline = make_pipeline(StandardScaler(), quick()).set_output(transform="pandas").fit(frame, pd.Series(names))
    classifier = pipeline[-1]
    assert list(classifier.feature_names_in_) == list(frame.columns)
    assert classifier.n_features_in_ == 64
    assert list(classifier.classes_) == sorted(set(names))
    assert pipeline.score(frame, names) > 0.9
    assert pipeline.predict(frame)[0] in classifier.classes_
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(frame.rename(columns={"pixel 0": "pixel zero"}))
    with config_context(transform_output="pandas"):
        inside = quick().fit(frame, names)
        assert np.array_equal(inside.predict_proba(frame), quick().fit(frame, names).predict_proba(frame))


def test_pickle_and_clone(fitted, digits):
    X, y = digits
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert np.array_equal(again.is_ood(X), fitted.is_ood(X))
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    assert np.array_equal(fresh.fit(X, y).ood_score(X), fitted.ood_score(X))


def test_random_state_decides_and_nothing_else_is_touched(fitted, digits):
    X, y = digits
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert not np.array_equal(quick(random_state=1).fit(X, y).ood_score(X), fitted.ood_score(X))
    assert np.array_equal(quick().fit(X, y).ood_score(X), fitted.ood_score(X))
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_fit_says_nothing(digits, capfd):
    quick().fit(*digits).is_ood(digits[0])
    assert capfd.readouterr() == ("", "")


def test_nested_search_in_a_pipeline(digits):
    pipeline = Pipeline([("scale", StandardScaler()), ("ensemble", quick(epochs=8))])
    grid = {"ensemble__diversity": [0.0, 0.1], "ensemble__label_smoothing": [0.1]}
    search = GridSearchCV(pipeline, grid, cv=2)
    assert cross_val_score(search, *digits, cv=2).mean() > 0.6
    methods = GridSearchCV(quick(epochs=5), {"method": ["deep-ensemble", "sed-a2d"]}, cv=2).fit(*digits)
    assert (methods.cv_results_["mean_test_score"] > 0.6).all()
    assert methods.best_estimator_.is_ood(digits[0]).mean() < 0.2


@pytest.mark.parametrize("how", ["sigmoid", "isotonic"])
def test_calibrated_probabilities(how, digits):
    X, y = digits
    calibrated = CalibratedClassifierCV(quick(epochs=3), method=how, cv=2).fit(X, y, sample_weight=1 + y % 2)
    assert calibrated.predict_proba(X).shape == (600, 10)
    assert calibrated.score(X, y) > 0.85


def test_features_are_standardised_inside_unless_told_otherwise(digits):
    X, y = digits
    far = 1e4 + 1e3 * X
    same = quick().fit(far, y).predict_proba(far)
    np.testing.assert_allclose(same, quick().fit(X, y).predict_proba(X), atol=1e-4)
    plain = quick(standardize=False).fit(X, y)
    assert plain.scaler_ is None
    assert plain.score(X, y) > 0.9
    assert not np.allclose(plain.predict_proba(X), same, atol=1e-2)


def test_held_out_samples_are_trained_on_by_nobody(digits, monkeypatch):
    X, y = digits
    given = []
    original = training.fit

    def noting(ensemble, features, *args, **options):
        given.append(features.rows(slice(None)))
        return original(ensemble, features, *args, **options)

    monkeypatch.setattr(training, "fit", noting)
    classifier = quick(standardize=False, score_name="pds").fit(X, y)
    assert len(given[0]) == 480
    trained = {row.tobytes() for row in given[0].numpy()}
    others = np.array([row.tobytes() not in trained for row in X.astype(np.float32)])
    found = np.sort(classifier.ood_score(X[others])).astype(np.float32)
    assert np.array_equal(found, classifier.threshold_.calibrated.values[0].numpy())


def test_in_one_batch_a_weight_is_so_many_copies():
    """scikit-learn's check of the same, within float32; nothing is held out, for copies would be on both sides."""
    random = np.random.RandomState(42)
    X, y, weight = random.rand(150, 8), random.randint(0, 3, 150), random.randint(0, 4, 150)
    whole = {"batch_size": 1000, "calibration": 0, "epochs": 30}
    weighted = quick(**whole).fit(X, y, sample_weight=weight)
    copies = quick(**whole).fit(X.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_allclose(weighted.decision_function(X), copies.decision_function(X), rtol=1e-4, atol=1e-5)
    plain = quick(**whole).fit(X, y).decision_function(X)
    assert not np.allclose(plain, copies.decision_function(X), atol=1e-2)


def test_weights_of_one_change_nothing_and_of_zero_leave_out(fitted, digits):
    X, y = digits
    assert np.array_equal(quick().fit(X, y, sample_weight=np.full(600, 2.0)).ood_score(X), fitted.ood_score(X))
    kept = np.arange(600) % 4 > 0
    without, zero = quick().fit(X[kept], y[kept]), quick().fit(X, y, sample_weight=kept)
    assert np.array_equal(zero.decision_function(X), without.decision_function(X))
    assert zero.threshold_.calibrated.count == without.threshold_.calibrated.count == 45
    one_class_gone = quick().fit(X, y, sample_weight=y != 9)
    assert len(one_class_gone.classes_) == 10
    assert 9 not in one_class_gone.predict(X)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "sed-a2b"}, UnknownNameError, "did you mean 'sed-a2d'"),
        ({"score_name": "pdss"}, UnknownNameError, "did you mean 'pds'"),
        ({"tail": "linaer"}, UnknownNameError, "did you mean 'linear'"),
        ({"norm": "l3"}, UnknownNameError, "unknown norm 'l3': did you mean 'l2'"),
        ({"method": "a2d"}, DissensusError, "use method='sed-a2d'"),
        ({"method": "divdis"}, DissensusError, "use method='sed-divdis'"),
        ({"method": "deep-ensemble", "diversity": 0.5}, DissensusError, "no disagreement term"),
        ({"false_alarms": 0.0}, DissensusError, "between 0 and 1; got 0"),
        ({"false_alarms": 1.5}, DissensusError, "between 0 and 1; got 1.5"),
        ({"calibration": 1.0}, DissensusError, r"within \[0, 1\); got 1"),
        ({"members": 0}, DissensusError, "at least one member"),
        ({"members": 1}, DissensusError, "nobody to disagree with"),
        ({"epochs": 0}, DissensusError, "epochs must be at least 1"),
        ({"batch_size": 0, "epochs": None}, DissensusError, "batch_size must be at least 1"),
        ({"lr": -1.0}, DissensusError, "lr must be above 0"),
        ({"device": "cuda:nowhere"}, DissensusError, "use device='cpu'"),
    ],
)
def test_wrong_options_are_refused_in_a_line(options, error, message):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(error, match=message) as caught:
        quick(**options).fit(X, y)
    assert "\n" not in str(caught.value)


def test_wrong_data_are_refused():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(DataError, match="got one class, '1', in 150 sample"):
        quick().fit(X, np.ones(150, dtype=int))
    with pytest.raises(DataError, match="got one class, '2', in 50 sample"):
        quick().fit(X, y, sample_weight=y == 2)
    with pytest.raises(DataError, match=r"sample weights must be \(150,\)"):
        quick().fit(X, y, sample_weight=[1.0, 2.0])
    with pytest.raises(ValueError, match="Input X contains NaN"):
        quick().fit(np.where(X > 6, np.nan, X), y)
    with pytest.raises(ValueError, match="Unknown label type"):
        quick().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="expecting 4 features"):
        quick().fit(X, y).predict(X[:, :3])
    with pytest.raises(DataError, match="finite in float32"):
        quick(standardize=False).fit(X * 1e300, y)
    with pytest.raises(DataError, match="values are too large; rows 0 to 149"):
        quick(tail="mlp", lr=0.002).fit(X, y).predict(X * 1e300)


def test_an_interrupted_fit_is_no_fit(digits, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", interrupted)
    classifier = quick()
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(*digits)
    with pytest.raises(NotFittedError):
        classifier.predict(digits[0])


def test_there_is_no_partial_fit():
    assert not hasattr(DissensusClassifier, "partial_fit")


@pytest.fixture
def _short(monkeypatch):
    """Trainings of tune that take a blink."""
    from dissensus.adaptation import splits
    from dissensus.training import options

    monkeypatch.setattr(splits, "FOLDS", 1)
    monkeypatch.setattr(options, "UPDATES", 100)


@pytest.mark.usefixtures("_short")
def test_auto_chooses_method_and_score():
    X, y = load_iris(return_X_y=True)
    classifier = DissensusClassifier(3, "auto", random_state=0, false_alarms=0.1).fit(X, y)
    assert classifier.ensemble_.method in ("sed-a2d", "deep-ensemble", "diverse-hps", "single")
    assert "mahalanobis" in classifier.score_name_
    assert classifier.score_name_ == classifier.threshold_.name
    assert classifier.score(X, y) > 0.85
    assert classifier.is_ood(100 + X).mean() > 0.9
    assert classifier.is_ood(X).mean() < 0.4
    again = clone(classifier).fit(X, y)
    assert np.array_equal(again.ood_score(X), classifier.ood_score(X))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr": 0.1}, "method auto chooses lr itself; got lr=0.1"),
        ({"norm": "layer"}, "chooses norm itself"),
        ({"score_name": "pds"}, "chooses score_name itself"),
        ({"false_alarms": 0.001}, "method auto at false_alarms=0.001 needs 999 held-out samples"),
    ],
)
def test_auto_leaves_nothing_else_to_choose(options, match):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(DissensusError, match=match):
        DissensusClassifier(method="auto", **options).fit(X, y)


def test_auto_takes_no_sample_weights():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(DissensusError, match="no sample weights"):
        DissensusClassifier(method="auto").fit(X, y, sample_weight=np.arange(len(y)))
