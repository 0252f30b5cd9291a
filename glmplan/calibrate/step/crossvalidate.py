"""How far off a fit is on runs it has never seen, and the intervals that follow from it.

Runs are left out six ways: at random, by whole groups (engine, part, model shape, format), by whole models, by whole
accelerators, by layouts of a group of which another layout stays, and by campaigns that measured a group which another
campaign measured too. A fold leaves out about ten groups, and with them the rules that only they led to
(`glmplan.catalog.rule_provenance`); it is solved to the end with the spreads of what ships. What was known of a left-
out run when
it was predicted is its knowledge class; the errors of a class give the interval of every later prediction of that
class.
"""

from __future__ import annotations

import csv
import gzip
import io
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
from glmplan.prediction.effects import BY_OTHERS, COLUMNS, KNOWLEDGE, LEVELS, knowledge_class, shape_of
from glmplan.prediction.from_row import Question, question_of

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
    "read_beyond",
    "refused_runs",
    "rules_in_view",
    "rules_lost",
    "unseen",
    "write_beyond",
]


# What a fit says of runs that it has not seen: the two are different tables, so that nothing can leak.
#
# A fit is made from a table that does not hold the other runs; these are predicted through the names of their keys,
# as a
# plan is.

#: a way to fit a table of runs
Fit = Callable[[Design], Solution]


@dataclass(frozen=True)
class Unseen:
    """Runs as a fit predicts them that has not seen them.

    Attributes
    ----------
    residual : (m,) array
        Measured minus predicted in logarithms, one for each observation, [-]
    knowledge : (runs,) array of str
        What the fit knew of each run, one of `glmplan.prediction.effects.KNOWLEDGE`.
    effects : (runs, 22) array
        Summed effects of each run, [log s] or [-]
    """

    residual: np.ndarray
    knowledge: np.ndarray
    effects: np.ndarray


@dataclass(frozen=True)
class AsFitted:
    """Fit tables with the spreads and the noise of another fit, to the end and from the prior mean.

    Attributes
    ----------
    spreads : Spreads
        Of the other fit.
    """

    spreads: Spreads

    def __call__(self, design: Design) -> Solution:
        """Fit a table."""
        return solve(design, self.spreads)


def alone(design: Design, runs: np.ndarray) -> Design:
    """The part of a design that concerns some runs, with no trace of the others: not even the names of their keys."""
    part = part_of(design, runs)
    keys, names = np.zeros_like(part.keys), []
    for level, of_level in enumerate(part.key_names):
        used, keys[:, level] = np.unique(part.keys[:, level], return_inverse=True)
        names.append(tuple(of_level[place] for place in used))
    return replace(part, keys=keys, key_names=tuple(names), refused=())


def unseen(design: Design, solution: Solution, others: Design) -> Unseen:
    """Predict runs that a fit has not seen.

    Returns: Their errors, and what was known of them.
    """
    total = np.zeros((len(others.questions), len(COLUMNS)))
    known = np.zeros((len(others.questions), len(LEVELS)), dtype=bool)
    for level, names in enumerate(others.key_names):
        place = {name: number for number, name in enumerate(design.key_names[level])}
        of_key = np.array([place.get(name, -1) for name in names])[others.keys[:, level]]
        known[:, level] = of_key >= 0
        total += np.where(known[:, level, None], solution.effects[level][of_key], 0.0)
    log_seconds, _ = evaluate(others, total)
    knowledge = np.array([knowledge_class(tuple(row)) for row in known.tolist()], dtype="<U16")
    return Unseen(others.log_seconds - log_seconds, knowledge, total)


# Forget what was looked up before, where the rules or the fits that answers rest on are exchanged.

#: files whose entries decide predictions and were written by people: folder, file, tables
RULE_FILES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("hardware_db", "kernels.toml",
     ("kernels", "attention", "experts", "latent_prompts", "collectives", "beside", "sparse_latent")),
    ("hardware_db", "refused.toml", ("refused",)),
    ("calibration", "protocols.toml", ("settings", "requests")),
    ("calibration", "sessions.toml", ("sessions",)),
)  # fmt: skip


