"""dissensus watch as a user meets it: paths, features and JSON lines, states, exit codes and bad input."""

from __future__ import annotations

import importlib
import io
import json
import signal
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from dissensus.detection import Detector, Monitor
from dissensus.report import watching
from dissensus.training._fit import fit
from tests.commands import refuse, run
from tests.conftest import blobs, linear


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A calibrated run on clouds, 200 more samples, 200 shifted ones, and their verdicts as JSON lines."""
    home = tmp_path_factory.mktemp("watch")
    fit(linear(), blobs(), "deep-ensemble", epochs=5, lr=1e-2, batch_size=32, out=home / "run", progress=False)
    detector = Detector.load(home / "run").calibrate(blobs(400, seed=7))
    detector.save(home / "run")
    for name, noise in (("same", 0.8), ("shifted", 2.5)):
        features = blobs(200, seed=8, noise=noise)
        features.save(home / name)
        lines = [json.dumps(verdict.as_dict(explain=True)) for verdict in detector.predict(features)]
        (home / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return home


def give(monkeypatch, text: bytes):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))


def events(out):
    return [json.loads(line) for line in out.splitlines()]


def test_a_stream_in_two_parts_rings_in_the_second(home, capsys, tmp_path):
    state, plot = tmp_path / "new" / "watch.json", tmp_path / "plot.svg"
    code, out, _ = run(capsys, "watch", home / "run", home / "same", "--state", state, "--every", 80)
    assert code == 0
    assert [event["event"] for event in events(out)] == ["start", "status", "status", "status", "end"]
    assert events(out)[-1]["samples"] == 200
    again = ("watch", home / "run", "--verdicts", home / "shifted.jsonl", "--state", state, "--plot", plot)
    code, out, _ = run(capsys, *again, "--exit-on-alarm", "--format", "text")
    assert code == 3
    assert "continued after 200 samples" in out
    assert "ALARM at sample 2" in out
    words = [text.text for text in ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
    for named in ("alarm", "scores, now", "classes, now", "called out", "calibrated for 0.05"):
        assert any(said.startswith(named) for said in words), named
    code, out, _ = run(capsys, *again)
    assert code == 0, "without the flag an alarm is no failure"
    assert run(capsys, *again, "--exit-on-alarm")[0] == 3
    assert sorted(path.name for path in state.parent.iterdir()) == ["watch.json"]


def test_features_and_their_json_lines_are_one_stream(home, capsys, monkeypatch):
    _, features, _ = run(capsys, "watch", home / "run", home / "same")
    give(monkeypatch, (home / "same.jsonl").read_bytes())
    _, lines, _ = run(capsys, "watch", home / "run", "--verdicts", "-")
    keys = ("samples", "out", "alarm")
    one, other = events(features)[-1], events(lines)[-1]
    assert [one[key] for key in keys] == [other[key] for key in keys]
    assert one["log10_wealth_scores"] == pytest.approx(other["log10_wealth_scores"], abs=0.05)


def test_a_stream_of_one_sample_is_watched_and_drawn(home, capsys, monkeypatch, tmp_path):
    give(monkeypatch, (home / "same.jsonl").read_bytes().splitlines(keepends=True)[0])
    code, out, _ = run(capsys, "watch", home / "run", "--verdicts", "-", "--plot", tmp_path / "one.svg")
    assert code == 0
    assert events(out)[-1]["samples"] == 1
    assert (tmp_path / "one.svg").exists()


def test_a_stream_that_stops_ends_with_a_summary(home, capsys, monkeypatch):
    text = (home / "same.jsonl").read_bytes()
    give(monkeypatch, text[: text.index(b"\n", 2000) + 30])
    code, out, err = run(capsys, "watch", home / "run", "--verdicts", "-")
    assert code == 0
    assert "is cut off and left out" in err
    assert events(out)[-1]["event"] == "end"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p_value": 1.5}, "p_value must be within"),
        ({"p_value": -0.1}, "p_value must be within"),
        ({"p_value": None}, "has no p_value: calibrate"),
        ({"p_value": float("nan")}, "p_value must be within"),
        ({"score": float("nan")}, "score must be a number"),
        ({"score": "1"}, "score must be a number"),
        ({"score": 10**400}, "score must be a number"),
        ({"score": True}, "score must be a number"),
        ({"score": 123.0}, "of another run or calibration"),
        ({"label": 99}, "of another run"),
        ({"class": "cat"}, "of another run"),
        ({"label": None}, "label must be"),
        ({"parts": [{}]}, "parts must be"),
        ({"parts": 5}, "parts must be"),
        ({"parts": None}, "parts must be"),
        ({"votes": [1]}, "votes must be"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_line_that_is_no_verdict_of_this_run_is_named(home, capsys, tmp_path, change, message):
    lines = (home / "same.jsonl").read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    code, _, err = run(capsys, "watch", home / "run", "--verdicts", tmp_path / "bad.jsonl")
    assert code == 2
    assert err.count("\n") == 1
    assert "line 3 of" in err
    assert message in err


def test_bad_input_is_one_line(home, capsys, monkeypatch, tmp_path):
    same = home / "same"
    assert "got neither" in refuse(capsys, "watch", home / "run")
    assert "got both" in refuse(capsys, "watch", home / "run", same, "--verdicts", "-")
    assert "there is none at" in run(capsys, "watch", home / "run", "--verdicts", tmp_path / "no.jsonl")[2]
    assert "must be at least 1" in refuse(capsys, "watch", home / "run", same, "--every", 0)
    assert ".svg file" in refuse(capsys, "watch", home / "run", same, "--plot", "x.png")
    assert "is a folder" in refuse(capsys, "watch", home / "run", same, "--state", tmp_path)
    assert "between 0 and 1" in refuse(capsys, "watch", home / "run", same, "--alarm-rate", 1)
    (tmp_path / "state.json").write_text("{")
    assert "remove it to begin again" in refuse(capsys, "watch", home / "run", same, "--state", tmp_path / "state.json")
    for text, message in (
        (b"", "ended before the first"),
        (b"[1]\n", "must be a verdict"),
        (b"\xff\n", "must be JSON"),
    ):
        give(monkeypatch, text)
        code, _, err = run(capsys, "watch", home / "run", "--verdicts", "-")
        assert code == 2
        assert message in err
    fit(linear(), blobs(), "deep-ensemble", epochs=1, out=tmp_path / "raw", progress=False)
    assert "needs a calibrated run" in refuse(capsys, "watch", tmp_path / "raw", same)


def test_the_report_shows_the_state_in_the_run(home, capsys):
    assert watching.of_run(home / "run") == watching.Watched()
    state = home / "run" / watching.STATE
    run(capsys, "watch", home / "run", home / "shifted", "--state", state)
    watched = watching.of_run(home / "run")
    assert watched.alarm
    assert [chart.title.split(";")[0] for chart in watched.charts] == [
        "Evidence of drift",
        "Share of samples called out",
    ]
    state.write_text("{}")
    watched = watching.of_run(home / "run")
    assert "remove it" in watched.note
    assert not watched.charts
    state.unlink()


def test_ctrl_c_saves_whole_samples(home, capsys, monkeypatch, tmp_path):
    """It comes while a sample is being counted."""
    add, before = Monitor.add, signal.getsignal(signal.SIGINT)

    def interrupted(monitor, verdict):
        if monitor.samples == 30:
            signal.raise_signal(signal.SIGINT)
        return add(monitor, verdict)

    monkeypatch.setattr(Monitor, "add", interrupted)
    code, out, _ = run(capsys, "watch", home / "run", home / "same", "--state", tmp_path / "s.json")
    assert code == 130
    assert events(out)[-1]["word"] == "stopped"
    assert Monitor.load(tmp_path / "s.json", Detector.load(home / "run")).samples == 31
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_the_end_of_the_stream_saves_too(home, capsys, monkeypatch, tmp_path):
    module = importlib.import_module("dissensus.detection.batch_test")  # the package has the function of this name
    test = module.batch_test

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return test(*arguments)

    monkeypatch.setattr(module, "batch_test", interrupted)
    code, out, _ = run(capsys, "watch", home / "run", home / "same", "--state", tmp_path / "s.json")
    assert code == 130
    assert [event["event"] for event in events(out)] == ["start", "status", "end"]
    assert Monitor.load(tmp_path / "s.json", Detector.load(home / "run")).samples == 200
