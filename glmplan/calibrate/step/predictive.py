"""Spreads of the effects by what a fit says of runs it has not seen: whole groups, models and parts left out at once.

Rows of one group err together, because the form of a step misses something. The marginal likelihood takes them as
independent and makes spreads that explain a group's own rows best; what is wanted are spreads that predict other groups
best. In the linearised fit the prediction of a block of rows from all others follows from the inverse that is at hand,
and so does its derivative by every spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glmplan.calibrate.step.joint_fit import FREEDOM, Solution, linearised, prior_deviation, prior_mean, solve
from glmplan.calibrate.step.normal import Normal, reweighted
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import FACTORS, factor_table, spread_of_effects, start
from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["Blocks", "blocks_of", "learn_spreads", "score_left_out", "with_set_spreads"]

#: rows of one sweep scatter by 3 % around a curve of their own, but that curve is not the form of a step, which misses
#: some ten percent of it: figures are not trusted more than that [-]
_FORM = 0.10

#: rows of one block weigh as its number of rows to this power, so that no large one decides alone [-]
_BLOCK_WEIGHT = 0.5
#: what a cell says less than this moves no spread [-]
_MATTERS = 0.01
#: how often the figures are linearised anew, and steps of the search in between
_ROUNDS, _STEPS = 2, 12
#: how near the effects are to their optimum before figures are linearised anew, in deviations of the posterior [-]
_NEAR = 0.3
#: farthest that the logarithm of a factor moves before figures are linearised anew [-]
_FARTHEST = 1.0


@dataclass(frozen=True)
class Blocks:
    """One way to leave rows out.

    Attributes
    ----------
    of_figure : (m,) array of int
        Block of each figure, [-]
    weight : (m,) array
        Weight of each figure in the score; 0 for those not fitted, [-]
    """

    of_figure: np.ndarray
    weight: np.ndarray


def blocks_of(names: np.ndarray, fitted: np.ndarray) -> Blocks:
    """Blocks by name.

    Parameters
    ----------
    names : (m,) array of str
        What each figure is left out with.
    fitted : (m,) array of bool
        Which figures count.

    Returns
    -------
    Blocks
        Large blocks weigh less by row.
    """
    _, place = np.unique(names, return_inverse=True)
    count = np.bincount(place, weights=fitted)[place]
    return Blocks(place, np.where(fitted, np.maximum(count, 1.0) ** (_BLOCK_WEIGHT - 1.0), 0.0))


def score_left_out(
    normal: Normal, scaled: np.ndarray, target: np.ndarray, ways: Sequence[Blocks]
) -> tuple[float, np.ndarray]:
    """How well blocks are predicted from all others, and the derivative by the logarithm of each spread.

    Parameters
    ----------
    normal : Normal
        Equations around the fit.
    scaled : (m,) array
        Residuals of the fit over the noise, [-]
    target : (n,) array
        What the combined rows should come to, [-]
    ways : sequence of Blocks
        Ways to leave out; figures of one cell are in one block.

    Returns
    -------
    float, (levels, columns) array
        Weighted sum of the logarithms of Student's density of each figure; its derivative, [-]

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 5.4.2:
       predictions of what is left out from the inverse; there it is also said why they are robust to a wrong model.
    """
    inverse, pull = normal.inverse, normal.solve(target)
    bent, drawn, score = np.zeros_like(inverse), np.zeros(len(pull)), 0.0
    for way in ways:
        of_cell = np.array([way.of_figure[members[0]] for members in normal.cells.members])
        of_row = of_cell[normal.cell]
        for block in np.unique(of_cell):
            rows, cells = np.flatnonzero(of_row == block), np.flatnonzero(of_cell == block)
            there = np.ix_(rows, rows)
            figures = np.concatenate([normal.cells.members[cell] for cell in cells])
            turn = _turn_of(normal, cells)
            own, by_rows, by_pull = _score_block(
                np.linalg.inv(inverse[there]), pull[rows], turn, scaled[figures], way.weight[figures]
            )
            score += own
            bent[there] += by_rows
            drawn[rows] += by_pull
    outer = np.outer(inverse @ drawn, pull)
    slope_of_rows = inverse @ bent @ inverse - 0.5 * (outer + outer.T)
    slope = np.zeros((len(LEVELS), len(COLUMNS)))
    for key, (places, rows) in normal.blocks.items():
        level = int(np.searchsorted(normal.cells.first, key, side="right")) - 1
        inner = slope_of_rows if len(places) == len(pull) else slope_of_rows[np.ix_(places, places)]
        slope[level] += 2.0 * ((inner @ rows) * rows).sum(axis=0)
    return score, slope


def _turn_of(normal: Normal, cells: np.ndarray) -> np.ndarray:
    """How the figures of some cells make up their rows: one block for each, (figures, rows)."""
    parts = [normal.turns[cell] for cell in cells]
    turn = np.zeros((sum(len(part) for part in parts), sum(part.shape[1] for part in parts)))
    low = column = 0
    for part in parts:
        turn[low : low + len(part), column : column + part.shape[1]] = part
        low, column = low + len(part), column + part.shape[1]
    return turn


def _score_block(
    wide: np.ndarray, pull: np.ndarray, turn: np.ndarray, own: np.ndarray, weight: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Score of one block; its derivative by the inverse of all rows, sign turned, and by what pulls its own.

    `wide` is the covariance of its rows from all others, `own` what the fit of all leaves of its figures.
    """
    left = wide @ pull
    error = own - turn @ (turn.T @ own) + turn @ left
    variance = np.maximum(1.0 + np.einsum("ij,jk,ik->i", turn, wide - np.eye(len(wide)), turn), 1e-6)
    square = error**2 / variance
    score = -(weight * (0.5 * np.log(variance) + 0.5 * (FREEDOM + 1.0) * np.log1p(square / FREEDOM))).sum()
    student = (FREEDOM + 1.0) / (FREEDOM + square)
    by_variance = 0.5 * weight * (student * square - 1.0) / variance
    by_pull = wide @ (turn.T @ (-weight * student * error / variance))
    both = 0.5 * np.outer(by_pull, left)
    return float(score), wide @ (turn.T @ (by_variance[:, None] * turn)) @ wide + both + both.T, by_pull


