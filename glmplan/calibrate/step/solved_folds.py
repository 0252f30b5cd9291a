"""How well spreads predict what is left out, each fold solved to the end.

A fold that is made linear around the fit of all runs is found in milliseconds and errs where much leaves with it:
where a fifth of the groups is held out, linear folds chose spreads twice as wide for what all engines share, with which
solved folds err by a fifteenth more. So linear folds say where to look, and solved ones choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context

import numpy as np

from glmplan.calibrate.step.in_turn import solve_in_turn
from glmplan.calibrate.step.joint_fit import Solution, solve
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import Spreads
from glmplan.calibrate.step.unseen import alone, unseen

__all__ = ["SolvedFolds"]

#: how near the effects of a fold are to their optimum, in deviations: errors do not move by a thousandth beyond [-]
_NEAR = 0.05

#: what a process of its own knows
_SHARED: dict[str, _Fold] = {}


@dataclass(frozen=True)
class _Fold:
    """A fit and what it is asked without."""

    design: Design
    effects: tuple[np.ndarray, ...]

    def without(self, out: np.ndarray, spreads: Spreads, own: bool) -> np.ndarray:
        """Errors of the figures of some runs, predicted from the others, [-]"""
        seen = alone(self.design, np.setdiff1d(np.arange(len(self.design.questions)), out))
        begun = []
        for level, names in enumerate(seen.key_names):
            place = {name: number for number, name in enumerate(self.design.key_names[level])}
            begun.append(self.effects[level][[place[name] for name in names]])
        # always from the fit of all runs: what is found must not hang on what was tried before
        if own:
            found = solve_in_turn(seen, spreads, start=tuple(begun), enough=_NEAR)
        else:
            found = solve(seen, spreads.of_shared, start=tuple(begun), enough=_NEAR)
        return unseen(seen, found, alone(self.design, out)).residual


def _remember(fold: _Fold) -> None:
    _SHARED["fold"] = fold


def _one(out: np.ndarray, spreads: Spreads, own: bool) -> np.ndarray:
    return _SHARED["fold"].without(out, spreads, own)


@dataclass
class SolvedFolds:
    """Runs left out by folds, predicted from what is left with spreads to be tried; to be closed after use.

    Attributes
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects fitted to all of them, where every fold begins.
    folds : mapping of str to (runs,) array of int
        Way of leaving out → fold of each run; one below zero stays, [-]
    own : bool
        Whether something of a group stays when some of it is left out, so that what is its own matters.
    processes : int
        Folds that are solved at once, [-]
    """

    design: Design
    solution: Solution
    folds: Mapping[str, np.ndarray]
    own: bool = False
    processes: int = 1
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> SolvedFolds:
        fold = _Fold(self.design, self.solution.effects)
        if self.processes > 1:
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(self.processes, context, _remember, (fold,))
        else:
            _remember(fold)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        _SHARED.pop("fold", None)

    def residual(self, spreads: Spreads) -> dict[str, np.ndarray]:
        """Errors of what is left out.

        Parameters
        ----------
        spreads : Spreads
            Spreads of the effects and noise of the figures.

        Returns
        -------
        dict of str to (m,) array
            Way of leaving out → measured minus predicted in logarithms, [-]
        """
        tasks = [(mode, np.flatnonzero(fold == one)) for mode, fold in self.folds.items()
                 for one in range(int(fold.max()) + 1)]  # fmt: skip
        outs = [out for _, out in tasks]
        mapped = map if self._pool is None else self._pool.map
        found = {mode: np.full(len(self.design.log_seconds), np.nan) for mode in self.folds}
        for (mode, out), errors in zip(
            tasks, mapped(_one, outs, repeat(spreads, len(outs)), repeat(self.own, len(outs))), strict=True
        ):
            found[mode][np.isin(self.design.observation_run, out)] = errors
        return found
