"""Sweeps among the runs: what makes one, and when it contradicts itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.ledger import load_measurements
from glmplan.calibrate.sweeps import contradicting, sweeps_of
from glmplan.question import question_of


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


def with_tpot(question, factor):
    observed = {**question.run.observed, "tpot_mean_ms": factor * question.run.observed["tpot_mean_ms"]}
    return replace(question, run=replace(question.run, observed=observed))


def test_a_sweep_of_growing_tpot_does_not_contradict_itself(sweep):
    assert sweeps_of(sweep) == [list(range(len(sweep)))]
    assert not contradicting(sweep).any()


def test_three_concurrencies_are_no_sweep(sweep):
    assert sweeps_of(sweep[:3]) == []
    assert sweeps_of([*sweep[:3], sweep[0]]) == []
    assert not contradicting([with_tpot(sweep[0], 100.0), *sweep[1:3]]).any()


def test_another_day_or_build_is_another_sweep(sweep):
    other = [replace(question, run=replace(question.run, measured_on="2031-01-01")) for question in sweep]
    assert [len(one) for one in sweeps_of([*sweep, *other])] == [len(sweep)] * 2
    halves = [*sweep[:3], *other[3:]]
    assert len(sweep) - 3 < 4
    assert sweeps_of(halves) == []


@pytest.mark.parametrize(("factor", "named"), [(1.05, False), (1.2, True), (0.95, False), (0.8, True)])
def test_repeats_that_disagree_contradict(sweep, factor, named):
    found = contradicting([*sweep, with_tpot(sweep[2], factor)])
    assert found.all() == found.any() == named


def test_a_row_slower_than_one_of_more_users_contradicts_and_other_sweeps_do_not(sweep):
    other = [replace(question, run=replace(question.run, measured_on="2031-01-01")) for question in sweep]
    slow = [*sweep[:1], with_tpot(sweep[1], 2.0), *sweep[2:], *other]
    assert np.flatnonzero(contradicting(slow)).tolist() == list(range(len(sweep)))


def test_at_most_a_few_of_the_shipped_sweeps_contradict_themselves():
    questions = [question_of(run) for run in load_measurements() if run.protocol == "inferencex"][:1500]
    among = [set(places) for places in sweeps_of(questions)]
    found = set(np.flatnonzero(contradicting(questions)).tolist())
    assert len(among) > 20
    assert found == set().union(*(places for places in among if places & found))
    assert sum(bool(places & found) for places in among) < 0.1 * len(among)
