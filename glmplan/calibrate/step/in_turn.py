"""What groups share first, then what is a group's own.

The form of the step time errs differently in each group, so many rows of one group are not as many witnesses of what
all groups share; that is learnt with as much noise as lies between groups. What is a group's own is learnt from the
same rows afterwards, with the noise that they have among each other, and no longer moves what is shared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glmplan.calibrate.step.joint_fit import TOLERANCE, Solution, solve
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import Spreads

__all__ = ["solve_in_turn"]


def solve_in_turn(
    design: Design,
    spreads: Spreads,
    *,
    start: tuple[np.ndarray, ...] | None = None,
    enough: float = TOLERANCE,
) -> Solution:
    """Find what groups share, and then what is each group's own.

    Parameters
    ----------
    design : Design
        The runs.
    spreads : Spreads
        Spreads and noise; all at once where their noise between groups is 0.
    start : tuple of (keys, 21) array, optional
        Where to begin; the prior mean by default, [log s] or [-]
    enough : float, optional
        How near to the optimum to end, as in `glmplan.calibrate.step.joint_fit.solve`, [-]

    Returns
    -------
    Solution
        Effects of both, with residuals and weights of the second.

    Notes
    -----
    A cut between two modules: feedback from a group's rows to what is shared is weakened where the model is known to
    be wrong between groups. Not modelled: that such errors are alike within a group.

    References
    ----------
    .. [1] F. Liu, M. J. Bayarri, J. O. Berger, "Modularization in Bayesian Analysis, with Emphasis on Analysis of
       Computer Models", Bayesian Analysis 4 (2009).
    .. [2] P. G. Bissiri, C. C. Holmes, S. G. Walker, "A General Framework for Updating Belief Distributions",
       JRSS B 78 (2016).
    """
    if not spreads.between:
        return solve(design, spreads, start=start, enough=enough)
    first = solve(design, spreads.of_shared, start=start, enough=enough)
    second = solve(design, spreads.of_own, shared=first.effects, start=first.effects, enough=enough)
    farther = max(first.distance, second.distance)
    return replace(second, spreads=spreads, rounds=first.rounds + second.rounds, distance=farther)
