"""Groups of replicas behind a gateway: both forms agree, queueing theory holds, nothing is lost."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.fleet import Fleet, ReplicaGroup
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import (
    CacheTier,
    EngineSettings,
    GatewayRules,
    KvPool,
    TransferLink,
    scheduler_settings,
)
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request

AFFINE = StepTable.affine(base=0.01, per_request=2e-4, per_context_token=1e-7, per_prefill_token=2e-5)
FLAT = StepTable.affine(base=0.001)
POLICIES = (
    *("round-robin", "least-loaded", "prefix-aware", "affinity", "random", "power-of-two", "least-kv", "weighted"),
    "waiting-penalty",
)


def made(draw: np.random.Generator, count: int, rate: float) -> list[Request]:
    """Requests of 40 sessions and two tenants, some of which lose patience."""
    found, at = [], 0.0
    for number in range(count):
        at += float(draw.exponential(1 / rate))
        session, prompt, answer = int(draw.integers(40)), int(draw.integers(20, 900)), int(draw.integers(1, 90))
        one = Request(number, at, prompt, answer, runs=((("session", session), prompt),), session=session)
        one.tenant = int(draw.integers(2))
        one.images = number % 3 // 2
        if draw.random() < 0.1:
            one.leaves = at + float(draw.exponential(0.3))
        found.append(one)
    return found


def disturbed(fleet: Fleet, seed: int) -> None:
    """Kill, slow down, drain and enable replicas at random times, the same for each form of the engine."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.uniform(0.2, 4.0, 8)).tolist()
    kinds = [(int(draw.integers(4)), int(draw.integers(len(fleet.engines)))) for _ in times]

    def control(now: float) -> float:
        if not times or now < times[0]:  # a drained replica is empty
            return times[0] if times else math.inf
        times.pop(0)
        kind, replica = kinds.pop(0)
        if kind == 0:
            for request in fleet.kill(replica, now):
                if request.number % 3:
                    fleet.retry(request, now + 0.05)
                else:
                    fleet.fail(request, now)
            fleet.enable(replica, now)
        elif kind == 1:
            fleet.slow_down(replica, 1.7, now)
        elif kind == 2 and len(fleet.router_of[replica].ready) > 1:
            fleet.drain(replica)
        else:
            fleet.enable(replica, now)
        return times[0] if times else math.inf

    fleet.control, fleet.due = control, times[0]


def random_fleet(seed: int, engine: type) -> tuple[Fleet, list[Request]]:
    """A fleet of two groups of different engines for two models, or both for one."""
    draw = np.random.default_rng(seed)
    two_models = bool(draw.integers(2))
    rules = GatewayRules(
        routing=POLICIES[seed % len(POLICIES)],
        max_outstanding=int(draw.choice([0, 4, 12])),
        queue_size=int(draw.choice([3, 1 << 60])),
        queue_timeout=float(draw.choice([0.2, math.inf])),
        metrics_interval=float(draw.choice([0.0, 0.05])),
        seed=seed,
    )
    schedulers = draw.choice(["vllm", "sglang", "trtllm"], 2).tolist()
    groups = []
    for number, scheduler in enumerate(schedulers):
        settings = scheduler_settings(
            scheduler,
            max_num_seqs=int(draw.integers(2, 12)),
            max_num_batched_tokens=int(draw.choice([256, 2048])),
            prefix_caching=bool(draw.integers(2)),
            async_scheduling=bool(draw.integers(2)),
            replicas=int(draw.integers(1, 5)),
        )
        if settings.prefix_caching and draw.integers(2):
            tiers = [CacheTier("drive", 4000, TransferLink(1e9)), CacheTier("peers", 0, TransferLink(2e8, 1e-3))]
            tiers.append(CacheTier("shared", 9000, TransferLink(1e8)))
            far = tuple(tiers[int(draw.integers(3)) :])
            settings = replace(settings, host_tokens=2000, host_link=TransferLink(1e10), tiers=far)
        settings = replace(settings, image_seconds=0.02, encoder_cards=int(draw.integers(3)))
        pool = KvPool(int(draw.integers(1200, 6000)), 16, 1e5)
        groups.append(ReplicaGroup(AFFINE.scaled(1 + 0.5 * number), pool, settings, number * two_models, 1.0 + number))
    fleet = Fleet(groups, rules, engine)
    fleet.models = [0, 1] if two_models else [0, 0]
    disturbed(fleet, seed)
    return fleet, made(draw, 150, 30.0)


@pytest.mark.parametrize("seed", range(18))
def test_both_forms_of_the_engine_agree_on_random_fleets_with_faults(seed):
    found = []
    for engine in (SkippingEngine, SteppingEngine):
        fleet, requests = random_fleet(seed, engine)
        done = sorted(fleet.run(requests), key=lambda one: one.number)
        rows = [(one.number, one.replica, one.preemptions, one.cached) for one in done]
        times = np.array([(one.started, one.first, one.finish) for one in done])
        found.append((rows, fleet.rejected, fleet.left, fleet.turned_away, times))
    skipping, stepping = found
    assert skipping[:4] == stepping[:4]
    np.testing.assert_allclose(skipping[4], stepping[4], rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(18, 45))
