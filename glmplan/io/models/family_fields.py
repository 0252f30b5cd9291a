"""Translate the config of a family into the usual fields.

Some families spell the usual fields otherwise, and a library takes a value of its own where a field is absent. Sources:
`configuration_*.py` of Hugging Face transformers 5.24.0, and for families outside it the fields that vLLM's model files
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmplan.errors import nearest
from glmplan.io.models.config_fields import ConfigFields, is_harmless

__all__ = ["SPELLINGS", "Spelling", "tied_by_default", "usual_fields"]


@dataclass(frozen=True, slots=True)
class Spelling:
    """Differences of a family's config from the usual fields."""

    renamed: Mapping[str, str] = field(default_factory=dict)  # its name → the usual one
    flattened: tuple[str, ...] = ()  # objects whose fields stand beside the others
    defaults: Mapping[str, Any] = field(default_factory=dict)  # usual name → value of the library where it is absent
    tied: bool = False  # the library ties the embedding where `tie_word_embeddings` is absent
    ignored: tuple[str, ...] = ()  # fields that change neither weights, nor cache, nor work


#: transformers writes a language model inside a multimodal config without the fields that have the value of their class
#: (`PreTrainedConfig.to_diff_dict`), so that `google/gemma-3-4b-it` states 5 of its shapes
_NESTED_NAMES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "sliding_window",
)  # fmt: skip
#: model_type → values of `_NESTED_NAMES`; None: the class computes it or has no such field
_NESTED_SHAPES: Mapping[str, tuple[int | None, ...]] = {
    "cohere": (8192, 22528, 40, 64, None, None, 256000, 8192, None),
    "cohere2": (8192, 22528, 40, 64, None, None, 256000, 8192, 4096),
    "deepseek_v2": (4096, 11008, 32, 32, None, None, 102400, 2048, None),
    "deepseek_v3": (7168, 18432, 61, 128, 128, None, 129280, 4096, None),
    "exaone4": (4096, 16384, 32, 32, 32, None, 102400, 2048, 4096),
    "gemma": (3072, 24576, 28, 16, 16, 256, 256000, 8192, None),
    "gemma2": (2304, 9216, 26, 8, 4, 256, 256000, 8192, 4096),
    "gemma3_text": (2304, 9216, 26, 8, 4, 256, 262208, 131072, 4096),
    "gemma3n_text": (2048, 16384, 35, 8, 2, 256, 262400, 32768, 512),
    "gemma4_text": (2304, 9216, 30, 8, 4, 256, 262144, 131072, 512),
    "gemma4_unified_text": (2304, 9216, 30, 8, 4, 256, 262144, 262144, 1024),
    "glm4v_moe_text": (4096, 10944, 46, 96, 8, None, 151424, 65536, None),
    "glm4v_text": (4096, 13696, 40, 32, 2, None, 151552, 32768, None),
    "gpt_oss": (2880, 2880, 36, 64, 8, 64, 201088, 131072, 128),
    "granite": (4096, 11008, 32, 32, None, None, 32000, 2048, None),
    "lfm2": (2560, 12288, 32, 32, 8, None, 65536, 128000, None),
    "llama": (4096, 11008, 32, 32, None, None, 32000, 2048, None),
    "llama4_text": (5120, 8192, 48, 40, 8, 128, 202048, 131072, None),
    "ministral3": (4096, 14336, 34, 32, 8, 128, 131072, 262144, None),
    "mistral": (4096, 14336, 32, 32, 8, None, 32000, 131072, 4096),
    "mistral4": (4096, 12288, 36, 32, 32, None, 131072, 1048576, None),
    "mixtral": (4096, 14336, 32, 32, 8, None, 32000, 131072, None),
    "mllama_text_model": (4096, 14336, 40, 32, 8, None, 128256, 131072, None),
    "phi3": (3072, 8192, 32, 32, None, None, 32064, 4096, None),
    "qwen2": (4096, 22016, 32, 32, 32, None, 151936, 32768, None),
    "qwen2_5_vl_text": (8192, 29568, 80, 64, 8, None, 152064, 32768, None),
    "qwen2_vl_text": (8192, 29568, 80, 64, 8, None, 152064, 32768, None),
    "qwen3": (4096, 22016, 32, 32, 32, 128, 151936, 32768, None),
    "qwen3_5_moe_text": (2048, None, 40, 16, 2, 256, 248320, 32768, None),
    "qwen3_5_text": (4096, 12288, 32, 16, 4, 256, 248320, 32768, None),
    "qwen3_moe": (2048, 6144, 24, 32, 4, None, 151936, 32768, None),
    "qwen3_vl_moe_text": (2048, 5632, 24, 16, 16, None, 151936, 128000, None),
    "qwen3_vl_text": (4096, 22016, 32, 32, 32, 128, 151936, 128000, None),
}
#: model_type → further shapes
_NESTED_MORE: Mapping[str, Mapping[str, Any]] = {
    "gemma3n_text": {"num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256,
                     "vocab_size_per_layer_input": 262144},
    "glm4v_moe_text": {"attention_bias": True, "first_k_dense_replace": 1, "moe_intermediate_size": 1408,
                       "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8},
    "llama4_text": {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 16384,
                    "num_experts_per_tok": 1, "num_local_experts": 16},
    "mistral4": {"first_k_dense_replace": 0, "kv_lora_rank": 256, "moe_intermediate_size": 2048,
                 "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 4, "q_lora_rank": 1024,
                 "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 8},
}  # fmt: skip


def _nested_defaults(model_type: str) -> dict[str, Any]:
    """Return the shapes of a nested language model that states none.

    Examples
    --------
    >>> shapes = _nested_defaults("gemma3_text")
    >>> shapes["num_attention_heads"], shapes["vocab_size"]
    (8, 262208)
    >>> _nested_defaults("an unknown type")
    {}
    """
    shapes = zip(_NESTED_NAMES, _NESTED_SHAPES.get(model_type, ()), strict=False)
    return {name: value for name, value in shapes if value is not None} | dict(_NESTED_MORE.get(model_type, {}))


_TRANSFORMER = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps"}
_GLM_RUN = (
    "apply_query_key_layer_scaling", "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32",
    "bias_dropout_fusion", "fp32_residual_connection", "original_rope", "post_layer_norm", "rmsnorm",
    "interleaved_qkv", "multi_query_attention", "prefix_projection", "quantization_bit",
)  # fmt: skip
_COHERE = (
    "logit_scale", "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "use_embedding_sharing",
    "use_gated_activation", "use_parallel_block", "use_parallel_embedding", "cache_implementation",
)  # fmt: skip
_GRANITE = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
_FALCON = (
    "*_multiplier", "*_multipliers", "mamba_chunk_size", "mamba_expand", "mamba_norm_before_gate", "mamba_use_mlp",
    "mlp_expansion_factor", "time_step_limit", "attn_layer_indices", "mamba_conv_bias",
)  # fmt: skip
_MINICPM = ("scale_emb", "scale_depth", "dim_model_base", "mup_denominator", "rope_scaling", "use_bfloat16")
_LING = (
    "norm_head", "norm_softmax", "multi_gate", "moe_router_enable_shared_expert", "router_dtype", "use_rmsnorm",
    "moe_shared_expert_overlap", "expert_dtype", "score_function",
)  # fmt: skip
_HUNYUAN = (
    "add_classification_head", "anyres_*", "cla_share_factor", "class_num", "enable_lm_head_fp32",
    "group_limited_greedy",
    "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "moe_drop_tokens", "moe_random_routing_dropped_token",
    "norm_type", "num_media_embeds", "org_vocab_size", "pool_type", "position_embedding_xdrope", "sep_token_id",
    "skip_cls_token", "text_end_id", "text_start_id", "use_rotary_pos_emb", "vit_*", "xdrope_section", "eod_token_id",
    "*_rank", "attention_head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim", "qk_*_head_dim",
)  # fmt: skip

_GPT = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "n_ctx": "max_position_embeddings",
}  # fmt: skip
_GPT_RUN = (
    "scale_attn_*", "summary_*", "predict_special_tokens", "rotary",
    "reorder_and_upcast_attn", "attention_softmax_in_fp32", "scale_attention_softmax_*",
    "inference_runner", "max_batch_size", "max_sequence_length", "pre_allocate_kv_cache", "validate_runner_input",
    "attn_pdrop", "tokenizer_class", "gradient_checkpointing", "n_ctx",
)  # fmt: skip
_FALCON_OLD = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_key_value_heads",
               "num_kv_heads": "num_key_value_heads", "n_embed": "hidden_size",
               "ffn_hidden_size": "intermediate_size"}  # fmt: skip
