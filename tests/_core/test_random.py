"""Seeds for PyTorch."""

from __future__ import annotations

import traceback

import torch

from dissensus._core.random import seed_torch


def test_seeding_draws_as_manual_seed_does_and_formats_no_stack_trace(monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(3)
        monkeypatch.setattr(traceback, "format_stack", None)
        for device in (None, torch.device("cpu")):
            seed_torch(7, device)
            assert torch.equal(torch.rand(3), expected)
