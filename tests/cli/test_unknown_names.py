"""An unknown name of any registry is one line that suggests the nearest, exit code 2, and nothing is written."""

from __future__ import annotations

import pytest
from PIL import Image

from dissensus.training._fit import fit
from tests.commands import refuse
from tests.conftest import blobs, linear


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(linear(), blobs(), "deep-ensemble", epochs=1, out=folder, progress=False)
    (folder / "images").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "images" / "one.png")
    return folder


@pytest.mark.parametrize(
    ("arguments", "kind", "name", "near"),
    [
        ("trian", "command", "trian", "train"),
        ("list metods", "list", "metods", "methods"),
        ("train digitz --out {out}", "features (neither a folder, an .npz file nor a suite)", "digitz", "digits"),
        ("train digits --out {out} --method sed_a2d", "method", "sed_a2d", "sed-a2d"),
        ("train digits --out {out} --tail mpl", "tail", "mpl", "mlp"),
        ("train digits --out {out} --norm l3", "norm", "l3", "l2"),
        ("run --suite digits --out {out} --norm layers", "norm", "layers", "layer"),
        ("study detection --suite digits --out {out} --norm non", "norm", "non", "none"),
        ("train digits --out {out} --optimizer adam", "optimizer", "adam", "adamw"),
        ("train digits --out {out} --schedule cosin", "--schedule", "cosin", "cosine"),
        ("extract {run}/images --out {out} --view jigsaws", "view", "jigsaws", "jigsaw"),
        ("extract {run}/images --out {out} --engine onx", "engine", "onx", "onnx"),
        ("extract {run}/images --out {out} --backbone lite_0", "backbone", "lite_0", "lite0"),
        ("run --suite domino --methods single --out {out}", "suite", "domino", "dominoes"),
        ("run --suite digits --methods singel --out {out}", "method", "singel", "single"),
        ("study detecton --suite digits --out {out}", "study", "detecton", "detection"),
        ("evaluate {run} --suite digits --score bmaa", "score", "bmaa", "bma"),
        ("evaluate {run} --suite digits --aggregate greedy_soup", "aggregate", "greedy_soup", "greedy-soup"),
        ("evaluate {run} --suite digit", "suite", "digit", "digits"),
        ("calibrate {run} --id digits --score pdss", "score", "pdss", "pds"),
        ("calibrate {run} --id {run} --engine onnx-int", "engine", "onnx-int", "onnx-int8"),
        ("report {run} --out {out}.html --score average-energy", "score", "average-energy", "average_energy"),
        ("export {run} --to onx --out {out}", "export target", "onx", "onnx"),
    ],
)
def test_the_nearest_is_suggested(arguments, kind, name, near, run_folder, tmp_path, capsys):
    line = refuse(capsys, *[part.format(out=tmp_path / "out", run=run_folder) for part in arguments.split()])
    assert f"unknown {kind} '{name}': did you mean '{near}'? " in line
    assert list(tmp_path.iterdir()) == []
