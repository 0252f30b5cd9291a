"""What must hold for every plan, whatever the numbers of the fit are."""

from __future__ import annotations

import pytest

from glmplan.planner import fit_answer, read_words, solve
from glmplan.planner.layouts import layouts
from glmplan.planner.ranking import deployment_of, load_of
from glmplan.prediction.predict import predict_many
from glmplan.request.plan import PlanRequest

SIX = "6xrtx-pro-6000-ws"


def solution(model="glm-5.1-nvfp4", on=SIX, **words):
    return solve(read_words(PlanRequest(model, on, **words)))


@pytest.mark.xfail(
    # stages with the effects of the same cut without them err more where they were left out (mean error of the
    # logarithm 0.30 against 0.29 over four groups on RTX 3090), layouts with twice the spread of groups as much
    reason="the effect of a measured layout stays with it: the same with stages is 19 % faster (242 against 203 tok/s)",
    strict=True,
)
def test_pipeline_stages_do_not_make_one_user_faster():
    found = solution("llama-3.1-8b", "8xh100-sxm")
    speed = {
        (one.holding.terms.tp, one.holding.terms.pp): one.alone
        for one in found.ranked
        if one.alone and one.holding.terms.dp == 1
    }
    pairs = [(tp, pp) for tp, pp in speed if pp > 1 and (tp, 1) in speed]
    assert len(pairs) >= 3
    for tp, pp in pairs:
        # layouts that were measured have fitted effects of their own, a few per cent
        assert speed[tp, pp] <= speed[tp, 1] * 1.05


@pytest.mark.parametrize("model", ["glm-5.1-nvfp4", "qwen3-235b-a22b-fp8", "gemma-3-27b", "nemotron-nano-9b-v2"])
def test_more_memory_for_the_engine_never_makes_the_pool_smaller(model):
    pools = []
    for fraction in ("0.8", "0.85", "0.9", "0.95"):
        found = solution(model, SIX, tp="2", pp="3", memory_fraction=fraction)
        pools.append(found.best.pool.tokens)
    assert pools == sorted(pools)
    assert pools[-1] > pools[0]


def test_a_larger_card_never_holds_less():
    small = solution("llama-3.1-70b", "4xh100-sxm", tp="4", pp="1").best
    large = solution("llama-3.1-70b", "4xh200-sxm", tp="4", pp="1").best
    assert large.pool.tokens > small.pool.tokens and large.context > small.context


def test_users_see_no_more_speed_when_there_are_more_of_them():
    rows = fit_answer(PlanRequest("glm-5.1-nvfp4", SIX, users="1,2,4,8,16,32,64,128,256")).users
    rates = [row.user_rate.value for row in rows]
    assert all(later <= earlier * 1.02 for earlier, later in zip(rates, rates[1:], strict=False))
    contexts = [row.context for row in rows]
    assert contexts == sorted(contexts, reverse=True)


def test_every_figure_lies_inside_its_interval():
    answer = fit_answer(PlanRequest("qwen3-30b-a3b", "2xh100-sxm"))
    for row in answer.users:
        for figure in (row.ttft, row.tpot, row.user_rate, row.total_rate):
            assert 0 < figure.low < figure.value < figure.high
    assert answer.holding.pool.low <= answer.holding.pool.tokens <= answer.holding.pool.high


@pytest.mark.parametrize(
    "words",
    [
        PlanRequest("glm-5.1-nvfp4", SIX),
        # one user may wait longer than 10 s at the slow end, where three times as long once counted as safe
        PlanRequest("qwen3.5-397b-a17b-nvfp4", "4xrtx-pro-6000-ws", mtp="3", kv="fp8", users="1,8,32", input="32768"),
    ],
)
def test_safe_users_are_the_least_of_their_limits_and_not_more_than_expected(words):
    safe = fit_answer(words).safe
    assert safe.users == min(limit.users for limit in safe.limits)
    assert safe.users <= safe.expected
    assert safe.limit in {limit.name for limit in safe.limits}


