"""What every rank holds: published figures, and properties that any layout must have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.catalog.engines.memory import load_memory_rule, memory_engines, pipeline_layers
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, GroupedQuery, LayerKind, ModelSpec, Recurrent
from glmplan.costs.blocks.stack import checkpoint_bytes, uniform_checkpoint
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.points import Layout
from glmplan.errors import SpecError, UnknownName

GIB = 2.0**30
WIKI = "https://github.com/voipmonitor/rtx6kpro"


def held(name: str, checkpoint: str, *, kv: str = "fp8", engine: str = "vllm", mtp: bool = False, **degrees: object):
    """Memory of a catalogue model."""
    model = load_model(name)
    found = model.checkpoint(checkpoint)
    assert found is not None
    return rank_memory(model, found, layout=Layout(**degrees), kv=kv, settings=MemorySettings(engine=engine), mtp=mtp)


@pytest.mark.parametrize("checkpoint", ["nvfp4", "nvfp4-mtp"])
def test_glm_5_nvfp4_with_mtp_takes_57_gib_of_each_of_eight_cards(checkpoint: str) -> None:
    # 57.06 GiB, WIKI models/glm5.md
    memory = held("glm-5", checkpoint, kv="bf16", engine="sglang", mtp=True, tp=8)
    assert memory.weights[0] / GIB == pytest.approx(57.06, rel=0.02)


def test_glm_51_weights_equal_the_line_of_a_vllm_start_up_log() -> None:
    # "Model loading took 55.67 GiB", vLLM 0.20.2, lukealonso/GLM-5.1-NVFP4-MTP on TP8 without its MTP layer
    memory = held("glm-5.1", "nvfp4-lukealonso", tp=8)
    assert memory.weights[0] / GIB == pytest.approx(55.67, rel=0.002)


def test_weights_equal_start_up_logs_of_other_models() -> None:
    # MiniMax-M2.5 FP8 on TP4: 53.75 GiB (WIKI models/minimax-m25.md); Qwen3-235B FP8 on TP4: 55.19 GiB (start-up log)
    # Llama-3-8B BF16: 14.96 GiB on one part, 7.48 on two (https://github.com/vllm-project/vllm/pull/10511)
    assert held("minimax-m2.5", "fp8", tp=4).weights[0] / GIB == pytest.approx(53.75, rel=0.02)
    assert held("qwen3-235b-a22b", "fp8", tp=4).weights[0] / GIB == pytest.approx(55.19, rel=0.02)
    model = load_model("llama-3.1-8b").model_copy(update={"max_context": 8192})
    llama = rank_memory(model, uniform_checkpoint("bf16"), layout=Layout(tp=np.array([1, 2])), kv="bf16")
    assert (llama.weights / GIB).round(2).tolist() == [14.96, 7.48]


@pytest.mark.parametrize(
    ("engine", "kv", "mtp", "measured"),
    [
        ("sglang", "bf16", False, 29.32 * GIB / 314304),  # WIKI models/glm5.md
        ("vllm", "fp8", True, 19.12 * GIB / 329792),  # WIKI models/glm5.1/glm51-sglang-vllm-cc32-state-2026-05-03.md
        ("vllm", "fp8", True, 25.09 * GIB / 432832),  # WIKI models/glm5.1/vllm-b12x-nsa-mtp-port-2026-05-02.md
        ("vllm", "fp8", False, 19.55 * GIB / 341504),  # start-up log, vLLM 0.20.2
    ],
)
def test_a_token_of_glm_5_takes_what_running_servers_show(engine: str, kv: str, mtp: bool, measured: float) -> None:
    memory = held("glm-5.1", "nvfp4", kv=kv, engine=engine, mtp=mtp, tp=8)
    assert memory.per_token[0] == pytest.approx(measured, rel=0.001)


def test_a_token_of_minimax_on_four_cards_takes_63488_bytes() -> None:
    # 63,496 B from 23.62 GiB and 399,424 tokens, WIKI models/minimax-m25.md
    assert held("minimax-m2.5", "fp8", kv="bf16", tp=4).per_token[0] == pytest.approx(63496, rel=0.001)


def test_a_latent_cache_is_split_by_context_parallelism_only() -> None:
    memory = held("kimi-k2.5", "int4", tp=np.array([1, 8, 8]), dcp=np.array([1, 1, 8]))
    assert memory.per_token.tolist() == [35136.0, 35136.0, 4392.0]


def test_heads_are_repeated_when_tensor_parallelism_exceeds_them() -> None:
    memory = held("minimax-m2.5", "fp8", kv="bf16", tp=np.array([4, 8, 16]))
    assert memory.per_token[1] == memory.per_token[2] == memory.per_token[0] / 2


def test_layers_that_do_not_divide_spare_the_last_stage() -> None:
    assert pipeline_layers(78, 5, "middle-first") == (15, 16, 16, 16, 15)
    assert sum(pipeline_layers(61, 8, "with-output")) == 61


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(SpecError, match="is not between 1 and the 78 layers"):
        held("glm-5.1", "nvfp4", pp=79)


def test_an_engine_without_a_rule_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="nearest: vllm"):
        load_memory_rule("vlm")


def test_every_engine_has_a_rule_with_a_source() -> None:
    for engine in memory_engines():
        assert load_memory_rule(engine).source.startswith("https://")


def test_the_first_stage_holds_the_embedding_and_the_last_the_head_and_the_draft() -> None:
    memory = held("glm-5.1", "nvfp4", mtp=True, pp=3)
    first, middle, last = memory.stages
    assert first.weights["embedding"][0] > 0 and first.weights["head"][0] == 0
    assert middle.weights["embedding"][0] == middle.weights["head"][0] == middle.weights["mtp"][0] == 0
    assert last.weights["head"][0] > 0 and last.weights["mtp"][0] > 0
    assert [int(stage.layers[0]) for stage in memory.stages] == [26, 26, 27]


def test_experts_in_host_memory_leave_the_accelerator() -> None:
    on, off = (held("glm-5.1", "nvfp4", engine=engine, tp=2) for engine in ("sglang", "ktransformers"))
    assert off.weights[0] + off.stages[0].host[0] == pytest.approx(on.weights[0])
    assert off.stages[0].host[0] > 0.8 * on.weights[0]


LAYERS = {
    "full": LayerKind(mixer=GroupedQuery(heads=32, kv_heads=4, head_dim=64), ffn=(DenseFfn(inner=4096),)),
    "moe": LayerKind(
        mixer=GroupedQuery(heads=32, kv_heads=4, head_dim=64, window=1024),
        ffn=(ExpertsFfn(experts=48, topk=4, inner=512, shared=1, shared_inner=512),),
    ),
    "state": LayerKind(
        mixer=Recurrent(flavour="gated_delta", key_heads=8, key_dim=64, value_heads=16, value_dim=64),
        ffn=(DenseFfn(inner=4096),),
    ),
}
stacks = st.lists(st.sampled_from(sorted(LAYERS)), min_size=8, max_size=20).map(" ".join)


def small_model(stack: str, tied: bool) -> ModelSpec:
    """A model of 8 to 20 layers."""
    return ModelSpec(
        name="m", family="m", hidden=2048, vocabulary=50000, tied_embedding=tied, max_context=65536, layers=LAYERS,
        stack=stack, source="made up for the test",
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    stack=stacks,
    tied=st.booleans(),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 8),
    dp=st.sampled_from([1, 2]),
    experts=st.booleans(),
    weights=st.sampled_from(["bf16", "fp8", "nvfp4"]),
)
def test_all_ranks_together_hold_at_least_the_checkpoint(
    stack: str, tied: bool, tp: int, pp: int, dp: int, experts: bool, weights: str
) -> None:
    model, checkpoint = small_model(stack, tied), uniform_checkpoint(weights)
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=tp * dp if experts else 1)
    stages = rank_memory(model, checkpoint, layout=layout, kv="fp8").stages
    total = sum(stage.weight_bytes[0] for stage in stages if stage.held[0]) * tp * dp
    assert total >= checkpoint_bytes(model, checkpoint) * (1 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(stack=stacks, pp=st.integers(1, 4), kv=st.sampled_from(["bf16", "fp8"]))
def test_more_tensor_parallelism_never_holds_more_on_a_rank(stack: str, pp: int, kv: str) -> None:
    layout = Layout(tp=np.array([1, 2, 4, 8, 16]), pp=pp)
    memory = rank_memory(small_model(stack, False), uniform_checkpoint("bf16"), layout=layout, kv=kv)
    assert (np.diff(memory.weights) <= 0).all()
    assert (np.diff(memory.per_token) <= 0).all()
    for stage in memory.stages:
        assert (np.diff(stage.request_bytes(4096.0)) <= 0).all()


@settings(max_examples=20, deadline=None)
@given(
    stack=stacks,
    layouts=st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 6), st.sampled_from([1, 2]), st.sampled_from([1, 2])),
        min_size=1,
        max_size=8,
    ),
)
def test_arrays_equal_a_loop(stack: str, layouts: list[tuple[int, int, int, int]]) -> None:
    model, checkpoint = small_model(stack, False), uniform_checkpoint("fp8")
    columns = [np.array(column) for column in zip(*layouts, strict=True)]
    many = rank_memory(
        model, checkpoint, layout=Layout(tp=columns[0], pp=columns[1], dp=columns[2], dcp=columns[3]), kv="fp8"
    )
    for point, (tp, pp, dp, dcp) in enumerate(layouts):
        one = rank_memory(model, checkpoint, layout=Layout(tp=tp, pp=pp, dp=dp, dcp=dcp), kv="fp8")
        assert many.weights[point] == pytest.approx(one.weights[0])
        for stage in one.stages:
            same = many.stages[stage.index]
            assert same.request_bytes(5000.0)[point] == pytest.approx(stage.request_bytes(5000.0)[0])
            assert same.activation[point] == pytest.approx(stage.activation[0])


def test_vllm_patched_to_attend_densely_neither_holds_an_indexer_nor_caches_its_keys() -> None:
    # https://github.com/vllm-project/vllm/pull/39594 and issue 35021: is_v32 false, "indexer" weights skipped. By
    # construction, no pool of such a server is published: 78 layers of 576 values, and no 9,371,904 index weights each.
    model = load_model("glm-5.1")
    checkpoint = model.checkpoint("nvfp4-lukealonso")
    assert checkpoint is not None
    sparse, dense = (
        rank_memory(model, checkpoint, layout=Layout(tp=8), kv="fp8", settings=MemorySettings(indexer=indexer))
        for indexer in (True, False)
    )
    assert sparse.per_token[0] == 78 * (656 + 132) and dense.per_token[0] == 78 * 576
    assert (sparse.weights - dense.weights)[0] == pytest.approx(78 * 9_371_904 * 2, rel=1e-3)
    assert sparse.sparse and not dense.sparse, "cache blocks are those of an ordinary latent"


def test_leaving_the_indexer_out_changes_nothing_where_attention_is_not_latent() -> None:
    model = load_model("minimax-m3")
    checkpoint = uniform_checkpoint("bf16")
    one, other = (
        rank_memory(model, checkpoint, layout=Layout(tp=8), kv="bf16", settings=MemorySettings(indexer=indexer))
        for indexer in (True, False)
    )
    assert one.weights[0] == other.weights[0] and one.per_token[0] == other.per_token[0]
