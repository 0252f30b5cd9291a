"""One replica of an engine, advanced from change to change: runs of equal decode steps have a closed form.

A step is planned at its start and committed at its end, so what other replicas do meanwhile can still cut a run short.
Between two changes of the batch a decode step takes `t + b·i` seconds in its i-th repetition, as every context grows by
one token (by the mean acceptance length with speculation); k steps take `k·t + b·k(k−1)/2`.
"""

from __future__ import annotations

from collections import deque

from glmplan.serving.engine.admission import by_longest_prefix, generated, loading_seconds
from glmplan.serving.engine.batch import DecodingBatch
from glmplan.serving.engine.settings import EngineSettings, KvPool
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.traffic.request import Request

__all__ = ["SkippingEngine"]

_NEVER = float("inf")


class SkippingEngine(DecodingBatch):
    """A replica that jumps from one change of its batch to the next.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room for keys and values.
    settings : EngineSettings
        Scheduler and limits.
    replica : int, optional
        Its number, written into each request, [-]
    """

    __slots__ = (
        *("_adopts", "_beside", "_budget", "_cap", "_chunked", "_chunks", "_each", "_loading", "_most", "_reserves"),
        *("_prefill_first", "_sorts", "_together", "_tokens", "_weight", "_whole", "preemptions", "replica"),
    )

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings)
        self.replica = replica
        self.preemptions = 0
        self._prefill_first, self._most = settings.prefill_first, settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens * settings.pipeline_stages
        self._each = settings.tokens_per_decode
        self._adopts = settings.prefill_replicas > 0  # whether requests come with keys and values
        self._chunks: list[tuple[Request, int]] = []  # prompt tokens of the planned step
        self._tokens, self._weight = 0, 0.0  # how many these are, and the keys they attend together
        self._loading = 0  # blocks that the planned step loads from host memory
        self._beside = 0  # decoding requests in the planned step with prompt tokens
        self._whole, self._sorts = settings.reserve_full_isl, settings.order == "lpm"
        self._chunked, self._reserves = settings.chunked_prefill, self._promises or self._estimate is not None
        self._together = settings.prefill_max_requests or settings.max_num_seqs  # prompts in one step
        self._cap = 1 << 60  # tokens of one new prompt in the planned step

    @property
    def load(self) -> int:
        """Requests waiting or running, [-]"""
        return len(self.waiting) + len(self._unseen) + self._busy

    @property
    def _busy(self) -> int:
        return len(self._running) + (self._partial is not None) + len(self._chunks)

    def submit(self, request: Request, now: float) -> None:
        """Hand a request over.

        Parameters
        ----------
        request : Request
            The request.
        now : float
            The time, [s]
        """
        request.replica, waiting = self.replica, self.waiting
        if self.end == _NEVER:
            self.now = max(self.now, now)
        elif self._ahead:
            self._unseen.append((now, request))
            if self._steps and len(self._unseen) == 1 and self._may_be_next and now < self.end:
                # the next step is formed by now: that behind it sees who did not come with the run
                self._cut(now, further=int(now > self.now))
            return
        elif self._steps and self._may_be_next and now < self.end:
            self._cut(now)
        if not waiting:
            self._changed = True
        waiting.append(request)

    @property
    def _may_be_next(self) -> bool:
        """Whether a request that comes now has nobody before it and finds a place."""
        return not self.waiting and self._busy < self._most

    def adopt(
        self,
        clock: tuple[float, float],
        step: int,
        running: list[tuple[Request, int]],
        partial: tuple[Request, int] | None,
        late: tuple[int, int],
    ) -> None:
        """Take over a replica that was simulated elsewhere.

        Parameters
        ----------
        clock : tuple of float
            The time, and the start of the step that was made last, [s]
        step : int
            Decode steps made, [-]
        running : list of tuple
            Decoding requests in the order of admission, and the step after which each is done.
        partial : tuple or None
            The request whose prompt is partly computed, and its tokens that are still to be computed, [token]
        late : tuple of int
            Places and blocks that the last step freed, [-]
        """
        now, begun = clock
        self.now = self.end = self._last_decode = now
        self._begun, size = begun, self._size
        self._late_places, self._late_blocks = late
        for request, last in running:
            self._step = last - request.left
            request.done = request.prompt
            self._join(request)
            self._total += (step - self._step) * self.growth
        self._step = step
        if partial is not None:
            self._partial, rest = partial
            self._partial.done = self._partial.prompt - rest
            self.free -= -(-self._partial.done // size)
            self._promised += self._peak(self._partial)
        self.free -= sum(self._blocks(request) for request, _ in running)
        self._promised += sum(self._peak(request) for request, _ in running)

    def plan(self) -> float:
        """Decide what happens next.

        Returns
        -------
        float
            When it ends; infinite if there is nothing to do, [s]
        """
        self._steps, preemptions = 0, self.preemptions
        if self._gone:
            self._let_go()
        if self._ahead:
            self._look()
        if self._adopts:
            self._admit_ready()
        decoding, pending = len(self._running), self.waiting or self._partial is not None
        if self._prefill_first:
            if pending:
                self._fill(self._budget)
            if not self._chunks and decoding:
                self._grow()
        else:
            need = self._counts[self._step % self.period] if decoding else 0
            if need <= self.free:  # as `_grow` does
                self.free -= need
                if pending:
                    self._fill(self._budget - decoding * self._each)
            else:
                self._grow()
        if self._late_places:
            self._changed |= bool(self.waiting)
            self._late_places = self._late_blocks = 0
        if self._chunks:
            self._beside = beside = 0 if self._prefill_first else decoding
            seconds = self.clock.mixed(beside, self._total, self._tokens, self._weight)
            self.end = self.now + (self._loaded(seconds) if self._loading else seconds)
        elif self._running:
            self._plan_run()
        else:
            self.end = _NEVER
            if self.waiting and self.preemptions > preemptions:
                self.plan()
        return self.end

    def _step_seconds(self, beside: int) -> float:
        """Time of the planned step with prompt tokens."""
        seconds = self.clock.mixed(beside, self._total, self._tokens, self._weight)
        return self._loaded(seconds) if self._loading else seconds

    def _loaded(self, seconds: float) -> float:
        """Time of a step that waits for what it loads."""
        return max(seconds, loading_seconds(self._loading, self.pool, self.settings))

    def commit(self) -> list[Request]:
        """Make what was planned happen.

        Returns
        -------
        list of Request
            Requests that finished, at `now`.
        """
        finished: list[Request] = []
        if self._steps:
            self._commit_run()
        else:
            self._commit_step(finished)
        free, heap = self.free, self._heap
        if heap and heap[0] >> 32 <= self._step:
            self._complete(finished)
        if self._ahead:
            self._late_blocks += self.free - free
            self._late_places = len(finished)
        return finished

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _fill(self, budget: int) -> None:
        """Gather prompt tokens for the next step: the rest of a started prompt, then waiting requests in order."""
        size, partial, chunks, waiting, tokens, weight = self._size, self._partial, self._chunks, self.waiting, 0, 0.0
        self._loading = 0
        if partial is not None:
            take = min(partial.prompt - partial.done, budget)
            need = -(-(partial.done + take) // size) - (-(-partial.done // size))
            if need > self.free:
                if not self._prefill_first:
                    self._preempt(partial)
                return
            self.free -= need
            chunks.append((partial, take))
            tokens, weight = take, take * (partial.done + (take + 1) / 2)
            self._partial = None
            budget -= take
        self._tokens, self._weight, busy = tokens, weight, len(self._running) + len(chunks)
        if not waiting or (busy and (self._full or not self._changed)):
            return
        room, cache, late, free = 0.0, self.cache, self._late_blocks, self.free
        cap, whole, chunked, estimate = self._cap, self._whole, self._chunked, self._estimate
        most = min(self._most - self._late_places, len(self._running) + self._together)
        if estimate:
            room = (free - late) * size
            room -= self._outstanding(estimate)
            room -= sum(r.prompt - r.done + estimate.answer(r.left, self.growth) for r, _ in chunks)
        self._changed = False
        reserves, adopts = self._reserves, self._adopts
        if self._sorts and cache is not None and len(waiting) > 1:
            self._settle()
            waiting = self.waiting = deque(by_longest_prefix(waiting, cache, size))
        while waiting and budget > 0 and busy < most:
            request = waiting[0]
            if adopts and request.kv_ready:
                break
            hit, held, load, rest = 0, 0, 0, request.prompt
            names: list[tuple[object, int]] | None = None
            if cache is not None and (request.runs or request.preemptions):
                if not request.runs and -(-min(rest, budget, cap) // size) > free - late:
                    self._full = estimate is not None
                    break  # what is found takes as much of the free blocks as it saves
                self.free = free
                self._settle()
                hit, names = cache.match(request)
                held = cache.idle_blocks(names)
                load = cache.loadable(request, hit)
                rest -= (hit + load) * size
            take = rest if rest < budget else budget
            if take > cap:
                take = cap
            if take < rest and not chunked:
                break
            need = load - (-take // size)  # what is found ends at a block, so blocks start with the rest
            if (load - (-rest // size) if whole and take < rest else need) > free - held - late:
                self._full = estimate is not None
                break
            if reserves:
                if self._promised + self._peak(request) > self._pool_blocks:
                    break
                cost = rest + load * size + estimate.answer(request.left, self.growth) if estimate else 0.0
                if estimate and cost >= room and busy:
                    self._full = True
                    break
                self._promised += self._peak(request)
                room -= cost
            waiting.popleft()
            if (names or load) and cache is not None:
                cache.hold(request, names or [])
                request.base, request.done = hit, (hit + load) * size
                request.cached += (hit + load) * size
                self._loading += load
            free -= need + held
            if request.started < 0:
                request.started = self.now
            chunks.append((request, take))
            tokens += take
            weight += take * (request.done + (take + 1) / 2)
            busy += 1
            budget -= take
        self._tokens, self._weight, self.free = tokens, weight, free

    def _admit_ready(self) -> None:
        """Let requests whose keys and values were computed elsewhere decode at once."""
        size = self._size
        while self.waiting and self.waiting[0].kv_ready and self._busy < self._most:
            request = self.waiting[0]
            need = -(-request.prompt // size)
            if need + 1 + len(self._running) > self.free and self._busy:
                return
            self.waiting.popleft()
            self.free -= need
            request.kv_ready = False
            request.first = self.now
            self._promised += self._peak(request)
            if self._partial is not None and self._partial.token < 0:
                # engines preempt in the order of admission, not in that in which prompts are done: keep its place
                self._partial.token = self._joins = self._joins + 1
            self._join(request)

    def _commit_step(self, finished: list[Request]) -> None:
        """End a step with prompt tokens; tell the requests whose first token was the last."""
        start, now, n, total = self.now, self.end, self._beside, self._total
        self.now, self._begun = now, start
        chunks, self._chunks, cache = self._chunks, [], self.cache
        self._changed = True  # of budget and cached content
        self._late_blocks = 0
        if n or not self._running:
            self._last_decode = now
        if n:
            self._step += 1
            self._total += n * self.growth
            if self._estimate is not None:
                self._estimate.decay(1)
        for request, take in chunks:
            request.done = done = request.done + take
            if done < request.prompt:
                self._partial = request
                continue
            if request.first < 0:
                request.first = now
            elif request.lost >= 0:
                self.stalls += (now - request.lost, 1)
            if cache is not None and len(request.runs) > 1:
                blocks = -(-request.prompt // self._size)
                self._settle()
                request.private = blocks - request.base
                cache.publish(request)
                request.base = blocks - request.private
            if request.left:
                self._join(request)
            else:
                free = self.free
                self._leave(request, -(-request.prompt // self._size), request.prompt, True)
                self._late_blocks += self.free - free if self._ahead else 0
                request.finish = now
                finished.append(request)
        used = self._pool_blocks - self.free
        self.segments += (start, 1, now - start, 0.0, n, total if n else 0.0, self._tokens, used)

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Give decoding requests the blocks of their next step; preempt while they are too few."""
        while (need := self._counts[self._step % self.period]) > self.free:
            self._preempt(self._victim())
        self.free -= need

    def _victim(self) -> Request:
        """Whom to preempt: the request admitted last; in SGLang the one that has written least."""
        if self._estimate is not None:
            return min(self._running.values(), key=lambda r: (generated(r, self._step), -r.input, r.token))
        partial, last = self._partial, next(reversed(self._running), 0)
        return self._running[last] if partial is None or 0 <= partial.token < last else partial

    def _preempt(self, request: Request) -> None:
        """Drop what a request has computed and queue it first; it will compute prompt and answer so far again."""
        self.preemptions += 1
        request.preemptions += 1
        if request is self._partial:
            self._partial = None
            self._leave(request, -(-request.done // self._size), request.done, False)
        else:
            request.lost = max(self._last_decode, request.since)
            blocks, written = self._blocks(request), generated(request, self._step)
            self._separate(request)
            request.left -= self._step - request.joined + 1
            self._leave(request, blocks, request.input + written - 1, False)
            request.prompt = request.input + written
            if self._estimate is not None:
                self._estimate.retracted(self._running.values(), self._step)
        request.done, request.token = 0, -1
        if self._estimate is not None:
            self.waiting.append(request)
        else:
            self.waiting.appendleft(request)
