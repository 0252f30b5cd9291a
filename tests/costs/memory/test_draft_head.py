"""What a head that drafts and is published apart takes on a card: its weights, and the states that the trial holds."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import mtp_tensors
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.points import Layout

GIB = 2.0**30


def test_pools_with_and_without_the_head_of_kimi_tell_the_same_bytes_at_every_context_parallel_degree() -> None:
    # tokens that vLLM prints on eight RTX PRO 6000 (95.59 - 0.62 GiB addressable), fraction 0.94 and 0.90:
    # https://github.com/local-inference-lab/rtx6kpro/blob/e2c2b95/models/kimi-k26-v2.md; the head's layer keeps 576 B
    # a token like each of the 61, dealt over the ranks like theirs
    with_head = {1: (442_192, 0.94), 4: (1_311_936, 0.90), 8: (2_623_872, 0.90)}
    without = {1: 491_200, 4: 1_964_992, 8: 3_929_600}
    taken = [
        (without[dcp] * 61 - tokens * 62) * 576 / dcp / GIB - (0.94 - fraction) * 94.97
        for dcp, (tokens, fraction) in with_head.items()
    ]
    assert taken == pytest.approx([1.367] * 3, abs=0.003)
    model = load_model("kimi-k2.6")

    def held(drafts: bool, tokens: int = 8192):
        settings = MemorySettings(version="0.20.0", longest=262144, token_budget=tokens, max_requests=128)
        checkpoint = model.checkpoint("int4")
        found = rank_memory(model, checkpoint, layout=Layout(tp=8), kv="fp8", settings=settings, mtp=drafts)
        return found.stages[0]

    head, bare = held(True), held(False)
    states = head.activation[0] - bare.activation[0]
    assert states == 3 * 7168 * 2 * 8192
    assert head.per_token[0] / bare.per_token[0] == pytest.approx(62 / 61)
    # layer, projection, output head, the embedding of its own that 0.12 and later keep, and the states: within 0.04 %
    # of the 74 GiB that a card holds
    assert taken[0] == pytest.approx((head.weights["mtp"][0] + states) / GIB, abs=0.05)
    assert np.isclose(held(True, 4096).activation[0] - held(False, 4096).activation[0], states / 2)


@pytest.mark.parametrize(
    ("engine", "version", "model", "copies"),
    [("vllm", "0.20.0", "kimi-k2.6", 2), ("vllm", "0.11.0", "kimi-k2.6", 1), ("sglang", None, "kimi-k2.6", 1),
     ("vllm", "0.20.0", "kimi-k2.5", 1)],
)  # fmt: skip
def test_an_embedding_that_is_not_the_models_stays_where_engines_compare_them(engine, version, model, copies) -> None:
    spec = load_model(model)
    layer = sum(one.parameters for one in mtp_tensors(spec)) + 2 * 64 * 128 * 512  # the absorbed copies
    settings = MemorySettings(engine=engine, version=version, longest=8192)
    found = rank_memory(spec, spec.checkpoint("int4"), layout=Layout(tp=1), kv="fp8", settings=settings, mtp=True)
    assert found.stages[0].weights["mtp"][0] == pytest.approx(2 * (layer + copies * 163840 * 7168), rel=0.01)
