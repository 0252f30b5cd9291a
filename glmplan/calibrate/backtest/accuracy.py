"""The accuracy of glmplan on runs it has not seen: by figure, way of leaving out and group, beside its goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.backtest.beyond import LaterScore, later_scores, refused_scores, signed
from glmplan.calibrate.backtest.by_group import GroupBias, GroupsScore, groups_score
from glmplan.calibrate.backtest.reasons import reasons_for
from glmplan.calibrate.backtest.scores import DIMENSIONS, GROUPS, Score, Table, score, table_of
from glmplan.calibrate.step.beyond import LATER, Beyond
from glmplan.calibrate.step.covariance import Constants
from glmplan.calibrate.step.crossvalidate import MODES
from glmplan.calibrate.step.left_out import LeftOut
from glmplan.calibrate.step.observations import asked_of
from glmplan.calibrate.step.physical_limits import reasons_impossible
from glmplan.errors import GlmplanError
from glmplan.prediction.effects import KNOWLEDGE
from glmplan.prediction.from_row import memory_of, question_of
from glmplan.prediction.usable_rows import why_unknown
from glmplan.readers.runs.ledger import load_measurements, repeats
from glmplan.readers.runs.record import Run

__all__ = ["GOALS", "Accuracy", "Goal", "GroupScore", "accuracy", "memory_errors"]

#: observations from which a group counts as large [-]
LARGE = 150
#: fewest observations of a group that is shown [-]
_SHOWN = 10
#: protocols of the sweeps that other planners are scored on
_SWEEPS = ("inferencex", "vendor-sweep")
#: goal of the left-out errors: name → (way of leaving out, figure, median, mean and 90th percentile on sweeps, and on
#: all rows) [-]
GOALS: dict[str, tuple[str, str, tuple[float, float, float], tuple[float, float, float]]] = {
    "TPOT, random rows": ("random", "TPOT", (0.03, 0.06, 0.12), (0.04, 0.08, 0.18)),
    "TPOT, groups never seen": ("group", "TPOT", (0.10, 0.15, 0.30), (0.10, 0.15, 0.30)),
    "TTFT, random rows": ("random", "TTFT", (0.08, 0.16, 0.36), (0.08, 0.16, 0.36)),
    "TTFT, groups never seen": ("group", "TTFT", (0.18, 0.28, 0.58), (0.18, 0.28, 0.58)),
    "RTX PRO 6000 decode, model never seen": ("model", "", (0.10, 0.15, 0.30), (0.10, 0.15, 0.30)),
}
#: goals of groups, each once: median and 90th percentile of their bias, share of groups off by more than 30 % [-]
_EACH_ONCE = (0.10, 0.30, 0.10)
#: goal of decoding on that part by builds later than all fitted, and after a site measured two points of a sweep [-]
_LATER, _SITE = (0.15, 0.20, 0.40), (0.025, 0.05, 0.10)
#: least and most coverage [-]
_COVERED = (0.87, 0.93)
#: fewest groups of a class of knowledge whose coverage says something [-]
_SEVERAL = 15


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Errors of one group.

    Attributes
    ----------
    mode, figure, dimension, group : str
        Way of leaving out, figure, what is grouped by, and the group.
    runs : int
        Runs of the group, [-]
    score : Score
        Its errors.
    reasons : tuple of str
        Why it is bad, as far as known.
    """

    mode: str
    figure: str
    dimension: str
    group: str
    runs: int
    score: Score
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal beside what was reached.

    Attributes
    ----------
    name : str
        What is asked for.
    asked : tuple of float
        Median, mean and 90th percentile; or least and most for a share, [-]
    reached : tuple of float
        The same as measured, [-]
    met : bool
        Whether it is met.
    """

    name: str
    asked: tuple[float, ...]
    reached: tuple[float, ...]
    met: bool


@dataclass(frozen=True)
class Accuracy:
    """The whole report.

    Attributes
    ----------
    table : Table
        Every observation with its errors.
    overall : dict of str to dict of str to Score
        Way of leaving out → figure → errors.
    groups : tuple of GroupScore
        Worst first.
    goals : tuple of Goal
        Goals beside what was reached.
    memory : dict of str to Score
        KV pool and weights: predicted against measured.
    site : dict of str to Score
        TPOT and TTFT of sweeps of which a site measured two points.
    unused : dict of str to int
        Why rows are not scored → how many, [-]
    impossible : dict of str to str
        Row → why its figures cannot be.
    by_group : dict of str to tuple of GroupBias
        Figure → groups left out whole, the least covered first.
    classes : dict of str to GroupsScore
        Class of knowledge → groups left out whole of which so much was known, decoding and prompts together.
    later : tuple of LaterScore
        Runs measured after all that a fit had seen.
    refused : tuple of (str, str, Score)
        Runs that no fit takes: why, figure, and how far off the shipped fit is on them.
    constants : tuple of Constants
        Constants of the engines with their covariance.
    """

    table: Table
    overall: dict[str, dict[str, Score]]
    groups: tuple[GroupScore, ...]
    goals: tuple[Goal, ...]
    memory: dict[str, Score]
    site: dict[str, Score]
    unused: dict[str, int]
    impossible: dict[str, str]
    by_group: dict[str, tuple[GroupBias, ...]]
    classes: dict[str, GroupsScore]
    later: tuple[LaterScore, ...] = ()
    refused: tuple[tuple[str, str, Score], ...] = ()
    constants: tuple[Constants, ...] = ()


def accuracy(
    left_out: LeftOut,
    runs: Iterable[Run] | None = None,
    *,
    constants: tuple[Constants, ...] = (),
    beyond: Sequence[Beyond] = (),
) -> Accuracy:
    """Score left-out predictions.

    Parameters
    ----------
    left_out : LeftOut
        Errors of cross-validation.
    runs : iterable of Run, optional
        The runs they belong to; those that ship by default.
    constants : tuple of Constants, optional
        Constants of the engines, to be shown beside the errors.
    beyond : sequence of Beyond, optional
        Errors on later runs and on refused ones.

    Returns
    -------
    Accuracy
        The report.
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
    known = {name: table.by_group("group", table.knowledge["group"] == name) for name in KNOWLEDGE}
    classes = {name: groups_score(one) for name, one in known.items() if one}
    later = later_scores(beyond, rows)
    goals = (*_goals(table, site), *_group_goals(by_group, classes), *_later_goals(beyond, rows))
    return Accuracy(
        table=table, overall=overall, groups=_groups(table), goals=goals, memory=memory_errors(rows), site=site,
        unused=unused, impossible=impossible, by_group=by_group, classes=classes, later=later,
        refused=refused_scores(beyond), constants=constants,
    )  # fmt: skip


