"""Small configs that the tests write themselves, in the words of real ones."""

from __future__ import annotations

GLM_5_1 = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 12288,
    "num_nextn_predict_layers": 1,
    "vocab_size": 154880,
    "max_position_embeddings": 202752,
    "tie_word_embeddings": False,
}
GLM_5_2 = {
    **GLM_5_1,
    "head_dim": 192,
    "max_position_embeddings": 1048576,
    "indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
#: modelopt's list for GLM-5.1: layers 0, 1, 2 and 78, attention and shared experts stay in BF16
GLM_5_1_NVFP4 = {
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": [
            "lm_head",
            "model.layers.0*",
            "model.layers.1.*",
            "model.layers.2.*",
            "model.layers.78*",
            *(f"model.layers.{layer}.self_attn*" for layer in range(3, 78)),
            *(f"model.layers.{layer}.mlp.shared_experts*" for layer in range(3, 78)),
        ],
    }
}
