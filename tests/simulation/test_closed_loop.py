"""The protocol as weighted sums agrees with simulating it, and with what can be counted by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.catalog.schema.engine import EngineDefaults
from glmplan.simulation.closed_loop import closed_loop_mix
from glmplan.simulation.closed_run import ClosedLoop
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.spec import parse_traffic

BASE, REQUEST, CONTEXT, PREFILL, SQUARE = 8e-3, 4e-5, 2e-9, 4e-5, 1e-9
POOL = KvPool(tokens=10_000_000)


def weighted(mix, weights):
    n, ctx, p, keys = mix.decode_requests, mix.decode_context, mix.prefill_tokens, mix.prefill_context
    seconds = BASE + REQUEST * n + CONTEXT * n * ctx + PREFILL * p + SQUARE * p * keys
    return float(weights @ seconds)


@pytest.mark.parametrize(
    ("users", "inputs", "outputs"), [(1, 512, 64), (8, 2048, 256), (64, 1024, 512), (96, 4096, 128)]
)
def test_means_equal_those_of_the_simulator(users, inputs, outputs):
    table = StepTable.affine(
        base=BASE, per_request=REQUEST, per_context_token=CONTEXT, per_prefill_token=PREFILL, per_prefill_square=SQUARE
    )
    engine = EngineSettings(scheduler="vllm", max_num_batched_tokens=8192, max_num_seqs=1024)
    service = Service(table, KvPool(tokens=10_000_000), engine)
    found = simulate(
        service, parse_traffic(f"closed:{users}", input=inputs, output=outputs), requests=10 * users
    ).summary
    mix = closed_loop_mix(ClosedLoop(users, inputs, outputs, 10 * users))
    assert 1e3 * weighted(mix, mix.ttft) == pytest.approx(found["ttft_mean_ms"], rel=0.03)
    assert 1e3 * weighted(mix, mix.tpot) == pytest.approx(found["tpot_mean_ms"], rel=0.01)
    assert 1e3 * weighted(mix, mix.itl) == pytest.approx(found["itl_mean_ms"], rel=0.01)
    assert 1e3 * weighted(mix, mix.stay) == pytest.approx(found["e2e_mean_ms"], rel=0.01)
    # medians and tails are means of the requests and tokens around them
    for of, named, near in (
        (mix.tpot_median, "tpot_p50_ms", 0.01), (mix.tpot_late, "tpot_p99_ms", 0.01),
        (mix.itl_median, "itl_p50_ms", 0.01), (mix.ttft_late, "ttft_p99_ms", 0.05),
        (mix.stay_late, "e2e_p99_ms", 0.03), (mix.itl_late, "itl_p99_ms", 0.05),
    ):  # fmt: skip
        assert 1e3 * weighted(mix, of) == pytest.approx(found[named], rel=near), named
    assert weighted(mix, mix.stay_late_first) <= weighted(mix, mix.ttft_late)


@pytest.mark.parametrize(
    ("users", "inputs", "outputs", "tokens", "drafts", "prefill_first"),
    [
        (64, 282, 924, 2.14, 3, True), (32, 371, 269, 2.59, 2, True), (16, 8192, 1024, 3.36, 3, True),
        (64, 1458, 133, 5.46, 5, True), (32, 394, 211, 3.87, 4, False), (16, 592, 245, 1.28, 1, False),
    ],
)  # fmt: skip
def test_users_leave_a_common_start_as_in_the_simulator(users, inputs, outputs, tokens, drafts, prefill_first):
    """Accepted tokens vary, so that users who start together do not stay together."""
    table = StepTable.affine(
        base=BASE, per_request=REQUEST, per_context_token=CONTEXT, per_prefill_token=PREFILL, per_prefill_square=SQUARE
    )
    engine = EngineSettings(
        max_num_batched_tokens=8192, max_num_seqs=1024, prefill_first=prefill_first,
        acceptance=Acceptance.of_mean(drafts, tokens),
    )  # fmt: skip
    traffic, service = parse_traffic(f"closed:{users}", input=inputs, output=outputs), Service(table, POOL, engine)
    found = [simulate(service, traffic, requests=4 * users, seed=seed).summary for seed in range(4)]
    run = ClosedLoop(users, inputs, outputs, 4 * users, prefill_first=prefill_first, tokens_per_step=tokens)
    mix = closed_loop_mix(replace(run, draft_tokens=drafts))
    ttft, tpot = (np.mean([one[name] for one in found]) for name in ("ttft_mean_ms", "tpot_mean_ms"))
    assert 1e3 * weighted(mix, mix.ttft) == pytest.approx(ttft, rel=0.08)
    assert 1e3 * weighted(mix, mix.tpot) == pytest.approx(tpot, rel=0.02)
    # every step yields the mean: all users end at the same step, and their prompts wait for each other
    in_step = closed_loop_mix(run)
    assert weighted(in_step, in_step.ttft) > 1.6 * weighted(mix, mix.ttft)


def test_full_acceptance_keeps_users_in_step():
    run = ClosedLoop(16, 8192, 1001, 64, prefill_first=True, tokens_per_step=4.0)
    np.testing.assert_array_equal(closed_loop_mix(run).ttft, closed_loop_mix(replace(run, draft_tokens=3)).ttft)


@settings(max_examples=25, deadline=None)
@given(
    users=st.integers(1, 60), inputs=st.integers(1, 5000), outputs=st.integers(1, 400), shortest=st.floats(0.3, 1.0),
    first=st.booleans(), pool=st.sampled_from([1 << 60, 40_000]), poll=st.sampled_from([1, 7, 30]),
    whole=st.booleans(), gather=st.sampled_from([0, 0, 25]), full=st.sampled_from([1, 3000, 1 << 60]),
    travel=st.booleans(),
)  # fmt: skip
def test_every_token_is_made_once(users, inputs, outputs, shortest, first, pool, poll, whole, gather, full, travel):
    run = ClosedLoop(
        users, inputs, outputs, 3 * users, shortest, 2048, first, pool_tokens=pool, poll_interval=poll,
        whole_prompts=whole, gather_steps=gather, gather_tokens=full, late=int(travel),
    )  # fmt: skip
    mix = closed_loop_mix(run)
    decoded = float(mix.counted @ mix.decode_requests)
    assert decoded == pytest.approx(mix.output_tokens - 3 * users, rel=1e-9, abs=1e-6)
    assert float(mix.counted @ mix.prefill_tokens) == pytest.approx(mix.input_tokens, rel=1e-9)
    assert mix.peak_requests <= users
    assert (mix.ttft >= -1e-9).all() and (mix.tpot >= -1e-12).all()


def test_an_idle_engine_starts_with_the_first_prompt_and_takes_the_others_one_step_later():
    mix = closed_loop_mix(ClosedLoop(8, 1000, 101, 8, late=1))
    assert sorted(mix.prefill_tokens[mix.prefill_tokens > 0].tolist()) == [1000.0, 7000.0]
    # one waits for a step, seven for two
    assert float(mix.ttft.sum()) == pytest.approx((1 + 7 * 2) / 8)
    at_once = closed_loop_mix(ClosedLoop(8, 1000, 101, 8))
    assert at_once.prefill_tokens.max() == 8000.0
    assert float(at_once.ttft.sum()) == pytest.approx(1.0)


def test_prompts_that_are_never_split_leave_the_rest_of_the_budget_empty():
    split = closed_loop_mix(ClosedLoop(6, 3000, 50, 6, budget=8192))
    whole = closed_loop_mix(ClosedLoop(6, 3000, 50, 6, budget=8192, whole_prompts=True))
    assert split.prefill_tokens.max() == 8192.0
    assert whole.prefill_tokens.max() == 6000.0
    assert float(whole.counted @ whole.prefill_tokens) == 18_000.0


def test_ranks_that_gather_their_prompts_make_them_wait_but_no_longer_than_they_are_told():
    alone = closed_loop_mix(ClosedLoop(16, 1024, 600, 160, 0.8, late=1))
    gathered = closed_loop_mix(ClosedLoop(16, 1024, 600, 160, 0.8, late=1, gather_steps=60))
    assert alone.ttft.sum() + 5 < gathered.ttft.sum() < alone.ttft.sum() + 62


def test_prompts_that_wait_for_a_full_step_wait_no_longer_than_until_it_is_full():
    def ttft(**settings):
        return float(closed_loop_mix(ClosedLoop(16, 1024, 600, 160, 0.8, late=1, **settings)).ttft.sum())

    at_once, waiting = ttft(), ttft(gather_steps=20)
    assert at_once + 10 < waiting < at_once + 22
    # two prompts are enough: the wait ends when the second arrives, so it is shorter but not gone
    assert at_once + 1 < ttft(gather_steps=20, gather_tokens=1800) < waiting - 1
    # a single prompt is enough: nobody waits
    assert ttft(gather_steps=20, gather_tokens=1) == pytest.approx(at_once)


def test_an_engine_that_does_not_decode_waits_for_nobody():
    run = ClosedLoop(1, 1024, 100, 10, gather_steps=20, gather_tokens=1 << 30)
    assert float(closed_loop_mix(run).ttft.sum()) == pytest.approx(1.0)


def test_a_small_pool_makes_requests_wait():
    wide = closed_loop_mix(ClosedLoop(64, 8192, 1024, 640))
    tight = closed_loop_mix(ClosedLoop(64, 8192, 1024, 640, pool_tokens=300_000))
    assert tight.ttft.sum() > 20 * wide.ttft.sum()
    assert tight.peak_requests < 40


def test_an_engine_that_polls_seldom_answers_later():
    often = closed_loop_mix(ClosedLoop(16, 1024, 1024, 160, 0.8, prefill_first=True))
    seldom = closed_loop_mix(ClosedLoop(16, 1024, 1024, 160, 0.8, prefill_first=True, poll_interval=30))
    assert seldom.ttft.sum() > often.ttft.sum() + 5


def test_the_same_run_gives_the_same_mix():
    run = ClosedLoop(12, 700, 90, 120, 0.8)
    first = closed_loop_mix(run)
    closed_loop_mix.cache_clear()
    for name in ("ttft", "tpot", "counted", "decode_context"):
        np.testing.assert_array_equal(getattr(first, name), getattr(closed_loop_mix(run), name))


def test_a_prompt_that_comes_late_waits_for_one_more_step_of_the_others():
    def ttft(users, late):
        run = ClosedLoop(users, 16, 64, 50 * users, budget=512, late=late, staggered=True)
        found = closed_loop_mix(run)
        return {(float(n), float(p)): w for n, p, w in zip(found.decode_requests, found.prefill_tokens, found.ttft) if w}  # noqa: B905, E501  # fmt: skip

    assert ttft(8, 0) == pytest.approx({(7.0, 16.0): 1.0})
    assert ttft(8, 1) == pytest.approx({(7.0, 0.0): 1.0, (7.0, 16.0): 1.0})
    # alone there is no step to wait for
    assert ttft(1, 1) == ttft(1, 0) == pytest.approx({(0.0, 16.0): 1.0})


@pytest.mark.parametrize("ahead", [False, True])
def test_prompts_miss_as_many_steps_as_in_the_simulator(ahead):
    """Where a step is formed while the one before it runs, a prompt that answers the end of a step misses two."""
    table = StepTable.affine(
        base=BASE, per_request=REQUEST, per_context_token=CONTEXT, per_prefill_token=PREFILL, per_prefill_square=SQUARE
    )
    engine = EngineSettings(scheduler="vllm", max_num_seqs=1024, async_scheduling=ahead)
    service = Service(table, KvPool(tokens=10_000_000), engine, 1e-6)
    found = simulate(service, parse_traffic("closed:8", input=64, output=400, jitter=0.5), requests=800).summary
    late = EngineDefaults(8192, False, 1024, ahead=ahead).steps_late
    mix = closed_loop_mix(ClosedLoop(8, 64, 400, 800, shortest=0.5, late=late))
    assert 1e3 * weighted(mix, mix.ttft) == pytest.approx(found["ttft_mean_ms"], rel=0.005)
    assert 1e3 * weighted(mix, mix.tpot) == pytest.approx(found["tpot_mean_ms"], rel=0.001)


def test_staggered_users_never_share_a_prompt_step_and_only_the_steady_state_counts():
    together = closed_loop_mix(ClosedLoop(8, 16, 64, 400))
    apart = closed_loop_mix(ClosedLoop(8, 16, 64, 400, staggered=True))
    assert together.prefill_tokens[together.ttft > 0] == pytest.approx([128.0])
    assert apart.prefill_tokens[apart.ttft > 0] == pytest.approx([16.0])
    # one token for each user and step, and one prompt for each answer
    assert apart.output_tokens == pytest.approx(8 * apart.counted.sum())
    assert apart.input_tokens == pytest.approx(apart.output_tokens * 16 / 64)
    assert apart.decode_requests[apart.counted > 0] == pytest.approx([7.0, 8.0])


def test_the_median_gap_holds_a_prompt_only_where_most_steps_do():
    def prompts(**changes):
        run = ClosedLoop(**{"input_tokens": 500, "output_tokens": 200, "requests": 400, "shortest": 0.5, **changes})
        mix = closed_loop_mix(run)
        assert mix.itl_median.sum() == pytest.approx(1.0)
        return float(mix.itl_median @ (mix.prefill_tokens > 0)), float(mix.tpot @ (mix.prefill_tokens > 0))

    # eight users end once in 19 steps, 400 users nearly three times in each
    few, few_mean = prompts(concurrency=8)
    many, many_mean = prompts(concurrency=400, requests=2000)
    assert few == 0.0 < few_mean
    assert many == pytest.approx(1.0, abs=0.01)
    # an engine that lets decoding wait shows prompts in the mean gap, not in the median
    assert prompts(concurrency=100, requests=1000, prefill_first=True)[0] == 0.0


@settings(max_examples=100)
@given(
    st.sampled_from((1, 2, 7, 40)), st.sampled_from((1, 100, 1000)), st.sampled_from((1, 77, 300)),
    st.fixed_dictionaries(
        {
            "max_requests": st.integers(1, 50), "pool_tokens": st.integers(100, 60_000),
            "reserve": st.sampled_from((0.3, 0.5, 1.0)), "shortest": st.sampled_from((0.5, 1.0)),
            "staggered": st.booleans(), "prefill_first": st.booleans(), "late": st.sampled_from((0, 1)),
            "gather_steps": st.sampled_from((0, 25)),
        }
    ),
)  # fmt: skip
def test_a_limit_that_is_left_out_is_one_that_no_request_reaches(users, prompt, answer, said):
    run = ClosedLoop(concurrency=users, input_tokens=prompt, output_tokens=answer, requests=3 * users, **said)
    left, mix = run.without_idle_limits(), closed_loop_mix(run)
    assert left.pool_tokens >= run.pool_tokens and left.max_requests >= run.max_requests
    for one in fields(mix):
        np.testing.assert_array_equal(getattr(mix, one.name), getattr(closed_loop_mix(left), one.name))


def test_no_more_requests_run_than_the_engine_has_places_for():
    mix = closed_loop_mix(ClosedLoop(8, 400, 50, 40, max_requests=3, shortest=0.8))
    assert mix.peak_requests == mix.decode_requests.max() == 3
    wider = closed_loop_mix(ClosedLoop(8, 400, 50, 40, max_requests=8, shortest=0.8))
    assert wider.peak_requests == 8 and weighted(wider, wider.ttft) < weighted(mix, mix.ttft)
