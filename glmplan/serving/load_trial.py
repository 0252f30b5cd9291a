"""One try of a load: does a simulated service keep its promise, by how much, and what is the most that it can serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from glmplan.errors import SpecError
from glmplan.serving.crowding import Crowd
from glmplan.serving.misses import Missed, Misses
from glmplan.serving.service import Service
from glmplan.serving.simulate import Outcome, simulate
from glmplan.serving.traffic.arrivals import CHUNK, dispersion
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic

__all__ = [
    "JUMPS",
    "OPEN",
    "OVERLOAD",
    "SETTLED",
    "THRASH",
    "UNFINISHED",
    "Trial",
    "capacity",
    "crowd",
    "enough",
    "exceeded",
    "places",
    "try_load",
]

#: kinds of traffic whose arrivals do not wait for answers
OPEN = ("poisson", "gamma", "onoff", "daily")
#: what is broken where more arrives than is served
OVERLOAD = "overload"
#: what is broken where requests compute again
THRASH = "kv thrash"
#: what breaks at once, so that no margin tells it beforehand
JUMPS = (THRASH, "clients leave", OVERLOAD, "requests do not fit")

_THRASH = 0.05  # preemptions for each request from which the pool thrashes
_LEFT = 0.05  # share of the clients that leave from which a load is not safe
_FAR = 3.0  # a margin that says no more than "far away"
UNFINISHED = 1e-9  # margin of a run that ended once its promise was surely missed: by how much is not known
UNJUDGED = 200  # first requests of a stream that are not judged
SETTLED = 1500  # requests of an open stream that are judged
_QUEUED = 0.01  # share of a run that requests wait from which it is looked whether the queue grows without end
_MOST_USERS = 1024  # users of the closed loop that finds what can be served


@dataclass(frozen=True, slots=True)
class Trial:
    """What one simulated service did under one load.

    Parameters
    ----------
    load : float
        Users, [-], rate, [1/s], or speed of a trace, [-]
    margin : float
        Logarithm of the worst statistic over its bound, preemptions among them: below 0 the promise is kept, [-]
    broken : str
        The target that is missed by most, `kv thrash`, `clients leave`, `overload` or `requests do not fit`; empty if
        none.
    summary : dict
        Statistics, in the units of their names.
    nearest : str
        What is broken, or comes nearest to it where nothing is.
    margins : dict
        Logarithm of each statistic over its bound by target, and of preemptions where there are some, [-]
    """

    load: float
    margin: float
    broken: str
    summary: dict[str, float]
    nearest: str = ""
    margins: dict[str, float] = field(default_factory=dict)


def places(service: Service) -> int:
    """Requests that run at once on all replicas.

    Parameters
    ----------
    service : Service
        The service.

    Returns
    -------
    int
        [-]

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> places(Service(StepTable.affine(base=0.01), KvPool(1000), EngineSettings(max_num_seqs=8, replicas=2)))
    16
    """
    settings = service.settings
    return settings.max_num_seqs * (settings.replicas - settings.prefill_replicas)


def capacity(service: Service, traffic: Traffic) -> float:
    """Requests, or sessions, that the service can finish in a second when as many wait as it can take.

    Parameters
    ----------
    service : Service
        The service.
    traffic : Traffic
        What arrives; its lengths are used.

    Returns
    -------
    float
        [1/s]; 0 if no request fits. Of a day the mean rate at which its busiest part is just finished.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(10**6), EngineSettings(max_num_seqs=4))
    >>> round(capacity(service, Traffic(kind="poisson", rate=1, input=16, output=100)), 2)  # 4 requests in 100 steps
    4.0
    """
    held = service.pool.tokens * service.settings.replicas / (traffic.input + traffic.output / 2)
    users = int(min(2 * max(min(places(service), held), 1), _MOST_USERS))
    changes: dict[str, object] = {"users": users, "rate": None, "ramp": 0.0}
    if traffic.kind != "sessions":
        changes |= {"kind": "closed", "think": 0.0}
    # lengths that are all alike make waves, whose crests are not what is served in the mean
    saturated, alike = traffic.unmarked.model_copy(update=changes), 1
    if saturated.plain and not service.settings.prefill_replicas:
        # replicas that are all as full serve as much as one does, each
        alike, service = service.settings.replicas, service.under(saturated)
        users = math.ceil(users / alike)
        saturated = saturated.model_copy(update={"users": users})
        service = replace(service, settings=replace(service.settings, replicas=1), few=None)
    outcome = simulate(service, saturated, requests=6 * users, keep=True, fast=False)
    if outcome.interrupted:
        raise KeyboardInterrupt  # a part of a run is no measure of it
    rows = outcome.requests
    if rows is None or len(rows["finish"]) < 4 * users:
        return 0.0
    ends = np.sort(rows["finish"])
    first, last = users, len(ends) - users
    served = alike * float((last - first) / (ends[last - 1] - ends[first - 1])) / traffic.peak
    return served / traffic.turns if traffic.kind == "sessions" else served


def exceeded(service: Service, traffic: Traffic, summary: Mapping[str, float]) -> float | None:
    """What is served at most, where more than that arrives: then times grow with the length of a simulation.

    Parameters
    ----------
    service : Service
        The service.
    traffic : Traffic
        What arrives.
    summary : mapping
        Statistics of the simulation, [ms] and [s] as their names say.

    Returns
    -------
    float or None
        Requests, or sessions, [1/s]; None where it bears what arrives.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(10**6), EngineSettings(max_num_seqs=4))
    >>> for rate in (3.0, 8.0):
    ...     traffic = Traffic(kind="poisson", rate=rate, input=16, output=100)
    ...     found = exceeded(service, traffic, simulate(service, traffic, requests=400).summary)
    ...     print(found and round(found, 1))
    None
    4.0
    """
    if traffic.rate is None or not summary["requests"]:
        return None
    if not summary["queue_p95_ms"] * 1e-3 > _QUEUED * summary["duration_s"]:
        return None
    most = capacity(service, traffic)
    return most if traffic.rate > most else None


def try_load(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    load: float,
    seed: int,
    *,
    most: float = math.inf,
    late: float = 1.0,
    verdict: bool = False,
    settled: int = SETTLED,
) -> Trial:
    """Simulate one load and compare what users see with what they are promised.

    Parameters
    ----------
    service : Service
        The service.
    traffic : Traffic
        What arrives; see `Traffic.at_load`.
    targets : tuple of Target
        The promise.
    load : float
        Users, [-], rate, [1/s], or speed of a trace, [-]
    seed : int
        Seed, [-]
    most : float, optional
        What the service can serve at most, [1/s]
    late : float, optional
        How many times later first tokens come than steps alone say, [-]
    verdict : bool, optional
        Whether no more is wanted than if the promise is kept: where it surely is not, the run may end early.
    settled : int, optional
        Requests of a stream that are judged, [-]

    Returns
    -------
    Trial
        Statistics and margin; of a run that ended early `UNFINISHED`.

    Raises
    ------
    SpecError
        If a trace holds no more requests than those that are not judged.

    Notes
    -----
    The start-up burst of a closed loop is not judged, nor the first 200 arrivals of a stream, and more where more of it
    is judged: what is promised is the steady state. Of a day it is that of its busiest part, as if it lasted: a promise
    that is kept at night is none.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> from glmplan.serving.traffic.promises import parse_slo
    >>> service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=1, input=16, output=64)
    >>> try_load(service, traffic, parse_slo("tpot p95 < 30 ms"), 100, 0).broken
    'tpot p95 < 30 ms'
    """
    at = traffic.at_load(load).busiest
    if at.users is not None:
        warm = at.users
        count = warm + max(400, min(6 * warm, max(2000, 2 * warm)))
    else:
        warm, count = _judged(settled)
    if load >= most:
        # where no request fits at all, every load is as far too large as another
        above = math.log(load / most) + 0.01 if most > 0 else _FAR
        return Trial(load, min(above, _FAR), OVERLOAD, {"requests": 0.0})
    watch = Misses(targets, count - warm, warm, late) if verdict and _tells(at) else None
    try:
        outcome = _served(service, at, count, warm, seed, watch)
    except Missed as missed:
        return Trial(load, UNFINISHED, str(missed.target), {"requests": 0.0})
    if outcome.interrupted:
        raise KeyboardInterrupt  # a part of a run judges no load
    summary = outcome.summary
    if at.kind == "trace" and not summary["requests"] and not summary["rejected"]:
        raise SpecError(f"holds too few requests: the first {warm} are not judged", file=str(at.file))
    summary |= {name: late * each for name, each in summary.items() if name.startswith("ttft_")}
    margin, nearest, margins = _margin(summary, targets)
    broken = nearest if margin > 0 else ""
    return Trial(load, margin, broken, outcome.summary, nearest, margins)


def _judged(settled: int) -> tuple[int, int]:
    """First requests of a stream that are not judged, and all: a stream that begins in a burst settles more slowly."""
    skipped = round(UNJUDGED * max(settled / SETTLED, 1.0))
    return skipped, skipped + settled


def enough(traffic: Traffic, rate: float) -> int:
    """Requests of an open stream that are judged: more under bursts, of which a run is to hold many.

    Parameters
    ----------
    traffic : Traffic
        What arrives.
    rate : float
        About how many arrive, [1/s]

    Returns
    -------
    int
        Those of a Poisson stream times the square root of the index of dispersion, up to what is drawn at once. For
        means of a run to scatter no more than under a Poisson stream it would take as many times more as the index
        itself says, [-]

    Examples
    --------
    >>> enough(Traffic(kind="poisson", rate=1.0), 5.0), enough(Traffic(kind="gamma", rate=1.0, cv=3.0), 5.0)
    (1500, 4500)
    """
    if traffic.kind not in OPEN or not 0 < rate < math.inf:
        return SETTLED
    longer = math.sqrt(max(dispersion(traffic.at_load(rate)), 1.0))
    return round(min(SETTLED * longer, CHUNK * SETTLED / (SETTLED + UNJUDGED)))


def crowd(traffic: Traffic, load: float, stay: float, settled: int, pool: float = 0.0, **draws: int) -> Crowd | None:
    """How many are there at once under the arrivals that trials draw.

    Parameters
    ----------
    traffic : Traffic
        What arrives.
    load : float
        Its rate, [1/s]
    stay : float
        How long one stays, [s]
    settled : int
        Requests that are judged, [-]
    pool : float, optional
        Tokens that all replicas hold, where it is asked how hard they are pressed, [token]
    **draws : int
        `draws` as `Crowd` takes it, [-]

    Returns
    -------
    Crowd or None
        None of other traffic than open streams.

    Examples
    --------
    >>> crowd(Traffic(kind="closed", users=3), 3.0, 2.0, 1500) is None
    True
    """
    if traffic.kind not in OPEN:
        return None
    skipped, count = _judged(settled)
    return Crowd(traffic, load, stay, count, skipped, pool, **draws)


def _tells(at: Traffic) -> bool:
    """Whether what has finished says at once how late its first tokens are: as many are always in flight."""
    return at.kind == "closed" and not at.think and at.patience is None


def _served(
    service: Service, at: Traffic, requests: int, warmup: int, seed: int, watch: Misses | None = None
) -> Outcome:
    """Run a load. Where nobody waits as long as clients do, clients who wait for ever see the same, much sooner."""
    calm = at.model_copy(update={"patience": None})
    if at.patience is not None and calm.plain and service.under(calm).settings.plain:
        outcome = simulate(service, calm, requests=requests, warmup=warmup, seed=seed, fast=False, keep=True)
        rows = outcome.requests
        if rows is None or (rows["first"] - rows["arrival"]).max(initial=0.0) < at.patience:
            return replace(outcome, summary=outcome.summary | {"left": 0})
    return simulate(service, at, requests=requests, warmup=warmup, seed=seed, fast=False, watch=watch)


def _margin(summary: dict[str, float], targets: tuple[Target, ...]) -> tuple[float, str, dict[str, float]]:
    """Logarithm of the worst statistic over its bound, which one it is, and that of all."""
    if not summary["requests"]:
        return _FAR, "requests do not fit", {}
    margins = {}
    for target in targets:
        value = summary[target.name] / (target.bound * 1000)
        margins[str(target)] = math.log(value) if value > 0 else -_FAR if value == 0 else _FAR
    share = summary["preemptions"] / summary["requests"]
    if share > 0:
        margins[THRASH] = math.log(share / _THRASH)
    name = max(margins, key=lambda name: margins[name])
    worst = margins[name]
    if margins.get(THRASH, 0.0) > 0:
        return min(worst, _FAR), THRASH, margins
    gone = summary.get("left", 0.0) / (summary["requests"] + summary.get("left", 0.0))
    if gone > _LEFT:
        return min(max(worst, math.log(gone / _LEFT)), _FAR), "clients leave", margins
    return min(worst, _FAR), name, margins
