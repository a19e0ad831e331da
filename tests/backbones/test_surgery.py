"""Cutting a timm model and joining its parts again."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from dissensus._core.errors import DissensusError
from dissensus.backbones import surgery
from dissensus.models import tails


def shaken(name: str) -> nn.Module:
    """A model none of whose weights is what it began with."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5).eval()
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(0.05 * torch.rand_like(value))
    return model


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "test_efficientnet", "mobilenetv4_conv_small", "resnet10t"])
def test_joined_parts_are_the_whole(name, layers):
    x = torch.randn(2, 3, 160 if "vit" in name else 64, 160 if "vit" in name else 64)
    with torch.no_grad():
        expected = shaken(name)(x)
        (trunk, tail), cut_off = surgery.cut(shaken(name), layers)
        assert cut_off == (1 if name == "resnet10t" else layers)
        whole = timm.create_model(name, num_classes=5).eval()
        assert not torch.allclose(whole(x), expected, atol=1e-2)
        surgery.join(whole, trunk, tail)
        torch.testing.assert_close(whole(x), expected, rtol=1e-4, atol=1e-4)


def test_parts_of_another_architecture_are_refused():
    (trunk, tail), _ = surgery.cut(shaken("test_vit"), 2)
    with pytest.raises(DissensusError, match="ResNet has no cls_token"):
        surgery.join(timm.create_model("test_resnet"), trunk, tail)
    (trunk, _), _ = surgery.cut(shaken("test_resnet"), 1)
    with pytest.raises(DissensusError, match="ResNet has no place for the tail MLP"):
        surgery.join(timm.create_model("test_resnet"), trunk, tails.MLP(8, 5))
