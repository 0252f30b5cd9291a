"""Groups of replicas behind a gateway on one clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Final

from glmplan.errors import GlmplanError
from glmplan.simulation.engine.admission import why_rejected
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.in_order import engine_of
from glmplan.simulation.engine.lockstep import Lockstep, SharedClock, SteppingLockstep
from glmplan.simulation.engine.prefix_cache import FarTiers
from glmplan.simulation.engine.router import Engine, Router
from glmplan.simulation.engine.settings import EngineSettings, GatewayRules, KvPool
from glmplan.simulation.engine.step_clock import clock_of
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request
from glmplan.units import Ratio, Seconds

__all__ = ["Fleet", "ReplicaGroup"]

_NEVER: Final = math.inf
#: kinds of events: a request comes, its client leaves, the gateway gives it up, what it needs is on its replica
_COMES: Final = 0
_LEAVES: Final = 1
_EXPIRES: Final = 2
_READY: Final = 3
#: `Request.replica` of a request that waits at the gateway, of one that was given up, and of one that comes again
_NOWHERE: Final = -1
_GONE: Final = -2
_AGAIN: Final = -3
#: SGLang: fewest tokens that it fetches from beyond host memory (prefetch_threshold) [token]
_PREFETCHED: Final = 256


class ReplicaGroup:
    """Equal replicas of a fleet.

    Parameters
    ----------
    table : StepTable
        Time of a step on each replica.
    pool : KvPool
        KV pool of each replica.
    settings : EngineSettings
        Scheduler and limits of each, and how many there are at most.
    model : int, optional
        Which model they serve, [-]
    weight : float, optional
        Share of requests of one replica under `weighted` routing, [-]
    ready : int, optional
        How many of them serve from the start; all by default, [-]
    spread : callable, optional
        Time of a step of some of the ranks of a server if no other rank has work, as `SharedClock` takes it.
    """

    __slots__ = ("first", "model", "pool", "ready", "settings", "spread", "table", "weight")

    def __init__(
        self, table: StepTable, pool: KvPool, settings: EngineSettings,
        model: int = 0, weight: float = 1.0, ready: int = -1, spread: Callable[[int], StepTable] | None = None,
    ) -> None:  # fmt: skip
        self.spread = spread
        self.table, self.pool, self.settings = table, pool, settings
        self.model, self.weight = model, weight
        self.ready = settings.replicas if ready < 0 else ready
        self.first = 0  # number of its first replica, written by the fleet

    @property
    def longest(self) -> int:
        """Prompt and answer up to which a request needs no closer look, [token]"""
        pool, settings = self.pool, self.settings
        # half the tokens of a slot or pool, and no other limit
        room = pool.tokens // (settings.max_num_seqs if settings.admission == "slot" else 1)
        surely = min(settings.max_model_len, room // 2 - 2 * pool.block_size)
        return surely if settings.chunked_prefill else min(surely, settings.max_num_batched_tokens)


class Fleet:
    """Replicas of one or several groups behind a gateway.

    Parameters
    ----------
    groups : sequence of ReplicaGroup
        The replicas, numbered group by group.
    rules : GatewayRules
        How the gateway distributes requests.
    engine : type, optional
        `SteppingEngine` for the reference; the skipping form that follows the settings by default.

    Examples
    --------
    >>> groups = [ReplicaGroup(StepTable.affine(base=0.01), KvPool(10_000), EngineSettings(replicas=2))]
    >>> done = Fleet(groups, GatewayRules()).run([Request(0, 1.0, 100, 3), Request(1, 1.0, 100, 2)])
    >>> [(one.number, one.replica, round(one.finish, 9)) for one in done]
    [(1, 1, 1.02), (0, 0, 1.03)]
    """

    def __init__(self, groups: Sequence[ReplicaGroup], rules: GatewayRules, engine: type[Engine] | None = None) -> None:
        self.groups, self.rules = list(groups), rules
        self._form = engine
        self.engines: list[Engine] = []
        self.retired: list[Engine] = []  # engines of replicas that died, with what they noted
        self.group_of: list[int] = []  # group of each replica
        for number, group in enumerate(self.groups):
            group.first = len(self.engines)
            for _ in range(group.settings.replicas):
                self.group_of.append(number)
                self.engines.append(self._made(group, len(self.engines)))
        count = len(self.engines)
        #: server of each replica whose steps do not end alone, and the replica under whose number its ends are kept
        self._servers: list[Lockstep | SteppingLockstep | None] = [None] * count
        self._leaders = list(range(count))
        for group in self.groups:
            if group.settings.lockstep > 1:
                self._form_servers(group)
        self.loads = [0] * count  # requests at each replica
        self.rejected: dict[str, int] = {}
        self.turned_away: dict[int, int] = {}  # rejected or given up, by tenant
        self.left = 0  # requests whose clients closed the connection before their first token
        self.router_of: list[Router] = []  # where each replica gets its requests from
        self.routers: list[Router] = []  # by model
        self._decoders: dict[int, Router] = {}  # by group, of those with prefill replicas
        self._prefills = [False] * count
        self._set_up_routers()
        self.models: list[int] = []  # model of each tenant; empty if there is one
        #: called when it is due; returns when it is due again
        self.control: Callable[[float], float] | None = None
        self.due = _NEVER
        self.draining: set[int] = set()  # replicas that take no more requests
        self._surely = min(group.longest for group in self.groups)
        self._ends, self._fresh = [_NEVER] * count, list[int]()
        self._heap: list[tuple[float, int]] = []  # ends and numbers of planned replicas, outdated ones included
        self._events: list[tuple[float, int, int, Request]] = []
        self._link_free = [0.0] * len(self.groups)
        self._far: list[FarTiers | None] = [self._tiers_of(group) for group in self.groups]
        #: when each card with encoders is free, by group
        self._encoders = [[0.0] * group.settings.encoder_cards for group in self.groups]
        self._waits_before = any(group.settings.tiers or group.settings.encoder_cards for group in self.groups)
        #: requests whose images or cached blocks are not there yet, and when they are
        self._before: dict[int, tuple[float, Request]] = {}
        self._held: dict[int, deque[tuple[float, Request]]] = {}  # by replica: they wait for host memory
        self._number = 0
        self._after: Callable[[Request, float], Request | None] | None = None
        self._preempted = 0

    def _made(self, group: ReplicaGroup, number: int) -> Engine:
        settings = group.settings
        form = engine_of(settings) if self._form is None or self._form is SkippingEngine else self._form
        return form(group.table, group.pool, settings, number)

    def _tiers_of(self, group: ReplicaGroup) -> FarTiers | None:
        """Connect the prefix caches of a group with its tiers beyond host memory."""
        settings, first = group.settings, group.first
        members = self.engines[first : first + settings.replicas]
        caches = [one.cache for one in members if one.cache is not None and one.cache.tier is not None]
        if not settings.tiers or len(caches) < len(members):
            return None
        return FarTiers(settings.tiers, group.pool, caches, _PREFETCHED if settings.admission == "estimate" else 1)

    def _form_servers(self, group: ReplicaGroup) -> None:
        """Form servers of ranks; neighbours in number belong to different ones.

        So a router that prefers low numbers distributes few requests over all servers.
        """
        settings, first = group.settings, group.first
        ranks, split = settings.lockstep, first + settings.prefill_replicas
        clock = SharedClock(group.table, ranks, group.spread, settings.pipeline_stages)
        for begin, end in ((first, split), (split, first + settings.replicas)):
            servers = (end - begin) // ranks
            for leader in range(begin, begin + servers):
                members = [self.engines[leader + servers * rank] for rank in range(ranks)]
                skipping = [one for one in members if isinstance(one, SkippingEngine)]
                stepping = [one for one in members if not isinstance(one, SkippingEngine)]
                server = Lockstep(skipping, clock) if skipping else SteppingLockstep(stepping, clock)
                for one in members:
                    self._servers[one.replica], self._leaders[one.replica] = server, leader

    def _set_up_routers(self) -> None:
        weights = [group.weight for group in self.groups]
        entries: list[list[int]] = [[] for _ in range(1 + max(group.model for group in self.groups))]
        owner: dict[int, Router] = {}
        without = GatewayRules(self.rules.routing)  # what was prefilled goes on
        for number, group in enumerate(self.groups):
            first, few = group.first, group.settings.prefill_replicas
            there = range(first, first + group.ready)
            entries[group.model] += there[:few] if few else there
            if few:
                decoders = there[few:]
                router = Router(decoders, self.engines, self.loads, without, self.group_of, weights)
                self._decoders[number] = router
                owner |= dict.fromkeys(decoders, router)
                for i in there[:few]:
                    self._prefills[i] = True
        self.routers = [
            Router(members, self.engines, self.loads, self.rules, self.group_of, weights) for members in entries
        ]
        for i, number in enumerate(self.group_of):
            self.router_of.append(owner.get(i, self.routers[self.groups[number].model]))

    @property
    def preemptions(self) -> int:
        """Requests that had to compute again, counted each time, [-]"""
        return self._preempted + sum(engine.preemptions for engine in self.engines)

    def run(
        self,
        arrivals: Iterable[Request],
        after: Callable[[Request, float], Request | None] | None = None,
    ) -> Iterator[Request]:
        """Serve requests until none is left.

        - `arrivals`: Requests in the order of arrival; read no further ahead than needed.
        - `after`: Called with each request that ended (finished or rejected) and the time; returns the request that
          follows it, with its arrival, or None.
        """
        self._after = after
        return chain.from_iterable(self._together(iter(arrivals)))

    def _together(self, source: Iterator[Request]) -> Iterator[list[Request]]:
        """One clock over all replicas; yields what finishes together."""
        coming = next(source, None)
        due = coming.arrival if coming is not None else _NEVER
        engines, ends, heap, events, fresh = self.engines, self._ends, self._heap, self._events, self._fresh
        servers = self._servers
        while True:
            while heap and ends[heap[0][1]] != heap[0][0]:
                heappop(heap)
            end = heap[0][0] if heap else _NEVER
            later = events[0][0] if events else _NEVER
            now = due if due <= later else later
            horizon = self._begins(fresh[0]) if fresh else end
            if self.due <= horizon and self.due <= now and self.due < _NEVER:
                if horizon == _NEVER and now == _NEVER and not self.waiting:
                    return
                assert self.control is not None
                self.due = self.control(self.due)
            elif now <= horizon and now < _NEVER:
                if coming is not None and due <= later:
                    request = coming
                    coming = next(source, None)
                    due = coming.arrival if coming is not None else _NEVER
                    self._come(request, now)
                else:
                    self._happen(now)
            elif fresh:
                for i in fresh:
                    server = servers[i]
                    ends[i] = end = engines[i].plan() if server is None else server.plan()
                    if end < _NEVER:
                        heappush(heap, (end, i))
                fresh.clear()
            elif end < _NEVER:
                _, i = heappop(heap)
                ends[i] = _NEVER
                finished = self._commit(i, end)
                if finished:
                    yield finished
            else:
                self._stop()
                return

    def _begins(self, i: int) -> float:
        """When a replica that has to plan begins its next step."""
        server = self._servers[i]
        return self.engines[i].now if server is None else server.now

    def _commit(self, i: int, now: float) -> list[Request]:
        """End what a replica, or the server of a rank, has planned."""
        server = self._servers[i]
        if server is None:
            finished = self.engines[i].commit()
            self._fresh.append(i)
            if self._held:
                self._try_held(now)
            return self._ended(i, finished, now) if finished else finished
        together = server.commit()
        self._fresh.append(i)
        if self._held:
            self._try_held(now)
        found: list[Request] = []
        for rank, finished in together:
            if finished:
                found += self._ended(rank, finished, now)
        return found

    def _ended(self, i: int, finished: list[Request], now: float) -> list[Request]:
        """Count requests that a replica has ended; return those not handed over."""
        router = self.router_of[i]
        self.loads[i] -= len(finished)
        router.changed(i)
        if self._prefills[i]:
            handed = [one for one in finished if one.left == 0 and one.steps > 0]
            if handed:
                finished = [one for one in finished if not (one.left == 0 and one.steps > 0)]
                for request in handed:
                    self._hand_over(request, now)
        if self._after is not None:
            for request in finished:
                self._follow(request, now)
        if router.queued:
            self._dispatch(router, now)
        if i in self.draining and self.loads[i] == 0:
            self.due = now
        return finished

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def _happen(self, now: float) -> None:
        """Process the next event."""
        _, _, kind, request = heappop(self._events)
        if kind == _COMES:
            if request.replica != _GONE:
                self._come(request, now)
        elif kind == _LEAVES:
            if request.first < 0 and request.replica != _GONE:
                self._leave(request, now)
        elif kind == _READY:
            self._enter(request, now)
        elif request.replica == _NOWHERE:
            self._give_up(request, "waited too long at the gateway", now)

    def _come(self, request: Request, now: float) -> None:
        """Send a request to a replica, to the queue of the gateway, or away."""
        if now >= request.leaves:
            request.replica = _AGAIN
            self._leave(request, now)
            return
        if request.kv_ready:
            router = self._decoders[self.group_of[request.replica]]
            self._submit(router.pick(request, now), request, now)
            return
        router = self.routers[self.models[request.tenant] if self.models else 0]
        allowed = self._allowed(request) if request.input + request.output > self._surely else None
        if allowed is not None and not any(allowed):
            self._reject(request, now)
            return
        target = router.pick(request, now) if allowed is None else router.pick_among(allowed)
        if target >= 0:
            self._submit(target, request, now)
        elif router.queued >= self.rules.queue_size:
            self._give_up(request, "the queue of the gateway was full", now)
            return
        else:
            request.replica = _NOWHERE
            router.order += 1
            router.queued += 1
            heappush(router.queue, (request.priority, router.order, request))
            if self.rules.queue_timeout < _NEVER:
                self._push(now + self.rules.queue_timeout, _EXPIRES, request)
        if request.leaves < _NEVER:
            self._push(request.leaves, _LEAVES, request)

    def _submit(self, target: int, request: Request, now: float) -> None:
        """Send a request to a replica."""
        self.loads[target] += 1
        self.router_of[target].changed(target)
        request.replica = target
        if self._waits_before and not request.kv_ready:
            number, ready = self.group_of[target], now
            cards = self._encoders[number]
            if cards and request.images > 0:
                card = cards.index(min(cards))
                ready = cards[card] = (
                    max(cards[card], now) + request.images * self.groups[number].settings.image_seconds
                )
            if target in self._held:
                self._held[target].append((ready, request))
            else:
                self._fetch(target, request, now, ready)
            return
        self._hand_in(target, request, now)

    def _fetch(self, target: int, request: Request, now: float, ready: float) -> None:
        """Hand a request in at `ready`, or later as its cached blocks come."""
        number = self.group_of[target]
        far = self._far[number]
        if far is not None:
            near = self.engines[target].found(request, now)
            fetched = far.fetched(target - self.groups[number].first, request, near, now)
            if fetched == _NEVER:
                self._held.setdefault(target, deque()).append((ready, request))
                return
            ready = max(ready, fetched)
        if ready <= now:
            self._hand_in(target, request, now)
            return
        self._before[request.number] = ready, request
        self._push(ready, _READY, request)

    def _enter(self, request: Request, now: float) -> None:
        """Hand a request in whose images and cached blocks are there."""
        ready, who = self._before.get(request.number, (_NEVER, request))
        if ready == now and who is request:  # else its client left, or its replica died
            del self._before[request.number]
            self._hand_in(request.replica, request, now)

    def _hand_in(self, target: int, request: Request, now: float) -> None:
        """Hand a request to the engine of a replica."""
        if self._prefills[target]:
            request.left = 0
        self.engines[target].submit(request, now)
        end = self._changed(target, now)
        target = self._leaders[target]
        if self._ends[target] == _NEVER:
            if target not in self._fresh:
                self._fresh.append(target)
        elif end != self._ends[target]:
            self._ends[target] = end
            heappush(self._heap, (end, target))

    def _changed(self, replica: int, now: float) -> float:
        """Return the end of what a replica has planned, also after a change."""
        engine, server = self.engines[replica], self._servers[replica]
        if server is None:
            return engine.end
        server.came(engine, now)  # type: ignore[arg-type]
        return server.end

    def _dispatch(self, router: Router, now: float) -> None:
        """Send waiting requests of the gateway to replicas that may take them."""
        queue = router.queue
        while queue:
            request = queue[0][2]
            if request.replica != _NOWHERE:
                heappop(queue)
                continue
            if request.input + request.output > self._surely:
                target = router.pick_among(self._allowed(request))
            else:
                target = router.pick(request, now)
            if target < 0:
                return
            heappop(queue)
            router.queued -= 1
            self._submit(target, request, now)

    def _allowed(self, request: Request) -> list[bool]:
        """Groups of its model that can serve a request."""
        model = self.models[request.tenant] if self.models else 0
        return [
            group.model == model
            and why_rejected(request, group.pool, group.settings, self.engines[group.first].period) is None
            for group in self.groups
        ]

    def _reject(self, request: Request, now: float) -> None:
        """Reject a request for the reason of the first group of its model."""
        model = self.models[request.tenant] if self.models else 0
        group = next(one for one in self.groups if one.model == model)
        reason = why_rejected(request, group.pool, group.settings, self.engines[group.first].period)
        self._give_up(request, reason or "no group can serve it", now)

    def _give_up(self, request: Request, reason: str, now: float) -> None:
        """Count a request that is not served, and let the next one follow."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        self.turned_away[request.tenant] = self.turned_away.get(request.tenant, 0) + 1
        self._take_out(request)
        self._follow(request, now)

    def _take_out(self, request: Request) -> None:
        """Mark a request as given up; the queue of the gateway drops it later."""
        if request.replica == _NOWHERE:
            self.routers[self.models[request.tenant] if self.models else 0].queued -= 1
        request.replica = _GONE

    def _leave(self, request: Request, now: float) -> None:
        """Drop a request whose client closed the connection."""
        i = request.replica
        self.left += 1
        if i < 0:
            self._take_out(request)
        else:
            self._withdraw(i, request, now)
            self.loads[i] -= 1
            self.router_of[i].changed(i)
            end, leader = self._changed(i, now), self._leaders[i]
            if self._ends[leader] < _NEVER and end != self._ends[leader]:
                self._ends[leader] = end
                heappush(self._heap, (end, leader))
            request.replica = _GONE
            if self.router_of[i].queued:
                self._dispatch(self.router_of[i], now)
        self._follow(request, now)

    def _withdraw(self, i: int, request: Request, now: float) -> None:
        """Take a request from its replica, or from before it."""
        held, cache = self._held.get(i), self.engines[i].cache
        if held is not None and any(one is request for _, one in held):
            self._held[i] = deque([pair for pair in held if pair[1] is not request])
        elif self._before.pop(request.number, None) is None:
            self.engines[i].cancel(request, now)
        if request.staged and cache is not None:
            cache.unstage(request)
            self._try_held(now)

    def _try_held(self, now: float) -> None:
        """Fetch the blocks of requests that waited for host memory."""
        for i in sorted(self._held):
            held = self._held.pop(i)
            while held and i not in self._held:
                ready, request = held.popleft()
                self._fetch(i, request, now, ready)
            if held:
                self._held[i].extend(held)

    def _push(self, at: float, kind: int, request: Request) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, kind, request))

    def _follow(self, request: Request, now: float) -> None:
        """Queue the requests that follow one that ended."""
        follow = self._after(request, now) if self._after is not None else None
        while follow is not None:
            self._push(max(follow.arrival, now), _COMES, follow)
            following = follow.then
            follow.then = None
            follow = following

    def _hand_over(self, request: Request, now: float) -> None:
        """Send the KV cache of a prefilled request to decode; transfers queue."""
        number = self.group_of[request.replica]
        group = self.groups[number]
        link = group.settings.link
        if link is not None:
            busy = request.input * group.pool.bytes_per_token / link.bandwidth
            self._link_free[number] = max(self._link_free[number], now) + busy
            now = self._link_free[number] + link.latency
        request.restart()
        request.kv_ready = True
        self._push(now, _COMES, request)

    def _stop(self) -> None:
        """End the run: requests that no replica will ever take are rejected."""
        stuck = sum(len(engine.waiting) for engine in self.engines)
        if stuck:
            raise GlmplanError(f"{stuck} requests wait for a replica that cannot start them")
        for router in self.routers:
            for _, _, request in router.queue:
                if request.replica == _NOWHERE:
                    self._give_up(request, "no replica was left", _NEVER)
            router.queue.clear()

    # -- changes of the fleet -----------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests at the gateway, [-]"""
        return sum(router.queued for router in self.routers)

    def enable(self, replica: int, now: Seconds) -> None:
        """Let a replica take requests."""
        self.draining.discard(replica)
        router = self.router_of[replica]
        router.add(replica)
        if router.queued:
            self._dispatch(router, now)

    def drain(self, replica: int) -> None:
        """Let a replica take no more requests; `control` is called at its end."""
        self.router_of[replica].remove(replica)
        self.draining.add(replica)

    def kill(self, replica: int, now: Seconds) -> list[Request]:
        """Stop a replica at once, and return its requests as they came."""
        self._check_alone(replica)
        engine = self.engines[replica]
        self.router_of[replica].remove(replica)
        self.draining.discard(replica)
        lost = engine.abandon(now)
        before = [one for _, one in self._before.values() if one.replica == replica]
        for one in before:
            del self._before[one.number]
        before += [one for _, one in self._held.pop(replica, ())]
        lost = sorted([*lost, *before], key=lambda one: one.number)
        self._preempted += engine.preemptions
        self.retired.append(engine)
        self.engines[replica] = self._made(self.groups[self.group_of[replica]], replica)
        self.engines[replica].now = now
        number = self.group_of[replica]
        far, cache = self._far[number], self.engines[replica].cache
        if far is not None and cache is not None:
            far.replace(replica - self.groups[number].first, cache)
        self.loads[replica], self._ends[replica] = 0, _NEVER
        if replica in self._fresh:
            self._fresh.remove(replica)
        for request in lost:
            request.restart()
            request.kv_ready = False
            request.started = request.first = request.lost = -1.0
            request.cached = 0
            request.replica = _GONE
        return lost

    def _check_alone(self, replica: int) -> None:
        """Raise if the steps of a replica end with those of others."""
        if self._servers[replica] is not None:
            raise GlmplanError("faults of ranks that wait for each other are not simulated")

    def retry(self, request: Request, at: Seconds) -> None:
        """Let a request come again that a replica lost."""
        request.replica = _AGAIN
        self._push(at, _COMES, request)

    def fail(self, request: Request, now: Seconds) -> None:
        """Give up a request that a replica lost."""
        self._give_up(request, "its replica died", now)

    def slow_down(self, replica: int, factor: Ratio, now: Seconds) -> None:
        """Let the steps of a replica last some times as long as they should."""
        self._check_alone(replica)
        group = self.groups[self.group_of[replica]]
        table = group.table if factor == 1.0 else group.table.scaled(factor)
        engine = self.engines[replica]
        engine.retime(clock_of(table, group.settings.pipeline_stages), now)
        if self._ends[replica] < _NEVER and engine.end != self._ends[replica]:
            self._ends[replica] = engine.end
            heappush(self._heap, (engine.end, replica))
