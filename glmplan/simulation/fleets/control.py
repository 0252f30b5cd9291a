"""Changes of a fleet: autoscaling, cold starts, faults and retries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from glmplan.simulation.engine.fleet import Fleet
from glmplan.simulation.fleets.spec import Autoscaler, Fault, FleetSpec
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds

__all__ = ["Change", "FleetControl", "GroupHistory", "Scaling"]


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a group."""

    at: float  # when, [s]
    group: str  # its name
    what: str  # `start`, `ready`, `drain`, `stop`, `crash`, `preempted`, `slow` or `normal`
    #: `ready`, `starting`: replicas that serve and that start, after it, [-]
    ready: int
    starting: int


@dataclass(slots=True)
class GroupHistory:
    """Counts of one group over a run."""

    replica_seconds: float = 0.0  # time of all replicas from the start of their machine to its end, [s]
    #: `starts`, `deaths`: cold starts and replicas that died, [-]
    starts: int = 0
    deaths: int = 0
    peak: int = 0  # most replicas that were paid for at one time, [-]
    paid_since: dict[int, float] = field(default_factory=dict)


class FleetControl:
    """The events of a run that are no requests.

    - `spec`: Groups with their cold starts and autoscalers, faults, retries.
    - `fleet`: The replicas; its `control` is set.
    - `generator`: Draws failures of kind `mtbf`.
    - `until`: End of the arrivals, after which nothing fails any more, [s]

    Notes
    -----
    A replica is paid from the start of its machine, cold start included, to its end. A request that a replica loses
    comes again after the backoff, from the beginning, until its retries are spent. Not modelled: tokens that a client
    had received before are not taken back, and retries of requests that the gateway rejected.
    """

    def __init__(self, spec: FleetSpec, fleet: Fleet, generator: np.random.Generator, until: Seconds) -> None:
        self._spec, self._fleet, self._until = spec, fleet, until
        self._generator = generator
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self.changes: list[Change] = []
        self.history = {group.name: GroupHistory() for group in spec.group}
        self.lost = self.retried = 0
        self._attempts: dict[int, int] = {}
        self._ready: list[set[int]] = []  # by group, as all that follows
        self._starting: list[set[int]] = []
        self._stopping: list[set[int]] = []
        self._after_drain: dict[int, Callable[[float], None]] = {}
        self._life: dict[int, int] = {}  # how often a replica was started or stopped: outdated events are dropped
        for number, group in enumerate(spec.group):
            first = fleet.groups[number].first
            self._ready.append(set(range(first, first + fleet.groups[number].ready)))
            self._starting.append(set())
            self._stopping.append(set())
            for i in self._ready[-1]:
                self._pay(number, i, 0.0)
            if group.autoscaler is not None:
                self._tick(number, Scaling(group.autoscaler), 0.0)
        for fault in spec.fault:
            self._plan_fault(fault)
        fleet.control = self.act
        fleet.due = self._events[0][0] if self._events else math.inf

    # -- the clock ----------------------------------------------------------------------------------------------------

    def act(self, now: float) -> float:
        """Process what is due, and return when the next event is."""
        for i in [i for i in self._fleet.draining if self._fleet.loads[i] == 0]:
            self._drained(i, now)
        while self._events and self._events[0][0] <= now:
            heappop(self._events)[2](now)
        return self._events[0][0] if self._events else math.inf

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        self._number += 1
        heappush(self._events, (when, self._number, what))

    def _note(self, now: float, number: int, what: str) -> None:
        group = self._spec.group[number]
        self.changes.append(Change(now, group.name, what, len(self._ready[number]), len(self._starting[number])))

    # -- replicas -----------------------------------------------------------------------------------------------------

    def _pay(self, number: int, i: int, now: float) -> None:
        history = self.history[self._spec.group[number].name]
        history.paid_since.setdefault(i, now)
        history.peak = max(history.peak, len(history.paid_since))

    def _end_pay(self, number: int, i: int, now: float) -> None:
        history = self.history[self._spec.group[number].name]
        since = history.paid_since.pop(i, None)
        if since is not None:
            history.replica_seconds += now - since

    def finish(self, now: float) -> None:
        """End the run: what still runs is paid up to now."""
        for number in range(len(self._spec.group)):
            for i in list(self.history[self._spec.group[number].name].paid_since):
                self._end_pay(number, i, now)

    def _start(self, number: int, i: int, now: float, *, provisioned: bool = False) -> None:
        """Begin the cold start of a replica."""
        group = self._spec.group[number]
        life = self._life[i] = self._life.get(i, 0) + 1
        self._starting[number].add(i)
        self.history[group.name].starts += 1
        self._pay(number, i, now)
        self._note(now, number, "start")

        def ready(at: float) -> None:
            if self._life[i] == life and i in self._starting[number]:
                self._starting[number].remove(i)
                self._ready[number].add(i)
                self._fleet.enable(i, at)
                self._note(at, number, "ready")

        self._at(now + group.cold_start.seconds(provisioned=provisioned), ready)

    def _drain(self, number: int, i: int, now: float, then: Callable[[float], None], limit: float | None) -> None:
        """Let a replica finish its requests within a limit, then call `then`."""
        self._ready[number].discard(i)
        self._stopping[number].add(i)
        life = self._life[i] = self._life.get(i, 0) + 1
        self._fleet.drain(i)
        self._after_drain[i] = then
        self._note(now, number, "drain")
        if self._fleet.loads[i] == 0:
            self._drained(i, now)
        elif limit is not None:

            def out_of_time(at: float) -> None:
                if self._life[i] == life and i in self._stopping[number]:
                    self._lose(self._fleet.kill(i, at), at)
                    self._drained(i, at)

            self._at(now + limit, out_of_time)

    def _drained(self, i: int, now: float) -> None:
        self._fleet.draining.discard(i)
        self._stopping[self._fleet.group_of[i]].discard(i)
        then = self._after_drain.pop(i, None)
        if then is not None:
            then(now)

    def _stop(self, number: int, i: int, now: float) -> None:
        self._end_pay(number, i, now)
        self._note(now, number, "stop")

    def _die(self, number: int, i: int, now: float, what: str) -> None:
        """Kill a replica, and let its requests come again."""
        self._ready[number].discard(i)
        self._starting[number].discard(i)
        self._life[i] = self._life.get(i, 0) + 1
        self.history[self._spec.group[number].name].deaths += 1
        lost = self._fleet.kill(i, now)
        self._note(now, number, what)
        self._lose(lost, now)

    def _lose(self, requests: list[Request], now: float) -> None:
        """Retry what a replica lost, or give it up."""
        router = self._spec.router
        for request in requests:
            self.lost += 1
            attempts = self._attempts[request.number] = self._attempts.get(request.number, 0) + 1
            if attempts > router.retries:
                self._fleet.fail(request, now)
            else:
                self.retried += 1
                self._fleet.retry(request, now + router.retry_backoff)

    # -- autoscaling --------------------------------------------------------------------------------------------------

    def _tick(self, number: int, scaling: Scaling, now: float) -> None:
        def decide(at: float) -> None:
            current = len(self._ready[number]) + len(self._starting[number])
            total = self._metric(number, scaling.rules.metric, at)
            wanted = scaling.desired(at, current, total)
            for _ in range(wanted - current):
                self._grow(number, at)
            for _ in range(current - wanted):
                self._shrink(number, at)
            self._at(at + scaling.rules.interval, decide)

        self._at(now + scaling.rules.interval, decide)

    def _metric(self, number: int, metric: str, now: float) -> float:
        """Sum of a metric over the replicas of a group and the gateway's queue."""
        fleet, there = self._fleet, self._ready[number]
        model = fleet.groups[number].model
        if metric == "kv-share":
            shares = [fleet.engines[i].kv_used(now) / fleet.engines[i].pool.blocks for i in sorted(there)]
            return sum(shares) + (1.0 if not there and fleet.routers[model].queued else 0.0)
        others = [n for n in range(len(self._ready)) if fleet.groups[n].model == model]
        share = len(there) / max(sum(len(self._ready[n]) for n in others), 1) if there else 1.0 / len(others)
        queued = fleet.routers[model].queued * share
        if metric == "concurrency":
            return queued + sum(fleet.loads[i] for i in there | self._stopping[number])
        return queued + sum(len(fleet.engines[i].waiting) for i in there)

    def _grow(self, number: int, now: float) -> None:
        first, count = self._fleet.groups[number].first, self._fleet.groups[number].settings.replicas
        taken = self._ready[number] | self._starting[number] | self._stopping[number]
        free = [i for i in range(first, first + count) if i not in taken]
        if free:
            self._start(number, free[0], now)

    def _shrink(self, number: int, now: float) -> None:
        """Stop a replica that starts, or else the one with the fewest requests."""
        if self._starting[number]:
            i = max(self._starting[number])
            self._starting[number].remove(i)
            self._life[i] = self._life.get(i, 0) + 1
            self._stop(number, i, now)
            return
        i = min(self._ready[number], key=lambda one: (self._fleet.loads[one], -one))
        limit = self._spec.group[number].drain_timeout
        self._drain(number, i, now, lambda at: self._stop(number, i, at), limit)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _plan_fault(self, fault: Fault) -> None:
        number = next(n for n, group in enumerate(self._spec.group) if group.name == fault.group)
        kinds = {
            "crash": self._crash,
            "preemption": self._preempt,
            "rolling-upgrade": self._upgrade,
            "slow": self._slow,
        }
        if fault.kind == "mtbf":
            self._fail_at_random(number, fault)
        else:
            self._at(fault.at, lambda now: kinds[fault.kind](number, fault, now))

    def _hit(self, number: int, fault: Fault) -> list[int]:
        """Return the replicas that a fault hits: those with the lowest numbers."""
        return sorted(self._ready[number])[: fault.replicas]

    def _crash(self, number: int, fault: Fault, now: float) -> None:
        for i in self._hit(number, fault):
            self._die(number, i, now, "crash")
            if fault.restart:
                self._start(number, i, now, provisioned=True)
            else:
                self._end_pay(number, i, now)

    def _preempt(self, number: int, fault: Fault, now: float) -> None:
        for i in self._hit(number, fault):
            self._ready[number].discard(i)
            self._stopping[number].add(i)
            self._life[i] = life = self._life.get(i, 0) + 1
            self._fleet.drain(i)
            self._note(now, number, "drain")

            def gone(at: float, i: int = i, life: int = life) -> None:
                if self._life[i] != life:
                    return
                self._stopping[number].discard(i)
                self._die(number, i, at, "preempted")
                self._end_pay(number, i, at)
                if fault.restart:
                    self._start(number, i, at)

            self._at(now + fault.notice, gone)

    def _upgrade(self, number: int, fault: Fault, now: float) -> None:
        """Restart all replicas, some at a time; each serves before the next."""
        left = sorted(self._ready[number], reverse=True)
        limit = self._spec.group[number].drain_timeout
        seconds = self._spec.group[number].cold_start.seconds(provisioned=True)

        def next_one(at: float) -> None:
            while left:
                i = left.pop()
                if i in self._ready[number]:
                    self._drain(number, i, at, lambda when, i=i: restart(when, i), limit)  # type: ignore[misc]
                    return

        def restart(at: float, i: int) -> None:
            self._start(number, i, at, provisioned=True)
            self._at(at + seconds, next_one)

        for _ in range(fault.replicas):
            next_one(now)

    def _slow(self, number: int, fault: Fault, now: float) -> None:
        hit = self._hit(number, fault)
        for i in hit:
            self._fleet.slow_down(i, fault.factor, now)
        self._note(now, number, "slow")
        if fault.lasts is not None:

            def over(at: float) -> None:
                for i in hit:
                    self._fleet.slow_down(i, 1.0, at)
                self._note(at, number, "normal")

            self._at(now + fault.lasts, over)

    def _fail_at_random(self, number: int, fault: Fault) -> None:
        """Let replicas crash after exponential times."""
        assert fault.mean is not None
        mean = fault.mean

        def plan(i: int, now: float) -> None:
            when = now + float(self._generator.exponential(mean))
            if when < self._until:
                self._at(when, lambda at: crash(i, at))

        def crash(i: int, now: float) -> None:
            if i in self._ready[number]:
                self._die(number, i, now, "crash")
                if fault.restart:
                    self._start(number, i, now, provisioned=True)
                else:
                    self._end_pay(number, i, now)
            plan(i, now)

        first, count = self._fleet.groups[number].first, self._fleet.groups[number].settings.replicas
        for i in range(first, first + count):
            plan(i, fault.at)


