"""The built-in recipes, on trees of tiny images in the layouts that they ask for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from dissensus import suites
from dissensus.images import corruptions
from dissensus.suites import _locate
from dissensus.suites._locate import subset_names
from dissensus.suites._recipe import Recipe
from tests.suites.helpers import by_name, load, names_of, refused, roles
from tests.trees import classes, image, images


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
    messages: list[str] = []
    suite = load("imagenet", imagenet, messages)
    trained = (NEITHER, ONLY_R, BOTH, ONLY_A)
    assert suite.train.classes == trained == tuple(sorted(trained))
    sets = by_name(suite)
    stored = [f"C-{name}-{severity}" for severity in (1, 5) for name in ("gaussian_noise", "snow")]
    assert roles(suite) == {
        "val": "id", "IN-A": "shift", "IN-R": "shift", **dict.fromkeys(stored, "shift"), "iNaturalist": "ood",
        "OpenImages-O": "ood",
    }  # fmt: skip
    assert sets["C-snow-5"].family == "C-5"
    assert sets["val"].family == ""
    # labels are those of training, the subset those of the list that are trained on
    assert sets["IN-A"].subset == (2, 3)
    assert sets["IN-A"].features.labels.tolist() == [2, 2, 2, 3, 3, 3]
    assert sets["IN-R"].subset == (1, 2)
    assert sets["IN-R"].features.labels.tolist() == [1, 1, 2, 2]
    assert sets["C-snow-1"].features.labels.tolist() == [0, 1, 2, 3]
    assert sets["C-snow-1"].subset is None
    assert sets["C-snow-1"].features.provenance["corruption"] is None, "stored, not computed"
    assert len(sets["iNaturalist"].features) == 3
    assert len(sets["OpenImages-O"].features) == 3
    assert sets["OpenImages-O"].features.labels is None
    assert [line for line in messages if "IN-A" in line] == [
        "imagenet: IN-A (shift): 198 of its 200 classes are not in the training set: 3 images left out"
    ]
    assert any("C (shift): 26 of 30 missing, such as C-shot_noise-1: unpack ImageNet-C" in line for line in messages)
    assert len(messages) == 2


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
    messages: list[str] = []
    suite = load("imagenet", root, messages)
    sets = by_name(suite)
    assert len(sets["iNaturalist"].features) == 2
    assert sets.keys() & {"IN-A", "IN-R", "OpenImages-O"} == set()
    for name in ("IN-A", "IN-R"):  # of the first no class is trained on, of the second one
        line = next(line for line in messages if f"without {name} (shift): missing: " in line)
        assert "has fewer than two classes of the training set: unpack" in line
    assert any(
        "without OpenImages-O (ood): missing: " in line and "which is not a folder: fetch" in line for line in messages
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
    assert [len(features) for features in (suite.train, suite.pool, suite.labels)] == [12, 12, 12]
    assert suite.disagree_on is suite.pool
    assert (suite.pool.labels, suite.pool.groups) == (None, None)
    assert suite.labels.folder == suite.pool.folder, "extracted once"
    assert suite.labels.groups.bincount().tolist() == [3, 3, 3, 3]
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


def test_tiny_imagenet_is_all_there(tiny):
    sources, statuses = _locate.locate(suites.RECIPES["tiny-imagenet"], tiny)
    assert {f.state for f in statuses} == {"found"}
    assert [f.sets for f in statuses] == [1, 1, 1, 30, 1]
    shifts = [source for source in sources if source.role == "shift"]
    assert [source.corruption for source in shifts] == [(name, s) for s in (1, 5) for name in corruptions.CORRUPTIONS]
    assert {source.family for source in shifts} == {"C-1", "C-5"}
    train, held_out = sources[0].images, sources[1].images
    assert (len(train), len(held_out)) == (57, 3)
    assert not names_of(train) & names_of(held_out)
    textures = sources[-1].images
    assert textures.image(0).size == (64, 64), "shrunk"
    assert textures.labels is None


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    root = tmp_path_factory.mktemp("pacs")
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        classes(root / domain, count=10 if domain == "photo" else 2)
    return root


def test_pacs_splits_do_not_overlap_and_are_stable(pacs):
    recipe = suites.RECIPES["pacs"]
    sources = {source.name: source.images for source in _locate.locate(recipe, pacs, seed=3)[0]}
    again = {source.name: source.images for source in _locate.locate(recipe, pacs, seed=3)[0]}
    other = {source.name: source.images for source in _locate.locate(recipe, pacs, seed=4)[0]}
    splits = [names_of(sources[name]) for name in ("train", "held-out", "photo")]
    assert [len(split) for split in splits] == [21, 3, 6]
    assert len(set.union(*splits)) == 30
    assert all(sources[name].fingerprint == again[name].fingerprint for name in sources)
    assert sources["train"].fingerprint != other["train"].fingerprint
    assert sources["art"].fingerprint == other["art"].fingerprint


def test_pacs(pacs):
    messages: list[str] = []
    suite = load("pacs", pacs, messages)
    assert roles(suite) == {"photo": "id", "art": "shift", "cartoon": "shift", "sketch": "shift"}
    assert len(suite.held_out) == 3
    assert suite.disagreement is None
    assert messages == [
        "pacs goes on without textures (ood): missing: unpack the Describable Textures (Cimpoi et al. 2014) as "
        "textures/banded/..."
    ]


def test_every_recipe_is_a_recipe():
    assert all(isinstance(recipe, Recipe) for recipe in suites.RECIPES.values())
    with refused("suite 'digits' has its own data: there is nothing to look for"):
        suites.recipe("digits", Path())
    with refused("unknown suite 'pac': did you mean 'pacs'"):
        suites.recipe("pac", Path())
