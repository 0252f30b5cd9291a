"""The test on held-out groups: nothing of them reaches a development fit, and its figures are only added to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glmplan.calibrate.all_fits import calibrate_steps
from glmplan.calibrate.backtest.holdout import (
    ALL,
    CROSS_VALIDATED,
    HELD_OUT,
    STATED,
    HoldoutLine,
    holdout_lines,
    holdout_page,
    read_holdout,
    record_holdout,
)
from glmplan.calibrate.step.joint_fit import solve
from glmplan.errors import SpecError
from glmplan.io.runs.ledger import load_measurements, split_held_out
from glmplan.prediction.from_row import question_of

TABLE = Path(__file__).resolve().parents[3] / "docs" / "accuracy-holdout.csv"


@pytest.fixture(scope="module")
def runs():
    """Sweeps of three models by one engine on two parts; one of them is held out there."""
    models = ("minimax-m2.5", "gpt-oss-120b", "llama-3.1-70b")
    return [run for run in load_measurements() if run.protocol == "inferencex" and run.engine == "vllm"
            and run.model in models and run.accelerator in ("h100-sxm", "h200-sxm")][::3]  # fmt: skip


@pytest.fixture(scope="module")
def developed(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    return calibrate_steps(split_held_out(runs)[0], folder, fit=solve)


def test_figures_of_held_out_runs_change_no_byte_of_a_development_fit(runs, developed, tmp_path):
    seen, held = split_held_out(runs)
    assert seen and held
    out = {run.id for run in held}
    changed = [replace(run, observed={name: 3.0 * value for name, value in run.observed.items()}, tp=1)
               if run.id in out else run for run in runs]  # fmt: skip
    _, files = calibrate_steps(split_held_out(changed)[0], tmp_path, fit=solve)
    for mine, before in zip(files, developed[1], strict=True):
        assert mine.read_bytes() == before.read_bytes(), mine.name


def test_a_fit_that_has_seen_a_held_out_group_is_not_scored_on_it(runs, developed):
    found = developed[0]
    seen, held = split_held_out(runs)
    with pytest.raises(SpecError, match="is held out"):
        holdout_lines(found, [*held, seen[0]], date="2026-11-22", commit="abc")


def test_held_out_runs_are_scored_beside_cross_validated_ones(runs, developed):
    lines = holdout_lines(developed[0], split_held_out(runs)[1], date="2026-11-22", commit="abc")
    found = {(one.runs, one.figure): one for one in lines if one.knowledge == ALL}
    for kind, groups in ((HELD_OUT, 2), (CROSS_VALIDATED, 3)):
        one = found[kind, "TPOT"]
        assert one.groups == groups and one.rows > groups
        assert 0.0 <= one.group_coverage <= 1.0 and one.median <= one.p90


def test_runs_whose_settings_are_all_stated_are_scored_by_themselves(runs, developed):
    held = split_held_out(runs)[1]
    half = [replace(run, tp=None) if n % 2 else run for n, run in enumerate(held)]
    stated = [not question_of(run).deployment.assumed for run in half]
    assert 0 < sum(stated) < len(half)
    lines = holdout_lines(developed[0], half, date="2026-11-22", commit="abc")
    rows = {one.knowledge: one.rows for one in lines if (one.runs, one.figure) == (HELD_OUT, "TPOT")}
    assert 0 < rows[STATED] < rows[ALL]


def test_a_held_out_model_that_is_three_times_slower_is_seen_to_be(runs, developed):
    held = split_held_out(runs)[1]
    slower = [replace(run, observed={name: value * (3.0 if name.endswith("_ms") else 1 / 3)
                                     for name, value in run.observed.items()}) for run in held]  # fmt: skip
    as_is, worse = (
        next(one for one in holdout_lines(developed[0], table, date="", commit="") if one.figure == "TTFT")
        for table in (held, slower)
    )
    assert worse.runs == HELD_OUT
    assert abs(worse.median - as_is.median) > 0.1


def _line(date, value):
    return HoldoutLine(date, "abc", HELD_OUT, "TPOT", ALL, 10, 100, *([value] * 8))


def test_each_run_of_the_test_is_added_and_none_is_lost(tmp_path):
    page = tmp_path / "accuracy-holdout.md"
    record_holdout([_line("2026-11-22", 0.17749)], page)
    record_holdout([_line("2026-12-24", float("nan"))], page)
    read = read_holdout(page.with_suffix(".csv"))
    assert [one.date for one in read] == ["2026-11-22", "2026-12-24"]
    assert read[0] == _line("2026-11-22", 0.1775) and np.isnan(read[1].coverage)
    text = page.read_text()
    assert text == holdout_page(read)
    before = page.read_text().split("## 2026-11-22")[1]
    record_holdout([_line("2027-01-25", 0.2)], page)
    assert page.read_text().split("## 2026-11-22")[1] == before
    assert text.index("## 2026-12-24") < text.index("## 2026-11-22")


def test_another_table_is_no_table_of_scores(tmp_path):
    (tmp_path / "a.csv").write_text("date,run\n")
    with pytest.raises(SpecError, match="is not a table of scores"):
        read_holdout(tmp_path / "a.csv")


def _newest(figure):
    lines = read_holdout(TABLE)
    last = (lines[-1].date, lines[-1].commit)
    return {one.runs: one for one in lines
            if (one.date, one.commit, one.figure, one.knowledge) == (*last, figure, ALL)}  # fmt: skip


_FARTHER = pytest.mark.xfail(strict=True, reason="TTFT of 40 held-out groups 30.2 % in the median, of others 21.4 %")


@pytest.mark.parametrize(
    ("figure", "quantile"),
    [
        ("TPOT", "group_median"),
        ("TPOT", "group_p90"),
        pytest.param("TTFT", "group_median", marks=_FARTHER),
        ("TTFT", "group_p90"),
    ],
)
def test_held_out_groups_are_predicted_within_1_3_times_cross_validated_ones(figure, quantile):
    found = _newest(figure)
    assert getattr(found[HELD_OUT], quantile) <= 1.3 * getattr(found[CROSS_VALIDATED], quantile)


@pytest.mark.parametrize("figure", ["TPOT", "TTFT"])
def test_held_out_groups_are_covered_as_the_interval_says(figure):
    assert _newest(figure)[HELD_OUT].group_coverage >= 0.87