def _impossible(runs: list[Run], left_out: LeftOut) -> dict[str, str]:
    """Rows that are answered, but whose figures the data sheet of the part forbids."""
    used = set(left_out.run)
    questions, _ = asked_of(runs)
    pairs = zip(questions, reasons_impossible(questions), strict=True)
    return {question.run.id: reason for question, reason in pairs if reason and question.run.id not in used}


def _unused(runs: list[Run], left_out: LeftOut, impossible: dict[str, str]) -> dict[str, int]:
    used, again = set(left_out.run), repeats(runs)
    found: Counter[str] = Counter()
    for run in runs:
        if run.id in used:
            continue
        if run.id in again:
            found["repeats another row"] += 1
        elif run.unusable:
            found[run.unusable.partition(":")[0].partition(";")[0]] += 1
        elif run.error:
            found["has a cell that cannot be read"] += 1
        elif not run.observed:
            found["has no figure"] += 1
        elif run.id in impossible:
            found["faster than the part's bandwidth and matrix rate allow, or in a table of which a third is"] += 1
        elif reason := _unknown(run):
            found[reason] += 1
        else:
            found["cannot be answered, or has no figure that is predicted"] += 1
    return dict(found.most_common())


def _unknown(run: Run) -> str:
    try:
        return why_unknown(question_of(run))
    except GlmplanError:
        return ""


def _groups(table: Table) -> tuple[GroupScore, ...]:
    found = []
    names = np.array([question.run.id for question in table.questions])[table.run]
    for mode in MODES:
        error = np.abs(table.predicted[mode])
        for dimension in DIMENSIONS:
            for figure in GROUPS:
                of_figure = table.figure == figure
                for group in np.unique(table.groups[dimension][of_figure]):
                    mine = of_figure & (table.groups[dimension] == group)
                    mine &= ~np.isnan(error)
                    if mine.sum() < _SHOWN:
                        continue
                    runs = len(np.unique(table.run[mine]))
                    reasons = reasons_for(mine, table.conditions, error, names)
                    one = table.score_of(mode, mine)
                    found.append(GroupScore(mode, figure, dimension, str(group), runs, one, tuple(reasons)))
    return tuple(sorted(found, key=lambda one: -one.score.median))


