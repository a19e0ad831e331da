"""Cut a timm model into a trunk, which is run once, and a tail, of which every member owns a copy; and join them again.

`layers=1` takes off the classifier. `layers=2` takes more where the last stage does not mix positions: of ViTs the last
block's MLP, the final norm and the head, on the class token (or on all tokens if the model averages them); of
EfficientNets and MobileNets the last 1x1 convolution and the classifier. The tail is a built-in one with the model's
weights, batch-norm folded into the convolution before it. `FAMILIES` is the only place that knows timm's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import Mlp
from timm.layers.norm_act import BatchNormAct2d
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from dissensus._core.errors import DissensusError
from dissensus.models import tails

ACTIVATIONS = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
}
Cut = tuple[nn.Module, nn.Module]


class Family(NamedTuple):
    """A family of architectures from which two layers can be cut."""

    cut: Callable[[Any], Cut | None]  # whole model -> trunk and tail; None if this model cannot be cut there
    join: Callable[[Any, Any], None]  # (whole model, tail): copy the tail's weights to where they were cut from


def cut(model: Any, layers: int) -> tuple[Cut, int] | None:
    """Cut off at most `layers` layers.

    The model is taken apart: use the parts, not the model, afterwards.

    Returns:
        ((trunk, tail), number of layers cut off); None for a model without a linear classifier.
    """
    family = FAMILIES.get(type(model))
    if layers >= 2 and family is not None and (parts := family.cut(model)) is not None:
        return parts, 2
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    if not isinstance(classifier, nn.Linear):
        return None
    tail = tails.Linear(classifier.in_features, classifier.out_features, norm="none")  # as in the model
    _copy(classifier, tail)
    model.reset_classifier(0)
    return (model, tail), 1


def join(model: Any, trunk: nn.Module, tail: nn.Module) -> None:
    """Copy the weights of trunk and tail into a whole timm model, as it was before `cut`.

    A layer without a bias cannot take one, and a batch-norm is left without effect: compare the model with
    `tail(trunk(x))` afterwards.

    Raises:
        DissensusError: If the model is not of the architecture that trunk and tail were cut from.
    """
    whole = trunk.model if isinstance(trunk, Tokens) else trunk
    if unexpected := model.load_state_dict(whole.state_dict(), strict=False).unexpected_keys:
        raise DissensusError(f"{type(model).__name__} has no {unexpected[0]}")
    if isinstance(tail, tails.Linear):
        _copy(tail, model.get_classifier())
    elif type(model) in FAMILIES:
        FAMILIES[type(model)].join(model, tail)
    else:
        raise DissensusError(f"{type(model).__name__} has no place for the tail {type(tail).__name__}")


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


def _vit_layers(model: Any) -> dict[str, Any]:
    """The layers of a whole ViT that become those of `tails.MLP`, by their names there."""
    mlp, final = model.blocks[-1].mlp, model.norm if model.global_pool == "token" else model.fc_norm
    return {"norm1": model.blocks[-1].norm2, "fc1": mlp.fc1, "fc2": mlp.fc2, "norm2": final, "head": model.head}


def _cut_vit(model: Any) -> Cut | None:
    block = model.blocks[-1]
    if type(block) is not Block or type(block.mlp) is not Mlp:
        return None
    layers, scale = _vit_layers(model), model.blocks[-1].ls2
    token = model.global_pool == "token" and isinstance(model.fc_norm, nn.Identity)
    mean = model.global_pool == "avg" and isinstance(model.norm, nn.Identity)
    plain = (
        isinstance(block.mlp.fc1, nn.Linear)
        and isinstance(block.mlp.norm, nn.Identity)
        and type(block.mlp.act) is nn.GELU
        and block.mlp.act.approximate == "none"
        and type(scale) in (LayerScale, nn.Identity)
        and isinstance(model.head, nn.Linear)
        and all(isinstance(layers[name], nn.LayerNorm) for name in ("norm1", "norm2"))
        and layers["norm1"].eps == layers["norm2"].eps
    )
    if not (plain and (token or mean) and model.attn_pool is None):
        return None
    tail = tails.MLP(
        layers["fc1"].in_features,
        model.head.out_features,
        layers["fc1"].out_features,
        # the paper's members start with gamma 1e-4, whatever the pretrained model has
        gamma=1e-4 if isinstance(scale, LayerScale) else None,
        eps=layers["norm1"].eps,
    )
    for name, layer in layers.items():
        _copy(layer, getattr(tail, name))
    if tail.gamma is not None:
        tail.gamma.data.copy_(scale.gamma)
    model.blocks[-1] = AttentionHalf(block)
    model.norm = model.fc_norm = model.head = nn.Identity()
    return Tokens(model, 0 if model.pool_include_prefix else model.num_prefix_tokens, token), tail


def _join_vit(model: Any, tail: Any) -> None:
    for name, layer in _vit_layers(model).items():
        _copy(getattr(tail, name), layer)
    if tail.gamma is not None:
        model.blocks[-1].ls2.gamma.data.copy_(tail.gamma)


def _cut_conv(*names: str) -> Callable[[Any], Cut | None]:
    """Cut a net that ends in conv_head, the norm `names[0]`, perhaps an activation, a mean over positions, classifier.

    `names` are the layers besides conv_head and classifier that the tail replaces.
    """

    def cut_off(model: Any) -> Cut | None:
        conv, norm, head = model.conv_head, getattr(model, names[0]), model.classifier
        act = norm.act if type(norm) is BatchNormAct2d else getattr(model, "act2", nn.Identity())
        plain = (
            (type(norm) is BatchNormAct2d or isinstance(norm, nn.Identity))
            and isinstance(conv, nn.Conv2d)
            and conv.kernel_size == (1, 1)
            and conv.groups == 1
            and model.global_pool.pool_type == "avg"
            and isinstance(head, nn.Linear)
            and type(act) in ACTIVATIONS
        )
        if not plain:
            return None
        tail = tails.Conv(conv.in_channels, head.out_features, conv.out_channels, ACTIVATIONS[type(act)])
        scale, shift = _affine(norm, conv.out_channels)
        tail.conv.weight.data.copy_(conv.weight.flatten(1) * scale[:, None])
        tail.conv.bias.data.copy_(shift if conv.bias is None else conv.bias * scale + shift)
        _copy(head, tail.head)
        for name in ("conv_head", *names, "classifier"):
            setattr(model, name, nn.Identity())
        return model, tail

    return cut_off


def _join_conv(norm_name: str) -> Callable[[Any, tails.Conv], None]:
    def join_on(model: Any, tail: tails.Conv) -> None:
        conv, norm = model.conv_head, getattr(model, norm_name)
        with torch.no_grad():
            conv.weight.copy_(tail.conv.weight.view_as(conv.weight))
            if conv.bias is not None:
                conv.bias.zero_()
            if not isinstance(norm, nn.Identity):  # the tail has it folded in: leave only the bias to it
                norm.running_mean.zero_()
                norm.running_var.fill_(1 - norm.eps)
                norm.weight.fill_(1)
                norm.bias.copy_(tail.conv.bias)
            elif conv.bias is not None:
                conv.bias.copy_(tail.conv.bias)
        _copy(tail.head, model.classifier)

    return join_on


def _affine(norm: Any, channels: int) -> tuple[Tensor, Tensor]:
    """A batch-norm in eval mode, or no norm, as a factor and an addend per channel."""
    if isinstance(norm, nn.Identity):
        return torch.ones(channels), torch.zeros(channels)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return scale, norm.bias - norm.running_mean * scale


@torch.no_grad()
def _copy(source: Any, target: Any) -> None:
    """Copy the weights of a layer to one of the same kind; a missing bias is zero, and is not copied to."""
    target.weight.copy_(source.weight)
    if target.bias is None:
        return
    if source.bias is None:
        target.bias.zero_()
    else:
        target.bias.copy_(source.bias)


# By exact class: a subclass may change `forward`.
FAMILIES: dict[type, Family] = {
    VisionTransformer: Family(_cut_vit, _join_vit),
    EfficientNet: Family(_cut_conv("bn2", "global_pool"), _join_conv("bn2")),
    MobileNetV3: Family(_cut_conv("norm_head", "act2"), _join_conv("norm_head")),
}
