"""How far predictions of left-out runs are off: one number for each observation, and their summary by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.backtest.by_group import GroupBias, group_biases
from glmplan.calibrate.backtest.reasons import conditions_of
from glmplan.calibrate.step.crossvalidate import group_names
from glmplan.calibrate.step.intervals import nested_intervals, scored_of
from glmplan.calibrate.step.left_out import LeftOut
from glmplan.errors import GlmplanError
from glmplan.prediction.from_row import Question, question_of
from glmplan.prediction.intervals import band_of
from glmplan.readers.runs.figures import COMPARED
from glmplan.readers.runs.record import Run

__all__ = ["DIMENSIONS", "GROUPS", "Score", "Table", "score", "table_of"]

#: figures of the report: each counts several columns
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(one.group for one in COMPARED.values()))
#: what the errors are grouped by
DIMENSIONS: tuple[str, ...] = ("accelerator", "engine", "model", "concurrency", "precision")


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a group of predictions.

    Attributes
    ----------
    count : int
        Observations, [-]
    median, mean, p90 : float
        Absolute error over measured, [-]
    bias : float
        Median of predicted over measured, less one, [-]
    coverage : float
        Share of the measured inside of the 90 % interval; NaN where there was none, [-]
    width : float
        Median of high over low end of the interval, [-]
    """

    count: int
    median: float
    mean: float
    p90: float
    bias: float
    coverage: float
    width: float


def score(predicted: np.ndarray, inside: np.ndarray | None = None, width: np.ndarray | None = None) -> Score:
    """Summarise errors.

    Parameters
    ----------
    predicted : (n,) array
        Logarithm of predicted over measured, [-]
    inside : (n,) array of bool, optional
        Whether the measured lies in the interval.
    width : (n,) array, optional
        Logarithm of high over low end, [-]

    Returns
    -------
    Score
        The summary; NaN of nothing.

    Examples
    --------
    >>> found = score(np.log([1.1, 0.9, 1.0]))
    >>> round(found.median, 3), round(found.bias, 3)
    (0.1, 0.0)
    """
    if not len(predicted):
        nan = float("nan")
        return Score(0, nan, nan, nan, nan, nan, nan)
    error = np.expm1(predicted)
    size = np.abs(error)
    return Score(
        count=len(size),
        median=float(np.median(size)),
        mean=float(size.mean()),
        p90=float(np.quantile(size, 0.9)),
        bias=float(np.median(error)),
        coverage=float(np.mean(inside)) if inside is not None else float("nan"),
        width=float(np.exp(np.median(width))) if width is not None else float("nan"),
    )


@dataclass(frozen=True)
class Table:
    """Observations with their errors and what they are grouped by.

    Attributes
    ----------
    questions : tuple of Question
        The runs.
    run : (m,) array of int
        Run of each observation.
    figure : (m,) array of str
        One of `GROUPS`.
    measured : (m,) array
        What was measured, in the units of its table.
    predicted : dict of str to (m,) array
        Way of leaving out → logarithm of predicted over measured, [-]
    inside : dict of str to (m,) array of bool
        Way of leaving out → whether the measured lies in an interval made from other folds.
    width : dict of str to (m,) array
        Way of leaving out → logarithm of high over low end, [-]
    site : (m,) array
        The same as `predicted` after a site's update; NaN where that was not tried, [-]
    knowledge : dict of str to (m,) array of str
        Way of leaving out → what was known of the run; empty where nothing could be predicted.
    group : (m,) array of str
        Engine, part, model shape and format, as `glmplan.readers.runs.holdout.group_key` names them.
    groups : dict of str to (m,) array of str
        One of `DIMENSIONS` → the group of each observation.
    conditions : dict of str to (m,) array of bool
        What is known to disturb a run → whether it holds.
    """

    questions: tuple[Question, ...]
    run: np.ndarray
    figure: np.ndarray
    measured: np.ndarray
    predicted: dict[str, np.ndarray]
    inside: dict[str, np.ndarray]
    width: dict[str, np.ndarray]
    site: np.ndarray
    knowledge: dict[str, np.ndarray]
    group: np.ndarray
    groups: dict[str, np.ndarray]
    conditions: dict[str, np.ndarray]

    def score_of(self, mode: str, rows: np.ndarray) -> Score:
        """Summarise some observations.

        Parameters
        ----------
        mode : str
            Way of leaving out.
        rows : (m,) array of bool
            Which ones.

        Returns
        -------
        Score
            The summary; what could not be predicted is not counted.
        """
        rows = rows & ~np.isnan(self.predicted[mode])
        return score(self.predicted[mode][rows], self.inside[mode][rows], self.width[mode][rows])

    def by_group(self, mode: str, rows: np.ndarray) -> tuple[GroupBias, ...]:
        """Bias and coverage of each group among some observations.

        Parameters
        ----------
        mode : str
            Way of leaving out.
        rows : (m,) array of bool
            Which ones.

        Returns
        -------
        tuple of GroupBias
            The least covered first.
        """
        return group_biases(self.predicted[mode][rows], self.inside[mode][rows], self.group[rows])


