"""Which rows of a table of runs say nothing of the speed of a step, and why."""

from __future__ import annotations

import re

import numpy as np

from glmplan.errors import GlmplanError
from glmplan.facts.schema.model import ModelSpec
from glmplan.prediction.from_row import Question, memory_of
from glmplan.prediction.from_row_memory import model_of
from glmplan.readers.runs.record import Run
from glmplan.units import GIB

__all__ = ["why_unknown"]


def why_unknown(question: Question, *, by_clock: bool = False) -> str:
    """Why a row says nothing of the speed of a step: the fit refuses it, a prediction says so.

    Parameters
    ----------
    question : Question
        The row.
    by_clock : bool, optional
        Whether its requests are played as they arrive, so that nobody asks how many are in flight.

    Returns
    -------
    str
        The reason; empty where lengths and requests in flight are known, one server can hold what it is said to serve,
        and the command serves the model that is named.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> run = Run("a", "llama-3.1-8b", "h200-sxm", engine="vllm", accelerator_count=1, protocol="mlperf-server")
    >>> why_unknown(question_of(run))
    'requests in flight are not stated'
    """
    run = question.run
    guessed = any(text.endswith("in flight") for text in question.assumed)
    # an open load is played with a clock, not as kinds of step
    by_rate = run.request_rate_per_s and run.request_rate_per_s < np.inf
    by_rate = by_rate and run.concurrency is None and "concurrency_effective" not in run.observed
    if question.load.phase == "serving" and (guessed or by_rate) and not by_clock:
        return "requests in flight are not stated"
    d = question.deployment
    if d.tp > _WIDEST_GROUP:
        return "prefill and decode on separate accelerators; how they share the work is not stated"
    if other := _other_model(run, question.deployment.model):
        return f"the command in its notes serves {other}"
    if too_large := _weights_too_large(question):
        return too_large
    burst = run.request_rate_per_s == np.inf and run.concurrency is None
    # a crowd drains by its longest answers, of which a table gives the mean only
    varied = question.load.shortest < _ALIKE * question.load.longest
    return "conversations sent all at once, of lengths that are not stated" if burst and varied else ""


def _weights_too_large(question: Question) -> str:
    """Why the weights cannot have been where the row says; empty if they can, or if a part's memory is not known."""
    part, memory = question.deployment.accelerator, memory_of(question)
    if memory is None or part.memory is None or memory.weights_gib * GIB <= part.memory:
        return ""
    return f"weights do not fit: {memory.weights_gib:.0f} GiB on a {part.name} of {part.memory / GIB:.0f} GiB"


#: the model in the command of a server
_SERVED = re.compile(r"(?:(?:vllm|sglang) serve|--model(?:-path)?)[ =]+[\w.-]+/([\w.-]+)")


def _other_model(run: Run, model: ModelSpec) -> str:
    """Name of the model that the command in a row's notes serves, if it is known and of other shapes than the row's."""
    said = _SERVED.search(run.notes)
    if said is None:
        return ""
    try:
        served = model_of(said[1].lower())
    except GlmplanError:
        return ""
    # releases that differ in their weights only (Qwen3-235B-A22B and its 2507) are one to an engine
    alike = all(getattr(served, name) == getattr(model, name) for name in _SHAPE)
    return "" if alike else served.name


#: what makes the work of a step
_SHAPE = ("hidden", "vocabulary", "layer_names", "layers")
#: a tensor-parallel group of more is a rack that a table lists as one (GB200 NVL72 rows of InferenceX) [-]
_WIDEST_GROUP = 16
#: lengths differ less than this where a table's mean says enough of them [-]
_ALIKE = 0.5
