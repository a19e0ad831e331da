"""The hub, served on this machine: what is pushed comes back, and whatever goes wrong is one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, constants
from PIL import Image

from dissensus import backbones
from dissensus._core.errors import DataError, RunError
from dissensus.cli import main
from dissensus.detection import hub, pretrained
from dissensus.detection.detector import Detector
from dissensus.evaluation import saved
from dissensus.evaluation.suite import SuiteSet
from dissensus.features import extract
from dissensus.images import ImageStream
from dissensus.models.ensemble import Ensemble
from dissensus.training import new_ensemble
from dissensus.training._fit import fit
from dissensus.training.run import Run
from tests.conftest import blobs, linear

# huggingface_hub uploads files in a way that its HTTP client has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on features, calibrated and evaluated."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    ensemble = fit(linear(), blobs(), "sed-a2d", epochs=2, out=folder, progress=False)
    Detector.load(folder).calibrate(blobs(100, seed=1), 0.1).save(folder)
    sets = [SuiteSet("id", "id", blobs(60, seed=2)), SuiteSet("far", "ood", blobs(60, seed=3, noise=9.0).unlabelled())]
    saved.evaluate_run(Run.open(folder), ensemble, sets, suite="my blobs", progress=False)
    return folder


def same(one, other):
    a, b = one.predict(blobs(50, seed=4)), other.predict(blobs(50, seed=4))
    return torch.equal(a.label, b.label) and torch.equal(a.p_value, b.p_value) and torch.equal(a.out, b.out)


def refused(pattern):
    return pytest.raises(RunError, match=f"^[^\\n]*{pattern}[^\\n]*$")


def test_what_is_pushed_comes_back(folder, hub_stub, tmp_path):
    detector = Detector.load(folder)
    commit = detector.push_to_hub("me/blobs", private=True, license="mit", datasets=["you/blobs"])
    repo = hub_stub.repos["models", "me/blobs"]
    assert commit == f"{hub_stub.url}/me/blobs/commit/{repo.at().name}"
    assert repo.private
    assert repo.messages[-1].startswith("Push a detector of dissensus ")
    again = Detector.from_pretrained("me/blobs", cache_dir=tmp_path / "cache")
    assert same(detector, again)
    assert (tmp_path / "cache" / "models--me--blobs").is_dir()
    assert not (tmp_path / "hub-cache" / "models--me--blobs").exists()
    assert not [path for path in repo.at().rglob("*") if path.suffix not in (".json", ".safetensors", ".md", "")]
    card = ModelCard.load("me/blobs")
    assert (card.data.license, card.data.library_name, card.data.datasets) == ("mit", "dissensus", ["you/blobs"])
    assert card.data.metrics == ["accuracy", "roc_auc"]
    frame = saved.load(folder).frame
    rows = frame[(frame["metric"] == "accuracy") & (frame["aggregate"] == "prediction") & (frame["dataset"] == "id")]
    results = {(r.dataset_name, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert results["my blobs: id", "accuracy"] == pytest.approx(float(rows["value"].iloc[0]), abs=1e-4)
    assert results["my blobs: far", "roc_auc"] > 0.5
    assert 'Detector.from_pretrained("me/blobs")' in card.content
    assert "No license" not in card.content


def test_a_push_replaces_the_detector_before(folder, hub_stub):
    detector = Detector.load(folder)
    detector.push_to_hub("blobs")  # of the user
    repo = hub_stub.repos["models", "me/blobs"]
    repo.commit("main", repo.at().name, {"notes.txt": b"mine"}, "notes")
    first = Detector.from_pretrained("me/blobs")
    detector.calibrate(blobs(200, seed=7), 0.2)
    detector.push_to_hub("me/blobs", commit_message="calibrated on more")
    files = [path.name for path in repo.at().iterdir()]
    assert len([name for name in files if name.startswith("detector-")]) == 1, "the calibration before is gone"
    assert "notes.txt" in files
    assert repo.messages[-1] == "calibrated on more"
    again = Detector.from_pretrained("me/blobs")
    assert same(detector, again)
    assert not same(detector, first)
    assert again.training == detector.training
    again.push_to_hub("me/copy")  # without its run
    assert same(detector, Detector.from_pretrained("me/copy"))
    text = (hub_stub.repos["models", "me/copy"].at() / "README.md").read_text()
    assert "| method | sed-a2d |" in text
    assert "Nothing yet" in text


def test_branches_and_pull_requests(folder, hub_stub):
    detector = Detector.load(folder)
    detector.push_to_hub("me/blobs")
    main_before = hub_stub.repos["models", "me/blobs"].at().name
    detector.calibrate(blobs(200, seed=7), 0.2)
    commit = detector.push_to_hub("me/blobs", branch="more")
    asked = detector.push_to_hub("me/blobs", create_pr=True)
    assert asked.pr_url == f"{hub_stub.url}/me/blobs/discussions/1"
    assert hub_stub.repos["models", "me/blobs"].at().name == main_before
    for revision in ("more", commit.oid):
        assert same(detector, Detector.from_pretrained("me/blobs", revision=revision))
    assert not same(detector, Detector.from_pretrained("me/blobs"))
    with refused("has no such revision as v9.*; give a branch, tag or commit"):
        Detector.from_pretrained("me/blobs", revision="v9")


def test_what_is_fetched_is_there_without_a_connection(folder, hub_stub, monkeypatch):
    Detector.load(folder).push_to_hub("me/blobs")
    with refused("its cache has none.*leave out local_files_only"):
        Detector.from_pretrained("me/blobs", local_files_only=True)
    Detector.from_pretrained("me/blobs")
    hub_stub.close()
    assert same(Detector.load(folder), Detector.from_pretrained("me/blobs", local_files_only=True))
    assert same(Detector.load(folder), Detector.from_pretrained("me/blobs"))
    with refused("no detector at me/other: .*it cannot be reached, and its cache has none.*check the name and the net"):
        Detector.from_pretrained("me/other")
    with refused("cannot push to me/blobs: the hub cannot be reached; check the network"):
        Detector.load(folder).push_to_hub("me/blobs")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("HF_HUB_OFFLINE is set, and its cache has none.*unset it"):
        Detector.from_pretrained("me/other")


def test_no_access_is_one_line(folder, hub_stub, monkeypatch):
    detector = Detector.load(folder)
    detector.push_to_hub("me/blobs", private=True)
    detector.push_to_hub("me/gated")
    hub_stub.repos["models", "me/gated"].gated = True
    with refused("no detector at me/nothing: .*no such repository, or it is a private one.*check the name, or log in"):
        Detector.from_pretrained("me/nothing")
    with refused("no such repository, or it is a private one.*log in with hf auth login, or set HF_TOKEN"):
        Detector.from_pretrained("me/blobs", token="hf_you")
    with refused("no such repository, or it is a private one"):
        Detector.from_pretrained("me/blobs", token=False)
    with refused("its owner restricts access.*ask for it at http.*me/gated, and log in"):
        Detector.from_pretrained("me/gated", token="hf_you")
    with refused("the token is not valid.*log in with hf auth login"):
        Detector.from_pretrained("me/blobs", token="hf_wrong")
    with refused("cannot push to me/blobs: the token is not valid; log in"):
        detector.push_to_hub("me/blobs", token="hf_wrong")
    with refused("cannot push to you/blobs: the token has no permission for it; use one that has, or another name"):
        detector.push_to_hub("you/blobs")
    with refused(r"cannot push to me/blobs: Invalid metadata in README.md. - .license. must be one of \[mit"):
        detector.push_to_hub("me/blobs", license="mine")
    pushed = len(hub_stub.requests)
    for name in ("a/b/c", "", "me/", "me/a b"):
        with refused(f"a repository on the hub is named OWNER/NAME; got '{name}': give one"):
            detector.push_to_hub(name)
    monkeypatch.delenv("HF_TOKEN")
    with refused("cannot push to me/blobs: not logged in to the hub; log in with hf auth login, or set HF_TOKEN"):
        detector.push_to_hub("me/blobs")
    with refused("hub does not give one .not logged in.; log in with"):
        Detector.from_pretrained("me/blobs", token=True)
    assert len(hub_stub.requests) == pushed, "known before anything is sent"


def test_a_token_is_stripped_and_never_printed(folder, hub_stub, monkeypatch):
    detector = Detector.load(folder)
    detector.push_to_hub("blobs", token=" hf_me\n")
    assert same(detector, Detector.from_pretrained("me/blobs", token="hf_me\n"))
    for token in ("hf_SEC\nRET", "SEC\nRET"):  # no client sends it, and its message has the header
        for attempt in (
            lambda token=token: detector.push_to_hub("me/blobs", token=token),
            lambda token=token: detector.push_to_hub("blobs", token=token),
            lambda token=token: Detector.from_pretrained("me/blobs", token=token, force_download=True),
        ):
            with refused(r"me/blobs|to blobs") as raised:
                attempt()
            assert "RET" not in str(raised.value)
    for text in (
        "Illegal header value b'Bearer abc def'", "for hf_abcdefgh: no", "at https://me:abc@host/x", "of abcdef.",
        "x" * 150 + " abcdefghijklmnop",
    ):  # fmt: skip
        monkeypatch.setenv("HF_TOKEN", "abcdefghijklmnop" if "klm" in text else "abcdef")
        assert "abc" not in hub._first_line(ValueError(text), None)


def export(capsys, *arguments):
    try:
        code = main(["export", *map(str, arguments)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()


def test_the_command_pushes(folder, hub_stub, tmp_path, capsys, monkeypatch):
    code, out, err = export(capsys, folder, "--to", "hub", "--push", "blobs", "--private", "--license", "mit")
    repo = hub_stub.repos["models", "me/blobs"]
    assert (code, out) == (0, "detector = Detector.from_pretrained('me/blobs')\n")
    assert f"pushed to {hub_stub.url}/me/blobs/commit/{repo.at().name}\n" in err
    assert repo.private
    out_folder, saved_to, save = tmp_path / "mine", [], Ensemble.save
    monkeypatch.setattr(Ensemble, "save", lambda self, path: (saved_to.append(path), save(self, path))[1])
    code, out, err = export(
        capsys, folder, "--to", "hub", "--push", "me/blobs", "--branch", "b", "--license", "mit", "--out", out_folder
    )
    assert (code, out) == (0, "detector = Detector.from_pretrained('me/blobs', revision='b')\n")
    assert len(saved_to) == 1, "what is pushed is what is kept"
    assert (out_folder / "README.md").read_bytes() == (repo.at("b") / "README.md").read_bytes()
    code, out, err = export(capsys, folder, "--to", "hub", "--push", "you/blobs", "--out", tmp_path / "other")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("dissensus: error: cannot push to you/blobs: the token has no permission")
    assert not (tmp_path / "other").exists()
    requests = len(hub_stub.requests)
    code, out, err = export(capsys, folder, "--to", "hub", "--push", "me/blobs", "--out", out_folder)
    assert (code, len(hub_stub.requests)) == (2, requests), "the folder is looked at before anything is pushed"
    assert "must be a new or an empty folder" in err

    def full(*_, **__):
        raise RunError("cannot write it: the disk is full")

    monkeypatch.setattr(pretrained, "write", full)
    code, out, err = export(capsys, folder, "--to", "hub", "--push", "me/new", "--out", tmp_path / "new")
    assert (code, "disk is full" in err, ("models", "me/new") in hub_stub.repos) == (2, True, False)


def test_a_data_set_is_streamed_from_the_hub(hub_stub, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub_stub.url)
    info = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 40, 40, 3), dtype=np.uint8)
    files = {}
    for i, images in enumerate(pixels):
        rows = {"image": list(map(Image.fromarray, images)), "label": [0, 1] * 3}
        datasets.Dataset.from_dict(rows, features=info).to_parquet(tmp_path / "shard.parquet")
        files[f"data/train-{i:05}-of-00002.parquet"] = (tmp_path / "shard.parquet").read_bytes()
    repo = hub_stub.create("me/photos", kind="datasets", private=True)
    repo.commit("main", repo.at().name, files, "photos")
    dataset = datasets.load_dataset("me/photos", split="train", streaming=True, cache_dir=str(tmp_path / "cache"))
    stream = ImageStream.from_dataset(dataset)
    backbone = backbones.create("test_vit", "random", size=32)
    # every worker has shards of its own, of which it reads all rows
    features = extract(stream, backbone, tmp_path / "streamed", workers=2, batch_size=4, progress=False)
    rows = torch.cat([backbone.trunk(backbone.transform(Image.fromarray(image))[None]) for image in np.vstack(pixels)])
    torch.testing.assert_close(features.rows(slice(None)), rows.detach(), rtol=2e-3, atol=2e-3)
    assert (features.labels.tolist(), features.classes) == ([0, 1] * 6, ("cat", "dog"))
    fit(new_ensemble(features, 2), features, "deep-ensemble", epochs=1, out=tmp_path / "run", progress=False)
    detector = Detector.load(tmp_path / "run")
    verdicts = list(detector.stream(stream, workers=2))
    listed = detector.predict(np.vstack(pixels))
    assert [v.name for v in verdicts] == [f"{shard}/{i}" for shard in stream.shards for i in range(6)]
    assert [v.class_name for v in verdicts] == [v.class_name for v in listed]
    assert [v.score for v in verdicts] == pytest.approx([v.score for v in listed], rel=1e-3)
    with pytest.raises(DataError, match=r"an ImageStream is read in order: use Detector.stream, or extract it first"):
        detector.predict(stream)
    with pytest.raises(DataError, match=r"got IterableDataset; .*ImageSet.from_dataset or ImageStream.from_dataset"):
        detector.predict(dataset)
