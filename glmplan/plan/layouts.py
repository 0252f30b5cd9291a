"""Which layouts a plan looks at, and why others are left out."""

from __future__ import annotations

from glmplan.plan.asked import Asked, heads_problem
from glmplan.schema.model import ExpertsFfn

__all__ = ["layouts"]

#: beyond this many accelerators only layouts that use all of them, or the largest power of two, are looked at [-]
_MANY = 16
#: engines that deal whole layers to their devices instead of splitting matrices
_LAYER_SPLIT = ("llama.cpp",)


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

    Examples
    --------
    >>> from glmplan.plan.asked import Words, read_words
    >>> found, left_out = layouts(read_words(Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws")))
    >>> (2, 3, 1, 1, 1) in found, (1, 6, 1, 1, 1) in found, left_out
    (True, True, ['TP3, TP5, TP6: does not divide the 64 attention heads of glm-5.1'])
    """
    model, count = asked.model, asked.machine.count
    experts = max((b.experts for k in model.layers.values() for b in k.ffn if isinstance(b, ExpertsFfn)), default=0)
    depth = len(model.layer_names)
    bad: dict[str, list[int]] = {}
    degrees = []
    for tp in [asked.tp] if asked.tp else range(1, min(count, 128) + 1):
        if asked.tp is None and asked.engine in _LAYER_SPLIT and tp > 1:
            continue
        problem = heads_problem(model, tp)
        if problem:
            bad.setdefault(problem, []).append(tp)
        else:
            degrees.append(tp)
    found = []
    whole = {count, 1 << (count.bit_length() - 1)}
    for tp in degrees:
        for pp in [asked.pp] if asked.pp else range(1, min(count // tp, depth) + 1):
            for dp in [asked.dp] if asked.dp else range(1, count // (tp * pp) + 1):
                used = tp * pp * dp
                if used > count or (count > _MANY and used not in whole):
                    continue
                if not asked.dp and dp > 1 and (pp > 1 or asked.engine in _LAYER_SPLIT):
                    continue
                for ep in _expert_degrees(asked, tp * dp, experts):
                    dcp = asked.dcp or 1
                    if tp % dcp == 0:
                        found.append((tp, pp, dp, ep, dcp))
    left_out = [
        f"{', '.join(f'TP{tp}' for tp in sizes[:6])}{' …' if len(sizes) > 6 else ''}: {problem}"
        for problem, sizes in bad.items()
    ]
    return found, left_out


def _expert_degrees(asked: Asked, ranks: int, experts: int) -> list[int]:
    if asked.ep:
        return [min(asked.ep, ranks)] if ranks % min(asked.ep, ranks) == 0 else []
    if experts == 0 or ranks == 1 or ranks > experts:
        return [1]
    return [1, ranks]