@cache
def rules_in_view() -> tuple[dict[str, Any], ...]:
    """Entries of the files of rules that decide predictions, walls with a price of their own among them.

    Returns: The entries as they stand in the files.

    Examples
    --------
    >>> len(rules_in_view()) > 50
    True
    """
    found: list[dict[str, Any]] = []
    for folder, name, tables in RULE_FILES:
        content = read_toml(data_folder(folder) / name)
        found += [entry for table in tables for entry in content.get(table, ())]
    for engine in engine_names():
        walls = read_toml(data_folder("hardware_db") / "engines" / f"{engine}.toml").get("walls", ())
        found += [wall for wall in walls if wall.get("apart")]
    return tuple(found)


def rules_lost(groups: frozenset[str]) -> int:
    """Count the rules that would not have been written without some groups.

    Examples
    --------
    >>> rules_lost(frozenset())
    0
    """
    return sum(gone(entry.get(FIELD, ()), groups) for entry in rules_in_view())


def forget() -> None:
    """Empty every memory of the package's functions."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "glmplan":
            for one in list(vars(module).values()):
                if callable(clear := getattr(one, "cache_clear", None)):
                    clear()


@contextmanager
def exchanged(*, without: frozenset[str] = frozenset(), fits: Path | None = None) -> Iterator[None]:
    """Answer as if some groups had never been measured, or with the fits of another folder.

    Yields: While that holds; nothing that was computed inside is remembered outside, nor the other way.
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


#: ways to leave runs out
MODES: tuple[str, ...] = ("random", "group", "model", "accelerator", "layout", "campaign")
#: rows at random in five parts; ten whole groups or parts of groups at a time, so that what a fit lacks is little more
#: than these; five models or parts at a time
_PARTS = 5
_AT_A_TIME = {"group": 10, "model": 5, "accelerator": 5, "layout": 10, "campaign": 10}
#: ways in which a part of a group is left out, of which another part stays
PARTS_OF_GROUPS: tuple[str, ...] = ("layout", "campaign")
#: fold of what is never left out [-]
_STAYS = -1


@dataclass(frozen=True)
class Errors:
    """Errors on left-out runs.

    Attributes
    ----------
    mode : str
        How runs were left out.
    residual : (m,) array
        Measured minus predicted in logarithms, one for each observation of the design; NaN of what could not be
        predicted without the rules that its own group led to, and of what is not left out this way, [-]
    knowledge : (m,) array of str
        What was known of its run; empty where the error is NaN.
    """

    mode: str
    residual: np.ndarray
    knowledge: np.ndarray


def group_names(questions: Sequence[Question]) -> np.ndarray:
    """Group of each run: engine, part, model shape and format."""
    return np.array([group_key(question.run) for question in questions])


def left_out_with(questions: Sequence[Question], mode: str) -> np.ndarray:
    """What each run is left out with: nothing, its group, its model's shape, its part, or what is alike in its group.

    - `mode`: One of `MODES`; of a group is left out what has one layout, or what one campaign measured.
    - Returns: Runs of the same name are left out together.
    """
    if mode == "group":
        return group_names(questions)
    if mode in PARTS_OF_GROUPS:
        parts = [_layout(one) if mode == "layout" else one.run.campaign or "" for one in questions]
        return np.char.add(group_names(questions), [f"|{part}" for part in parts]) if parts else np.array([], dtype=str)
    if mode == "random":
        return np.array([question.run.id for question in questions])
    if mode == "accelerator":
        return np.array([question.deployment.accelerator.name for question in questions])
    # with and without an indexer it is one model
    return np.array([shape_of(question.deployment).removesuffix(" sparse") for question in questions])


def _layout(question: Question) -> str:
    one = question.deployment
    return f"tp{one.tp} pp{one.pp} dp{one.dp} ep{one.ep} dcp{one.dcp}"


