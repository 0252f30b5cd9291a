"""Accuracy on held-out runs by metric, way of leaving out and group, beside its goals; as page, text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.backtest.scores import (
    ALL,
    DIMENSIONS,
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
from glmplan.calibrate.backtest.sharpness import SHARPNESS, SHARPNESS_HEAD, Sharpness, sharpness_cells
from glmplan.calibrate.step.crossvalidate import LATER, MODES, Beyond
from glmplan.calibrate.step.observations import asked_of, reasons_impossible
from glmplan.calibrate.step.write import Constants, LeftOut
from glmplan.catalog.files import write_atomically
from glmplan.errors import GlmplanError
from glmplan.io.runs.ledger import load_measurements, repeats
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import COLUMNS, KNOWLEDGE
from glmplan.prediction.from_row import memory_of, question_of, why_unknown
from glmplan.units import QUANTILE_90

__all__ = [
    "GOALS",
    "Accuracy",
    "Goal",
    "GroupScore",
    "accuracy",
    "accuracy_csv",
    "accuracy_json",
    "accuracy_page",
    "accuracy_text",
    "memory_errors",
    "write_accuracy_page",
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
    by_level = {name: table.by_group("group", table.knowledge["group"] == name) for name in KNOWLEDGE}
    classes = {name: groups_score(one) for name, one in by_level.items() if one}
    later = later_scores(beyond, rows)
    goals = (*_goals(table, site), *_group_goals(by_group, classes), *_later_goals(beyond, rows))
    return Accuracy(
        table=table, overall=overall, groups=_groups(table), goals=goals, memory=memory_errors(rows), site=site,
        unused=unused, impossible=impossible, by_group=by_group, classes=classes, later=later,
        refused=refused_scores(beyond), constants=constants, sharpness=table.sharpness(),
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
                    scores.append(GroupScore(mode, figure, dimension, str(group), runs, one, tuple(reasons)))
    return tuple(sorted(scores, key=lambda one: -one.score.median))


def _goals(table: Table, site: dict[str, Score]) -> tuple[Goal, ...]:
    protocol = np.array([case.run.protocol for case in table.cases])[table.run]
    sweeps = np.isin(protocol, _SWEEPS)
    pro = np.char.startswith(table.groups["accelerator"], "rtx-pro-6000")
    phase = np.array([case.load.phase for case in table.cases])[table.run]
    goals = []
    for name, (mode, figure, of_sweeps, of_all) in GOALS.items():
        everything = (table.figure == figure) if figure else pro & (phase == "decode") & (table.figure != "TTFT")
        for words, mine, asked in (("sweeps", everything & sweeps, of_sweeps), ("all rows", everything, of_all)):
            if (mine & ~np.isnan(table.predicted[mode])).any():
                one = table.score_of(mode, mine)
                title = f"{name} ({words}, {one.count})" if figure else f"{name} ({one.count})"
                goals.append(_goal(title, asked, one))
    if "TPOT" in site:
        one = site["TPOT"]
        goals.append(_goal(f"TPOT of a sweep after site calibration with two points ({one.count})", _SITE, one))
    for mode in MODES:
        there = ~np.isnan(table.predicted[mode])
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
    decoding = [row for row in beyond if row.way == LATER and row.run in pro and not row.figure.startswith("ttft")]
    one = score(np.array([signed(row) for row in decoding]))
    return [_goal(f"RTX PRO 6000 decode by builds after the fit ({one.count})", _LATER, one)] if decoding else []


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
            width = float(np.log(max(memory.pool_high, 1.0) / max(memory.pool_low, 1.0)))
            pools.append((float(np.log(memory.pool_tokens / pool)), memory.pool_low <= pool <= memory.pool_high, width))
    scores = {}
    if pools:
        ratio, inside, spread = (np.array(column) for column in zip(*pools, strict=True))
        scores["KV pool"] = score(ratio, inside.astype(bool), spread)
    if weights:
        scores["weights"] = score(np.array(weights))
    return scores


_WORDS = {
    "random": "random rows",
    "group": "whole groups (engine, accelerator, model shape, format)",
    "model": "whole models",
    "accelerator": "whole accelerators",
    "layout": "layouts of a group with another layout in the fit",
    "campaign": "campaigns of a group that others measured, too",
}
#: median absolute error of the best other planner on the sweeps: AIConfigurator 0.12.0 and AISimulate 0.13, all rows
_PEERS = "TPOT 10.8-15.4 / 23.1-26.9 / 47.2-57.0, TTFT 45.0-45.8 / 48.2-48.9 / 85.7-85.8"
_WORST = 20
_WHY = "likely reasons"


def _percent(value: float, *, signed: bool = False) -> str:
    if math.isnan(value):
        return "–"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _constant(one: Constants, place: int) -> str:
    value, factor = np.exp(one.value[place]), np.exp(QUANTILE_90 * np.sqrt(one.covariance[place, place]))
    text = f"{1e6 * value:.3g} µs" if COLUMNS[place].endswith("_seconds") else f"{value:.2f}"
    return f"{text} ×/÷ {factor:.2f}"


def _cells(one: Score) -> list[str]:
    width = "–" if math.isnan(one.width) else f"{one.width:.2f}"
    return [str(one.count), _percent(one.median), _percent(one.mean), _percent(one.p90),
            _percent(one.bias, signed=True), _percent(one.coverage), width]  # fmt: skip


_HEAD = ("rows", "median", "mean", "p90", "bias", "coverage", "high/low")


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    return [*lines, ""]


def _goal_cells(goal: Goal) -> list[str]:
    def words(values: tuple[float, ...]) -> str:
        return " / ".join("–" if math.isnan(value) else f"{100 * value:.1f}" for value in values) + " %"

    target = (
        words(goal.asked) if len(goal.asked) == 3 else " to ".join(f"{100 * value:.0f}" for value in goal.asked) + " %"
    )
    return [goal.name, target, words(goal.reached), "yes" if goal.met else "**no**"]


def _group_cells(one: GroupScore) -> list[str]:
    return [one.figure, one.dimension, one.group, *_cells(one.score), "; ".join(one.reasons) or "not known"]


def accuracy_page(found: Accuracy, plots: Sequence[str] = ()) -> str:
    """Return the page; `plots` are ``title|file`` relative to it."""
    missed = sum(not goal.met for goal in found.goals)
    lines = [
        "# Accuracy of glmplan",
        "",
        "<!-- Written by `glmplan backtest`; do not edit. -->",
        "",
        f"{len(found.table.cases)} measured runs with {len(found.table.run)} metrics. Every error is on a held-out "
        "run: neither the fit nor the rules that only its group motivated used it. Ten groups are left out at a time, "
        "and each fold is fitted like the shipped fit. Errors are absolute and relative to the measured value: median, "
        "mean and 90th percentile (p90). Bias is the median of predicted over measured, less one. Coverage is the "
        "share of measured values inside the 90 % interval, whose width is from other folds; high/low is the median "
        "ratio of its bounds.",
        "",
        "Runs are left out in six ways: " + ", ".join(f"{_WORDS[mode]} (`{mode}`)" for mode in MODES) + ".",
        "",
        "## Goals",
        "",
        f"{len(found.goals) - missed} of {len(found.goals)} are met. *Sweeps* are the InferenceX and vendor rows: "
        "other planners were scored on 2,948 of these runs. *All rows* adds community measurements, many with unstated "
        "conditions. The formulas and the intervals were chosen with these errors known, which makes the errors too "
        "small; [the page of held-out groups](accuracy-holdout.md) has errors on groups that were never looked at. "
        f"The best other planners on the sweeps (median / mean / p90 in %, nothing left out): {_PEERS}.",
        "",
        *_markdown(("goal (rows)", "goal", "reached", "met"), [_goal_cells(goal) for goal in found.goals], 1),
        "Changes of the last fit and their causes: "
        "[calibration log](calibration-log.md).",
        "",
        "## By metric",
        "",
        *_markdown(
            ("left out", "metric", *_HEAD),
            [[mode, figure, *_cells(one)] for mode in MODES for figure, one in found.overall[mode].items()], 2,
        ),
        "Memory, on every run that reports it (the step-time fit does not use it):",
        "",
        *_markdown(("metric", *_HEAD), [[name, *_cells(one)] for name, one in found.memory.items()], 1),
        "Site calibration with two points of a sweep (lowest and middle concurrency), group held out; errors on its "
        "other points:",
        "",
        *_markdown(("metric", *_HEAD[:5]), [[name, *_cells(one)[:5]] for name, one in found.site.items()], 1),
    ]  # fmt: skip
    for plot in plots:
        title, _, file = plot.partition("|")
        lines += [f"![{title}]({file})", ""]
    if found.sharpness:
        lines += [*SHARPNESS, *_markdown(SHARPNESS_HEAD, sharpness_cells(found.sharpness), 3)]
    lines += [*_once_lines(found), *_later_lines(found), *_group_lines(found), *_constant_lines(found)]
    lines += _unscored_lines(found)
    return "\n".join(lines)


def _once_lines(found: Accuracy) -> list[str]:
    """Return the section on held-out groups with one vote each."""
    head = ("groups", "rows", "median", "p75", "p90", "above 30 %", "coverage")

    def cells(one: GroupsScore) -> list[str]:
        shares = (one.median, one.p75, one.p90, one.far, one.coverage)
        return [str(one.groups), str(one.rows), *(_percent(share) for share in shares)]

    lines = [
        "## One vote per group",
        "",
        "A plan is about one configuration, not about a thousand rows of a sweep. Here each held-out group has one "
        "vote: quantiles of its absolute bias (median of predicted over measured, less one), the share of groups with "
        "a bias above 30 %, and the mean coverage of a group.",
        "",
    ]
    scores = {figure: groups_score(rows) for figure, rows in found.by_group.items() if rows}
    lines += _markdown(("metric", *head), [[figure, *cells(one)] for figure, one in scores.items()], 1)
    lines += ["By evidence level of the group:", ""]
    lines += _markdown(("evidence", *head), [[name, *cells(one)] for name, one in found.classes.items()], 1)
    lines += [f"The {_WORST} groups with the lowest coverage, for each metric:", ""]
    worst = [
        [figure, one.group.replace("|", ", "), str(one.rows), _percent(one.bias, signed=True), _percent(one.coverage)]
        for figure, rows in found.by_group.items()
        for one in rows[:_WORST]
    ]
    return [*lines, *_markdown(("metric", "group", "rows", "bias", "coverage"), worst, 2)]


def _later_lines(found: Accuracy) -> list[str]:
    """Return the sections on later and on refused runs."""
    lines = []
    if found.later:
        lines += [
            "## Runs after the last training day",
            "",
            "Engine builds change. Here a fit uses the runs up to a day and predicts later ones; the bias (predicted "
            "over measured, less one) is the drift of the engines. Runs of unknown month are left out.",
            "",
        ]
        rows = [[one.until, one.months, one.figure, *_cells(one.score)[:5]] for one in found.later]
        lines += _markdown(("fitted up to", "measured after", "metric", *_HEAD[:5]), rows, 3)
    if found.refused:
        lines += [
            "## Runs that the fit refuses",
            "",
            "Rows that no fit uses can be predicted nevertheless. They are in none of the errors above.",
            "",
        ]
        rows = [[why, figure, *_cells(one)[:5]] for why, figure, one in found.refused]
        lines += _markdown(("reason", "metric", *_HEAD[:5]), rows, 2)
    return lines


def _group_lines(found: Accuracy) -> list[str]:
    """Return the sections on the worst groups and on each feature."""
    lines = [
        "## Worst groups",
        "",
        "Held-out groups of at least ten metrics by median error, with conditions known to disturb predictions.",
        "",
    ]
    worst = [one for one in found.groups if one.mode == "group"][:_WORST]
    lines += _markdown(("metric", "by", "group", *_HEAD, _WHY), [_group_cells(w) for w in worst], 3)
    for mode in ("random", "group"):
        for dimension in DIMENSIONS:
            rows = [one for one in found.groups if one.mode == mode and one.dimension == dimension]
            lines += [f"## By {dimension}, {_WORDS[mode]} left out", ""]
            lines += _markdown(("group", "metric", *_HEAD), [[r.group, r.figure, *_cells(r.score)] for r in rows], 2)
    return lines


def _constant_lines(found: Accuracy) -> list[str]:
    """Return the section on the constants of the engines."""
    engines = found.constants
    if not engines:
        return []
    lines = [
        "## Constants of the engines",
        "",
        "Posterior of the joint fit for an engine with unknown accelerator, model and format: the median, and the "
        "factor from it to each bound of the 90 % interval. Effects of accelerators, models, formats and "
        "configurations are added, each with its own deviation in `calibration/fits/step/covariance.toml`.",
        "",
    ]
    head = ("constant", *(one.engine for one in engines))
    table = [[name, *(_constant(one, place) for one in engines)] for place, name in enumerate(COLUMNS)]
    return [*lines, *_markdown(head, table, 1)]


def _unscored_lines(found: Accuracy) -> list[str]:
    """Return the section on rows without a score."""
    lines = ["## Rows without a score", ""]
    lines += _markdown(("reason", "rows"), [[why, str(count)] for why, count in found.unused.items()], 1)
    if found.impossible:
        lines += ["Rows that exceed the data sheet of their accelerator:", ""]
        lines += _markdown(("row", "reason"), [[name, why] for name, why in found.impossible.items()], 2)
    return lines


def accuracy_text(found: Accuracy) -> str:
    """Return goals, metrics and worst groups for a terminal."""

    def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
        widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
        place_left = {*range(left), *([len(head) - 1] if head[-1] == _WHY else [])}
        form = [("<" if place in place_left else ">", width) for place, width in enumerate(widths)]
        return [
            "  ".join(f"{cell:{a}{w}}" for cell, (a, w) in zip(row, form, strict=True)).rstrip()
            for row in (head, *rows)
        ]

    goals = [[cell.replace("**", "") for cell in _goal_cells(goal)] for goal in found.goals]
    figures = [[mode, figure, *_cells(one)] for mode in MODES for figure, one in found.overall[mode].items()]
    figures += [["memory", name, *_cells(one)] for name, one in found.memory.items()]
    figures += [["site, two points", name, *_cells(one)] for name, one in found.site.items()]
    figures += [["refused by the fit", name, *_cells(one)] for why, name, one in found.refused if why == ALL]
    worst = [_group_cells(one) for one in found.groups if one.mode == "group"][:_WORST]
    return "\n".join([
        *table(("left out", "metric", *_HEAD), figures, 2), "",
        *table(("goal (rows)", "goal", "reached", "met"), goals, 1), "",
        "Worst groups, held out:",
        *table(("metric", "by", "group", *_HEAD, _WHY), worst, 3), "",
    ])  # fmt: skip


def accuracy_csv(found: Accuracy) -> str:
    """Return one CSV row per way of leaving out, metric and group."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("left_out", "figure", "by", "group", "runs", "rows", "median", "mean", "p90", "bias", "coverage",
                     "high_over_low", "reasons"))  # fmt: skip
    for mode in MODES:
        for figure, one in found.overall[mode].items():
            writer.writerow([mode, figure, "all", "all", "", *_numbers(one), ""])
    for group in found.groups:
        writer.writerow([group.mode, group.figure, group.dimension, group.group, group.runs, *_numbers(group.score),
                         "; ".join(group.reasons)])  # fmt: skip
    return out.getvalue()


