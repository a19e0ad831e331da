"""Suites of images: the built-in recipes on trees of tiny images, a user's own, and what is said of mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from dissensus import suites
from dissensus._core.errors import DissensusError
from dissensus.evaluation.suite import Suite
from dissensus.images import ImageSet, corruptions
from dissensus.suites import _locate, _yaml
from dissensus.suites._finder import subset_names
from dissensus.suites._recipe import Recipe
from tests.trees import TINY, classes, image, images


def load(name, root, told=None, **options) -> Suite:
    return suites.load(str(name), root=root, notify=(told if told is not None else []).append, **{**TINY, **options})


def roles(suite: Suite) -> dict[str, str]:
    return {s.name: s.role for s in suite.sets}


def by_name(suite: Suite) -> dict:
    return {s.name: s for s in suite.sets}


def recipe_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(match: str):
    """DissensusError whose one line matches."""
    return pytest.raises(DissensusError, match=rf"\A[^\n]*{match}[^\n]*\Z")


def names_of(images) -> set[str]:
    return set(images.names)


# --- the built-in ones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["imagenet", "pacs", "tiny-imagenet", "waterbirds"])
def test_a_built_in_recipe_is_complete(name):
    recipe = suites.RECIPES[name]
    assert recipe.name == name
    assert recipe.summary == suites.summary(name)
    assert recipe.get, "says how to get the images"
    assert suites.needs_root(name)
    assert suites.training(name) == recipe.training != {}
    assert "root" in suites.accepted_options(name)
    assert {"train", "id"} <= {s.role for s in recipe.sets.values()}


# Wnids of ImageNet: 1 in -A and -R, 2 in -A only, 3 in -R only, 4 in neither.
BOTH, ONLY_A, ONLY_R, NEITHER = "n01498041", "n01558993", "n01443537", "n01440764"


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """In the layout that the recipe asks for; training lacks most classes of -A and -R, as a small copy would."""
    root = tmp_path_factory.mktemp("imagenet")
    for part in ("train", "val"):
        classes(root / part, (NEITHER, BOTH, ONLY_A, ONLY_R), count=2)
    classes(root / "imagenet-a", (BOTH, ONLY_A, "n01534433"), count=3)
    classes(root / "imagenet-r", (BOTH, ONLY_R), count=2)
    for corruption, kind in (("gaussian_noise", "noise"), ("snow", "weather")):
        for severity in (1, 5):
            place = root / "imagenet-c" / kind / corruption / str(severity)
            classes(place, (NEITHER, BOTH, ONLY_A, ONLY_R), count=1)
    images(root / "inaturalist", 3)
    images(root / "openimage_o" / "test", 4)
    (root / "openimage_o.txt").write_text("".join(f"test/{i}.png -1\n" for i in range(3)))
    return root


def test_wnids_of_the_tests_are_of_the_lists():
    in_a, in_r = (set(subset_names(f"imagenet-{letter}", Path())) for letter in "ar")
    assert len(in_a) == len(in_r) == 200
    assert [(name in in_a, name in in_r) for name in (BOTH, ONLY_A, ONLY_R, NEITHER)] == [
        (True, True), (True, False), (False, True), (False, False),
    ]  # fmt: skip


def test_imagenet(imagenet):
    told: list[str] = []
    suite = load("imagenet", imagenet, told)
    trained = (NEITHER, ONLY_R, BOTH, ONLY_A)
    assert suite.train.classes == trained == tuple(sorted(trained))
    found = by_name(suite)
    stored = [f"C-{name}-{severity}" for severity in (1, 5) for name in ("gaussian_noise", "snow")]
    assert roles(suite) == {
        "val": "id", "IN-A": "shift", "IN-R": "shift", **dict.fromkeys(stored, "shift"), "iNaturalist": "ood",
        "OpenImages-O": "ood",
    }  # fmt: skip
    assert found["C-snow-5"].family == "C-5"
    assert found["val"].family == ""
    # labels are those of training, the subset those of the list that are trained on
    assert found["IN-A"].subset == (2, 3)
    assert found["IN-A"].features.labels.tolist() == [2, 2, 2, 3, 3, 3]
    assert found["IN-R"].subset == (1, 2)
    assert found["IN-R"].features.labels.tolist() == [1, 1, 2, 2]
    assert found["C-snow-1"].features.labels.tolist() == [0, 1, 2, 3]
    assert found["C-snow-1"].subset is None
    assert found["C-snow-1"].features.provenance["corruption"] is None, "stored, not made"
    assert len(found["iNaturalist"].features) == 3
    assert len(found["OpenImages-O"].features) == 3
    assert found["OpenImages-O"].features.labels is None
    assert [line for line in told if "IN-A" in line] == [
        "imagenet: IN-A (shift): 198 of its 200 classes are not in the training set: 3 images left out"
    ]
    assert any("C (shift): 26 of 30 missing, such as C-shot_noise-1: unpack ImageNet-C" in line for line in told)
    assert len(told) == 2


def test_imagenet_lists_stand_before_folders_and_wholly_untrained_sets_are_left_out(imagenet, tmp_path):
    root = tmp_path / "imagenet"
    shutil.copytree(imagenet, root)
    (root / "inaturalist.txt").write_text("0.png\n2.png\n")
    shutil.rmtree(root / "openimage_o")
    corrupted = [
        f"imagenet-c/{kind}/{severity}" for kind in ("noise/gaussian_noise", "weather/snow") for severity in "15"
    ]
    for part in ("train", "val", *corrupted):
        shutil.rmtree(root / part / BOTH)
        shutil.rmtree(root / part / ONLY_A)
    told: list[str] = []
    suite = load("imagenet", root, told)
    found = by_name(suite)
    assert len(found["iNaturalist"].features) == 2
    assert found.keys() & {"IN-A", "IN-R", "OpenImages-O"} == set()
    for name in ("IN-A", "IN-R"):  # of the first no class is trained on, of the second one
        line = next(line for line in told if f"without {name} (shift): missing: " in line)
        assert "has fewer than two classes of the training set: unpack" in line
    assert any(
        "without OpenImages-O (ood): missing: " in line and "which is not a folder: fetch" in line for line in told
    )


def test_imagenet_a_with_a_class_that_is_not_in_it_is_refused(imagenet, tmp_path):
    root = tmp_path / "imagenet"
    shutil.copytree(imagenet, root)
    images(root / "imagenet-a" / NEITHER)
    with refused(f"only classes of its subset, imagenet-a; .*imagenet-a has also {NEITHER}: remove"):
        load("imagenet", root)


@pytest.fixture(scope="module")
def waterbirds(tmp_path_factory):
    root = tmp_path_factory.mktemp("birds")
    folder = root / "waterbird_complete95_forest2water2"
    lines = ["img_id,img_filename,y,split,place,place_filename"]
    for split in (0, 1, 2):
        for y in (0, 1):
            for place in (0, 1):
                for i in range(3):
                    name = f"{y}{place}/{split}_{i}.png"
                    image(folder / name)
                    lines.append(f"{len(lines)},{name},{y},{split},{place},x.jpg")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def test_waterbirds(waterbirds):
    suite = load("waterbirds", waterbirds)
    assert roles(suite) == {"id": "id", "groups": "groups"}
    assert [len(features) for features in (suite.train, suite.disagreement)] == [12, 12]
    assert suite.disagreement.labels is None
    assert suite.train.classes == ("0", "1")
    groups = by_name(suite)["groups"].features
    assert groups.group_names == ("y=0 place=0", "y=0 place=1", "y=1 place=0", "y=1 place=1")
    assert groups.groups.bincount().tolist() == [3, 3, 3, 3]
    assert torch.equal(groups.groups // 2, groups.labels)
    assert groups is by_name(suite)["id"].features, "extracted once"


def test_waterbirds_without_its_images_is_missing(waterbirds, tmp_path):
    place = "waterbird_complete95_forest2water2/metadata.csv"
    (tmp_path / place).parent.mkdir()
    shutil.copy(waterbirds / place, tmp_path / place)
    with refused("needs its train set, .*; missing: none of the 12 images that .*metadata.csv lists is in .*: unpack"):
        load("waterbirds", tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    classes(root / "tiny-imagenet" / "train", count=20)
    classes(root / "tiny-imagenet" / "val", count=2)
    classes(root / "textures", ("banded", "bumpy"), count=2, side=96)
    return root


def test_tiny_imagenet_is_all_there(tiny):
    made, found = _locate.locate(suites.RECIPES["tiny-imagenet"], tiny)
    assert {f.state for f in found} == {"found"}
    assert [f.sets for f in found] == [1, 1, 1, 30, 1]
    shifts = [source for source in made if source.role == "shift"]
    assert [source.corruption for source in shifts] == [(name, s) for s in (1, 5) for name in corruptions.CORRUPTIONS]
    assert {source.family for source in shifts} == {"C-1", "C-5"}
    train, held_out = made[0].images, made[1].images
    assert (len(train), len(held_out)) == (57, 3)
    assert not names_of(train) & names_of(held_out)
    textures = made[-1].images
    assert textures.image(0).size == (64, 64), "shrunk"
    assert textures.labels is None


def test_corruptions_are_made_on_the_fly_the_same_each_time(tiny, tmp_path):
    text = yaml.safe_load((Path(suites.__file__).parent / "recipes" / "tiny-imagenet.yaml").read_text())
    text["sets"]["C"] |= {"corruption": ["brightness", "gaussian-noise"], "severities": 5}
    suite = load(recipe_of(tmp_path, yaml.safe_dump(text)), tiny, features=tmp_path / "one")
    again = load(tmp_path / "own.yaml", tiny, features=tmp_path / "two")
    other = load(tmp_path / "own.yaml", tiny, features=tmp_path / "two", seed=1)
    assert suite.name == "tiny-imagenet"
    names = ["C-brightness-5", "C-gaussian-noise-5"]
    assert [s.name for s in suite.sets if s.role == "shift"] == names
    clean = by_name(suite)["val"].features
    for name in names:
        features = by_name(suite)[name].features
        assert features.labels.equal(clean.labels)
        assert not np.allclose(features.rows(slice(None)), clean.rows(slice(None)), atol=1e-3)
        assert features.fingerprint == by_name(again)[name].features.fingerprint
    noisy = [by_name(each)[names[1]].features.fingerprint for each in (suite, other)]
    assert noisy[0] != noisy[1]
    assert suite.train.fingerprint != other.train.fingerprint
    assert suite.train.provenance["backbone"]["size"] == 32
    folder = tmp_path / "two" / "tiny-imagenet" / "test_vit-32px"
    assert {"train", "train-seed1", "val", "C-gaussian-noise-5-seed1"} <= {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    root = tmp_path_factory.mktemp("pacs")
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        classes(root / domain, count=10 if domain == "photo" else 2)
    return root


def test_pacs_splits_do_not_overlap_and_are_stable(pacs):
    recipe = suites.RECIPES["pacs"]
    made = {source.name: source.images for source in _locate.locate(recipe, pacs, seed=3)[0]}
    again = {source.name: source.images for source in _locate.locate(recipe, pacs, seed=3)[0]}
    other = {source.name: source.images for source in _locate.locate(recipe, pacs, seed=4)[0]}
    splits = [names_of(made[name]) for name in ("train", "held-out", "photo")]
    assert [len(split) for split in splits] == [21, 3, 6]
    assert len(set.union(*splits)) == 30
    assert all(made[name].fingerprint == again[name].fingerprint for name in made)
    assert made["train"].fingerprint != other["train"].fingerprint
    assert made["art"].fingerprint == other["art"].fingerprint


def test_pacs(pacs):
    told: list[str] = []
    suite = load("pacs", pacs, told)
    assert roles(suite) == {"photo": "id", "art": "shift", "cartoon": "shift", "sketch": "shift"}
    assert len(suite.held_out) == 3
    assert suite.disagreement is None
    assert told == [
        "pacs goes on without textures (ood): missing: unpack the Describable Textures (Cimpoi et al. 2014) as "
        "textures/banded/..."
    ]


# --- folders -------------------------------------------------------------------------------------------------


def test_folders_by_their_names(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "val", count=1)
    classes(tmp_path / "held-out", count=2)
    images(tmp_path / "disagreement", 5)
    classes(tmp_path / "shift" / "v1.0", count=1)
    classes(tmp_path / "shift" / "v1.1", count=1)
    classes(tmp_path / "ood" / "junk", ("a", "b"), count=1)
    images(tmp_path / "ood" / "junk" / "deep" / "er", 1)
    images(tmp_path / "ood" / "stars", 2)
    (tmp_path / "ood" / ".hidden").mkdir()
    (tmp_path / "notes").mkdir()
    suite = load("folders", tmp_path)
    assert roles(suite) == {"id": "id", "v1.0": "shift", "v1.1": "shift", "junk": "ood", "stars": "ood"}
    assert (len(suite.train), len(suite.held_out), len(suite.disagreement)) == (12, 6, 5)
    assert len(by_name(suite)["junk"].features) == 3
    assert suites.training("folders") == {}


BOTH_LACK = "no held-out/ and no id/, so it sets aside a fifth of each class to calibrate on and a fifth to test on ("


@pytest.mark.parametrize(
    ("layout", "folders", "sizes", "note"),
    [
        (".", [], (18, 6, 6), BOTH_LACK),
        ("train", [], (18, 6, 6), BOTH_LACK),
        ("train", ["id"], (24, 3, 6), "no held-out/, so it sets aside a fifth of each class to calibrate on ("),
        ("train", ["held-out"], (24, 6, 3), "no id/, so it sets aside a fifth of each class to test on ("),
        ("train", ["test", "held-out"], (30, 3, 3), None),
    ],
)
def test_what_folders_lack_is_set_aside_from_the_training_images(tmp_path, layout, folders, sizes, note):
    classes(tmp_path / layout, ("cat", "big dog", "eel"), count=10)
    for folder in folders:
        classes(tmp_path / folder, ("cat", "big dog", "eel"), count=1)
    told: list[str] = []
    suite = load("folders", tmp_path, told)
    assert (len(suite.train), len(by_name(suite)["id"].features), len(suite.held_out)) == sizes
    assert suite.train.classes == ("big dog", "cat", "eel")
    assert suite.train.class_counts.unique().numel() == 1, "each class in proportion"
    assert len(told) == (note is not None)
    assert note is None or (note in told[0] and f"(train {sizes[0]}, id {sizes[1]}, held-out {sizes[2]})" in told[0])
    made, _ = _locate.locate(suites.recipe("folders", tmp_path), tmp_path)
    parts = [names_of(source.images) for source in made if source.seeded]
    assert sum(map(len, parts)) == len(set().union(*parts)), "no image is in two sets"
    again, _ = _locate.locate(suites.recipe("folders", tmp_path), tmp_path)
    assert [source.images.names for source in made] == [source.images.names for source in again]


def test_folders_too_small_to_hold_any_out(tmp_path):
    classes(tmp_path, count=3)
    told: list[str] = []
    suite = load("folders", tmp_path, told)
    assert (len(suite.train), len(by_name(suite)["id"].features), suite.held_out) == (6, 3, None)
    assert "too few images per class to take 60% to 80% of them: add images, or a folder held-out/" in told[1]
    shutil.rmtree(tmp_path / "cat")
    classes(tmp_path / "two", count=2)
    with refused("needs its id set, .*; missing: .*two has too few images per class to take 80% to 100% of them: add"):
        load("folders", tmp_path / "two")


def test_features_are_not_kept_among_the_images(tmp_path):
    classes(tmp_path, count=5)
    with refused("features must be kept outside of the images; .*runs is inside .*: choose another --out"):
        load("folders", tmp_path, features=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_two_sets_of_one_name_are_refused(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "shift" / "id")
    with refused("every set needs a name of its own; .* has 'id' twice: rename one"):
        suites.recipe("folders", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: classes(r / "val", ["fox"]), "'id' .*those of the training set, cat, dog, eel; .*val has also fox"),
        (lambda r: shutil.rmtree(r / "val" / "eel"), "val lacks eel: add them, or write `subset: present`"),
        (lambda r: shutil.rmtree(r / "train" / "eel"), "those of the training set, cat, dog; .*val has also eel"),
        (lambda r: [shutil.rmtree(r / "train" / c) for c in ("cat", "eel")], "at least two classes; .*train has dog"),
        (lambda r: (shutil.rmtree(r / "val"), images(r / "val")), "role id need labels, such as class folders"),
        (lambda r: (shutil.rmtree(r / "train"), images(r / "train")), "role train need labels"),
        (lambda r: (shutil.rmtree(r / "train"), (r / "train").mkdir()), "'train' .*train holds none: check the path"),
        (lambda r: shutil.rmtree(r / "train"), "needs its train set, .*train; missing: move the .* or rename val"),
        (lambda r: (r / "ood" / "empty").mkdir(parents=True), "'empty' .* cannot be used: .*holds none"),
        (lambda r: (r / "val" / "fox").mkdir(), "'id' .*every class folder holds images; .*val/fox holds none"),
        (lambda r: image(r / "val" / "stray.png"), "images lie in class folders or all at the top; .*val has both"),
        (lambda r: images(r / "shift" / "flat"), "'flat' .*sets of role shift need labels"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_used_are_told_in_one_line(tmp_path, change, message):
    classes(tmp_path / "train", count=1)
    classes(tmp_path / "val", count=1)
    change(tmp_path)
    with refused(message):
        load("folders", tmp_path)


def test_roots_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    for root in ("nowhere", "file"):
        for name in ("folders", "pacs"):
            with refused(f"--root must be a folder; .*{root} is not: check the path"):
                load(name, tmp_path / root)
    for name in ("folders", "pacs", "own.yaml"):
        for root in ({}, {"root": None}, {"root": ""}):
            with refused(f"suite '{name}' reads images from a folder: name it with --root DIR"):
                suites.load(name, **root)


# --- one's own -----------------------------------------------------------------------------------------------

OWN = """
sets:
  train: {role: train, images: train, part: [0, 0.5]}
  val: {role: id, images: train, part: [0.5, 1]}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sets: {train: {roll: train, images: a}}", "key of set 'train' of .*own.yaml 'roll': did you mean 'role'"),
        ("sise: 3\n" + OWN, "unknown key of .*own.yaml 'sise': did you mean 'size'"),
        ("training: {epoch: 3}\n" + OWN, "unknown key of `training` of .*own.yaml 'epoch': did you mean 'epochs'"),
        (OWN + "  x: {role: odd, images: a}", "unknown role of set 'x' of .*own.yaml 'odd': did you mean 'ood'"),
        (OWN + "  x: {images: a}", "own.yaml is not a valid suite; sets.x.role: field required: see docs/suites.md"),
        (OWN + "  x: {role: id, images: a}", "exactly one set of role id; .*own.yaml has val and x"),
        (OWN + "  x: {role: held-out, images: a}\n  y: {role: held-out, images: b}", "at most one .* has x and y"),
        ("sets: {a: {role: id, images: a}}", "exactly one set of role train; .*own.yaml has none"),
        ("sets: {a: {role: train, images: a}}", "exactly one set of role id; .*own.yaml has none"),
        (OWN + "  x: {role: shift, images: a, part: [0.5, 1.5]}", r"sets.x.part: should be \[from, to\] .*, got \[0"),
        (OWN + "  x: {role: shift, images: a, part: [0.5, 0.5]}", r"sets.x.part: should be .*, got \[0.5, 0.5\]"),
        (OWN + "  x: {role: shift, images: a, part: 0.5}", "sets.x.part: should be .*, got 0.5"),
        (OWN + "  x: {role: shift, images: a, part: [a, b]}", "sets.x.part: should be .*, got ..a., .b..:"),
        (OWN + "  x: {role: groups, of: vall}", "set that set 'x' of .*own.yaml is `of` 'vall': did you mean"),
        (OWN + "  x: {role: groups, of: x}", "unknown set that set 'x'"),
        (OWN + "  x: {role: groups, of: val}\n  y: {role: groups, of: x}", "`of` names a single set .*'y' .*of 'x'"),
        (OWN + "  x: {role: groups, of: val, shrink: 3}", "shares its images; set 'x' of .*own.yaml has `shrink` too"),
        (OWN + "  x: {role: groups, of: val, images: a}", "either `images` or `of`; set 'x' of .*own.yaml has both"),
        (OWN + "  x: {role: shift}", "either `images` or `of`; set 'x' of .*own.yaml has neither"),
        (OWN + "  x: {role: shift, images: a, corruption: snou}", "own.yaml: unknown corruption 'snou': .*'snow'"),
        (OWN + "  x: {role: shift, images: a, corruption: snow, severities: 9}", "own.yaml: severity must .* got 9"),
        (OWN + "  x: {role: shift, images: a, corruption: snow, severities: []}", "severities: should not be empty"),
        (OWN + "  x: {role: shift, images: a, severities: 3}", "`severities` are those of a `corruption`; set 'x' of"),
        (OWN + "  x: {role: shift, images: 'a/{corruption}', corruption: all}", "every path; set 'x' of .*own.yaml"),
        (OWN + "  x: {role: shift, images: 'a/{severity}'}", "every path; set 'x' of .*own.yaml"),
        (OWN + "  x: {role: shift, images: train, part: [0.4, 0.6]}", "not evaluated on its training .* set 'x' of"),
        (OWN + "  x: {role: shift, of: train}", "not evaluated on its training images; set 'x' of .*own.yaml"),
        (OWN + "  x: {role: ood, images: a, subset: present}", "`subset` is for roles id, shift and groups; set 'x'"),
        (OWN + "  x/y: {role: ood, images: a}", "no slash and no leading dot; a set of .*own.yaml is called 'x/y'"),
        ("name: ../up\n" + OWN, "no slash and no leading dot; the suite of .*own.yaml is called '../up'"),
        (OWN + "  val: {role: ood, images: a}", "must be YAML; it is not .line 5: 'val' is given twice"),
        ("a: [", "own.yaml must be YAML; it is not .line 1: "),
        ("a: 2024-13-45", "own.yaml must be YAML; it is not .month must be"),
        ("- train\n- val", "a mapping with the key `sets`; .*own.yaml is a list"),
        ("", "a mapping with the key `sets`; .*own.yaml is empty"),
        ("train", "a mapping with the key `sets`; .*own.yaml is the text 'train'"),
        ("sets: [a, b]", "own.yaml .*; sets: should map names to sets, got"),
        ("name: x", "own.yaml .*; sets: field required"),
        ("sets: {train: photos}", "own.yaml .*; sets: set 'train' should be a mapping with `role` and `images`"),
        ("size: big\n" + OWN, "own.yaml .*; size: input should be a valid integer, got 'big': see"),
        ("size: true\n" + OWN, "size: input should be a valid integer, got True"),
        ("crop: 2\n" + OWN, "crop: input should be less than or equal to 1, got 2"),
        ("layers: 3\n" + OWN, "layers: input should be 1 or 2, got 3"),
        ("name: 3\n" + OWN, "name: input should be a valid string, got 3"),
        ("training: fast\n" + OWN, "training: input should be a valid dictionary, got 'fast'"),
        ("training: {lr: slow}\n" + OWN, "`training` of .*own.yaml: lr must be a number; got 'slow'"),
        (OWN + "  x: {role: ood, images: 3}", "sets.x.images.0: input should be a valid string, got 3"),
        (OWN + "  x: {role: ood, images: []}", "sets.x.images: should not be empty"),
        (OWN + "  x: {role: ood, images: a, only: 3}", "sets.x.only: should map columns to values, got 3"),
        (OWN + "  x: {role: ood, images: a, name: y}", "set 'x' should be a mapping .*, named by its key"),
        (OWN + "  x: {role: ood, images: a, 3: y}", "sets.x.3: keys should be strings"),
        (OWN + "  x: {role: ood, images: &a [*a]}", "sets.x.images.0: input should be a valid string"),
        ("crop: .nan\n" + OWN, "crop: input should be"),
        (OWN + "  x: {role: ood, images: a, shrink: 0}", "shrink: input should be greater than .* 1, got 0"),
    ],
)  # fmt: skip
def test_mistakes_in_a_recipe_are_told_with_file_and_key(tmp_path, text, message):
    with refused(message):
        _yaml.read(recipe_of(tmp_path, text))


