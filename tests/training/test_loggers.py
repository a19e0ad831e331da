"""Loggers without a network: what training, evaluation and report log, and that no training fails for its logger."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

import numpy as np
import pytest

from dissensus._core import extras
from dissensus._core.errors import DissensusError, DissensusWarning, RunError
from dissensus.cli import main
from dissensus.evaluation import saved
from dissensus.evaluation.suite import SuiteSet
from dissensus.report import gather, write_page
from dissensus.training import loggers
from dissensus.training._fit import fit
from dissensus.training.run import Run
from tests.conftest import blobs, linear
from tests.forks import until

STEPS = 4  # of an epoch
TRAIN = {"epochs": 2, "batch_size": 30, "log_every": 2, "lr": 0.05, "progress": False}


def needs(extra):
    return pytest.mark.skipif(bool(extras.missing(extra)), reason=f"needs the extra {extra}")


def train(folder, logger, **options):
    return fit(linear(), blobs(), "sed-a2d", **{**TRAIN, **options}, out=folder, logger=logger)


def evaluate_and_report(folder):
    run, page = Run.open(folder), folder.parent / "page.html"
    sets = [SuiteSet("id", "id", blobs(60, seed=1)), SuiteSet("far", "ood", blobs(60, seed=2).unlabelled())]
    saved.evaluate_run(run, train(folder, None), sets, suite="blobs", progress=False)
    write_page(gather([folder]), page)
    return page


class StopError(Exception):
    pass


def interrupted(folder, logger, monkeypatch, after=5):
    """Train, and be killed after some steps, of which the checkpoint has all."""
    from dissensus.training import step

    count, call = [0], step.Stepper.__call__

    def stepping(*arguments):
        count[0] += 1
        if count[0] > after:
            raise StopError
        return call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(step.Stepper, "__call__", stepping)
        with pytest.raises(StopError):
            train(folder, logger, checkpoint_seconds=0)


@needs("tensorboard")
def test_tensorboard_has_every_line_once_after_a_kill(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    interrupted(tmp_path / "run", "tensorboard", monkeypatch)
    train(tmp_path / "run", "tensorboard")
    evaluate_and_report(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    lines = [line for line in Run.open(tmp_path / "run").metrics() if line["kind"] == "step"]
    loss = {event.step: event.value for event in events.Scalars("step/loss")}
    assert loss == {line["step"]: pytest.approx(line["loss"]) for line in lines}
    assert [event.step for event in events.Scalars("epoch/accuracy")] == [STEPS, 2 * STEPS]
    assert events.Scalars("id/accuracy")[0].value > 0.5
    assert b"sed-a2d" in events.PluginTagToContent("hparams")["_hparams_/session_start_info"]


@needs("mlflow")
def test_mlflow_has_settings_metrics_and_the_report_in_one_record(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # SQLite takes seconds to create
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    interrupted(tmp_path / "run", "mlflow", monkeypatch)
    (killed,) = mlflow.MlflowClient().search_runs([_experiment(mlflow)])
    assert killed.info.status == "KILLED"
    train(tmp_path / "run", "mlflow")
    page = evaluate_and_report(tmp_path / "run")
    client = mlflow.MlflowClient()
    (record,) = client.search_runs([_experiment(mlflow)])
    assert record.info.run_id == killed.info.run_id == json.loads((tmp_path / "run" / "logger.json").read_text())["id"]
    assert (record.info.status, record.info.run_name) == ("FINISHED", "run")
    assert record.data.params["method"] == "sed-a2d"
    steps = {metric.step for metric in client.get_metric_history(record.info.run_id, "step/loss")}
    assert steps == {2, 4, 6, 8}
    assert record.data.metrics["id/accuracy"] > 0.5
    kept = mlflow.artifacts.download_artifacts(run_id=record.info.run_id, artifact_path="page.html")
    assert Path(kept).read_bytes() == page.read_bytes()


def _experiment(mlflow):
    return mlflow.MlflowClient().get_experiment_by_name("dissensus").experiment_id


def wandb_records(path):
    """The records of an offline run: protobuf in blocks of 32 kB; the first begins with a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if at + 7 + length > len(content):  # not yet written
            return
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last of several parts
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


