"""Data-parallel ranks whose steps end together: against the plain form, one rank, and what a lone request costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmplan.errors import GlmplanError, SpecError
from glmplan.planner.service import serving_inputs
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import EngineSettings, KvPool, TransferLink, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.spec import parse_traffic

RANKS = 8


def spread(ranks: int) -> StepTable:
    """Step of 10 ms and 1 ms for each rank with as much to do; experts of a prompt token take 10 us on a rank."""
    return StepTable.affine(base=0.010 + 0.001 * ranks, per_prefill_token=1e-5 * ranks)


def _service(servers: int = 1) -> Service:
    engine = EngineSettings(replicas=servers * RANKS, routing="least-loaded", lockstep=RANKS)
    return Service(spread(RANKS), KvPool(10**6), engine, spread=spread)


def _bent(*, decode_requests, decode_context, prefill_tokens, prefill_context):
    """Steps whose slowest rank changes during a run: contexts of few requests grow faster in the mean."""
    return (
        0.01
        + 2e-3 * np.sqrt(decode_requests)
        + 2e-5 * np.minimum(decode_context, 700) * np.minimum(decode_requests, 3)
        + 2e-5 * prefill_tokens
        + 1e-9 * prefill_tokens * prefill_context
    )


BENT = StepTable.tabulate(_bent, max_requests=64, max_context=4096, max_prefill=1024)


def _bent_spread(ranks: int) -> StepTable:
    return BENT.scaled(0.4 + 0.1 * ranks)


def _requests(seed: int, count: int, rate: float, sessions: int) -> list[Request]:
    draw = np.random.default_rng(seed)
    arrivals = draw.exponential(1 / rate, count).cumsum() if rate else np.zeros(count)
    inputs = np.maximum(1, draw.lognormal(4.5, 1.0, count).astype(int)).tolist()
    outputs = np.maximum(1, draw.lognormal(3.5, 1.0, count).astype(int)).tolist()
    made = []
    for number, (at, prompt, answer) in enumerate(zip(arrivals.tolist(), inputs, outputs, strict=True)):
        runs = ((("session", int(draw.integers(sessions))), prompt),) if sessions else ()
        made.append(Request(number, at, prompt, answer, runs=runs))
        if draw.random() < 0.1:
            made[-1].leaves = at + float(draw.exponential(2.0))
    return made


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**9),
    count=st.integers(1, 80),
    rate=st.sampled_from([0.0, 2.0, 10.0, 50.0]),
    scheduler=st.sampled_from(["vllm", "sglang", "trtllm", "priority", "side by side"]),
    ranks=st.integers(2, 8),
    servers=st.integers(1, 2),
    prefills=st.booleans(),
    routing=st.sampled_from(["round-robin", "least-loaded", "prefix-aware", "least-kv", "waiting-penalty"]),
    seqs=st.integers(1, 12),
    budget=st.integers(200, 1024),
    tokens=st.integers(600, 6000),
    sessions=st.sampled_from([0, 0, 5]),
    draft=st.sampled_from([None, None, Acceptance(3, 0.7)]),
    ahead=st.booleans(),
    stages=st.sampled_from([1, 1, 3]),
    every=st.sampled_from([1, 1, 2, 7]),
)
def test_both_forms_of_the_engine_agree_to_a_nanosecond(
    seed, count, rate, scheduler, ranks, servers, prefills, routing, seqs, budget, tokens, sessions, draft, ahead,
    stages, every,
):  # fmt: skip
    changes = {"priority": {"order": "priority"}, "side by side": {"long_prefill_token_threshold": 120}}
    plain = scheduler not in changes
    chosen = scheduler_settings(
        scheduler if plain else "vllm",
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        prefix_caching=bool(sessions),
        acceptance=draft,
        async_scheduling=ahead,
        pipeline_stages=stages,
        replicas=ranks * (servers + (prefills and plain)),
        prefill_replicas=ranks * (prefills and plain),
        link=TransferLink(bandwidth=1e9, latency=1e-3),
        routing=routing,
        lockstep=ranks,
        image_seconds=0.013,
        prefill_schedule_interval=every if scheduler == "vllm" and not prefills else 1,
        **changes.get(scheduler, {}),
    )
    found = []
    for engine in (SkippingEngine, SteppingEngine):
        made = _requests(seed, count, rate, sessions)
        for request in made:
            request.priority = request.number % 2 if scheduler == "priority" else 0
            request.images = request.number % 5 // 4
        cluster = Cluster(BENT, KvPool(tokens, 16, 1e5), chosen, engine, _bent_spread)
        done = sorted(cluster.run(made), key=lambda one: one.number)
        rows = [(one.number, one.replica, one.preemptions, one.cached) for one in done]
        times = np.array([(one.started, one.first, one.finish) for one in done]).reshape(-1, 3)
        found.append((rows, cluster.rejected, cluster.left, times))
        assert len(done) + cluster.left + sum(cluster.rejected.values()) == count
        assert all(one.used == 0 for one in cluster.engines)
        assert cluster.loads == [0] * len(cluster.engines)
    skipping, stepping = found
    assert skipping[:3] == stepping[:3]
    np.testing.assert_allclose(skipping[3], stepping[3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_ranks_do_what_one_rank_does(ranks):
    """The same requests on each of them: every time is that of one rank, whose table assumes equal ranks."""
    times = []
    for many in (1, ranks):
        chosen = EngineSettings(replicas=many, lockstep=many, max_num_batched_tokens=512, max_num_seqs=8)
        made = [
            Request(many * one.number + rank, one.arrival, one.input, one.output)
            for one in _requests(3, 40, 5.0, 0)
            for rank in range(many)
        ]
        done = sorted(Cluster(BENT, KvPool(9000), chosen, spread=_bent_spread).run(made), key=lambda one: one.number)
        times.append(np.array([(one.started, one.first, one.finish) for one in done]))
    np.testing.assert_array_equal(np.repeat(times[0], ranks, axis=0), times[1])


def test_a_rank_waits_for_the_prompt_of_another():
    """One decodes, 1000 tokens come to the other at 50 ms: this token takes 11 + 10 ms and the experts' of both."""
    chosen = EngineSettings(replicas=2, lockstep=2)
    made = [Request(0, 0.0, 1, 21), Request(1, 0.05, 1000, 1)]
    gaps = {}
    for lockstep in (1, 2):
        cluster = Cluster(spread(2), KvPool(10**4), replace(chosen, lockstep=lockstep), spread=spread)
        done = {one.number: one for one in cluster.run([Request(r.number, r.arrival, r.input, r.output) for r in made])}
        gaps[lockstep] = done[0].finish - done[0].first
        if lockstep == 2:  # it joined as the step under way ended: at 11.01 ms and then every 11 ms
            assert done[1].started == pytest.approx(0.01101 + 4 * 0.011)
            busy = 1001 / 1000
            assert done[1].first - done[1].started == pytest.approx(0.010 + 0.001 * busy + 0.01 * busy)
    assert gaps[1] == pytest.approx(20 * 0.012)
    assert gaps[2] == pytest.approx(19 * 0.011 + 0.010 + 0.011 * 1.001)


