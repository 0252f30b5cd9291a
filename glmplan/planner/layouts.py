"""Layouts to evaluate, and why others are skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import adapters_of, load_engine
from glmplan.catalog.entries.names import engine_release
from glmplan.costs.blocks.stack import routed_blocks
from glmplan.errors import SpecError
from glmplan.planner.capacity import experts_on_host, layout_name, split_of
from glmplan.planner.question import DEGREES, Asked
from glmplan.prediction.deployment import context_problem, experts_of, experts_problem, split_problem
from glmplan.prediction.effects import KNOWN_AS

if TYPE_CHECKING:
    from glmplan.planner.capacity import Terms
    from glmplan.planner.question import Asked
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.load import Load
    from glmplan.simulation.engine.settings import TransferLink

__all__ = [
    "APART",
    "adapter_words",
    "apart_basis",
    "check_adapters",
    "check_apart",
    "kinds_of_servers",
    "known_apart",
    "layout_takes_adapters",
    "layouts",
    "not_together",
    "servers_of",
    "transfer_link",
]


def check_adapters(asked: Asked) -> None:
    """Refuse LoRA adapters with an old release or with draft tokens."""
    many = asked.settings.adapters
    if not many:
        return
    facts = adapters_of(asked.engine)
    if facts is None:
        message = f"is not supported with {asked.engine}: its adapter memory is not modelled"
        raise SpecError(message, field="--lora", value=many)
    if asked.mtp:
        raise SpecError(
            "is not supported with --mtp: no source shows them together",
            field="--lora",
            value=many,
        )
    if routed_blocks(asked.model):
        release, first = engine_release(asked.runs_as), engine_release(facts.experts_since)
        if first is None or (release is not None and release < first):
            message = f"needs {asked.engine} {facts.experts_since} or newer for a mixture of experts"
            raise SpecError(message, field="--lora", value=many)


def layout_takes_adapters(asked: Asked, dp: int, ep: int) -> bool:
    """Return True if a layout supports the LoRA adapters of a request.

    Some engines have no adapters for experts in expert or data parallelism.
    """
    if not asked.settings.adapters or not routed_blocks(asked.model):
        return True
    facts = adapters_of(asked.engine)
    return facts is None or facts.deals_experts or dp == ep == 1


def adapter_words(asked: Asked) -> Sequence[str]:
    """Return the launch options for LoRA adapters."""
    settings, facts = asked.settings, adapters_of(asked.engine)
    if not settings.adapters or facts is None:
        return ()
    return (facts.told.format(adapters=settings.adapters, rank=settings.adapter_rank),)


#: evidence level (`glmplan.prediction.effects.KNOWN_AS`) of servers that were not measured together
APART = "apart"
#: evidence level whose interval is their minimum: wider than that of the newest release
_AS_SURE_AS = "format"
#: evidence levels of a measured deployment, which disaggregated servers never have
_TOGETHER = ("site", "configuration", "release", "group", "group_release", "pair")


def check_apart(asked: Asked) -> None:
    """Refuse disaggregated prefill if no source shows it with the engine."""
    if not asked.prefill:
        return
    running = load_engine(asked.engine).running
    facts = None if running is None else running.apart
    text = f"{asked.prefill}:{(asked.replicas or 0) - asked.prefill}"
    if facts is None:
        message = f"is not supported with {asked.engine}: no source shows it with separate prefill servers"
        raise SpecError(message, field="--disaggregated", value=text)
    if experts_on_host(asked):
        message = "is not supported with weights in host memory"
        raise SpecError(message, field="--disaggregated", value=text)
    release, first = engine_release(asked.runs_as), engine_release(facts.since)
    if release is not None and first is not None and release < first:
        message = f"needs {asked.engine} {facts.since} or newer, not {asked.runs_as}"
        raise SpecError(message, field="--disaggregated", value=text)


def transfer_link(asked: Asked, terms: Terms) -> TransferLink:
    """Return the link for the KV cache between prefill and decode servers.

    Bandwidth is the sum over the ranks that hold a request, each to its peer rank; latency is that of one send.

    Notes
    -----
    The link between the first and the last server of the machine, which are the farthest apart. Transfers of all
    servers are serialised on this link, which is conservative. Not modelled: sending layers while later ones are
    computed.
    """
    from glmplan.costs.network.links import link_of_transfers
    from glmplan.simulation.engine.settings import TransferLink

    inside = max(min(asked.machine.per_node, asked.machine.count) // terms.server, 1)
    last = terms.replicas - 1
    start = last // inside * asked.machine.per_node + last % inside * terms.server
    if inside == 1:
        start = last * max(asked.machine.per_node, terms.server)
    start = min(start, asked.machine.count - terms.server)
    pairs = [(rank, start + rank) for rank in range(terms.server)]
    link = link_of_transfers(asked.machine.host, pairs)
    each = link.bandwidth * link.ring.efficiency
    return TransferLink(each * terms.tp * terms.pp, link.ring.launch + link.ring.hop)


def known_apart(asked: Asked, knowledge: str) -> str:
    """Return the evidence level of a plan.

    `knowledge` is the level of a single server. Disaggregated servers have level `APART` at best.
    """
    return APART if asked.prefill and knowledge in _TOGETHER else knowledge


def apart_basis(asked: Asked, basis: str) -> str:
    """Return the evidence as text, with a remark on disaggregation."""
    return f"{KNOWN_AS[APART]}; each: {basis}" if asked.prefill else basis


def not_together(
    asked: Asked, deployment: Deployment, load: Load, kind: str, ends: tuple[float, float]
) -> tuple[float, float]:
    """Return the interval of a time of disaggregated servers.

    At least as wide as for a model and an accelerator that were never measured together, nor the accelerator in this
    format, and as for settings that no run states: none was measured with separate servers. `ends` is the 90 %
    interval of one server relative to its prediction.
    """
    if not asked.prefill:
        return ends
    from glmplan.prediction.effects import load_effects
    from glmplan.prediction.evidence import features_of, interval_of

    effects = load_effects(deployment.engine)
    features = features_of(deployment, load) | {"stated": "no"}
    low, high = interval_of(effects, _AS_SURE_AS, kind, features)
    return min(ends[0], math.exp(low)), max(ends[1], math.exp(high))


def kinds_of_servers(asked: Asked, terms: Terms) -> tuple[str, ...]:
    """Return launch notes for prefill servers, decode servers and router."""
    running = load_engine(asked.engine).running
    if not terms.prefill or running is None or running.apart is None:
        return ()
    facts, link = running.apart, transfer_link(asked, terms)
    rate = f"{link.bandwidth / 1e9:,.0f} GB/s"
    return (
        f"{terms.prefill} prefill servers: add {facts.prefill}",
        f"{terms.decoding} decode servers: add {facts.decode}",
        f"router: {facts.router}; KV transfer at {rate}, one request at a time",
    )


#: above this many accelerators only servers on all, on one domain or on a power of two of them are evaluated [-]
_MANY = 16
#: layouts that one line of skipped layouts names [-]
_NAMED = 6


def layouts(asked: Asked) -> tuple[list[tuple[int, int, int, int, int]], list[str]]:
    """Return the layouts to evaluate, and reasons for the skipped ones."""
    check_apart(asked)
    check_adapters(asked)
    model, count = asked.model, asked.machine.count
    experts = experts_of(model)
    depth = max(len(model.layer_names) - asked.settings.host_layers, 1)
    running = load_engine(asked.engine).running
    whole_layers = running is not None and running.whole_layers
    one_split = running is not None and running.one_split
    _check_splits(asked, one_split, whole_layers)
    bad: dict[str, list[int]] = {}
    uneven: dict[str, list[str]] = {}
    degrees = []
    for tp in [asked.tp] if asked.tp else range(1, min(count, 128) + 1):
        if asked.tp is None and whole_layers and tp > 1:
            continue
        problem = split_problem(model, tp, asked.engine)
        if problem:
            bad.setdefault(problem, []).append(tp)
        else:
            degrees.append(tp)
    found = []
    servers = asked.replicas or 1
    whole = {count, min(asked.machine.per_node, count)} | {1 << bit for bit in range(count.bit_length())}
    for tp in degrees:
        for pp in [asked.pp] if asked.pp else range(1, min(count // tp, depth) + 1):
            for dp in [asked.dp] if asked.dp else range(1, count // (tp * pp) + 1):
                used = tp * pp * dp
                if used * servers > count or (count > _MANY and used not in whole):
                    continue
                if not asked.dp and dp > 1 and (pp > 1 or whole_layers):
                    continue
                if one_split and (dp > 1 or (tp > 1 and pp > 1)):
                    continue
                for ep in [1] if one_split else _expert_degrees(asked, tp * dp, experts):
                    dcp = asked.dcp or 1
                    problem = experts_problem(model, ep, asked.engine)
                    if problem:
                        uneven.setdefault(problem, []).append(layout_name(tp, pp, dp, ep))
                    elif (
                        tp % dcp == 0
                        and layout_takes_adapters(asked, dp, ep)
                        and context_problem(model, tp, dcp, asked.engine, asked.runs_as) is None
                    ):
                        found.append((tp, pp, dp, ep, dcp))
    if not found:
        requested = " ".join(f"--{name} {getattr(asked, name)}" for name in DEGREES if getattr(asked, name))
        raise SpecError(
            f"no layout of {count} accelerators is valid: ep must be tp × dp, dcp must divide tp, "
            f"tp × pp × dp × replicas may not exceed {count}", field="layout", value=requested,
        )  # fmt: skip
    found, split = _whole_blocks(asked, found)
    named = {problem: [f"TP{tp}" for tp in sizes] for problem, sizes in bad.items()} | uneven | split
    left_out = [
        f"{', '.join(names[:_NAMED])}{' …' if len(names) > _NAMED else ''}: {problem}"
        for problem, names in named.items()
    ]
    return found, left_out


def _check_splits(asked: Asked, one_split: bool, whole_layers: bool) -> None:
    """Refuse degrees that an engine with few kinds of splits does not have."""
    tp, pp, dp, ep = (getattr(asked, name) or 1 for name in ("tp", "pp", "dp", "ep"))
    alone = one_split or whole_layers
    if (alone and (dp > 1 or ep > 1)) or (one_split and tp > 1 and pp > 1):
        name = load_engine(asked.engine).full_name
        servers = f", --replicas {dp} for {dp} servers" if dp > 1 else ""
        raise SpecError(
            f"{name} supports neither data nor expert parallelism; give --tp or --pp only{servers}",
            field="layout",
            value=f"tp {tp} × pp {pp} × dp {dp}, ep {ep}",
        )


def _whole_blocks(
    asked: Asked, found: list[tuple[int, int, int, int, int]]
) -> tuple[list[tuple[int, int, int, int, int]], dict[str, list[str]]]:
    """Return the layouts that split no quantisation block, and the others.

    If all split blocks: those that load nevertheless, else all, so that the answer names the reason.
    """
    splits = {layout: split_of(asked, layout) for layout in found}
    grades = {layout: 0 if one is None else 1 if one.loads else 2 for layout, one in splits.items()}
    best = min(grades.values())
    others: dict[str, list[str]] = {}
    for layout, one in splits.items():
        if one is not None and grades[layout] > best:
            others.setdefault(one.words, []).append(layout_name(*layout))
    return [layout for layout in found if grades[layout] == best], others


def servers_of(asked: Asked, layout: tuple[int, int, int, int, int]) -> int:
    """Return how many servers of a layout the machine has.

    As many as fill it, none across two machines if it fits into one. 1 if the engine has the same in one server
    (data-parallel attention of a dense model) or computes experts on the host. Explicit replicas are kept.

    Examples
    --------
    >>> from glmplan.planner.question import read_words
    >>> from glmplan.request.plan import PlanRequest
    >>> servers_of(read_words(PlanRequest("glm-5.1-fp8", "16xh200-sxm")), (4, 1, 2, 1, 1))
    2
    >>> servers_of(read_words(PlanRequest("llama-3.1-8b", "8xh200-sxm")), (4, 1, 1, 1, 1))
    1
    """
    if asked.replicas:
        return asked.replicas
    if experts_on_host(asked):
        return 1
    tp, pp, dp, _, _ = layout
    used, count = tp * pp * dp, asked.machine.count
    domain = min(asked.machine.per_node, count)
    most = count // domain * (domain // used) if used <= domain else count // used
    running = load_engine(asked.engine).running
    whole_layers = running is not None and running.whole_layers
    in_one_command = not experts_of(asked.model) and pp == 1 and not whole_layers and used * most <= domain
    return 1 if in_one_command and not asked.dp else max(most, 1)


def _expert_degrees(asked: Asked, ranks: int, experts: int) -> list[int]:
    if asked.ep:
        whole = ranks == asked.ep or (asked.divided_experts and ranks % asked.ep == 0)
        return [asked.ep] if whole or asked.ep == 1 else []
    if experts == 0 or ranks == 1 or ranks > experts:
        return [1]
    return [1, ranks]
