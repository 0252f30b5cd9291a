"""Compressed attention of DeepSeek-V4: tensors by hand from the configs, caches as published, cuts.

Configs: https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash and DeepSeek-V4-Pro.
"""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.schema.model import CompressedAttention, ExpertsFfn, Indexer, LayerKind, ModelSpec
from glmplan.costs.blocks.compressed import CompressedMixer
from glmplan.costs.blocks.stack import (
    cache_layout,
    model_cache_bytes_per_token,
    model_features,
    model_parameters,
    uniform_checkpoint,
)
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import step_work
from glmplan.prediction.deployment import split_problem

GIB = 2.0**30
NVLINK = links_of_layout(load_machine("hgx-h100-8"), tp=8)
MILLION = 2**20  # the context of both models


def attention(ratio: int = 0, *, heads: int = 64, q_rank: int = 1024, groups: int = 8, topk: int = 512):
    """One layer's attention of V4-Flash; others where the arguments say so."""
    indexer = Indexer(heads=64, head_dim=128, topk=topk) if ratio == 4 else None
    return CompressedAttention(
        heads=heads, head_dim=512, rope_dim=64, q_rank=q_rank, out_groups=groups, out_rank=1024, window=128,
        ratio=ratio, overlapping=ratio == 4, indexer=indexer,
    )  # fmt: skip


def flash(**changes: object) -> ModelSpec:
    """DeepSeek-V4-Flash without its hyper-connections and its MTP layer."""
    ffn = (ExpertsFfn(experts=256, topk=6, inner=2048, shared=1, shared_inner=2048, balanced_by="bias"),)
    layers = {
        name: LayerKind(mixer=attention(ratio), ffn=ffn) for name, ratio in (("window", 0), ("csa", 4), ("hca", 128))
    }
    given = {"name": "v4", "family": "deepseek", "hidden": 4096, "vocabulary": 129280, "max_context": MILLION,
             "layers": layers, "stack": "window*2 (csa hca)*20 csa", "source": "config"}  # fmt: skip
    return ModelSpec(**(given | changes))


def weights(ratio: int) -> int:
    return sum(tensor.parameters for tensor in CompressedMixer(attention(ratio)).tensors(4096))


