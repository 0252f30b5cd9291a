"""The table over users, and how many users are safe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from glmplan.plan.capacity import Holding, contexts_of
from glmplan.plan.plan import Limit, Safe, UserRow
from glmplan.plan.question import Asked
from glmplan.plan.ranking import predicted, seats_of
from glmplan.prediction.predict import Figure, Prediction

__all__ = [
    "LOOKED_AT",
    "TARGET_TPOT",
    "TARGET_TTFT",
    "binding_words",
    "grid_of",
    "mean_bounds",
    "no_less",
    "places_of",
    "predictions_of",
    "safe_users",
    "user_table",
    "usual_bounds",
    "usual_promise",
]

#: slowest speed that a reader accepts: 10 tokens per second [s]
TARGET_TPOT = 0.1
#: wait for the first token beyond which requests count as queueing, unless one user alone waits a third of it [s]
TARGET_TTFT = 10.0
#: users that are looked at first: enough for all but small models [-]
LOOKED_AT = 512
_WORDS = {
    "launch": "launch and host overhead",
    "weights": "reading weights",
    "compute": "arithmetic",
    "cache": "reading the cache",
    "links": "links between cards",
    "host": "experts on the processors",
}


def predictions_of(asked: Asked, holding: Holding, counts: tuple[int, ...]) -> dict[int, Prediction]:
    """Predict several numbers of users at once.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    counts : tuple of int
        Numbers of users, [-]

    Returns
    -------
    dict of int to Prediction
        Users → prediction.
    """
    found = predicted(asked, [(holding, number) for number in counts])
    return _no_sooner(dict(zip(counts, found, strict=True)))


def _no_sooner(found: dict[int, Prediction]) -> dict[int, Prediction]:
    """The same, with no first token sooner than for fewer users.

    Users in step with each other wait for a decode step of the others only where they are few, and the mean over a
    bounded number of requests falls by up to a hundredth from two users to four: an effect of how the load is counted.
    """
    out: dict[int, Prediction] = {}
    before: Figure | None = None
    for number in sorted(found):
        one = found[number]
        first = one.figures.get("ttft")
        if first is not None:
            before = no_less(first, before)
            one = replace(one, figures={**one.figures, "ttft": before})
        out[number] = one
    return out


def no_less(figure: Figure, before: Figure | None) -> Figure:
    """A time that is at least another, at both ends of its interval too.

    Parameters
    ----------
    figure : Figure
        The time, [s]
    before : Figure or None
        What it is at least, [s]; None bounds nothing

    Returns
    -------
    Figure
        The larger of each, [s]
    """
    if before is None:
        return figure
    ends = {name: max(getattr(figure, name), getattr(before, name)) for name in ("value", "low", "high")}
    return replace(figure, **ends)


def grid_of(asked: Asked, holding: Holding, most: int = LOOKED_AT) -> tuple[int, ...]:
    """Numbers of users that are predicted: powers of two as far as the safe number may lie, whichever are asked for.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    most : int, optional
        The largest that is looked at, [-]

    Returns
    -------
    tuple of int
        Rising, [-]
    """
    most = int(max(min(holding.held, places_of(asked, holding), most), 1))
    powers = {1 << bit for bit in range(most.bit_length())}
    return tuple(sorted({*powers, most, 1}))


def user_table(asked: Asked, holding: Holding, found: dict[int, Prediction]) -> tuple[UserRow, ...]:
    """Make the table over users.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    found : dict of int to Prediction
        Predictions by users.

    Returns
    -------
    tuple of UserRow
        One row for each number that was asked for.
    """
    contexts = contexts_of(asked, holding, asked.users)
    rows = []
    for number, context in zip(asked.users, contexts, strict=True):
        one = found[number]
        tpot = one.figures.get("tpot")
        held = _running(asked, holding)
        rows.append(
            UserRow(
                users=number,
                running=int(min(number, held)),
                ttft=one.figures.get("ttft"),
                tpot=tpot,
                user_rate=tpot and Figure(1.0 / tpot.value, 1.0 / tpot.high, 1.0 / tpot.low),
                total_rate=one.figures["output_rate"],
                context=context,
                outside=one.out_of_domain,
                shares=one.shares,
            )
        )
    return tuple(rows)


def places_of(asked: Asked, holding: Holding) -> int:
    """Requests that run at once, by what the engine is told.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.

    Returns
    -------
    int
        Of all ranks of all servers that decode, [-]
    """
    return seats_of(asked, holding.terms.dp) * holding.terms.decoding


def _running(asked: Asked, holding: Holding) -> float:
    """Requests that run at once: what the pool holds of the stated request, and the engine's own limit."""
    held = holding.held * asked.user_tokens / asked.request_tokens
    return max(min(held, places_of(asked, holding)), 1.0)