def test_requests_wait_when_the_pool_is_full():
    answer = fit_answer(
        PlanRequest("glm-5.1-fp8", "8xh200-sxm", tp="8", kv="bf16", users="8,64", input="8192", output="1024")
    )
    few, many = answer.users
    assert few.running == 8 and many.running < 64
    assert many.ttft.value > 3 * few.ttft.value


def test_every_layout_divides_heads_and_stays_within_the_accelerators():
    asked = read_words(PlanRequest("glm-5.1-nvfp4", SIX))
    found, left_out = layouts(asked)
    assert all(64 % tp == 0 and tp * pp * dp <= 6 for tp, pp, dp, _, _ in found)
    assert {(2, 3), (1, 6), (1, 5)} <= {(tp, pp) for tp, pp, *_ in found}
    assert "TP3" in left_out[0]


def test_degrees_that_do_not_divide_heads_or_columns_are_not_looked_at():
    """Five ranks divide the 20 heads of GLM-4.7-Flash, not its 1,536 columns; three would cut KV heads of Llama."""
    flash = layouts(read_words(PlanRequest("glm-4.7-flash", "6xh100-sxm")))[0]
    assert {tp for tp, *_ in flash} == {1, 2, 4}
    assert {1, 2, 3, 4, 5, 6} == {pp for tp, pp, *_ in flash if tp == 1}
    llama = layouts(read_words(PlanRequest("llama-3.2-3b", "6xh100-sxm")))[0]
    assert {tp for tp, *_ in llama} == {1, 2, 4}


def test_what_was_asked_for_stays():
    found = solution(tp="1", pp="6", kv="bf16", eager=True, engine_version="0.19.0")
    assert all((one.holding.terms.tp, one.holding.terms.pp) == (1, 6) for one in found.ranked)
    assert found.best.terms.kv == "bf16" and not found.best.terms.graphs


def test_the_chosen_layout_is_predicted_with_its_own_pool():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", SIX, users="32"))
    deployment = deployment_of(answer.asked, answer.holding.terms)
    load = load_of(answer.asked, deployment, answer.holding.pool, 32)
    again = predict_many([(deployment, load, None)])[0]
    assert answer.users[0].total_rate.value == pytest.approx(again.figures["output_rate"].value)


def test_changes_are_computed_as_a_plan_of_their_own_would_be():
    answer = fit_answer(
        PlanRequest("glm-5.1-nvfp4", SIX, kv="bf16", users="1,128", input="4096", engine_version="0.19.0")
    )
    change = next(one for one in answer.changes if one.name == "kv")
    alone = fit_answer(
        PlanRequest("glm-5.1-nvfp4", SIX, kv="fp8", users="1,128", input="4096", engine_version="0.19.0")
    )
    assert change.pool_tokens == alone.holding.pool.tokens
    assert change.user_rate == pytest.approx(alone.users[0].user_rate.value)


def test_acceptance_may_be_a_chance_or_tokens_in_a_step():
    chance = read_words(PlanRequest("glm-5.1-fp8", "8xb200-sxm", mtp="3", acceptance="0.5"))
    length = read_words(PlanRequest("glm-5.1-fp8", "8xb200-sxm", mtp="3", acceptance="1.875"))
    assert chance.acceptance == length.acceptance == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_drafting_over_pipeline_stages_is_refused_by_the_wall_and_planned_without():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", SIX, mtp="3"))
    assert answer.holding.terms.mtp == 0
    wall = next(one for one in answer.warnings if one.name == "pipeline-with-mtp")
    assert "0 speculative tokens" in wall.applied


def test_advice_that_the_question_overrules_is_not_said_to_be_followed():
    answer = fit_answer(PlanRequest("glm-5.1-fp8", "hgx-b200-8", mtp="3"))
    assert answer.holding.terms.mtp == 3
    wall = next(one for one in answer.warnings if one.name == "glm51-ids-outside-vocabulary")
    assert wall.applied == ""