def folds_of(questions: Sequence[Question], mode: str) -> np.ndarray:
    """Deal runs out to folds.

    Two layouts of a group, or what two campaigns measured of it, are never in one fold, so that each is predicted by
    the others; the only one of a group is in none: that is what leaving out groups is for.

    Returns: Fold of each run; -1 of what is never left out.
    """
    names, place = np.unique(left_out_with(questions, mode), return_inverse=True)
    # whole groups are dealt out by size, so that folds are alike; random rows by a seeded shuffle
    if mode == "random":
        return np.random.default_rng(7).permutation(len(names))[place] % _PARTS
    count = min(max(2, -(-len(names) // _AT_A_TIME[mode])), len(names))
    sizes = np.bincount(place)
    # what may not share a fold: the parts of one group
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
    """Predict every run from a fit that has not seen it.

    - `progress`: Called with the mode, the fold and the number of folds.
    - `keep`: Called with places of left-out runs, (k,) array of int, and their summed effects, (k, 22) array.

    Notes
    -----
    What other campaigns measured as it is asked counts as a pair, as in plans (`glmplan.prediction.effects.BY_OTHERS`).
    Not modelled, where `fit` has spreads of its own: that they have seen the runs left out. They are some fifty numbers
    of thousands of rows.
    """
    fold = folds_of(design.questions, mode)
    residual = np.full(len(design.log_seconds), np.nan)
    knowledge = np.full(len(design.log_seconds), "", dtype="<U16")
    outs = [np.flatnonzero(fold == one) for one in range(int(fold.max()) + 1)]
    found = leave_out(design, outs, fit, processes=processes)
    for done, (out, one) in enumerate(zip(outs, found, strict=True)):
        rows = np.flatnonzero(np.isin(design.observation_run, out))
        residual[rows] = one.residual
        known = one.knowledge[np.searchsorted(out, design.observation_run[rows])]
        if mode == "campaign":
            known = np.array([BY_OTHERS.get(name, name) for name in known.tolist()])
        knowledge[rows] = np.where(np.isnan(one.residual), "", known)
        if keep is not None:
            keep(out, one.effects)
        if progress is not None:
            progress(mode, done + 1, len(outs))
    return Errors(mode, residual, knowledge)


_Task = tuple[Design, np.ndarray, frozenset[str]]


def leave_out(design: Design, outs: Sequence[np.ndarray], fit: Fit, *, processes: int = 1) -> Iterator[Unseen]:
    """Fit without some runs and predict them, several times.

    - `outs`: Places of the runs that are left out, ascending.
    - Yields: Errors of each, NaN where a run cannot be asked about without the rules that only its groups led to.
    """
    names, fits = group_names(design.questions), fits_folder()
    tasks = ((design, out, frozenset(names[out].tolist()) - frozenset(np.delete(names, out).tolist())) for out in outs)
    if processes <= 1:
        yield from (_fold(task, fits, fit=fit) for task in tasks)
        return
    # a process of its own remembers nothing of what others looked up
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(partial(_fold, fit=fit), task, fits) for task in tasks]
        for one in waiting:
            yield one.result()


def _fold(task: _Task, fits: Path, *, fit: Fit) -> Unseen:
    """Fit what is left, predict what is left out."""
    design, out, groups = task
    others = alone(design, out)
    if len(out) == len(design.questions):
        # nothing is left that could say anything
        return Unseen(np.full(len(others.figure), np.nan), np.full(len(out), ""), np.zeros((len(out), len(COLUMNS))))
    seen = alone(design, np.setdiff1d(np.arange(len(design.questions)), out))
    solution = fit(seen)
    found = unseen(seen, solution, others)
    if not rules_lost(groups):
        return found
    with exchanged(without=groups, fits=fits):
        return _asked_again(found, others, lambda again: unseen(seen, solution, again))


def _asked_again(found: Unseen, others: Design, predict: Callable[[Design], Unseen]) -> Unseen:
    """Predictions of left-out runs that were asked about without the rules that they led to."""
    questions: list[Question] = []
    places: list[int] = []
    for place, question in enumerate(others.questions):
        try:
            questions.append(question_of(question.run))
        except GlmplanError:
            continue  # without its rules nobody could have answered
        places.append(place)
    residual = np.full(len(found.residual), np.nan)
    knowledge = found.knowledge.copy()
    if questions:
        again = design_unchecked(questions)
        new = predict(again)
        owners = np.array(places)[again.observation_run]
        row = {(int(run), name): n for n, (run, name) in enumerate(zip(owners, again.figure.tolist(), strict=True))}
        pairs = zip(others.observation_run.tolist(), others.figure.tolist(), strict=True)
        where = np.array([row.get(pair, -1) for pair in pairs])
        residual[where >= 0] = new.residual[where[where >= 0]]
        knowledge[places] = new.knowledge
    return Unseen(residual, knowledge, found.effects)


# Errors beyond cross-validation: of runs measured after all that a fit has seen, and of runs that no fit takes.
#
# What cross-validation leaves out was measured in the same months as what it keeps; a plan is asked about builds of
# tomorrow. And the rows that a fit refuses are asked about as well.

#: name of the file beside the fit
FILE = "beyond.csv.gz"
LATER, REFUSED = "later", "refused"
#: days up to which runs are fitted, in the calibration folder: what is measured after is predicted
_DAYS = "later.toml"
#: fewest runs of either side [-]
_FEWEST = 10
_HEAD = ("way", "run", "figure", "error", "knowledge", "note")


@dataclass(frozen=True, slots=True)
class Beyond:
    """The error of one figure.

    Attributes
    ----------
    way : str
        `LATER` or `REFUSED`.
    run, figure : str
        Run and column.
    error : float
        Measured minus predicted in logarithms, of seconds, [-]
    knowledge : str
        What was known of the run.
    note : str
        Day up to which runs were fitted; or why no fit takes the run.
    """

    way: str
    run: str
    figure: str
    error: float
    knowledge: str
    note: str


def fitted_up_to() -> tuple[str, ...]:
    """Days up to which runs are fitted to predict the later ones: fixed, so that no row and no refit moves the test.

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
    """Fit the runs up to a day and predict those after it, for each day of `calibration/later.toml`.

    - `design`: The runs; those whose month is not known are in no fit.
    - `progress`: Called with what is done, how far it is, and out of how much.
    """
    days = np.array([day_of(question.run) for question in design.questions])
    dated = np.flatnonzero(days != "")
    table, days = alone(design, dated), days[dated]
    outs = {last: np.flatnonzero(days > last) for last in (fitted_up_to() if up_to is None else up_to)}
    outs = {last: out for last, out in outs.items() if _FEWEST <= len(out) <= len(days) - _FEWEST}
    found: list[Beyond] = []
    each = leave_out(table, list(outs.values()), fit, processes=processes)
    for done, ((last, out), one) in enumerate(zip(outs.items(), each, strict=True)):
        others = alone(table, out)
        found += _beyond(LATER, others, one.residual, one.knowledge, [last] * len(out))
        if progress is not None:
            progress("later runs", done + 1, len(outs))
    return tuple(found)


def refused_runs(
    design: Design, solution: Solution, refused: Sequence[tuple[Run, str]] | None = None
) -> tuple[Beyond, ...]:
    """Predict what no fit takes, as far as it can be asked about; repetitions of other rows are left out.

    - `solution`: The fit, which has not seen the refused ones.
    - `refused`: Runs that no fit takes, with the reason; those that the design refused by default.
    """
    questions, reasons = [], []
    for run, reason in design.refused if refused is None else refused:
        if reason.startswith("repeats "):
            continue
        try:
            question = question_of(run)
            question.deployment.structure.part.rate("bf16")
            design_unchecked([question])
        except GlmplanError:
            continue
        questions.append(question)
        reasons.append(reason)
    if not questions:
        return ()
    others = design_unchecked(questions)
    one = unseen(design, solution, others)
    return tuple(_beyond(REFUSED, others, one.residual, one.knowledge, reasons))


def _beyond(
    way: str, others: Design, residual: np.ndarray, knowledge: np.ndarray, notes: Sequence[str]
) -> list[Beyond]:
    return [
        Beyond(way, others.questions[run].run.id, figure, float(error), str(knowledge[run]), notes[run])
        for run, figure, error in zip(
            others.observation_run.tolist(), others.figure.tolist(), residual.tolist(), strict=True
        )
        if error == error
    ]


def write_beyond(found: Sequence[Beyond], file: str | Path) -> Path:
    """Write errors; the same errors give the same bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for one in found:
        writer.writerow([one.way, one.run, one.figure, f"{one.error:.4f}", one.knowledge, one.note])
    path = Path(file)
    write_atomically(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path


def read_beyond(file: str | Path | None = None) -> tuple[Beyond, ...]:
    """Read errors.

    `file`: The file; the shipped one by default. Where there is none, nothing is known.
    """
    path = Path(file) if file is not None else fits_folder() / "step" / FILE
    if not path.exists():
        return ()
    rows = list(csv.reader(io.StringIO(read_packed(path).decode())))
    if not rows or tuple(rows[0]) != _HEAD or any(row[4] not in KNOWLEDGE for row in rows[1:]):
        raise SpecError("is not a file of errors beyond cross-validation: run `glmplan calibrate`", file=path)
    return tuple(
        Beyond(way, run, figure, float(error), known, note) for way, run, figure, error, known, note in rows[1:]
    )
