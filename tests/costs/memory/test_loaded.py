"""What an engine makes of the files: blocks, padding, tables, tensors kept wide; each against a log or a source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.engines.memory import (
    Loading,
    load_memory_rule,
    memory_engines,
    read_loading,
    static_fraction,
    tower_factor,
)
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.memory import MemorySettings, budget_rows, kv_pool, part_memory, rank_memory
from glmplan.costs.memory.weights import allocated_bytes, expert_padding
from glmplan.costs.points import Layout
from glmplan.errors import SpecError

GIB, MIB = 2.0**30, 2.0**20
#: eight H200 under vLLM 0.22.1
SWEEP = "https://github.com/heyram74/nebius_sopertors_inferencex_benchmark"


def held(name: str, checkpoint: str, *, mtp: bool = False, settings: dict[str, object] | None = None, **degrees: int):
    """Memory of a catalogue model."""
    model = load_model(name)
    found = model.checkpoint(checkpoint)
    assert found is not None
    return rank_memory(
        model, found, layout=Layout(**degrees), kv="fp8", settings=MemorySettings(**(settings or {})), mtp=mtp
    )


def gib(*arguments: object, **named: object) -> float:
    """Weights of the fullest rank, [GiB]"""
    return float(held(*arguments, **named).weights[0] / GIB)


@given(st.floats(1.0, 4e9))
def test_a_block_is_never_smaller_than_asked_and_wastes_no_more_than_one_mebibyte(size: float) -> None:
    block, segment = (float(allocated_bytes(np.array([size]), reserved=reserved)[0]) for reserved in (False, True))
    assert size <= block <= size + MIB
    assert block <= segment <= size + 2 * MIB


@pytest.mark.parametrize(
    ("name", "tp", "logged"),
    [
        ("qwen3-32b", 1, 61.03),
        ("qwen3-32b", 2, 30.59),  # 125 MiB of each down projection take 126
        ("qwen3-0.6b", 1, 1.12),
        ("llama-3.1-8b", 1, 14.99),
    ],
)
def test_bf16_weights_equal_the_logs_of_h100_to_their_last_digit(name: str, tp: int, logged: float) -> None:
    # vLLM 0.11.0, https://github.com/llm-d-incubation/llm-d-planner docs/empirical-vllm-memory-results.md
    assert gib(name, "bf16", tp=tp) == pytest.approx(logged, abs=0.006)


def test_a_vision_tower_and_recurrent_layers_on_four_cards_equal_the_log() -> None:
    # "Model loading took 13.01 GiB", vLLM 0.19.0, Qwen3.5-27B on 4 x RTX 3090, https://github.com/leadawon/LAMBO
    assert gib("qwen3.5-27b", "bf16", tp=4) == pytest.approx(13.01, abs=0.006)


def test_the_tower_of_kimi_k25_is_cut_and_its_projector_is_not() -> None:
    # "Model loading took 139.53 GiB", vLLM 0.21.0, nvidia/Kimi-K2.5-NVFP4 on 4 x GB300
    assert gib("kimi-k2.5", "nvfp4", tp=4) == pytest.approx(139.53, rel=0.001)
    other = [float(held("kimi-k2.5", "nvfp4", tp=tp).stages[0].weights["other"][0]) / 2 for tp in (1, 4)]
    assert other[0] == 471_143_920
    assert other[1] == pytest.approx(54_277_888 + (471_143_920 - 54_277_888) / 4)


@pytest.mark.parametrize(("tp", "logged"), [(2, 34.38), (4, 17.22), (8, 8.66)])
def test_marlin_pads_the_experts_of_gpt_oss_both_ways(tp: int, logged: float) -> None:
    # server logs of SWEEP: "Using 'MARLIN' Mxfp4 MoE backend"
    marlin = {"accelerator": "h200-sxm", "version": "0.22.1", "experts_backend": "MARLIN"}
    assert gib("gpt-oss-120b", "mxfp4", tp=tp, settings=marlin) == pytest.approx(logged, rel=0.006)


def test_marlin_is_what_ampere_takes_by_itself() -> None:
    # 13.72 GiB on one A100, vLLM 0.19.0, https://myoceane.fr/index.php/ai-vllm-a100-gemma-4/
    ampere = {"accelerator": "a100-80gb-sxm", "version": "0.19.0"}
    assert gib("gpt-oss-20b", "mxfp4", settings=ampere) == pytest.approx(13.72, rel=0.003)


def test_the_kernel_of_experts_follows_version_part_and_what_is_asked() -> None:
    loading = load_memory_rule("vllm").loading

    def kernel(silicon: str, version: str | None = None, backend: str | None = None) -> str | None:
        found = loading.kernel("mxfp4", version=version, silicon=silicon, backend=backend, model="gpt-oss-20b")
        return found and f"{found.backend} {found.inner} {found.hidden}"

    assert kernel("9.0", "0.11.0") == "triton 64 256"
    assert kernel("9.0", "0.25.1") == "triton 64 32"
    assert kernel("9.0", "0.22.1", "MARLIN") == "marlin 128 256"
    assert kernel("10.3") == "flashinfer_trtllm 256 256"
    assert kernel("gfx950") == "ck 256 256"
    assert kernel("12.0") == kernel("8.0") == "marlin 128 256"
    assert kernel("12.0", backend="b12x") is None
    assert loading.kernel("fp8", version=None, silicon="9.0", backend=None, model="gpt-oss-20b") is None
    # layouts of Hopper are not those of other parts, whatever the launch asks for
    assert kernel("9.0", "0.11.0", "triton") == "triton 64 256"
    assert kernel("10.0", "0.11.0", "triton") == kernel("10.0", backend="triton") == "triton 64 32"
    assert kernel("9.0", backend="flashinfer_trtllm") is None


@pytest.mark.parametrize("part", ["h200-sxm", "b200-sxm", "rtx-pro-6000-server"])
def test_flashinfer_holds_the_mxfp4_experts_of_deepseek_v4_in_the_widths_of_the_files(part: str) -> None:
    # sglang 0.5.15: mxfp4_flashinfer_trtllm_moe.py and mxfp4_flashinfer_cutlass_moe.py (create_weights) allocate
    # 3072 / 8 = 384 of each expert's inner width; eight H200 served it with 0.88 of their memory (run b11b-398541dc1a)
    named = {"engine": "sglang", "version": "0.5.15", "accelerator": part, "experts_backend": "flashinfer_mxfp4"}
    found = float(held("deepseek-v4-pro", "fp8", tp=8, settings=named).stages[0].weights["routed_experts"][0])
    assert found == pytest.approx(61 * 384 * 3 * 7168 * 384 * 17 / 32, rel=1e-3)  # 4 bits, and 8 for each 32 weights
    loading = load_memory_rule("sglang").loading
    assert loading.kernel("mxfp4", version="0.5.15", silicon="10.0", backend=None, model="gpt-oss-20b").inner == 256


def test_flashinfer_pads_gpt_oss_in_sglang_on_blackwell_alone() -> None:
    # mxfp4.py (Mxfp4MoEMethod.create_weights): round_up(…, 256) under _is_sm100_supported
    def kernel(part: str) -> tuple[int, int] | None:
        settings = MemorySettings(engine="sglang", accelerator=part, experts_backend="flashinfer_mxfp4")
        found = settings.expert_kernel("mxfp4", "gpt-oss-120b")
        return found and (found.inner, found.hidden)

    assert (kernel("b200-sxm"), kernel("h200-sxm"), kernel("rtx-pro-6000-server")) == ((256, 256), None, None)


def test_a_router_kept_in_fp32_takes_twice_the_memory() -> None:
    # 125.29 GiB, vLLM 0.21.0, nvidia/MiniMax-M2.5-NVFP4 on one GB300
    one = held("minimax-m2.5", "nvfp4")
    assert one.weights[0] / GIB == pytest.approx(125.29, abs=0.01)
    assert one.stages[0].weights["router"][0] == 62 * 256 * 3072 * 4


def test_the_layer_that_drafts_is_loaded_only_when_drafting_and_as_its_files_hold_it() -> None:
    none, wide, narrow = (
        held("glm-5.1", name, tp=8, mtp=mtp)
        for name, mtp in (("nvfp4-mtp", False), ("nvfp4", True), ("nvfp4-mtp", True))
    )
    assert "mtp" not in none.stages[0].weights
    # 0.95 GiB a card on eight instead of 2.48, with 0.004 of its own second copy of the up-projections apart
    assert wide.stages[0].weights["mtp"][0] / GIB == pytest.approx(2.48, abs=0.01)
    assert narrow.stages[0].weights["mtp"][0] / GIB == pytest.approx(0.87, abs=0.1)


def test_kimi_k26_int4_takes_71_gib_of_each_of_eight_cards() -> None:
    # 70.9 GiB, https://github.com/voipmonitor/rtx6kpro models/kimi-k26.md; the head is loaded only when drafting
    plain, drafting = (gib("kimi-k2.6", "int4", tp=8, mtp=mtp) for mtp in (False, True))
    assert plain == pytest.approx(70.9, rel=0.006)
    assert 0.5 < drafting - plain < 3.0


def test_glm_51_fp8_takes_the_size_of_its_sister() -> None:
    # GLM-5.2-FP8, the same layout with fewer indexers: 755 GB, https://phala.com/posts/glm-5-2-1m-context-8xh200
    model = load_model("glm-5.1")
    fp8 = model.checkpoint("fp8")
    assert fp8 is not None and fp8.bytes_published is None
    assert checkpoint_bytes(model, fp8) == pytest.approx(755e9, rel=0.003)


def test_decode_context_parallelism_divides_the_cache_and_nothing_else() -> None:
    model = load_model("glm-5.1")
    stored = model.checkpoint("nvfp4-mtp")
    assert stored is not None
    memory = rank_memory(
        model, stored, layout=Layout(tp=np.array([8, 8, 8]), dcp=np.array([1, 2, 8])), kv="fp8", mtp=True
    )
    stage = memory.stages[0]
    # the cache of the layer that drafts is divided too: 62,252 B are those of 79 layers
    assert (stage.per_token * np.array([1, 2, 8])).tolist() == [62252.0] * 3
    for value in (*stage.weights.values(), stage.activation, stage.state):
        assert len(set(np.atleast_1d(value).tolist())) == 1


@pytest.mark.parametrize("engine", memory_engines())
@pytest.mark.parametrize("part", ["ryzen-ai-max-395", "m3-ultra", "h100-sxm"])
def test_no_launch_that_fits_adds_up_to_more_than_the_memory(engine: str, part: str) -> None:
    accelerator = load_accelerator(part)
    memory = held("gpt-oss-20b", "mxfp4", settings={"engine": engine, "accelerator": part})
    seen = part_memory(accelerator)
    assert kv_pool(memory, seen).fits.all()
    for row in budget_rows(memory, seen):
        assert row.total <= row.capacity
        assert (row.graphs > 0) == load_memory_rule(engine).captures_graphs


def test_metal_lets_programs_wire_three_quarters_of_the_memory_of_an_m3_ultra() -> None:
    # 73,728 MiB of 96 GiB on an M2 Max: https://github.com/ggml-org/llama.cpp/issues/3213
    part = load_accelerator("m3-ultra")
    assert part.need("memory") == 512 * GIB
    seen = part_memory(part)
    assert seen.total == 384 * GIB
    for engine in ("llama.cpp", "mlx"):
        memory = held("gpt-oss-120b", "mxfp4", settings={"engine": engine, "accelerator": "m3-ultra"})
        assert kv_pool(memory, seen).bytes[0] < 384 * GIB - memory.weights[0]


def test_sglang_leaves_more_for_a_vision_tower_and_for_attention_in_replicas() -> None:
    rule = load_memory_rule("sglang").fraction_rule
    assert rule is not None
    # mem_fraction_static=0.82695, Kimi-K2.5 on 4 x GB300 with graphs to 128 requests and chunks of 16,384 tokens
    known = {"memory": 277.5 * GIB, "token_budget": 16384, "draft": False}
    one = static_fraction(rule, accelerators=4, graph_requests=128, **known)
    assert float(one) * tower_factor(rule, 27, 1152) == pytest.approx(0.82695, abs=1e-5)
    # server_args.py: graphs x replicas x 3 MiB, and 1.5 more above 300 requests
    many, few = (static_fraction(rule, accelerators=8, graph_requests=512, replicas=n, **known) for n in (8, 1))
    assert (float(few) - float(many)) * 277.5 * 1024 == pytest.approx(512 * 8 * 4.5, rel=0.03)


def test_a_mistake_in_the_section_of_loading_is_named() -> None:
    with pytest.raises(SpecError, match="here.toml.*widths"):
        read_loading({"widths": 3}, file="here.toml")
    with pytest.raises(SpecError, match="mxfp5"):
        wrong = {"backend": "a", "formats": ["mxfp5"], "inner": 1, "hidden": 1, "source": "test"}
        read_loading({"expert_kernels": [wrong]}, file="here.toml")
    assert read_loading(None, file="here.toml") == Loading()


@pytest.mark.parametrize(
    ("engine", "part", "backend", "known"),
    [
        ("vllm", "h100-sxm", None, True),
        ("vllm", None, None, False),
        ("vllm", "h100-sxm", "emulation", False),
        ("sglang", "b200-sxm", None, True),
        ("sglang", "h100-sxm", None, False),
        ("trtllm", "b200-sxm", None, True),
        ("trtllm", None, None, False),
        ("llama.cpp", "h100-sxm", None, True),
    ],
)
def test_weights_span_every_padding_where_no_source_says_which_kernel_runs(engine, part, backend, known):
    model = load_model("gpt-oss-120b")
    settings = MemorySettings(engine=engine, accelerator=part, experts_backend=backend)
    memory = rank_memory(model, model.checkpoint("mxfp4"), layout=Layout(tp=2), kv="bf16", settings=settings)
    assert (memory.smaller == memory.larger == 0.0) is known
    if not known:
        # Marlin on two ranks: 1440 to 1536 and 2880 to 3072, of experts that are 94 % of the weights
        held = float(memory.weights[0])
        bare = MemorySettings(engine="llama.cpp")
        stored = rank_memory(model, model.checkpoint("mxfp4"), layout=Layout(tp=2), kv="bf16", settings=bare)
        widest = float(stored.weights[0]) * (1 + 0.93 * (1536 * 3072 / (1440 * 2880) - 1))
        assert held * (1 + memory.larger) >= widest
        assert held * (1 - memory.smaller) <= float(stored.weights[0]) * 1.01


def test_scales_of_experts_are_held_twice_where_a_source_says_so():
    # 48 layers of 512 experts, gate, up and down, one FP8 value for 16 weights, on two ranks: 3.5 GiB in issue 38073 of
    # SGLang; here Kimi-K2.5: 60 layers of 384 experts of 3 x 7168 x 2048 weights on eight
    model = load_model("kimi-k2.5")

    def weights(part: str, version: str | None):
        told = MemorySettings(engine="sglang", version=version, accelerator=part)
        return rank_memory(model, model.checkpoint("nvfp4"), layout=Layout(tp=8), kv="bf16", settings=told)

    copy = 60 * 384 * 3 * 7168 * 2048 / 16 / 8
    one, twice = weights("b200-sxm", None), weights("h200-sxm", None)
    assert float(twice.weights[0] - one.weights[0]) == pytest.approx(copy, rel=0.04)  # whole blocks of the allocator
    assert one.larger == 0.0
    # compute capability 12: some builds of January 2026 kept 5.5 of 7.4 GiB, newer ones free the copy
    old, new = weights("rtx-pro-6000-server", "0.5.8"), weights("rtx-pro-6000-server", "0.5.12")
    assert old.weights[0] == new.weights[0] == one.weights[0] and new.larger == 0.0
    assert 5.5 * 2**30 < old.larger * float(old.weights[0]) < 1.01 * copy


@pytest.mark.parametrize(
    ("version", "part", "up", "down"),
    [
        # 2880 each way, inner and hidden padded to 128: 2944 x 2944
        ("1.1.0rc3", "dgx-spark", 2944 * 2944, 2944 * 2944),
        ("1.2.1", "h100-sxm", 2944 * 2944, 2944 * 2944),
        # what goes in is padded to 512, what comes out to 128
        ("1.3.0rc20", "b200-sxm", 2944 * 3072, 2944 * 2944),
        # what goes in is padded to 128, what comes out to 256
        ("1.3.0rc20", "h100-sxm", 2944 * 2944, 2944 * 3072),
    ],
)
def test_tensorrt_llm_pads_experts_in_mxfp4_by_the_kernel_of_the_part_and_the_version(version, part, up, down):
    settings = MemorySettings(engine="trtllm", version=version, accelerator=part)
    kernel = settings.expert_kernel("mxfp4", "gpt-oss-120b")
    found = {
        tensor.splits_input: float(np.max(expert_padding(tensor, kernel, np.ones(1))))
        for tensor in (
            Tensor("mlp.experts.gate_up_proj", "routed_experts", 5760, 2880, 128, "experts"),
            Tensor("mlp.experts.down_proj", "routed_experts", 2880, 2880, 128, "experts", splits_input=True),
        )
    }
    assert (found[False], found[True]) == (pytest.approx(up / 2880**2), pytest.approx(down / 2880**2))


def test_weights_of_gpt_oss_in_tensorrt_llm_are_those_that_its_log_counts():
    # "Use 63.32 GB for model weights." of 1.1.0rc3 on a DGX Spark under CUTLASS, GiB written as GB (model_loader.py)
    model = load_model("gpt-oss-120b")
    settings = MemorySettings(engine="trtllm", version="1.1.0rc3", accelerator="dgx-spark")
    memory = rank_memory(model, model.checkpoint("mxfp4"), layout=Layout(), kv="bf16", settings=settings)
    assert float(memory.weights[0]) / 2**30 == pytest.approx(63.32, abs=0.01)


@pytest.mark.parametrize(
    ("name", "tp", "mtp", "logged"),
    [
        # start-up-logs.csv, log-013 and log-017; https://github.com/vllm-project/vllm/pull/41834 (two ranks, MTP)
        ("deepseek-v4-pro", 4, False, 201.46),
        ("deepseek-v4-flash", 2, True, 75.79),
    ],
)
def test_weights_of_deepseek_v4_are_those_of_the_logs(name: str, tp: int, mtp: bool, logged: float) -> None:
    stage = held(name, "fp8", mtp=mtp, settings={"version": "0.22.0", "accelerator": "gb300"}, tp=tp).stages[0]
    assert float(stage.weight_bytes[0]) / GIB == pytest.approx(logged, rel=0.0065)
    # buffer of the residual streams of 8,192 tokens, made before the log counts the weights
    assert float(stage.weights["other"][0]) == 8192 * 4 * load_model(name).hidden * 2


@pytest.mark.parametrize("tp", [1, 8])
def test_the_fold_of_residual_streams_has_a_row_for_each_stream_and_none_for_each_token(tp: int) -> None:
    stage = held("deepseek-v4-flash", "fp8", settings={"version": "0.26.0"}, tp=tp).stages[0]
    # 43 layers of two mixes of 24 rows over 16,384 values in FP32, and four rows of the fold, on every rank
    assert float(stage.weights["streams"][0]) == (43 * 2 * 24 + 4) * 16384 * 4


def test_the_files_of_deepseek_v4_flash_are_as_large_as_logged() -> None:
    # https://github.com/vllm-project/vllm/issues/40802: 148.66 GiB; hash tables are 8 B an entry there
    stage = held("deepseek-v4-flash", "fp8", mtp=True, settings={"version": "0.26.0"}).stages[0]
    made = sum(float(stage.weights.get(one, [0.0])[0]) for one in ("other", "rotary", "rounding"))
    tables = 3 * 129280 * 6 * (8 - 2)
    assert (float(stage.weight_bytes[0]) - made + tables) / GIB == pytest.approx(148.66, rel=5e-4)
