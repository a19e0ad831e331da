"""OpenOOD's image lists as suites: what is there, what is missing, and a run from lists to tables."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

import dissensus
from dissensus import suites
from dissensus.evaluation import results
from dissensus.evaluation._evaluate import measure, predict_sets
from dissensus.functional import metrics
from dissensus.suites import _locate
from tests.commands import run
from tests.suites import openood
from tests.suites.helpers import OWN, by_name, load, recipe_of, refused, roles

NEAR, FAR = ("SSB-hard", "NINCO"), ("iNaturalist", "Textures", "OpenImages-O")
SHIFTS = ("C", "R", "V2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return openood.make(tmp_path_factory.mktemp("openood"))


def test_roles_families_and_labels_are_those_of_the_lists(data):
    suite = load("openood-imagenet", data)
    assert roles(suite) == {"test": "id"} | dict.fromkeys(SHIFTS, "shift") | dict.fromkeys(NEAR + FAR, "ood")
    sets = by_name(suite)
    assert [sets[name].family for name in NEAR + FAR] == ["near"] * 2 + ["far"] * 3
    assert [s.name for s in suite.sets if s.inside] == list(SHIFTS)
    assert suite.train.classes == ("0", "1", "2")
    assert len(suite.held_out) == 24
    assert sets["C"].features.labels.tolist() == [0, 1, 2] * 3
    assert sets["R"].features.labels.tolist() == [0, 1] * 3
    assert sets["R"].subset is None, "accuracy among all classes, as OpenOOD measures it"
    assert sets["NINCO"].features.labels is None


@pytest.mark.parametrize("name", ["openood-imagenet", "openood-imagenet200", "openood-cifar10", "openood-cifar100"])
def test_every_benchmark_has_its_lists(name):
    recipe = suites.RECIPES[name]
    folder = name.removeprefix("openood-")
    assert {s.family for s in recipe.of_role("ood")} == {"near", "far"}
    assert all(s.images[0].startswith(f"benchmark_imglist/{folder}/") for s in recipe.sets.values())
    assert {s.base for s in recipe.sets.values()} <= {"images_classic", "images_largescale"}
    assert all(s.inside for s in recipe.of_role("shift"))


def test_check_counts_what_is_there(data, capsys):
    code, out, err = run(capsys, "suite", "check", "openood-imagenet", "--root", data)
    assert code == 0, out
    counts = {line.split()[0]: line.split()[3:] for line in out.splitlines()[4:]}
    assert counts["train"] == ["30", "3", "found"]
    assert counts["test"] == ["24", "3", "found"]
    assert counts["R"] == ["6", "2", "found"]
    assert counts["Textures"] == ["6", "-", "found"]
    assert len(counts) == 11
    assert "run it with: dissensus run --suite openood-imagenet --root" in err


def test_a_list_with_missing_files_is_one_line(data, tmp_path, capsys):
    root = tmp_path / "data"
    shutil.copytree(data, root)
    for i in (2, 5):
        (root / f"images_largescale/ninco/amphiuma_means/amphiuma_means_{i}.jpeg").unlink()
    shutil.rmtree(root / "images_largescale" / "imagenet_v2")
    shutil.rmtree(root / "images_classic")
    (root / openood.LISTS / "test_ssb_hard.txt").unlink()
    code, out, err = run(capsys, "suite", "check", "openood-imagenet", "--root", root)
    assert code == 2
    assert re.search(r"^NINCO .* 5 of 7 +- +unusable$", out, re.M)
    assert re.search(r"^V2 .* 0 of 6 +- +missing$", out, re.M)
    assert re.search(r"^Textures .* - +- +missing$", out, re.M)
    assert "none of the 6 images that" in out
    assert re.search(r"^SSB-hard missing: --root is the folder that OpenOOD's scripts", out, re.M)
    (line,) = [line for line in out.splitlines() if line.startswith("NINCO unusable")]
    assert "2 of 7 are missing, the first is ninco/amphiuma_means/amphiuma_means_2.jpeg: add them" in line
    assert err.endswith("cannot be run with NINCO as is: see the list for how\n")
    with refused("set 'NINCO' of suite openood-imagenet cannot be used: .* 2 of 7 are missing, the first is"):
        load("openood-imagenet", root)
    text = (root / openood.LISTS / "test_ninco.txt").read_text().splitlines()
    kept = [line for line in text if not re.search(r"_[25]\.jpeg", line)]
    (root / openood.LISTS / "test_ninco.txt").write_text("\n".join(kept))
    messages: list[str] = []
    suite = load("openood-imagenet", root, messages)
    assert sum("goes on without" in line for line in messages) == 3
    assert set(NEAR + FAR) & set(by_name(suite)) == {"NINCO", "iNaturalist", "OpenImages-O"}


def test_near_and_far_are_averaged_and_so_is_the_full_spectrum(data):
    suite = load("openood-imagenet", data)
    ensemble = dissensus.new_ensemble(suite.train, members=2)
    dissensus.fit(ensemble, suite.train, "deep-ensemble", epochs=2, lr=0.05, progress=False)
    predictions = predict_sets(ensemble, suite.sets, score_names=["gaussian"], progress=False)
    frame = measure(suite.sets, predictions, {"method": "deep-ensemble", "run": "mine"})
    table = results.Results(frame)
    (row,) = table.rows
    auroc = frame[(frame["metric"] == "auroc") & (frame["score"] == "pds")]
    for family, names in (("near", NEAR), ("far", FAR)):
        values = auroc[auroc["family"] == family].set_index("dataset")["value"]
        assert list(values.index) == list(names)
        assert table.auroc(row, family).mean == pytest.approx(values.mean())
    columns = ["near", "far", "near FS", "far FS", *SHIFTS]
    assert [column.name for column in table.by_score(["pds"]).columns] == columns
    for shown in (table.detection("pds"), table.summary(score="pds")):
        found = [column.name for column in shown.columns if "AUROC" in column.group]
        assert sorted(found) == sorted(columns)
        assert "FS, full spectrum: ID samples include shifted ones." in shown.note
    # the full spectrum by hand: ID samples are those of the test set and of the shifts
    pooled = torch.cat([predictions[name].scores["gaussian"] for name in ("test", *SHIFTS)])
    for name in NEAR + FAR:
        expected = metrics.detection(pooled, predictions[name].scores["gaussian"])
        rows = frame[(frame["dataset"] == name) & (frame["role"] == "full-spectrum") & (frame["score"] == "gaussian")]
        assert dict(zip(rows["metric"], rows["value"], strict=True)) == pytest.approx(expected, abs=1e-6)
        assert rows["family"].iloc[0] == ("near FS" if name in NEAR else "far FS")


def test_inside_is_for_shifts(tmp_path):
    text = OWN + "  o: {role: ood, images: c, inside: true}"
    with refused("`inside` is for role shift; set 'o' of .* is ood: leave it out"):
        _locate.check(suites.recipe(str(recipe_of(tmp_path, text)), tmp_path), tmp_path)
