"""What the fit refuses, a prediction marks in the same words."""

from __future__ import annotations

import math

import pytest

from glmplan.calibrate.step.observations import asked_of
from glmplan.errors import UnknownFact
from glmplan.io.runs.columns import ANSWERS
from glmplan.io.runs.record import Run
from glmplan.prediction.evidence import refused_widths
from glmplan.prediction.from_row import question_of
from glmplan.prediction.table import predict_runs

LOAD = {"engine": "vllm", "concurrency": 8.0, "input_tokens": 1024.0, "output_tokens": 256.0}
ROWS = [
    (Run("a", "qwen3-235b-a22b", "h200-sxm", tp=1, weights="fp8", **LOAD), "weights do not fit: 220 GiB"),
    (Run("b", "deepseek-r1", "gb200", tp=72, weights="fp8", **LOAD), "how they share the work is not stated"),
    (Run("c", "llama-3.1-8b", "h100-sxm", tp=1, protocol="mlperf-server", **{**LOAD, "concurrency": None}),
     "requests in flight are not stated"),
    (Run("e", "llama-3.1-8b", "h100-sxm", tp=1, unusable="only 6 of 8 experts were active", **LOAD), "only 6 of 8"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "words"), ROWS, ids=[run.id for run, _ in ROWS])
def test_what_the_fit_refuses_a_prediction_marks_in_the_same_words(run, words):
    questions, [(_, reason)] = asked_of([run])
    assert not questions and words in reason
    [answer] = predict_runs([run])
    assert reason in answer.out_of_domain


def test_what_the_fit_refuses_is_answered_with_a_wider_interval_and_nothing_else_is():
    taken = Run("d", "llama-3.1-8b", "h100-sxm", tp=1, **LOAD)
    rows = [*(run for run, _ in ROWS), taken]
    for one, narrow in zip(predict_runs(rows), predict_runs(rows, as_fitted=True), strict=True):
        for name, figure in one.figures.items():
            kind, before = ANSWERS[name].interval, narrow.figures[name]
            stretch = refused_widths()[kind] if kind and one.id != taken.id else 1.0
            assert figure.value == before.value
            for end, end_before in ((figure.low, before.low), (figure.high, before.high)):
                wide = math.log(end / figure.value)
                assert wide == pytest.approx(stretch * math.log(end_before / figure.value)) or end == figure.best


def test_a_refused_name_is_refused_in_the_same_words():
    run = Run("f", "glyph", "h100-sxm", tp=1, **LOAD)
    _, [(_, reason)] = asked_of([run])
    [answer] = predict_runs([run])
    assert answer.error == reason and "no cited config" in reason


def test_a_row_that_fits_is_neither_refused_nor_marked():
    run = Run("d", "llama-3.1-8b", "h100-sxm", tp=1, **LOAD)
    assert asked_of([run])[1] == []
    [answer] = predict_runs([run])
    assert "fit" not in answer.out_of_domain and "stated" not in answer.out_of_domain


def test_a_row_whose_requests_arrive_at_a_rate_is_marked_where_its_weights_do_not_fit():
    run = Run("g", "qwen3-235b-a22b", "h200-sxm", tp=1, weights="fp8", request_rate_per_s=0.5, num_requests=20,
              **{**LOAD, "concurrency": None})  # fmt: skip
    [answer] = predict_runs([run])
    assert "weights do not fit: 220 GiB" in answer.out_of_domain
    # how many were in flight nobody needs to know
    assert "in flight" not in answer.out_of_domain and "Poisson" in answer.basis


@pytest.mark.parametrize(("backend", "assumed"), [("MADE_UP_ATTN", True), ("TRITON_MLA", False), (None, False)])
def test_a_stated_attention_backend_that_no_rule_knows_is_told_as_an_assumption(backend, assumed):
    run = Run("h", "glm-5.1", "rtx-pro-6000-server", tp=8, weights="nvfp4", attention_backend=backend, **LOAD)
    [answer] = predict_runs([run])
    assert ("attention backend made_up_attn: no rule" in answer.basis.lower()) == assumed


@pytest.mark.parametrize(
    ("notes", "refused"),
    [("llama-bench; ngl 81", False), ("llama-bench; ngl 80", True), ("ngl 99; 20 layers' experts on the host", True)],
)
def test_a_row_with_layers_on_the_cpu_is_no_row_of_the_accelerator(notes, refused):
    # 80 layers and the output
    run = Run(
        "f",
        "llama-3.1-70b",
        "rtx-pro-6000-server",
        tp=1,
        weights="q4_k_m",
        notes=notes,
        **{**LOAD, "engine": "llama.cpp"},
    )
    if not refused:
        assert question_of(run).deployment.offload is None
        return
    with pytest.raises(UnknownFact, match="glmplan fit llama-3.1-70b .*--engine llama.cpp --on FILE"):
        question_of(run)
