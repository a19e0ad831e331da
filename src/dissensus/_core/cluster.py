"""Run tasks on a Ray cluster: Ray handles placement, retries and autoscaling.

for number, result in on_ray(work, job, range(100)):      # work(job, number) -> result
    ...
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from dissensus._core import extras, network
from dissensus._core.errors import DissensusError

T = TypeVar("T")

PLACES = ("local", "ray")
AHEAD = 4  # tasks submitted per CPU, so that Ray sees the demand


def check(on: str) -> None:
    """Raise unless `on` is one of `PLACES` and its package is installed."""
    if on not in PLACES:
        raise DissensusError(f"work runs on one of {', '.join(PLACES)}; got on={on!r}: choose one")
    if on == "ray":
        extras.require("ray", "--on ray")


def on_ray(
    work: Callable[[Any, Any], T],
    job: Any,
    items: Sequence[Any],
    *,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 5,
) -> Generator[tuple[Any, T], None, None]:
    """Yield (item, work(job, item)) for all items as they are done, in any order.

    The cluster is the one that is running, by RAY_ADDRESS or on this machine; if there is none, one is started here for
    as long as the work takes. `job` is sent once. A task whose node dies is run again on another.

    Raises:
        DissensusError: If the cluster cannot be reached, or a task raises one; Ray raises other errors of a task.
    """
    ray = _connected()
    running: dict[Any, Any] = {}
    try:
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_guarded)
        shared, waiting = ray.put((work, job, os.getcwd())), list(items)[::-1]
        while waiting or running:
            most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting and len(running) < most:
                item = waiting.pop()
                running[remote.remote(shared, item)] = item
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                item = running.pop(reference)
                problem, result = _result(ray, reference, item)
                if problem is not None:
                    raise problem
                yield item, result
    finally:
        for reference in running:
            with contextlib.suppress(Exception):  # the cluster may be gone; the error that ended the work is kept
                ray.cancel(reference, force=True)
        if _STARTED:
            _STARTED.clear()
            ray.shutdown()


_STARTED: list[bool] = []  # whether this process started the connection


def _connected() -> Any:
    """Return Ray, connected to a cluster."""
    check("ray")
    import ray

    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    try:
        _check_reachable(address or "")
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DissensusError(
            f"--on ray needs a cluster that can be reached; {address or 'a new one on this machine'} cannot "
            f"({reason}): check RAY_ADDRESS, or start one with: ray start --head"
        ) from error
    _STARTED.append(True)
    return ray


def _check_reachable(address: str) -> None:
    """Raise `OSError` if nothing answers at HOST:PORT: Ray would end this process after a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        network.connect(host, int(port))


def _guarded(shared: tuple[Callable[[Any, Any], T], Any, str], item: Any) -> tuple[DissensusError | None, T | None]:
    """Return a `DissensusError` as a value: Ray would wrap an exception, and print a traceback."""
    work, job, folder = shared
    if os.path.isdir(folder):
        os.chdir(folder)  # so that relative paths mean what they mean to the user
    try:
        return None, work(job, item)
    except DissensusError as error:
        return DissensusError(str(error)), None


def _result(ray: Any, reference: Any, item: Any) -> tuple[DissensusError | None, Any]:
    try:
        return ray.get(reference)  # type: ignore[no-any-return]
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:160]
        return DissensusError(
            f"every task must be finished; number {item} was lost too often ({reason}): run "
            "the same command again, finished shards are kept"
        ), None
