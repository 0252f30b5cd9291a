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

from glmplan.calibrate.step.joint_fit import FREEDOM, Solution, linearised, prior_deviation, solve
from glmplan.calibrate.step.normal import Normal, reweighted
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import FACTORS, Spreads, factor_table, spread_of_effects
from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["Blocks", "blocks_of", "learn_spreads", "score_left_out"]

#: rows of one block weigh as its number of rows to this power, so that no large one decides alone [-]
_BLOCK_WEIGHT = 0.5
#: what a cell says less than this moves no spread [-]
_MATTERS = 0.1
#: how often the figures are linearised anew, and steps of the search in between
_ROUNDS, _STEPS = 2, 15


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
        Weighted sum of the logarithms of Student's density of each figure; its derivative.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 5.4.2:
       predictions of what is left out from the inverse; there it is also said why they are robust to a wrong model.
    """
    inverse, pull = normal.inverse, normal.solve(target)
    spread_out, drawn, score = np.zeros_like(inverse), np.zeros(len(pull)), 0.0
    for way in ways:
        of_cell = np.array([way.of_figure[members[0]] for members in normal.cells.members])
        of_row = of_cell[normal.cell]
        for block in np.unique(of_cell):
            rows, cells = np.flatnonzero(of_row == block), np.flatnonzero(of_cell == block)
            there = np.ix_(rows, rows)
            wide = np.linalg.inv(inverse[there])
            left = wide @ pull[rows]
            figures = np.concatenate([normal.cells.members[cell] for cell in cells])
            turn = np.zeros((len(figures), len(rows)))
            low = column = 0
            for cell in cells:
                part = normal.turns[cell]
                turn[low : low + len(part), column : column + part.shape[1]] = part
                low, column = low + len(part), column + part.shape[1]
            own = scaled[figures]
            error = own - turn @ (turn.T @ own) + turn @ left
            variance = np.maximum(1.0 + np.einsum("ij,jk,ik->i", turn, wide - np.eye(len(rows)), turn), 1e-6)
            weight, square = way.weight[figures], error**2 / variance
            score -= float((weight * (0.5 * np.log(variance) + 0.5 * (FREEDOM + 1.0) * np.log1p(square / FREEDOM))).sum())
            student = (FREEDOM + 1.0) / (FREEDOM + square)
            by_variance = 0.5 * weight * (student * square - 1.0) / variance
            by_left = wide @ (turn.T @ (-weight * student * error / variance))
            spread_out[there] += wide @ (turn.T @ (by_variance[:, None] * turn)) @ wide
            both = 0.5 * np.outer(by_left, left)
            spread_out[there] += both + both.T
            drawn[rows] += by_left
    outer = np.outer(inverse @ drawn, pull)
    slope_of_rows = inverse @ spread_out @ inverse - 0.5 * (outer + outer.T)
    slope = np.zeros((len(LEVELS), len(COLUMNS)))
    for key, (places, rows) in normal.blocks.items():
        level = int(np.searchsorted(normal.cells.first, key, side="right")) - 1
        inner = slope_of_rows if len(places) == len(pull) else slope_of_rows[np.ix_(places, places)]
        slope[level] += 2.0 * ((inner @ rows) * rows).sum(axis=0)
    return score, slope


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
    free, use, count = precision > 0.0, solution.root > 0.0, 0
    for _ in range(_ROUNDS):
        spreads = solution.spreads
        normal = linearised(design, solution, least=_MATTERS)
        scaled = solution.root * solution.residual
        z = np.concatenate([solution.effects[0] * 0.0, *solution.effects[1:]])
        z[:1] = solution.effects[0] - _mean()
        target = normal.turned(scaled) + normal.forward(z / normal.sigma)

        def minus(values: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal count
            logarithm = spreads.logarithm.copy()  # noqa: B023
            logarithm[free] = values
            there = reweighted(normal, prior_deviation(design, spread_of_effects(logarithm)))  # noqa: B023
            score, slope = score_left_out(there, scaled, target, ways)  # noqa: B023
            off = logarithm - centre
            count += 1
            if progress is not None:
                progress(count, score - 0.5 * float(precision @ off**2))
            gradient = table.T @ slope.ravel() - precision * off
            return -score + 0.5 * float(precision @ off**2), -gradient[free]

        begin = spreads.logarithm[free]
        bounds = [(value - 1.0, value + 1.0) for value in begin]
        found = minimize(minus, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxfun": _STEPS})
        logarithm = spreads.logarithm.copy()
        logarithm[free] = found.x
        solution = solve(design, replace(spreads, logarithm=logarithm), use=use, start=solution.effects)
    return solution


def _mean() -> np.ndarray:
    from glmplan.calibrate.step.joint_fit import prior_mean

    return prior_mean()


_ = Spreads
