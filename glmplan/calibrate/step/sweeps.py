"""Sweeps over concurrency among the runs: what tests a site's update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from glmplan.prediction.from_row import Question

__all__ = ["sweeps_of"]

#: fewest concurrencies of a sweep [-]
_FEWEST = 4
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
