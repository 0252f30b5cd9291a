"""A plan under named traffic, and what would change it: each change is planned and simulated as the plan is.

Another layout is no change: the plan is the layout that serves the traffic best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from glmplan.errors import GlmplanError
from glmplan.facts.engines.walls import engine_names, load_engine
from glmplan.facts.formats import kv_format
from glmplan.plan.disaggregation_changes import splits_of
from glmplan.plan.gains import LEAST_GAIN, as_well_known
from glmplan.plan.host_copies import host_copies, why_no_copies
from glmplan.plan.plan import TrafficRun
from glmplan.plan.question import Asked
from glmplan.plan.search import Solution
from glmplan.plan.simulated import traffic_run
from glmplan.plan.under_traffic import decides_plan, solve_under
from glmplan.serving.traffic.spec import Traffic

__all__ = ["gain_under", "runs_under"]

#: preemptions for each request from which fewer requests at once are looked at [-]
_THRASH = 0.01
#: share of the cache in use from which it is short [-]
_SHORT = 0.5
#: changes that are listed [-]
_LISTED = 5
#: how many times larger a cache stands for "a larger pool" [-]
_LARGER = 2.0


def gain_under(plan: TrafficRun, change: TrafficRun) -> float:
    """How much better traffic is served with a change.

    Parameters
    ----------
    plan, change : TrafficRun
        Both under the same traffic.

    Returns
    -------
    float
        Share by which a whole answer comes sooner in the mean; below zero where it comes later, [-]
    """
    if change.rejected > plan.rejected or change.left > plan.left or not change.e2e.value:
        return -1.0
    return plan.e2e.value / change.e2e.value - 1.0


def runs_under(solution: Solution, traffic: Traffic) -> tuple[TrafficRun, ...]:
    """Simulate a plan under traffic, then everything that may serve it better.

    Parameters
    ----------
    solution : Solution
        The plan.
    traffic : Traffic
        What arrives.

    Returns
    -------
    tuple of TrafficRun
        The plan, then the changes that gain `LEAST_GAIN` at least, those on evidence as good before the others and of
        each the largest gain first; empty where nothing can be simulated.
    """
    asked = solution.asked
    try:
        plan = traffic_run(asked, solution.ranked[0], traffic)
    except GlmplanError:
        return ()
    found = [one for one in _changed(solution, traffic, plan) if gain_under(plan, one) >= LEAST_GAIN]
    if plan.full > _SHORT and not asked.host_tokens and decides_plan(traffic):
        plan = replace(plan, no_copies=why_no_copies(asked, solution.best))
    # on evidence as good as the plan's before those on less
    found.sort(key=lambda one: (not as_well_known(one.knowledge, plan.knowledge), -gain_under(plan, one)))
    return (plan, *found[:_LISTED])


def _changed(solution: Solution, traffic: Traffic, plan: TrafficRun) -> Iterator[TrafficRun]:
    asked, best = solution.asked, solution.best
    terms = best.terms
    engine = load_engine(asked.engine)
    small = engine.small_cache(asked.machine.accelerator)
    if small and kv_format(small).bytes < kv_format(terms.kv).bytes:
        other = _solved(solution, traffic, kv=small)
        if other is not None and other.best.terms.kv == small:
            yield traffic_run(
                other.asked, other.ranked[0], traffic, ends=False,
                what=f"{small.upper()} cache instead of {terms.kv.upper()}", ask=f"--kv {small}",
            )  # fmt: skip
    if plan.preempted > _THRASH:
        ranks = terms.dp * terms.replicas
        seats = max(int(best.held * asked.user_tokens / asked.request_tokens / ranks), 1)
        told = seats * terms.dp if asked.defaults.divided else seats
        yield traffic_run(
            asked.but(settings=replace(asked.settings, max_num_seqs=told)), solution.ranked[0], traffic, ends=False,
            what=f"{seats} requests at once on each rank", ask=f"--max-num-seqs {told}",
        )  # fmt: skip
    if plan.full > _SHORT:
        yield traffic_run(
            asked,
            solution.ranked[0],
            traffic,
            pool=_LARGER,
            ends=False,
            what="a cache twice as large, whatever holds it",
            ask="",
        )
        if decides_plan(traffic) and not asked.host_tokens:
            yield from _with_copies(solution, traffic)
    yield from _apart(solution, traffic, plan)
    if asked.prefill:
        return  # twice the cards may be two machines with other links between them
    try:
        machine = asked.machine.with_count(2 * asked.machine.count)
    except GlmplanError:
        return
    other = _solved(solution, traffic, machine=machine, tp=None, pp=None, dp=None, ep=None, replicas=None)
    if other is not None:
        name = f"{machine.count} × {machine.accelerator.name}"
        yield traffic_run(other.asked, other.ranked[0], traffic, ends=False, what=name, ask=f"--on {machine.text}")


def _with_copies(solution: Solution, traffic: Traffic) -> Iterator[TrafficRun]:
    """The plan with copies of its cache in host memory; where its engine keeps none, that of an engine that does."""
    asked = solution.asked
    engines: tuple[str, ...] = (asked.engine,)
    if why_no_copies(asked, solution.best):
        engines = tuple(one for one in engine_names() if one != asked.engine and _may_copy(one, asked))
    for engine in engines:
        mine = engine == asked.engine
        other = solution if mine else _solved(solution, traffic, engine=engine, engine_version=None)
        if other is None or (copies := host_copies(other.asked, other.best, traffic)) is None:
            continue
        try:
            yield traffic_run(
                other.asked.but(host_tokens=copies.tokens), other.ranked[0], traffic, ends=False,
                what=copies.what if mine else f"{engine} with {copies.what}",
                ask=f"{'' if mine else f'--engine {engine} '}--host-tokens {copies.tokens}",
            )  # fmt: skip
        except GlmplanError:
            continue


def _may_copy(engine: str, asked: Asked) -> bool:
    """Whether an engine reads the same files and keeps copies in host memory."""
    mine, other = load_engine(asked.engine).running, load_engine(engine).running
    return mine is not None and other is not None and other.reads == mine.reads and other.host_cache is not None


def _apart(solution: Solution, traffic: Traffic, plan: TrafficRun) -> Iterator[TrafficRun]:
    """The best of the numbers of servers for prompts alone, of as many requests at once as the plan has (Little)."""
    asked = solution.asked
    users = plan.total_rate.value / asked.output_tokens * plan.e2e.value
    found = []
    for split in splits_of(solution, users):
        if split.answer * (1.0 + LEAST_GAIN) > plan.e2e.value:
            continue
        other = _solved(replace(solution, asked=split.asked(asked)), traffic)
        if other is None:
            continue
        try:
            run = traffic_run(other.asked, other.ranked[0], traffic, ends=False, what=split.what, ask=split.ask)
        except GlmplanError:
            continue  # the link between the servers is not known
        found.append(run)
    if found:
        yield max(found, key=lambda one: gain_under(plan, one))


def _solved(solution: Solution, traffic: Traffic, **changes: object) -> Solution | None:
    try:
        found = solve_under(solution.asked.but(**changes), traffic, options=solution.options, quick=True)
    except GlmplanError:
        return None
    return found if found.best.verdict != "does_not_fit" and found.ranked[0].alone else None
