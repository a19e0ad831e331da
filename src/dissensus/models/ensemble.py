"""Ensemble: M copies of one tail, stacked so that all of them run at once."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dissensus._core.errors import DissensusError, ShapeError
from dissensus._core.places import place
from dissensus._core.random import seed_torch
from dissensus.functional.fitted import FittedScore
from dissensus.models import fitted, mixing, saved, stacked, tails

Tail = nn.Module | Callable[[], nn.Module]


class Ensemble(nn.Module):
    """M members, each with its own copy of `tail`, run as one: features (B, ...) -> logits (M, B, C).

    Parameters are stored with the member axis first, so `state_dict()` has the tail's names and (M, ...) shapes.

    Args:
        tail: An `nn.Module` as the template, or a function that builds one.
        members: Number of members, M.
        seed: Decides the members' initial weights; those of member i depend on `seed` and i only, not on M.
        init: "random" initialises each member independently; "template" copies the template's weights.

    Attributes:
        fitted: Scores that were fitted to the training features, by name; set by `fit`, saved with the ensemble.
            They are not parameters: neither `state_dict` nor `fingerprint` holds them.

    >>> ensemble = Ensemble(tails.create("linear", 64, 10), members=5, seed=0)
    >>> ensemble(torch.zeros(8, 64)).shape
    torch.Size([5, 8, 10])
    >>> ensemble
    Ensemble(5 members, linear tail, 64 features -> 10 classes, 3,250 parameters)
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
        self.method: str | None = None  # set by `fit`
        self.fitted: MutableMapping[str, FittedScore] = {}
        template = copy.deepcopy(tail) if isinstance(tail, nn.Module) else _initialised(tail, seed, 0)
        _check_running_statistics(template)
        # The stacked tensors live in a module of the tail's own structure, hence under the tail's own names.
        self.tail = copy.deepcopy(template)
        for name, value in _tensors(template):
            _assign(self.tail, name, value.detach().expand(members, *value.shape).clone())
        if init == "random":
            for i in range(members):
                self._write_member(i, _initialised(template if isinstance(tail, nn.Module) else tail, seed, i))

    def __len__(self) -> int:
        return len(next(iter(self.stacked().values())))

    def __repr__(self) -> str:
        about = self.about
        kind = f"{type(self.tail).__name__} tail"
        if about is not None:
            kind = f"{about['name']} tail, {about['features']} features -> {about['classes']} classes"
        parameters = sum(value.numel() for value in self.parameters())
        method = "" if self.method is None else f", trained by {self.method}"
        return f"Ensemble({len(self)} members, {kind}, {parameters:,} parameters{method})"

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
    def score_digests(self) -> dict[str, str]:
        """A sha256 of the state of each fitted score, by name."""
        return fitted.digests(self.fitted)

    @property
    def about(self) -> dict[str, Any] | None:
        """The tail's name and arguments, see `tails.describe`; None if it is not registered."""
        return tails.describe(self.tail)

    @property
    def classes(self) -> int | None:
        """Number of classes; None if the tail is not registered."""
        about = self.about
        return None if about is None else int(about["classes"])

    def check_features(
        self, shape: Sequence[int], source: str, remedy: str = "use the backbone that computed its training features"
    ) -> None:
        """Raise `ShapeError` if members do not take rows of features of that shape; `source` says whose they are."""
        about = self.about
        if about is not None and not tails.fits(about, shape):
            raise ShapeError(
                f"the ensemble takes features of width {about['features']}; {source} has rows of shape {tuple(shape)}: "
                f"{remedy}"
            )

    def forward(self, x: Tensor, index: Tensor | Sequence[int] | None = None) -> Tensor:
        """Logits of all members, (B, ...) -> (M, B, C), or of those in `index`, in its order: (len(index), B, C)."""
        tensors = dict(_tensors(self.tail))
        if index is not None:
            picked = torch.as_tensor(index, device=x.device)
            tensors = {name: value.index_select(0, picked) for name, value in tensors.items()}
        return self.run(tensors, x)

    def run(self, params: Mapping[str, Tensor], x: Tensor, *, own_batch: bool = False) -> Tensor:
        """Run members with the given parameters, the pure form of `forward`: differentiable in `params` and `x`.

        Args:
            params: Name -> (M, ...), parameters and, if the tail has any, buffers.
            x: Features (B, ...), or (M, B, ...) with `own_batch`.
            own_batch: Whether each member has its own batch.
        """
        tail = self.tail
        if stacked.in_closed_form(tail) and not torch.is_grad_enabled() and x.ndim == 2 + own_batch:
            return tail.forward_stacked(params, x, stacked.Scratch())[0]

        def one(member: dict[str, Tensor], batch: Tensor) -> Tensor:
            out: Tensor = functional_call(tail, member, (batch,))
            return out

        # randomness="different": dropout draws a separate mask for each member.
        run = vmap(one, in_dims=(0, 0 if own_batch else None), randomness="different")
        result: Tensor = run(dict(params), x)
        return result

    def member(self, i: int) -> nn.Module:
        """Member i as a plain module, separate from the ensemble."""
        if not -len(self) <= i < len(self):
            raise DissensusError(f"member must be within 0..{len(self) - 1}; got {i}")
        return self._single(lambda name, value: value[i])

    def soup(
        self,
        members: Sequence[int] | None = None,
        *,
        weights: Tensor | Sequence[float] | None = None,
        pretrained: nn.Module | None = None,
    ) -> nn.Module:
        """A module whose weights are a mean of the members'.

        Args:
            members: The members to average; None: all.
            weights: Instead of `members`, the share of each member, (M,), at least 0 and with sum 1;
                `dissensus.evaluation.soup_weights` learns them. With `pretrained`, (M + 1,).
            pretrained: A tail like the members' that takes part; its share is the last of `weights`.

        Raises:
            DissensusError: If there is no member to average, or the weights are no shares of the members.
            ShapeError: If `pretrained` is not a tail like the members'.

        >>> ensemble = Ensemble(tails.create("linear", 64, 10), members=2)
        >>> soup = ensemble.soup(weights=[0.75, 0.25])
        >>> soup(torch.zeros(8, 64)).shape
        torch.Size([8, 10])
        """
        if weights is not None:
            if members is not None:
                raise DissensusError("a soup takes members or weights; got both: give members a weight of 0 instead")
            shares = torch.as_tensor(weights, dtype=torch.float64)
            mixing.check(shares, len(self) + (pretrained is not None))
            mixed = self.mix(shares, pretrained)
            return self._single(lambda name, value: mixed[name])
        if pretrained is not None:
            raise DissensusError("a soup with a pretrained tail needs weights, the tail's share last; got none")
        picked = list(range(len(self)) if members is None else members)
        if not picked:
            raise DissensusError("a soup needs at least one member; got an empty list")
        return self._single(
            lambda name, value: value[picked].mean(0) if value.is_floating_point() else value[picked[0]]
        )

    def mix(self, weights: Tensor, pretrained: nn.Module | None = None) -> dict[str, Tensor]:
        """The tensors of a soup, name -> (...), differentiable in `weights`; see `soup` and `mixing.mean`."""
        if pretrained is not None and not self.matches(pretrained):
            raise ShapeError(
                "a pretrained tail must have the members' layers, norm and classes; got "
                f"{tails.describe(pretrained) or type(pretrained).__name__}: leave it out"
            )
        return mixing.mean(
            dict(_tensors(self.tail)), weights, None if pretrained is None else dict(_tensors(pretrained))
        )

    def matches(self, tail: nn.Module) -> bool:
        """Whether the weights of `tail` can be mixed with the members': the same layers, norm, sizes and classes."""
        about, other = self.about, tails.describe(tail)
        known = about is not None and other is not None
        same = tails.alike(about, other) if known else type(tail) is type(self.tail)  # type: ignore[arg-type]
        shapes = {name: value.shape[1:] for name, value in _tensors(self.tail)}
        return same and shapes == {name: value.shape for name, value in _tensors(tail)}

    def start_from(self, tail: nn.Module) -> list[str]:
        """Copy into every member the weights of `tail` that match by name and shape; return their names."""
        stacked = dict(_tensors(self.tail))
        matching = {
            name: value for name, value in _tensors(tail) if name in stacked and stacked[name].shape[1:] == value.shape
        }
        with torch.no_grad():
            for name, value in matching.items():
                stacked[name].copy_(value)
        return list(matching)

    def _single(self, pick: Callable[[str, Tensor], Tensor]) -> nn.Module:
        module = copy.deepcopy(self.tail)
        for name, value in _tensors(self.tail):
            _assign(module, name, pick(name, value.detach()).clone())
        return module

    def _write_member(self, i: int, member: nn.Module) -> None:
        with torch.no_grad():
            for (_, stacked), (_, value) in zip(_tensors(self.tail), _tensors(member), strict=True):
                stacked[i].copy_(value)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `ensemble.safetensors`, `ensemble.json` and, if there are fitted scores, `scores.safetensors`.

        Each is written atomically; the folder is created.

        Raises:
            RunError: If they cannot be written.
        """
        about = self.about
        saved.write(
            place(folder),
            self.tail.state_dict(),
            self.fitted,
            members=len(self),
            seed=self.seed,
            method=self.method,
            tail=None if about is None else saved.MemberTailInfo(**about),
            module=f"{type(self.tail).__module__}.{type(self.tail).__qualname__}",
        )

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tail: Tail | None = None) -> Ensemble:
        """Read what `save` wrote; fitted scores are read on first use.

        Args:
            folder: The folder that `save` wrote to.
            tail: The tail, if it is not registered in `TAILS`: no code is ever unpickled.

        Raises:
            RunError: If a file is missing, damaged, or does not fit the other or `tail`; or if a fitted score is not
                registered.
        """
        folder = place(folder)
        if (folder / "joined.json").is_file():
            from dissensus.models.joined import JoinedEnsemble  # here: it is made of ensembles

            return JoinedEnsemble.load(folder, tail)
        info, weights = saved.read(folder)
        tail = tail or saved.build_tail(folder, info, weights)
        ensemble = cls(tail, members=info.members, seed=info.seed, init="template")
        ensemble.method = info.method
        saved.check_shapes(
            folder, weights, {name: tuple(value.shape) for name, value in ensemble.tail.state_dict().items()}
        )
        ensemble.tail.load_state_dict(weights)
        ensemble.fitted = fitted.SavedScores(folder, info.scores)
        return ensemble


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace the parameter or buffer `name`, whatever its shape."""
    *path, leaf = name.split(".")
    owner = module.get_submodule(".".join(path))
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(value)
    else:
        owner._buffers[leaf] = value


def _initialised(tail: Tail, seed: int, number: int) -> nn.Module:
    """A newly initialised tail; its weights depend on seed and member number only."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed * 1_000_003 + number)
        if not isinstance(tail, nn.Module):
            return tail()
        _reset(tail)
        return tail


def _reset(module: nn.Module) -> None:
    """Draw new parameters; a module's reset_parameters() is responsible for its submodules too."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
        return
    if any(True for _ in module.parameters(recurse=False)):
        raise DissensusError(
            f"{type(module).__name__} has parameters but no reset_parameters(), so members would all start alike: "
            "pass a factory (lambda: MyTail()), or init='template' to copy its weights"
        )
    for child in module.children():
        _reset(child)


def _check_running_statistics(tail: nn.Module) -> None:
    for name, module in tail.named_modules():
        if getattr(module, "track_running_stats", False):
            where = f" at {name!r}" if name else ""
            raise DissensusError(
                f"tails cannot hold running statistics; got {type(module).__name__}{where}: "
                "use LayerNorm or GroupNorm, or track_running_stats=False"
            )
