"""GGUF files of described architectures give the layers of the same model's config."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.costs.blocks.stack import checkpoint_bytes, model_parameters
from glmplan.errors import UnknownArchitecture
from glmplan.io.models.gguf import _ARCHITECTURES, _REFUSED, read_gguf_model
from glmplan.io.models.gguf_architectures import DESCRIBED
from glmplan.io.models.hf_config import READERS, model_from_config
from tests.io.models.families import fields

_UNTIED = {"tie_word_embeddings": False}
_TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
_SWITCHES = [kind == "sliding_attention" for kind in _TYPES]


def small(model_type, kv=2, **more):
    """A config of 4 layers."""
    return fields(model_type, (64, 4, 8, kv, 128, 512), **more)


def keys(**more):
    """What llama.cpp's converters write of such a model."""
    return {
        "block_count": 4, "context_length": 131072, "embedding_length": 64, "feed_forward_length": 128,
        "attention.head_count": 8, "attention.head_count_kv": 2, "vocab_size": 512,
    } | {name.replace("__", "."): value for name, value in more.items()}  # fmt: skip


_QWEN = {
    "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_num_value_heads": 4, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "head_dim": 16,
}  # fmt: skip
_QWEN_KEYS = {
    "ssm__group_count": 2, "ssm__state_size": 16, "ssm__time_step_rank": 4, "ssm__inner_size": 64,
    "ssm__conv_kernel": 4, "full_attention_interval": 4, "attention__key_length": 16, "attention__value_length": 16,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}
_SSM = {
    "ssm__time_step_rank": 8, "ssm__inner_size": 128, "ssm__state_size": 16, "ssm__group_count": 1,
    "ssm__conv_kernel": 4,
}  # fmt: skip
_NEMOTRON = {
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "conv_kernel": 4, **_UNTIED,
}  # fmt: skip
_MOE = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_SHORT = {"max_position_embeddings": 64}
_MOE_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}

