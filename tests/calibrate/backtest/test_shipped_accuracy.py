"""The errors that ship: the page is written from them, and the goals that were reached stay reached."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from same_text import same_to_rounding
from scipy.stats import binomtest

from glmplan.calibrate.backtest.accuracy import accuracy
from glmplan.calibrate.backtest.scores import groups_score
from glmplan.calibrate.backtest.sharpness import CLASSES
from glmplan.calibrate.step.crossvalidate import MODES, read_beyond
from glmplan.calibrate.step.write import read_left_out
from glmplan.prediction.effects import KNOWLEDGE
from glmplan.present.accuracy_text import accuracy_page

REVIEWED = Path(__file__).with_name("sharpness.toml")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "accuracy.md"


@pytest.fixture(scope="module")
def found():
    return accuracy(read_left_out(), beyond=read_beyond())


def test_the_page_was_written_from_these_errors(found):
    text = PAGE.read_text(encoding="utf-8")
    start = "| random | TTFT |"
    row = next(line for line in accuracy_page(found).splitlines() if line.startswith(start))
    # median, mean, p90 and bias: the other columns also depend on how intervals group the runs
    # another processor may round the last digit the other way: docs/decisions/processors.md
    committed = next(line for line in text.splitlines() if line.startswith(start))
    fresh, shipped = ("|".join(one.split("|")[:8]) for one in (row, committed))
    assert same_to_rounding(shipped, fresh), "docs/accuracy.md is stale: run `glmplan backtest`"


#: goals that the shipped fit misses; the tests print by how much. Whoever reaches one must take its name away
MISSED = frozenset({
    "TPOT of random sweep rows",  # by its last digit, to and fro
    "width of intervals: layout",  # by half a percent
    "known no worse than unknown: TTFT",
    "known no worse than unknown: TPOT",  # 15.7 and 16.0 % in the median, 42.4 and 41.3 % in the 90th percentile
    # rows that state all have narrower intervals since 2026-11-27, and each of these groups has an error of its own:
    # DeepSeek-V4-Pro, Kimi-K2.6 on RTX PRO 6000, engines of 2024 on MI300X, vendor sweeps of DeepSeek-V3
    "least coverage: layout",
    "least coverage: group",
    "least coverage: model",
    "least coverage: accelerator",
    "least coverage: campaign",
})  # fmt: skip


def reached(name, met, shown):
    """Expect a goal, or its miss where it is known to be missed, with today's figures."""
    if name not in MISSED:
        assert met, f"{name}: {shown}"
        return
    assert not met, f"{name} is reached ({shown}): take it out of MISSED"
    pytest.xfail(f"{name}: {shown}")


def percent(values):
    return " / ".join(f"{100 * one:.1f}" for one in values) + " %"


def test_tpot_of_random_sweep_rows_is_within_its_goal(found):
    [goal] = [one for one in found.goals if one.name.startswith("TPOT, random rows (sweeps")]
    reached("TPOT of random sweep rows", goal.met, f"{percent(goal.reached)}, goal {percent(goal.asked)}")


@pytest.mark.parametrize("figure", ["TPOT", "TTFT"])
def test_a_known_model_is_not_predicted_worse_than_an_unknown_one(found, figure):
    # the same groups twice: left out alone, when other runs know the model, and with all runs of the model
    table = found.table
    known = np.isin(table.knowledge["group"], ("pair", "format"))
    rows = (table.figure == figure) & known & (table.knowledge["model"] == "accelerator")
    alone, unknown = (groups_score(table.by_group(mode, rows)) for mode in ("group", "model"))
    assert alone.groups == unknown.groups > 30
    met = alone.median <= unknown.median and alone.p90 <= unknown.p90
    shown = (f"{percent((one.median, one.p90))} of groups" for one in (alone, unknown))
    reached(f"known no worse than unknown: {figure}", met, "known {}, unknown {}".format(*shown))


