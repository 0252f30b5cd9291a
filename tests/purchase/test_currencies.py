"""Budgets and prices in another currency are converted at a given rate, and refused without one."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan.errors import SpecError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.purchase.money import money_of, ways_of
from glmplan.purchase.size_question import read_amount, read_size

TODAY = date(2026, 11, 22)


def test_a_price_in_euros_is_converted_at_the_given_rate():
    dollars = money_of(["8xh200-sxm=330000", "electricity=0.33"], today=TODAY)
    euros = money_of(["8xh200-sxm=300000 EUR", "electricity=0.3 EUR"], today=TODAY, rates=["EUR=1.1"])
    machine = resolve_machine("8xh200-sxm")
    assert ways_of(machine, euros)[0].usd == pytest.approx(ways_of(machine, dollars)[0].usd)
    assert euros.terms.electricity == pytest.approx(0.33)
    assert any("1 EUR = 1.1 USD" in note and "2026-11-22" in note for note in euros.terms.notes)
    with pytest.raises(SpecError, match="--rate EUR=NUMBER"):
        money_of(["electricity=0.3 EUR"], today=TODAY)


def test_a_budget_in_euros_is_converted_at_the_given_rate():
    asked = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=2, budget="60k EUR", rates=["EUR=1.1"])
    assert asked.budget == pytest.approx(66_000)
    assert read_amount("60k", "--budget", ["EUR=1.1"]) == 60_000


@pytest.mark.parametrize("word", ["EUR", "EUR=0", "EUR=-1", "EURO=1.1", "USD=1", "EUR=much"])
def test_a_rate_that_cannot_be_is_refused(word):
    with pytest.raises(SpecError):
        money_of(today=TODAY, rates=[word])


@pytest.mark.parametrize("text", ["60.000 EUR", "0,5M", "1,5k"])
def test_an_amount_that_may_mean_two_things_is_refused(text):
    with pytest.raises(SpecError, match=r"--budget: .*(may be 60 or 60000|comma)"):
        read_amount(text, "--budget", ["EUR=1.1"])
