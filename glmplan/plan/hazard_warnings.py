"""Hazards of a plan on its machine, as warnings; what of the model is left out; what may not be called safe."""

from __future__ import annotations

from dataclasses import replace

from glmplan.facts.schema.model import ModelSpec
from glmplan.plan.capacity import Holding
from glmplan.plan.hazards import Hazard, PlanFacts, hazards_for, is_safe
from glmplan.plan.offloaded import pinned_bytes
from glmplan.plan.plan import Limit, Safe, Warn
from glmplan.plan.question import Asked

__all__ = ["facts_of", "hazard_warnings", "hazards_of", "model_warnings", "without_danger"]


def facts_of(asked: Asked, holding: Holding, *, users: int, longest: int) -> PlanFacts:
    """What a plan does to its machine.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    users : int
        Users at once, [-]
    longest : int
        Longest request that the engine accepts, [token]

    Returns
    -------
    PlanFacts
        What the rules of hazards ask for.
    """
    host, terms = asked.machine.host, holding.terms
    same = [n for n, name in enumerate(host.accelerator_names) if name == host.accelerator]
    on_node = same[: min(terms.accelerators, len(same))]
    return PlanFacts(
        members=tuple(on_node),
        tp=terms.tp,
        pinned=pinned_bytes(holding),
        users=max(users, 1),
        pool_tokens=holding.pool,
        longest_tokens=float(longest),
        request_tokens=float(asked.request_tokens),
        power_limit=asked.power_limit,
    )


def hazards_of(asked: Asked, holding: Holding, *, users: int, longest: int) -> tuple[Hazard, ...]:
    """Hazards of a plan, the worst first.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    users : int
        Users at once, [-]
    longest : int
        Longest request that the engine accepts, [token]

    Returns
    -------
    tuple of Hazard
        What is known to be wrong, or cannot be ruled out.
    """
    return hazards_for(asked.machine.host, facts_of(asked, holding, users=users, longest=longest))


def hazard_warnings(hazards: tuple[Hazard, ...]) -> tuple[Warn, ...]:
    """Hazards as warnings of the answer.

    Parameters
    ----------
    hazards : tuple of Hazard
        The hazards.

    Returns
    -------
    tuple of Warn
        One for each.
    """
    return tuple(
        Warn(
            "hazard",
            one.severity,
            one.id,
            one.title + ("" if one.certain else " (cannot be ruled out)"),
            f"{one.effect}: {one.numbers}",
            one.change,
            one.source,
        )
        for one in hazards
    )


def model_warnings(model: ModelSpec) -> tuple[Warn, ...]:
    """What of a model is left out of account, as warnings of the answer.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of Warn
        One where fields of its config are set that nobody knows; none of a model of the catalogue.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> model = load_model("glm-5.1").model_copy(update={"not_understood": ("use_magic_routing",)})
    >>> [one.title for one in model_warnings(model)]
    ['fields of the config that glmplan does not know: use_magic_routing']
    """
    if not model.not_understood:
        return ()
    names = ", ".join(model.not_understood)
    effect = "left out of account: sizes and speeds are those of the architecture without"
    do = "look up what they do; one that changes neither weights nor cache may stay"
    title = f"fields of the config that glmplan does not know: {names}"
    return (Warn("model", "warning", "fields-not-understood", title, effect, do, model.source),)


def without_danger(safe: Safe, hazards: tuple[Hazard, ...]) -> Safe:
    """Call no number of users safe where a danger stands.

    Parameters
    ----------
    safe : Safe
        The number by cache, time for a token and queue.
    hazards : tuple of Hazard
        The hazards of the plan.

    Returns
    -------
    Safe
        The same, or no users with the hazard as the limit.
    """
    if is_safe(hazards):
        return safe
    worst = hazards[0]
    limit = Limit("hazard", 0, f"{worst.title}: {worst.numbers}")
    return replace(safe, users=0, limit="hazard", limits=(*safe.limits, limit))
