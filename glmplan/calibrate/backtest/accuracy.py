"""Accuracy on held-out runs, beside its goals.

Errors are grouped by metric, way of leaving out and group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.backtest.reliability import Reliability
from glmplan.calibrate.backtest.scores import (
    DIMENSIONS,
    FITTED_GROUPS,
    GROUPS,
    GroupBias,
    GroupsScore,
    LaterScore,
    Score,
    Table,
    groups_score,
    later_scores,
    reasons_for,
    refused_scores,
    score,
    signed,
    table_of,
)
from glmplan.calibrate.backtest.sharpness import Sharpness
from glmplan.calibrate.step.crossvalidate import LATER, MODES, Beyond
from glmplan.calibrate.step.observations import asked_of, reasons_impossible
from glmplan.calibrate.step.write import Constants, LeftOut
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import FITTED
from glmplan.io.runs.ledger import load_measurements, repeats
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import KNOWLEDGE
from glmplan.prediction.from_row import memory_of, question_of, why_unknown

__all__ = [
    "GOALS",
    "Accuracy",
    "Goal",
    "GroupScore",
    "accuracy",
    "memory_errors",
]


#: observations of a large group [-]
LARGE = 150
#: observations of a shown group, at least [-]
_SHOWN = 10
#: protocols of the sweeps on which other planners were scored
_SWEEPS = ("inferencex", "vendor-sweep")
#: goals of held-out errors: name → way of leaving out, metric, (median, mean, p90) on sweeps and on all rows [-]
GOALS: dict[str, tuple[str, str, tuple[float, float, float], tuple[float, float, float]]] = {
    "TPOT, random rows": ("random", "TPOT", (0.03, 0.06, 0.12), (0.04, 0.08, 0.18)),
    "TPOT, groups held out": ("group", "TPOT", (0.10, 0.15, 0.30), (0.10, 0.15, 0.30)),
    "TTFT, random rows": ("random", "TTFT", (0.08, 0.16, 0.36), (0.08, 0.16, 0.36)),
    "TTFT, groups held out": ("group", "TTFT", (0.18, 0.28, 0.58), (0.18, 0.28, 0.58)),
    "RTX PRO 6000 decode, model held out": ("model", "", (0.10, 0.15, 0.30), (0.10, 0.15, 0.30)),
}
#: goals with one vote per group: median and p90 of the bias, share above 30 % [-]
_EACH_ONCE = (0.10, 0.30, 0.10)
#: goals of decoding on later builds, and after a site measured two points of a sweep [-]
_LATER, _SITE = (0.15, 0.20, 0.40), (0.025, 0.05, 0.10)
#: bounds of the coverage [-]
_COVERED = (0.87, 0.93)
#: groups of an evidence level for a meaningful coverage, at least [-]
_SEVERAL = 15


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Errors of one group."""

    mode: str  # way of leaving out
    figure: str
    dimension: str  # grouping feature
    group: str
    runs: int
    score: Score
    reasons: tuple[str, ...]  # likely causes


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and the reached value: median, mean, p90; or bounds of a share."""

    name: str
    asked: tuple[float, ...]
    reached: tuple[float, ...]
    met: bool


@dataclass(frozen=True)
class Accuracy:
    """The whole report."""

    table: Table
    overall: dict[str, dict[str, Score]]  # way of leaving out → metric → errors
    groups: tuple[GroupScore, ...]  # worst first
    goals: tuple[Goal, ...]
    memory: dict[str, Score]  # KV pool and weights
    site: dict[str, Score]  # TPOT and TTFT after a site measured two points of a sweep
    unused: dict[str, int]  # reason → rows that are not scored
    impossible: dict[str, str]  # row → reason
    by_group: dict[str, tuple[GroupBias, ...]]  # metric → held-out groups, worst coverage first
    classes: dict[str, GroupsScore]  # evidence level → held-out groups, decode and prefill together
    later: tuple[LaterScore, ...] = ()  # runs after the last training day
    refused: tuple[tuple[str, str, Score], ...] = ()  # reason, metric and errors of runs that no fit uses
    constants: tuple[Constants, ...] = ()  # of the engines, with covariance
    sharpness: tuple[Sharpness, ...] = ()  # scores of whole distributions
    reliability: tuple[Reliability, ...] = ()  # stated probabilities against frequencies


def accuracy(
    left_out: LeftOut,
    runs: Iterable[Run] | None = None,
    *,
    constants: tuple[Constants, ...] = (),
    beyond: Sequence[Beyond] = (),
) -> Accuracy:
    """Return the report on held-out predictions.

    `beyond` are errors on later and refused runs; `constants` are shown with the errors.
    """
    rows = list(load_measurements() if runs is None else runs)
    table = table_of(left_out, rows)
    overall: dict[str, dict[str, Score]] = {mode: {} for mode in MODES}
    for mode in MODES:
        for figure in GROUPS:
            mine = (table.figure == figure) & ~np.isnan(table.predicted[mode])
            if mine.any():
                overall[mode][figure] = table.score_of(mode, mine)
    site = {}
    for figure in ("TPOT", "TTFT"):
        mine = (table.figure == figure) & ~np.isnan(table.site)
        if mine.any():
            site[figure] = score(table.site[mine])
    impossible = _impossible(rows, left_out)
    unused = _unused(rows, left_out, impossible)
    by_group = {figure: table.by_group("group", table.figure == figure) for figure in GROUPS}
    by_level = {name: table.by_group("group", (table.knowledge["group"] == name) & table.fitted) for name in KNOWLEDGE}
    classes = {name: groups_score(one) for name, one in by_level.items() if one}
    later = later_scores(beyond, rows)
    goals = (*_goals(table, site), *_group_goals(by_group, classes), *_later_goals(beyond, rows))
    return Accuracy(
        table=table, overall=overall, groups=_groups(table), goals=goals, memory=memory_errors(rows), site=site,
        unused=unused, impossible=impossible, by_group=by_group, classes=classes, later=later,
        refused=refused_scores(beyond), constants=constants, sharpness=table.sharpness(),
        reliability=table.reliability(),
    )  # fmt: skip


def _impossible(runs: list[Run], left_out: LeftOut) -> dict[str, str]:
    """Return rows whose metrics exceed the accelerator's data sheet."""
    used = set(left_out.run)
    cases, _ = asked_of(runs)
    pairs = zip(cases, reasons_impossible(cases), strict=True)
    return {case.run.id: reason for case, reason in pairs if reason and case.run.id not in used}


