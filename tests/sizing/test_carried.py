"""What machines carry, as surely as a buyer asks."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan.plan.ask import kept
from glmplan.sizing.money import money_of
from glmplan.sizing.size import sized
from glmplan.sizing.size_answer import share_of
from glmplan.sizing.size_question import read_size

MONEY = money_of(today=date(2026, 11, 22))
SLO = "tpot p95 < 20 ms"


@pytest.fixture(scope="module")
def carried():
    found = {}
    for probability in (0.5, 0.95, 0.99):
        asked = read_size("llama-3.1-8b", SLO, users=4, probability=probability, input=1000, output=100,
                          only="1xh100-sxm", weights="bf16", engine="vllm")  # fmt: skip
        found[probability] = asked, sized(asked, MONEY, answers=1).options[0]
    return found


def test_the_surer_the_fewer(carried):
    assert carried[0.5][1].carried > carried[0.95][1].carried >= carried[0.99][1].carried >= 4


@pytest.mark.parametrize("probability", [0.5, 0.99])
def test_so_many_are_kept_as_surely_as_asked_and_one_more_is_not(carried, probability):
    asked, one = carried[probability]
    traffic = share_of(asked.traffic, one.machines)
    sure = [kept(one.planned, SLO, traffic.at_load(one.carried + more)).probability for more in (0, 1)]
    assert sure[0] >= probability
    assert one.beyond or sure[1] < probability
