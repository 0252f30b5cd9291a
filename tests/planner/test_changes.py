"""Each line of "what would change it" is what running that plan prints; none is noise, and none stands twice."""

from __future__ import annotations

import math
import shlex

import pytest

from glmplan.errors import GlmplanError
from glmplan.planner import fit_answer
from glmplan.planner.ask import fit
from glmplan.planner.plan import LEAST_GAIN, evidence_words, gain_of
from glmplan.planner.question import read_words
from glmplan.planner.users import solve
from glmplan.present.answer_text import fit_text
from glmplan.present.first_screen import first_screen
from glmplan.request.plan import PlanRequest

#: questions whose answers have changes of many kinds: by users, by cache, of another engine, of fewer and of more cards
QUESTIONS = (
    PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"),
    PlanRequest("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", input=180_000, output=1000, users="1,20"),
    PlanRequest("llama-3.1-8b", "1xrtx-4090"),
    PlanRequest("llama-3.1-70b-fp8", "2xh100-sxm", users="64", context=32_768),
    PlanRequest("gpt-oss-120b", "8xh100-sxm"),
    PlanRequest("glm-5.1-nvfp4", "4xrtx-pro-6000-ws"),
    PlanRequest("qwen3-30b-a3b", "2xrtx-4090"),
    PlanRequest("qwen3-30b-a3b-2507-fp8", "1xrtx-5090", users="4"),
    PlanRequest("qwen3-235b-a22b-fp8", "4xh200-sxm", engine="sglang"),
    PlanRequest("llama-3.1-70b", "4xa100-80gb-sxm", users="32"),
    PlanRequest("glm-5.1-fp8", "8xmi355x", input=8192, output=1024),
    PlanRequest("gpt-oss-120b", "1xstrix-halo", engine="llama.cpp", input=1024, output=256),
    PlanRequest("deepseek-v3.1", "8xb200-sxm", engine="trtllm"),
)


@pytest.fixture(scope="module")
def answers():
    return [(words, fit_answer(words)) for words in QUESTIONS]


def asked_for(words: PlanRequest, ask: str) -> PlanRequest:
    """The question with the words of a change put in."""
    if not ask.startswith("--"):
        return words.but(model=ask, weights=None)
    options = shlex.split(ask)
    changed = {name[2:].replace("-", "_"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    return words.but(**changed)


def test_each_change_is_what_running_its_words_prints(answers):
    compared = 0
    for words, answer in answers:
        for change in answer.changes:
            if not change.ask:
                continue
            found = fit_answer(asked_for(words, change.ask))
            what = (words, change)
            assert found.verdict == change.verdict, what
            assert found.holding.terms.name == change.layout, what
            assert found.holding.pool.tokens == pytest.approx(change.pool_tokens, rel=1e-9), what
            assert found.holding.held_low == pytest.approx(change.held, rel=1e-9), what
            assert found.user_rate == pytest.approx(change.user_rate, rel=1e-9), what
            assert found.total_rate == pytest.approx(change.total_rate, rel=1e-9), what
            compared += 1
    assert compared > 10


def test_options_of_a_change_name_the_format_where_another_one_would_be_chosen():
    # FP8 on two cards because BF16 does not meet the question there; three cards alone would be planned in BF16
    [more] = [one for one in fit_answer(PlanRequest("qwen3-30b-a3b", "2xrtx-4090")).changes if "--on" in one.ask]
    assert more.ask == "--on 3xrtx-4090 --weights fp8"
    # BF16 stays on four cards; on three of them FP8 would be chosen
    few = fit_answer(PlanRequest("qwen3-32b", "4xa100-40gb-sxm", users="32")).changes
    assert "--on 3xa100-40gb-sxm --weights bf16" in [one.ask for one in few]
    # where the default meets the question, nothing is added
    asks = [one.ask for one in few if one.name == "engine"]
    assert "--engine trtllm" in asks


def test_changes_are_ranked_by_gain_and_none_gains_less_than_a_repeated_run_differs_by(answers):
    for words, answer in answers:
        if answer.verdict == "does_not_fit":
            assert all(one.verdict != "does_not_fit" for one in answer.changes)
            continue
        gains = [gain_of(answer, one) for one in answer.changes if one.name != "fewer"]
        assert gains == sorted(gains, reverse=True), words
        assert all(gain >= LEAST_GAIN for gain in gains), words


def test_no_change_stands_twice(answers):
    for words, answer in answers:
        asks = [one.ask or one.what for one in answer.changes]
        assert len(asks) == len(set(asks)), words


def test_a_change_on_other_evidence_says_what_it_rests_on(answers):
    other = 0
    for _, answer in answers:
        text = " ".join(fit_text(answer, 200).split())
        for change in answer.changes:
            said = evidence_words(answer, change)
            other += bool(said)
            assert not said or said in text
    assert other


def test_the_fewest_are_the_fewest():
    """An NVL72 named 64 where 3 hold the model: of many accelerators not every number is a layout that is looked at."""
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "gb200-nvl72"))
    [fewest] = [one for one in answer.changes if one.name == "fewer"]
    number = int(fewest.what.rsplit(" ", 1)[-1])
    asked = read_words(PlanRequest("glm-5.1-nvfp4", "gb200-nvl72"))
    for count in range(1, number):
        try:
            less = solve(asked.but(machine=asked.machine.with_count(count)), quick=True)
        except GlmplanError:
            continue
        assert less.best.verdict != "fits", count


