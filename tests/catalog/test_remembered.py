"""Answers that are remembered for the same records."""

import gc
import weakref

import pytest

from glmplan.catalog.caching import remembered
from glmplan.catalog.entries.hosts import implied_host
from glmplan.planner import read_words
from glmplan.planner.capacity import Obstacles, Ranks
from glmplan.planner.layouts import layouts
from glmplan.prediction.load import Load, metrics_of
from glmplan.request.plan import PlanRequest


class Record:
    """Something that is known by what it is and not by what it says."""


def test_an_answer_is_made_once_for_a_record_and_again_for_another_and_after_forgetting():
    made = []

    @remembered()
    def answer(record: Record, word: str) -> int:
        made.append((record, word))
        return len(made)

    one, other = Record(), Record()
    assert [answer(one, "a"), answer(one, "a"), answer(other, "a"), answer(one, "b")] == [1, 1, 2, 3]
    answer.cache_clear()
    assert answer(one, "a") == 4


def test_no_more_answers_and_records_are_held_than_said():
    @remembered(most=3)
    def answer(record: Record) -> None:
        return None

    seen = []
    for _ in range(10):
        record = Record()
        seen.append(weakref.ref(record))
        answer(record)
    del record
    gc.collect()
    assert [one() is not None for one in seen] == [False] * 7 + [True] * 3


def test_what_is_raised_is_not_remembered():
    wrong = [True]

    @remembered()
    def answer(record: Record) -> str:
        if wrong:
            raise ValueError
        return "right"

    one = Record()
    with pytest.raises(ValueError):
        answer(one)
    wrong.clear()
    assert answer(one) == "right"


def test_the_same_words_mean_the_same_machine():
    assert implied_host("h100-sxm", 4) is implied_host("h100-sxm", 4)
    assert implied_host("h100-sxm", 4) is not implied_host("h100-sxm", 8)


def test_questions_that_differ_in_their_lengths_share_the_memory_of_ranks_and_keep_their_own_pools():
    held = []
    for tokens in (1000, 9000):
        asked = read_words(PlanRequest("llama-3.1-8b", "2xh100-sxm", input=tokens, output=256))
        found, _ = layouts(asked)
        terms = Obstacles(asked).wanted(found[0], "bf16")
        held.append(Ranks(asked, found).hold(terms))
    short, long = held
    assert short.memory.stages is long.memory.stages
    assert short.held > long.held


def test_graphs_change_what_is_left_for_the_pool_and_not_what_ranks_hold():
    asked = read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm"))
    found, _ = layouts(asked)
    ranks, wanted = Ranks(asked, found), Obstacles(asked).wanted(found[0], "bf16")
    captured = ranks.hold(wanted)
    eager = read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm", eager=True))
    without = Ranks(eager, found).hold(Obstacles(eager).wanted(found[0], "bf16"))
    assert captured.terms.graphs and not without.terms.graphs
    assert captured.memory.stages is without.memory.stages
    assert captured.pool.tokens < without.pool.tokens


def test_the_arrays_of_a_load_cannot_be_changed_by_who_asked_for_them():
    found = metrics_of(Load(8, 1000, 200, phase="serving"))
    assert found is metrics_of(Load(8, 1000, 200, phase="serving"))
    with pytest.raises(ValueError):
        found.decode_requests[0] = 1.0
    with pytest.raises(ValueError):
        found.figures["tpot"].weights[0] = 1.0