def _largest(counts: np.ndarray, values: np.ndarray, target: float) -> int:
    """Largest number of users whose value stays at or below a target, between points in logarithms."""
    good = values <= target
    if not good[0]:
        return 0
    if good.all():
        return int(counts[-1])
    last = int(np.argmin(good)) - 1
    low, high = math.log(counts[last]), math.log(counts[last + 1])
    a, b = math.log(max(values[last], 1e-12)), math.log(max(values[last + 1], 1e-12))
    share = (math.log(target) - a) / (b - a) if b > a else 0.0
    return max(int(math.exp(low + share * (high - low)) + 1e-9), int(counts[last]))


def safe_users(
    asked: Asked, holding: Holding, found: Mapping[int, Prediction], bounds: Mapping[str, float] | None = None
) -> Safe:
    """Find how many users are safe, and what limits them.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    found : mapping of int to Prediction
        Predictions by users.
    bounds : mapping of str to float, optional
        Longest means of ``ttft`` and ``tpot`` that are promised; `usual_bounds` by default, [s]

    Returns
    -------
    Safe
        Safe and expected number.

    Notes
    -----
    Three limits, each at the bad end of its 90 % interval: the pool holds every user's whole request (``kv``); a token
    takes no longer than promised (``tpot``; answers of one token have no such limit); no request waits for a place, and
    the first token comes in time (``queue``). Between predicted numbers of users times are interpolated. The slow end
    of an interval of 90 % is passed by one machine in twenty, so that the number is that of a promise kept with 95 %.
    """
    alone = found[min(found)]
    bounds = usual_bounds(alone) if bounds is None else bounds
    in_mean = mean_bounds(alone, bounds)
    counts = np.array(sorted(found), dtype=float)
    seats = places_of(asked, holding)
    limits = {}
    for end in ("value", "high"):
        kv = int(holding.held_low if end == "high" else holding.held)
        limits[end] = {"kv": kv, "queue": seats}
        for metric, name in (("ttft", "queue"), ("tpot", "tpot")):
            times = [found[int(number)].figures.get(metric) for number in counts]
            if metric in bounds and times[0] is not None:
                values = np.array([getattr(one, end) for one in times if one is not None])
                bound = (bounds if end == "high" else in_mean)[metric]
                limits[end][name] = min(seats, _largest(counts, values, bound))
    mean = limits["value"]
    # where one user alone may wait long, three times as long is no promise: what fails in the mean is not safe
    bad = {name: min(limit, mean[name]) for name, limit in limits["high"].items()}
    target = bounds.get("tpot", TARGET_TPOT)
    words = {
        "kv": f"requests of {asked.user_tokens:,} tokens that the low end of the cache pool holds",
        "tpot": f"at {1 / target:.3g} tok/s for each user, slow end of the interval"
        + (" (no more were looked at)" if bad.get("tpot") == int(counts[-1]) else ""),
        "queue": "places in the engine, and the wait for the first token",
    }
    order = tuple(name for name in words if name in bad)
    binding = min(order, key=lambda name: bad[name])
    return Safe(
        users=max(min(bad.values()), 0),
        expected=max(min(mean.values()), 0),
        limit=binding,
        limits=tuple(Limit(name, int(bad[name]), words[name]) for name in order),
        target_tpot=target,
    )


