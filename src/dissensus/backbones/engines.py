"""Engines: ways to run a trunk on batches of pixels.

All compute the same features up to rounding, except those in APPROXIMATE: their features differ so much that an
ensemble, and above all its distances and thresholds, must see features of the same engine in training and in use.

run = engines.create("onnx", backbone, device)
features = run(pixels)        # (B, H, W, 3) uint8 -> (B, ...) float32
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus._core.files import cache_folder, replacing
from dissensus._core.outputs import writing
from dissensus._core.registry import Registry
from dissensus.backbones import Backbone, int8, onnx_runtime

Engine = Callable[[Tensor], Tensor]
AT_ONCE = 2**18  # pixels
WAIT = 600.0  # seconds for another process that is about to write the same file
PART = 4  # images that a thread runs at a time on CPUs
GPU_PART = 64  # images that a compiled trunk runs on at a time on GPUs
TOLERANCE = 1e-3  # of the largest feature
INT8_TOLERANCE = 0.25  # of the length of a feature vector; 0.1 is usual
APPROXIMATE = frozenset({"onnx-int8"})
COMPILER: str | Callable[..., Any] = "inductor"


def create(name: str, backbone: Backbone, device: torch.device | str = "cpu") -> Engine:
    """Return an engine for this trunk: pixels (B, H, W, 3) uint8 -> features (B, ...) float32, on the CPU.

    Raises:
        DissensusError: If the engine is unknown, not installed, or does not run on the device.
    """
    return ENGINES[name](backbone, torch.device(device))


def interchangeable(one: str, other: str) -> bool:
    """Return whether features of two engines may be mixed."""
    return one == other or not {one, other} & APPROXIMATE


def eager(backbone: Backbone, device: torch.device) -> Engine:
    """Eager PyTorch, on any device; channels last in memory."""
    trunk = backbone.trunk.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(pixels: Tensor) -> Tensor:
        features: Tensor = trunk(backbone.transform.normalise(pixels))
        return features

    return _in_threads(forward) if device.type == "cpu" else _in_parts(forward, 65536, device)


def compiled(backbone: Backbone, device: torch.device) -> Engine:
    """PyTorch compiled by torch.compile; the start takes a minute or so (needs a C++ compiler on CPUs).

    Compiled once, for parts of one size; smaller ones are padded, so that one image costs as much as a part. The
    compiler would distinguish sizes even if it is told that they vary.
    """
    pixels = _probe(backbone)
    expected = eager(backbone, device)(pixels)
    module = FromPixels(backbone).eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiled_module = torch.compile(module, backend=COMPILER, dynamic=False)
    size = at_once(backbone.transform.size) if device.type == "cpu" else GPU_PART

    def forward(some: Tensor) -> Tensor:
        part = some.new_zeros(size, *some.shape[1:])
        part[: len(some)] = some
        features: Tensor = compiled_module(part)
        return features[: len(some)]

    run = _in_parts(forward, size, device)
    try:
        features = run(pixels)
    except Exception as error:  # of the compiler: anything
        reason = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
        raise DissensusError(
            f"engine compile could not compile {backbone.name} ({reason[:200]}): install a C++ compiler such as g++, "
            "or use --engine eager"
        ) from error
    _check("compile", _difference(features, expected), TOLERANCE, backbone)
    return run


def _in_parts(forward: Callable[[Tensor], Tensor], size: int, device: torch.device) -> Engine:
    """Return an engine that moves pixels to the device, `size` images at a time, and features back."""

    @torch.inference_mode()
    def run(pixels: Tensor) -> Tensor:
        parts = [forward(some.to(device, non_blocking=True)).float().cpu() for some in torch.split(pixels, size)]
        return torch.cat(parts).contiguous()

    return run


def _in_threads(forward: Callable[[Tensor], Tensor]) -> Engine:
    """Return an engine that runs a few images at a time on CPUs, in as many threads as PyTorch uses.

    A layer that several threads share rounds differently for another number of threads. Here every image is computed by
    one thread, so that features do not depend on the machine's cores, and a task of a cluster has the bytes of one
    process. Small parts also keep activations in the caches. A single image is run twice: the products of one image are
    rounded differently, and a verdict would depend on the images beside it.
    """
    pool: list[ThreadPoolExecutor] = []

    @torch.inference_mode()
    def alone(pixels: Tensor) -> Tensor:
        return forward(pixels).float()

    def run(pixels: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):  # which does not reach other threads
            return alone(pixels).contiguous()
        if len(pixels) == 1:
            return run(pixels.expand(2, *pixels.shape[1:]))[:1]
        if not pool:
            pool.append(_single_threads(torch.get_num_threads()))
        # No part of one image.
        sizes = [PART] * (len(pixels) // PART)
        rest = len(pixels) % PART
        if rest == 1 and sizes:
            sizes[-1] += 1
        elif rest:
            sizes.append(rest)
        return torch.cat(list(pool[0].map(alone, torch.split(pixels, sizes)))).contiguous()

    return run


def _single_threads(count: int) -> ThreadPoolExecutor:
    """Return a pool whose threads run PyTorch in one thread each; other threads keep `count`."""
    everyone = threading.Barrier(count + 1)
    pool = ThreadPoolExecutor(count, initializer=_use_one_thread)
    for _ in range(count):
        pool.submit(everyone.wait)
    everyone.wait()  # all of them have started
    torch.set_num_threads(count)  # of this thread, and of those to come
    return pool


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # makes it final: else the first operation takes the number that others set


def at_once(size: int) -> int:
    """Return how many images of `size` x `size` pixels at a time are fastest on CPUs."""
    return max(8, AT_ONCE // size**2)


def onnx(backbone: Backbone, device: torch.device) -> Engine:
    """ONNX Runtime, several times faster on CPUs; checked against PyTorch (needs the extra onnx).

    The export takes some seconds and is kept in the user's cache.
    """
    _check_onnx("onnx", device)
    return _exported(backbone, device)[0]


def onnx_int8(backbone: Backbone, device: torch.device) -> Engine:
    """ONNX Runtime in 8-bit integers, about twice as fast as onnx on CPUs with VNNI, features within 10% or so.

    Quantised once, with photographs of scikit-learn, and kept in the user's cache (needs the extra onnx).
    """
    _check_onnx("onnx-int8", device)
    pixels = int8.photographs(backbone.transform.size)
    expected = eager(backbone, device)(pixels[:8])

    def write(path: Path) -> None:
        int8.quantise(_exported(backbone, device)[1], path, pixels)

    def error(run: Engine) -> float:
        return float((run(pixels[:8]) - expected).flatten(1).norm(dim=1).div(expected.flatten(1).norm(dim=1)).mean())

    return _kept("onnx-int8", backbone, write, error, INT8_TOLERANCE)[0]


def _check_onnx(engine: str, device: torch.device) -> None:
    extras.require("onnx", f"engine {engine}")
    if device.type != "cpu":
        raise DissensusError(f"engine {engine} runs on CPUs; got {device}: use --engine eager there")


def _exported(backbone: Backbone, device: torch.device) -> tuple[Engine, Path]:
    """The trunk in ONNX Runtime, and its file."""
    pixels = _probe(backbone)
    expected = eager(backbone, device)(pixels)
    return _kept(
        "onnx",
        backbone,
        lambda path: _export(FromPixels(backbone).eval(), pixels, path),
        lambda run: _difference(run(pixels), expected),
        TOLERANCE,
    )


def _kept(
    engine: str,
    backbone: Backbone,
    write: Callable[[Path], None],
    error: Callable[[Engine], float],
    tolerance: float,
) -> tuple[Engine, Path]:
    """Open the file of an engine in the user's cache; write it if it is missing, damaged or of something else."""
    name = f"{backbone.name}-{backbone.fingerprint[:16]}-torch{torch.__version__}"
    path = cache_folder() / "onnx" / f"{name}{engine.removeprefix('onnx')}.onnx"
    if (kept := _usable(path, error, tolerance)) is not None:
        return kept, path
    with writing(path, wait=WAIT):
        if (kept := _usable(path, error, tolerance)) is not None:  # another process has written it
            return kept, path
        with replacing(path) as temporary:
            write(temporary)
    run = _session(path)
    _check(engine, error(run), tolerance, backbone)
    return run, path


