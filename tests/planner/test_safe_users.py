"""The safe number of users: places in the engine, and a slow end that promises no more than the mean."""

from __future__ import annotations

import re

import numpy as np
import pytest

from glmplan.planner import fit_answer, read_words, solve
from glmplan.planner.ask import fit
from glmplan.planner.ranking import deployment_of, load_of
from glmplan.planner.traffic_search import described_under
from glmplan.planner.users import (
    chance_within,
    count_users,
    grid_of,
    peers_of,
    predictions_of,
    ranked_layouts,
    safe_number,
    safe_users,
    user_table,
)
from glmplan.prediction.predict import Figure, Prediction
from glmplan.request.plan import PlanRequest
from glmplan.simulation.load_trial import try_load
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic


def plan(dp: int, users: str = "1"):
    lengths = {"input": "64", "output": "64"}
    asked = read_words(
        PlanRequest("llama-3.1-8b", f"{dp}xh200-sxm", tp="1", pp="1", dp=str(dp), users=users, **lengths)
    )
    return asked, solve(asked).best


def prediction(wait: float, slowest: float) -> Prediction:
    quick = Figure(0.01, 0.009, 0.011)
    figures = {"ttft": Figure(wait, wait / 2, slowest), "tpot": quick, "output_rate": Figure(1.0, 1.0, 1.0)}
    return Prediction(figures, {}, 1.0, "engine", "", "")


def test_every_replica_brings_its_own_places():
    """2 x 1,024 requests of vLLM run at once where one replica takes 1,024, in table, limit and prediction alike."""
    places = []
    for dp in (1, 2):
        asked, holding = plan(dp, users="4096")
        found = {4096: prediction(0.1, 0.2)}
        load = load_of(asked, deployment_of(asked, holding.terms), holding.pool, 4096)
        assert holding.held > 2048
        [queue] = [one for one in safe_users(asked, holding, found).limits if one.name == "queue"]
        [row] = user_table(asked, holding, found)
        assert row.running == queue.users == load.max_requests
        places.append(row.running)
    assert places == [1024, 2048]


def test_a_slow_end_promises_no_more_users_than_the_mean():
    """A wait is too long beyond three times that of one user; where that one is uncertain, its slow end allows more.

    In the mean one user waits 4 s, so 12 s are too long: 6 s at four users, 24 s at eight, 12 s half way in logarithms,
    at 4 √2 = 5.7 users. At the slow end one waits 8 s, and all of eight wait less than 24 s.
    """
    asked, holding = plan(1)
    found = {1: prediction(4.0, 8.0), 4: prediction(6.0, 10.0), 8: prediction(24.0, 24.0)}
    safe = safe_users(asked, holding, found)
    limits = {one.name: one.users for one in safe.limits}
    assert limits["queue"] == safe.users == safe.expected == 5
    assert safe.limit == "queue"


def test_a_slow_end_that_is_worse_than_the_mean_decides():
    asked, holding = plan(1)
    # the slow end of four users is already beyond three times that of one
    found = {1: prediction(4.0, 5.0), 4: prediction(6.0, 60.0), 8: prediction(11.0, 90.0)}
    safe = safe_users(asked, holding, found)
    assert safe.expected == 8
    # 15 s lie at ln(15/5) / ln(60/5) of the way from one user to four: 4 ** 0.442 = 1.8
    assert safe.users == 1 and safe.limit == "queue"


@pytest.mark.parametrize("dp", [1, 2])
def test_a_step_holds_the_token_budget_of_every_replica(dp):
    asked, holding = plan(dp)
    load = load_of(asked, deployment_of(asked, holding.terms), holding.pool, 1)
    assert load.budget == 8192 * dp


def test_users_between_the_low_end_and_the_middle_of_the_pool_are_held_more_likely_than_not_but_not_surely():
    asked = read_words(PlanRequest(model="llama-3.1-70b-fp8", on="1xh100-sxm"))
    holding = solve(asked).best
    low, middle = int(holding.held_low), int(holding.held)
    assert 0 < low < middle - 1
    patient = parse_slo("ttft mean < 1000 s, tpot mean < 10 s")
    counted = count_users(asked, holding, parse_traffic("closed:1", input=2048, output=512), patient)
    sure = [counted.kept(users).probability for users in (low, low + 1, middle, middle + 2)]
    assert sure[0] >= 0.95 > sure[1] > 0.5 > sure[3]
    assert sure == sorted(sure, reverse=True)


