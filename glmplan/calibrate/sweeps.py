"""Sweeps over concurrency among the runs: what tests a site's update, and which of them cannot be one setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from glmplan.question import Question

__all__ = ["contradicting", "sweeps_of"]

#: fewest concurrencies of a sweep [-]
_FEWEST = 4
#: how much a TPOT may lie above one of as many users or more; repeats agree within 1-2 %, and any value from 5 to 20 %
#: names 3 to 6 of the 193 sweeps in the ledger [-]
_ABOVE = 0.10
_PROTOCOL = "inferencex"


def sweeps_of(questions: Sequence[Question]) -> list[list[int]]:
    """Find the sweeps: one build on one day, at four concurrencies or more.

    Runs of a sweep agree in model, accelerator, engine and its release, weights, layout, drafting and lengths.

    Parameters
    ----------
    questions : sequence of Question
        The runs.

    Returns
    -------
    list of list of int
        Places of the runs of each sweep, ascending, [-]
    """
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, question in enumerate(questions):
        run, d, load = question.run, question.deployment, question.load
        if run.protocol == _PROTOCOL:
            key = (d.model.name, d.accelerator.name, d.engine, d.weights, str(d.layout), load.input_tokens,
                   load.output_tokens, d.draft_tokens, run.engine_version, run.measured_on)  # fmt: skip
            found[key].append(place)
    return [places for places in found.values() if len({questions[one].load.concurrency for one in places}) >= _FEWEST]


def contradicting(questions: Sequence[Question]) -> np.ndarray:
    """Runs of sweeps that contradict themselves.

    A step with more requests takes no less time. A TPOT well above one of as many users or more says that the sweep
    holds two settings under one name or a disturbed run; which of its rows the setting gave, its table does not say.

    Parameters
    ----------
    questions : sequence of Question
        The runs.

    Returns
    -------
    (runs,) array of bool
        Whether a run belongs to such a sweep.
    """
    found = np.zeros(len(questions), dtype=bool)
    for places in sweeps_of(questions):
        rows = [questions[one] for one in places if questions[one].run.observed.get("tpot_mean_ms", 0.0) > 0.0]
        users = np.array([row.load.concurrency for row in rows])
        tpot = np.array([row.run.observed["tpot_mean_ms"] for row in rows])
        slower = tpot[:, None] > (1.0 + _ABOVE) * tpot
        found[places] = bool((slower & (users[:, None] <= users)).any())
    return found
