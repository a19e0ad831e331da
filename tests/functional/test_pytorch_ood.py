"""Detectors of pytorch-ood as scores: the values are theirs, the state is tensors, misuse is one line."""

from __future__ import annotations

import pytest
import torch
from pytorch_ood import detector as peer
from torch import Tensor, nn

from dissensus._core import extras
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.functional import pytorch_ood, scores
from dissensus.functional.fitted import Head, Rows, unit
from tests.functional.test_distances import Features, data, head, logits_of

WIDTH = 12


def fit(name: str, **options: object) -> tuple[pytorch_ood.PytorchOOD, dict[str, Tensor]]:
    x, labels, _ = data(dtype=torch.float32)
    score = scores.SCORES["pytorch-ood:" + name]
    assert isinstance(score, type)
    assert issubclass(score, pytorch_ood.PytorchOOD)
    state = score.fit(Rows(Features(x), labels, 4, **{"head": head(), **options}), labels)
    return score(state), state


def theirs(name: str) -> Tensor:
    x, labels, q = data(dtype=torch.float32)
    linear = nn.Linear(WIDTH, 4)
    linear.load_state_dict(head()._asdict())
    options = {
        "KNN": {},
        "Mahalanobis": {},
        "NNGuide": {"head": linear},
        "ViM": {"d": WIDTH // 2, "w": linear.weight, "b": linear.bias},
    }
    detector = getattr(peer, name)(encoder=None, **options[name])
    root = WIDTH**0.5
    return detector.fit_features(unit(x) * root, labels).predict_features(unit(q) * root).detach().float()


@pytest.mark.parametrize("name", ["KNN", "Mahalanobis", "NNGuide", "ViM"])
def test_the_score_is_the_detectors(name: str) -> None:
    _, _, q = data(dtype=torch.float32)
    score, state = fit(name)
    result = score(q, logits_of(q, head()))
    torch.testing.assert_close(result, theirs(name))
    assert result.std() > 0
    assert set(score.state_dict()) == set(state)  # tensors alone are saved
    again = type(score)({key: value.clone() for key, value in state.items()})
    assert torch.equal(again(q, logits_of(q, head())), result)
    assert score(q[:0], logits_of(q[:0], head())).shape == (0,)
    assert score(q.double(), logits_of(q, head())).dtype == torch.float64
    assert not score.exportable
    assert score.why_not


@pytest.mark.parametrize("name", ["fDBD", "GMM", "LTS", "NCI", "PNML", "RMD", "SHE"])
def test_other_detectors_of_features_work_too(name: str) -> None:
    """With a head that predicts the classes; SHE refuses one that never predicts some class."""
    x, labels, q = data(dtype=torch.float32)
    inputs = torch.cat([unit(x) * WIDTH**0.5, torch.ones(len(x), 1)], 1)
    solution = torch.linalg.lstsq(inputs, nn.functional.one_hot(labels, 4).float()).solution.T
    score, _ = fit(name, head=Head(solution[:, :-1], solution[:, -1]))
    result = score(q, logits_of(q, head()))
    assert result.isfinite().all()
    assert result.std() > 0
    if name == "SHE":
        with pytest.raises(DataError, match="No correct predictions"):
            fit(name)


def test_missing_classes_are_renumbered_for_detectors_without_a_head() -> None:
    x, labels, q = data(dtype=torch.float32)
    kept = labels != 1
    score = scores.SCORES["pytorch-ood:Mahalanobis"]
    state = score.fit(Rows(Features(x[kept]), labels[kept], 4), labels[kept])
    assert score(state)(q, logits_of(q, head())).isfinite().all()


def test_names_resolve_to_one_class_and_are_not_listed() -> None:
    assert scores.SCORES["pytorch-ood:KNN"] is scores.SCORES["pytorch-ood:KNN"]
    assert scores.SCORES["pytorch-ood:KNN"].name == "pytorch-ood:KNN"
    assert scores.is_fitted("pytorch-ood:KNN")
    assert scores.SCORES.copy()["pytorch-ood:KNN"] is scores.SCORES["pytorch-ood:KNN"]
    assert not any(name.startswith("pytorch-ood") for name in scores.SCORES)


@pytest.mark.parametrize(("name", "needs"), [("MCM", "text_embeddings"), ("DICE", "p")])
def test_detectors_that_need_more_are_refused_with_the_reason(name: str, needs: str) -> None:
    with pytest.raises(DissensusError, match=f"{name} needs {needs}:"):
        scores.SCORES["pytorch-ood:" + name]


@pytest.mark.parametrize("name", ["NNGuid", "ODIN", "MaxSoftmax"])
def test_what_is_not_a_detector_of_features_is_unknown(name: str) -> None:
    with pytest.raises(UnknownNameError, match="pytorch-ood:NNGuide"):
        scores.SCORES.check("pytorch-ood:" + name)


def test_a_head_is_needed_where_the_detector_has_one() -> None:
    with pytest.raises(DissensusError, match="linear in L2-normalised features"):
        fit("NNGuide", head=None)
    fit("KNN", head=None)


def test_what_the_detector_says_against_the_data_is_one_line() -> None:
    x, labels, _ = data(dtype=torch.float32)
    with pytest.raises(DataError, match=r"cannot be fitted to 20 training rows: k=50 exceeds") as error:
        scores.SCORES["pytorch-ood:KNN"].fit(Rows(Features(x), labels, 4, keep=20 * WIDTH), labels)
    assert "\n" not in str(error.value)


def test_without_the_package_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "ood", ("no_such_module",))
    pytorch_ood.resolve.cache_clear()
    with pytest.raises(DissensusError, match=r"pip install '.*\[ood\]'"):
        scores.SCORES["pytorch-ood:KNN"]
