"""Slow steps down by a power limit of the accelerators.

A power limit lowers all clocks but the memory's, so serving loses more than its arithmetic. Two quantities are measured
on some accelerators: the matrix rate under a limit (`power_sweep`), and the decode rate under a limit at a concurrency
(`power_served`). A limit that no run covers slows down by a power of rating / limit, with the mean exponent of all
accelerators that were measured: the exponent is 0 where power does not limit and 1 where the rate is in proportion to
the power, so the prediction interval reaches from the one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.costs.step.model import StepTime
from glmplan.errors import SpecError
from glmplan.units import Ratio, Watts

__all__ = [
    "check_limit",
    "decoding_slowdown",
    "limit_deviation",
    "limit_measured",
    "limit_words",
    "limited",
    "matrix_slowdown",
]


def check_limit(part: Accelerator, limit: Watts | None) -> None:
    """Refuse a power limit above the rating, or without a published one.

    Examples
    --------
    >>> check_limit(load_accelerator("rtx-pro-6000-ws"), 450.0)
    """
    if limit is None:
        return
    if part.tdp is None:
        words = f"has no known effect: the rated power of {part.name} is not published; leave it out"
        raise SpecError(words, field="--power-limit", value=f"{limit:g} W")
    if limit > part.tdp:
        words = f"is above the {part.tdp:g} W of {part.name}: give less, or leave it out for the rated power"
        raise SpecError(words, field="--power-limit", value=f"{limit:g} W")


def _sweep(part: Accelerator) -> tuple[list[Watts], list[float]]:
    """Return the measured limits in order, and their matrix rates."""
    rows = sorted((one.power, one.rate) for one in part.power_sweep)
    return [power for power, _ in rows], [rate for _, rate in rows]


def _unmeasured(part: Accelerator, limit: Watts) -> float:
    """Return the log of rating / limit outside the measured limits [-]"""
    powers, _ = _sweep(part)
    whole = math.log((part.tdp or limit) / limit)
    if not powers:
        return whole
    top, bottom = min(powers[-1], part.tdp or limit), max(powers[0], limit)
    return max(whole - max(math.log(top / bottom), 0.0), 0.0)


def limit_measured(part: Accelerator, limit: Watts | None) -> bool:
    """Return True if runs at this limit and at the rating were measured.

    Examples
    --------
    >>> part = load_accelerator("rtx-pro-6000-ws")
    >>> limit_measured(part, 450.0), limit_measured(part, 200.0), limit_measured(part, None)
    (True, False, True)
    """
    return limit is None or part.tdp is None or _unmeasured(part, limit) < 1e-9


def limit_words(part: Accelerator, limit: Watts) -> str:
    """Return what is known of the speed under a power limit as text.

    Examples
    --------
    >>> limit_words(load_accelerator("rtx-pro-6000-ws"), 450.0)
    'speed as measured with that limit'
    """
    if limit_measured(part, limit):
        return "speed as measured with that limit"
    words = "never measured; slower as other accelerators are, the interval reaches from no slow-down to rating / limit"
    low = limit < (part.tdp or 0.0) / 2.0
    return words + "; a board takes no limit below its own least (nvidia-smi -q: Min Power Limit)" * low


@cache
def _exponents() -> tuple[Ratio, tuple[tuple[float, Ratio], ...]]:
    """Return the exponents of rating / limit over all measured parts.

    The first is that of matrix products, the others belong to decode steps at each measured concurrency. Each part has
    one vote.
    """
    matrix: list[float] = []
    served: dict[float, list[float]] = {}
    for part in map(load_accelerator, accelerator_names()):
        powers, rates = _sweep(part)
        if len(powers) > 1:
            matrix.append(math.log(rates[-1] / rates[0]) / math.log(powers[-1] / powers[0]))
        for count in sorted({one.requests for one in part.power_served}):
            rows = sorted((one.power, one.speed) for one in part.power_served if one.requests == count)
            (first, slow), (last, fast) = rows[0], rows[-1]
            served.setdefault(count, []).append(math.log(fast / slow) / math.log(last / first))
    decode = tuple((count, float(np.mean(votes))) for count, votes in sorted(served.items()))
    return float(np.mean(matrix)), decode


def _decode_exponent(requests: np.ndarray) -> np.ndarray:
    """Return the exponent of decode steps at each concurrency."""
    counts, exponents = zip(*_exponents()[1], strict=True)
    return np.asarray(np.interp(np.log2(np.maximum(requests, 1.0)), np.log2(counts), exponents))


def matrix_slowdown(part: Accelerator, limit: Watts | None) -> Ratio:
    """Return the matrix rate at the rating over that under a power limit.

    Linear between measured limits, a power of rating / limit outside them.

    Examples
    --------
    >>> part = load_accelerator("rtx-pro-6000-ws")
    >>> round(matrix_slowdown(part, 300.0), 3), matrix_slowdown(part, None)
    (1.813, 1.0)
    >>> round(matrix_slowdown(load_accelerator("h100-sxm"), 350.0), 3)
    1.582
    """
    check_limit(part, limit)
    if limit is None or part.tdp is None or limit == part.tdp:
        return 1.0
    powers, rates = _sweep(part)
    inside = float(np.interp(part.tdp, powers, rates) / np.interp(limit, powers, rates)) if powers else 1.0
    return inside * math.exp(_exponents()[0] * _unmeasured(part, limit))


def decoding_slowdown(part: Accelerator, limit: Watts | None, requests: np.ndarray) -> np.ndarray:
    """Return the decode step time under a power limit over that at the rating.

    Linear between measured limits and log concurrencies, constant outside; 1 without requests. Limits that were not
    measured in serving take a power of rating / limit.

    Notes
    -----
    Measured with one model on one number of GPUs (see the accelerator's source). Not modelled: dependence on the model.

    Examples
    --------
    >>> part = load_accelerator("rtx-pro-6000-ws")
    >>> decoding_slowdown(part, 300.0, np.array([0.0, 1.0, 4.0, 64.0])).round(3).tolist()
    [1.0, 1.04, 1.04, 1.3]
    >>> decoding_slowdown(part, 500.0, np.array([64.0])).round(3).tolist()
    [1.008]
    """
    check_limit(part, limit)
    amounts = np.asarray(requests, dtype=float)
    if limit is None or part.tdp is None or limit == part.tdp:
        return np.ones_like(amounts)
    if not part.power_served:
        slowdown = (part.tdp / limit) ** _decode_exponent(amounts)
    else:
        many = sorted({one.requests for one in part.power_served})
        slower = []
        for count in many:
            rows = sorted((one.power, one.speed) for one in part.power_served if one.requests == count)
            powers, speeds = zip(*rows, strict=True)
            slower.append(np.interp(part.tdp, powers, speeds) / np.interp(limit, powers, speeds))
        slowdown = np.interp(np.log2(np.maximum(amounts, 1.0)), np.log2(many), slower)
        slowdown = slowdown * np.exp(_decode_exponent(amounts) * _unmeasured(part, limit))
    return np.where(amounts > 0, np.maximum(slowdown, 1.0), 1.0)


def limit_deviation(
    part: Accelerator, limit: Watts | None, kind: str, requests: np.ndarray | Ratio
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log distances of a slow-down to its bounds, none if measured.

    From the predicted slow-down down to none, and up to one in proportion to the power.

    Examples
    --------
    >>> low, high = limit_deviation(load_accelerator("h100-sxm"), 350.0, "prefill", 1.0)
    >>> round(float(low + high), 3) == round(math.log(2), 3)
    True
    """
    amounts = np.asarray(requests, dtype=float)
    if limit is None or limit_measured(part, limit):
        return np.zeros_like(amounts), np.zeros_like(amounts)
    exponent = _decode_exponent(amounts) if kind == "decode" else np.full_like(amounts, _exponents()[0])
    return _unmeasured(part, limit) * exponent, _unmeasured(part, limit) * (1.0 - exponent)


def limited(
    timed: StepTime, arithmetic: Sequence[int], requests: np.ndarray, part: Accelerator, limit: Watts
) -> StepTime:
    """Return step times under a power limit.

    The slow-down is the larger of the arithmetic's and the measured decode slow-down; the breakdown is that at the
    rating.

    Examples
    --------
    >>> part, steps = load_accelerator("rtx-pro-6000-ws"), StepTime(np.ones(2), np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> limited(steps, (0,), np.array([4.0, 0.0]), part, 300.0).seconds.round(3).tolist()
    [1.04, 1.813]
    """
    share = timed.shares[:, list(arithmetic)].sum(axis=1)
    by_flop = 1.0 + share * (matrix_slowdown(part, limit) - 1.0)
    return StepTime(timed.seconds * np.maximum(by_flop, decoding_slowdown(part, limit, requests)), timed.shares)
