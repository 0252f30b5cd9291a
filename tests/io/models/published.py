"""Published sizes of models whose families were added from their shapes.

Totals are the counters of the repositories' weight files, field `parameters_raw` of the list in the wheel llmfit
1.1.17, less what the comment of a row names. Shapes: `configuration_*.py` of Hugging Face transformers 5.24.0 and the
sources beside the rows.
"""

from __future__ import annotations

from typing import Any

from tests.io.models.families import _UNTIED, Counted, fields


def gpt(model_type: str, shape: tuple[int, int, int, int, int], **more: Any) -> dict[str, Any]:
    """Return a config with the names of GPT-2: width, layers, heads, context, vocabulary."""
    names = ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")
    return {"model_type": model_type, **dict(zip(names, shape, strict=True)), **more}


_NEOX = {"rotary_pct": 0.25, "use_parallel_residual": True, **_UNTIED}
_FALCON = {"alibi": False, "bias": False, "parallel_attn": True}
_NEW = {"new_decoder_architecture": True, "multi_query": True, **_FALCON}
_QWEN = {"kv_channels": 128, "seq_length": 8192, "no_bias": True, "rotary_pct": 1.0, **_UNTIED}
_TRINITY = {
    "head_dim": 128, "global_attn_every_n_layers": 4, "num_shared_experts": 1, "mup_enabled": True, "n_group": 1,
    "num_expert_groups": 1, "num_limited_groups": 1, "route_norm": True, "route_scale": 2.826, "score_func": "sigmoid",
    "topk_group": 1, "use_grouped_mm": True, **_UNTIED,
}  # fmt: skip
_LING = {
    "head_dim": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "use_qk_norm": True, "norm_topk_prob": True, "n_group": 8,
    "topk_group": 4, "moe_router_enable_expert_bias": True, "rope_interleave": True, **_UNTIED,
}  # fmt: skip
_LING_2 = {"num_experts": 256, "q_lora_rank": 1536, "group_norm_size": 8, **_LING}
_LING_3 = {
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "gated_attention_proj_granularity_type": "head_wise",
    **_LING,
}
_KINDS = (["sliding_attention"] * 3 + ["full_attention"]) * 7

