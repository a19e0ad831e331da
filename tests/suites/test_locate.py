"""Which images the sets of a recipe have: subsets, shared sets, tables, corruptions."""

from __future__ import annotations

import shutil

from dissensus import suites
from dissensus.images import ImageSet
from dissensus.suites import _locate, _yaml
from tests.suites.helpers import OWN, load, recipe_of, refused
from tests.trees import classes, images


def test_families_and_names_of_corruptions_follow_the_set(tmp_path):
    classes(tmp_path / "train", count=4)
    text = OWN + (
        "  A: {role: shift, images: train, part: [0.5, 1], corruption: snow}\n"
        "  B: {role: shift, images: train, part: [0.5, 1], corruption: [snow, fog], family: '{corruption} of B'}\n"
    )
    sources, _ = _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path)
    families = {source.name: source.family for source in sources if source.role == "shift"}
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
    sources, statuses = _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path)
    few, some = sources[-2:]
    assert (few.subset, few.images.labels.tolist()) == ((1, 3), [1, 3])
    assert (some.subset, some.images.labels.tolist()) == ((0, 1), [0, 1])
    assert statuses[-1].text == "1 of its 3 classes are not in the training set: 1 images left out"
    wrong = _yaml.read(recipe_of(tmp_path, text.replace("some.txt", "sone.txt")))
    with refused("subset must be present, any, imagenet-a, imagenet-r, or a file of class names .*; got 'sone.txt'"):
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
    statuses = _locate.check(_yaml.read(recipe_of(tmp_path, text)), tmp_path / "root")
    assert [(f.name, f.state, f.images) for f in statuses] == [
        ("again", "found", 6), ("train", "found", 6), ("val", "found", 6), ("odd", "found", 2),
        ("odder", "unusable", 2),
    ]  # fmt: skip
    text = text.replace("  odder: {role: shift, of: odd}\n", "")
    sources, _ = _locate.locate(_yaml.read(recipe_of(tmp_path, text)), tmp_path / "root")
    assert [source.name for source in sources] == ["again", "train", "val", "odd"]


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


def test_a_pool_has_no_labels_and_labels_make_a_pool(tmp_path):
    classes(tmp_path / "train", count=4)
    classes(tmp_path / "there", count=3)
    suite = load(recipe_of(tmp_path, OWN + "  there: {role: pool, images: there}\n"), tmp_path)
    assert (len(suite.pool), suite.pool.labels, suite.labels) == (9, None, None)
    assert suite.disagree_on is suite.pool
    suite = load(recipe_of(tmp_path, OWN + "  there: {role: labels, images: there}\n"), tmp_path)
    assert (len(suite.pool), suite.pool.labels) == (9, None)
    assert suite.labels.class_counts.tolist() == [3, 3, 3]
    text = OWN + "  there: {role: labels, images: there}\n  far: {role: disagreement, images: there/cat}\n"
    suite = load(recipe_of(tmp_path, text), tmp_path)
    assert suite.disagree_on is suite.disagreement
    statuses = _locate.check(_yaml.read(tmp_path / "own.yaml"), tmp_path)
    assert [(s.role, s.images, s.classes) for s in statuses[2:]] == [("labels", 9, 3), ("disagreement", 3, 0)]
