"""Parallel degrees of a layout, and why engines refuse some."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.entries.names import engine_release
from glmplan.catalog.schema.model import ModelSpec
from glmplan.costs.blocks.stack import mixers_of, routed_blocks
from glmplan.errors import SpecError
from glmplan.prediction.deployment import heads_of

if TYPE_CHECKING:
    from glmplan.planner.question import Asked

__all__ = ["DEGREES", "check_layout", "context_problem", "experts_of", "experts_problem", "split_problem"]


#: degrees of a layout, and the number of its servers on the machine
DEGREES = ("tp", "pp", "dp", "ep", "dcp", "replicas")


def split_problem(model: ModelSpec, tp: int, engine: str) -> str | None:
    """Return why an engine does not split a model over a TP degree, or None.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> split_problem(load_model("glm-5.1"), 3, "vllm")
    'does not divide the 64 attention heads of glm-5.1'
    >>> split_problem(load_model("kimi-k3"), 3, "vllm")
    'does not divide the vocabulary of kimi-k3, 163,840 rows with padding'
    >>> split_problem(load_model("glm-5.1"), 4, "vllm"), split_problem(load_model("kimi-k3"), 3, "trtllm")
    (None, None)
    """
    heads = heads_of(model)
    if heads > 1 and heads % tp:
        return f"does not divide the {heads} attention heads of {model.name}"
    problems = (one.cut_problem(tp, model.name) for one in mixers_of(model))
    rows = load_memory_rule(engine).vocabulary_problem(model.name, model.vocabulary, tp)
    return next((why for why in (*problems, rows) if why is not None), None)


def experts_problem(model: ModelSpec, ep: int, engine: str) -> str | None:
    """Return why an engine does not deal the experts over ranks, or None.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> experts_problem(load_model("glm-4.7"), 6, "sglang")
    'does not divide the 160 experts of glm-4.7'
    >>> experts_problem(load_model("glm-4.7"), 6, "vllm"), experts_problem(load_model("glm-4.7"), 8, "sglang")
    (None, None)
    """
    running, experts = load_engine(engine).running, experts_of(model)
    even = () if running is None else running.even_experts
    if experts % ep == 0 or not any(fnmatchcase(model.name, pattern) for pattern in even):
        return None
    return f"does not divide the {experts} experts of {model.name}"


def context_problem(model: ModelSpec, tp: int, dcp: int, engine: str, version: str | None) -> str | None:
    """Return why an engine does not divide cached tokens, or None.

    `version` None is the newest.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> context_problem(load_model("llama-3.1-70b"), 8, 2, "vllm", None)
    'needs TP 16 or more: the ranks that divide tokens hold the same of 8 KV heads'
    >>> context_problem(load_model("qwen3-235b-a22b"), 8, 2, "vllm", None)
    >>> context_problem(load_model("deepseek-v3.1"), 8, 2, "trtllm", None)
    'is not supported with TensorRT-LLM: no source shows it; leave it out'
    """
    if dcp == 1:
        return None
    entry = load_engine(engine)
    facts = None if entry.running is None else entry.running.shared_context
    if facts is None:
        return f"is not supported with {entry.full_name}: no source shows it; leave it out"
    release, mixers = engine_release(version) if version else None, mixers_of(model)
    features = frozenset().union(*(mixer.features for mixer in mixers))
    needed = {"": facts.since, "gqa": facts.keys_since, "recurrent": facts.beside_states_since}
    for feature, first in needed.items():
        least = engine_release(first)
        if (not feature or feature in features) and release is not None and least is not None and release < least:
            return f"needs {entry.full_name} {first} or newer for {model.name}"
    problems = (mixer.shared_context_problem(tp, dcp, model.name) for mixer in mixers)
    return next((problem for problem in problems if problem is not None), None)


def experts_of(model: ModelSpec) -> int:
    """Return the largest number of routed experts of a layer; 0 if dense."""
    return max((block.experts for block in routed_blocks(model)), default=0)


def check_layout(asked: Asked, given: dict[str, int | None]) -> None:
    """Refuse invalid parallel degrees.

    `given`: `DEGREES` of the request; None is chosen by the plan.
    """
    model, machine, divided_experts = asked.model, asked.machine, asked.divided_experts
    count = machine.count
    tp, pp, dp, ep, dcp, replicas = (given[name] or 1 for name in DEGREES)
    problem = split_problem(model, tp, asked.engine)
    if problem:
        good = [one for one in range(1, max(count, 2 * tp) + 1) if not split_problem(model, one, asked.engine)]
        close = sorted(sorted(good, key=lambda one: abs(one - tp))[:3])
        raise SpecError(f"{problem}; nearest: {', '.join(map(str, close))}", field="--tp", value=tp)
    if pp > len(model.layer_names):
        raise SpecError(f"is more than the {len(model.layer_names)} layers of {model.name}", field="--pp", value=pp)
    words = f"tp {tp} × pp {pp} × dp {dp}" + f" × {replicas} replicas" * (replicas > 1)
    used = tp * pp * dp * replicas
    if used > count:
        raise SpecError(
            f"takes {used} accelerators and {machine.text} has {count}{machine.beside}; {machine.instead(used)}",
            field="layout",
            value=words,
        )
    # servers of a layout fill the machine, unless their number was given
    idle = used < count if given["replicas"] else count % used
    if given["tp"] and given["pp"] and given["dp"] and idle:
        raise SpecError(
            f"takes {used} of the {count} accelerators of {machine.text}; raise a degree, or ask for fewer",
            field="layout",
            value=words,
        )
    experts = experts_of(model)
    if ep > 1 and not experts:
        raise SpecError(f"needs routed experts, which {model.name} does not have", field="--ep", value=ep)
    fixed = given["tp"] and given["dp"]
    uneven = tp * dp % ep if divided_experts else ep != tp * dp
    if ep > 1 and (ep > min(count, experts) or (fixed and uneven)):
        whole = f"1 or tp × dp ({tp * dp})" if fixed else "1 or tp × dp"
        whole += " or a divisor of it" if divided_experts else ""
        raise SpecError(f"must be {whole}, within {count} accelerators and {experts} experts", field="--ep", value=ep)
    if ep > 1 and (problem := experts_problem(model, ep, asked.engine)) is not None:
        parts = [one for one in range(1, ep) if ep % one == 0] if divided_experts else [1]
        good = [one for one in parts if experts_problem(model, one, asked.engine) is None]
        raise SpecError(f"{problem}; take --ep {good[-1]}, or ranks that divide them", field="--ep", value=ep)
    if dcp > 1 and (tp % dcp if given["tp"] else dcp > count):
        raise SpecError(f"must divide --tp {tp}" if given["tp"] else "must divide TP", field="--dcp", value=dcp)
    degrees = [tp] if given["tp"] else [one for one in range(dcp, count + 1, dcp)]
    refused = [context_problem(model, one, dcp, asked.engine, asked.runs_as) for one in degrees]
    if degrees and all(refused):
        raise SpecError(refused[-1] or "", field="--dcp", value=dcp)
