"""fit(): every method trains, the switches do what they say, misuse is refused before anything is written."""

from __future__ import annotations

import json
import math

import pytest
import torch
from lightning_fabric import Fabric

from dissensus._core.errors import DataError, DissensusError, RunError, ShapeError, UnknownNameError
from dissensus.features import FeatureSet
from dissensus.functional import losses
from dissensus.functional.checks import widest
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import METHODS, fit, logbook, optim, step
from dissensus.training.options import DIVERSITY, Task, TrainOptions
from dissensus.training.run import Run
from dissensus.training.step import Batch, Stepper
from tests.conftest import blobs, linear

QUICK = {"epochs": 8, "lr": 0.05, "batch_size": 32, "progress": False}


def accuracy(ensemble: Ensemble, features: FeatureSet) -> float:
    with torch.no_grad():
        logits = ensemble(features.rows(slice(None))).mean(0)
    return float((logits.argmax(-1) == features.labels).double().mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_every_method_learns(method, tail, train, elsewhere):
    recipe = METHODS[method]
    ensemble = Ensemble(tails.create(tail, 6, 3), members=recipe.members or 4)
    options = {"disagreement": elsewhere if recipe.takes_set else None, "confidence": 0.8, "epochs": 25}
    if tail == "mlp":
        options["lr"] = 0.01
    fit(ensemble, train, method, **{**QUICK, **options})
    assert accuracy(ensemble, blobs(seed=1)) > 0.85
    assert not ensemble.training


def test_a_general_module_trains_and_optimiser_schedule_and_clip_matter(train):
    def trained(**options):
        ensemble = Ensemble(
            lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), 3
        )
        return fit(ensemble, train, **{**QUICK, "epochs": 20, **options})

    plain = trained()
    assert accuracy(plain, train) > 0.85
    for change in (
        {"optimizer": "sgd"},
        {"schedule": "constant"},
        {"clip": 0.1},
        {"label_smoothing": 0.2},
        {"seed": 1},
    ):
        other = trained(**change)
        assert not torch.equal(other.stacked()["0.weight"], plain.stacked()["0.weight"]), change