def _unused(runs: list[Run], left_out: LeftOut, impossible: dict[str, str]) -> dict[str, int]:
    used, again = set(left_out.run), repeats(runs)
    counts: Counter[str] = Counter()
    for run in runs:
        if run.id in used:
            continue
        if run.id in again:
            counts["repeats another row"] += 1
        elif run.unusable:
            counts[run.unusable.partition(":")[0].partition(";")[0]] += 1
        elif run.error:
            counts["has a cell that cannot be read"] += 1
        elif not run.observed:
            counts["has no figure"] += 1
        elif run.id in impossible:
            counts["faster than the part's bandwidth and matrix rate allow, or in a table of which a third is"] += 1
        elif reason := _unknown(run):
            counts[reason] += 1
        else:
            counts["cannot be answered, or has no figure that is predicted"] += 1
    return dict(counts.most_common())


def _unknown(run: Run) -> str:
    try:
        return why_unknown(question_of(run))
    except GlmplanError:
        return ""


def _groups(table: Table) -> tuple[GroupScore, ...]:
    scores = []
    names = np.array([case.run.id for case in table.cases])[table.run]
    for mode in MODES:
        error = np.abs(table.predicted[mode])
        for dimension in DIMENSIONS:
            for figure in FITTED_GROUPS:
                of_figure = table.figure == figure
                for group in np.unique(table.groups[dimension][of_figure]):
                    mine = of_figure & (table.groups[dimension] == group)
                    mine &= ~np.isnan(error)
                    if mine.sum() < _SHOWN:
                        continue
                    runs = len(np.unique(table.run[mine]))
                    reasons = reasons_for(mine, table.conditions, error, names)
                    one = table.score_of(mode, mine)
                    scores.append(GroupScore(mode, figure, dimension, str(group), runs, one, tuple(reasons)))
    return tuple(sorted(scores, key=lambda one: -one.score.median))


