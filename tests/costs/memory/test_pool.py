"""The pool an engine makes, against servers that ran, and what fits into it."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.costs.memory import (
    MemorySettings,
    PartMemory,
    RankMemory,
    budget_rows,
    kv_pool,
    largest_context,
    part_memory,
    rank_memory,
    requests_that_fit,
)
from glmplan.costs.memory.pool import weights_interval
from glmplan.costs.memory.settings import MemoryFit, Spread, load_memory_fit
from glmplan.costs.points import Layout
from glmplan.errors import UnknownFact

GIB = 2.0**30


def held(
    name: str, checkpoint: str, layout: Layout, *, kv: str = "fp8", mtp: bool = False, **settings: object
) -> RankMemory:
    """Memory of a catalogue model."""
    model = load_model(name)
    found = model.checkpoint(checkpoint)
    assert found is not None
    return rank_memory(model, found, layout=layout, kv=kv, settings=MemorySettings(**settings), mtp=mtp)


def part(name: str) -> PartMemory:
    """Memory of a catalogue part."""
    return part_memory(load_accelerator(name))


def exact() -> MemoryFit:
    """Observed terms that are known exactly."""
    none = Spread(0.0, 0.0, 1)
    return MemoryFit(none, {"single": none, "pcie": none, "nvlink": none}, none, {"pooled": none})


@pytest.mark.parametrize("name", ["rtx-pro-6000-ws", "rtx-pro-6000-server"])
def test_sglang_makes_a_pool_of_314304_tokens_at_092(name: str) -> None:
    # https://github.com/voipmonitor/rtx6kpro models/glm5.md
    memory = held("glm-5", "nvfp4", Layout(tp=8), kv="bf16", mtp=True, engine="sglang", fraction=0.92)
    assert kv_pool(memory, part(name)).tokens[0] == pytest.approx(314304, rel=0.02)
    measured = replace(part(name), free_before_load=93.99 * GIB)
    assert kv_pool(memory, measured).tokens[0] == pytest.approx(314304, rel=0.02)


def test_glm_51_nvfp4_fits_six_96_gb_cards_and_not_four() -> None:
    six = held("glm-5.1", "nvfp4", Layout(tp=np.array([2, 1]), pp=np.array([3, 6])))
    assert kv_pool(six, part("rtx-pro-6000-ws")).fits.all()
    four = held("glm-5.1", "nvfp4", Layout(tp=np.array([4, 2, 1]), pp=np.array([1, 2, 4])), fraction=0.97)
    assert not kv_pool(four, part("rtx-pro-6000-ws")).fits.any()


def test_reap_160_fits_four_cards_with_200000_tokens_of_fp8_cache() -> None:
    # 64 requests at once, as launches of it say; at vLLM's own 1,024 the sampler alone takes 3 GiB
    few = {"max_requests": 64}
    memory = held("glm-5.1-reap-160", "nvfp4", Layout(tp=np.array([2, 1]), pp=np.array([2, 4])), **few)
    assert (largest_context(memory, part("rtx-pro-6000-ws")) >= 200_000).all()
    alone = held("glm-5.1-reap-160", "nvfp4", Layout(tp=4), fraction=0.95, **few)
    assert largest_context(alone, part("rtx-pro-6000-ws"))[0] >= 200_000


def test_glm_51_fp8_needs_eight_b200_and_has_half_that_room_on_eight_h200() -> None:
    memory = held("glm-5.1", "fp8", Layout(tp=np.array([8, 4])))
    assert kv_pool(memory, part("b200-sxm")).fits.tolist() == [True, False]
    assert requests_that_fit(memory, part("b200-sxm"), 9216.0)[0] >= 64
    assert kv_pool(memory, part("h200-sxm")).fits[0]
    assert (
        requests_that_fit(memory, part("h200-sxm"), 9216.0)[0]
        < 0.6 * requests_that_fit(memory, part("b200-sxm"), 9216.0)[0]
    )


def test_the_interval_covers_the_pool_of_a_vllm_start_up_log() -> None:
    # vLLM 0.20.2, GLM-5.1 NVFP4, 8 x RTX PRO 6000: 341,504 tokens at 0.865
    settings = {"fraction": 0.865, "token_budget": 8192, "max_requests": 64, "version": "0.20.2"}
    pool = kv_pool(held("glm-5.1", "nvfp4", Layout(tp=8), **settings), part("rtx-pro-6000-server"))
    assert pool.tokens_low[0] < 341504 < pool.tokens_high[0]
    assert pool.tokens_low[0] < pool.tokens[0] < pool.tokens_high[0]


def test_kimi_pools_grow_with_context_parallelism_as_measured() -> None:
    # 449,600 and 3,621,504 tokens at DCP 1 and 8, https://github.com/voipmonitor/rtx6kpro models/kimi-k25.md
    settings = {"fraction": 0.93, "token_budget": 4096, "max_requests": 256}
    memory = held("kimi-k2.5", "int4", Layout(tp=8, dcp=np.array([1, 8])), **settings)
    pool = kv_pool(memory, part("rtx-pro-6000-server"))
    assert pool.tokens[1] / pool.tokens[0] == pytest.approx(3621504 / 449600, rel=0.01)
    assert (pool.tokens_low < [449600, 3621504]).all() and (pool.tokens_high > [449600, 3621504]).all()


def test_graphs_come_out_of_the_pool_since_vllm_0_20() -> None:
    # vllm/envs.py in the packages of 0.19.0, 0.20.0 and 0.20.2, although logs say "default since v0.21.0"
    layout, card = Layout(tp=4), part("rtx-pro-6000-ws")
    old, new, eager = (
        kv_pool(held("qwen3-235b-a22b", "fp8", layout, fraction=0.9, version=version, graphs=graphs), card).bytes[0]
        for version, graphs in (("0.19.0", None), ("0.20.0", None), ("0.20.0", 0))
    )
    assert new < old and eager == pytest.approx(old)


def test_vllm_before_0_11_takes_its_communicators_from_the_pool() -> None:
    def pool(version: str, name: str, **degrees: int) -> float:
        memory = held("qwen3-30b-a3b", "bf16", Layout(**degrees), kv="bf16", version=version, accelerator=name)
        return float(kv_pool(memory, part(name)).bytes[0])

    def taken(name: str, **degrees: int) -> float:
        return pool("0.11.0", name, **degrees) - pool("0.10.2", name, **degrees)

    context = load_memory_fit().context
    assert taken("h100-sxm", tp=2) == pytest.approx(context["nvlink"].mean - context["single"].mean)
    assert taken("h200-sxm", tp=8) > 1.4 * GIB  # 2.16 of 139.8 GiB taken before weights with NCCL, 0.60 without
    assert taken("h100-sxm", pp=2) > GIB
    # one accelerator, replicas of attention alone, buffers in host memory
    assert taken("h100-sxm", tp=1) == taken("h100-sxm", dp=8) == taken("rtx-3090", tp=4) == 0.0


EIGHT = Layout(dp=8, ep=8)


@pytest.mark.parametrize(
    ("name", "model", "layout", "kv", "settings", "gib"),
    [
        # https://github.com/vllm-project/vllm/issues/21348 (July 2025) and https://github.com/vllm-project/recipes/pull/12
        ("h100-sxm", "qwen3-235b-a22b", Layout(tp=4), "bf16", {"version": "0.9.2"}, 8.11),
        ("h20-141gb", "qwen3-coder-480b-a35b", Layout(dp=8, ep=8), "bf16", {"version": "0.10.1"}, 48.66),
        (
            "h20-141gb",
            "qwen3-coder-480b-a35b",
            Layout(dp=8, ep=8),
            "bf16",
            {"version": "0.10.1", "fraction": 0.95},
            55.65,
        ),
    ],
)
def test_pools_of_the_summer_of_2025_are_those_that_were_logged(name, model, layout, kv, settings, gib) -> None:
    found = kv_pool(held(model, "fp8", layout, kv=kv, accelerator=name, longest=262144.0, **settings), part(name))
    assert float(found.bytes[0]) / GIB == pytest.approx(gib, abs=0.2)


def test_the_spread_of_a_kind_of_launch_that_nobody_logged_is_that_of_all_launches_on_several() -> None:
    seen = {"nvlink": Spread(GIB, 0.1 * GIB, 2), "single": Spread(0.0, 0.1 * GIB, 7), "several": Spread(0.0, GIB, 3)}
    fit = replace(exact(), outside={"vllm": seen})
    card = PartMemory(80 * GIB, 80 * GIB, 0.0, "nvlink", capability="9.0")
    for tp in (1, 2):
        memory = held("llama-3.1-8b", "bf16", Layout(tp=tp), kv="bf16", graphs=0)
        logged, unlogged = (
            kv_pool(memory, replace(card, capability=one), fit=fit).sd[0] / GIB for one in ("9.0", "10.3")
        )
        assert (logged, unlogged) == (pytest.approx(0.1), pytest.approx(1.0))


def test_the_weights_of_an_engine_that_nobody_logged_are_no_surer_than_those_of_others() -> None:
    fit = load_memory_fit()
    assert "trtllm" not in fit.loaded
    memory = held("llama-3.1-8b", "bf16", Layout(), kv="bf16", engine="trtllm")
    widest = max(one.share for one in fit.loaded.values())
    assert weights_interval(memory, fit) == (pytest.approx(widest), pytest.approx(widest))


def test_the_indexer_of_sparse_attention_keeps_the_keys_of_forty_of_the_longest_requests() -> None:
    # vllm/v1/attention/backends/mla/indexer.py: 40 x 163,840 x 132 B = 825 MiB for DeepSeek-V3.2; 0.11.0 reserves none
    taken = {
        (version, indexer): held(
            "deepseek-v3.2",
            "fp8",
            Layout(tp=8),
            version=version,
            max_requests=8,
            token_budget=2048,
            accelerator="h200-sxm",
            experts_backend="deepgemm",
            longest=163840,
            indexer=indexer,
        )
        .stages[0]
        .activation[0]
        for version in ("0.11.0", "0.14.0", "0.22.0")
        for indexer in (True, False)
    }
    kept = 40 * 163840 * 132
    assert taken["0.14.0", True] - taken["0.11.0", True] == pytest.approx(kept)
    assert taken["0.22.0", True] > kept + 512 * 2**20
    assert taken["0.14.0", False] == pytest.approx(taken["0.11.0", False])


def test_each_rule_is_applied_as_the_engine_documents_it() -> None:
    card = PartMemory(100 * GIB, 100 * GIB, 0.0, "pcie")
    found = {}
    for engine in ("vllm", "sglang", "trtllm", "llama.cpp"):
        memory = held("llama-3.1-8b", "bf16", Layout(), kv="bf16", engine=engine, fraction=0.8)
        stage = memory.stages[0]
        found[engine] = (kv_pool(memory, card, fit=exact()).bytes[0], stage.weight_bytes[0], stage.activation[0])
    pool, weights, activation = found["vllm"]
    assert pool == pytest.approx(80 * GIB - weights - activation)
    pool, weights, _ = found["sglang"]
    assert pool == pytest.approx(80 * GIB - weights)
    pool, weights, activation = found["trtllm"]
    assert pool == pytest.approx(0.8 * (100 * GIB - weights - activation))
    pool, weights, activation = found["llama.cpp"]
    assert pool == pytest.approx(99 * GIB - weights - activation)


def test_graphs_are_captured_before_tensorrt_llm_sizes_its_pool_and_after_sglang_does() -> None:
    # tensorrt_llm/_torch/pyexecutor/_util.py: the fraction is of what the trial run leaves, which holds its graphs;
    # SGLang captures when the pool stands: its graphs come out of what 1 - mem_fraction_static leaves
    fit = replace(exact(), graph=Spread(0.125 * GIB, 0.01 * GIB, 9))
    card = PartMemory(100 * GIB, 100 * GIB, 0.0, "pcie")
    taken = {}
    for engine in ("trtllm", "sglang"):
        pools = [
            kv_pool(
                held("llama-3.1-8b", "bf16", Layout(), kv="bf16", engine=engine, fraction=0.8, graphs=graphs),
                card,
                fit=fit,
            )
            for graphs in (0, 16)
        ]
        taken[engine] = (pools[0].bytes[0] - pools[1].bytes[0], math.sqrt(pools[1].sd[0] ** 2 - pools[0].sd[0] ** 2))
    # 16 graphs of 128 MiB are 2 GiB, known to 160 MiB; of what they leave the pool has 0.8
    assert taken["trtllm"] == (pytest.approx(0.8 * 2 * GIB), pytest.approx(0.8 * 0.16 * GIB))
    assert taken["sglang"] == (pytest.approx(0.0), pytest.approx(0.0))


def test_sglang_chooses_its_fraction_by_part_and_layout() -> None:
    # 512 + 8192 x 1.5 + 512 x 2 + 1024 MiB of 80 GiB are 0.182; the least reserve of 10 GiB is below that
    memory = held("llama-3.1-8b", "bf16", Layout(tp=8), kv="bf16", engine="sglang", max_requests=512)
    card = PartMemory(80 * GIB, 80 * GIB, 0.0, "nvlink")
    assert kv_pool(memory, card, fit=exact()).bytes[0] == pytest.approx(0.819 * 80 * GIB - memory.weights[0], rel=0.001)


def test_unknown_memory_is_said_and_not_invented() -> None:
    with pytest.raises(UnknownFact, match="unknown: memory"):
        part("nizwo-a1")


def test_sliding_windows_and_states_hold_more_tokens_in_longer_requests() -> None:
    memory = held("gpt-oss-20b", "mxfp4", Layout(), kv="bf16")
    card = part("h100-sxm")
    short, long = (kv_pool(memory, card, context=context).tokens[0] for context in (128.0, 131072.0))
    assert long == pytest.approx(2 * short, rel=0.01)
    assert largest_context(memory, card)[0] > long * 0.99


@given(context=st.floats(100, 1e6), tp=st.sampled_from([1, 2, 4, 8]), dp=st.sampled_from([1, 2]))
def test_requests_of_the_largest_context_fit_once_on_each_replica(context: float, tp: int, dp: int) -> None:
    memory = held("qwen3.5-397b-a17b", "bf16", Layout(tp=tp, dp=dp), kv="fp8")
    card = PartMemory(2000 * GIB, 2000 * GIB, 0.0, "nvlink")
    longest = largest_context(memory, card)
    assert requests_that_fit(memory, card, longest)[0] == dp
    assert requests_that_fit(memory, card, context)[0] >= requests_that_fit(memory, card, 2 * context)[0]


@given(fraction=st.floats(0.3, 0.98))
def test_a_larger_fraction_never_makes_a_smaller_pool(fraction: float) -> None:
    card = part("h200-sxm")
    for engine in ("vllm", "sglang", "trtllm"):
        settings = {"engine": engine, "fraction": np.array([fraction, fraction + 0.01])}
        pool = kv_pool(held("glm-5.1", "fp8", Layout(tp=np.array([8, 8])), **settings), card)
        assert pool.bytes[1] > pool.bytes[0]


def test_budget_rows_name_every_rank_and_add_up() -> None:
    memory = held("glm-5.1", "nvfp4", Layout(tp=2, pp=3))
    card = part("rtx-pro-6000-ws")
    rows = budget_rows(memory, card)
    assert len(rows) == 6 and rows[3].label == "stage 1, rank 1"
    for row in rows:
        assert row.total == pytest.approx(sum(row.parts.values()))
        assert row.capacity == card.total
    assert max(sum(row.weights.values()) for row in rows) == pytest.approx(memory.weights[0])
    assert min(row.cache / row.per_token for row in rows) >= kv_pool(memory, card).tokens[0]


def test_ranks_with_one_expert_less_hold_less() -> None:
    memory = held("glm-5.1", "nvfp4", Layout(tp=6, ep=6))
    experts = [row.weights["routed_experts"] for row in budget_rows(memory, part("b300-sxm"))]
    # 256 experts on six ranks: 43, 43, 43, 43, 42, 42
    assert [round(43 * held / experts[0]) for held in experts] == [43, 43, 43, 43, 42, 42]
    per_expert = experts[0] / 43
    assert sum(experts) == pytest.approx(256 * per_expert)


def test_a_layout_that_does_not_fit_says_by_how_much() -> None:
    memory = held("glm-5.1", "nvfp4", Layout(tp=4))
    card = part("rtx-pro-6000-ws")
    pool = kv_pool(memory, card)
    assert not pool.fits[0] and pool.tokens[0] == 0 and pool.bytes[0] < 0
    row = budget_rows(memory, card)[0]
    assert row.cache == 0 and row.free < 0


def test_observed_terms_have_observations_behind_them() -> None:
    fit = load_memory_fit()
    for spread in (fit.driver, fit.graph, *fit.context.values(), *fit.remainder.values()):
        assert spread.count >= 1 and spread.sd > 0


def test_sglang_gives_window_layers_eighty_per_cent_of_the_tokens_of_the_others() -> None:
    # python/sglang/srt/model_executor/pool_configurator.py: full_tokens = bytes / (F x n_full + 0.8 x S x n_swa);
    # gpt-oss-120b on two ranks: 18 layers of each kind, 4 heads of 64 keys and values in BF16
    memory = held("gpt-oss-120b", "mxfp4", Layout(tp=2), kv="bf16", engine="sglang", version="0.5.9", fraction=0.85)
    card = part("h100-sxm")
    pool = kv_pool(memory, card, context=32768.0)
    cell = 18 * 2 * 4 * 64 * 2 * 1.8
    assert pool.printed[0] == pool.tokens[0] == np.floor(pool.bytes[0] / cell)
    assert requests_that_fit(memory, card, 32768.0)[0] == np.floor(pool.printed[0] / 32768)
    short = requests_that_fit(memory, card, 64.0)[0]  # a window holds 128
    assert short == np.floor(0.8 * pool.bytes[0] / cell / 64)
    # before, and in models that it does not list, all layers keep all tokens
    old = held("gemma-3-27b", "bf16", Layout(), kv="bf16", engine="sglang", version="0.5.9", fraction=0.95)
    every = kv_pool(old, card, context=8192.0)
    stage = old.stages[0]
    assert every.printed[0] == np.floor(every.bytes[0] / (stage.per_token[0] + sum(one[0] for _, one in stage.windows)))


def test_sglang_gives_states_nine_tenths_of_what_keys_and_values_get() -> None:
    # sglang/srt/model_executor/model_runner_kv_cache_mixin.py: mamba_full_memory_ratio 0.9, three states a request
    memory = held("qwen3.5-27b", "bf16", Layout(tp=2), kv="bf16", engine="sglang", version="0.5.9", fraction=0.85)
    card, stage = part("h100-sxm"), memory.stages[0]
    pool = kv_pool(memory, card, context=8192.0)
    assert pool.printed[0] == np.floor(pool.bytes[0] / 1.9 / stage.per_token[0])
    states = np.floor(pool.bytes[0] * 0.9 / 1.9 / (3 * stage.state[0]))
    assert requests_that_fit(memory, card, 512.0)[0] == states
    assert pool.tokens[0] == min(pool.printed[0], states * 8192)
    assert largest_context(memory, card)[0] == pytest.approx(pool.printed[0], abs=1.0)


def test_accelerators_that_share_the_memory_of_their_host_have_communicators_too() -> None:
    # two DGX Spark logged 10 GiB less than one and communicators explain; Qwen3-30B on each
    spark, apart = part("dgx-spark"), part("rtx-4090")
    pools = {}
    for card in (spark, replace(apart, total=spark.total, total_sd=0.0)):
        for tp in (1, 2):
            memory = held("qwen3-30b-a3b", "bf16", Layout(tp=tp), kv="bf16", version="0.19.0", fraction=0.8)
            pools[card.link, tp] = kv_pool(memory, card)
    terms = load_memory_fit().outside["vllm"]
    one, two = (float(pools["unified", tp].sd[0]) for tp in (1, 2))
    assert two > one > 3 * pools["pcie", 1].sd[0]
    assert two**2 - one**2 == pytest.approx(terms["several"].sd ** 2, rel=0.1)


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "llama.cpp"])
def test_pools_of_free_memory_lack_what_a_system_takes_of_a_shared_one(engine: str) -> None:
    # 101 to 115 of 120 GiB were free on DGX Spark before weights were loaded
    weights = "q8_0" if engine == "llama.cpp" else "bf16"
    memory = held("qwen3-8b", weights, Layout(), kv="f16" if engine == "llama.cpp" else "bf16", engine=engine)
    spark = part("dgx-spark")
    shared, alone = kv_pool(memory, spark), kv_pool(memory, replace(spark, link="pcie", capability="12.0"))
    assert 2 * GIB < alone.bytes[0] - shared.bytes[0] < 15 * GIB
    assert shared.sd[0] > 2 * alone.sd[0]


def test_tensorrt_llm_keeps_every_token_in_every_layer_until_it_reads_windows_from_the_config() -> None:
    # log of 1.1.0rc3: "kv size is 73728" for gpt-oss-120b, 36 layers of 2 x 8 x 64 values in BF16; blocks of 32
    card, long = PartMemory(120 * GIB, 120 * GIB, 0.0, "unified"), 131072.0
    for version, each in (("1.1.0rc3", 36), ("1.3.0rc20", 36), (None, 36), ("1.3.0rc27", 18)):
        memory = held("gpt-oss-120b", "mxfp4", Layout(), kv="bf16", engine="trtllm", version=version)
        pool = kv_pool(memory, card, fit=exact(), context=long)
        assert pool.bytes[0] / pool.tokens[0] == pytest.approx(each * 2048, rel=0.002)
        assert pool.printed[0] % 32 == 0 and pool.tokens[0] <= pool.printed[0]
        assert version == "1.3.0rc27" or budget_rows(memory, card)[0].per_token == each * 2048
    # kinds with pools of their own in any version, and recurrent layers, share as before
    for model, weights in (("gemma-4-31b", "bf16"), ("qwen3-next-80b-a3b", "bf16")):
        assert held(model, weights, Layout(tp=2), kv="bf16", engine="trtllm", version="1.2.1").split is None


def test_vllm_keeps_every_token_in_windows_before_its_hybrid_manager() -> None:
    # 62 layers of 2 x 16 x 128 values in BF16, ten of them without a window; unify_hybrid_kv_cache_specs up to 0.9.0
    card, long = PartMemory(120 * GIB, 120 * GIB, 0.0, "unified"), 131072.0
    for version, layers in (("0.8.5", 62), ("0.9.0", 62)):
        memory = held("gemma-3-27b", "bf16", Layout(), kv="bf16", engine="vllm", version=version)
        pool = kv_pool(memory, card, fit=exact(), context=long)
        assert pool.bytes[0] / pool.tokens[0] == pytest.approx(layers * 8192, rel=0.002)
        assert pool.printed[0] == pool.tokens[0]
    memory = held("gemma-3-27b", "bf16", Layout(), kv="bf16", engine="vllm", version="0.9.1")
    assert kv_pool(memory, card, fit=exact(), context=long).tokens[0] > 4 * pool.tokens[0]


@pytest.mark.parametrize(
    ("version", "shares"), [("0.8.5", False), ("0.9.2", False), ("0.10.0", True), ("0.13.0", False), ("0.14.0", True)]
)
def test_vllm_keeps_chunks_of_llama_4_in_the_releases_without_hybrid_pages(version: str, shares: bool) -> None:
    memory = held("llama-4-scout", "bf16", Layout(tp=8), kv="bf16", engine="vllm", version=version)
    assert (memory.split is None) == shares
    gemma = held("gemma-3-27b", "bf16", Layout(), kv="bf16", engine="vllm", version=version)
    assert (gemma.split is None) == (version != "0.8.5")


@pytest.mark.parametrize(
    ("version", "layers"),
    [("0.4.10", 62), ("0.5.1", 10 + 0.8 * 52), ("0.5.4", 10 + 0.8 * 52), ("0.5.9", 62)],
)
def test_sglang_splits_windows_by_the_models_of_each_release(version: str, layers: float) -> None:
    # 62 layers of 2 x 16 x 128 values in BF16, ten of them without a window
    card, long = PartMemory(120 * GIB, 120 * GIB, 0.0, "unified"), 131072.0
    memory = held("gemma-3-27b", "bf16", Layout(), kv="bf16", engine="sglang", version=version)
    pool = kv_pool(memory, card, fit=exact(), context=long)
    assert pool.bytes[0] / pool.tokens[0] == pytest.approx(layers * 8192, rel=0.002)


def test_tensorrt_llm_leaves_room_to_expand_the_fp8_latents_of_its_pool() -> None:
    # pull request 16399: 20,480 B a token of Kimi-K2 with whole heads; pool and room for as many tokens as it holds
    card = PartMemory(200 * GIB, 200 * GIB, 0.0, "nvlink")

    def pool(version: str, name: str = "kimi-k2.5", kv: str = "fp8", tp: int = 8, **told: object):
        told = {"engine": "trtllm", "version": version, "max_requests": 64, "longest": 65536, **told}
        memory = held(name, "nvfp4", Layout(tp=tp), kv=kv, **told)
        return memory.stages[0], float(kv_pool(memory, card, fit=exact()).bytes[0])

    before, whole = pool("1.3.0rc20")
    stage, left = pool("1.3.0rc23")
    assert np.all(before.expanded == 0.0) and stage.expanded[0] == 20480 / 8
    assert left == pytest.approx(whole * 35136 / (35136 + 2560))
    # never more than the requests of a step at their longest: 2 x 65,536 tokens
    few = pool("1.3.0rc20", max_requests=2)[1]
    assert pool("1.3.0rc23", max_requests=2)[1] == pytest.approx(few - 2560 * 2 * 65536)
    # another format of the cache, and models with an indexer
    for asked in ({"kv": "bf16"}, {"name": "glm-5.1"}):
        assert pool("1.3.0rc23", **asked)[1] == pytest.approx(pool("1.3.0rc20", **asked)[1])


@pytest.mark.parametrize(
    ("name", "form", "engine", "matters"),
    [
        ("llama-3.1-8b", "bf16", "vllm", False),
        ("glm-5.1", "nvfp4", "vllm", False),
        ("glm-5.1", "nvfp4", "sglang", False),
        ("gpt-oss-20b", "mxfp4", "vllm", True),
        ("gemma-3-12b", "bf16", "vllm", True),
        ("qwen3-next-80b-a3b", "bf16", "vllm", True),
    ],
)
def test_a_pool_is_the_same_for_requests_of_every_length_but_where_layers_keep_windows_or_states(
    name: str, form: str, engine: str, matters: bool
) -> None:
    memory = held(name, form, Layout(tp=np.array([4, 8]), pp=np.array([2, 1])), kv="bf16", engine=engine)
    short, long = (kv_pool(memory, part("h200-sxm"), context=length) for length in (1.0, 50_000.0))
    same = all((getattr(short, one.name) == getattr(long, one.name)).all() for one in fields(short))
    assert memory.by_length is matters is not same


@pytest.mark.parametrize("total", [15.5, 16.6, 17.0, 17.8, 24.0])
def test_a_step_is_halved_until_16_blocks_remain(total: float) -> None:
    """LMDeploy 1263d5cd, lmdeploy/pytorch/engine/executor/base.py (_get_runtime_size)."""
    llama, told = load_model("llama-3.1-8b"), MemorySettings(engine="lmdeploy-pytorch", accelerator="rtx-4090")
    held = rank_memory(llama, llama.checkpoint("bf16"), layout=Layout(), kv="bf16", settings=told)
    row = budget_rows(held, PartMemory(total * GIB, total * GIB, 0.0, "pcie"))[0]
    left = row.usable - sum(row.weights.values()) - row.reserve
    tokens = 8192
    while tokens and 0.8 * (left - 2 * (tokens + 2 * 128) * 128256) < 16 * 64 * 131072:
        tokens //= 2
    assert row.activation == pytest.approx(2 * ((tokens or 8192) + 2 * 128) * 128256)
    assert row.pool == pytest.approx(0.8 * (left - row.activation))
