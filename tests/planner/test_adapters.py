"""Low-rank adapters in a plan: memory, speed, evidence, launch, and what is refused."""

from __future__ import annotations

import pytest

from glmplan.errors import SpecError
from glmplan.planner import fit_answer
from glmplan.request.plan import PlanRequest
from glmplan.units import GIB

LLAMA = {"model": "llama-3.1-8b", "on": "1xh100-sxm", "users": (1, 32)}


@pytest.fixture(scope="module")
def plain():
    return fit_answer(PlanRequest(**LLAMA))


@pytest.fixture(scope="module")
def adapted():
    return fit_answer(PlanRequest(**LLAMA, lora=8, lora_rank=16))


def test_buffers_of_all_adapters_are_taken_from_the_cache(plain, adapted):
    size = adapted.ranks[0].weights["adapters"]
    assert size == 8 * 41_943_040 * 2
    lost = plain.ranks[0].cache - adapted.ranks[0].cache
    assert lost == pytest.approx(size, rel=0.01)
    assert size / GIB < 1


def test_steps_take_longer_by_what_is_read_and_launched_and_no_one_says_it_was_measured(plain, adapted):
    one, other = plain.one_user, adapted.one_user
    read = 41_943_040 * 2 / 3.35e12  # one user names one adapter
    assert other.tpot.value > one.tpot.value + read
    assert other.tpot.value < 1.5 * one.tpot.value
    assert other.tpot.high / other.tpot.value > 0.999 * one.tpot.high / one.tpot.value
    assert adapted.knowledge == "adapters"
    assert any("no run with adapters" in text for text in adapted.asked.assumed)


def test_the_launch_says_how_many_adapters_and_of_which_rank(adapted):
    assert "--enable-lora --max-loras 8 --max-lora-rank 16" in " ".join(adapted.command)
    other = fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm", engine="sglang", lora=8, lora_rank=12))
    assert "--max-loras-per-batch 8 --max-lora-rank 12" in " ".join(other.command)


def test_a_rank_that_has_no_buffers_takes_the_next_larger_ones(adapted):
    found = fit_answer(PlanRequest(**LLAMA, lora=8, lora_rank=12))
    assert found.ranks[0].weights["adapters"] == adapted.ranks[0].weights["adapters"]
    assert any("buffers of rank 16" in text for text in found.asked.assumed)


def test_experts_with_adapters_are_not_dealt_where_the_engine_has_none_of_such():
    found = fit_answer(PlanRequest("qwen3-30b-a3b", "4xh100-sxm", lora=2))
    assert found.holding.terms.ep == found.holding.terms.dp == 1
    assert all("EP" not in one.layout and "DP" not in one.layout for one in found.runners)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"lora_rank": 16}, "needs --lora"),
        ({"lora": 4, "lora_rank": 600}, "above the largest adapter rank of vllm"),
        ({"lora": 4, "engine": "llama.cpp", "weights": "q4_k_m"}, "was not read|not modelled"),
        ({"lora": 10**9}, "more than 4,096"),
    ],
)
def test_what_no_source_shows_is_refused_in_words(words, said):
    with pytest.raises(SpecError, match=said):
        fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm", **words))


def test_adapters_of_experts_are_refused_before_the_release_that_has_them():
    with pytest.raises(SpecError, match="0.11.2 or newer"):
        fit_answer(PlanRequest("qwen3-30b-a3b", "1xh100-sxm", engine_version="0.11.0", lora=2))
