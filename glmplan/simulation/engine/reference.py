"""The same replica, one step after another.

It is slow, and plain enough to be read against the code of the engines.

It holds every request's blocks and context as numbers of its own and touches each of them at each step. The skipping
form is tested against it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from glmplan.simulation.engine.admission import (
    SharedEstimate,
    block_period,
    by_longest_prefix,
    by_priority,
    cache_of,
    encoding_seconds,
    generated,
    held_blocks,
    loading_seconds,
)
from glmplan.simulation.engine.in_order import Slots
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_clock import StepClock, clock_of
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds

__all__ = ["SteppingEngine", "go_through"]


# Running requests are visited in one order: part of the form that makes every step.


def go_through(engine: Any) -> None:
    """Allocate blocks for running requests; admit if none was preempted.

    In llama.cpp they have got slots before, as many as there are, and prompts are gone through in the order of these.

    `engine`: The replica, which imports this; its step is formed.

    References
    ----------
    .. [1] vLLM 0.33.0, `vllm/v1/core/sched/scheduler.py` (schedule).
    .. [2] llama.cpp b11434, `tools/server/server-context.cpp` (update_slots).

    Notes
    -----
    Not modelled: that a prompt which was begun before a request that decodes may leave it no token of the budget.
    """
    settings, size, preempted = engine.settings, engine.pool.block_size, False
    alone, threshold = len(engine.running) + len(engine.waiting) == 1, settings.long_prefill_token_threshold
    limit = threshold if threshold and not alone else 1 << 60
    if engine.slots is not None:
        for request in engine.slots.assign(engine.waiting):
            engine.running.append(request)
            engine.held[request.number] = -(-request.done // size)
    while True:
        decoding = [r for r in engine.running if r.joined >= 0]
        budget = settings.max_num_batched_tokens * settings.pipeline_stages
        budget -= len(decoding) * settings.tokens_per_decode
        takes, needs = [], [(r, engine._wants(r)) for r in decoding]
        prompts = [r for r in engine.running if r.joined < 0]
        for request in prompts if engine.slots is None else engine.slots.in_order(prompts):
            take = min(request.prompt - request.done, limit, budget)
            if take > 0:
                takes.append((request, take))
                needs.append((request, -(-(request.done + take) // size) - engine.held[request.number]))
                budget -= take
        if sum(blocks for _, blocks in needs) <= engine._available():
            break
        engine._preempt(engine._victim())
        preempted = True
    engine.decoding, engine.work = decoding, takes
    for request, _ in takes:
        if request.started < 0:
            request.started = engine.now
    for request, blocks in needs:
        engine._make_room(blocks)
        engine.held[request.number] += blocks
    if not preempted:
        engine._admit(budget, limit)


class SteppingEngine:
    """A replica that makes every step.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        KV pool.
    settings : EngineSettings
        Scheduler and limits.
    replica : int, optional
        Its number, written into each request, [-]
    """

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        self.settings, self.pool, self.replica = settings, pool, replica
        self.clock = clock_of(table, settings.pipeline_stages)
        self.growth = round(settings.acceptance.mean * 1024) / 1024 if settings.acceptance else 1.0
        self.period = block_period(pool.block_size, self.growth)
        self.cache = cache_of(pool, settings)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order of admission, partly prefilled ones included
        self.held: dict[int, int] = {}  # request number → blocks, those found in the cache included
        self.context: dict[int, float] = {}  # request number → keys its next decode step attends
        self.now, self.end = 0.0, math.inf
        self.preemptions = 0
        self.step = 0
        self.work: list[tuple[Request, int]] = []
        self.decoding: list[Request] = []
        self.estimate = SharedEstimate(settings.first_ratio)
        self.full = False  # SGLang's flag: no request is admitted until one leaves
        self.unseen: deque[tuple[float, Request]] = deque()  # those who came after the last step had begun
        self.begun = 0.0
        self.late_places = self.late_blocks = 0  # what the last step freed
        self.loading = 0  # blocks that the step loads from host memory
        self.encoding = 0.0  # time of encoders in the step
        self.bound = False  # whether the last step with prompt tokens left requests waiting
        self.gone: list[Request] = []  # whose clients left while they were in a step
        self.owed = 0  # decode steps before the next one with prompt tokens
        self.urgent_first = settings.order == "priority"
        # vLLM: running requests are visited in one order, both prompts that were begun and decoding requests
        self.in_order = not settings.prefill_first and (self.urgent_first or settings.long_prefill_token_threshold > 0)
        self.slots = Slots.of(settings, pool) if settings.in_slots else None

    @property
    def load(self) -> int:
        """Requests waiting or running, [-]"""
        return len(self.waiting) + len(self.unseen) + len(self.running)

    @property
    def used(self) -> int:
        """Blocks that running requests hold, [-]"""
        private = sum(self.held[r.number] - r.base for r in self.running)
        return private + (self.cache.blocks - self.cache.evictable if self.cache is not None else 0)

    def submit(self, request: Request, now: Seconds) -> None:
        """Hand a request over."""
        request.replica = self.replica
        if self.end == math.inf:
            self.now = max(self.now, now)
        elif self.settings.async_scheduling:
            self.unseen.append((now, request))
            return
        self.waiting.append(request)

    def cancel(self, request: Request, now: Seconds) -> None:
        """Drop a request whose client left: at once, or after its step.

        `request`: A request that was submitted and has not finished.
        """
        if request in self.waiting:
            self.waiting.remove(request)
        elif any(one is request for _, one in self.unseen):
            self.unseen = deque(pair for pair in self.unseen if pair[1] is not request)
        else:
            self.gone.append(request)

    def _let_go(self) -> None:
        gone, self.gone = self.gone, []
        for request in gone:
            if request.finish >= 0:
                continue
            if request in self.waiting:  # preempted meanwhile
                self.waiting.remove(request)
                continue
            self._free_slots([request])
            if request.joined < 0:
                self._leave(request, request.done)
            else:
                self._leave(request, request.input + generated(request, self.step) - 1)

    def kv_used(self, now: Seconds) -> int:
        """Blocks that running requests hold.

        `now`: The time; they are always as of now.
        """
        return self.used

    def retime(self, clock: StepClock, now: Seconds) -> None:
        """Give later steps another duration; the step under way ends as planned.

        `now`: The time; steps are planned one by one.
        """
        self.clock = clock

    def abandon(self, now: Seconds) -> list[Request]:
        """Stop for good, and return the requests inside by number.

        `now`: The time; the step under way is lost.
        """
        gone = {request.number for request in self.gone}
        inside = [*self.waiting, *(request for _, request in self.unseen), *self.running]
        return sorted([one for one in inside if one.number not in gone], key=lambda one: one.number)

    def found(self, request: Request, now: Seconds) -> int:
        """Look a prompt up in the prefix cache.

        `now`: The time; the cache is always as of now.
        """
        return self.cache.match(request)[0] if self.cache is not None else 0

    def plan(self) -> Seconds:
        """Form the next step.

        Returns: When it ends; infinite if there is nothing to do.
        """
        self.work, self.decoding, self.loading, preemptions = [], [], 0, self.preemptions
        self._let_go()
        if not self.running:
            self.late_places = self.late_blocks = 0
        while self.unseen and (not self.running or self.unseen[0][0] <= self.begun):
            self.waiting.append(self.unseen.popleft()[1])
        self._admit_ready()
        if self.settings.prefill_first:
            if not any(r.joined >= 0 for r in self.running):
                self.owed = 0
            if self.owed:
                self.owed -= 1
            else:
                self._prefill(self.settings.max_num_batched_tokens * self.settings.pipeline_stages)
            if not self.work:
                self._decode()
        elif self.in_order or self.slots is not None:
            go_through(self)
        elif not self._decode() and (self.bound or not (self.owed and self.decoding)):
            spent = len(self.decoding) * self.settings.tokens_per_decode
            self._prefill(self.settings.max_num_batched_tokens * self.settings.pipeline_stages - spent)
            self.bound = bool(self.waiting)
        if self.work:
            self.owed = self.settings.decode_between
        elif self.decoding and not self.settings.prefill_first:
            self.owed = max(self.owed - 1, 0)
        self.encoding = encoding_seconds(self.work, self.settings)
        if not self.work and not self.decoding:
            self.end = math.inf
            return self.plan() if self.waiting and self.preemptions > preemptions else self.end
        self.end = self.now + self.loaded(self.clock.mixed(*self.contents))
        return self.end

    @property
    def contents(self) -> tuple[int, float, int, float]:
        """Decoding requests, their contexts, prompt tokens and their keys."""
        tokens = sum(take for _, take in self.work)
        keys = sum(take * (r.done + (take + 1) / 2) for r, take in self.work)
        return len(self.decoding), sum(self.context[r.number] for r in self.decoding), tokens, keys

    @property
    def step_tokens(self) -> int:
        """Tokens of the formed step, [token]"""
        return len(self.decoding) * self.settings.tokens_per_decode + sum(take for _, take in self.work)

    def loaded(self, seconds: Seconds) -> Seconds:
        """Time of the formed step, which waits for what it loads."""
        return max(seconds + self.encoding, loading_seconds(self.loading, self.pool, self.settings))

    @property
    def queued(self) -> int:
        """Requests that wait for admission, [-]"""
        return len(self.waiting) + len(self.unseen)

    def owe(self, steps: int) -> None:
        """Make so many steps without prompt tokens while requests decode."""
        self.owed = steps

    def commit(self) -> list[Request]:
        """End the step."""
        self.begun, self.now = self.now, self.end
        finished, ended = [], []
        if self.decoding:
            self.step += 1
            self.estimate.decay(1)
        for request in self.decoding:
            self.context[request.number] += self.growth
            if self.step - request.joined == request.left:
                ended.append(request)
        self.late_blocks = 0
        for request, take in self.work:
            request.done += take
            if request.done < request.prompt:
                continue
            if request.first < 0:
                request.first = self.now
            if self.cache is not None and len(request.runs) > 1:
                request.private = self.held[request.number] - request.base
                self.cache.publish(request)
                request.base = self.held[request.number] - request.private
            self._start(request)
            if request.left == 0:
                self._finish(request, request.prompt)
                finished.append(request)
        for request in ended:
            self._finish(request, request.input + request.output - 1)
            finished.append(request)
        for request in finished:
            request.finish = self.now
        self.late_places = len(finished) if self.settings.async_scheduling else 0
        self._free_slots(finished)
        return finished

    def _free_slots(self, requests: list[Request]) -> None:
        if self.slots is not None:
            self.slots.leave(requests, self.waiting)

    def _finish(self, request: Request, computed: int) -> None:
        before = self._available()
        self._leave(request, computed)
        if self.settings.async_scheduling:
            self.late_blocks += self._available() - before

    def _start(self, request: Request) -> None:
        request.joined = self.step
        self.context[request.number] = request.prompt + 1

    def _available(self) -> int:
        cached = self.cache.blocks if self.cache is not None else 0
        private = sum(self.held[r.number] - r.base for r in self.running)
        idle = self.cache.evictable if self.cache is not None else 0
        return self.pool.blocks - private - cached + idle

    def _make_room(self, blocks: int) -> None:
        """Throw idle content out of the cache if free blocks do not suffice."""
        if self.cache is not None:
            free = self._available() - self.cache.evictable
            if blocks > free:
                self.cache.evict(blocks - free)

    def _wants(self, request: Request) -> int:
        """Return True if a decoding request needs one more block in the next step."""
        made = self.step - request.joined + 1
        return held_blocks(request.prompt, made, self.pool.block_size, self.period) - self.held[request.number]

    def _decode(self) -> bool:
        """Give each decoding request its block; return True if one was preempted."""
        preempted = False
        while sum(self._wants(r) for r in self.running if r.joined >= 0) > self._available():
            self._preempt(self._victim())
            preempted = True
        self.decoding = [r for r in self.running if r.joined >= 0]
        for request in self.decoding:
            need = self._wants(request)
            self._make_room(need)
            self.held[request.number] += need
        return preempted

    def _victim(self) -> Request:
        if self.settings.admission == "estimate":
            decoding = [r for r in self.running if r.joined >= 0]
            return min(decoding, key=lambda r: (generated(r, self.step), -r.input, decoding.index(r)))
        if self.urgent_first:
            return max(self.running, key=lambda r: (r.priority, r.arrival, r.number))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        request.preemptions += 1
        self._free_slots([request])
        if request.joined < 0:
            self._leave(request, request.done)
        else:
            written = generated(request, self.step)
            request.left -= self.step - request.joined + 1
            self._leave(request, request.input + written - 1)
            request.prompt = request.input + written
            request.joined = -1
            if self.settings.admission == "estimate":
                self.estimate.retracted([r for r in self.running if r.joined >= 0], self.step)
        request.done = 0
        if self.settings.admission == "estimate":
            self.waiting.append(request)
        else:
            self.waiting.appendleft(request)

    def _leave(self, request: Request, computed: int) -> None:
        self.full = False
        self.running.remove(request)
        request.private = self.held.pop(request.number) - request.base
        self.context.pop(request.number, None)
        if self.cache is not None:
            self.cache.release(request, computed)
        request.base = 0

    def _go_on(self, budget: int) -> int | None:
        """Compute more of a started prompt; return the budget left.

        It is None if blocks are too few.
        """
        for request in [r for r in self.running if r.joined < 0]:
            take = min(request.prompt - request.done, budget)
            need = -(-(request.done + take) // self.pool.block_size) - self.held[request.number]
            if need > self._available():
                if not self.settings.prefill_first:
                    self._preempt(request)
                return None
            self._make_room(need)
            self.held[request.number] += need
            self.work.append((request, take))
            budget -= take
        return budget

    def _prefill(self, budget: int) -> None:
        """Gather prompt tokens: a started prompt, then waiting requests in order."""
        left = self._go_on(budget)
        if left is not None and not self._few_slots():
            self._admit(left, 1 << 60)

    def _few_slots(self) -> bool:
        """Return True if prompts wait for further free slots (SGLang)."""
        most = self.settings.running_limit
        free = most - self.late_places - len(self.running)
        return bool(self.running) and not self.work and free < min(self.settings.min_free_slots, most)

    def _admit(self, budget: int, limit: int) -> None:
        """Begin prompts of waiting requests in order."""
        settings, size = self.settings, self.pool.block_size
        estimate = settings.admission == "estimate"
        if self.full and self.running and not self.urgent_first:  # SGLang tries anew at every step for the urgent
            return
        decoding = [r for r in self.running if r.joined >= 0]
        late, together = self.late_blocks, settings.prefill_max_requests or settings.max_num_seqs
        most = min(settings.running_limit - self.late_places, len(decoding) + together)
        room = (self._available() - late) * size - self.estimate.outstanding(decoding, self.step, self.growth)
        room -= sum(r.prompt - r.done + self.estimate.answer(r.left, self.growth) for r, _ in self.work)
        if settings.order == "lpm" and self.cache is not None:
            self.waiting = deque(by_longest_prefix(self.waiting, self.cache, size))
        if self.urgent_first:
            self.waiting = deque(by_priority(self.waiting, estimate))
        while self.waiting and budget > 0 and len(self.running) < most:
            request = self.waiting[0]
            if request.kv_ready:
                return
            hit, names = self.cache.match(request) if self.cache is not None else (0, [])
            load = self.cache.loadable(request, hit) if self.cache is not None else 0
            rest = request.prompt - (hit + load) * size
            take = min(rest, budget, limit)
            if take < rest and not settings.chunked_prefill:
                return
            need = load - (-take // size)
            whole = load - (-rest // size) if settings.reserve_full_isl else need
            late_or_kept = late + (int(settings.watermark * self.pool.blocks) if self.running else 0)
            idle = self.cache.idle_blocks(names) if self.cache is not None else 0
            if whole > self._available() - late_or_kept - idle:
                self.full = estimate
                return
            if settings.admission == "no-evict":
                promised = sum(held_blocks(r.input, r.steps, size, self.period) for r in [*self.running, request])
                if promised > self.pool.blocks:
                    return
            if estimate:
                cost = rest + load * size + self.estimate.answer(request.left, self.growth)
                if cost >= room and self.running:
                    self.full = True
                    return
                room -= cost
            self.waiting.popleft()
            if self.cache is not None:
                self.cache.hold(request, names)
                if not request.preemptions:
                    request.cached = (hit + load) * size
            self.loading += load
            request.base, request.done = hit, (hit + load) * size
            self._make_room(need)
            self.held[request.number] = hit + need
            self.running.append(request)
            if request.started < 0:
                request.started = self.now
            self.work.append((request, take))
            budget -= take

    def _admit_ready(self) -> None:
        """Let requests decode whose KV cache was computed elsewhere."""
        while self.waiting and self.waiting[0].kv_ready and len(self.running) < self.settings.running_limit:
            request = self.waiting[0]
            need = -(-request.prompt // self.pool.block_size)
            decoding = sum(r.joined >= 0 for r in self.running)
            if need + 1 + decoding > self._available() and self.running:
                return
            self.waiting.popleft()
            self._make_room(need)
            self.held[request.number] = need
            self.running.append(request)
            request.kv_ready = False
            request.first = self.now
            self._start(request)