#: architecture → config, metadata, tensors that the reader looks for
SAME = {
    "phi3": (small("phi3", sliding_window=64, **_UNTIED), keys(attention__sliding_window=64), ["output.weight"]),
    "cohere2": (small("cohere2", sliding_window=64, head_dim=8),
                keys(attention__sliding_window=64, attention__key_length=8), []),
    "command-r": (small("cohere", use_qk_norm=True), keys(), ["blk.0.attn_q_norm.weight"]),
    "glm4": (small("glm4", attention_bias=True, **_UNTIED), keys(), ["output.weight", "blk.0.attn_q.bias"]),
    "chatglm": (small("glm", attention_bias=True, **_UNTIED), keys(), ["output.weight", "blk.0.attn_qkv.bias"]),
    "olmoe": (small("olmoe", num_experts=4, num_experts_per_tok=2, **_UNTIED),
              keys(expert_count=4, expert_used_count=2), ["output.weight"]),
    "dots1": (small("dots1", n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, **_MOE, **_UNTIED),
              keys(expert_shared_count=1, leading_dense_block_count=1, **_MOE_KEYS), ["output.weight"]),
    "dbrx": (small("dbrx", moe_num_experts=4, moe_top_k=2, **_UNTIED), keys(expert_count=4, expert_used_count=2),
             ["output.weight"]),
    "hunyuan-moe": (
        small("hunyuan_v1_moe", num_experts=4, moe_topk=2, num_shared_expert=1, moe_intermediate_size=32,
              tie_word_embeddings=True),
        keys(expert_shared_count=1, expert_shared_feed_forward_length=32, **_MOE_KEYS), []),
    "qwen2moe": (
        small("qwen2_moe", num_experts=4, shared_expert_intermediate_size=64, **_MOE, **_UNTIED),
        keys(expert_shared_feed_forward_length=64, **_MOE_KEYS), ["output.weight"]),
    "bailingmoe2": (
        small("bailing_moe_v2", num_experts=4, num_shared_experts=1, first_k_dense_replace=1, use_qk_norm=True,
              moe_router_enable_expert_bias=True, **_MOE, **_UNTIED),
        keys(expert_shared_count=1, leading_dense_block_count=1, **_MOE_KEYS),
        ["output.weight", "blk.1.attn_q_norm.weight", "blk.1.exp_probs_b.bias"]),
    "ernie4_5-moe": (
        small("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_intermediate_size=32,
              moe_layer_start_index=1, **_UNTIED),
        keys(expert_shared_count=1, leading_dense_block_count=1, interleave_moe_layer_step=1, **_MOE_KEYS),
        ["output.weight"]),
    "llama4": (
        small("llama4_text", num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
              attention_chunk_size=8192, **_UNTIED) | {"intermediate_size": 32, "intermediate_size_mlp": 128},
        keys(expert_count=4, expert_used_count=1, expert_feed_forward_length=32, interleave_moe_layer_step=2),
        ["output.weight"]),
    "qwen35": (
        small("qwen3_5_text", mtp_num_hidden_layers=1, **_QWEN, **_UNTIED),
        keys(**_QWEN_KEYS) | {"block_count": 5, "nextn_predict_layers": 1},
        ["output.weight", "blk.4.nextn.eh_proj.weight"]),
    "qwen35moe": (
        small("qwen3_5_moe_text", num_experts=4, shared_expert_intermediate_size=64, **_MOE, **_QWEN, **_UNTIED),
        keys(expert_shared_feed_forward_length=64, **_MOE_KEYS, **_QWEN_KEYS), ["output.weight"]),
    "nemotron_h": (
        small("nemotron_h", hybrid_override_pattern="M-*-", **_NEMOTRON),
        keys(**_SSM) | {"attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 128, 0, 128]},
        ["output.weight"]),
    "nemotron_h_moe": (
        small("nemotron_h", hybrid_override_pattern="MEM*", n_routed_experts=4, n_shared_experts=1,
              moe_shared_expert_intermediate_size=64, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E",
              **_MOE, **_NEMOTRON),
        keys(expert_shared_count=1, expert_shared_feed_forward_length=64, nextn_predict_layers=1, **_MOE_KEYS, **_SSM)
        | {"block_count": 5, "attention.head_count_kv": [0, 0, 0, 2, 2], "feed_forward_length": [0, 32, 0, 0, 32]},
        ["output.weight", "blk.4.nextn.eh_proj.weight"]),
    "granitehybrid": (
        small("granitemoehybrid", layer_types=["mamba", "attention", "mamba", "mamba"], num_local_experts=4,
              shared_intermediate_size=64, num_experts_per_tok=2, tie_word_embeddings=True, **_MAMBA)
        | {"intermediate_size": 32},
        keys(expert_count=4, expert_used_count=2, expert_shared_feed_forward_length=64, **_SSM)
        | {"attention.head_count_kv": [0, 2, 0, 0], "feed_forward_length": 32}, []),
    "falcon-h1": (
        small("falcon_h1", mamba_d_ssm=128, mamba_rms_norm=False, **_MAMBA, **_UNTIED), keys(**_SSM),
        ["output.weight"]),
    "lfm2": (
        small("lfm2", conv_L_cache=3, layer_types=["conv", "full_attention", "conv", "full_attention"],
              block_auto_adjust_ff_dim=False),
        keys(shortconv__l_cache=3) | {"attention.head_count_kv": [0, 2, 0, 2]}, []),
    "deci": (
        small("nemotron-nas", kv=None, block_configs=[
            {"attention": {"no_op": not group, "n_heads_in_group": group}, "ffn": {"no_op": not width,
             "intermediate_size": width}} for group, width in ((4, 128), (2, 64), (None, 64), (4, None))], **_UNTIED),
        keys() | {"attention.head_count": [8, 8, 0, 8], "attention.head_count_kv": [2, 4, 0, 2],
                  "feed_forward_length": [128, 64, 64, 0]}, ["output.weight"]),
    "gemma4": (
        small("gemma4_text", kv=4, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
              sliding_window=64, layer_types=_TYPES, hidden_size_per_layer_input=0),
        keys(attention__key_length=16, attention__value_length=16, attention__key_length_swa=8,
             attention__value_length_swa=8, attention__sliding_window=64, attention__shared_kv_layers=0)
        | {"attention.head_count_kv": [4, 4, 1, 4], "attention.sliding_window_pattern": _SWITCHES},
        ["blk.0.attn_v.weight"]),
    "kimi-linear": (
        small("kimi_linear", kv=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
              n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1,
              linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 16, "num_heads": 8,
                                  "short_conv_kernel_size": 4}, **_MOE, **_UNTIED),
        keys(attention__kv_lora_rank=32, attention__key_length=40, attention__key_length_mla=24,
             attention__value_length_mla=16, rope__dimension_count=8, kda__head_dim=16, ssm__conv_kernel=4,
             expert_shared_count=1, leading_dense_block_count=1, **_MOE_KEYS)
        | {"attention.head_count_kv": [0, 0, 0, 1]}, ["output.weight"]),
    "exaone-moe": (
        small("exaone_moe", num_experts=4, num_shared_experts=1, first_k_dense_replace=1, sliding_window=64,
              layer_types=_TYPES, **_MOE, **_UNTIED),
        keys(expert_shared_count=1, expert_shared_feed_forward_length=32, leading_dense_block_count=1,
             attention__sliding_window=64, **_MOE_KEYS) | {"attention.sliding_window_pattern": _SWITCHES},
        ["output.weight"]),
    "starcoder2": (small("starcoder2", use_bias=True, **_UNTIED), keys(), ["output.weight", "blk.0.attn_q.bias"]),
    "phi2": (small("phi", **_UNTIED), keys(), ["output.weight"]),
    # llama.cpp's Step35Model: heads of windowed layers, and dense blocks before the others
    "step35": (
        small("step3p5", kv=2, head_dim=16, num_experts=4, share_expert_dim=32, moe_layers_enum="1,2,3",
              attention_other_setting={"num_attention_heads": 12, "num_attention_groups": 4, "head_dim": 16},
              layer_types=_TYPES, sliding_window=64, use_head_wise_attn_gate=True, use_moe_router_bias=True, **_MOE,
              **_UNTIED),
        keys(attention__key_length=16, attention__value_length=16, attention__sliding_window=64, **_MOE_KEYS,
             expert_shared_feed_forward_length=32, leading_dense_block_count=1, moe_every_n_layers=1)
        | {"attention.head_count": [12, 12, 8, 12], "attention.head_count_kv": [4, 4, 2, 4],
           "attention.sliding_window_pattern": _SWITCHES},
        ["output.weight", "blk.0.attn_gate.weight", "blk.1.exp_probs_b.bias",
         *(f"blk.{layer}.ffn_gate_inp.weight" for layer in (1, 2, 3))]),
    "falcon": (small("falcon", kv=None, num_kv_heads=2, new_decoder_architecture=True), keys(),
               ["blk.0.attn_norm_2.weight"]),
    "gptneox": (small("gpt_neox", kv=8, **_UNTIED), keys(attention__head_count_kv=8, use_parallel_residual=1),
                ["output.weight"]),
    "gpt2": (small("gpt2", kv=8) | _SHORT, keys(attention__head_count_kv=8, context_length=64), []),
    "bloom": (small("bloom", kv=8), keys(attention__head_count_kv=8), []),
    "mpt": (small("mpt", kv=None, kv_n_heads=2, expansion_ratio=2), keys(), []),
    "qwen": (small("qwen", kv=8, **_UNTIED), keys(attention__head_count_kv=8), ["output.weight"]),
    "stablelm": (small("stablelm", use_parallel_residual=True, qk_layernorm=True, **_UNTIED), keys(),
                 ["output.weight", "blk.0.attn_q_norm.weight"]),
    "starcoder": (small("gpt_bigcode", kv=1) | _SHORT, keys(attention__head_count_kv=1, context_length=64), []),
    "afmoe": (
        small("afmoe", num_experts=4, num_shared_experts=1, num_dense_layers=1, sliding_window=64, **_MOE, **_UNTIED),
        keys(expert_shared_count=1, leading_dense_block_count=1, attention__sliding_window=64, **_MOE_KEYS),
        ["output.weight"]),
    "mellum": (
        small("mellum", num_experts=4, sliding_window=64, layer_types=_TYPES, **_MOE, **_UNTIED),
        keys(attention__sliding_window=64, **_MOE_KEYS) | {"attention.sliding_window_pattern": _SWITCHES},
        ["output.weight"]),
    "cohere2moe": (
        small("cohere2_moe", num_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, sliding_window=64,
              prefix_dense_intermediate_size=128) | {"intermediate_size": 32},
        keys(leading_dense_block_count=1, attention__sliding_window=64, **_MOE_KEYS), []),
    "mimo2": (
        small("mimo_v2", kv=2, head_dim=16, v_head_dim=8, swa_head_dim=16, swa_v_head_dim=8, swa_num_attention_heads=8,
              swa_num_key_value_heads=4, sliding_window=64, hybrid_layer_pattern=[1, 1, 0, 1], n_routed_experts=4,
              moe_layer_freq=[0, 1, 1, 1], add_swa_attention_sink_bias=True, **_MOE, **_UNTIED),
        keys(attention__key_length=16, attention__value_length=8, attention__sliding_window=64, **_MOE_KEYS)
        | {"attention.head_count_kv": [4, 4, 2, 4], "attention.sliding_window_pattern": _SWITCHES},
        ["output.weight", "blk.0.attn_sinks.weight", *(f"blk.{layer}.ffn_gate_inp.weight" for layer in (1, 2, 3))]),
}  # fmt: skip


