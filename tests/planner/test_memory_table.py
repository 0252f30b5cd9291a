"""The verdict and the memory table of a plan are of one mind, whatever model, part and engine are asked about.

Plans are drawn at random over the whole catalogue; the share of memory is the engine's own or one that somebody told.
"""

from __future__ import annotations

import random

import pytest

import glmplan
from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.costs.memory import MemorySettings, budget_rows, kv_pool, part_memory, rank_memory
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError

#: plans of each engine that are asked whole, and layouts of which only the memory is computed [-]
PLANS, LAYOUTS = 25, 200
#: shares of memory, None is the engine's own [-]
SHARES = (None, None, 0.8, 0.95, 0.98)
CARDS = (1, 1, 2, 4, 8)


def drawn(engine: str, number: int):
    """Models, parts, numbers of cards and shares of memory, the same at every run."""
    chance = random.Random(engine)
    models, parts = sorted(model_names()), sorted(accelerator_names())
    return [tuple(map(chance.choice, (models, parts, CARDS, SHARES))) for _ in range(number)]


@pytest.mark.parametrize("engine", memory_engines())
def test_a_plan_that_fits_holds_no_more_than_its_cards_and_its_pool_is_what_is_left(engine):
    seen = 0
    for model, part, cards, share in drawn(engine, PLANS):
        try:
            answer = glmplan.fit(model, on=f"{cards}x{part}", engine=engine, users=(1,), memory_fraction=share)
        except GlmplanError:
            continue  # a question that this part or engine cannot answer
        if answer.holding is None:
            continue
        words = (model, part, cards, share, answer.verdict)
        assert 0.0 <= answer.holding.pool.low <= answer.holding.pool.tokens <= answer.holding.pool.high, words
        for rank in answer.ranks:
            assert rank.cache == max(rank.pool, 0.0), words
            assert sum(rank.parts.values()) == pytest.approx(rank.total), words
            if answer.verdict == "fits":
                seen += 1
                assert rank.total <= rank.capacity * (1.0 + 1e-9), words
                assert rank.cache > 0.0, words
    assert seen


@pytest.mark.parametrize("engine", memory_engines())
def test_the_pool_is_what_the_engines_rule_leaves_of_the_memory(engine):
    rule = load_memory_rule(engine)
    for name, part, cards, share in drawn(engine, LAYOUTS):
        model, accelerator = load_model(name), load_accelerator(part)
        if accelerator.memory is None:
            continue
        told = MemorySettings(engine=engine, fraction=share, accelerator=part)
        stored = model.checkpoint(model.default_checkpoint or model.checkpoints[0].name)
        listed = float(accelerator.memory)
        held = rank_memory(model, stored, layout=Layout(tp=cards), kv="bf16", settings=told, memory=listed)
        seen = part_memory(accelerator)
        pool = kv_pool(held, seen)
        for rank in budget_rows(held, seen):
            weights = sum(rank.weights.values())
            outside = rank.communication + rank.reserve
            # taken before the share: logits of a step and of twice the requests that may run, in 16 bit
            # and halved where it leaves less than 16 blocks (`test_a_step_is_halved_until_16_blocks_remain`)
            logits = rule.reserved_logits * (told.budget(listed) + 2.0 * told.requests(listed)) * model.vocabulary
            logits = min(logits, rank.activation)
            left = {
                "total": rank.usable - weights - rank.activation - outside - rank.graph_estimate,
                "before_load": rank.usable - weights - rank.reserve,
                "after_weights": (share or 0.8) * (rank.usable - weights - logits - rank.reserve),
                "after_load": (share or 0.9) * (rank.usable - weights - rank.activation - rank.reserve - rank.graphs),
                "rest": rank.usable - weights - rank.activation - outside,
            }[rule.pool]
            assert rank.pool == pytest.approx(left, abs=1e3), (name, part, cards, share)
            assert rank.cache >= 0.0
            assert (rank.graphs > 0.0) == rule.captures_graphs
            if pool.over[0] <= 0.0:
                assert rank.total <= rank.capacity * (1.0 + 1e-9), (name, part, cards, share)


def test_a_share_that_leaves_nothing_for_what_runs_beside_the_pool_does_not_fit():
    asked = {"on": "1xh20-96gb", "engine": "sglang", "users": (1,)}
    fits = glmplan.fit("qwen3-8b", **asked)
    over = glmplan.fit("qwen3-8b", **asked, memory_fraction=0.99)
    assert fits.verdict == "fits" and over.verdict == "does_not_fit"
    assert "--memory-fraction" in over.headline


@pytest.mark.parametrize("name", sorted(accelerator_names()))
def test_programs_see_no_more_memory_than_a_part_has(name):
    part = load_accelerator(name)
    if part.memory is not None and part.memory_usable is not None:
        assert part.memory_usable <= part.memory


@pytest.mark.parametrize(("engine", "prints"), [("vllm", True), ("sglang", True), ("llama.cpp", False)])
def test_only_an_engine_that_measures_its_pool_is_said_to_print_it(engine, prints):
    # llama-server makes the slots of -c and --parallel and prints those
    answer = glmplan.fit("gpt-oss-20b", on="1xrtx-4090", engine=engine, users=(1,))
    assert bool(answer.printed) is prints