def usual_bounds(alone: Prediction) -> dict[str, float]:
    """What a plan promises when nobody says otherwise: the longest means that count as usable.

    Parameters
    ----------
    alone : Prediction
        Of one user.

    Returns
    -------
    dict of str to float
        Of ``ttft``, where prompts can be timed, and of ``tpot``, where answers have a second token, [s]

    Notes
    -----
    A first token may take 10 s, or three times what one user alone waits where that is more, on a machine that is as
    slow as the interval allows: what one waits alone is no queue. Rounded up to four digits, so that the promise can be
    written.

    Examples
    --------
    >>> slow = Figure(4.0, 2.0, 5.00001)
    >>> usual_bounds(Prediction({"ttft": slow}, {}, 1.0, "", "", ""))
    {'ttft': 15.01}
    """
    bounds = {}
    if (first := alone.figures.get("ttft")) is not None:
        longest = _longest_wait(first.high)
        digit = 10.0 ** (math.floor(math.log10(longest)) - 3)
        bounds["ttft"] = float(f"{math.ceil(longest / digit - 1e-9) * digit:.4g}")
    if "tpot" in alone.figures:
        bounds["tpot"] = TARGET_TPOT
    return bounds


def mean_bounds(alone: Prediction, bounds: Mapping[str, float]) -> dict[str, float]:
    """What must hold in the mean where something is promised.

    Parameters
    ----------
    alone : Prediction
        Of one user.
    bounds : mapping of str to float
        What is promised, [s]

    Returns
    -------
    dict of str to float
        The same; of the first token no more than is usable by what one user alone waits in the mean, unless it is
        promised that users wait longer than usual, [s]
    """
    found, first = dict(bounds), alone.figures.get("ttft")
    if first is not None and "ttft" in found and found["ttft"] <= usual_bounds(alone)["ttft"]:
        found["ttft"] = min(found["ttft"], _longest_wait(first.value))
    return found


def _longest_wait(alone: float) -> float:
    """Longest wait for a first token that counts as usable, by what one user alone waits, [s]"""
    return max(TARGET_TTFT, 3.0 * alone)


def usual_promise(alone: Prediction) -> str:
    """The promise under which `safe_users` counts, as `glmplan safe --slo` takes it.

    Parameters
    ----------
    alone : Prediction
        Of one user.

    Returns
    -------
    str
        Means of the first token, where prompts can be timed, and of each further one.

    Examples
    --------
    >>> figures = {"ttft": Figure(4.0, 3.0, 5.0), "tpot": Figure(0.02, 0.01, 0.03)}
    >>> usual_promise(Prediction(figures, {}, 1.0, "", "", ""))
    'ttft mean < 15 s, tpot mean < 100 ms'
    """
    bounds, words = usual_bounds(alone), []
    if "ttft" in bounds:
        words.append(f"ttft mean < {bounds['ttft']:g} s")
    if "tpot" in bounds:
        words.append(f"tpot mean < {bounds['tpot'] * 1e3:g} ms")
    return ", ".join(words)


def binding_words(rows: tuple[UserRow, ...]) -> str:
    """Say what binds the step for the fewest and the most users.

    Parameters
    ----------
    rows : tuple of UserRow
        The table.

    Returns
    -------
    str
        The two largest shares of each.
    """
    parts = []
    for row in (rows[0], rows[-1]) if len(rows) > 1 else rows:
        top = sorted(row.shares.items(), key=lambda one: -one[1])[:2]
        text = " and ".join(f"{_WORDS.get(name, name)} {share:.0%}" for name, share in top)
        parts.append(f"{row.users} user{'s' if row.users > 1 else ''}: {text}")
    return "; ".join(parts)
