"""The simulator as a whole: conservation, monotonicity, skipping against stepping, same seed same bytes."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.errors import SpecError
from glmplan.simulation.engine.settings import EngineSettings, FirstTokens, KvPool, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, SimulationOptions, pieces, simulate
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

TABLE = StepTable.affine(
    base=0.0123, per_request=1.1e-4, per_context_token=1.3e-8, per_prefill_token=1.7e-5, per_prefill_square=1.9e-9
)


#: the same where steps of at most 90 tokens hide what comes to light when prompts make them longer
HIDING = replace(TABLE, hidden=0.0041, short=90.0)


def _service(tokens=1_000_000, table=TABLE, **changes):
    return Service(table, KvPool(tokens), EngineSettings(**{"max_num_seqs": 64, **changes}))


def _rows(path):
    with path.open(newline="") as stream:
        return sorted(csv.DictReader(stream), key=lambda row: int(row["request"]))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["closed:40", "closed:40,ramp=2", "poisson:4/s", "gamma:3/s,cv=3", "onoff:2/s"]),
    tokens=st.sampled_from([3000, 9000, 40_000, 1_000_000]),
    seqs=st.integers(1, 64),
    budget=st.sampled_from([64, 500, 8192]),
    table=st.sampled_from([TABLE, HIDING]),
    changes=st.fixed_dictionaries(
        dict.fromkeys(("async_scheduling", "prefix_caching", "reserve_full_isl"), st.booleans())
    ),
)
def test_skipping_gives_the_times_of_the_step_by_step_engine(
    tmp_path_factory, seed, kind, tokens, seqs, budget, table, changes
):
    folder = tmp_path_factory.mktemp("records")
    traffic = parse_traffic(kind, input=300, output=100, input_cv=1.0, output_cv=0.8)
    service = _service(tokens, table, max_num_seqs=seqs, max_num_batched_tokens=budget, **changes)
    # one chunk of lengths for both forms: 200 requests are fewer than either draws at once
    first = simulate(service, traffic, requests=200, seed=seed, options=SimulationOptions(records=folder / "a.csv"))
    second = simulate(
        service, traffic, requests=200, seed=seed, options=SimulationOptions(records=folder / "b.csv", reference=True)
    )
    plain, stepped = _rows(folder / "a.csv"), _rows(folder / "b.csv")
    assert first.rejected == second.rejected
    assert len(plain) == len(stepped)
    for one, other in zip(plain, stepped, strict=True):
        for column in ("arrival_s", "prefill_start_s", "first_token_s", "finish_s"):
            assert abs(float(one[column]) - float(other[column])) < 3e-9
        for column in ("input_tokens", "output_tokens", "preemptions"):
            assert one[column] == other[column]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("closed:20", {}),
        ("poisson:3/s", {"prefix_caching": True}),
        ("sessions:6", {"prefix_caching": True, "replicas": 2, "routing": "prefix-aware"}),
        ("sessions:0.5/s", {"acceptance": Acceptance(3, 0.7)}),
    ],
)
def test_the_same_seed_gives_the_same_bytes(tmp_path, kind, changes):
    traffic = parse_traffic(kind, input=400, output=100, jitter=0.5)
    for name in ("a.csv", "b.csv"):
        simulate(
            _service(20_000, **changes),
            traffic,
            requests=300,
            seed=7,
            options=SimulationOptions(records=tmp_path / name),
        )
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    simulate(
        _service(20_000, **changes),
        traffic,
        requests=300,
        seed=8,
        options=SimulationOptions(records=tmp_path / "c.csv"),
    )
    assert (tmp_path / "a.csv").read_bytes() != (tmp_path / "c.csv").read_bytes()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scheduler=st.sampled_from(["vllm", "sglang", "trtllm", "llama.cpp"]),
    tokens=st.integers(500, 20_000),
)
def test_every_request_ends_once_and_no_block_leaks(tmp_path_factory, seed, scheduler, tokens):
    path = tmp_path_factory.mktemp("records") / "r.csv"
    service = Service(TABLE, KvPool(tokens), scheduler_settings(scheduler, max_num_seqs=8, prefix_caching=True))
    traffic = parse_traffic("poisson:5/s", input=200, output=80, input_cv=1.5, output_cv=1.0)
    outcome = simulate(service, traffic, requests=150, seed=seed, options=SimulationOptions(records=path))
    rows = _rows(path)
    assert len(rows) + sum(outcome.rejected.values()) == 150
    assert len({row["request"] for row in rows}) == len(rows)
    assert outcome.summary["kv_occupancy_max"] <= 1
    assert outcome.summary["utilisation"] <= 1
    total = sum(int(row["output_tokens"]) for row in rows)
    if rows:
        expected = outcome.summary["output_tokens_per_s"] * outcome.summary["duration_s"]
        assert total == pytest.approx(expected)


def test_more_users_never_answer_faster_and_give_more_throughput():
    results = [
        simulate(_service(), parse_traffic(f"closed:{n}", jitter=0.2), requests=40 * n, warmup=10 * n).summary
        for n in (1, 2, 4, 8, 16, 32)
    ]
    tpot = [r["tpot_mean_ms"] for r in results]
    throughput = [r["output_tokens_per_s"] for r in results]
    assert tpot == sorted(tpot)
    assert throughput == sorted(throughput)


def test_more_memory_is_never_slower():
    traffic = parse_traffic("closed:64", input=1000, output=200)
    spans = [
        simulate(_service(t), traffic, requests=256).summary["duration_s"] for t in (6_000, 12_000, 30_000, 90_000)
    ]
    assert spans == sorted(spans, reverse=True)


def test_a_pool_that_holds_half_the_users_serves_them_in_two_waves():
    # field report on six cards: 128 users and 256 answer tokens, the server admits 64 at once
    service = Service(TABLE, KvPool(10_000_000), EngineSettings(max_num_seqs=64))
    traffic = parse_traffic("closed:128", input=64, output=256)
    two_waves = simulate(service, traffic, requests=128).summary
    one_wave = simulate(service, parse_traffic("closed:64", input=64, output=256), requests=64).summary
    assert two_waves["duration_s"] == pytest.approx(2 * one_wave["duration_s"], rel=0.01)
    assert two_waves["ttft_p95_ms"] > 0.9 * one_wave["duration_s"] * 1000


def test_time_to_first_token_explodes_when_the_pool_cannot_hold_all_users():
    # GLM-5 FP8 on eight H200, 64 users, 8k in: 32 users wait 2.2 s for the first token, 64 users 42 s
    traffic = {n: parse_traffic(f"closed:{n}", input=8192, output=1024, jitter=0.2) for n in (32, 64)}
    service = Service(TABLE, KvPool(300_000), EngineSettings(max_num_batched_tokens=16_384))
    small, large = (simulate(service, traffic[n], requests=10 * n).summary for n in (32, 64))
    assert large["ttft_mean_ms"] > 8 * small["ttft_mean_ms"]
    assert large["tpot_mean_ms"] < 2 * small["tpot_mean_ms"]


def test_multi_turn_traffic_finds_its_own_conversation_in_the_cache():
    traffic = parse_traffic("sessions:8", input=1000, turns=10, shared_prefix=2000)
    with_cache = simulate(_service(prefix_caching=True), traffic, requests=400).summary
    without = simulate(_service(), traffic, requests=400).summary
    assert with_cache["cached_share"] > 0.7
    assert with_cache["ttft_mean_ms"] < without["ttft_mean_ms"] / 2


def test_speculation_shortens_the_time_between_tokens_by_the_acceptance_length():
    draft = Acceptance(3, 0.8)
    traffic = parse_traffic("closed:1", input=64, output=513)
    flat = Service(StepTable.affine(base=0.01), KvPool(100_000), EngineSettings())
    quick = Service(flat.table, flat.pool, EngineSettings(acceptance=draft))
    plain = simulate(flat, traffic, requests=200).summary["tpot_mean_ms"]
    assert simulate(quick, traffic, requests=200).summary["tpot_mean_ms"] == pytest.approx(plain / draft.mean, rel=0.01)


def test_confidence_intervals_cover_the_mean_of_many_more_replications():
    traffic = parse_traffic("poisson:2/s", input=500, output=100, output_cv=1.0)
    few = simulate(_service(), traffic, requests=300, seed=1, options=SimulationOptions(replications=8))
    many = simulate(_service(), traffic, requests=300, seed=2, options=SimulationOptions(replications=60))
    low, high = few.intervals["ttft_mean_ms"]
    assert low < many.summary["ttft_mean_ms"] < high


def test_goodput_counts_only_requests_within_the_promise():
    traffic = parse_traffic("poisson:2/s")
    easy = simulate(
        _service(), traffic, requests=300, options=SimulationOptions(targets=parse_slo("ttft < 1 h"))
    ).summary
    hard = simulate(
        _service(), traffic, requests=300, options=SimulationOptions(targets=parse_slo("ttft < 1 ns"))
    ).summary
    assert easy["goodput_share"] == 1
    assert hard["goodput_share"] == 0


def test_an_interrupt_keeps_the_records_written_so_far(tmp_path):
    seen = 0

    def interrupt(finished):
        nonlocal seen
        seen += finished
        raise KeyboardInterrupt

    path = tmp_path / "r.csv"
    outcome = simulate(
        _service(),
        parse_traffic("closed:8"),
        requests=50_000,
        options=SimulationOptions(records=path, progress=interrupt),
    )
    assert outcome.interrupted
    assert len(_rows(path)) == seen > 0


def test_parquet_and_csv_hold_the_same_records(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an optional extra")
    for name in ("r.csv", "r.parquet"):
        simulate(
            _service(), parse_traffic("closed:8"), requests=100, options=SimulationOptions(records=tmp_path / name)
        )
    table = pq.read_table(tmp_path / "r.parquet").to_pydict()
    rows = _rows(tmp_path / "r.csv")
    assert list(table) == list(rows[0])
    finish = dict(zip(table["request"], table["finish_s"], strict=True))
    assert all(abs(finish[int(row["request"])] - float(row["finish_s"])) < 1e-8 for row in rows)


@pytest.mark.parametrize(
    ("requests", "replications", "warmup", "field"),
    [(0, 1, 0, "--requests"), (5, 0, 0, "--replications"), (5, 1, 5, "--warmup")],
)
def test_bad_counts_name_their_option(requests, replications, warmup, field):
    with pytest.raises(SpecError, match=field):
        simulate(
            _service(),
            Traffic(kind="closed", users=1),
            requests=requests,
            warmup=warmup,
            options=SimulationOptions(replications=replications),
        )


def test_requests_that_can_never_be_served_are_counted_not_waited_for():
    traffic = parse_traffic("closed:4", input=500, output=20)
    outcome = simulate(_service(256), traffic, requests=50)
    assert outcome.rejected == {"needs more KV blocks than the pool has": 50}
    assert outcome.summary["requests"] == 0
    outcome = simulate(_service(max_model_len=400), traffic, requests=50)
    assert outcome.rejected == {"longer than the context": 50}


@pytest.mark.parametrize("kind", ["closed:40", "poisson:3/s"])
def test_a_run_in_pieces_equals_a_run_at_once(kind):
    traffic = parse_traffic(kind, input=400, output=100, jitter=0.5)
    whole, *parts = (
        list(pieces(_service(), traffic, 400, np.random.default_rng(0), {}, options))
        for options in (SimulationOptions(), SimulationOptions(watch=lambda _rows, _late: None))
    )
    (whole,), (parts,) = whole, parts
    assert len(parts) == 13
    for name, column in whole.records.items():
        np.testing.assert_array_equal(np.concatenate([part.records[name] for part in parts]), column)
    np.testing.assert_array_equal(np.concatenate([part.segments for part in parts], axis=1), whole.segments)


@pytest.mark.parametrize("kind", ["closed:1", "poisson:0.01/s"])
@pytest.mark.parametrize("reference", [False, True])
def test_the_front_end_delays_every_first_token(kind, reference):
    late = Service(TABLE, KvPool(10**6), EngineSettings(), front_end=0.25)
    traffic = parse_traffic(kind)
    ttft = [
        simulate(service, traffic, requests=20, options=SimulationOptions(reference=reference)).summary["ttft_mean_ms"]
        for service in (_service(), late)
    ]
    assert ttft[1] - ttft[0] == pytest.approx(250, abs=0.01 if kind == "closed:1" else 10)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("users", [1, 4])
def test_the_front_end_is_counted_beside_the_clock_of_users_without_a_pause(users, reference):
    """Little's law holds with it, and the engine sees the first of those who send at once before the others."""
    late = Service(TABLE, KvPool(10**6), EngineSettings(async_scheduling=True), front_end=0.25)
    found = simulate(
        late,
        parse_traffic(f"closed:{users}"),
        requests=40 * users,
        options=SimulationOptions(keep=True, reference=reference),
    )
    rate, answer = found.summary["requests_per_s"], found.summary["e2e_mean_ms"] / 1e3
    assert rate * answer == pytest.approx(users, rel=0.01)
    first = np.sort(found.requests["started"])[:users]
    assert len(set(first.tolist())) == min(users, 2)


