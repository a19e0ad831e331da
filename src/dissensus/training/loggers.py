"""Loggers: what training, evaluation and report say of a run, also in TensorBoard, Weights & Biases or MLflow.

    fit(ensemble, features, out="runs/mine", logger="wandb")
    loggers.add(Path("runs/mine"), {"id/accuracy": 0.91}, [Path("report.html")])       # to the same record

They are Lightning's, which Fabric uses. RUN/logger.json names the record, so that a resumed training continues it.
Training never fails because of a logger: if it is not installed, not logged in or not reached, there is a warning.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from dissensus._core import documents, extras
from dissensus._core.documents import Document
from dissensus._core.errors import DissensusError, DissensusWarning
from dissensus._core.network import reachable, shown, without_credentials
from dissensus._core.places import is_remote

DOCUMENT = "logger.json"
PROJECT = "dissensus"  # or WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME
SECONDS = 60  # that wandb may need to begin, and to send the rest in the end
# Unless the user has set them. MLflow by default retries every request for minutes, while training waits.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}

Kind = Literal["tensorboard", "wandb", "mlflow"]


class LoggerDocument(Document):
    """logger.json: where a run is logged."""

    remedy: ClassVar[str] = "remove it, and the run is logged as a new one"

    format: Literal["dissensus-logger-1"] = "dissensus-logger-1"
    kind: Kind
    id: str  # of the record; "" where the folder is enough


class Log:
    """An open logger. Its first problem is a warning and closes it; what follows is ignored."""

    def __init__(self, kind: Kind, logger: Any) -> None:
        self.kind, self._logger = kind, logger

    def settings(self, values: Mapping[str, Any]) -> None:
        """Log the settings of the run."""
        self._do(lambda logger: logger.log_hyperparams(dict(values)))

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers by name."""
        plain = {re.sub(r"[^\w/. -]", "", name): value for name, value in values.items()}
        self._do(lambda logger: logger.log_metrics(plain, step=step))

    def file(self, path: Path) -> None:
        """Keep a file with the record; TensorBoard has no place for files."""
        if self.kind == "wandb":
            self._do(lambda logger: logger.experiment.log_artifact(str(path), name=path.stem, type=path.stem))
        elif self.kind == "mlflow":
            self._do(lambda logger: logger.experiment.log_artifact(logger.run_id, str(path)))

    def close(self, *, finished: bool = True) -> None:
        """Send what waits, and end the record; the training that is resumed continues it."""
        if self.kind == "wandb":
            self._do(lambda logger: logger.experiment.finish(exit_code=0 if finished else 1))
        else:
            self._do(lambda logger: logger.finalize("success" if finished else "KILLED"))
        self._logger = None

    def _do(self, action: Callable[[Any], object]) -> None:
        if self._logger is None:
            return
        try:
            with _quiet():
                action(self._logger)
        except Exception as error:  # those of the libraries have no class in common
            self._logger = None
            _warn(self.kind, error)


def start(kind: Kind, folder: Path, settings: Mapping[str, Any], step: int) -> Log | None:
    """Open the logger of a training run, or continue its record after `step` steps; None, with a warning, if it fails.

    Args:
        kind: Which logger.
        folder: The run folder.
        settings: The settings of the run.
        step: The steps that are done.
    """
    before = _read(folder)
    record = before.id if before is not None and before.kind == kind else ""
    log, record = _open(kind, folder, record, step)
    if log is None:
        return None
    documents.write(folder / DOCUMENT, LoggerDocument(kind=kind, id=record))
    if step == 0:
        log.settings(settings)
    return log


def add(folder: Path, values: Mapping[str, float], files: Sequence[Path] = ()) -> None:
    """Add results or files to the record of a run; do nothing for a run without a logger."""
    before = _read(folder)
    if before is None:
        return
    log, _ = _open(before.kind, folder, before.id, None)
    if log is not None:
        if values:
            log.metrics(values)
        for file in files:
            log.file(file)
        log.close()


def _read(folder: Path) -> LoggerDocument | None:
    return documents.read(LoggerDocument, folder / DOCUMENT) if (folder / DOCUMENT).is_file() else None


def _open(kind: Kind, folder: Path, record: str, step: int | None) -> tuple[Log | None, str]:
    """Open a logger, and return it with the name of its record."""
    try:
        extras.require(kind, f"--logger {kind}")
        with _quiet():
            logger, record = _OPEN[kind](folder, record, step)
    except Exception as error:  # as above
        _warn(kind, error)
        return None, ""
    return Log(kind, logger), record


def _tensorboard(folder: Path, record: str, step: int | None) -> tuple[Any, str]:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    purge: dict[str, Any] = {} if step is None else {"purge_step": step}
    return TensorBoardLogger(folder, name="tensorboard", version="", **purge), ""


def _wandb(folder: Path, record: str, step: int | None) -> tuple[Any, str]:
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
    online = os.environ.get("WANDB_MODE", "online") in ("online", "run")
    if online and wandb.run is None and not wandb.login(prompt=False, verify=False):  # `init` would ask
        raise DissensusError("not logged in: run `wandb login`, or set WANDB_MODE=offline")
    if online:
        _check_reachable(str(settings.base_url), "set WANDB_MODE=offline, and `wandb sync` later")
    logger = WandbLogger(
        name=folder.name,
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        save_dir="." if is_remote(folder) else str(folder),
        id=record or None,
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=SECONDS, finish_timeout=SECONDS, finish_timeout_raises=True
        ),
    )
    return logger, str(logger.experiment.id)


def _mlflow(folder: Path, record: str, step: int | None) -> tuple[Any, str]:
    import mlflow
    from pytorch_lightning.loggers import MLFlowLogger

    for name in ("mlflow", "pytorch_lightning.loggers.mlflow"):  # that a new database or experiment is made
        logging.getLogger(name).setLevel(logging.ERROR)
    if (address := mlflow.get_tracking_uri()).startswith(("http://", "https://")):
        _check_reachable(address, "start the server, or set MLFLOW_TRACKING_URI")
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
    logger = MLFlowLogger(
        experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
        run_name=folder.name,
        tracking_uri=address,
        run_id=record or None,
    )
    return logger, str(logger.run_id)


_OPEN: dict[Kind, Callable[[Path, str, int | None], tuple[Any, str]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _check_reachable(address: str, remedy: str) -> None:
    if not reachable(address):
        raise DissensusError(f"{shown(address)} cannot be reached: {remedy}")


def _quiet() -> warnings.catch_warnings[None]:
    """Silence the warnings of the libraries, which a user cannot act on."""
    return warnings.catch_warnings(action="ignore")


def _warn(kind: Kind, error: Exception) -> None:
    reason = " ".join(without_credentials(str(error)).split())[:200] or type(error).__name__
    warnings.warn(
        f"nothing more is logged to {kind} ({reason}); metrics.jsonl still is", DissensusWarning, stacklevel=4
    )
