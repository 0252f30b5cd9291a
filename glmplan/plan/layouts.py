"""Which layouts a plan looks at, and why others are left out."""

from __future__ import annotations

from glmplan.errors import SpecError
from glmplan.facts.engines.walls import load_engine
from glmplan.plan.adapters import check_adapters, layout_takes_adapters
from glmplan.plan.degrees import DEGREES, experts_of, heads_problem
from glmplan.plan.disaggregation import check_apart
from glmplan.plan.offloaded import experts_on_host
from glmplan.plan.question import Asked

__all__ = ["layouts", "servers_of"]

#: beyond this many accelerators only servers on all, on one domain or on a power of two of them are looked at [-]
_MANY = 16


def layouts(asked: Asked) -> tuple[list[tuple[int, int, int, int, int]], list[str]]:
    """Every layout that may be chosen.

    Parameters
    ----------
    asked : Asked
        The question; degrees that were given stay as they are.

    Returns
    -------
    list of tuple of int
        tp, pp, dp, ep, dcp, [-]
    list of str
        What was left out, in words.

    Raises
    ------
    SpecError
        If the degrees that were given leave no layout, or the engine has no servers for prompts alone.

    Examples
    --------
    >>> from glmplan.plan.question import Words, read_words
    >>> found, left_out = layouts(read_words(Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws")))
    >>> (2, 3, 1, 1, 1) in found, (1, 6, 1, 1, 1) in found, left_out
    (True, True, ['TP3, TP5, TP6: does not divide the 64 attention heads of glm-5.1'])
    """
    check_apart(asked)
    check_adapters(asked)
    model, count = asked.model, asked.machine.count
    experts = experts_of(model)
    depth = len(model.layer_names)
    running = load_engine(asked.engine).running
    whole_layers = running is not None and running.whole_layers
    bad: dict[str, list[int]] = {}
    degrees = []
    for tp in [asked.tp] if asked.tp else range(1, min(count, 128) + 1):
        if asked.tp is None and whole_layers and tp > 1:
            continue
        problem = heads_problem(model, tp)
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
                for ep in _expert_degrees(asked, tp * dp, experts):
                    dcp = asked.dcp or 1
                    if tp % dcp == 0 and layout_takes_adapters(asked, dp, ep):
                        found.append((tp, pp, dp, ep, dcp))
    if not found:
        said = " ".join(f"--{name} {getattr(asked, name)}" for name in DEGREES if getattr(asked, name))
        raise SpecError(
            f"no layout of {count} accelerators is left: ep must be tp × dp, dcp must divide tp, "
            f"tp × pp × dp × replicas may not exceed {count}", field="layout", value=said,
        )  # fmt: skip
    left_out = [
        f"{', '.join(f'TP{tp}' for tp in sizes[:6])}{' …' if len(sizes) > 6 else ''}: {problem}"
        for problem, sizes in bad.items()
    ]
    return found, left_out


def servers_of(asked: Asked, layout: tuple[int, int, int, int, int]) -> int:
    """How many servers of a layout share the machine, each on accelerators of its own.

    Parameters
    ----------
    asked : Asked
        The question; a number of replicas that was given stays as it is.
    layout : tuple of int
        tp, pp, dp, ep, dcp, [-]

    Returns
    -------
    int
        As many as fill it, none across two machines that fits into one; 1 where the engine has the same in one server
        (attention in data parallel of a dense model) or computes experts on the host, [-]

    Examples
    --------
    >>> from glmplan.plan.question import Words, read_words
    >>> servers_of(read_words(Words("glm-5.1-fp8", "16xh200-sxm")), (4, 1, 2, 1, 1))
    2
    >>> servers_of(read_words(Words("llama-3.1-8b", "8xh200-sxm")), (4, 1, 1, 1, 1))
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
