"""Is a run what is predicted, and what could explain the difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.errors import SpecError
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run, Speculation
from glmplan.prediction.effects import load_effects
from glmplan.prediction.from_row import question_of
from glmplan.prediction.predict import predict
from glmplan.prediction.reproduce import _carried, reproduce


@pytest.fixture(scope="module")
def sweep():
    """A measured sweep point: Llama-3.1-70B on one H100 group, vLLM (InferenceX)."""
    return next(
        run
        for run in load_measurements()
        if run.protocol == "inferencex" and run.model == "llama-3.1-70b" and run.accelerator == "h200-sxm"
        and run.engine == "vllm" and run.concurrency == 32 and run.tp == 4 and run.input_tokens == 1024
    )  # fmt: skip


def as_predicted(run: Run, **changes: object) -> Run:
    """The run with figures that the prediction gives under a condition."""
    question = question_of(run)
    load = replace(question.load, **{k: v for k, v in changes.items() if hasattr(question.load, k)})
    deployment = replace(question.deployment, **{k: v for k, v in changes.items() if hasattr(question.deployment, k)})
    if deployment.draft_tokens:
        load = replace(load, tokens_per_step=deployment.tokens_per_step)
    effects = _carried(question, load_effects(deployment.engine), deployment)
    found = predict(deployment, load, effects=effects, measured_on=run.measured_on).figures
    return replace(run, observed={"ttft_mean_ms": found["ttft"].value * 1e3, "tpot_mean_ms": found["tpot"].value * 1e3})


def test_a_run_as_predicted_is_reproduced_and_needs_no_explanation(sweep):
    found = reproduce(as_predicted(sweep))
    assert found.verdict == "reproduced"
    assert found.explanations == ()
    assert all(abs(one.difference) < 1e-9 for one in found.compared)


def test_requests_that_waited_in_waves_are_found(sweep):
    found = reproduce(as_predicted(replace(sweep, running_limit=None), max_requests=8))
    assert found.verdict == "different"
    assert found.explanations[0].name == "waves of requests"
    assert "8 requests" in found.explanations[0].what


def test_a_cached_prompt_is_found(sweep):
    long = replace(sweep, input_tokens=8192.0)
    found = reproduce(as_predicted(long, prefix_cached=True))
    assert "prefix cache" in [one.name for one in found.explanations[:2]]


def test_unlabelled_drafting_is_found():
    run = next(
        run
        for run in load_measurements()
        if run.protocol == "inferencex" and run.model == "deepseek-r1" and run.engine == "trtllm"
        and run.measured_on == "2026-01-28" and run.dp == 1
    )  # fmt: skip
    assert question_of(run).run_both_ways
    found = reproduce(as_predicted(run, draft_tokens=3))
    assert found.verdict == "different"
    assert "speculative decoding" in [one.name for one in found.explanations[:2]]
    stated = replace(run, speculation=Speculation("none"))
    names = [one.name for one in reproduce(as_predicted(stated, draft_tokens=3)).explanations]
    assert "speculative decoding" not in names


def test_explanations_come_by_evidence_and_each_says_how_to_check(sweep):
    question = replace(sweep, observed={"tpot_mean_ms": 3 * sweep.observed["tpot_mean_ms"]})
    found = reproduce(question)
    gains = [one.gain for one in found.explanations]
    assert found.verdict == "different"
    assert gains == sorted(gains, reverse=True)
    assert all(one.check and one.what for one in found.explanations)


def test_a_run_without_a_predicted_figure_is_refused(sweep):
    with pytest.raises(SpecError, match="no metric"):
        reproduce(replace(sweep, observed={"gpu_power_total_w": 3000.0}))


def test_an_unusable_run_says_why(sweep):
    with pytest.raises(SpecError, match="two figures contradict"):
        reproduce(replace(sweep, unusable="two figures contradict"))
