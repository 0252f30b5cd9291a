"""`size`, `safe` and brute force say the same capacity for one purchase question."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from datetime import date
from statistics import NormalDist

import numpy as np
import pytest

import glmplan
from glmplan.planner.ask import kept
from glmplan.planner.service import inputs_of, safe_of, service_of
from glmplan.planner.traffic_search import described_under
from glmplan.prediction.distribution import NORMAL, PROBABILITIES
from glmplan.present.size_text import size_content
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_answer import share_of
from glmplan.purchase.size_question import read_size
from glmplan.request.plan import PlanRequest
from glmplan.simulation.simulate import simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

MONEY = money_of(today=date(2026, 11, 22))
#: standard deviations from the middle of a 90 % interval to its end [-]
END = NormalDist().inv_cdf(0.95)
#: purchase questions that are drawn [-]
QUESTIONS_DRAWN = 4
#: equal parts of the predictive distribution [-]
PARTS = 1000

QUESTIONS = {
    # `safe` said 80, the cap of a mean over a run whose requests start at once
    "llama": ("llama-3.1-8b-bf16", "1xh100-sxm", 60, (1000, 200), "ttft p95 < 2 s, tpot p95 < 40 ms"),
    # from 12 to 64 users the steady TTFT grows by 5 %: between services of 2.5 and 7.5 % no line tells the capacity
    "gpt-oss": ("gpt-oss-120b", "2xh100-sxm", 10, (4000, 500), "ttft p95 < 2 s, tpot p95 < 50 ms"),
    "qwen3": ("qwen3-30b-a3b-fp8", "1xh200-sxm", 8, (8000, 1000), "ttft p95 < 5 s, tpot p95 < 30 ms"),
    "tpot": ("llama-3.1-8b-bf16", "1xh100-sxm", 16, (1000, 100), "tpot p95 < 20 ms"),
    # `size` said 500, the load that was asked for, with probability 1.00; `safe` said 270
    "rack": ("glm-5.3-nvfp4", "gb200-nvl72", 450, (8000, 1000), "ttft p95 < 4 s, tpot p95 < 50 ms"),
}


@pytest.fixture(scope="module", params=QUESTIONS)
def answered(request):
    model, machine, users, (prompt, answer), slo = QUESTIONS[request.param]
    asked = read_size(model, slo, users=users, input=prompt, output=answer, only=machine, machines=1)
    [option] = sized(asked, MONEY, answers=1).options
    return asked, option


def quantile(ends, tail, place):
    """Return the factor of an error by deviations from the middle: straight between the ends that are known."""
    known = [NormalDist().inv_cdf(one) for one in PROBABILITIES]
    sides = [math.log(ends[0])] * 4 + [math.log(ends[1])] * 4
    logs = [side * ratio for side, ratio in zip(sides, tail, strict=True)]
    return math.exp(np.interp(place, [*known[:4], 0.0, *known[4:]], [*logs[:4], 0.0, *logs[4:]]))


def share_kept(planned, users, slo):
    """Return the share of the predictive distribution that keeps an SLO in the steady state; slower parts miss more."""
    traffic = Traffic(kind="closed", users=users, input=planned.asked.input_tokens, output=planned.asked.output_tokens)
    described = service_of(inputs_of(planned.asked, planned.holding, planned.deployment), traffic)
    # errors are those at this number of users
    times = glmplan.predict(planned, users=users).figures
    errors = [
        ((one.low / one.value, one.high / one.value), one.tail or NORMAL) for one in (times["tpot"], times["ttft"])
    ]
    rounds = max(6, math.ceil(400 / users))

    def keeps(part):
        place = NormalDist().inv_cdf(1 - (part + 0.5) / PARTS)
        slower, later = (quantile(*error, place) for error in errors)
        low, high = described.pool
        room = 1 - place / END * ((1 - low) if place > 0 else (high - 1))
        service = described.service.scaled(slower).with_room(room, traffic)
        # every user sends one request that is not judged
        found = simulate(service, traffic, requests=(rounds + 1) * users, warmup=users, seed=part).summary
        found |= {name: value * later / slower for name, value in found.items() if name.startswith("ttft")}
        return all(found[one.name] < 1000 * one.bound for one in parse_slo(slo)) and not found["preemptions"]

    return 1 - bisect_left(range(PARTS), True, key=keeps) / PARTS


def test_size_and_safe_say_the_capacity_of_brute_force(answered):
    asked, option = answered
    safe = glmplan.safe(option.planned, asked.slo).load
    assert option.max_load == safe or (option.open_ended and option.max_load < safe)
    near = max(1, math.floor(0.03 * safe))
    assert (
        share_kept(option.planned, safe + near + 1, asked.slo)
        < 0.95
        <= share_kept(option.planned, safe - near, asked.slo)
    )


def test_the_probability_passes_95_percent_at_the_capacity(answered):
    asked, option = answered
    safe = glmplan.safe(option.planned, asked.slo).load
    shares = [kept(option.planned, asked.slo, f"closed:{users}").probability for users in (safe, safe + 1)]
    assert shares[1] < 0.95 <= shares[0] and option.attainment.probability >= 0.95


def test_no_more_is_said_to_be_carried_than_is_found(answered):
    """One user more than the capacity is no answer."""
    asked, option = answered
    if option.open_ended:
        return
    users = int(option.max_load) + 1
    more = replace(asked, traffic=asked.traffic.at_load(users))
    found = sized(more, MONEY, answers=1)
    assert not found.options
    assert found.cheaper is None or found.cheaper.max_load == option.max_load


@pytest.mark.parametrize(("share", "answers"), [(0.97, 1), (1.04, 0)])
def test_a_rate_is_an_answer_up_to_the_one_that_is_safe(share, answers):
    """A rate 10 % above the safe one had 95 %: the share of twenty services knows no step finer than 5 %."""
    slo = "ttft p95 < 2 s, tpot p95 < 40 ms"
    planned = glmplan.deployment("llama-3.1-8b-bf16", "1xh100-sxm", input=1000, output=200)
    safe = glmplan.safe(planned, slo, traffic="poisson:1/s").load
    asked = read_size("llama-3.1-8b-bf16", slo, traffic=f"poisson:{share * safe:.5f}/s", input=1000, output=200,
                      only="1xh100-sxm", machines=1, engine="vllm")  # fmt: skip
    found = sized(asked, MONEY, answers=1).options
    assert len(found) == answers
    assert all(one.max_load == pytest.approx(safe, rel=0.02) for one in found)


def test_a_machine_with_several_servers_has_a_price_for_tokens_of_answers(answered):
    """Eighteen servers computed the prompts of one, which took more than the whole month: answers were free."""
    asked, option = answered
    found = sized(asked, MONEY, answers=1)
    row = size_content(found)["options"][0]
    prices = [row[f"split_usd_per_million_{kind}_tokens"] for kind in ("input", "output")]
    paid = sum(
        price * row[f"million_{kind}_tokens_month"] for price, kind in zip(prices, ("input", "output"), strict=True)
    )
    assert paid == pytest.approx(row["usd_month"])
    # a decoding step reads all weights for one token of each request, a prompt shares that reading
    assert prices[1] > prices[0] > 0
    assert share_of(asked.traffic, option.machines).users == asked.load


@pytest.mark.parametrize(
    ("model", "machine", "traffic", "slo"),
    [
        # one engine of four cards has fewer users within 30 ms than four ranks
        ("gpt-oss-120b", "4xh100-sxm", "closed:40", "tpot p95 < 30 ms"),
        # `size` planned a session as one turn
        ("qwen3-30b-a3b-fp8", "2xh100-sxm", "sessions:6,turns=4,start=20000", "ttft p95 < 2 s, tpot p95 < 30 ms"),
    ],
)
def test_size_has_the_layout_that_safe_has_for_the_traffic_and_the_slo(model, machine, traffic, slo):
    asked = read_size(model, slo, traffic=traffic, only=machine, machines=1)
    found = sized(asked, MONEY, answers=1)
    [option] = found.options or (found.cheaper,)
    [arriving] = [asked.traffic]
    words = PlanRequest(
        model, machine, input=arriving.input, output=arriving.output, weights=option.planned.asked.checkpoint.name
    )
    described, [same] = described_under(words, [arriving], slo=slo)
    assert described.plan is not None and described.plan[1].terms == option.planned.holding.terms
    assert same == arriving
    assert option.planned.asked.cached_tokens == described.plan[0].cached_tokens


@pytest.mark.parametrize(
    ("model", "machine", "lengths", "limits"),
    [
        # without its limits the layout is that of fast answers, which has 63 users instead of 88
        ("llama-3.1-70b-fp8", "8xgaudi-3", (2048, 512), (10.0, 0.1)),
        # an odd number of users of two ranks met what 23 users miss
        ("llama-3.1-70b-fp8", "4xh100-sxm", (1024, 128), (2.5, 0.087)),
    ],
)
def test_fit_has_the_layout_and_the_users_of_safe_and_size_for_the_limits_of_a_request(model, machine, lengths, limits):
    prompt, answer = lengths
    slo = f"ttft mean < {limits[0]} s, tpot mean < {limits[1]} s"
    asked = {"input": prompt, "output": answer}
    fit = glmplan.fit(model, on=machine, ttft_limit=limits[0], tpot_limit=limits[1], **asked)
    planned = glmplan.deployment(model, on=machine, ttft_limit=limits[0], tpot_limit=limits[1], **asked)
    traffic = Traffic(kind="closed", users=1, **asked)
    described, [traffic] = described_under(PlanRequest(model, machine, **asked), [traffic], usual=True, slo=slo)
    load = safe_of(described, traffic, parse_slo(slo)).load
    found = sized(read_size(model, slo, users=int(load), only=machine, machines=1, **asked), MONEY, answers=1)
    [option] = found.options
    terms = fit.holding.terms
    assert terms == planned.holding.terms == described.plan[1].terms == option.planned.holding.terms
    assert fit.safe.users == load == option.max_load == glmplan.safe(planned).load
    assert dict(fit.safe.at)[0.95] == dict(option.at)[0.95]


def purchases(count: int, seed: int = 20261129):
    """Yield questions with a load near the capacity: users, rates and sessions in turn."""
    rng = np.random.default_rng(seed)
    kinds = ("closed:1", "sessions:1,turns=5,start=9000", "poisson:1/s", "sessions:1,turns=4,start=5000")
    for number in range(count):
        model, weights = (("llama-3.1-8b", "fp8"), ("qwen3-30b-a3b", "fp8"), ("gpt-oss-20b", "mxfp4"))[rng.integers(3)]
        slo = f"ttft p95 < {rng.uniform(1, 4):.2f} s, tpot p95 < {rng.uniform(25, 45):.0f} ms"
        on, probability = ("1xrtx-5090", "1xh100-sxm", "1xl40s")[rng.integers(3)], (0.8, 0.95)[rng.integers(2)]
        lengths = int(rng.choice([300, 800])), int(rng.choice([100, 250]))
        yield pytest.param(model, weights, on, kinds[number % len(kinds)], slo, probability, lengths, id=str(number))


@pytest.mark.parametrize(
    ("model", "weights", "on", "kind", "slo", "probability", "lengths"), list(purchases(QUESTIONS_DRAWN))
)
def test_the_capacity_of_an_answer_is_no_less_than_the_load_that_it_accepts(
    model, weights, on, kind, slo, probability, lengths
):
    """One RTX 5090 kept 30 sessions with 0.95 and had a capacity of 27."""
    prompt, answer = lengths
    traffic = parse_traffic(kind, input=prompt, output=answer)
    words = PlanRequest(model, on, weights=weights, probability=probability, input=prompt, output=answer)
    described, [traffic] = described_under(words, [traffic], usual=True, slo=slo)
    safe = safe_of(described, traffic, parse_slo(slo), probability=probability)
    assert safe.load > 0
    # rates are found to about 1 %
    whole = safe.unit == "users"
    below, above = (safe.load, safe.load + 1) if whole else (0.97 * safe.load, 1.05 * safe.load)
    for load in (below, above):
        asked = read_size(model, slo, traffic=kind.replace(":1", f":{load:g}", 1), weights=weights, only=on,
                          machines=1, input=prompt, output=answer, probability=probability)  # fmt: skip
        found = sized(asked, MONEY, answers=1)
        for option in found.options:
            assert option.attainment.probability >= probability
            assert option.max_load >= asked.load
            assert dict(option.at).get(probability, option.max_load) == option.max_load
        assert bool(found.options) == (load == below)
        if found.cheaper is not None:
            assert found.cheaper.max_load < asked.load and found.cheaper.attainment.probability < probability
