"""How far engines, parts and models differ, learnt from what is left out.

Each part of the hierarchy has one factor on its spreads (`glmplan.calibrate.step.spreads.SHARED`): the five numbers
with which runs left out are predicted best. Around a fit the joint model is linear, and one inverse gives the
predictions of all folds at once; so a choice of factors is scored on all folds in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from glmplan.calibrate.step.crossvalidate import folds_of, group_names
from glmplan.calibrate.step.in_turn import solve_in_turn
from glmplan.calibrate.step.joint_fit import Solution, evaluate, prior_deviation, prior_mean, summed
from glmplan.calibrate.step.noise import solve_with_noise
from glmplan.calibrate.step.normal import Cells, Normal, cells_of, normal_equations
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.solved_folds import SolvedFolds
from glmplan.calibrate.step.spreads import SHARED, Spreads
from glmplan.readers.runs.figures import FIGURES

__all__ = ["LeftOutScore", "choose_factors", "left_out_score", "solve_with_spreads"]

#: step of the search in the logarithm of a factor, and the hyperprior's deviation of it around one [-]
_STEP, _OPEN = 0.35, 1.0
#: an error beyond this, in logarithms, says no more: something else is wrong with such a row [-]
_FARTHEST = 1.5
#: kinds of figure with fewer groups do not count; with fewer groups of any kind nothing is chosen [-]
_ENOUGH_GROUPS = 15
#: directions of a cell that say less are left out, as in `glmplan.calibrate.step.normal.normal_equations` [-]
_MATTERS = 0.01
#: how many steps the factor of all moves at once while folds are solved; the score has to fall by more than noise
_STRIDE, _SURELY = 2, 2.0
#: least noise of decoding while what groups share is learnt, and factors on the spreads of what is a group's own [-]
_BETWEEN, _OWN = (0.0, 0.14, 0.2, 0.28), (1.0, 2.0)
#: rows at random and layouts say nothing of what is not known, only of what is a group's own
_LEFT_OUT, _SOME = ("group", "model", "accelerator"), ("random", "layout")


@dataclass(frozen=True)
class LeftOutScore:
    """A joint fit, made linear around its solution, that predicts what is left out of it for any spreads.

    Attributes
    ----------
    design : Design
        The runs.
    cells : Cells
        Their cells, none of which is split by a fold.
    slope : (m, 21) array
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

    def residual(self, spreads: Spreads) -> dict[str, np.ndarray]:
        """Errors of what is left out.

        Parameters
        ----------
        spreads : Spreads
            Prior standard deviations; noise is that of the fit.

        Returns
        -------
        dict of str to (m,) array
            Way of leaving out → measured minus predicted in logarithms, [-]

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
        sigma = prior_deviation(self.design, spreads.effect)
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
        return design.log_seconds - evaluate(design, total[run_cell] + prior_mean())[0]


def left_out_score(design: Design, solution: Solution) -> LeftOutScore:
    """Make a joint fit linear.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects fitted to them.

    Returns
    -------
    LeftOutScore
        The fit: groups, models and parts are left out as in cross-validation.
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
            for values in residual.values():
                mine = rows[~np.isnan(values[rows])]  # some ways leave out some runs only
                group = self.group[mine]
                count = np.bincount(group, minlength=groups)
                there = count > 0
                # a group of many rows says more than one of few, and less than as many groups
                weight = 1.0 / np.sqrt(count[group])
                size = np.bincount(group, weight * np.minimum(np.abs(values[mine]), _FARTHEST), groups)
                wide = size.sum() / there.sum()
                found += there * (np.log(wide) - 1.0 + size / wide) / len(residual)
        return found


def _votes(design: Design) -> _Votes:
    kind = np.array([FIGURES[name].group for name in design.figure])
    group = np.unique(group_names(design.questions), return_inverse=True)[1][design.observation_run]
    rows = [np.flatnonzero(kind == one) for one in np.unique(kind)]
    return _Votes(tuple(mine for mine in rows if len(np.unique(group[mine])) >= _ENOUGH_GROUPS), group)


