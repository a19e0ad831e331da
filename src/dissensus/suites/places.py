"""Where the sets of a recipe are: what is there, what is missing, and the images of what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from timm.data.imagenet_info import ImageNetInfo

from dissensus.errors import DataError, DissensusError
from dissensus.images import ImageSet
from dissensus.suites.gather import Source
from dissensus.suites.recipe import Recipe, SetRecipe, some

SUBSETS = {"imagenet-a": "imagenet_a_synsets.txt", "imagenet-r": "imagenet_r_synsets.txt"}


@dataclass(frozen=True)
class Found:
    """One set of a recipe in a root: how many images, or the problem and what to do about it."""

    name: str
    role: str
    place: str
    images: int = 0
    classes: int = 0
    sets: int = 1
    problem: str = ""


def check(recipe: Recipe, root: Path) -> list[Found]:
    """Look for every set of the recipe under the root."""
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is none: check the path")
    by_name = {s.name: s for s in recipe.sets}
    return [
        _look(s if s.of is None else replace(by_name[s.of], name=s.name, role=s.role), recipe, root)
        for s in recipe.sets
    ]


def _look(s: SetRecipe, recipe: Recipe, root: Path) -> Found:
    wanted = list(_variants(s))
    there = [(variant, place) for variant in wanted if (place := _place(variant, root)) is not None]
    shown = " or ".join(s.images)
    if not there:
        return Found(s.name, s.role, shown, problem=f"missing: {s.get or recipe.get or 'put it there'}")
    try:
        images = _images(*there[0], root, seed=0)
    except DataError as error:
        return Found(s.name, s.role, shown, problem=str(error))
    gone = len(wanted) - len(there)
    return Found(
        s.name,
        s.role,
        str(there[0][1].relative_to(root)) if len(wanted) == 1 or not s.stored else shown,
        images=len(images),
        classes=0 if images.labels is None else len(images.classes),
        sets=len(there),
        problem=f"{gone} of {len(wanted)} missing" if gone else "",
    )


def sources(recipe: Recipe, root: Path, *, seed: int = 0) -> tuple[list[Source], list[Found]]:
    """The images of every set that is there, labelled as in training, and those sets that are missing.

    Without a training set and an id set there is nothing to do: that is refused.
    """
    found = check(recipe, root)
    missing = [f for f in found if f.problem]
    for f in missing:
        if f.role in ("train", "id"):
            raise DataError(f"suite {recipe.name} needs its {f.role} set {f.name}, at {root / f.place}; {f.problem}")
    gone = {f.name for f in missing if not f.images}
    train = next(s for s in recipe.sets if s.role == "train")
    classes = _images(train, _there(train, root), root, seed).classes
    made: list[Source] = []
    for s in recipe.sets:
        if s.name in gone or s.of in gone:
            continue
        if s.of is not None:
            origin = next(source for source in made if source.name == s.of)
            made.append(Source(s.name, s.role, origin.images, family=s.family, of=s.of))
            continue
        for variant in _variants(s):
            if (place := _place(variant, root)) is not None:
                made.append(_source(variant, place, root, classes, seed, several=len(s.corruption) > 0))
    return made, missing


def _source(s: SetRecipe, place: Path, root: Path, classes: Sequence[str], seed: int, several: bool) -> Source:
    images = _images(s, place, root, seed)
    labelled = s.role not in ("ood", "disagreement") and images.labels is not None
    subset = None
    if labelled:
        subset = _subset(s, images, root, classes)
        _check_folders(s, images, place, classes)
        images = images.relabelled(classes)
    name, corruption = s.name, None
    if several:
        name, family = f"{s.corruption[0]}-{s.severities[0]}", s.family or f"C-{s.severities[0]}"
        corruption = None if s.stored else (s.corruption[0], s.severities[0])
        return Source(name, s.role, images, family=family, subset=subset, corruption=corruption)
    return Source(name, s.role, images, family=s.family, subset=subset)


def _variants(s: SetRecipe) -> Iterator[SetRecipe]:
    """The set itself, or one with each of its corruptions and severities."""
    if not s.corruption:
        yield s
    for severity in s.severities if s.corruption else ():
        for corruption in s.corruption:
            places = tuple(p.replace("{corruption}", corruption).replace("{severity}", str(severity)) for p in s.images)
            yield replace(s, images=places if s.stored else s.images, corruption=(corruption,), severities=(severity,))


def _place(s: SetRecipe, root: Path) -> Path | None:
    """The first of the set's places that is there; a * stands for any name."""
    for place in s.images:
        found = sorted(root.glob(place)) if "*" in place else [root / place]
        if found and found[0].exists():
            return found[0]
    return None


def _there(s: SetRecipe, root: Path) -> Path:
    place = _place(s, root)
    assert place is not None  # the caller has looked
    return place


def _images(s: SetRecipe, place: Path, root: Path, seed: int) -> ImageSet:
    listed = place.is_file() and place.suffix != ".tar"
    images = ImageSet.find(
        place,
        unlabelled=s.unlabelled,
        base=root / s.base if s.base is not None and listed else None,
        image_column=s.image_column,
        label_column=s.label_column,
        group_columns=s.group_columns,
        only=s.only or None,
    )
    if s.part is not None:
        images = images.part(*s.part, seed)
    return images if s.shrink is None else images.shrunk(s.shrink)


def _subset(s: SetRecipe, images: ImageSet, root: Path, classes: Sequence[str]) -> tuple[int, ...] | None:
    """The places of the set's classes among those of training, where the set has a part of them only."""
    if s.subset is None:
        return None
    if s.subset == "present":
        names = list(images.classes)
    elif s.subset in SUBSETS:
        names = subset_names(s.subset)
    elif (root / s.subset).is_file():
        names = [line.split()[0] for line in (root / s.subset).read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        known = ", ".join(["present", *SUBSETS])
        raise DataError(f"subset must be {known}, or a file of class names; set {s.name!r} has {s.subset!r}")
    places = {name: i for i, name in enumerate(classes)}
    if strangers := [name for name in names if name not in places]:
        raise DataError(f"a subset lists classes of the training set; {s.name} has {some(strangers)} besides")
    return tuple(sorted(places[name] for name in names))


def subset_names(name: str) -> list[str]:
    """The 200 wnids of ImageNet-A or -R."""
    import pkgutil

    data = pkgutil.get_data(ImageNetInfo.__module__, f"_info/{SUBSETS[name]}")
    assert data is not None  # it comes with timm
    return data.decode().split()


def _check_folders(s: SetRecipe, images: ImageSet, place: Path, classes: Sequence[str]) -> None:
    strange, absent = sorted(set(images.classes) - set(classes)), sorted(set(classes) - set(images.classes))
    if strange:
        raise DataError(
            f"class folders must be those of the training set, {some(classes)}; {place} has {some(strange)} besides: "
            "rename or remove them"
        )
    if absent and s.subset is None:
        raise DataError(
            f"class folders must be those of the training set; {place} lacks {some(absent)}: add them, or say "
            "`subset: present` in the suite's YAML"
        )
