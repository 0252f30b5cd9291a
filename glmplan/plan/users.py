"""The table over users, and how many users are safe."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from glmplan.plan.capacity import Holding, contexts_of
from glmplan.plan.plan import Limit, Safe, UserRow
from glmplan.plan.question import Asked
from glmplan.plan.ranking import predicted
from glmplan.prediction.predict import Figure, Prediction

__all__ = [
    "TARGET_TPOT",
    "TARGET_TTFT",
    "binding_words",
    "grid_of",
    "no_less",
    "predictions_of",
    "safe_users",
    "user_table",
    "usual_promise",
]

#: slowest speed that a reader accepts: 10 tokens per second [s]
TARGET_TPOT = 0.1
#: wait for the first token beyond which requests count as queueing, unless one user alone waits a third of it [s]
TARGET_TTFT = 10.0
_MOST = 512
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


def grid_of(asked: Asked, holding: Holding) -> tuple[int, ...]:
    """Numbers of users that are predicted: powers of two as far as the safe number may lie, whichever are asked for.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.

    Returns
    -------
    tuple of int
        Rising, [-]
    """
    most = int(max(min(holding.held, _most_requests(asked, holding), _MOST), 1))
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


def _most_requests(asked: Asked, holding: Holding) -> int:
    return asked.defaults.places * holding.terms.dp * holding.terms.replicas


def _running(asked: Asked, holding: Holding) -> float:
    """Requests that run at once: what the pool holds of the stated request, and the engine's own limit."""
    held = holding.held * asked.user_tokens / asked.request_tokens
    return max(min(held, _most_requests(asked, holding)), 1.0)


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


def safe_users(asked: Asked, holding: Holding, found: dict[int, Prediction]) -> Safe:
    """Find how many users are safe, and what limits them.

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
    Safe
        Safe and expected number.

    Notes
    -----
    Three limits: the pool at its low end holds every user's whole request (``kv``); a token takes at most 100 ms at the
    slow end of the interval (``tpot``; answers of one token have no such limit); no request waits for a place, and the
    first token comes within 10 s or three times what one user alone waits, in the mean and at the slow end
    (``queue``). Between predicted numbers of users times are interpolated.
    """
    counts = np.array(sorted(found), dtype=float)
    tpots = [found[int(number)].figures.get("tpot") for number in counts]
    ttfts = [found[int(number)].figures.get("ttft") for number in counts]
    seats = _most_requests(asked, holding)
    limits = {}
    for end in ("value", "high"):
        kv = int(holding.held_low if end == "high" else holding.held)
        queue = seats
        if ttfts[0] is not None:
            waits = np.array([getattr(one, end) for one in ttfts if one is not None])
            queue = min(seats, _largest(counts, waits, _longest_wait(waits[0])))
        limits[end] = {"kv": kv, "queue": queue}
        if tpots[0] is not None:
            gaps = np.array([getattr(one, end) for one in tpots if one is not None])
            limits[end]["tpot"] = _largest(counts, gaps, TARGET_TPOT)
    mean = limits["value"]
    # where one user alone may wait long, three times as long is no promise: what fails in the mean is not safe
    bad = {name: min(limit, mean[name]) for name, limit in limits["high"].items()}
    words = {
        "kv": f"requests of {asked.user_tokens:,} tokens that the low end of the cache pool holds",
        "tpot": f"at {1 / TARGET_TPOT:g} tok/s for each user, slow end of the interval"
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
        target_tpot=TARGET_TPOT,
    )


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
    'ttft mean < 12 s, tpot mean < 100 ms'
    """
    words = []
    if (first := alone.figures.get("ttft")) is not None:
        words.append(f"ttft mean < {_longest_wait(first.value):.4g} s")
    if "tpot" in alone.figures:
        words.append(f"tpot mean < {TARGET_TPOT * 1e3:g} ms")
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
