"""llama.cpp computes prompts in the order of its slots, and fills slots by when they were used."""

from __future__ import annotations

from collections import deque

import pytest

from glmplan.serving.engine.cluster import Cluster
from glmplan.serving.engine.engine import SkippingEngine
from glmplan.serving.engine.reference import SteppingEngine
from glmplan.serving.engine.settings import KvPool, scheduler_settings
from glmplan.serving.engine.slots import Slots
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.traffic.request import Request

#: every prompt token takes a millisecond, every step ten more
TABLE = StepTable.affine(base=0.010, per_prefill_token=0.001)


def _served(requests, *, slots=2, engine=SkippingEngine, **changes):
    settings = scheduler_settings("llama.cpp", max_num_seqs=slots, max_num_batched_tokens=100, **changes)
    return {one.number: one for one in Cluster(TABLE, KvPool(1000 * slots, 1), settings, engine).run(requests)}


@pytest.mark.parametrize("engine", [SkippingEngine, SteppingEngine])
def test_a_prompt_that_was_begun_waits_for_a_later_one_in_a_slot_before_its_own(engine):
    # the first request gets slot 1, none having been used; the second one slot 0
    done = _served([Request(0, 0.0, 250, 1), Request(1, 0.05, 60, 1)], engine=engine)
    assert done[1].first == pytest.approx(2 * 0.110)  # 60 tokens beside 40 of the first, which has 110 left
    assert done[0].first == pytest.approx(2 * 0.110 + 0.110 + 0.020)
    # with a prefix cache prompts are taken as they come
    fifo = _served([Request(0, 0.0, 250, 1), Request(1, 0.05, 60, 1)], engine=engine, prefix_caching=True)
    assert fifo[0].first == pytest.approx(2 * 0.110 + 0.110)
    assert fifo[1].first == pytest.approx(3 * 0.110 + 0.020)


def test_slots_keep_a_prompt_waiting_as_long_as_others_come_before_it():
    # one after the other the short ones find slot 0, and leave the long one 40 tokens of every step
    short = [Request(number, 0.105 * number, 60, 1) for number in range(1, 9)]
    done = _served([Request(0, 0.0, 300, 1), *short])
    last = max(one.first for one in done.values() if one.number)
    assert done[0].first == pytest.approx(0.110 * 6)
    assert done[0].first < last


def test_of_those_who_follow_requests_that_end_together_the_last_is_placed_first():
    slots, waiting = Slots(3), deque(Request(number, 0.0, 10, 1) for number in range(6))
    first = slots.seat(waiting)
    assert [one.number for one in slots.in_order(first)] == [2, 1, 0]
    slots.leave([first[0], first[2]], waiting)  # slots 2 and 0: slot 0 is freed first
    assert [one.number for one in waiting] == [4, 3, 5]
    following = slots.seat(waiting)
    assert [one.number for one in slots.in_order([first[1], *following])] == [4, 1, 3]


def test_who_comes_in_the_step_in_which_a_slot_becomes_free_comes_after_those_who_were_told_to_wait():
    slots, waiting = Slots(1), deque([Request(0, 0.0, 10, 1)])
    (first,) = slots.seat(waiting)
    waiting += [Request(1, 1.0, 10, 1), Request(2, 1.0, 10, 1)]
    slots.leave([first], waiting)
    # neither was told to wait before, so their order stays
    assert [one.number for one in waiting] == [1, 2]
