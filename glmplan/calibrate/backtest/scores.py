"""How far predictions of left-out runs are off: one number for each observation, and their summary by group."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.crossvalidate import LATER, REFUSED, Beyond, group_names
from glmplan.calibrate.step.intervals import nested_intervals, scored_of
from glmplan.calibrate.step.write import LeftOut
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import COMPARED
from glmplan.io.runs.ledger import day_of
from glmplan.io.runs.record import Run
from glmplan.prediction.evidence import band_of
from glmplan.prediction.from_row import Question, question_of
from glmplan.units import Ratio

__all__ = [
    "ALL",
    "CONDITIONS",
    "DIMENSIONS",
    "FAR",
    "GROUPS",
    "GroupBias",
    "GroupsScore",
    "LaterScore",
    "Score",
    "Table",
    "conditions_of",
    "group_biases",
    "groups_score",
    "later_scores",
    "reasons_for",
    "refused_scores",
    "score",
    "signed",
    "table_of",
]


# Errors with one vote for each group: a group of a thousand rows is one configuration that somebody measured.

#: a group that is off by more is badly predicted [-]
FAR = 0.30


@dataclass(frozen=True, slots=True)
class GroupBias:
    """How far off one group is.

    Attributes
    ----------
    group : str
        Engine, part, model shape and bits of the format.
    rows : int
        Its figures, [-]
    bias : float
        Median of predicted over measured, less one, [-]
    coverage : float
        Share of its figures inside of the 90 % interval; NaN where there was none, [-]
    """

    group: str
    rows: int
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True)
class GroupsScore:
    """Groups, each counted once.

    Attributes
    ----------
    groups, rows : int
        How many, [-]
    median, p75, p90 : float
        Quantiles of the absolute bias of a group, [-]
    far : float
        Share of groups off by more than `FAR`, [-]
    coverage : float
        Mean coverage of a group, [-]
    """

    groups: int
    rows: int
    median: float
    p75: float
    p90: float
    far: float
    coverage: float


def group_biases(predicted: np.ndarray, inside: np.ndarray, group: np.ndarray) -> tuple[GroupBias, ...]:
    """Bias and coverage of each group.

    - `predicted`: Logarithm of predicted over measured, NaN of what was not predicted.
    - Returns: The least covered first, among those alike the farthest off.

    Examples
    --------
    >>> logs, inside = np.log([1.2, 1.2, 0.9]), np.array([False, True, True])
    >>> [(one.group, round(one.bias, 2), one.coverage) for one in group_biases(logs, inside, np.array(["a", "a", "b"]))]
    [('a', 0.2, 0.5), ('b', -0.1, 1.0)]
    """
    found = []
    there = ~np.isnan(predicted)
    for name in np.unique(group[there]):
        mine = there & (group == name)
        bias = float(np.expm1(np.median(predicted[mine])))
        found.append(GroupBias(str(name), int(mine.sum()), bias, float(inside[mine].mean())))
    return tuple(sorted(found, key=lambda one: (one.coverage, -abs(one.bias))))


def groups_score(found: tuple[GroupBias, ...]) -> GroupsScore:
    """Summarise groups, each once.

    Examples
    --------
    >>> groups_score((GroupBias("a", 9, 0.4, 0.5), GroupBias("b", 1, -0.1, 1.0))).far
    0.5
    """
    if not found:
        nan = float("nan")
        return GroupsScore(0, 0, nan, nan, nan, nan, nan)
    size = np.abs([one.bias for one in found])
    median, p75, p90 = (float(np.quantile(size, share)) for share in (0.5, 0.75, 0.9))
    coverage = float(np.mean([one.coverage for one in found]))
    return GroupsScore(
        len(found), sum(one.rows for one in found), median, p75, p90, float((size > FAR).mean()), coverage
    )


# Why a group of predictions is bad, as far as it is known: conditions that its runs have more often than others.

#: condition → what it does, in words
CONDITIONS: dict[str, str] = {
    "mtp": "builds with and without MTP under one label (the source does not say which; steps differ 1.3-2 times)",
    "acceptance": "drafted, but the acceptance length is not stated",
    "pool": "the KV pool is full: waiting decides, and the pool is only estimated",
    "rack": "a rack of 72 accelerators listed as one group: prefill and decode run apart",
    "burst": "all prompts are sent at once: TTFT is the length of the queue",
    "protocol": "requests in flight or lengths are not stated",
    "cached": "prompts may come from a prefix cache: TTFT below what the prompt costs",
    "offload": "experts are computed on the host",
    "build": "the engine's version is not stated",
}
#: campaigns whose rows send everything at once
_BURSTS = ("gpustack", "burst")
#: a condition explains a group when so many of its runs have it, and so many times more of them than elsewhere [-]
_SHARE, _LIFT = 0.25, 1.5
#: groups of fewer runs say little [-]
_FEW = 30


def conditions_of(questions: Sequence[Question]) -> dict[str, np.ndarray]:
    """Conditions of runs that are known to disturb predictions."""
    rows = []
    for question in questions:
        run, d, load = question.run, question.deployment, question.load
        words = " ".join(question.assumed)
        rows.append({
            "mtp": question.run_both_ways,
            "acceptance": d.acceptance_deviation > 0.0,
            "pool": load.pool_tokens < load.concurrency * (load.input_tokens + load.output_tokens / 2.0),
            "rack": d.tp > 16,
            "burst": run.protocol in _BURSTS,
            "protocol": "in flight" in words or "input tokens" in words or "output tokens" in words,
            "cached": run.prefix_cached or run.shared_prompt or run.protocol == "sharegpt",
            "offload": run.offload,
            "build": run.engine_version is None,
        })  # fmt: skip
    return {name: np.array([row[name] for row in rows], dtype=bool) for name in CONDITIONS}


def reasons_for(rows: np.ndarray, conditions: dict[str, np.ndarray], error: np.ndarray, names: np.ndarray) -> list[str]:
    """What may explain the errors of a group.

    Returns: In words, the commonest condition first; the last is a single row that decides the mean.
    """
    found = []
    for name, holds in conditions.items():
        share = float(holds[rows].mean())
        if share >= _SHARE and share >= _LIFT * float(holds.mean()):
            found.append((share, f"{CONDITIONS[name]} ({100 * share:.0f} % of its rows)"))
    words = [text for _, text in sorted(found, reverse=True)]
    runs = len(np.unique(names[rows]))
    if runs < _FEW:
        words.append(f"only {runs} runs")
    mine = np.expm1(np.minimum(error[rows], 20.0))
    if len(mine) > 1 and mine.max() > 0.5 * mine.sum() and mine.max() > 3.0:
        words.append(f"one row, {names[rows][int(np.argmax(mine))]}, makes most of the mean")
    return words


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
        Engine, part, model shape and format, as `glmplan.io.runs.ledger.group_key` names them.
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

        Returns: The summary; what could not be predicted is not counted.
        """
        rows = rows & ~np.isnan(self.predicted[mode])
        return score(self.predicted[mode][rows], self.inside[mode][rows], self.width[mode][rows])

    def by_group(self, mode: str, rows: np.ndarray) -> tuple[GroupBias, ...]:
        """Bias and coverage of each group among some observations."""
        return group_biases(self.predicted[mode][rows], self.inside[mode][rows], self.group[rows])


