"""Published configs of model families, with the published number of parameters.

Shapes are the fields of `config.json` of the named Hugging Face repository; a number with all digits is the total of
the Hub's safetensors metadata of that repository, a rounded one that of the model card.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """Config of a repository and its published total."""

    config: dict[str, Any]
    total: int
    within: float = 0.0  # relative, for totals that the publisher rounds or that count towers, too


def fields(model_type: str, shape: tuple[int, int, int, int | None, int, int], **more: Any) -> dict[str, Any]:
    """Return a config: hidden size, layers, heads, KV heads, inner width, vocabulary."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
             "vocab_size")  # fmt: skip
    stated = {name: value for name, value in zip(names, shape, strict=True) if value is not None}
    return {"model_type": model_type, "max_position_embeddings": 131072, **stated, **more}


_UNTIED = {"tie_word_embeddings": False}
_GRANITE = {
    "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_head": 64, "mamba_expand": 2, "mamba_d_conv": 4,
    "mamba_chunk_size": 256, "mamba_conv_bias": True, "tie_word_embeddings": True, "position_embedding_type": "nope",
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
}  # fmt: skip
_FALCON = {
    "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_head": 128, "mamba_expand": 2, "mamba_d_conv": 4,
    "mamba_chunk_size": 128, "head_dim": 128, **_UNTIED,
}  # fmt: skip
_LING = {
    "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "use_qk_norm": True,
    "moe_router_enable_expert_bias": True, "norm_head": False, **_UNTIED,
}  # fmt: skip
_GEMMA_E = {
    "head_dim": 256, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "sliding_window": 512,
}  # fmt: skip
_DEEPSEEK = {
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    **_UNTIED,
}
_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

