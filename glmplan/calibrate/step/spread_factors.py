"""How far engines, parts and models differ, learnt from what is left out.

Each part of the hierarchy has one factor on its spreads (`glmplan.calibrate.step.joint_fit.SHARED`): the five numbers
with which runs left out are predicted best. Around a fit the joint model is linear, and one inverse gives the
predictions of all folds at once; so a choice of factors is scored on all folds in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from glmplan.calibrate.step.crossvalidate import folds_of, group_names
from glmplan.calibrate.step.joint_fit import (
    SHARED,
    Cells,
    Normal,
    Solution,
    Spreads,
    cells_of,
    evaluate,
    normal_equations,
    prior_deviation,
    prior_mean,
    solve_with_noise,
    summed,
)
from glmplan.calibrate.step.observations import Design
from glmplan.io.runs.columns import FIGURES

__all__ = ["LeftOutScore", "choose_factors", "left_out_score", "solve_with_spreads"]

#: step of the search in the logarithm of a factor, and the hyperprior's deviation of it around one [-]
_STEP, _OPEN = 0.35, 1.0
#: an error beyond this, in logarithms, says no more: something else is wrong with such a row [-]
_FARTHEST = 1.5
#: kinds of figure with fewer groups do not count; with fewer groups of any kind nothing is chosen [-]
_ENOUGH_GROUPS = 15
#: directions of a cell that say less are left out, as in `glmplan.calibrate.step.joint_fit.normal_equations` [-]
_MATTERS = 0.01
#: rows at random say nothing of what is not known
_LEFT_OUT = ("group", "model", "accelerator")


@dataclass(frozen=True)
class LeftOutScore:
    """A joint fit, made linear around its solution, that predicts what is left out of it for any spreads.

    Attributes
    ----------
    design : Design
        The runs.
    cells : Cells
        Their cells, none of which is split by a fold.
    slope : (m, 22) array
        Derivative of each figure by the sum of its effects, times its weight, [-]
    target : (m,) array
        What the effects have to explain of it, times its weight, [-]
    folds : dict of str to (runs,) array of int
        Way of leaving out → fold of each run, [-]
    """

    design: Design
    cells: Cells
    slope: np.ndarray
    target: np.ndarray
    folds: dict[str, np.ndarray]

    def residual(self, spread: np.ndarray) -> dict[str, np.ndarray]:
        """Errors of what is left out.

        Returns: Way of leaving out → measured minus predicted in logarithms.

        Notes
        -----
        With ``K`` the covariance of all rows and ``y`` their values, rows ``B`` are left out where ``y_B`` is replaced
        by ``y_B - (K⁻¹)_BB⁻¹ (K⁻¹ y)_B``: then they pull at nothing. Not modelled: that the derivatives and the weights
        of Student's t would be a little different without the fold, nor that rules go with it.

        References
        ----------
        .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006,
           section 5.4.2.
        """
        sigma = prior_deviation(self.design, spread)
        normal = normal_equations(self.cells, self.slope, sigma, least=_MATTERS)
        pull = normal.inverse @ normal.turned(self.target)
        return {mode: self._without(normal, pull, fold) for mode, fold in self.folds.items()}

    def _without(self, normal: Normal, pull: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """Errors of all figures, each predicted without its fold."""
        design, cells = self.design, self.cells
        cell_fold = np.zeros(len(cells.keys), dtype=int)
        cell_fold[cells.of_figure] = fold[design.observation_run]
        run_cell = np.zeros(len(design.questions), dtype=int)
        run_cell[design.observation_run] = cells.of_figure
        of_row = cell_fold[normal.cell]
        total = np.zeros((len(cells.keys), self.slope.shape[1]))
        for one in np.unique(cell_fold):
            out = np.flatnonzero(of_row == one)
            less = np.linalg.solve(normal.inverse[np.ix_(out, out)], pull[out])
            rest = pull - normal.inverse[:, out] @ less
            rest[out] = 0.0
            mine = cell_fold == one
            total[mine] = cells.sums(normal.sigma * normal.backward(rest))[mine]
        result: np.ndarray = design.log_seconds - evaluate(design, total[run_cell] + prior_mean())[0]
        return result


def left_out_score(design: Design, solution: Solution) -> LeftOutScore:
    """Make a joint fit linear.

    Returns: The fit: groups, models and parts are left out as in cross-validation.
    """
    effects = summed(design, solution.effects)
    slope = evaluate(design, effects)[1]
    target = solution.residual + (slope * (effects - prior_mean())[design.observation_run]).sum(axis=1)
    folds = {mode: folds_of(design.questions, mode) for mode in _LEFT_OUT}
    cells = cells_of(design)
    # a cell is all left out or not at all
    split = np.stack([cells.of_figure, *(fold[design.observation_run] for fold in folds.values())], axis=1)
    parts, of_figure = np.unique(split, axis=0, return_inverse=True)
    cells = Cells(cells.keys[parts[:, 0]], of_figure.ravel(), cells.first)
    return LeftOutScore(design, cells, slope * solution.root[:, None], target * solution.root, folds)


@dataclass(frozen=True)
class _Votes:
    """Rows of each kind of figure that counts, and the group of each figure."""

    kinds: tuple[np.ndarray, ...]
    group: np.ndarray

    def density(self, residual: Mapping[str, np.ndarray]) -> np.ndarray:
        """Minus the logarithm of Laplace's density by group, (groups,): the mean over the ways of leaving out."""
        groups = int(self.group.max()) + 1
        found = np.zeros(groups)
        for rows in self.kinds:
            group = self.group[rows]
            count = np.bincount(group, minlength=groups)
            there = count > 0
            # a group of many rows says more than one of few, and less than as many groups
            weight = 1.0 / np.sqrt(count[group])
            for values in residual.values():
                size = np.bincount(group, weight * np.minimum(np.abs(values[rows]), _FARTHEST), groups)
                wide = size.sum() / there.sum()
                found += (there * (np.log(wide) - 1.0) + size / wide) / len(residual)
        return found


