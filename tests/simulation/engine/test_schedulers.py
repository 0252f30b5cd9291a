"""What distinguishes the schedulers, the prefix cache, routing and disaggregation; the step table."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.simulation.engine.admission import by_priority, in_order_again
from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.prefix_cache import PrefixCache
from glmplan.simulation.engine.settings import EngineSettings, KvPool, TransferLink, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.spec import parse_traffic

TABLE = StepTable.affine(base=0.01, per_request=1e-4, per_prefill_token=1e-4)


def _serve(settings, made, tokens=100_000, table=TABLE, block=16, per_token=0.0):
    cluster = Cluster(table, KvPool(tokens, block, per_token), settings)
    return cluster, {r.number: r for r in cluster.run(made)}


def test_vllm_decodes_beside_a_prompt_and_sglang_waits_for_it():
    def made():
        return [Request(0, 0.0, 100, 20), Request(1, 0.055, 1000, 2)]

    _, mixed = _serve(scheduler_settings("vllm"), made())
    _, alone = _serve(scheduler_settings("sglang"), made())
    # the prompt takes 0.1 s: in vLLM request 0 gets a token with that step, in SGLang none
    assert alone[0].finish - mixed[0].finish == pytest.approx(0.01, abs=1e-3)
    assert alone[1].first < mixed[1].first + 1e-9


def test_a_budget_spreads_a_prompt_over_steps():
    _, whole = _serve(EngineSettings(max_num_batched_tokens=1000), [Request(0, 0.0, 1000, 1)])
    _, parts = _serve(EngineSettings(max_num_batched_tokens=256), [Request(0, 0.0, 1000, 1)])
    assert parts[0].first - whole[0].first == pytest.approx(3 * 0.01)


def test_no_evict_never_preempts_where_vllm_does():
    def made():
        return [Request(i, 0.0, 100, 400) for i in range(8)]

    greedy, _ = _serve(scheduler_settings("vllm"), made(), tokens=2000)
    careful, _ = _serve(scheduler_settings("trtllm"), made(), tokens=2000)
    eager, _ = _serve(scheduler_settings("trtllm", admission="max-utilization"), made(), tokens=2000)
    assert greedy.preemptions == eager.preemptions > 0
    assert careful.preemptions == 0


def test_sglang_admits_by_its_estimate_and_so_preempts_less_than_vllm():
    def made():
        return [Request(i, 0.01 * i, 100, 400) for i in range(30)]

    greedy, _ = _serve(scheduler_settings("vllm"), made(), tokens=4000)
    estimated, done = _serve(scheduler_settings("sglang"), made(), tokens=4000)
    assert estimated.preemptions < greedy.preemptions
    assert len(done) == 30


def test_a_slot_of_llama_cpp_has_its_share_of_the_context():
    settings = scheduler_settings("llama.cpp", max_num_seqs=4)
    cluster, done = _serve(settings, [Request(0, 0.0, 200, 60), Request(1, 0.0, 200, 40)], tokens=1024)
    assert cluster.rejected == {"longer than the context of a slot": 1}
    assert set(done) == {1}


def test_a_preempted_request_computes_prompt_and_answer_again():
    cluster, done = _serve(EngineSettings(), [Request(0, 0.0, 100, 100), Request(1, 0.0, 100, 100)], tokens=320)
    assert cluster.preemptions == 1
    assert done[1].preemptions == 1
    assert done[0].preemptions == 0
    assert done[1].finish > done[0].finish


def test_content_that_was_computed_is_found_and_the_least_recent_goes_first():
    cache = PrefixCache(16)

    def used(name, blocks):
        request = Request(0, 0.0, 16 * blocks, 1, runs=((name, 16 * blocks),))
        request.private = blocks
        cache.release(request, 16 * blocks)

    used("a", 10)
    used("b", 10)
    assert cache.evictable == cache.blocks == 20
    cache.evict(4)
    assert cache.match(Request(2, 0.0, 200, 1, runs=(("b", 200),)))[0] == 10
    found, parts = cache.match(Request(1, 0.0, 200, 1, runs=(("a", 200),)))
    assert found == 6
    assert parts == [("a", 6)]


def test_held_content_is_not_thrown_out():
    cache = PrefixCache(16)
    first = Request(0, 0.0, 160, 1, runs=(("a", 160),))
    first.private = 10
    cache.release(first, 160)
    reader = Request(1, 0.0, 100, 1, runs=(("a", 100),))
    found, parts = cache.match(reader)
    cache.hold(reader, parts)
    assert found == 6
    assert cache.evictable == 4
    cache.evict(4)
    assert cache.evictable == 0
    assert cache.match(Request(2, 0.0, 200, 1, runs=(("a", 200),)))[0] == 6


def test_a_system_prompt_is_computed_once():
    made = [Request(i, float(i), 1100, 5, runs=(("system", 1024), (("u", i), 76))) for i in range(5)]
    _, done = _serve(EngineSettings(prefix_caching=True), made)
    assert [done[i].cached for i in range(5)] == [0, 1024, 1024, 1024, 1024]
    assert done[1].first - done[1].arrival < (done[0].first - done[0].arrival) / 3


def test_prefix_aware_routing_sends_a_conversation_where_its_blocks_are():
    traffic = parse_traffic("sessions:12", input=600, turns=12)
    shares = {
        routing: simulate(
            Service(
                TABLE, KvPool(60_000), EngineSettings(replicas=4, routing=routing, prefix_caching=True, max_num_seqs=64)
            ),
            traffic,
            requests=400,
        ).summary["cached_share"]
        for routing in ("round-robin", "prefix-aware")
    }
    assert shares["prefix-aware"] > 1.5 * shares["round-robin"]


def test_the_least_loaded_replica_takes_the_next_request():
    made = [Request(0, 0.0, 10, 500), Request(1, 0.1, 10, 500), Request(2, 0.2, 10, 5)]
    _, done = _serve(EngineSettings(replicas=2, routing="least-loaded"), made)
    assert [done[i].replica for i in range(3)] == [0, 1, 0]


def test_disaggregation_hands_keys_and_values_over_the_link():
    link = TransferLink(bandwidth=1e9, latency=0.002)
    settings = EngineSettings(replicas=2, prefill_replicas=1, link=link)
    made = [Request(0, 0.0, 1000, 11), Request(1, 0.0, 1000, 1)]
    _, done = _serve(settings, made, per_token=100_000)
    # both prompts in one step of 0.21 s, then 100 MB over 1 GB/s
    assert done[0].first == pytest.approx(0.21 + 0.1 + 0.002)
    assert done[0].finish == pytest.approx(done[0].first + 10 * 0.0101)
    assert done[0].replica == 1
    assert done[1].finish == pytest.approx(0.21)


def test_pipeline_stages_split_a_step_into_micro_batches():
    one = StepTable.affine(base=0.01, per_request=0.001)
    made = [Request(i, 0.0, 1, 101) for i in range(8)]
    _, done = _serve(EngineSettings(pipeline_stages=4), made, table=one)
    # each round holds micro-batches of two requests
    assert done[0].finish - done[0].first == pytest.approx(100 * 0.012)


def test_the_acceptance_distribution_has_its_mean_and_its_steps():
    draft = Acceptance.of_mean(3, 2.7)
    assert draft.mean == pytest.approx(2.7)
    assert draft.chances.sum() == pytest.approx(1)
    generator = np.random.default_rng(0)
    for tokens in (40, 400):
        steps = draft.steps(np.full(40_000, tokens), generator)
        drawn = generator.choice(np.arange(1, 5), size=(4000, tokens), p=draft.chances).cumsum(axis=1)
        brute = (drawn < tokens).sum(axis=1) + 1
        assert steps.mean() == pytest.approx(brute.mean(), rel=0.01)
        assert steps.std() == pytest.approx(brute.std(), rel=0.1)
    assert draft.steps(np.array([0, 1]), generator).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"scheduler": "vlm"}, "vllm"),
        ({"admission": "chunks"}, "chunk"),
        ({"routing": "least"}, "least-loaded"),
        ({"max_num_batched_tokens": 10}, "max_num_batched_tokens"),
        ({"replicas": 2, "prefill_replicas": 2}, "prefill_replicas"),
        ({"new_token_ratio": 0.0}, "new_token_ratio"),
    ],
)
def test_settings_that_cannot_be_are_told_with_their_field(changes, field):
    with pytest.raises(SpecError, match=field):
        EngineSettings(**changes)


def test_a_pool_of_less_than_a_block_is_refused():
    with pytest.raises(SpecError, match="block"):
        KvPool(8)
    with pytest.raises(SpecError, match="acceptance length"):
        Acceptance.of_mean(3, 4.5)
    with pytest.raises(SpecError, match="max_num_seqs"):
        Service(StepTable.affine(base=0.01, max_requests=8), KvPool(1000), EngineSettings())


def _experts(*, decode_requests, decode_context, prefill_tokens, prefill_context):
    tokens = decode_requests + prefill_tokens
    return (
        4e-3
        + 16e-3 * (1 - (1 - 8 / 256) ** tokens)
        + 1e-7 * decode_requests * np.minimum(decode_context, 2048)
        + 1.2e-5 * tokens
        + 1e-9 * prefill_tokens * np.minimum(prefill_context, 2048)
    )


def test_a_table_is_exact_for_decoding_and_close_for_mixed_steps():
    table = StepTable.tabulate(_experts, max_requests=256, max_context=32_768, max_prefill=8192)
    generator = np.random.default_rng(1)
    n = generator.integers(1, 257, 3000)
    c = np.exp(generator.uniform(0, np.log(32_768), 3000))
    zero = np.zeros(3000)
    exact = _experts(decode_requests=n, decode_context=c, prefill_tokens=zero, prefill_context=zero)
    np.testing.assert_allclose(table.seconds_at(n, c, zero, zero), exact, rtol=1e-12)
    assert table.worst_error < 0.02


def test_a_thinned_table_stays_within_a_few_thousandths():
    table = StepTable.tabulate(_experts, max_requests=4096, max_context=200_000, max_prefill=16_384)
    n = np.arange(1, 4097)
    exact = _experts(decode_requests=n, decode_context=5000.0, prefill_tokens=0 * n, prefill_context=0 * n)
    np.testing.assert_allclose(table.seconds_at(n, 5000.0 + 0 * n, 0 * n, 0 * n), exact, rtol=0.003)


def test_a_step_time_that_is_not_positive_is_refused():
    with pytest.raises(SpecError, match="step time"):
        StepTable.tabulate(lambda **_: np.array(np.nan), max_requests=4, max_context=100, max_prefill=100)
    with pytest.raises(SpecError, match="max_prefill"):
        StepTable.tabulate(_experts, max_requests=4, max_context=100, max_prefill=0)


@pytest.mark.parametrize("queued", (False, True))
def test_a_queue_that_is_kept_in_order_is_that_which_is_sorted_whole(queued):
    rng = np.random.default_rng(7)
    kept, sorted_whole, last = deque(), [], None
    for number in range(300):
        request = Request(number, float(number // 3), 100, 1)
        request.priority = int(rng.integers(3))
        kept.append(request)
        sorted_whole.append(request)
        if rng.random() < 0.5:
            kept, sorted_whole = in_order_again(kept, last, queued), by_priority(sorted_whole, queued)
            last = kept[-1]
            assert list(kept) == sorted_whole
            if rng.random() < 0.5:
                gone = sorted_whole.pop(int(rng.integers(len(sorted_whole))))
                kept.remove(gone)
