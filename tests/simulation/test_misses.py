"""A run that is stopped because its promise is surely missed would have missed it at its end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.load_trial import UNFINISHED, Missed, Misses, try_load
from glmplan.simulation.safe_load import Cutoff, Draws, kept_share, speed_factors
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.slo import Target, parse_slo
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

TABLE = StepTable.affine(base=0.0123, per_request=1.1e-4, per_context_token=1.3e-8, per_prefill_token=1.7e-5)
SERVICE = Service(TABLE, KvPool(400_000), EngineSettings(max_num_seqs=256))


def records(times, start):
    """Requests of three tokens that take so long to the first and are over a second later."""
    number = np.arange(start, start + len(times))
    zero = np.zeros(len(times))
    return {"number": number, "arrival": zero, "started": zero, "first": times, "finish": times + 1.0,
            "output_tokens": np.full(len(times), 3)}  # fmt: skip


def same(one, other):
    """Whether two trials found the same, but for the order in which sums are made."""
    return one.margin == pytest.approx(other.margin, rel=1e-12) and one.summary == pytest.approx(
        other.summary, rel=1e-12, nan_ok=True
    )


@given(
    st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60), st.sampled_from(["p50", "p90", "p95", "p99"]),
    st.integers(0, 9), st.sampled_from([1.0, 1.3]),
)  # fmt: skip
def test_a_promise_is_called_missed_where_its_percentile_is_beyond_the_bound_and_nowhere_else(
    times, statistic, warm, late
):
    target = Target("ttft", statistic, 1.0)
    ordered = np.array([5.0] * warm + times)
    watch, missed = Misses((target,), len(times), warm, late), False
    try:
        for start in range(0, len(ordered), 7):
            watch(records(ordered[start : start + 7], start), 0.0)
    except Missed as found:
        missed, told = True, found.target
    percentile = late * np.percentile(times, int(statistic[1:]))
    if missed:
        assert told == target
        assert percentile > 1.0
    else:
        # what lies between two values may be beyond while the lower one is not: the rest of the run tells
        lower = sorted(times)[math.floor((len(times) - 1) * int(statistic[1:]) / 100)]
        assert late * lower <= 1.0 + 1e-6


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("slo", "users"), [("tpot p95 < 20 ms", 100), ("ttft p90 < 50 ms", 60), ("e2e p50 < 1 s", 90)])
def test_a_trial_for_the_verdict_alone_ends_early_and_says_what_the_whole_one_says(slo, users, replicas):
    service = Service(TABLE, KvPool(400_000), EngineSettings(max_num_seqs=256, replicas=replicas))
    traffic = Traffic(kind="closed", users=1, input=900, output=64)
    whole = try_load(service, traffic, parse_slo(slo), users, 0)
    early = try_load(service, traffic, parse_slo(slo), users, 0, verdict=True)
    assert whole.margin > 0
    assert early.margin == UNFINISHED
    loose = parse_slo("tpot p95 < 1 s")
    assert same(try_load(service, traffic, loose, users, 0, verdict=True), try_load(service, traffic, loose, users, 0))


def test_sessions_that_miss_an_slo_by_far_end_early_and_say_what_whole_ones_say():
    service = Service(TABLE, KvPool(60_000), EngineSettings(max_num_seqs=256, prefix_caching=True))
    traffic, found = parse_traffic("sessions:20,turns=4", input=500, output=100), []
    for slo in ("ttft p95 < 20 ms", "e2e p50 < 1 s", "tpot p95 < 1 s"):
        targets = parse_slo(slo)
        whole, early = (try_load(service, traffic, targets, 20, 0, verdict=verdict) for verdict in (False, True))
        assert (early.margin > 0) == (whole.margin > 0)
        found.append(early.margin == UNFINISHED)
    assert found == [True, True, False]


@pytest.mark.parametrize("word", ["closed:40,think=2s", "poisson:3/s", "closed:40"])
def test_runs_whose_lateness_is_told_at_their_end_are_not_ended(word, monkeypatch):
    traffic, targets = parse_traffic(word), parse_slo("ttft p95 < 1 ms, itl p95 < 1 ms, tpot mean < 1 ms")
    if word == "closed:40":
        targets = targets[1:]  # of gaps and means nothing is told early
    load = float(traffic.users or traffic.rate)
    assert same(
        try_load(SERVICE, traffic, targets, load, 0, verdict=True), try_load(SERVICE, traffic, targets, load, 0)
    )


@pytest.mark.parametrize("least", [0.9, 0.95, 0.99])
def test_the_verdict_does_not_hang_on_whether_what_breaks_is_named(least):
    factors, targets = speed_factors(0.7, 1.4), parse_slo("ttft p95 < 2 s, tpot p95 < 40 ms")
    verdicts = set()
    for users in range(10, 130, 6):
        traffic = Traffic(kind="closed", users=users, input=900, output=64)
        named, not_named = (
            kept_share(SERVICE, traffic, targets, Draws(factors), cutoff=Cutoff(least=least, named=one))
            for one in (True, False)
        )
        assert (named.probability >= least) == (not_named.probability >= least)
        if named.probability >= least:
            assert (named.probability, named.broken) == (not_named.probability, not_named.broken)
        verdicts.add(named.probability >= least)
    assert verdicts == {True, False}


def test_whoever_watches_a_run_sees_every_request_of_it():
    traffic, seen = Traffic(kind="closed", users=5, input=100, output=20), list[int]()
    for service in (SERVICE, Service(TABLE, KvPool(400_000), EngineSettings(replicas=2))):
        seen.clear()
        watched = simulate(
            service,
            traffic,
            requests=200,
            options=SimulationOptions(watch=lambda rows, _: seen.extend(rows["number"].tolist())),
        )
        assert sorted(seen) == list(range(200))
        alone = simulate(service, traffic, requests=200)
        assert watched.summary == pytest.approx(alone.summary, nan_ok=True)
