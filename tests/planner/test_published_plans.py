"""Plans that people published or that the arithmetic of the published sizes demands."""

from __future__ import annotations

import pytest

from glmplan.planner import fit_answer
from glmplan.request.plan import PlanRequest


def plan(model, on, **words):
    return fit_answer(PlanRequest(model, on, **words))


def test_glm_51_nvfp4_fits_six_96_gb_cards_at_tp2_pp3():
    """Field report of April 2026: GLM-5.1 NVFP4 on six RTX PRO 6000, TP 2 PP 3, in service for days."""
    answer = plan("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine_version="0.19.0")
    assert answer.verdict == "fits"
    terms = answer.holding.terms
    assert (terms.tp, terms.pp, terms.dp) == (2, 3, 1)
    assert not terms.sparse and not terms.graphs, "stock vLLM attends densely there, and the report ran eager"
    assert any(one.name == "vllm-no-sparse-mla-on-sm120" for one in answer.warnings)


def test_glm_51_nvfp4_does_not_fit_four_96_gb_cards_and_says_by_how_much():
    answer = plan("glm-5.1-nvfp4", "4xrtx-pro-6000-ws")
    assert answer.verdict == "does_not_fit"
    # 434 GiB on four cards are 108 GiB each, of 95 GiB
    assert 15 * 2**30 < answer.holding.short < 40 * 2**30
    assert answer.users == () and answer.command == ()


def test_what_works_instead_is_computed_when_nothing_fits():
    changes = {one.name: one for one in plan("glm-5.1-nvfp4", "4xrtx-pro-6000-ws").changes}
    assert changes["accelerators"].what.startswith("6 ×")
    assert changes["accelerators"].verdict == "fits"
    assert changes["model"].what.startswith("glm-5.1-reap-192")
    assert changes["accelerators"].user_rate > 0


def test_reap_160_fits_four_96_gb_cards_with_200k_tokens_of_fp8_cache():
    """The workstation guide's plan: REAP-160 NVFP4 on four RTX PRO 6000, 200k context, FP8 cache."""
    answer = plan("glm-5.1-reap-160", "4xrtx-pro-6000-ws", context="200000", kv="fp8")
    assert answer.verdict in ("fits", "tight")
    assert answer.holding.pool.tokens >= 200_000
    assert answer.context >= 200_000


def test_glm_51_fp8_needs_eight_b200():
    assert plan("glm-5.1-fp8", "8xb200-sxm").verdict == "fits"
    assert plan("glm-5.1-fp8", "4xb200-sxm").verdict == "does_not_fit"


@pytest.mark.parametrize(("kv", "users"), [("bf16", 64), ("fp8", 72)])
def test_glm_51_fp8_on_eight_h200_is_short_of_cache_at_users_of_9k(kv, users):
    """0.92 × 139.91 GiB leave 36 beside 89.0 of weights, 1.0 of the sampler, 0.86 outside torch and 1.38 for graphs.

    64 × 9,216 tokens are 589,824 and BF16 takes 100 kB a token on every TP rank; 72 are 663,552 and FP8 takes 61 kB.
    """
    answer = plan("glm-5.1-fp8", "8xh200-sxm", tp="8", users=str(users), input="8192", output="1024", kv=kv)
    assert answer.verdict == "tight"
    assert answer.holding.held < users
    assert answer.users[0].running < users
    assert f"of the {users} requests" in answer.headline


def test_the_layout_chosen_for_eight_h200_holds_them():
    answer = plan("glm-5.1-fp8", "8xh200-sxm", users="64", input="8192", output="1024")
    assert answer.verdict == "fits"
    assert answer.holding.held >= 64
    assert answer.users[0].running == 64


def test_a_cache_that_holds_all_in_the_mean_only_says_so():
    asked = {"kv": "bf16", "input": "8192", "output": "1024", "tp": "2", "dp": "4"}
    plans = ((users, plan("glm-5.1-fp8", "8xh200-sxm", users=str(users), **asked)) for users in range(72, 128, 2))
    users, answer = next((users, answer) for users, answer in plans if answer.verdict != "fits")
    assert answer.verdict == "tight"
    assert answer.holding.held_low < users <= answer.holding.held
    assert f"only {answer.holding.held_low:,.0f} " in answer.headline


def test_a_layout_that_is_short_of_cache_names_one_that_holds_more():
    answer = plan("glm-5.1-fp8", "8xh200-sxm", kv="bf16", users="128", input="8192", output="1024")
    assert answer.verdict == "tight"
    assert any(one.name == "layout" and one.pool_tokens > answer.holding.pool.tokens for one in answer.changes)


def test_a_config_file_gives_the_same_plan_as_the_catalogue(tmp_path):
    import json

    # the fields of zai-org/GLM-5.1 config.json that decide shapes
    config = {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
        "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 154880,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 2048, "kv_lora_rank": 512,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32,
        "index_head_dim": 128, "index_topk": 2048, "num_nextn_predict_layers": 1, "max_position_embeddings": 202752,
        "tie_word_embeddings": False, "moe_layer_freq": 1,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    mine, known = plan(str(path), "8xb200-sxm"), plan("glm-5.1-bf16", "8xb200-sxm")
    assert mine.verdict == known.verdict == "does_not_fit"
    assert mine.holding.short == pytest.approx(known.holding.short, rel=1e-6)