def _goals(table: Table, site: dict[str, Score]) -> tuple[Goal, ...]:
    protocol = np.array([case.run.protocol for case in table.cases])[table.run]
    sweeps = np.isin(protocol, _SWEEPS)
    pro = np.char.startswith(table.groups["accelerator"], "rtx-pro-6000")
    phase = np.array([case.load.phase for case in table.cases])[table.run]
    goals = []
    for name, (mode, figure, of_sweeps, of_all) in GOALS.items():
        everything = (
            (table.figure == figure) if figure else pro & (phase == "decode") & (table.figure != "TTFT") & table.fitted
        )
        for words, mine, asked in (("sweeps", everything & sweeps, of_sweeps), ("all rows", everything, of_all)):
            if (mine & ~np.isnan(table.predicted[mode])).any():
                one = table.score_of(mode, mine)
                title = f"{name} ({words}, {one.count})" if figure else f"{name} ({one.count})"
                goals.append(_goal(title, asked, one))
    if "TPOT" in site:
        one = site["TPOT"]
        goals.append(_goal(f"TPOT of a sweep after site calibration with two points ({one.count})", _SITE, one))
    for mode in MODES:
        there = ~np.isnan(table.predicted[mode]) & table.fitted
        if not there.any():
            continue
        inside = table.inside[mode]
        share = groups_score(table.by_group(mode, there)).coverage
        met = _COVERED[0] <= share <= _COVERED[1]
        goals.append(Goal(f"coverage of the 90 % interval over groups, {mode}", _COVERED, (share,), met))
        worst, least = "", 1.0
        for dimension in DIMENSIONS:
            for group in np.unique(table.groups[dimension]):
                mine = there & (table.groups[dimension] == group)
                if mine.sum() >= LARGE and inside[mine].mean() < least:
                    worst, least = f"{dimension} {group}", float(inside[mine].mean())
        if worst:
            goals.append(Goal(f"least coverage of a large group, {mode}: {worst}", (0.80, 1.0), (least,), least >= 0.8))
    return tuple(goals)


def _goal(name: str, asked: tuple[float, float, float], one: Score) -> Goal:
    reached = (one.median, one.mean, one.p90)
    return Goal(name, asked, reached, all(is_ <= goal for is_, goal in zip(reached, asked, strict=True)))


def _group_goals(by_group: dict[str, tuple[GroupBias, ...]], classes: dict[str, GroupsScore]) -> list[Goal]:
    """Return the goals with one vote per group."""
    goals = []
    for figure in ("TPOT", "TTFT"):
        if by_group.get(figure):
            one = groups_score(by_group[figure])
            reached = (one.median, one.p90, one.far)
            met = all(is_ <= goal for is_, goal in zip(reached, _EACH_ONCE, strict=True))
            title = f"{figure}, one vote per group: median, p90, above 30 % ({one.groups})"
            goals.append(Goal(title, _EACH_ONCE, reached, met))
    for name, one in classes.items():
        if one.groups >= _SEVERAL:
            met = _COVERED[0] <= one.coverage <= _COVERED[1]
            goals.append(Goal(f"coverage over groups, evidence {name} ({one.groups} groups)", _COVERED,
                              (one.coverage,), met))  # fmt: skip
    return goals


def _later_goals(beyond: Sequence[Beyond], rows: Iterable[Run]) -> list[Goal]:
    """Return the goal of decoding on RTX PRO 6000 by builds after the fit."""
    pro = {run.id for run in rows if run.accelerator.startswith("rtx-pro-6000") and run.phase == "decode"}
    decoding = [row for row in beyond if row.way == LATER and row.run in pro and _decodes(row.figure)]
    one = score(np.array([signed(row) for row in decoding]))
    return [_goal(f"RTX PRO 6000 decode by builds after the fit ({one.count})", _LATER, one)] if decoding else []


def _decodes(figure: str) -> bool:
    return figure in FITTED and not figure.startswith("ttft")


def memory_errors(runs: Iterable[Run]) -> dict[str, Score]:
    """Return errors of ``KV pool`` and ``weights`` on runs that report them.

    These values are in no fit of the step time.
    """
    pools: list[tuple[float, bool, float]] = []
    weights: list[float] = []
    for run in runs:
        pool, gib = run.observed.get("kv_pool_tokens"), run.observed.get("weights_gib_per_accelerator")
        if run.unusable or not (pool or gib):
            continue
        try:
            memory = memory_of(question_of(run))
        except GlmplanError:
            continue
        if memory is None:
            continue
        if gib:
            weights.append(float(np.log(memory.weights_gib / gib)))
        if pool and memory.pool_tokens > 0:
            value, low, high = memory.printed
            width = float(np.log(max(high, 1.0) / max(low, 1.0)))
            pools.append((float(np.log(max(value, 1.0) / pool)), low <= pool <= high, width))
    scores = {}
    if pools:
        ratio, inside, spread = (np.array(column) for column in zip(*pools, strict=True))
        scores["KV pool"] = score(ratio, inside.astype(bool), spread)
    if weights:
        scores["weights"] = score(np.array(weights))
    return scores
