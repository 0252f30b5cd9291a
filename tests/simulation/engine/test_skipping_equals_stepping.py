"""The skipping engine against the engine that makes every step: every finish time to a nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import CacheTier, EngineSettings, KvPool, TransferLink, scheduler_settings
from glmplan.simulation.engine.step_table import ShortSteps, StepTable
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.sources import request_source
from glmplan.simulation.traffic.spec import Traffic

AFFINE = StepTable.affine(
    base=0.0123, per_request=1.1e-4, per_context_token=1.3e-8, per_prefill_token=1.7e-5, per_prefill_square=1.9e-9
)


def _saturating(*, decode_requests, decode_context, prefill_tokens, prefill_context):
    """Distinct experts saturate with the batch, attention saturates at 300 keys."""
    some = np.minimum(decode_requests, 1) * 0.01 + np.minimum(prefill_tokens, 1) * 0.01
    return (
        some
        + 2e-3 * np.sqrt(decode_requests)
        + 1e-7 * decode_requests * np.minimum(decode_context, 300)
        + (2e-5 * prefill_tokens + 1e-9 * prefill_tokens * prefill_context)
    )


def _hiding(*, decode_requests, prefill_tokens, **points):
    """The same, where a step of at most 50 tokens hides 3 ms of it."""
    hidden = np.where(decode_requests + prefill_tokens <= 50, 0.003, 0.0)
    return _saturating(decode_requests=decode_requests, prefill_tokens=prefill_tokens, **points) - hidden


TABULATED = StepTable.tabulate(_saturating, max_requests=64, max_context=4096, max_prefill=1024)
HIDING = StepTable.tabulate(
    ShortSteps(_hiding, _saturating, 50.0, 1), max_requests=64, max_context=4096, max_prefill=1024
)
TABLES = {"affine": AFFINE, "tabulated": TABULATED, "hiding": HIDING}


def _requests(seed, count, rate, sessions, draft):
    generator = np.random.default_rng(seed)
    arrivals = generator.exponential(1 / rate, count).cumsum() if rate else np.zeros(count)
    inputs = np.maximum(1, generator.lognormal(4.5, 1.0, count).astype(int))
    outputs = np.maximum(1, generator.lognormal(3.5, 1.0, count).astype(int))
    steps = draft.steps(outputs - 1, generator) if draft else outputs - 1
    made = []
    for i in range(count):
        runs = ()
        if sessions:
            shared = min(int(inputs[i]) - 1, 70)
            runs = (("system", shared), (("session", int(generator.integers(sessions))), int(inputs[i]) - shared))
        made.append(Request(i, float(arrivals[i]), int(inputs[i]), int(outputs[i]), int(steps[i]), runs))
    return made


def _both(table, pool, engine_settings, make, after=None):
    results = []
    for engine in (SkippingEngine, SteppingEngine):
        cluster = Cluster(table, pool, engine_settings, engine)
        done = {r.number: r for r in cluster.run(make(), after() if after else None)}
        for one in cluster.engines:
            assert one.used == 0
        results.append((cluster, done))
    (skipping, fast), (stepping, slow) = results
    assert skipping.rejected == stepping.rejected
    assert fast.keys() == slow.keys()
    for number, request in slow.items():
        other = fast[number]
        assert (request.preemptions, request.cached, request.replica) == (
            other.preemptions,
            other.cached,
            other.replica,
        )
        for name in ("started", "first", "finish"):
            assert abs(getattr(request, name) - getattr(other, name)) < 1e-9, (number, name)
    return skipping, fast


SCHEDULERS = st.sampled_from(["vllm", "sglang", "trtllm", "max-utilization", "unchunked"])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**9),
    count=st.integers(1, 60),
    rate=st.sampled_from([0.0, 1.0, 5.0, 50.0]),
    scheduler=SCHEDULERS,
    seqs=st.integers(1, 40),
    budget=st.integers(200, 1024),
    tokens=st.integers(600, 20_000),
    block=st.sampled_from([1, 16, 64]),
    stages=st.sampled_from([1, 1, 3]),
    sessions=st.sampled_from([0, 0, 5]),
    draft=st.sampled_from([None, None, Acceptance(3, 0.7)]),
    table=st.sampled_from(list(TABLES)),
    ahead=st.booleans(),
    whole=st.booleans(),
    together=st.sampled_from([None, None, 1, 3]),
    order=st.sampled_from(["fcfs", "fcfs", "lpm"]),
    host=st.sampled_from([0, 2000, 50_000]),
    every=st.sampled_from([1, 1, 2, 5]),
    images=st.sampled_from([0, 0, 3]),
    free=st.sampled_from([0, 0, 2, 5]),
)
def test_every_finish_time_agrees_to_a_nanosecond(
    seed, count, rate, scheduler, seqs, budget, tokens, block, stages, sessions, draft, table, ahead, whole, together,
    order, host, every, images, free,
):  # fmt: skip
    changes = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "pipeline_stages": stages,
        "acceptance": draft,
        "prefix_caching": bool(sessions),
        "async_scheduling": ahead,
        "reserve_full_isl": whole,
        "prefill_max_requests": together,
        "order": order,
        "image_seconds": 0.037 if images else 0.0,
        "prefill_schedule_interval": every if scheduler in ("vllm", "unchunked") else 1,
        "min_free_slots": free if scheduler == "sglang" else 0,
    }
    if scheduler == "max-utilization":
        engine_settings = scheduler_settings("trtllm", admission="max-utilization", **changes)
    elif scheduler == "unchunked":
        engine_settings = scheduler_settings("vllm", chunked_prefill=False, **changes)
    else:
        engine_settings = scheduler_settings(scheduler, **changes)
    if host and sessions:
        engine_settings = replace(
            engine_settings, host_tokens=host, host_link=TransferLink(bandwidth=1e9, latency=1e-3)
        )
    pool = KvPool(tokens, block, bytes_per_token=100_000)

    def make():
        made = _requests(seed, count, rate, sessions, draft)
        for request in made[:: images or count]:
            request.images = images
        return made

    cluster, done = _both(TABLES[table], pool, engine_settings, make)
    assert len(done) + sum(cluster.rejected.values()) == count
    for request in done.values():
        assert request.arrival <= request.started <= request.first <= request.finish


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    rate=st.sampled_from([2.0, 20.0]),
    routing=st.sampled_from(["round-robin", "least-loaded"]),
    prefillers=st.integers(0, 2),
    tokens=st.integers(2000, 8000),
    ahead=st.booleans(),
)
@example(
    seed=19958399, rate=20.0, routing="least-loaded", prefillers=2, tokens=2000, ahead=False
)  # a prompt overtaken by keys
def test_replicas_and_disaggregation_agree_too(seed, rate, routing, prefillers, tokens, ahead):
    engine_settings = EngineSettings(
        max_num_batched_tokens=512,
        max_num_seqs=16,
        replicas=4,
        routing=routing,
        prefill_replicas=prefillers,
        async_scheduling=ahead,
        link=TransferLink(bandwidth=1e9, latency=1e-3),
    )
    pool = KvPool(tokens, 16, bytes_per_token=100_000)
    _both(AFFINE, pool, engine_settings, lambda: _requests(seed, 60, rate, 0, None))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    rate=st.sampled_from([0.0, 2.0, 20.0]),
    routing=st.sampled_from(["round-robin", "least-loaded", "prefix-aware", "affinity"]),
    scheduler=st.sampled_from(["vllm", "sglang", "trtllm"]),
    sessions=st.sampled_from([0, 3]),
    tokens=st.integers(500, 8000),
    ahead=st.booleans(),
)
def test_replicas_that_meet_at_arrivals_serve_as_those_on_one_clock_do(
    seed, rate, routing, scheduler, sessions, tokens, ahead
):
    """Nothing follows an answer: then replicas need not wait for each other, and all is the same to the last bit."""
    engine_settings = scheduler_settings(
        scheduler, max_num_seqs=6, replicas=3, routing=routing, async_scheduling=ahead, prefix_caching=sessions > 0
    )
    found = []
    for follows in (None, lambda request, now: None):
        cluster = Cluster(AFFINE, KvPool(tokens, 16, bytes_per_token=100_000), engine_settings)
        done = cluster.run(_requests(seed, 60, rate, sessions, None), follows)
        rows = [(r.number, r.replica, r.started, r.first, r.finish, r.cached, r.preemptions) for r in done]
        found.append((rows, cluster.rejected, cluster.preemptions))
    (meeting, *rest), (together, *others) = found
    # what ends at the same time on several replicas may be told in another order
    assert sorted(meeting) == sorted(together) and rest == others
    assert [row[4] for row in meeting] == sorted(row[4] for row in meeting)


FAR = {
    "drive": (CacheTier("drive", 3000, TransferLink(2e8, 1e-3)),),
    "shared": (CacheTier("shared", 30_000, TransferLink(1e8)),),
    "peers": (CacheTier("peers", 0, TransferLink(3e8)),),
    "all": (
        CacheTier("drive", 2000, TransferLink(2e9)),
        CacheTier("peers", 0, TransferLink(3e8, 1e-4)),
        CacheTier("shared", 50_000, TransferLink(1e8)),
    ),
}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**9),
    replicas=st.integers(2, 4),
    routing=st.sampled_from(
        ["prefix-aware", "prefix-aware", "least-loaded", "round-robin", "affinity", "waiting-penalty"]
    ),
    users=st.integers(0, 12),
    wait=st.sampled_from([0.0, 0.4, 3.0]),
    tokens=st.sampled_from([1500, 3000, 9000]),
    draft=st.sampled_from([None, Acceptance(3, 0.7)]),
    ahead=st.booleans(),
    host=st.sampled_from([0, 600, 4000, 100_000]),
    far=st.sampled_from([None, *FAR]),
    cards=st.sampled_from([0, 0, 2]),
    patience=st.sampled_from([None, None, 0.3]),
)
@example(
    seed=27875, replicas=2, routing="prefix-aware", users=11, wait=0.4, tokens=1500, draft=None, ahead=False, host=0,
    far=None, cards=0, patience=None,
)  # fmt: skip
def test_conversations_on_replicas_agree_too(
    seed, replicas, routing, users, wait, tokens, draft, ahead, host, far, cards, patience
):
    """Where a turn goes depends on what each cache holds when it arrives, in the middle of a run as well."""
    engine_settings = EngineSettings(
        max_num_batched_tokens=512,
        max_num_seqs=16,
        replicas=replicas,
        routing=routing,
        prefix_caching=True,
        acceptance=draft,
        async_scheduling=ahead,
        host_tokens=host,
        host_link=TransferLink(bandwidth=1e10),
        tiers=FAR[far] if far and host else (),
        image_seconds=0.05,
        encoder_cards=cards,
    )
    load = {"users": users} if users else {"rate": 1.5}
    traffic = Traffic(
        kind="sessions", input=60, output=40, jitter=0.5, turns=5, tool_wait=wait, shared_prefix=70, ramp=2.0,
        images=0.3, patience=patience, **load
    )  # fmt: skip

    def source():
        return request_source(traffic, 60, np.random.default_rng(seed), draft)

    sources = []

    def arrivals():
        sources.append(source())
        return sources[-1].arrivals

    cluster, done = _both(AFFINE, KvPool(tokens, 16, 1e5), engine_settings, arrivals, lambda: sources[-1].after)
    assert len(done) + cluster.left + sum(cluster.rejected.values()) == 60
    assert all(one.cached < one.input for one in done.values())


@pytest.mark.parametrize("think", [0.0, 0.7])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_closed_loop_agrees(think, ahead):
    def after():
        lengths = iter(_requests(5, 200, 0, 0, None))

        def next_request(request, now):
            follow = next(lengths, None)
            if follow is not None:
                follow.number += 1000
                follow.arrival = now + think
            return follow

        return next_request

    pool = KvPool(4000, 16)
    chosen = EngineSettings(max_num_batched_tokens=512, max_num_seqs=32, async_scheduling=ahead)
    cluster, done = _both(AFFINE, pool, chosen, lambda: _requests(1, 24, 0, 0, None), after)
    assert cluster.preemptions > 0
    assert len(done) + sum(cluster.rejected.values()) == 224


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**9),
    count=st.integers(1, 60),
    rate=st.sampled_from([0.0, 1.0, 5.0, 50.0]),
    scheduler=st.sampled_from(["vllm", "vllm", "sglang", "trtllm", "llama.cpp", "llama.cpp"]),
    order=st.sampled_from(["priority", "fcfs"]),
    threshold=st.sampled_from([0, 50, 120, 400]),
    patience=st.sampled_from([None, 0.3, 1.0, 3.0]),
    seqs=st.integers(1, 40),
    budget=st.integers(200, 1024),
    tokens=st.sampled_from([600, 1500, 4000, 20_000]),
    block=st.sampled_from([1, 16, 64]),
    sessions=st.sampled_from([0, 5]),
    draft=st.sampled_from([None, None, Acceptance(3, 0.7)]),
    replicas=st.sampled_from([1, 1, 3]),
    ahead=st.booleans(),
    whole=st.booleans(),
    watermark=st.sampled_from([0.0, 0.05, 0.2]),
    interval=st.sampled_from([0, 1, 5]),
)
def test_priorities_slots_prompts_side_by_side_and_clients_that_leave_agree_to_a_nanosecond(
    seed, count, rate, scheduler, order, threshold, patience, seqs, budget, tokens, block, sessions, draft, replicas,
    ahead, whole, watermark, interval,
):  # fmt: skip
    engine_settings = scheduler_settings(
        scheduler,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        watermark=watermark if scheduler == "vllm" else 0.0,
        prefill_decode_interval=interval if scheduler == "sglang" else 0,
        acceptance=draft,
        prefix_caching=bool(sessions),
        async_scheduling=ahead and scheduler != "llama.cpp",
        reserve_full_isl=whole,
        order=order if scheduler in ("vllm", "sglang") else "fcfs",
        long_prefill_token_threshold=threshold if scheduler == "vllm" else 0,
        replicas=replicas,
    )

    def make():
        generator = np.random.default_rng(seed)
        made = _requests(seed, count, rate, sessions, draft)
        for request in made:
            request.priority = int(generator.random() < 0.6)
            if patience:
                request.leaves = request.arrival + patience * (1 + generator.random())
        return made

    skipping, done = _both(AFFINE, KvPool(tokens, block), engine_settings, make)
    assert len(done) + skipping.left + sum(skipping.rejected.values()) == count
