"""The steps of a ladder as questions: what serves, and what is asked of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.facts.schema.accelerator import Accelerator
from glmplan.measure.ladder import LadderPlan
from glmplan.measure.server_facts import ServerFacts
from glmplan.physics.points import Layout
from glmplan.prediction.deployment import Deployment, default_kv, deploy
from glmplan.prediction.load import Load
from glmplan.prediction.user_load import ENDLESS, user_load

__all__ = ["Case", "ladder_cases", "predicted_pool"]


@dataclass(frozen=True, slots=True)
class Case:
    """One step of a ladder as a question.

    Parameters
    ----------
    level : float
        Users [-] or rate [1/s]
    deployment : Deployment
        What serves.
    load : Load
        What is asked of it.
    """

    level: float
    deployment: Deployment
    load: Load


@lru_cache(maxsize=1)
def _this_machine() -> Accelerator:
    from glmplan.facts.catalogue.accelerators import load_accelerator
    from glmplan.readers.machines.this_machine import probe_machine

    found = probe_machine(seconds=0.5)
    return found.part if found.part is not None else load_accelerator(found.host.accelerator)


def _deployment_of_files(facts: Mapping[str, Any], served: ServerFacts) -> tuple[Deployment, list[str]]:
    """Return the deployment of a model or a machine that is described by a file, or of this machine."""
    from glmplan.facts.catalogue.accelerators import load_accelerator
    from glmplan.facts.catalogue.names import kv_name
    from glmplan.prediction.from_row_memory import STAND_IN
    from glmplan.readers.models.checkpoints import checkpoint_for, read_by
    from glmplan.readers.models.resolve import resolve_model

    choice = resolve_model(str(facts["model"]))
    where = str(facts["accelerator"])
    if where == "this-machine":
        part = _this_machine()
    else:
        part = load_accelerator(Path(where) if where.endswith(".toml") else where)
    weights = facts.get("weights") if not os.path.exists(str(facts["model"])) else None
    checkpoint = choice.checkpoint if weights is None else checkpoint_for(choice.model, str(weights))
    layout = Layout(*(int(float(facts.get(name) or 1)) for name in ("tp", "pp", "dp", "ep", "dcp")))
    said = facts.get("engine") or served.engine
    engine = str(said or STAND_IN)
    if choice.exact_bytes is None:
        checkpoint = read_by(choice.model, checkpoint, engine)
    kv = kv_name(str(facts.get("kv_cache") or "")) or default_kv(
        checkpoint, engine, model=choice.model, accelerator=part
    )
    deployment = deploy(choice.model, checkpoint, part, kv=kv, engine=engine, layout=layout)
    return deployment, [*([] if said else [f"engine {engine}"]), f"kv {kv}", f"machine {part.full_name}"]


def _deployment_of_names(facts: Mapping[str, Any], plan: LadderPlan) -> tuple[Deployment, list[str]]:
    from glmplan.prediction.from_row import question_of
    from glmplan.readers.runs.table import run_from_row

    words = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in facts.items()}
    # the lengths are those of the ladder: none has to be assumed
    lengths = {"input_tokens": f"{plan.lengths.input_tokens}", "output_tokens": f"{plan.lengths.output_tokens}"}
    ladder = {"id": "ladder", "phase": "serving", "protocol": "closed-loop", "concurrency": "1", **lengths}
    run = run_from_row(ladder | words)
    question = question_of(run)
    return question.deployment, list(question.assumed)


def ladder_cases(
    plan: LadderPlan,
    facts: Mapping[str, Any],
    *,
    served: ServerFacts,
    measured: Mapping[float, Mapping[str, float]] | None = None,
) -> tuple[list[Case], list[str]]:
    """Turn the steps of a ladder into questions.

    Parameters
    ----------
    plan : LadderPlan
        The steps.
    facts : mapping
        Columns of a run that name the deployment. `model` may be a file (config.json, .gguf), `accelerator` a TOML
        file or `this-machine`.
    served : ServerFacts
        What the server tells: pool and largest batch are taken from it where it tells them.
    measured : mapping, optional
        Level → figures that were measured, for the real lengths.

    Returns
    -------
    tuple
        Questions, and what was assumed.

    Raises
    ------
    SpecError
        If the deployment does not hold together.
    """
    model, part = str(facts.get("model")), str(facts.get("accelerator"))
    if os.path.exists(model) or part == "this-machine" or part.endswith(".toml"):
        deployment, assumed = _deployment_of_files(facts, served)
    else:
        deployment, assumed = _deployment_of_names(facts, plan)
    mean = (1.0 + plan.lengths.shortest) / 2.0
    cases = []
    for level in [rate for rate, _ in plan.schedules] or [float(users) for users in plan.users]:
        seen = (measured or {}).get(level, {})
        users = max(seen.get("concurrency_effective", level), 1.0) if plan.schedules else level
        load = user_load(
            deployment.defaults,
            ranks=deployment.dp,
            tokens_per_step=deployment.tokens_per_step,
            users=users,
            input_tokens=seen.get("input_tokens", plan.lengths.input_tokens * mean),
            output_tokens=seen.get("output_tokens", plan.lengths.output_tokens * mean),
            requests=max(plan.requests or round(50 * users), 1),
            staggered=plan.requests is None,
            shortest=min(plan.lengths.shortest / mean, 1.0),
            longest=max(1.0 / mean, 1.0),
            pool_tokens=served.kv_tokens or ENDLESS,
            **({"max_requests": int(served.max_sequences)} if served.max_sequences else {}),
        )
        cases.append(Case(level, deployment, load))
    return cases, assumed


def predicted_pool(case: Case, served: ServerFacts) -> tuple[float, float, float] | None:
    """Predict the KV pool of the deployment, to be compared with the server's own.

    Parameters
    ----------
    case : Case
        A step of the ladder.
    served : ServerFacts
        What the server tells: its longest request matters for sliding windows and recurrent states.

    Returns
    -------
    tuple of float or None
        Tokens and the ends of their 90 % interval, [token]; None where memory cannot be computed, as on a processor
        whose pool is whatever it was told.
    """
    from glmplan.facts.engines.memory import load_memory_rule, memory_engines
    from glmplan.physics.memory import kv_pool, part_memory, rank_memory

    d = case.deployment
    # engines that reserve what is left, and all on a processor, take the pool they are told to take
    if d.engine not in memory_engines() or d.accelerator.kind == "cpu-socket":
        return None
    if load_memory_rule(d.engine).pool == "rest":
        return None
    settings = d.settings.memory(
        engine=d.engine, version=d.version, accelerator=d.accelerator.name, draft_tokens=d.draft_tokens
    )
    try:
        held = rank_memory(
            d.model,
            d.checkpoint,
            layout=d.layout,
            kv=d.kv,
            settings=settings,
            mtp=d.draft_tokens > 0,
            memory=d.accelerator.memory,
        )
        pool = kv_pool(held, part_memory(d.accelerator), context=served.max_context or float(d.model.max_context))
    except GlmplanError:
        return None
    return float(pool.tokens[0]), float(pool.tokens_low[0]), float(pool.tokens_high[0])
