"""Score files: what OpenOOD and pytorch-ood compute from them is what we compute."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_ood.metrics import AUPR, FPRAtTPR, OODMetrics
from pytorch_ood.metrics import functional as theirs
from safetensors.torch import load_file

from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.evaluation import saved, score_files
from dissensus.evaluation._evaluate import computed_scores, predict_sets
from dissensus.evaluation.suite import SuiteSet
from dissensus.functional import metrics
from dissensus.training._fit import fit
from dissensus.training.run import Run
from dissensus.training.scoring import fit_scores
from tests import reference
from tests.commands import refuse, run
from tests.conftest import blobs, linear

OUTSIDE = {"close": "near", "closer": "near", "away": "far"}


@pytest.fixture(scope="module")
def evaluated():
    ensemble = fit(linear(), blobs(), "deep-ensemble", epochs=10, lr=0.05, batch_size=32, progress=False)
    sets = [SuiteSet("id", "id", blobs(seed=2)), SuiteSet("noisy", "shift", blobs(seed=1, noise=1.5), inside=True)]
    sets += [
        SuiteSet(name, "ood", blobs(90 + 10 * i, classes=2, seed=7 + i, noise=2.0 + i).unlabelled(), family=family)
        for i, (name, family) in enumerate(OUTSIDE.items())
    ]
    return sets, predict_sets(ensemble, sets, progress=False)


def pooled(folder: Path, *names: str) -> dict[str, np.ndarray]:
    parts = [np.load(folder / "scores" / f"{name}.npz") for name in names]
    return {key: np.concatenate([part[key] for part in parts]) for key in ("pred", "conf", "label")}


def test_openood_reads_our_metrics_and_its_own(evaluated, tmp_path):
    sets, predictions = evaluated
    score_files.write(tmp_path / "out", sets, predictions, "pds", "openood")
    for table, inside in (("ood.csv", ["id"]), ("fsood.csv", ["id", "noisy"])):
        with (tmp_path / "out" / table).open() as file:
            rows = {row.pop("dataset"): {k: float(v) / 100 for k, v in row.items()} for row in csv.DictReader(file)}
        assert list(rows) == ["close", "closer", "nearood", "away", "farood"]
        for name in OUTSIDE:
            columns = pooled(tmp_path / "out", *inside, name)
            assert set(columns["label"][-len(predictions[name]) :]) == {-1}
            assert rows[name] == pytest.approx(reference.openood(**columns), abs=1e-6)
            ours = metrics.detection(
                torch.cat([predictions[each].scores["pds"] for each in inside]), predictions[name].scores["pds"]
            )
            assert rows[name]["AUROC"] == pytest.approx(ours["auroc"], abs=1e-6)
        for key, value in rows["nearood"].items():
            assert value == pytest.approx((rows["close"][key] + rows["closer"][key]) / 2, abs=1e-6)
        assert rows["farood"] == rows["away"]


def test_pytorch_ood_computes_our_metrics(evaluated, tmp_path):
    sets, predictions = evaluated
    score_files.write(tmp_path / "out", sets, predictions, "pds", "pytorch-ood")
    assert {path.stem for path in (tmp_path / "out").iterdir()} == set(OUTSIDE)
    for name in OUTSIDE:
        values = load_file(tmp_path / "out" / f"{name}.safetensors")
        result = OODMetrics().update(**values).compute()
        ours = metrics.detection(predictions["id"].scores["pds"], predictions[name].scores["pds"])
        assert result["AUROC"] == pytest.approx(ours["auroc"], abs=1e-6)
        accuracy = (predictions["id"].prediction == predictions["id"].labels).double().mean()
        assert result["ACC"] == pytest.approx(float(accuracy), abs=1e-6)
        by_openood = score_files.openood_metrics(*(values[k].numpy() for k in ("scores", "labels", "predictions")))
        same = {"FPR@95": "FPR95TPR", "AUPR_IN": "AUPR-IN", "AUPR_OUT": "AUPR-OUT", "AUROC": "AUROC", "ACC": "ACC"}
        assert by_openood == pytest.approx({key: result[other] for key, other in same.items()}, abs=1e-6)
        # ours by their functions: ID as positives, and the step-wise area of their precision-recall curve
        swapped = {"scores": -values["scores"], "labels": torch.where(values["labels"] < 0, 0, -1)}
        assert FPRAtTPR(0.95).update(**swapped).compute()["FPR95TPR"] == pytest.approx(ours["fpr95"], abs=1e-6)
        assert AUPR("ood").update(**swapped).compute()["AUPR-OUT"] == pytest.approx(result["AUPR-IN"], abs=1e-6)
        for sides, metric in ((values, "aupr_out"), (swapped, "aupr_in")):
            precision, recall = theirs.pr_curve(sides["scores"], sides["labels"])[:2]  # recall falls
            steps = -recall.diff() * precision[:-1]
            assert float(steps.sum()) == pytest.approx(ours[metric], abs=1e-6)


def test_what_cannot_be_written_is_one_line(evaluated, tmp_path):
    sets, predictions = evaluated
    with pytest.raises(UnknownNameError, match="unknown format of score files 'openod': did you mean 'openood'"):
        score_files.write(tmp_path / "out", sets, predictions, "pds", "openod")
    with pytest.raises(DataError, match="there is no ood set: add one"):
        score_files.write(tmp_path / "out", sets[:2], predictions, "pds", "openood")
    with pytest.raises(DissensusError, match="score 'mahalanobis@lite0' is not computed for this run; choose one of"):
        score_files.write(tmp_path / "out", sets, predictions, "mahalanobis@lite0", "openood")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(
        DissensusError, match=r"must be a new or an empty folder; .*out holds files: choose another --scores-out"
    ):
        score_files.write(tmp_path / "out", sets, predictions, "pds", "openood")


def test_evaluate_writes_them(tmp_path, capsys):
    for name, features in {"id": blobs(seed=2), "away": blobs(classes=2, seed=9, noise=4.0)}.items():
        np.savez(tmp_path / f"{name}.npz", features=features.rows(slice(None)), labels=features.labels)
    fit(linear(), blobs(), "deep-ensemble", epochs=2, lr=0.05, batch_size=32, progress=False, out=tmp_path / "run")
    flags = ["--id", tmp_path / "id.npz", "--ood", f"away={tmp_path}/away.npz", "--no-progress"]
    out = ["--scores-out", tmp_path / "files", "--score", "average_entropy"]
    code, _, err = run(capsys, "evaluate", tmp_path / "run", *flags, *out)
    assert code == 0, err
    assert err.endswith(f"wrote score files for openood to {tmp_path / 'files'}\n")
    columns = pooled(tmp_path / "files", "id", "away")
    assert (columns["conf"] <= 0).all(), "minus the entropy"
    assert "files holds files" in refuse(capsys, "evaluate", tmp_path / "run", *flags, *out)
    code, _, err = run(
        capsys,
        "evaluate",
        tmp_path / "run",
        *flags,
        "--scores-out",
        tmp_path / "more",
        "--scores-format",
        "pytorch-ood",
    )
    assert code == 0, err
    assert (tmp_path / "more" / "away.safetensors").is_file()
    line = refuse(capsys, "evaluate", tmp_path / "run", tmp_path / "run2", *flags, "--scores-out", tmp_path / "x")
    assert line == "--scores-out takes one run; got 2: evaluate them one by one"
    line = refuse(
        capsys, "evaluate", tmp_path / "run", *flags, "--scores-out", tmp_path / "x", "--scores-format", "ood"
    )
    assert "unknown format of score files 'ood'" in line


def test_mistakes_are_found_before_predicting(tmp_path, capsys, monkeypatch):
    np.savez(tmp_path / "id.npz", features=blobs(seed=2).rows(slice(None)), labels=blobs(seed=2).labels)
    fit(linear(), blobs(), "deep-ensemble", epochs=1, batch_size=32, progress=False, out=tmp_path / "run")
    evaluated = partial(refuse, capsys, "evaluate", tmp_path / "run", "--id", tmp_path / "id.npz", "--no-progress")

    def predict(*_, **__):
        raise AssertionError("predicted first")

    monkeypatch.setattr(saved, "predict_sets", predict)
    out = ["--scores-out", tmp_path / "files"]
    assert "there is no ood set: add one with --ood" in evaluated(*out)
    line = evaluated("--ood", f"a/b={tmp_path}/id.npz", *out)
    assert (
        line == "a name has no slash and no leading dot; a set that gives its name to a file is called 'a/b': rename it"
    )
    line = evaluated("--ood", f"away={tmp_path}/id.npz", *out, "--score", "combined")
    assert line.startswith("score 'combined' is not computed for this run; choose one of "), "without a held-out set"


def test_the_scores_known_beforehand_are_those_that_are_computed():
    ensemble, sets = linear(), [SuiteSet("id", "id", blobs(seed=2))]
    fit_scores(ensemble, blobs())
    for held_out in (None, blobs(seed=3)):
        predictions = predict_sets(ensemble, sets, held_out=held_out, progress=False)
        assert set(computed_scores(ensemble, held_out)) == set(predictions["id"].scores)


def test_a_run_is_saved_before_score_files_are_written(evaluated, tmp_path, monkeypatch):
    sets, predictions = evaluated
    fit(linear(), blobs(), "deep-ensemble", epochs=1, batch_size=32, progress=False, out=tmp_path / "run")
    monkeypatch.setattr(saved, "predict_sets", lambda *_, **__: predictions)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(score_files, "write", full)
    run = Run.open(tmp_path / "run")
    with pytest.raises(OSError, match="no space left"):
        saved.evaluate_run(run, linear(), sets, suite="x", scores=(tmp_path / "out", "openood", None), progress=False)
    assert saved.is_saved(run.folder, predictions=True)
