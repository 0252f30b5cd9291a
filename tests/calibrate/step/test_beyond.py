"""Errors on later runs and on refused ones: who is predicted, from what, and that they come back as written."""

from __future__ import annotations

import pytest

from glmplan.calibrate.backtest.scores import later_scores, refused_scores
from glmplan.calibrate.step.crossvalidate import (
    FILE,
    LATER,
    REFUSED,
    AsFitted,
    Beyond,
    fitted_up_to,
    later_runs,
    read_beyond,
    write_beyond,
)
from glmplan.errors import SpecError
from glmplan.io.runs.ledger import day_of

ROWS = (
    Beyond(LATER, "a", "tpot_mean_ms", 0.1, "pair", "2026-03-01"),
    Beyond(REFUSED, "b", "ttft_mean_ms", -0.2, "group", "trust D: a claim"),
)


def test_later_runs_are_later_than_all_that_their_fit_has_seen(small_fit):
    design, solution = small_fit[0].design, small_fit[0].solution
    day = {case.run.id: day_of(case.run) for case in design.cases}
    middle = sorted(one for one in day.values() if one)[sum(map(bool, day.values())) // 2 - 1]
    later = later_runs(design, AsFitted(solution.spreads), up_to=[middle, "2999-12-31"])
    assert {day[one.run] > middle for one in later} == {True} and {one.note for one in later} == {middle}
    assert len({one.run for one in later}) == sum(one > middle for one in day.values())
    scores = later_scores(later, [case.run for case in design.cases])
    assert sum(one.score.count for one in scores) == len(later)


def test_the_days_are_fixed_and_no_runs_move_them():
    # whoever moves or takes away a day hides how far engines have drifted since
    assert fitted_up_to()[:3] == ("2026-03-29", "2026-04-23", "2026-05-07")
    assert all(len(day) == len("2026-03-29") for day in fitted_up_to())


def test_errors_beyond_come_back_as_they_were_written(tmp_path):
    assert read_beyond(write_beyond(ROWS, tmp_path / FILE)) == ROWS
    assert read_beyond(tmp_path / "none") == ()


def test_a_class_of_knowledge_that_nobody_knows_is_refused(tmp_path):
    file = write_beyond([Beyond(LATER, "a", "tpot_mean_ms", 0.1, "hearsay", "")], tmp_path / FILE)
    with pytest.raises(SpecError, match="glmplan calibrate"):
        read_beyond(file)


def test_refused_rows_are_scored_together_and_by_reason():
    scores = refused_scores(ROWS)
    assert [(why, figure) for why, figure, _ in scores] == [("all", "TTFT"), ("trust D", "TTFT")]
    # measured in 0.82 of the predicted time: predicted 22 % too slow
    assert scores[0][2].bias == pytest.approx(0.2214, abs=1e-4)
