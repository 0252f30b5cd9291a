"""What nothing else beats in every respect."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glmplan.errors import SpecError

__all__ = ["OBJECTIVES", "check_objectives", "frontier"]

#: column → whether more of it is better
OBJECTIVES: dict[str, bool] = {
    "user_tokens_per_s": True,
    "output_tokens_per_s": True,
    "users": True,
    "ttft_mean_ms": False,
    "tpot_mean_ms": False,
    "usd_month": False,
    "usd_purchase": False,
    "usd_per_million_output_tokens": False,
    "joules_per_output_token": False,
    "wall_w": False,
    "accelerators": False,
    # of simulated loads
    "probability": True,
    "goodput_share": True,
    "requests_per_s": True,
    "ttft_p95_ms": False,
    "tpot_p95_ms": False,
    "itl_p95_ms": False,
    "e2e_p95_ms": False,
}
#: values of a column that say where in it a value stands [-]
_SAMPLE = 1000


def check_objectives(names: tuple[str, ...]) -> None:
    """Refuse what nothing can be best in, before anything is computed."""
    for name in names:
        if name not in OBJECTIVES:
            raise SpecError("is not a column that can be best", field="--frontier", value=name, choices=OBJECTIVES)
    if not names:
        raise SpecError("names nothing that can be best", field="--frontier", value="", choices=OBJECTIVES)


def frontier(columns: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    """Rows that no other row beats: at least as good in all respects and better in one.

    Returns: True for rows on the frontier; a row that lacks a figure is on none. Of equal rows all are.

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
    found = np.zeros(len(values[0]), dtype=bool)
    left = np.flatnonzero(np.logical_and.reduce([np.isfinite(one) for one in values]))
    if not len(left):
        return found
    values = [one[left] for one in values]
    score = np.sum([_place(one) for one in values], axis=0)
    # most rows are beaten by the one that is good in everything: sorting the others is what takes time
    best = int(np.argmax(score))
    some = np.flatnonzero(~(_no_better(values, best) & (score < score[best])))
    # a row that beats another has no lower score, and of equal scores it comes first: whoever is beaten is beaten by
    # one that came before
    order = some[np.lexsort([*(-one[some] for one in values[::-1]), -score[some]])]
    left, values = left[order], [one[order] for one in values]
    while len(left):
        found[left[np.logical_and.reduce([one == one[0] for one in values])]] = True
        rest = np.flatnonzero(~_no_better(values, 0))
        left, values = left[rest], [one[rest] for one in values]
    return found


def _no_better(values: list[np.ndarray], row: int) -> np.ndarray:
    """Rows that are better than a row in no respect."""
    found: np.ndarray = np.logical_and.reduce([one <= one[row] for one in values])
    return found


def _place(values: np.ndarray) -> np.ndarray:
    """About what share of the values each is above, [-]; of a higher value never less."""
    some = np.sort(values[:: len(values) // _SAMPLE + 1])
    return np.searchsorted(some, values, side="right") / len(some)
