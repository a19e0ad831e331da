"""Every way to use labels is an ensemble again, whose mean logits are those that were chosen by."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dissensus._core.errors import DissensusError
from dissensus.adaptation import ways
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

N, C = 14, 3


def tail(kind):
    if kind == "conv":
        return tails.Conv(5, C, hidden=6), (5, 2, 2)
    if kind == "tokens":
        return tails.MLP(5, C, hidden=6), (3, 5)
    if kind == "vectors through conv":
        return tails.Conv(5, C, hidden=6, norm="l2"), (5,)
    return (tails.MLP(5, C, hidden=6) if kind == "mlp" else tails.Linear(5, C)), (5,)


KINDS = ("linear", "mlp", "tokens", "conv", "vectors through conv")


def samples(kind="linear", members=3, n=N, seed=0):
    module, shape = tail(kind)
    ensemble = Ensemble(module, members=members, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # larger than at the start of training, so that members differ
        for name in ways.last_layer(ensemble.tail):
            ensemble.stacked()[name] += 0.5 * torch.randn(ensemble.stacked()[name].shape, generator=generator)
    return ways.Samples(
        ensemble,
        torch.randn(n, *shape, generator=generator),
        torch.arange(n) % C,
        torch.randn(40, *shape, generator=generator),
        torch.arange(40) % C,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_layer_of_what_is_embedded_is_the_tail(kind):
    s = samples(kind)
    member = s.ensemble.member(1)
    head = member.get_submodule(member.last)
    with torch.no_grad():
        torch.testing.assert_close(nn.functional.linear(ways.embed(member, s.features), head.weight, head.bias),
                                   member(s.features))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "way",
    [ways.as_it_is, ways.one_member, ways.prior, ways.new_head, ways.member_weights],
    ids=lambda way: way.__name__,
)
def test_the_ensemble_says_what_the_blend_says(kind, way):
    s = samples(kind)
    blend = way(s)
    built = ways.build(s.ensemble, blend)
    mean = ways.logits_of(built, s.features).mean(0)
    torch.testing.assert_close(mean, ways.blended_logits(blend, s), rtol=1e-4, atol=1e-4)
    assert not built.training


@pytest.mark.parametrize("kind", KINDS)
def test_the_prior_is_the_best_correction_of_its_member(kind):
    """The gradient of the posterior vanishes at logits that hold the member: it would not if it were left out."""
    s = samples(kind)
    blend, m = ways.prior(s), s.best
    x = s.embedded_train(m).double()
    centre = x.mean(0)
    scale = float((x - centre).square().sum(1).mean().sqrt())
    z = (s.embedded(m).double() - centre) / scale
    member = math.log2(C) * s.logits[m]
    logits = member + blend.correction(s.embedded(m))
    torch.testing.assert_close(ways.blended_logits(blend, s), logits)
    wrong = logits.softmax(1) - nn.functional.one_hot(s.labels, C)
    gradient = wrong.T @ z + scale * blend.correction.weight / ways.strength(N, C)
    assert gradient.abs().max() < 1e-3
    assert member.abs().max() > 0.1


def test_a_head_may_use_training_data():
    s = samples()
    blend = ways.new_head(s, with_training=True)
    mean = ways.logits_of(ways.build(s.ensemble, blend), s.features).mean(0)
    torch.testing.assert_close(mean, ways.blended_logits(blend, s), rtol=1e-4, atol=1e-4)
    assert not torch.equal(blend.correction.weight, ways.new_head(s).correction.weight)


def test_the_ensemble_that_is_built_is_another_one():
    s = samples()
    before = s.ensemble.fingerprint
    for way in (ways.as_it_is, ways.one_member, ways.prior, ways.member_weights):
        built = ways.build(s.ensemble, way(s))
        with torch.no_grad():
            for value in built.parameters():
                value += 1
    assert s.ensemble.fingerprint == before


def test_members_without_weight_are_left_out():
    s = samples(members=4)
    built = ways.build(s.ensemble, ways.Blend(torch.tensor([0.0, 0.5, 0.0, 0.25]).double()))
    assert len(built) == 2
    logits = ways.logits_of(s.ensemble, s.features)
    torch.testing.assert_close(ways.logits_of(built, s.features).mean(0), 0.5 * logits[1] + 0.25 * logits[3],
                               rtol=1e-4, atol=1e-4)  # fmt: skip


def test_a_single_weight_and_equal_weights_scale_too():
    s = samples(members=2)
    logits = ways.logits_of(s.ensemble, s.features)
    for weights in ([0.0, 1.7], [0.3, 0.3]):
        built = ways.build(s.ensemble, ways.Blend(torch.tensor(weights).double()))
        expected = weights[0] * logits[0] + weights[1] * logits[1]
        torch.testing.assert_close(ways.logits_of(built, s.features).mean(0), expected, rtol=1e-4, atol=1e-4)


def test_weights_stay_equal_if_every_member_is_wrong():
    s = samples(n=1)
    s.__dict__["logits"] = torch.tensor([-9.0, 9.0, 9.0]).double().expand(3, 1, C)
    assert ways.member_weights(s).weights.tolist() == pytest.approx([1 / 3] * 3)


def test_one_member_keeps_its_weights():
    s = samples()
    built = ways.build(s.ensemble, ways.one_member(s, 2))
    torch.testing.assert_close(built(s.features)[0], s.ensemble(s.features)[2])


def test_strength_grows_with_labels_up_to_a_limit():
    assert ways.strength(1, 3) == 0.5
    assert ways.strength(4, 3) == 2.0
    assert ways.strength(1000, 3) == ways.MOST == 10.0


@pytest.mark.parametrize(("classes", "value"), [(1, 1), (2, 1), (8, 3), (1000, math.log2(1000))])
def test_confidence_is_the_logarithm_of_the_classes(classes, value):
    assert ways.confidence(classes) == pytest.approx(value)


def test_margins_are_means_of_what_is_positive_and_logits_are_divided_by_them():
    s = samples()
    raw = ways.logits_of(s.ensemble, s.train)
    for m in range(3):
        margins = []
        for b in range(40):
            label = int(s.train_labels[b])
            other = max(float(raw[m, b, c]) for c in range(C) if c != label)
            margins.append(max(0.0, float(raw[m, b, label]) - other))
        assert float(s.margins[m]) == pytest.approx(sum(margins) / 40)
    torch.testing.assert_close(s.logits * s.margins[:, None, None], ways.logits_of(s.ensemble, s.features))


def test_a_member_that_is_never_right_in_training_has_margin_one():
    s = samples()
    with torch.no_grad():
        for value in s.ensemble.parameters():
            value.zero_()
    assert s.margins.tolist() == [1, 1, 1]


def test_a_subset_is_what_its_samples_would_be():
    s = samples()
    index = torch.tensor([1, 5, 7])
    part = s.subset(index)
    alone = ways.Samples(s.ensemble, s.features[index], s.labels[index], s.train, s.train_labels)
    torch.testing.assert_close(part.logits, alone.logits, rtol=1e-5, atol=1e-5)
    assert part.best == alone.best


def test_the_best_member_is_right_most_often_then_most_likely():
    s = samples(n=3)
    table = torch.full((3, 3, C), 0.0, dtype=torch.float64)
    table[0, torch.arange(3), s.labels] = 1.0
    table[1, torch.arange(3), s.labels] = 2.0
    table[2, torch.arange(2), s.labels[:2]] = 9.0
    table[2, 2, (int(s.labels[2]) + 1) % C] = 1.0
    s.__dict__["logits"] = table
    assert s.best == 1


def test_a_tail_that_does_not_name_its_last_layer():
    with pytest.raises(DissensusError, match="Sequential does not name it"):
        ways.last_layer(nn.Sequential(nn.Linear(2, 2)))