def table_of(left_out: LeftOut, runs: Iterable[Run]) -> Table:
    """Join left-out errors with the runs they belong to.

    Parameters
    ----------
    left_out : LeftOut
        The errors.
    runs : iterable of Run
        The runs; errors of runs and figures that are not among them are dropped.

    Returns
    -------
    Table
        The observations.
    """
    wanted = set(left_out.run)
    questions: list[Question] = []
    place: dict[str, int] = {}
    for run in runs:
        if run.id in wanted and run.id not in place:
            try:
                questions.append(question_of(run))
            except GlmplanError:
                continue
            place[run.id] = len(questions) - 1
    # a figure that is set aside since the errors were made is no observation any more
    pairs = enumerate(zip(left_out.run, left_out.figure, strict=True))
    rows = np.array(
        [n for n, (name, figure) in pairs if name in place and figure in questions[place[name]].run.observed], dtype=int
    )
    where = np.array([place[left_out.run[n]] for n in rows], dtype=int)
    column = left_out.figure[rows]
    errors = [type(one)(one.mode, one.residual[rows], one.knowledge[rows]) for one in left_out.errors]
    rate = np.array([COMPARED[name].rate for name in column])
    sign = np.where(rate, 1.0, -1.0)  # residuals are of seconds: a rate is their inverse
    scored = scored_of(questions, where, column)
    predicted, inside, width = {}, {}, {}
    for one, (low, high) in zip(errors, nested_intervals(errors, scored, questions, where), strict=True):
        predicted[one.mode] = sign * one.residual
        inside[one.mode] = (one.residual >= low) & (one.residual <= high)
        width[one.mode] = high - low
    conditions = conditions_of(questions)
    return Table(
        questions=tuple(questions),
        run=where,
        figure=np.array([COMPARED[name].group for name in column]),
        measured=np.array([questions[n].run.observed[name] for n, name in zip(where, column, strict=True)]),
        predicted=predicted,
        inside=inside,
        width=width,
        site=sign * left_out.site[rows],
        knowledge={one.mode: one.knowledge for one in errors},
        group=group_names(questions)[where] if questions else np.array([], dtype=str),
        groups={name: values[where] for name, values in _groups(questions).items()},
        conditions={name: values[where] for name, values in conditions.items()},
    )


def _groups(questions: Sequence[Question]) -> dict[str, np.ndarray]:
    return {
        "accelerator": np.array([one.deployment.accelerator.name for one in questions]),
        "engine": np.array([one.deployment.engine for one in questions]),
        "model": np.array([one.deployment.model.name for one in questions]),
        "concurrency": np.array([band_of(one.load.concurrency) for one in questions]),
        "precision": np.array([one.deployment.weights for one in questions]),
    }
