"""The rules by which engines form their steps, each on a case small enough to be worked out by hand.

Steps take 10 ms, and a prompt token 0.1 ms, so that every time below is a sum of whole steps.
"""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.engines.defaults import engine_defaults
from glmplan.errors import SpecError
from glmplan.planner.service import serving_inputs
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import CacheTier, EngineSettings, KvPool, TransferLink, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.spec import parse_traffic

TABLE = StepTable.affine(base=0.01, per_prefill_token=1e-4, max_requests=2048)
BOTH = pytest.mark.parametrize("engine", [SkippingEngine, SteppingEngine])


def _serve(settings, made, engine=SkippingEngine, *, tokens=100_000, block=16):
    cluster = Cluster(TABLE, KvPool(tokens, block), settings, engine)
    return cluster, {r.number: r for r in cluster.run(made)}


# vLLM V1 with async_scheduling (vllm/v1/engine/core.py step_with_batch_queue, batch queue of two): step k + 1 is formed
# when step k - 1 has ended, while step k runs
@BOTH
@pytest.mark.parametrize(("ahead", "first"), [(False, 0.06), (True, 0.07)])
def test_a_request_that_comes_during_a_step_waits_one_more_when_steps_are_formed_ahead(engine, ahead, first):
    settings = EngineSettings(async_scheduling=ahead)
    # request 0: prompt until 0.02 s, then steps of 10 ms; request 1 comes in the step from 0.03 to 0.04 s
    _, done = _serve(settings, [Request(0, 0.0, 100, 20), Request(1, 0.035, 100, 3)], engine)
    assert done[0].first == pytest.approx(0.02)
    # its own step of 20 ms begins at 0.04 s, or at 0.05 s
    assert done[1].first == pytest.approx(first)
    assert done[1].started == pytest.approx(first - 0.02)


@BOTH
def test_an_idle_engine_starts_a_request_at_once_also_when_steps_are_formed_ahead(engine):
    settings = EngineSettings(async_scheduling=True)
    _, done = _serve(settings, [Request(0, 0.0, 100, 2), Request(1, 1.0, 100, 2)], engine)
    assert done[1].first == pytest.approx(1.02)


@BOTH
@pytest.mark.parametrize(("ahead", "started"), [(False, 0.04), (True, 0.05)])
def test_a_place_that_a_step_freed_is_taken_one_step_later_when_steps_are_formed_ahead(engine, ahead, started):
    settings = EngineSettings(async_scheduling=ahead, max_num_seqs=2)
    # requests 0 and 1: prompts until 0.03 s; request 0 ends at 0.04 s, and only then a place is known to be free
    made = [Request(0, 0.0, 100, 2), Request(1, 0.0, 100, 20), Request(2, 0.0, 100, 2)]
    _, done = _serve(settings, made, engine)
    assert done[0].finish == pytest.approx(0.04)
    assert done[2].started == pytest.approx(started)


# vLLM since 0.19.0: scheduler_reserve_full_isl (v1/core/kv_cache_manager.py allocate_slots, full_sequence_must_fit)
@BOTH
def test_a_prompt_that_does_not_fit_whole_is_not_begun(engine):
    # 20 blocks; request 0 holds 13 of them and request 1 needs 10 in chunks of 4
    def made():
        return [Request(0, 0.0, 200, 8), Request(1, 0.001, 160, 2)]

    chunked, eager = _serve(EngineSettings(max_num_batched_tokens=65, max_num_seqs=2), made(), engine, tokens=320)
    whole, patient = _serve(
        EngineSettings(max_num_batched_tokens=65, max_num_seqs=2, reserve_full_isl=True), made(), engine, tokens=320
    )
    assert chunked.preemptions > 0 and eager[1].started < eager[0].finish
    assert whole.preemptions == 0
    assert patient[1].started == pytest.approx(patient[0].finish)


@BOTH
def test_a_preempted_request_finds_its_blocks_again(engine):
    def made():
        return [Request(0, 0.0, 100, 100), Request(1, 0.0, 100, 100)]

    _, forgets = _serve(EngineSettings(), made(), engine, tokens=320)
    _, finds = _serve(EngineSettings(prefix_caching=True), made(), engine, tokens=320)
    assert forgets[1].preemptions == finds[1].preemptions == 1
    # both hold 10 of 20 blocks when request 1 is preempted; of its 10 full blocks request 0 takes 3, for 199 tokens in
    # all, so that 7 are found again, and 16 prompt tokens of each are not computed again
    assert forgets[1].finish - finds[1].finish == pytest.approx(7 * 16 * 1e-4)
    # the prompt itself was not found when it came
    assert forgets[1].cached == finds[1].cached == 0