@pytest.mark.parametrize("kind", ["closed:20", "poisson:3/s"])
def test_the_front_end_is_the_same_in_both_forms(tmp_path, kind):
    service = Service(TABLE, KvPool(9000), EngineSettings(max_num_seqs=16), front_end=0.11)
    traffic = parse_traffic(kind, input=300, output=100, jitter=0.5)
    for name, reference in (("a.csv", False), ("b.csv", True)):
        simulate(
            service, traffic, requests=300, options=SimulationOptions(records=tmp_path / name, reference=reference)
        )
    for one, other in zip(_rows(tmp_path / "a.csv"), _rows(tmp_path / "b.csv"), strict=True):
        assert abs(float(one["finish_s"]) - float(other["finish_s"])) < 3e-9
        assert abs(float(one["arrival_s"]) - float(other["arrival_s"])) < 3e-9


@pytest.mark.parametrize(("replicas", "ranks"), [(1, 1), (4, 2)])
def test_first_tokens_are_as_late_as_was_learnt_for_so_many_in_flight(replicas, ranks):
    """TTFT grows by the factor and whole answers by as many seconds; steps, times of a token and rates do not."""
    traffic = parse_traffic("closed:8", input=600, output=40)
    plain = _service(replicas=replicas)
    late = replace(plain, first=FirstTokens(scale=0.4, ranks=ranks))
    before, after = (
        simulate(one, traffic, requests=200, options=SimulationOptions(keep=True)) for one in (plain, late)
    )
    factor = np.exp(0.4 * np.log2(8.0 / (replicas // ranks)) / 4.0)
    assert 1.1 < factor < 1.5
    later = factor * (before.requests["first"] - before.requests["arrival"])
    assert after.summary["ttft_mean_ms"] == pytest.approx(1e3 * later.mean())
    assert after.summary["ttft_p95_ms"] == pytest.approx(1e3 * np.quantile(later, 0.95))
    added = after.summary["ttft_mean_ms"] - before.summary["ttft_mean_ms"]
    assert after.summary["e2e_mean_ms"] == pytest.approx(before.summary["e2e_mean_ms"] + added)
    for name in ("tpot_mean_ms", "itl_p50_ms", "output_tokens_per_s", "utilisation"):
        assert after.summary[name] == before.summary[name]
    waits = after.requests["first"] - after.requests["arrival"]
    assert waits.mean() * 1000 == pytest.approx(after.summary["ttft_mean_ms"])


@pytest.mark.parametrize("kind", ["poisson:40/s", "sessions:30", "gamma:40/s,cv=3", "closed:8"])
def test_only_of_users_in_step_with_each_other_first_tokens_are_other_than_steps_say(kind):
    """They were seen to come earlier than the steps that are counted for such users: of others the steps are known."""
    settings = EngineSettings(max_num_seqs=4, prefix_caching=kind.startswith("sessions"))
    early = Service(TABLE, KvPool(10**6), settings, front_end=0.02, first=FirstTokens(scale=-0.6))
    traffic = parse_traffic(kind, input=600, output=40)
    found, said = (
        simulate(one, traffic, requests=150, options=SimulationOptions(keep=True)).requests
        for one in (early, replace(early, first=FirstTokens()))
    )
    if kind.startswith("closed"):
        assert (found["first"] < said["first"]).all()
    else:
        assert (found["first"] == said["first"]).all() and (found["started"] - found["arrival"]).max() > 1.0


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("scheduler", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", ["poisson:1.5/s", "sessions:2", "closed:1"])
def test_who_finds_nobody_there_waits_for_the_engine_to_wake(kind, scheduler, reference):
    """Answers come as much later as their first tokens do, and nothing else changes."""
    settings = scheduler_settings(scheduler, async_scheduling=True, max_num_seqs=64)
    asleep = Service(TABLE, KvPool(10**6), settings, front_end=0.02, cold_start=0.3)
    traffic = parse_traffic(kind, input=600, output=40)
    found, said = (
        simulate(one, traffic, requests=60, options=SimulationOptions(keep=True, reference=reference))
        for one in (asleep, replace(asleep, cold_start=0.0))
    )
    after, before = found.requests, said.requests
    later = after["first"] - before["first"]
    assert set(np.round(later, 9)) == ({0.3} if kind == "closed:1" else {0.0, 0.3})
    np.testing.assert_allclose(after["finish"] - before["finish"], later, rtol=0, atol=1e-9)
    # those, and only those, who come after all before them have gone
    order = np.argsort(before["arrival"], kind="stable")
    gone = np.concatenate([[-np.inf], np.maximum.accumulate(before["finish"][order])[:-1]])
    # a closed loop's user sends the next request with the last answer, the front end's time aside
    alone = before["arrival"][order] + (0.02 + 1e-6) >= gone
    assert (alone == (later[order] > 0)).all()
    tokens = found.summary["output_tokens_per_s"] / said.summary["output_tokens_per_s"]
    assert tokens < 1.0 if kind == "closed:1" else tokens == pytest.approx(1.0, rel=0.05)


def test_no_user_of_several_waits_for_a_server_to_wake_that_they_share():
    for users, wakes in ((1, True), (2, True), (3, False)):
        service = replace(_service(replicas=2), cold_start=0.3)
        traffic = parse_traffic(f"closed:{users}", input=600, output=40)
        both = service, replace(service, cold_start=0.0)
        slow, quick = (simulate(one, traffic, requests=12).summary for one in both)
        added = slow["ttft_mean_ms"] - quick["ttft_mean_ms"]
        assert added == pytest.approx(300.0 if wakes else 0.0)
