"""Spreads of the effects and noise of the figures by marginal likelihood: what the runs say of them with the effects
integrated out.

Around the effects that fit best the posterior is taken as Gaussian (Laplace), Student's t as a Gaussian with the
weights that its rows ended with. Factors of the spreads move by Newton's method with the mean of observed and expected
information, the noise by expectation and maximisation; effects are found again in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from glmplan.calibrate.step.joint_fit import (
    FREEDOM,
    NotConverged,
    Solution,
    guesses_load,
    linearised,
    noise_of,
    prior_mean,
    solve,
)
from glmplan.calibrate.step.normal import Normal
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import FACTORS, Spreads, factor_table, noise_class
from glmplan.calibrate.step.spreads import start as start_spreads
from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["estimate", "evidence", "factor_errors", "factor_slope"]

#: spreads are found when none moves by more than this share of its own standard error, noise of no class by more in
#: logarithms [-]
_ENOUGH, _ENOUGH_NOISE = 0.15, 0.005
#: farthest that the logarithm of a factor moves in one round [-]
_FARTHEST = 0.7
#: rounds after which it is said to have failed; how near the effects are to their optimum in each, in deviations
_MOST_ROUNDS, _NEAR = 150, 0.1
#: directions of a cell that say less than this of the prior's variance, squared, do not move a spread [-]
_MATTERS = 0.01
#: figures drawn from the model for the expected information, and the seed of the drawing
_DRAWN, _SEED = 8, 17
#: the noise of a class is drawn towards that of its kind of figure as by so many rows [-]
_ROWS_OF_PRIOR = 5.0
#: noise is not below what the same configuration measured again is off by: `glmplan.calibrate.step.own_site.SITE_NOISE`
_LEAST_NOISE = 0.02


def estimate(
    design: Design,
    spreads: Spreads | None = None,
    *,
    use: np.ndarray | None = None,
    start: tuple[np.ndarray, ...] | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Estimate spreads and noise, and the effects with them.

    Parameters
    ----------
    design : Design
        The runs.
    spreads : Spreads, optional
        Where to begin; the centre of the hyperprior by default.
    use : (m,) array of bool, optional
        Observations to fit; all by default.
    start : tuple of (keys, 21) array, optional
        Effects to begin at; the prior mean by default, [log s] or [-]
    progress : callable, optional
        Called with the round and how far the spreads moved, in their standard errors.

    Returns
    -------
    Solution
        Effects of the highest posterior density under the spreads that the runs make most likely.

    Raises
    ------
    NotConverged
        If spreads still move after 150 rounds.

    References
    ----------
    .. [1] D. J. C. MacKay, "Bayesian Interpolation", Neural Computation 4 (1992): evidence and its gradient.
    .. [2] A. R. Gilmour, R. Thompson, B. R. Cullis, "Average Information REML", Biometrics 51 (1995).
    .. [3] K. L. Lange, R. J. A. Little, J. M. G. Taylor, "Robust Statistical Modeling Using the t Distribution",
       JASA 84 (1989): the scale of Student's t by expectation and maximisation.
    """
    spreads = start_spreads() if spreads is None else spreads
    use = np.ones(len(design.log_seconds), dtype=bool) if use is None else use
    spreads = replace(spreads, noise={name: spreads.noise_of(np.array([name]))[0] for name in _classes(design, use)})
    moved, last, gain = np.inf, np.zeros(len(FACTORS)), np.ones(len(FACTORS))
    for round_ in range(_MOST_ROUNDS):
        solution = solve(design, spreads, use=use, start=start, enough=_NEAR)
        start = solution.effects
        normal = linearised(design, solution, least=_MATTERS)
        step, error = _factor_step(design, solution, normal)
        # a step leaves out that slopes change with the effects: one that turns back has gone too far
        gain = np.where(step * last < 0.0, 0.5 * gain, np.minimum(1.05 * gain, 1.0))
        last = step
        quieter = _noise_moved(design, solution, normal, use)
        farthest = max(abs(np.log(quieter.noise[name] / spreads.noise[name])) for name in quieter.noise)
        moved = float(np.abs(step / np.maximum(error, 1e-9)).max())
        spreads = replace(
            quieter, logarithm=spreads.logarithm + gain * np.clip(step, -_FARTHEST, _FARTHEST), error=error
        )
        if progress is not None:
            progress(round_ + 1, moved)
        if moved < _ENOUGH and farthest < _ENOUGH_NOISE:
            return solve(design, spreads, use=use, start=start)
    raise NotConverged(f"spreads still move by {moved:.2g} of their errors after {_MOST_ROUNDS} rounds")


def _classes(design: Design, use: np.ndarray) -> list[str]:
    return sorted({str(name) for name in noise_class(design)[use]})


def evidence(design: Design, solution: Solution, normal: Normal | None = None) -> float:
    """Logarithm of the marginal likelihood of the figures and of the hyperprior, up to a constant.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects at the optimum for its spreads.
    normal : Normal, optional
        Equations around it, if they are at hand.

    Returns
    -------
    float
        [-]
    """
    normal = linearised(design, solution) if normal is None else normal
    fitted, noise = solution.root > 0.0, noise_of(design, solution.spreads)
    scaled = (solution.residual / noise)[fitted]
    likelihood = -0.5 * (FREEDOM + 1.0) * np.log1p(scaled**2 / FREEDOM).sum() - np.log(noise[fitted]).sum()
    off = _off_centre(solution.spreads)
    return float(likelihood - 0.5 * ((_z(design, solution, normal) ** 2).sum() + normal.log_determinant + off @ off))


