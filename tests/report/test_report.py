"""The page: its numbers against direct computation, its text as HTML, its behaviour in a browser, its refusals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dissensus import cli, fit, report
from dissensus._core.errors import DissensusError
from dissensus.cli import parser
from dissensus.cli import report as verb
from dissensus.evaluation import saved
from dissensus.evaluation._evaluate import measure, predict_sets
from dissensus.evaluation.examples import Example
from dissensus.evaluation.outcomes import Curve, Outcome
from dissensus.evaluation.results import Results
from dissensus.evaluation.suite import SuiteSet
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.features import FeatureSet
from dissensus.functional import metrics
from dissensus.functional.classification import Classification
from dissensus.functional.metrics import detection, threshold
from dissensus.images import ImageSet
from dissensus.report import charts, dots, lead, numbers, reproduce, summary, svg
from dissensus.report import page as pages
from dissensus.report.runs import Facts
from dissensus.training.run import Run
from tests.axe import LOOKS, needs_axe, serious
from tests.browser import CHROMIUM, Browser, browser
from tests.conftest import blobs, linear
from tests.damage import sealed

CLASSES = ["<script>alert(1)</script>", "b & c", '"quoted"']
EVIL = "<img src=x onerror=alert(2)>"
CHOOSING = """
  window.shown = (selector) => [...document.querySelectorAll(selector)].filter(panel => panel.offsetParent);
  window.choose = (name, value) => {
    const select = document.getElementById('choose-' + name);
    select.value = value;
    select.dispatchEvent(new Event('change'));
  }"""
# the least contrast of any words with the ground of the page, by the formula of WCAG
CONTRAST = """(() => {
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(v => linear(Number(v) / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const words = [...document.querySelectorAll('p, td, th, a, dd, summary, .verdict, .said, .chart text:not(.over)')];
  const inks = words.filter(node => node.getClientRects().length).map(node => {
    const style = getComputedStyle(node);
    return light(node.namespaceURI.endsWith('svg') ? style.fill : style.color);
  });
  return Math.min(...inks.map(ink => (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05)));
})()"""


# the least contrast of figures in heat maps with the ground of their cells, over all levels
IN_CELLS = """(() => {
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const paper = numbers(getComputedStyle(document.body).backgroundColor);
  const map = document.querySelector('.heat').closest('svg');
  const shape = (name, kind) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', name);
    node.setAttribute('class', kind);
    return map.appendChild(node);
  };
  const ratios = Array.from({length: 11}, (_, level) => {
    const cell = getComputedStyle(shape('path', `heat h${level}`)), opacity = Number(cell.fillOpacity);
    const ground = light(numbers(cell.fill).map((v, i) => opacity * v + (1 - opacity) * paper[i]));
    const ink = light(numbers(getComputedStyle(shape('text', level >= 7 ? 'over' : 'under')).fill));
    return (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05);
  });
  return Math.min(...ratios);
})()"""


def suite_sets() -> list[SuiteSet]:
    def pictures(features: FeatureSet, seed: int) -> ImageSet:
        random = np.random.default_rng(seed)
        return ImageSet.from_arrays(random.integers(0, 255, (len(features), 6, 6), dtype=np.uint8))

    other = FeatureSet.from_arrays(3 * torch.randn(70, 6, generator=torch.Generator().manual_seed(5)))
    sets = [
        SuiteSet("id", "id", blobs(150, seed=1)),
        SuiteSet("noise-a", "shift", blobs(90, seed=2, noise=1.6), "noise"),
        SuiteSet("noise-b", "shift", blobs(60, seed=3, noise=2.0), "noise"),
        SuiteSet(f"far {EVIL}", "ood", other),
    ]
    return [dataclasses.replace(s, images=pictures(s.features, i)) for i, s in enumerate(sets)]


def train_and_keep(folder: Path, method: str, seed: int = 0, suite: str = "blobs", **options: object) -> None:
    ensemble = linear(1 if method == "single" else 4, seed=seed)
    fit(ensemble, blobs(), method, epochs=3, lr=0.05, seed=seed, out=folder, progress=False, **options)
    run, sets = Run.open(folder), suite_sets()
    predictions = predict_sets(ensemble, sets, held_out=blobs(30, seed=9), progress=False)
    frame = measure(sets, predictions, run.about)
    saved.save(folder, frame, sets, predictions, suite=suite, summary=f"Clouds {EVIL}", classes=CLASSES)


def outcome(suite: str = "blobs") -> Outcome:
    table = Table(
        "Detection",
        ("method",),
        (Column("AUROC", "far"), Column("accuracy", "id", percent=True)),
        (
            Row(("sed-a2d",), (Value(0.9, 0.02, 3), Value(0.97, 0.01, 3))),
            Row(("sed-a2d",), (Value(0.95), None), "paper"),
        ),
    )
    lines = {
        "pds": (Value(0.6, 0.05, 3), Value(0.7, 0.04, 3), Value(0.8, 0.01, 3)),
        "bma": (Value(0.7), None, Value(0.6)),
    }
    curve = Curve("AUROC against lambda", "lambda", "AUROC", (0, 0.1, 5), lines)
    example = Example(picture="", place="far/3", truth="cat", answer="dog", votes=("dog", "cat", "dog"), pds=1.8)
    return Outcome(
        study="diversity-weight", paper="Figure 4", suite=suite, summary="A study.", tables=(table,), curves=(curve,),
        examples={"far: most": (example,)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "runs"
    train_and_keep(folder / "single", "single")
    train_and_keep(folder / "deep-ensemble", "deep-ensemble")
    train_and_keep(folder / "sed-a2d", "sed-a2d", diversity=0.1)
    train_and_keep(folder / "sed-again", "sed-a2d", seed=1, diversity=0.1)
    (folder.parent / "study").mkdir()
    outcome().save(folder.parent / "study" / "diversity-weight.json")
    return folder


@pytest.fixture(scope="module")
def page(runs) -> Path:
    path = runs.parent / "page.html"
    report.write_page(report.gather([runs, runs.parent / "study"]), path)
    return path


@pytest.fixture
def copied(runs, tmp_path) -> Path:
    """A copy of a run, to damage."""
    return Path(shutil.copytree(runs / "deep-ensemble", tmp_path / "runs" / "deep-ensemble"))


# numbers


def scores_with_ties(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return np.round(random.normal(0, 1, 300), 1), np.round(random.normal(1, 1.5, 200), 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_share_caught_is_what_fpr95_leaves(seed):
    inside, outside = scores_with_ties(seed)
    limit = threshold(inside)
    assert numbers.above(inside, limit) <= 0.05
    assert numbers.above(inside, np.nextafter(limit, -np.inf)) > 0.05
    fpr = detection(torch.tensor(inside), torch.tensor(outside))["fpr95"]
    assert numbers.above(outside, limit) == pytest.approx(1 - fpr)


@pytest.mark.parametrize("seed", range(3))
def test_roc_has_sklearns_area_and_few_points(seed):
    inside, outside = scores_with_ties(seed)
    smooth = np.random.default_rng(seed).normal(0.8, 1, 5000)
    for a, b in ((inside, outside), (inside, smooth), (inside, np.zeros(5)), (np.ones(4), np.ones(3))):
        curve = numbers.roc(a, b)
        assert curve.area == pytest.approx(roc_auc_score([0] * len(a) + [1] * len(b), np.concatenate([a, b])))
        assert curve.thinned().area == pytest.approx(curve.area, abs=0.005)
        assert len(curve.thinned().flagged) <= 200
        curve = curve.thinned()
        ends = [curve.flagged[0], curve.caught[0], curve.flagged[-1], curve.caught[-1]]
        assert ends == [0, 0, 1, 1]
        assert (np.diff(curve.flagged) >= 0).all()
        assert (np.diff(curve.caught) >= 0).all()


def test_reliability_bins_and_error_by_hand():
    confidence, correct = np.array([0.91, 0.92, 0.45, 0.05, 1.0]), np.array([1.0, 0, 1, 0, 1])
    found = numbers.reliability(confidence, correct, bins=10)
    assert found.confidence == pytest.approx([0.05, 0.45, (0.91 + 0.92 + 1) / 3])
    assert found.accuracy == pytest.approx([0, 1, 2 / 3])
    assert found.count.tolist() == [1, 1, 3]
    assert found.error == pytest.approx((0.05 + 0.55 + 3 * abs(2 / 3 - 2.83 / 3)) / 5)


def test_reliability_error_is_that_of_the_metrics():
    probs = torch.randn(400, 5, generator=torch.Generator().manual_seed(0)).mul(2).log_softmax(-1)
    labels = torch.arange(400) % 5
    quality = Classification()
    quality.update(probs, labels)
    confidence, answer = probs.max(-1)
    found = numbers.reliability(confidence.exp().double().numpy(), (answer == labels).double().numpy())
    assert found.error == pytest.approx(quality.compute()["ece"], abs=1e-6)


def test_agreement_counts_equal_votes():
    votes = np.random.default_rng(0).integers(0, 3, (4, 50))
    found = numbers.agreement(votes)
    for i in range(4):
        for j in range(4):
            assert found[i, j] == pytest.approx(sum(a == b for a, b in zip(votes[i], votes[j], strict=True)) / 50)


def test_histograms_hold_every_sample():
    inside, outside = np.random.default_rng(0).normal(0, 1, 1000), np.array([50.0, -50.0, 0.1])
    found = numbers.histogram({"id": inside, "far": outside})
    assert [shares.sum() for shares in found.shares.values()] == pytest.approx([1, 1])
    whole = numbers.histogram({"id": np.array([1.0, 1, 2]), "far": np.array([3.0])})
    assert whole.edges.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert whole.shares["id"] == pytest.approx([2 / 3, 1 / 3, 0])
    assert numbers.histogram({"id": np.full(9, 1.25)}).shares["id"].sum() == pytest.approx(1)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 7.9), (1e-7, 3e-7), (5, 5), (-2e6, 3e6), (0.1, 0.1000001)])
def test_axes_hold_their_ends_and_their_ticks(low, high):
    for made in (svg.axis("x", low, high), svg.tight_axis("x", low, high)):
        assert made.low <= low
        assert made.high >= high
        assert 0 <= made.share(low) <= made.share(high) <= 1
        assert all(made.low - 1e-12 <= value <= made.high * (1 + 1e-9) + 1e-12 for value, _ in made.ticks)
        names = [name for _, name in made.ticks]
        assert 1 <= len(names) <= 12
        assert len(set(names)) == len(names) or high - low < 1e-6


def test_lines_leave_out_what_is_missing_and_list_their_numbers():
    chart = charts.lines("T", "x", "y", [charts.Line("a", [0, 1, 2], [1.0, None, 3.0], [0.1, 0, 0.2])])
    assert "from 1 at 0 to 3 at 2" in chart.drawing
    assert chart.rows == (("0", "1 ± 0.1"), ("1", "-"), ("2", "3 ± 0.2"))
    assert chart.drawing.count('class="mark') == 2
    assert "log scale" in charts.lines("T", "x", "y", [charts.Line("a", [1, 2], [0.01, 100])]).drawing
    assert "uneven" in charts.lines("T", "x", "y", [charts.Line("a", [0, 0.1, 5], [1, 2, 3])]).drawing


def test_charts_escape_names():
    chart = charts.bars("T", EVIL, {EVIL: 1.5, "b": 2.0})
    assert "<img" not in chart.drawing
    assert "<img" not in charts.lines(EVIL, EVIL, EVIL, [charts.Line(EVIL, [1, 2], [1, 2])]).drawing


# the page as text


class Reader(HTMLParser):
    """Checks nesting; collects headings, ids, attributes that load, and chart labels."""

    VOID = frozenset({"meta", "img", "br", "input", "hr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.charts: list[dict[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        if re.fullmatch("h[1-6]", tag) and "dialog" not in self.open:
            self.headings.append(int(tag[1]))
        if "id" in found:
            self.ids.append(found["id"])
        self.addresses += [found[name] for name in ("href", "src", "srcset", "action", "data") if name in found]
        if tag == "svg" and found.get("class") == "chart":
            self.charts.append(found)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}> at {self.getpos()}"
        self.open.pop()


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    text, found = page.read_text(), read(page)
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    assert all(address.startswith(("#", "data:image/")) for address in found.addresses)
    assert {address[1:] for address in found.addresses if address.startswith("#")} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert found.tags.count("script") == 1
    assert page.stat().st_size < 2_000_000


def test_headings_come_in_order(page):
    levels = read(page).headings
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_chart_has_words(page):
    found = read(page).charts
    assert len(found) > 50
    assert all(chart["role"] == "img" and len(chart["aria-label"] or "") > 20 for chart in found)


def test_what_users_named_is_escaped(page):
    text = page.read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "far &lt;img src=x" in text


def test_without_its_script_everything_is_there(page):
    text = page.read_text()
    panels = re.findall(r'<section class="by-run"[^>]*>', text)
    assert len(panels) == 8  # charts and examples of four runs
    assert not any("hidden" in panel for panel in panels)
    assert '<form class="controls" hidden' in text


def test_pictures_are_stored_once(page):
    pictures = re.findall(r'<image id="picture-\d+"[^>]*href="([^"]+)"', page.read_text())
    assert len(pictures) == len(set(pictures)) > 10


def test_the_summary_holds_what_is_computed_directly(runs, page):
    run = saved.load(runs / "deep-ensemble")
    inside, far = run.predictions("id"), run.predictions(f"far {EVIL}")
    limit = np.sort(inside.scores["pds"].double().numpy())[int(np.ceil(0.95 * 150)) - 1]
    noise = torch.cat([run.predictions(name).scores["pds"] for name in ("noise-a", "noise-b")])
    expected = [
        float((inside.prediction == inside.labels).double().mean()),
        float((far.scores["pds"].double() > limit).double().mean()),
        float((noise.double() > limit).double().mean()),
    ]
    table = re.search(r"At a glance, by pds.*?</table>", page.read_text(), re.S)[0]
    row = re.search(r'<th scope="row">deep-ensemble</th>.*?</tr>', table, re.S)[0]
    found = [float(value) for value in re.findall(r'data-value="([^"]+)"', row)]
    # caught, flagged, false alarms, accuracy on id and noise, members alone
    assert [found[3], found[0], found[1]] == pytest.approx(expected)


def test_seeds_of_one_method_are_one_row_with_a_deviation(page):
    text = page.read_text()
    glance = re.search(r"At a glance, by pds.*?</table>", text, re.S)[0]
    assert re.search(r'<th scope="row">sed-a2d</th><td data-value="[^"]+">(<strong>)?[\d.]+ ± [\d.]+', glance)
    assert glance.count('<th scope="row">') == 3 + 2  # the methods, and single models with max softmax and knn
    assert "sed-a2d, seed 0" in text
    assert "sed-a2d, seed 1" in text


def test_an_ece_that_is_too_high_is_marked():
    column = Column("ECE", "id", better="lower", warn_above=0.1)
    html = Table("T", ("method",), (column,), (Row(("a",), (Value(0.4),)), Row(("b",), (Value(0.02),)))).html()
    assert html.count('class="warns"') == html.count("⚠") == 1
    confidence, correct = np.full(50, 0.9), np.repeat([0.0, 1.0], 25)
    chart = charts.reliability("T", {"far": numbers.reliability(confidence, correct)})
    assert chart.legend[0][1] == "far, ECE 0.400 ⚠ high"
    assert "⚠ marks an ECE above 0.1" in chart.note


def test_the_lead_names_all_that_are_best_and_what_may_be_chance(runs):
    sources = report.gather([runs])
    frames = [entry.evaluation.frame.assign(row=entry.row, run=entry.name) for entry in sources.runs]
    results = Results(pd.concat(frames, ignore_index=True))

    def leads(shares: dict[str, float], counts: int) -> list[str]:
        facts = {
            row: [Facts({("pds", f"far {EVIL}"): share}, frozenset(), {f"far {EVIL}": counts, "noise": 90, "id": 150})]
            for row, share in shares.items()
        }
        return lead.sentences(summary.Summary(results, facts), "pds")

    few = leads({"single": 0.5, "deep-ensemble": 0.9, "sed-a2d": 0.9}, 100)
    assert few[0].startswith(f"deep-ensemble and sed-a2d catch the most OOD samples: 90.0% of far {EVIL}, by pds")
    assert "chance" not in few[0]
    near = leads({"single": 0.5, "deep-ensemble": 0.9, "sed-a2d": 0.88}, 100)
    assert near[0].endswith("at 5% false alarms; the lead over sed-a2d may be chance.")
    assert "chance" not in leads({"single": 0.5, "deep-ensemble": 0.9, "sed-a2d": 0.88}, 100_000)[0]
    assert leads({"single": 0.9, "deep-ensemble": 0.9, "sed-a2d": 0.9}, 9)[0].startswith(
        "single, deep-ensemble and sed-a2d catch 90.0%"
    )


def test_of_many_sets_a_sentence_gives_the_mean_and_the_lowest():
    values = {name: Value(share) for name, share in zip("abcde", (0.9, 0.8, 0.2, 0.9, 0.7), strict=True)}
    assert lead.share(values.get, "abcde", "of") == "70.0% on average over 5 sets, the least of c (20.0%)"
    assert lead.share(values.get, "abx", "on") == "90.0% on a, 80.0% on b"


def test_a_constant_score_is_reported(page):
    text = page.read_text()
    assert "pds is the same for every sample of single: it needs several members." in text


def test_the_dashed_line_is_at_the_rate_that_is_allowed(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "FALSE_ALARMS", 0.1)
    report.write_page(report.gather([runs]), tmp_path / "page.html")
    assert "At most 10% of" in (tmp_path / "page.html").read_text()


def test_studies_are_shown_with_the_papers_rows_marked(page):
    text = page.read_text()
    assert '<tr class="paper"><th scope="row">sed-a2d <small>(paper)</small></th>' in text
    assert "AUROC against lambda" in text
    assert "0.900 ± 0.020" in text


def test_commands_repeat_what_differs_from_the_defaults(runs):
    found = next(r for r in report.gather([runs]).runs if r.name == "sed-a2d, seed 1")
    changes = dict(reproduce.changes(found.run.settings))
    assert changes == {
        "method": "sed-a2d", "members": "4", "diversity": "0.1", "epochs": "3", "lr": "0.05", "seed": "1",
        "norm": "none",
    }  # fmt: skip
    for command in reproduce.commands(found):
        assert parser.parse(shlex.split(command)[1:])[0] in ("train", "evaluate")


LINEAR = {"name": "linear", "features": 64, "classes": 3}
CUT_OFF = {"name": "mlp", "features": 64, "classes": 1000, "hidden": 192, "gamma": None, "eps": 1e-6, "norm": "none"}
ONE_LAYER = {"layers": 1, "tail": {**LINEAR, "classes": 1000, "norm": "none"}}


@pytest.mark.parametrize(
    ("tail", "backbone", "expected"),
    [
        ({**LINEAR, "norm": "l2"}, None, {}),
        ({**LINEAR, "norm": "none"}, None, {"norm": "none"}),
        ({**LINEAR, "norm": "l2"}, ONE_LAYER, {}),
        ({**LINEAR, "norm": "none"}, ONE_LAYER, {"norm": "none"}),
        ({**CUT_OFF, "classes": 3}, {"layers": 2, "tail": CUT_OFF}, {}),
        ({**CUT_OFF, "classes": 3, "norm": "l2"}, {"layers": 2, "tail": CUT_OFF}, {"norm": "l2"}),
        ({**CUT_OFF, "classes": 3, "hidden": 256}, {"layers": 2, "tail": CUT_OFF}, {"tail": "mlp"}),
        ({**LINEAR, "norm": "layer"}, {"layers": 2, "tail": CUT_OFF}, {"tail": "linear", "norm": "layer"}),
        ({**CUT_OFF, "classes": 3, "norm": "layer"}, None, {"tail": "mlp", "norm": "layer"}),
        (None, {"layers": 2, "tail": CUT_OFF}, {}),
    ],
)
def test_commands_name_a_tail_and_a_norm_that_train_would_not_choose(runs, tail, backbone, expected):
    found = next(r for r in report.gather([runs]).runs if r.name == "sed-a2d, seed 1")
    flags = dict(reproduce.changes({**found.run.settings, "tail": tail, "backbone": backbone}))
    assert {name: flags[name] for name in ("tail", "norm") if name in flags} == expected


def test_a_study_alone_makes_a_page(tmp_path):
    (tmp_path / "study").mkdir()
    outcome().save(tmp_path / "study" / "x.json")
    outcome("companion").save(tmp_path / "study" / "y.json")
    report.write_page(report.gather([tmp_path / "study"]), tmp_path / "page.html")
    assert read(tmp_path / "page.html").headings[0] == 1
    assert "on companion" in (tmp_path / "page.html").read_text()


def test_a_study_of_tables_has_charts_and_no_examples_without_images(tmp_path):
    (tmp_path / "study").mkdir()
    (table,) = outcome().tables
    turned = dataclasses.replace(
        table, columns=table.columns[::-1], rows=tuple(Row(r.names, r.cells[::-1], r.source) for r in table.rows)
    )
    update = {"tables": (turned,), "curves": (), "examples": {}, "title": "Grandma's <photos>"}
    plain = outcome().model_copy(update=update)
    plain.save(tmp_path / "study" / "x.json")
    report.write_page(report.gather([tmp_path / "study"]), tmp_path / "page.html")
    text, found = (tmp_path / "page.html").read_text(), read(tmp_path / "page.html")
    # AUROC on one set, one row of it from the paper; accuracy has one value, which makes no chart
    assert [chart["aria-label"] for chart in found.charts] == ["Detection: AUROC. sed-a2d 0.9; sed-a2d (paper) 0.95."]
    assert text.count('class="mark printed s0"') == 1
    heads = re.findall(r'<th scope="colgroup"[^>]*>([^<]*)</th>', text)
    assert heads == ["AUROC", "accuracy"]
    assert "Examples" not in text
    assert "#examples" not in text
    assert "<h1>Grandma&#39;s &lt;photos&gt;</h1>" in text


def test_columns_of_a_metric_that_was_registered_come_first_too(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", metrics.METRICS.copy())

    @metrics.register(heading="overlap")
    def overlap(id_scores, ood_scores):
        """How much two sets overlap."""
        return 0.0

    columns = tuple(Column(group, "far") for group in ("accuracy %", "overlapping", "overlap pds", "FPR95 %"))
    table = Table("", ("run",), columns, (Row(("a",), tuple(Value(i / 4) for i in range(4))),))
    ordered = pages._detection_first(table)
    assert [column.group for column in ordered.columns] == ["overlap pds", "FPR95 %", "accuracy %", "overlapping"]
    assert [cell.mean for cell in ordered.rows[0].cells] == [0.5, 0.75, 0, 0.25]


def test_tables_become_charts_with_long_names_and_many_rows():
    rows = tuple(Row((f"row-{i}-" + "x" * 60, "pds"), (Value(i / 40, 0.01, 3), None)) for i in range(30))
    columns = (Column("AUROC", EVIL), Column("accuracy", "id", percent=True))
    (chart,) = dots.of_table(Table("T", ("method", "score"), columns, rows))
    assert chart.note == "the first 20 of 30 rows"
    assert chart.drawing.count('class="mark') == chart.drawing.count('class="whisker') == 20
    assert "x" * 40 not in chart.drawing.split("aria-label")[1].partition(">")[2]
    same = tuple(Row((name, "pds"), (Value(0.5), Value(0.9))) for name in "ab")
    assert dots.of_table(Table("T", ("method", "score"), columns, same)) == []


# the page in a browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def test_tables_sort_by_click_and_by_key(tab, page):
    tab.open(page)
    tab.eval(
        "window.table = document.querySelector('#summary table.sortable'); table.tHead.rows[1].cells[1].id = 'head'"
    )
    column = "[...table.tBodies[0].rows].map(row => Number(row.cells[1].dataset.value))"
    tab.eval("head.querySelector('button').click()")
    values = tab.eval(column)
    assert values == sorted(values, reverse=True)
    assert tab.eval("head.getAttribute('aria-sort')") == "descending"
    tab.eval("head.querySelector('button').focus()")
    tab.press("Enter")
    assert tab.eval(column) == sorted(values)
    assert tab.eval("table.querySelectorAll('[aria-sort]').length") == 1
    tab.eval("table.tHead.rows[1].cells[0].querySelector('button').click()")
    names = tab.eval("[...table.tBodies[0].rows].map(row => row.cells[0].textContent)")
    assert names == sorted(names)
    assert tab.problems == []


def test_the_gallery_opens_by_key_and_gives_the_focus_back(tab, page):
    tab.open(page)
    tab.eval("window.tile = [...document.querySelectorAll('.tile')].find(t => t.offsetParent); tile.focus()")
    tab.press("Enter")
    assert tab.eval("viewer.open")
    assert tab.eval("viewer.querySelectorAll('ol li').length") == 4
    assert tab.eval("viewer.querySelector('.large use') !== null")
    tab.press("ArrowRight")
    assert tab.eval("document.getElementById('viewer-title').textContent !== tile.querySelector('.more').dataset.place")
    tab.press("Escape")
    assert not tab.eval("viewer.open")
    assert tab.eval("document.activeElement.classList.contains('tile')")
    tab.eval("tile.click()")
    tab.eval("viewer.querySelector('.close').click()")
    assert tab.wait("document.activeElement === tile")  # with the close event, which comes later
    assert tab.problems == []


@needs_axe
def test_axe_finds_nothing_serious(tab, runs, tmp_path):
    small = tmp_path / "page.html"  # axe needs seconds for a large one
    report.write_page(report.gather([runs / "sed-a2d", runs.parent / "study"]), small)
    for width, scheme in LOOKS:
        tab.open(small, width=width, prefers_color_scheme=scheme)
        tab.eval("document.querySelectorAll('.by-score[hidden]').forEach(one => one.remove())")
        tab.eval("document.querySelectorAll('#runs details, #configuration details').forEach(d => { d.open = true })")
        assert serious(tab) == [], (width, scheme)
        tab.eval("document.querySelector('.tile').click()")
        assert serious(tab, "#viewer") == [], (width, scheme)


def test_tables_that_are_cut_off_say_so(tab, page):
    cut = "[...document.querySelectorAll('.scroll.wide')].filter(s => s.offsetParent && s.classList.contains('cut'))"
    tab.open(page, width=390)
    tab.wait(f"{cut}.length > 0")
    tab.eval(f"{cut}.forEach(one => {{ one.scrollLeft = 9999 }})")
    tab.wait(f"{cut}.length === 0")
    assert tab.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_of_heat_maps_can_be_read(tab, page, scheme):
    tab.open(page, prefers_color_scheme=scheme)
    assert tab.eval(IN_CELLS) > 4.5


def test_run_and_score_can_be_chosen(tab, page):
    tab.open(page)
    tab.eval(CHOOSING)
    assert tab.eval("shown('#runs .by-run').map(p => p.querySelector('h3').textContent)") == ["sed-a2d, seed 0"]
    tab.eval("choose('run', '1')")
    assert tab.eval("shown('#runs .by-run').map(p => p.querySelector('h3').textContent)") == ["deep-ensemble"]
    tab.eval("choose('score', 'bma')")
    panels = "[...new Set(shown('.by-score').map(p => p.dataset.score))]"
    assert tab.eval(panels) == ["bma"]
    assert "by bma" in tab.eval("document.querySelector('#summary caption:not(details[hidden] *)').textContent")
    assert tab.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(tab, page, scheme):
    tab.open(page, width=360, height=740, prefers_color_scheme=scheme)
    tab.eval("document.querySelectorAll('details').forEach(one => { if (!one.closest('[hidden]')) one.open = true })")
    assert tab.eval("document.documentElement.scrollWidth") == 360
    ratio = tab.eval(CONTRAST)
    assert ratio > 4.5
    assert tab.problems == []


def test_in_print_details_are_open_and_controls_gone(tab, page):
    tab.open(page, media="print")
    tab.eval("dispatchEvent(new Event('beforeprint'))")
    assert tab.eval("document.querySelector('.controls').offsetParent === null")
    closed = "[...document.querySelectorAll('details.data:not([open])')].filter(one => one.offsetParent).length"
    assert tab.eval(closed) == 0
    assert "sed-a2d, seed 0, by combined" in tab.eval("document.querySelector('.printed').textContent")


def test_the_page_asks_for_nothing(tab, page):
    tab.requests.clear()
    tab.open(page)
    assert [address for address in tab.requests if not address.startswith(("file:", "data:"))] == []


def test_the_skip_link_comes_first(tab, page):
    tab.open(page)
    tab.press("Tab")
    assert tab.eval("document.activeElement.className") == "skip"
    assert tab.eval("document.activeElement.getBoundingClientRect().left") >= 0


# refusals


def refuse(*paths: object, match: str, **options: object) -> None:
    with pytest.raises(DissensusError, match=match) as error:
        verb.report([str(path) for path in paths], **options)
    assert "\n" not in str(error.value)


def test_the_command_writes_the_page_and_exits_with_2_on_mistakes(runs, tmp_path, capsys):
    assert cli.main(["report", str(runs), "--out", str(tmp_path / "new" / "page.html"), "--score", "bma"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / "page.html")
    assert "At a glance, by bma" in (tmp_path / "new" / "page.html").read_text()
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(runs), "--score", "pdz"])
    assert stop.value.code == 2
    assert "did you mean 'pds'" in capsys.readouterr().err


def test_what_is_not_evaluated_is_refused_with_the_remedy(copied, tmp_path):
    shutil.rmtree(copied / "evaluation")
    out = str(tmp_path / "page.html")
    refuse(copied, match="has not been evaluated yet: dissensus evaluate", out=out)
    refuse(copied.parent, match="no run in .* has been evaluated yet.*dissensus evaluate", out=out)
    refuse(tmp_path / "nowhere", match="no folder at", out=out)
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", match="neither evaluated runs nor results of a study", out=out)


def test_runs_of_a_folder_that_are_not_evaluated_are_left_out_and_named(runs, copied, tmp_path, capsys):
    shutil.copytree(runs / "single", copied.parent / "single")
    shutil.rmtree(copied / "evaluation")
    verb.report([str(copied.parent)], out=str(tmp_path / "page.html"))
    assert f"left out, not evaluated: {copied}" in capsys.readouterr().err
    assert "Left out, since not evaluated" in (tmp_path / "page.html").read_text()


def test_runs_of_different_suites_are_refused(runs, copied, tmp_path):
    path = copied / "evaluation" / "evaluation.json"
    path.write_text(sealed(json.loads(path.read_text()) | {"suite": "others"}))
    refuse(runs, copied, match="a page is about one suite.* is of blobs.* is of others", out=str(tmp_path / "p.html"))
    outcome("third").save(tmp_path / "third.json")
    refuse(runs, tmp_path, match="a page is about one suite", out=str(tmp_path / "p.html"))


def test_runs_of_different_classes_are_refused(runs, copied, tmp_path):
    path = copied / "evaluation" / "evaluation.json"
    path.write_text(sealed(json.loads(path.read_text()) | {"classes": ["x", "y", "z"]}))
    refuse(runs, copied, match="the same classes", out=str(tmp_path / "p.html"))


def document(folder: Path) -> Path:
    return folder / "evaluation.json"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "set-02.safetensors").write_bytes(b"nothing"),
        lambda folder: (folder / "set-00.safetensors").unlink(),
        lambda folder: shutil.copy(folder / "set-03.safetensors", folder / "set-00.safetensors"),
        lambda folder: (folder / "results.csv").write_text("a,b\n1,2\n"),
        lambda folder: document(folder).write_text('{"format": "dissensus-evaluation-2", "suite": "blobs"}'),
        lambda folder: document(folder).write_text("{"),
        lambda folder: document(folder).write_text("[" * 100_000),
        lambda folder: document(folder).write_text(document(folder).read_text().replace("votes", "v")),
        lambda folder: document(folder).write_text(
            document(folder).read_text().replace('"role": "id"', '"role": "ood"')
        ),
    ],
)
def test_a_damaged_run_is_refused(copied, tmp_path, damage):
    damage(copied / "evaluation")
    refuse(copied, match="damaged|altered|not a table of results|not been evaluated", out=str(tmp_path / "page.html"))
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_study_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"format": "dissensus-study-2", "study": "x"}')
    refuse(tmp_path, match="x.json is damaged", out=str(tmp_path / "page.html"))


def test_outputs_that_cannot_be_are_refused(runs, tmp_path):
    refuse(runs, match=r"must name an \.html file", out=str(tmp_path / "page.pdf"))
    (tmp_path / "folder.html").mkdir()
    refuse(runs, match="is a folder", out=str(tmp_path / "folder.html"))
    (tmp_path / "file").write_text("")
    refuse(runs, match="cannot make the folder", out=str(tmp_path / "file" / "page.html"))


def test_a_score_that_was_not_kept_is_refused(copied, tmp_path, monkeypatch):
    from safetensors.torch import load_file, save_file

    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    for path in (copied / "evaluation").glob("*.safetensors"):
        save_file({k: v for k, v in load_file(path).items() if k != "score.bma"}, path)
    refuse(copied, match="score bma was not kept", out=str(tmp_path / "page.html"), score="bma")
    refuse(copied, match="unknown score", out=str(tmp_path / "page.html"), score="nothing")