@pytest.mark.parametrize(
    ("words", "moves"),
    [
        (PlanRequest("kimi-k2.5-nvfp4", "8xh200-sxm", input=6000, output=800), True),
        (PlanRequest("glm-4.6-fp8", "8xh100-sxm"), True),
        # the layout with the most users at 95 % gives one user half the speed
        (PlanRequest("llama-3.1-70b", "8xh100-sxm", weights="fp8"), True),
        # TP8 has more users at 95 %, and fewer at 80 and 50 %
        (PlanRequest("glm-5.1-fp8", "8xh200-sxm", input=8192, output=1024), False),
    ],
    ids=lambda words: getattr(words, "model", ""),
)
def test_without_an_slo_the_layout_with_the_most_safe_users_is_chosen_among_the_fast_ones(words, moves):
    asked = read_words(words)
    first, best = ranked_layouts(asked).ranked[0], solve(asked).ranked[0]
    assert (best.holding.terms != first.holding.terms) == moves

    def users(one):
        return np.array([number for _, number in safe_number(asked, one.holding)[0].at], float)

    peers = [one for one in peers_of(ranked_layouts(asked)) if one.holding.terms != best.holding.terms]
    assert best.alone >= 0.7 * max(one.alone for one in peers)
    mine = users(best)
    if moves:
        before = users(first)
        assert mine[0] >= before[0] and np.log1p(mine).mean() > np.log1p(before).mean() + np.log(1.05)
    for one in peers:
        other = users(one)
        if one.alone >= 0.7 * best.alone and other[0] >= mine[0] and one.knowledge == best.knowledge:
            assert np.log1p(other).mean() <= np.log1p(mine).mean() + np.log(1.06), one.holding.terms.name