def _z(design: Design, solution: Solution, normal: Normal) -> np.ndarray:
    """Effects over their spread, (keys, 21)."""
    return np.concatenate([solution.effects[0] - prior_mean(), *solution.effects[1:]]) / normal.sigma


def _off_centre(spreads: Spreads) -> np.ndarray:
    """How far the factors are from the centre of their hyperprior, in its deviations."""
    free = [(place, factor) for place, factor in enumerate(FACTORS) if factor.open]
    return np.array([(spreads.logarithm[place] - factor.centre) / factor.open for place, factor in free])


def factor_slope(design: Design, solution: Solution, normal: Normal) -> tuple[np.ndarray, np.ndarray]:
    """Derivative of the marginal likelihood by the logarithm of each spread, and the information on the factors.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects at the optimum for its spreads.
    normal : Normal
        Equations around it.

    Returns
    -------
    (levels, columns) array, (factors, factors) array
        Sum of squares of the effects over their variance less how many of them the figures determine; mean of the
        information that the figures show and of that which is expected, without the hyperprior's, [-]
    """
    z = _z(design, solution, normal)
    pull = normal.solve(normal.turned(solution.residual * solution.root) + normal.forward(z))
    table = factor_table()
    slope = np.zeros((len(LEVELS), len(COLUMNS)))
    # beside the figures themselves some that are drawn from the model: their information is the expected one
    drawn = np.random.default_rng(_SEED).normal(size=(len(pull), _DRAWN))
    pulls = np.concatenate([pull[:, None], normal.half_solve(drawn)], axis=1)
    shares = np.zeros((pulls.shape[1], len(pull), len(FACTORS)))
    for key, (places, scaled) in normal.blocks.items():
        level = int(np.searchsorted(normal.cells.first, key, side="right")) - 1
        inner = normal.inverse if len(places) == len(pull) else normal.inverse[np.ix_(places, places)]
        slope[level] -= ((inner @ scaled) * scaled).sum(axis=0)
        own = scaled.T @ pulls[places]
        slope[level] += own[:, 0] ** 2
        shares[:, places] += own.T[:, None, :] * scaled @ table[level]
    found = [2.0 * one.T @ normal.solve(one) for one in shares]
    # effects that are smaller than their spread lets expect: the likelihood bends by twice what is missing
    missing = np.einsum("lcf,lc,lcg->fg", table, 2.0 * np.maximum(-slope, 0.0), table)
    return slope, 0.5 * (found[0] + np.mean(found[1:], axis=0)) + missing


def factor_errors(design: Design, solution: Solution) -> np.ndarray:
    """Standard errors of the logarithms of the factors.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects at the optimum for its spreads.

    Returns
    -------
    (factors,) array
        From the information of the runs and of the hyperprior; 0 for those that are not free, [-]
    """
    return _factor_step(design, solution, linearised(design, solution, least=_MATTERS))[1]


def _factor_step(design: Design, solution: Solution, normal: Normal) -> tuple[np.ndarray, np.ndarray]:
    """Newton's step of the logarithms of the factors, and their standard errors, (factors,) each."""
    spreads, table = solution.spreads, factor_table().reshape(-1, len(FACTORS))
    slope, information = factor_slope(design, solution, normal)
    free = np.array([factor.open > 0.0 for factor in FACTORS])
    centre = np.array([factor.centre for factor in FACTORS])
    precision = np.array([factor.open**-2 if factor.open else 0.0 for factor in FACTORS])
    total = (table.T @ slope.ravel() - precision * (spreads.logarithm - centre))[free]
    curvature = information[np.ix_(free, free)] + np.diag(precision[free])
    step, error = np.zeros(len(FACTORS)), np.zeros(len(FACTORS))
    step[free] = np.linalg.solve(curvature, total)
    error[free] = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return step, error


def _noise_moved(design: Design, solution: Solution, normal: Normal, use: np.ndarray) -> Spreads:
    """One step of expectation and maximisation of the noise of every class, and of what an unstated load adds."""
    spreads, names = solution.spreads, noise_class(design)
    variance = noise_of(design, spreads) ** 2
    # squares that are left and what the effects leave open, over the noise
    leverage = normal.leverages()
    squares = (solution.root * solution.residual) ** 2 + leverage
    noise, errors = {}, {}
    kinds = {name: name.partition(" ")[0] for name in spreads.noise}
    own = {name: use & (names == name) for name in spreads.noise}
    rows = {name: float((spreads.noise[name] ** 2 / variance[mine]).sum()) for name, mine in own.items()}
    for name, mine in own.items():
        now = spreads.noise[name] ** 2
        alike = [other for other in kinds if kinds[other] == kinds[name]]
        pooled = np.average([np.log(spreads.noise[other]) for other in alike], weights=[rows[other] for other in alike])
        found = now * float((squares * now / variance)[mine].sum()) + _ROWS_OF_PRIOR * np.exp(2.0 * pooled)
        noise[name] = max(float(np.sqrt(found / (rows[name] + _ROWS_OF_PRIOR))), _LEAST_NOISE)
        # information of Student's t on the logarithm of its scale, of the rows that the effects do not use up
        told = max(rows[name] - float(leverage[mine].sum()), 0.0) + _ROWS_OF_PRIOR
        errors[name] = float(np.sqrt((FREEDOM + 3.0) / (2.0 * FREEDOM * told)))
    guessed = use & guesses_load(design)
    added = spreads.guessed_load
    if guessed.any():
        added *= float(np.sqrt((squares / variance)[guessed].sum() / (1.0 / variance)[guessed].sum()))
    return Spreads(spreads.logarithm, noise, added, spreads.error, errors)
