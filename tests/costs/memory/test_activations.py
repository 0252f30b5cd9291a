"""What one step holds at its widest layer, tensor by tensor."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, LayerKind
from glmplan.costs.blocks.stack import activation_bytes
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.points import Layout

HIDDEN, INNER, TOPK, TOKENS = 7168, 2048, 8, 4096
EXPERTS = LayerKind(mixer=None, ffn=(ExpertsFfn(experts=256, topk=TOPK, inner=INNER),))


def held(kind: LayerKind, **degrees: float) -> float:
    return float(activation_bytes((kind,), HIDDEN, tokens=float(TOKENS), **({"tp": 1, "dp": 1, "ep": 1} | degrees)))


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_experts_hold_the_routed_copies_of_the_tokens_of_all_replicas(dp):
    # BF16: hidden state and residual; each routed copy as input (or the wider gate and up) and between the two
    # products, for the tokens of every replica, because a replica's experts serve all; the sum that comes back
    copies = TOPK * dp * TOKENS * (HIDDEN + INNER)
    assert held(EXPERTS, dp=dp, ep=dp) == pytest.approx(2.0 * (2 * TOKENS * HIDDEN + copies + TOKENS * HIDDEN))


def test_replicas_of_a_dense_layer_hold_their_own_tokens_only():
    dense = LayerKind(mixer=None, ffn=(DenseFfn(inner=18432),))
    assert held(dense, dp=8) == held(dense, dp=1) == 2.0 * TOKENS * (2 * HIDDEN + 3 * 18432 + HIDDEN)


def test_tensor_parallelism_splits_what_lies_between_the_products_and_not_the_hidden_states():
    # four ranks: gate and up of a copy are 1,024 values, less than its 7,168 of input
    copies = TOPK * TOKENS * (HIDDEN + INNER / 4)
    assert held(EXPERTS, tp=4) == pytest.approx(2.0 * (2 * TOKENS * HIDDEN + copies + TOKENS * HIDDEN))


def peak(version: str, silicon: str, **changes: object) -> float:
    """Return the activation of DeepSeek-V4-Flash on two ranks [GiB]"""
    model = load_model("deepseek-v4-flash")
    told = MemorySettings(version=version, accelerator=silicon, token_budget=8192, max_requests=32, **changes)
    held = rank_memory(model, model.checkpoint("fp8"), layout=Layout(tp=2), kv="fp8", settings=told)
    return float(held.stages[0].activation[0]) / 2**30


def test_compressed_attention_pads_its_heads_and_keeps_the_streams_of_two_layers():
    # hidden states and four streams of two layers; compressor, indexer, 64 heads of query and result, output groups
    values = 2 * 5 * 4096 + (1024 + 5 * 512 + 128 * (64 + 4)) + 2 * 64 * 512 + 8 * 1024 / 2
    # index keys of 40 of the longest requests, pooled by four, and 0.5 GiB of scores; one hidden state is written over
    index, expected = 40 * 1e6 / 4 * 132, 8192 * 2 * (values - 4096) + 2**29
    assert peak("0.26.0", "h100-sxm", longest=1e6) == pytest.approx((expected + index) / 2**30, rel=1e-6)
    # compiled, the streams of one layer live at once
    assert peak("0.26.0", "h100-sxm", longest=1e6) - peak("0.22.0", "h100-sxm", longest=1e6) == pytest.approx(
        8192 * 2 * 5 * 4096 / 2**30
    )


def test_marlin_keeps_two_rows_of_each_routed_copy_where_index_keys_are_less():
    # https://github.com/vllm-project/vllm/issues/51041: 121,344 tokens, six experts of 1,024 a rank, 4,096 wide
    rows = 8192 * 6 * 2 * 4096 * 2
    assert rows > 40 * 121344 / 4 * 132
    short, long = (peak("0.26.0", "h20-96gb", longest=one) for one in (121344.0, 1e6))
    assert long - short == pytest.approx((40 * 1e6 / 4 * 132 - rows) / 2**30)
