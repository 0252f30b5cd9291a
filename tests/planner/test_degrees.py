"""Parallel degrees that engines refuse, by the checks in their own sources."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.errors import SpecError
from glmplan.planner.layouts import layouts
from glmplan.planner.make_plan import fit_answer
from glmplan.planner.question import read_words
from glmplan.prediction.deployment import context_problem, experts_problem, split_problem
from glmplan.request.plan import PlanRequest


@pytest.mark.parametrize(
    ("model", "tp", "splits"),
    [
        # Mamba-2 with 8 groups, gated delta rule with 16 key heads, Kimi delta attention with 32 heads
        ("nemotron-3-super-120b-a12b", 8, True),
        ("nemotron-3-super-120b-a12b", 16, False),
        ("nemotron-nano-9b-v2", 8, True),
        ("qwen3.5-397b-a17b", 16, True),
        ("qwen3.5-397b-a17b", 32, False),
        ("kimi-linear-48b-a3b", 32, True),
    ],
)
def test_a_tp_degree_divides_the_heads_and_groups_of_recurrent_layers(model, tp, splits):
    assert (split_problem(load_model(model), tp, "vllm") is None) == splits


@pytest.mark.parametrize(
    ("model", "engine", "ep", "deals"),
    [
        ("glm-4.7", "vllm", 6, True),
        ("glm-4.7", "sglang", 6, False),
        ("glm-4.7", "trtllm", 6, False),
        ("glm-5.1-reap-154", "sglang", 8, False),
        ("glm-5.1-reap-160", "sglang", 8, True),
        # https://github.com/vllm-project/vllm/issues/52435
        ("deepseek-v4-flash", "vllm", 3, False),
        ("deepseek-v4-flash", "vllm", 4, True),
    ],
)
def test_experts_are_dealt_evenly_where_the_engine_asks_for_it(model, engine, ep, deals):
    assert (experts_problem(load_model(model), ep, engine) is None) == deals


@pytest.mark.parametrize(
    ("model", "tp", "dcp", "engine", "version", "divides"),
    [
        ("deepseek-v3.1", 8, 8, "vllm", None, True),
        ("qwen3-235b-a22b", 8, 2, "vllm", None, True),  # 4 KV heads
        ("qwen3-235b-a22b", 8, 4, "vllm", None, False),
        ("qwen3-235b-a22b", 8, 2, "vllm", "0.11.0", False),
        ("deepseek-v3.1", 8, 8, "vllm", "0.11.0", True),
        ("deepseek-v3.1", 8, 8, "vllm", "0.10.1", False),
        ("llama-3.1-70b", 8, 2, "vllm", None, False),
        ("gpt-oss-120b", 8, 1, "vllm", None, True),
        ("gpt-oss-120b", 16, 2, "vllm", None, False),  # windows
        ("deepseek-v4-flash", 8, 2, "vllm", None, False),  # windows beside compressed entries
        ("qwen3.5-397b-a17b", 8, 2, "vllm", "0.20.0", False),  # 2 KV heads beside states
        ("qwen3.5-397b-a17b", 8, 2, "vllm", "0.26.0", True),
        ("deepseek-v3.1", 8, 2, "sglang", "0.5.15", False),
        ("deepseek-v3.1", 8, 2, "sglang", "0.5.23", True),
        ("deepseek-v3.1", 8, 2, "trtllm", None, False),
        ("deepseek-v3.1", 8, 2, "llama.cpp", None, False),
    ],
)
def test_ranks_divide_cached_tokens_where_they_hold_the_same_heads(model, tp, dcp, engine, version, divides):
    assert (context_problem(load_model(model), tp, dcp, engine, version) is None) == divides


def test_a_search_leaves_out_uneven_experts_and_says_so():
    found, left_out = layouts(read_words(PlanRequest("glm-4.7-fp8", "6xh200-sxm", engine="sglang")))
    assert all(160 % ep == 0 for _, _, _, ep, _ in found)
    assert any("160 experts" in line for line in left_out)


@pytest.mark.parametrize(
    "words",
    [
        {"dp": 6, "tp": 1, "ep": 6, "model": "deepseek-v4-flash", "on": "6xrtx-pro-6000-ws"},
        {"tp": 8, "dcp": 2, "model": "llama-3.1-70b", "on": "8xh100-sxm"},
        {"dcp": 2, "model": "llama-3.1-70b", "on": "8xh100-sxm"},
        {"tp": 16, "model": "nemotron-3-ultra-550b-a55b", "on": "16xh200-sxm"},
        {"dp": 4, "model": "qwen3-30b-a3b-q4_k_m", "on": "4xrtx-3090", "engine": "llama.cpp"},
        {"tp": 4, "ep": 4, "model": "qwen3-30b-a3b-q4_k_m", "on": "4xrtx-3090", "engine": "llama.cpp"},
    ],
)
def test_explicit_degrees_that_an_engine_refuses_are_an_error(words):
    with pytest.raises(SpecError):
        layouts(read_words(PlanRequest(**words)))


def test_a_format_taken_instead_of_one_that_does_not_start_names_the_reason():
    answer = fit_answer(PlanRequest("glm-4.7-flash", "5xrtx-3090", tp=5), changes=False)
    note = next(one for one in answer.asked.assumed if one.startswith("weights "))
    assert answer.asked.checkpoint.name != "bf16" and "1,536 / 5" in note


@pytest.mark.parametrize(
    ("engine", "option"), [("vllm", "--decode-context-parallel-size 4"), ("sglang", "--dcp-size 4")]
)
def test_a_launch_command_states_the_ranks_that_divide_tokens(engine, option):
    words = PlanRequest("deepseek-v3.1-fp8", "8xh200-sxm", tp=8, dcp=4, engine=engine)
    assert option in " ".join(fit_answer(words, changes=False).command)
