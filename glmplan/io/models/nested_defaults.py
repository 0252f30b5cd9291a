"""Tell the values that a nested config leaves out.

transformers writes a language model inside a multimodal config without the fields that have the value of their
configuration class (`PreTrainedConfig.to_diff_dict`), so that `google/gemma-3-4b-it` states 5 of its shapes. The values
are those of `configuration_*.py` of Hugging Face transformers 5.24.0. A config at the top level states its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["nested_defaults"]

_NAMES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "sliding_window",
)  # fmt: skip
#: model_type → values of `_NAMES`; None: the class computes it or has no such field
_SHAPES: Mapping[str, tuple[int | None, ...]] = {
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
_MORE: Mapping[str, Mapping[str, Any]] = {
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


def nested_defaults(model_type: str) -> dict[str, Any]:
    """Return the shapes of a nested language model that states none.

    Examples
    --------
    >>> shapes = nested_defaults("gemma3_text")
    >>> shapes["num_attention_heads"], shapes["vocab_size"]
    (8, 262208)
    >>> nested_defaults("an unknown type")
    {}
    """
    shapes = zip(_NAMES, _SHAPES.get(model_type, ()), strict=False)
    return {name: value for name, value in shapes if value is not None} | dict(_MORE.get(model_type, {}))