def _goals(table: Table, site: dict[str, Score]) -> tuple[Goal, ...]:
    protocol = np.array([question.run.protocol for question in table.questions])[table.run]
    sweeps = np.isin(protocol, _SWEEPS)
    pro = np.char.startswith(table.groups["accelerator"], "rtx-pro-6000")
    phase = np.array([question.load.phase for question in table.questions])[table.run]
    found = []
    for name, (mode, figure, of_sweeps, of_all) in GOALS.items():
        everything = (table.figure == figure) if figure else pro & (phase == "decode") & (table.figure != "TTFT")
        for words, mine, asked in (("sweeps", everything & sweeps, of_sweeps), ("all rows", everything, of_all)):
            if (mine & ~np.isnan(table.predicted[mode])).any():
                one = table.score_of(mode, mine)
                title = f"{name} ({words}, {one.count})" if figure else f"{name} ({one.count})"
                found.append(_goal(title, asked, one))
    if "TPOT" in site:
        one = site["TPOT"]
        found.append(_goal(f"TPOT of a sweep after two of its points were measured ({one.count})", _SITE, one))
    for mode in MODES:
        there = ~np.isnan(table.predicted[mode])
        if not there.any():
            continue
        inside = table.inside[mode]
        share = groups_score(table.by_group(mode, there)).coverage
        met = _COVERED[0] <= share <= _COVERED[1]
        found.append(Goal(f"coverage of the 90 % interval over groups, {mode}", _COVERED, (share,), met))
        worst, least = "", 1.0
        for dimension in DIMENSIONS:
            for group in np.unique(table.groups[dimension]):
                mine = there & (table.groups[dimension] == group)
                if mine.sum() >= LARGE and inside[mine].mean() < least:
                    worst, least = f"{dimension} {group}", float(inside[mine].mean())
        if worst:
            found.append(Goal(f"least coverage of a large group, {mode}: {worst}", (0.80, 1.0), (least,), least >= 0.8))
    return tuple(found)


def _goal(name: str, asked: tuple[float, float, float], one: Score) -> Goal:
    reached = (one.median, one.mean, one.p90)
    return Goal(name, asked, reached, all(is_ <= goal for is_, goal in zip(reached, asked, strict=True)))


def _group_goals(by_group: dict[str, tuple[GroupBias, ...]], classes: dict[str, GroupsScore]) -> list[Goal]:
    """Goals in which each group has one vote."""
    found = []
    for figure in ("TPOT", "TTFT"):
        if by_group.get(figure):
            one = groups_score(by_group[figure])
            reached = (one.median, one.p90, one.far)
            met = all(is_ <= goal for is_, goal in zip(reached, _EACH_ONCE, strict=True))
            title = f"{figure}, each group once: median, p90, beyond 30 % ({one.groups})"
            found.append(Goal(title, _EACH_ONCE, reached, met))
    for name, one in classes.items():
        if one.groups >= _SEVERAL:
            met = _COVERED[0] <= one.coverage <= _COVERED[1]
            found.append(Goal(f"coverage over groups, knowledge {name} ({one.groups} groups)", _COVERED,
                              (one.coverage,), met))  # fmt: skip
    return found


def _later_goals(beyond: Sequence[Beyond], rows: Iterable[Run]) -> list[Goal]:
    """The goal of decoding on RTX PRO 6000 by builds later than all fitted."""
    pro = {run.id for run in rows if run.accelerator.startswith("rtx-pro-6000") and run.phase == "decode"}
    decoding = [row for row in beyond if row.way == LATER and row.run in pro and not row.figure.startswith("ttft")]
    one = score(np.array([signed(row) for row in decoding]))
    return (
        [_goal(f"RTX PRO 6000 decode of builds later than all fitted ({one.count})", _LATER, one)] if decoding else []
    )


def memory_errors(runs: Iterable[Run]) -> dict[str, Score]:
    """Score computed memory against runs that report it; these figures are in no fit of the step time.

    Parameters
    ----------
    runs : iterable of Run
        The runs.

    Returns
    -------
    dict of str to Score
        ``KV pool`` and ``weights``, where there are any.
    """
    pools: list[tuple[float, bool, float]] = []
    weights: list[float] = []
    for run in runs:
        pool, gib = run.observed.get("kv_pool_tokens"), run.observed.get("weights_gib_per_accelerator")
        if run.unusable or not (pool or gib):
            continue
        try:
            found = memory_of(question_of(run))
        except GlmplanError:
            continue
        if found is None:
            continue
        if gib:
            weights.append(float(np.log(found.weights_gib / gib)))
        if pool and found.pool_tokens > 0:
            width = float(np.log(max(found.pool_high, 1.0) / max(found.pool_low, 1.0)))
            pools.append((float(np.log(found.pool_tokens / pool)), found.pool_low <= pool <= found.pool_high, width))
    scores = {}
    if pools:
        ratio, inside, spread = (np.array(column) for column in zip(*pools, strict=True))
        scores["KV pool"] = score(ratio, inside.astype(bool), spread)
    if weights:
        scores["weights"] = score(np.array(weights))
    return scores
