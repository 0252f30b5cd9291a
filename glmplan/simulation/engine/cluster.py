"""Replicas, routing and hand-over from prefill to decode on one clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import Final

from glmplan.errors import GlmplanError
from glmplan.simulation.engine.admission import why_rejected
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.in_order import engine_of
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request

__all__ = ["Cluster"]

Engine = SkippingEngine | SteppingEngine

_NEVER: Final = math.inf


class Cluster:
    """All replicas of a service under one router.

    Parameters
    ----------
    table : StepTable
        Time of a step on each replica.
    pool : KvPool
        KV pool of each replica.
    settings : EngineSettings
        Scheduler, limits, replicas and routing.
    engine : type, optional
        `SteppingEngine` for the reference; the skipping form that follows the settings by default.

    Examples
    --------
    >>> table = StepTable.affine(base=0.01)
    >>> done = Cluster(table, KvPool(10_000), EngineSettings()).run([Request(0, 1.0, 100, 3)])
    >>> round(next(done).finish, 9)
    1.03
    """

    def __init__(
        self,
        table: StepTable,
        pool: KvPool,
        settings: EngineSettings,
        engine: type[Engine] | None = None,
    ) -> None:
        self.pool, self.settings = pool, settings
        engine = engine_of(settings) if engine is None or engine is SkippingEngine else engine
        self.engines = [engine(table, pool, settings, number) for number in range(settings.replicas)]
        self.prefillers = self.engines[: settings.prefill_replicas]
        self.decoders = self.engines[settings.prefill_replicas :]
        self.rejected: dict[str, int] = {}
        self.left = 0  # requests whose clients closed the connection before their first token
        self._turns = {True: 0, False: 0}
        self._homes: dict[tuple[int, bool], int] = {}  # where the turns of a session go
        self._link_free = 0.0
        self._number = 0
        # requests up to this length need no closer look: half the tokens of a slot or pool, and no other limit
        room = pool.tokens // (settings.max_num_seqs if settings.admission == "slot" else 1)
        self._surely = min(settings.max_model_len, room // 2 - 2 * pool.block_size)
        if not settings.chunked_prefill:
            self._surely = min(self._surely, settings.max_num_batched_tokens)

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
        source = iter(arrivals)
        if len(self.engines) == 1:
            return chain.from_iterable(self._alone(source, after))
        began = next(source, None)
        source = chain(() if began is None else (began,), source)
        # clients leave all or none
        if after is None and not self.prefillers and (began is None or began.leaves == _NEVER):
            return chain.from_iterable(self._meeting(source))
        return chain.from_iterable(self._together(source, after))

    def _meeting(self, source: Iterator[Request]) -> Iterator[list[Request]]:
        """Yield finished requests of replicas that meet only at arrivals."""
        engines, planned = self.engines, [False] * len(self.engines)
        for request in chain(source, (None,)):
            until = request.arrival if request is not None else _NEVER
            finished: list[Request] = []
            for i, engine in enumerate(engines):
                formed = planned[i]
                # who arrives when a step ends is still seen by the next one
                while (engine.end if formed else engine.now) < until:
                    if formed:
                        finished += engine.commit()
                    else:
                        engine.plan()
                    formed = not formed
                planned[i] = formed
            if finished:
                finished.sort(key=lambda one: one.finish)
                yield finished
            target = self._accept(request, until) if request is not None else None
            if request is not None and target is not None:
                engines[target].submit(request, until)
                if engines[target].end == _NEVER:
                    planned[target] = False  # it was idle: what else arrives now is seen by the same step
        stuck = sum(len(engine.waiting) for engine in engines)
        if stuck:
            raise GlmplanError(f"{stuck} requests wait for a replica that cannot start them")

    def _together(
        self, source: Iterator[Request], after: Callable[[Request, float], Request | None] | None
    ) -> Iterator[list[Request]]:
        """One clock over all replicas; yields what finishes together."""
        coming = next(source, None)
        events: list[tuple[float, int, Request]] = []
        engines, ends, fresh = self.engines, [math.inf] * len(self.engines), {e.replica for e in self.engines if e.load}
        while True:
            due = coming.arrival if coming is not None else math.inf
            later = events[0][0] if events else math.inf
            end = min(ends)
            horizon = min([engines[i].now for i in fresh]) if fresh else end
            if (due <= horizon or later <= horizon) and (events or coming is not None):
                if coming is not None and due <= later:
                    request, now = coming, due
                    coming = next(source, None)
                else:
                    now, _, request = heappop(events)
                if now >= request.leaves:
                    if request.first < 0 and request.replica >= 0:
                        engines[request.replica].cancel(request, now)
                        ends[request.replica] = engines[request.replica].end
                        self.left += 1
                        self._follow(request, now, after, events)
                    continue
                target = self._accept(request, now)
                if target is None:
                    self._follow(request, now, after, events)
                    continue
                engines[target].submit(request, now)
                self._watch(request, events)
                if ends[target] < math.inf:
                    ends[target] = engines[target].end
                else:
                    fresh.add(target)
            elif fresh:
                for i in fresh:
                    ends[i] = engines[i].plan()
                fresh.clear()
            elif end < math.inf:
                i = ends.index(end)
                finished = []
                for request in engines[i].commit():
                    if request.left == 0 and request.steps > 0 and i < self.settings.prefill_replicas:
                        self._hand_over(request, engines[i].now, events)
                        continue
                    self._follow(request, engines[i].now, after, events)
                    finished.append(request)
                yield finished
                ends[i] = math.inf
                fresh.add(i)
            else:
                stuck = sum(len(engine.waiting) for engine in engines)
                if stuck:
                    raise GlmplanError(f"{stuck} requests wait for a replica that cannot start them")
                return

    def _alone(
        self, source: Iterator[Request], after: Callable[[Request, float], Request | None] | None
    ) -> Iterator[list[Request]]:
        """The same for one replica, which needs no clock over several."""
        engine, events, surely = self.engines[0], list[tuple[float, int, Request]](), self._surely
        coming = next(source, None)
        due = coming.arrival if coming is not None else _NEVER
        end, planned = engine.now, False
        while True:
            # all that is there when the next step is formed, and then all that arrives before it ends
            while (due <= end or (events and events[0][0] <= end)) and (events or coming is not None):
                if coming is not None and not (events and events[0][0] < due):
                    request, now = coming, due
                    coming = next(source, None)
                    due = coming.arrival if coming is not None else _NEVER
                else:
                    now, _, request = heappop(events)
                if now >= request.leaves:
                    if request.first < 0:
                        engine.cancel(request, now)
                        self.left += 1
                        self._follow(request, now, after, events)
                        end = engine.end if planned else end
                    continue
                if request.input + request.output > surely and self._accept(request, now) is None:
                    self._follow(request, now, after, events)
                    continue
                engine.submit(request, now)
                if request.leaves < _NEVER:
                    self._watch(request, events)
                if planned and engine.end == _NEVER:
                    planned = False  # it was idle: what else arrives now is seen by the same step
                    end = engine.now
                elif planned:
                    end = engine.end
            if not planned:
                end, planned = engine.plan(), True
                continue
            if end == _NEVER:
                if engine.waiting:
                    raise GlmplanError(f"{len(engine.waiting)} requests wait for a replica that cannot start them")
                return
            finished = engine.commit()
            end, planned = engine.now, False
            if not finished:
                continue
            yield finished
            if after is None:
                continue
            for request in finished:
                follow = after(request, end)
                if follow is None:
                    continue
                at = follow.arrival
                if at <= end < due and not events and follow.input + follow.output <= surely and follow.leaves > 1e300:
                    engine.submit(follow, end)  # nothing can come before it, so it needs no queue
                else:
                    self._number += 1
                    heappush(events, (at if at > end else end, self._number, follow))

    @property
    def preemptions(self) -> int:
        """Requests that had to compute again, counted each time, [-]"""
        return sum(engine.preemptions for engine in self.engines)

    def _follow(
        self,
        request: Request,
        now: float,
        after: Callable[[Request, float], Request | None] | None,
        events: list[tuple[float, int, Request]],
    ) -> None:
        """Queue the request that follows one that ended."""
        follow = after(request, now) if after is not None else None
        if follow is not None:
            self._number += 1
            heappush(events, (max(follow.arrival, now), self._number, follow))

    def _watch(self, request: Request, events: list[tuple[float, int, Request]]) -> None:
        """Note when the client of a submitted request disconnects."""
        if request.leaves < math.inf:
            self._number += 1
            heappush(events, (request.leaves, self._number, request))

    def _accept(self, request: Request, now: float) -> int | None:
        """Choose a replica; None if the request can never be served."""
        if request.kv_ready:
            return self._route(request, self.decoders, now)
        if request.input + request.output > self._surely:
            reason = why_rejected(request, self.pool, self.settings, self.engines[0].period)
            if reason is not None:
                self.rejected[reason] = self.rejected.get(reason, 0) + 1
                return None
        if self.prefillers:
            request.left = 0
            return self._route(request, self.prefillers, now)
        return self._route(request, self.decoders, now)

    def _route(self, request: Request, among: list[Engine], now: float) -> int:
        if len(among) == 1:
            return among[0].replica
        routing = self.settings.routing
        if routing == "prefix-aware" and not request.kv_ready:
            # the longest prefix found decides unless that replica already has twice the work of the idlest
            least = min(engine.load for engine in among)
            found = [engine.found(request, now) for engine in among]
            best = max(range(len(among)), key=lambda i: (found[i], -among[i].load))
            if found[best] and among[best].load <= 2 * least + 4:
                return among[best].replica
        if routing == "affinity" and request.session >= 0:
            # the router keeps no more than the replica of each session; the first turn goes to the least loaded
            here = (request.session, among is self.prefillers)
            if here not in self._homes:
                self._homes[here] = min(among, key=lambda engine: engine.load).replica
            return self._homes[here]
        if routing == "round-robin":
            turn = self._turns[among is self.prefillers]
            self._turns[among is self.prefillers] = turn + 1
            return among[turn % len(among)].replica
        return min(among, key=lambda engine: engine.load).replica

    def _hand_over(self, request: Request, now: float, events: list[tuple[float, int, Request]]) -> None:
        """Send the KV cache of a prefilled request to decode; transfers queue."""
        link = self.settings.link
        if link is not None:
            busy = request.input * self.pool.bytes_per_token / link.bandwidth
            self._link_free = max(self._link_free, now) + busy
            now = self._link_free + link.latency
        request.restart()
        request.kv_ready = True
        self._number += 1
        heappush(events, (now, self._number, request))
