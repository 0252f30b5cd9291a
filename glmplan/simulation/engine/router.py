"""The choice of a replica for each request, and the gateway's queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from random import Random
from typing import Final

from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import GatewayRules
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds

__all__ = ["Engine", "Router"]

Engine = SkippingEngine | SteppingEngine

_SHIFT: Final = 32
_MASK: Final = (1 << 32) - 1
_UNLIMITED: Final = 1 << 60
#: vLLM: age at which the state of engines is read again [s]; waiting requests count so many times more behind a full
#: KV pool than half of it, [-]
_COORDINATED: Final = 0.1
_PENALTY: Final = 6.0


class Router:
    """Replicas among which the requests of one model are distributed.

    Parameters
    ----------
    members : sequence of int
        Numbers of its replicas, ready or not, [-]
    engines : list
        All replicas of the fleet by number.
    loads : list of int
        Requests at each of them, counted by the fleet, [-]
    rules : GatewayRules
        Policy and limits.
    groups : list of int
        Group of each replica of the fleet, [-]
    weights : list of float
        Weight of each group, [-]

    Notes
    -----
    The least loaded replica is the top of a heap of (load, number) with outdated entries, so that a choice among
    hundreds of replicas costs as much as among few. Ties go to the lowest number.
    """

    __slots__ = (
        *("_credit", "_engines", "_groups", "_heap", "_here", "_homes", "_kv", "_loads"),
        *("_members", "_random", "_read", "_rules", "_states", "_turn", "_turns", "_weights"),
        *("limit", "order", "queue", "queued", "ready", "routing"),
    )

    def __init__(
        self, members: Sequence[int], engines: list[Engine], loads: list[int], rules: GatewayRules,
        groups: list[int], weights: list[float],
    ) -> None:  # fmt: skip
        self.ready: list[int] = list(members)  # replicas that take requests, in the order of their numbers
        self.routing = rules.routing
        self.limit = rules.max_outstanding or _UNLIMITED
        #: requests at the gateway: priority, order of arrival and request; those who left are still in it
        self.queue: list[tuple[int, int, Request]] = []
        self.queued = 0  # how many of them still wait
        self.order = 0
        self._engines, self._loads, self._rules = engines, loads, rules
        self._groups, self._weights = groups, weights
        self._here = [False] * len(engines)
        for i in members:
            self._here[i] = True
        self._heap: list[int] = []  # load · 2³² + number
        self._turn = 0
        self._turns = [0] * len(weights)
        self._credit = [0.0] * len(weights)
        self._homes: dict[int, int] = {}  # where the turns of a session go
        self._kv: list[tuple[float, int]] = []  # share of the pool in use and number, as read last
        self._states: list[tuple[int, int, float]] = []  # waiting, all requests and share of the pool, as read last
        self._read = -math.inf
        self._random = Random(rules.seed)
        self._members: dict[int, list[int]] = {}  # ready replicas by group
        self._order_by_load()
        self._changed_members()

    def _changed_members(self) -> None:
        self._read = -math.inf
        self._members = {}
        for i in self.ready:
            self._members.setdefault(self._groups[i], []).append(i)

    def add(self, replica: int) -> None:
        """Let a replica take requests."""
        if self._here[replica]:
            return
        self._here[replica] = True
        self.ready = sorted([*self.ready, replica])
        self._order_by_load()
        self._changed_members()

    def remove(self, replica: int) -> None:
        """Let a replica take no more requests."""
        if not self._here[replica]:
            return
        self._here[replica] = False
        self.ready.remove(replica)
        self._changed_members()

    def _order_by_load(self) -> None:
        loads = self._loads
        self._heap = [(loads[i] << _SHIFT) + i for i in self.ready]
        heapify(self._heap)

    def changed(self, replica: int) -> None:
        """Note that the load of a replica changed."""
        heap = self._heap
        heappush(heap, (self._loads[replica] << _SHIFT) + replica)
        if len(heap) > 64 + 4 * len(self.ready):
            self._order_by_load()

    def least(self) -> int:
        """Return the replica with the fewest requests."""
        heap, loads, here = self._heap, self._loads, self._here
        while True:
            top = heap[0]
            i = top & _MASK
            if here[i] and loads[i] == top >> _SHIFT:
                return i
            heappop(heap)

    def pick(self, request: Request, now: Seconds) -> int:
        """Choose a replica; -1 if all have as many requests as they may."""
        ready, loads = self.ready, self._loads
        if not ready:
            return -1
        routing, choice = self.routing, -1
        if len(ready) == 1:
            choice = ready[0]
        elif routing == "round-robin":
            choice = ready[self._turn % len(ready)]
            self._turn += 1
        elif routing == "prefix-aware":
            if request.runs and not request.kv_ready:
                choice = self._longest_prefix(request, now)
        elif routing == "affinity":
            if request.session >= 0:
                choice = self._home(request)
        elif routing == "weighted":
            choice = self._weighted()
        elif routing == "least-kv":
            choice = self._least_kv(now)
        elif routing == "waiting-penalty":
            choice = self._penalised(now)
        elif routing != "least-loaded":
            choice = self._drawn()
            if routing == "power-of-two":
                other = self._drawn()
                if loads[other] < loads[choice]:
                    choice = other
        if choice < 0 or loads[choice] >= self.limit:
            choice = self.least()
        return choice if loads[choice] < self.limit else -1

    def pick_among(self, allowed: Sequence[bool]) -> int:
        """Return the least loaded replica of some groups; -1 if there is none.

        `allowed`: Groups of the fleet in question, whatever the policy: a long request fits no others.
        """
        best, loads = -1, self._loads
        for i in self.ready:
            if allowed[self._groups[i]] and loads[i] < self.limit and (best < 0 or loads[i] < loads[best]):
                best = i
        return best

    def _longest_prefix(self, request: Request, now: Seconds) -> int:
        """Return the replica with most of a prompt; -1 if it is too busy."""
        best, most, loads = -1, 0, self._loads
        for i in self.ready:
            found = self._engines[i].found(request, now)
            if found > most or (found and found == most and loads[i] < loads[best]):
                best, most = i, found
        return best if best >= 0 and loads[best] <= 2 * loads[self.least()] + 4 else -1

    def _home(self, request: Request) -> int:
        """Return the replica of a session; at first the least loaded."""
        who = (request.tenant << 48) + request.session
        home = self._homes.get(who, -1)
        if home < 0 or not self._here[home]:
            home = self._homes[who] = self.least()
        return home

    def _weighted(self) -> int:
        """Return the next replica by smooth weighted round robin.

        Each choice adds its weight to every group and takes the sum of the weights from the one chosen; a group weighs
        its weight times its replicas, which take turns.
        """
        best, total, credit = -1, 0.0, self._credit
        for group, among in self._members.items():
            weight = self._weights[group] * len(among)
            total += weight
            credit[group] += weight
            if best < 0 or credit[group] > credit[best]:
                best = group
        credit[best] -= total
        turn = self._turns[best]
        self._turns[best] = turn + 1
        among = self._members[best]
        return among[turn % len(among)]

    def _least_kv(self, now: Seconds) -> int:
        """Return the replica with the smallest KV usage that was read."""
        if not self._kv or now - self._read >= self._rules.metrics_interval:
            self._read = now
            self._kv = [(self._engines[i].kv_used(now) / self._engines[i].pool.blocks, i) for i in self.ready]
        return min(self._kv)[1]

    def _penalised(self, now: Seconds) -> int:
        """Return the replica with the fewest requests, waiting ones counted more.

        References
        ----------
        .. [1] vLLM 0.33.0, `vllm/v1/engine/core_client.py` (DPLBAsyncMPClient.get_core_engine_for_request): the larger
           of the requests sent and those that an engine last reported, and for each waiting one 6 times the share of
           its KV pool in use above a half; the scan begins one engine further for each request.
        """
        ready, loads = self.ready, self._loads
        if len(self._states) != len(ready) or now - self._read >= _COORDINATED:
            self._read = now
            self._states = []
            for i in ready:
                engine = self._engines[i]
                self._states.append((engine.queued, engine.load, engine.kv_used(now) / engine.pool.blocks))
        best, least, states = 0, math.inf, self._states
        for step in range(len(ready)):
            place = (self._turn + step) % len(ready)
            waiting, there, share = states[place]
            score = max(loads[ready[place]], there) + waiting * _PENALTY * max(share - 0.5, 0.0)
            if score < least:
                best, least = place, score
        self._turn += 1
        waiting, there, share = states[best]
        states[best] = waiting + 1, there + 1, share
        return ready[best]

    def _drawn(self) -> int:
        """Return a random replica."""
        return self.ready[int(self._random.random() * len(self.ready))]
