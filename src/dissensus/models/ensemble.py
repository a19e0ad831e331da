"""Ensemble: M copies of one tail, stacked so that all of them run at once."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import make_folder, read_json, replacing, write_json
from dissensus.models import tails

FORMAT = "dissensus-ensemble-1"
Tail = nn.Module | Callable[[], nn.Module]


class Ensemble(nn.Module):
    """M members, each with its own copy of `tail`, run as one: features (B, ...) -> logits (M, B, C).

    `tail` is an `nn.Module` to take as the template or a factory that makes one. Every member is initialised on
    its own from `seed` and its number, whatever M is; `init="template"` copies the template's weights instead.
    Parameters are stored with the member axis first, so `state_dict()` has the tail's names and (M, ...) shapes.

    >>> ensemble = Ensemble(tails.create("linear", 64, 10), members=5, seed=0)
    >>> ensemble(torch.zeros(8, 64)).shape
    torch.Size([5, 8, 10])
    """

    def __init__(
        self, tail: Tail, members: int = 5, seed: int = 0, *, init: Literal["random", "template"] = "random"
    ) -> None:
        super().__init__()
        if members < 1:
            raise DissensusError(f"an ensemble needs at least one member; got members={members}")
        if not 0 <= seed < 2**31:
            raise DissensusError(f"seed must be within 0..2147483647; got {seed}")
        if init not in ("random", "template"):
            raise DissensusError(f"init must be 'random' or 'template'; got {init!r}")
        self.seed = seed
        template = copy.deepcopy(tail) if isinstance(tail, nn.Module) else _initialised(tail, seed, 0)
        _refuse_running_statistics(template)
        # The stacked tensors live in a module of the tail's own structure, hence under the tail's own names.
        self.tail = copy.deepcopy(template)
        for name, value in [*template.named_parameters(), *template.named_buffers()]:
            _assign(self.tail, name, value.detach().expand(members, *value.shape).clone())
        if init == "random":
            for i in range(members):
                made = _initialised(template if isinstance(tail, nn.Module) else tail, seed, i)
                self._write_member(i, made)

    def __len__(self) -> int:
        return len(next(iter(self.stacked().values())))

    def extra_repr(self) -> str:
        """Name the number of members in the module's printed form."""
        return f"members={len(self)}, seed={self.seed}"

    def stacked(self) -> dict[str, Tensor]:
        """Name -> (M, ...) parameter."""
        return dict(self.tail.named_parameters())

    @property
    def fingerprint(self) -> str:
        """A sha256 of the members' weights."""
        digest = hashlib.sha256()
        for value in self.state_dict().values():
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @property
    def about(self) -> dict[str, Any] | None:
        """The tail's name and sizes, where it is a built-in one."""
        return tails.describe(self.tail)

    @property
    def classes(self) -> int | None:
        """How many classes the tail tells apart, where it is a built-in one."""
        about = self.about
        return None if about is None else int(about["classes"])

    def forward(self, x: Tensor, index: Tensor | Sequence[int] | None = None) -> Tensor:
        """Logits of all members, (B, ...) -> (M, B, C), or of those in `index`, in its order: (len(index), B, C)."""
        params, buffers = self.stacked(), dict(self.tail.named_buffers())
        if index is not None:
            picked = torch.as_tensor(index, device=x.device)
            params = {name: value.index_select(0, picked) for name, value in params.items()}
            buffers = {name: value.index_select(0, picked) for name, value in buffers.items()}
        return self.run(params, x, buffers=buffers)

    def run(
        self,
        params: Mapping[str, Tensor],
        x: Tensor,
        *,
        buffers: Mapping[str, Tensor] | None = None,
        own_batch: bool = False,
    ) -> Tensor:
        """Run members with the given stacked parameters: x (B, ...), or (M, B, ...) with `own_batch`.

        The pure form of `forward`, to differentiate by autograd with respect to `params` or `x`.
        """
        tail = self.tail
        if tails.in_closed_form(tail) and not torch.is_grad_enabled() and x.ndim == 2 + own_batch:
            return tail.forward_stacked(params, x, tails.Scratch())[0]

        def one(member: dict[str, Tensor], batch: Tensor) -> Tensor:
            out: Tensor = functional_call(self.tail, member, (batch,))
            return out

        # randomness="different": dropout draws a mask for every member of its own.
        run = vmap(one, in_dims=(0, 0 if own_batch else None), randomness="different")
        result: Tensor = run({**params, **(buffers or {})}, x)
        return result

    def member(self, i: int) -> nn.Module:
        """Member i as a plain module of its own."""
        if not -len(self) <= i < len(self):
            raise DissensusError(f"member must be within 0..{len(self) - 1}; got {i}")
        return self._single(lambda value: value[i])

    def soup(self, members: Sequence[int] | None = None) -> nn.Module:
        """One module whose weights are the mean of all members' (or of those given)."""
        picked = list(range(len(self)) if members is None else members)
        if not picked:
            raise DissensusError("a soup needs at least one member; got an empty list")
        return self._single(lambda value: value[picked].mean(0) if value.is_floating_point() else value[picked[0]])

    def start_from(self, tail: nn.Module) -> list[str]:
        """Give every member the weights of `tail` that fit by name and shape; says which those are."""
        own = dict(_tensors(self.tail))
        taken = {name: value for name, value in _tensors(tail) if name in own and own[name].shape[1:] == value.shape}
        with torch.no_grad():
            for name, value in taken.items():
                own[name].copy_(value)
        return list(taken)

    def _single(self, pick: Callable[[Tensor], Tensor]) -> nn.Module:
        module = copy.deepcopy(self.tail)
        for name, value in _tensors(self.tail):
            _assign(module, name, pick(value.detach()).clone())
        return module

    def _write_member(self, i: int, member: nn.Module) -> None:
        with torch.no_grad():
            for (_, stacked), (_, value) in zip(_tensors(self.tail), _tensors(member), strict=True):
                stacked[i].copy_(value)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `ensemble.safetensors` and `ensemble.json` into `folder`, each whole or not at all."""
        folder = Path(folder)
        make_folder(folder)
        with replacing(folder / "ensemble.safetensors") as path:
            state = self.tail.state_dict()
            save_file({name: value.contiguous().cpu() for name, value in state.items()}, path)
        info = {
            "format": FORMAT,
            "members": len(self),
            "seed": self.seed,
            "tail": self.about,
            "module": f"{type(self.tail).__module__}.{type(self.tail).__qualname__}",
        }
        write_json(folder / "ensemble.json", info)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tail: Tail | None = None) -> Ensemble:
        """Read what `save` wrote. A tail that is not built in must be given again: no code is ever unpickled."""
        folder = Path(folder)
        info = read_json(folder / "ensemble.json")
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise RunError(
                f"no ensemble in {folder}: ensemble.json is missing or not {FORMAT}; give a folder that save() wrote"
            )
        try:
            tensors = load_file(folder / "ensemble.safetensors")
        except (OSError, SafetensorError) as error:
            path = folder / "ensemble.safetensors"
            if path.exists() and not os.access(path, os.R_OK):  # safetensors takes it for missing
                raise RunError(f"the weights must be readable; {path} is not: change its permissions") from error
            raise RunError(f"the weights in {folder} cannot be read ({error}); train the ensemble again") from error
        if tail is None:
            if info["tail"] is None:
                raise RunError(
                    f"the tail in {folder} is a custom module ({info['module']}): pass it as load(..., tail=)"
                )
            tail = tails.build(info["tail"])
        ensemble = cls(tail, members=info["members"], seed=info["seed"], init="template")
        try:
            ensemble.tail.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise RunError(f"the weights in {folder} do not fit the tail: {reason}") from error
        return ensemble


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Put `value` in place of the parameter or buffer `name`, of whatever shape that had."""
    *path, leaf = name.split(".")
    owner = module.get_submodule(".".join(path))
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(value)
    else:
        owner._buffers[leaf] = value


def _initialised(tail: Tail, seed: int, number: int) -> nn.Module:
    """A freshly initialised tail; the draw depends on seed and member number only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + number)
        if not isinstance(tail, nn.Module):
            return tail()
        _reset(tail)
        return tail


def _reset(module: nn.Module) -> None:
    """Draw new parameters; a module's reset_parameters() answers for everything beneath it."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
        return
    if any(True for _ in module.parameters(recurse=False)):
        raise DissensusError(
            f"{type(module).__name__} has parameters but no reset_parameters(), so members cannot start apart: "
            "pass a factory (lambda: MyTail()), or init='template' to copy its weights"
        )
    for child in module.children():
        _reset(child)


def _refuse_running_statistics(tail: nn.Module) -> None:
    for name, module in tail.named_modules():
        if getattr(module, "track_running_stats", False):
            where = f" at {name!r}" if name else ""
            raise DissensusError(
                f"tails cannot hold running statistics; got {type(module).__name__}{where}: "
                "use LayerNorm or GroupNorm, or track_running_stats=False"
            )
