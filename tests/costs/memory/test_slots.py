"""What an engine with slots makes at start: the buffer of a step, windows and states of every slot."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import model_state_bytes
from glmplan.costs.memory import MemorySettings, PartMemory, RankMemory, largest_context, rank_memory
from glmplan.costs.memory.pool import stage_pools
from glmplan.costs.points import Layout

GIB, MIB = 2.0**30, 2.0**20


def held(name: str, checkpoint: str, *, mtp: bool = False, **told: object) -> RankMemory:
    """Memory of a catalogue model on one card with the cache in FP16."""
    model = load_model(name)
    settings = MemorySettings(engine="llama.cpp", **told)
    return rank_memory(model, model.checkpoint(checkpoint), layout=Layout(), kv="f16", settings=settings, mtp=mtp)


def test_the_compute_buffer_of_llama_cpp_holds_states_and_logits_of_every_token_of_a_step_until_june_2026() -> None:
    # "CUDA0 compute buffer size = 258.50 MiB" for Llama-3-8B at --ubatch-size 512
    def buffer(version: str | None, longest: float, **told: object) -> float:
        memory = held("llama-3.1-8b", "bf16", version=version, longest=longest, **told)
        return float(memory.stages[0].activation[0]) / MIB

    assert buffer("b9193", 8192) == pytest.approx(258.5)
    # a longer slot has a wider mask, 6 B and then 2 B for each of its cells and each token of the step (pull 23764)
    assert buffer("b9193", 131072) - buffer("b9193", 98304) == pytest.approx(6 * 512 * 32768 / MIB)
    assert buffer(None, 131072) - buffer(None, 98304) == pytest.approx(2 * 512 * 32768 / MIB)
    # logits of the slots alone (pull 23861): what the widest layer holds in FP32, or the states and a row for each slot
    assert buffer(None, 256) < 258.5 / 2
    assert buffer(None, 256, max_requests=512) == pytest.approx(258.5)


def test_a_slot_of_llama_cpp_keeps_a_step_beside_its_window_and_states_in_fp32() -> None:
    def stage(name: str, weights: str, **told: object):
        memory = held(name, weights, longest=65536, **told)
        return memory.stages[0], memory

    # gpt-oss-20b, 12 + 12 layers of 2 x 8 x 64 values of FP16: src/llama-kv-cache-iswa.cpp takes 128 + 512 cells padded
    # to 768, so that a slot of 65,536 has 1,536 MiB of full and 18 MiB of window cache
    found, memory = stage("gpt-oss-20b", "mxfp4")
    assert [(float(tokens[0]), float(size[0])) for tokens, size in found.windows] == [(768, 24576)]
    assert float(found.request_bytes(65536.0)[0]) / MIB == pytest.approx(1536 + 18)
    assert float(found.request_bytes(512.0)[0]) == 512 * 2 * 24576
    card = PartMemory(30 * GIB, 30 * GIB, 0.0, "pcie")
    longest = largest_context(memory, card)[0]
    pool = stage_pools(memory, card)[0].pool
    assert longest == np.floor((pool[0] - 18 * MIB) / 24576 / 256) * 256
    # a wider step keeps more: 128 + 2,048 tokens are 2,304 cells
    found, _ = stage("gpt-oss-20b", "mxfp4", token_budget=2048)
    assert float(found.windows[0][0][0]) == 2304
    # states and windows of convolutions are FP32 (src/llama-model.cpp, create_memory), one more for each drafted token
    model = load_model("qwen3.5-27b")
    found, _ = stage("qwen3.5-27b", "bf16")
    assert float(found.state[0]) == model_state_bytes(model, conv_bytes=4.0)
    drafts, _ = stage("qwen3.5-27b", "bf16", mtp=True, draft_tokens=3)
    assert float(drafts.state[0]) == 4 * model_state_bytes(model, conv_bytes=4.0)


def test_slots_of_a_sparse_model_cache_the_keys_of_its_indexer_since_june_2026() -> None:
    # src/llama-kv-cache-dsa.cpp: one key of 128 values beside the latent of 576, both FP16, in each of 78 layers
    layer = {one: held("glm-5.1", "nvfp4", version=one).stages[0].per_token[0] / 78 for one in ("b9193", None)}
    assert layer == {"b9193": 576 * 2, None: (576 + 128) * 2}
    assert held("glm-5.1", "nvfp4", indexer=False).stages[0].per_token[0] == 78 * 576 * 2
