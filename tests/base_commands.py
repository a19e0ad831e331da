"""Run each base command on the images in `photos` and `stones`, then commands that need an extra; print JSON.

Not a test: `test_package` runs it in an environment without extras, where neither pytest nor the tests are installed.
One process runs all commands, because importing PyTorch takes longer than they do.
"""

import contextlib
import csv
import io
import json
from pathlib import Path

from dissensus.cli import main
from dissensus.estimators import *  # noqa: F403 - that it works without extras

TINY = "--backbone test_vit --weights random --size 32 --workers 0"
WORK = [
    "list methods",
    "list suites",
    "suite check folders --root photos",
    f"extract photos --out parts/1 --part 1/2 --shard-images 60 {TINY}",
    f"extract photos --out parts/2 --part 2/2 --shard-images 60 {TINY}",
    "merge parts/1 parts/2 --out features",
    "train features --out runs/plain --norm none --epochs 1",
    "evaluate runs/plain --id features",
    "calibrate runs/plain --id features",
    "predict runs/plain photos --out verdicts.csv --workers 0",
    "watch runs/plain photos --workers 0",
    "ask runs/plain photos --count 6 --out questions.csv",
    "adapt runs/plain --labelled questions.csv --train features --out runs/there",
    "export runs/plain --to timm --out timm.safetensors",
    f"run --root photos --out runs/whole --methods sed-a2d --epochs 1 {TINY}",
    "report runs/whole --out page.html",
    f"study ensemble-size --suite stones.yaml --root . --out study --quick --epochs 1 {TINY}",
]
NEED = {
    "serve": ["serve runs/plain"],
    "onnx": [
        "export runs/plain --to onnx --out a.onnx",
        "export runs/plain --to triton --out models",
        f"extract photos --out other --engine onnx {TINY}",
    ],
    "ray": ["predict runs/plain photos --on ray --out other.csv"],
    "lite": ["extract photos --out other --backbone lite1"],
    "ood": ["evaluate runs/plain --id features --score pytorch-ood:NNGuide"],
    "corruptions": ["run --suite fog.yaml --root . --out other " + TINY],
}

SUITE = """
name: {name}
summary: Photos, set against others.
sets:
  train: {role: train, images: photos, part: [0, 0.6]}
  held-out: {role: held-out, images: photos, part: [0.6, 0.8]}
  id: {role: id, images: photos, part: [0.8, 1]}
"""
SETS = {
    "stones": "  stones: {role: ood, images: stones}\n",
    "fog": "  fog: {role: shift, images: photos, part: [0.8, 1], corruption: fog}\n",
}


def call(command: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(command.split())
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def answer() -> None:
    """Fill in the questions of `ask`."""
    with open("questions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with open("questions.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | {"label": Path(row["image"]).parent.name} for row in rows)


for name, row in SETS.items():
    Path(f"{name}.yaml").write_text(SUITE.replace("{name}", name) + row, encoding="utf-8")
work = []
for line in WORK:
    work.append((line.split()[0], *call(line)))
    if line.startswith("ask"):
        answer()
need = [(extra, *call(line)) for extra, lines in NEED.items() for line in lines]
print(json.dumps({"work": work, "need": need}))
