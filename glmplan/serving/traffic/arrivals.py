"""Sample traffic: arrival times and lengths, chunk by chunk, so ten million requests need no more room than a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.files import read_table
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import finite_number

#: requests that are drawn at once: how many decides how random numbers are spent [-]
CHUNK = 16_384
#: longest prompt or answer that is drawn, far beyond any context [token]
_LONGEST = 1 << 31

__all__ = ["CHUNK", "Chunk", "arrival_times", "dispersion", "draw_lengths", "request_chunks"]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some consecutive requests.

    Parameters
    ----------
    arrival : ndarray or None
        When each arrives; None in a closed loop, where a finish decides, [s]
    input_tokens : ndarray
        Prompt lengths, [token]
    output_tokens : ndarray
        Answer lengths, [token]
    """

    arrival: np.ndarray | None
    input_tokens: np.ndarray
    output_tokens: np.ndarray


def _length_file(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of a CSV with `input_tokens` and `output_tokens`."""
    header, *lines = read_table(path) or [[]]
    places = []
    for column in ("input_tokens", "output_tokens"):
        if column not in header:
            raise SpecError("is missing", file=path, field=column, choices=header)
        places.append(header.index(column))
    rows = []
    for number, line in enumerate(lines, 2):
        try:
            rows += [[finite_number(line[place], header[place]) for place in places]] if line else []
        except (IndexError, SpecError):
            raise SpecError("holds a length that is not a finite number", file=path, field=f"line {number}") from None
    table = np.array(rows, dtype=float)
    if not len(table):
        raise SpecError("holds no requests", file=path)
    if np.any(table < 1):
        bad = int(np.argmax((table < 1).any(axis=1)))
        raise SpecError("is not a length of at least 1", file=path, field=f"line {bad + 2}", value=rows[bad])
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)


def draw_lengths(traffic: Traffic) -> Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]:
    """Make the sampler of prompt and answer lengths.

    Parameters
    ----------
    traffic : Traffic
        The spec.

    Returns
    -------
    callable
        Takes a count and a generator; returns input and output lengths, [token]

    Raises
    ------
    SpecError
        If a file of lengths cannot be used.

    Examples
    --------
    >>> draw = draw_lengths(Traffic(kind="closed", users=1, input=100, output=10, jitter=0.2))
    >>> inputs, outputs = draw(1000, np.random.default_rng(0))
    >>> int(inputs.min()), int(inputs.max())
    (80, 100)
    """
    if traffic.lengths:
        inputs, outputs = _length_file(traffic.lengths)

        def resample(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
            rows = generator.integers(len(inputs), size=count)
            return inputs[rows], outputs[rows]

        return resample

    def one(nominal: int, cv: float, count: int, generator: np.random.Generator) -> np.ndarray:
        if cv:
            sigma = np.sqrt(np.log1p(cv * cv))
            drawn = generator.lognormal(np.log(nominal) - sigma * sigma / 2, sigma, count)
            return np.clip(np.rint(drawn), 1, _LONGEST).astype(np.int64)
        least = max(1, int(round(nominal * (1 - traffic.jitter))))
        return generator.integers(least, nominal + 1, count)

    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return (
            one(traffic.input, traffic.input_cv, count, generator),
            one(traffic.output, traffic.output_cv, count, generator),
        )

    return draw


def arrival_times(traffic: Traffic, generator: np.random.Generator) -> Callable[[int], np.ndarray]:
    """Make the sampler of arrival times of an open stream.

    Parameters
    ----------
    traffic : Traffic
        Spec of kind `poisson`, `gamma`, `onoff` or `daily`, or sessions with a rate.
    generator : Generator
        Source of randomness.

    Returns
    -------
    callable
        Takes a count; returns the next so many times, rising, [s]

    Notes
    -----
    Bursts and silences of `onoff` last exponential times; within a burst arrivals are Poisson at the rate that makes
    the mean over both the rate of the spec. `daily` maps a Poisson stream of rate one through the inverse of the
    accumulated load of the profile.

    Examples
    --------
    >>> times = arrival_times(Traffic(kind="poisson", rate=2.0), np.random.default_rng(0))
    >>> bool(450 < times(1000)[-1] < 550)
    True
    """
    rate = float(traffic.rate or 0)
    last = 0.0

    def renewal(gaps: Callable[[int], np.ndarray]) -> Callable[[int], np.ndarray]:
        def take(count: int) -> np.ndarray:
            nonlocal last
            times = last + gaps(count).cumsum()
            last = float(times[-1]) if count else last
            return times

        return take

    if traffic.kind == "gamma":
        shape = 1 / traffic.cv**2
        return renewal(lambda count: generator.gamma(shape, 1 / (shape * rate), count))
    if traffic.kind == "onoff":
        busy = renewal(lambda count: generator.exponential(traffic.on / (traffic.on + traffic.off) / rate, count))
        on_end, silence = generator.exponential(traffic.on), 0.0

        def bursts(count: int) -> np.ndarray:
            nonlocal on_end, silence
            within = busy(count)
            ends, before = [on_end], [silence]
            while ends[-1] <= within[-1]:
                ends.append(ends[-1] + generator.exponential(traffic.on))
                before.append(before[-1] + generator.exponential(traffic.off))
            on_end, silence = ends[-1], before[-1]
            return within + np.array(before)[np.searchsorted(ends, within, side="right")]

        return bursts
    if traffic.kind == "daily":
        load = np.array(traffic.profile) / np.mean(traffic.profile)
        edges = np.linspace(0, 86_400, len(load) + 1)
        reached = np.r_[0, (load * np.diff(edges) * rate).cumsum()]
        keep = np.r_[True, np.diff(reached) > 0]
        unit = renewal(lambda count: generator.exponential(1.0, count))

        def through_the_day(count: int) -> np.ndarray:
            days, rest = np.divmod(unit(count), reached[-1])
            return days * 86_400 + np.interp(rest, reached[keep], edges[keep])

        return through_the_day
    return renewal(lambda count: generator.exponential(1 / rate, count))


def dispersion(traffic: Traffic) -> float:
    """Index of dispersion of an open stream: variance over mean of how many arrive in a long time.

    Parameters
    ----------
    traffic : Traffic
        Spec with a rate.

    Returns
    -------
    float
        1 for Poisson streams, more under bursts, [-]

    References
    ----------
    .. [1] D. Cox, P. Lewis, "The Statistical Analysis of Series of Events", Methuen 1966: of a renewal stream it is the
       square of the coefficient of variation of its gaps.
    .. [2] W. Fischer, K. Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", Performance
       Evaluation 18 (1993) 149-171: of bursts and silences that last exponential times.

    Examples
    --------
    >>> dispersion(Traffic(kind="gamma", rate=1.0, cv=3.0))
    9.0
    >>> dispersion(Traffic(kind="onoff", rate=2.0, on=10.0, off=30.0))
    91.0
    """
    if traffic.kind == "gamma":
        return traffic.cv**2
    if traffic.kind == "onoff":
        return 1.0 + 2.0 * float(traffic.rate or 0.0) * traffic.off**2 / (traffic.on + traffic.off)
    return 1.0


def request_chunks(traffic: Traffic, count: int, generator: np.random.Generator, size: int = CHUNK) -> Iterator[Chunk]:
    """Sample requests that have nothing to do with each other.

    Parameters
    ----------
    traffic : Traffic
        Spec of any kind but `trace` and `sessions`.
    count : int
        Requests in all, [-]
    generator : Generator
        Source of randomness.
    size : int, optional
        Requests of a chunk, [-]

    Yields
    ------
    Chunk
        Consecutive requests.

    Examples
    --------
    >>> chunks = request_chunks(Traffic(kind="poisson", rate=1.0), 10, np.random.default_rng(0), 4)
    >>> [len(chunk.input_tokens) for chunk in chunks]
    [4, 4, 2]
    """
    lengths = draw_lengths(traffic)
    times = arrival_times(traffic, generator) if traffic.kind != "closed" else None
    while count > 0:
        some = min(count, size)
        inputs, outputs = lengths(some, generator)
        yield Chunk(times(some) if times else None, inputs, outputs)
        count -= some
