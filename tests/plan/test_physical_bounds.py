"""Bounds of physics over plans drawn at random: what no machine can do is in no answer, nor at an end of its intervals.

The draws are the same in every run of the tests; `DRAWS` in the environment makes more of them.
"""

from __future__ import annotations

import os
import random
from functools import cache

import pytest

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.models import load_model, model_names
from glmplan.physics.blocks.features import routed_blocks
from glmplan.physics.blocks.storage import checkpoint_bytes
from glmplan.plan import Words, fit_answer

DRAWS = int(os.environ.get("DRAWS", "12"))
#: a part and one of the same family that is nowhere slower: memory, bandwidth, matrix rates
PAIRS = [
    ("h100-sxm", "h200-sxm"),
    ("a100-40gb-sxm", "a100-80gb-sxm"),
    ("h200-sxm", "b200-sxm"),
    ("mi300x", "mi325x"),
    ("b200-sxm", "b300-sxm"),
]
USERS = "1,2,4,8,16,32"
#: rounding of a printed figure [-]
ROUNDING = 1e-3


def draw(number):
    """A model, a format, a pair of parts, an engine, a degree and lengths."""
    chance = random.Random(f"plans {number}")
    name = chance.choice(model_names())
    form = chance.choice([one.name for one in load_model(name).checkpoints])
    lengths = chance.choice([("128", "128"), ("1024", "256"), ("8192", "512"), ("1024", "1")])
    return (
        name,
        form,
        chance.choice(PAIRS),
        chance.choice(["vllm", "sglang", "trtllm"]),
        chance.choice([1, 2, 4, 8]),
        lengths,
    )


@cache
def plan(name, form, part, engine, tp, lengths):
    words = Words(f"{name}-{form}", f"{tp}x{part}", engine=engine, tp=str(tp), users=USERS,
                  input=lengths[0], output=lengths[1])  # fmt: skip
    try:
        found = fit_answer(words)
    except GlmplanError:
        return None  # not served so, with the reason
    return found if found.verdict == "fits" and found.users else None


def plans():
    for number in range(DRAWS):
        name, form, parts, engine, tp, lengths = draw(number)
        for part in parts:
            found = plan(name, form, part, engine, tp, lengths)
            if found is not None:
                yield f"{name}-{form} {engine} TP{tp} on {part}, {lengths}", name, form, part, tp, found


def test_enough_of_the_draws_are_plans():
    assert sum(1 for _ in plans()) >= DRAWS // 2


def test_no_end_of_an_interval_beats_the_roofline():
    for what, name, form, part, tp, found in plans():
        model, machine = load_model(name), load_accelerator(part)
        checkpoint = next(one for one in model.checkpoints if one.name == form)
        for row in found.users:
            figures = [one for one in (row.tpot, row.ttft) if one is not None and one.best is not None]
            assert all(one.best <= one.low * (1 + 1e-9) for one in figures), what
            assert row.total_rate.best is None or row.total_rate.high <= row.total_rate.best * (1 + 1e-9), what
            if row.tpot is None or routed_blocks(model) or found.holding.terms.mtp:
                continue
            # by hand: every weight but the embeddings is read once for each token of a dense model
            tables = 2 * model.vocabulary * model.hidden * 2.0
            weights = checkpoint_bytes(model, checkpoint) - tables
            assert row.tpot.low >= 0.98 * weights / tp / machine.memory_bandwidth, (what, row.users)
            assert row.user_rate.high <= 1.03 * tp * machine.memory_bandwidth / max(weights, 1.0), (what, row.users)


def test_more_users_never_give_more_speed_to_each_nor_a_sooner_first_token():
    for what, *_, found in plans():
        for few, many in zip(found.users, found.users[1:], strict=False):
            if few.user_rate is not None:
                assert many.user_rate.value <= few.user_rate.value * (1 + ROUNDING), (what, many.users)
            if few.ttft is not None:
                assert many.ttft.value >= few.ttft.value * (1 - ROUNDING), (what, many.users)


def test_all_together_make_no_more_tokens_than_each_of_those_that_run():
    for what, *_, found in plans():
        for row in found.users:
            if row.user_rate is not None:
                # the speed of each counts from its first token on; the total counts prompts and waiting too
                assert row.total_rate.value <= row.running * row.user_rate.value * (1 + 0.02), (what, row.users)


@pytest.mark.parametrize("number", range(DRAWS))
def test_a_faster_part_of_the_family_is_not_slower_beyond_the_interval(number):
    name, form, (slow, fast), engine, tp, lengths = draw(number)
    one, other = (plan(name, form, part, engine, tp, lengths) for part in (slow, fast))
    if one is None or other is None:
        pytest.skip("does not fit or is not served so")
    for before, after in zip(one.users, other.users, strict=True):
        for figure in ("ttft", "tpot"):
            was, becomes = getattr(before, figure), getattr(after, figure)
            if was is not None and becomes is not None:
                assert becomes.value <= was.high, (figure, before.users)
