"""The paper's own figures stand under the right columns of our tables; numbers here were looked up by hand."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from dissensus import backbones
from dissensus.evaluation.outcomes import Outcome
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.experiments import paper, studies
from dissensus.features import FeatureSet
from dissensus.functional.scores import SCORES

SETS = {
    "imagenet": {
        "val": "id",
        "IN-A": "shift",
        "IN-R": "shift",
        "C-fog-1": "shift",
        "C-fog-5": "shift",
        "iNaturalist": "ood",
        "OpenImages-O": "ood",
    },
    "waterbirds": {"id": "id", "groups": "groups"},
}
SETS["other"] = SETS["imagenet"] | {"groups": "groups"}


class StandIn:
    """A lab that trains nothing: every study makes its table with its own columns and empty cells."""

    def __init__(self, name, folder):
        (folder / "metrics.jsonl").write_text(json.dumps({"kind": "epoch", "seconds": 1.0}) + "\n")
        self.out, self.quick, self.diversity, self.tell = folder, False, lambda method: 0.5, lambda message: None
        about = backbones.create("test_vit", "random", size=32).describe()
        x = FeatureSet.from_arrays(np.zeros((2, 3), np.float32), [0, 1], provenance={"backbone": about})
        families = {"C-fog-1": "C-1", "C-fog-5": "C-5"}
        sets = [SuiteSet(s, role, x, family=families.get(s, "")) for s, role in SETS[name].items()]
        self.made = Suite(name, "", x, tuple(sets), disagreement=x)

    def suite(self, **changes):
        return self.made

    def run(self, trials, suite=None):
        blank = dict.fromkeys(("method", "metric", "aggregate", "score"), "")
        rows = [
            {"row": t.name, "run": str(self.out), "seed": 0, "value": 0.0, "diversity": 0.0, **blank}
            | {"dataset": s.name, "family": s.family or s.name, "role": s.role}
            for t in trials
            for s in self.made.sets
        ]
        return pd.DataFrame(rows)


@pytest.fixture
def found(tmp_path):
    """study -> the tables of its outcome, with the paper's rows."""

    def tables(study, suite="imagenet"):
        return studies.run(study, StandIn(suite, tmp_path)).tables

    return tables


def cell(table, names, group, name):
    """Of the paper's row of these names, what stands under a column."""
    (row,) = [row for row in table.rows if row.source and row.names == names]
    (at,) = [i for i, column in enumerate(table.columns) if (column.group, column.name) == (group, name)]
    return row.cells[at]


def shown(table, names, group, name):
    """The same as text."""
    (column,) = [column for column in table.columns if (column.group, column.name) == (group, name)]
    return column.text(cell(table, names, group, name))


def test_diversity(found):
    covariate, semantic = found("diversity")
    assert cell(covariate, ("sed-a2d", "best"), "#unique", "val") == Value(5.00)
    assert cell(covariate, ("sed-a2d", "best"), "PDS", "C-5") == Value(4.46)
    assert cell(covariate, ("diverse-hps", "best"), "#unique", "C-1") == Value(1.11)
    assert cell(covariate, ("a2d", "best"), "PDS", "IN-A") is None
    assert cell(semantic, ("sed-a2d", "best"), "#unique", "val") == Value(1.36)
    assert cell(semantic, ("sed-a2d", "best"), "PDS", "val") == Value(1.54)
    assert cell(semantic, ("a2d", "best"), "#unique", "OpenImages-O") == Value(1.91)
    assert cell(semantic, ("deep-ensemble", "best"), "PDS", "iNaturalist") == Value(1.10)


def test_generalization(found):
    (table,) = found("generalization")
    assert cell(table, ("sed-a2d", "50"), "ensemble %", "IN-A").mean == pytest.approx(0.506)
    assert shown(table, ("sed-a2d", "5"), "ensemble %", "IN-R") == "48.7"
    assert shown(table, ("sed-a2d", "50"), "oracle %", "val") == "82.6"
    assert shown(table, ("diverse-hps", "5"), "oracle %", "C-1") == "77.4"
    assert shown(table, ("divdis", "5"), "uniform soup %", "IN-A") == "40.7"
    assert shown(table, ("single", "1"), "uniform soup %", "C-5") == "38.5"
    assert shown(table, ("deep-ensemble", "50"), "ensemble %", "IN-R") == "45.8"


def test_detection_only_beside_the_choice_that_the_paper_makes(found):
    oracle, fixed = found("detection")
    assert cell(oracle, ("sed-a2d", "pds", "best"), "AUROC", "C-1") == Value(0.681)
    assert cell(oracle, ("sed-a2d", "pds", "best"), "AUROC", "OpenImages-O") == Value(0.941)
    assert cell(oracle, ("diverse-hps", "bma", "best"), "AUROC", "C-5") == Value(0.861)
    assert cell(oracle, ("deep-ensemble", "pds", "best"), "AUROC", "iNaturalist") == Value(0.592)
    assert shown(oracle, ("sed-a2d", "pds", "best"), "members %", "covariate") == "1.0"
    assert shown(oracle, ("sed-a2d", "bma", "best"), "members %", "semantic") == "77.5"
    assert cell(oracle, ("sed-a2d", "pds", "best"), "accuracy %", "covariate") is None
    assert not any(row.source for row in fixed.rows)


