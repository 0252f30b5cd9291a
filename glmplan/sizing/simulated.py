"""Loads of a sweep that are simulated: what `glmplan simulate` says of each, and how surely a promise is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glmplan.errors import SpecError
from glmplan.facts.files import read_bytes
from glmplan.plan.arriving import read_traffic
from glmplan.plan.ask import Deployed
from glmplan.plan.described import described_under
from glmplan.plan.question import Words
from glmplan.plan.ranking import deployment_of
from glmplan.plan.safe_loads import kept_of
from glmplan.serving.load_trial import UNJUDGED
from glmplan.serving.outcome_range import outcome_range
from glmplan.serving.simulate import simulate
from glmplan.serving.traffic.promises import parse_slo
from glmplan.serving.traffic.spec import Traffic

__all__ = ["PROMISED", "STATISTICS", "Arriving", "Simulated", "Simulation", "arrivals_of", "simulated"]

#: statistics of a simulated load that become columns, under the names that `glmplan simulate` gives them
STATISTICS: tuple[str, ...] = (
    *(f"{time}_{part}_ms" for time in ("ttft", "tpot", "itl", "e2e") for part in ("p50", "p95", "p99")),
    *("queue_p95_ms", "requests_per_s", "batch_mean", "kv_occupancy_max", "cached_share", "preemptions", "rejected"),
)
#: columns that need a promise
PROMISED: tuple[str, ...] = ("goodput_share", "probability")
#: kinds of traffic that count users, and so may take them from the axis of users
_USERS = ("closed", "sessions")
#: requests that are simulated of traffic that is no closed loop, as `glmplan simulate` does [-]
_REQUESTS = 1000
#: requests that are simulated for each user of a closed loop [-]
_EACH = 10
#: more requests than any trace holds: it is replayed whole, as by `glmplan simulate` [-]
_WHOLE_TRACE = 1 << 40
#: fields of traffic that name files
_FILES = ("file", "lengths")


class Arriving(NamedTuple):
    """A load of a simulated sweep.

    Attributes
    ----------
    traffic : str
        Kind of traffic with its number, as `glmplan simulate` takes it.
    input, output : int
        Prompt and answer of a request, [token]
    """

    traffic: str
    input: int
    output: int


@dataclass(frozen=True)
class Simulation:
    """How the loads of a sweep are simulated.

    Attributes
    ----------
    slo : str
        A promise; empty for none.
    requests : int or None
        Requests of each load, [-]; None takes as many as `glmplan simulate` does
    seed : int
        Seed, [-]
    shape : dict
        Further fields of `glmplan.serving.traffic.spec.Traffic`.
    places : dict of str to str
        File that was written → where it lies; only where that is elsewhere, as on a worker of a cluster.
    """

    slo: str = ""
    requests: int | None = None
    seed: int = 0
    shape: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def traffic(self, load: Arriving) -> Traffic:
        """What arrives.

        Parameters
        ----------
        load : Arriving
            The load.

        Returns
        -------
        Traffic
            With the fields that all loads share.

        Raises
        ------
        SpecError
            If it is no traffic, or its fields stand in a file.

        Examples
        --------
        >>> Simulation(shape={"think": "2 s"}).traffic(Arriving("closed:8", 1000, 200)).think
        2.0
        """
        kind = load.traffic.partition(":")[0]
        if kind.endswith(".toml"):
            message = "stands in a file: write its kind and its fields with commas, as in poisson:2/s,jitter=0.2"
            raise SpecError(message, field="--traffic", value=load.traffic)
        # a recording has lengths of its own, which are no words of the question
        lengths = {} if kind == "trace" else {"input": load.input, "output": load.output}
        found = read_traffic(load.traffic, **lengths, **self.shape)
        moved = {name: self.places[one] for name in _FILES if (one := getattr(found, name)) in self.places}
        return found.model_copy(update=moved) if moved else found

    def files(self, loads: Iterable[Arriving]) -> dict[str, bytes]:
        """Content of the files that loads are read from.

        Parameters
        ----------
        loads : iterable of Arriving
            The loads.

        Returns
        -------
        dict of str to bytes
            File, as it was written → what stands in it.

        Raises
        ------
        SpecError
            If one cannot be read.
        """
        found = [getattr(self.traffic(one), name) for one in loads for name in _FILES]
        return {name: read_bytes(name) for name in dict.fromkeys(found) if name is not None}


@dataclass(frozen=True)
class Simulated:
    """What came out of a simulated load.

    Attributes
    ----------
    planned : Deployed
        The plan under that traffic.
    figures : dict of str to float
        Means with the ends of their 90 % range in base units, [s] and [token/s], and `STATISTICS`.
    """

    planned: Deployed
    figures: dict[str, float]


def arrivals_of(
    kinds: tuple[str, ...], users: tuple[int, ...] | None, lengths: list[tuple[int, int]]
) -> list[Arriving]:
    """Every load of a simulated sweep.

    Parameters
    ----------
    kinds : tuple of str
        Kinds of traffic, with their number or, of those that count users, without.
    users : tuple of int or None
        Users for kinds that do not say how many, [-]
    lengths : list of tuple of int
        Prompt and answer of a request, [token]

    Returns
    -------
    list of Arriving
        The loads.

    Raises
    ------
    SpecError
        If users are said beside a kind that has its own number, or no kind needs them.

    Examples
    --------
    >>> [one.traffic for one in arrivals_of(("sessions,turns=4", "poisson:2/s"), (4, 8), [(1000, 200)])]
    ['sessions:4,turns=4', 'sessions:8,turns=4', 'poisson:2/s']
    """
    found, used = [], False
    for inputs, outputs in lengths:
        for word in kinds:
            kind, comma, rest = word.partition(",")
            if kind not in _USERS:
                found.append(Arriving(word, inputs, outputs))
                continue
            used = True
            found += [Arriving(f"{kind}:{count}{comma}{rest}", inputs, outputs) for count in users or (1,)]
    if users is not None and not used:
        message = (
            f"is said beside --traffic {', '.join(kinds)}, of which each has its own number: write closed or sessions"
        )
        raise SpecError(message, field="--users", value=", ".join(map(str, users)))
    return found


def _usual_requests(arriving: Traffic) -> int:
    if arriving.kind == "trace":
        return _WHOLE_TRACE
    return _EACH * arriving.users if arriving.kind == "closed" and arriving.users else _REQUESTS


def simulated(model: str, on: str, said: Mapping[str, Any], load: Arriving, how: Simulation) -> Simulated:
    """Plan for a load and simulate it.

    Parameters
    ----------
    model, on : str
        As in `glmplan.fit`.
    said : mapping
        Further words of the question, as `glmplan.plan.question.Words` takes them.
    load : Arriving
        The load.
    how : Simulation
        Requests, seed and promise.

    Returns
    -------
    Simulated
        The same plan and statistics as of `glmplan simulate` with the same words.

    Raises
    ------
    SpecError
        If a word is wrong.
    DoesNotFit
        If no layout holds one request.
    UnknownFact
        If a speed of the machine is not published.

    Examples
    --------
    >>> load = Arriving("poisson:2/s", 500, 50)
    >>> found = simulated("llama-3.1-8b", "1xh100-sxm", {}, load, Simulation(requests=50, slo="ttft p95 < 2 s"))
    >>> found.figures["probability"], found.figures["ttft_low"] < found.figures["ttft"] < found.figures["ttft_high"]
    (1.0, True)
    """
    described, [arriving] = described_under(Words(model, on, **said), [how.traffic(load)])
    targets = parse_slo(how.slo) if how.slo else ()
    requests = how.requests or _usual_requests(arriving)
    outcome = simulate(described.service, arriving, requests=requests, seed=how.seed, targets=targets)
    if outcome.interrupted:
        raise KeyboardInterrupt
    summary = outcome.summary
    ranges: dict[str, tuple[float, float]] = {}
    if summary["requests"]:
        interval = (described.low, described.high)
        ranges = outcome_range(
            described.service, arriving, summary, interval=interval, requests=requests, seed=how.seed
        )
    figures = {name: float(summary.get(name, math.nan)) for name in STATISTICS}
    for name, title, factor in (("ttft", "ttft_mean_ms", 1e-3), ("tpot", "tpot_mean_ms", 1e-3),
                                ("output_rate", "output_tokens_per_s", 1.0)):  # fmt: skip
        low, high = ranges.get(title, (math.nan, math.nan))
        ends = (("", summary.get(title, math.nan)), ("_low", low), ("_high", high))
        figures |= {name + end: factor * float(value) for end, value in ends}
    if targets:
        figures["goodput_share"] = float(summary.get("goodput_share", math.nan))
        short = arriving.kind == "trace" and summary["requests"] + summary["rejected"] <= UNJUDGED
        kept = math.nan if short else kept_of(described, arriving, targets, seed=how.seed).probability
        figures["probability"] = kept
    assert described.plan is not None  # nothing is told to the simulator alone
    asked, holding = described.plan
    return Simulated(Deployed(asked, holding, deployment_of(asked, holding.terms)), figures)
