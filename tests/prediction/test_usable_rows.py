"""What the fit refuses, a prediction marks in the same words."""

from __future__ import annotations

import pytest

from glmplan.calibrate.step.observations import asked_of
from glmplan.prediction.table import predict_runs
from glmplan.readers.runs.record import Run

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
