"""`safe`, `size` and `kept` beside brute force: steady simulations at quantiles of the predictive distribution.

The suite asks a fixed sample; `make agreement` asks a hundred questions drawn with a seed, and counts how many services
keep the SLO at and around the answer for twelve kinds of traffic and SLO.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from glmplan.errors import GlmplanError
from glmplan.planner.service import Described, loads_at, safe_of
from glmplan.planner.traffic_search import described_under
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size
from glmplan.request.plan import PlanRequest
from glmplan.simulation.load_trial import try_load
from glmplan.simulation.seeds import stream_seed
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

#: relative difference of loads, or of the bounds that they meet, and difference in users, up to which answers agree [-]
SAME, ONE_USER = 0.03, 1
#: probability of the question, for which the layout is chosen [-]
ASKED = 0.8
#: model, machine, SLO, prompt and answer [token]
SAMPLE = (
    ("gpt-oss-120b", "2xh100-sxm", "ttft mean < 1 s, tpot mean < 30 ms", 1024, 256),
    ("llama-3.1-8b", "1xh100-sxm", "ttft p95 < 0.3 s, tpot p95 < 14 ms", 1024, 128),
    # at 95 % it fails at 88 users already, although 400 pass at 80 %: `size` at 80 % starts there
    ("gpt-oss-20b", "1xrtx-pro-6000-ws", "ttft p95 < 1.93 s, tpot p95 < 61 ms", 256, 128),
    # four servers: the sums of one, and quantiles of TTFT without its front end, differed by 31 %
    ("gpt-oss-20b", "4xrtx-pro-6000-ws", "ttft mean < 0.97 s, tpot mean < 29 ms", 4096, 128),
    # 1,329 users at 50 %: 1,024 requests run, the others wait
    ("qwen3-30b-a3b", "1xb200-sxm", "ttft mean < 4.52 s, tpot mean < 83 ms", 256, 128),
)
_MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "glm-4.5-air")
_PARTS = ("h100-sxm", "h200-sxm", "b200-sxm", "rtx-pro-6000-ws", "l40s", "rtx-5090")


def questions(count: int, seed: int = 20261128) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield purchase questions with random SLOs, machines and lengths."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        statistic = rng.choice(["mean", "p95"])
        ttft, tpot = round(float(rng.uniform(0.5, 8.0)), 2), round(float(rng.uniform(20.0, 90.0)))
        slo = f"ttft {statistic} < {ttft} s, tpot {statistic} < {tpot} ms"
        lengths = int(rng.choice([256, 1024, 2048, 4096])), int(rng.choice([128, 256, 512]))
        yield str(rng.choice(_MODELS)), f"{rng.choice([1, 2, 4])}x{rng.choice(_PARTS)}", slo, *lengths


def asked(question: tuple[str, str, str, int, int]) -> tuple[Described, Traffic, Any]:
    model, on, slo, inputs, outputs = question
    traffic = Traffic(kind="closed", users=1, input=inputs, output=outputs)
    described, [traffic] = described_under(PlanRequest(model, on, probability=ASKED), [traffic], usual=True, slo=slo)
    return described, traffic, parse_slo(slo)


def meets(described: Described, traffic: Traffic, targets: Any, users: int, share: float) -> bool:
    """Return True if the service at a quantile meets the SLO, simulated in its steady state."""
    level, (step, wait) = described.draws(share).level, described.by_users(users, share)
    service = described.service.scaled(step).with_room(level.room, traffic)
    return try_load(service, traffic, targets, users, 0, late=wait / step).margin <= 0


def brute_load(described: Described, traffic: Traffic, targets: Any, share: float) -> int:
    low, high = 0, 1
    while meets(described, traffic, targets, high, share) and high < 4096:
        low, high = high, 2 * high
    while high - low > max(1, 0.005 * low):
        middle = (low + high) // 2
        low, high = (middle, high) if meets(described, traffic, targets, middle, share) else (low, middle)
    return low


def same(one: float, other: float) -> bool:
    return abs(one - other) <= max(SAME * max(one, other), ONE_USER)


def between(load: float, described: Described, traffic: Traffic, targets: Any, share: float) -> bool:
    """Return True if the load is that of bounds up to 3 % nearer or farther: flat times tell no load exactly."""
    near, far = (
        brute_load(described, traffic, tuple(replace(one, bound=one.bound * by) for one in targets), share)
        for by in (1.0 - SAME, 1.0 + SAME)
    )
    return near - ONE_USER <= load <= far + ONE_USER


def disagreements(question: tuple[str, str, str, int, int]) -> list[str]:
    """Return the answers that differ: loads at 95, 80 and 50 %, by `safe` and by `size`."""
    described, traffic, targets = asked(question)
    found = dict(loads_at(described, traffic, targets).at)
    wrong = []
    for share, load in found.items():
        brute = brute_load(described, traffic, targets, share)
        if not same(load, brute) and not between(load, described, traffic, targets, share):
            wrong.append(f"{question}: {load} users at {share} by safe, {brute} by brute force")
    model, on, slo, inputs, outputs = question
    users = max(int(found[ASKED]), 1)
    money = money_of(today=date(2026, 11, 28))
    size = read_size(model, slo, users=users, only=on, machines=1, probability=ASKED, input=inputs, output=outputs)
    checkpoint = described.plan[0].checkpoint
    for option in [one for one in sized(size, money).options if one.planned.asked.checkpoint == checkpoint][:1]:
        wrong += [
            f"{question}: {load} users at {share} by size, {found[share]} by safe"
            for share, load in option.at
            if not same(load, min(found[share], 4.0 * users))
        ]
    return wrong


@pytest.mark.parametrize("question", SAMPLE, ids=lambda one: f"{one[0]} on {one[1]}, {one[2]}")
def test_safe_and_size_agree_with_brute_force(question):
    assert disagreements(question) == []


#: new tokens of a turn
_TURNS = {"input": 500, "output": 200}
#: kinds of question: model, machine, traffic, SLO, and options of traffic and plan
KINDS: tuple[tuple[str, str, str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama-3.1-8b", "1xh100-sxm", "closed:1", "ttft p95 < 0.3 s, tpot p95 < 14 ms", {"output": 128}, {}),
    ("llama-3.1-8b", "1xh100-sxm", "poisson:1/s", "ttft p95 < 1 s, tpot p95 < 30 ms", {}, {}),
    ("qwen3-32b", "2xh100-sxm", "poisson:1/s", "ttft mean < 1 s", {}, {}),
    ("gpt-oss-20b", "1xrtx-pro-6000-ws", "poisson:1/s", "e2e p95 < 20 s", {"output_cv": 0.5}, {}),
    ("mistral-7b", "1xa100-80gb-sxm", "poisson:1/s", "itl p99 < 60 ms", {}, {}),
    ("llama-3.1-8b", "1xrtx-4090", "poisson:1/s", "tpot p95 < 60 ms", {}, {}),
    ("llama-3.1-8b", "1xh100-sxm", "constant:1/s", "ttft p95 < 1 s, tpot p95 < 30 ms", {"jitter": 0.2}, {}),
    ("llama-3.1-8b", "1xh100-sxm", "gamma:1/s,cv=3", "ttft p95 < 2 s, tpot p95 < 40 ms", {}, {}),
    ("llama-3.1-70b", "4xh100-sxm", "onoff:1/s,on=10,off=30", "ttft p95 < 2 s", {}, {}),
    ("gpt-oss-120b", "2xh100-sxm", "daily:1/s", "ttft p95 < 2 s, tpot p95 < 40 ms", {}, {}),
    ("qwen3-30b-a3b", "1xh100-sxm", "sessions:1,turns=8", "ttft p95 < 2 s, tpot p95 < 40 ms", _TURNS, {}),
    ("glm-4.5-air", "4xh100-sxm", "poisson:1/s", "ttft p95 < 3 s, tpot p95 < 60 ms", {}, {"tp": 1, "dp": 4}),
)
#: parts of the spread of services [-], and how many in a row decide that all slower ones fail or all quicker ones keep
PARTS, IN_A_ROW = 1000, 10


def kept_at(described: Described, traffic: Traffic, targets: Any, load: float) -> float:
    """Return the share of services that keep the SLO at a load, each with its own arrivals.

    The parts of the spread are tried from the 95 % quantile outwards: quicker ones until ten in a row keep the SLO,
    slower ones until ten in a row fail.
    """
    service, middle = described.service, try_load(described.service, traffic, targets, load, stream_seed(99)).summary
    users = described.in_flight(traffic.at_load(load), middle)

    def keeps(part: int) -> bool:
        level = described.draws((part + 0.5) / PARTS, 0, users).level
        one = service.scaled(level.step).with_room(level.room, traffic)
        return try_load(one, traffic, targets, load, stream_seed(7, part), late=level.wait / level.step).margin <= 0

    def tried(parts: range, ends: bool) -> tuple[int, int]:
        found: list[bool] = []
        for part in parts:
            found.append(keeps(part))
            if found[-IN_A_ROW:] == [ends] * IN_A_ROW:
                break
        return sum(found), len(found)

    start = round(0.95 * PARTS)
    slower, _ = tried(range(start, PARTS), False)
    quicker, looked = tried(range(start - 1, -1, -1), True)
    return (start - looked + quicker + slower) / PARTS


def kept_around(kind: tuple[Any, ...]) -> tuple[Any, dict[float, float]]:
    """Return the answer of `safe`, and the shares of services that keep the SLO below, at and above it."""
    model, on, words, slo, fields, options = kind
    traffic, targets = parse_traffic(words, **fields), parse_slo(slo)
    described, [traffic] = described_under(PlanRequest(model, on, **options), [traffic], usual=True, slo=slo)
    found = safe_of(described, traffic, targets)
    loads = {by: found.load * by for by in (1.0 - SAME, 1.0, 1.0 + SAME)}
    if traffic.users is not None:
        loads = {1.0 + step * SAME: max(round(found.load * (1 + step * SAME)), found.load + step, 1)
                 if step > 0 else max(min(round(found.load * (1 + step * SAME)), found.load + step), 1)
                 for step in (-1, 0, 1)}  # fmt: skip
    return found, {by: kept_at(described, traffic, targets, load) for by, load in loads.items()}


def kinds() -> int:
    """Print the twelve kinds; return how many answers are more than 3 % from the load that 95 % keep."""
    wrong = 0
    for kind in KINDS:
        try:
            found, kept = kept_around(kind)
        except GlmplanError as error:
            print(f"{kind[:4]}: {error}")
            wrong += 1
            continue
        below, at, above = kept.values()
        held = below >= 0.95 >= above
        wrong += not held
        print(f"{' | '.join(kind[:4])}: {found.load:g} {found.unit}, kept {below:.1%} at 0.97, {at:.1%} at the answer, "
              f"{above:.1%} at 1.03{'' if held else '  WRONG'}", flush=True)  # fmt: skip
    print(f"{wrong} of {len(KINDS)} answers are more than 3 % from the load that 95 % of the services keep")
    return wrong


def main(count: int) -> int:
    looked, wrong = 0, list[str]()
    for question in questions(count * 2):
        try:
            wrong += disagreements(question)
        except GlmplanError:
            continue  # does not fit
        looked += 1
        if looked == count:
            break
    print("\n".join(wrong))
    print(f"{looked} questions, {len(wrong)} answers differ by more than {SAME:.0%}")
    return math.ceil(len(wrong) / max(looked, 1)) + kinds()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
