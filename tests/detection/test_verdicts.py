"""Verdicts as a person reads them, in a terminal and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import torch

from dissensus.detection.verdicts import Verdict, Verdicts

CLASSES = ("cat", "<dog>")


def verdicts(count: int = 3, calibrated: bool = True) -> Verdicts:
    label = torch.arange(count) % 2
    score = torch.linspace(0.25, 1.25, count)
    known = {"p_value": 1 - 0.9 * score / 1.25, "threshold": torch.ones(count), "out": score > 1} if calibrated else {}
    return Verdicts(label, torch.full((count,), 0.75), score, label.expand(2, count), CLASSES, **known)


def test_one_says_what_it_is():
    found = verdicts().named(["a.jpg", "b.jpg", "c.jpg"])
    assert repr(found[0]) == "Verdict('a.jpg', cat (75%), score 0.25, p-value 0.82, nothing unusual)"
    assert repr(verdicts(calibrated=False)[1]) == "Verdict('1', <dog> (75%), score 0.75)"
    assert repr(Verdict("x.png", error="not an image")) == "Verdict('x.png', error: not an image)"
    assert verdicts()[-1].name == "2"


def test_all_say_how_many_and_show_the_first():
    lines = repr(verdicts(400)).splitlines()
    assert lines[0] == "400 samples: 100 out of distribution, nothing unusual found in 300"
    assert lines[1].split() == ["path", "class", "confidence", "score", "p_value", "verdict"]
    assert lines[2].split() == ["0", "cat", "0.75", "0.2500", "0.8200", "nothing", "unusual"]
    assert lines[-1] == "... 392 more"
    assert len(lines) == 11
    assert repr(verdicts(1, calibrated=False)).startswith("1 sample, not calibrated: scores, but no verdicts\n")


def test_a_notebook_shows_a_table_with_escaped_names():
    html = verdicts()._repr_html_()
    assert html.startswith("<p>3 samples: 1 out of distribution, nothing unusual found in 2</p>")
    assert html.count("<tr") == 4
    assert "&lt;dog&gt;" in html
    assert "<dog>" not in html
    assert "more" not in html


def test_parts_are_explained():
    found = verdicts()
    assert found[0].parts == ()
    assert found[0].as_dict(explain=True)["parts"] == []
    parts = torch.tensor([[0.5, 0.25, 0.125], [1.0, 0.75, 0.001]])
    both = Verdicts.concatenate([replace(found, parts=parts, scores=("knn", "pds"))] * 2)
    assert both.parts.shape == (2, 6)
    assert both[4].parts == (("knn", 0.25), ("pds", 0.75))
    assert both[5].as_dict(explain=True)["parts"] == [
        {"score": "knn", "p_value": 0.125}, {"score": "pds", "p_value": 0.001},
    ]  # fmt: skip
    assert "parts" not in both[5].as_dict()
