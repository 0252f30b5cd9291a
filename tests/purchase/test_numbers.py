"""The fewest machines that do are found by looking at few numbers."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from glmplan.purchase.size import CountSearch, machine_counts
from glmplan.purchase.size_answer import share_of
from glmplan.purchase.size_question import read_size


def looked_at(numbers, does):
    """Numbers that are tested until the smallest that passes is known, or that none does."""
    looked = []
    while numbers.first is not None and not numbers.found:
        looked.append(numbers.next)
        numbers.tell(numbers.next, passes=does(numbers.next))
    return looked


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40, unique=True), st.integers(1, 220))
def test_the_fewest_that_do_are_found_and_never_looked_for_among_what_is_known(each, enough):
    numbers = CountSearch(sorted(each), 10.0)
    looked = looked_at(numbers, lambda one: one >= enough)
    assert numbers.first == min((one for one in each if one >= enough), default=None)
    assert len(looked) == len(set(looked)) <= 2 * math.log2(len(each)) + 2
    if numbers.first is not None:
        assert numbers.least == 10.0 * numbers.first


def test_what_may_cost_least_rises_as_numbers_fail():
    numbers, costs = CountSearch([2, 3, 5, 8], 100.0), []
    while numbers.first is not None:
        costs.append(numbers.least)
        numbers.tell(numbers.next, passes=False)
    assert costs == [200.0, 300.0, 500.0]  # after three the one but next is looked at: five may still do


def test_numbers_whose_largest_share_is_the_same_are_looked_at_once():
    asked = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=50, machines=60)
    found = machine_counts(asked)
    assert [share_of(asked.traffic, one).users for one in found] == sorted({math.ceil(50 / n) for n in range(1, 61)})[
        ::-1
    ]
    assert all(math.ceil(50 / (one - 1)) > math.ceil(50 / one) for one in found[1:])
