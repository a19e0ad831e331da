"""Benchmarks: speed as ratios measured within one run, and the peak memory of one training epoch.

    python -m benchmarks                      # all cases, as a table
    python -m benchmarks --cases floor loop   # some of them
    python -m benchmarks --json               # for a program to read

See docs/benchmarks.md for what is compared and for results. This module imports nothing heavy, so that `--help` and
misspelled case names are answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dissensus._core.registry import Registry

__all__ = ["CASES", "Case", "select"]


class Case(NamedTuple):
    """A benchmark case.

    Attributes:
        function: where its function is, as "module:name" within this package; called with (sizes, repeats).
        summary: what it measures, for `--help`.
    """

    function: str
    summary: str


CASES: Registry[Case] = Registry(
    "case",
    {
        "floor": Case("steps:floor", "a training step / its two matrix products"),
        "scaling": Case("steps:scaling", "a step of 50 members / of 5 members, 2 active in both"),
        "pairs": Case("steps:pairs", "a step of 50 members with / without the disagreement term"),
        "loop": Case("peers:loop", "a Python loop over the active members / our step"),
        "many": Case("many:many", "a loop over all 50 members, and all pairs by autograd / our step"),
        "peers": Case("peers:libraries", "torch-uncertainty and TorchEnsemble / the same with ours"),
        "job": Case("jobs:job", "features to evaluated ensemble with other libraries / ours"),
        "memory": Case("memory:one_epoch", "peak memory of an epoch on ImageNet-sized features (5 minutes)"),
        "huge": Case("huge:huge", "memory and time to open 1e8 rows and to train on a sample of them"),
        "shuffle": Case("disk:shuffle", "batches from a cold disk, in a full permutation / in blocks"),
        "extract": Case("images:extraction", "the trunk alone / extraction from JPEG files"),
        "engine": Case("images:engine", "the trunk in eager PyTorch / in ONNX Runtime"),
        "int8": Case("images:int8", "the trunk in ONNX Runtime / the same in 8-bit integers"),
        "compile": Case("images:compiled", "the trunk in eager PyTorch / compiled"),
        "predict": Case("images:prediction", "images to logits of 50 members / the trunk alone"),
        "distances": Case("images:distances", "trunk, members and the default score / the same with pds"),
        "serve": Case("serving:serve", "the server with 32 clients, one image per pass / up to 32"),
        "export": Case("images:export", "a detector in eager PyTorch / its ONNX export"),
    },
)


def select(names: Sequence[str] | None) -> list[str]:
    """Return the names of the cases to run, without repeats.

    Args:
        names: names of cases; None for all of them.

    Raises:
        UnknownNameError: for a name that is not in CASES.
    """
    if names is None:
        return list(CASES)
    CASES.check(*names)
    return list(dict.fromkeys(names))