_OLD_FALCON = Spelling(tied=True, renamed=_FALCON_OLD, defaults={"max_position_embeddings": 2048},
                       ignored=("alibi", "apply_residual_connection_post_layernorm", "activation"))  # fmt: skip

#: model_type → spelling; types without an entry use the usual fields
SPELLINGS: Mapping[str, Spelling] = {
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), _OLD_FALCON),
    "afmoe": Spelling(
        renamed={"num_dense_layers": "first_k_dense_replace", "global_attn_every_n_layers": "sliding_window_pattern"},
        ignored=("mup_enabled", "num_expert_groups", "num_limited_groups", "route_norm", "use_grouped_mm",
                 "load_balance_coeff"),
    ),
    "apertus": Spelling(ignored=("post_norm", "qk_norm")),
    "baichuan": Spelling(
        renamed={"model_max_length": "max_position_embeddings"},
        ignored=("z_loss_weight", "gradient_checkpointing"),
    ),
    "bailing_moe": Spelling(renamed={"use_qkv_bias": "attention_bias"}, ignored=_LING),
    "bailing_hybrid": Spelling(
        renamed={"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
                 "num_shared_experts": "n_shared_experts", "num_mtp_layers": "num_nextn_predict_layers"},
        ignored=(*_LING, "*_swiglu_limit_list", "kda_*", "rotary_type", "group_norm_size", "linear_*", "mtp_*",
                 "use_linear_silu", "moe_router_enable_*", "use_qkv_bias", "use_bias"),
    ),
    "bailing_moe_v2": Spelling(renamed={"use_qkv_bias": "attention_bias"}, ignored=_LING),
    "bamba": Spelling(ignored=_FALCON, defaults={"partial_rotary_factor": 0.5}),
    "bloom": Spelling(
        tied=True,
        renamed={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"},
        defaults={"max_position_embeddings": 2048},
        ignored=("apply_residual_connection_post_layernorm", "attention_softmax_in_fp32", "bias_dropout_fusion",
                 "masked_softmax_fusion", "offset_alibi", "skip_bias_add*", "slow_but_exact", "n_inner"),
    ),
    "chatglm": Spelling(
        renamed={
            "num_layers": "num_hidden_layers",
            "ffn_hidden_size": "intermediate_size",
            "padded_vocab_size": "vocab_size",
            "seq_length": "max_position_embeddings",
            "multi_query_group_num": "num_key_value_heads",
            "kv_channels": "head_dim",
            "add_qkv_bias": "attention_bias",
        },
        ignored=_GLM_RUN,
    ),
    "cohere": Spelling(tied=True, ignored=_COHERE),
    "cohere2": Spelling(tied=True, ignored=_COHERE, defaults={"sliding_window": 4096}),
    "cohere2_moe": Spelling(
        tied=True, defaults={"sliding_window": 4096, "num_shared_experts": 0},
        ignored=(*_COHERE, "expert_selection_fn", "shared_expert_combination_strategy", "layer_norm_bias",
                 "moe_gate_act", "prefix_dense_sliding_window_pattern"),
    ),
    "dbrx": Spelling(
        renamed={
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
            "kv_n_heads": "num_key_value_heads",
            "ffn_hidden_size": "intermediate_size",
        },
        flattened=("attn_config", "ffn_config"),
        ignored=("clip_qkv", "emb_pdrop", "moe_jitter_eps", "moe_normalize_expert_weights", "ffn_act_fn"),
    ),
    "dots1": Spelling(ignored=("sliding_window",)),
    "ernie4_5": Spelling(tied=True, renamed={"use_bias": "attention_bias"}, ignored=("compression_ratio",)),
    "ernie4_5_moe": Spelling(tied=True),
    "exaone": Spelling(renamed=_TRANSFORMER),
    "exaone_moe": Spelling(
        renamed={"first_last_k_dense_replace": "first_k_dense_replace"},
        defaults={"first_k_dense_replace": 1},
        ignored=("is_moe_layer", "mtp_share_layers"),
    ),
    "falcon_h1": Spelling(ignored=_FALCON, defaults={"num_key_value_heads": 8}),
    "gemma": Spelling(tied=True),
    "gemma2": Spelling(tied=True, defaults={"sliding_window": 4096}),
    "gemma3n_text": Spelling(
        tied=True, ignored=("altup_active_idx", "altup_coef_clip", "altup_correct_scale", "activation_sparsity_pattern")
    ),
    "gemma3_text": Spelling(tied=True),
    "gemma4_text": Spelling(tied=True),
    "gemma4_unified_text": Spelling(tied=True),
    "git": Spelling(
        ignored=("*_multiplier_scale", "attn_temperature_len", "global_attn_every_n", "router_logit_softcapping"),
    ),
    "glm": Spelling(defaults={"attention_bias": True}),
    "glm4": Spelling(defaults={"attention_bias": True}),
    "gpt2": Spelling(tied=True, renamed=_GPT, ignored=_GPT_RUN),
    "gpt_bigcode": Spelling(tied=True, renamed=_GPT, ignored=_GPT_RUN),
    "gpt_neox": Spelling(
        renamed={"rotary_pct": "partial_rotary_factor"},
        defaults={"partial_rotary_factor": 0.25},
        ignored=("use_parallel_residual", "classifier_dropout"),
    ),
    "gptj": Spelling(renamed=_GPT, ignored=_GPT_RUN),
    "granite": Spelling(ignored=_GRANITE),
    "granite_swa": Spelling(tied=True, ignored=(*_GRANITE, "layer_rope_theta"), defaults={"sliding_window": 128}),
    "granitemoe": Spelling(ignored=_GRANITE),
    "granitemoehybrid": Spelling(
        ignored=(*_GRANITE, "mamba_chunk_size", "mamba_conv_bias", "position_embedding_type", "init_method",
                 "normalization_function", "mamba_expand", "time_step_limit"),
    ),  # fmt: skip
    "granitemoeshared": Spelling(ignored=_GRANITE),
    "grok-1": Spelling(
        tied=True,
        ignored=("embedding_multiplier_scale", "output_multiplier_scale", "attn_output_multiplier", "max_attn_value"),
    ),
    "glm4v_text": Spelling(defaults={"attention_bias": True}),
    "hyperclovax": Spelling(ignored=(*_GRANITE, "use_post_norm")),
    "hunyuan_v1_dense": Spelling(ignored=_HUNYUAN, renamed={"attention_head_dim": "head_dim"}),
    "hunyuan_v1_moe": Spelling(ignored=_HUNYUAN, renamed={"attention_head_dim": "head_dim"}),
    "internlm": Spelling(renamed={"bias": "attention_bias"}, defaults={"attention_bias": True}),
    "internlm2": Spelling(renamed={"bias": "attention_bias"}),
    "internlm3": Spelling(renamed={"qkv_bias": "attention_bias", "bias": "mlp_bias"}),
    "jais2": Spelling(defaults={"attention_bias": True, "mlp_bias": True}),
    "jamba": Spelling(
        ignored=("mamba_conv_bias", "calc_logits_for_entire_prompt", "mamba_inner_layernorms"),
        defaults={"num_key_value_heads": 8},
    ),
    "laguna": Spelling(
        defaults={"sliding_window": 512},
        ignored=("moe_apply_router_weight_on_input", "moe_router_*", "gating_types", "swa_rope_parameters"),
    ),
    "lfm2": Spelling(tied=True, renamed={"tie_embedding": "tie_word_embeddings"}, ignored=("conv_use_xavier_init",)),
    "lfm2_moe": Spelling(tied=True, renamed={"tie_embedding": "tie_word_embeddings"}),
    "longcat_flash": Spelling(
        renamed={
            "num_layers": "num_hidden_layers",
            "ffn_hidden_size": "intermediate_size",
            "expert_ffn_hidden_size": "moe_intermediate_size",
            "moe_topk": "num_experts_per_tok",
        },
        ignored=("attention_method", "mla_scale_*", "router_bias", "zero_expert_type"),
    ),
    "mellum": Spelling(ignored=("use_sliding_window", "mtp_layer_types", "mtp_mlp_layer_types")),
    "minicpm": Spelling(tied=True, ignored=_MINICPM),
    "minicpm3": Spelling(tied=True, ignored=_MINICPM),
    "minimax": Spelling(ignored=("*_alpha_factor", "*_beta_factor", "block_size")),
    "minimax_m1": Spelling(ignored=("layernorm_*",)),
    "minimax_text_01": Spelling(ignored=("layernorm_*",)),
    "mistral": Spelling(defaults={"num_key_value_heads": 8}),
    "mixtral": Spelling(defaults={"num_key_value_heads": 8}),
    "mllama_text_model": Spelling(defaults={"num_key_value_heads": 8}),
    "mpt": Spelling(
        tied=True,
        renamed={
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
        },
        flattened=("attn_config",),
        ignored=("alibi_bias_max", "attn_*", "clip_qkv", "emb_pdrop", "embedding_fraction", "fc_type", "ffn_config",
                 "init_*", "learned_pos_emb", "logit_scale", "norm_type", "prefix_lm", "resid_pdrop", "softmax_scale",
                 "verbose", "tokenizer_name", "use_pad_tok_in_ffn"),
    ),
    "nanochat": Spelling(ignored=("final_logit_softcapping",)),
    "olmo": Spelling(ignored=("clip_qkv",)),
    "olmo_hybrid": Spelling(ignored=("linear_a_*", "linear_dt_*", "linear_allow_neg_eigval")),
    "olmoe": Spelling(ignored=("clip_qkv",)),
    "opt": Spelling(
        tied=True, renamed={"ffn_dim": "intermediate_size"}, ignored=("_remove_final_layer_norm", "init_std"),
    ),
    "phimoe": Spelling(ignored=("input_jitter_noise", "lm_head_bias"), defaults={"num_key_value_heads": 8}),
    "qwen": Spelling(
        renamed={"kv_channels": "head_dim"},
        ignored=("bf16", "fp16", "fp32", "onnx_safe", "scale_attn_weights", "use_dynamic_ntk", "use_logn_attn",
                 "use_cache_*", "softmax_in_fp32", "tokenizer_type", "attn_dropout_prob", "emb_dropout_prob"),
    ),
    "qwen2_moe": Spelling(
        renamed={"qkv_bias": "attention_bias"}, defaults={"attention_bias": True, "num_key_value_heads": 16}
    ),
    "qwen2_5_omni_text": Spelling(ignored=("init_std",)),
    "sarvam_moe": Spelling(
        renamed={"use_qkv_bias": "attention_bias", "n_routed_experts": "num_experts",
                 "n_shared_experts": "num_shared_experts"},
        defaults={"use_qk_norm": True, "num_shared_experts": 1},
        ignored=_LING,
    ),
    "stablelm": Spelling(
        renamed={"use_qkv_bias": "attention_bias", "rotary_pct": "partial_rotary_factor"},
        defaults={"partial_rotary_factor": 0.25},
    ),
    "starcoder2": Spelling(
        tied=True, renamed={"use_bias": "attention_bias", "norm_epsilon": "rms_norm_eps"},
        defaults={"attention_bias": True}, ignored=("mlp_type", "norm_type", "residual_dropout", "embedding_dropout"),
    ),
    "vaultgemma": Spelling(tied=True, defaults={"sliding_window": 512}),
    "youtu": Spelling(tied=True, ignored=("embedding_initializer_range",)),
    "smollm3": Spelling(tied=True, ignored=("no_rope_layer_interval",), defaults={"num_key_value_heads": 4}),
}  # fmt: skip

