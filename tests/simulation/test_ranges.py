"""Ranges of a simulation are quantiles of what services within the interval do."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from glmplan.simulation import safe_load
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.safe_load import RunSize, Uncertainty, outcome_range
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.spec import parse_traffic
from glmplan.units import QUANTILE_90

TABLE = StepTable.affine(base=0.01, per_request=0.001, per_prefill_token=4e-5)
SERVICE = Service(TABLE, KvPool(10**6), EngineSettings(max_num_seqs=64))
STEP = (0.45, 2.2)


def ranged(traffic, uncertain=Uncertainty(step=STEP)):  # noqa: B008
    summary = simulate(SERVICE, traffic, requests=400).summary
    return summary, outcome_range(SERVICE, traffic, summary, uncertain, RunSize(400))


def test_near_saturation_they_hold_what_services_within_the_interval_do():
    """Some of the services are overloaded: latencies then spread far from a normal law of their logarithms."""
    traffic = parse_traffic("poisson:9/s", input=500, output=120)
    _, ranges = ranged(traffic)
    places = [NormalDist().inv_cdf((place + 0.5) / 40) for place in range(40)]
    slow = np.exp(0.5 * math.log(STEP[1] / STEP[0]) / QUANTILE_90 * np.array(places))
    found = [
        simulate(SERVICE.scaled(math.sqrt(STEP[0] * STEP[1]) * one), traffic, requests=400, seed=9 + place).summary
        for place, one in enumerate(slow.tolist())
    ]
    for name in ("ttft_mean_ms", "e2e_p95_ms", "tpot_p95_ms", "output_tokens_per_s"):
        low, high = np.quantile([one[name] for one in found], [0.05, 0.95])
        assert ranges[name][0] == pytest.approx(low, rel=0.35), name
        assert ranges[name][1] == pytest.approx(high, rel=0.35), name
        inside = np.mean([ranges[name][0] <= one[name] <= ranges[name][1] for one in found])
        assert 0.8 <= inside <= 0.98, name


def test_a_percentile_never_passes_a_higher_one_and_no_more_leaves_than_comes():
    traffic = parse_traffic("gamma:9/s,cv=2", input=500, output=120)
    summary, ranges = ranged(traffic)
    for metric in ("ttft", "tpot", "e2e"):
        for end in (0, 1):
            ends = [ranges[f"{metric}_{one}_ms"][end] for one in ("p50", "p95", "p99")]
            assert ends == sorted(ends), metric
    most = max(simulate(SERVICE.scaled(0.01), traffic, requests=400, seed=seed).summary["requests_per_s"]
               for seed in range(12))  # fmt: skip
    assert ranges["output_tokens_per_s"][1] <= 1.05 * 120 * most
    assert all(low <= summary[name] <= high for name, (low, high) in ranges.items())


def test_first_tokens_and_the_pool_have_their_own_intervals():
    traffic = parse_traffic("closed:8", input=500, output=120)
    _, plain = ranged(traffic, Uncertainty())
    _, late = ranged(traffic, Uncertainty(first=(0.5, 3.0), step=(1.0, 1.0)))
    assert late["ttft_mean_ms"][1] == pytest.approx(3.0 * plain["ttft_mean_ms"][1], rel=0.1)
    assert late["ttft_mean_ms"][0] == pytest.approx(0.5 * plain["ttft_mean_ms"][0], rel=0.1)
    assert late["e2e_mean_ms"][1] > plain["e2e_mean_ms"][1]
    _, small = ranged(traffic, Uncertainty(pool=(0.001, 1.0)))
    assert small["ttft_mean_ms"][1] > 1.5 * plain["ttft_mean_ms"][1]


def test_long_runs_are_simulated_at_the_outer_quantiles_in_full(monkeypatch):
    seen: list[int] = []

    def counted(service, traffic, *, requests, **more):
        seen.append(requests)
        return simulate(service, traffic, requests=200, **more | {"warmup": 0})

    monkeypatch.setattr(safe_load, "simulate", counted)
    traffic = parse_traffic("poisson:2/s", input=50, output=12)
    summary = simulate(SERVICE, traffic, requests=200).summary
    for requests in (4000, 4001, 1 << 40):
        outcome_range(SERVICE, traffic, summary, Uncertainty(), RunSize(requests, warmup=100))
    assert seen == [4000] * 19 + [4001] * 2 + [40_000] * 2


@pytest.mark.parametrize("spec", ["closed:1", "closed:8"])
def test_a_quantile_of_ttft_is_relative_to_all_its_parts(spec):
    """The front end stayed as predicted, so that TTFT of a slow service was up to 10 % less late than its interval."""
    step = StepTable.affine(base=0.01, per_prefill_token=1e-5)
    service = Service(step, KvPool(10**6), EngineSettings(), front_end=0.05, cold_start=0.02)
    traffic = parse_traffic(spec, input=500, output=40)
    plain = simulate(service, traffic, requests=200, warmup=50).summary["ttft_mean_ms"]
    slow = Uncertainty(step=(0.5, 2.0), first=(1 / 3, 3.0)).quantile(service, traffic, 0.95)
    late = simulate(slow, traffic, requests=200, warmup=50).summary["ttft_mean_ms"]
    assert late == pytest.approx(3.0 * plain, rel=0.03)


def test_a_lower_bound_of_the_pool_that_holds_no_request_answers_none():
    """Rows of latencies were left out, so that a plan that may not serve looked like one without a range."""
    traffic = parse_traffic("closed:2", input=500, output=20)
    service = Service(TABLE, KvPool(600), EngineSettings(max_num_seqs=64))
    summary = simulate(service, traffic, requests=20).summary
    ranges = outcome_range(service, traffic, summary, Uncertainty(step=(0.9, 1.1), pool=(0.8, 1.2)), RunSize(20))
    for name in ("ttft_mean_ms", "tpot_p95_ms", "e2e_p99_ms"):
        assert 0 < ranges[name][0] <= summary[name] and ranges[name][1] == math.inf, name
    assert ranges["output_tokens_per_s"][0] == 0.0
    held = outcome_range(service, traffic, summary, Uncertainty(step=(0.9, 1.1), pool=(0.9, 1.2)), RunSize(20))
    assert all(math.isfinite(end) for pair in held.values() for end in pair) and set(held) == set(ranges)
