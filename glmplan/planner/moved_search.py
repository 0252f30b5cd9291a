"""Find the fewest layers whose experts must lie in host memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from glmplan.catalog.engines.defaults import engine_default
from glmplan.planner.moved_experts import all_moved, may_move, movable_layers, moved_words
from glmplan.planner.users import Solution, solve

if TYPE_CHECKING:
    from glmplan.planner.question import Asked

__all__ = ["with_moved_experts"]


def _wanted(asked: Asked) -> float:
    """Return how many requests the KV pool should hold.

    Those of the given users, else those of the slots that the engine starts by itself, else one.
    """
    slots = (asked.defaults.admission == "slot" and engine_default(asked.engine, "n_parallel")) or 1
    return float(asked.users[-1] if asked.users_given else asked.settings.max_num_seqs or slots)


def _with(asked: Asked, moved: int, layers: int) -> Asked:
    return asked.but(settings=replace(asked.settings, host_experts=moved / layers))


def with_moved_experts(solution: Solution) -> Solution:
    """Return layouts with weights in host memory where none fits without."""
    if solution.best.lacking <= 0:
        return solution
    return _moved(solution.asked, solution) or solution


def _moved(asked: Asked, found: Solution) -> Solution | None:
    """Return the plan with as few experts in host memory as possible.

    None where the engine moves no experts, or where no number of layers is enough. The cache has the format that it has
    with all of them in host memory.
    """
    best, layers = found.best, len(movable_layers(asked.model))
    if best.terms.blocked is not None or not may_move(asked):
        return None
    each = float(all_moved(asked.model, asked.checkpoint).held_bytes[0]) / layers
    fewest = min(max(math.ceil(best.lacking * best.terms.accelerators / each), 1), layers)
    most = layers
    solution = solve(_with(asked, most, layers), quick=True)
    if solution.best.lacking > 0:
        return None
    while fewest < most and _serves(solution):
        middle = (fewest + most) // 2
        tried = solve(_with(asked, middle, layers), quick=True)
        if _serves(tried) and tried.best.terms.kv == solution.best.terms.kv:  # no smaller cache to save a layer
            solution, most = tried, middle
        else:
            fewest = middle + 1
    words = moved_words(solution.asked, solution.best)
    return replace(solution, asked=replace(solution.asked, assumed=(*asked.assumed, words)))


def _serves(solution: Solution) -> bool:
    """Return True if the accelerators hold the wanted requests."""
    held = solution.best
    return held.lacking <= 0 and held.short_low <= 0 and held.held_low >= _wanted(solution.asked)