def choose_factors(
    design: Design,
    solution: Solution,
    *,
    processes: int = 1,
    progress: Callable[[str, int, float], None] | None = None,
) -> Spreads:
    """Choose the factors with which groups, models and parts left out are predicted best.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects fitted to them; its spreads are where the search begins.
    processes : int, optional
        Folds that are solved at once, [-]
    progress : callable, optional
        Called with what is being done, how many choices were scored, and the best score so far.

    Returns
    -------
    Spreads
        With the factors and their errors; as they were where there are too few groups.

    Notes
    -----
    The score is the predictive density of Laplace with a scale of its own for each kind of figure, one vote for each
    group, with a hyperprior of one deviation in logarithms around one. The search goes along one factor after the other
    by 1.4 times, with folds made linear; from where it ends on, or from where it began, folds are solved to the end:
    with more noise between groups, then with twice or half the spread of what all engines share, of which linear folds
    know least. How far groups differ once that is known is chosen by rows at random and by layouts. A standard error is
    that of the sandwich of the linear folds, groups being independent of each other.

    References
    ----------
    .. [1] H. White, "Maximum Likelihood Estimation of Misspecified Models", Econometrica 50 (1982).
    """
    votes = _votes(design)
    names = tuple(SHARED)
    if not votes.kinds:
        return solution.spreads
    model = left_out_score(design, solution)

    def spreads_of(place: _Place) -> Spreads:
        *steps, between, own = place
        factor = {name: float(np.exp(_STEP * one)) for name, one in zip(names, steps, strict=True)}
        return replace(solution.spreads, factor=factor, between=_BETWEEN[between], own=_OWN[own])

    def scored_by(folds: LeftOutScore | SolvedFolds, what: str) -> _Places:
        def tell(done: int, said: float) -> None:
            if progress is not None:
                progress(what, done, said)

        return _Places(lambda place: votes.density(folds.residual(spreads_of(place))), tell)

    factors, between, own = range(len(names)), len(names), len(names) + 1
    began = (*(round(float(np.log(solution.spreads.factor.get(name, 1.0))) / _STEP) for name in names), 0, 0)
    linear = scored_by(model, "spreads by what is left out, score")
    best = linear.descended(began, factors, 1, 0.0)
    with SolvedFolds(design, solution, model.folds, processes=processes) as folds:
        solved = scored_by(folds, "the same by folds solved to the end, score")
        best = min((best, began), key=solved.total)
        best = min(((*best[:between], one, 0) for one in range(len(_BETWEEN))), key=solved.total)
        best = solved.descended(best, (names.index("all"),), _STRIDE, _SURELY)
    # what is a group's own is missed where some of the group stays
    some = {mode: folds_of(design.questions, mode) for mode in _SOME}
    with SolvedFolds(design, solution, some, own=True, processes=processes) as folds:
        within = scored_by(folds, "what is a group's own, score")
        best = min(((*best[:own], one) for one in range(len(_OWN))), key=within.total)
    total = linear.total
    errors = {}
    for factor, name in enumerate(names):
        low, high = _next_to(best, factor, -1), _next_to(best, factor, 1)
        curved = max((total(low) + total(high) - 2.0 * total(best)) / _STEP**2, 1.0 / _OPEN**2)
        tilt = (linear.density(high) - linear.density(low)) / (2.0 * _STEP)
        errors[name] = min(float(np.sqrt(((tilt - tilt.mean()) ** 2).sum())) / curved, _OPEN)
    return replace(spreads_of(best), factor_error=errors)


#: steps of the factors of `SHARED`, and which of `_BETWEEN` and `_OWN`
_Place = tuple[int, ...]


@dataclass
class _Places:
    """Choices of the factors in steps, with what they score."""

    score: Callable[[_Place], np.ndarray]
    tell: Callable[[int, float], None]
    found: dict[_Place, np.ndarray] = field(default_factory=dict)

    def density(self, place: _Place) -> np.ndarray:
        """Minus the logarithm of the density by group, (groups,)."""
        if place not in self.found:
            self.found[place] = self.score(place)
            self.tell(len(self.found), min(self.total(one) for one in self.found))
        return self.found[place]

    def total(self, place: _Place) -> float:
        """What is made least."""
        return float(self.density(place).sum()) + 0.5 * sum((_STEP * steps / _OPEN) ** 2 for steps in place[:-2])

    def descended(self, place: _Place, along: Iterable[int], stride: int, least: float) -> _Place:
        """Where no coordinate makes it better by more than `least` when it moves by a stride."""
        best, moved = place, True
        while moved:
            moved = False
            for coordinate in along:
                for way in (stride, -stride):
                    there = _next_to(best, coordinate, way)
                    while _possible(there) and self.total(there) < self.total(best) - least:
                        best, moved = there, True
                        there = _next_to(best, coordinate, way)
        return best


def _next_to(place: _Place, coordinate: int, way: int) -> _Place:
    return tuple(steps + way * (coordinate == other) for other, steps in enumerate(place))


def _possible(place: _Place) -> bool:
    return 0 <= place[-2] < len(_BETWEEN) and 0 <= place[-1] < len(_OWN)


def solve_with_spreads(
    design: Design, *, processes: int = 1, progress: Callable[[str, int, float], None] | None = None
) -> Solution:
    """Fit the effects with the spreads that predict best what is left out, and the noise that the figures show.

    Parameters
    ----------
    design : Design
        The runs.
    processes : int, optional
        Folds that are solved at once, [-]
    progress : callable, optional
        Called with what is being done, the round, and how far something moved or what it scores.

    Returns
    -------
    Solution
        Effects of the highest posterior density.
    """

    def tell(what: str) -> Callable[[int, float], None] | None:
        return None if progress is None else lambda done, said: progress(what, done, said)

    first = solve_with_noise(design, progress=tell("effects and noise of all runs, moved by"))
    spreads = choose_factors(design, first, processes=processes, progress=progress)
    if spreads is first.spreads:
        return first
    again = solve_with_noise(
        design, spreads, start=first.effects, progress=tell("effects and noise with these spreads, moved by")
    )
    return solve_in_turn(design, again.spreads, start=again.effects)