def test_fewer_requests_are_no_gain(answers):
    for _, answer in answers:
        for change in answer.changes:
            if change.name == "context" and change.verdict == answer.verdict:
                assert change.held > answer.holding.held_low


def test_experts_in_nvfp4_do_not_fit_where_the_engine_has_no_kernels_for_them():
    """They "fitted" MI355X, with packages to install that only NVIDIA's parts can run."""
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "8xmi355x"))
    assert answer.verdict == "does_not_fit"
    assert not any("deep_gemm" in one.title for one in answer.warnings)
    assert answer.changes and answer.changes[0].ask == "--weights fp8"


def test_where_no_user_is_safe_other_engines_are_looked_at():
    """0 safe users on one engine where another serves many on the same card, and was not mentioned."""
    words = PlanRequest("gpt-oss-120b", "1xstrix-halo", engine="vllm", input=8192, output=1024)
    answer = fit_answer(words)
    assert answer.safe.users == 0
    [engine] = [one for one in answer.changes if one.ask.startswith("--engine llama.cpp")]
    found = fit_answer(asked_for(words, engine.ask))
    assert found.safe.users == engine.safe > 0
    assert f"{engine.safe} safe users instead of 0" in " ".join(first_screen(answer, 200).split())


def test_where_a_plan_is_tight_other_engines_are_looked_at():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", input=180_000, output=1000, users="1,20"))
    assert answer.verdict == "tight"
    assert any(one.name == "engine" for one in answer.changes)


def test_a_larger_share_of_the_memory_is_tried_before_more_is_bought_and_not_where_one_was_typed(answers):
    [(words, answer)] = [pair for pair in answers if pair[0].model == "qwen3-30b-a3b-2507-fp8"]
    assert answer.verdict == "does_not_fit"
    [change] = [one for one in answer.changes if one.name == "memory"]
    assert change.ask == "--memory-fraction 0.97" and change.verdict in ("tight", "fits")
    assert change.pool_tokens >= 2560  # a whole request in the mean
    typed = fit_answer(PlanRequest("qwen3-30b-a3b-2507-fp8", "1xrtx-5090", users="4", memory_fraction="0.93"))
    assert not [one for one in typed.changes if one.name == "memory"]


