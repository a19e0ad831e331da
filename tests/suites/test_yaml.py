"""Recipes in YAML: every mistake is one line that names file, set and key."""

from __future__ import annotations

import pytest

from dissensus import suites
from dissensus.suites import _yaml
from tests.suites.helpers import OWN, recipe_of, refused


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
        (OWN + "  x: {role: pool, images: a}\n  y: {role: pool, images: b}", "one set of role pool; .* x and y"),
        (OWN + "  x: {role: pool, images: a}\n  y: {role: labels, images: b}", "own.yaml has both: leave `pool` out"),
        (OWN + "  x: {role: labels, images: train}", "not evaluated on its training images; set 'x' of .*own.yaml"),
        (OWN + "  x: {role: labels, of: val}", "not evaluated on images whose labels it is given; set 'val' of"),
        (OWN + "  x: {role: labels, images: a}\n  y: {role: groups, of: x}", "whose labels it is given; set 'y' of"),
        (OWN + "  x: {role: labels, images: a}\n  y: {role: shift, images: a}", "whose labels it is given; set 'y' of"),
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
        (OWN + "  x: {role: ood, images: &a [*a]}", "own.yaml must be YAML; .*an alias stands for what it is in"),
        ("crop: .nan\n" + OWN, "crop: input should be"),
        (OWN + "  x: {role: ood, images: a, shrink: 0}", "shrink: input should be greater than .* 1, got 0"),
    ],
)  # fmt: skip
def test_mistakes_in_a_recipe_name_file_and_key(tmp_path, text, message):
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