PUBLISHED: dict[str, Counted] = {
    # the files of Falcon hold the tied embedding twice
    "tiiuae/falcon-7b": Counted(
        fields("falcon", (4544, 32, 71, None, None, 65024), multi_query=True, **_FALCON),
        7217189760 - 65024 * 4544),
    "tiiuae/falcon-11B": Counted(
        fields("falcon", (4096, 60, 32, None, None, 65024), num_kv_heads=8, num_ln_in_parallel_attn=1,
               ffn_hidden_size=16384, **_NEW, **_UNTIED), 11102822400),
    "tiiuae/falcon-40b": Counted(
        fields("falcon", (8192, 60, 128, None, None, 65024), num_kv_heads=8, **_NEW), 41835970560 - 65024 * 8192),
    "tiiuae/falcon-180B": Counted(
        fields("falcon", (14848, 80, 232, None, None, 65024), num_kv_heads=8, **_NEW), 179522565120 - 65024 * 14848),
    "projecte-aina/aguila-7b": Counted(
        {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "vocab_size": 50257,
         "multi_query": True, "apply_residual_connection_post_layernorm": False, **_FALCON}, 6854619456),
    # arXiv 2304.01373, table 1: the sizes of Pythia
    "EleutherAI/pythia-70m": Counted(fields("gpt_neox", (512, 6, 8, None, 2048, 50304), **_NEOX), 70426624),
    "EleutherAI/pythia-6.9b": Counted(fields("gpt_neox", (4096, 32, 32, None, 16384, 50432), **_NEOX), 6857302016),
    "EleutherAI/pythia-12b": Counted(fields("gpt_neox", (5120, 36, 40, None, 20480, 50688), **_NEOX), 11846072320),
    "stabilityai/stablelm-3b-4e1t": Counted(
        fields("stablelm", (2560, 32, 32, 32, 6912, 50304), use_qkv_bias=False, rotary_pct=0.25, **_UNTIED),
        2795443200),
    "stabilityai/stablelm-2-1_6b": Counted(
        fields("stablelm", (2048, 24, 32, 32, 5632, 100352), use_qkv_bias=True, partial_rotary_factor=0.25, **_UNTIED),
        1644515328),
    "stabilityai/stablelm-2-12b": Counted(
        fields("stablelm", (5120, 40, 32, 8, 13824, 100352), use_qkv_bias=False, qk_layernorm=True,
               use_parallel_residual=True, partial_rotary_factor=0.25, **_UNTIED), 12143185920),
    "Qwen/Qwen-1_8B": Counted(fields("qwen", (2048, 24, 16, None, 11008, 151936), **_QWEN), 1836828672),
    "Qwen/Qwen-7B": Counted(fields("qwen", (4096, 32, 32, None, 22016, 151936), **_QWEN), 7721324544),
    "Qwen/Qwen-72B": Counted(fields("qwen", (8192, 80, 64, None, 49152, 152064), **_QWEN), 72287920128),
    # https://internlm.readthedocs.io/en/latest/model_card/InternLM.html: 20 billion, 60 layers
    "internlm/internlm-20b": Counted(
        fields("internlm", (5120, 60, 40, None, 13824, 103168), bias=False, **_UNTIED), 20_000_000_000, 5e-3),
    "JetBrains/Mellum2-12B-A2.5B-Base": Counted(
        fields("mellum", (2304, 28, 32, 4, 7168, 98304), head_dim=128, num_experts=64, num_experts_per_tok=8,
               moe_intermediate_size=896, sliding_window=1024, use_sliding_window=True, layer_types=_KINDS,
               mlp_layer_types=["sparse"] * 28, **_UNTIED), 12149923072),
    "sarvamai/sarvam-30b": Counted(
        fields("sarvam_moe", (4096, 19, 64, 4, 8192, 262144), head_dim=64, num_experts=128, num_experts_per_tok=6,
               num_shared_experts=1, moe_intermediate_size=1024, first_k_dense_replace=1, use_qk_norm=True,
               use_qkv_bias=False, routed_scaling_factor=2.5, **_UNTIED), 32152650368),
    # aws-neuron/neuronx-distributed-inference, contrib/models/Trinity/test/unit/test_config.py
    "arcee-ai/Trinity-Nano-Preview": Counted(
        fields("afmoe", (1024, 56, 8, 2, 3072, 200192), moe_intermediate_size=256, num_dense_layers=2, num_experts=128,
               num_experts_per_tok=8, sliding_window=2048, **_TRINITY), 6120003328),
    "arcee-ai/Trinity-Mini": Counted(
        fields("afmoe", (2048, 32, 32, 4, 6144, 200192), moe_intermediate_size=1024, num_dense_layers=2,
               num_experts=128, num_experts_per_tok=8, sliding_window=2048, **_TRINITY), 26123974400),
    "arcee-ai/Trinity-Large-Preview": Counted(
        fields("afmoe", (3072, 60, 48, 8, 12288, 200192), moe_intermediate_size=3072, num_dense_layers=6,
               num_experts=256, num_experts_per_tok=4, sliding_window=4096, **_TRINITY), 398635286016),
    "CohereLabs/North-Mini-Code-1.0": Counted(
        fields("cohere2_moe", (2048, 49, 32, 4, 768, 262144), head_dim=128, prefix_dense_intermediate_size=3072,
               num_experts=128, num_experts_per_tok=8, num_shared_experts=0, first_k_dense_replace=1,
               prefix_dense_sliding_window_pattern=1, sliding_window=4096, expert_selection_fn="sigmoid",
               use_parallel_block=True), 30484303872),
    "poolside/Laguna-XS.2": Counted(
        fields("laguna", (2048, 40, 48, 8, 8192, 100352), head_dim=128, num_experts=256, num_experts_per_tok=8,
               moe_intermediate_size=512, shared_expert_intermediate_size=512, sliding_window=512, gating="per-head",
               mlp_only_layers=[0], mlp_layer_types=["dense"] + ["sparse"] * 39,
               layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 10,
               num_attention_heads_per_layer=[48, 64, 64, 64] * 10, **_UNTIED), 33442617088),
    "poolside/Laguna-S-2.1": Counted(
        fields("laguna", (3072, 48, 48, 8, 12288, 100352), head_dim=128, num_experts=256, num_experts_per_tok=10,
               moe_intermediate_size=1024, shared_expert_intermediate_size=1024, sliding_window=512, gating="per-head",
               gating_types=["per_head"] * 48, decoder_sparse_step=1, moe_router_logit_softcapping=0.0,
               moe_routed_scaling_factor=2.5, moe_apply_router_weight_on_input=False, mlp_only_layers=[0],
               layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 12,
               num_attention_heads_per_layer=[48, 72, 72, 72] * 12,
               rope_parameters={"full_attention": {"rope_type": "yarn", "factor": 128.0, "partial_rotary_factor": 0.5},
                                "sliding_attention": {"rope_type": "default", "partial_rotary_factor": 1.0}},
               **_UNTIED), 117561977600),
    "poolside/Laguna-M.1": Counted(
        fields("laguna", (4096, 70, 64, 8, 16384, 100352), head_dim=128, num_experts=256, num_experts_per_tok=16,
               moe_intermediate_size=1024, shared_expert_intermediate_size=1024, gating="per-element",
               mlp_layer_types=["dense"] * 3 + ["sparse"] * 67, **_UNTIED), 225795725568),
    "allenai/Olmo-Hybrid-7B": Counted(
        fields("olmo_hybrid", (3840, 32, 30, 30, 11008, 100352), linear_num_key_heads=30, linear_num_value_heads=30,
               linear_key_head_dim=96, linear_value_head_dim=192, linear_conv_kernel_dim=4,
               linear_allow_neg_eigval=True, layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 8,
               **_UNTIED), 7430870688),
    "ibm-ai-platform/Bamba-9B-v1": Counted(
        fields("bamba", (4096, 32, 32, 8, 14336, 128256), attn_layer_indices=[9, 18, 27], mamba_d_state=128,
               mamba_n_heads=128, mamba_d_head=64, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2,
               mamba_chunk_size=256, mamba_conv_bias=True, mamba_proj_bias=False, **_UNTIED), 9780235392),
    "inclusionAI/Ling-3.0-tiny": Counted(
        fields("bailing_hybrid", (1536, 24, 16, 16, 4608, 157184), num_experts=128, moe_intermediate_size=512,
               moe_shared_expert_intermediate_size=512, first_k_dense_replace=1, layer_group_size=4, q_lora_rank=256,
               **_LING_3), 7893392800),
    # with its MTP layer
    "inclusionAI/Ling-3.0-flash": Counted(
        fields("bailing_hybrid", (2560, 42, 32, 32, 6144, 157184), num_experts=512, moe_intermediate_size=768,
               moe_shared_expert_intermediate_size=768, first_k_dense_replace=2, layer_group_size=6, q_lora_rank=None,
               num_nextn_predict_layers=1, expert_swiglu_limit_list=[7.0] * 42,
               share_expert_swiglu_limit_list=[7.0] * 42, **_LING_3), 127486405600),
    # norms of queries and keys of the lightning layers are not counted
    "inclusionAI/Ring-2.5-1T": Counted(
        fields("bailing_hybrid", (8192, 80, 64, 64, 18432, 157184), moe_intermediate_size=2048,
               first_k_dense_replace=4, layer_group_size=8, **_LING_2), 1012231160320, 1e-7),
    "inclusionAI/Ling-2.6-flash": Counted(
        fields("bailing_hybrid", (4096, 32, 32, 32, 9216, 157184), moe_intermediate_size=1024, first_k_dense_replace=1,
               layer_group_size=8, num_nextn_predict_layers=1, **_LING_2), 107494409216, 1e-7),
    "Aleph-Alpha/Kolibri-1": Counted(
        fields("kolibri1", (2560, 50, 48, 4, None, 128000), head_dim=128, num_experts=384, num_experts_per_tok=6,
               moe_intermediate_size=512, shared_expert_intermediate_size=512, sliding_window=513, **_UNTIED),
        78103074560),
    # one norm of each layer with experts is not counted
    "skt/A.X-K1": Counted(
        fields("axk1", (7168, 61, 64, 64, 18432, 163840), q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
               qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=192, n_shared_experts=1, num_experts_per_tok=8,
               moe_intermediate_size=2048, first_k_dense_replace=1, **_UNTIED), 518983059456, 2e-6),
    # the counters of GPT-2 hold the masks of all layers
    "openai-community/gpt2": Counted(
        gpt("gpt2", (768, 12, 12, 1024, 50257), n_ctx=1024), 137022720 - 12 * 1024**2),
    "openai-community/gpt2-xl": Counted(
        gpt("gpt2", (1600, 48, 25, 1024, 50257), n_ctx=1024), 1607942848 - 48 * 1024**2),
    "bigcode/starcoderbase-1b": Counted(
        gpt("gpt_bigcode", (2048, 24, 16, 8192, 49152), n_inner=8192, multi_query=True), 1137207296),
    # the files hold the tied embedding twice
    "bigcode/starcoder": Counted(
        gpt("gpt_bigcode", (6144, 40, 48, 8192, 49152), n_inner=24576, multi_query=True), 15819446272 - 49152 * 6144),
    "AlphaOxO/GPT4All-J-MXFP4-mlx": Counted(
        gpt("gptj", (4096, 28, 16, 2048, 50400), n_inner=None, rotary_dim=64, **_UNTIED), 6050882784),
    "bigscience/bloom-560m": Counted(
        {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880}, 559214592),
    "bigscience/bloom": Counted(
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "seq_length": 2048,
         "vocab_size": 250880, "apply_residual_connection_post_layernorm": False}, 176247271424),
    "MayaPH/FinOPT-Washington (opt-125m)": Counted(
        {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072,
         "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768}, 125239296),
    "gl198976/mpt-7b-instruct": Counted(
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4, "vocab_size": 50432,
         "max_seq_len": 2048, "no_bias": True, "learned_pos_emb": True,
         "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention", "qk_ln": False}},
        6649286656),
    "kyutai/helium-1-preview-2b": Counted(
        fields("helium", (2560, 24, 20, 20, 7040, 48000), head_dim=128, **_UNTIED), 2172643840),
    "allenai/FlexOlmo-7x7B-1T": Counted(
        fields("flex_olmo", (4096, 32, 32, 32, 11008, 100352), num_experts=7, num_experts_per_tok=5, **_UNTIED),
        33270665216),
    # the last norm has no weights
    "Guilherme34/nanochat-d32-retrained-hf": Counted(
        fields("nanochat", (2048, 32, 16, 16, 8192, 65536), **_UNTIED), 1879048192 + 2048),
    "BAAI/Aquila2-34B": Counted(fields("aquila", (6144, 60, 48, 8, 24576, 143973), **_UNTIED), 34233796608),
}  # fmt: skip