# SGLang: get_next_batch_to_run runs new prompts before decoding, alone in their step
def test_the_gap_between_two_tokens_holds_the_prompts_that_ran_in_it():
    settings = scheduler_settings("sglang", async_scheduling=False)
    cluster, done = _serve(settings, [Request(0, 0.0, 100, 4), Request(1, 0.025, 400, 3)])
    # request 0: first token at 0.02 s, second at 0.03 s; the prompt of request 1 runs until 0.08 s; then both decode
    assert done[0].finish == pytest.approx(0.10)
    assert done[1].first == pytest.approx(0.08)
    (one,) = cluster.engines
    rows = np.array(one.segments).reshape(-1, 8)
    total = {}
    for length, count in [*rows[:, [2, 4]], *np.array(one.stalls).reshape(-1, 2)]:
        total[round(length, 9)] = total.get(round(length, 9), 0) + count
    # 10 ms: request 0 twice, request 1 twice; 60 ms: request 0 once
    assert {length: count for length, count in total.items() if count} == {0.01: 4, 0.06: 1}


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("tokens", "users"), [(1_000_000, "poisson:3/s"), (6000, "closed:20"), (9000, "sessions:9")])
def test_the_gaps_between_tokens_add_up_to_the_time_between_first_and_last(scheduler, tokens, users):
    table = StepTable.affine(base=0.01, per_request=1e-4, per_prefill_token=1e-4, max_requests=64)
    service = Service(table, KvPool(tokens), scheduler_settings(scheduler, max_num_seqs=64))
    found = simulate(
        service,
        parse_traffic(users, input=300, output=80, jitter=0.5),
        requests=300,
        options=SimulationOptions(keep=True),
    )
    rows = found.requests
    decoded = float((rows["finish"] - rows["first"]).sum())
    gaps = float((rows["output_tokens"] - 1).sum())
    assert found.summary["itl_mean_ms"] == pytest.approx(1000 * decoded / gaps, rel=1e-6)


# SGLang 0.5.9 schedule_policy.py (add_one_req: prefill_max_requests)
@BOTH
@pytest.mark.parametrize(("limit", "last"), [(None, 0.04), (1, 0.06)])
def test_prompts_that_may_share_a_step_are_limited(engine, limit, last):
    settings = scheduler_settings("sglang", async_scheduling=False, prefill_max_requests=limit)
    _, done = _serve(settings, [Request(i, 0.0, 100, 5) for i in range(3)], engine)
    # one step of 40 ms, or three of 20 ms
    assert done[2].first == pytest.approx(last)


# SGLang 0.5.9 scheduler.py: init_new_token_ratio = min(0.7 x schedule_conservativeness, 1)
@BOTH
def test_a_conservative_schedule_keeps_more_room_for_answers(engine):
    def admitted(conservativeness):
        settings = scheduler_settings(
            "sglang", schedule_conservativeness=conservativeness, async_scheduling=False, prefix_caching=False
        )
        _, done = _serve(
            settings, [Request(0, 0.0, 100, 500), Request(1, 0.015, 100, 100)], engine, tokens=600, block=1
        )
        return done[1].started < done[0].finish

    # 500 tokens are free beside request 0, which may write 500 more: 350 are kept at 0.7, 105 at 0.3 x 0.7; request 1
    # needs 100 + 100
    assert EngineSettings(schedule_conservativeness=2.0).first_ratio == 1.0
    assert admitted(0.3)
    assert not admitted(1.0)


# SGLang 0.5.9 schedule_policy.py (_sort_by_longest_prefix)
@BOTH
def test_the_longest_cached_prefix_goes_first(engine):
    def order(policy):
        settings = scheduler_settings("sglang", order=policy, prefix_caching=True, max_num_seqs=1)
        made = [
            Request(0, 0.0, 200, 20, runs=(("a", 160), ("x", 40))),
            Request(1, 0.01, 200, 2, runs=(("b", 160), ("y", 40))),
            Request(2, 0.02, 200, 2, runs=(("a", 160), ("z", 40))),
        ]
        _, done = _serve(settings, made, engine)
        return sorted(done, key=lambda number: done[number].started)

    assert order("fcfs") == [0, 1, 2]
    assert order("lpm") == [0, 2, 1]