def test_every_request_ends_once(seed):
    fleet, requests = random_fleet(seed, SkippingEngine)
    done = Counter(one.number for one in fleet.run(requests))
    assert set(done.values()) == {1}
    refused = sum(fleet.rejected.values())
    assert len(done) + refused + fleet.left == len(requests)
    assert refused == sum(fleet.turned_away.values())
    assert fleet.loads == [0] * len(fleet.engines) and fleet.waiting == 0
    assert all(engine.free == engine.pool.blocks for engine in fleet.engines if engine.cache is None)


def erlang_c(servers: int, load: float) -> float:
    """Probability that a request of M/M/c waits."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


def first_come_waits(servers: int, arrivals: list[float], services: list[float]) -> np.ndarray:
    """Waits of a queue in order of arrival: each takes the server that is free first."""
    free, waits = [0.0] * servers, []
    for arrival, service in zip(arrivals, services, strict=True):
        start = max(arrival, free[0])
        heapq.heapreplace(free, start + service)
        waits.append(start - arrival)
    return np.array(waits)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 3.0), (20, 15.0)])
def test_a_queue_at_the_gateway_waits_as_erlang_c_says(servers, load):
    # one request at a time on each replica; answers of geometric length at 1 ms a token are exponential services
    mean, draw = 200, np.random.default_rng(3)

    def drawn(count):
        arrivals = np.cumsum(draw.exponential(mean * 1e-3 / load, count)).tolist()
        return arrivals, draw.geometric(1 / mean, count).tolist()

    # the queue is that of Erlang: means of 60,000 requests still scatter by 20 % where few wait
    arrivals, lengths = drawn(1_500_000)
    waits = first_come_waits(servers, arrivals, [length * 1e-3 for length in lengths])
    expected = erlang_c(servers, load) * mean * 1e-3 / (servers - load)
    assert float(waits.mean()) == pytest.approx(expected, rel=0.08)
    assert float((waits > 1e-9).mean()) == pytest.approx(erlang_c(servers, load), rel=0.04)
    # and the fleet makes each request of the same arrivals wait exactly as long
    count = 20_000
    arrivals, lengths = drawn(count)
    settings = EngineSettings(replicas=servers, max_num_seqs=1)
    fleet = Fleet([ReplicaGroup(FLAT, KvPool(10**6), settings)], GatewayRules("least-loaded", max_outstanding=1))
    done = list(fleet.run(Request(n, t, 1, o) for n, (t, o) in enumerate(zip(arrivals, lengths, strict=True))))
    assert len(done) == count
    made = [one.started - one.arrival for one in sorted(done, key=lambda one: one.number)]
    exact = first_come_waits(servers, arrivals, [length * 1e-3 for length in lengths])
    np.testing.assert_allclose(made, exact, rtol=0, atol=1e-8)


def test_steps_account_for_the_time_of_every_request():
    # Little's law for decoding requests: time integral of their number is the sum of their times
    draw = np.random.default_rng(5)
    requests = made(draw, 400, 40.0)
    for one in requests:
        one.leaves = math.inf
    groups = [ReplicaGroup(AFFINE, KvPool(10**6), EngineSettings(replicas=3))]
    fleet = Fleet(groups, GatewayRules("least-loaded"))
    spent = sum(one.finish - one.first for one in fleet.run(requests))
    whole = 0.0
    for engine in fleet.engines:
        rows = np.array(engine.segments).reshape(-1, 8)
        steps, seconds, slope, n = rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4]
        whole += float((n * steps * (seconds + slope * (steps - 1) / 2)).sum())
    assert whole == pytest.approx(spent, rel=1e-9)


def served(rules: GatewayRules, requests: list[Request], replicas: int = 4, **settings: object) -> list[Request]:
    groups = [ReplicaGroup(AFFINE, KvPool(20_000), EngineSettings(replicas=replicas, **settings))]
    return sorted(Fleet(groups, rules).run(requests), key=lambda one: one.number)


def test_weights_divide_requests_in_proportion_to_replicas_and_weights():
    groups = [
        ReplicaGroup(AFFINE, KvPool(20_000), EngineSettings(replicas=count), weight=weight)
        for count, weight in ((2, 1.0), (1, 3.0))
    ]
    requests = [Request(n, n * 0.01, 20, 5) for n in range(100)]
    shares = Counter(one.replica for one in Fleet(groups, GatewayRules("weighted")).run(requests))
    assert shares == {0: 20, 1: 20, 2: 60}


def test_the_smallest_kv_usage_decides_and_old_metrics_send_all_to_one():
    # number 0 holds far more of its pool than number 1: the third request goes to 1 although loads are equal
    first = [Request(0, 0.0, 5000, 400), Request(1, 0.001, 50, 400)]
    late = [Request(n, 1.0 + n * 1e-4, 50, 50) for n in (2, 3)]
    rules = GatewayRules("least-kv")
    assert [one.replica for one in served(rules, [*first, *late], 2)] == [0, 1, 1, 1]
    burst = [Request(n, 0.5 + n * 1e-4, 500, 50) for n in range(8)]
    old = served(GatewayRules("least-kv", metrics_interval=10.0), burst)
    assert {one.replica for one in old} == {0}


def test_a_limit_at_replicas_holds_and_the_gateway_keeps_order():
    requests = [Request(n, 0.0, 100, 20) for n in range(30)]
    done = served(GatewayRules("round-robin", max_outstanding=3), requests, 2)
    starts = [one.started for one in done]
    assert starts == sorted(starts)
    for at in starts:
        for replica in (0, 1):
            assert sum(one.started <= at < one.finish for one in done if one.replica == replica) <= 3


def test_the_queue_of_the_gateway_has_a_size_and_a_patience():
    rules = GatewayRules("least-loaded", max_outstanding=1, queue_size=2, queue_timeout=0.05)
    fleet = Fleet([ReplicaGroup(AFFINE, KvPool(20_000), EngineSettings())], rules)
    done = list(fleet.run([Request(n, 0.0, 100, 20) for n in range(5)]))
    assert [one.number for one in done] == [0]
    assert fleet.rejected == {"the queue of the gateway was full": 2, "waited too long at the gateway": 2}


def test_urgent_requests_leave_the_gateway_first():
    requests = [Request(n, 0.0, 100, 20) for n in range(4)]
    requests[3].priority = -1
    done = served(GatewayRules("least-loaded", max_outstanding=1), requests, 1)
    assert sorted(done, key=lambda one: one.started)[1].number == 3


def test_sessions_move_when_their_replica_dies():
    requests = [Request(n, float(n), 100, 5, session=0) for n in range(4)]
    fleet = Fleet([ReplicaGroup(AFFINE, KvPool(20_000), EngineSettings(replicas=2))], GatewayRules("affinity"))

    def control(now: float) -> float:
        assert fleet.kill(0, now) == []
        return math.inf

    fleet.control, fleet.due = control, 1.5
    assert [one.replica for one in fleet.run(requests)] == [0, 0, 1, 1]


def test_a_long_request_goes_to_the_group_that_can_serve_it():
    groups = [ReplicaGroup(AFFINE, KvPool(tokens), EngineSettings()) for tokens in (640, 6400)]
    fleet = Fleet(groups, GatewayRules())
    done = list(fleet.run([Request(0, 0.0, 1000, 10), Request(1, 1.0, 1000, 10), Request(2, 2.0, 9000, 10)]))
    assert [one.replica for one in done] == [1, 1]
    assert fleet.rejected == {"needs more KV blocks than the pool has": 1}


def test_what_a_dead_replica_had_begins_anew():
    fleet = Fleet([ReplicaGroup(FLAT, KvPool(20_000), EngineSettings())], GatewayRules())

    def control(now: float) -> float:
        [lost] = fleet.kill(0, now)
        fleet.retry(lost, now + 1.0)
        fleet.enable(0, now)
        return math.inf

    fleet.control, fleet.due = control, 0.0505
    [one] = fleet.run([Request(0, 0.0, 100, 100)])
    assert (one.first, one.finish) == pytest.approx((1.0515, 1.1505))


def test_a_slow_replica_takes_longer_from_its_next_step_on():
    fleet = Fleet([ReplicaGroup(FLAT, KvPool(20_000), EngineSettings())], GatewayRules())

    def control(now: float) -> float:
        fleet.slow_down(0, 3.0, now)
        return math.inf

    fleet.control, fleet.due = control, 0.0105
    [one] = fleet.run([Request(0, 0.0, 100, 21)])
    assert one.finish == pytest.approx(0.011 + 10 * 0.003)


def test_a_preempted_prompt_is_found_in_the_prefix_cache_once():
    # a small pool preempts; what is found again after a preemption is no part of the prompt's hits
    settings = EngineSettings(prefix_caching=True, max_num_seqs=8)
    for engine in (SkippingEngine, SteppingEngine):
        fleet = Fleet([ReplicaGroup(AFFINE, KvPool(800), settings)], GatewayRules(), engine)
        runs = ((("shared", 160), (("request", n), 40)) for n in range(12))
        requests = [Request(n, 0.3 * (n > 0), 200, 150, runs=run) for n, run in enumerate(runs)]
        done = list(fleet.run(requests))
        assert sum(one.preemptions for one in done) > 0
        assert all(one.cached <= 160 for one in done) and sum(one.cached for one in done) > 0
