"""Scores of left-out predictions, their groups, goals and page."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.calibrate.backtest.accuracy import accuracy, memory_errors
from glmplan.calibrate.backtest.fit_diff import moved
from glmplan.calibrate.backtest.scores import GROUPS, conditions_of, reasons_for, score
from glmplan.calibrate.step.crossvalidate import MODES
from glmplan.calibrate.step.write import FILE_LEFT_OUT as FILE
from glmplan.calibrate.step.write import left_out_of
from glmplan.errors import SpecError, UnknownFact
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.ledger import load_measurements
from glmplan.prediction.from_row import question_of
from glmplan.present.accuracy_plots import accuracy_plots
from glmplan.present.accuracy_text import (
    accuracy_csv,
    accuracy_json,
    accuracy_page,
    accuracy_text,
    moved_table,
    moved_text,
    write_accuracy_page,
)


@pytest.fixture(scope="module")
def found(small_fit, small_runs):
    return accuracy(left_out_of(small_fit[0]), small_runs)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=50))
@settings(deadline=None)
def test_scores_are_ordered_and_counted(logs):
    one = score(np.array(logs))
    assert one.count == len(logs)
    assert 0 <= one.median <= max(one.p90, one.median)
    assert one.median <= np.expm1(2.0) and one.bias >= np.expm1(-2.0)


def test_half_and_double_are_not_the_same_error():
    # absolute percentage error of the measured value: half is 50 %, double is 100 %
    assert score(np.log([0.5])).median == pytest.approx(0.5)
    assert score(np.log([2.0])).median == pytest.approx(1.0)


def test_a_rate_and_a_time_of_one_step_err_to_opposite_sides(found, small_fit):
    design = small_fit[0].design
    table = found.table
    place = next(n for n, name in enumerate(design.figure) if name == "tpot_mean_ms")
    assert table.predicted["random"][place] == pytest.approx(-small_fit[0].errors[0].residual[place])
    assert FIGURES["output_tokens_per_s"].group == "throughput"


def test_every_way_and_figure_is_scored(found):
    assert not found.overall["campaign"]  # all runs are one campaign's
    for mode in [mode for mode in MODES if mode != "campaign"]:
        assert set(found.overall[mode]) <= set(GROUPS)
        assert {"TTFT", "TPOT"} <= set(found.overall[mode])
        assert sum(one.count for one in found.overall[mode].values()) == (~np.isnan(found.table.predicted[mode])).sum()
        # only layouts of groups with a single one stay where they are
        assert mode == "layout" or not np.isnan(found.table.predicted[mode]).any()


def test_groups_come_worst_first_and_add_up(found):
    medians = [one.score.median for one in found.groups]
    assert medians == sorted(medians, reverse=True)
    by_engine = [one for one in found.groups if (one.mode, one.figure, one.dimension) == ("random", "TPOT", "engine")]
    assert sum(one.score.count for one in by_engine) == found.overall["random"]["TPOT"].count


def test_missed_goals_are_on_the_page(found):
    page = accuracy_page(found)
    missed = [goal for goal in found.goals if not goal.met]
    assert missed
    assert page.count("| **no** |") == len(missed)
    for goal in found.goals:
        assert goal.name in page


def test_what_makes_a_group_bad_is_named_when_it_is_commoner_there():
    group = np.array([True] * 50 + [False] * 50)
    conditions = {"pool": np.array([True] * 40 + [False] * 60), "build": np.ones(100, dtype=bool)}
    reasons = reasons_for(group, conditions, np.full(100, 0.1), np.arange(100).astype(str))
    assert len(reasons) == 1
    assert reasons[0].startswith("the KV pool is full")
    assert "80 % of its rows" in reasons[0]


def test_a_group_of_few_runs_or_one_wild_row_says_so():
    error = np.array([0.01] * 9 + [3.0])
    reasons = reasons_for(np.ones(10, dtype=bool), {}, error, np.array([f"run-{n}" for n in range(10)]))
    assert reasons == ["only 10 runs", "one row, run-9, makes most of the mean"]


def test_a_run_that_may_be_the_one_with_mtp_is_a_known_condition():
    # calibration/sessions.toml: Qwen3.5 on B300 was measured with and without MTP, DeepSeek's build tells it
    wanted = (("qwen3.5-397b-a17b", "0.5.10.post1"), ("deepseek-r1", "1.2.0rc6.post3"))
    runs = [next(r for r in load_measurements() if (r.model, r.engine_version) == one) for one in wanted]
    assert conditions_of([question_of(run) for run in runs])["mtp"].tolist() == [True, False]


def test_csv_and_json_hold_the_same_groups(found):
    rows = list(csv.DictReader(io.StringIO(accuracy_csv(found))))
    content = json.loads(accuracy_json(found))
    assert len(content["groups"]) == len([row for row in rows if row["by"] != "all"])
    assert content["overall"]["random"]["TPOT"]["median"] == pytest.approx(
        float(
            next(
                row["median"]
                for row in rows
                if (row["left_out"], row["figure"], row["by"]) == ("random", "TPOT", "all")
            )
        )
    )


def test_the_text_names_goals_and_worst_groups(found):
    text = accuracy_text(found)
    assert "goal (rows)" in text
    assert "Worst groups" in text
    assert max(len(line) for line in text.splitlines()[:20]) < 120


def test_the_page_is_written_the_same_twice(found, tmp_path):
    first = write_accuracy_page(found, tmp_path / "a" / "accuracy.md", accuracy_plots(found))
    again = write_accuracy_page(found, tmp_path / "b" / "accuracy.md", accuracy_plots(found))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    text = first[0].read_text()
    for file in first[1:]:
        assert f"(accuracy/{file.name})" in text


def test_pools_that_were_reported_are_scored():
    scores = memory_errors(load_measurements())
    assert scores["KV pool"].count >= 10
    assert scores["KV pool"].median < 0.5


def test_a_fit_against_itself_moves_nothing(small_fit, small_runs):
    _, folder, _ = small_fit
    assert moved(folder, folder, runs=small_runs) == []
    assert moved(folder / "shared.toml", folder, runs=small_runs) == []


def test_runs_that_no_fit_can_use_are_compared_by_none(small_fit, small_runs):
    _, folder, _ = small_fit
    # two of these cross a link whose rate no source gives
    unknown = next(
        run for run in load_measurements() if run.accelerator == "ascend-910b" and run.observed and run.tp == 2
    )
    with pytest.raises(UnknownFact):
        question_of(unknown)
    assert moved(folder, folder, runs=[*small_runs, unknown]) == []


def test_a_slower_fit_moves_predictions_and_says_where(small_fit, small_runs, tmp_path):
    _, folder, _ = small_fit
    import shutil

    shutil.copytree(folder, tmp_path / "old")
    shared = (tmp_path / "old" / "shared.toml").read_text()
    head, _, rest = shared.partition('"all" = [')
    first, _, more = rest.partition(",")
    (tmp_path / "old" / "shared.toml").write_text(f'{head}"all" = [{float(first) + 1.0},{more}')
    moves = moved(tmp_path / "old", folder, runs=small_runs)
    assert moves
    assert all(one.new < one.old for one in moves if one.figure.startswith("tpot"))
    assert moves[0].run in moved_text(moves)
    rows = list(csv.DictReader(io.StringIO(moved_table(moves, "csv"))))
    assert [row["run"] for row in rows] == [one.run for one in moves]
    records = json.loads(moved_table(moves, "json"))
    assert [record["new"] for record in records] == pytest.approx([one.new for one in moves], rel=1e-5)
    assert [row["nearer"] for row in rows] == [str(record["nearer"]) for record in records]
    assert moved_table(moves, "md").count("\n") == len(moves) + 2


def test_a_fit_of_another_version_is_compared_by_its_left_out_errors(small_fit, small_runs, tmp_path):
    _, folder, _ = small_fit
    (tmp_path / FILE).write_bytes((folder / FILE).read_bytes())
    (tmp_path / "shared.toml").write_text('levels = ["other"]\n')
    assert moved(tmp_path, folder, runs=small_runs) == []


def test_a_folder_without_a_fit_is_refused(tmp_path):
    with pytest.raises(SpecError, match="no fit"):
        moved(tmp_path)
