"""A device written in Python: its tensors hold one on the CPU, and raise on float64 as those of Apple's mps do.

Run by `test_devices`: predictions, scores and metrics of an ensemble on this device are those of the CPU.
"""

import copy

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from dissensus.evaluation.predictions import predict
from dissensus.evaluation.soups import accuracy
from dissensus.functional import checks
from dissensus.functional.scores import SCORES, of_features
from dissensus.training.scoring import fit_scores
from tests.conftest import blobs, linear

_setup_privateuseone_for_python_backend("apple")


class OnDevice(torch.Tensor):
    """A tensor of the device, and the tensor on the CPU that has its values."""

    @staticmethod
    def __new__(cls, values):
        about = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, **about, device="apple")

    def __init__(self, values):
        self.values_on_cpu = values

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return compute(function, *args, **(kwargs or {}))


def on_cpu(value):
    return value.values_on_cpu if isinstance(value, OnDevice) else value


def on_device(value):
    if not isinstance(value, torch.Tensor) or isinstance(value, OnDevice):
        return value
    if value.dtype == torch.float64:
        raise TypeError("this device has no float64")
    return OnDevice(value)


def compute(function, *args, **kwargs):
    """Compute on the CPU; the result is on the device, unless the CPU was asked for."""
    asked = kwargs.get("device")
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = function(*tree_map(on_cpu, args), **tree_map(on_cpu, kwargs))
    return result if asked is not None and torch.device(asked).type == "cpu" else tree_map(on_device, result)


library = torch.library.Library("_", "IMPL")
library.fallback(lambda function, *args, **kwargs: compute(function, *args, **kwargs), "PrivateUse1")
checks.WITHOUT_FLOAT64.add("apple")
try:
    torch.ones(2, device="apple").double()
except TypeError:
    pass
else:
    raise AssertionError("the device must raise on float64")

torch.__future__.set_overwrite_module_params_on_conversion(True)  # a Parameter holds no tensor of the device
train = blobs()
ensemble = linear(norm="l2").requires_grad_(False)
fit_scores(ensemble, train)
names = [name for name in SCORES if name not in of_features() or name in ensemble.fitted]
assert len(names) > 10
outcomes = []
for device in ("cpu", "apple"):
    there = copy.deepcopy(ensemble).to(device)
    there.fitted = copy.deepcopy(ensemble.fitted)
    found = predict(there, train, names)
    outcomes.append({**found.scores, "confidence": found.confidence})
    outcomes[-1]["of a member"] = torch.tensor(accuracy(there.member(0), train))
    for name, metrics in found.metrics.items():
        outcomes[-1] |= {f"{name}/{metric}": torch.tensor(value) for metric, value in metrics.items()}
assert outcomes[0].keys() == outcomes[1].keys()
for name, value in outcomes[0].items():
    assert torch.allclose(outcomes[1][name].double(), value.double(), rtol=1e-3, atol=1e-3, equal_nan=True), name
print("the same")
