"""LMDeploy and ExLlamaV3: pools, files, splitting and commands as their sources say."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.formats import kv_format
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import SpecError
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.planner import fit_answer
from glmplan.present.deployment_files import deployment_files
from glmplan.request.plan import PlanRequest


def plan(model, on, **more):
    return fit_answer(PlanRequest(model, on, **more), changes=False)


def command(answer):
    return " ".join(answer.command)


def test_turbomind_takes_a_share_of_what_is_free_after_the_weights():
    full, half = (plan("llama-3.1-8b", "a100-80gb-sxm", engine="lmdeploy", memory_fraction=one) for one in (0.8, 0.4))
    assert full.holding.pool.tokens == pytest.approx(2 * half.holding.pool.tokens, rel=1e-3)
    assert plan("llama-3.1-8b", "a100-80gb-sxm", engine="lmdeploy").holding.pool.tokens == full.holding.pool.tokens
    # 6,214 blocks of 64 tokens for a model of the same cache whose image tower takes 0.6 GiB more, of which 0.8 were
    # cache: https://github.com/InternLM/lmdeploy/issues/3411
    seen = 6214 * 64 + 0.8 * 0.6 * 2**30 / 131072
    assert full.holding.pool.tokens == pytest.approx(seen, rel=0.05)


def test_the_pytorch_engine_reserves_logits_before_its_share():
    full, half = (
        plan("llama-3.1-8b", "a100-80gb-sxm", engine="lmdeploy-pytorch", memory_fraction=one) for one in (0.8, 0.4)
    )
    assert full.holding.pool.tokens == pytest.approx(2 * half.holding.pool.tokens, rel=1e-3)
    # logits of 8,192 tokens and of 384 requests twice, in 16 bit of a vocabulary of 128,256
    reserved = (8192 + 2 * 384) * 128256 * 2
    turbomind = plan("llama-3.1-8b", "a100-80gb-sxm", engine="lmdeploy").holding.pool_bytes
    assert turbomind - full.holding.pool_bytes == pytest.approx(0.8 * reserved, rel=0.01)


def test_the_pytorch_engine_caches_latents_and_index_keys_once():
    answer = plan("glm-5.1-fp8", "8xh200-sxm", engine="lmdeploy-pytorch", tp=8, mtp=0)
    # 78 layers of 576 values in BF16, and a key of 128 bytes with a scale of 4
    assert answer.ranks[0].per_token == pytest.approx(78 * (576 * 2 + 132))


def test_turbomind_keeps_every_token_of_a_layer_with_a_window():
    answer = plan("gpt-oss-120b", "h200-sxm", engine="lmdeploy", context=131072, users="1")
    # 36 layers of two times eight heads of 64 values in BF16
    held = answer.holding
    assert held.pool_bytes / held.pool.tokens == pytest.approx(36 * 2 * 8 * 64 * 2, rel=1e-3)


def test_a_quantised_cache_of_turbomind_holds_two_numbers_for_each_head():
    assert [kv_format(name).bytes * 128 for name in ("int8-head", "int4-head")] == [128 + 4, 64 + 4]
    assert "--quant-policy 8" in command(plan("qwen3-32b", "2xh100-sxm", engine="lmdeploy", kv="int8-head"))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 4}, "--tp 4"),
        ({"tp": 4, "dp": 2, "ep": 8}, "--tp 4 --dp 2 --ep 8"),
        ({"tp": 4, "dp": 2, "ep": 1}, "--tp 8 --dp 2"),
        ({"tp": 8, "dp": 1, "ep": 8}, "--tp 8 --ep 8"),
    ],
)
def test_tp_of_lmdeploy_is_that_of_attention_or_of_the_experts(layout, words):
    answer = plan("qwen3-235b-a22b-fp8", "8xh200-sxm", engine="lmdeploy", **layout)
    assert f"--backend turbomind {words} " in command(answer) + " "


def test_a_unit_listens_with_the_options_of_its_server():
    (unit,) = [
        text
        for name, text in deployment_files(plan("qwen3-32b", "2xh100-sxm", engine="lmdeploy"), "systemd").items()
        if name.endswith(".service")
    ]
    assert "--server-name 0.0.0.0 --server-port 8000" in unit


@pytest.mark.parametrize(
    ("words", "wall"),
    [
        ({"model": "glm-5.1-fp8", "on": "8xh200-sxm"}, "turbomind-lacks-the-model"),
        ({"model": "qwen3-32b-nvfp4", "on": "b200-sxm"}, "turbomind-reads-no-such-weights"),
        ({"model": "qwen3-32b", "on": "2xh200-sxm", "pp": 2}, "turbomind-has-no-stages"),
        ({"model": "qwen3-32b", "on": "mi300x"}, "turbomind-on-nvidia-only"),
        ({"model": "qwen3-8b-q4_k_m", "on": "h100-sxm"}, "gguf-files-not-read"),
    ],
)
def test_lmdeploy_is_refused_where_turbomind_cannot(words, wall):
    assert plan(engine="lmdeploy", **words).holding.terms.blocked.id == wall


@pytest.mark.parametrize(
    ("words", "wall"),
    [
        ({"model": "minimax-m2", "on": "8xh200-sxm"}, "lmdeploy-pytorch-lacks-the-model"),
        ({"model": "deepseek-v4-flash", "on": "8xh200-sxm"}, "lmdeploy-pytorch-lacks-the-model"),
        ({"model": "qwen3.5-27b", "on": "h100-sxm"}, "lmdeploy-pytorch-keeps-states-apart"),
        ({"model": "qwen3-32b-nvfp4", "on": "b200-sxm"}, "lmdeploy-pytorch-reads-no-such-weights"),
        ({"model": "qwen3-32b", "on": "2xh200-sxm", "pp": 2}, "lmdeploy-pytorch-has-no-stages"),
        ({"model": "qwen3-32b", "on": "mi300x"}, "lmdeploy-pytorch-on-other-parts"),
        ({"model": "kimi-k2.5", "on": "8xh200-sxm", "engine_version": "0.16.0"}, "lmdeploy-pytorch-kimi-since"),
        (
            {"model": "deepseek-v3", "on": "8xh200-sxm", "kv": "int8-head", "tp": 8},
            "lmdeploy-pytorch-quantises-no-latents",
        ),
        ({"model": "qwen3-8b-q4_k_m", "on": "h100-sxm"}, "gguf-files-not-read"),
    ],
)
def test_the_pytorch_engine_of_lmdeploy_is_refused_with_the_next_step(words, wall):
    blocked = plan(engine="lmdeploy-pytorch", **words).holding.terms.blocked
    assert blocked.id == wall and blocked.do


def test_exl3_files_are_planned_with_the_engine_that_reads_them():
    answer = plan("qwen3.8-27b-exl3-3.50bpw", "rtx-3090", users="1")
    assert (answer.asked.engine, answer.holding.terms.kv, answer.holding.terms.blocked) == ("exllamav3", "f16", None)
    context = answer.asked.settings.max_model_len or int(answer.holding.context_low)
    assert f"--max-seq-len {context // 1024 * 1024}" in command(answer)
    assert plan("qwen3.8-27b-exl3-3.50bpw", "rtx-3090", engine="vllm").holding.terms.blocked is not None


def test_layers_of_exllamav3_lie_on_devices_unless_tensors_are_split():
    split = plan("qwen3-32b", "2xrtx-3090", weights="exl3-4.0bpw", tp=2)
    assert "--tensor-parallel true" in command(split)
    assert "--tensor-parallel" not in command(plan("qwen3-32b", "2xrtx-3090", weights="exl3-4.0bpw", pp=2))
    with pytest.raises(SpecError):
        plan("qwen3-32b", "4xrtx-3090", weights="exl3-4.0bpw", tp=2, pp=2)


def test_a_quantised_cache_of_exllamav3_is_typed_in_bits_of_keys_and_values():
    answer = plan("qwen3-32b", "2xrtx-3090", weights="exl3-4.0bpw", kv="q8_0", mtp=0)
    assert "--cache-mode 8,8" in command(answer)


def test_files_of_other_quantisations_are_refused_by_exllamav3():
    blocked = plan("qwen3-32b-fp8", "2xrtx-3090", engine="exllamav3").holding.terms.blocked
    assert blocked.id == "exllamav3-expands-other-weights"


def test_a_typed_exl3_format_is_as_large_as_published_files():
    published = [
        (model, one) for model in map(load_model, model_names()) for one in model.checkpoints if one.form == "exl3"
    ]
    assert len(published) >= 10
    for model, one in published:
        # the word of another number of bits, so that no published file is taken
        bits = float(one.name.removeprefix("exl3-").removesuffix("bpw"))
        typed = checkpoint_for(model, f"exl3-{bits:.4f}bpw")
        assert typed is not one and typed.form == "exl3"
        assert float(checkpoint_bytes(model, typed)) == pytest.approx(float(checkpoint_bytes(model, one)), rel=0.03)


@pytest.mark.parametrize("bits", ["0.9", "8.5", "9"])
def test_exl3_files_have_one_to_eight_bits(bits):
    assert checkpoint_for(load_model("llama-3.1-8b"), "exl3-8.0bpw").default == "bpw:8.0"
    with pytest.raises(SpecError):
        checkpoint_for(load_model("llama-3.1-8b"), f"exl3-{bits}bpw")


DESKTOP = str(Path(__file__).parents[2] / "data" / "hosts" / "desktop.toml")


def test_exllamav3_counts_layers_with_experts_that_the_cpu_computes():
    answer = plan("glm-4.5-air", DESKTOP, weights="exl3-4.0bpw", users="1")
    moved = round(answer.asked.settings.host_experts * 45)
    # 45 layers with experts after a dense one, 128 experts of three matrices of 4096 x 1408 in 4 bits
    assert answer.holding.host == pytest.approx(moved * 128 * 3 * 4096 * 1408 * 4 / 8, rel=0.02)
    assert 0 < moved < 45 and f"--cpu-moe-offload-layers {moved}" in command(answer)


@pytest.mark.parametrize(
    "words",
    [{"model": "llama-3.1-70b", "weights": "exl3-6.0bpw"}, {"model": "glm-4.5-air", "weights": "exl3-4.0bpw", "tp": 2}],
)
def test_exllamav3_moves_experts_only_and_only_of_dealt_layers(words):
    answer = plan(on=DESKTOP, users="1", **words)
    assert (answer.verdict, answer.asked.settings.host_experts) == ("does_not_fit", 0.0)


def test_experts_of_exllamav3_are_not_mapped_from_the_file():
    answer = plan("deepseek-v3", DESKTOP, weights="exl3-4.0bpw", users="1")
    assert answer.holding.host_short > 0
    assert not any("drive" in reason or "pinned" in reason for reason in answer.reasons)


def exl3(model, tp, **more):
    return plan(model, f"{tp}xrtx-pro-6000-ws", weights="exl3-3.0bpw", engine="exllamav3", tp=tp, **more)


@pytest.mark.parametrize("tp", [3, 5, 6, 7])
def test_exllamav3_spreads_memory_evenly_over_degrees_that_divide_no_heads(tp):
    one, many = (exl3("llama-3.1-70b", degree).ranks[0] for degree in (1, tp))
    assert sum(many.weights.values()) == pytest.approx(sum(one.weights.values()) / tp, rel=0.001)
    assert many.per_token == pytest.approx(one.per_token / tp)


def test_latents_of_exllamav3_lie_on_one_gpu_of_each_layer():
    four, eight = (exl3("deepseek-v3.1", degree).ranks[0] for degree in (4, 8))
    assert eight.per_token == pytest.approx(four.per_token / 2)


@pytest.mark.parametrize(
    ("model", "more", "wall"),
    [
        ("deepseek-v3.1", {"engine_version": "1.4.1"}, "exllamav3-splits-no-latents"),
        ("qwen3-next-80b-a3b", {}, "exllamav3-splits-no-such-model"),
    ],
)
def test_exllamav3_is_refused_tensor_parallelism_of_architectures_without_it(model, more, wall):
    assert exl3(model, 8, **more).holding.terms.blocked.id == wall
