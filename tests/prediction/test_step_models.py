"""Three models of a step time behave alike: accelerators, weights in host memory, one memory for both."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glmplan
from glmplan.costs.offload.steps import HostedSteps, Offload, OneMemorySteps
from glmplan.costs.offload.work import HostSide, Placement
from glmplan.costs.points import StepPoints
from glmplan.costs.step.model import FrontPoints, GpuSteps, StepModel
from glmplan.errors import SpecError, UnknownFact
from glmplan.io.runs.table import run_from_row
from glmplan.planner.traffic_search import described_under
from glmplan.prediction.effects import COLUMNS, LEVELS, SCALE, keys_of, load_effects
from glmplan.prediction.evidence import KINDS, Evidence
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import Load, metrics_of
from glmplan.prediction.predict import (
    front_end_seconds,
    predict,
    predict_steps,
    step_seconds,
    steps_apart,
    wake_seconds,
)
from glmplan.prediction.step_models import (
    check_answerable,
    may_hide,
    runs_on_accelerators,
    step_model_of,
    without_hiding,
)
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.spec import Traffic

KNOWN = Evidence("engine", "", "", {kind: (-0.1, 0.1) for kind in KINDS})
KINDS_OF_MACHINE = ("accelerators", "hosted", "one memory")


def deployment(kind, bandwidth=1.0):
    """DeepSeek-V3 on eight H200, with its experts on a two-socket host, or on one M3 Ultra."""
    part = "m3-ultra" if kind == "one memory" else "h200-sxm"
    cells = {"id": "a", "model": "deepseek-v3", "weights": "int4" if kind == "one memory" else "fp8",
             "accelerator": part, "accelerator_count": "1" if kind != "accelerators" else "8", "engine": "sglang",
             "phase": "decode", "concurrency": "1"}  # fmt: skip
    found = question_of(run_from_row(cells)).deployment
    faster = found.accelerator.model_copy(
        update={"memory_bandwidth": bandwidth * found.accelerator.need("memory_bandwidth")}
    )
    found = replace(found, accelerator=faster)
    if kind == "hosted":
        side = HostSide(bandwidth * 614.4e9, 2, 64, bandwidth * 50e9, "amx")
        found = replace(found, offload=Offload(Placement(1.0), side, streams_above=4096.0))
    return found


MODELS = {kind: step_model_of(deployment(kind)) for kind in KINDS_OF_MACHINE}
every_kind = pytest.mark.parametrize("kind", KINDS_OF_MACHINE)
prompted = pytest.mark.parametrize("kind", KINDS_OF_MACHINE[:2])


def decode(users, context):
    users, context = np.atleast_1d(np.asarray(users, float)), np.atleast_1d(np.asarray(context, float))
    return StepPoints(users, context + 0 * users, 0 * users, 0 * users)


def test_each_machine_has_the_model_that_is_for_it():
    assert [type(MODELS[kind]) for kind in KINDS_OF_MACHINE] == [GpuSteps, HostedSteps, OneMemorySteps]
    assert all(isinstance(one, StepModel) for one in MODELS.values())
    assert [runs_on_accelerators(deployment(kind)) for kind in KINDS_OF_MACHINE] == [True, False, False]


@every_kind
@given(users=st.floats(1.0, 256.0), context=st.floats(1.0, 1e5), factor=st.floats(1.0, 4.0))
@settings(max_examples=15, deadline=None)
def test_more_bandwidth_is_never_slower(kind, users, context, factor):
    faster = step_model_of(deployment(kind, factor))
    assert faster.times(decode(users, context)).seconds[0] <= MODELS[kind].times(decode(users, context)).seconds[0]


@every_kind
@given(users=st.integers(1, 255), context=st.floats(1.0, 1e5))
@settings(max_examples=15, deadline=None)
def test_a_step_of_more_users_takes_no_less_time(kind, users, context):
    one, more = MODELS[kind].times(decode([users, users + 1], context)).seconds
    assert more >= one * (1 - 1e-9)


@every_kind
@given(users=st.integers(1, 24))
@settings(max_examples=8, deadline=None)
def test_a_user_beside_more_users_is_never_faster(kind, users):
    rates = [
        predict_steps(MODELS[kind], Load(float(number), 512.0, 128.0, requests=8 * number, phase="serving"), KNOWN)
        .figures["user_rate"]
        .value
        for number in (users, 2 * users)
    ]
    assert rates[1] <= rates[0] * (1 + 1e-9)


@prompted
@given(users=st.integers(1, 16), tokens=st.integers(1, 4096))
@settings(max_examples=8, deadline=None)
def test_the_first_token_takes_at_least_one_pass_over_the_prompt(kind, users, tokens):
    load = Load(float(users), float(tokens), 32.0, requests=4 * users, budget=4096, phase="serving")
    first = predict_steps(MODELS[kind], load, KNOWN).figures["ttft"].value
    one = np.ones(1)
    alone = MODELS[kind].times(StepPoints(0 * one, 0 * one, one * tokens, one * (tokens + 1) / 2)).seconds[0]
    assert first >= alone * (1 - 1e-9)


@every_kind
@given(users=st.integers(1, 24), room=st.integers(1, 24))
@settings(max_examples=8, deadline=None)
def test_littles_law_holds_in_the_closed_loop(kind, users, room):
    """Requests in the system are the rate at which they end times how long each is there (Little, 1961)."""
    pool = room * (512 + 0.5 * 128) + 1
    load = Load(float(users), 512.0, 128.0, requests=40 * users, pool_tokens=pool, phase="serving")
    found = predict_steps(MODELS[kind], load, KNOWN).figures
    # a request of one prompt and 128 tokens; where prompts cannot be timed it is its tokens
    first = found["ttft"] if "ttft" in found else found["tpot"]
    there = first.value + 127.0 * found["tpot"].value
    inside = found["output_rate"].value / 128.0 * there
    # where prompts cannot be timed nor can waits: the system is then of those who decode
    system = users if MODELS[kind].times_prompts else min(users, room)
    # all start at once and the last end one after another: over 40 rounds that is a part of one round
    assert inside == pytest.approx(system, rel=1.2 / 40)


@every_kind
def test_arrays_are_the_same_as_a_loop(kind):
    rng = np.random.default_rng(1)
    users, context = rng.integers(1, 300, 40).astype(float), rng.uniform(1.0, 1e5, 40)
    prompt = np.zeros(40) if kind == "one memory" else np.where(rng.random(40) < 0.4, rng.uniform(1, 8192, 40), 0.0)
    points = StepPoints(users, context, prompt, prompt / 2)
    together = MODELS[kind].times(points)
    for n in range(40):
        alone = MODELS[kind].times(
            StepPoints(users[n : n + 1], context[n : n + 1], prompt[n : n + 1], prompt[n : n + 1] / 2)
        )
        np.testing.assert_allclose(alone.seconds[0], together.seconds[n], rtol=1e-12)
        np.testing.assert_allclose(alone.shares[0], together.shares[n], rtol=1e-10, atol=1e-14)


@every_kind
def test_shares_add_up_and_the_components_name_them(kind):
    model = MODELS[kind]
    shares = model.times(decode([1.0, 64.0], 5000.0)).shares
    named = sum(shares[:, list(places)].sum(axis=1) for places in model.components.values())
    np.testing.assert_allclose(named, 1.0)


@every_kind
def test_a_prediction_is_the_sum_of_the_same_step_times(kind):
    """One user who decodes: TPOT is the time of one step at the middle of the answer."""
    found = predict(deployment(kind), Load(1.0, 1000.0, 200.0, phase="decode")).figures
    step = MODELS[kind].times(decode(1.0, 1100.0)).seconds[0]
    assert found["tpot"].value == pytest.approx(step, rel=1e-12)
    seconds = step_seconds(deployment(kind))
    one = np.ones(1)
    again = seconds(decode_requests=one, decode_context=one * 1100.0, prefill_tokens=0 * one, prefill_context=0 * one)
    assert again[0] == pytest.approx(step, rel=1e-12)


@prompted
def test_the_first_token_of_one_user_is_a_pass_over_the_prompt_and_the_front_end(kind):
    place = deployment(kind)
    load = Load(1.0, 2048.0, 64.0, requests=4, phase="serving")
    one = np.ones(1)
    step = MODELS[kind].times(StepPoints(0 * one, 0 * one, one * 2048.0, one * 1024.5)).seconds[0]
    assert predict(place, load).figures["ttft"].value == pytest.approx(
        step + front_end_seconds(place, 2048.0) + wake_seconds(place), rel=1e-9
    )


def test_only_who_finds_nobody_there_waits_for_the_engine_to_wake():
    """A second user finds the first: neither waits for it, in a closed loop or among others who decode."""
    place = deployment("accelerators")
    wake, front, one = wake_seconds(place), front_end_seconds(place, 2048.0), np.ones(1)
    assert wake > 1e-4
    alone = metrics_of(Load(1.0, 2048.0, 64.0, requests=1, phase="serving"))
    joined = metrics_of(Load(2.0, 2048.0, 64.0, requests=1, late=2, joins=True, phase="serving"))
    step = step_seconds(place)
    prompt = step(decode_requests=0 * one, decode_context=0 * one, prefill_tokens=2048 * one,
                  prefill_context=1024.5 * one)[0]  # fmt: skip
    assert alone.figures["ttft"].weights.tolist() == [1.0, 0.0, 1.0]
    assert predict(place, Load(1.0, 2048.0, 64.0, requests=1, phase="serving")).figures["ttft"].value == pytest.approx(
        prompt + front + wake, rel=1e-9
    )
    # half a step of the other is left in the mean, and one more is formed by then; then its own with the other in it
    mixed = step(decode_requests=one, decode_context=2080 * one, prefill_tokens=2048 * one,
                 prefill_context=1024.5 * one)[0]  # fmt: skip
    decode = step(decode_requests=one, decode_context=2080 * one, prefill_tokens=0 * one, prefill_context=0 * one)[0]
    assert joined.figures["ttft"].weights.tolist() == [1.5, 1.0, 1.0]
    load = Load(2.0, 2048.0, 64.0, requests=1, late=2, joins=True, phase="serving")
    assert load.waiting == 0.0
    assert predict(place, load).figures["ttft"].value == pytest.approx(1.5 * decode + mixed + front, rel=1e-9)


@prompted
@pytest.mark.parametrize(("users", "share"), [(1, 0.0), (2, 0.25), (4, 0.5), (16, 1.0), (64, 1.0)])
def test_first_tokens_beside_other_requests_come_later_by_what_was_learnt_and_nothing_else_does(kind, users, share):
    """The learnt logarithm counts by log2 of the requests in flight, a quarter with two, all of it from 16 on."""
    load = Load(float(users), 1024.0, 64.0, requests=4 * users, phase="serving")
    plain, learnt = (predict_steps(MODELS[kind], load, replace(KNOWN, ttft_scale=scale)) for scale in (0.0, -0.4))
    assert learnt.first_later == pytest.approx(math.exp(-0.4 * share))
    later = math.exp(-0.4 * share)
    # of the time in the system only the part up to the first token moves; the latest requests' is no mean of all
    first = plain.figures["ttft"].value / plain.figures["e2e"].value
    factors = {name: later if name.startswith("ttft") else 1.0 for name in plain.figures}
    factors["e2e"] = 1.0 + first * (later - 1.0)
    late = factors["e2e_p99"] = learnt.figures["e2e_p99"].value / plain.figures["e2e_p99"].value
    assert later < late < 1.0 or users == 1
    for name, figure in plain.figures.items():
        other = learnt.figures[name]
        assert [other.value, other.low, other.high] == pytest.approx(
            [factors[name] * one for one in (figure.value, figure.low, figure.high)]
        ), name
    assert "ttft" in plain.figures


def test_a_fit_that_is_faster_than_the_memory_is_held_at_what_reading_the_weights_takes():
    """Steps 100 times as fast as those of the shipped fit: each figure and both its ends are at the bound."""
    place, load = deployment("accelerators"), Load(1.0, 2048.0, 64.0, phase="decode")
    fit = load_effects("sglang")
    level, key = LEVELS[0], keys_of(place)[0]
    faster = fit.values[level].get(key, np.zeros(len(COLUMNS))).copy()
    faster[SCALE] -= math.log(100.0)
    values = {**fit.values, level: {**fit.values[level], key: faster}}
    found = predict(place, load, effects=replace(fit, values=values))
    usual = predict(place, load)
    # one token of DeepSeek-V3 reads 37 B weights, a byte each, over eight cards of 4.8 TB/s: 0.96 ms; of the routed
    # experts at least 0.8 of that, where tokens share them
    assert 0.8 * 37e9 / 8 / 4.8e12 < found.figures["tpot"].value < usual.figures["tpot"].value
    for name in ("tpot", "output_rate", "user_rate"):
        figure = found.figures[name]
        assert figure.best is not None and figure.value == figure.low == figure.high == figure.best, name
        assert figure.best == pytest.approx(usual.figures[name].best), name


def test_a_prompt_longer_than_a_step_joins_others_in_chunks():
    seen = metrics_of(Load(3.0, 5000.0, 64.0, requests=1, budget=2048, joins=True, phase="serving"))
    assert seen.prefill_tokens.tolist() == [0.0, 2046.0, 2046.0, 908.0, 0.0]
    assert seen.figures["ttft"].weights.tolist() == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert seen.decode_requests.tolist() == [2.0] * 4 + [0.0]


def test_where_prompts_cannot_be_timed_only_decoding_is_answered():
    model, one = MODELS["one memory"], np.ones(1)
    found = predict_steps(model, Load(4.0, 512.0, 128.0, phase="serving"), KNOWN)
    # steps of decoding alone are all alike: means and medians are the same, and no prompt makes any of them late
    assert set(found.figures) == {"tpot", "tpot_p50", "itl", "itl_p50", "output_rate", "user_rate"}
    assert len({round(found.figures[name].value, 12) for name in ("tpot", "tpot_p50", "itl", "itl_p50")}) == 1
    with pytest.raises(UnknownFact, match="matrix rate"):
        model.times(StepPoints(0 * one, 0 * one, one, one))
    with pytest.raises(UnknownFact, match="matrix rate"):
        check_answerable(deployment("one memory"), Load(1.0, 512.0, 0.0, phase="prefill"))


@pytest.mark.parametrize("kind", KINDS_OF_MACHINE[1:])
def test_a_front_end_that_was_never_told_apart_costs_nothing(kind):
    nothing, one = np.zeros(1), np.ones(1)
    points = StepPoints(nothing, nothing, nothing, nothing)
    assert MODELS[kind].times(points, FrontPoints(one, one * 512.0)).seconds.tolist() == [0.0]


@pytest.mark.parametrize("mtp", [0, 3])
@pytest.mark.parametrize(("tp", "dp"), [(8, 1), (2, 4)])
def test_steps_that_cannot_hide_shared_experts_take_the_same_time_in_both_models(tp, dp, mtp):
    planned = glmplan.deployment("deepseek-r1", "8xh200-sxm", engine="vllm", tp=tp, dp=dp, mtp=mtp).deployment
    model = step_model_of(planned)
    level, tokens = without_hiding(model)
    grid = np.meshgrid([0.0, 1.0, 60.0, 64.5, 255.0, 300.0, 1030.0], [0.0, 150.0, 960.0])
    requests, prompt = (one.ravel() for one in grid)
    points = StepPoints(requests, requests * 0 + 2000.0, prompt, prompt * 0 + 1000.0)
    some = may_hide(planned, points, tokens)
    apart = level.times(points).seconds != model.times(points).seconds
    assert some.any()
    assert apart.any()
    assert not (apart & ~some).any()
    assert not some.all()


def test_a_model_without_shared_experts_hides_nothing():
    planned = glmplan.deployment("gpt-oss-120b", "1xh100-sxm", engine="vllm").deployment
    assert planned.structure.shared_beside > 0
    assert without_hiding(step_model_of(planned)) is None


MIXED = {
    "decode_requests": np.array([1.0, 64.0, 256.0, 0.0]),
    "decode_context": np.array([500.0, 2000.0, 4000.0, 0.0]),
    "prefill_tokens": np.array([0.0, 0.0, 512.0, 4096.0]),
    "prefill_context": np.array([0.0, 0.0, 256.0, 2048.0]),
}


def test_experts_on_as_many_cards_behind_an_endless_link_are_those_of_the_plan_or_overlap():
    """One micro-batch takes the sum of the parts, which is the step of the plan; more hide the shorter part at most.

    Parts of a step may take less than the whole where measured kernels of fewer tokens are faster.
    """
    chosen = deployment("accelerators")
    requests, context, prompt, keys = MIXED.values()
    in_parts = [
        many * step_model_of(chosen).times(StepPoints(requests / many, context, prompt / many, keys)).seconds
        for many in (1, 2, 3, 4)
    ]
    together, apart = in_parts[0], steps_apart(chosen, chosen.count, 1e30)(**MIXED)
    assert (apart <= together * (1 + 1e-9)).all() and (apart >= np.min(in_parts, axis=0) / 2).all()
    assert apart[0] == pytest.approx(together[0])  # one request has no second half


def test_more_cards_and_faster_links_never_slow_experts_apart_down():
    chosen = deployment("accelerators")
    times = [[steps_apart(chosen, cards, rate)(**MIXED) for rate in (1e9, 25e9, 1e12)] for cards in (8, 16, 64)]
    assert (np.diff(times, axis=0) <= 1e-9).all() and (np.diff(times, axis=1) <= 0).all()
    # a slow link: 58 layers send 8 × 7168 values of 2 B of each of 4096 tokens to cards with 1 GB/s each, and back
    assert times[0][0][3] == pytest.approx(4096 * 58 * 8 * 7168 * 2 / (8 * 1e9), rel=0.1)


def test_experts_of_a_dense_model_are_not_apart():
    traffic, scheduler = [Traffic(kind="closed", users=1)], {"experts_apart": "8@50 GB/s"}
    with pytest.raises(SpecError, match="--experts-apart"):
        described_under(PlanRequest("llama-3.1-8b", "1xh100-sxm"), traffic, scheduler=scheduler)


def test_no_more_cards_have_experts_than_a_layer_has_experts():
    chosen = deployment("accelerators")
    steps_apart(chosen, 256, 1e9)
    with pytest.raises(SpecError, match="257 are more cards than the 256 experts"):
        steps_apart(chosen, 257, 1e9)