# SGLang 0.5.9 hiradix_cache.py: what is thrown out of the pool still lies in host memory and is loaded back
@BOTH
def test_what_was_thrown_out_comes_back_over_the_link_of_the_host(engine):
    link = TransferLink(bandwidth=1e9)

    def served(host):
        settings = EngineSettings(prefix_caching=True, host_tokens=host, host_link=link)
        made = [Request(i, float(i), 200, 2, runs=((name, 200),)) for i, name in enumerate("aba")]
        cluster = Cluster(TABLE, KvPool(256, 16, bytes_per_token=100_000), settings, engine)
        return {r.number: r for r in cluster.run(made)}[2]

    # b takes 13 of the 16 blocks, so that 3 of the 12 full ones of a are left
    without, with_host = served(0), served(1000)
    assert without.cached == 3 * 16 and with_host.cached == 12 * 16
    assert without.first - without.arrival == pytest.approx(0.01 + 152 * 1e-4)
    # nine blocks of 1.6 MB over 1 GB/s take longer than the step of 8 tokens
    assert with_host.first - with_host.arrival == pytest.approx(9 * 16 * 1e5 / 1e9)


@BOTH
@pytest.mark.parametrize("scheduler", ["vllm", "sglang"])
def test_host_memory_of_any_size_takes_nothing_from_the_pool(engine, scheduler):
    def cached(host):
        settings = scheduler_settings(
            scheduler, prefix_caching=True, host_tokens=host, host_link=TransferLink(bandwidth=1e15)
        )
        made = [Request(i, float(i), 200, 2, runs=((name, 200),)) for i, name in enumerate("abcabcaab")]
        return [r.cached for _, r in sorted(_serve(settings, made, engine)[1].items())]

    alone = cached(0)
    assert sum(alone) > 0
    for host in (16, 64, 192, 400, 1000):
        assert all(more >= less for more, less in zip(cached(host), alone, strict=True)), host


# vLLM 0.33.0 v1/kv_offload/tiering/manager.py (lookup: RETRY until blocks are in host memory), SGLang 0.5.23
# managers/scheduler.py (_prefetch_kvcache, and requests that wait for it are passed over)
DOCUMENT = (("a", 200),)
BLOCK = 16 * 1e5 / 1e8  # over 100 MB/s; of the twelve full blocks of 200 tokens the pool of 16 keeps three


def _with_tiers(engine, made, *tiers, replicas=1, pool=256):
    settings = EngineSettings(
        prefix_caching=True, host_tokens=192, host_link=TransferLink(1e12), tiers=tiers, replicas=replicas
    )
    cluster = Cluster(TABLE, KvPool(pool, 16, bytes_per_token=100_000), settings, engine)
    return {r.number: r for r in cluster.run(made)}


@BOTH
@pytest.mark.parametrize("kind", ["drive", "shared"])
def test_what_left_host_memory_is_fetched_from_a_drive_or_a_pool(engine, kind):
    made = [Request(i, float(i), 200, 2, runs=((name, 200),)) for i, name in enumerate("aba")]
    found = _with_tiers(engine, made, CacheTier(kind, 1000, TransferLink(1e8, 0.001)))
    assert found[2].cached == 12 * 16
    assert found[2].started == pytest.approx(2.0 + 9 * BLOCK + 0.001)
    assert found[2].first - found[2].started == pytest.approx(0.01 + 8 * 1e-4)
    # a request that came meanwhile goes first
    late = [*[Request(i, float(i), 200, 2, runs=((name, 200),)) for i, name in enumerate("aba")], Request(3, 2.1, 9, 1)]
    assert _with_tiers(engine, late, CacheTier(kind, 1000, TransferLink(1e8)))[3].first == pytest.approx(2.1 + 0.0109)


