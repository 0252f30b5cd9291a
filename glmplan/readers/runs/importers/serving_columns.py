"""Columns that the serving benchmarks share: means and percentiles of latencies, and notes on how far to trust them."""

from __future__ import annotations

from typing import Any

from glmplan.readers.runs.importers.record import Fields

__all__ = ["few_requests", "latencies", "load", "mean_lengths", "notes"]

#: With so few requests one slow first request moves every mean; medians are the safer figures.
_FEW = 10


def latencies(fields: Fields, *, e2e: str = "e2el", suffix: str = "_ms", scale: float = 1.0) -> dict[str, float | None]:
    """Read `mean_ttft_ms`-like fields into columns.

    Parameters
    ----------
    fields : Fields
        The record.
    e2e : str, optional
        What the tool calls end-to-end latency.
    suffix : str, optional
        What follows the metric's name.
    scale : float, optional
        From the tool's unit to ms, [ms/unit]

    Returns
    -------
    dict
        Columns `ttft_mean_ms`, `tpot_p99_ms` and so on; None where the tool does not say.

    Examples
    --------
    >>> latencies(Fields({"mean_ttft": 0.5}, 1, []), suffix="", scale=1000)["ttft_mean_ms"]
    500.0
    """
    columns: dict[str, float | None] = {}
    for ours, theirs in {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": e2e}.items():
        for quantile, words in {"mean": ("mean",), "p50": ("median", "p50"), "p99": ("p99",)}.items():
            if (ours, quantile) == ("e2e", "p50"):
                continue
            value = fields.positive(*(f"{word}_{theirs}{suffix}" for word in words))
            columns[f"{ours}_{quantile}_ms"] = None if value is None else value * scale
    return columns


def mean_lengths(fields: Fields, completed: float) -> dict[str, float | None]:
    """Return tokens for each request from totals, never from nominal lengths (random lengths have other means).

    Parameters
    ----------
    fields : Fields
        Record with `total_input_tokens` and `total_output_tokens`.
    completed : float
        Requests that finished, [-]

    Returns
    -------
    dict
        `input_tokens` and `output_tokens`.
    """
    return {
        "input_tokens": fields.require("total_input_tokens") / completed,
        "output_tokens": fields.require("total_output_tokens") / completed,
    }


def load(fields: Fields, prompts: float | None) -> dict[str, float | None]:
    """Return how the load was offered: users in a closed loop, or a rate.

    Parameters
    ----------
    fields : Fields
        Record with `max_concurrency` and `request_rate`.
    prompts : float or None
        Requests in all; with no limit and no rate they are all in flight at once, [-]

    Returns
    -------
    dict
        `concurrency` and `request_rate_per_s`.

    Examples
    --------
    >>> load(Fields({"max_concurrency": 64, "request_rate": "inf"}, 1, []), 12)
    {'concurrency': 12, 'request_rate_per_s': None}
    """
    limit, rate = fields.positive("max_concurrency"), fields.positive("request_rate")
    finite = rate is not None and rate != float("inf")
    users = limit if limit is not None else (None if finite else prompts)
    if users is not None and prompts is not None:
        users = min(users, prompts)
    return {"concurrency": users, "request_rate_per_s": rate if finite else None}


def few_requests(completed: float) -> str:
    """Return a warning for runs too short for their means, or nothing.

    Parameters
    ----------
    completed : float
        Requests that finished, [-]

    Returns
    -------
    str
        The warning.
    """
    return f"only {completed:.0f} requests: prefer medians to means" if completed <= _FEW else ""


def notes(*parts: Any) -> str:
    """Join notes, dropping empty ones.

    Parameters
    ----------
    *parts : str
        Notes.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> notes("a", "", None, "b")
    'a; b'
    """
    return "; ".join(str(part) for part in parts if part)
