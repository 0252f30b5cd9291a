"""Write the accuracy on held-out runs as page, text, CSV and JSON.

Also changes of predictions between two fits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from glmplan.calibrate.backtest.accuracy import Accuracy, Goal, GroupScore
from glmplan.calibrate.backtest.fit_diff import Move
from glmplan.calibrate.backtest.reliability import EDGES, Bin, Reliability
from glmplan.calibrate.backtest.scores import ALL, DIMENSIONS, GroupsScore, Score, groups_score
from glmplan.calibrate.backtest.sharpness import Sharpness
from glmplan.calibrate.step.crossvalidate import MODES
from glmplan.calibrate.step.write import Constants
from glmplan.catalog.files import write_atomically
from glmplan.catalog.tables import csv_lines
from glmplan.prediction.effects import COLUMNS
from glmplan.units import QUANTILE_90

__all__ = [
    "accuracy_csv",
    "accuracy_json",
    "accuracy_page",
    "accuracy_text",
    "moved_table",
    "moved_text",
    "write_accuracy_page",
]

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
_MOVES = 40
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
        lines += [*_SHARPNESS, *_markdown(_SHARPNESS_HEAD, _sharpness_cells(found.sharpness), 3)]
    lines += _reliability_lines(found.reliability)
    lines += [*_once_lines(found), *_later_lines(found), *_group_lines(found), *_constant_lines(found)]
    lines += _unscored_lines(found)
    return "\n".join(lines)


#: heading and text of the section on the page
_SHARPNESS: tuple[str, ...] = (
    "## Sharpness",
    "",
    "Scores of the whole distribution, in logarithms, with one vote for each group in each way of leaving out (a "
    "quarter for rows of trust C or D and complaints); lower is better. *Winkler* is the width of the 90 % interval "
    "plus twenty times the distance of what lies outside; *CRPS* is the continuous ranked probability score; "
    "*constant* is high/low of the narrowest interval of one width that holds 90 % of the votes, known only "
    "afterwards. A row whose settings are all stated is what a plan with its launch command is.",
    "",
)
_SHARPNESS_HEAD: tuple[str, ...] = ("evidence", "metric", "settings", "groups", "rows", "Winkler", "CRPS", "in 50 %",
                                   "in 90 %", "high/low", "constant")  # fmt: skip
_TOLD = {True: "stated", False: "not all stated", None: "all"}


def _sharpness_cells(rows: Iterable[Sharpness]) -> list[list[str]]:
    """Return the scores as cells of the page."""
    return [
        [one.name, one.kind, _TOLD[one.stated], str(one.groups), str(one.rows), f"{one.winkler:.2f}", f"{one.crps:.3f}",
         f"{100 * one.inner:.1f} %", f"{100 * one.coverage:.1f} %", f"{one.ratio:.2f}", f"{one.constant:.2f}"]
        for one in rows
    ]  # fmt: skip


#: heading and text of the section on the page
_RELIABILITY: tuple[str, ...] = (
    "## Stated probabilities",
    "",
    "Plans state the probability that an SLO is met. For each left-out row, its distribution states the probability "
    "that the measured time is at most a multiple of the predicted one (0.25 to 4), and for TPOT and TTFT at most a "
    "usual SLO (10 to 100 ms and 0.5 to 10 s). *Observed* is the share of rows with such a time; in each bin, each "
    "group has one vote over all ways of leaving out. The value after ± is the distance that independent groups exceed "
    "in one of ten bins; bins in bold exceed it. Neither less than 1 % nor more than 99 % is stated.",
    "",
)
_SCORES_HEAD = ("metric", "groups", "Brier", "Brier of frequencies", "log score", "mean distance")


def _score_cells(one: Reliability) -> list[str]:
    scores = (one.brier, one.base, one.log_score)
    return [one.name, str(one.groups), *(f"{score:.3f}" for score in scores), _percent(one.distance)]


def _bin_cell(one: Bin | None) -> str:
    """Return stated and observed probability, in bold beyond chance."""
    if one is None:
        return "–"
    text = f"{100 * one.stated:.0f} → {100 * one.frequency:.0f} % ± {100 * one.chance:.0f} ({one.groups})"
    return f"**{text}**" if abs(one.frequency - one.stated) > one.chance else text


def _reliability_lines(rows: Sequence[Reliability]) -> list[str]:
    """Return the section on stated probabilities and frequencies."""
    if not rows:
        return []
    lines = [*_RELIABILITY, *_markdown(_SCORES_HEAD, [_score_cells(one) for one in rows], 1)]
    lines += ["Stated → observed ± chance (groups), by stated probability:", ""]
    held = [{min(place for place, end in enumerate(EDGES[1:]) if bin.stated < end or end == EDGES[-1]): bin
             for bin in one.bins} for one in rows]  # fmt: skip
    cells = [
        [f"{100 * low:.0f} to {100 * high:.0f} %", *(_bin_cell(bins.get(place)) for bins in held)]
        for place, (low, high) in enumerate(pairwise(EDGES))
    ]
    return [*lines, *_markdown(("stated", *(one.name for one in rows)), cells, 1)]


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
        *table(_SCORES_HEAD, [_score_cells(one) for one in found.reliability], 1), "",
        *table(("goal (rows)", "goal", "reached", "met"), goals, 1), "",
        "Worst groups, held out:",
        *table(("metric", "by", "group", *_HEAD, _WHY), worst, 3), "",
    ])  # fmt: skip


def accuracy_csv(found: Accuracy) -> str:
    """Return one CSV row per way of leaving out, metric and group."""
    head = ("left_out", "figure", "by", "group", "runs", "rows", "median", "mean", "p90", "bias", "coverage",
            "high_over_low", "reasons")  # fmt: skip
    overall = [
        [mode, figure, "all", "all", "", *_numbers(one), ""]
        for mode in MODES
        for figure, one in found.overall[mode].items()
    ]
    groups = [
        [one.mode, one.figure, one.dimension, one.group, one.runs, *_numbers(one.score), "; ".join(one.reasons)]
        for one in found.groups
    ]
    return csv_lines([head, *overall, *groups])


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
        "stated_probabilities": [
            {**{key: round(value, 5) if isinstance(value, float) else value for key, value in asdict(one).items()},
             "bins": [{key: round(value, 5) for key, value in asdict(part).items()} for part in one.bins]}
            for one in found.reliability
        ],
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


def moved_text(moves: list[Move]) -> str:
    """Return changes as text for a terminal."""
    if not moves:
        return "no prediction moved by more than 2 %\n"
    nearer = sum(one.nearer for one in moves)
    lines = [f"{len(moves)} predictions moved by more than 2 %: {nearer} nearer to the measured, the others farther"]
    for one in moves[:_MOVES]:
        what = f"{one.model} on {one.accelerator}, {one.engine}"
        sense = f"measured {one.measured:.4g}: {'nearer' if one.nearer else 'farther'}"
        change = f"{one.old:10.4g} → {one.new:10.4g}  ({100 * one.change:+.0f} %, {sense})"
        lines.append(f"{one.run:16} {what:44} {one.figure:32} {change}")
    if len(moves) > _MOVES:
        lines.append(f"… and {len(moves) - _MOVES} more (--format csv shows all)")
    return "\n".join(lines) + "\n"


def _move_record(one: Move) -> dict[str, str | float | bool]:
    return {
        "run": one.run, "model": one.model, "accelerator": one.accelerator, "engine": one.engine,
        "figure": one.figure, "measured": one.measured, "old": float(f"{one.old:.6g}"),
        "new": float(f"{one.new:.6g}"), "change": round(float(one.change), 4), "nearer": bool(one.nearer),
    }  # fmt: skip


def moved_table(moves: list[Move], form: str) -> str:
    """Return all changes as a table."""
    records = [_move_record(one) for one in moves]
    if form == "json":
        return json.dumps(records, indent=2) + "\n"
    head = ["run", "model", "accelerator", "engine", "figure", "measured", "old", "new", "change", "nearer"]
    if form == "md":
        cells = [[str(value) for value in record.values()] for record in records]
        return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *cells))
    return csv_lines([head, *([record[name] for name in head] for record in records)])
