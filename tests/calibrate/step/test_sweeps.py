"""Sweeps among the runs: what makes one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.calibrate.step.observations import sweeps_of
from glmplan.io.runs.ledger import load_measurements
from glmplan.prediction.from_row import question_of


@pytest.fixture(scope="module")
def sweep():
    """TensorRT-LLM with gpt-oss-120b on two B200, 1024 tokens in and out, by users."""
    asked = ("trtllm", "gpt-oss-120b", "b200-sxm", "1.2.0rc2.post2")
    rows = [
        question_of(run)
        for run in load_measurements()
        if run.protocol == "inferencex" and (run.engine, run.model, run.accelerator, run.engine_version) == asked
    ]
    rows = [q for q in rows if q.deployment.tp == 2 and (q.load.input_tokens, q.load.output_tokens) == (1024, 1024)]
    return sorted(rows, key=lambda question: question.load.concurrency)


def test_rows_of_one_build_on_one_day_are_a_sweep(sweep):
    assert sweeps_of(sweep) == [list(range(len(sweep)))]


def test_three_concurrencies_are_no_sweep(sweep):
    assert sweeps_of(sweep[:3]) == []
    assert sweeps_of([*sweep[:3], sweep[0]]) == []


def test_another_day_or_build_is_another_sweep(sweep):
    other = [replace(question, run=replace(question.run, measured_on="2031-01-01")) for question in sweep]
    assert [len(one) for one in sweeps_of([*sweep, *other])] == [len(sweep)] * 2
    halves = [*sweep[:3], *other[3:]]
    assert len(sweep) - 3 < 4
    assert sweeps_of(halves) == []
