"""Metrics against scikit-learn and torchmetrics on whole arrays, and by hand."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus.functional import classification, metrics
from dissensus.functional.classification import Classification
from dissensus.functional.metrics import METRICS, detection, threshold


def evaluate(log_probs: Tensor, labels: Tensor, groups: Tensor | None = None, batch: int = 10**9) -> dict[str, float]:
    quality = Classification()
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        quality.update(log_probs[part], labels[part], None if groups is None else groups[part])
    return quality.compute()


def random_answers(n: int = 500, classes: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probabilities that are right about half the time, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator) + 1.5 * torch.nn.functional.one_hot(labels, classes)
    return logits.log_softmax(-1), labels


# Classification


@pytest.mark.parametrize("batch", [1000, 64])
def test_agrees_with_the_libraries_on_whole_arrays(batch: int) -> None:
    log_probs, labels = random_answers()
    found = evaluate(log_probs, labels, batch=batch)
    probs = log_probs.exp().double()
    probs /= probs.sum(-1, keepdim=True)
    ece = multiclass_calibration_error(probs, labels, num_classes=7, n_bins=15, norm="l1")
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(labels, probs.argmax(-1)),
        "nll": sklearn.metrics.log_loss(labels, probs.numpy(), labels=range(7)),
        "brier": float((probs - torch.eye(7)[labels]).square().sum(-1).mean()),
        "ece": float(ece),
        "mean_confidence": float(probs.amax(-1).double().mean()),
    }
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0.3 < found["accuracy"] < 0.9
    assert found["ece"] > 0.01


def test_classification_by_hand() -> None:
    """Two samples: p = (.8, .2) with label 0, p = (.6, .4) with label 1.

    One of two right. NLL -(log .8 + log .4) / 2 = .569717. Brier (.04 + .04 + .36 + .36) / 2 = .4.
    ECE: confidences .8 (right) and .6 (wrong) in bins of their own: (|1 - .8| + |0 - .6|) / 2 = .4.
    """
    found = evaluate(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
    assert found == pytest.approx(
        {"accuracy": 0.5, "nll": 0.569717, "brier": 0.4, "ece": 0.4, "mean_confidence": 0.7}, abs=1e-6
    )


def test_worst_group_is_the_least_accurate_one_present() -> None:
    """Predictions 0 0 1 1 0 0, labels 0 1 1 1 1 0, so right: 1 0 1 1 0 1.

    Groups 7 7 2 2 4 4: 7 has 1 of 2, 2 has 2 of 2, 4 has 1 of 2. Groups 7 4 2 2 4 4: 4 has 1 of 3.
    """
    predicted, labels = torch.tensor([0, 0, 1, 1, 0, 0]), torch.tensor([0, 1, 1, 1, 1, 0])
    log_probs = (5.0 * torch.nn.functional.one_hot(predicted, 2)).log_softmax(-1)
    for groups, worst in (([7, 7, 2, 2, 4, 4], 1 / 2), ([7, 4, 2, 2, 4, 4], 1 / 3)):
        found = evaluate(log_probs, labels, torch.tensor(groups), batch=4)
        assert found["worst_group"] == pytest.approx(worst)
        assert found["accuracy"] == pytest.approx(4 / 6)
    assert "worst_group" not in evaluate(log_probs, labels)


def test_votes_have_no_nll() -> None:
    """Shares (1, 0) and (1/3, 2/3) with labels 0 and 0: no label got zero votes, but a vote is no likelihood.

    Brier (0 + 4/9 + 4/9) / 2 = 4/9. ECE: confidence 1 right, 2/3 wrong: (0 + 2/3) / 2.
    """
    shares = torch.tensor([[1.0, 0.0], [1 / 3, 2 / 3]])
    found = evaluate(shares.log(), torch.tensor([0, 0]), batch=1)
    assert found == pytest.approx({"accuracy": 0.5, "brier": 4 / 9, "ece": 1 / 3, "mean_confidence": 5 / 6}, abs=1e-6)


def test_a_sample_that_lost_all_its_votes() -> None:
    """All -inf: the argmax is 0, with confidence 0; the Brier score is that of no probability anywhere, 1."""
    lost = torch.full((2, 3), -torch.inf)
    found = evaluate(lost, torch.tensor([0, 2]))
    assert found == pytest.approx({"accuracy": 0.5, "brier": 1.0, "ece": 0.5, "mean_confidence": 0.0})


def test_a_confidence_rounded_above_one_is_one() -> None:
    """torchmetrics would take 1 + 1e-7 for a logit and squash all confidences; sure and right has ECE 0."""
    log_probs = torch.tensor([[1.2e-7, -20.0], [1.2e-7, -20.0]])
    assert log_probs.exp().max() > 1
    assert evaluate(log_probs, torch.tensor([0, 0]))["ece"] == 0


def test_half_precision_is_summed_in_double() -> None:
    log_probs, labels = random_answers(n=3000)
    half = log_probs.half()
    assert evaluate(half, labels) == pytest.approx(evaluate(half.double(), labels), abs=1e-6)


def test_keeps_numbers_a_sample_not_classes() -> None:
    quality = Classification()
    quality.update(*random_answers(n=10, classes=1000))
    kept = [column for batch in quality._batches for column in batch.values()]
    assert {column.shape for column in kept} == {(10,)}
    assert max(column.untyped_storage().nbytes() for column in kept) <= 10 * 8


def test_classification_misuse() -> None:
    quality = Classification()
    with pytest.raises(DataError, match="at least one sample"):
        quality.compute()
    quality.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(DataError, match="at least one sample"):
        quality.compute()
    log_probs, labels = random_answers(n=4, classes=3)
    with pytest.raises(ShapeError, match=r"\(B, C\); got \(2, 4, 3\): aggregate the members first"):
        quality.update(torch.zeros(2, 4, 3), labels)
    with pytest.raises(ShapeError, match=r"labels must be \(B,\) = \(4,\); got \(3,\)"):
        quality.update(log_probs, labels[:3])
    with pytest.raises(ShapeError, match=r"groups must be \(B,\) = \(4,\); got \(4, 1\)"):
        quality.update(log_probs, labels, labels[:, None])
    for wrong in (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, -1]), labels.float()):
        with pytest.raises(DataError, match=r"integers within 0\.\.2"):
            quality.update(log_probs, wrong)
    with pytest.raises(DataError, match="at most 0; got 3"):
        quality.update(torch.full((4, 3), 3.0), labels)
    with pytest.raises(DataError, match="at most 0; got nan"):
        quality.update(log_probs.clone().fill_(torch.nan), labels)
    quality.update(log_probs, labels, labels)
    with pytest.raises(DataError, match="in every update or in none"):
        quality.update(log_probs, labels)


def test_the_examples_run() -> None:
    assert doctest.testmod(classification) == doctest.TestResults(failed=0, attempted=3)
    assert doctest.testmod(metrics) == doctest.TestResults(failed=0, attempted=3)


def test_a_registered_metric_is_computed_wherever_its_inputs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", METRICS.copy())

    @metrics.register(heading="sure", better="higher", percent=True)
    def sure(confidence: Tensor) -> float:
        return float((confidence > 0.5).double().mean())

    @metrics.register(heading="gap")
    def gap(id_scores: Tensor, ood_scores: Tensor) -> float | None:
        return float(ood_scores.mean() - id_scores.mean()) if len(id_scores) > 2 else None

    found = evaluate(torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.5, 0.5]]).log(), torch.tensor([0, 1, 0]))
    assert found["sure"] == pytest.approx(2 / 3)
    assert "gap" not in found
    assert detection(torch.zeros(3), torch.ones(3))["gap"] == 1
    assert "gap" not in detection(torch.zeros(2), torch.ones(3))  # it returned None
    assert metrics.describe("sure").kind == "answers"


def test_a_metric_of_unknown_inputs_is_refused() -> None:
    with pytest.raises(DissensusError, match=r"a metric's parameters must be among .*; got logits"):
        metrics.register(heading="x")(lambda logits: 0.0)
    with pytest.raises(DissensusError, match="got correct, scores"):
        metrics.register(heading="x")(lambda correct, scores: 0.0)


def test_metrics_in_files_of_other_sessions_are_neutral() -> None:
    unknown = metrics.describe("unheard_of")
    assert (unknown.heading, unknown.better, unknown.headline) == ("unheard_of", "", False)


def test_the_threshold_leaves_the_share_of_false_alarms_above_it() -> None:
    scores = torch.arange(1.0, 21.0)
    assert threshold(scores) == 19
    assert threshold(scores, 0.5) == 10


# Detection


def test_detection_by_hand() -> None:
    """ID 1 2 3, OOD 2.5 4.

    AUROC: of 6 pairs only (3, 2.5) is the wrong way: 5/6.
    AUPR-out, from the highest score: 4 (hit, precision 1), 3, 2.5 (hit, 2/3): (1 + 2/3) / 2 = 5/6.
    AUPR-in, from the lowest: 1 (1), 2 (1), 2.5, 3 (3/4): (1 + 1 + 3/4) / 3 = 11/12.
    FPR95: 95% of three ID samples is all three, threshold 3; of OOD 2.5 passes: 1/2.
    """
    found = detection(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.5, 4.0]))
    assert found == pytest.approx({"auroc": 5 / 6, "aupr_in": 11 / 12, "aupr_out": 5 / 6, "fpr95": 1 / 2})


def test_fpr95_by_hand() -> None:
    """ID 1..20: the 19th of 20 makes 95%, threshold 19. Of OOD 5, 19, 19.5, 30 it accepts 5 and 19: 2/4.

    With a 21st ID sample 19 of 21 are only 90.5%, so the threshold is 20, and 19.5 is accepted too: 3/4.
    """
    inside, outside = torch.arange(1, 21), torch.tensor([5, 19, 19.5, 30])
    assert detection(inside, outside)["fpr95"] == 0.5
    assert detection(torch.arange(1, 22), outside)["fpr95"] == 0.75


def test_ties_count_half() -> None:
    """A score that says nothing: AUROC 1/2, all accepted; precision is the share of positives, 3/4 or 1/4."""
    found = detection(torch.ones(3, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
    assert found == pytest.approx({"auroc": 0.5, "aupr_in": 0.75, "aupr_out": 0.25, "fpr95": 1.0})


def test_perfect_and_inverted_scores() -> None:
    low, high = torch.rand(50), 2 + torch.rand(40)
    assert detection(low, high) == {"auroc": 1.0, "aupr_in": 1.0, "aupr_out": 1.0, "fpr95": 0.0}
    inverted = detection(high, low)
    assert inverted["auroc"] == 0.0
    assert inverted["fpr95"] == 1.0


samples = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@settings(deadline=None, max_examples=100)
@given(samples, samples)
def test_fpr95_agrees_with_the_roc_curve(inside: list[int], outside: list[int]) -> None:
    """The first point of the curve, ID positive, that reaches 95% true positives."""
    is_id = [1] * len(inside) + [0] * len(outside)
    fpr, tpr, _ = sklearn.metrics.roc_curve(is_id, -np.array(inside + outside), drop_intermediate=False)
    expected = fpr[np.argmax(tpr >= 0.95 - 1e-12)]
    assert detection(torch.tensor(inside), torch.tensor(outside))["fpr95"] == pytest.approx(expected)


@settings(deadline=None, max_examples=50)
@given(samples, samples)
def test_auroc_is_the_chance_of_the_right_order(inside: list[int], outside: list[int]) -> None:
    wins = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    assert detection(torch.tensor(inside), torch.tensor(outside))["auroc"] == pytest.approx(np.mean(wins))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (torch.zeros(0), DataError, "must not be empty"),
        (torch.zeros(2, 2), ShapeError, r"must be \(N,\); got \(2, 2\)"),
        (torch.tensor([0.0, torch.nan]), DataError, "must be finite; got 1 of 2"),
        (torch.tensor([torch.inf, -torch.inf]), DataError, "must be finite; got 2 of 2"),
    ],
)
def test_detection_misuse(bad: Tensor, error: type[Exception], message: str) -> None:
    good = torch.rand(5)
    with pytest.raises(error, match=f"id_scores {message}"):
        detection(bad, good)
    with pytest.raises(error, match=f"ood_scores {message}"):
        detection(good, bad)