def test_appendix(found):
    (layers,) = found("layers")
    assert shown(layers, ("1",), "accuracy %", "C-5") == "40.8"
    assert shown(layers, ("2",), "AUROC pds", "C-1") == "0.681"
    assert cell(layers, ("2",), "members %", "val") is None
    (backbones,) = found("backbones")
    assert shown(backbones, ("resnet18", "deep-ensemble"), "accuracy %", "IN-A") == "0.5"
    assert shown(backbones, ("resnet18", "sed-a2d"), "AUROC pds", "iNaturalist") == "0.873"
    (stages,) = found("two-stage")
    assert shown(stages, ("two-stage",), "accuracy %", "IN-R") == "48.5"
    assert shown(stages, ("joint",), "AUROC pds", "C-5") == "0.896"
    (data,) = found("disagreement-data")
    assert shown(data, ("divdis", "IN-R"), "accuracy %", "IN-A") == "35.7"
    assert shown(data, ("a2d", "IN-A"), "AUROC pds", "OpenImages-O") == "0.936"


def test_scores_only_beside_the_same_method(found):
    *others, own = found("scores")
    assert not any(row.source for other in others for row in other.rows)
    assert cell(own, ("mutual_information",), "AUROC", "C-1") == Value(0.503)
    assert cell(own, ("average_max_prob",), "AUROC", "iNaturalist") == Value(0.809)
    assert {row.names[0] for row in own.rows if row.source} < set(SCORES)


def test_active_has_times_with_deviations_over_epochs(found):
    (table,) = found("active")
    assert cell(table, ("5", "2"), "", "epoch s") == Value(53, 5, 10)
    assert cell(table, ("50", "10"), "", "epoch s") == Value(7244, 27, 10)
    assert shown(table, ("5", "5"), "accuracy %", "IN-A") == "37.6"
    assert shown(table, ("50", "5"), "AUROC pds", "iNaturalist") == "0.942"
    assert "585.0 ± 111.0" in table.text()


def test_groups_are_of_waterbirds(found):
    (table,) = found("groups", "waterbirds")
    assert shown(table, ("SED",), "worst group %", "ensemble") == "80.6"
    assert shown(table, ("SED",), "worst group %", "oracle") == "83.5"
    assert shown(table, ("ERM",), "worst group %", "oracle") == "76.5"
    assert cell(table, ("DivDis",), "accuracy %", "id") is None


@pytest.mark.parametrize("study", paper.tables())
def test_rows_line_up_and_stay_away_from_other_suites(study, found, tmp_path):
    suite = "waterbirds" if study == "groups" else "imagenet"
    tables = found(study, suite)
    assert any(row.source for table in tables for row in table.rows)
    for table in tables:
        assert all(len(row.names) == len(table.heads) for row in table.rows)
        assert all(len(row.cells) == len(table.columns) for row in table.rows)
        assert " (paper)" in table.text() or not any(row.source for row in table.rows)
    loaded = Outcome.load(tmp_path / f"{study}.json")
    assert loaded is not None
    assert loaded.tables == tables
    assert not any(row.source for table in found(study, "other") for row in table.rows)


@pytest.mark.parametrize("study", paper.tables())
def test_every_figure_of_the_paper_has_a_column(study, found):
    tables = found(study, "waterbirds" if study == "groups" else "imagenet")
    for printed in paper.tables()[study]:
        (table,) = [table for table in tables if printed.title in table.title]
        columns = {(group, name) for group, names in printed.columns.items() for name in names}
        assert columns <= {(column.group, column.name) for column in table.columns}


def test_a_row_with_too_few_values_is_refused():
    with pytest.raises(ValidationError, match=r"row sed, 5 should have \[2\] values"):
        paper.PrintedTable(
            columns={"AUROC": ("a", "b")}, rows=(paper.PrintedRow(names=("sed", "5"), values=((1.0,),)),)
        )


def test_percentages_are_shares_and_what_is_not_known_is_none():
    columns = (Column("accuracy %", "val", percent=True), Column("accuracy %", "mine", percent=True))
    (one, _) = paper.rows("layers", "imagenet", Table("", ("layers",), columns, ()))
    assert one.cells[0].mean == pytest.approx(0.852)
    assert one.cells[1] is None
    assert one.source == "paper"
    assert paper.rows("layers", "imagenet", Table("", ("layers",), columns[1:], ())) == ()
    assert paper.rows("layers", "pacs", Table("", ("layers",), columns, ())) == ()
    assert paper.rows("ensemble-size", "imagenet", Table("", ("M",), columns, ())) == ()


def test_the_best_is_among_what_was_measured_here():
    columns = (Column("accuracy %", "val", percent=True),)
    own = (Row(("1",), (Value(0.7),)), Row(("2",), (Value(0.6),)))
    bare = Table("", ("layers",), columns, own)
    table = Table("", ("layers",), columns, own + paper.rows("layers", "imagenet", bare))
    assert len(table.rows) == 4
    assert table.best() == {(0, 0)}
    assert "70.0*" in table.text()
    assert "85.3*" not in table.text()
