"""Shapes of model families, with the number of parameters that another program counts.

The shapes are examples of each family, not facts about a published model. Totals are the parameters and persistent
buffers of the model that Hugging Face transformers 5.24.0 builds from the same config on the meta device
(`AutoModelForCausalLM.from_config`). Families outside transformers are counted by `layers` and `vocabulary` below, as
vLLM's `chatglm.py`, `minicpm.py`, `bailing_moe.py`, `grok1.py` and `baichuan.py` and the tensor lists of `gguf` 0.19.0
name their parts. Totals of 28 repositories, as the wheel llmfit 1.1.17 carries their counters, are among them or follow
from the same keys to the last weight, such as Command R, Seed-OSS-36B, EXAONE-4.0-32B, Hunyuan-A13B and Granite-4.0-H.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Counted(NamedTuple):
    """Config of a family and the number of its parameters."""

    config: dict[str, Any]
    total: int
    within: float = 0.0  # relative, where vectors are left out


def experts(hidden: int, count: int, inner: int) -> int:
    """Return the weights of a router and its gated experts."""
    return hidden * count + 3 * hidden * count * inner


def layers(count: int, hidden: int, *, heads: tuple[int, int, int], ffn: int, bias: int = 0, norms: int = 2) -> int:
    """Return the weights of layers: query heads, KV heads and their width."""
    query, kv, width = heads
    return count * (2 * hidden * width * (query + kv) + ffn + bias + norms * hidden)


def vocabulary(words: int, hidden: int, matrices: int) -> int:
    """Return the weights of embedding, head and last norm."""
    return matrices * words * hidden + hidden


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

FAMILIES: dict[str, Counted] = {
    "phi3 40x5120": Counted(fields("phi3", (5120, 40, 40, 10, 17920, 100352), **_UNTIED), 14659507200),
    "phi3 32x3072": Counted(
        fields("phi3", (3072, 32, 32, 32, 8192, 32064), sliding_window=2047, **_UNTIED), 3821079552),
    "phi3 32x3072 of 8192": Counted(
        fields("phi3", (3072, 32, 24, 8, 8192, 200064), tie_word_embeddings=True), 3836021760),
    # norms and the head have biases, which are not counted here
    "phimoe 32x4096": Counted(
        fields("phimoe", (4096, 32, 32, 8, 6400, 32064), num_local_experts=16, num_experts_per_tok=2,
               attention_bias=True, lm_head_bias=True, sliding_window=131072, **_UNTIED), 41873153344, 2e-6),
    "gemma2 26x2304": Counted(fields("gemma2", (2304, 26, 8, 4, 9216, 256000), head_dim=256), 2614341888),
    "gemma2 42x3584": Counted(fields("gemma2", (3584, 42, 16, 8, 14336, 256000), head_dim=256), 9241705984),
    "gemma2 46x4608": Counted(fields("gemma2", (4608, 46, 32, 16, 36864, 256000), head_dim=128), 27227128320),
    # one scale for each layer is not counted
    "gemma4_text 35x1536": Counted(
        fields("gemma4_text", (1536, 35, 8, 1, 6144, 262144), global_head_dim=512, num_kv_shared_layers=20,
               use_double_wide_mlp=True, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7, **_GEMMA_E),
        4628569344, 2e-6),
    "gemma4_text 42x2560": Counted(
        fields("gemma4_text", (2560, 42, 8, 2, 10240, 262144), global_head_dim=512, num_kv_shared_layers=18,
               layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 7, **_GEMMA_E), 7463013376, 2e-6),
    "gemma3n_text 35x2048": Counted(
        fields("gemma3n_text", (2048, 35, 8, 2, 0, 262400), num_kv_shared_layers=15, altup_num_inputs=4,
               laurel_rank=64, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7, **_GEMMA_E)
        | {"intermediate_size": [16384] * 35}, 6835235568, 2e-6),
    "cohere 40x8192": Counted(fields("cohere", (8192, 40, 64, 64, 22528, 256000)), 34980831232),
    "cohere 64x12288": Counted(
        fields("cohere", (12288, 64, 96, 8, 33792, 256000), use_qk_norm=True), 103810674688),
    "cohere2 32x4096": Counted(
        fields("cohere2", (4096, 32, 32, 8, 14336, 256000), sliding_window=4096, sliding_window_pattern=4), 8028033024),
    "cohere2 64x12288": Counted(
        fields("cohere2", (12288, 64, 96, 8, 36864, 256000), head_dim=128, sliding_window=4096,
               sliding_window_pattern=4, logit_scale=0.25), 111057580032),
    "granitemoehybrid 40x4096": Counted(
        fields("granitemoehybrid", (4096, 40, 32, 8, 768, 100352), shared_intermediate_size=1536, num_local_experts=72,
               num_experts_per_tok=10, mamba_n_heads=128, **_GRANITE), 32207337984),
    "granitemoehybrid 40x1536": Counted(
        fields("granitemoehybrid", (1536, 40, 12, 4, 512, 100352), shared_intermediate_size=1024, num_local_experts=64,
               num_experts_per_tok=6, mamba_n_heads=48, **_GRANITE), 6939037248),
    "granite 40x4096": Counted(
        fields("granite", (4096, 40, 32, 8, 12800, 49159), tie_word_embeddings=True), 8170864640),
    "falcon_h1 44x3072": Counted(
        fields("falcon_h1", (3072, 44, 12, 2, 12288, 130048), mamba_n_heads=24, mamba_d_ssm=3072, **_FALCON),
        7585513568),
    "jamba 32x4096": Counted(
        fields("jamba", (4096, 32, 32, 8, 14336, 65536), num_experts=16, num_experts_per_tok=2, mamba_dt_rank=256,
               mamba_d_state=16, mamba_expand=2, attn_layer_period=8, attn_layer_offset=4, expert_layer_period=2,
               expert_layer_offset=1, **_UNTIED), 51570323328),
    "hunyuan_v1_moe 32x4096": Counted(
        fields("hunyuan_v1_moe", (4096, 32, 32, 8, 3072, 128167), num_experts=64, moe_topk=[8] * 32, head_dim=128,
               num_shared_expert=[1] * 32, moe_intermediate_size=[3072] * 32, use_qk_norm=True, use_mla=False,
               kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, v_head_dim=128, tie_word_embeddings=True),
        80393183232),
    "dots1 62x4096": Counted(
        fields("dots1", (4096, 62, 32, 32, 10944, 152064), moe_intermediate_size=1408, n_routed_experts=128,
               topk_method="noaux_tc", **_DEEPSEEK), 142774381696),
    "olmo2 32x4096": Counted(fields("olmo2", (4096, 32, 32, 32, 11008, 100352), **_UNTIED), 7298617344),
    "olmo2 40x5120": Counted(fields("olmo2", (5120, 40, 40, 40, 13824, 100352), **_UNTIED), 13716198400),
    "olmoe 16x2048": Counted(
        fields("olmoe", (2048, 16, 16, 16, 1024, 50304), num_experts=64, num_experts_per_tok=8, **_UNTIED), 6919161856),
    "chatglm 40x4096": Counted(
        {
            "model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32,
            "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696,
            "padded_vocab_size": 151552, "seq_length": 131072, "add_qkv_bias": True, "add_bias_linear": False,
            "rope_ratio": 500, **_UNTIED,
        }, layers(40, 4096, heads=(32, 2, 128), ffn=3 * 4096 * 13696, bias=4096 + 2 * 256)
        + vocabulary(151552, 4096, 2)),
    "glm4 40x4096": Counted(
        fields("glm4", (4096, 40, 32, 2, 13696, 151552), head_dim=128, partial_rotary_factor=0.5,
               attention_bias=True, **_UNTIED), 9400279040),
    "seed_oss 64x5120": Counted(
        fields("seed_oss", (5120, 64, 80, 8, 27648, 155136), head_dim=128, attention_bias=True,
               attention_out_bias=False, **_UNTIED), 36151104512),
    "exaone4 64x5120": Counted(
        fields("exaone4", (5120, 64, 40, 8, 27392, 102400), head_dim=128, sliding_window=4096,
               sliding_window_pattern="LLLG", **_UNTIED), 32003216384),
    "exaone4 30x2048": Counted(
        fields("exaone4", (2048, 30, 32, 8, 4096, 102400), head_dim=64, sliding_window=None,
               tie_word_embeddings=True), 1279391488),
    "exaone_moe 48x6144": Counted(
        fields("exaone_moe", (6144, 48, 64, 8, 18432, 153600), head_dim=128, moe_intermediate_size=2048,
               num_experts=128, num_experts_per_tok=8, num_shared_experts=1, first_last_k_dense_replace=1,
               sliding_window=128, sliding_window_pattern="LLLG", num_nextn_predict_layers=1, **_UNTIED),
        236571156352),
    "minimax_text_01 80x6144": Counted(
        fields("minimax_text_01", (6144, 80, 64, 8, 9216, 200064), head_dim=128, num_local_experts=32, rotary_dim=64,
               num_experts_per_tok=2, attn_type_list=([0] * 7 + [1]) * 10, postnorm=True, shared_intermediate_size=0,
               layernorm_mlp_alpha=3.5, **_UNTIED), 456089655296),
    "minicpm3 62x2560": Counted(
        fields("minicpm3", (2560, 62, 40, 40, 6400, 73448), q_lora_rank=768, kv_lora_rank=256, qk_nope_head_dim=64,
               qk_rope_head_dim=32, scale_emb=12, dim_model_base=256), 4073875968),
    "minicpm 32x4096": Counted(
        fields("minicpm", (4096, 32, 32, 2, 16384, 73448), scale_emb=12, dim_model_base=256, **_UNTIED),
        layers(32, 4096, heads=(32, 2, 128), ffn=3 * 4096 * 16384) + vocabulary(73448, 4096, 2)),
    "bailing_moe 28x2048": Counted(
        fields("bailing_moe", (2048, 28, 16, 4, 5632, 126464), num_experts=64, num_experts_per_tok=6,
               num_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=0, **_UNTIED),
        layers(28, 2048, heads=(16, 4, 128), ffn=experts(2048, 64, 1408) + 3 * 2048 * 2 * 1408)
        + vocabulary(126464, 2048, 2)),
    "bailing_moe_v2 20x2048": Counted(
        fields("bailing_moe_v2", (2048, 20, 16, 4, 5120, 157184), moe_intermediate_size=512, first_k_dense_replace=1,
               **_LING), layers(1, 2048, heads=(16, 4, 128), ffn=3 * 2048 * 5120, bias=256)
        + layers(19, 2048, heads=(16, 4, 128), ffn=experts(2048, 256, 512) + 256 + 3 * 2048 * 512, bias=256)
        + vocabulary(157184, 2048, 2)),
    "bailing_moe_v2 80x8192": Counted(
        fields("bailing_moe_v2", (8192, 80, 64, 8, 18432, 157184), moe_intermediate_size=2048, first_k_dense_replace=4,
               **_LING), layers(4, 8192, heads=(64, 8, 128), ffn=3 * 8192 * 18432, bias=256)
        + layers(76, 8192, heads=(64, 8, 128), ffn=experts(8192, 256, 2048) + 256 + 3 * 8192 * 2048, bias=256)
        + vocabulary(157184, 8192, 2)),
    # transformers' experts less the first matrices of the 256 that compute nothing; their rows of the router remain
    "longcat_flash 28x6144": Counted(
        {
            "model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
            "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "q_lora_rank": 1536, "n_routed_experts": 512,
            "moe_topk": 12, "zero_expert_num": 256, "zero_expert_type": "identity", "vocab_size": 131072,
            "max_position_embeddings": 131072, **_MLA,
        }, 741053585408 + 21504 - 28 * 256 * 2 * 2048 * 6144, 1e-4),
    "deepseek 28x2048": Counted(
        fields("deepseek", (2048, 28, 16, 16, 10944, 102400), n_routed_experts=64, moe_intermediate_size=1408,
               **_DEEPSEEK), layers(1, 2048, heads=(16, 16, 128), ffn=3 * 2048 * 10944)
        + layers(27, 2048, heads=(16, 16, 128), ffn=experts(2048, 64, 1408) + 3 * 2048 * 2 * 1408)
        + vocabulary(102400, 2048, 2)),
    "deepseek_v2 27x2048": Counted(
        fields("deepseek_v2", (2048, 27, 16, 16, 10944, 102400), q_lora_rank=None, n_routed_experts=64,
               moe_intermediate_size=1408, topk_method="greedy", **_MLA, **_DEEPSEEK), 15706484224),
    "deepseek_v2 60x5120": Counted(
        fields("deepseek_v2", (5120, 60, 128, 128, 12288, 102400), q_lora_rank=1536, n_routed_experts=160,
               moe_intermediate_size=1536, topk_method="group_limited_greedy", **_MLA, **_DEEPSEEK), 235741434880),
    "qwen2_moe 24x2048": Counted(
        fields("qwen2_moe", (2048, 24, 16, 16, 5632, 151936), num_experts=60, num_experts_per_tok=4,
               moe_intermediate_size=1408, shared_expert_intermediate_size=5632, **_UNTIED), 14315784192),
    "qwen2_moe 28x3584": Counted(
        fields("qwen2_moe", (3584, 28, 28, 4, 18944, 151936), num_experts=64, num_experts_per_tok=8,
               moe_intermediate_size=2560, shared_expert_intermediate_size=20480, **_UNTIED), 57408658944),
    "dbrx 40x6144": Counted(
        {
            "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
            "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_loss_weight": 0.05},
            **_UNTIED,
        }, 131596523520),
    "grok-1 64x6144": Counted(
        fields("grok-1", (6144, 64, 48, 8, 32768, 131072), num_experts=8, num_experts_per_tok=2, max_attn_value=30.0),
        layers(64, 6144, heads=(48, 8, 128), ffn=experts(6144, 8, 32768), norms=4) + vocabulary(131072, 6144, 1)),
    "smollm3 36x2048": Counted(
        fields("smollm3", (2048, 36, 16, 4, 11008, 128256), no_rope_layers=[1, 1, 1, 0] * 9), 3075098624),
    "internlm3 48x4096": Counted(
        fields("internlm3", (4096, 48, 32, 2, 10240, 128512), head_dim=128, qkv_bias=False, bias=False, **_UNTIED),
        8804241408),
    # gates of the cross-attention layers are not counted
    "mllama_text_model 40x4096": Counted(
        fields("mllama_text_model", (4096, 40, 32, 8, 14336, 128256),
               cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38], **_UNTIED), 9775192080, 2e-6),
    "lfm2 16x2048": Counted(
        fields("lfm2", (2048, 16, 32, 8, 12288, 65536), block_ff_dim=12288, conv_L_cache=3, conv_dim=2048,
               full_attn_idxs=[2, 5, 8, 10, 12, 14], block_multiple_of=256, block_ffn_dim_multiplier=1.0), 1170340608),
    "lfm2_moe 24x2048": Counted(
        fields("lfm2_moe", (2048, 24, 32, 8, 7168, 65536), moe_intermediate_size=1792, num_experts=32,
               num_experts_per_tok=4, num_dense_layers=2, use_expert_bias=True, conv_L_cache=3,
               layer_types=["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)]),
        8339930560),
    "ernie4_5_moe 54x8192": Counted(
        fields("ernie4_5_moe", (8192, 54, 64, 8, 28672, 103424), moe_intermediate_size=3584, moe_num_experts=64,
               moe_k=8, moe_num_shared_experts=0, moe_layer_start_index=3, moe_layer_end_index=53,
               moe_capacity=[64, 64, 64], **_UNTIED), 299484163264),
    "ernie4_5 18x1024": Counted(fields("ernie4_5", (1024, 18, 16, 2, 3072, 103424), head_dim=128), 360748032),
    "baichuan 40x5120": Counted(
        fields("baichuan", (5120, 40, 40, None, 13696, 125696), z_loss_weight=0, **_UNTIED)
        | {"max_position_embeddings": None, "model_max_length": 4096},
        layers(40, 5120, heads=(40, 40, 128), ffn=3 * 5120 * 13696) + vocabulary(125696, 5120, 2)),
    # the norms have a bias; that of the last is not counted
    "nemotron 32x4096": Counted(
        fields("nemotron", (4096, 32, 48, 8, 16384, 256000), head_dim=128, partial_rotary_factor=0.5, **_UNTIED),
        8271699968, 2e-6),
    # two values of each activation are not counted
    "apertus 32x4096": Counted(
        fields("apertus", (4096, 32, 32, 8, 21504, 131072), qk_norm=True, **_UNTIED), 8053338176, 2e-6),
    "falcon_h1 32x2560": Counted(
        fields("falcon_h1", (2560, 32, 10, 2, 6144, 65536), mamba_n_heads=32, mamba_d_ssm=4096, **_FALCON),
        3149256192),
}  # fmt: skip
