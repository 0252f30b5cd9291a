"""Fleets with tenants, autoscalers, cold starts and faults."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from glmplan.errors import SpecError
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.fleets.run import FleetOptions, FleetResult, simulate_fleet
from glmplan.simulation.fleets.spec import ColdStart, FleetSpec, fleet_of, read_fleet
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic

TABLE = StepTable.affine(base=0.01, per_request=5e-4, per_prefill_token=1e-5)
SERVICE = Service(TABLE, KvPool(100_000), EngineSettings(max_num_seqs=32))
SLO = parse_slo("ttft p95 < 1 s, tpot p95 < 40 ms")


def run(content: dict[str, Any], service: Service = SERVICE, **options: Any) -> FleetResult:
    spec = fleet_of(content)
    kinds = [parse_traffic(one.traffic, **one.shape) for one in spec.tenant]
    services, targets = [service] * len(spec.group), [SLO] * len(kinds)
    return simulate_fleet(spec, services, kinds, targets, FleetOptions(**{"duration": 300.0, "keep": True} | options))


def tenant(traffic: str, **more: Any) -> dict[str, Any]:
    return {"name": traffic, "traffic": traffic, "input": 200, "output": 100} | more


def test_a_fleet_of_one_group_is_the_service_with_replicas():
    spec = fleet_of({"router": {"routing": "least-requests"}, "group": [{"name": "a", "replicas": 3}], "tenant": [
        tenant("poisson:30/s")]})  # fmt: skip
    kind = parse_traffic("poisson:30/s", input=200, output=100)
    service = Service(TABLE, KvPool(100_000), EngineSettings(max_num_seqs=32), front_end=0.004, cold_start=0.002)
    found = simulate_fleet(spec, [service], [kind], [SLO], FleetOptions(requests=2000, keep=True))
    several = Service(
        TABLE, KvPool(100_000), EngineSettings(max_num_seqs=32, replicas=3, routing="least-loaded"), 0.004, 0.002
    )
    # the arrivals of a tenant are a stream of its own
    child = np.random.SeedSequence(0).spawn(2)[1]
    from glmplan.simulation.simulate import pieces

    rows = [one.records for one in pieces(several, kind, 2000, np.random.default_rng(child), {})]
    finish = np.sort(np.concatenate([one["finish"] for one in rows]))
    assert found.requests is not None
    late = found.requests["started"] - found.requests["arrival"] - 0.004 <= 1e-9
    mine = np.sort(found.requests["finish"] - np.where(late, 0.002, 0.0))
    np.testing.assert_allclose(mine, finish, atol=1e-9)


def test_users_who_send_at_once_reach_ranks_in_lockstep_together():
    settings = EngineSettings(max_num_seqs=32, replicas=4, lockstep=4, routing="least-loaded")
    service = Service(TABLE, KvPool(100_000), settings, front_end=0.004)
    fleet = {"router": {"routing": "least-requests"}, "group": [{"name": "a"}], "tenant": [tenant("closed:8")]}
    found = run(fleet, service, duration=math.inf, requests=8)
    assert found.requests is not None
    assert len(np.unique(found.requests["arrival"].round(9))) == 2  # 8 users on 4 ranks, one of each at a time


def test_two_models_do_not_share_replicas_and_have_slos_of_their_own():
    groups = [{"name": name, "model": name, "replicas": 2} for name in ("small", "large")]
    tenants = [tenant("poisson:5/s", name="s", model="small"), tenant("poisson:2/s", name="l", model="large")]
    found = run({"group": groups, "tenant": tenants})
    assert found.requests is not None
    numbers, replicas = found.requests["number"], found.requests["replica"]
    assert set(replicas[numbers % 2 == 0]) == {0, 1} and set(replicas[numbers % 2 == 1]) == {2, 3}
    assert found.groups["small"]["requests"] == found.tenants["s"]["requests"]
    assert found.summary["requests"] == len(numbers) == len(set(numbers.tolist()))


def test_priorities_of_tenants_count_at_the_gateway():
    router = {"max-outstanding": 4}
    tenants = [tenant("poisson:1.5/s", name="fast"), tenant("poisson:1.5/s", name="slow", priority=1)]
    found = run({"router": router, "group": [{"name": "a"}], "tenant": tenants}, duration=600.0)
    fast, slow = (found.tenants[name]["queue_mean_ms"] for name in ("fast", "slow"))
    assert slow > 5 * fast


def test_an_autoscaled_group_follows_the_load_and_costs_less_than_its_peak():
    scaler = {"metric": "concurrency", "target": 10, "min": 1, "max": 8, "stabilization-down": "30 s"}
    group = {"name": "a", "usd-per-hour": 3.6, "autoscaler": scaler, "cold-start": {"provision": "20 s"}}
    traffic = tenant("onoff:10/s", on=60, off=60)
    found = run({"group": [group], "tenant": [traffic]}, duration=1200.0)
    row = found.groups["a"]
    assert row["replicas_peak"] > row["replicas_mean"] > 1.2
    assert row["starts"] >= 2 and row["usd"] == pytest.approx(3.6 * row["replica_hours"])
    ready = [one for one in found.changes if one.what == "ready"]
    starts = [one for one in found.changes if one.what == "start"]
    assert {round(r.at - s.at, 9) for r, s in zip(ready, starts, strict=False)} == {20.0}


def test_scale_to_zero_makes_the_first_request_wait_for_poll_and_cold_start():
    scaler = {"metric": "concurrency", "target": 10, "min": 0, "max": 2, "cooldown": "60 s", "stabilization-down": 0}
    cold = {"weights": "60 GB", "weights-rate": "2 GB/s", "compile": "12 s"}
    group = {"name": "a", "replicas": 0, "autoscaler": scaler, "cold-start": cold}
    found = run({"group": [group], "tenant": [tenant("constant:0.01/s")]}, duration=150.0)
    assert found.requests is not None
    # a request at 100 s, seen at 105 s, served 42 s later
    assert found.requests["started"].tolist() == pytest.approx([147.0])
    assert [one.what for one in found.changes] == ["start", "ready"] and found.groups["a"]["replicas_peak"] == 1


def test_cold_start_is_the_sum_of_its_parts():
    cold = ColdStart(provision=60, weights=65e9, weights_rate=2e9, compile=40, graph_capture=20)
    assert cold.seconds() == 152.5 and cold.seconds(provisioned=True) == 92.5


def test_a_crash_loses_requests_which_retries_bring_back():
    group = {"name": "a", "replicas": 3, "cold-start": {"compile": "30 s"}}
    content = {"group": [group], "tenant": [tenant("poisson:20/s")], "fault": [
        {"kind": "crash", "group": "a", "at": "100 s"}]}  # fmt: skip
    without = run(content)
    lost = without.summary["lost"]
    assert lost > 0 and without.rejected == {"its replica died": lost}
    again = run(content | {"router": {"retries": 1, "retry-backoff": "1 s"}})
    assert again.summary["retried"] == lost and not again.rejected
    assert [one.what for one in again.changes] == ["crash", "start", "ready"]
    assert again.changes[2].at == pytest.approx(130.0)


def test_one_more_replica_keeps_the_slo_through_a_crash():
    fault = [{"kind": "crash", "group": "a", "at": "60 s", "restart": False}]
    shares = []
    for replicas in (3, 4):
        group = {"name": "a", "replicas": replicas}
        router = {"routing": "least-requests", "retries": 1}
        found = run({"router": router, "group": [group], "tenant": [tenant("poisson:30/s")], "fault": fault})
        shares.append(found.summary["slo_attainment"])
    assert shares[0] < 0.5 and shares[1] > 0.99


def test_a_preempted_machine_takes_no_new_requests_after_its_notice():
    group = {"name": "a", "replicas": 2, "cold-start": {"provision": "50 s", "compile": "10 s"}}
    fault = {"kind": "preemption", "group": "a", "at": "100 s", "notice": "30 s"}
    found = run({"group": [group], "tenant": [tenant("poisson:10/s")], "fault": [fault]})
    assert found.requests is not None and found.summary["lost"] == 0
    there = found.requests["started"][found.requests["replica"] == 0]
    assert not ((there > 100.5) & (there < 190.0)).any() and (there > 190.0).any()
    assert [(one.what, round(one.at, 3)) for one in found.changes] == [
        ("drain", 100.0), ("preempted", 130.0), ("start", 130.0), ("ready", 190.0)]  # fmt: skip
    assert found.groups["a"]["replica_hours"] == pytest.approx(2 * found.requests["finish"].max() / 3600, rel=1e-3)


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_a_rolling_upgrade_loses_nothing_and_restarts_all(at_a_time):
    group = {"name": "a", "replicas": 4, "cold-start": {"provision": "99 s", "compile": "10 s"}}
    fault = {"kind": "rolling-upgrade", "group": "a", "at": "50 s", "replicas": at_a_time}
    found = run({"group": [group], "tenant": [tenant("poisson:10/s")], "fault": [fault]})
    assert found.summary["lost"] == 0 and not found.rejected
    assert sum(one.what == "ready" for one in found.changes) == 4
    assert min(one.ready for one in found.changes) == 4 - at_a_time


def test_a_slow_card_and_random_failures_cost_attainment():
    base = {"router": {"retries": 3}, "group": [{"name": "a", "replicas": 3, "cold-start": {"compile": "20 s"}}]}
    base["tenant"] = [tenant("poisson:24/s")]
    whole = run(base).tenants["poisson:24/s"]
    slow = {"kind": "slow", "group": "a", "at": 0, "factor": 1.8}
    assert run(base | {"fault": [slow]}).tenants["poisson:24/s"]["tpot_p95_ms"] > 1.5 * whole["tpot_p95_ms"]
    random = {"kind": "mtbf", "group": "a", "mean": "100 s"}
    found = run(base | {"fault": [random]})
    assert found.groups["a"]["deaths"] >= 3 and found.groups["a"]["starts"] == found.groups["a"]["deaths"]
    assert found.summary["requests"] + sum(found.rejected.values()) == run(base).summary["requests"]


def test_a_drain_timeout_ends_long_answers():
    scaler = {"metric": "queue-depth", "target": 5, "min": 1, "max": 2, "stabilization-down": 0}
    group = {"name": "a", "replicas": 2, "autoscaler": scaler, "drain-timeout": "2 s"}
    content = {"group": [group], "tenant": [tenant("poisson:1/s", output=1000)], "router": {"retries": 1}}
    found = run(content, duration=60.0)
    assert found.summary["lost"] > 0 and not found.rejected
    assert found.groups["a"]["deaths"] == 0


def test_the_reference_agrees_on_a_fleet_with_everything():
    scaler = {"metric": "kv-share", "target": 0.05, "min": 1, "max": 4, "interval": "5 s", "stabilization-down": "20 s"}
    content = {
        "router": {"routing": "least-kv", "metrics-interval": "50 ms", "retries": 1, "max-outstanding": 20},
        "group": [{"name": "a", "autoscaler": scaler, "cold-start": {"compile": "3 s"}}, {"name": "b", "replicas": 2}],
        "tenant": [tenant("poisson:20/s"), tenant("sessions:4", tool_wait=1.0)],
        "fault": [{"kind": "crash", "group": "b", "at": 10}, {"kind": "slow", "group": "a", "at": 15, "lasts": 10}],
    }
    rows = []
    for reference in (False, True):
        found = run(content, duration=40.0, reference=reference)
        assert found.requests is not None
        order = np.argsort(found.requests["number"])
        rows.append({name: column[order] for name, column in found.requests.items()})
        assert len(found.changes) > 4
    for name, column in rows[0].items():
        np.testing.assert_allclose(column, rows[1][name], rtol=0, atol=1e-9, err_msg=name)


def test_the_same_seed_gives_the_same_run_and_another_does_not():
    content = {"group": [{"name": "a", "replicas": 2}], "tenant": [tenant("poisson:9/s"), tenant("gamma:3/s")]}
    first, same, other = (run(content, seed=seed, duration=60.0) for seed in (1, 1, 2))
    assert first.tenants == same.tenants and first.tenants != other.tenants


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": [{"name": "a", "replicas": 0}]}, "at least one"),
        ({"group": [{"name": "a"}, {"name": "a"}]}, "same name"),
        ({"fault": [{"kind": "crash", "group": "x"}]}, "is not a group"),
        ({"fault": [{"kind": "mtbf", "group": "a"}]}, "mean"),
        ({"tenant": [{"name": "t", "model": "m", "traffic": "closed:1"}]}, "no group serves"),
        ({"group": [{"name": "a", "cold-start": {"weights": "1 GB"}}]}, "together"),
        ({"group": [{"name": "a", "autoscaler": {"metric": "concurrency", "target": 1, "min": 3, "max": 2}}]}, "above"),
        ({"fault": [{"kind": "slow", "group": "a", "notice": "3 s"}]}, "notice: has no effect on faults of kind slow"),
        ({"fault": [{"kind": "crash", "group": "a", "factor": 2.0}]}, "factor: has no effect on faults of kind crash"),
        ({"fault": [{"kind": "mtbf", "group": "a", "mean": "9 s", "replicas": 1}]}, "replicas: has no effect"),
        ({"fault": [{"kind": "rolling-upgrade", "group": "a", "restart": False}]}, "restart: has no effect"),
        ({"fault": [{"kind": "crash", "group": "a", "replicas": 2}]}, "a has at most 1 replicas, not 2"),
        ({"fault": [{"kind": "crash", "group": "a", "at": "2 min"}], "duration": "1 min"}, "before the end"),
        ({"group": [{"name": "a", "weight": 2.0}]}, "weight of a has no effect"),
        (
            {"group": [{"name": "a", "autoscaler": {"metric": "concurrency", "target": 1, "max": 2, "cooldown": 9}}]},
            "cooldown has no effect",
        ),
        ({"slot": 1}, "'slot' is not a key; nearest: slo"),
        ({"fault": [{"kind": "crash", "group": "a", "replica": 1}]}, "fault.0: 'replica' is not a key; .*replicas"),
        (
            {"group": [{"name": "a", "autoscaler": {"metric": "concurrency", "traget": 1, "max": 2}}]},
            "group.0.autoscaler: 'traget' is not a key; nearest: target",
        ),
        ({"fault": [{"kind": "crsh", "group": "a"}]}, "fault.0.kind: 'crsh' must be 'crash'"),
    ],
)
def test_a_wrong_fleet_file_is_refused_by_its_field(tmp_path, change, message):
    content = {"group": [{"name": "a"}], "tenant": [{"name": "t", "traffic": "closed:1"}]} | change
    lines = []
    for name, value in content.items():
        for row in value if isinstance(value, list) else [None]:
            if row is None:
                lines.insert(0, f"{name} = {json.dumps(value)}")
                continue
            lines.append(f"[[{name}]]")
            lines += [f"{key} = {json.dumps(one)}" for key, one in row.items() if not isinstance(one, dict)]
            for key, one in row.items():
                if isinstance(one, dict):
                    lines += [f"[{name}.{key}]", *(f"{k} = {json.dumps(v)}" for k, v in one.items())]
    path = tmp_path / "fleet.toml"
    path.write_text("\n".join(lines))
    with pytest.raises(SpecError, match=message):
        read_fleet(path)


def test_a_row_that_is_no_table_names_the_key_of_the_other_row(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('group = [{name = "a"}]\ntenant = ["x", {nam = "t", traffic = "closed:1"}]')
    with pytest.raises(SpecError, match="tenant.1: 'nam' is not a key; nearest: name"):
        read_fleet(path)


def test_an_unknown_routing_is_refused_with_the_nearest():
    content = {"group": [{"name": "a"}], "tenant": [{"name": "t", "traffic": "closed:1"}]}
    with pytest.raises(ValidationError, match="'prefix-awre' is not known; nearest: prefix-aware"):
        fleet_of(content | {"router": {"routing": "prefix-awre"}})


@pytest.mark.parametrize("router", [{"metrics-interval": 1.0}, {"retry-backoff": "1 s"}])
def test_a_key_of_the_gateway_without_what_it_modifies_is_refused(router):
    content = {"group": [{"name": "a"}], "tenant": [{"name": "t", "traffic": "closed:1"}], "router": router}
    with pytest.raises(ValidationError, match=f"{next(iter(router))}: has no effect without"):
        fleet_of(content)


def test_faults_of_data_parallel_servers_are_refused():
    service = Service(TABLE, KvPool(100_000), EngineSettings(replicas=2))
    content = {"group": [{"name": "a"}], "tenant": [tenant("poisson:1/s")], "fault": [{"kind": "crash", "group": "a"}]}
    with pytest.raises(SpecError, match="data-parallel"):
        run(content, service)


def test_goodput_of_a_fleet_counts_what_was_not_served():
    content = {"router": {"max-outstanding": 2, "queue-size": 0}, "group": [{"name": "a"}], "tenant": [
        tenant("poisson:20/s")]}  # fmt: skip
    found = run(content, duration=60.0)
    refused = sum(found.rejected.values())
    assert refused > 100
    assert found.summary["slo_attainment"] <= found.summary["requests"] / (found.summary["requests"] + refused)
    assert isinstance(found, FleetResult) and isinstance(fleet_of(content), FleetSpec)
    assert math.isfinite(found.summary["slo_attainment"])


def test_one_group_alone_needs_no_fleet_to_keep_its_summary():
    outcome = simulate(SERVICE, parse_traffic("poisson:5/s", input=200, output=100), requests=300,
                       options=SimulationOptions(targets=SLO))  # fmt: skip
    assert outcome.summary["goodput_share"] == 1.0
