"""Intervals of a simulated service are those at its load: users, or the requests in flight of a rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import glmplan
from glmplan.cli.fleet import FleetCase, sweep_rates, sweep_service
from glmplan.planner.service import Described, kept_of, safe_of
from glmplan.planner.traffic_search import described_under
from glmplan.present.charts import curves_of
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic

#: concurrency up to which the intervals are narrow [-]
FEW = 2


def by_users(users, share):
    width = 1.1 if users <= FEW else 2.0
    place = (share - 0.5) / 0.45
    return width**place, width**place


def described(intervals=by_users):
    service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings(max_num_seqs=64))
    return Described(service, 1 / 2.0, 2.0, "own", (1 / 2.0, 2.0), by_users=intervals)


@pytest.mark.parametrize(("slo", "width"), [("tpot mean < 13 ms", 1.1), ("tpot mean < 80 ms", 2.0)])
def test_a_safe_rate_has_the_interval_of_its_requests_in_flight(slo, width):
    """Requests of 64 steps of 10 ms: two are in flight at some 2.6 requests/s."""
    one, traffic, targets = described(), parse_traffic("poisson:1/s", input=16, output=64), parse_slo(slo)
    found = safe_of(one, traffic, targets)
    alone = safe_of(described(lambda users, share: (width ** ((share - 0.5) / 0.45),) * 2), traffic, targets)
    assert found.load == alone.load > 0
    there = simulate(one.service, traffic.at_load(found.load), requests=1000, warmup=200).summary
    assert (one.in_flight(traffic, there) <= FEW) == (width < 2.0)
    assert kept_of(one, traffic.at_load(0.97 * found.load), targets).probability >= 0.95 - 1e-9
    assert kept_of(one, traffic.at_load(1.06 * found.load), targets).probability < 0.95


@pytest.mark.parametrize("slo", ["tpot mean < 13 ms", "tpot mean < 80 ms"])
def test_a_rate_well_inside_a_class_is_searched_once(slo):
    """One arrival sample tells the class, so that no other interval is followed under many."""
    one, traffic = described(), parse_traffic("poisson:1/s", input=16, output=64)
    found = safe_of(one, traffic, parse_slo(slo))
    followed = [{draw for _, draw, _ in tries.trials} for tries in one.tries.values()]
    assert sum(len(draws) > 1 for draws in followed) == 1
    assert found.load > 0


def test_between_two_classes_of_concurrency_the_largest_load_of_the_narrow_one_is_safe():
    """Up to 2.8 requests in flight count as two; with the wide interval no load is safe."""
    one, targets = described(), parse_slo("tpot mean < 22 ms")
    traffic = parse_traffic("poisson:1/s", input=16, output=64)
    found = safe_of(one, traffic, targets)
    assert found.load == pytest.approx(2.0**1.5 / (64 * 0.0128), rel=0.15)
    assert kept_of(one, traffic.at_load(found.load), targets).probability >= 0.95 - 1e-9
    assert kept_of(one, traffic.at_load(1.1 * found.load), targets).probability < 0.95


def test_a_trace_has_the_interval_of_its_requests_in_flight(tmp_path):
    """One request in flight at the recorded speed, four at five times it."""
    file = tmp_path / "trace.csv"
    rows = "".join(f"{second},16,64\n" for second in range(300))
    file.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}", encoding="utf-8")
    one, targets = described(), parse_slo("tpot mean < 16 ms")
    traffic = parse_traffic(f"trace:{file}")
    widths = [one.draws_at(traffic.at_load(speed), targets, 0, 0.95).level.step for speed in (1.0, 5.0)]
    assert widths == pytest.approx([1.1, 2.0])
    assert kept_of(one, traffic, targets).probability == 1.0
    assert kept_of(one, traffic.at_load(5.0), targets).probability < 0.95
    found = safe_of(one, traffic, targets)
    assert 1.0 < found.load < 5.0  # none is safe with the wide interval


FLEET = """
[[group]]
name = "own"
step-time = "base=10 ms,request=1 ms"
kv-tokens = 1000000
max-num-seqs = 64
[[tenant]]
name = "t"
traffic = "poisson:1/s"
input = 16
output = 64
slo = "tpot mean < 14 ms"
"""


@pytest.mark.parametrize("whole", [False, True])
def test_each_rate_of_a_sweep_has_the_interval_of_its_requests_in_flight(whole, tmp_path):
    file, rates = tmp_path / "fleet.toml", (1.0, 20.0)
    file.write_text(FLEET, encoding="utf-8")
    if whole:
        case = FleetCase(file, None)
        case.described = [described()]
        curve = sweep_rates(case, rates, {"requests": 1000}, 0)
    else:
        curve = sweep_service(
            described(), parse_traffic("poisson:1/s", input=16, output=64), parse_slo("tpot mean < 14 ms"), rates, 0
        )
    assert [point.kept for point in curve.points] == [1.0, 0.0]


def test_the_band_of_a_chart_has_the_interval_of_each_load():
    one, traffic = described(), parse_traffic("closed:1", input=16, output=64)
    middle, low, high = (
        np.array([row["tpot_mean_ms"] for row in rows])
        for rows in curves_of(one.service, traffic, np.array([1.0, 8.0]), one.ends)
    )
    assert high / middle == pytest.approx([1.1, 2.0]) and low / middle == pytest.approx([1 / 1.1, 1 / 2.0])


@pytest.mark.parametrize("users", [1, 128])
def test_simulate_gives_the_interval_of_fit_at_the_same_users(users):
    question = PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", users=(users,))
    one, [traffic] = described_under(question, [parse_traffic(f"closed:{users}", input=1024, output=64)])
    (low, _), (high, late) = one.by_users(users, 0.05), one.by_users(users, 0.95)
    found = one.ends(traffic, {})
    assert found.step == pytest.approx((low, high))
    assert found.first[1] == pytest.approx(late)
    usual = replace(one, by_users=None).ends(traffic, {})
    assert abs(usual.first[1] / late - 1.0) > 0.1  # those at the reference concurrency are others


#: model, machine, options and users: one engine, data-parallel ranks, pipeline stages
PLANS = [
    ("qwen3-32b", "1xh100-sxm", {}, 1),
    ("qwen3-32b", "1xh100-sxm", {}, 16),
    ("qwen3-30b-a3b", "4xh100-sxm", {"dp": 4}, 32),
    ("llama-3.1-8b", "4xl40s", {"dp": 4}, 64),
    ("llama-3.1-70b", "2xh200-sxm", {"engine": "sglang"}, 8),
]


@pytest.mark.parametrize(("model", "on", "options", "users"), PLANS)
def test_simulate_gives_the_latencies_of_fit(model, on, options, users):
    lengths = {"input": 1024, "output": 128}
    answer = glmplan.fit(model, on=on, users=(users,), **lengths, **options)
    row = next(one for one in answer.users if one.users == users)
    found = glmplan.simulate(answer, f"closed:{users}", requests=4 * users).summary
    assert found["ttft_mean_ms"] == pytest.approx(row.ttft.value * 1e3, rel=0.03)
    assert found["tpot_mean_ms"] == pytest.approx(row.tpot.value * 1e3, rel=0.02)