@BOTH
def test_transfers_of_two_replicas_queue_on_the_link_of_a_shared_pool_and_not_on_drives(engine):
    def served(kind):
        names = "aabbaa"  # round robin: each replica has seen `a` and then lost it
        made = [Request(i, float(i // 2), 200, 2, runs=((name, 200),)) for i, name in enumerate(names)]
        return _with_tiers(engine, made, CacheTier(kind, 1000, TransferLink(1e8)), replicas=2)

    drives, pool = served("drive"), served("shared")
    assert [drives[i].started for i in (4, 5)] == pytest.approx([2.0 + 9 * BLOCK, 2.0 + 9 * BLOCK])
    assert [pool[i].started for i in (4, 5)] == pytest.approx([2.0 + 9 * BLOCK, 2.0 + 18 * BLOCK])


@BOTH
def test_a_prompt_is_fetched_from_the_host_memory_of_another_replica(engine):
    peers = CacheTier("peers", 0, TransferLink(1e8))
    made = [Request(i, float(i), 200, 2, runs=DOCUMENT) for i in range(2)]  # round robin: the second goes elsewhere
    found = _with_tiers(engine, made, peers, replicas=2, pool=1024)
    assert found[1].replica == 1 and found[1].cached == 12 * 16
    assert found[1].started == pytest.approx(1.0 + 12 * BLOCK)
    alone = _with_tiers(engine, [Request(i, float(i), 200, 2, runs=DOCUMENT) for i in range(2)], replicas=2, pool=1024)
    assert alone[1].cached == 0 and alone[1].started == 1.0


def test_sglang_fetches_no_less_than_256_tokens():
    def served(tokens):
        settings = scheduler_settings(
            "sglang", host_tokens=tokens, host_link=TransferLink(1e12), replicas=2,
            tiers=(CacheTier("peers", 0, TransferLink(1e8)),), async_scheduling=False,
        )  # fmt: skip
        made = [Request(i, float(i), tokens, 2, runs=(("a", tokens),)) for i in range(2)]
        return {r.number: r for r in _serve(settings, made)[1].values()}[1].cached

    assert served(250) == 0 and served(300) == 18 * 16


@pytest.mark.parametrize("kind", ["drive", "shared", "peers"])
def test_more_and_faster_tiers_find_more_of_conversations(kind):
    """An endless link finds whatever any host kept, and a slow one makes prompts wait."""
    found = {}
    for rate in (None, 1e7, 1e15):
        tiers = () if rate is None else (CacheTier(kind, 0 if kind == "peers" else 10**6, TransferLink(rate)),)
        settings = EngineSettings(
            prefix_caching=True, replicas=3, host_tokens=8000, host_link=TransferLink(1e15), tiers=tiers
        )
        service = Service(TABLE, KvPool(4000, 16, 1e4), settings)
        traffic = parse_traffic("sessions:12", input=200, output=20, turns=6, tool_wait=1.0)
        summary = simulate(service, traffic, requests=300, options=SimulationOptions(keep=True))
        assert (summary.requests["cached"] < summary.requests["input_tokens"]).all()
        found[rate] = summary.requests["cached"].sum(), summary.summary["ttft_mean_ms"]
    assert found[1e15][0] > 1.2 * found[None][0]
    assert found[1e15][1] < found[None][1] and found[1e15][1] < found[1e7][1]


# vLLM 0.33.0 scheduler.py (_try_schedule_encoder_inputs) and SGLang: encoders run in the step that needs the image
@BOTH
def test_images_are_encoded_in_the_step_that_begins_a_prompt_or_on_cards_of_their_own(engine):
    def served(cards):
        settings = EngineSettings(image_seconds=0.1, encoder_cards=cards)
        made = [Request(0, 0.0, 100, 40), Request(1, 0.055, 100, 2), Request(2, 0.055, 100, 2)]
        made[1].images = made[2].images = 2
        return _serve(settings, made, engine)[1]

    # from 0.06 s on: a step of 30 ms for 200 prompt tokens, behind four images, in which request 0 waits as well
    same = served(0)
    assert same[1].first == same[2].first == pytest.approx(0.06 + 4 * 0.1 + 0.03)
    assert same[0].finish == pytest.approx(0.02 + 38 * 0.01 + 4 * 0.1 + 0.03)
    # one card: two images of each request after the other; request 0 does not wait for them
    apart = served(1)
    assert apart[1].started == pytest.approx(0.26) and apart[2].started == pytest.approx(0.455, abs=0.01)
    assert apart[0].finish == pytest.approx(0.02 + 38 * 0.01 + 0.02)
    two = served(2)
    assert two[1].started == two[2].started == pytest.approx(0.26)


def test_images_of_traffic_are_spread_evenly():
    service = Service(TABLE, KvPool(10**6), EngineSettings(image_seconds=0.1))
    found = {}
    for images in (0.0, 0.25, 2.5):
        traffic = parse_traffic("constant:1/s", input=100, output=2, images=images)
        found[images] = simulate(service, traffic, requests=400).summary["ttft_mean_ms"]
    assert found[0.25] - found[0.0] == pytest.approx(25.0, abs=0.5)
    assert found[2.5] - found[0.0] == pytest.approx(250.0, abs=0.5)


# vLLM 0.33.0 core_client.py (get_core_engine_for_request): requests that wait behind a pool more than half full
@BOTH
def test_a_queue_behind_a_full_pool_repels_requests(engine):
    """Both ranks have three requests; on rank 0 one of them waits for the pool, which two long ones fill."""

    def made():
        long = [Request(i, 0.0, 1500 if i % 2 == 0 else 40, 60) for i in range(6)]
        return [*long, Request(6, 0.3, 40, 2)]

    found = {}
    for routing in ("least-loaded", "waiting-penalty"):
        settings = EngineSettings(replicas=2, routing=routing, admission="no-evict")
        found[routing] = _serve(settings, made(), engine, tokens=3200)[1]
    assert [found["waiting-penalty"][i].replica for i in range(6)] == [0, 1, 0, 1, 0, 1]
    assert found["least-loaded"][6].replica == 0 and found["waiting-penalty"][6].replica == 1


def test_a_session_stays_where_it_began_under_affinity():
    settings = EngineSettings(replicas=4, routing="affinity", prefix_caching=True, max_num_seqs=64)
    service = Service(TABLE, KvPool(60_000), settings)
    found = simulate(
        service, parse_traffic("sessions:12", input=600, turns=12), requests=400, options=SimulationOptions(keep=True)
    ).requests
    for who in set(found["session"].tolist()):
        assert len(set(found["replica"][found["session"] == who].tolist())) == 1
    assert len(set(found["replica"].tolist())) == 4


def _plan(engine, ranks, **words):
    return serving_inputs(
        PlanRequest("deepseek-v3.1", "8xh200-sxm", engine=engine, tp=str(8 // ranks), dp=str(ranks), **words)
    )


# vLLM: each data-parallel rank is an engine core with its own scheduler, so limits hold for each; SGLang 0.5.9
# server_args.py (_handle_data_parallelism: chunked_prefill_size // dp_size, typed or not) divides its chunk by the
# ranks and takes 0.3 of the reserve; tp_worker.py divides max_running_requests where it was typed
@pytest.mark.parametrize(
    ("engine", "budget", "conservativeness", "told"),
    [("vllm", 8192, 1.0, (4096, 32)), ("sglang", 1024, 0.3, (512, 4))],
)
def test_a_data_parallel_rank_has_its_own_limits_and_pool(engine, budget, conservativeness, told):
    one, eight = _plan(engine, 1), _plan(engine, 8)
    assert one.settings.replicas == 1 and eight.settings.replicas == 8
    assert one.settings.max_num_batched_tokens == 8192
    assert eight.settings.max_num_batched_tokens == budget
    assert eight.settings.schedule_conservativeness == conservativeness
    typed = _plan(engine, 8, max_num_batched_tokens="4096", max_num_seqs="32").settings
    assert (typed.max_num_batched_tokens, typed.max_num_seqs) == told
    # a step of a rank is as long as one of all ranks with eight times the requests
    at = {"decode_context": np.array([1000.0]), "prefill_tokens": np.zeros(1), "prefill_context": np.zeros(1)}
    assert eight.step_seconds(decode_requests=np.array([4.0]), **at) > 0


def test_agents_on_eight_ranks_find_their_turns_only_where_they_were():
    """Twenty agents of eight turns: what is found again is said by who decides where a turn goes."""

    def found(routing):
        settings = scheduler_settings("vllm", replicas=8, routing=routing, max_num_seqs=64)
        service = Service(TABLE, KvPool(8_000_000), settings)  # nothing is ever evicted
        run = simulate(
            service, parse_traffic("sessions:20", input=4000), requests=600, options=SimulationOptions(keep=True)
        )
        # counted apart from the simulator: a turn finds whole blocks of the longest one of its session on its rank
        held, hits = {}, []
        turns = run.to_frame("requests").sort_values("arrival_s", kind="stable")
        for one in turns.itertuples():
            where = one.replica, one.session
            hits.append(min(held.get(where, 0), one.input_tokens - 1) // 16 * 16)
            held[where] = max(held.get(where, 0), one.input_tokens + one.output_tokens - 1)
        assert hits == turns["cached_tokens"].tolist()
        return run.summary["cached_share"]

    shares = {name: found(name) for name in ("round-robin", "least-loaded", "prefix-aware", "affinity")}
    # with one rank in eight the right one by chance, most of a conversation is computed again
    assert shares["round-robin"] < 0.45 and shares["least-loaded"] < 0.45
    assert shares["affinity"] > 0.7
    assert shares["prefix-aware"] == pytest.approx(shares["affinity"], abs=0.03)


@pytest.mark.parametrize(
    ("engine", "version", "caching", "ahead", "whole"),
    [
        ("vllm", "0.11.0", True, False, False),
        ("vllm", "0.14.0", True, True, False),
        ("vllm", "0.19.0", True, True, True),
        ("sglang", "0.5.9", True, True, False),
        ("trtllm", "1.0.0", True, False, False),
        ("llama.cpp", None, True, False, False),
    ],
)
def test_what_an_engine_does_on_its_own_is_that_of_its_version(engine, version, caching, ahead, whole):
    found = engine_defaults(engine, version=version)
    assert (found.prefix_caching, found.ahead, found.whole_prompt) == (caching, ahead, whole)


def test_a_hybrid_model_reuses_blocks_in_vllm_since_0_26():
    found = [engine_defaults("vllm", version=one, recurrent=True).prefix_caching for one in ("0.25.0", "0.26.0")]
    assert found == [False, True]


def _urgent(request):
    request.priority = 0
    return request


def _patient(request):
    request.priority = 1
    return request


# vLLM 0.33.0 v1/core/sched/request_queue.py (PriorityRequestQueue); SGLang 0.5.9 (_sort_by_priority_and_fcfs)
@BOTH
@pytest.mark.parametrize("scheduler", ["vllm", "sglang"])
@pytest.mark.parametrize(("order", "first"), [("fcfs", [0, 1, 2, 3]), ("priority", [0, 3, 1, 2])])
def test_the_urgent_go_before_those_who_wait_longer(engine, scheduler, order, first):
    settings = scheduler_settings(scheduler, order=order, max_num_seqs=1, async_scheduling=False)
    made = [_patient(Request(i, 0.001 * i, 100, 5)) for i in range(3)] + [_urgent(Request(3, 0.03, 100, 5))]
    _, done = _serve(settings, made, engine)
    assert sorted(done, key=lambda number: done[number].started) == first
    # request 0 takes 20 ms and four steps of 10 ms; who is next starts there
    assert done[first[1]].started == pytest.approx(0.06)


# vLLM 0.33.0 scheduler.py: while blocks are too few the request with the largest (priority, arrival) is preempted
@BOTH
@pytest.mark.parametrize(("order", "preempted"), [("fcfs", 1), ("priority", 0)])
def test_the_least_urgent_is_preempted(engine, order, preempted):
    # each takes 7 blocks of 20 and grows by one every 16 tokens: at the 17th block of both one has to go
    made = [_patient(Request(0, 0.0, 100, 100)), _urgent(Request(1, 0.001, 100, 100))]
    _, done = _serve(EngineSettings(order=order), made, engine, tokens=320)
    assert done[preempted].preemptions == 1 and done[1 - preempted].preemptions == 0


# vLLM 0.33.0 scheduler.py: long_prefill_token_threshold of every prompt, running ones first, unless it is alone
@BOTH
@pytest.mark.parametrize(("threshold", "long", "short"), [(0, 0.11, 0.11), (200, 0.13, 0.04)])
def test_a_short_prompt_is_computed_beside_a_long_one_that_may_not_fill_the_step(engine, threshold, long, short):
    """Both come at once, with a budget of 500 tokens for prompts of 800 and 100.

    Without a limit: 500 of the long one in 60 ms, then its 300 and the 100 in 50 ms. With 200: the first step holds 200
    and 100 (40 ms); then the long one goes on beside one decoding request, 200 at a time, in steps of 30 ms.
    """
    settings = EngineSettings(max_num_batched_tokens=500, long_prefill_token_threshold=threshold, max_num_seqs=8)
    _, done = _serve(settings, [Request(0, 0.0, 800, 2), Request(1, 0.0, 100, 50)], engine)
    assert (done[0].first, done[1].first) == pytest.approx((long, short))


@BOTH
def test_a_prompt_that_is_alone_is_not_limited(engine):
    settings = EngineSettings(max_num_batched_tokens=500, long_prefill_token_threshold=200, max_num_seqs=8)
    _, done = _serve(settings, [Request(0, 0.0, 800, 2)], engine)
    assert done[0].first == pytest.approx(0.06 + 0.04)


# vLLM 0.33.0 scheduler.py (schedule): no request is admitted while max_num_active_seqs run
@BOTH
def test_no_more_requests_run_than_may_be_active(engine):
    made = [Request(i, 0.0, 10, 5) for i in range(3)]
    limited = EngineSettings(max_num_seqs=8, max_num_active_seqs=2)
    _, done = _serve(limited, made, engine)
    _, same = _serve(EngineSettings(max_num_seqs=2), [Request(i, 0.0, 10, 5) for i in range(3)], engine)
    assert done[2].started == done[0].finish > done[1].started
    assert [done[i].finish for i in range(3)] == [same[i].finish for i in range(3)]


# vLLM 0.33.0 kv_cache_manager.py (allocate_slots): watermark_blocks beside the blocks of waiting and preempted requests
@BOTH
@pytest.mark.parametrize(("watermark", "together"), [(0.0, True), (0.1, True), (0.15, False)])
def test_a_share_of_the_blocks_stays_free_beside_running_requests(engine, watermark, together):
    """Of 20 blocks a prompt of 144 tokens takes 9, so that 11 are free: for 9 and a watermark of at most 2."""
    made = [Request(0, 0.0, 144, 5), Request(1, 0.0, 144, 5)]
    _, done = _serve(EngineSettings(watermark=watermark), made, engine, tokens=320)
    assert (done[1].started == done[0].started) is together


@BOTH
def test_a_request_that_is_alone_may_take_the_blocks_of_the_watermark(engine):
    _, done = _serve(EngineSettings(watermark=0.9), [Request(0, 0.0, 300, 5)], engine, tokens=320)
    assert done[0].started == 0.0


# SGLang 0.5.23 scheduler.py (_should_defer_prefill): so many decode rounds after a batch with prompt tokens
@BOTH
@pytest.mark.parametrize("interval", [0, 3])
def test_decode_steps_lie_between_two_steps_with_prompt_tokens(engine, interval):
    """Steps of 10 ms and 0.1 ms per prompt token: prompts of 50, and of two chunks of 100 from the second step on."""
    settings = scheduler_settings(
        "sglang", max_num_batched_tokens=100, async_scheduling=False, prefill_decode_interval=interval
    )
    _, done = _serve(settings, [Request(0, 0.0, 50, 200), Request(1, 0.001, 200, 2)], engine, tokens=10_000)
    decode = 0.01 + 1e-4  # one request decodes
    assert done[0].first == pytest.approx(0.015)
    assert done[1].first == pytest.approx(0.015 + 2 * (0.02 + interval * decode), rel=0.02)


# SGLang 0.5.23 min_free_slots_delayer.py (should_delay), scheduler.py (_get_new_batch_prefill_raw)
@BOTH
@pytest.mark.parametrize(("free", "begins"), [(0, 1), (1, 1), (2, 2), (9, 4)])
def test_prompts_wait_for_so_many_free_slots_beside_running_requests(engine, free, begins):
    """Four slots: the fifth request begins when as many as `free` others have ended, or all of them."""
    settings = scheduler_settings("sglang", max_num_seqs=4, async_scheduling=False, min_free_slots=free)
    made = [*(Request(i, 0.0, 50, 10 * (i + 1)) for i in range(4)), Request(4, 0.001, 50, 2)]
    _, done = _serve(settings, made, engine, tokens=10_000)
    ended = sorted(done[i].finish for i in range(4))
    assert done[4].started == pytest.approx(ended[begins - 1])


@BOTH
def test_a_prompt_that_was_begun_waits_for_no_slots(engine):
    settings = scheduler_settings(
        "sglang", max_num_seqs=4, max_num_batched_tokens=100, async_scheduling=False, min_free_slots=3
    )
    made = [Request(0, 0.0, 50, 200), Request(1, 0.001, 250, 2), Request(2, 0.5, 50, 2)]
    _, done = _serve(settings, made, engine, tokens=10_000)
    assert done[1].first - done[1].started == pytest.approx(0.01 * 3 + 250 * 1e-4, rel=0.02)


# vLLM 0.33.0 scheduler.py (schedule): local_prefill_interval, last_prefill_step, prefill_capacity_bound
@BOTH
@pytest.mark.parametrize(("interval", "first"), [(1, 0.08), (2, 0.09), (4, 0.11)])
def test_so_many_steps_lie_between_two_with_prompts(engine, interval, first):
    """Steps of 10 ms: prompt 0 until 0.02 s; prompt 1, two chunks of 200 tokens and 30 ms, comes at once."""
    settings = EngineSettings(prefill_schedule_interval=interval, max_num_batched_tokens=201, max_num_seqs=8)
    _, done = _serve(settings, [Request(0, 0.0, 100, 200), Request(1, 0.005, 400, 2)], engine)
    assert done[0].first == pytest.approx(0.02)
    assert done[1].started == pytest.approx(0.02 + (interval - 1) * 0.01)
    assert done[1].first == pytest.approx(0.02 + 2 * ((interval - 1) * 0.01 + 0.03))


@BOTH
def test_prompts_that_a_step_left_waiting_end_the_interval(engine):
    """Two of three prompts fit into the next prefill step. The third runs in the step after it, without an interval."""
    settings = EngineSettings(prefill_schedule_interval=5, max_num_batched_tokens=201, max_num_seqs=8)
    made = [Request(0, 0.0, 100, 200), *(Request(i, 0.005, 100, 2) for i in (1, 2, 3))]
    _, done = _serve(settings, made, engine)
    assert done[1].started == done[2].started == pytest.approx(0.02 + 4 * 0.01)
    assert done[3].started == pytest.approx(done[2].first)


@pytest.mark.parametrize(
    ("scheduler", "change"),
    [("sglang", {"watermark": 0.1}), ("sglang", {"prefill_schedule_interval": 2}),
      ("sglang", {"max_num_active_seqs": 2}), ("vllm", {"prefill_decode_interval": 2}),
      ("vllm", {"min_free_slots": 2}),
     ("vllm", {"watermark": 1.0}), ("vllm", {"max_num_active_seqs": 4096})],
)  # fmt: skip
def test_rules_of_another_engine_are_refused(scheduler, change):
    with pytest.raises(SpecError, match=next(iter(change))):
        scheduler_settings(scheduler, **change)


# vLLM 0.33.0 scheduler.py (finish_requests); SGLang 0.5.9 scheduler.py (abort_request)
@BOTH
@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm", "llama.cpp"])
def test_a_client_that_leaves_frees_its_place_when_the_step_has_ended(engine, scheduler):
    settings = scheduler_settings(
        scheduler, max_num_seqs=1, max_num_batched_tokens=200, async_scheduling=False, prefix_caching=False
    )
    # request 0 computes its prompt in steps of 30 ms (200 tokens); its client leaves in the second of them
    made = [Request(0, 0.0, 600, 5), Request(1, 0.01, 100, 2)]
    made[0].leaves = 0.045
    cluster, done = _serve(settings, made, engine, tokens=10_000)
    assert set(done) == {1} and cluster.left == 1
    assert done[1].started == pytest.approx(0.06)
    assert all(one.used == 0 for one in cluster.engines)


@BOTH
def test_a_client_that_leaves_while_it_waits_is_never_computed(engine):
    settings = EngineSettings(max_num_seqs=1)
    made = [Request(0, 0.0, 100, 10), Request(1, 0.01, 100, 2), Request(2, 0.02, 100, 2)]
    made[1].leaves = 0.05
    cluster, done = _serve(settings, made, engine)
    assert set(done) == {0, 2} and cluster.left == 1
    assert done[2].started == pytest.approx(done[0].finish)
    # whoever has a token stays
    again = [Request(0, 0.0, 100, 10)]
    again[0].leaves = 0.03
    assert set(_serve(settings, again, engine)[1]) == {0}


def test_orders_are_refused_where_the_engine_has_none():
    for scheduler, changes in (("trtllm", {"order": "priority"}), ("sglang", {"long_prefill_token_threshold": 512})):
        with pytest.raises(SpecError, match="is not known to"):
            scheduler_settings(scheduler, **changes)


def test_what_is_urgent_waits_less_and_impatient_clients_are_counted():
    service = Service(TABLE, KvPool(8000), scheduler_settings("vllm", order="priority", max_num_seqs=8))
    traffic = parse_traffic("closed:24", input=300, output=60, urgent=0.25)
    found = simulate(service, traffic, requests=400, options=SimulationOptions(keep=True))
    assert found.requests["priority"].mean() == pytest.approx(0.75, abs=0.02)
    assert found.summary["urgent_ttft_mean_ms"] < 0.5 * found.summary["ttft_mean_ms"]
    hasty = parse_traffic("poisson:20/s", input=300, output=60, patience="2 s")
    left = simulate(service, hasty, requests=400)
    assert left.summary["left"] + left.summary["requests"] == 400
    assert left.summary["left"] > 0 and left.summary["ttft_p99_ms"] <= 2000 + 50


def test_an_option_of_another_scheduler_is_refused_with_the_number_that_was_given():
    with pytest.raises(SpecError, match="prefill_schedule_interval: 2 is not known to sglang"):
        scheduler_settings("sglang", prefill_schedule_interval=2)
