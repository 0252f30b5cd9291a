"""Errors of held-out predictions: one number for each observation.

Summaries are by group, lead time and refusal. Group scores give each group one vote: a thousand rows of a sweep are one
configuration.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.backtest.reliability import MULTIPLES, SLOS, Reliability, reliability_of
from glmplan.calibrate.backtest.sharpness import CLASSES, Sharpness, sharpness_of
from glmplan.calibrate.step.crossvalidate import LATER, REFUSED, Beyond, group_names
from glmplan.calibrate.step.intervals import nested_intervals, scored_of
from glmplan.calibrate.step.write import LeftOut
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import COMPARED, FIGURES
from glmplan.io.runs.ledger import day_of
from glmplan.io.runs.record import Run
from glmplan.prediction.evidence import KINDS, LIKE, band_of
from glmplan.prediction.from_row import RunCase, question_of
from glmplan.units import Ratio

__all__ = [
    "ALL",
    "CONDITIONS",
    "DIMENSIONS",
    "FAR",
    "FITTED_GROUPS",
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


#: fewest groups of an evidence level whose sharpness is reported [-]
_SEVERAL = 6
#: a group with a larger absolute bias counts as badly predicted [-]
FAR = 0.30


@dataclass(frozen=True, slots=True)
class GroupBias:
    """Error of one group."""

    group: str  # engine, accelerator, model shape, bits of the format
    rows: int  # observations
    bias: float  # median of predicted / measured - 1
    coverage: float  # share inside the 90 % interval; NaN without one


@dataclass(frozen=True, slots=True)
class GroupsScore:
    """Errors of groups, each with one vote."""

    groups: int
    rows: int
    median: float  # quantiles of the absolute bias
    p75: float
    p90: float
    far: float  # share of groups with a bias above FAR
    coverage: float  # mean over groups


def group_biases(predicted: np.ndarray, inside: np.ndarray, group: np.ndarray) -> tuple[GroupBias, ...]:
    """Return bias and coverage of each group, worst coverage first.

    `predicted` is log(predicted / measured), NaN if not predicted. Equal coverages are sorted by bias.

    Examples
    --------
    >>> logs, inside = np.log([1.2, 1.2, 0.9]), np.array([False, True, True])
    >>> [(one.group, round(one.bias, 2), one.coverage) for one in group_biases(logs, inside, np.array(["a", "a", "b"]))]
    [('a', 0.2, 0.5), ('b', -0.1, 1.0)]
    """
    biases = []
    there = ~np.isnan(predicted)
    for name in np.unique(group[there]):
        mine = there & (group == name)
        bias = float(np.expm1(np.median(predicted[mine])))
        biases.append(GroupBias(str(name), int(mine.sum()), bias, float(inside[mine].mean())))
    return tuple(sorted(biases, key=lambda one: (one.coverage, -abs(one.bias))))


def groups_score(found: tuple[GroupBias, ...]) -> GroupsScore:
    """Return the summary of groups, one vote each.

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


#: condition known to disturb predictions → its effect as text
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
#: campaigns that send all requests at once
_BURSTS = ("gpustack", "burst")
#: a condition explains a group if this share of its runs has it, and this many times more often than elsewhere [-]
_SHARE, _LIFT = 0.25, 1.5
#: smaller groups say little [-]
_FEW = 30


def conditions_of(cases: Sequence[RunCase]) -> dict[str, np.ndarray]:
    """Return the conditions of runs that are known to disturb predictions."""
    rows = []
    for case in cases:
        run, d, load = case.run, case.deployment, case.load
        assumptions = " ".join(case.assumed)
        rows.append({
            "mtp": case.run_both_ways,
            "acceptance": d.acceptance_deviation > 0.0,
            "pool": load.pool_tokens < load.concurrency * (load.input_tokens + load.output_tokens / 2.0),
            "rack": d.tp > 16,
            "burst": run.protocol in _BURSTS,
            "protocol": "in flight" in assumptions or "input tokens" in assumptions or "output tokens" in assumptions,
            "cached": run.prefix_cached or run.shared_prompt or run.protocol == "sharegpt",
            "offload": run.offload,
            "build": run.engine_version is None,
        })  # fmt: skip
    return {name: np.array([row[name] for row in rows], dtype=bool) for name in CONDITIONS}


