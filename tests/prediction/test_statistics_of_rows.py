"""Every statistic that a row may hold is predicted with its interval, in the order that statistics have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step.joint_fit import evaluate
from glmplan.calibrate.step.observations import design_unchecked
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import COLUMNS, TTFT_SCALE, keys_of, load_effects
from glmplan.prediction.evidence import EVERYTHING, LIKE, NOTHING, Evidence, stated_ratios
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import Load, metrics_of
from glmplan.prediction.predict import predict
from glmplan.prediction.table import predict_runs

CELLS = {"engine": "vllm", "tp": 1, "input_tokens": 2048.0, "output_tokens": 256.0, "phase": "serving"}
NAMES = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p50_ms", "tpot_p99_ms", "itl_mean_ms",
         "itl_p50_ms", "itl_p99_ms", "e2e_mean_ms", "e2e_p99_ms")  # fmt: skip


def row(name="a", **cells):
    return Run(name, "llama-3.1-8b", "h100-sxm", **{**CELLS, "concurrency": 64.0, **cells})


def test_a_row_has_every_statistic_with_its_interval():
    (found,) = predict_runs([row()])
    at = found.figures
    for name in NAMES:
        assert at[name].low < at[name].value < at[name].high, name
    for name in ("ttft", "tpot", "itl"):
        assert at[f"{name}_p50_ms"].value <= at[f"{name}_p99_ms"].value
    assert at["e2e_mean_ms"].value < at["e2e_p99_ms"].value
    # users start together: the median prompt waits less than the mean one, the last one longest
    assert at["ttft_p50_ms"].value < at["ttft_mean_ms"].value < at["ttft_p99_ms"].value


def test_the_time_to_the_last_token_is_the_first_token_and_all_further_ones():
    (found,) = predict_runs([row()])
    at = {name: one.value for name, one in found.figures.items()}
    assert at["e2e_mean_ms"] == pytest.approx(at["ttft_mean_ms"] + 255 * at["tpot_mean_ms"], rel=1e-6)


def test_a_single_user_has_no_late_requests():
    (found,) = predict_runs([row(concurrency=1.0)])
    at = {name: one.value for name, one in found.figures.items()}
    assert at["ttft_p99_ms"] == pytest.approx(at["ttft_mean_ms"]) and at["tpot_p50_ms"] == pytest.approx(
        at["tpot_p99_ms"]
    )


def test_chunks_of_several_tokens_have_no_gap_that_clients_agree_on():
    drafted = metrics_of(Load(8, 1000, 100, tokens_per_step=2.0))
    assert not {"itl", "itl_p50", "itl_p99"} & set(drafted.figures) and "tpot_p99" in drafted.figures


def test_a_fit_without_the_statistic_gives_the_width_of_its_like():
    known = Evidence("pair", "", "", {"decode": (-0.3, 0.5), "ttft": (-0.7, 0.4)})
    assert known.interval("itl_p99") == (-0.3, 0.5) and known.interval("ttft_p99") == (-0.7, 0.4)
    assert known.interval("e2e") == (-0.7, 0.5)
    assert known.interval("prefill") is None and set(LIKE["e2e"]) == {"decode", "ttft"}


def test_the_fit_predicts_each_statistic_as_a_plan_does():
    run = row(observed=dict.fromkeys(NAMES, 10.0))
    case = question_of(run)
    design = design_unchecked([case])
    assert set(design.figure[~design.fitted]) == {
        "ttft_p99_ms", "tpot_p99_ms", "itl_mean_ms", "itl_p99_ms", "e2e_mean_ms", "e2e_p99_ms",
    }  # fmt: skip
    effects = load_effects("vllm")
    total, _ = effects.sum_of(keys_of(case.deployment))
    total = total.copy()
    total[TTFT_SCALE] = 0.4
    values = {**effects.values, "release": {keys_of(case.deployment)[-1]: np.zeros(len(COLUMNS))}}
    shifted = type(effects)(
        values={**values, "all": {"all": effects.values["all"]["all"] + _waits(total, effects, case)}},
        spread=effects.spread, intervals=effects.intervals, domain=effects.domain,
    )  # fmt: skip
    log_seconds, _ = evaluate(design, shifted.sum_of(keys_of(case.deployment))[0][None, :])
    asked = predict(case.deployment, case.load, effects=shifted)
    by_name = {"ttft_p99_ms": "ttft_p99", "e2e_mean_ms": "e2e", "e2e_p99_ms": "e2e_p99", "itl_mean_ms": "itl"}
    for column, name in by_name.items():
        (place,) = np.flatnonzero(design.figure == column)
        assert np.exp(log_seconds[place]) == pytest.approx(asked.figures[name].value, rel=1e-6), name


def _waits(total, effects, case):
    """The count that makes the factor on waiting prompts e^0.4."""
    change = np.zeros(len(COLUMNS))
    change[TTFT_SCALE] = 0.4 - effects.sum_of(keys_of(case.deployment))[0][TTFT_SCALE]
    return change


def test_stating_everything_narrows_an_interval_and_the_row_says_to_what():
    case = question_of(row(kv_cache=None, weights=None))
    assert case.deployment.assumed
    ratios = stated_ratios(case.deployment, case.load)
    assert list(ratios) == [NOTHING, *case.deployment.assumed, EVERYTHING]
    # a mean TTFT of many users has no physical limit that cuts its interval
    asked = predict(case.deployment, case.load).figures["ttft"]
    assert ratios[NOTHING]["ttft"] == pytest.approx(asked.high / asked.low, rel=1e-6)
    all_stated = replace(case.deployment, assumed=())
    told = predict(all_stated, case.load).figures["ttft"]
    assert ratios[EVERYTHING]["ttft"] == pytest.approx(told.high / told.low, rel=1e-6)
    assert ratios[EVERYTHING]["decode"] < ratios[NOTHING]["decode"]
    (found,) = predict_runs([row(kv_cache=None, weights=None)])
    assert f"{EVERYTHING}: decode {ratios[EVERYTHING]['decode']:.2f}" in found.stating
    assert stated_ratios(all_stated, case.load) == {}