def test_recipes_that_are_not_files_or_not_text(tmp_path):
    with refused("own.yaml cannot be read: No such file"):
        suites.load(str(tmp_path / "own.yaml"), root=tmp_path)
    (tmp_path / "own.yaml").write_bytes(b"\xff\xfe\x00")
    with refused("own.yaml must be YAML in UTF-8; it is not"):
        suites.summary(str(tmp_path / "own.yaml"))
    (tmp_path / "dir.yaml").mkdir()
    with refused("dir.yaml cannot be read: Is a directory"):
        suites.training(str(tmp_path / "dir.yaml"))


def test_a_recipe_needs_little(tmp_path):
    recipe = _yaml.read(recipe_of(tmp_path, OWN + "  x: {role: shift, images: a, corruption: snow}"))
    assert (recipe.name, recipe.summary) == ("own", "The sets of own.yaml.")
    assert (recipe.backbone, recipe.size, recipe.layers) == ("lite0", None, 1)
    assert recipe.sets["x"].severities == (1, 5)
    (tmp_path / "own.yaml").write_text("training: {lr: 1e-3, epochs: 2}\n" + OWN)
    assert suites.training(str(tmp_path / "own.yaml")) == {"lr": 0.001, "epochs": 2}


def test_families_and_names_of_corruptions_follow_the_set(tmp_path):
    classes(tmp_path / "train", count=4)
    text = OWN + (
        "  A: {role: shift, images: train, part: [0.5, 1], corruption: snow}\n"
        "  B: {role: shift, images: train, part: [0.5, 1], corruption: [snow, fog], family: '{corruption} of B'}\n"
    )
    made, _ = _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path)
    families = {source.name: source.family for source in made if source.role == "shift"}
    assert families == {
        "A-snow-1": "A-1", "A-snow-5": "A-5", "B-snow-1": "snow of B", "B-fog-1": "fog of B", "B-snow-5": "snow of B",
        "B-fog-5": "fog of B",
    }  # fmt: skip


