"""`size --drafter best` tries no drafting and the model's own drafter."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan.errors import SpecError
from glmplan.present.size_text import size_content, size_text
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size

MONEY = money_of(today=date(2026, 11, 22))


def found(**said):
    common = {"users": 8, "weights": "fp8", "only": "rtx-pro-6000-ws", "machines": 1}
    return sized(read_size("qwen3.6-27b", "tpot p95 < 30 ms", **common, **said), MONEY, answers=3)


def test_the_search_costs_as_little_as_the_best_way_of_drafting():
    both = found(drafter="best", mtp="3")
    apart = [found(mtp=count).options[0] for count in (0, 3)]
    first = both.options[0]
    # a question with each number alone finds its own cheapest machine
    assert first.way.usd == min(one.way.usd for one in apart)
    assert first.planned.holding.terms.mtp == min(apart, key=lambda one: one.way.usd).planned.holding.terms.mtp == 3
    row = size_content(both)["options"][0]
    assert row["speculative_tokens"] == 3 and "--set speculative=mtp-3" in row["measure"]
    assert "--mtp 3" in size_text(both, size_content(both))


def test_a_machine_and_format_is_shown_once():
    options = found(drafter="best").options
    shown = [(one.name, one.planned.asked.checkpoint.name, one.planned.asked.engine) for one in options]
    assert len(shown) == len(set(shown)) >= 2


def test_numbers_of_tokens_are_those_asked_for_or_a_whole_block():
    tokens = [
        way.get("mtp") for way in read_size("deepseek-v4-flash-0731", "tpot p95 < 1 s", users=1, drafter="best").drafts
    ]
    assert tokens == [None, 5]
    asked = read_size("glm-5.1", "tpot p95 < 1 s", users=1, drafter="best", mtp="4", acceptance="0.5")
    assert asked.drafts == ({}, {"mtp": 4, "acceptance": 0.5})


def test_a_model_without_a_drafter_is_refused_with_the_next_step():
    with pytest.raises(SpecError, match="llama-3.1-8b has none; --drafter names another"):
        read_size("llama-3.1-8b", "tpot p95 < 1 s", users=1, drafter="best")
