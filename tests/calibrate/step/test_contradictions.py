"""Rows that contradict their own table are found by the table alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.calibrate.step.joint_fit import guesses_load
from glmplan.calibrate.step.observations import asked_of, build_design, contradicted_rows, step_milliseconds
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run


def table(*tpot, users=(4.0, 8.0, 16.0, 32.0, 64.0), **more):
    return [
        Run(f"r{place}", "glm-5", "h200-sxm", campaign="c", phase="serving", concurrency=load,
            observed={"tpot_mean_ms": value}, **more)
        for place, (load, value) in enumerate(zip(users, tpot, strict=False))
    ]  # fmt: skip


def test_a_table_that_rises_with_its_load_contradicts_nothing():
    assert contradicted_rows(table(10.0, 12.0, 15.0, 21.0, 33.0)) == {}


def test_noise_between_neighbours_is_no_contradiction():
    assert contradicted_rows(table(10.0, 12.0, 11.0, 10.5)) == {}


def test_one_row_far_off_goes_and_the_others_stay():
    assert set(contradicted_rows(table(10.5, 12.3, 64.0, 22.5, 31.9))) == {"r2"}


def test_of_two_rows_that_contradict_each_other_the_slower_one_goes():
    # nothing makes a step faster than it is: a disturbed run is slow
    assert set(contradicted_rows(table(4.0, 4.7, 5.8, 15.9, 9.7))) == {"r3"}


def test_a_table_of_which_a_third_contradicts_the_rest_goes_as_a_whole():
    rows = table(85.2, 85.0, 21.2, users=(40.0, 80.0, 448.0))
    assert set(contradicted_rows(rows)) == {"r0", "r1", "r2"}


def test_rows_of_other_servers_or_requests_are_another_table():
    rows = table(20.0, 21.0, 22.0)
    assert contradicted_rows([*rows, *(replace(one, id=f"o{one.id}", tp=8, observed={"tpot_mean_ms": 5.0})
                                       for one in rows)]) == {}  # fmt: skip


def test_an_aggregate_rate_of_decoding_is_a_time_per_token_too():
    run = Run("a", "glm-5", "h200-sxm", phase="decode", concurrency=8.0, observed={"output_tokens_per_s": 400.0})
    assert step_milliseconds(run) == pytest.approx(20.0)


def test_the_fit_refuses_a_contradicting_row_with_the_reason():
    runs = [one for one in load_measurements() if one.campaign == "inferencex-2026-11" and one.model == "kimi-k2.5"]
    _, refused = asked_of(runs)
    reasons = {run.id: reason for run, reason in refused}
    assert reasons["ix-ab5cb6545e"].startswith("contradicts its table: 64.0 ms per token at 16")


def test_drafts_that_nothing_tells_of_count_as_an_unstated_load():
    # six rows of one sweep lie 1.4 to 2.3 times apart: probably with and without drafts
    runs = [one for one in load_measurements() if one.campaign == "vendor-sweeps-2025-2026"
            and one.engine == "trtllm"][::4]  # fmt: skip
    design = build_design(runs)
    can_draft = [bool(design.cases[run].deployment.model.mtp) for run in design.observation_run]
    assert any(can_draft) and not all(can_draft)
    assert guesses_load(design).tolist() == can_draft
