"""What machines carry, as surely as a buyer asks."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date

import pytest

import glmplan
from glmplan.planner.ask import kept
from glmplan.present.size_text import size_content, size_text
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_answer import BEYOND, share_of
from glmplan.purchase.size_question import read_size

MONEY = money_of(today=date(2026, 11, 22))
USERS = 48
LLAMA = {"weights": "bf16", "engine": "vllm"}


def limit_of(users, **lengths):
    """Return a limit of TPOT that is kept with 95 % up to some users [ms]"""
    plan = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(users,), **LLAMA, **lengths)
    return 1e3 * next(one for one in plan.users if one.users == users).tpot.high


@pytest.fixture(scope="module")
def slo():
    return f"tpot p95 < {limit_of(USERS, input=1000, output=100):.1f} ms"


@pytest.fixture(scope="module")
def carried(slo):
    found = {}
    for probability in (0.5, 0.95, 0.99):
        asked = read_size("llama-3.1-8b", slo, users=USERS, probability=probability, input=1000, output=100,
                          only="1xh100-sxm", **LLAMA)  # fmt: skip
        found[probability] = asked, sized(asked, MONEY, answers=1).options[0]
    return found


def test_the_surer_the_fewer(carried):
    options = [carried[probability][1] for probability in (0.5, 0.95, 0.99)]
    half, sure, surer = (one.max_load / one.machines for one in options)
    assert half > sure > surer
    assert all(one.max_load >= USERS for one in options)


def test_a_machine_is_no_answer_for_more_than_it_carries_as_surely_as_asked(carried):
    """At 99 % one machine was sold to more users than it carried."""
    asked, one = carried[0.99]
    assert one.machines > 1
    assert not sized(replace(asked, most_machines=1), MONEY, answers=1).options


@pytest.mark.parametrize("probability", [0.5, 0.99])
def test_so_many_are_kept_as_surely_as_asked_and_one_more_is_not(carried, slo, probability):
    asked, one = carried[probability]
    shares = [share_of(asked.traffic.at_load(one.max_load + more), one.machines) for more in (0, 1)]
    sure = [kept(one.planned, slo, share).probability for share in shares]
    assert sure[0] >= probability
    assert one.open_ended or sure[1] < probability


EASY = "ttft mean < 100 s, tpot mean < 10 s"


@pytest.fixture(scope="module")
def hard():
    return f"tpot mean < {limit_of(24, input=500, output=100):.1f} ms"


def said(slo, money=MONEY, **more):
    asked = read_size("llama-3.1-8b", slo, only="1xh100-sxm", input=500, output=100, **LLAMA, **more)
    found = sized(asked, money, answers=1)
    content = size_content(found)
    return found.options[0], content["options"][0], size_text(found, content)


@pytest.mark.parametrize("more", [{"traffic": "poisson:1/s"}, {"traffic": "poisson:1/s", "probability": 0.8}])
def test_where_nothing_failed_as_far_as_was_looked_nothing_is_said_to_break(more):
    one, row, text = said(EASY, growth=0.1, **more)
    assert one.open_ended and row["capacity_is_lower_bound"] and one.breaks_first == ""
    assert row[next(name for name in row if name.startswith("violated_at_"))] is None
    assert "exceeded first" not in text
    assert int(row["months_until_outgrown"]) == 14  # ln 4 / ln 1.1
    assert f"over {one.max_load:g}" in text


def test_users_of_several_machines_that_do_not_divide_are_tested_to_a_whole_number_on_each():
    """The share of a machine had a fraction: the largest tested load was below it and not called a bound."""
    hard = f"tpot p95 < {limit_of(5, input=1000, output=100):.2f} ms"
    asked = read_size("llama-3.1-8b", hard, users=11, input=1000, output=100, only="1xh100-sxm", **LLAMA)
    found = sized(asked, MONEY, answers=1)
    row = (content := size_content(found))["options"][0]
    assert 4 * 11 % row["machines"]
    assert row["most_tested"] == row["users_at_50"] == row["machines"] * math.ceil(4 * 11 / row["machines"])
    assert f"{row['users_at_50']:g} or more at 50 %" in size_text(found, content)


@pytest.mark.parametrize("probability", [0.95, 0.8])
def test_uniform_users_within_means_are_counted_to_the_end(probability):
    one, row, text = said(EASY, users=4, probability=probability)
    assert not one.open_ended and one.max_load > BEYOND * 4 and one.breaks_first
    assert row["most_tested"] is None and "or more" not in text


def test_where_something_fails_it_is_named_and_the_load_is_the_last_that_holds(hard):
    one, row, text = said(hard, users=16, growth=0.1)
    assert not one.open_ended and not row["capacity_is_lower_bound"]
    assert row["limited_by"] == hard
    assert f"the TPOT mean limit of {hard.split('< ')[1]} is exceeded first" in text
    assert row["violated_at_users"] == one.max_load + 1
    assert row["most_tested"] is None
    for share in (95, 80, 50):
        assert f"{row[f'users_at_{share}']:g} at {share} %" in text


def test_a_break_even_volume_beyond_what_the_machine_carries_is_not_told_as_one_to_reach(hard):
    cheap = money_of(["llama-3.1-8b:input=0.001", "llama-3.1-8b:output=0.001"], today=date(2026, 11, 22))
    _, row, text = said(hard, cheap, users=16)
    assert row["break_even_million_tokens"] > 100 * row["million_tokens_month_most"]
    # users who are served together get less each: a third more users make less than a third more tokens
    asked = sum(row[f"million_{kind}_tokens_month"] for kind in ("input", "output"))
    assert asked < row["million_tokens_month_most"] < 0.99 * asked * (1 + row["headroom"])
    assert "above the capacity" in text
    dear = money_of(["llama-3.1-8b:input=30", "llama-3.1-8b:output=300"], today=date(2026, 11, 22))
    _, row, text = said(hard, dear, users=16)
    assert row["break_even_million_tokens"] < row["million_tokens_month_most"] and "above the capacity" not in text
