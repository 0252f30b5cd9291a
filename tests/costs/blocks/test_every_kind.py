"""What must hold for every kind of block: arrays equal loops, more is never cheaper, ranks hold it all."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.schema.model import (
    CompressedAttention,
    DenseFfn,
    ExpertsFfn,
    Ffn,
    GroupedQuery,
    Indexer,
    LatentAttention,
    LayerKind,
    Mixer,
    ModelSpec,
    Recurrent,
)
from glmplan.costs.blocks.kinds import feed_forward_of, mixer_of
from glmplan.costs.blocks.stack import cache_layout, uniform_checkpoint
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import SLOTS, step_work
from glmplan.errors import SpecError

H100 = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9", multiprocessors=132)
NVLINK = links_of_layout(load_machine("hgx-h100-8"), tp=8)
V4 = {"heads": 64, "head_dim": 512, "rope_dim": 64, "q_rank": 1024, "out_groups": 8, "out_rank": 1024, "window": 128}
MLA = {"heads": 64, "q_rank": 2048, "kv_rank": 512, "nope_dim": 192, "rope_dim": 64, "v_dim": 256}
STATE = {"key_heads": 16, "key_dim": 128, "value_heads": 64, "value_dim": 128}
V41 = Indexer(heads=32, head_dim=128, topk=512, from_latent=True)
MIXERS = {
    "none": None,
    "gqa": GroupedQuery(heads=64, kv_heads=8, head_dim=128),
    "window": GroupedQuery(heads=64, kv_heads=8, head_dim=64, window=128, sinks=True),
    "shared": GroupedQuery(heads=64, kv_heads=8, head_dim=128, shared_kv=True),
    "block index": GroupedQuery(heads=64, kv_heads=8, head_dim=128, indexer=Indexer(heads=4, head_dim=128, topk=2048)),
    "mla": LatentAttention(**MLA),
    "mla with a gate for each head": LatentAttention(**MLA, head_gated=True),
    "dsa": LatentAttention(**MLA, indexer=Indexer(heads=32, head_dim=128, topk=2048)),
    "v4 window": CompressedAttention(**V4),
    "v4 csa": CompressedAttention(
        **V4, ratio=4, overlapping=True, indexer=Indexer(heads=64, head_dim=128, topk=512)
    ),
    "v4 hca": CompressedAttention(**V4, ratio=128),
    "v4.1 full": CompressedAttention(**V4, ratio=2, positions=False, indexer=V41),
    "v4.1 reindex": CompressedAttention(
        **V4, ratio=1, positions=False, shared_kv=True,
        indexer=V41.model_copy(update={"shared_keys": True, "candidates": 16384}),
    ),
    "v4.1 reuse": CompressedAttention(
        **V4, ratio=1, positions=False, shared_kv=True,
        indexer=V41.model_copy(update={"shared_keys": True, "reads_from_previous": True}),
    ),
    "pooled": LatentAttention(**MLA | {"rope_dim": 0}, indexer=Indexer(heads=32, head_dim=128, topk=2048, pool=4)),
    "shared latent": LatentAttention(**MLA, shared_kv=True, scaled=True, sinks=True),
    "relative": GroupedQuery(heads=64, kv_heads=8, head_dim=128, relative=16, relative_extent=512, convolution=4),
    "gated delta": Recurrent(flavour="gated_delta", **STATE),
    "mamba": Recurrent(flavour="mamba2", **STATE),
    "kimi delta": Recurrent(flavour="kimi_delta", **STATE),
    "kimi delta with a whole gate": Recurrent(flavour="kimi_delta", full_gate=True, **STATE),
    "kimi delta with whole gates": Recurrent(flavour="kimi_delta", full_gate=True, full_decay=True, **STATE),
}  # fmt: skip
FFNS = {"dense": DenseFfn(inner=12288), "experts": ExpertsFfn(experts=64, topk=6, inner=2048, shared=1)}
EVERY = pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)


def model(mixer: Mixer | None, ffn: Ffn = FFNS["dense"]) -> ModelSpec:
    layers = {"one": LayerKind(mixer=mixer, ffn=(ffn,))}
    return ModelSpec(name="x", family="x", hidden=4096, vocabulary=32000, max_context=2**20, layers=layers,
                     stack="one*4", source="test")  # fmt: skip


def work(mixer: Mixer | None, *columns: np.ndarray | float, tp: np.ndarray | int = 1, ffn: Ffn = FFNS["dense"]):
    points = StepPoints(*np.broadcast_arrays(*(np.atleast_1d(np.asarray(one, float)) for one in columns)))
    structure = StepWork(model(mixer, ffn), uniform_checkpoint("bf16"), H100, NVLINK)
    found = step_work(structure, layout=Layout(tp=tp), points=points)
    return np.stack([found[slot] for slot in SLOTS])


def test_every_record_of_the_schema_is_tried_here():
    tried = {type(one) for one in MIXERS.values()} | {type(one) for one in FFNS.values()}
    assert tried - {type(None)} == {*get_args(get_args(Mixer)[0]), *get_args(get_args(Ffn)[0])}


@EVERY
@pytest.mark.parametrize("ffn", FFNS.values(), ids=FFNS)
def test_arrays_equal_a_loop_over_points(mixer, ffn):
    rng = np.random.default_rng(3)
    columns = (np.array([1.0, 7, 64, 0, 3]), rng.uniform(1, 1e5, 5), np.array([0.0, 0, 512, 4096, 33]),
               rng.uniform(1, 1e5, 5))  # fmt: skip
    tp = np.array([1, 2, 8, 4, 8])
    together = work(mixer, *columns, tp=tp, ffn=ffn)
    alone = [work(mixer, *(one[i] for one in columns), tp=int(tp[i]), ffn=ffn)[:, 0] for i in range(5)]
    np.testing.assert_allclose(together, np.stack(alone, axis=1), rtol=1e-12)


@EVERY
def test_a_longer_context_is_never_cheaper(mixer):
    contexts = np.geomspace(1.0, 1e6, 200)
    for columns in ((8.0, contexts, 0.0, 0.0), (0.0, 0.0, 2048.0, 1024.0 + contexts)):
        seconds = work(mixer, *columns)
        assert np.all(np.diff(seconds, axis=1) >= -1e-15)


@EVERY
def test_more_requests_and_longer_prompts_are_never_cheaper(mixer):
    count = np.arange(1.0, 400.0)
    for columns in ((count, 5000.0, 0.0, 0.0), (0.0, 0.0, count, 5000.0)):
        assert np.all(np.diff(work(mixer, *columns).sum(axis=0)) > 0)


@EVERY
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_the_ranks_of_a_group_hold_each_weight_at_least_once_and_no_rank_more_than_all(mixer, tp):
    one = np.array([float(tp)])
    for tensor in mixer_of(LayerKind(mixer=mixer)).tensors(4096):
        share = tensor.share(tp=one, ep=np.ones(1), expert_ranks=one)[0]
        assert 1.0 / tp <= share <= 1.0, tensor.name


@EVERY
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp", "mlx"])
def test_a_narrower_format_never_makes_the_cache_larger(mixer, engine):
    answers, layout = mixer_of(LayerKind(mixer=mixer)), cache_layout(engine)
    wide, narrow = (answers.cache(kv, layout) for kv in ("bf16", "fp8"))
    assert 0.0 <= narrow.per_token <= wide.per_token
    assert 0.0 <= narrow.in_window <= wide.in_window
    assert narrow.state == wide.state == answers.state_bytes(conv=layout.convolution)
    if mixer is not None and not isinstance(mixer, Recurrent):
        with pytest.raises(SpecError):
            answers.cache("fp3", cache_layout(engine))


@EVERY
def test_every_mixer_costs_time_beside_its_weights(mixer):
    decode = work(mixer, 8.0, 5000.0, 0.0, 0.0)[:, 0]
    prompt = work(mixer, 0.0, 0.0, 512.0, 5000.0)[:, 0]
    assert (decode[SLOTS.index("cache")] > 0) == (mixer is not None)
    assert (prompt[SLOTS.index("prefill_attention")] > 0) == (mixer is not None)


@EVERY
def test_people_get_words_and_walls_a_feature(mixer):
    answers = mixer_of(LayerKind(mixer=mixer))
    assert bool(answers.words) == bool(answers.name) == bool(answers.features) == (mixer is not None)


@pytest.mark.parametrize("ffn", FFNS.values(), ids=FFNS)
def test_feed_forward_blocks_visit_no_more_experts_than_they_are_told(ffn):
    block = feed_forward_of(ffn)
    fewer = feed_forward_of(block.visiting(2))
    assert (fewer.routed.topk if fewer.routed else None) == (2 if block.routed else None)
    assert sum(t.parameters for t in fewer.tensors(4096)) == sum(t.parameters for t in block.tensors(4096))
    assert feed_forward_of(block.visiting(10**6)) == block