#: engines take as many KV heads as query heads where a config of these types states none: `None` in the configuration
#: class of transformers, or a layer of vLLM that reads no such field
_AS_MANY_KV_HEADS = (
    "afmoe", "apertus", "aquila", "arcee", "baichuan", "cohere", "cohere2", "cohere2_moe", "deepseek", "flex_olmo",
    "gpt_neox", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "internlm", "olmo_hybrid",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hyperclovax", "internlm2", "jais2", "llama", "minicpm",
    "minicpm3", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3",
)  # fmt: skip


def tied_by_default(model_type: str) -> bool:
    """Return True if an absent `tie_word_embeddings` ties the embedding.

    Examples
    --------
    >>> tied_by_default("cohere2"), tied_by_default("llama")
    (True, False)
    """
    return model_type in SPELLINGS and SPELLINGS[model_type].tied


def usual_fields(fields: ConfigFields, model_type: str, *, nested: bool = False) -> tuple[ConfigFields, list[str]]:
    """Return the fields in the usual spelling, and remarks on defaults.

    An absent field takes the library's value, unless a field of the file may be its misspelling. `nested`: the fields
    are those of a language model inside a multimodal config, which leaves out the library's values.

    Examples
    --------
    >>> usual_fields(ConfigFields({"num_layers": 40}), "chatglm")[0].whole("num_hidden_layers")
    40
    """
    spelling = SPELLINGS.get(model_type, Spelling())
    content = dict(fields.content)
    for name in spelling.flattened:
        part = content.pop(name, None)
        content |= dict(part) if isinstance(part, Mapping) else {}
    for own, usual in spelling.renamed.items():
        if content.get(own) is not None and content.get(usual) in (None, content[own]):
            content[usual] = content.pop(own)
    defaults = {**(_nested_defaults(model_type) if nested else {}), **spelling.defaults}
    heads = content.get("num_attention_heads", defaults.get("num_attention_heads"))
    if model_type in _AS_MANY_KV_HEADS and heads is not None:
        defaults["num_key_value_heads"] = heads
    result = ConfigFields(content, fields.file, fields.prefix)
    result.ignored = spelling.ignored
    notes = []
    for name, value in defaults.items():
        unknown = [key for key in content if not is_harmless(key) and key not in (name, *defaults)]
        # a field that is null is none of the library's values: a window that is null is no window
        absent = name not in content if nested and name not in spelling.defaults else content.get(name) is None
        if absent and not nearest(name, unknown, 1, alike=0.85):
            content[name] = value
            notes.append(f"the config states no {name}: {value} as the library takes it")
    return result, notes
