"""Monitor and batch_test: drifts ring, undisturbed streams do not, and the state continues exactly or is refused."""

from __future__ import annotations

import json
import math
import threading
import tracemalloc
from dataclasses import replace

import pytest
import torch

from dissensus._core import documents
from dissensus._core.errors import DissensusError, RunError
from dissensus.detection import Detector, Monitor, Verdict, batch_test
from dissensus.functional import comparisons, conformal
from tests.conftest import blobs
from tests.damage import damages


@pytest.fixture(scope="module")
def detector(run, more):
    return Detector.load(run).calibrate(more, 0.1)


@pytest.fixture(scope="module")
def stream(detector):
    return list(detector.predict(blobs(300, seed=8)))


def feed(monitor, verdicts):
    for verdict in verdicts:
        monitor.add(verdict)
    return monitor


def test_an_undisturbed_stream_is_silent_and_a_shift_is_not(detector, stream):
    monitor = feed(Monitor(detector), stream)
    assert monitor.alarm is None
    assert monitor.banner == ""
    assert monitor.metrics()["samples"] == 300
    shifted = detector.predict(blobs(200, seed=9, noise=2.5))
    feed(monitor, shifted)
    assert monitor.alarm.test == "scores"
    assert 250 < monitor.alarm.since < monitor.alarm.sample < 400
    assert "too many samples are unusual" in monitor.alarm.reason
    assert "most of them by" in monitor.alarm.reason
    assert str(monitor.alarm) in monitor.banner
    first = monitor.alarm
    feed(monitor, stream[:50])
    assert monitor.alarm == first, "the first alarm stays"
    assert monitor.metrics()["alarm"] == 1


def test_one_class_too_often_rings_by_classes(detector, stream):
    monitor = feed(Monitor(detector), stream)
    feed(monitor, [replace(verdict, label=1) for verdict in detector.predict(blobs(300, seed=10))])
    assert monitor.alarm.test == "classes"
    assert f"{detector.classes[1]} is" in monitor.alarm.reason


def test_the_state_continues_as_if_never_interrupted(detector, stream, tmp_path):
    whole = feed(Monitor(detector), stream)
    feed(Monitor(detector), stream[:120]).save(tmp_path / "half.json")
    assert (tmp_path / "half.json").stat().st_size < 100_000
    feed(Monitor.load(tmp_path / "half.json", detector), stream[120:]).save(tmp_path / "two.json")
    whole.save(tmp_path / "one.json")
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


def test_history_stays_small(detector, stream):
    monitor = feed(Monitor(detector), stream * 4)
    assert 100 < len(monitor.history) <= 401
    assert monitor.history[-1].samples > 1100


def test_a_state_of_another_calibration_or_rate_or_damaged_is_one_line(detector, stream, tmp_path, run, more):
    path = tmp_path / "state.json"
    feed(Monitor(detector), stream[:20]).save(path)
    other = Detector.load(run).calibrate(more, 0.2)
    with pytest.raises(RunError, match="another run, or of another calibration"):
        Monitor.load(path, other)
    with pytest.raises(RunError, match=r"rate of 0\.01; got 0\.05"):
        Monitor.load(path, detector, 0.05)
    document = json.loads(path.read_text())
    cases = [
        (field, text) for field, kind, text in damages(document) if kind in ("null", "removed", "cut", "text", "deep")
    ]
    del document["sha256"]
    changed = json.loads(json.dumps(document))
    changed["tests"]["scores"]["counts"][0] += 1
    cases += [
        (field, documents.sealed(json.dumps(value)))
        for field, value in (
            ("counts", changed),
            ("samples", document | {"samples": 19}),
            ("history", document | {"history": [5]}),
            ("tests", document | {"tests": {"scores": document["tests"]["scores"]}}),
        )
    ]
    for field, text in cases:
        path.write_text(text)
        with pytest.raises(RunError, match="remove it to begin again") as caught:
            Monitor.load(path, detector)
        assert "\n" not in str(caught.value), field


