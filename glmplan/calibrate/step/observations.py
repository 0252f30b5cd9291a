"""The measured runs as one table: kinds of step with their work, and every figure as a sum over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from glmplan.calibrate.step.physical_limits import reasons_impossible
from glmplan.errors import GlmplanError, SpecError
from glmplan.physics.step.model import FrontPoints
from glmplan.physics.step.work import SLOTS
from glmplan.prediction.effects import LEVELS, keys_of
from glmplan.prediction.from_row import Question, question_of
from glmplan.prediction.observables import Observables, observables
from glmplan.prediction.step_table import step_tables
from glmplan.prediction.usable_rows import why_unknown
from glmplan.readers.runs.figures import compared_figures
from glmplan.readers.runs.ledger import repeats
from glmplan.readers.runs.record import Run

__all__ = ["Design", "asked_of", "build_design", "design_of", "design_unchecked", "part_of", "work_table"]


@dataclass(frozen=True)
class Design:
    """Runs as arrays.

    Attributes
    ----------
    questions : tuple of Question
        One for each run that can be answered.
    refused : tuple of (Run, str)
        Runs that cannot, with the reason.
    work : (nodes, 20) array
        Work of each kind of step, [s] or [-]
    node_run : (nodes,) array of int
        Run of each kind of step.
    figure : (m,) array of str
        Measured figure of each observation.
    observation_run : (m,) array of int
        Its run.
    log_seconds : (m,) array
        Logarithm of what was measured, rates turned into seconds, [log s]
    entry_node, entry_observation : (e,) array of int
        Which kind of step enters which observation.
    entry_weight : (e,) array
        With what weight, [-]
    waiting : (m,) array
        How far the factor on TTFT holds: `Load.waiting` of a TTFT, 0 of other figures, [-]
    keys : (runs, levels) array of int
        Key number on each level.
    key_names : tuple of tuple of str
        For each level the names of its keys.
    """

    questions: tuple[Question, ...]
    refused: tuple[tuple[Run, str], ...]
    work: np.ndarray
    node_run: np.ndarray
    figure: np.ndarray
    observation_run: np.ndarray
    log_seconds: np.ndarray
    entry_node: np.ndarray
    entry_observation: np.ndarray
    entry_weight: np.ndarray
    waiting: np.ndarray
    keys: np.ndarray
    key_names: tuple[tuple[str, ...], ...]

    @cached_property
    def figure_work(self) -> np.ndarray:
        """Work of each observation, (m, 20): a step time is a sum over work, so a sum of step times is one, too."""
        from scipy.sparse import csr_matrix

        shape = len(self.log_seconds), len(self.work)
        return np.asarray(csr_matrix((self.entry_weight, (self.entry_observation, self.entry_node)), shape) @ self.work)

    def predicted(self, seconds: np.ndarray) -> np.ndarray:
        """Each observation as a sum over step times.

        Parameters
        ----------
        seconds : (nodes,) array
            Step times, [s]

        Returns
        -------
        (m,) array
            [s]
        """
        terms = self.entry_weight * seconds[self.entry_node]
        return np.bincount(self.entry_observation, weights=terms, minlength=len(self.log_seconds))


def work_table(questions: list[Question], found: list[Observables]) -> np.ndarray:
    """Work of the kinds of step of many runs.

    Parameters
    ----------
    questions : list of Question
        The runs.
    found : list of Observables
        The kinds of step of each, and its work of the front end.

    Returns
    -------
    (nodes, 20) array
        Rows in the order of the runs, [s] or [-]
    """
    starts = np.concatenate([[0], np.cumsum([len(one.decode_requests) for one in found])])
    table = np.zeros((int(starts[-1]), len(SLOTS)))
    fronts = [
        FrontPoints(one.arrivals, one.prompt, question.load.pass_tokens, one.arrivals * question.load.idle)
        for question, one in zip(questions, found, strict=True)
    ]
    points = [one.points for one in found]
    for members, part in step_tables([one.deployment for one in questions], points, fronts):
        table[np.concatenate([np.arange(starts[m], starts[m + 1]) for m in members])] = part
    return table


def asked_of(runs: Iterable[Run]) -> tuple[list[Question], list[tuple[Run, str]]]:
    """Questions of the runs that can be asked about.

    Parameters
    ----------
    runs : iterable of Run
        The runs.

    Returns
    -------
    list of Question, list of (Run, str)
        The questions, and the other runs with the reason.
    """
    questions: list[Question] = []
    refused: list[tuple[Run, str]] = []
    runs = list(runs)
    again = repeats(runs)
    for run in runs:
        if run.id in again:
            refused.append((run, f"repeats {again[run.id]}"))
            continue
        if run.unusable:
            refused.append((run, run.unusable))
            continue
        try:
            question = question_of(run)
            question.deployment.structure.part.rate("bf16")
        except GlmplanError as error:
            refused.append((run, str(error)))
            continue
        if unknown := why_unknown(question):
            refused.append((run, unknown))
            continue
        questions.append(question)
    return questions, refused


def build_design(runs: Iterable[Run]) -> Design:
    """Turn runs into arrays.

    Parameters
    ----------
    runs : iterable of Run
        The runs; unusable ones are left out with their reason.

    Returns
    -------
    Design
        The table.

    Raises
    ------
    SpecError
        If no run can be used; the message gives the reason of the first.
    """
    return design_of(*asked_of(runs))


def design_of(asked: list[Question], refused: list[tuple[Run, str]] | None = None) -> Design:
    """Turn questions with their measured figures into arrays.

    Parameters
    ----------
    asked : list of Question
        What was asked; their runs hold what was measured. What no part can do is refused.
    refused : list of (Run, str), optional
        Runs that became no question, with the reason.

    Returns
    -------
    Design
        The table.

    Raises
    ------
    SpecError
        If no run can be used; the message gives the reason of the first.
    """
    reasons = reasons_impossible(asked)
    questions = [question for question, reason in zip(asked, reasons, strict=True) if not reason]
    impossible = [(question.run, reason) for question, reason in zip(asked, reasons, strict=True) if reason]
    return design_unchecked(questions, [*(refused or []), *impossible])


def design_unchecked(questions: list[Question], refused: list[tuple[Run, str]] | None = None) -> Design:
    """Turn questions with their measured figures into arrays, whether a part can do that or not.

    Parameters
    ----------
    questions : list of Question
        What was asked.
    refused : list of (Run, str), optional
        Runs that became no question, with the reason.

    Returns
    -------
    Design
        The table.

    Raises
    ------
    SpecError
        If no run can be used; the message gives the reason of the first.
    """
    refused = refused or []
    steps: list[Observables] = []
    node_run, figure, owner = [], [], []
    target: list[float] = []
    nodes_of, observation_of, weight_of = [], [], []
    start = 0
    for place, question in enumerate(questions):
        found = observables(question.load)
        size = len(found.decode_requests)
        steps.append(found)
        node_run.append(np.full(size, place))
        seen = compared_figures(question.run.observed, tokens_per_step=question.load.tokens_per_step)
        for measured, value in seen:
            total = found.figures.get(measured.predicted)
            if total is None:
                continue
            seconds = total.scale / value if measured.rate else value * measured.factor
            used = np.flatnonzero(total.weights)
            nodes_of.append(start + used)
            weight_of.append(total.weights[used])
            observation_of.append(np.full(len(used), len(target)))
            figure.append(measured.column)
            owner.append(place)
            target.append(np.log(seconds))
        start += size
    if not target:
        why = [f"{run.id}: {reason}" for run, reason in refused]
        why += [f"{question.run.id}: has no figure that is predicted" for question in questions]
        raise SpecError("no run can be used" + (f"; {why[0]}" if why else ""))
    table = work_table(questions, steps)
    names: list[dict[str, int]] = [{} for _ in LEVELS]
    keys = np.zeros((len(questions), len(LEVELS)), dtype=np.int64)
    for place, question in enumerate(questions):
        for level, key in enumerate(keys_of(question.deployment, measured_on=question.run.measured_on)):
            keys[place, level] = names[level].setdefault(key, len(names[level]))
    return Design(
        questions=tuple(questions),
        refused=tuple(refused),
        work=table,
        node_run=np.concatenate(node_run),
        figure=np.array(figure),
        observation_run=np.array(owner),
        log_seconds=np.array(target),
        entry_node=np.concatenate(nodes_of),
        entry_observation=np.concatenate(observation_of),
        entry_weight=np.concatenate(weight_of),
        waiting=np.array(
            [questions[run].load.waiting * one.startswith("ttft") for run, one in zip(owner, figure, strict=True)]
        ),
        keys=keys,
        key_names=tuple(tuple(one) for one in names),
    )


def part_of(design: Design, runs: np.ndarray) -> Design:
    """The part of a design that concerns some runs.

    Parameters
    ----------
    design : Design
        The design.
    runs : (k,) array of int
        Places of the runs, ascending, [-]

    Returns
    -------
    Design
        The same table with these runs only.
    """
    place = np.full(len(design.questions), -1)
    place[runs] = np.arange(len(runs))
    nodes = np.flatnonzero(place[design.node_run] >= 0)
    rows = np.flatnonzero(place[design.observation_run] >= 0)
    node_place, row_place = np.full(len(design.node_run), -1), np.full(len(design.observation_run), -1)
    node_place[nodes], row_place[rows] = np.arange(len(nodes)), np.arange(len(rows))
    entries = np.flatnonzero(row_place[design.entry_observation] >= 0)
    return replace(
        design,
        questions=tuple(design.questions[run] for run in runs),
        work=design.work[nodes],
        node_run=place[design.node_run[nodes]],
        figure=design.figure[rows],
        observation_run=place[design.observation_run[rows]],
        log_seconds=design.log_seconds[rows],
        entry_node=node_place[design.entry_node[entries]],
        entry_observation=row_place[design.entry_observation[entries]],
        entry_weight=design.entry_weight[entries],
        waiting=design.waiting[rows],
        keys=design.keys[runs],
    )