def _votes(design: Design) -> _Votes:
    kind = np.array([FIGURES[name].group for name in design.figure])
    group = np.unique(group_names(design.questions), return_inverse=True)[1][design.observation_run]
    rows = [np.flatnonzero(kind == one) for one in np.unique(kind)]
    return _Votes(tuple(mine for mine in rows if len(np.unique(group[mine])) >= _ENOUGH_GROUPS), group)


def choose_factors(
    design: Design, solution: Solution, *, progress: Callable[[int, float], None] | None = None
) -> Spreads:
    """Choose the factors with which groups, models and parts left out are predicted best.

    - `solution`: Effects fitted to them; its spreads are where the search begins.
    - `progress`: Called with how many choices were scored, and the best score so far.
    - Returns: With the factors and their errors; as they were where there are too few groups.

    Notes
    -----
    The score is the predictive density of Laplace with a scale of its own for each kind of figure, one vote for each
    group, with a hyperprior of one deviation in logarithms around one. The search goes along one factor after the other
    by 1.4 times. A standard error is that of the sandwich, groups being independent of each other.

    References
    ----------
    .. [1] H. White, "Maximum Likelihood Estimation of Misspecified Models", Econometrica 50 (1982).
    """
    votes = _votes(design)
    names = tuple(SHARED)
    if not votes.kinds:
        return solution.spreads
    model = left_out_score(design, solution)
    scored: dict[tuple[int, ...], np.ndarray] = {}

    def spreads_of(place: tuple[int, ...]) -> Spreads:
        factor = {name: float(np.exp(_STEP * steps)) for name, steps in zip(names, place, strict=True)}
        return replace(solution.spreads, factor=factor)

    def total(place: tuple[int, ...]) -> float:
        if place not in scored:
            scored[place] = votes.density(model.residual(spreads_of(place).effect))
            if progress is not None:
                progress(len(scored), min(total(one) for one in scored))
        return float(scored[place].sum()) + 0.5 * sum((_STEP * steps / _OPEN) ** 2 for steps in place)

    best = tuple(round(float(np.log(solution.spreads.factor.get(name, 1.0))) / _STEP) for name in names)
    moved = True
    while moved:
        moved = False
        for factor in range(len(names)):
            for way in (1, -1):
                while total(there := _next_to(best, factor, way)) < total(best):
                    best, moved = there, True
    errors = {}
    for factor, name in enumerate(names):
        low, high = _next_to(best, factor, -1), _next_to(best, factor, 1)
        curved = max((total(low) + total(high) - 2.0 * total(best)) / _STEP**2, 1.0 / _OPEN**2)
        tilt = (scored[high] - scored[low]) / (2.0 * _STEP)
        errors[name] = min(float(np.sqrt(((tilt - tilt.mean()) ** 2).sum())) / curved, _OPEN)
    return replace(spreads_of(best), factor_error=errors)


def _next_to(place: tuple[int, ...], factor: int, way: int) -> tuple[int, ...]:
    return tuple(steps + way * (factor == other) for other, steps in enumerate(place))


def solve_with_spreads(design: Design, *, progress: Callable[[str, int, float], None] | None = None) -> Solution:
    """Fit the effects with the spreads that predict best what is left out, and the noise that the figures show.

    `progress`: Called with what is being done, the round, and how far something moved or what it scores.
    """

    def tell(what: str) -> Callable[[int, float], None] | None:
        return None if progress is None else lambda done, said: progress(what, done, said)

    first = solve_with_noise(design, progress=tell("effects and noise of all runs, moved by"))
    spreads = choose_factors(design, first, progress=tell("spreads by what is left out, score"))
    if spreads.factor == first.spreads.factor:
        return first
    again = tell("effects and noise with these spreads, moved by")
    return solve_with_noise(design, spreads, start=first.effects, progress=again)
