"""Score a development fit on held-out groups.

Each test adds a line to `docs/accuracy-holdout.md` and none is removed, because repeated tests leak information.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.calibrate.backtest.scores import group_biases, groups_score, score
from glmplan.calibrate.backtest.sharpness import sharpness_of
from glmplan.calibrate.step.crossvalidate import MODES, exchanged, group_names, refused_runs, unseen
from glmplan.calibrate.step.intervals import nested_intervals, scored_of
from glmplan.calibrate.step.observations import Design, build_design
from glmplan.calibrate.step.write import Calibrated
from glmplan.catalog.files import read_table, write_atomically
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COMPARED
from glmplan.io.runs.ledger import campaigns, group_key, is_held_out
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import KNOWLEDGE

__all__ = ["ADDED", "ALL", "CROSS_VALIDATED", "HELD_OUT", "HELD_REFUSED", "STATED", "HoldoutLine", "holdout_lines",
           "holdout_page", "read_holdout", "record_holdout"]  # fmt: skip

HELD_OUT, CROSS_VALIDATED, HELD_REFUSED = "held out", "cross-validated", "held out, refused by the fit"
ALL = "all"
#: metrics of all evidence levels: of runs whose settings are all stated, and of the runs added after the rule was fixed
STATED, ADDED = "all, settings stated", "all, added 2026-11"
_ADDED_TABLES = ("dgx-spark-2026-08", "gpustack-2026", "inferencex-2026", "inferencex-medians-2026-07",
                 "ml-energy-2026", "mlperf-v6.0", "other-public-2026", "rtx6kpro-2026b",
                 "sglang-cookbook-2026b")  # fmt: skip
_FIGURES = ("TPOT", "TTFT", "throughput", "prefill")


@dataclass(frozen=True, slots=True)
class HoldoutLine:
    """Errors of one metric in one run of the test."""

    date: str
    commit: str  # state of the project
    runs: str  # HELD_OUT, or CROSS_VALIDATED: groups left out of the same fit
    figure: str
    knowledge: str  # evidence level, or ALL, STATED, ADDED
    groups: int
    rows: int
    median: float  # absolute errors of rows
    mean: float
    p90: float
    group_median: float  # absolute bias, one vote per group
    group_p90: float
    far: float  # share of groups with a bias above 30 %
    coverage: float  # share of rows in the 90 % interval
    group_coverage: float  # one vote per group
    winkler: float = math.nan  # scores of the distribution, see `glmplan.calibrate.backtest.sharpness`
    crps: float = math.nan
    inner_coverage: float = math.nan  # share of votes in the 50 % interval
    high_over_low: float = math.nan  # median ratio of the bounds
    constant: float = math.nan  # the same of the narrowest constant interval that holds 90 % of the votes


@dataclass(frozen=True)
class _Scored:
    """Metrics with their errors."""

    figure: np.ndarray
    group: np.ndarray
    knowledge: np.ndarray
    predicted: np.ndarray
    inside: np.ndarray
    subsets: Mapping[str, np.ndarray] = field(default_factory=dict)  # name → whether each metric belongs to it
    residual: np.ndarray | None = None  # log(measured / predicted time), with the ends of its interval
    ends: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # low, high and tails
    credit: np.ndarray | None = None


def _signed(column: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Return log(predicted / measured) in the metric's unit, from seconds."""
    return np.where([COMPARED[name].rate for name in column.tolist()], residual, -residual)


def _scored(
    design: Design,
    residual: np.ndarray,
    knowledge: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray, np.ndarray],
    credit: np.ndarray,
) -> _Scored:
    figure = np.array([COMPARED[name].group for name in design.figure.tolist()])
    inside = (residual >= ends[0]) & (residual <= ends[1])
    group = group_names(design.cases)[design.observation_run]
    predicted = _signed(design.figure, residual)
    stated = np.array([not case.deployment.assumed for case in design.cases])[design.observation_run]
    files = [campaigns().get(case.run.campaign or "", {}).get("file", "") for case in design.cases]
    added = np.isin(files, [f"{name}.csv" for name in _ADDED_TABLES])[design.observation_run]
    subsets = {STATED: stated, ADDED: added}
    return _Scored(figure, group, knowledge, predicted, inside, subsets, residual, ends, credit)