def test_weights_of_each_kind_of_layer_are_those_of_the_config():
    queries = 1024 * 4096 + 1024 + 32768 * 1024
    keys = 512 * 4096 + 512
    out = 8 * 1024 * (32768 // 8) + 4096 * 8192
    assert weights(0) == queries + keys + out + 64
    # keys and gates of windows of 4 overlap with the one before and are twice as wide; a bias for each place, a norm
    assert weights(4) - weights(0) == (2 * 1024 * 4096 + 4 * 1024 + 512) + (
        2 * 256 * 4096 + 4 * 256 + 128 + 64 * 128 * 1024 + 64 * 4096
    )
    assert weights(128) - weights(0) == 2 * 512 * 4096 + 128 * 512 + 512


def test_the_whole_model_has_the_parameters_that_llama_cpp_counts():
    # "model params = 284.33 B", https://github.com/ggml-org/llama.cpp/issues/22319
    # hyper-connections by hand: before attention and experts of 43 layers, 4 streams of 4,096 give (2 + 4) * 4 weights
    streams = 43 * 2 * (2 + 4) * 4 * 4 * 4096
    assert (model_parameters(flash()).total + streams) / 1e9 == pytest.approx(284.33, abs=0.01)


def test_an_entry_takes_584_bytes_and_an_index_key_132_in_vllm_in_fp8():
    # 448 values, 64 rotary ones in BF16, 7 scales padded to 8: vllm/v1/kv_cache_interface.py; vllm/models/deepseek_v4/
    # compressor.py for 128 values and one FP32 scale
    window, csa, hca = (CompressedMixer(attention(one)).cache("fp8", cache_layout("vllm")) for one in (0, 4, 128))
    assert (window.per_token, window.in_window, window.window) == (0.0, 584.0, 128)
    assert (4 * csa.per_token, csa.in_window) == (584.0 + 132.0, 584.0)
    assert (128 * hca.per_token, hca.in_window) == (584.0, 584.0)
    assert model_cache_bytes_per_token(flash(), "fp8", "vllm") == 21 * 716 / 4 + 20 * 584 / 128 + 43 * 584


def test_a_million_tokens_of_the_pro_model_take_9_62_gib_in_bf16():
    # vLLM's post of 2026-04-24 (https://vllm.ai/blog/deepseek-v4): 61 layers, 30 of ratio 4 and 31 of ratio 128
    pro = {"heads": 128, "q_rank": 1536, "groups": 16, "topk": 1024}
    csa, hca = (CompressedMixer(attention(ratio, **pro)) for ratio in (4, 128))
    values = MILLION * (30 * csa.cache_values + 31 * hca.cache_values) + 61 * 128 * 512
    assert values * 2.0 / GIB == pytest.approx(9.62, abs=0.01)


def test_compressors_keep_what_they_have_not_pooled_in_fp32():
    # vllm/models/deepseek_v4/compressor.py: 2 * coff * head_dim values for each of coff * ratio tokens, coff 2 at 4
    csa, hca = (CompressedMixer(attention(ratio)).state_bytes() for ratio in (4, 128))
    assert csa == 8 * (2 * 2 * 512) * 4 + 8 * (2 * 2 * 128) * 4
    assert hca == 128 * (2 * 512) * 4
    assert CompressedMixer(attention(0)).state_bytes() == 0


@pytest.mark.parametrize("tp", [1, 8])
def test_a_request_holds_its_window_its_states_and_a_little_for_each_token_on_every_rank(tp):
    held = rank_memory(flash(), uniform_checkpoint("fp8"), layout=Layout(tp=tp), kv="fp8",
                       settings=MemorySettings(engine="vllm"))  # fmt: skip
    state = 21 * 81_920 + 20 * 524_288
    for context in (100, 50_000, MILLION):
        expected = state + 43 * 584 * min(context, 128) + context * (21 * 716 / 4 + 20 * 584 / 128)
        assert held.stages[0].request_bytes(context)[0] == pytest.approx(expected)
    # 7.2 KiB and less for each token at 912,128 of them: https://github.com/vllm-project/vllm/issues/51041
    assert held.stages[0].request_bytes(912_128)[0] / 912_128 < 7.2 * 1024


def test_queries_read_the_entries_that_are_published():
    # https://github.com/ROCm/ATOM/issues/664: 640 (ratio 4) and 160 (ratio 128) at 4,096 tokens, 7,940 at a million
    csa, hca = (CompressedMixer(attention(ratio)) for ratio in (4, 128))
    assert csa.attended(np.array([4096.0, 1e6])).tolist() == [640.0, 640.0]
    assert hca.attended(np.array([4096.0, 1e6])).round(-1).tolist() == [160.0, 7940.0]


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_tensor_parallelism_cuts_heads_and_groups_and_repeats_what_reads_the_hidden_state(ratio):
    tp = np.array([1.0, 4.0, 8.0, 64.0])
    for tensor in CompressedMixer(attention(ratio)).tensors(4096):
        share = tensor.share(tp=tp, ep=np.ones(4), expert_ranks=tp).tolist()
        name = tensor.name.removeprefix("self_attn.")
        if name == "q_b_proj":
            assert share == [1.0, 1 / 4, 1 / 8, 1 / 64]
        elif name in ("o_a_proj", "o_b_proj"):
            assert share == [1.0, 1 / 4, 1 / 8, 1 / 8]
        else:
            assert share == [1.0] * 4


def test_engines_split_heads_and_whole_output_groups_only():
    assert [split_problem(flash(), tp, "vllm") for tp in (1, 2, 4, 8)] == [None] * 4
    assert split_problem(flash(), 3, "vllm") == "does not divide the 64 attention heads of v4"
    assert split_problem(flash(), 16, "vllm") == "does not divide the 8 output groups of v4"


def test_nobody_measured_its_kernels_so_they_take_the_rule_of_thumb():
    part = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9")
    structure = StepWork(flash(), uniform_checkpoint("fp8"), part, NVLINK)
    for kernel in ("compressed-decode", "compressed-prefill"):
        assert structure.kernel(kernel, "bf16") == structure.kernel("a kernel of nobody", "bf16")


@pytest.mark.parametrize("tp", [1, 8])
def test_every_rank_reads_all_entries_and_index_keys_no_faster_than_its_memory_gives_them(tp):
    part = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9")
    structure = StepWork(flash(), uniform_checkpoint("fp8"), part, NVLINK, kv_bytes=1.0,
                         latent_bytes=656.0)  # fmt: skip
    requests, context = 64.0, 100_000.0
    points = StepPoints(*(np.array([one]) for one in (requests, context, 0.0, 0.0)))
    taken = float(step_work(structure, layout=Layout(tp=tp), points=points)["cache"][0])
    entries = 2 * 128 + 21 * (128 + 512) + 20 * (128 + context / 128)
    scanned = 21 * context / 4
    read = requests * (584 * entries + 132 * scanned) / 3.35e12
    scored = requests * scanned * 2 * 64 * 128 / 989e12
    assert read + scored < taken < 2.0 * (read + scored)


def test_people_and_walls_have_words_for_it():
    assert model_features(flash()) == {flash().family, "csa", "moe"}
    words = [CompressedMixer(attention(ratio)).words for ratio in (0, 4)]
    assert words[0] == "compressed attention, 64 heads of 512, window 128"
    assert words[1].endswith("one entry for 4 tokens, top-512 of an indexer")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"out_groups": 7}, "out_groups 7 does not divide"),
        ({"rope_dim": 1024}, "rope_dim 1024 is larger"),
        ({"overlapping": True}, "ratio 0 compresses nothing"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong, reason):
    with pytest.raises(ValidationError, match=reason):
        CompressedAttention(**(attention(0).model_dump() | wrong))