def table_of(left_out: LeftOut, runs: Iterable[Run]) -> Table:
    """Join left-out errors with the runs they belong to.

    `runs`: The runs; errors of runs and figures that are not among them are dropped.
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


# Scores beyond cross-validation: runs measured after all that a fit had seen, by how long after, and refused runs.

#: months after the last day that the fit had seen: upper ends, [month]
_MONTHS = (1, 3, 6)
_BANDS = ("to 1 month", "2 to 3 months", "4 to 6 months", "more than 6 months")
#: all reasons together
ALL = "all"


@dataclass(frozen=True, slots=True)
class LaterScore:
    """Errors on runs so long after all that a fit had seen.

    Attributes
    ----------
    until : str
        Last day that the fit had seen.
    months : str
        How long after it the runs were measured.
    figure : str
        One of `glmplan.calibrate.backtest.scores.GROUPS`.
    score : Score
        Errors; their bias is the drift.
    """

    until: str
    months: str
    figure: str
    score: Score


def signed(one: Beyond) -> Ratio:
    """Logarithm of predicted over measured in the unit of the figure.

    Examples
    --------
    >>> signed(Beyond(LATER, "a", "tpot_mean_ms", 0.1, "pair", "2026-03-01"))
    -0.1
    """
    return one.error if COMPARED[one.figure].rate else -one.error


def _months(first: str, last: str) -> int:
    """Months from one day to a later one, [month]"""
    pairs = [[int(part) for part in day.split("-")[:2]] for day in (first, last)]
    return 12 * (pairs[1][0] - pairs[0][0]) + pairs[1][1] - pairs[0][1]


def later_scores(beyond: Sequence[Beyond], runs: Iterable[Run]) -> tuple[LaterScore, ...]:
    """Score later runs by the day that the fit ends and by how long after it they were measured."""
    day = {run.id: day_of(run) for run in runs}
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for one in beyond:
        if one.way == LATER and day.get(one.run):
            band = bisect_left(_MONTHS, _months(one.note, day[one.run]))
            found[one.note, COMPARED[one.figure].group, band].append(signed(one))
    order = sorted(found, key=lambda key: (key[0], GROUPS.index(key[1]), key[2]))
    return tuple(LaterScore(key[0], _BANDS[key[2]], key[1], score(np.array(found[key]))) for key in order)


def refused_scores(beyond: Sequence[Beyond]) -> tuple[tuple[str, str, Score], ...]:
    """Score runs that no fit takes, by why.

    Returns: Reason, figure and errors; all reasons together first, then the commonest.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in beyond:
        if one.way == REFUSED:
            for reason in (ALL, _why(one.note)):
                found[reason, COMPARED[one.figure].group].append(signed(one))
    size = Counter({reason: sum(len(found[key]) for key in found if key[0] == reason) for reason, _ in found})
    order = sorted(found, key=lambda key: (-size[key[0]], key[0] != ALL, key[0], GROUPS.index(key[1])))
    return tuple((*key, score(np.array(found[key]))) for key in order)


def _why(note: str) -> str:
    """A reason without what it says of one row."""
    if "faster than the" in note:
        return "faster than the part can be, or in a table of which a third is"
    return note.partition(":")[0].partition(";")[0]