def write(path, architecture, metadata, names, weights, apart=0):
    """Write a file of that many weights: its tensors, of 32 each, and the rest in the embedding."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = f"{architecture}.{key}"
        (writer.add_array if isinstance(value, list) else writer.add_uint32)(name, value)
    for name in names:
        writer.add_tensor(name, np.zeros(32, dtype=np.float16))
    if apart:
        writer.add_tensor("per_layer_token_embd.weight", np.zeros(apart, dtype=np.float32))
    writer.add_tensor("token_embd.weight", np.zeros(weights - 32 * len(names) - apart, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("architecture", SAME)
def test_a_file_gives_the_layers_of_the_same_config(tmp_path, architecture):
    config, metadata, names = SAME[architecture]
    expected = model_from_config(config, name="same")
    count = model_parameters(expected)
    write(tmp_path / "same.gguf", architecture, metadata, names,
          count.total + count.mtp * bool(expected.mtp) + expected.extra_parameters)  # fmt: skip
    model, _ = read_gguf_model(tmp_path / "same.gguf")
    assert [model.layers[name] for name in model.layer_names] == [
        expected.layers[name] for name in expected.layer_names
    ]
    assert (model.mtp, model.tied_embedding) == (expected.mtp, expected.tied_embedding)
    assert model.not_understood == ()


def test_per_layer_embeddings_of_gemma_keep_their_exact_bytes(tmp_path):
    config = small("gemma4_text", head_dim=8, global_head_dim=16, sliding_window=64, layer_types=_TYPES,
                   hidden_size_per_layer_input=16, num_kv_shared_layers=1)  # fmt: skip
    expected = model_from_config(config, name="e")
    metadata = keys(attention__key_length=16, attention__value_length=16, attention__key_length_swa=8,
                    attention__value_length_swa=8, attention__sliding_window=64, attention__shared_kv_layers=1,
                    embedding_length_per_layer_input=16)  # fmt: skip
    metadata["attention.sliding_window_pattern"] = _SWITCHES
    total = model_parameters(expected).total + expected.extra_parameters
    write(tmp_path / "e.gguf", "gemma4", metadata, [f"blk.{layer}.attn_v.weight" for layer in range(4)], total,
          expected.extra_parameters)  # fmt: skip
    model, tensors = read_gguf_model(tmp_path / "e.gguf")
    assert checkpoint_bytes(model, model.checkpoints[0]) == sum(tensor.bytes for tensor in tensors)
    # the table in FP32 counts twice in BF16
    assert model.extra_parameters == 2 * expected.extra_parameters
    assert model.layer_names == expected.layer_names


def test_an_unknown_architecture_names_the_model_of_the_catalogue(tmp_path):
    for name, hint in (("GLM-5.3-Flash-UD-Q4_K_XL", "give glm-5.3-flash and --weights"), ("odd", "nearest")):
        write(tmp_path / f"{name}.gguf", "glm5next", keys(), [], 512)
        with pytest.raises(UnknownArchitecture, match="is not an architecture") as caught:
            read_gguf_model(tmp_path / f"{name}.gguf")
        assert (hint in str(caught.value)) or hint == "nearest"
        assert ("catalogue" in str(caught.value)) == (name != "odd")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("bert", "embedding"), ("nomic-bert-moe", "embedding"), ("clip", "image projector"), ("mamba2", "no attention")],
)
def test_a_file_of_a_model_that_generates_no_text_is_refused_with_the_reason(tmp_path, architecture, reason):
    write(tmp_path / "e.gguf", architecture, keys(), [], 512)
    with pytest.raises(UnknownArchitecture, match=f"'{architecture}' is refused: .*{reason}") as caught:
        read_gguf_model(tmp_path / "e.gguf")
    assert "nearest" not in str(caught.value)


def test_every_described_architecture_has_a_reader():
    assert not set(_ARCHITECTURES) & set(_REFUSED)
    assert {described.model_type for described in DESCRIBED.values()} <= set(READERS)
    assert set(_ARCHITECTURES.values()) <= set(READERS)