def reasons_for(rows: np.ndarray, conditions: dict[str, np.ndarray], error: np.ndarray, names: np.ndarray) -> list[str]:
    """Return likely reasons for the errors of a group, the commonest first.

    The last one is a single row that dominates the mean.
    """
    conditions_met = []
    for name, holds in conditions.items():
        share = float(holds[rows].mean())
        if share >= _SHARE and share >= _LIFT * float(holds.mean()):
            conditions_met.append((share, f"{CONDITIONS[name]} ({100 * share:.0f} % of its rows)"))
    reasons = [text for _, text in sorted(conditions_met, reverse=True)]
    runs = len(np.unique(names[rows]))
    if runs < _FEW:
        reasons.append(f"only {runs} runs")
    mine = np.expm1(np.minimum(error[rows], 20.0))
    if len(mine) > 1 and mine.max() > 0.5 * mine.sum() and mine.max() > 3.0:
        reasons.append(f"one row, {names[rows][int(np.argmax(mine))]}, makes most of the mean")
    return reasons


#: metrics of the report, each from several columns
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(one.group for one in COMPARED.values()))
#: those that the step time is fitted to: goals and coverage count these alone
FITTED_GROUPS: tuple[str, ...] = tuple(dict.fromkeys(one.group for one in COMPARED.values() if one.fitted))
#: grouping features of the report
DIMENSIONS: tuple[str, ...] = ("accelerator", "engine", "model", "concurrency", "precision")


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a group of predictions."""

    count: int  # observations
    median: float  # of the absolute relative error, as mean and p90
    mean: float
    p90: float
    bias: float  # median of predicted / measured - 1
    coverage: float  # share inside the 90 % interval; NaN without one
    width: float  # median of upper over lower bound


def score(predicted: np.ndarray, inside: np.ndarray | None = None, width: np.ndarray | None = None) -> Score:
    """Return the summary of log(predicted / measured).

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
    """Observations with their errors and grouping features.

    Dictionaries of errors are keyed by the way of leaving out (`MODES`); arrays have one entry per observation.
    """

    cases: tuple[RunCase, ...]
    run: np.ndarray  # place in `cases`
    figure: np.ndarray  # one of GROUPS
    measured: np.ndarray  # in the unit of its column
    predicted: dict[str, np.ndarray]  # log(predicted / measured)
    inside: dict[str, np.ndarray]  # measured value inside an interval from other folds
    width: dict[str, np.ndarray]  # log(upper / lower bound)
    site: np.ndarray  # as `predicted`, after a site's update; NaN if not tried
    knowledge: dict[str, np.ndarray]  # evidence level; empty if not predicted
    group: np.ndarray  # see `glmplan.io.runs.ledger.group_key`
    groups: dict[str, np.ndarray]  # one of DIMENSIONS → group
    conditions: dict[str, np.ndarray]  # disturbing condition → present
    residual: dict[str, np.ndarray]  # log(measured / predicted time)
    ends: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]  # log interval from other folds, and its tail
    stated: np.ndarray  # all settings are stated
    kind: np.ndarray  # kind of interval: ``decode``, ``ttft``, ``prefill`` or a statistic of its own
    credit: np.ndarray  # vote of each observation before its group divides it

    @property
    def fitted(self) -> np.ndarray:
        """Return True for metrics that the step time is fitted to."""
        return np.isin(self.figure, FITTED_GROUPS)

    def score_of(self, mode: str, rows: np.ndarray) -> Score:
        """Return the summary of some observations, without unpredicted ones."""
        rows = rows & ~np.isnan(self.predicted[mode])
        return score(self.predicted[mode][rows], self.inside[mode][rows], self.width[mode][rows])

    def sharpness(self) -> tuple[Sharpness, ...]:
        """Return the scores of distributions by evidence and settings."""
        lines = []
        for kind in KINDS:
            for name, (mode, levels) in CLASSES.items():
                rows = (self.kind == kind) & np.isin(self.knowledge[mode], levels) & ~np.isnan(self.ends[mode][0])
                for stated in (True, False):
                    mine = rows & (self.stated == stated)
                    if len(np.unique(self.group[mine])) >= _SEVERAL:
                        low, high, tail = (array[mine] for array in self.ends[mode])
                        ends, residual = (low, high, tail), self.residual[mode][mine]
                        named = (name, kind, stated)
                        lines.append(sharpness_of(named, residual, ends, self.group[mine], self.credit[mine]))
            lines += self._sharpness_of_all(kind)
        for kind in LIKE:
            if (self.kind == kind).any():
                lines += self._sharpness_of_all(kind)
        return tuple(lines)

    def _every_way(self, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield ways of leaving out and the observations with an error."""
        for mode, residual in self.residual.items():
            yield mode, np.flatnonzero(rows & ~np.isnan(self.ends[mode][0]) & ~np.isnan(residual))

    def _sharpness_of_all(self, kind: str) -> list[Sharpness]:
        """Return the scores of one kind over all ways of leaving out.

        Each group has one vote in each way.
        """
        parts = []
        for mode, mine in self._every_way(self.kind == kind):
            parts.append((self.residual[mode][mine], *(array[mine] for array in self.ends[mode]),
                          np.char.add(self.group[mine], f"|{mode}"), self.credit[mine], self.stated[mine]))  # fmt: skip
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        residual, low, high, tail, group, credit, stated = columns
        lines = []
        for told in (True, False, None):
            mine = np.ones(len(stated), dtype=bool) if told is None else stated == told
            if mine.any():
                lines.append(sharpness_of(("all", kind, told), residual[mine], (low[mine], high[mine], tail[mine]),
                                          group[mine], credit[mine]))  # fmt: skip
        return lines

    def reliability(self) -> tuple[Reliability, ...]:
        """Return stated probabilities and frequencies of each metric."""
        asked = [(kind, self.kind == kind, np.tile(np.log(MULTIPLES), (len(self.kind), 1))) for kind in KINDS]
        for figure, limits in SLOS.items():
            # log(limit / measured); to the prediction it is farther by the error
            asked.append((f"{figure} SLO", self.figure == figure, np.log(limits) - np.log(self.measured)[:, None]))
        lines = []
        for name, rows, distance in asked:
            parts = []
            for mode, mine in self._every_way(rows):
                residual = self.residual[mode][mine]
                apart = distance[mine] + (residual[:, None] if name not in KINDS else 0.0)
                parts.append((residual, apart, *(array[mine] for array in self.ends[mode]), self.group[mine],
                              self.credit[mine]))  # fmt: skip
            residual, apart, low, high, tail, group, credit = (np.concatenate(one) for one in zip(*parts, strict=True))
            if len(np.unique(group)) >= _SEVERAL:
                lines.append(reliability_of(name, residual, apart, (low, high, tail), (group, credit)))
        return tuple(lines)

    def by_group(self, mode: str, rows: np.ndarray) -> tuple[GroupBias, ...]:
        """Return bias and coverage of each group among some observations."""
        return group_biases(self.predicted[mode][rows], self.inside[mode][rows], self.group[rows])


def table_of(left_out: LeftOut, runs: Iterable[Run]) -> Table:
    """Return held-out errors joined with their runs; others are dropped."""
    wanted = set(left_out.run)
    cases: list[RunCase] = []
    index: dict[str, int] = {}
    for run in runs:
        if run.id in wanted and run.id not in index:
            try:
                cases.append(question_of(run))
            except GlmplanError:
                continue
            index[run.id] = len(cases) - 1
    # a metric set aside after the errors were written is no observation
    pairs = enumerate(zip(left_out.run, left_out.figure, strict=True))
    rows = np.array(
        [n for n, (name, figure) in pairs if name in index and figure in cases[index[name]].run.observed], dtype=int
    )
    where = np.array([index[left_out.run[n]] for n in rows], dtype=int)
    column = left_out.figure[rows]
    errors = [type(one)(one.mode, one.residual[rows], one.knowledge[rows]) for one in left_out.errors]
    rate = np.array([COMPARED[name].rate for name in column])
    sign = np.where(rate, 1.0, -1.0)  # residuals are of seconds; a rate is their inverse
    scored = scored_of(cases, where, column)
    predicted, inside, width, ends = {}, {}, {}, {}
    for one, (low, high, tails) in zip(errors, nested_intervals(errors, scored, cases, where), strict=True):
        ends[one.mode] = (low, high, tails)
        predicted[one.mode] = sign * one.residual
        inside[one.mode] = (one.residual >= low) & (one.residual <= high)
        width[one.mode] = high - low
    conditions = conditions_of(cases)
    return Table(
        cases=tuple(cases),
        run=where,
        figure=np.array([COMPARED[name].group for name in column]),
        measured=np.array([cases[n].run.observed[name] for n, name in zip(where, column, strict=True)]),
        predicted=predicted,
        inside=inside,
        width=width,
        site=sign * left_out.site[rows],
        knowledge={one.mode: one.knowledge for one in errors},
        group=group_names(cases)[where] if cases else np.array([], dtype=str),
        groups={name: values[where] for name, values in _groups(cases).items()},
        conditions={name: values[where] for name, values in conditions.items()},
        residual={one.mode: one.residual for one in errors},
        ends=ends,
        stated=np.array([not case.deployment.assumed for case in cases], dtype=bool)[where],
        kind=np.array([FIGURES[name].interval for name in column]),
        credit=scored.credit,
    )


def _groups(cases: Sequence[RunCase]) -> dict[str, np.ndarray]:
    return {
        "accelerator": np.array([one.deployment.accelerator.name for one in cases]),
        "engine": np.array([one.deployment.engine for one in cases]),
        "model": np.array([one.deployment.model.name for one in cases]),
        "concurrency": np.array([band_of(one.load.concurrency) for one in cases]),
        "precision": np.array([one.deployment.weights for one in cases]),
    }


#: upper bounds of the lead times [month]
_MONTHS = (1, 3, 6)
_BANDS = ("to 1 month", "2 to 3 months", "4 to 6 months", "more than 6 months")
#: all reasons together
ALL = "all"


@dataclass(frozen=True, slots=True)
class LaterScore:
    """Errors on runs measured some months after the last training day."""

    until: str  # last training day
    months: str  # lead time
    figure: str  # one of GROUPS
    score: Score  # its bias is the drift


def signed(one: Beyond) -> Ratio:
    """Return log(predicted / measured) in the unit of the metric.

    Examples
    --------
    >>> signed(Beyond(LATER, "a", "tpot_mean_ms", 0.1, "pair", "2026-03-01"))
    -0.1
    """
    return one.error if COMPARED[one.figure].rate else -one.error


def _months(first: str, last: str) -> int:
    """Return the months between two days [month]"""
    pairs = [[int(part) for part in day.split("-")[:2]] for day in (first, last)]
    return 12 * (pairs[1][0] - pairs[0][0]) + pairs[1][1] - pairs[0][1]


def later_scores(beyond: Sequence[Beyond], runs: Iterable[Run]) -> tuple[LaterScore, ...]:
    """Return the errors of later runs by training end and lead time."""
    day = {run.id: day_of(run) for run in runs}
    errors: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for one in beyond:
        if one.way == LATER and day.get(one.run):
            band = bisect_left(_MONTHS, _months(one.note, day[one.run]))
            errors[one.note, COMPARED[one.figure].group, band].append(signed(one))
    order = sorted(errors, key=lambda key: (key[0], GROUPS.index(key[1]), key[2]))
    return tuple(LaterScore(key[0], _BANDS[key[2]], key[1], score(np.array(errors[key]))) for key in order)


def refused_scores(beyond: Sequence[Beyond]) -> tuple[tuple[str, str, Score], ...]:
    """Return reason, metric and errors of refused runs.

    All reasons together come first, then the commonest.
    """
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in beyond:
        if one.way == REFUSED:
            for reason in (ALL, _why(one.note)):
                errors[reason, COMPARED[one.figure].group].append(signed(one))
    size = Counter({reason: sum(len(errors[key]) for key in errors if key[0] == reason) for reason, _ in errors})
    order = sorted(errors, key=lambda key: (-size[key[0]], key[0] != ALL, key[0], GROUPS.index(key[1])))
    return tuple((*key, score(np.array(errors[key]))) for key in order)


def _why(note: str) -> str:
    """Return a reason without the details of its row."""
    if "faster than the" in note:
        return "faster than the part can be, or in a table of which a third is"
    return note.partition(":")[0].partition(";")[0]