def test_the_load_at_each_probability_is_the_one_at_which_it_is_met():
    """One curve: the users at 95, 80 and 50 % meet the limits so likely, and one more user does less."""
    asked = read_words(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    holding = solve(asked).best
    slo = parse_slo("ttft mean < 10 s, tpot mean < 80 ms")
    traffic = parse_traffic("closed:1", input=asked.input_tokens, output=asked.output_tokens)
    counted = count_users(asked, holding, traffic, slo)
    at = dict(counted.safe.at)
    assert list(at) == [0.95, 0.8, 0.5] and at[0.95] < at[0.8] < at[0.5]
    for share, users in at.items():
        assert counted.kept(users).probability >= share - 1e-9 > counted.kept(users + 1).probability - 1e-9
    chances = [chance for _, chance in counted.safe.curve]
    assert chances == sorted(chances, reverse=True)


def test_a_smaller_probability_is_a_larger_load():
    asked = read_words(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", probability="0.8"))
    holding = solve(asked).best
    [safe, asked_for] = [safe_number(asked, holding, probability=share)[0] for share in (0.95, 0.8)]
    assert asked_for.users == dict(safe.at)[0.8] > safe.users
    assert asked.probability == 0.8


def test_users_who_wait_within_a_stated_limit_are_those_of_the_probability_asked_for():
    """At 60 % `fit` answered with the users at 95 %, the largest of its probabilities."""
    words = {"users": (16,), "ttft_limit": "3 s", "tpot_limit": "50 ms", "probability": 0.6}
    safe = fit("llama-3.1-8b", "1xh100-sxm", **words).safe
    at = dict(safe.at)
    assert safe.users == at[0.6] > at[0.95]


@pytest.mark.parametrize("on", ["2xh100-sxm", "4xh100-sxm"])
def test_means_are_those_of_the_simulated_steady_state_without_the_first_round(on):
    """The sums behind the safe number and brute force: the same run, the first request of each user left out."""
    words = PlanRequest("gpt-oss-120b", on, dp=1)
    described, [traffic] = described_under(words, [parse_traffic("closed:1", input=2048, output=512)], usual=True)
    asked, holding = described.plan
    counts = (4, 16, 64, 160)
    found = predictions_of(asked, holding, counts, settled=True)
    for users in counts:
        summary = try_load(described.service, traffic, parse_slo("ttft mean < 2 s"), users, 0).summary
        for name in ("ttft", "tpot"):
            assert found[users].figures[name].value * 1e3 == pytest.approx(summary[f"{name}_mean_ms"], rel=0.03)


#: sliding windows, recurrent states, compressed caches: a token of a short request takes more than one of a long one
BY_LENGTH = [
    ("gemma-4-12b", "4xrtx-4090", "vllm", 4),
    ("gemma-3-27b", "2xh100-sxm", "vllm", 2),
    ("qwen3-next-80b-a3b", "2xh100-sxm", "sglang", 2),
    ("deepseek-v4-flash", "4xh200-sxm", "vllm", 4),
]


@pytest.mark.parametrize(("model", "machine", "engine", "tp"), BY_LENGTH)
def test_users_run_by_the_length_of_their_requests_not_by_the_context_that_is_asked_for(model, machine, engine, tp):
    """Requests of 2,560 tokens were counted as 1/39 of a request of 100,000: 390 instead of 135 of gemma-3-27b ran."""
    words = {"engine": engine, "tp": tp, "users": "1,100,300", "max_model_len": "100000"}
    short = fit_answer(PlanRequest(model, machine, input=2048, output=512, **words), changes=False)
    long = fit_answer(PlanRequest(model, machine, context=100_000, **words), changes=False)
    assert short.holding.memory.by_length and long.asked.request_tokens == 2560
    assert [(one.running, one.simulated) for one in long.users] == [(one.running, one.simulated) for one in short.users]
    for one, other in zip(short.users, long.users, strict=True):
        assert other.total_rate.value == pytest.approx(one.total_rate.value)
    assert long.holding.held < short.holding.held and long.holding.pool.length == 100_000
    assert long.holding.pool_for(2560) == short.holding.pool


def test_a_pool_of_one_length_is_not_used_for_requests_of_another():
    answer = fit_answer(PlanRequest("gemma-3-27b", "2xh100-sxm", context=100_000), changes=False)
    asked, holding = answer.asked, answer.holding
    with pytest.raises(ValueError, match="requests of 100000 tokens is used for requests of 2560"):
        load_of(asked, answer.deployment, holding.pool, 8)
    with pytest.raises(TypeError):
        assert holding.pool > asked.longest_request


@pytest.mark.parametrize(("model", "on"), [("gemma-3-27b", "2xrtx-4090"), ("gpt-oss-20b", "1xrtx-4090")])
@pytest.mark.parametrize(("users", "prompt", "replicas"), [(8, 500, 1), (8, 30_000, 1), (5, 2000, 2)])
def test_the_slots_of_a_launch_command_fit_the_pool_with_the_context_of_each(model, on, users, prompt, replicas):
    """Two servers with four slots each were started with eight, and with the pool of both."""
    on = f"{2 * int(on[0])}{on[1:]}" if replicas == 2 else on
    words = PlanRequest(model, on, engine="llama.cpp", users=users, input=prompt, output=500, replicas=replicas)
    answer = fit_answer(words, changes=False)
    command = " ".join(answer.command)
    tokens, slots = (int(re.search(rf"{name} (\d+)", command)[1]) for name in ("-c", "--parallel"))
    held = answer.holding.pool_for(tokens // slots).held
    assert slots * replicas >= min(users, max(int(answer.holding.held_low), 1)) and held >= slots * replicas


def test_the_probability_of_a_typed_load_is_that_of_its_own_prediction():
    """A line between powers of two said 27 % where the prediction of the load says 11 %."""
    asked = read_words(PlanRequest("llama-3.1-70b", "4xa100-80gb-sxm", users="90"))
    holding = solve(asked).best
    known = predictions_of(asked, holding, (*grid_of(asked, holding), 90), settled=True)
    exact = safe_users(asked, holding, known).chance_of(90)
    assert safe_number(asked, holding)[0].chance_of(90) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("users", [1, 3, 8, 11, 20, 48, 64, 300])
@pytest.mark.parametrize("limits", [{}, {"tpot_limit": "14 ms"}, {"tpot_limit": "10 ms", "probability": "0.6"}])
def test_the_chance_of_few_users_needs_no_search_for_the_most(users, limits):
    """Some of these numbers are safe, others are not, and 300 are more than the pool holds."""
    asked = read_words(PlanRequest("llama-3.1-8b-bf16", "1xh100-sxm", users=str(users), **limits))
    holding = solve(asked).best
    safe, _ = safe_number(asked, holding, probability=asked.probability)
    assert chance_within(asked, holding, users) == safe.chance_of(users)
