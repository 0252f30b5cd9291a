"""Layouts that split quantisation blocks: the search leaves them out, and one that is asked for is refused."""

from __future__ import annotations

import pytest

from glmplan.errors import SpecError
from glmplan.planner import fit_answer
from glmplan.planner.layouts import layouts
from glmplan.planner.question import read_words
from glmplan.planner.users import solve
from glmplan.request.plan import PlanRequest


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (PlanRequest("minimax-m2.7-fp8", "8xh200-sxm", engine="sglang", tp=8), (8, 8)),
        (PlanRequest("minimax-m2.5-fp8", "8xh200-sxm", tp=8), (8, 8)),
        (PlanRequest("qwen3-235b-a22b-fp8", "8xh100-sxm", tp=8, engine_version="0.9.0"), (8, 8)),
        (PlanRequest("qwen3-235b-a22b-fp8", "8xh100-sxm", tp=8), (8, 8)),
    ],
)
def test_a_plan_takes_the_next_layout_that_loads_and_says_what_the_other_splits(words, chosen):
    answer = fit_answer(words)
    terms = answer.holding.terms
    assert answer.verdict == "fits" and (terms.tp, terms.ep) == chosen
    assert any(text.startswith("TP8×PP1: mlp.experts") and "1,536 / 8 = 192" in text for text in answer.left_out)


def test_no_layout_of_a_plan_splits_a_block_where_others_do_not():
    solution = solve(read_words(PlanRequest("minimax-m2.7-fp8", "8xh200-sxm", engine="sglang")))
    cut = {one.holding.terms.tp * one.holding.terms.dp // one.holding.terms.ep for one in solution.ranked}
    assert cut and all(1536 % (128 * ranks) == 0 for ranks in cut)
    assert solution.best.verdict == "fits"


@pytest.mark.parametrize(
    ("words", "binds", "options"),
    [
        (
            PlanRequest("minimax-m2.7-fp8", "8xh200-sxm", engine="sglang", tp=8, ep=1),
            "1,536 / 8 = 192",
            ("--tp 8 --ep 8", "--tp 4 --ep 1"),
        ),
        (PlanRequest("qwen3.6-35b-a3b-fp8", "8xh100-sxm", tp=8), "512 / 8 = 64", ("--tp 4 --ep 1",)),
        (
            PlanRequest("qwen3-30b-a3b-fp8", "4xh100-sxm", tp=4, ep=1, engine_version="0.28.0"),
            "768 / 4 = 192",
            ("--tp 4 --ep 4", "--tp 2 --ep 1"),
        ),
        (
            PlanRequest("qwen3-30b-a3b-awq-int4", "8xa100-80gb-sxm", tp=8, ep=1),
            "768 / 8 = 96",
            ("--tp 8 --ep 8", "--tp 2 --ep 1"),
        ),
    ],
)
def test_a_layout_that_is_asked_and_does_not_load_is_infeasible_and_names_the_nearest_that_does(words, binds, options):
    answer = fit_answer(words)
    assert answer.verdict == "does_not_fit" and not answer.command and not answer.users
    assert binds in answer.headline
    do = next(text for text in answer.reasons if text.startswith("do: "))
    assert all(option in do for option in options)
    assert "split-quantisation-block" in {one.name for one in answer.warnings}


def test_advice_against_expert_parallelism_does_not_split_blocks():
    """Over PCIe SGLang's limitation advises TP; with TP8 the experts of MiniMax-M2.7 do not load."""
    answer = fit_answer(PlanRequest("minimax-m2.7-fp8", "8xrtx-pro-6000-server", engine="sglang", tp=8))
    assert answer.verdict == "fits" and answer.holding.terms.ep == 8


def test_a_part_that_is_loaded_in_another_way_is_planned_where_it_is_asked_and_warned_of():
    asked = PlanRequest("minimax-m2.7-fp8", "8xh200-sxm", tp=8, ep=1, engine_version="0.29.0")
    answer = fit_answer(asked)
    assert answer.verdict == "fits" and answer.holding.terms.ep == 1
    assert "refined-quantisation-block" in {one.name for one in answer.warnings}


@pytest.mark.parametrize(("engine", "loads"), [("vllm", False), ("sglang", False), ("trtllm", True)])
def test_a_degree_that_does_not_divide_the_padded_vocabulary_is_no_layout_where_the_engine_needs_it(engine, loads):
    # 96 heads of Kimi-K3 split over three ranks, 163,840 rows do not
    tps = {layout[0] for layout in layouts(read_words(PlanRequest("kimi-k3", "6xb300-sxm", engine=engine)))[0]}
    assert (3 in tps) == loads and {1, 2} <= tps
    if not loads:
        with pytest.raises(SpecError, match=r"--tp: 3 does not divide the vocabulary .*163,840.*nearest: 1, 2, 4"):
            read_words(PlanRequest("kimi-k3", "6xb300-sxm", engine=engine, tp=3))
