"""Runs of requests without common content: the same as step by step, preemptions included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmplan.simulation.engine.admission import MOST_RECKONED, steps_with_blocks
from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, SimulationOptions, pieces, simulate
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.spec import Traffic

TABLE = StepTable.affine(base=0.01, per_request=1e-4, per_context_token=1e-8, per_prefill_token=1e-5)
#: what comes, and what serves it
SERVICES = {
    "seed": st.integers(0, 10**6),
    "load": st.one_of(st.floats(0.3, 30.0), st.integers(1, 40)),
    "block": st.sampled_from([1, 8, 16, 32]),
    "places": st.integers(1, 30),
    "budget": st.integers(32, 1200),
    "lengths": st.tuples(st.integers(1, 600), st.integers(1, 300)),
    "replicas": st.integers(1, 3),
    "caching": st.booleans(),
    "ahead": st.booleans(),
    "whole": st.booleans(),
    "routing": st.sampled_from(["round-robin", "least-loaded"]),
}


def _both(service, traffic, requests=150, seed=0):
    """Records by number of the engine that skips and of the one that makes every step."""
    found = []
    for reference in (False, True):
        outcome = simulate(
            service, traffic, requests=requests, seed=seed, options=SimulationOptions(keep=True, reference=reference)
        )
        rows = outcome.requests
        found.append({name: column[np.argsort(rows["number"])] for name, column in rows.items()} if rows else {})
    return found


def _same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        if name not in ("session", "turn", "priority"):
            np.testing.assert_allclose(one[name], other[name], rtol=0, atol=3e-9, err_msg=name)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    **SERVICES,
    tokens=st.integers(500, 8000),
)
def test_every_time_and_every_preemption_is_that_of_step_by_step(
    seed, load, tokens, block, places, budget, lengths, replicas, caching, ahead, whole, routing
):
    kind = {"kind": "closed", "users": load} if isinstance(load, int) else {"kind": "poisson", "rate": load}
    traffic = Traffic(**kind, input=lengths[0], output=lengths[1], input_cv=0.7, output_cv=0.7)
    engine = EngineSettings(
        max_num_seqs=places, max_num_batched_tokens=max(budget, places), prefix_caching=caching, async_scheduling=ahead,
        reserve_full_isl=whole, replicas=replicas, routing=routing,
    )  # fmt: skip
    _same(*_both(Service(TABLE, KvPool(tokens, block), engine), traffic, seed=seed))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    **SERVICES,
    tokens=st.integers(500, 30_000),
    together=st.sampled_from([None, 1, 3]),
    ratio=st.floats(0.1, 1.0),
)
def test_prompts_that_come_first_are_served_as_step_by_step(
    seed, load, tokens, block, places, budget, lengths, replicas, together, ratio, caching, ahead, whole, routing
):
    kind = {"kind": "closed", "users": load} if isinstance(load, int) else {"kind": "poisson", "rate": load}
    traffic = Traffic(**kind, input=lengths[0], output=lengths[1], input_cv=0.7, output_cv=0.7)
    engine = EngineSettings(
        scheduler="sglang", prefill_first=True, admission="estimate", new_token_ratio=ratio, max_num_seqs=places,
        max_num_batched_tokens=max(budget, places), prefix_caching=caching, async_scheduling=ahead, routing=routing,
        prefill_max_requests=together, reserve_full_isl=whole,
        # users of several replicas meet them at the same instants, and who is first is then a choice of rounding
        replicas=1 if traffic.kind == "closed" else replicas,
    )  # fmt: skip
    _same(*_both(Service(TABLE, KvPool(tokens, block), engine), traffic, seed=seed))


def test_nobody_is_admitted_again_before_somebody_leaves_where_blocks_were_too_few():
    # whoever gave blocks back waits with what is cached of it, and the engine is full as for those who never ran
    engine = EngineSettings(
        scheduler="sglang", prefill_first=True, admission="estimate", new_token_ratio=1.0, max_num_seqs=8,
        max_num_batched_tokens=32, prefix_caching=True, async_scheduling=True, routing="least-loaded",
        prefill_max_requests=1, replicas=2,
    )  # fmt: skip
    traffic = Traffic(kind="poisson", rate=20.07702828756099, input=3, output=143, input_cv=0.7, output_cv=0.7)
    skipped, stepped = _both(Service(TABLE, KvPool(503), engine), traffic)
    assert skipped["preemptions"].sum() > 20
    _same(skipped, stepped)


def test_answers_longer_than_are_reckoned_with_are_admitted_as_step_by_step():
    engine = EngineSettings(
        scheduler="sglang", prefill_first=True, admission="estimate", new_token_ratio=0.6, max_num_seqs=20,
        max_num_batched_tokens=1024, async_scheduling=True,
    )  # fmt: skip
    traffic = Traffic(kind="poisson", rate=1.0, input=300, output=MOST_RECKONED, output_cv=0.7)
    skipped, stepped = _both(Service(TABLE, KvPool(100_000), engine), traffic, 60)
    assert not skipped["preemptions"].any()
    assert 10 < (skipped["output_tokens"] > MOST_RECKONED + 1).sum() < 50
    _same(skipped, stepped)


def test_where_blocks_run_out_prompts_that_come_first_are_served_as_step_by_step():
    engine = EngineSettings(
        scheduler="sglang", prefill_first=True, admission="estimate", new_token_ratio=0.1, max_num_seqs=16,
        max_num_batched_tokens=512,
    )  # fmt: skip
    traffic = Traffic(kind="poisson", rate=4.0, input=300, output=200, output_cv=0.5)
    skipped, stepped = _both(Service(TABLE, KvPool(3000), engine), traffic, 300)
    assert skipped["preemptions"].any()
    _same(skipped, stepped)


def _computed_again(service, traffic):
    """Tokens that a preempted request computes again, on average."""
    (served,) = pieces(service, traffic, 600, np.random.default_rng(0), {})
    _, steps, *_, tokens, _ = served.segments
    extra = (steps * tokens).sum() - served.records["input_tokens"].sum()
    return extra / served.records["preemptions"].sum()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("ahead", [False, True])
def test_who_is_preempted_finds_its_blocks_again_until_others_take_them(replicas, ahead):
    engine = EngineSettings(
        max_num_seqs=16, max_num_batched_tokens=512, prefix_caching=True, async_scheduling=ahead, replicas=replicas,
        routing="least-loaded",
    )  # fmt: skip
    traffic = Traffic(kind="poisson", rate=4.0 * replicas, input=300, output=200, output_cv=0.5)
    skipped, stepped = _both(Service(TABLE, KvPool(3000), engine), traffic, 600)
    assert 20 < (skipped["preemptions"] > 0).sum() < 580
    assert not skipped["cached"].any()  # prompts have nothing in common, and what is found again does not count
    _same(skipped, stepped)
    finds = _computed_again(Service(TABLE, KvPool(3000), engine), traffic)
    forgets = _computed_again(Service(TABLE, KvPool(3000), replace(engine, prefix_caching=False)), traffic)
    # where nobody took blocks, a preempted request would compute its last block, and one token, and no more
    assert 16 + 1 < finds < 0.7 * forgets


def test_a_replica_is_full_when_requests_are_handed_out_to_the_least_loaded():
    engine = EngineSettings(max_num_seqs=2, replicas=3, routing="least-loaded")
    traffic = Traffic(kind="poisson", rate=50.0, input=100, output=100)
    (served,) = pieces(Service(TABLE, KvPool(10_000), engine), traffic, 300, np.random.default_rng(0), {})
    counts = np.bincount(served.records["replica"])
    assert counts.sum() == 300
    assert counts.max() - counts.min() <= 3


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 50), st.integers(0, 200), st.integers(0, 99)
)
def test_steps_with_blocks_are_counted_one_by_one(needs, start, steps, room):
    made, left = 0, room
    while made < steps and needs[(start + made) % len(needs)] <= left:
        left -= needs[(start + made) % len(needs)]
        made += 1
    assert steps_with_blocks(needs, len(needs), start, steps, room) == made
    assert steps_with_blocks(needs * 2, len(needs), start, steps, room) == made


@pytest.mark.parametrize(
    ("at", "ahead", "expected"),
    [(0.01, False, 0.02), (0.013, False, 0.03), (0.02, False, 0.03),
     (0.01, True, 0.03), (0.013, True, 0.04), (0.02, True, 0.04)],
)  # fmt: skip
def test_who_comes_as_a_step_begins_is_seen_by_the_next_one(at, ahead, expected):
    # two replicas; a prompt takes one step of 10 ms, and the third request comes to the first one when it is done, or
    # later: a step that is formed ahead sees who was there when the one before it began
    engine = EngineSettings(replicas=2, routing="round-robin", async_scheduling=ahead)
    table, first = StepTable.affine(base=0.01), []
    for kind in (SteppingEngine, SkippingEngine):
        requests = [Request(number, when, 16, 20) for number, when in enumerate([0.0, 0.0, at])]
        assert len(list(Cluster(table, KvPool(10_000), engine, kind).run(requests))) == 3
        first.append([one.first for one in requests])
    np.testing.assert_allclose(first[0], first[1], atol=1e-12)
    assert first[1][2] == pytest.approx(expected)


def test_replicas_in_step_with_each_other_answer_as_the_form_that_makes_every_step():
    # users who come at once and answers that are alike: who ends on one replica comes to another as its step begins
    engine = EngineSettings(
        max_num_seqs=15, max_num_batched_tokens=719, prefix_caching=True, pipeline_stages=2, replicas=3,
        async_scheduling=True, routing="round-robin",
    )  # fmt: skip
    traffic = Traffic(kind="closed", users=29, input=281, output=252)
    _same(*_both(Service(TABLE, KvPool(3632, 8), engine), traffic, 200))
