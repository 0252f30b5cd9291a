"""Which concurrencies and lengths were measured of each group, beyond which an interval is widened."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from glmplan.prediction.effects import LEVELS, keys_of
from glmplan.prediction.from_row import Question

__all__ = ["domains_of"]

#: how an assumption about concurrency, input and output is worded (`glmplan.prediction.from_row`)
_STATED = ("requests in flight", "input tokens", "output tokens")


def domains_of(questions: Iterable[Question]) -> dict[str, list[float]]:
    """Ranges of concurrency, context with prompt, and answer that were measured, by group.

    Parameters
    ----------
    questions : iterable of Question
        The runs.

    Returns
    -------
    dict of str to list of float
        Group → least and most requests [-], tokens read and tokens written [token]; 0 and infinity where no run says.
    """
    found: dict[str, list[list[float]]] = {}
    for question in questions:
        load = question.load
        point = [load.concurrency, load.input_tokens + load.context, load.output_tokens]
        # a length that the table does not state bounds nothing, and a prompt alone says nothing of answers
        silent = [any(text.endswith(name) for text in question.assumed) for name in _STATED]
        silent[2] |= load.phase == "prefill"
        row = [np.nan if unsaid else one for unsaid, one in zip(silent, point, strict=True)]
        found.setdefault(keys_of(question.deployment)[LEVELS.index("group")], []).append(row)
    ranges = {}
    for key, points in found.items():
        table = np.array(points)
        low = np.where(np.isnan(table), np.inf, table).min(axis=0)
        high = np.where(np.isnan(table), -np.inf, table).max(axis=0)
        ends = np.stack([np.where(low <= high, low, 0.0), np.where(low <= high, high, np.inf)], axis=1)
        ranges[key] = [float(one) for one in ends.ravel()]
    return ranges