def test_groups_of_every_class_of_knowledge_are_covered(found):
    # of fewer than 15 groups nothing can be said
    scores = {known: score for known in KNOWLEDGE if (score := found.classes.get(known)) and score.groups >= 15}
    assert set(scores) >= {"pair", "format", "accelerator"}
    # what stays unsaid are few groups
    every = sum(one.groups for one in found.classes.values() if one)
    assert sum(one.groups for one in scores.values()) > 0.9 * every
    for known, score in scores.items():
        inside = round(score.coverage * score.groups)
        assert binomtest(inside, score.groups, 0.9, alternative="less").pvalue >= 0.05, (known, score.coverage)


def test_runs_after_a_fit_and_refused_ones_are_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    assert read_beyond()
    assert "## Runs after the last training day" in page and "## Runs that the fit refuses" in page


@pytest.mark.parametrize("mode", MODES)
def test_nine_in_ten_left_out_figures_lie_in_intervals_made_without_them(found, mode):
    assert np.mean(found.table.inside[mode][~np.isnan(found.table.predicted[mode])]) >= 0.87


# large groups are known better than small ones, so that 95 to 97 % of the rows lie inside where 90 % of the groups do
@pytest.mark.parametrize("mode", MODES)
def test_intervals_are_no_wider_than_nine_groups_in_ten_need(found, mode):
    table = found.table
    score = groups_score(table.by_group(mode, ~np.isnan(table.predicted[mode])))
    # most groups have one layout, and most were measured by one campaign
    assert score.groups > {"layout": 60, "campaign": 20}.get(mode, 150)
    assert score.coverage >= 0.87
    reached(f"width of intervals: {mode}", score.coverage <= 0.93, f"{percent([score.coverage])} of groups, goal 93 %")


@pytest.mark.parametrize("mode", MODES)
def test_no_large_group_is_left_with_intervals_that_are_too_narrow(found, mode):
    [goal] = [one for one in found.goals if one.name.startswith(f"least coverage of a large group, {mode}:")]
    reached(f"least coverage: {mode}", goal.met, f"{goal.name} {percent(goal.reached)}, goal {percent(goal.asked)}")


def test_two_points_of_a_sweep_bring_the_rest_within_four_percent_in_the_median(found):
    # a trial with two constants on a ready-made step time got 4.8 %
    assert found.site["TPOT"].count > 500
    assert found.site["TPOT"].median < 0.04


#: largest relative rise of a Winkler score, and largest distance of a coverage from 90 %, without a stated reason [-]
WORSE, APART = 0.03, 0.02


@pytest.fixture(scope="module")
def sharpness(found):
    return {(one.kind, one.name, one.stated): one for one in found.sharpness}


def _reviewed():
    with open(REVIEWED, "rb") as stream:
        return tomllib.load(stream)["class"]


@pytest.mark.parametrize("entry", _reviewed(), ids=lambda one: f"{one['metric']} {one['evidence']} {one['settings']}")
def test_no_class_gets_wider_or_less_covered_without_a_reason(sharpness, entry):
    """Whoever changes a score changes `sharpness.toml` by hand and says in the commit why."""
    told = {"stated": True, "not all stated": False, "all": None}[entry["settings"]]
    found = sharpness[entry["metric"], entry["evidence"], told]
    assert found.winkler <= entry["winkler"] * (1.0 + WORSE), f"Winkler {found.winkler:.3f}"
    apart, reviewed = (abs(share - 0.9) for share in (found.coverage, entry["coverage"]))
    assert apart <= reviewed + APART, f"coverage {found.coverage:.3f}"
    assert found.ratio <= entry["ratio"] * (1.0 + WORSE), f"high/low {found.ratio:.3f}"


def test_every_class_of_evidence_is_reviewed(sharpness):
    named = {(one["metric"], one["evidence"], one["settings"]) for one in _reviewed()}
    words = {True: "stated", False: "not all stated", None: "all"}
    assert named == {(kind, name, words[told]) for kind, name, told in sharpness}
    assert {name for _, name, _ in sharpness} <= {*CLASSES, "all"}


def test_rows_that_state_all_have_the_narrower_intervals(sharpness):
    for kind in ("decode", "ttft"):
        for name in CLASSES:
            stated, other = sharpness.get((kind, name, True)), sharpness.get((kind, name, False))
            # TTFT of accelerators left out has no narrower interval where all is stated: 10.2 and 9.7
            if stated and other and (kind, name) != ("ttft", "new accelerator"):
                assert stated.ratio < other.ratio, (kind, name)
