"""Attention reads its cache no faster than memory allows, and an indexer scores every key: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import uniform_checkpoint
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import step_work

BANDWIDTH, RATE = 3.35e12, 989e12
H100 = Part("h100-sxm", bandwidth=BANDWIDTH, peaks={"bf16": RATE, "fp8": 2 * RATE}, family="9")
NVLINK = links_of_layout(load_machine("hgx-h100-8"), tp=8)


def seconds(what: StepWork, slot: str, *, tp=1, requests=0.0, context=0.0, prompt=0.0, keys=0.0) -> float:
    points = StepPoints(*(np.array([one]) for one in (requests, context, prompt, keys)))
    return float(step_work(what, layout=Layout(tp=tp), points=points)[slot][0])


@pytest.mark.parametrize("tp", [1, 2, 8, 16, 32])
def test_no_rank_reads_keys_and_values_faster_than_its_memory_gives_them(tp):
    what = StepWork(load_model("llama-3.1-70b"), uniform_checkpoint("bf16"), H100, NVLINK)
    # 80 layers, 8 KV heads of 128: a rank holds at least one head, of which 16 and 32 ranks have copies
    heads = max(8 / tp, 1.0)
    read = 80 * 64 * 20_000 * heads * 2 * 128 * 2.0
    taken = seconds(what, "cache", tp=tp, requests=64.0, context=20_000.0)
    assert read / BANDWIDTH < taken < 2.0 * read / BANDWIDTH


def test_ranks_beyond_the_kv_heads_hold_copies_and_read_them_all():
    what = StepWork(load_model("llama-3.1-70b"), uniform_checkpoint("bf16"), H100, NVLINK)
    eight, sixteen = (seconds(what, "cache", tp=tp, requests=64.0, context=20_000.0) for tp in (8, 16))
    assert sixteen == pytest.approx(eight, rel=0.1)


@pytest.mark.parametrize("tp", [1, 8])
def test_an_indexer_scores_every_earlier_key_on_every_rank(tp):
    """DeepSeek-V3.2 (DSA): 61 layers, 64 index heads of 128 that no rank shares out, 132 B of index key a token.

    From 50,000 to 100,000 keys attention still reads the 2,048 that were chosen; the index alone grows.
    """
    what = StepWork(load_model("deepseek-v3.2"), uniform_checkpoint("fp8-block"), H100, NVLINK, sparse=True)
    more, scoring = 50_000.0, 2.0 * 64 * 128
    one, other = (seconds(what, "cache", tp=tp, requests=8.0, context=keys) for keys in (more, 2 * more))
    assert other - one == pytest.approx(61 * 8 * more * (132 / BANDWIDTH + scoring / RATE), rel=1e-3)
    one, other = (seconds(what, "prefill_attention", tp=tp, prompt=4096.0, keys=keys) for keys in (more, 2 * more))
    assert other - one == pytest.approx(61 * 4096 * more * scoring / RATE, rel=1e-3)


def test_dense_attention_of_the_same_model_scores_nothing():
    sparse, dense = (
        StepWork(load_model("deepseek-v3.2"), uniform_checkpoint("fp8-block"), H100, NVLINK, sparse=on)
        for on in (True, False)
    )
    # below the 2,048 keys that sparse attention takes, all that differs is the index
    with_index, without = (seconds(one, "cache", requests=8.0, context=1000.0) for one in (sparse, dense))
    assert with_index - without == pytest.approx(61 * 8 * 1000.0 * (132 / BANDWIDTH + 2.0 * 64 * 128 / RATE), rel=1e-3)
