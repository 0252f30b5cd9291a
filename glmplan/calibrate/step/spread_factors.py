"""Factors on the spreads of the hierarchy, chosen by held-out predictions.

Each part of the hierarchy has one factor on its spreads (`glmplan.calibrate.step.joint_fit.SHARED`): the six numbers
that predict held-out runs best. Around a fit the joint model is linear, and one inverse gives the predictions of all
folds; a choice of factors is scored on all folds in seconds.
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

#: step of the search in log factor, and deviation of the hyperprior around one [-]
_STEP, _OPEN = 0.35, 1.0
#: larger log errors count as this: such a row has another problem [-]
_FARTHEST = 1.5
#: metrics with fewer groups do not count; without any metric nothing is chosen [-]
_ENOUGH_GROUPS = 15
#: cell directions below this are dropped, see `glmplan.calibrate.step.joint_fit.normal_equations` [-]
_MATTERS = 0.01
#: random rows do not test unknown effects; layouts and campaigns test what a group's own effects are worth
_LEFT_OUT = ("group", "model", "accelerator", "layout", "campaign")


@dataclass(frozen=True)
class LeftOutScore:
    """A joint fit linearised at its solution: held-out errors for any spreads."""

    design: Design
    cells: Cells  # no cell is split by a fold
    slope: np.ndarray  # (m, 22): derivative by the summed effects, times the weight
    target: np.ndarray  # (m,): to be explained by the effects, times the weight
    folds: dict[str, np.ndarray]  # way of leaving out → fold of each run

    def residual(self, spread: np.ndarray) -> dict[str, np.ndarray]:
        """Return way of leaving out → held-out log(measured / predicted).

        NaN for a run that this way never leaves out.

        Notes
        -----
        With ``K`` the covariance of all rows and ``y`` their values, rows ``B`` are left out by replacing ``y_B`` with
        ``y_B - (K⁻¹)_BB⁻¹ (K⁻¹ y)_B``, where they have no influence. Not modelled: changes of derivatives and Student
        weights without the fold, and rules that go with it.

        References
        ----------
        .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section
               5.4.2.
        """
        sigma = prior_deviation(self.design, spread)
        normal = normal_equations(self.cells, self.slope, sigma, least=_MATTERS)
        pull = normal.inverse @ normal.turned(self.target)
        return {mode: self._without(normal, pull, fold) for mode, fold in self.folds.items()}

    def _without(self, normal: Normal, pull: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """Return the errors of all observations, each predicted without its fold."""
        design, cells = self.design, self.cells
        cell_fold = np.zeros(len(cells.keys), dtype=int)
        cell_fold[cells.of_figure] = fold[design.observation_run]
        run_cell = np.zeros(len(design.cases), dtype=int)
        run_cell[design.observation_run] = cells.of_figure
        of_row = cell_fold[normal.cell]
        total = np.zeros((len(cells.keys), self.slope.shape[1]))
        for one in np.unique(cell_fold[cell_fold >= 0]):
            out = np.flatnonzero(of_row == one)
            less = np.linalg.solve(normal.inverse[np.ix_(out, out)], pull[out])
            rest = pull - normal.inverse[:, out] @ less
            rest[out] = 0.0
            mine = cell_fold == one
            total[mine] = cells.sums(normal.sigma * normal.backward(rest))[mine]
        result = design.log_seconds - evaluate(design, total[run_cell] + prior_mean())[0]
        return np.where(fold[design.observation_run] >= 0, result, np.nan)


def left_out_score(design: Design, solution: Solution) -> LeftOutScore:
    """Return the linearised fit, with the folds of cross-validation."""
    effects = summed(design, solution.effects)
    slope = evaluate(design, effects)[1]
    target = solution.residual + (slope * (effects - prior_mean())[design.observation_run]).sum(axis=1)
    folds = {mode: folds_of(design.cases, mode) for mode in _LEFT_OUT}
    cells = cells_of(design)
    # a cell is held out as a whole
    split = np.stack([cells.of_figure, *(fold[design.observation_run] for fold in folds.values())], axis=1)
    parts, of_figure = np.unique(split, axis=0, return_inverse=True)
    cells = Cells(cells.keys[parts[:, 0]], of_figure.ravel(), cells.first)
    return LeftOutScore(design, cells, slope * solution.root[:, None], target * solution.root, folds)


@dataclass(frozen=True)
class _Votes:
    """Observations of each counted metric, and the group of each."""

    kinds: tuple[np.ndarray, ...]
    group: np.ndarray

    def density(self, residual: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return minus the log Laplace density by group, mean over the ways."""
        groups = int(self.group.max()) + 1
        density = np.zeros(groups)
        for kind in self.kinds:
            for values in residual.values():
                rows = kind[np.isfinite(values[kind])]
                if not len(rows):
                    continue
                group = self.group[rows]
                count = np.bincount(group, minlength=groups)
                there = count > 0
                # a large group has more weight than a small one, but less than as many groups
                weight = 1.0 / np.sqrt(count[group])
                size = np.bincount(group, weight * np.minimum(np.abs(values[rows]), _FARTHEST), groups)
                wide = size.sum() / there.sum()
                density += (there * (np.log(wide) - 1.0) + size / wide) / len(residual)
        return density


def _votes(design: Design) -> _Votes:
    kind = np.array([FIGURES[name].group for name in design.figure])
    group = np.unique(group_names(design.cases), return_inverse=True)[1][design.observation_run]
    rows = [np.flatnonzero((kind == one) & design.fitted) for one in np.unique(kind[design.fitted])]
    return _Votes(tuple(mine for mine in rows if len(np.unique(group[mine])) >= _ENOUGH_GROUPS), group)


def choose_factors(
    design: Design, solution: Solution, *, progress: Callable[[int, float], None] | None = None
) -> Spreads:
    """Return the spreads whose factors predict held-out runs best.

    Unchanged if there are too few groups. `progress` gets the scored choices and the best score.

    Notes
    -----
    The score is a Laplace predictive density with a scale for each metric, one vote for each group, and a log
    hyperprior of deviation one around one. Coordinate search in factors of 1.4. Standard errors are sandwich estimates
    with independent groups.

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
    """Return the effects fitted with chosen spreads and estimated noise.

    `progress` gets the phase, the round, and the change or score.
    """

    def tell(what: str) -> Callable[[int, float], None] | None:
        return None if progress is None else lambda done, said: progress(what, done, said)

    first = solve_with_noise(design, progress=tell("effects and noise of all runs, moved by"))
    spreads = choose_factors(design, first, progress=tell("spreads by what is left out, score"))
    if spreads.factor == first.spreads.factor:
        return first
    again = tell("effects and noise with these spreads, moved by")
    return solve_with_noise(design, spreads, start=first.effects, progress=again)