def test_what_cannot_be_watched_raises_one_line(run, more, detector, stream):
    with pytest.raises(DissensusError, match="needs a calibrated detector"):
        Monitor(Detector.load(run, calibrated=False))
    few = Detector.load(run).calibrate(more.subset(range(9)), 0.1, "pds")
    with pytest.raises(DissensusError, match=r"rate of 1e-09 needs \d+ calibration samples.*got 9"):
        Monitor(few, 1e-9)
    monitor = Monitor(detector)
    for wrong in (
        {"score": math.nan}, {"score": None}, {"p_value": 1.5}, {"p_value": None}, {"p_value": math.nan}, {"label": 99},
    ):  # fmt: skip
        with pytest.raises(DissensusError):
            monitor.add(replace(stream[0], **wrong))
    assert monitor.samples == 0, "what raises is not counted"
    monitor.add(Verdict("x.jpg", error="cannot be read"))
    assert monitor.metrics()["errors"] == 1


def test_history_does_not_change_while_it_is_drawn(detector, stream):
    monitor = feed(Monitor(detector), stream[:10])
    before = monitor.history
    feed(monitor, stream[10:20])
    assert len(before) == 10
    assert len(monitor.history) == 20


def test_threads_lose_no_sample(detector, stream):
    monitor = Monitor(detector)
    threads = [threading.Thread(target=feed, args=(monitor, stream[i::4])) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.samples == sum(monitor.tests["scores"].ranks.counts) - 200 == 300


def test_a_batch_is_tested_for_discoveries_and_disagreement(detector, stream, elsewhere):
    calm = batch_test(stream, detector.threshold)
    assert calm.p_value > 0.01
    assert calm.discoveries <= 3
    between = detector.predict(blobs(100, seed=3, noise=3.0))
    assert batch_test(between, detector.threshold, 0.2).discoveries > 10
    first, second, third = detector.classes
    split = [replace(verdict, votes=(first, second, second, third)) for verdict in stream[:60]]
    unlike = batch_test(stream[60:] + split, detector.threshold)
    assert unlike.p_value < 0.01
    assert unlike.disagreement > unlike.calibrated
    assert "members disagree" in str(unlike)
    assert batch_test([], detector.threshold).count == 0
    assert batch_test(stream[:1], detector.threshold).p_value is None, "one sample has no distribution"
    assert batch_test(stream[:2], detector.threshold).p_value is not None
    with pytest.raises(DissensusError, match="have none: calibrate"):
        batch_test([replace(stream[0], p_value=None)], detector.threshold)


def test_a_batch_test_of_a_large_calibration_needs_little_memory(detector, stream):
    threshold = detector.threshold
    held_out = threshold.held_out._replace(disagreement=threshold.held_out.disagreement.repeat(150))
    tracemalloc.start()
    try:
        test = batch_test(stream, replace(threshold, held_out=held_out))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert test.p_value > 0.01
    assert len(held_out.disagreement) == 60_000
    assert peak < 100e6  # all 999 permutations at once have 480 MB


def test_discoveries_are_those_of_benjamini_and_hochberg():
    p_values = torch.tensor([0.9, 0.001, 0.02, 0.03, 0.5])
    order = p_values.sort().values.tolist()
    most = max(k for k in range(6) if k == 0 or order[k - 1] <= 0.1 * k / 5)
    found = conformal.discoveries(p_values, 0.1)
    assert found.sum() == most == 3
    assert found.tolist() == [False, True, True, True, False]


def test_disagreement_is_the_share_of_pairs_that_differ():
    votes = torch.randint(0, 3, (5, 40), generator=torch.Generator().manual_seed(0))
    expected = [sum(votes[i, b] != votes[j, b] for i in range(5) for j in range(i)).item() / 10 for b in range(40)]
    assert comparisons.disagreement(votes).tolist() == pytest.approx(expected)
    assert comparisons.disagreement(votes[:1]).tolist() == [0] * 40


def test_held_out_predictions_are_saved_with_the_calibration(detector, run, tmp_path, monkeypatch):
    from dissensus._core import digests, tensors
    from dissensus.detection.threshold import TENSORS, Threshold

    detector.threshold.save(tmp_path, detector.identity)
    again = Threshold.load(tmp_path, detector.identity)
    assert torch.equal(again.held_out.labels, detector.threshold.held_out.labels)
    (path,) = tmp_path.glob(TENSORS)
    values = tensors.read(path, remedy="")
    monkeypatch.setenv(digests.VARIABLE, "0")  # else the checksum is what differs
    for change in ({"held-out.labels": -torch.ones(400, dtype=torch.int64)}, {"held-out.disagreement": torch.zeros(3)}):
        tensors.write(path, values | change)
        with pytest.raises(RunError, match=r"predictions on the calibration samples"):
            Threshold.load(tmp_path, detector.identity)
