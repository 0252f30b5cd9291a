"""A plan that fits breaks no rule of its engine: drawn at random over models, files, parts, engines and layouts.

The draws are the same in every run of the tests; `GLMPLAN_PLANS` in the environment says how many plans they give
(`make rules` asks for 10,000).
"""

from __future__ import annotations

import os
import random
import re

import pytest

import glmplan
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.costs.memory.shards import Server, split_block
from glmplan.errors import GlmplanError
from glmplan.planner import fit_answer
from glmplan.planner.users import verdict_under
from glmplan.request.plan import PlanRequest

ENGINES = ("vllm", "sglang", "trtllm", "llama.cpp", "ktransformers")
#: plans of each engine
PLANS = -(-int(os.environ.get("GLMPLAN_PLANS", "300")) // len(ENGINES))


def drawn(engine: str, number: int):
    """Questions of one engine, the same at every run."""
    chance = random.Random(f"rules {engine}")
    models, parts = sorted(model_names()), sorted(accelerator_names())
    for _ in range(number):
        model = load_model(chance.choice(models))
        options: dict[str, object] = {}
        if chance.random() < 0.6:
            options["tp"] = chance.choice((1, 2, 4, 8))
            if chance.random() < 0.4:
                options["ep"] = chance.choice((1, 2, 4, 8))
        if chance.random() < 0.3:
            options["mtp"] = 1
        if chance.random() < 0.2:
            options["kv"] = chance.choice(("fp8", "bf16"))
        cards = chance.choice((1, 2, 4, 8, 8))
        yield model, chance.choice(model.checkpoints).name, f"{cards}x{chance.choice(parts)}", options


def avoided(wall, command):
    """Whether the plan takes another setting, its command the remedy, or a stated program of the operator ends it."""
    text = str(command)
    if wall.instead.model_dump(exclude_none=True) or wall.when.unless or wall.when.options:
        return True
    return bool(wall.told or wall.environment) and all(flag in text for flag in (*wall.told, *wall.environment))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_that_fits_loads_and_is_in_no_danger(engine):
    for model, weights, machine, options in drawn(engine, PLANS):
        try:
            asked = PlanRequest(model.name, machine, weights=weights, engine=engine, users=(1,), **options)
            answer = fit_answer(asked, changes=False)
        except GlmplanError:
            continue
        if answer.verdict != "fits":
            continue
        told = (model.name, weights, machine, options, answer.holding.terms.name)
        terms = answer.holding.terms
        assert verdict_under(answer.asked, answer.holding) == "fits", told
        server = Server.on(load_accelerator(machine.partition("x")[2]), engine, None)
        split = split_block(
            model, answer.asked.checkpoint, server, (terms.tp, terms.dp, terms.ep), mtp="mtp" in options
        )
        assert split is None or split.loads, told
        assert not [one.title for one in answer.warnings if one.severity == "danger"], told
        # an error that the plan already avoids is still reported
        errors = [one for one in terms.limitations if one.severity == "error" and not avoided(one, answer.command)]
        # another program of the vendor takes the place of the engine, and no command is given
        other = [one for one in errors if one.another_program]
        assert not other or answer.command == (), told
        assert [one.title for one in errors if one not in other] == [], told
        assert terms.accelerators <= int(machine.partition("x")[0]), told
        longest = re.search(r"--(?:max-model-len|context-length|max_seq_len) (\d+)", str(answer.command))
        assert longest is None or int(longest[1]) <= answer.holding.context, told
        host = answer.asked.machine.host.host_memory
        pinned = sum(row.host for row in answer.ranks)
        assert host is None or pinned <= host, told
        assert all(row.total <= row.capacity for row in answer.ranks), told


def test_drafting_is_dropped_where_a_layout_has_stages():
    answer = glmplan.fit("glm-4.6", weights="q4_k_xl", on="4xrtx-pro-5000-72gb", engine="vllm", tp=1, mtp=1, users=(1,))
    assert answer.holding.terms.pp > 1 and answer.holding.terms.mtp == 0
    assert "speculative" not in str(answer.command)
