"""Score expressions: names and weights, the default, and what is refused."""

from __future__ import annotations

import pytest
import torch

from dissensus._core.errors import DissensusError
from dissensus.functional import conformal, expressions
from dissensus.functional.expressions import choose, default_score, expression, score_names


@pytest.mark.parametrize(
    ("given", "names", "weights"),
    [
        ("pds", ("pds",), (1.0,)),
        ("mahalanobis+pds", ("mahalanobis", "pds"), (1.0, 1.0)),
        ("2*mahalanobis+pds", ("mahalanobis", "pds"), (2.0, 1.0)),
        (" 0.5 * mahalanobis , 1e-2*pds", ("mahalanobis", "pds"), (0.5, 0.01)),
        (["mahalanobis", "3*pds"], ("mahalanobis", "pds"), (1.0, 3.0)),
        (["2*mahalanobis+pds", "knn"], ("mahalanobis", "pds", "knn"), (2.0, 1.0, 1.0)),
        ("7*pds", ("pds",), (1.0,)),
    ],
)
def test_names_and_weights_are_read(given, names, weights):
    assert score_names(given) == (names, weights)
    assert score_names(expression(names, weights)) == (names, weights)


def test_large_weights_are_read_back():
    assert score_names(expression(("pds", "bma"), (1e20, 1.0))) == (("pds", "bma"), (1e20, 1.0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("pdss", "unknown score 'pdss': did you mean 'pds'"),
        ("", "unknown score ''"),
        ("pds+", "unknown score ''"),
        ([], "needs a score; got none"),
        ("pds+2*pds", "must differ; got pds, pds"),
        ("0*pds+bma", "weight of a score must be a positive number; got '0' in '0\\*pds'"),
        ("-1*pds+bma", "got '-1'"),
        ("inf*pds+bma", "got 'inf'"),
        ("nan*pds+bma", "got 'nan'"),
        ("two*pds+bma", "got 'two'"),
        ("*pds", "got ''"),
        ("2*3*pds", r"got '2\*3'"),
    ],
)
def test_what_is_no_expression_is_one_line(given, words):
    with pytest.raises(DissensusError, match=words) as caught:
        score_names(given)
    assert "\n" not in str(caught.value)


def test_the_default_needs_the_fitted_scores(monkeypatch):
    monkeypatch.setattr(expressions, "DEFAULTS", ("2*mahalanobis+pds+knn", "gaussian", "mahalanobis", "pds"))
    assert default_score({"mahalanobis", "knn", "gaussian"}) == "2*mahalanobis+pds+knn"
    assert default_score({"mahalanobis", "knn", "gaussian"}, alone=True) == "gaussian"
    assert default_score({"gaussian"}) == "gaussian"
    assert default_score({"mahalanobis"}) == default_score({"mahalanobis"}, alone=True) == "mahalanobis"
    assert default_score({"vim"}) == default_score({}, alone=True) == "pds"
    assert choose(None, {"mahalanobis", "knn"}) == (("mahalanobis", "pds", "knn"), (2.0, 1.0, 1.0))
    with pytest.raises(DissensusError, match="score 'knn' must be fitted to training features; this ensemble does not"):
        choose("knn+pds", {"mahalanobis"})


def test_weights_reach_the_evidence():
    references = [torch.arange(99.0), torch.arange(99.0)]
    values = [torch.tensor([50.0, 98.0]), torch.tensor([90.0, 3.0])]
    found = expressions.combine(values, references, (3.0, 1.0))
    assert torch.equal(found, conformal.evidence(references, values, (3.0, 1.0)))
    assert not torch.equal(found, conformal.evidence(references, values))
    assert torch.equal(expressions.combine(values[:1], (), (1.0,)), values[0])