# Number of replicas by the rules of Kubernetes and KEDA.


class Scaling:
    """The autoscaler of one group, called once in each interval.

    - `rules`: Metric, target, limits and windows.

    Examples
    --------
    >>> scaling = Scaling(Autoscaler(metric="concurrency", target=10, min=1, max=8))
    >>> scaling.desired(0.0, 2, 45.0), scaling.desired(15.0, 5, 12.0), scaling.desired(400.0, 5, 12.0)
    (5, 5, 2)
    """

    def __init__(self, rules: Autoscaler) -> None:
        self.rules = rules
        self._recommended: deque[tuple[float, int]] = deque()  # when, and how many
        self._changes: deque[tuple[float, int]] = deque()  # when, and replicas added or removed
        self._idle_since: float | None = None

    def desired(self, now: Seconds, current: int, total: float) -> int:
        """Return the number of replicas to have.

        - `current`: Replicas that serve or start.
        - `total`: Sum of the metric over them, and of what waits at the gateway.

        Notes
        -----
        The recommendation is the total over the target, rounded up; none within the tolerance. Scaling down takes the
        highest recommendation of its window, scaling up the lowest of its own. Both are limited by the policies.

        References
        ----------
        .. [1] Kubernetes API `autoscaling/v2`, HPAScalingRules (policies, selectPolicy Max,
           stabilizationWindowSeconds, tolerance).
        .. [2] KEDA, "ScaledObject specification" (cooldownPeriod, minReplicaCount).
        """
        rules = self.rules
        if total > 0:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if current == 0:
            return self._noted(now, current, max(1, rules.min) if total > 0 or rules.min else 0)
        ratio = total / (rules.target * current)
        wanted = current if abs(ratio - 1.0) <= rules.tolerance else math.ceil(total / rules.target)
        wanted = self._stabilized(now, current, min(max(wanted, 1, rules.min), rules.max))
        wanted = self._limited(now, current, wanted)
        if rules.min == 0 and current == wanted == 1 and self._idle_since is not None:
            wanted = 0 if now - self._idle_since >= rules.cooldown else 1
        return self._noted(now, current, wanted)

    def _stabilized(self, now: Seconds, current: int, wanted: int) -> int:
        rules, seen = self.rules, self._recommended
        if not seen:
            seen.append((now - rules.interval, current))  # the controller begins with what is there
        seen.append((now, wanted))
        longest = max(rules.stabilization_up, rules.stabilization_down)
        while seen[0][0] < now - longest:
            seen.popleft()
        lowest = min(number for at, number in seen if at >= now - rules.stabilization_up)
        highest = max(number for at, number in seen if at >= now - rules.stabilization_down)
        return min(max(current, lowest), highest)

    def _limited(self, now: Seconds, current: int, wanted: int) -> int:
        rules, changes = self.rules, self._changes
        while changes and changes[0][0] <= now - rules.policy_period:
            changes.popleft()
        added = sum(change for _, change in changes if change > 0)
        removed = -sum(change for _, change in changes if change < 0)
        start = current - added
        most = max(math.ceil(start * (1 + rules.up_percent / 100)), start + rules.up_replicas)
        least = math.ceil((current + removed) * (1 - rules.down_percent / 100))
        return max(min(wanted, max(most, current)), min(least, current), min(rules.min, current))

    def _noted(self, now: Seconds, current: int, wanted: int) -> int:
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted
