"""Cross-validate the joint fit, for prediction intervals.

Intervals follow from errors on held-out runs. Runs are left out in six ways: at random; by group (engine, accelerator,
model shape, format); by model; by accelerator; by layout, where another layout of the group stays; by campaign, where
another campaign measured the group. A fold leaves out about ten groups, with the rules that only they motivated
(`glmplan.catalog.rule_provenance`), and is solved to the end with the spreads of the shipped fit. The errors of an
evidence level give the interval of later predictions of that level.

Training and held-out runs are separate tables, joined by key names only, so that nothing can leak. Two more errors are
kept: of runs measured after the last day of a fit, since plans are about future builds, and of rows that the fit
refuses, since they are predicted as well.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.calibrate.step.joint_fit import Solution, Spreads, evaluate, solve
from glmplan.calibrate.step.observations import Design, design_unchecked, part_of
from glmplan.catalog.engines.limitations import engine_names
from glmplan.catalog.files import data_folder, fits_folder, fits_in, read_packed, read_toml, write_atomically
from glmplan.catalog.rule_provenance import FIELD, gone, out_of_view
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.ledger import day_of, group_key
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import COLUMNS, KNOWLEDGE, LEVELS, OWN_CAMPAIGN, keys_of, knowledge_class, shape_of
from glmplan.prediction.from_row import RunCase, question_of

__all__ = [
    "FILE",
    "LATER",
    "MODES",
    "PARTS_OF_GROUPS",
    "REFUSED",
    "RULE_FILES",
    "AsFitted",
    "Beyond",
    "Errors",
    "Fit",
    "Unseen",
    "alone",
    "cross_validate",
    "exchanged",
    "fitted_up_to",
    "folds_of",
    "forget",
    "group_names",
    "later_runs",
    "leave_out",
    "left_out_with",
    "levels_left_out",
    "read_beyond",
    "refused_runs",
    "rules_in_view",
    "rules_lost",
    "unseen",
    "write_beyond",
]


#: fits a table of runs
Fit = Callable[[Design], Solution]


@dataclass(frozen=True)
class Unseen:
    """Predictions of held-out runs."""

    residual: np.ndarray  # (m,): log(measured / predicted)
    knowledge: np.ndarray  # (runs,): evidence levels
    effects: np.ndarray  # (runs, 22): summed effects


@dataclass(frozen=True)
class AsFitted:
    """Fit with given spreads and noise, to the end.

    It begins at the effects of `start`, by key of each level, and at the prior mean without them. The end is within a
    hundredth of a posterior deviation of the optimum either way, so that nothing of held-out runs stays in it.
    """

    spreads: Spreads
    start: tuple[dict[str, np.ndarray], ...] = ()

    @classmethod
    def from_whole(cls, design: Design, solution: Solution) -> AsFitted:
        """Return a fit with the spreads of a solution that begins at its effects."""
        pairs = zip(design.key_names, solution.effects, strict=True)
        return cls(solution.spreads, tuple(dict(zip(names, rows, strict=True)) for names, rows in pairs))

    def __call__(self, design: Design) -> Solution:
        """Return the fit of a table."""
        if not self.start:
            return solve(design, self.spreads)
        parts = zip(design.key_names, self.start, strict=True)
        start = tuple(np.array([rows[name] for name in names]) for names, rows in parts)
        return solve(design, self.spreads, start=start)


def alone(design: Design, runs: np.ndarray) -> Design:
    """Return the design of some runs, without even the key names of others."""
    subset = part_of(design, runs)
    keys, names = np.zeros_like(subset.keys), []
    for level, of_level in enumerate(subset.key_names):
        used, keys[:, level] = np.unique(subset.keys[:, level], return_inverse=True)
        names.append(tuple(of_level[place] for place in used))
    return replace(subset, keys=keys, key_names=tuple(names), refused=())


def unseen(design: Design, solution: Solution, others: Design) -> Unseen:
    """Return errors and evidence levels of runs outside the fit."""
    total = np.zeros((len(others.cases), len(COLUMNS)))
    known = np.zeros((len(others.cases), len(LEVELS)), dtype=bool)
    for level, names in enumerate(others.key_names):
        place = {name: number for number, name in enumerate(design.key_names[level])}
        of_key = np.array([place.get(name, -1) for name in names])[others.keys[:, level]]
        known[:, level] = of_key >= 0
        total += np.where(known[:, level, None], solution.effects[level][of_key], 0.0)
    log_seconds, _ = evaluate(others, total)
    knowledge = np.array([knowledge_class(tuple(row)) for row in known.tolist()], dtype="<U16")
    return Unseen(others.log_seconds - log_seconds, knowledge, total)


#: files of hand-written rules that decide predictions: folder, file, tables
RULE_FILES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("hardware_db", "kernels.toml",
     ("kernels", "attention", "experts", "latent_prompts", "collectives", "beside", "sparse_latent")),
    ("hardware_db", "refused.toml", ("refused",)),
    ("calibration", "protocols.toml", ("settings", "requests")),
    ("calibration", "sessions.toml", ("sessions",)),
)  # fmt: skip


@cache
def rules_in_view() -> tuple[dict[str, Any], ...]:
    """Return the rule entries that decide predictions.

    Limitations with a price of their own are included.

    Examples
    --------
    >>> len(rules_in_view()) > 50
    True
    """
    rules: list[dict[str, Any]] = []
    for folder, name, tables in RULE_FILES:
        content = read_toml(data_folder(folder) / name)
        rules += [entry for table in tables for entry in content.get(table, ())]
    for engine in engine_names():
        limitations = read_toml(data_folder("hardware_db") / "engines" / f"{engine}.toml").get("walls", ())
        rules += [wall for wall in limitations if wall.get("apart")]
    return tuple(rules)


def rules_lost(groups: frozenset[str]) -> int:
    """Return the number of rules that only these groups motivated.

    Examples
    --------
    >>> rules_lost(frozenset())
    0
    """
    return sum(gone(entry.get(FIELD, ()), groups) for entry in rules_in_view())


def forget() -> None:
    """Clear every cache of the package."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "glmplan":
            for one in list(vars(module).values()):
                if callable(clear := getattr(one, "cache_clear", None)):
                    clear()


@contextmanager
def exchanged(*, without: frozenset[str] = frozenset(), fits: Path | None = None) -> Iterator[None]:
    """Predict without some groups' rules, or with the fits of another folder.

    Caches are cleared on entry and exit.
    """
    with ExitStack() as stack:
        if without:
            stack.enter_context(out_of_view(without))
        if fits is not None:
            stack.enter_context(fits_in(fits))
        forget()
        try:
            yield
        finally:
            forget()


MODES: tuple[str, ...] = ("random", "group", "model", "accelerator", "layout", "campaign")
#: folds: five for random rows, models and accelerators; ten groups a fold, so that little else is missing from the fit
_PARTS = 5
_AT_A_TIME = {"group": 10, "model": 5, "accelerator": 5, "layout": 10, "campaign": 10}
#: ways that leave out a subset of a group
PARTS_OF_GROUPS: tuple[str, ...] = ("layout", "campaign")
#: fold of runs that are never left out
_STAYS = -1


@dataclass(frozen=True)
class Errors:
    """Errors on held-out runs."""

    mode: str  # one of MODES
    residual: np.ndarray  # (m,): log(measured / predicted); NaN if not left out, or not predictable without own rules
    knowledge: np.ndarray  # (m,): evidence level; empty where the error is NaN


def group_names(cases: Sequence[RunCase]) -> np.ndarray:
    """Return the group of each run: engine, accelerator, shape and format."""
    return np.array([group_key(case.run) for case in cases])


def left_out_with(cases: Sequence[RunCase], mode: str) -> np.ndarray:
    """Return the name under which each run is left out.

    Runs of the same name are left out together: by group, model shape, accelerator, or one layout or campaign of a
    group.
    """
    if mode == "group":
        return group_names(cases)
    if mode in PARTS_OF_GROUPS:
        parts = [_layout(one) if mode == "layout" else one.run.campaign or "" for one in cases]
        return np.char.add(group_names(cases), [f"|{part}" for part in parts]) if parts else np.array([], dtype=str)
    if mode == "random":
        return np.array([case.run.id for case in cases])
    if mode == "accelerator":
        return np.array([case.deployment.accelerator.name for case in cases])
    # with and without an indexer it is one model
    return np.array([shape_of(case.deployment).removesuffix(" sparse") for case in cases])


def _layout(case: RunCase) -> str:
    one = case.deployment
    return f"tp{one.tp} pp{one.pp} dp{one.dp} ep{one.ep} dcp{one.dcp}"


def folds_of(cases: Sequence[RunCase], mode: str) -> np.ndarray:
    """Return the fold of each run; -1 if it is never left out.

    Two layouts of a group, or two campaigns, are never in one fold, so that each is predicted from the others; a single
    one is in no fold: leaving out whole groups covers it.
    """
    names, place = np.unique(left_out_with(cases, mode), return_inverse=True)
    # groups are distributed by size for equal folds; random rows by a seeded shuffle
    if mode == "random":
        return np.random.default_rng(7).permutation(len(names))[place] % _PARTS
    count = min(max(2, -(-len(names) // _AT_A_TIME[mode])), len(names))
    sizes = np.bincount(place)
    # subsets of one group may not share a fold
    owner = np.char.rpartition(names, "|")[:, 0] if mode in PARTS_OF_GROUPS else names
    alike = Counter(owner.tolist())
    if mode in PARTS_OF_GROUPS:
        count = max(count, *alike.values())
    fold, load = np.zeros(len(names), dtype=int), np.zeros(count)
    taken = {name: np.zeros(count, dtype=bool) for name in alike}
    for one in np.argsort(-sizes, kind="stable"):
        if mode in PARTS_OF_GROUPS and alike[owner[one]] == 1:
            fold[one] = _STAYS
            continue
        mine = taken[owner[one]]
        fold[one] = int(np.argmin(np.where(mine, np.inf, load)))
        mine[fold[one]] = True
        load[fold[one]] += sizes[one]
    return fold[place]


def cross_validate(
    design: Design,
    mode: str,
    fit: Fit,
    *,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
    keep: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> Errors:
    """Return the errors of every run, predicted by a fit without it.

    `progress` gets mode, fold and number of folds; `keep` the places of held-out runs and their summed effects.

    Notes
    -----
    Measurements of the same campaign have levels of their own (`glmplan.prediction.effects.OWN_CAMPAIGN`), which no
    plan has. Not modelled, if `fit` has given spreads: these come from all runs; they are some fifty numbers from
    thousands of rows.
    """
    fold = folds_of(design.cases, mode)
    residual = np.full(len(design.log_seconds), np.nan)
    knowledge = np.full(len(design.log_seconds), "", dtype="<U16")
    outs = [np.flatnonzero(fold == one) for one in range(int(fold.max()) + 1)]
    predictions = leave_out(design, outs, fit, processes=processes)
    for done, (out, one) in enumerate(zip(outs, predictions, strict=True)):
        rows = np.flatnonzero(np.isin(design.observation_run, out))
        residual[rows] = one.residual
        level = one.knowledge[np.searchsorted(out, design.observation_run[rows])]
        if mode != "campaign":
            level = np.array([OWN_CAMPAIGN.get(name, name) for name in level.tolist()])
        knowledge[rows] = np.where(np.isnan(one.residual), "", level)
        if keep is not None:
            keep(out, one.effects)
        if progress is not None:
            progress(mode, done + 1, len(outs))
    return Errors(mode, residual, knowledge)


def levels_left_out(cases: Sequence[RunCase], mode: str) -> np.ndarray:
    """Return the evidence level of each run without its fold.

    It is empty if the run is never left out.

    The same as in `cross_validate`, from the names of keys alone: intervals of stored errors need no fit.
    """
    fold = folds_of(cases, mode)
    keys = [keys_of(case.deployment, measured_on=case.run.measured_on) for case in cases]
    known = np.zeros((len(cases), len(LEVELS)), dtype=bool)
    for level in range(len(LEVELS)):
        folds: dict[str, set[int]] = {}
        for key, number in zip(keys, fold.tolist(), strict=True):
            folds.setdefault(key[level], set()).add(number)
        known[:, level] = [folds[key[level]] != {number} for key, number in zip(keys, fold.tolist(), strict=True)]
    levels = [knowledge_class(tuple(row)) for row in known.tolist()]
    own = OWN_CAMPAIGN if mode != "campaign" else {}
    return np.where(fold >= 0, np.array([own.get(name, name) for name in levels], dtype="<U16"), "")


_Task = tuple[Design, np.ndarray, frozenset[str]]


def leave_out(design: Design, outs: Sequence[np.ndarray], fit: Fit, *, processes: int = 1) -> Iterator[Unseen]:
    """Yield the predictions of each set of runs by a fit without them.

    Errors are NaN for runs that cannot be predicted without the rules that only their groups motivated.
    """
    names, fits = group_names(design.cases), fits_folder()
    tasks = ((design, out, frozenset(names[out].tolist()) - frozenset(np.delete(names, out).tolist())) for out in outs)
    if processes <= 1:
        yield from (_fold(task, fits, fit=fit) for task in tasks)
        return
    # a spawned process has empty caches
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(partial(_fold, fit=fit), task, fits) for task in tasks]
        for one in waiting:
            yield one.result()


def _fold(task: _Task, fits: Path, *, fit: Fit) -> Unseen:
    """Return the held-out predictions of one fold."""
    design, out, groups = task
    others = alone(design, out)
    if len(out) == len(design.cases):
        # no training run is left
        return Unseen(np.full(len(others.figure), np.nan), np.full(len(out), ""), np.zeros((len(out), len(COLUMNS))))
    seen = alone(design, np.setdiff1d(np.arange(len(design.cases)), out))
    solution = fit(seen)
    predictions = unseen(seen, solution, others)
    if not rules_lost(groups):
        return predictions
    with exchanged(without=groups, fits=fits):
        return _asked_again(predictions, others, lambda again: unseen(seen, solution, again))


def _asked_again(found: Unseen, others: Design, predict: Callable[[Design], Unseen]) -> Unseen:
    """Return the predictions of held-out runs rebuilt without their own rules."""
    cases: list[RunCase] = []
    places: list[int] = []
    for place, case in enumerate(others.cases):
        try:
            cases.append(question_of(case.run))
        except GlmplanError:
            continue  # not predictable without its rules
        places.append(place)
    residual = np.full(len(found.residual), np.nan)
    knowledge = found.knowledge.copy()
    if cases:
        again = design_unchecked(cases)
        new = predict(again)
        owners = np.array(places)[again.observation_run]
        row = {(int(run), name): n for n, (run, name) in enumerate(zip(owners, again.figure.tolist(), strict=True))}
        pairs = zip(others.observation_run.tolist(), others.figure.tolist(), strict=True)
        where = np.array([row.get(pair, -1) for pair in pairs])
        residual[where >= 0] = new.residual[where[where >= 0]]
        knowledge[places] = new.knowledge
    return Unseen(residual, knowledge, found.effects)


FILE = "beyond.csv.gz"
LATER, REFUSED = "later", "refused"
#: training end dates, in the calibration folder
_DAYS = "later.toml"
#: fewest runs on either side [-]
_FEWEST = 10
_HEAD = ("way", "run", "figure", "error", "knowledge", "note")


@dataclass(frozen=True, slots=True)
class Beyond:
    """Error of one metric of a later or refused run."""

    way: str  # LATER or REFUSED
    run: str
    figure: str
    error: float  # log(measured / predicted time)
    knowledge: str  # evidence level
    note: str  # last training day, or reason of refusal


def fitted_up_to() -> tuple[str, ...]:
    """Return the training end dates, fixed so that refits keep the test.

    Examples
    --------
    >>> fitted_up_to()[0]
    '2026-03-29'
    """
    return tuple(sorted(read_toml(data_folder("calibration") / _DAYS)["fitted_up_to"]))


def later_runs(
    design: Design,
    fit: Fit,
    *,
    up_to: Sequence[str] | None = None,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Beyond, ...]:
    """Return the errors of later runs for each day of `later.toml`.

    Runs of unknown month are in no fit.
    """
    days = np.array([day_of(case.run) for case in design.cases])
    dated = np.flatnonzero(days != "")
    table, days = alone(design, dated), days[dated]
    outs = {last: np.flatnonzero(days > last) for last in (fitted_up_to() if up_to is None else up_to)}
    outs = {last: out for last, out in outs.items() if _FEWEST <= len(out) <= len(days) - _FEWEST}
    errors: list[Beyond] = []
    each = leave_out(table, list(outs.values()), fit, processes=processes)
    for done, ((last, out), one) in enumerate(zip(outs.items(), each, strict=True)):
        others = alone(table, out)
        errors += _beyond(LATER, others, one.residual, one.knowledge, [last] * len(out))
        if progress is not None:
            progress("later runs", done + 1, len(outs))
    return tuple(errors)


def refused_runs(
    design: Design, solution: Solution, refused: Sequence[tuple[Run, str]] | None = None
) -> tuple[Beyond, ...]:
    """Return the errors of refused runs that can be predicted.

    Repetitions of other rows are left out.
    """
    cases, reasons = [], []
    for run, reason in design.refused if refused is None else refused:
        if reason.startswith("repeats "):
            continue
        try:
            case = question_of(run)
            case.deployment.structure.part.rate("bf16")
            design_unchecked([case])
        except GlmplanError:
            continue
        cases.append(case)
        reasons.append(reason)
    if not cases:
        return ()
    others = design_unchecked(cases)
    one = unseen(design, solution, others)
    return tuple(_beyond(REFUSED, others, one.residual, one.knowledge, reasons))


def _beyond(
    way: str, others: Design, residual: np.ndarray, knowledge: np.ndarray, notes: Sequence[str]
) -> list[Beyond]:
    return [
        Beyond(way, others.cases[run].run.id, figure, float(error), str(knowledge[run]), notes[run])
        for run, figure, error in zip(
            others.observation_run.tolist(), others.figure.tolist(), residual.tolist(), strict=True
        )
        if error == error
    ]


def write_beyond(found: Sequence[Beyond], file: str | Path) -> Path:
    """Write errors, reproducible byte for byte."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for one in found:
        writer.writerow([one.way, one.run, one.figure, f"{one.error:.4f}", one.knowledge, one.note])
    path = Path(file)
    write_atomically(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path


def read_beyond(file: str | Path | None = None) -> tuple[Beyond, ...]:
    """Return the errors of a file (default: shipped); empty if it is missing."""
    path = Path(file) if file is not None else fits_folder() / "step" / FILE
    if not os.path.exists(path):
        return ()
    rows = list(csv.reader(io.StringIO(read_packed(path).decode())))
    if not rows or tuple(rows[0]) != _HEAD or any(row[4] not in KNOWLEDGE for row in rows[1:]):
        raise SpecError("is not a file of errors beyond cross-validation: run `glmplan calibrate`", file=path)
    return tuple(
        Beyond(way, run, figure, float(error), known, note) for way, run, figure, error, known, note in rows[1:]
    )
