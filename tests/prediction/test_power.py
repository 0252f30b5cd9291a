"""Power limits cost what was measured on the part; elsewhere memory is answered and the speed has a wider interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glmplan
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.costs.step.model import StepTime
from glmplan.errors import DoesNotFit, SpecError
from glmplan.prediction.power import check_limit, decoding_slowdown, limit_measured, limited, matrix_slowdown

PART = load_accelerator("rtx-pro-6000-ws")


def test_the_matrix_rate_under_limits_is_the_measured_one():
    # voipmonitor/rtx6kpro blackwell-power-limit-sweep.md: 163.5 TFLOP/s at 600 W, 142.4 at 500 W, 90.2 at 300 W
    assert matrix_slowdown(PART, 500.0) == pytest.approx(163.545 / 142.427)
    assert matrix_slowdown(PART, 325.0) == pytest.approx(163.545 / ((90.21 + 105.446) / 2))
    assert matrix_slowdown(PART, 600.0) == matrix_slowdown(PART, None) == 1.0


def test_decoding_loses_what_serving_was_measured_to_lose():
    # hardware/gpu-configs.md of the same repository: gains over 300 W of 4, 17, 26 and 30 % at 4, 16, 32 and 64 users
    requests = np.array([4.0, 16.0, 32.0, 64.0, 500.0])
    assert decoding_slowdown(PART, 300.0, requests).tolist() == pytest.approx([1.04, 1.17, 1.26, 1.30, 1.30])
    # 500 W performs nearly as 600 W does
    assert (decoding_slowdown(PART, 500.0, requests) < 1.011).all()


@given(st.floats(300.0, 600.0), st.floats(300.0, 600.0), st.floats(0.0, 300.0), st.floats(0.0, 1.0))
def test_a_lower_limit_never_makes_a_step_faster(one, other, requests, arithmetic):
    step = StepTime(np.ones(1), np.array([[arithmetic, 1.0 - arithmetic]]))
    times = [
        float(limited(step, (0,), np.array([requests]), PART, limit).seconds[0])
        for limit in (min(one, other), max(one, other), 600.0)
    ]
    assert times[0] >= times[1] * (1 - 1e-12) >= times[2] * (1 - 1e-12) == 1.0 - 1e-12


def test_a_limit_above_the_rating_or_without_a_unit_is_refused():
    with pytest.raises(SpecError, match="above the 600 W"):
        check_limit(PART, 700.0)
    with pytest.raises(SpecError, match="power_limit"):
        glmplan.deployment("llama-3.1-8b", "1xrtx-pro-6000-ws", power_limit="400")


#: parts of field reports with a cap, and the cap [W]; the last two are measured above 300 W only, or below 500 W only
_CAPPED = [("rtx-3090", 210.0), ("rtx-4090", 300.0), ("rtx-5090", 400.0), ("h100-sxm", 350.0), ("mi300x", 500.0),
           ("rtx-pro-6000-ws", 200.0), ("rtx-pro-6000-server", 300.0)]  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), _CAPPED)
def test_a_limit_that_no_run_covers_slows_down_by_none_to_the_power(name, limit):
    part, requests = load_accelerator(name), np.array([1.0, 32.0, 500.0])
    assert not limit_measured(part, limit)
    most = part.tdp / limit
    assert 1.0 < matrix_slowdown(part, limit) < most
    decode = decoding_slowdown(part, limit, requests)
    assert (decode > 1.0).all() and (decode < most).all() and (np.diff(decode) >= 0.0).all()
    said = {"users": (1,), "input": 1000, "output": 200}
    free, capped = (glmplan.fit("qwen3-8b", on=name, power_limit=watts, **said) for watts in (None, f"{limit:g}W"))
    assert capped.verdict == free.verdict == "fits" and capped.holding.pool == free.holding.pool
    assert [one for one in capped.asked.assumed if "never measured" in one]
    slower = [one.one_user.each_rate.inverse() for one in (free, capped)]
    assert slower[0].value < slower[1].value < most * slower[0].value
    # no slow-down and one in proportion to the power are independent errors of the interval
    assert slower[1].low < slower[0].value and slower[1].high > slower[0].high
    assert slower[1].high / slower[1].low > slower[0].high / slower[0].low


def test_a_measured_limit_adds_nothing_to_the_interval():
    plans = [glmplan.deployment("llama-3.1-8b", "1xrtx-pro-6000-ws", power_limit=limit) for limit in (None, "450W")]
    free, capped = (glmplan.predict(one, users=1).figures["tpot"] for one in plans)
    assert capped.high / capped.value == pytest.approx(free.high / free.value)


def test_every_question_about_a_limited_plan_is_answered_with_the_same_limited_steps():
    said = {"input": 1000, "output": 200}
    free, capped = (
        glmplan.deployment("llama-3.1-8b", "1xrtx-pro-6000-ws", power_limit=limit, **said) for limit in (None, "300W")
    )
    assert capped.asked.power_limit == 300.0 and any(
        "power limit of each rtx-pro-6000-ws 300 W" in one for one in capped.asked.assumed
    )
    steps = [glmplan.step_time(one, decode_requests=16, decode_context=1000).seconds[0] for one in (free, capped)]
    assert steps[1] / steps[0] == pytest.approx(1.17, rel=1e-6)
    predicted = [glmplan.predict(one, users=16).figures["tpot"].value for one in (free, capped)]
    simulated = [glmplan.simulate(one, "closed:16", requests=200).summary["tpot_mean_ms"] for one in (free, capped)]
    # steps that decode take 17 % longer, prompts between them at most as much longer as arithmetic does
    for both in (predicted, simulated):
        assert 1.16 < both[1] / both[0] < 163.545 / 90.21
    assert predicted[1] / predicted[0] == pytest.approx(simulated[1] / simulated[0], rel=0.03)
    assert glmplan.safe(capped, "tpot p95 < 20 ms").load < glmplan.safe(free, "tpot p95 < 20 ms").load
    # the rating is no limit
    assert glmplan.deployment("llama-3.1-8b", "1xrtx-pro-6000-ws", power_limit=600, **said).asked.power_limit is None


#: cards of one chip and memory, the one with the lower power limit first
_SLOWER = [("rtx-pro-6000-maxq", "rtx-pro-6000-ws")]
_SERVED = [
    ("llama-3.1-8b", None, 1, {}), ("gpt-oss-120b", None, 2, {}), ("qwen3-30b-a3b", "fp8", 1, {}),
    ("llama-3.1-70b", "fp8", 4, {}), ("glm-4.5-air", "fp8", 4, {}), ("qwen3-30b-a3b", "fp8", 2, {"dp": 2, "tp": 1}),
    ("glm-5.1", "nvfp4", 8, {}), ("gemma-3-27b", None, 1, {}),
]  # fmt: skip


def test_a_card_that_is_another_under_a_power_limit_has_its_chip_and_memory_and_a_measured_limit():
    rated = [load_accelerator(name) for name in accelerator_names() if load_accelerator(name).rated is not None]
    assert {(one.name, one.rated) for one in rated} == set(_SLOWER)
    for one in rated:
        other = load_accelerator(one.rated)
        for name in ("same_chip", "memory", "memory_bandwidth", "multiprocessors", "compute_capability"):
            assert getattr(one, name) == getattr(other, name)
        assert one.tdp < other.tdp and one.power_served == ()
        check_limit(other, one.tdp)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("model", "weights", "count", "layout"), _SERVED)
@pytest.mark.parametrize(("slower", "faster"), _SLOWER)
def test_the_card_with_the_lower_power_limit_is_never_faster(slower, faster, model, weights, count, layout, engine):
    words = {"weights": weights, "engine": engine, **(layout or {"tp": count}), "pp": 1}
    try:
        low, high = (glmplan.deployment(model, f"{count}x{part}", **words) for part in (slower, faster))
    except DoesNotFit:
        pytest.skip("the engine does not serve it there")
    for lengths in ({}, {"input": 16000, "output": 200}, {"input": 128, "output": 1000}):
        if lengths:
            low, high = (glmplan.deployment(model, f"{count}x{part}", **words, **lengths) for part in (slower, faster))
        for users in (1, 3, 8, 32, 100):
            few, many = (glmplan.predict(plan, users).figures for plan in (low, high))
            assert few.keys() == many.keys()
            for name, figure in few.items():
                sign = 1.0 if name.endswith("rate") else -1.0
                for end in ("value", "low", "high"):
                    mine, theirs = getattr(figure, end), getattr(many[name], end)
                    assert sign * mine <= sign * theirs + 1e-9 * theirs, (name, end, users, lengths)


@pytest.mark.parametrize("name", ["rtx-2080-ti", "m3-ultra", "h800-sxm", "epyc-9004"])
def test_a_limit_of_a_part_without_a_published_rating_is_refused(name):
    with pytest.raises(SpecError, match="leave it out"):
        check_limit(load_accelerator(name), 100.0)


@pytest.mark.parametrize("on", ["rtx-5080+rtx-5090", "rtx-5090+rtx-5080"])
def test_a_limit_of_unlike_cards_holds_for_each_of_them(on):
    def plan(limit):
        said = {"engine": "llama.cpp", "weights": "q4_k_m", "power_limit": limit}
        return glmplan.fit("llama-3.1-8b", on, users=(1,), **said)

    # ratings of 360 and 575 W: 400 W limits the larger card alone, and 360 + 400 W are drawn
    assert plan("400W").deployment.power_limit == 760.0
    rates = [plan(limit).user_rate for limit in ("300W", "400W", None)]
    assert rates == sorted(rates) and rates[0] < rates[-1]
    with pytest.raises(SpecError, match="above the 575 W of rtx-5090"):
        plan("600W")