@needs("wandb")
@pytest.mark.slow
def test_wandb_offline_keeps_metrics_and_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "run", "wandb")
    evaluate_and_report(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "logger.json").read_text())
    assert record["kind"] == "wandb"
    # a folder of the same second has a number at its end
    files = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*-{record['id']}*/run-{record['id']}.wandb"))
    assert files, "training, evaluation and report are one record"
    for file in files:  # which wandb's own process closes, perhaps later than `finish` returns
        until(lambda file=file: any(line.HasField("exit") for line in wandb_records(file)))
    records = [line for file in files for line in wandb_records(file)]
    started = next(line.run for line in records if line.HasField("run"))
    assert (started.project, started.display_name, started.run_id) == ("dissensus", "run", record["id"])
    config = {update.key: json.loads(update.value_json) for line in records for update in line.config.update}
    config |= {update.key: json.loads(update.value_json) for update in started.config.update}
    assert (config["method"], config["epochs"]) == ("sed-a2d", 2)
    rows = [
        {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in line.history.item}
        for line in records
    ]
    lines = [line for line in Run.open(tmp_path / "run").metrics() if line["kind"] == "step"]
    logged = [row["step/loss"] for row in rows if "step/loss" in row]
    assert logged == pytest.approx([line["loss"] for line in lines])
    assert next(row["id/accuracy"] for row in rows if "id/accuracy" in row) > 0.5
    (artifact,) = [line for line in records if line.request.log_artifact.artifact.name or line.artifact.name]
    kept = artifact.artifact if artifact.artifact.name else artifact.request.log_artifact.artifact
    assert [entry.path for entry in kept.manifest.contents] == ["page.html"]
    assert Path(kept.manifest.contents[0].local_path).read_bytes() == (tmp_path / "page.html").read_bytes()


def test_training_goes_on_without_the_logger(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    with pytest.warns(
        DissensusWarning, match=r"to wandb \(--logger wandb needs wandb: pip install .*\); metrics"
    ) as seen:
        train(tmp_path / "run", "wandb", epochs=30)
    assert "\n" not in str(seen[0].message)
    assert Run.open(tmp_path / "run").finished
    assert not (tmp_path / "run" / "logger.json").exists()


@needs("wandb")
def test_without_an_account_there_is_one_warning(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.warns(DissensusWarning, match="not logged in: run `wandb login`, or set WANDB_MODE=offline"):
        assert loggers.start("wandb", tmp_path, {}, 0) is None


def test_a_server_that_is_not_there_is_one_warning_at_once(tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    if not extras.missing("mlflow"):
        import mlflow

        mlflow.set_tracking_uri(address)
        with pytest.warns(DissensusWarning, match=f"mlflow .{address} cannot be reached: start the server, or set"):
            train(tmp_path / "one", "mlflow")
        assert Run.open(tmp_path / "one").finished
    if not extras.missing("wandb"):
        import wandb

        wandb.teardown()  # it keeps the settings of the tests before
        monkeypatch.setenv("WANDB_BASE_URL", address)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        with pytest.warns(DissensusWarning, match=f"wandb .{address} cannot be reached: set WANDB_MODE=offline"):
            assert loggers.start("wandb", tmp_path, {}, 0) is None


def test_an_unknown_logger_is_refused_before_any_work(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", features=blobs().rows(slice(None)).numpy(), labels=blobs().labels.numpy())
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--logger", "wanb"])
    assert "unknown --logger 'wanb': did you mean 'wandb'? known: mlflow, tensorboard, wandb" in capsys.readouterr().err
    with pytest.raises(DissensusError, match="logger"):
        train(tmp_path / "run", "wanb")
    assert not (tmp_path / "run").exists()


def test_a_logger_that_fails_while_training_is_reported_once(tmp_path, monkeypatch):
    class Failing:
        calls = 0

        def log_hyperparams(self, values):
            pass

        def log_metrics(self, values, step):
            self.calls += 1
            raise ConnectionError("no route\nto host")

    failing = Failing()
    monkeypatch.setitem(loggers._OPEN, "mlflow", lambda *_: (failing, "1"))
    monkeypatch.setattr(extras, "require", lambda *_: None)
    with pytest.warns(DissensusWarning) as seen:
        train(tmp_path / "run", "mlflow", epochs=30)
    texts = [str(warning.message) for warning in seen if "logged" in str(warning.message)]
    assert texts == ["nothing more is logged to mlflow (no route to host); metrics.jsonl still is"]
    assert failing.calls == 1
    assert Run.open(tmp_path / "run").finished


def test_a_damaged_record_is_one_line(tmp_path):
    (tmp_path / "logger.json").write_text("{}")
    with pytest.raises(RunError, match=r"logger\.json.*: remove it"):
        loggers.add(tmp_path, {"id/accuracy": 0.5})
