"""Describe architectures of GGUF files by the fields of a `config.json`.

Names of architectures, keys and tensors: `constants.py` of the `gguf` package 0.19.0. The architectures with readers
of their own stand in `gguf.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DESCRIBED", "GgufArchitecture", "GgufBlocks"]


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """Metadata of one architecture and the tensors of the blocks."""

    metadata: Mapping[str, Any]
    architecture: str
    names: frozenset[str]
    count: int  # blocks without draft layers

    def key(self, name: str, default: Any = None) -> Any:
        """Return the value of a key below the architecture."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return default if value is None else value

    def each(self, name: str, default: Any = 0) -> list[Any]:
        """Return one value for each block: a list, or the same for all."""
        value = self.key(name, default)
        return list(value[: self.count]) if isinstance(value, list) else [value] * self.count

    def has(self, suffix: str, block: int | None = None) -> bool:
        """Return True if a block, or any, has a tensor."""
        if block is not None:
            return f"blk.{block}.{suffix}" in self.names
        return any(name.startswith("blk.") and name.split(".", 2)[2] == suffix for name in self.names)


Adapt = Callable[[GgufBlocks, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """Description of an architecture in the fields of a config."""

    model_type: str
    renamed: Mapping[str, str] = field(default_factory=dict)  # usual field → field of the reader
    constants: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)  # field → tensor of a block that turns it on
    keys: tuple[str, ...] = ()  # further keys that are read
    adapt: Adapt | None = None


_BIAS = {"attention_bias": "attn_q.bias"}
_OUT = {**_BIAS, "attention_out_bias": "attn_output.bias"}
_LOCAL = {"num_experts": "num_local_experts"}
_ROUTED = {"num_experts": "n_routed_experts"}
_SSM = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")
_PATTERN = ("attention.sliding_window_pattern",)


def _layer_types(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    pattern = blocks.key("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if item else "full_attention" for item in pattern[: blocks.count]]


def _olmo(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    # OLMo 3 has the architecture of OLMo 2 and windows
    if config.get("sliding_window"):
        config["model_type"] = "olmo3"
        _layer_types(blocks, config)


def _fused_bias(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    config["attention_bias"] = blocks.has("attn_qkv.bias") or blocks.has("attn_q.bias")


def _kv_heads(blocks: GgufBlocks) -> list[int]:
    return [int(value) for value in blocks.each("attention.head_count_kv")]


def _hybrid_kinds(blocks: GgufBlocks, config: dict[str, Any], other: str) -> None:
    """Set `layer_types`: blocks without KV heads are of the other kind."""
    heads = _kv_heads(blocks)
    config["num_key_value_heads"] = max(heads)
    config["layer_types"] = ["full_attention" if item else other for item in heads]


def _mamba2(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    heads = int(blocks.key("ssm.time_step_rank", 1))
    inner = int(blocks.key("ssm.inner_size", 0))
    for name in ("linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads"):
        config.pop(name, None)
    config |= {
        "mamba_n_heads": heads, "mamba_d_head": inner // max(heads, 1), "mamba_d_state": blocks.key("ssm.state_size"),
        "mamba_n_groups": blocks.key("ssm.group_count", 1), "mamba_d_conv": blocks.key("ssm.conv_kernel"),
        "mamba_d_ssm": inner,
    }  # fmt: skip


def _granite_hybrid(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    _mamba2(blocks, config)
    config.pop("mamba_d_ssm")
    _hybrid_kinds(blocks, config, "mamba")
    shared = config.pop("shared_expert_intermediate_size", None)
    config["shared_intermediate_size"] = shared or config["intermediate_size"]
    config.pop("moe_intermediate_size", None)


def _falcon(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    _mamba2(blocks, config)
    config["mamba_rms_norm"] = blocks.has("ssm_norm.weight")


def _lfm2(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    _hybrid_kinds(blocks, config, "conv")
    config["conv_L_cache"] = blocks.key("shortconv.l_cache")
    config["block_auto_adjust_ff_dim"] = False
    if "num_experts" in config:
        config["num_dense_layers"] = config.pop("first_k_dense_replace", 0)


def _nemotron_h(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    heads, inner = _kv_heads(blocks), blocks.each("feed_forward_length")
    sparse = "num_experts" in config
    config["num_key_value_heads"] = max(heads)
    config["layers_block_type"] = [
        "attention" if kv else ("moe" if sparse else "mlp") if width else "mamba"
        for kv, width in zip(heads, inner, strict=True)
    ]
    config.pop("intermediate_size", None)
    if sparse:
        config["n_routed_experts"] = config.pop("num_experts")
        config["moe_shared_expert_intermediate_size"] = config.pop("shared_expert_intermediate_size", 0)
        config["moe_latent_size"] = blocks.key("moe_latent_size")
        if config.get("num_nextn_predict_layers"):
            config["mtp_hybrid_override_pattern"] = "*E"
    else:
        config["intermediate_size"] = max(inner)
    value_heads = int(config.pop("linear_num_value_heads", 1))
    config |= {
        "conv_kernel": config.pop("linear_conv_kernel_dim", None), "n_groups": config.pop("linear_num_key_heads", None),
        "ssm_state_size": config.pop("linear_key_head_dim", None), "mamba_num_heads": value_heads,
        "mamba_head_dim": int(blocks.key("ssm.inner_size", 0)) // value_heads,
    }  # fmt: skip


def _qwen35(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    heads = int(config.get("linear_num_value_heads") or 1)
    config["linear_value_head_dim"] = int(blocks.key("ssm.inner_size", 0)) // heads
    config["full_attention_interval"] = blocks.key("full_attention_interval", 4)
    if drafts := config.pop("num_nextn_predict_layers", 0):
        config["mtp_num_hidden_layers"] = drafts


def _deci(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    heads, kv, inner = (
        blocks.each(name) for name in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    )
    config["num_attention_heads"] = max(heads)
    config["block_configs"] = [
        {
            "attention": {"no_op": not group, "n_heads_in_group": query // group if group else None},
            "ffn": {"no_op": not width, "intermediate_size": width},
        }
        for query, group, width in zip(heads, kv, inner, strict=True)
    ]
    for name in ("num_key_value_heads", "intermediate_size"):
        config.pop(name, None)


def _llama4(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    config["intermediate_size_mlp"] = config.pop("intermediate_size")
    config["intermediate_size"] = config.pop("moe_intermediate_size")
    config["interleave_moe_layer_step"] = blocks.key("interleave_moe_layer_step", 1)


def _gemma4(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    _layer_types(blocks, config)
    types, heads, inner = config["layer_types"], _kv_heads(blocks), blocks.each("feed_forward_length")
    local, full = ([layer for layer, kind in enumerate(types) if (kind == "full_attention") == item]
                   for item in (False, True))  # fmt: skip
    shared = int(blocks.key("attention.shared_kv_layers", 0))
    config |= {
        "num_kv_shared_layers": shared, "intermediate_size": inner[0], "use_double_wide_mlp": inner[-1] == 2 * inner[0],
        "hidden_size_per_layer_input": blocks.key("embedding_length_per_layer_input", 0),
        "global_head_dim": blocks.key("attention.key_length"), "head_dim": blocks.key("attention.key_length_swa"),
        "num_key_value_heads": heads[local[0]] if local else heads[0],
    }  # fmt: skip
    if full:
        config["num_global_key_value_heads"] = heads[full[0]]
        config["attention_k_eq_v"] = not blocks.has("attn_v.weight", full[0])
    if "num_experts" in config:
        config["enable_moe_block"], config["top_k_experts"] = True, config.pop("num_experts_per_tok")


def _mimo2(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    pattern, heads = blocks.each("attention.sliding_window_pattern"), _kv_heads(blocks)
    full = [layer for layer, item in enumerate(pattern) if not item]
    sliding = [layer for layer, item in enumerate(pattern) if item]
    width, value = config["head_dim"], blocks.key("attention.value_length")
    config |= {
        "hybrid_layer_pattern": [int(item) for item in pattern], "num_key_value_heads": heads[full[0]],
        "v_head_dim": value, "swa_v_head_dim": value, "swa_head_dim": width,
        "swa_num_attention_heads": config["num_attention_heads"], "swa_num_key_value_heads": heads[sliding[0]],
        "add_full_attention_sink_bias": blocks.has("attn_sinks.weight", full[0]),
        "add_swa_attention_sink_bias": blocks.has("attn_sinks.weight", sliding[0]),
        "moe_layer_freq": [int(blocks.has("ffn_gate_inp.weight", layer)) for layer in range(blocks.count)],
        "n_routed_experts": config.pop("num_experts"),
    }  # fmt: skip
    config.pop("num_nextn_predict_layers", None)


def _step35(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    pattern, heads, kv = (blocks.key(name, []) for name in ("attention.sliding_window_pattern", "attention.head_count",
                                                            "attention.head_count_kv"))  # fmt: skip
    full, sliding = (next((layer for layer, item in enumerate(pattern) if bool(item) == kind), 0)
                     for kind in (False, True))  # fmt: skip
    config |= {
        # draft blocks have an entry too
        "layer_types": ["sliding_attention" if item else "full_attention" for item in pattern],
        "num_attention_heads": heads[full], "num_key_value_heads": kv[full],
        "attention_other_setting": {"num_attention_heads": heads[sliding], "num_attention_groups": kv[sliding],
                                    "head_dim": config["head_dim"]},
        "use_head_wise_attn_gate": blocks.has("attn_gate.weight"),
        "use_moe_router_bias": blocks.has("exp_probs_b.bias"),
        "share_expert_dim": config.pop("shared_expert_intermediate_size", None),
        "moe_layers_enum": [layer for layer in range(blocks.count) if blocks.has("ffn_gate_inp.weight", layer)],
    }  # fmt: skip
    config.pop("first_k_dense_replace", None)


def _ernie_moe(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    config |= {
        "moe_layer_start_index": config.pop("first_k_dense_replace", 0),
        "moe_layer_interval": blocks.key("interleave_moe_layer_step", 1),
    }
    config.pop("shared_expert_intermediate_size", None)


def _shared_granite(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    if shared := config.pop("shared_expert_intermediate_size", None):
        config |= {"model_type": "granitemoeshared", "shared_intermediate_size": shared}
    config.pop("moe_intermediate_size", None)


def _exaone_moe(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    _layer_types(blocks, config)
    config.pop("shared_expert_intermediate_size", None)


def _kimi_linear(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    heads, width = _kv_heads(blocks), int(blocks.key("kda.head_dim", 0))
    config["linear_attn_config"] = {
        "full_attn_layers": [layer + 1 for layer, item in enumerate(heads) if item],
        "kda_layers": [layer + 1 for layer, item in enumerate(heads) if not item],
        "head_dim": width,
        "num_heads": config["num_attention_heads"],
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim", 4),
    }
    rope = int(blocks.key("rope.dimension_count", 0))
    config["qk_rope_head_dim"] = rope
    config["qk_nope_head_dim"] = int(blocks.key("attention.key_length_mla", 0)) - rope
    for name in ("head_dim", "num_key_value_heads"):
        config.pop(name, None)


def _without_shared_width(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    config.pop("shared_expert_intermediate_size", None)


def _old_falcon(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    """Add the decoder: of Falcon-40B with more than one KV head."""
    config["new_decoder_architecture"] = int(config.get("num_key_value_heads") or 1) > 1
    config["num_ln_in_parallel_attn"] = 1 + blocks.has("attn_norm_2.weight")


def _stablelm(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    config["use_parallel_residual"] = not blocks.has("ffn_norm.weight")


def _trinity(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    """Add the kinds of layers: in periods of 4 where a file has none."""
    kinds = ["full_attention" if (layer + 1) % 4 == 0 else "sliding_attention" for layer in range(blocks.count)]
    config["layer_types"] = kinds
    _layer_types(blocks, config)
    config.pop("shared_expert_intermediate_size", None)


def _command_moe(blocks: GgufBlocks, config: dict[str, Any]) -> None:
    config["prefix_dense_intermediate_size"] = config.pop("intermediate_size")
    config["intermediate_size"] = config.pop("moe_intermediate_size")
    _layer_types(blocks, config)
    config.pop("shared_expert_intermediate_size", None)


#: general.architecture → its description
DESCRIBED: Mapping[str, GgufArchitecture] = {
    "afmoe": GgufArchitecture(
        "afmoe", renamed={"n_shared_experts": "num_shared_experts"}, keys=_PATTERN, adapt=_trinity
    ),
    "apertus": GgufArchitecture("apertus"),
    "arcee": GgufArchitecture("arcee"),
    "baichuan": GgufArchitecture("baichuan"),
    "bailingmoe": GgufArchitecture(
        "bailing_moe", renamed={"n_shared_experts": "num_shared_experts"}, switches=_BIAS, adapt=_without_shared_width
    ),
    "bailingmoe2": GgufArchitecture(
        "bailing_moe_v2",
        renamed={"n_shared_experts": "num_shared_experts"},
        switches={**_BIAS, "use_qk_norm": "attn_q_norm.weight", "moe_router_enable_expert_bias": "exp_probs_b.bias"},
        adapt=_without_shared_width,
    ),
    "bloom": GgufArchitecture("bloom"),
    "chatglm": GgufArchitecture("glm", adapt=_fused_bias),
    "cohere2": GgufArchitecture("cohere2"),
    "cohere2moe": GgufArchitecture(
        "cohere2_moe", renamed={"n_shared_experts": "num_shared_experts"}, keys=_PATTERN, adapt=_command_moe
    ),
    "command-r": GgufArchitecture("cohere", switches={"use_qk_norm": "attn_q_norm.weight"}),
    "dbrx": GgufArchitecture(
        "dbrx", renamed={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k"}
    ),
    "deci": GgufArchitecture("nemotron-nas", adapt=_deci),
    "deepseek": GgufArchitecture("deepseek", renamed=_ROUTED, adapt=_without_shared_width),
    "dots1": GgufArchitecture("dots1", renamed=_ROUTED, adapt=_without_shared_width),
    "ernie4_5": GgufArchitecture("ernie4_5"),
    "ernie4_5-moe": GgufArchitecture(
        "ernie4_5_moe",
        renamed={
            "num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k",
            "n_shared_experts": "moe_num_shared_experts",
        },
        keys=("interleave_moe_layer_step",),
        adapt=_ernie_moe,
    ),
    "exaone": GgufArchitecture("exaone"),
    "exaone-moe": GgufArchitecture(
        "exaone_moe", renamed={"n_shared_experts": "num_shared_experts"}, keys=_PATTERN, adapt=_exaone_moe
    ),
    "exaone4": GgufArchitecture("exaone4", keys=_PATTERN, adapt=_layer_types),
    "falcon": GgufArchitecture("falcon", adapt=_old_falcon),
    "falcon-h1": GgufArchitecture("falcon_h1", keys=_SSM, adapt=_falcon),
    "gemma": GgufArchitecture("gemma"),
    "gemma2": GgufArchitecture("gemma2"),
    "gemma4": GgufArchitecture(
        "gemma4_text",
        keys=(*_PATTERN, "attention.shared_kv_layers", "attention.key_length_swa", "attention.value_length_swa",
              "embedding_length_per_layer_input"),
        adapt=_gemma4,
    ),
    "glm4": GgufArchitecture("glm4", adapt=_fused_bias),
    "gpt2": GgufArchitecture("gpt2"),
    "gptneox": GgufArchitecture("gpt_neox", keys=("use_parallel_residual",)),
    "granite": GgufArchitecture("granite"),
    "granitehybrid": GgufArchitecture("granitemoehybrid", renamed=_LOCAL, keys=_SSM, adapt=_granite_hybrid),
    "granitemoe": GgufArchitecture("granitemoe", renamed=_LOCAL, adapt=_shared_granite),
    "hunyuan-dense": GgufArchitecture("hunyuan_v1_dense"),
    "hunyuan-moe": GgufArchitecture(
        "hunyuan_v1_moe",
        renamed={"num_experts_per_tok": "moe_topk", "n_shared_experts": "num_shared_expert"},
        adapt=_without_shared_width,
    ),
    "internlm2": GgufArchitecture("internlm2"),
    "kimi-linear": GgufArchitecture(
        "kimi_linear",
        renamed={"num_experts": "n_routed_experts"},
        keys=("ssm.conv_kernel", "kda.head_dim", "attention.key_length_mla"),
        adapt=_kimi_linear,
    ),
    "lfm2": GgufArchitecture("lfm2", keys=("shortconv.l_cache",), adapt=_lfm2),
    "lfm2moe": GgufArchitecture(
        "lfm2_moe", keys=("shortconv.l_cache",), switches={"use_expert_bias": "exp_probs_b.bias"}, adapt=_lfm2
    ),
    "llama4": GgufArchitecture(
        "llama4_text",
        renamed=_LOCAL,
        # llama.cpp, src/llama-model.cpp: chunks of 8,192 tokens
        constants={"attention_chunk_size": 8192},
        keys=("interleave_moe_layer_step", "expert_swa"),
        adapt=_llama4,
    ),
    "mellum": GgufArchitecture("mellum", keys=_PATTERN, adapt=_trinity),
    "mimo2": GgufArchitecture("mimo_v2", keys=(*_PATTERN, "attention.value_scale"), adapt=_mimo2),
    "minicpm": GgufArchitecture("minicpm"),
    "mistral3": GgufArchitecture("ministral3"),
    "mpt": GgufArchitecture(
        "mpt", renamed={"num_key_value_heads": "kv_n_heads"}, keys=("attention.max_alibi_bias", "attention.clamp_kqv")
    ),
    "nemotron": GgufArchitecture("nemotron"),
    "nemotron_h": GgufArchitecture("nemotron_h", keys=_SSM, adapt=_nemotron_h),
    "nemotron_h_moe": GgufArchitecture("nemotron_h", keys=(*_SSM, "moe_latent_size"), adapt=_nemotron_h),
    "olmo2": GgufArchitecture("olmo2", keys=_PATTERN, adapt=_olmo),
    "olmoe": GgufArchitecture("olmoe"),
    "phi2": GgufArchitecture("phi"),
    "phi3": GgufArchitecture("phi3"),
    "phimoe": GgufArchitecture("phimoe", renamed=_LOCAL, switches=_BIAS),
    "qwen": GgufArchitecture("qwen"),
    "qwen2moe": GgufArchitecture("qwen2_moe", constants={"attention_bias": True}),
    "qwen2vl": GgufArchitecture("qwen2"),
    "qwen35": GgufArchitecture("qwen3_5_text", keys=(*_SSM, "full_attention_interval"), adapt=_qwen35),
    "qwen35moe": GgufArchitecture("qwen3_5_moe_text", keys=(*_SSM, "full_attention_interval"), adapt=_qwen35),
    "qwen3vl": GgufArchitecture("qwen3_vl_text", keys=("n_deepstack_layers",)),
    "qwen3vlmoe": GgufArchitecture("qwen3_vl_moe_text", keys=("n_deepstack_layers",)),
    "seed_oss": GgufArchitecture("seed_oss", switches=_OUT),
    "smollm3": GgufArchitecture("smollm3"),
    "stablelm": GgufArchitecture(
        "stablelm",
        switches={**_BIAS, "qk_layernorm": "attn_q_norm.weight"},
        keys=("use_parallel_residual",),
        adapt=_stablelm,
    ),
    "starcoder": GgufArchitecture("gpt_bigcode"),
    "starcoder2": GgufArchitecture("starcoder2", switches=_BIAS),
    "step35": GgufArchitecture("step3p5", keys=(*_PATTERN, "moe_every_n_layers"), adapt=_step35),
}  # fmt: skip