def test_subsets_present_and_in_a_file(tmp_path):
    classes(tmp_path / "train", ("cat", "dog", "eel", "fox"), count=4)
    classes(tmp_path / "few", ("dog", "fox"), count=1)
    classes(tmp_path / "some", ("cat", "dog", "owl"), count=1)
    (tmp_path / "some.txt").write_text("cat tabby\ndog\nowl\n")
    text = (
        OWN
        + "  few: {role: shift, images: few, subset: present}\n  some: {role: shift, images: some, subset: some.txt}"
    )
    made, found = _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path)
    few, some = made[-2:]
    assert (few.subset, few.images.labels.tolist()) == ((1, 3), [1, 3])
    assert (some.subset, some.images.labels.tolist()) == ((0, 1), [0, 1])
    assert found[-1].text == "1 of its 3 classes are not in the training set: 1 images left out"
    wrong = _yaml.read(recipe_of(tmp_path, text.replace("some.txt", "sone.txt")))
    with refused("subset must be present, imagenet-a, imagenet-r, or a file of class names under .*; got 'sone.txt'"):
        _locate.locate(wrong, tmp_path)
    shutil.rmtree(tmp_path / "few" / "fox")
    with refused("a subset has two or more classes; .*few has dog: add others"):
        _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path)
    classes(tmp_path / "few", ("gnu",), count=1)
    with refused("few has also gnu: rename or remove them"):
        _locate.locate(_yaml.read(tmp_path / "own.yaml"), tmp_path)


