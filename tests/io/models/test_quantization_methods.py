"""Quantisation methods of further tools: bits of weights by hand, and sizes of published files."""

from __future__ import annotations

import pytest

from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import SpecError
from glmplan.io.models.hf_config import model_from_config
from tests.io.models.families import fields

#: Llama-3.1-70B: 68.45 B weights in layers, 1.05 B each in embedding and head
LLAMA = fields("llama", (8192, 80, 64, 8, 28672, 128256), tie_word_embeddings=False)
LAYERS, VOCABULARY = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672), 8192 * 128256


def checkpoint(quantization, shapes=LLAMA, **more):
    return model_from_config({**shapes, "quantization_config": quantization, **more}, name="quantised")


def gigabytes(bits, head=16.0, embedding=16.0):
    return (LAYERS * bits + VOCABULARY * (head + embedding)) / 8e9


@pytest.mark.parametrize(
    ("quantization", "name", "size"),
    [
        # unsloth's Meta-Llama-3.1-70B-bnb-4bit: 39.5 GB
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "bnb-4bit",
         gigabytes(4 + 8 / 64 + 32 / 64 / 256)),
        ({"load_in_4bit": True}, "bnb-4bit", gigabytes(4.5)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-8bit", gigabytes(8)),
        # mlx-community/Meta-Llama-3.1-70B-Instruct-4bit: 39.7 GB, embedding and head too
        ({"group_size": 64, "bits": 4}, "mlx-4bit", gigabytes(4.5, 4.5, 4.5)),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, "mlx-mxfp4", gigabytes(4.25, 4.25, 4.25)),
        ({"quant_method": "exl3", "bits": 3.0, "head_bits": 6}, "exl3-3.0bpw", gigabytes(3, 6)),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "hqq-4bit",
         gigabytes(4.5)),
        ({"quant_method": "aqlm", "in_group_size": 8, "nbits_per_codebook": 16, "num_codebooks": 1}, "aqlm",
         gigabytes(2)),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig",
                                                                "_data": {"group_size": 128}}}}, "torchao-int4",
         gigabytes(4.25)),
        ({"quant_method": "quark", "exclude": ["lm_head"],
          "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}}, "mxfp4",
         gigabytes(4.25)),
        ({"quant_method": "quark", "exclude": ["lm_head"],
          "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}}, "fp8", gigabytes(8)),
        ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, "fp8", gigabytes(8)),
        ({"quant_method": "intel/auto-round", "bits": 4, "group_size": 128}, "bpw:4.15625", gigabytes(4.15625)),
    ],
)  # fmt: skip
def test_a_method_has_the_bits_of_its_weights(quantization, name, size):
    model = checkpoint(quantization)
    assert model.checkpoints[0].name == name
    assert checkpoint_bytes(model, model.checkpoints[0]) / 1e9 == pytest.approx(size, rel=1e-3)  # norms and rounding


def test_the_settings_of_mlx_stand_beside_the_config():
    model = model_from_config({**LLAMA, "quantization": {"group_size": 64, "bits": 8}}, name="mlx")
    assert (model.checkpoints[0].name, model.checkpoints[0].form) == ("mlx-8bit", "mlx")


def formats(quantization, **more):
    one = checkpoint(quantization, **more).checkpoints[0]
    return {"default": one.default, **one.formats}


def test_modules_have_bits_of_their_own():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert formats(gptq | {"dynamic": {r"-:.*self_attn.*": {}}})["attention"] == "bf16"
    assert formats(gptq | {"dynamic": {r"+:.*down_proj": {"bits": 8}}})["mlp.down_proj"].startswith("bpw:8")
    assert formats(gptq | {"lm_head": True})["head"] == "gptq-int4"
    apart = {"extra_config": {f"model.layers.{layer}.self_attn.o_proj": {"bits": 16} for layer in range(80)}}
    assert formats(gptq | {"quant_method": "auto-round"} | apart)["self_attn.o_proj"] == "bf16"
    mlx = {"group_size": 64, "bits": 4, "lm_head": False, "model.embed_tokens": {"group_size": 64, "bits": 6}}
    assert (formats(mlx)["embedding"], formats(mlx)["head"]) == ("bpw:6.5", "bf16")


def test_block_fp8_may_have_experts_of_four_bits():
    shapes = fields("deepseek_v3", (7168, 4, 128, 128, 18432, 129280), kv_lora_rank=512, q_lora_rank=1536,
                    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=2048,
                    n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                    first_k_dense_replace=1)  # fmt: skip
    found = formats({"quant_method": "w4afp8"}, shapes=shapes)
    assert (found["routed_experts"], found["attention"]) == ("w4afp8", "fp8-block")


def test_an_unknown_method_says_what_can_be_given_instead():
    with pytest.raises(SpecError, match="--weights takes its bits"):
        checkpoint({"quant_method": "vptq"})


@pytest.mark.parametrize(
    "broken",
    [
        {"quant_method": "hqq", "quant_config": 3.5},
        {"quant_method": "aqlm", "in_group_size": 0},
        {"quant_method": "quark", "layer_quant_config": [1]},
        {"quant_method": "torchao", "quant_type": {"default": 3.5}},
        {"quant_method": "fp_quant", "forward_dtype": "x"},
        {"quant_method": "exl3"},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": True},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": 3.5, "weights": {}}}},
    ],
)
def test_a_broken_config_is_refused_with_a_message(broken):
    with pytest.raises(SpecError):
        checkpoint(broken)


def test_positions_of_another_kind_are_no_error():
    assert not checkpoint({"quant_method": "fp8"}, rope_scaling=True).multimodal_positions
