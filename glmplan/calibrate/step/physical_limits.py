"""What a part can do at best: a measured figure that is faster cannot be what its row says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glmplan.physics.blocks.features import routed_blocks
from glmplan.physics.step.limits import BOUND, Perfect
from glmplan.physics.step.work import step_work
from glmplan.prediction.from_row import Question
from glmplan.prediction.observables import observables
from glmplan.readers.runs.figures import COMPARED

__all__ = ["fastest_seconds", "reasons_impossible", "why_impossible"]

#: share of the roofline time below which a figure cannot be: unevenly routed tokens touch fewer experts [-]
_POSSIBLE = 0.8
#: the same for all requests together: the last wave of a run leaves a tenth of them out of flight, and requests with
#: like prompts (benchmarks that repeat one) visit the same experts [-]
_POSSIBLE_TOGETHER, _POSSIBLE_ROUTED = 0.9, 0.6
#: and where an estimated KV pool, not the stated requests in flight, decides how many run: nine estimates in ten are
#: less than 1.65 times the pool, so that at least so large a share of the requests runs [-]
_POSSIBLE_POOL = 0.6
#: where so many rows of one table are impossible, and so large a share, the others share what nobody stated [-]
_SEVERAL, _OFTEN = 3, 1 / 3


def fastest_seconds(question: Question, figure: str) -> float | None:
    """Time that a figure takes at least: all bytes at the data-sheet bandwidth, all FLOP at the peak rate.

    Parameters
    ----------
    question : Question
        The run.
    figure : str
        A key of `glmplan.readers.runs.figures.COMPARED`.

    Returns
    -------
    float or None
        The time for the figure's own unit of work, [s]; None when the load has no such figure
    """
    found = observables(question.load)
    total = found.figures.get(COMPARED[figure].predicted)
    if total is None:
        return None
    work = step_work(Perfect.of(question.deployment.structure), layout=question.deployment.layout, points=found.points)
    seconds = np.sum([work[slot] for slot in BOUND], axis=0)
    return float(total.weights @ seconds) / (total.scale if total.rate else 1.0)


def why_impossible(question: Question) -> str:
    """Why the figures of a run cannot be.

    Parameters
    ----------
    question : Question
        The run.

    Returns
    -------
    str
        The first figure that is too fast, and by how much; empty if all can be.
    """
    if question.deployment.structure.part.is_processor:
        return ""  # its caches can hold a small model: its memory is no bound
    part = question.deployment.accelerator.name
    users = question.load.concurrency
    alone = replace(question, load=replace(question.load, concurrency=1.0, requests=4))
    stated = not any("in flight" in word for word in question.assumed)
    routed = bool(routed_blocks(question.deployment.model))
    load = question.load
    full = load.pool_tokens < users * (load.input_tokens + load.output_tokens)
    crowd = min(_POSSIBLE_ROUTED if routed else _POSSIBLE_TOGETHER, _POSSIBLE_POOL if full else 1.0)
    for figure, value in question.run.observed.items():
        if figure not in COMPARED or value <= 0:
            continue
        kind = COMPARED[figure]
        measured = 1.0 / value if kind.rate else value * kind.factor
        # the queue of a mean TTFT is a model, not a bound: only the prompt itself counts
        checks = [] if kind.interval == "ttft" or not stated else [(question, crowd, users)]
        checks.append((alone, _POSSIBLE, users if kind.rate and kind.predicted != "user_rate" else 1.0))
        for asked, share, together in checks:
            least = fastest_seconds(asked, figure)
            if least is None:
                continue
            least = least if asked is question else least / together
            if measured < share * least:
                return (
                    f"{figure} {value:g} is {least / measured:.1f} times faster than the memory bandwidth and matrix "
                    f"rate of {part} allow with {users:g} requests at once; a cached prompt or a lower running_limit "
                    "must be stated"
                )
    return ""


def reasons_impossible(questions: Sequence[Question]) -> list[str]:
    """Why the figures of runs cannot be, each by itself or with the table that it comes from.

    A table of a campaign (a model on a part by one release of an engine) of which a third cannot be was measured
    under a condition that is not stated, such as cached prompts: its other rows were too, and no bound shows it.

    Parameters
    ----------
    questions : sequence of Question
        The runs.

    Returns
    -------
    list of str
        A reason for each run; empty for what can be.
    """
    reasons = [why_impossible(question) for question in questions]
    tables: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for place, question in enumerate(questions):
        run = question.run
        if run.campaign:  # a site tells one row from another
            tables[(run.campaign, run.model, run.accelerator, run.engine, run.engine_version)].append(place)
    for places in tables.values():
        bad = sum(bool(reasons[place]) for place in places)
        if bad >= _SEVERAL and bad >= _OFTEN * len(places):
            for place in places:
                reasons[place] = reasons[place] or (
                    f"{bad} of the {len(places)} rows of its table are faster than the part allows: what made them so "
                    "is not stated, and the others were measured with them"
                )
    return reasons
