"""Pareto front of a sweep."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glmplan.errors import SpecError

__all__ = ["OBJECTIVES", "OBJECTIVE_LABELS", "check_objectives", "frontier"]

#: column → True if a larger value is better
OBJECTIVES: dict[str, bool] = {
    "user_tokens_per_s": True,
    "output_tokens_per_s": True,
    "users": True,
    "ttft_mean_ms": False,
    "tpot_mean_ms": False,
    "usd_month": False,
    "usd_purchase": False,
    "usd_per_million_output_tokens": False,
    "usd_per_million_tokens": False,
    "joules_per_output_token": False,
    "wall_w": False,
    "accelerators": False,
    # simulated loads only
    "probability": True,
    "goodput_share": True,
    "requests_per_s": True,
    "ttft_p95_ms": False,
    "tpot_p95_ms": False,
    "itl_p95_ms": False,
    "e2e_p95_ms": False,
}
#: column → label in texts
OBJECTIVE_LABELS: dict[str, str] = {
    "user_tokens_per_s": "speed per user",
    "output_tokens_per_s": "total throughput",
    "usd_month": "monthly cost",
    "usd_purchase": "purchase price",
    "usd_per_million_output_tokens": "cost per million output tokens",
    "usd_per_million_tokens": "cost per million input and output tokens",
    "joules_per_output_token": "energy per output token",
    "wall_w": "power at the wall",
    "probability": "probability of meeting the SLO",
    "goodput_share": "goodput share",
    "requests_per_s": "requests per second",
    **{f"{name}_mean_ms": f"mean {name.upper()}" for name in ("ttft", "tpot")},
    **{f"{name}_p95_ms": f"{name.upper()} p95" for name in ("ttft", "tpot", "itl", "e2e")},
}
#: values of a column that approximate the rank of all others
_SAMPLE = 1000


def check_objectives(names: tuple[str, ...]) -> None:
    """Raise SpecError for columns that are no objectives.

    It runs before the sweep is computed.
    """
    for name in names:
        if name not in OBJECTIVES:
            raise SpecError("is not a column that can be best", field="--frontier", value=name, choices=OBJECTIVES)
    if not names:
        raise SpecError("names nothing that can be best", field="--frontier", value="", choices=OBJECTIVES)


def frontier(columns: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    """Return True for each Pareto-optimal row.

    A row is dominated if another is at least as good in all objectives and better in one. Equal rows are all optimal;
    a row with a missing value is not.

    Examples
    --------
    >>> rows = {"user_tokens_per_s": np.array([10.0, 20.0, 5.0]), "wall_w": np.array([100.0, 300.0, 100.0])}
    >>> frontier(rows, ("user_tokens_per_s", "wall_w")).tolist()
    [True, True, False]
    """
    check_objectives(names)
    for name in names:
        if name not in columns:
            raise SpecError("is not a column of this sweep", field="--frontier", value=name, choices=columns)
    values = [(1 if OBJECTIVES[name] else -1) * np.asarray(columns[name], float) for name in names]
    optimal = np.zeros(len(values[0]), dtype=bool)
    remaining = np.flatnonzero(np.logical_and.reduce([np.isfinite(column) for column in values]))
    if not len(remaining):
        return optimal
    values = [column[remaining] for column in values]
    score = np.sum([_rank(column) for column in values], axis=0)
    # the row with the best score dominates most rows, which then need not be sorted
    best = int(np.argmax(score))
    kept = np.flatnonzero(~(_no_better(values, best) & (score < score[best])))
    # a dominating row has at least the score of the dominated one and sorts before it
    order = kept[np.lexsort([*(-column[kept] for column in values[::-1]), -score[kept]])]
    remaining, values = remaining[order], [column[order] for column in values]
    while len(remaining):
        optimal[remaining[np.logical_and.reduce([column == column[0] for column in values])]] = True
        rest = np.flatnonzero(~_no_better(values, 0))
        remaining, values = remaining[rest], [column[rest] for column in values]
    return optimal


def _no_better(values: list[np.ndarray], row: int) -> np.ndarray:
    """Return True for each row that is not better than `row` in any objective."""
    worse: np.ndarray = np.logical_and.reduce([column <= column[row] for column in values])
    return worse


def _rank(values: np.ndarray) -> np.ndarray:
    """Return the approximate rank of each value between 0 and 1.

    It never falls with the value.
    """
    sample = np.sort(values[:: len(values) // _SAMPLE + 1])
    return np.searchsorted(sample, values, side="right") / len(sample)
