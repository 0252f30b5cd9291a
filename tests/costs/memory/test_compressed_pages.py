"""Pools of compressed attention by the pages of the engines, against what vLLM and SGLang print."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.mixer import CachePage
from glmplan.costs.memory import (
    MemorySettings,
    PartMemory,
    RankMemory,
    kv_pool,
    largest_context,
    rank_memory,
    requests_that_fit,
)
from glmplan.costs.memory.pages import block_plan, request_blocks
from glmplan.costs.memory.pool import PoolTerms, printed_of_bytes, split_pool
from glmplan.costs.points import Layout

GIB = 2.0**30
ONE = np.ones(1)


def ranks(name: str, tp: int = 1, *, kv: str = "fp8", mtp: bool = False, **settings: object) -> RankMemory:
    model = load_model(name)
    checkpoint = model.checkpoint(model.default_checkpoint)
    return rank_memory(model, checkpoint, layout=Layout(tp=tp), kv=kv, settings=MemorySettings(**settings), mtp=mtp)


def terms(pool: float) -> tuple[PoolTerms, ...]:
    """A pool of this size that is certain."""
    zero = 0.0 * ONE
    return (PoolTerms(zero, zero, zero, zero, pool * ONE, zero, zero, zero, zero, zero, ONE, zero),)


@pytest.mark.parametrize(
    ("name", "tp", "version", "mtp", "gib", "longest", "logged"),
    [
        # https://github.com/vllm-project/vllm/issues/51041: 0.25, or 0.26 with steps of 4,096 tokens, see below
        ("deepseek-v4-flash", 2, "0.25.0", True, 7.01, 912128, 1_009_661),
        # start-up-logs.csv, log-013 and log-017
        ("deepseek-v4-pro", 4, "0.21.0", False, 39.26, 1000000, 4_103_577),
        ("deepseek-v4-pro", 4, "0.21.0", False, 40.47, 1000000, 4_230_092),
    ],
)
def test_vllm_prints_the_tokens_of_its_blocks(name, tp, version, mtp, gib, longest, logged):
    memory = ranks(name, tp, version=version, mtp=mtp, token_budget=8192, longest=float(longest))
    # the log rounds the pool to 0.01 GiB
    assert printed_of_bytes(memory, memory.stages[0], gib * GIB, longest) == pytest.approx(logged, rel=1.5e-3)


@pytest.mark.parametrize(
    ("gib", "longest", "logged", "step"), [(7.01, 912128, 1_009_661, 4096), (7.71, 121344, 150_992, 8192)]
)
def test_the_launches_of_one_release_differ_by_the_step_alone(gib, longest, logged, step):
    """https://github.com/vllm-project/vllm/issues/51041: both of 0.26.0, with one draft layer.

    Some pool that is logged as this one prints exactly these tokens, with this step and none of the others.
    """

    def printed(tokens: int) -> set[float]:
        memory = ranks("deepseek-v4-flash", 2, version="0.26.0", mtp=True, token_budget=tokens, longest=float(longest))
        pools = np.arange(gib - 0.005, gib + 0.005, 0.0005) * GIB
        return {printed_of_bytes(memory, memory.stages[0], float(size), longest) for size in pools}

    assert [one for one in (2048, 4096, 8192, 16384) if logged in printed(one)] == [step]


def test_vllm_asks_for_what_a_request_of_30000_tokens_needs():
    # https://github.com/vllm-project/vllm/issues/44376 (0.22, two GH200, the step of the Python class): 6.66 GiB, and
    # 13,528 tokens in 5.44 GiB
    memory = ranks("deepseek-v4-flash", 2, version="0.22.0", token_budget=16384)
    part = PartMemory(96 * GIB, 94.5 * GIB, 0.0, "nvlink")
    found = largest_context(memory, part, pools=terms(5.44 * GIB))[0]
    assert 13528 - 256 < found <= 13528
    sizes = [requests_that_fit(memory, part, np.array([30000.0]), pools=terms(one * GIB))[0] for one in (6.64, 6.68)]
    assert sizes[0] == 0 < sizes[1]


def test_sglang_prints_the_tokens_of_its_windows_and_states():
    """DeepSeek-V4-Pro on four GB300: 0.9 of 274.36 GiB less 205.82 of weights (log-014)."""
    memory = ranks("deepseek-v4-pro", 4, engine="sglang", version="0.5.12", longest=1048576.0)
    assert printed_of_bytes(memory, memory.stages[0], 41.1 * GIB, 1048576.0) == pytest.approx(1_868_800, rel=5e-3)


def test_states_of_every_request_that_may_run_come_off_the_pool_of_newer_sglang():
    few, many = (
        ranks("deepseek-v4-flash", 4, engine="sglang", version="0.5.15", max_requests=running) for running in (16, 512)
    )
    left = [printed_of_bytes(one, one.stages[0], 40.0 * GIB, 1048576.0) for one in (few, many)]
    # 496 rings of 128 tokens, key and score of 512 values in FP32, in 20 layers
    gone = 496 * 20 * 128 * 2 * 512 * 4
    assert left[1] / left[0] == pytest.approx(1.0 - gone / (40.0 * GIB - gone * 18 / 496), rel=0.01)


def test_vllm_refuses_a_longer_request_than_its_check_holds():
    memory = ranks("deepseek-v4-flash-0731", 2, version="0.26.0", token_budget=8192)
    part = PartMemory(96 * GIB, 95 * GIB, 0.0, "pcie")
    found = largest_context(memory, part, pools=terms(7.01 * GIB))
    assert found[0] == 121344
    starts = requests_that_fit(memory, part, np.array([121344.0, 121600.0]), pools=terms(7.01 * GIB))
    assert starts[0] >= 1 and starts[1] == 0


def test_a_smaller_step_leaves_more_to_the_longest_request():
    part = PartMemory(96 * GIB, 95 * GIB, 0.0, "pcie")
    found = [
        largest_context(ranks("deepseek-v4-flash", 2, version="0.26.0", token_budget=step), part, pools=terms(7e9))[0]
        for step in (8192, 4096, 2048)
    ]
    assert found[0] < found[1] < found[2]


def test_short_requests_use_more_blocks_than_their_tokens_say():
    memory = ranks("deepseek-v4-flash", 2, version="0.25.0", longest=1048576.0)
    part = PartMemory(96 * GIB, 95 * GIB, 0.0, "pcie")
    short, long = (kv_pool(memory, part, context=one, pools=terms(20 * GIB)) for one in (2048.0, 131072.0))
    assert short.tokens[0] < 0.4 * long.tokens[0]
    # 8 blocks of 256 tokens beside twice 3 for windows of 128, and 3 and 18 for what is not pooled
    assert short.printed[0] == long.printed[0]


@pytest.mark.parametrize("version", ["0.21.0", "0.25.0", "0.27.0", "0.29.0", None])
def test_a_block_holds_the_pages_of_every_group(version):
    memory = ranks("deepseek-v4-pro", 4, version=version, mtp=True)
    pages = tuple((int(item.count[0]), item.page) for item in memory.stages[0].pages)
    plan = block_plan(pages, load_memory_rule("vllm").paging_of(version).packing)
    layers = sum(count for count, _ in pages)
    assert sum(count for group in plan.groups for _, count in group.layers) == layers
    assert all(group.size <= plan.block for group in plan.groups)
    assert request_blocks(plan, 4096.0, 1.0) < request_blocks(plan, 8192.0, 1.0)


def test_a_plan_of_one_kind_is_one_group_in_every_packing():
    for packing in ("tuples", "slots by bytes", "slots", "widest group"):
        plan = block_plan(((10, CachePage("full", 256, 1000)),), packing)
        assert (plan.block, len(plan.groups)) == (10000.0, 1)


def test_latents_in_fp8_are_plain_values_in_sglang_on_amd():
    """GLM-5.1 on two MI355X: 37.74 GiB hold 733,696 tokens of 78 layers, 576 B and an index key of 132 B."""
    memory = ranks("glm-5.1", 2, engine="sglang", version="0.5.12", accelerator="mi355x")
    assert memory.stages[0].per_token[0] == 78 * (576 + 132)
    assert printed_of_bytes(memory, memory.stages[0], 37.74 * GIB, 202752.0) == pytest.approx(733_696, rel=1e-3)
    nvidia = ranks("glm-5.1", 2, engine="sglang", version="0.5.12", accelerator="h200-sxm")
    assert nvidia.stages[0].per_token[0] == 78 * (656 + 132)


@pytest.mark.parametrize(("version", "each"), [("0.5.4", 61 * 16 * 2 * 256 * 2), ("0.7.1", 61 * 576 * 2)])
def test_old_vllm_caches_keys_and_values_of_every_head(version, each):
    memory = ranks("deepseek-v3", 8, kv="bf16", version=version)
    assert memory.stages[0].per_token[0] == each


def test_sglang_keeps_states_of_drafted_tokens_beside_the_pool():
    """Qwen3.5-397B on four MI355X: 1,368 states of 45.8 MiB are 0.9 of 68.04 GiB of keys and values."""
    plain = ranks("qwen3.5-397b-a17b", 4, kv="bf16", engine="sglang", version="0.5.12", max_requests=16)
    room = 1.9 * 68.04 * GIB
    full, requests = split_pool(plain.stages[0], room * ONE, 8192.0 * ONE, plain.split)
    assert full[0] == pytest.approx(4_756_731, rel=1e-3)
    assert requests[0] == 1368 // 3
    drafting = ranks("qwen3.5-397b-a17b", 4, kv="bf16", mtp=True, engine="sglang", version="0.5.12", max_requests=16)
    less, _ = split_pool(drafting.stages[0], room * ONE, 8192.0 * ONE, drafting.split)
    assert less[0] == pytest.approx(full[0] * (1.0 - 16 * 2 * plain.stages[0].state[0] / room), rel=1e-3)
