"""What a fit says of runs that it has not seen: the two are different tables, so that nothing can leak.

A fit is made from a table that does not hold the other runs; these are predicted through the names of their keys, as a
plan is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from glmplan.calibrate.step.joint_fit import Solution, evaluate, solve
from glmplan.calibrate.step.observations import Design, part_of
from glmplan.calibrate.step.spreads import Spreads
from glmplan.prediction.effects import COLUMNS, LEVELS, knowledge_class

__all__ = ["AsFitted", "Fit", "Unseen", "alone", "unseen"]

#: a way to fit a table of runs
Fit = Callable[[Design], Solution]


@dataclass(frozen=True)
class Unseen:
    """Runs as a fit predicts them that has not seen them.

    Attributes
    ----------
    residual : (m,) array
        Measured minus predicted in logarithms, one for each observation, [-]
    knowledge : (runs,) array of str
        What the fit knew of each run, one of `glmplan.prediction.effects.KNOWLEDGE`.
    effects : (runs, 22) array
        Summed effects of each run, [log s] or [-]
    """

    residual: np.ndarray
    knowledge: np.ndarray
    effects: np.ndarray


@dataclass(frozen=True)
class AsFitted:
    """Fit tables with the spreads and the noise of another fit, to the end and from the prior mean.

    Attributes
    ----------
    spreads : Spreads
        Of the other fit.
    """

    spreads: Spreads

    def __call__(self, design: Design) -> Solution:
        """Fit a table.

        Parameters
        ----------
        design : Design
            The runs.

        Returns
        -------
        Solution
            The fit.
        """
        return solve(design, self.spreads)


def alone(design: Design, runs: np.ndarray) -> Design:
    """The part of a design that concerns some runs, with no trace of the others: not even the names of their keys.

    Parameters
    ----------
    design : Design
        The design.
    runs : (k,) array of int
        Places of the runs, ascending, [-]

    Returns
    -------
    Design
        A table of these runs only.
    """
    part = part_of(design, runs)
    keys, names = np.zeros_like(part.keys), []
    for level, of_level in enumerate(part.key_names):
        used, keys[:, level] = np.unique(part.keys[:, level], return_inverse=True)
        names.append(tuple(of_level[place] for place in used))
    return replace(part, keys=keys, key_names=tuple(names), refused=())


def unseen(design: Design, solution: Solution, others: Design) -> Unseen:
    """Predict runs that a fit has not seen.

    Parameters
    ----------
    design : Design
        What the fit was made from.
    solution : Solution
        The fit.
    others : Design
        The other runs.

    Returns
    -------
    Unseen
        Their errors, and what was known of them.
    """
    total = np.zeros((len(others.questions), len(COLUMNS)))
    known = np.zeros((len(others.questions), len(LEVELS)), dtype=bool)
    for level, names in enumerate(others.key_names):
        place = {name: number for number, name in enumerate(design.key_names[level])}
        of_key = np.array([place.get(name, -1) for name in names])[others.keys[:, level]]
        known[:, level] = of_key >= 0
        total += np.where(known[:, level, None], solution.effects[level][of_key], 0.0)
    log_seconds, _ = evaluate(others, total)
    knowledge = np.array([knowledge_class(tuple(row)) for row in known.tolist()], dtype="<U16")
    return Unseen(others.log_seconds - log_seconds, knowledge, total)