def _numbers(one: Score) -> list[float | int | None]:
    values = (one.median, one.mean, one.p90, one.bias, one.coverage, one.width)
    return [one.count, *(None if math.isnan(value) else round(value, 5) for value in values)]


def accuracy_json(found: Accuracy) -> str:
    """Return the report as JSON; NaN is null."""
    names = ("rows", "median", "mean", "p90", "bias", "coverage", "high_over_low")

    def record(one: Score) -> dict[str, float | int | None]:
        return dict(zip(names, _numbers(one), strict=True))

    def clean(values: tuple[float, ...]) -> list[float | None]:
        return [None if math.isnan(value) else round(value, 5) for value in values]

    content = {
        "runs": len(found.table.cases),
        "figures": len(found.table.run),
        "goals": [
            {"name": g.name, "asked": clean(g.asked), "reached": clean(g.reached), "met": g.met} for g in found.goals
        ],
        "overall": {mode: {name: record(one) for name, one in found.overall[mode].items()} for mode in MODES},
        "memory": {name: record(one) for name, one in found.memory.items()},
        "site": {name: record(one) for name, one in found.site.items()},
        "groups": [
            {"left_out": g.mode, "figure": g.figure, "by": g.dimension, "group": g.group, "runs": g.runs,
             **record(g.score), "reasons": list(g.reasons)}
            for g in found.groups
        ],
    }  # fmt: skip
    return json.dumps(content, indent=2) + "\n"


def write_accuracy_page(
    found: Accuracy, page: str | Path, drawn: Mapping[str, tuple[str, bytes]] | None = None
) -> list[Path]:
    """Write the page, and its plots to a folder of its name; return the paths."""
    file = Path(page)
    written, plots = [], []
    for title, (name, content) in (drawn or {}).items():
        written.append(file.with_suffix("") / name)
        write_atomically(written[-1], content)
        plots.append(f"{title}|{file.stem}/{name}")
    write_atomically(file, accuracy_page(found, plots))
    return [file, *written]
