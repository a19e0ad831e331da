"""Convert modules to ONNX with a batch of any size, and run them on the CPU. Needs the extra onnx."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn


def convert(
    module: nn.Module, batch: Tensor | tuple[Tensor, ...], inputs: Sequence[str], outputs: Sequence[str], axis: int = 0
) -> Any:
    """Return the module as an ONNX program in which the axis of samples may have any length.

    Args:
        module: A function of one tensor or of several.
        batch: What to trace it with.
        inputs, outputs: Their names.
        axis: The axis of samples, of every input.
    """
    batches = batch if isinstance(batch, tuple) else (batch,)
    size = torch.export.Dim("batch", min=1, max=65536)
    shapes: Any = tuple({axis: size} for _ in batches)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(None), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter, which a user cannot act on
        # Traced here: torch.onnx.export silently fixes the batch size where it cannot keep it dynamic.
        traced = torch.export.export(module, batches, dynamic_shapes=shapes, strict=False)
        traced = traced.run_decompositions(STABLE)
        return torch.onnx.export(
            traced,
            (),
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )


def set_default(program: Any, name: str, value: Tensor) -> None:
    """Let callers leave out an input of a program: an initializer of its name is its default.

    Its first axis may then have the length of the default, too, where operators broadcast it.
    """
    from onnxscript import ir

    (entry,) = (entry for entry in program.model.graph.inputs if entry.name == name)
    entry.shape = ir.Shape([name, *value.shape[1:]])
    entry.const_value = ir.tensor(value.numpy(), name=name)
    program.model.graph.initializers[name] = entry


class Session(Protocol):
    """A batch, and perhaps other inputs by name -> outputs by name."""

    def __call__(self, batch: Tensor, **others: Tensor) -> dict[str, Tensor]:
        """Run the file."""


def session(path: Path, *, patient: bool = False) -> Session:
    """Open an ONNX file: the returned function maps a batch to its outputs by name.

    Args:
        path: The file.
        patient: Let idle threads sleep instead of spin, which leaves the cores to other processes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; there is a warning for an input with a default
    if patient:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    opened = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name, names = opened.get_inputs()[0].name, [output.name for output in opened.get_outputs()]

    def run(batch: Tensor, **others: Tensor) -> dict[str, Tensor]:
        outputs = opened.run(None, {key: value.numpy() for key, value in {name: batch, **others}.items()})
        return {key: torch.from_numpy(value) for key, value in zip(names, outputs, strict=True)}

    return run


def _log_sigmoid(x: Tensor) -> Tensor:
    return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))


def _logaddexp(x: Tensor, other: Tensor) -> Tensor:
    return torch.maximum(x, other) + torch.log1p(torch.exp(-(x - other).abs()))


def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    top = x.amax(dim, keepdim=True)
    result = (x - top).exp().sum(dim, keepdim=True).log() + top
    return result if keepdim else result.squeeze(tuple(dim))


# ONNX has no such operators, or runtimes compute them in a form that gives -inf or NaN for large logits.
STABLE: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.log_sigmoid.default: _log_sigmoid,
    torch.ops.aten.logaddexp.default: _logaddexp,
    torch.ops.aten.logsumexp.default: _logsumexp,
}
