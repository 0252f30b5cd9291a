"""llama.cpp computes prompts in the order of its slots, and fills slots by when they were used."""

from __future__ import annotations

from collections import deque

import pytest

from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.in_order import Slots
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import KvPool, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request

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


@pytest.mark.parametrize("engine", [SkippingEngine, SteppingEngine])
def test_a_turn_finds_what_its_slot_holds_of_the_conversation(engine):
    def turns(name, at):
        return [
            Request(at, 10.0 * at, 80, 5, runs=(("system", 20), (name, 60))),
            Request(at + 2, 100.0 + 10.0 * at, 120, 5, runs=(("system", 20), (name, 100))),
        ]

    first, second = turns("a", 0), turns("b", 1)
    done = _served(sorted([*first, *second], key=lambda one: one.arrival), engine=engine)
    # prompt and answer but its last token were computed: 84 of 120 tokens, of which 36 are left
    assert [done[number].cached for number in range(4)] == [0, 20, 84, 84]
    assert done[2].first - 100.0 == pytest.approx(0.010 + 0.036)
    without = _served(sorted([*turns("a", 0), *turns("b", 1)], key=lambda one: one.arrival), engine=engine,
                      prefix_caching=False)  # fmt: skip
    assert without[2].cached == 0 and without[2].first - 100.0 == pytest.approx(0.110 + 0.030)


def test_a_slot_that_holds_a_tenth_of_a_prompt_or_less_is_no_better_than_another():
    slots = Slots(2, reuse=True)
    old = Request(0, 0.0, 100, 1, runs=(("system", 10), ("a", 90)))
    (seated,) = slots.assign(deque([old]))
    seated.finish = 1.0
    slots.leave([seated], deque())
    new = Request(1, 2.0, 100, 1, runs=(("system", 10), ("b", 90)))
    slots.assign(deque([new]))
    assert new.done == 0 and slots.in_order([new]) == [new]
    longer = Request(2, 2.0, 99, 1, runs=(("system", 10), ("c", 89)))
    slots.assign(deque([longer]))  # the slot that is left is that of the first request
    assert longer.done == 10


def test_what_a_slot_loses_comes_back_from_host_memory_if_it_has_room_there():
    """Two conversations that begin alike meet in one slot, and each finds its own again."""

    def turns(kept):
        slots, found = Slots(2, reuse=True, kept=kept), []
        for number in range(6):
            length = (100, 150, 180)[number // 2]
            request = Request(number, float(number), length, 11, runs=(("system", 20), ("ab"[number % 2], length - 20)))
            (seated,) = slots.assign(deque([request]))
            found.append(seated.done)
            seated.finish = number + 0.5
            slots.leave([seated], deque())
        return found

    # each turn goes on from the one before, prompt and answer but its last token
    assert turns(kept=1000.0) == [0, 20, 110, 110, 160, 160]
    # with little room the copy is thrown out, and nothing but the common head is found
    assert turns(kept=100.0) == [0, 20, 20, 20, 20, 20]


def test_slots_keep_a_prompt_waiting_as_long_as_others_come_before_it():
    # one after the other the short ones find slot 0, and leave the long one 40 tokens of every step
    short = [Request(number, 0.105 * number, 60, 1) for number in range(1, 9)]
    done = _served([Request(0, 0.0, 300, 1), *short])
    last = max(one.first for one in done.values() if one.number)
    assert done[0].first == pytest.approx(0.110 * 6)
    assert done[0].first < last


def test_of_those_who_follow_requests_that_end_together_the_last_is_placed_first():
    slots, waiting = Slots(3), deque(Request(number, 0.0, 10, 1) for number in range(6))
    first = slots.assign(waiting)
    assert [one.number for one in slots.in_order(first)] == [2, 1, 0]
    slots.leave([first[0], first[2]], waiting)  # slots 2 and 0: slot 0 is freed first
    assert [one.number for one in waiting] == [4, 3, 5]
    following = slots.assign(waiting)
    assert [one.number for one in slots.in_order([first[1], *following])] == [4, 1, 3]


def test_who_comes_in_the_step_in_which_a_slot_becomes_free_comes_after_those_who_were_told_to_wait():
    slots, waiting = Slots(1), deque([Request(0, 0.0, 10, 1)])
    (first,) = slots.assign(waiting)
    waiting += [Request(1, 1.0, 10, 1), Request(2, 1.0, 10, 1)]
    slots.leave([first], waiting)
    # neither was told to wait before, so their order stays
    assert [one.number for one in waiting] == [1, 2]