FAMILIES: dict[str, Published] = {
    "microsoft/phi-4": Published(fields("phi3", (5120, 40, 40, 10, 17920, 100352), **_UNTIED), 14659507200),
    "microsoft/Phi-3-mini-4k-instruct": Published(
        fields("phi3", (3072, 32, 32, 32, 8192, 32064), sliding_window=2047, **_UNTIED), 3821079552),
    "microsoft/Phi-4-mini-instruct": Published(
        fields("phi3", (3072, 32, 24, 8, 8192, 200064), tie_word_embeddings=True), 3836021760),
    # the total counts the biases of head and last norm
    "microsoft/Phi-3.5-MoE-instruct": Published(
        fields("phimoe", (4096, 32, 32, 8, 6400, 32064), num_local_experts=16, num_experts_per_tok=2,
               attention_bias=True, lm_head_bias=True, sliding_window=131072, **_UNTIED), 41873153344, 1e-6),
    "google/gemma-2-2b": Published(fields("gemma2", (2304, 26, 8, 4, 9216, 256000), head_dim=256), 2614341888),
    "google/gemma-2-9b-it": Published(fields("gemma2", (3584, 42, 16, 8, 14336, 256000), head_dim=256), 9241705984),
    "google/gemma-2-27b-it": Published(fields("gemma2", (4608, 46, 32, 16, 36864, 256000), head_dim=128), 27227128320),
    # without the towers for images and sound: the model card's 5.1 B and 8 B count both
    "google/gemma-4-E2B-it": Published(
        fields("gemma4_text", (1536, 35, 8, 1, 6144, 262144), global_head_dim=512, num_kv_shared_layers=20,
               use_double_wide_mlp=True, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7, **_GEMMA_E),
        5100000000, 0.10),
    "google/gemma-4-E4B-it": Published(
        fields("gemma4_text", (2560, 42, 8, 2, 10240, 262144), global_head_dim=512, num_kv_shared_layers=18,
               layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 7, **_GEMMA_E), 8000000000, 0.07),
    # llama.cpp pull request 14400 prints 6.87 B for the text model, with keys and values of layers that share a cache
    "google/gemma-3n-E4B-it": Published(
        fields("gemma3n_text", (2048, 35, 8, 2, 0, 262400), num_kv_shared_layers=15, altup_num_inputs=4,
               laurel_rank=64, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7, **_GEMMA_E)
        | {"intermediate_size": [16384] * 35}, 6870000000, 0.006),
    "CohereForAI/c4ai-command-r-v01": Published(fields("cohere", (8192, 40, 64, 64, 22528, 256000)), 34980831232),
    "CohereForAI/c4ai-command-r-plus": Published(
        fields("cohere", (12288, 64, 96, 8, 33792, 256000), use_qk_norm=True), 103810674688),
    "CohereForAI/c4ai-command-r7b-12-2024": Published(
        fields("cohere2", (4096, 32, 32, 8, 14336, 256000), sliding_window=4096, sliding_window_pattern=4), 8028033024),
    "CohereForAI/c4ai-command-a-03-2025": Published(
        fields("cohere2", (12288, 64, 96, 8, 36864, 256000), head_dim=128, sliding_window=4096,
               sliding_window_pattern=4, logit_scale=0.25), 111057580032),
    "ibm-granite/granite-4.0-h-small": Published(
        fields("granitemoehybrid", (4096, 40, 32, 8, 768, 100352), shared_intermediate_size=1536, num_local_experts=72,
               num_experts_per_tok=10, mamba_n_heads=128, **_GRANITE), 32207337984),
    "ibm-granite/granite-4.0-h-tiny": Published(
        fields("granitemoehybrid", (1536, 40, 12, 4, 512, 100352), shared_intermediate_size=1024, num_local_experts=64,
               num_experts_per_tok=6, mamba_n_heads=48, **_GRANITE), 6939037248),
    "ibm-granite/granite-3.3-8b-instruct": Published(
        fields("granite", (4096, 40, 32, 8, 12800, 49159), tie_word_embeddings=True), 8170864640),
    "tiiuae/Falcon-H1-7B-Instruct": Published(
        fields("falcon_h1", (3072, 44, 12, 2, 12288, 130048), mamba_n_heads=24, mamba_d_ssm=3072, **_FALCON),
        7590000000, 0.002),
    "ai21labs/Jamba-v0.1": Published(
        fields("jamba", (4096, 32, 32, 8, 14336, 65536), num_experts=16, num_experts_per_tok=2, mamba_dt_rank=256,
               mamba_d_state=16, mamba_expand=2, attn_layer_period=8, attn_layer_offset=4, expert_layer_period=2,
               expert_layer_offset=1, **_UNTIED), 51570323328),
    "tencent/Hunyuan-A13B-Instruct": Published(
        fields("hunyuan_v1_moe", (4096, 32, 32, 8, 3072, 128167), num_experts=64, moe_topk=[8] * 32, head_dim=128,
               num_shared_expert=[1] * 32, moe_intermediate_size=[3072] * 32, use_qk_norm=True, use_mla=False,
               kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, v_head_dim=128, tie_word_embeddings=True),
        80393183232),
    "rednote-hilab/dots.llm1.inst": Published(
        fields("dots1", (4096, 62, 32, 32, 10944, 152064), moe_intermediate_size=1408, n_routed_experts=128,
               topk_method="noaux_tc", **_DEEPSEEK), 142774381696),
    "allenai/OLMo-2-1124-7B": Published(fields("olmo2", (4096, 32, 32, 32, 11008, 100352), **_UNTIED), 7298617344),
    "allenai/OLMo-2-1124-13B": Published(fields("olmo2", (5120, 40, 40, 40, 13824, 100352), **_UNTIED), 13716198400),
    "allenai/OLMoE-1B-7B-0924": Published(
        fields("olmoe", (2048, 16, 16, 16, 1024, 50304), num_experts=64, num_experts_per_tok=8, **_UNTIED), 6919161856),
    "THUDM/glm-4-9b-chat": Published(
        {
            "model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32,
            "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696,
            "padded_vocab_size": 151552, "seq_length": 131072, "add_qkv_bias": True, "add_bias_linear": False,
            "rope_ratio": 500, **_UNTIED,
        }, 9399951360),
    "THUDM/GLM-4-9B-0414": Published(
        fields("glm4", (4096, 40, 32, 2, 13696, 151552), head_dim=128, partial_rotary_factor=0.5,
               attention_bias=True, **_UNTIED), 9400279040),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": Published(
        fields("seed_oss", (5120, 64, 80, 8, 27648, 155136), head_dim=128, attention_bias=True,
               attention_out_bias=False, **_UNTIED), 36151104512),
    "LGAI-EXAONE/EXAONE-4.0-32B": Published(
        fields("exaone4", (5120, 64, 40, 8, 27392, 102400), head_dim=128, sliding_window=4096,
               sliding_window_pattern="LLLG", **_UNTIED), 32003216384),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": Published(
        fields("exaone4", (2048, 30, 32, 8, 4096, 102400), head_dim=64, sliding_window=None,
               tie_word_embeddings=True), 1279391488),
    # the model card says 236 B
    "LGAI-EXAONE/K-EXAONE-236B-A23B": Published(
        fields("exaone_moe", (6144, 48, 64, 8, 18432, 153600), head_dim=128, moe_intermediate_size=2048,
               num_experts=128, num_experts_per_tok=8, num_shared_experts=1, first_last_k_dense_replace=1,
               sliding_window=128, sliding_window_pattern="LLLG", num_nextn_predict_layers=1, **_UNTIED),
        236000000000, 0.005),
    "MiniMaxAI/MiniMax-Text-01": Published(
        fields("minimax_text_01", (6144, 80, 64, 8, 9216, 200064), head_dim=128, num_local_experts=32, rotary_dim=64,
               num_experts_per_tok=2, attn_type_list=([0] * 7 + [1]) * 10, postnorm=True, shared_intermediate_size=0,
               layernorm_mlp_alpha=3.5, **_UNTIED), 456089655296),
    # the model cards say 4 B and 8 B
    "openbmb/MiniCPM3-4B": Published(
        fields("minicpm3", (2560, 62, 40, 40, 6400, 73448), q_lora_rank=768, kv_lora_rank=256, qk_nope_head_dim=64,
               qk_rope_head_dim=32, scale_emb=12, dim_model_base=256), 4000000000, 0.02),
    "openbmb/MiniCPM4-8B": Published(
        fields("minicpm", (4096, 32, 32, 2, 16384, 73448), scale_emb=12, dim_model_base=256, **_UNTIED),
        8000000000, 0.03),
    "inclusionAI/Ling-lite": Published(
        fields("bailing_moe", (2048, 28, 16, 4, 5632, 126464), num_experts=64, num_experts_per_tok=6,
               num_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=0, **_UNTIED), 16801974272),
    "inclusionAI/Ling-mini-2.0": Published(
        fields("bailing_moe_v2", (2048, 20, 16, 4, 5120, 157184), moe_intermediate_size=512, first_k_dense_replace=1,
               **_LING), 16255643392),
    "inclusionAI/Ling-1T": Published(
        fields("bailing_moe_v2", (8192, 80, 64, 8, 18432, 157184), moe_intermediate_size=2048, first_k_dense_replace=4,
               **_LING), 1000000000000, 0.001),
    # the model card says 560 B
    "meituan-longcat/LongCat-Flash-Chat": Published(
        {
            "model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
            "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "q_lora_rank": 1536, "n_routed_experts": 512,
            "moe_topk": 12, "zero_expert_num": 256, "zero_expert_type": "identity", "vocab_size": 131072,
            "max_position_embeddings": 131072, **_MLA,
        }, 560000000000, 0.002),
    "deepseek-ai/deepseek-moe-16b-chat": Published(
        fields("deepseek", (2048, 28, 16, 16, 10944, 102400), n_routed_experts=64, moe_intermediate_size=1408,
               **_DEEPSEEK), 16375728128),
    "deepseek-ai/DeepSeek-V2-Lite": Published(
        fields("deepseek_v2", (2048, 27, 16, 16, 10944, 102400), q_lora_rank=None, n_routed_experts=64,
               moe_intermediate_size=1408, topk_method="greedy", **_MLA, **_DEEPSEEK), 15706484224),
    "deepseek-ai/DeepSeek-V2": Published(
        fields("deepseek_v2", (5120, 60, 128, 128, 12288, 102400), q_lora_rank=1536, n_routed_experts=160,
               moe_intermediate_size=1536, topk_method="group_limited_greedy", **_MLA, **_DEEPSEEK), 235741434880),
    "Qwen/Qwen1.5-MoE-A2.7B": Published(
        fields("qwen2_moe", (2048, 24, 16, 16, 5632, 151936), num_experts=60, num_experts_per_tok=4,
               moe_intermediate_size=1408, shared_expert_intermediate_size=5632, **_UNTIED), 14315784192),
    "Qwen/Qwen2-57B-A14B": Published(
        fields("qwen2_moe", (3584, 28, 28, 4, 18944, 151936), num_experts=64, num_experts_per_tok=8,
               moe_intermediate_size=2560, shared_expert_intermediate_size=20480, **_UNTIED), 57400000000, 0.001),
    "databricks/dbrx-instruct": Published(
        {
            "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
            "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_loss_weight": 0.05},
            **_UNTIED,
        }, 131596523520),
    # https://x.ai/news/grok-os says 314 B; `run.py` of xai-org/grok-1 makes 315.7 B with one embedding
    "xai-org/grok-1": Published(
        fields("grok-1", (6144, 64, 48, 8, 32768, 131072), num_experts=8, num_experts_per_tok=2, max_attn_value=30.0),
        314000000000, 0.006),
    "HuggingFaceTB/SmolLM3-3B": Published(
        fields("smollm3", (2048, 36, 16, 4, 11008, 128256), no_rope_layers=[1, 1, 1, 0] * 9), 3075098624),
    "internlm/internlm3-8b-instruct": Published(
        fields("internlm3", (4096, 48, 32, 2, 10240, 128512), head_dim=128, qkv_bias=False, bias=False, **_UNTIED),
        8800000000, 0.001),
    # 8 cross-attention layers of 218 M beside Llama-3.1-8B and 8 more rows of the embedding; the image tower apart
    "meta-llama/Llama-3.2-11B-Vision-Instruct": Published(
        fields("mllama_text_model", (4096, 40, 32, 8, 14336, 128256),
               cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38], **_UNTIED), 9775190000, 1e-6),
    "LiquidAI/LFM2-1.2B": Published(
        fields("lfm2", (2048, 16, 32, 8, 12288, 65536), block_ff_dim=12288, conv_L_cache=3, conv_dim=2048,
               full_attn_idxs=[2, 5, 8, 10, 12, 14], block_multiple_of=256, block_ffn_dim_multiplier=1.0), 1170340608),
    # without the biases of the routers, which are no parameters there
    "LiquidAI/LFM2-8B-A1B": Published(
        fields("lfm2_moe", (2048, 24, 32, 8, 7168, 65536), moe_intermediate_size=1792, num_experts=32,
               num_experts_per_tok=4, num_dense_layers=2, use_expert_bias=True, conv_L_cache=3,
               layer_types=["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)]),
        8339929856, 1e-6),
    "baidu/ERNIE-4.5-300B-A47B-PT": Published(
        fields("ernie4_5_moe", (8192, 54, 64, 8, 28672, 103424), moe_intermediate_size=3584, moe_num_experts=64,
               moe_k=8, moe_num_shared_experts=0, moe_layer_start_index=3, moe_layer_end_index=53,
               moe_capacity=[64, 64, 64], **_UNTIED), 300000000000, 0.002),
    "baidu/ERNIE-4.5-0.3B-PT": Published(fields("ernie4_5", (1024, 18, 16, 2, 3072, 103424), head_dim=128), 360748032),
    "baichuan-inc/Baichuan2-13B-Chat": Published(
        fields("baichuan", (5120, 40, 40, None, 13696, 125696), z_loss_weight=0, **_UNTIED)
        | {"max_position_embeddings": None, "model_max_length": 4096}, 13896668160),
    # `intermediate_size` of Minitron-8B; the model card says 8.27 B
    "nvidia/Minitron-8B-Base": Published(
        fields("nemotron", (4096, 32, 48, 8, 16384, 256000), head_dim=128, partial_rotary_factor=0.5, **_UNTIED),
        8270000000, 0.001),
    # the total counts two values of each activation
    "swiss-ai/Apertus-8B-2509": Published(
        fields("apertus", (4096, 32, 32, 8, 21504, 131072), qk_norm=True, **_UNTIED), 8053338176, 1e-7),
    "tiiuae/Falcon-H1-3B-Instruct": Published(
        fields("falcon_h1", (2560, 32, 10, 2, 6144, 65536), mamba_n_heads=32, mamba_d_ssm=4096, **_FALCON),
        3150000000, 0.001),
}  # fmt: skip