def with_set_spreads(design: Design, solution: Solution) -> Solution:
    """Fit with estimated noise and the spreads that were set.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Fit by marginal likelihood: its noise is taken over, its spreads are not, since they predict groups left out
        worse.

    Returns
    -------
    Solution
        Effects of the highest posterior density under these spreads.
    """
    noise = {name: max(value, _FORM) for name, value in solution.spreads.noise.items()}
    spreads = replace(start(), noise=noise, noise_error=solution.spreads.noise_error)
    return solve(design, spreads, use=solution.root > 0.0)


def learn_spreads(
    design: Design,
    solution: Solution,
    ways: Sequence[Blocks],
    *,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Find the spreads that predict what is left out best, and fit the effects with them.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Where to begin.
    ways : sequence of Blocks
        Ways to leave out.
    progress : callable, optional
        Called with the number of scores and the last one.

    Returns
    -------
    Solution
        Effects of the highest posterior density under these spreads.
    """
    from scipy.optimize import minimize

    table = factor_table().reshape(-1, len(FACTORS))
    centre = np.array([factor.centre for factor in FACTORS])
    precision = np.array([factor.open**-2 if factor.open else 0.0 for factor in FACTORS])
    free, use, done = precision > 0.0, solution.root > 0.0, 0
    for _ in range(_ROUNDS):
        spreads = solution.spreads
        normal = linearised(design, solution, least=_MATTERS)
        scaled = solution.root * solution.residual
        z = np.concatenate([solution.effects[0] - prior_mean(), *solution.effects[1:]])
        target = normal.turned(scaled) + normal.forward(z / normal.sigma)
        logarithm = spreads.logarithm.copy()

        def minus(
            values: np.ndarray,
            normal: Normal = normal,
            scaled: np.ndarray = scaled,
            target: np.ndarray = target,
            logarithm: np.ndarray = logarithm,
        ) -> tuple[float, np.ndarray]:
            nonlocal done
            logarithm[free] = values
            there = reweighted(normal, prior_deviation(design, spread_of_effects(logarithm)))
            score, slope = score_left_out(there, scaled, target, ways)
            off = logarithm - centre
            score -= 0.5 * float(precision @ off**2)
            done += 1
            if progress is not None:
                progress(done, score)
            return -score, -(table.T @ slope.ravel() - precision * off)[free]

        begin = spreads.logarithm[free]
        bounds = [(value - _FARTHEST, value + _FARTHEST) for value in begin]
        found = minimize(minus, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxfun": _STEPS})
        logarithm[free] = found.x
        solution = solve(design, replace(spreads, logarithm=logarithm), use=use, start=solution.effects, enough=_NEAR)
    return solve(design, solution.spreads, use=use, start=solution.effects)
