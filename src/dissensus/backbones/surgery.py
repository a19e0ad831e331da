"""Cutting a timm model into a trunk, which is run once, and a tail, of which every member owns a copy.

`layers=1` takes off the classifier. `layers=2` takes more where the architecture has a last stage without mixing of
places: of ViTs the last block's MLP, the final norm and the head, on the class token (or on all tokens where the model
averages them); of EfficientNets, MobileNets and their kin the last 1x1 convolution and the classifier. Tails come out
as the built-in ones with the model's own weights, batch-norm folded into the convolution before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import Mlp
from timm.layers.norm_act import BatchNormAct2d
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from dissensus.models import tails

ACTIVATIONS = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
}
Cut = tuple[nn.Module, nn.Module]


def cut(model: Any, layers: int) -> tuple[Cut, int] | None:
    """((trunk, tail), layers taken off), at most `layers`; None for a model without a linear classifier.

    The model is taken apart: use the parts, not the model, afterwards.
    """
    if layers >= 2:
        for kind, taken in DEEPER.items():
            if type(model) is kind and (parts := taken(model)) is not None:
                return parts, 2
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    if not isinstance(classifier, nn.Linear):
        return None
    tail = _linear(classifier)
    model.reset_classifier(0)
    return (model, tail), 1


class AttentionHalf(nn.Module):
    """A ViT block without its MLP half."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = block.norm1, block.attn, block.ls1

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, D) -> (B, T, D)."""
        result: Tensor = x + self.ls1(self.attn(self.norm1(x)))
        return result


class Tokens(nn.Module):
    """A ViT up to its last attention: images -> the class token (B, D), or the tokens that it averages (B, T, D)."""

    def __init__(self, model: VisionTransformer, first: int, only_first: bool) -> None:
        super().__init__()
        self.model, self.first, self.only_first = model, first, only_first

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D) or (B, T, D)."""
        tokens: Tensor = self.model.forward_features(x)
        return tokens[:, 0] if self.only_first else tokens[:, self.first :]


def _vit(model: Any) -> Cut | None:
    block = model.blocks[-1]
    token = model.global_pool == "token" and isinstance(model.fc_norm, nn.Identity)
    mean = model.global_pool == "avg" and isinstance(model.norm, nn.Identity)
    final = model.norm if token else model.fc_norm
    plain = (
        type(block) is Block
        and type(block.mlp) is Mlp
        and isinstance(block.mlp.fc1, nn.Linear)
        and isinstance(block.mlp.norm, nn.Identity)
        and type(block.mlp.act) is nn.GELU
        and block.mlp.act.approximate == "none"
        and type(block.ls2) in (LayerScale, nn.Identity)
        and isinstance(model.head, nn.Linear)
        and all(isinstance(norm, nn.LayerNorm) for norm in (block.norm2, final))
        and block.norm2.eps == final.eps
    )
    if not (plain and (token or mean) and model.attn_pool is None):
        return None
    scaled = isinstance(block.ls2, LayerScale)
    fc1, eps = block.mlp.fc1, final.eps
    # the paper's members start with gamma 1e-4, whatever the pretrained model has
    tail = tails.MLP(
        fc1.in_features, model.head.out_features, fc1.out_features, gamma=1e-4 if scaled else None, eps=eps
    )
    parts = {"norm1": block.norm2, "fc1": fc1, "fc2": block.mlp.fc2, "norm2": final, "head": model.head}
    for name, part in parts.items():
        _copy(part, getattr(tail, name))
    if tail.gamma is not None:
        tail.gamma.data.copy_(block.ls2.gamma)
    model.blocks[-1] = AttentionHalf(block)
    model.norm = model.fc_norm = model.head = nn.Identity()
    return Tokens(model, 0 if model.pool_include_prefix else model.num_prefix_tokens, token), tail


def _efficientnet(model: Any) -> Cut | None:
    return _conv(model, model.bn2, nn.Identity(), gone=("conv_head", "bn2", "global_pool", "classifier"))


def _mobilenet(model: Any) -> Cut | None:
    return _conv(model, model.norm_head, model.act2, gone=("conv_head", "norm_head", "act2", "classifier"))


def _conv(model: Any, norm: Any, act: nn.Module, gone: tuple[str, ...]) -> Cut | None:
    conv, head = model.conv_head, model.classifier
    if type(norm) is BatchNormAct2d:
        act = norm.act
    elif not isinstance(norm, nn.Identity):
        return None
    averages = model.global_pool.pool_type == "avg"
    if not (isinstance(conv, nn.Conv2d) and conv.kernel_size == (1, 1) and conv.groups == 1 and averages):
        return None
    if not isinstance(head, nn.Linear) or type(act) not in ACTIVATIONS:
        return None
    tail = tails.Conv(conv.in_channels, head.out_features, conv.out_channels, ACTIVATIONS[type(act)])
    scale, shift = _affine(norm, conv.out_channels)
    tail.conv.weight.data.copy_(conv.weight.flatten(1) * scale[:, None])
    tail.conv.bias.data.copy_(shift if conv.bias is None else conv.bias * scale + shift)
    _copy(head, tail.head)
    for name in gone:
        setattr(model, name, nn.Identity())
    return model, tail


def _affine(norm: Any, channels: int) -> tuple[Tensor, Tensor]:
    """What a batch-norm, or none, does in eval mode, as a factor and an addend for every channel."""
    if isinstance(norm, nn.Identity):
        return torch.ones(channels), torch.zeros(channels)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return scale, norm.bias - norm.running_mean * scale


def _linear(layer: nn.Linear) -> tails.Linear:
    tail = tails.Linear(layer.in_features, layer.out_features)
    _copy(layer, tail)
    return tail


def _copy(source: Any, target: Any) -> None:
    """The weights of one layer into another of the same kind; a missing bias is zero."""
    with torch.no_grad():
        target.weight.copy_(source.weight)
        if source.bias is None:
            target.bias.zero_()
        else:
            target.bias.copy_(source.bias)


# Classes, not instances of them: a subclass may do otherwise in its forward.
DEEPER: dict[type, Callable[[Any], Cut | None]] = {
    VisionTransformer: _vit,
    EfficientNet: _efficientnet,
    MobileNetV3: _mobilenet,
}
