"""How far off a fit is on runs it has never seen, and the intervals that follow from it.

Runs are left out six ways: at random, by whole groups (engine, part, model shape, format), by whole models, by whole
accelerators, by layouts of a group of which another layout stays, and by campaigns that measured a group which another
campaign measured too. A fold leaves out about ten groups, and with them the rules that only they led to
(`glmplan.facts.in_view`); it is solved to the end with the spreads of what ships. What was known of a left-out run when
it was predicted is its knowledge class; the errors of a class give the interval of every later prediction of that
class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.nested import exchanged, rules_lost
from glmplan.calibrate.step.observations import Design, design_unchecked
from glmplan.calibrate.step.unseen import Fit, Unseen, alone, unseen
from glmplan.errors import GlmplanError
from glmplan.facts.folders import fits_folder
from glmplan.prediction.effects import BY_OTHERS, COLUMNS, shape_of
from glmplan.prediction.from_row import Question, question_of
from glmplan.readers.runs.holdout import group_key

__all__ = [
    "MODES",
    "PARTS_OF_GROUPS",
    "Errors",
    "cross_validate",
    "folds_of",
    "group_names",
    "leave_out",
    "left_out_with",
]

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
    """Group of each run: engine, part, model shape and format.

    Parameters
    ----------
    questions : sequence of Question
        The runs.

    Returns
    -------
    (runs,) array of str
        As `glmplan.readers.runs.holdout.group_key` names them.
    """
    return np.array([group_key(question.run) for question in questions])


def left_out_with(questions: Sequence[Question], mode: str) -> np.ndarray:
    """What each run is left out with: nothing, its group, its model's shape, its part, or what is alike in its group.

    Parameters
    ----------
    questions : sequence of Question
        The runs.
    mode : str
        One of `MODES`; of a group is left out what has one layout, or what one campaign measured.

    Returns
    -------
    (runs,) array of str
        Runs of the same name are left out together.
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

    Parameters
    ----------
    questions : sequence of Question
        The runs.
    mode : str
        One of `MODES`.

    Returns
    -------
    (runs,) array of int
        Fold of each run; -1 of what is never left out, [-]
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

    Parameters
    ----------
    design : Design
        The runs.
    mode : str
        One of `MODES`.
    fit : callable
        How tables are fitted.
    processes : int, optional
        Folds that are fitted at once, [-]
    progress : callable, optional
        Called with the mode, the fold and the number of folds.
    keep : callable, optional
        Called with places of left-out runs, (k,) array of int, and their summed effects, (k, 22) array.

    Returns
    -------
    Errors
        Errors of all observations.

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

    Parameters
    ----------
    design : Design
        The runs.
    outs : sequence of (k,) array of int
        Places of the runs that are left out, ascending, [-]
    fit : callable
        How tables are fitted.
    processes : int, optional
        How many are fitted at once, [-]

    Yields
    ------
    Unseen
        Errors of each, NaN where a run cannot be asked about without the rules that only its groups led to.
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
