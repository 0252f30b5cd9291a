"""The accuracy report as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from glmplan.calibrate.backtest.accuracy import Accuracy, Goal, GroupScore
from glmplan.calibrate.backtest.beyond import ALL
from glmplan.calibrate.backtest.by_group import GroupsScore, groups_score
from glmplan.calibrate.backtest.scores import DIMENSIONS, Score
from glmplan.calibrate.step.covariance import Constants
from glmplan.calibrate.step.crossvalidate import MODES
from glmplan.facts.files import write_atomically
from glmplan.prediction.effects import COLUMNS
from glmplan.units import QUANTILE_90

__all__ = ["accuracy_csv", "accuracy_json", "accuracy_page", "accuracy_text", "write_accuracy_page"]

_WORDS = {
    "random": "random rows",
    "group": "whole groups (engine, accelerator, model shape, format)",
    "model": "whole models",
    "accelerator": "whole accelerators",
    "layout": "layouts of a group of which another stays",
    "campaign": "what one campaign measured of a group that others measured too",
}
#: median absolute error of the best peer on the sweeps' rows: AIConfigurator 0.12.0 and AISimulate 0.13, all rows
_PEERS = "TPOT 10.8-15.4 / 23.1-26.9 / 47.2-57.0, TTFT 45.0-45.8 / 48.2-48.9 / 85.7-85.8"
_WORST = 20
_WHY = "why, as far as known"


def _percent(value: float, *, signed: bool = False) -> str:
    if math.isnan(value):
        return "–"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _constant(one: Constants, place: int) -> str:
    value, factor = np.exp(one.value[place]), np.exp(QUANTILE_90 * np.sqrt(one.covariance[place, place]))
    said = f"{1e6 * value:.3g} µs" if COLUMNS[place].endswith("_seconds") else f"{value:.2f}"
    return f"{said} ×/÷ {factor:.2f}"


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

    asked = (
        words(goal.asked) if len(goal.asked) == 3 else " to ".join(f"{100 * value:.0f}" for value in goal.asked) + " %"
    )
    return [goal.name, asked, words(goal.reached), "yes" if goal.met else "**no**"]


def _group_cells(one: GroupScore) -> list[str]:
    return [one.figure, one.dimension, one.group, *_cells(one.score), "; ".join(one.reasons) or "not known"]


def accuracy_page(found: Accuracy, plots: Sequence[str] = ()) -> str:
    """Write the page.

    Parameters
    ----------
    found : Accuracy
        The report.
    plots : sequence of str, optional
        Addresses of plots relative to the page, each with a title before a bar: ``title|file``.

    Returns
    -------
    str
        Markdown.
    """
    missed = sum(not goal.met for goal in found.goals)
    lines = [
        "# How right glmplan is",
        "",
        "<!-- Written by `glmplan backtest`; do not edit. -->",
        "",
        f"{len(found.table.questions)} measured runs, {len(found.table.run)} figures. Every error here is of a run "
        "that the fit had not seen, nor the rules that only its group had led to: ten groups are left out at a time, "
        "and each fold is fitted as what ships. Errors are absolute, of the measured value: median, mean and 90th "
        "percentile. Bias is the median of predicted over measured, less one. Coverage is the share of measured "
        "values inside of the 90 % interval, whose width was made from other folds than the one that is scored; "
        "high/low is the median ratio of its ends.",
        "",
        "Runs are left out in six ways: " + ", ".join(f"{_WORDS[mode]} (`{mode}`)" for mode in MODES) + ".",
        "",
        "## Goals",
        "",
        f"{len(found.goals) - missed} of {len(found.goals)} are met. *Sweeps* are the InferenceX and vendor rows, "
        "campaigns on 2,948 runs of which other planners were scored; *all rows* adds community measurements, many "
        "with conditions not stated. The shapes of formulas and of intervals were chosen with these errors in view, so "
        "that they flatter; what groups look like that nobody had in view is on "
        "[the page of held-out groups](accuracy-holdout.md). "
        f"The best peers on the sweeps (median / mean / p90 in %, nothing left out): {_PEERS}.",
        "",
        *_markdown(("goal (rows)", "asked", "reached", "met"), [_goal_cells(goal) for goal in found.goals], 1),
        "What moved with the last fit, and why: "
        "[calibration](physics/calibration.md#what-moved-with-the-last-fit).",
        "",
        "## By figure",
        "",
        *_markdown(
            ("left out", "figure", *_HEAD),
            [[mode, figure, *_cells(one)] for mode in MODES for figure, one in found.overall[mode].items()], 2,
        ),
        "Memory is in no fit of the step time: every run that reports it.",
        "",
        *_markdown(("figure", *_HEAD), [[name, *_cells(one)] for name, one in found.memory.items()], 1),
        "After a site measured two points (lowest and middle concurrency) of a sweep of which the fit had not seen the "
        "group, its other points:",
        "",
        *_markdown(("figure", *_HEAD[:5]), [[name, *_cells(one)[:5]] for name, one in found.site.items()], 1),
    ]  # fmt: skip
    for plot in plots:
        title, _, file = plot.partition("|")
        lines += [f"![{title}]({file})", ""]
    lines += [*_once_lines(found), *_later_lines(found), *_group_lines(found), *_constant_lines(found)]
    lines += _unscored_lines(found)
    return "\n".join(lines)


def _once_lines(found: Accuracy) -> list[str]:
    """Groups that were left out whole, each counted once."""
    head = ("groups", "rows", "median", "p75", "p90", "beyond 30 %", "coverage")

    def cells(one: GroupsScore) -> list[str]:
        shares = (one.median, one.p75, one.p90, one.far, one.coverage)
        return [str(one.groups), str(one.rows), *(_percent(share) for share in shares)]

    lines = [
        "## Each group once",
        "",
        "A buyer asks about one configuration, not about a thousand rows of a sweep. Here each group that was left out "
        "whole has one vote: quantiles of the absolute bias of a group (the median of its predicted over measured, "
        "less one), the share of groups that are off by more than 30 %, and the mean share of a group inside of its "
        "interval.",
        "",
    ]
    scores = {figure: groups_score(rows) for figure, rows in found.by_group.items() if rows}
    lines += _markdown(("figure", *head), [[figure, *cells(one)] for figure, one in scores.items()], 1)
    lines += ["By what was known of the group:", ""]
    lines += _markdown(("known", *head), [[name, *cells(one)] for name, one in found.classes.items()], 1)
    lines += [f"The {_WORST} least covered groups of each figure:", ""]
    worst = [
        [figure, one.group.replace("|", ", "), str(one.rows), _percent(one.bias, signed=True), _percent(one.coverage)]
        for figure, rows in found.by_group.items()
        for one in rows[:_WORST]
    ]
    return [*lines, *_markdown(("figure", "group", "rows", "bias", "coverage"), worst, 2)]


def _later_lines(found: Accuracy) -> list[str]:
    """Runs later than the fit, and runs that no fit takes."""
    lines = []
    if found.later:
        lines += [
            "## Fitted before, measured after",
            "",
            "Engine builds change. Here a fit sees the runs up to a day and predicts those after it; the bias "
            "(predicted over measured, less one) is how far engines have drifted since. Runs whose month is not known "
            "are left out.",
            "",
        ]
        rows = [[one.until, one.months, one.figure, *_cells(one.score)[:5]] for one in found.later]
        lines += _markdown(("fitted up to", "measured after", "figure", *_HEAD[:5]), rows, 3)
    if found.refused:
        lines += [
            "## What the fit refuses",
            "",
            "Rows that no fit takes can be asked about all the same. They are in none of the errors above.",
            "",
        ]
        rows = [[why, figure, *_cells(one)[:5]] for why, figure, one in found.refused]
        lines += _markdown(("why", "figure", *_HEAD[:5]), rows, 2)
    return lines


def _group_lines(found: Accuracy) -> list[str]:
    """The worst groups, and all by what they are grouped by."""
    lines = [
        "## Worst groups",
        "",
        "Left out as whole groups, by median error, with what is known of their runs. Groups of ten figures or more.",
        "",
    ]
    worst = [one for one in found.groups if one.mode == "group"][:_WORST]
    lines += _markdown(("figure", "by", "group", *_HEAD, _WHY), [_group_cells(w) for w in worst], 3)
    for mode in ("random", "group"):
        for dimension in DIMENSIONS:
            rows = [one for one in found.groups if one.mode == mode and one.dimension == dimension]
            lines += [f"## By {dimension}, {_WORDS[mode]} left out", ""]
            lines += _markdown(("group", "figure", *_HEAD), [[r.group, r.figure, *_cells(r.score)] for r in rows], 2)
    return lines


def _constant_lines(found: Accuracy) -> list[str]:
    """Constants of the engines."""
    engines = found.constants
    if not engines:
        return []
    lines = [
        "## Constants of the engines",
        "",
        "Posterior of the joint fit for an engine of which neither part nor model nor format is known: the median, "
        "and the factor that its 90 % interval is wide to each side. Effects of parts, models, formats and "
        "configurations come on top, each with a deviation of its own in `calibration/fits/step/covariance.toml`.",
        "",
    ]
    head = ("constant", *(one.engine for one in engines))
    table = [[name, *(_constant(one, place) for one in engines)] for place, name in enumerate(COLUMNS)]
    return [*lines, *_markdown(head, table, 1)]


def _unscored_lines(found: Accuracy) -> list[str]:
    """Rows that are not scored, and why."""
    lines = ["## Rows that are not scored", ""]
    lines += _markdown(("why", "rows"), [[why, str(count)] for why, count in found.unused.items()], 1)
    if found.impossible:
        lines += ["The rows that no such part can do, as they stand in their tables:", ""]
        lines += _markdown(("row", "why"), [[name, why] for name, why in found.impossible.items()], 2)
    return lines


def accuracy_text(found: Accuracy) -> str:
    """Write the report for a terminal: goals, figures and worst groups.

    Parameters
    ----------
    found : Accuracy
        The report.

    Returns
    -------
    str
        Plain text.
    """

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
        *table(("left out", "figure", *_HEAD), figures, 2), "",
        *table(("goal (rows)", "asked", "reached", "met"), goals, 1), "",
        "Worst groups, left out whole:",
        *table(("figure", "by", "group", *_HEAD, _WHY), worst, 3), "",
    ])  # fmt: skip


def accuracy_csv(found: Accuracy) -> str:
    """Write every group as CSV.

    Parameters
    ----------
    found : Accuracy
        The report.

    Returns
    -------
    str
        One row for each way of leaving out, figure and group; errors as shares.
    """
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
    """Write the report as JSON.

    Parameters
    ----------
    found : Accuracy
        The report.

    Returns
    -------
    str
        Errors as shares; null where there is none.
    """
    names = ("rows", "median", "mean", "p90", "bias", "coverage", "high_over_low")

    def record(one: Score) -> dict[str, float | int | None]:
        return dict(zip(names, _numbers(one), strict=True))

    def clean(values: tuple[float, ...]) -> list[float | None]:
        return [None if math.isnan(value) else round(value, 5) for value in values]

    content = {
        "runs": len(found.table.questions),
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
    """Write the page and its plots.

    Parameters
    ----------
    found : Accuracy
        The report.
    page : path
        The page; plots go to a folder of its name beside it.
    drawn : mapping of str to (str, bytes), optional
        Plots: title → file name and SVG.

    Returns
    -------
    list of pathlib.Path
        Files written.
    """
    file = Path(page)
    written, plots = [], []
    for title, (name, content) in (drawn or {}).items():
        written.append(file.with_suffix("") / name)
        write_atomically(written[-1], content)
        plots.append(f"{title}|{file.stem}/{name}")
    write_atomically(file, accuracy_page(found, plots))
    return [file, *written]
