"""Noise of the figures, a scale for each kind of figure and protocol, estimated together with the effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from glmplan.calibrate.step.joint_fit import (
    FREEDOM,
    NotConverged,
    Solution,
    linearised,
    noise_of,
    solve,
)
from glmplan.calibrate.step.normal import Normal
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import Spreads, noise_class
from glmplan.calibrate.step.spreads import start as start_spreads

__all__ = ["solve_with_noise"]

#: noise is found when that of no class moves by more in logarithms [-]
_ENOUGH = 0.02
#: rounds after which it is said to have failed; how near the effects are to their optimum in each, in deviations
_MOST_ROUNDS, _NEAR = 60, 0.5
#: directions of a cell that say less than this of the prior's variance, squared, do not bend a figure [-]
_MATTERS = 0.01
#: the noise of a class is drawn towards that of its kind of figure as by so many rows [-]
_ROWS_OF_PRIOR = 5.0
#: what the form of the step time itself is off by inside a curve, whose rows err together and are counted one by one;
#: without such a bound the runs of one curve are taken for as many witnesses [-]
_FORM = 0.10


def solve_with_noise(
    design: Design,
    spreads: Spreads | None = None,
    *,
    start: tuple[np.ndarray, ...] | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Fit the effects with the noise that the figures show.

    Parameters
    ----------
    design : Design
        The runs.
    spreads : Spreads, optional
        Spreads of the effects, and the noise to begin with; by default those before anything was estimated.
    start : tuple of (keys, 22) array, optional
        Effects to begin with; the prior mean by default, [log s] or [-]
    progress : callable, optional
        Called with the round and how far the noise of a class moved, in logarithms.

    Returns
    -------
    Solution
        Effects of the highest posterior density.

    Raises
    ------
    NotConverged
        If the noise of a class still moves after 60 rounds.

    References
    ----------
    .. [1] K. L. Lange, R. J. A. Little, J. M. G. Taylor, "Robust Statistical Modeling Using the t Distribution",
       JASA 84 (1989): the scale of Student's t by expectation and maximisation.
    """
    spreads, names = start_spreads() if spreads is None else spreads, noise_class(design)
    classes = np.unique(names)
    spreads = replace(spreads, noise=dict(zip(classes.tolist(), spreads.noise_of(classes).tolist(), strict=True)))
    moved = np.inf
    for round_ in range(_MOST_ROUNDS):
        solution = solve(design, spreads, start=start, enough=_NEAR)
        start = solution.effects
        found = _moved(design, solution, linearised(design, solution, least=_MATTERS), names)
        moved = max(abs(float(np.log(found.noise[name] / spreads.noise[name]))) for name in found.noise)
        spreads = found
        if progress is not None:
            progress(round_ + 1, moved)
        if moved < _ENOUGH:
            return solve(design, spreads, start=start)
    raise NotConverged(f"the noise of a class still moves by {moved:.2g} after {_MOST_ROUNDS} rounds")


def _moved(design: Design, solution: Solution, normal: Normal, names: np.ndarray) -> Spreads:
    """One step of expectation and maximisation of the noise of every class."""
    spreads = solution.spreads
    variance = noise_of(design, spreads) ** 2
    # squares that are left and what the effects leave open, over the noise
    leverage = normal.leverages()
    squares = (solution.root * solution.residual) ** 2 + leverage
    noise, errors = {}, {}
    kinds = {name: name.partition(" ")[0] for name in spreads.noise}
    own = {name: names == name for name in spreads.noise}
    rows = {name: float((spreads.noise[name] ** 2 / variance[mine]).sum()) for name, mine in own.items()}
    for name, mine in own.items():
        now = spreads.noise[name] ** 2
        alike = [other for other in kinds if kinds[other] == kinds[name]]
        pooled = np.average([np.log(spreads.noise[other]) for other in alike], weights=[rows[other] for other in alike])
        found = now * float((squares * now / variance)[mine].sum()) + _ROWS_OF_PRIOR * np.exp(2.0 * pooled)
        noise[name] = max(float(np.sqrt(found / (rows[name] + _ROWS_OF_PRIOR))), _FORM)
        # information of Student's t on the logarithm of its scale, of the rows that the effects do not use up
        told = max(rows[name] - float(leverage[mine].sum()), 0.0) + _ROWS_OF_PRIOR
        errors[name] = float(np.sqrt((FREEDOM + 3.0) / (2.0 * FREEDOM * told)))
    return replace(spreads, noise=noise, noise_error=errors)