def _held_design(held: Sequence[Run]) -> Design:
    """Return held-out runs as a table, without rules that only they motivated."""
    with exchanged(without=frozenset(group_key(run) for run in held)):
        return build_design(held)


def holdout_lines(found: Calibrated, held: Iterable[Run], *, date: str, commit: str) -> tuple[HoldoutLine, ...]:
    """Return errors on held-out runs and in cross-validation of the fit.

    For each metric and evidence level, and for all levels together.
    """
    seen = {group_key(case.run) for case in found.design.cases}
    held = list(held)
    if leaked := sorted(seen & {group_key(run) for run in held} | {one for one in seen if is_held_out(one)}):
        raise SpecError("is held out, and in the fit that is to be scored on it", field="group", value=leaked[0])
    design = _held_design(held)
    one = unseen(found.design, found.solution, design)
    knowledge = one.knowledge[design.observation_run]
    scored = scored_of(design.cases, design.observation_run, design.figure)
    rows = np.arange(len(knowledge))
    ends = (*found.intervals.ends(scored, knowledge, rows), found.intervals.tails_of(scored, rows))
    tables = {HELD_OUT: _scored(design, one.residual, knowledge, ends, scored.credit)}
    own = scored_of(found.design.cases, found.design.observation_run, found.design.figure)
    group_mode = MODES.index("group")
    crossed = found.errors[group_mode]
    nested = nested_intervals(found.errors, own, found.design.cases, found.design.observation_run)[group_mode]
    tables[CROSS_VALIDATED] = _scored(found.design, crossed.residual, crossed.knowledge, nested, own.credit)
    lines = []
    for runs, table in tables.items():
        for figure in _FIGURES:
            of = table.figure == figure
            lines += _line(table, of, (date, commit, runs, figure, ALL))
            for known in (*table.subsets, *KNOWLEDGE):
                mine = of & table.subsets.get(known, table.knowledge == known)
                lines += _line(table, mine, (date, commit, runs, figure, known))
    return (*lines, *_refused_lines(found, design, date, commit))


def _refused_lines(found: Calibrated, held: Design, date: str, commit: str) -> list[HoldoutLine]:
    """Return errors of held-out runs that fits refuse; no interval exists."""
    rows = refused_runs(found.design, found.solution, held.refused)
    group = {run.id: group_key(run) for run, _ in held.refused}
    column = np.array([row.figure for row in rows])
    table = _Scored(
        figure=np.array([COMPARED[name].group for name in column.tolist()]),
        group=np.array([group[row.run] for row in rows]),
        knowledge=np.array([row.knowledge for row in rows]),
        predicted=_signed(column, np.array([row.error for row in rows])),
        inside=np.full(len(rows), np.nan),
    )
    lines = []
    for figure in _FIGURES:
        lines += _line(table, table.figure == figure, (date, commit, HELD_REFUSED, figure, ALL))
    return lines


def _line(table: _Scored, mine: np.ndarray, names: tuple[str, str, str, str, str]) -> list[HoldoutLine]:
    mine = mine & ~np.isnan(table.predicted)
    if not mine.any():
        return []
    rows = score(table.predicted[mine], table.inside[mine])
    groups = groups_score(group_biases(table.predicted[mine], table.inside[mine], table.group[mine]))
    line = HoldoutLine(*names, groups.groups, rows.count, rows.median, rows.mean, rows.p90, groups.median, groups.p90,
                       groups.far, rows.coverage, groups.coverage)  # fmt: skip
    if table.residual is None or table.ends is None or table.credit is None:
        return [line]
    low, high, tail = (array[mine] for array in table.ends)
    named = (names[4], names[3], None)
    sharp = sharpness_of(named, table.residual[mine], (low, high, tail), table.group[mine], table.credit[mine])
    return [replace(line, winkler=sharp.winkler, crps=sharp.crps, inner_coverage=sharp.inner, high_over_low=sharp.ratio,
                    constant=sharp.constant)]  # fmt: skip


