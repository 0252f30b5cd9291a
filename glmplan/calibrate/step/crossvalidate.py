"""How far off a fit is on runs it has never seen, and the intervals that follow from it.

Runs are left out four ways: at random, by whole (engine, accelerator, model) groups, by whole models and by whole
accelerators. What was known of a left-out run when it was predicted is its knowledge class; the errors of a class
give the interval of every later prediction of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.joint_fit import Solution, solve
from glmplan.calibrate.step.observations import Design
from glmplan.prediction.effects import LEVELS, knowledge_class
from glmplan.prediction.from_row import Question

__all__ = ["MODES", "Errors", "cross_validate", "folds_of"]

#: ways to leave runs out
MODES: tuple[str, ...] = ("random", "group", "model", "accelerator")
#: rows at random in five parts; whole groups in many, so that what a fit lacks is little more than the group itself
_FOLDS = {"random": 5, "group": 20, "model": 20, "accelerator": 10}


@dataclass(frozen=True)
class Errors:
    """Errors on left-out runs.

    Attributes
    ----------
    mode : str
        How runs were left out.
    residual : (m,) array
        Measured minus predicted in logarithms, one for each observation of the design, [-]
    knowledge : (m,) array of str
        What was known of its run.
    """

    mode: str
    residual: np.ndarray
    knowledge: np.ndarray


def folds_of(questions: Sequence[Question], mode: str) -> np.ndarray:
    """Deal runs out to folds.

    Parameters
    ----------
    questions : sequence of Question
        The runs.
    mode : str
        One of `MODES`.

    Returns
    -------
    (runs,) array of int
        Fold of each run, [-]
    """
    rows = []
    for question in questions:
        d = question.deployment
        rows.append({
            "random": question.run.id,
            "group": f"{d.engine} {d.accelerator.name} {d.model.family} {d.model.hidden} {len(d.model.layer_names)}",
            "model": f"{d.model.family} {d.model.hidden} {len(d.model.layer_names)}",
            "accelerator": d.accelerator.name,
        }[mode])  # fmt: skip
    names, place = np.unique(np.array(rows), return_inverse=True)
    count = _FOLDS[mode]
    # whole groups are dealt out by size, so that folds are alike; random rows by a seeded shuffle
    if mode == "random":
        return np.random.default_rng(7).permutation(len(names))[place] % count
    sizes = np.bincount(place)
    fold, load = np.zeros(len(names), dtype=int), np.zeros(count)
    for one in np.argsort(-sizes, kind="stable"):
        fold[one] = int(np.argmin(load))
        load[fold[one]] += sizes[one]
    return fold[place]


def cross_validate(
    design: Design,
    mode: str,
    *,
    rounds: int = 10,
    progress: Callable[[str, int, int], None] | None = None,
    keep: Callable[[np.ndarray, Solution], None] | None = None,
) -> Errors:
    """Predict every run from a fit that has not seen it.

    Parameters
    ----------
    design : Design
        The runs.
    mode : str
        One of `MODES`.
    rounds : int, optional
        Gauss-Newton steps of each fit, [-]
    progress : callable, optional
        Called with the mode, the fold and the number of folds.
    keep : callable, optional
        Called with which runs a fit has not seen, (runs,) array of bool, and the fit.

    Returns
    -------
    Errors
        Errors of all observations.
    """
    fold = folds_of(design.questions, mode)
    of_observation = fold[design.observation_run]
    residual = np.full(len(design.log_seconds), np.nan)
    knowledge = np.full(len(design.log_seconds), "", dtype="<U16")
    count = int(fold.max()) + 1
    for one in range(count):
        out = of_observation == one
        solution = solve(design, use=~out, rounds=rounds)
        residual[out] = solution.residual[out]
        if keep is not None:
            keep(fold == one, solution)
        seen = [np.zeros(len(names), dtype=bool) for names in design.key_names]
        for level in range(len(LEVELS)):
            seen[level][design.keys[fold != one, level]] = True
        known = np.stack([seen[level][design.keys[:, level]] for level in range(len(LEVELS))], axis=1)
        classes = np.array([knowledge_class(tuple(row)) for row in known.tolist()])
        knowledge[out] = classes[design.observation_run[out]]
        if progress is not None:
            progress(mode, one + 1, count)
    return Errors(mode, residual, knowledge)