# vLLM 0.33.0 core.py (DPEngineCoreProc._should_throttle_prefills): all ranks share the counter of steps, which begins
# anew when all were idle
@pytest.mark.parametrize("form", [SkippingEngine, SteppingEngine])
@pytest.mark.parametrize(("interval", "waits"), [(1, 0), (4, 3), (8, 3)])
def test_prompts_of_ranks_begin_at_the_same_steps(form, interval, waits):
    """The first prompt is step 0, and each step takes 12 ms; a prompt comes to a decoding rank in step 4."""
    table = StepTable.affine(base=0.012)
    chosen = EngineSettings(replicas=2, lockstep=2, prefill_schedule_interval=interval)
    made = [Request(0, 0.0, 8, 30), Request(1, 0.0, 8, 30), Request(2, 4.5 * 0.012, 8, 2)]
    done = {one.number: one for one in Cluster(table, KvPool(10**4), chosen, form).run(made)}
    assert done[0].first == done[1].first == pytest.approx(0.012)
    assert done[2].started == pytest.approx((5 + waits) * 0.012)


@pytest.mark.parametrize("rate", [1.0, 4.0, 12.0])
def test_lockstep_never_makes_answers_faster(rate):
    """With one table, waiting for others is all that lockstep adds; of one rank it changes nothing."""
    traffic = parse_traffic(f"poisson:{rate}/s", input=500, output=60)
    found = {}
    for ranks in (1, 4):
        for lockstep in (1, ranks):
            chosen = EngineSettings(replicas=ranks, lockstep=lockstep, max_num_seqs=16)
            service = Service(BENT, KvPool(10**5), chosen)
            found[ranks, lockstep] = simulate(service, traffic, requests=400).summary
    assert found[4, 4]["tpot_mean_ms"] > found[4, 1]["tpot_mean_ms"]
    assert found[4, 4]["itl_p99_ms"] >= found[4, 1]["itl_p99_ms"]
    one = Service(BENT, KvPool(10**5), EngineSettings(max_num_seqs=16), spread=spread)
    assert simulate(one, traffic, requests=400).summary == found[1, 1]
    for name in ("requests", "rejected"):
        assert found[4, 4][name] == found[4, 1][name]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "text",
    ["poisson:1e-4/s", "gamma:1e-4/s,cv=0.5", "sessions:1,turns=2,tool_wait=900 s", "closed:1,think=900 s", "trace"],
)
def test_a_lone_request_costs_the_same_in_every_kind_of_traffic(text, servers, tmp_path):
    """One rank computes a prompt of 1000 tokens in 11 + 10 ms, and a token in 11 ms; eight need 18 + 80 and 18 ms."""
    if text == "trace":
        (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1000,101\n500,1000,101\n")
        text = f"trace:{tmp_path / 't.csv'}"
    traffic = parse_traffic(text, **({} if text.startswith("trace") else {"input": 1000, "output": 101}))
    found = simulate(_service(servers), traffic, requests=20).summary
    alone = simulate(_service(servers), parse_traffic("closed:1", input=1000, output=101), requests=20).summary
    assert alone["tpot_mean_ms"] == pytest.approx(11.0)
    assert found["tpot_mean_ms"] == pytest.approx(alone["tpot_mean_ms"], rel=1e-9)
    if not text.startswith("sessions"):  # whose later turns have longer prompts
        assert found["ttft_mean_ms"] == pytest.approx(alone["ttft_mean_ms"], rel=1e-9)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("users", "busy"), [(1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (32, 8)])
def test_users_of_a_closed_loop_take_the_steps_of_as_many_ranks(servers, users, busy):
    """Every rank does the same at the same time, so lockstep waits for nobody; few users meet on no server."""
    found = simulate(_service(servers), parse_traffic(f"closed:{users * servers}", input=1000, output=101), requests=96)
    assert found.summary["tpot_mean_ms"] == pytest.approx(10.0 + busy, rel=1e-9)


def test_all_ranks_work_where_more_requests_than_ranks_are_in_flight():
    traffic = parse_traffic("poisson:40/s", input=1, output=101)
    options = SimulationOptions(keep=True)
    assert simulate(_service(), traffic, requests=400, options=options).summary["tpot_p90_ms"] < 18.2


def test_ranks_are_in_lockstep_where_they_share_experts():
    shared = serving_inputs(PlanRequest("glm-5.1-fp8", "hgx-h200-8", dp=8, ep=8))
    assert (shared.settings.lockstep, shared.settings.replicas) == (8, 8)
    dense = serving_inputs(PlanRequest("llama-3.1-8b-fp8", "4xl40s", dp=4))
    assert (dense.settings.lockstep, dense.settings.replicas) == (1, 4)


def test_what_is_not_simulated_of_servers_is_refused():
    with pytest.raises(SpecError, match="servers of 4 ranks"):
        EngineSettings(replicas=6, lockstep=4)
    cluster = Cluster(spread(2), KvPool(10**4), EngineSettings(replicas=2, lockstep=2), spread=spread)
    with pytest.raises(GlmplanError, match="wait for each other"):
        cluster.kill(0, 1.0)
    with pytest.raises(GlmplanError, match="wait for each other"):
        cluster.slow_down(1, 2.0, 1.0)
