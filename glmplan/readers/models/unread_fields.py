"""Fields of a config that no reader asks for: without effect, to be named, or of a kind that may change a shape.

The names are those of the configs that people publish (111 were looked through) and of `PretrainedConfig` of
transformers, whose fields every older config repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["HARMLESS", "STRUCTURAL", "is_harmless", "may_be_a_shape"]

#: fields that change what a layer is made of; a config that sets one which its architecture does not read is refused
STRUCTURAL = (
    "attn_res_block_size",
    "block_configs",
    "compress_ratios",
    "conv_L_cache",
    "engram_layer_ids",
    "hc_count",
    "hc_mult",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_kpool",
    "index_topk",
    "indexer_budget",
    "kv_lora_rank",
    "kv_source_layer_ids",
    "kv_source_layers",
    "layer_types",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "moe_hidden_size",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_num_experts",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts",
    "num_hash_layers",
    "num_kv_shared_layers",
    "num_local_experts",
    "num_shared_experts",
    "o_lora_rank",
    "ple_layer_ids",
    "q_lora_rank",
    "routed_expert_hidden_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "sparse_attention_config",
    "ssm_state_size",
    "swa_num_key_value_heads",
    "use_double_wide_mlp",
    "v_head_dim",
)

#: why a field changes neither weights, nor cache, nor work → its names; `*` stands for anything
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "words of the tokenizer": (
        "*_token_id", "*_token_ids", "*_token_index", "bos_token", "eos_token", "pad_token", "unk_token", "sep_token",
        "cls_token", "*_words_ids", "*suppress_tokens", "*_placeholder", "tokenizer_class", "ignore_index",
        "max_image_tokens",
    ),
    "training only": (
        "*dropout*", "*_loss_coef", "*_loss_alpha", "*_loss_weight", "*_layerdrop", "initializer_*", "init_method*",
        "aux_loss_*", "seq_aux", "pretraining_tp", "router_jitter_noise", "rescale_prenorm_residual",
        "neftune_noise_alpha", "ep_size", "residual_in_fp32", "gradient_checkpointing", "seed", "embd_pdrop",
        "resid_pdrop", "attn_pdrop",
    ),
    "a number inside an elementwise step": (
        "*_eps", "*_epsilon", "hidden_act*", "*_hidden_act", "activation_*", "*_softcapping", "*_lower_bound",
        "swiglu_*", "*_scale_factor", "*_scaling_factor", "attention_value_scale", "output_multiplier",
        "hc_sinkhorn_iters", "hc_magnitude", "route_scale", "*_width_multiplier", "time_step_*",
        "query_pre_attn_scalar", "attn_scale", "floor_scale",
        "attn_temperature_tuning", "moe_router_activation_func", "output_gate_type", "use_gemma_norm", "use_conv_bias",
        "latent_moe_use_norm", "use_qk_norm", "qk_norm_type", "mhc",
    ),
    "how the experts of a token are chosen; how many it has stands elsewhere": (
        "n_group", "topk_group", "num_expert_group", "use_grouped_topk", "norm_topk_prob", "scoring_func",
        "score_func", "score_function", "topk_method", "moe_renormalize", "moe_router_dtype", "use_routing_bias",
    ),
    "positions turn queries and keys, whatever their base": (
        "rope_theta", "rope_local_base_freq", "rope_ratio", "rope_scaling", "rope_parameters", "rope_type",
        "rope_mode", "rope_interleave", "*_rope_theta", "rotary_*", "*partial_rotary_factor",
        "original_max_position_embeddings", "initial_context_length", "max_window_layers", "mrope_*", "use_mrope",
        "mla_use_nope", "*rope_interleave", "no_rope_*", "max_seq_len", "max_sequence_length", "model_max_length",
        "max_model_len",
    ),
    "how an indexer scores; what it reads and chooses stands elsewhere": (
        "index_kpool_always_select_tail", "index_kpool_compress", "index_share_for_mtp_iteration",
        "index_skip_topk_offset", "sparse_init_block", "sparse_local_block", "sparse_score_type",
        "sparse_disable_index_value", "use_sparse_attention", "engram_vocab_size", "engram_compressed_vocab_size",
        "engram_max_ngram_size",
    ),
    "said a second time by a field that is read": (
        "head_dim", "qk_head_dim", "num_key_value_heads", "intermediate_size", "expand", "first_k_dense_replace",
        "full_attention_interval", "full_attn_layers", "kda_layers", "mlp_only_layers", "sliding_window",
        "sliding_window_size", "attention_chunk_size", "experts_per_token", "expert_dtype", "linear_conv_kernel_dim",
        "linear_head_dim", "linear_num_heads", "time_step_rank", "vocab_size_per_layer_input", "use_mtp",
        "mtp_transformer_layers", "quantization_config", "quantization", "compression_config", "topk_experts",
    ),
    "how a library runs it": (
        "_*", "unsloth_*", "architectures", "model_type", "auto_map", "transformers_version", "*dtype", "use_cache",
        "base_model_*_plan", "output_attentions", "output_hidden_states", "output_activations", "output_router_logits",
        "output_scores", "return_dict*", "chunk_size", "use_mamba_kernels", "num_logits_to_keep",
        "attn_implementation", "use_flash_attn*", "torchscript", "moe_shared_expert_overlap", "cache_implementation",
        "for_llm_compressor", "use_bidirectional_attention", "name_or_path",
    ),
    "the way of an answer (older configs repeat the settings of generation)": (
        "do_sample", "top_k", "top_p", "typical_p", "temperature", "*_penalty", "num_beams", "num_beam_groups",
        "num_return_sequences", "*max_length", "min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "early_stopping", "use_bfloat16",
    ),
    "names of classes": ("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "prefix"),
    "a tower before the language model, which is counted from its own part": (
        "vision_*", "image_*", "img_*", "video_*", "projector_*", "mm_*", "multimodal_projector_*", "out_hidden_size",
        "process_image_mode", "use_unified_vision_chunk", "spatial_merge_size", "boi_*", "eoi_*",
    ),
}  # fmt: skip

_NAMES = frozenset(name for names in HARMLESS.values() for name in names if "*" not in name)
_PATTERNS = tuple(name for names in HARMLESS.values() for name in names if "*" in name)


def is_harmless(name: str) -> bool:
    """Return whether a field is known to change neither weights, nor cache, nor work.

    Parameters
    ----------
    name : str
        The field.

    Returns
    -------
    bool
        False of a field that is not known, and of one that changes what a layer is made of.

    Examples
    --------
    >>> is_harmless("rms_norm_eps"), is_harmless("num_memory_slots"), is_harmless("hc_mult")
    (True, False, False)
    """
    known = name in _NAMES or any(fnmatchcase(name, pattern) for pattern in _PATTERNS)
    return known and name not in STRUCTURAL


def may_be_a_shape(value: object) -> bool:
    """Return whether a value could count or widen something: a whole number of 2 or more, or any inside it.

    Parameters
    ----------
    value : object
        The value of a field, as JSON has it.

    Returns
    -------
    bool
        False of a switch, a text, a fraction and 1.

    Examples
    --------
    >>> may_be_a_shape(4096), may_be_a_shape({"layers": [0, 3]}), may_be_a_shape(True), may_be_a_shape(0.02)
    (True, True, False, False)
    """
    left: list[Any] = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, int | float) and not isinstance(one, bool) and one >= 2 and one == one // 1:
            return True
    return False