def _usable(path: Path, error: Callable[[Engine], float], tolerance: float) -> Engine | None:
    """Open a file of the cache; None if it is missing, damaged or of something else."""
    with contextlib.suppress(Exception):  # such a file can raise anything; it is written again
        run = _session(path)
        if error(run) <= tolerance:
            return run
    return None


def _check(engine: str, error: float, tolerance: float, backbone: Backbone) -> None:
    if not error <= tolerance:
        raise DissensusError(
            f"engine {engine} differs from PyTorch by {error:.1g} for {backbone.name}: use --engine eager"
        )


def _probe(backbone: Backbone) -> Tensor:
    """Two images of noise."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, backbone.transform.size, backbone.transform.size, 3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def _export(module: nn.Module, pixels: Tensor, path: Path) -> None:
    onnx_runtime.convert(module, pixels, ["pixels"], ["features"]).save(path, external_data=False)


def _session(path: Path) -> Engine:
    run = onnx_runtime.session(path, patient=True)  # workers decode the next images meanwhile
    return lambda pixels: run(pixels)["features"]


def _difference(features: Tensor, expected: Tensor) -> float:
    return float((features - expected).abs().max() / expected.abs().max().clamp(min=1))


class FromPixels(nn.Module):
    """Normalisation and trunk as one module."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.trunk = backbone.trunk
        self.register_buffer("mean", torch.tensor(backbone.transform.mean) * 255)
        self.register_buffer("std", torch.tensor(backbone.transform.std) * 255)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 -> (B, ...)."""
        x = (pixels.float() - self.mean) / self.std
        features: Tensor = self.trunk(x.permute(0, 3, 1, 2))
        return features


ENGINES: Registry[Callable[[Backbone, torch.device], Engine]] = Registry(
    "engine", {"eager": eager, "onnx": onnx, "onnx-int8": onnx_int8, "compile": compiled}
)
