"""Why a group of predictions is bad, as far as it is known: conditions that its runs have more often than others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glmplan.prediction.from_row import Question

__all__ = ["CONDITIONS", "conditions_of", "reasons_for"]

#: condition → what it does, in words
CONDITIONS: dict[str, str] = {
    "mtp": "builds with and without MTP under one label (the source does not say which; steps differ 1.3-2 times)",
    "acceptance": "drafted, but the acceptance length is not stated",
    "pool": "the KV pool is full: waiting decides, and the pool is only estimated",
    "rack": "a rack of 72 accelerators listed as one group: prefill and decode run apart",
    "burst": "all prompts are sent at once: TTFT is the length of the queue",
    "protocol": "requests in flight or lengths are not stated",
    "cached": "prompts may come from a prefix cache: TTFT below what the prompt costs",
    "offload": "experts are computed on the host",
    "build": "the engine's version is not stated",
}
#: campaigns whose rows send everything at once
_BURSTS = ("gpustack", "burst")
#: a condition explains a group when so many of its runs have it, and so many times more of them than elsewhere [-]
_SHARE, _LIFT = 0.25, 1.5
#: groups of fewer runs say little [-]
_FEW = 30


def conditions_of(questions: Sequence[Question]) -> dict[str, np.ndarray]:
    """Conditions of runs that are known to disturb predictions.

    Parameters
    ----------
    questions : sequence of Question
        The runs.

    Returns
    -------
    dict of str to (runs,) array of bool
        One of `CONDITIONS` → whether it holds.
    """
    rows = []
    for question in questions:
        run, d, load = question.run, question.deployment, question.load
        words = " ".join(question.assumed)
        rows.append({
            "mtp": question.run_both_ways,
            "acceptance": d.acceptance_deviation > 0.0,
            "pool": load.pool_tokens < load.concurrency * (load.input_tokens + load.output_tokens / 2.0),
            "rack": d.tp > 16,
            "burst": run.protocol in _BURSTS,
            "protocol": "in flight" in words or "input tokens" in words or "output tokens" in words,
            "cached": run.prefix_cached or run.shared_prompt or run.protocol == "sharegpt",
            "offload": run.offload,
            "build": run.engine_version is None,
        })  # fmt: skip
    return {name: np.array([row[name] for row in rows], dtype=bool) for name in CONDITIONS}


def reasons_for(rows: np.ndarray, conditions: dict[str, np.ndarray], error: np.ndarray, names: np.ndarray) -> list[str]:
    """What may explain the errors of a group.

    Parameters
    ----------
    rows : (m,) array of bool
        Its observations.
    conditions : dict of str to (m,) array of bool
        As `conditions_of`, for each observation.
    error : (m,) array
        Absolute logarithmic error of all observations, [-]
    names : (m,) array of str
        Run of each observation.

    Returns
    -------
    list of str
        In words, the commonest condition first; the last is a single row that decides the mean.
    """
    found = []
    for name, holds in conditions.items():
        share = float(holds[rows].mean())
        if share >= _SHARE and share >= _LIFT * float(holds.mean()):
            found.append((share, f"{CONDITIONS[name]} ({100 * share:.0f} % of its rows)"))
    words = [text for _, text in sorted(found, reverse=True)]
    runs = len(np.unique(names[rows]))
    if runs < _FEW:
        words.append(f"only {runs} runs")
    mine = np.expm1(np.minimum(error[rows], 20.0))
    if len(mine) > 1 and mine.max() > 0.5 * mine.sum() and mine.max() > 3.0:
        words.append(f"one row, {names[rows][int(np.argmax(mine))]}, makes most of the mean")
    return words
