"""A model for the Triton Inference Server: the ONNX file in the layout of its repository, and config.pbtxt.

    models/pets/config.pbtxt        inputs, outputs, dynamic batching; parameters: classes, preprocessing, promise, ...
    models/pets/1/model.onnx

Triton joins requests along the first axis of every input and output, so that here the batch is first in all of them.
Its ONNX Runtime backend refuses optional inputs where it batches: the false-alarm rate must be sent with every sample.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dissensus._core import extras
from dissensus._core.files import check_folder, make_folder
from dissensus._core.outputs import assembling
from dissensus.export import onnx as onnx_file
from dissensus.export.targets import Written, register
from dissensus.training.run import Run

LARGEST = 64  # samples that Triton joins into one batch
DELAY = 1000  # microseconds that a request waits for others
TYPES = {"UINT8": "UINT8", "INT64": "INT64", "FLOAT": "FP32", "DOUBLE": "FP64", "BOOL": "BOOL"}  # ONNX -> Triton


@register("triton")
def to_triton(run: Run, out: Path, *, input: str | None = None) -> Written:
    """A model for the Triton Inference Server: config.pbtxt and 1/model.onnx, with dynamic batching."""
    extras.require("onnx", "an export to Triton")
    check_folder(out)
    detector, images = onnx_file.load(run, input)
    with assembling(out) as folder:
        make_folder(folder / "1")
        onnx_file.save(detector, folder / "1" / "model.onnx", images=images, batch_first=True)
        (folder / "config.pbtxt").write_text(config(folder / "1" / "model.onnx"), encoding="ascii")
    return Written(
        out,
        f"a model for Triton, checked against PyTorch; Triton calls it {out.name}",
        f"tritonserver --model-repository={shlex.quote(str(out.parent))}",
        uncalibrated=detector.threshold is None,
    )


def config(path: Path) -> str:
    """Return the config.pbtxt of an ONNX file whose inputs and outputs have the batch first."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    blocks = ['platform: "onnxruntime_onnx"', f"max_batch_size: {LARGEST}"]
    for kind, entries in (("input", model.graph.input), ("output", model.graph.output)):
        blocks += [_block(kind, _tensor(entry)) for entry in entries]
    blocks.append(_block("dynamic_batching", {"max_queue_delay_microseconds": str(DELAY)}))
    for entry in model.metadata_props:
        blocks.append(
            _block("parameters", {"key": _text(entry.key), "value": f"{{ string_value: {_text(entry.value)} }}"})
        )
    return "\n".join(blocks) + "\n"


def _tensor(entry: Any) -> dict[str, str]:
    """Name, type and shape of an input or output, without the batch."""
    import onnx

    about = entry.type.tensor_type
    dims = [str(axis.dim_value) for axis in about.shape.dim[1:]]
    data_type = TYPES[onnx.TensorProto.DataType.Name(about.elem_type)]
    return {"name": _text(entry.name), "data_type": f"TYPE_{data_type}", "dims": f"[ {', '.join(dims)} ]"}


def _block(name: str, fields: Mapping[str, str]) -> str:
    return "\n".join([f"{name} {{", *(f"  {key}: {value}" for key, value in fields.items()), "}"])


def _text(value: str) -> str:
    """A string of protobuf's text format: bytes of UTF-8, octal where they are not plain ASCII."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in value.encode())
    return f'"{"".join(plain)}"'
