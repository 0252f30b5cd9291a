"""Parallel degrees that engines accept: what divides what, and how many accelerators there are."""

from __future__ import annotations

from glmplan.errors import SpecError
from glmplan.facts.schema.model import ModelSpec
from glmplan.physics.blocks.features import mixers_of, routed_blocks
from glmplan.prediction.deployment import heads_of
from glmplan.readers.machines.resolve import Machine

__all__ = ["DEGREES", "check_layout", "experts_of", "heads_problem"]

#: degrees of a layout, and how many servers of it share the machine
DEGREES = ("tp", "pp", "dp", "ep", "dcp", "replicas")


def heads_problem(model: ModelSpec, tp: int) -> str | None:
    """Why engines do not split the heads of a model over a tensor-parallel degree.

    Parameters
    ----------
    model : ModelSpec
        The model.
    tp : int
        Tensor-parallel degree, [-]

    Returns
    -------
    str or None
        The reason; None if they do.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> heads_problem(load_model("glm-5.1"), 3)
    'does not divide the 64 attention heads of glm-5.1'
    >>> heads_problem(load_model("glm-5.1"), 4)
    """
    heads = heads_of(model)
    if heads > 1 and heads % tp:
        return f"does not divide the {heads} attention heads of {model.name}"
    problems = (one.cut_problem(tp, model.name) for one in mixers_of(model))
    return next((why for why in problems if why is not None), None)


def experts_of(model: ModelSpec) -> int:
    """Routed experts of a layer.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    int
        The most that any layer has; 0 for dense models, [-]
    """
    return max((block.experts for block in routed_blocks(model)), default=0)


def check_layout(
    model: ModelSpec, machine: Machine, given: dict[str, int | None], *, divided_experts: bool = False
) -> None:
    """Refuse degrees that cannot be.

    Parameters
    ----------
    model : ModelSpec
        The model.
    machine : Machine
        The machine.
    given : dict of str to (int or None)
        `DEGREES` as asked for, [-]; None is left to the plan.
    divided_experts : bool, optional
        Whether the engine may deal the experts over a divisor of the ranks.

    Raises
    ------
    SpecError
        If a degree does not divide what it must, or more accelerators are asked for than there are.
    """
    count = machine.count
    tp, pp, dp, ep, dcp, replicas = (given[name] or 1 for name in DEGREES)
    problem = heads_problem(model, tp)
    if problem:
        good = [one for one in range(1, max(count, 2 * tp) + 1) if not heads_problem(model, one)]
        close = sorted(sorted(good, key=lambda one: abs(one - tp))[:3])
        raise SpecError(f"{problem}; nearest: {', '.join(map(str, close))}", field="--tp", value=tp)
    if pp > len(model.layer_names):
        raise SpecError(f"is more than the {len(model.layer_names)} layers of {model.name}", field="--pp", value=pp)
    asked = f"tp {tp} × pp {pp} × dp {dp}" + f" × {replicas} replicas" * (replicas > 1)
    used = tp * pp * dp * replicas
    if used > count:
        raise SpecError(
            f"takes {used} accelerators and {machine.text} has {count}; lower --tp, --pp, --dp or --replicas",
            field="layout",
            value=asked,
        )
    # servers of a layout fill the machine, unless their number was given
    idle = used < count if given["replicas"] else count % used
    if given["tp"] and given["pp"] and given["dp"] and idle:
        raise SpecError(
            f"takes {used} of the {count} accelerators of {machine.text}; raise a degree, or ask for fewer",
            field="layout",
            value=asked,
        )
    experts = experts_of(model)
    if ep > 1 and not experts:
        raise SpecError(f"asks to deal experts, which {model.name} has not", field="--ep", value=ep)
    fixed = given["tp"] and given["dp"]
    uneven = tp * dp % ep if divided_experts else ep != tp * dp
    if ep > 1 and (ep > min(count, experts) or (fixed and uneven)):
        whole = f"1 or tp × dp ({tp * dp})" if fixed else "1 or tp × dp"
        whole += " or a divisor of it" if divided_experts else ""
        raise SpecError(f"must be {whole}, within {count} accelerators and {experts} experts", field="--ep", value=ep)
    if dcp > 1 and (tp % dcp if given["tp"] else dcp > count):
        raise SpecError(f"must divide --tp {tp}" if given["tp"] else "must divide TP", field="--dcp", value=dcp)