def step_by_definition(ensemble, x, labels, active, diversity, main="active", hardness="active"):
    """One SGD step without momentum on the readable definition of the loss."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in ensemble.stacked().items()}
    logits = ensemble.run(leaves, x)
    judged = logits if hardness == "all" else logits[active]
    alpha = losses.hardness(judged, labels)
    own = losses.cross_entropy(logits if main == "all" else logits[active], labels).mean()
    loss = own + diversity / 2 * (alpha * losses.a2d(logits[active])).mean()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {name: leaf.detach() - 0.1 * grad for (name, leaf), grad in zip(leaves.items(), grads, strict=True)}


@pytest.mark.parametrize("main", ["active", "all"])
@pytest.mark.parametrize("hardness", ["active", "all"])
@pytest.mark.parametrize("tail", ["linear", "mlp"])
@pytest.mark.parametrize("norm", ["l2", "layer", "none"])
def test_a_step_is_the_gradient_of_the_definition(main, hardness, tail, norm, train):
    ensemble = Ensemble(tails.create(tail, 6, 3, norm), members=4).double()
    x, labels = train.rows(slice(0, 20)).double(), train.labels[:20]
    active = torch.tensor([2, 0])
    expected = step_by_definition(ensemble, x, labels, active, 0.7, main, hardness)
    settings = make_settings(members=4, active=2, diversity=0.7, main=main, hardness=hardness)
    Stepper(ensemble, settings, Fabric(accelerator="cpu", devices=1))(Batch(x, labels, 20), active, 1.0)
    for name, value in ensemble.stacked().items():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("regulariser", ["a2d", "divdis"])
def test_a_step_on_a_disagreement_set_is_the_gradient_of_the_definition(regulariser, train, elsewhere):
    ensemble = linear().double()
    x, labels, there = train.rows(slice(0, 20)).double(), train.labels[:20], elsewhere.rows(slice(0, 15)).double()
    leaves = {name: value.detach().clone().requires_grad_() for name, value in ensemble.stacked().items()}
    logits = ensemble.run(leaves, there)
    part = losses.a2d(logits).mean() if regulariser == "a2d" else losses.divdis(logits)
    loss = losses.cross_entropy(ensemble.run(leaves, x), labels).mean() + 0.7 / 2 * part
    grads = torch.autograd.grad(loss, list(leaves.values()))
    settings = make_settings(method=regulariser, members=4, active=4, diversity=0.7)
    stepper = Stepper(ensemble, settings, Fabric(accelerator="cpu", devices=1))
    statistics = stepper(Batch(x, labels, 20, there, 15), torch.arange(4), 1.0)
    assert statistics[0].item() == pytest.approx(loss.item(), rel=1e-10)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        torch.testing.assert_close(ensemble.stacked()[name], leaf - 0.1 * grad, rtol=1e-9, atol=1e-12)


def test_a_sed_divdis_step_is_the_gradient_of_the_definition(train):
    ensemble = linear().double()
    x, labels = train.rows(slice(0, 20)).double(), train.labels[:20]
    leaves = {name: value.detach().clone().requires_grad_() for name, value in ensemble.stacked().items()}
    loss = losses.sed(ensemble.run(leaves, x), labels, 0.7, regulariser="divdis")
    grads = torch.autograd.grad(loss, list(leaves.values()))
    settings = make_settings(method="sed-divdis", members=4, active=4, diversity=0.7)
    Stepper(ensemble, settings, Fabric(accelerator="cpu", devices=1))(Batch(x, labels, 20), torch.arange(4), 1.0)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        torch.testing.assert_close(ensemble.stacked()[name], leaf - 0.1 * grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("regulariser", ["a2d", "divdis"])
@pytest.mark.parametrize("main", ["active", "all"])
def test_a_sed_step_with_a_set_adds_the_term_on_its_samples(regulariser, main, train, elsewhere):
    """CE + diversity/2 (term on training samples by hardness + plain term on the set), pairs of active members."""
    ensemble, active = linear().double(), torch.tensor([2, 0, 3])
    x, labels, there = train.rows(slice(0, 20)).double(), train.labels[:20], elsewhere.rows(slice(0, 15)).double()
    leaves = {name: value.detach().clone().requires_grad_() for name, value in ensemble.stacked().items()}
    here, away = ensemble.run(leaves, x), ensemble.run(leaves, there)[active]
    alpha = losses.hardness(here[active], labels)
    if regulariser == "a2d":
        term = (alpha * losses.a2d(here[active])).mean() + losses.a2d(away).mean()
    else:
        own = losses.sed(here[active], labels, 2.0, regulariser="divdis")
        term = own - losses.cross_entropy(here[active], labels).mean() + losses.divdis(away)
    loss = losses.cross_entropy(here if main == "all" else here[active], labels).mean() + 0.7 / 2 * term
    grads = torch.autograd.grad(loss, list(leaves.values()))
    settings = make_settings(method=f"sed-{regulariser}", members=4, active=3, diversity=0.7, main=main)
    stepper = Stepper(ensemble, settings, Fabric(accelerator="cpu", devices=1))
    statistics = stepper(Batch(x, labels, 20, there, 15), active, 1.0)
    assert statistics[0].item() == pytest.approx(loss.item(), rel=1e-10)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        torch.testing.assert_close(ensemble.stacked()[name], leaf - 0.1 * grad, rtol=1e-9, atol=1e-12)


def test_sed_with_a_set_differs_and_a_weight_of_zero_ignores_the_set(train, elsewhere):
    def weights(method, diversity, disagreement=None):
        ensemble = fit(
            linear(), train, method, epochs=2, diversity=diversity, disagreement=disagreement, progress=False
        )
        return ensemble.stacked()["weight"]

    assert not torch.equal(weights("sed-a2d", 0.5), weights("sed-a2d", 0.5, elsewhere))
    assert torch.equal(weights("a2d", 0), weights("a2d", 0, elsewhere))
    assert torch.equal(weights("sed-a2d", 0), weights("sed-a2d", 0, elsewhere))


def make_settings(method="sed-a2d", members=4, **changes):
    plain = {
        "active": 2, "diversity": 0.5, "epochs": 1, "lr": 0.1, "batch_size": 20, "weight_decay": 0.0,
        "optimizer": "sgd", "schedule": "constant",
    }  # fmt: skip
    return TrainOptions(**{**plain, **changes}).resolve(method, members, Task(100))


def test_only_active_members_move(train):
    ensemble = linear(members=5)
    before = ensemble.stacked()["weight"].detach().clone()
    fit(ensemble, train, "sed-a2d", active=2, epochs=1, batch_size=len(train), progress=False)
    moved = [i for i in range(5) if not torch.equal(ensemble.stacked()["weight"][i], before[i])]
    assert len(moved) == 2


def test_draws_are_fair_and_depend_on_seed_and_step():
    stepper = Stepper(linear(members=5), make_settings(members=5), Fabric(accelerator="cpu", devices=1))
    draws = torch.stack([stepper.draw(step) for step in range(2000)])
    counts = draws.flatten().bincount(minlength=5)
    assert (counts > 700).all()  # 800 expected, deviation 22
    assert torch.equal(stepper.draw(7), stepper.draw(7))
    assert (draws[:, 0] != draws[:, 1]).all()


def test_deep_ensemble_members_see_batches_in_their_own_order(train):
    """Two members that start alike part ways only because their batches differ."""
    ensemble = Ensemble(tails.Linear(6, 3), members=2, init="template")
    fit(ensemble, train, "deep-ensemble", **QUICK)
    a, b = ensemble.stacked()["weight"]
    assert not torch.equal(a, b)
    single = Ensemble(tails.Linear(6, 3), members=1, init="template")
    fit(single, train, "single", **{**QUICK, "epochs": 1})
    assert len(single) == 1


def test_every_member_passes_once_over_the_training_set_in_an_epoch(monkeypatch):
    """Rows carry their own number; what each member is given in two epochs must be every row twice."""
    count, seen = 30, [[] for _ in range(3)]
    numbers = torch.arange(count, dtype=torch.float32)
    train = FeatureSet.from_arrays(torch.stack([numbers, -numbers], dim=1), torch.arange(count) % 2)
    original = Stepper.__call__

    def noting(self, batch, active, factor):
        for place, member in enumerate(self.forwarded(active).tolist()):
            seen[member] += batch.x[place, :, 0].long().tolist()
            assert torch.equal(batch.labels[place], batch.x[place, :, 0].long() % 2)
        return original(self, batch, active, factor)

    monkeypatch.setattr(Stepper, "__call__", noting)
    fit(linear(members=3, width=2, classes=2), train, "deep-ensemble", epochs=2, batch_size=7, progress=False)
    for rows in seen:
        assert sorted(rows[:count]) == list(range(count))
        assert sorted(rows[count:]) == list(range(count))
    assert seen[0][:count] != seen[1][:count]
    fit(linear(members=3, width=2, classes=2), train, "deep-ensemble", active=2, main="all", epochs=1, progress=False)


def test_a_finished_run_comes_back_ready_to_predict(train, tmp_path):
    for _ in range(2):
        assert not fit(linear(), train, **QUICK, out=tmp_path / "run").training


def test_a_subclass_with_a_forward_of_its_own_is_trained_as_it_is(train):
    class Silent(tails.Linear):
        def forward(self, x):
            return super().forward(0 * x)

    ensemble = Ensemble(Silent(6, 3), members=3)
    before = ensemble.stacked()["weight"].detach().clone()
    fit(ensemble, train, **QUICK, weight_decay=0.0)
    assert torch.equal(ensemble.stacked()["weight"], before), "zero inputs give the weight no gradient"
    with torch.no_grad():
        x = train.rows(slice(0, 4))
        torch.testing.assert_close(ensemble(x), ensemble.stacked()["bias"][:, None].expand(3, 4, 3))


def test_diverse_hyper_parameters_spread_around_the_given_ones():
    spread = optim.spread(200, lr=0.01, weight_decay=0.1, label_smoothing=0.1, seed=0)
    assert 0.01 / 3 <= spread.lr.min() < 0.005 < 0.02 < spread.lr.max() <= 0.03
    assert 0.01 <= spread.weight_decay.min() < 0.02 < 0.5 < spread.weight_decay.max() <= 1
    assert 0.1 <= spread.label_smoothing.min() < 0.13 < 0.27 < spread.label_smoothing.max() <= 0.3
    assert spread.lr.log().mean().item() == pytest.approx(math.log(0.01), abs=0.2)


def test_two_stage_names_the_confidence_that_would_do(train):
    with pytest.raises(
        DataError, match=r"needs training samples with confidence below 0\.34; the lowest is 0\.\d+: raise"
    ):
        fit(linear(), train, "two-stage", **{**QUICK, "epochs": 20}, confidence=0.34)


def test_run_folder_tells_what_was_done(train, tmp_path):
    fit(linear(), train, "sed-a2d", **QUICK, out=tmp_path / "run", log_every=2)
    run = Run.open(tmp_path / "run")
    assert run.settings["method"] == "sed-a2d"
    assert run.settings["diversity"] == DIVERSITY
    lines = list(run.metrics())
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert len(epochs) == 8
    assert len(lines) == 8 + 8 * 2  # four steps an epoch, a line every two
    assert epochs[-1]["cross_entropy"] < epochs[0]["cross_entropy"]
    assert epochs[-1]["step"] == 32
    expected = {
        "kind",
        "step",
        "epoch",
        "lr",
        "loss",
        "cross_entropy",
        "disagreement",
        "hardness",
        "accuracy",
        "seconds",
    }
    assert set(lines[0]) == expected
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    loaded = Ensemble.load(run.ensemble_folder)
    assert accuracy(loaded, train) > 0.85


def test_a_finished_run_is_loaded_not_repeated(train, tmp_path):
    first = fit(linear(), train, **QUICK, out=tmp_path / "run")
    stamp = (tmp_path / "run" / "ensemble" / "ensemble.safetensors").stat().st_mtime_ns
    again = fit(linear(), train, **QUICK, out=tmp_path / "run")
    assert torch.equal(first.stacked()["weight"], again.stacked()["weight"])
    assert (tmp_path / "run" / "ensemble" / "ensemble.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(RunError, match="holds this run already"):
        fit(linear(), train, **QUICK, out=tmp_path / "run", resume=False)


def test_another_run_or_foreign_files_in_the_folder_are_refused(train, tmp_path):
    fit(linear(), train, **QUICK, out=tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunError, match=r"holds another run .*diversity is 0\.003 there, 2 here"):
        fit(linear(), train, **QUICK, diversity=2.0, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"train is [0-9a-f]{8} there, [0-9a-f]{8} here"):
        fit(linear(), blobs(seed=3), **QUICK, out=tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="files that are not of a run"):
        fit(linear(), train, **QUICK, out=tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        fit(linear(), train, **QUICK, out=tmp_path / "other" / "thesis.tex")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sed-a2d", {"active": 5}, r"within 1\.\.members; got active=5 with members=4"),
        ("sed-a2d", {"active": 1}, "nobody to disagree with; got active=1"),
        ("sed-a2d", {"diversity": -1.0}, "diversity must be at least 0; got -1"),
        ("sed-a2d", {"diversity": math.nan}, "diversity must be finite and at least 0; got nan"),
        ("deep-ensemble", {"diversity": 0.5}, r"no disagreement term; got diversity=0\.5"),
        ("single", {}, "trains 1 member; got members=4"),
        ("sed-a2d", {"epochs": 0}, "epochs must be at least 1"),
        ("sed-a2d", {"lr": 0.0}, "lr must be above 0"),
        ("sed-a2d", {"batch_size": 0}, "batch_size must be at least 1"),
        ("sed-a2d", {"label_smoothing": 1.0}, r"label_smoothing must be within \[0, 1\)"),
        ("sed-a2d", {"schedule": "linear"}, "schedule must be one of cosine, constant; got 'linear'"),
        ("sed-a2d", {"main": "some"}, "main must be one of active, all"),
        ("sed-a2d", {"clip": 0.0}, "clip must be above 0"),
        ("a2d", {}, "none was given: pass one as disagreement, or use sed-a2d"),
        ("sed-a2d", {"logger": "wandb"}, "give out= as well"),
        ("sed-a2d", {"log_every": 0}, "log_every must be at least 1"),
        ("two-stage", {"confidence": 0.3}, r"confidence must be above 1/3.*got 0\.3"),
    ],
)
def test_misuse_is_one_clear_line(method, options, message, train):
    with pytest.raises(DissensusError, match=message) as caught:
        fit(linear(), train, method, **{**QUICK, **options})
    assert "\n" not in str(caught.value)


def test_unknown_names_suggest_the_nearest(train):
    with pytest.raises(UnknownNameError, match="did you mean 'sed-a2d'"):
        fit(linear(), train, "sed_a2d", **QUICK)
    with pytest.raises(UnknownNameError, match="unknown optimizer 'adamww': did you mean 'adamw'"):
        fit(linear(), train, **QUICK, optimizer="adamww")
    with pytest.raises(UnknownNameError, match="unknown option 'learning_smoothing': did you mean 'label_smoothing'"):
        fit(linear(), train, **QUICK, learning_smoothing=0.1)


def test_unfit_data_is_refused_and_nothing_is_written(train, elsewhere, tmp_path):
    out = tmp_path / "run"
    cases = [
        ({"features": elsewhere}, "need labels"),
        ({"features": train.subset(train.labels == 1)}, "at least two classes; all 40 samples are of class 1"),
        ({"features": blobs(width=5)}, r"features of width 6; the training set has rows of shape \(5,\)"),
        ({"features": blobs(classes=4)}, r"3 classes, 0\.\.2; the training set has label 3"),
        ({"method": "a2d", "disagreement": blobs(width=5)}, "width 6; got width 5: extract both"),
        ({"method": "deep-ensemble", "disagreement": elsewhere}, "takes no disagreement set"),
    ]
    for options, message in cases:
        with pytest.raises((DataError, ShapeError), match=message):
            fit(linear(), **{"features": train, **QUICK, **options}, out=out)
        assert not out.exists()


def test_an_altered_shard_is_named_before_training(train, tmp_path):
    saved = train.save(tmp_path / "features")
    shard = tmp_path / "features" / "img_emb" / "img_emb_00000.npy"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"img_emb_00000\.npy is altered"):
        fit(linear(), saved, **QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_explodes_stops_the_run_with_advice(train, tmp_path):
    ensemble = linear()
    with torch.no_grad():
        ensemble.stacked()["weight"].fill_(1e30)
    with pytest.raises(DissensusError, match=r"loss is not finite by step .*lower lr"):
        fit(ensemble, train, **{**QUICK, "lr": 1e30}, optimizer="sgd", out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"


def test_bf16_mixed_trains_and_other_precisions_are_refused(train):
    for tail in ("linear", "mlp"):
        ensemble = Ensemble(tails.create(tail, 6, 3), members=3)
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        fit(ensemble, train, **{**QUICK, "lr": 0.02}, fabric=fabric)
        assert accuracy(ensemble, train) > 0.85
        assert ensemble.stacked()[next(iter(ensemble.stacked()))].dtype == torch.float32
    with pytest.raises(DissensusError, match="precision must be one of"):
        fit(linear(), train, **QUICK, fabric=Fabric(accelerator="cpu", devices=1, precision="64-true"))


def test_training_leaves_the_global_generator_alone(train):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    ensemble = linear()
    torch.manual_seed(1)
    fit(ensemble, train, **QUICK)
    assert torch.equal(torch.rand(1), expected)


def augmented(count: int = 60, passes: int = 3) -> FeatureSet:
    """Blobs in several passes; pass p is p * 100 away, which tells of every row whose pass it is."""
    one = blobs(count)
    x = torch.cat([one.rows(slice(None)) + 100 * p for p in range(passes)])
    return FeatureSet.from_arrays(x, one.labels.repeat(passes), provenance={"passes": passes})


@pytest.mark.parametrize("method", ["sed-a2d", "deep-ensemble"])
def test_an_epoch_sees_one_pass_in_turn(method, monkeypatch):
    features, seen = augmented(), []
    original = Stepper.__call__

    def noting(self, batch, *args):
        seen.append((batch.x, batch.labels))
        return original(self, batch, *args)

    monkeypatch.setattr(Stepper, "__call__", noting)
    fit(linear(), features, method, epochs=5, batch_size=16, lr=1e-6, progress=False)
    assert len(seen) == 5 * 4  # of 60 samples, not 180 rows
    first = blobs(60).rows(slice(None))
    for epoch in range(5):
        batches = seen[4 * epoch : 4 * epoch + 4]
        x = torch.cat([x.reshape(-1, *x.shape[-2:]) for x, _ in batches], 1)  # (1 or M, N, D)
        labels = torch.cat([y.reshape(-1, y.shape[-1]) for _, y in batches], 1)
        x = x - 100 * (epoch % 3)
        for member, own in zip(x, labels, strict=True):
            distances = torch.cdist(member, first)
            assert sorted(distances.argmin(1).tolist()) == list(range(60))  # every sample once, in this pass
            assert distances.amin(1).max() < 0.1
            assert torch.equal(own, blobs(60).labels[distances.argmin(1)])


def test_two_stage_parts_samples_with_all_their_passes(monkeypatch):
    from dissensus.training import _fit as module

    one, passes = blobs(noise=1.6), 2
    x = torch.cat([one.rows(slice(None)) + 1e-3 * p for p in range(passes)])
    features = FeatureSet.from_arrays(x, one.labels.repeat(passes), provenance={"passes": passes})
    original, given = module._train, []

    def noting(ensemble, train, elsewhere, *args, **options):
        given.append((train, elsewhere))
        return original(ensemble, train, elsewhere, *args, **options)

    monkeypatch.setattr(module, "_train", noting)
    fit(linear(), features, "two-stage", **{**QUICK, "confidence": 0.8})
    (whole, _), (sure, unsure) = given
    whole, sure, unsure = whole.features, sure.features, unsure.features
    assert whole.passes == sure.passes == 2
    assert len(sure) + len(unsure) == len(features)
    assert 0 < len(unsure) < len(features)
    both = sure.rows(slice(None)).view(2, -1, 6)
    torch.testing.assert_close(both[1], both[0] + 1e-3)
    assert torch.equal(*sure.labels.view(2, -1))
    there = unsure.rows(slice(None)).view(2, -1, 6)
    torch.testing.assert_close(there[1], there[0] + 1e-3)


def test_one_pass_trains_as_before_and_a_run_knows_its_passes(tmp_path):
    plain = fit(linear(), blobs(60), **QUICK)
    one = fit(linear(), augmented(60, 1), **QUICK)
    assert torch.equal(plain.stacked()["weight"], one.stacked()["weight"])
    fit(linear(), augmented(60, 3), **QUICK, out=tmp_path / "run")
    with pytest.raises(RunError):
        fit(linear(), augmented(60, 3).subset(slice(None)), **QUICK, out=tmp_path / "run")
    assert list(Run.open(tmp_path / "run").metrics())


def test_sums_are_float64_except_on_devices_without_it(monkeypatch):
    assert widest(torch.device("cpu")) == widest(torch.device("cuda")) == torch.float64
    assert widest(torch.device("mps")) == torch.float32
    for module in (logbook, step):
        monkeypatch.setattr(module, "widest", lambda device: torch.float32)
    sums = []
    monkeypatch.setattr(logbook.Logbook, "close", lambda log: sums.extend([log.sums, log.quarters]))
    statistics = []
    add = logbook.Logbook.add
    monkeypatch.setattr(logbook.Logbook, "add", lambda log, done, each: statistics.append(each) or add(log, done, each))
    fit(linear(), blobs(60), **QUICK)
    assert {value.dtype for value in (*sums, *statistics)} == {torch.float32}
    assert len(sums) == 2
