"""How far off a fit is on runs it has never seen, and the intervals that follow from it.

Runs are left out four ways: at random, by whole (engine, accelerator, model) groups, by whole models and by whole
accelerators. What was known of a left-out run when it was predicted is its knowledge class; the errors of a class
give the interval of every later prediction of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.joint_fit import Solution, solve
from glmplan.calibrate.step.observations import Design
from glmplan.prediction.effects import knowledge_class
from glmplan.prediction.from_row import Question

__all__ = ["MODES", "Errors", "cross_validate", "folds_of", "left_out_with"]

#: ways to leave runs out
MODES: tuple[str, ...] = ("random", "group", "model", "accelerator")
#: rows at random in five parts; whole groups in many, so that what a fit lacks is little more than the group itself
_FOLDS = {"random": 5, "group": 20, "model": 20, "accelerator": 10}
#: folds that are fitted at the same time
_AT_ONCE = 2


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


def left_out_with(questions: Sequence[Question], mode: str) -> np.ndarray:
    """What each run is left out with.

    Parameters
    ----------
    questions : sequence of Question
        The runs.
    mode : str
        One of `MODES`.

    Returns
    -------
    (runs,) array of str
        Runs of the same name are left out together.
    """
    rows = []
    for question in questions:
        d = question.deployment
        shape = f"{d.model.family} {d.model.hidden} {len(d.model.layer_names)}"
        rows.append({
            "random": question.run.id,
            "group": f"{d.engine} {d.accelerator.name} {shape}",
            "model": shape,
            "accelerator": d.accelerator.name,
        }[mode])  # fmt: skip
    return np.array(rows)


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
    names, place = np.unique(left_out_with(questions, mode), return_inverse=True)
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
    fitted: Solution,
    *,
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
    fitted : Solution
        Fit of all runs: its spreads and noise hold for every fold, and each search begins at its effects.
    progress : callable, optional
        Called with the mode, the fold and the number of folds.
    keep : callable, optional
        Called with which runs a fit has not seen, (runs,) array of bool, and the fit.

    Returns
    -------
    Errors
        Errors of all observations.

    Notes
    -----
    Every fold is solved to the end like the fit that ships, so where it begins does not matter. Not modelled: that the
    spreads have seen the runs left out. They are some fifty numbers of thousands of rows.
    """
    fold = folds_of(design.questions, mode)
    of_observation = fold[design.observation_run]
    residual = np.full(len(design.log_seconds), np.nan)
    knowledge = np.full(len(design.log_seconds), "", dtype="<U16")
    count = int(fold.max()) + 1

    def without(one: int) -> Solution:
        return solve(design, fitted.spreads, use=of_observation != one, start=fitted.effects)

    # what takes long is linear algebra, during which threads run side by side
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for one, solution in enumerate(threads.map(without, range(count))):
            out = of_observation == one
            residual[out] = solution.residual[out]
            if keep is not None:
                keep(fold == one, solution)
            knowledge[out] = _knowledge_without(design, fold != one)[design.observation_run[out]]
            if progress is not None:
                progress(mode, one + 1, count)
    return Errors(mode, residual, knowledge)


def _knowledge_without(design: Design, fitted: np.ndarray) -> np.ndarray:
    """What is known of each run from those that are fitted, (runs,) array of str."""
    known = np.zeros(design.keys.shape, dtype=bool)
    for level, names in enumerate(design.key_names):
        seen = np.zeros(len(names), dtype=bool)
        seen[design.keys[fitted, level]] = True
        known[:, level] = seen[design.keys[:, level]]
    return np.array([knowledge_class(tuple(row)) for row in known.tolist()])