def test_of_may_stand_before_its_set_and_places_may_be_absolute(tmp_path):
    classes(tmp_path / "elsewhere" / "train", count=4)
    images(tmp_path / "elsewhere" / "odd-1", 2)
    text = f"""
sets:
  again: {{role: shift, of: val}}
  train: {{role: train, images: {tmp_path}/elsewhere/train, part: [0, 0.5]}}
  val: {{role: id, images: {tmp_path}/elsewhere/train, part: [0.5, 1]}}
  odd: {{role: ood, images: "{tmp_path}/else*/odd-*"}}
  odder: {{role: shift, of: odd}}
"""
    (tmp_path / "root").mkdir()
    found = _locate.check(_yaml.read(recipe_of(tmp_path, text)), tmp_path / "root")
    assert [(f.name, f.state, f.images) for f in found] == [
        ("again", "found", 6), ("train", "found", 6), ("val", "found", 6), ("odd", "found", 2),
        ("odder", "unusable", 2),
    ]  # fmt: skip
    text = text.replace("  odder: {role: shift, of: odd}\n", "")
    made, _ = _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path / "root")
    assert [source.name for source in made] == ["again", "train", "val", "odd"]


def test_a_table_without_the_column_is_refused_not_left_out(tmp_path):
    classes(tmp_path / "train", count=4)
    (tmp_path / "more.csv").write_text("path,kind\ntrain/cat/0.png,cat\n")
    text = OWN + "  more: {role: shift, images: more.csv, label_column: knd}"
    with refused("set 'more' of suite own cannot be used: .*more.csv has no column 'knd': choose among path, kind"):
        load(recipe_of(tmp_path, text), tmp_path)


