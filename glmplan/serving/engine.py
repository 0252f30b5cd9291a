"""One replica of an engine, advanced from change to change: runs of equal decode steps have a closed form.

A step is planned at its start and committed at its end, so what other replicas do meanwhile can still cut a run short.
Between two changes of the batch a decode step takes `t + b·i` seconds in its i-th repetition, as every context grows by
one token (by the mean acceptance length with speculation); k steps take `k·t + b·k(k−1)/2`.
"""

from __future__ import annotations

import math
from collections import deque

from glmplan.serving.admission import RECHECK_STEPS, SharedEstimate, generated
from glmplan.serving.batch import DecodingBatch
from glmplan.serving.requests import Request
from glmplan.serving.settings import EngineSettings, KvPool
from glmplan.serving.steptable import StepClock, StepTable

__all__ = ["SkippingEngine", "steps_until"]

_NEVER = math.inf


def steps_until(seconds: float, first: float, slope: float) -> int:
    """Fewest steps that last at least given seconds, when each is longer than the one before by `slope`.

    Parameters
    ----------
    seconds : float
        Time to fill, [s]
    first : float
        Duration of the first step, [s]
    slope : float
        Growth of the duration for each step, [s]

    Returns
    -------
    int
        Steps, at least one, [-]

    Examples
    --------
    >>> steps_until(1.0, 0.25, 0.0), steps_until(1.0, 0.3, 0.1)
    (4, 3)
    """
    linear = first - slope / 2
    root = linear * linear + 2 * slope * seconds
    k = int(2 * seconds / (linear + math.sqrt(max(root, 0.0)))) if linear + root > 0 else 1
    k = max(k - 1, 1)
    while k * first + slope * k * (k - 1) / 2 < seconds:
        k += 1
    return k


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

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(pool, settings)
        self.replica = replica
        self.clock = StepClock(table, settings.pipeline_stages)
        self.waiting: deque[Request] = deque()
        self.now, self.end = 0.0, _NEVER
        self.preemptions = 0
        #: runs of equal steps: start, steps, seconds of the first, growth, decoding requests, contexts, prompts, blocks
        self.segments: list[tuple[float, int, float, float, int, float, int, int]] = []
        self._budget = settings.max_num_batched_tokens * settings.pipeline_stages
        self._partial: Request | None = None
        self._estimate = SharedEstimate(settings.new_token_ratio)
        self._chunks: list[tuple[Request, int]] = []
        self._beside = 0  # decoding requests in the planned step with prompt tokens
        self._pieces: list[tuple[float, int, float, float]] = []  # start, steps, seconds of the first, growth
        self._steps = 0  # steps of the planned run; 0 for a single step with prompt tokens

    @property
    def load(self) -> int:
        """Requests waiting or running, [-]"""
        return len(self.waiting) + self._busy

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
        request.replica = self.replica
        if not self.waiting:
            self._changed = True
        self.waiting.append(request)
        if self.end == _NEVER:
            self.now = max(self.now, now)
        elif self._steps and len(self.waiting) == 1 and self._busy < self.settings.max_num_seqs and now < self.end:
            self._cut(now)

    def adopt(
        self, now: float, step: int, running: list[tuple[Request, int]], partial: Request | None, rest: int
    ) -> None:
        """Take over a replica that was simulated elsewhere.

        Parameters
        ----------
        now : float
            The time, [s]
        step : int
            Decode steps made, [-]
        running : list of tuple
            Decoding requests in the order of admission, and the step after which each is done.
        partial : Request or None
            The request whose prompt is partly computed.
        rest : int
            Tokens of that prompt that are still to be computed, [token]
        """
        self.now, size = now, self._size
        for request, last in running:
            self._step = last - request.left
            request.done = request.prompt
            self._join(request)
            self._total += (step - self._step) * self.growth
        self._step = step
        self._partial = partial
        if partial is not None:
            partial.done = partial.prompt - rest
            self.free -= -(-partial.done // size)
            self._promised += self._peak(partial)
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
        if self.waiting and self.waiting[0].kv_ready:
            self._admit_ready()
        settings, decoding = self.settings, len(self._running)
        pending = self.waiting or self._partial is not None
        if settings.prefill_first:
            if pending:
                self._fill(self._budget)
            if not self._chunks and decoding:
                self._grow()
        else:
            preempted = bool(decoding) and self._grow()
            if pending and not preempted:
                self._fill(self._budget - decoding * settings.tokens_per_decode)
        if self._chunks:
            self._beside = 0 if settings.prefill_first else decoding
            p = sum(take for _, take in self._chunks)
            weight = sum(take * (request.done + (take + 1) / 2) for request, take in self._chunks)
            self.end = self.now + self.clock.mixed(self._beside, self._total, p, weight)
        elif self._running:
            self._plan_run()
        else:
            self.end = _NEVER
            if self.waiting and self.preemptions > preemptions:
                self.plan()
        return self.end

    def commit(self) -> list[Request]:
        """Make what was planned happen.

        Returns
        -------
        list of Request
            Requests that finished, at `now`.
        """
        finished = self._commit_run() if self._steps else self._commit_step()
        self._complete(finished)
        for request in finished:
            request.finish = self.now
        return finished

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _fill(self, budget: int) -> None:
        """Gather prompt tokens for the next step: the rest of a started prompt, then waiting requests in order."""
        size, settings, partial = self._size, self.settings, self._partial
        if partial is not None:
            take = min(partial.prompt - partial.done, budget)
            need = -(-(partial.done + take) // size) - (-(-partial.done // size))
            if need > self._available():
                if not settings.prefill_first:
                    self._preempt(partial)
                return
            self.free -= need
            self._chunks.append((partial, take))
            self._partial = None
            budget -= take
        estimate, room = settings.admission == "estimate", 0.0
        if not self.waiting or not (self._changed or not self._busy or (estimate and self._step % RECHECK_STEPS == 0)):
            return
        if estimate:
            room = self._available() * size
            room -= self._estimate.outstanding(self._running.values(), self._step, self.growth)
            room -= sum(r.prompt - r.done + self._estimate.answer(r.left, self.growth) for r, _ in self._chunks)
        self._changed = False
        waiting, cache, chunks, most = self.waiting, self.cache, self._chunks, settings.max_num_seqs
        busy = self._busy
        while waiting and budget > 0 and busy < most:
            request = waiting[0]
            if request.kv_ready:
                break
            hit, held, rest = 0, 0, request.prompt
            names: list[tuple[object, int]] = []
            if cache is not None and (request.runs or request.preemptions):
                self._settle()
                hit, names = cache.match(request)
                held = cache.idle_blocks(names)
                rest -= hit * size
            take = min(rest, budget)
            if take < rest and not settings.chunked_prefill:
                break
            need = -(-take // size)  # what is found ends at a block, so blocks start with the rest
            if need > self._available() - held:
                break
            if self._promises:
                if self._promised + self._peak(request) > self.pool.blocks:
                    break
                self._promised += self._peak(request)
            if estimate:
                cost = rest + self._estimate.answer(request.left, self.growth)
                if cost >= room and busy:
                    break
                room -= cost
            waiting.popleft()
            if names and cache is not None:
                cache.hold(request, names)
                request.cached += hit * size
            request.base, request.done = hit, hit * size
            self.free -= need
            if request.started < 0:
                request.started = self.now
            chunks.append((request, take))
            busy += 1
            budget -= take

    def _admit_ready(self) -> None:
        """Let requests whose keys and values were computed elsewhere decode at once."""
        size = self._size
        while self.waiting and self.waiting[0].kv_ready and self._busy < self.settings.max_num_seqs:
            request = self.waiting[0]
            need = -(-request.prompt // size)
            if need + 1 + len(self._running) > self._available() and self._busy:
                return
            self.waiting.popleft()
            self.free -= need
            request.kv_ready = False
            request.first = self.now
            self._promised += self._peak(request)
            self._join(request)

    def _commit_step(self) -> list[Request]:
        """End a step with prompt tokens; return the requests whose first token was the last."""
        finished: list[Request] = []
        start, now, n, total = self.now, self.end, self._beside, self._total
        self.now = now
        chunks, self._chunks = self._chunks, []
        self._changed = True  # of budget and cached content
        tokens = 0
        if n:
            self._step += 1
            self._total += n * self.growth
            self._estimate.decay(1)
        for request, take in chunks:
            tokens += take
            request.done += take
            if request.done < request.prompt:
                self._partial = request
                continue
            if request.first < 0:
                request.first = now
            if self.cache is not None and len(request.runs) > 1:
                blocks = -(-request.prompt // self._size)
                self._settle()
                request.private = blocks - request.base
                self.cache.publish(request)
                request.base = blocks - request.private
            if request.left == 0:
                self._leave(request, -(-request.prompt // self._size), request.prompt)
                finished.append(request)
            else:
                self._join(request)
        self.segments.append((start, 1, now - start, 0.0, n, total if n else 0.0, tokens, self.used))
        return finished

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _plan_run(self) -> None:
        """Plan equal decode steps up to the next completion, or until blocks run out or admission is tried again."""
        n, step, room = len(self._running), self._step, self._available()
        k = self._next_end() - step
        if self.waiting and self._changed:
            k = 1  # a preemption has just freed blocks: admission is tried again at the next step
        elif self.waiting and self.settings.admission == "estimate":
            k = min(k, RECHECK_STEPS - step % RECHECK_STEPS)
        if k > 1 and ((k - 1) // self.period + 1) * n > room and self._growth(step + 1, k - 1) > room:
            low, high = 1, k  # the first step has its blocks; find the last that still gets them
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._growth(step + 1, middle - 1) <= room else (low, middle)
            k = low
        self._steps, self._pieces = k, []
        total, at, growth = self._total, self.now, self.growth
        while k:
            seconds, slope, edge = self.clock.decode(n, total)
            here = min(k, max(1, math.ceil((edge - total / n) / growth))) if edge < 1e300 else k
            slope *= growth
            self._pieces.append((at, here, seconds, slope))
            at += here * seconds + slope * (here * (here - 1) / 2)
            total += here * n * growth
            k -= here
        self.end = at

    def _cut(self, now: float) -> None:
        """End the planned run with the step that is under way."""
        steps = 0
        for index, (at, here, seconds, slope) in enumerate(self._pieces):
            if index == len(self._pieces) - 1 or self._pieces[index + 1][0] >= now:
                here = min(here, steps_until(now - at, seconds, slope))
                self._pieces[index:] = [(at, here, seconds, slope)]
                self._steps = steps + here
                self.end = at + here * seconds + slope * (here * (here - 1) / 2)
                return
            steps += here

    def _commit_run(self) -> list[Request]:
        """End a run of decode steps."""
        n, total = len(self._running), self._total
        if self._steps > 1:
            self.free -= self._growth(self._step + 1, self._steps - 1)
        used = self.used
        for at, here, seconds, slope in self._pieces:
            self.segments.append((at, here, seconds, slope, n, total, 0, used))
            total += here * n * self.growth
        self._total = total
        self._step += self._steps
        self._estimate.decay(self._steps)
        self.now, self._steps = self.end, 0
        return []

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _grow(self) -> bool:
        """Give decoding requests the blocks of their next step, preempting while they do not suffice; say if it did."""
        preempted = False
        while (need := self._counts[self._step % self.period]) > self._available():
            self._preempt(self._victim())
            preempted = True
        self.free -= need
        return preempted

    def _victim(self) -> Request:
        """Whom to preempt: the request admitted last; in SGLang the one that has written least."""
        if self.settings.admission == "estimate":
            return min(self._running.values(), key=lambda r: (generated(r, self._step), -r.input, r.token))
        return self._partial if self._partial is not None else next(reversed(self._running.values()))

    def _preempt(self, request: Request) -> None:
        """Drop what a request has computed and queue it first; it will compute prompt and answer so far again."""
        self.preemptions += 1
        request.preemptions += 1
        if request is self._partial:
            self._partial = None
            self._leave(request, -(-request.done // self._size), request.done)
        else:
            blocks, written = self._blocks(request), generated(request, self._step)
            request.left -= self._step - request.joined + 1
            self._separate(request)
            self._leave(request, blocks, request.input + written - 1)
            request.prompt = request.input + written
            if self.settings.admission == "estimate":
                self._estimate.retracted(self._running.values(), self._step)
        request.done = 0
        self.waiting.appendleft(request)