def read_holdout(file: str | Path) -> tuple[HoldoutLine, ...]:
    """Return the lines of all tests, oldest first; empty without any."""
    path = Path(file)
    if not os.path.exists(path):
        return ()
    rows = read_table(path)
    names = tuple(one.name for one in fields(HoldoutLine))
    # tests before 2026-11-27 have no scores of distributions
    if not rows or len(rows[0]) < _FIRST_COLUMNS or tuple(rows[0]) != names[: len(rows[0])]:
        raise SpecError("is not a table of scores on held-out groups", file=path)
    kinds: dict[str, Callable[[str], Any]] = {"groups": int, "rows": int, **dict.fromkeys(names[:5], str)}

    def value(name: str, cell: str) -> Any:
        return math.nan if cell in ("", "nan") else kinds.get(name, float)(cell)

    return tuple(
        HoldoutLine(**{name: value(name, cell) for name, cell in zip(names, row, strict=False)}) for row in rows[1:]
    )


def record_holdout(lines: Sequence[HoldoutLine], page: str | Path) -> list[Path]:
    """Add a test to the page and the table (``.csv``) and return both paths.

    Old lines stay; each file is written as a whole or not at all.
    """
    file = Path(page)
    table = file.with_suffix(".csv")
    everything = (*read_holdout(table), *lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([one.name for one in fields(HoldoutLine)])
    for one in everything:
        writer.writerow([_cell(value) for value in astuple(one)])
    write_atomically(table, text.getvalue())
    # the page is made from the stored table, so that later tests do not round it again
    write_atomically(file, holdout_page(read_holdout(table)))
    return [file, table]


def _cell(value: object) -> object:
    """Return a value as a cell; empty if there is none."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.4f}"


_HEAD = ("runs", "metric", "evidence", "groups", "rows", "median", "mean", "p90", "group median", "group p90",
         "groups above 30 %", "coverage", "coverage over groups", "in 50 %", "Winkler", "CRPS", "high/low",
         "constant")  # fmt: skip
#: columns of the first tests
_FIRST_COLUMNS = 15


def holdout_page(lines: Sequence[HoldoutLine]) -> str:
    """Return the page of all tests."""
    text = [
        "# Accuracy on held-out groups",
        "",
        "<!-- Written by `glmplan backtest --holdout`; do not edit. -->",
        "",
        "About one in five groups of runs (engine, accelerator, model shape, format) is held out of development by the "
        "rule in `calibration/holdout.toml`: no fit, spread, width, rule or plot uses it. `glmplan backtest --holdout` "
        "fits the other groups like the shipped fit, predicts the held-out ones without the rules that only they "
        "motivated, and adds the errors here, with those of cross-validation of the same fit. It is run a few times in "
        "a release. Errors are absolute, relative to the measured value; in columns named *group* each group has one "
        "vote.",
        "",
    ]
    if not lines:
        text += ["It has not been run yet.", ""]
    for date, commit in reversed(list(dict.fromkeys((one.date, one.commit) for one in lines))):
        text += [f"## {date}, {commit}", "", f"| {' | '.join(_HEAD)} |"]
        text.append(f"| {' | '.join(['---'] * 3 + ['---:'] * (len(_HEAD) - 3))} |")
        for one in lines:
            if (one.date, one.commit) == (date, commit):
                shares = [one.median, one.mean, one.p90, one.group_median, one.group_p90, one.far, one.coverage,
                          one.group_coverage]  # fmt: skip
                cells = [one.runs, one.figure, one.knowledge, str(one.groups), str(one.rows)]
                cells += ["–" if share != share else f"{100 * share:.1f} %" for share in (*shares, one.inner_coverage)]
                scores = (one.winkler, one.crps, one.high_over_low, one.constant)
                cells += ["–" if score != score else f"{score:.2f}" for score in scores]
                text.append(f"| {' | '.join(cells)} |")
        text.append("")
    return "\n".join(text)