def test_each_place_is_listed_once(tiny, monkeypatch):
    listed, find = [], ImageSet.find

    def noted(place, **options):
        listed.append(place.name)
        return find(place, **options)

    monkeypatch.setattr(ImageSet, "find", noted)
    _locate.locate(suites.RECIPES["tiny-imagenet"], tiny)
    assert listed == ["train", "val", "textures"]


def test_the_extra_for_corruptions_is_missed_before_any_work(tiny, monkeypatch, tmp_path):
    def missing(*args, **rest):
        raise DissensusError("corruptions need imagecorruptions: pip install 'dissensus[corruptions]'")

    monkeypatch.setattr("dissensus.images.corruptions.corrupt", missing)
    with refused("corruptions need imagecorruptions: pip install"):
        load("tiny-imagenet", tiny, features=tmp_path / "features")
    assert not (tmp_path / "features").exists()


# --- where features are kept ---------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    classes(tmp_path / "data" / "train", count=2)
    classes(tmp_path / "data" / "val", count=1)
    classes(tmp_path / "data" / "held-out", count=1)
    return tmp_path / "data"


def test_features_of_two_backbones_are_kept_apart_and_of_two_weights_refused(small, tmp_path, monkeypatch):
    keep = tmp_path / "features"
    first = load("folders", small, features=keep)
    other = load("folders", small, features=keep, size=48)
    assert first.train.fingerprint != other.train.fingerprint
    load("folders", small, features=keep, backbone="test_resnet")
    load("folders", small, features=keep, augment=2)
    load("folders", small, features=keep, layers=2)
    assert sorted(path.name for path in (keep / "folders").iterdir()) == [
        "test_resnet-32px", "test_vit-32px", "test_vit-32px-2layers", "test_vit-48px",
    ]  # fmt: skip
    assert (keep / "folders" / "test_vit-32px" / "train-2passes" / "index.json").is_file()
    with refused("holds other features .backbone crop is .* there, 0.5 here.: choose another folder, or delete it"):
        load("folders", small, features=keep, crop=0.5)
    image(small / "train" / "cat" / "new.png")
    with refused("holds other features .images is"):
        load("folders", small, features=keep)


def test_the_cache_is_never_in_the_way(small, cache):
    once = load("folders", small)
    for options in ({"crop": 0.5}, {"augment": 2}, {"dtype": "float32"}, {"seed": 1}):
        assert len(load("folders", small, **options).train)
    image(small / "train" / "cat" / "new.png")
    assert len(load("folders", small).train) == len(once.train) + 1
    assert cache in once.train.folder.parents


def test_a_second_load_extracts_nothing(small, monkeypatch):
    first = load("folders", small)

    def no_engine(*args):
        raise AssertionError("nothing should be extracted again")

    monkeypatch.setattr("dissensus.backbones.engines.create", no_engine)
    assert load("folders", small).train.fingerprint == first.train.fingerprint


def test_every_recipe_is_a_recipe():
    assert all(isinstance(recipe, Recipe) for recipe in suites.RECIPES.values())
    with refused("suite 'digits' has its own data: there is nothing to look for"):
        suites.recipe("digits", Path())
    with refused("unknown suite 'pac': did you mean 'pacs'"):
        suites.recipe("pac", Path())