def test_many_small_cards_are_not_the_only_machine():
    """64 RTX 4090 were all that was named for a model that eight larger cards hold."""
    answer = fit_answer(PlanRequest("deepseek-v3.1", "4xrtx-4090", users="20", input=32_000, output=1000))
    assert answer.verdict == "does_not_fit"
    assert [one for one in answer.changes if one.name == "machine"]


#: questions without a change of machine, format or engine of their own that fits
NOWHERE = (
    PlanRequest(
        "minimax-m2.7", "4xrtx-5080", weights="exl3-3.0bpw", engine="llama.cpp"
    ),  # the engine does not read the file
    PlanRequest("deepseek-v3.1-nvfp4", "1xrx-6900-xt", engine="trtllm"),  # the engine runs on other vendors' GPUs
    PlanRequest("glm-4.6", "4xgaudi-3", engine="trtllm"),  # another engine and format on the same machine
    PlanRequest("glm-5.3", "1xm3-max"),  # on no Apple machine
    PlanRequest("llama-3.1-405b-nvfp4", "1xm5", engine="mlx"),
    PlanRequest("inkling", "8xw7900", weights="bf16", engine="mlx"),
    PlanRequest("glm-5.1", "1xh100-sxm", users="2", tp=1),
    PlanRequest("kimi-k3", "2xh100-sxm"),  # its usual format is the smallest
    PlanRequest("kimi-k2-thinking", "1xrtx-5090", input=100_000, output=2000),
    PlanRequest("glm-5.1-reap-154", "1xtpu-v7", weights="bf16", kv="fp8", memory_fraction="0.8"),
)


@pytest.mark.parametrize("words", NOWHERE, ids=lambda one: f"{one.model} on {one.on}")
def test_what_does_not_fit_names_a_machine_or_format_that_does(words):
    answer = fit_answer(words)
    assert answer.verdict == "does_not_fit"
    change = answer.changes[0]
    assert change.verdict in ("fits", "tight")
    assert len({one.ask or one.what for one in answer.changes}) == len(answer.changes)
    if words.tp is not None:  # a layout is for its machine
        assert change.ask == ""
        return
    found = fit_answer(asked_for(words, change.ask))
    assert (found.verdict, found.holding.terms.name) == (change.verdict, change.layout)
    assert found.user_rate == pytest.approx(change.user_rate, rel=1e-9)
    assert found.total_rate == pytest.approx(change.total_rate, rel=1e-9)


@pytest.mark.parametrize("part", ["rx-7900-xtx", "w7900", "rx-6900-xt"])
def test_no_change_names_weights_that_the_engine_is_not_known_to_run(part):
    answer = fit_answer(PlanRequest("qwen3-8b", part, weights="awq-int4", users=(1,)))
    assert answer.changes and not any(one.ask.startswith("--weights fp8") for one in answer.changes)
    given = fit_answer(PlanRequest("qwen3-8b", part, weights="fp8", users=(1,)), changes=False)
    assert any(one.severity == "unknown" for one in given.warnings)


def test_a_layout_that_serves_the_users_asked_for_better_is_named_with_its_probability():
    question = {"input": 2065, "output": 1512, "engine": "sglang"}
    few, many = (fit("gemma-3-27b", "8xh100-sxm", users=(users,), **question) for users in (4, 100))
    assert few.safe.users == many.safe.users < 100
    other = next(change for change in many.changes if change.name == "layout")
    alone = fit("gemma-3-27b", "8xh100-sxm", users=(100,), tp=4, dp=2, **question)
    assert (other.safe, other.chance) == (alone.safe.users, alone.safe.chance_of(100))
    assert other.safe >= 100 and other.chance > many.safe.chance_of(100) and gain_of(many, other) == math.inf


def test_a_layout_that_is_faster_for_one_user_is_named_with_its_safe_users():
    answer = fit("glm-4.6-fp8", "8xh100-sxm")
    other = next(change for change in answer.changes if change.name == "layout")
    assert other.user_rate > 1.1 * answer.user_rate and 0 < other.safe < answer.safe.users
