"""Answer a request: plan, speed, safe users, warnings and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glmplan.catalog.engines.limitations import engines_on
from glmplan.planner.capacity import Holding, Obstacles, Terms, stage_ranks
from glmplan.planner.changes import Looked, verdict_of
from glmplan.planner.evidence import basis_words, evidence_words
from glmplan.planner.formats import best_format, format_open, layout_met, meets
from glmplan.planner.hazards import Hazard, hazard_rules
from glmplan.planner.launch import launch_command, launch_context
from glmplan.planner.layouts import apart_basis, known_apart
from glmplan.planner.machine_search import changes_or_machines
from glmplan.planner.plan import AnswerRecord, Change, RunnerUp, Safe, TrafficRun, UserRow, Warn, worth_telling
from glmplan.planner.question import Asked
from glmplan.planner.ranking import (
    Scored,
    cores_unknown,
    deployment_of,
    load_of,
    matrix_rate_known,
    narrowing_of,
    shown_users,
    speed_known,
)
from glmplan.planner.simulated import check_copies, copies_words, simulated_rows
from glmplan.planner.traffic_search import asked_under, solved_for, traffic_of, traffic_words
from glmplan.planner.users import (
    Solution,
    binding_words,
    danger_under,
    hazard_warnings,
    hazards_of,
    is_steady,
    model_warnings,
    predictions_of,
    safe_number,
    user_table,
    verdict_under,
)
from glmplan.prediction.evidence import stated_ratios
from glmplan.prediction.step_models import runs_on_accelerators, site_calibration
from glmplan.request.plan import PlanRequest
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.catalog.schema.engine import Wall
    from glmplan.catalog.schema.model import Checkpoint
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.predict import Prediction
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["FitAnswer", "answer_of", "fit_answer"]


@dataclass(frozen=True, repr=False)
class FitAnswer(AnswerRecord):
    """Answer of `fit`; its fields are those of `AnswerRecord`.

    ``repr`` is one line, ``print`` shows the page of `glmplan fit --full`, ``to_frame`` gives its tables.
    """

    def __repr__(self) -> str:
        asked = self.asked
        safe = f", {self.safe.users} safe users" if self.safe is not None else ""
        return (
            f"<FitAnswer {asked.model.name} {asked.checkpoint.name} on {asked.machine.text}, {asked.engine}: "
            f"{self.headline}{safe}>"
        )

    def __str__(self) -> str:
        from glmplan import fit_text  # `present` is above this package

        return fit_text(self)


#: runners-up that are listed
_LISTED = 5
_SEVERITIES = ("danger", "error", "warning", "memory", "unknown", "quality", "fallback", "slow", "note")


def fit_answer(words: PlanRequest, traffic: Traffic | None = None, *, changes: bool = True) -> FitAnswer:
    """Answer a request: fit, speed, safe users, limits and useful changes.

    "does not fit" and "unknown" are answers too. With `traffic` the plan is made for its mean request and simulated
    under it; without `changes` no change of the plan is evaluated.

    Examples
    --------
    >>> answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    >>> answer.verdict, answer.holding.terms.name
    ('fits', 'TP2×PP3')
    >>> fit_answer(PlanRequest("glm-5.1-nvfp4", "4xrtx-pro-6000-ws")).verdict
    'does_not_fit'
    """
    asked = best_format(words, lambda one: asked_under(one, traffic))
    with site_calibration(asked.calibration):
        arriving = None if traffic is None else traffic_of(asked, traffic)
        default = asked_under(words, traffic).checkpoint if format_open(words) else None
        return answer_of(asked, arriving, changes=changes, default=default)


def answer_of(
    asked: Asked, traffic: Traffic | None = None, *, changes: bool = True, default: Checkpoint | None = None
) -> FitAnswer:
    """Answer a request that has been read.

    `default`: Usual checkpoint of the model if the request names no format; options of changes then keep theirs.
    """
    part = asked.machine.accelerator
    missing = tuple(name for name in ("memory", "memory_bandwidth") if part.figure(name) is None)
    if "memory" in missing:
        return _unknown(asked, missing)
    solution = solved_for(asked, traffic)
    asked, first, best = solution.asked, solution.ranked[0], solution.best
    check_copies(asked, best, traffic)
    verdict, limit = verdict_of(asked, first), asked.longest_request
    common = {
        "asked": asked,
        "verdict": verdict,
        "headline": _headline(solution, verdict),
        "reasons": _reasons(solution, verdict),
        "unknown": _unknown_of(asked, missing, first),
        "holding": best,
        "ranks": tuple(best.rows()),
        "kv_why": solution.kv_why,
        "context": int(min(best.context, limit)),
        "context_low": int(min(best.context_low, limit)),
        "runners": tuple(_runner_up(asked, layout) for layout in solution.ranked[1 : 1 + _LISTED]),
        "others": max(len(solution.ranked) - 1 - _LISTED, 0),
        "left_out": solution.left_out,
    }
    if verdict == "does_not_fit" or "memory_bandwidth" in missing or first.alone == 0.0:
        looked = changes_or_machines(solution) if changes else ()
        return _with_changes(_without_speeds(solution, common), looked, default)
    found = predictions_of(asked, best, tuple(sorted({1, *asked.users})))
    rows = simulated_rows(asked, best, user_table(asked, best, found), traffic)
    command, notes = launch_command(asked, best, context := launch_context(asked, best))
    known, deployment = found[asked.users[0]], deployment_of(asked, best.terms)
    safe, hazards = _safe_of(asked, best)
    # under traffic each change is simulated, see `glmplan.planner.changes`
    looked = () if _ran(traffic, rows) or not changes else changes_or_machines(solution, engines=not safe.users)
    alone, many = _one_and_many(asked, best, found, rows)
    answer = FitAnswer(
        **common,  # type: ignore[arg-type]
        deployment=deployment,
        launch_context=context,
        printed=best.printed(context) if best.memory.settings.rule.prints_pool else (),
        users=rows,
        user_rate=first.alone,
        total_rate=many.total_rate.value,
        one_user=alone,
        # steady-state sums do not cover disaggregated prefill
        safe=safe if (traffic is None or is_steady(traffic)) and not asked.prefill else None,
        binding=binding_words(rows),
        warnings=_by_severity((*hazard_warnings(hazards), *_warnings(solution, rows))),
        command=command,
        command_notes=notes,
        basis=basis_words(asked, apart_basis(asked, known.basis), known.knowledge),
        knowledge=known_apart(asked, known.knowledge),
        evidence=evidence_words(asked, best.terms.accelerators, known.knowledge),
        fits=(_fit_file(deployment), "calibration/fits/memory.toml"),
        traffic=traffic_words(traffic) + copies_words(asked, best) if traffic is not None else "",
        runs=_runs(solution, traffic) if traffic is not None and _ran(traffic, rows) else (),
        narrowing=narrowing_of(asked, best, deployment, known.knowledge, (alone, many)),
        stating=stated_ratios(deployment, load_of(asked, deployment, None, 1)),
    )
    return _with_changes(answer, looked, default)


def _without_speeds(solution: Solution, common: Mapping[str, Any]) -> FitAnswer:
    """Return the answer of a plan that does not fit or has no known speed."""
    evidence = evidence_words(solution.asked, solution.best.terms.accelerators)
    return FitAnswer(**common, evidence=evidence, warnings=_by_severity(_warnings(solution, ())))


def _safe_of(asked: Asked, best: Holding) -> tuple[Safe, tuple[Hazard, ...]]:
    """Return safe users and hazards; loads are simulated under limits."""
    if not asked.slo_limits or asked.prefill:
        return safe_number(asked, best, probability=asked.probability)
    from glmplan.planner.slo_layouts import safe_under_limits

    return safe_under_limits(asked, best)


def _one_and_many(
    asked: Asked, best: Holding, found: dict[int, Prediction], rows: tuple[UserRow, ...]
) -> tuple[UserRow, UserRow]:
    """Return the rows of one user and of the reference concurrency."""
    one = asked.but(users=(1,))
    alone = rows[0] if rows[0].users == 1 else simulated_rows(one, best, user_table(one, best, found))[0]
    return alone, next(row for row in rows if row.users == shown_users(asked))


def _ran(traffic: Traffic | None, rows: tuple[UserRow, ...]) -> bool:
    """Return True if the plan was simulated under traffic."""
    return traffic is not None and rows[0].ttft is not None


def _runs(solution: Solution, traffic: Traffic) -> tuple[TrafficRun, ...]:
    from glmplan.planner.changes import runs_under

    return runs_under(solution, traffic)


def _unknown_of(asked: Asked, missing: tuple[str, ...], first: Scored) -> tuple[str, ...]:
    """Return the unpublished facts that the answer would need."""
    unknown = (*missing, *(() if matrix_rate_known(asked) else ("matrix rate",)))
    unknown += ("cores of the host (--host-cores)",) * cores_unknown(asked)
    if not speed_known(asked) and not missing:
        unknown = ("memory bandwidth of the host",)
    return (*unknown, first.unknown) if first.unknown else unknown


def _with_changes(answer: FitAnswer, looked: tuple[Looked, ...], default: Checkpoint | None) -> FitAnswer:
    """Return the answer with the changes worth showing, simulated if needed."""
    if answer.safe is not None:
        few = answer.safe.users < answer.users_asked
        looked = tuple(_counted(one) if few or one.change.name == "layout" else one for one in looked)
    found = {id(one.change): one for one in looked}
    first = worth_telling(replace(answer, changes=tuple(one.change for one in looked)))
    shown = replace(answer, changes=tuple(_of_format(found[id(one)], default) for one in first))
    return replace(shown, changes=worth_telling(shown))


def _of_format(one: Looked, default: Checkpoint | None) -> Change:
    """Return a change as printed, with the format that its options need.

    `default`: Usual checkpoint of the model; None if the request names its format.
    """
    change, weights = one.printed(), one.asked.checkpoint
    if default is None or not change.ask.startswith("--") or "--weights " in change.ask:
        return change
    if weights == default and (one.scored is None or meets(one.asked, layout_met(one.asked, one.scored))):
        return change
    return replace(change, ask=f"{change.ask} --weights {weights.name}")


def _counted(one: Looked) -> Looked:
    """Return a change with its safe users and the probability of the question."""
    if one.scored is None or not one.scored.alone or one.change.verdict == "does_not_fit" or one.asked.prefill:
        return one
    safe, _ = safe_number(one.asked, one.scored.holding, probability=one.asked.probability)
    users = one.asked.users[-1] if one.asked.users_given else 1
    return replace(one, change=replace(one.change, safe=safe.users, chance=safe.chance_of(users)))


def _runner_up(asked: Asked, one: Scored) -> RunnerUp:
    held = one.holding
    verdict = verdict_under(asked, held)
    return RunnerUp(held.terms.name, held.terms.accelerators, verdict, held.pool.tokens, one.alone, one.many, one.why)


def _fit_file(deployment: Deployment) -> str:
    apart = not runs_on_accelerators(deployment)
    return "calibration/fits/offload.toml" if apart else f"calibration/fits/step/{deployment.engine}.toml"


_OF_YOURS = ", with the values of your machine (12 channels of DDR5-4800 have 460 GB/s)"


def _unknown(asked: Asked, missing: tuple[str, ...]) -> FitAnswer:
    """Return the answer for an accelerator of unpublished memory.

    Published speeds may imply a range, which the reasons name.
    """
    part = asked.machine.accelerator
    words = ", ".join(name.replace("memory_bandwidth", "bandwidth") for name in missing)
    reasons = []
    for entry in part.implied:
        if entry.field in missing:
            field = entry.field.replace("memory_bandwidth", "bandwidth")
            span = f"at least {entry.low}" if entry.high is None else f"{entry.low} to {entry.high}"
            reasons.append(f"published speeds would imply {field} {span} ({entry.reasoning}; {entry.source})")
    from glmplan.costs.blocks.stack import checkpoint_bytes

    size = checkpoint_bytes(asked.model, asked.checkpoint)
    reasons.append(f"{asked.model.name} {asked.checkpoint.name} has {size / GIB:,.0f} GiB of weights")
    lacks = "is not published" if len(missing) == 1 else "are not published"
    if part.kind == "cpu-socket" and missing == ("memory",):
        lacks = "is that of the machine: --host-memory states it, as in 768GB"
    return FitAnswer(
        asked=asked,
        verdict="unknown",
        headline=f"unknown: {words} of {part.full_name} {lacks}",
        reasons=tuple(reasons),
        unknown=missing,
        evidence=evidence_words(asked, asked.machine.count),
    )


def _cards(asked: Asked, best: Holding) -> str:
    ranks = stage_ranks(best.terms, best.stage)
    if shares := asked.machine.shares:
        return f"all {len(shares)} GPUs together"
    if best.terms.accelerators == 1:
        return "the GPU"
    if len(ranks) == best.terms.server:
        return "each GPU"
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"GPU {shown} (pipeline stage {best.stage})"


def _perhaps(best: Holding) -> str:
    """Return the addition to a verdict within the uncertainty of memory."""
    uncertain = f", within the uncertainty of {best.spread / GIB:.1f} GiB (borderline: may start, test it),"
    return uncertain if best.may_start else ""


def _host_words(best: Holding) -> str:
    """Return the size of the host weights and the missing memory."""
    assert best.host_memory is not None
    sizes = f"{best.host / GIB:.0f} GiB of {best.host_holds} in {best.host_memory / GIB:.0f} GiB of host memory"
    return f"{sizes}, {best.host_short / GIB:.0f} GiB short"


def _headline(solution: Solution, verdict: str) -> str:
    asked, best = solution.asked, solution.best
    idle = asked.machine.count - best.terms.accelerators
    left = f"; {idle} of {asked.machine.count} accelerators idle" if idle else ""
    if best.terms.blocked is not None:
        return f"does not run with {asked.engine}: {best.terms.blocked.title}"
    length = f"{asked.full_request:,} tokens"
    if best.host_short > 0:
        return f"does not fit: {_host_words(best)}"
    if verdict == "does_not_fit" and best.short <= 0:
        lack = f"{best.over / GIB:.1f} GiB short for graphs and activations on {_cards(asked, best)}"
        lack += _perhaps(best)
        return f"does not fit: {lack} in the best layout, {best.terms.name}; lower --memory-fraction"
    if verdict == "does_not_fit":
        lack = f"{best.short / GIB:.1f} GiB short on {_cards(asked, best)} for one request of {length}"
        layout = (
            "with layers dealt to all of them" if asked.machine.shares else f"in the best layout, {best.terms.name}"
        )
        return f"does not fit: {lack}{_perhaps(best)} {layout}"
    if verdict == "tight" and best.verdict == "tight":
        lack = f"{best.short_low / GIB:.1f} GiB short on {_cards(asked, best)}"
        return f"tight: one request of {length} fits as expected, but is {lack} in the pessimistic case{left}"
    if verdict == "tight" and (not asked.users_given or best.held_low >= asked.users[-1]):
        danger = danger_under(asked, best)
        assert danger is not None  # nothing else is left
        return f"tight: fits with {best.terms.name}, but is not safe: {danger.named}{left}"
    if verdict == "tight":
        users = asked.users[-1]
        if best.held >= users:
            few = f"only {best.held_low:,.0f} in the pessimistic case"
            held = f"the {users} requests of {asked.user_tokens:,} tokens"
            return f"tight: the KV pool is expected to hold {held}, but {few}{left}"
        held = f"holds {best.held:,.0f} of the {users} requests of {asked.user_tokens:,} tokens"
        low = f" ({best.held_low:,.0f} in the pessimistic case)" if best.held_low < best.held else ""
        return f"tight: the KV pool {held}{low}; the others wait{left}"
    fullest = ", the fullest" if best.terms.pp > 1 else ""
    rooms = [(best.pool_bytes, f"on {_cards(asked, best)}{fullest}"), (best.host_pool, "in host memory")]
    # a model without a growing cache has none of either
    (size, where), *more = [one for one in rooms if one[0] > 0] or rooms[:1]
    also = "".join(f" and {size / GIB:.1f} GiB {where}" for size, where in more)
    return f"fits with {best.terms.name}: {max(size, 0.0) / GIB:.1f} GiB for the KV cache {where}{also}{left}"


#: change where weights exceed the host memory
_SMALLER = "a smaller quantisation, more memory, or more accelerators"


def _reasons(solution: Solution, verdict: str) -> tuple[str, ...]:
    best = solution.best
    blocked = best.terms.blocked
    if blocked is not None:
        part = solution.asked.machine.accelerator
        engines = engines_on(vendor=part.vendor, kind=part.kind)
        there = "" if solution.asked.engine in engines else f"engines on {part.full_name}: {', '.join(engines)}"
        texts = (blocked.effect, there, f"do: {blocked.do}", f"source: {blocked.source}")
        return tuple(text for text in texts if text)
    if best.host_short > 0:
        from glmplan.planner.moved_experts import disk_bound

        rule = hazard_rules()["host-memory-overcommit"]
        if (bound := disk_bound(solution.asked, best)) is not None:
            words = f"{_host_words(best)}: a mapped file starts all the same and is read from the drive for each token"
            return (f"{words}: below {bound[0]:.3g} tok/s, {bound[1]}", f"do: {_SMALLER}")
        if solution.asked.settings.on_host:  # neither mapped nor pinned
            return (_host_words(best), f"do: {_SMALLER}")
        return (f"{_host_words(best)}: {rule.effect}", f"do: {rule.change}", f"source: {rule.source}")
    if best.short > 0:
        if solution.asked.settings.host_layers:
            return (
                "the layers on accelerators are larger than their memory",
                "do: fewer --gpu-layers, or none of that option",
            )
        from glmplan.planner.moved_experts import movable_words

        words, missing = movable_words(solution.asked)
        if words:
            return (words, f"do: {missing}{_OF_YOURS if 'GB' in missing else ''}")
    if verdict == "tight" and (danger := danger_under(solution.asked, best)) is not None:
        return (danger.words, f"do: {danger.change}", f"source: {danger.source}")
    return ()


def _warnings(solution: Solution, rows: tuple[object, ...]) -> tuple[Warn, ...]:
    asked, best = solution.asked, solution.best
    found = []
    limitations = {limitation.id: limitation for limitation in best.terms.limitations}
    if rows:
        launched = asked.but(context=launch_context(asked, best))
        for one in Obstacles(launched, solution.options).standing(best.terms, users=asked.users[-1]):
            limitations.setdefault(one.id, one)
    for limitation in limitations.values():
        found.append(
            Warn(
                "limitation",
                limitation.severity,
                limitation.id,
                limitation.title,
                "; ".join([limitation.effect, *_costs(limitation)]),
                limitation.do,
                limitation.source,
                _applied(limitation, best.terms),
            )
        )
    # hazards come with the safe number; a plan without speeds has none
    unsafe = best.host_short > 0 and not rows
    hazards = hazards_of(asked, best, users=1, longest=launch_context(asked, best)) if unsafe else ()
    return (*hazard_warnings(hazards), *found, *model_warnings(asked.model))


def _by_severity(found: tuple[Warn, ...]) -> tuple[Warn, ...]:
    return tuple(sorted(found, key=lambda one: _SEVERITIES.index(one.severity)))


def _costs(limitation: Wall) -> list[str]:
    """Return the measured cost of a limitation."""
    return [
        f"measured: {cost.what}: {cost.behind_wall} instead of {cost.free}" for cost in limitation.measured if cost.free
    ]


def _applied(limitation: Wall, terms: Terms) -> str:
    """Return the consequence of a limitation in the plan, if any.

    A recommendation that the request overrides has none.
    """
    say = limitation.instead
    words = []
    words += ["dense attention"] * (say.attention == "dense")
    words += ["no CUDA graphs"] * (say.graphs is False)
    words += [f"{say.kv} cache"] * (say.kv is not None and terms.kv == say.kv)
    words += [f"{say.mtp} speculative tokens"] * (say.mtp is not None and terms.mtp == say.mtp)
    words += ["no expert parallelism"] * (say.ep is not None and terms.ep == say.ep)
    words += ["no decode context parallelism"] * (say.dcp is not None and terms.dcp == say.dcp)
    words += [f"matrix products in {say.compute}"] * (say.compute is not None)
    return "planned with " + ", ".join(words) if words else ""
