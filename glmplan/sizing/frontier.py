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


def check_objectives(names: tuple[str, ...]) -> None:
    """Refuse what nothing can be best in, before anything is computed.

    Parameters
    ----------
    names : tuple of str
        Columns that count.

    Raises
    ------
    SpecError
        If a name is none of `OBJECTIVES`, or there is none.
    """
    for name in names:
        if name not in OBJECTIVES:
            raise SpecError("is not a column that can be best", field="--frontier", value=name, choices=OBJECTIVES)
    if not names:
        raise SpecError("names nothing that can be best", field="--frontier", value="", choices=OBJECTIVES)


def frontier(columns: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    """Rows that no other row beats: at least as good in all respects and better in one.

    Parameters
    ----------
    columns : mapping of str to (n,) array
        Columns of a sweep.
    names : tuple of str
        Columns that count, each of `OBJECTIVES`.

    Returns
    -------
    (n,) array of bool
        True for rows on the frontier; a row that lacks a figure is on none. Of equal rows all are.

    Raises
    ------
    SpecError
        If a name is no objective or no column.

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
    table = np.stack([(1 if OBJECTIVES[name] else -1) * np.asarray(columns[name], float) for name in names], axis=1)
    found = np.zeros(len(table), dtype=bool)
    left = np.flatnonzero(np.isfinite(table).all(axis=1))
    # best in the first respect, then in the others: whoever is beaten is beaten by one that came before
    left = left[np.lexsort([-column for column in table[left].T[::-1]])]
    while len(left):
        first = table[left[0]]
        equal = (table[left] == first).all(axis=1)
        found[left[equal]] = True
        left = left[~((table[left] <= first).all(axis=1))]
    return found
