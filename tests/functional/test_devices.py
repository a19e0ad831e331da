"""Devices without float64, such as Apple's mps: the same predictions and scores as on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dissensus.functional import checks

SCRIPT = Path(__file__).with_name("without_float64.py")


def test_float64_stays_where_it_is_known(monkeypatch):
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", {"cpu"})
    device, values = torch.device("cpu"), torch.tensor([1.5])
    assert checks.moved(values.double(), device).dtype == checks.widest(device) == torch.float32
    assert checks.moved(values.half(), device).dtype == torch.float16
    monkeypatch.undo()
    assert checks.moved(values.double(), device).dtype == checks.widest(device) == torch.float64
    assert checks.widest(torch.device("mps")) == torch.float32


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="needs a PyTorch with devices written in Python",
)
def test_a_device_without_float64_evaluates_like_the_cpu():
    """In a process of its own: a device is registered for good."""
    root = SCRIPT.parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr[-3000:]
