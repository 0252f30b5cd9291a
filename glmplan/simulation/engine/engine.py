"""One replica of an engine, advanced from event to event.

Runs of equal decode steps have a closed form.

A step is planned at its start and committed at its end, so what other replicas do meanwhile can still cut a run short.
Between two changes of the batch a decode step takes `t + b·i` seconds in its i-th repetition, as every context grows by
one token (by the mean acceptance length with speculation); k steps take `k·t + b·k(k−1)/2`.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import Final

from glmplan.simulation.engine.admission import (
    MOST_RECKONED,
    SharedEstimate,
    block_period,
    by_longest_prefix,
    cache_of,
    count_stalls,
    encoding_seconds,
    generated,
    held_blocks,
    loading_seconds,
    piece_at,
    steps_with_blocks,
)
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_clock import StepClock, clock_of
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds

__all__ = ["DecodingBatch", "SkippingEngine"]


# The decoding batch of a replica: the blocks it holds and its runs of equal steps, without touching each request.
#
# All decoding requests gain the same number of tokens in a step, so their contexts are known as one sum, their ends
# as a
# heap of step numbers, and the steps at which they need a further block as counts by residue. A run of k steps that
# grow
# by b takes `k·t + b·k(k−1)/2`. These loops run for every simulated request, so they read each attribute once.

_NEVER: Final = math.inf
_SHIFT: Final = 32
_MASK: Final = (1 << 32) - 1


class DecodingBatch:
    """Decoding requests, blocks and clock of one replica.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        KV pool.
    settings : EngineSettings
        Scheduler and limits.
    """

    __slots__ = (
        *("_ahead", "_begun", "_changed", "_counts", "_ends", "_estimate", "_full", "_gone", "_heap", "_joins"),
        *("_last_decode", "_late_blocks", "_late_places", "_long", "_partial", "_pieces", "_pool_blocks", "_promised"),
        *("_owed", "_promises", "_running", "_size", "_starts", "_step", "_steps", "_total", "_unseen", "cache"),
        *("clock", "end", "free", "growth", "now", "period", "pool", "segments", "settings", "stalls", "waiting"),
    )

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings) -> None:
        self.settings, self.pool = settings, pool
        self.clock: StepClock = clock_of(table, settings.pipeline_stages)
        self.growth = round(settings.acceptance.mean * 1024) / 1024 if settings.acceptance else 1.0
        self.period = block_period(pool.block_size, self.growth)
        self.cache = cache_of(pool, settings)
        #: blocks that no running request holds; idle content of the prefix cache lies in them until they are taken
        self.free = self._pool_blocks = pool.blocks
        self.now, self.end = 0.0, _NEVER
        #: runs of equal steps, eight numbers each in one row: start, steps, seconds of the first, growth, decoding
        #: requests, contexts, prompts, blocks
        self.segments: list[float] = []
        #: gaps between tokens that are not one step long, as length and count in turn; a negative count takes back what
        #: the runs say of them
        self.stalls: list[float] = []
        self._size = size = pool.block_size
        # `held_blocks` by the tokens in the last block of a prompt: steps behind it, blocks beyond the full ones
        phases = [odd * self.period // size for odd in range(size)]
        self._starts = [(phase, (odd > 0) + (phase == 0)) for odd, phase in enumerate(phases)]
        self._running: dict[int, Request] = {}  # decoding requests by join number, in the order of admission
        self._total = 0.0  # sum of their contexts in the next step
        self._step = 0  # decode steps made
        # sum of the steps after which decoding requests end, and those with more to write than the estimate covers
        self._ends = self._long = 0
        self._counts = [0] * self.period  # requests that need a block at steps of each residue
        self._heap: list[int] = []  # last step · 2³² + join number; requests that left before are no longer in _running
        self._joins = 0
        self._promises = settings.admission == "no-evict"
        # blocks that running requests will hold at their ends, under no-evict; whether admission may come out
        # differently than last time
        self._promised, self._changed = 0, True
        self._estimate = SharedEstimate(settings.first_ratio) if settings.admission == "estimate" else None
        # SGLang's flag: no request is admitted until one leaves
        self._full, self._ahead = False, settings.async_scheduling
        # start of the step that was made last: what came later is not in the next one, if it is ahead; and end of the
        # last step in which requests decoded
        self._begun = self._last_decode = 0.0
        self._unseen: deque[tuple[float, Request]] = deque()  # those who came later, and when
        self._late_places = self._late_blocks = 0  # what the last step freed, which a step formed ahead does not know
        self._pieces: list[tuple[float, int, float, float]] = []  # start, steps, seconds of the first, growth
        # steps of the planned run, 0 for a single step with prompt tokens; decode steps before the next one of these
        self._steps = self._owed = 0
        self.waiting: deque[Request] = deque()
        self._partial: Request | None = None
        self._gone: list[Request] = []  # whose clients left while they were in a step

    @property
    def used(self) -> int:
        """Blocks that running requests hold, [-]"""
        return self._pool_blocks - self.free

    def _settle(self) -> None:
        """Evict idle content of blocks taken meanwhile, before the cache is used."""
        cache = self.cache
        if cache is not None and cache.evictable > self.free:
            cache.evict(cache.evictable - self.free)

    def _look(self) -> None:
        """Queue the requests that were there when the last step began.

        All are queued if nothing runs.
        """
        unseen, waiting, idle = self._unseen, self.waiting, not self._running and self._partial is None
        if idle:
            self._late_places = self._late_blocks = 0
        while unseen and (idle or unseen[0][0] <= self._begun):
            if not waiting:
                self._changed = True
            waiting.append(unseen.popleft()[1])

    # -- clients that leave -------------------------------------------------------------------------------------------

    def cancel(self, request: Request, now: Seconds) -> None:
        """Drop a request whose client left: at once, or after its step.

        `request`: A request that was submitted and has not finished.

        References
        ----------
        .. [1] vLLM 0.33.0, `vllm/v1/core/sched/scheduler.py` (finish_requests), `vllm/v1/engine/core.py`
           (_process_aborts_queue); SGLang 0.5.9, `srt/managers/scheduler.py` (abort_request).

        Notes
        -----
        Computed blocks stay in the prefix cache. Not modelled: the work for it in a step that was formed ahead.
        """
        if request in self.waiting:
            self.waiting.remove(request)
            self._changed = True
        elif any(one is request for _, one in self._unseen):
            self._unseen = deque(pair for pair in self._unseen if pair[1] is not request)
            return
        else:
            self._gone.append(request)
        self.stop_after(now)

    def _let_go(self) -> None:
        """Take out those whose clients left during the last step."""
        gone, self._gone = self._gone, []
        for request in gone:
            if request.finish < 0 and request in self.waiting:  # preempted meanwhile
                self.waiting.remove(request)
            elif request.finish < 0:
                self._drop(request)

    def _drop(self, request: Request) -> None:
        """End a request that is being served."""
        if request.joined < 0:
            self._partial = None
            self._leave(request, -(-request.done // self._size), request.done, False)
        else:
            blocks, written = self._blocks(request), generated(request, self._step)
            self._separate(request)
            self._leave(request, blocks, request.input + written - 1, False)

    # -- a replica that dies or slows down ----------------------------------------------------------------------------

    def kv_used(self, now: Seconds) -> int:
        """Blocks that running requests hold while a run may be under way."""
        free = self.free
        if self._steps:
            _, steps, here = piece_at(self._pieces, now)
            free -= self._growth(self._step + 1, steps + here - 1)
        return self._pool_blocks - free

    def stop_after(self, now: Seconds) -> None:
        """End the planned run with the step that is under way."""
        if self._steps and now < self.end:
            self._cut(now)

    def retime(self, clock: StepClock, now: Seconds) -> None:
        """Give later steps another duration; the step under way ends as planned."""
        self.stop_after(now)
        self.clock = clock

    def abandon(self, now: Seconds) -> list[Request]:
        """Stop for good, and return the requests inside by number.

        The step under way is lost; those before it stay in `segments`.
        """
        inside = [*self.waiting, *(request for _, request in self._unseen), *self._inside()]
        gone = {request.number for request in self._gone}
        if self._steps:
            self._cut(now)
            at, here, seconds, slope = self._pieces.pop()
            if here > 1:
                self._pieces.append((at, here - 1, seconds, slope))
            self._steps -= 1
            if self._steps:
                self._commit_run()
        return sorted([one for one in inside if one.number not in gone], key=lambda one: one.number)

    def _inside(self) -> list[Request]:
        """Requests that were admitted."""
        return [*self._running.values(), *([self._partial] if self._partial is not None else [])]

    # -- who decodes --------------------------------------------------------------------------------------------------

    def _join(self, request: Request) -> None:
        """Start decoding with the next step, in the slot kept for the request."""
        step, size, period = self._step, self._size, self.period
        prompt, left, token, running = request.prompt, request.left, request.token, self._running
        if token < 0:
            request.token = self._joins = token = self._joins + 1
            running[token] = request
        else:
            running[token] = request
            for later in [other for other in running if other > token]:
                running[later] = running.pop(later)
        request.joined = step
        request.since = self.now
        full, odd = divmod(prompt, size)
        phase, blocks = self._starts[odd]
        request.key = key = (step - phase) % period
        request.most = full + blocks + (phase + left - 1) // period
        self._counts[key] += 1
        self._total += prompt + 1
        if self._estimate is not None:
            self._ends += step + left
            self._long += left * self.growth > MOST_RECKONED
        heappush(self._heap, (step + left << _SHIFT) + token)

    def _separate(self, request: Request) -> None:
        """Stop decoding before the last step."""
        if self._estimate is not None:
            self._ends -= request.joined + request.left
            self._long -= request.left * self.growth > MOST_RECKONED
        self._counts[request.key] -= 1
        del self._running[request.token]
        self._total -= request.prompt + 1 + (self._step - request.joined) * self.growth

    def _complete(self, finished: list[Request]) -> None:
        """Take out the requests whose last step has been made."""
        heap, running, now = self._heap, self._running, self.now
        cache, kept, promises = self.cache, 0, self._promises
        due = self._step + 1 << _SHIFT
        if cache is not None and cache.evictable > self.free:  # `_settle`
            cache.evict(cache.evictable - self.free)
        while heap and heap[0] < due:
            request = running.pop(heappop(heap) & _MASK, None)
            if request is None:
                continue
            self._counts[request.key] -= 1
            self._total -= request.prompt + 1 + request.left * self.growth
            if self._estimate is not None:
                self._ends -= request.joined + request.left
                self._long -= request.left * self.growth > MOST_RECKONED
            request.finish = now
            finished.append(request)
            blocks, computed = request.most, request.input + request.output - 1
            if request.runs or request.pins or promises:
                if kept and cache is not None:
                    cache.keep(kept)
                    kept = 0
                self._leave(request, blocks, computed, True)
                continue
            self.free += blocks  # as `_leave` does, with one entry in the cache for all
            if cache is not None:
                full = computed // self._size
                kept += full if full < blocks else blocks
        if finished:
            self._changed, self._full = True, False
        if kept and cache is not None:
            cache.keep(kept)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _growth(self, start: int, steps: int) -> int:
        """Return the blocks that decoding requests need in some steps."""
        period, counts = self.period, self._counts
        cycles, rest = divmod(steps, period)
        a = start % period
        part = sum(counts[a : a + rest])
        if a + rest > period:
            part += sum(counts[: a + rest - period])
        return cycles * len(self._running) + part

    def _outstanding(self, estimate: SharedEstimate) -> float:
        """Return the remaining output, as `SharedEstimate.outstanding` does."""
        if self._long:  # some may have more left than the estimate covers
            return estimate.outstanding(self._running.values(), self._step, self.growth)
        return estimate.ratio * ((self._ends - len(self._running) * self._step) * self.growth)

    def _blocks(self, request: Request) -> int:
        """Blocks a decoding request holds after the steps it has made."""
        return held_blocks(request.prompt, self._step - request.joined, self._size, self.period)

    def _peak(self, request: Request) -> int:
        """Blocks a request holds at its end; counted under no-evict only."""
        return held_blocks(request.input, request.steps, self._size, self.period) if self._promises else 0

    def _leave(self, request: Request, blocks: int, computed: int, done: bool) -> None:
        """Give back the blocks of a request, for good or until it comes back."""
        self._changed, self._full = True, False
        if self._promises:
            self._promised -= self._peak(request)
        cache = self.cache
        if cache is None:
            self.free += blocks
            return
        idle = cache.evictable
        if idle > self.free:  # `_settle`
            cache.evict(idle - self.free)
            idle = self.free
        if done and not request.runs and not request.pins:
            cache.keep(min(computed // self._size, blocks))
            self.free += blocks
            return
        request.private = blocks - request.base
        self.free += cache.release(request, computed) + cache.evictable - idle
        request.base = 0

    # -- runs of equal steps ------------------------------------------------------------------------------------------

    def _plan_run(self) -> None:
        """Plan equal decode steps up to the next event.

        That is a completion, a lack of blocks, or the next try of admission.
        """
        n, step, room, heap = len(self._running), self._step, self.free, self._heap
        while heap[0] & _MASK not in self._running:
            heappop(heap)
        k = (heap[0] >> _SHIFT) - step
        if self.waiting:
            if self._changed and not self._full:
                k = 1  # blocks have just been freed: admission is tried again at the next step
        elif self._unseen and n < self.settings.running_limit:
            k = 1
        k = min(k, self._owed or k) if self.waiting or self._partial is not None else k
        # each takes a block in so many steps at most: only where these might be too few they are counted
        if n * -(-(k - 1) // self.period) > room:
            k = steps_with_blocks(self._counts, self.period, step + 1, k - 1, room) + 1
        self._steps, self._pieces = k, []
        total, at, growth, decode = self._total, self.now, self.growth, self.clock.decode
        while k:
            seconds, slope, edge = decode(n, total)
            here = min(k, max(1, math.ceil((edge - total / n) / growth))) if edge < 1e300 else k
            slope *= growth
            self._pieces.append((at, here, seconds, slope))
            at += here * seconds + slope * (here * (here - 1) / 2)
            k -= here
            total += here * n * growth
        self.end = at

    def _cut(self, now: float, further: int = 0) -> None:
        """End the planned run with the step that is under way, or one further."""
        pieces = self._pieces
        index, steps, here = piece_at(pieces, now)
        at, most, seconds, slope = pieces[index]
        if further and here < most:
            here += 1
        elif further and index + 1 < len(pieces):
            index, steps = index + 1, steps + here
            (at, _, seconds, slope), here = pieces[index], 1
        pieces[index:] = [(at, here, seconds, slope)]
        self._steps = steps + here
        self.end = at + here * seconds + slope * (here * (here - 1) / 2)

    def found(self, request: Request, now: Seconds) -> int:
        """Look a prompt up in the prefix cache while a run may be under way."""
        cache = self.cache
        if cache is None:
            return 0
        free = self._pool_blocks - self.kv_used(now)
        if cache.evictable > free:
            cache.evict(cache.evictable - free)
        return cache.match(request)[0]

    def _commit_run(self) -> None:
        """End a run of decode steps."""
        n, total, steps, growth = len(self._running), self._total, self._steps, self.growth
        self.free -= self._growth(self._step + 1, steps - 1) if steps > 1 else 0
        used, segments = self._pool_blocks - self.free, self.segments
        if self._last_decode < self.now:
            count_stalls(self._running, self._last_decode, self._pieces, self.stalls)
        self._last_decode = self.end
        if self._ahead:
            at, here, seconds, slope = self._pieces[-1]
            self._begun = at + (here - 1) * seconds + slope * ((here - 1) * (here - 2) / 2)
        for at, here, seconds, slope in self._pieces:
            segments += (at, here, seconds, slope, n, total, 0, used)
            total += here * n * growth
        self._total = total
        self._step += steps
        if self._estimate is not None:
            self._estimate.decay(steps)
        self.now, self._steps, self._owed = self.end, 0, max(self._owed - steps, 0)


class SkippingEngine(DecodingBatch):
    """A replica that jumps from one change of its batch to the next.

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

    __slots__ = (
        *("_adopts", "_beside", "_bound", "_budget", "_cap", "_chunked", "_chunks", "_each", "_encoding", "_loading"),
        *("_least", "_most", "_reserves", "_spaced"),
        *("_keep", "_prefill_first", "_sorts", "_together", "_tokens", "_weight", "_whole", "preemptions", "replica"),
    )

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings)
        self.replica, self.preemptions = replica, 0
        self._prefill_first, self._most = settings.prefill_first, settings.running_limit
        self._budget = settings.max_num_batched_tokens * settings.pipeline_stages
        self._each, self._keep = settings.tokens_per_decode, int(settings.watermark * pool.blocks)
        self._adopts = settings.prefill_replicas > 0  # whether requests come with keys and values
        self._chunks: list[tuple[Request, int]] = []  # prompt tokens of the planned step
        self._tokens, self._weight = 0, 0.0  # how many these are, and the keys they attend together
        self._loading = 0  # blocks that the planned step loads from host memory
        self._encoding = 0.0  # time of encoders in the planned step
        # steps between two with prompt tokens, and whether the last of these left requests waiting
        self._spaced, self._bound = settings.decode_between, False
        self._beside = 0  # decoding requests in the planned step with prompt tokens
        self._whole, self._sorts = settings.reserve_full_isl, settings.order == "lpm"
        self._chunked, self._reserves = settings.chunked_prefill, self._promises or self._estimate is not None
        self._together = settings.prefill_max_requests or settings.max_num_seqs  # prompts in one step
        self._least = min(settings.min_free_slots, self._most)  # slots that are free before prompts begin
        self._cap = 1 << 60  # tokens of one new prompt in the planned step

    @property
    def load(self) -> int:
        """Requests waiting or running, [-]"""
        return len(self.waiting) + len(self._unseen) + self._busy

    @property
    def _busy(self) -> int:
        return len(self._running) + (self._partial is not None) + len(self._chunks)

    def submit(self, request: Request, now: Seconds) -> None:
        """Hand a request over."""
        request.replica, waiting = self.replica, self.waiting
        if self.end == _NEVER:
            self.now = max(self.now, now)
        elif self._ahead:
            self._unseen.append((now, request))
            if self._steps and len(self._unseen) == 1 and self._may_be_next and now < self.end:
                # the next step is formed by now: that behind it sees who did not come with the run
                self._cut(now, further=int(now > self.now))
            return
        elif self._may_be_next:
            self.stop_after(now)
        if not waiting:
            self._changed = True
        waiting.append(request)

    # -- a server whose ranks wait for each other ---------------------------------------------------------------------

    @property
    def planned(self) -> int:
        """Equal decode steps planned; 0 for a step with prompt tokens [-]"""
        return self._steps

    @property
    def contents(self) -> tuple[int, float, int, float]:
        """Decoding requests, their contexts, prompt tokens and their keys."""
        if self._steps:
            return len(self._running), self._total, 0, 0.0
        return self._beside, self._total, self._tokens, self._weight

    @property
    def step_tokens(self) -> int:
        """Tokens of the planned step, [token]"""
        return self.contents[0] * self._each + self.contents[2]

    def loaded(self, seconds: Seconds) -> Seconds:
        """Time of the planned step, which waits for what it loads."""
        if self._steps:
            return seconds
        seconds += self._encoding
        return max(seconds, loading_seconds(self._loading, self.pool, self.settings)) if self._loading else seconds

    @property
    def queued(self) -> int:
        """Requests that wait for admission, [-]"""
        return len(self.waiting) + len(self._unseen)

    def owe(self, steps: int) -> None:
        """Make so many steps without prompt tokens while requests decode."""
        self._owed = steps

    def hold(self, pieces: list[tuple[float, int, float, float]], steps: int, end: Seconds) -> None:
        """Make so many of the planned steps, in the times of the server."""
        self.end = end
        if self._steps:
            self._steps, self._pieces = steps, pieces.copy()

    def follow(self, other: SkippingEngine) -> None:
        """Make as many steps as another rank, whose run was cut."""
        self.hold(other._pieces, other._steps, other.end)

    @property
    def _may_be_next(self) -> bool:
        """Return True if no request waits and one more may run."""
        return not self.waiting and self._busy < self._most

    def plan(self) -> Seconds:
        """Decide what happens next.

        Returns: When it ends; infinite if there is nothing to do.
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
            if pending and not (self._owed and decoding):
                self._fill(self._budget)
            if not self._chunks and decoding:
                self._grow()
        else:
            need = self._counts[self._step % self.period] if decoding else 0
            if need <= self.free:  # as `_grow` does
                self.free -= need
                if not (self._owed and decoding) or self._bound:
                    if pending:
                        self._fill(self._budget - decoding * self._each)
                    self._bound = len(self.waiting) > 0
            else:
                self._grow()
        if self._late_places:
            self._changed |= bool(self.waiting)
            self._late_places = self._late_blocks = 0
        if self._chunks:
            self._owed = self._spaced
            self._beside = beside = 0 if self._prefill_first else decoding
            self.end = self.now + self._step_seconds(beside)
        elif self._running:
            self._plan_run()
        else:
            self.end = _NEVER
            if self.waiting and self.preemptions > preemptions:
                self.plan()
        return self.end

    def _step_seconds(self, beside: int) -> float:
        """Time of the planned step with prompt tokens."""
        self._encoding = encoding_seconds(self._chunks, self.settings)
        return self.loaded(self.clock.mixed(beside, self._total, self._tokens, self._weight))

    def commit(self) -> list[Request]:
        """Make what was planned happen."""
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

    def _inside(self) -> list[Request]:
        """Requests that were admitted."""
        return [*super()._inside(), *(request for request, _ in self._chunks)]

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _fill(self, budget: int) -> None:
        """Gather prompt tokens of the next step: a started prompt, then the queue."""
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
        slots = self._most - self._late_places
        if slots - busy < self._least and busy and not chunks:
            self._changed = False  # until a request ends
            return
        most = min(slots, len(self._running) + self._together)
        if estimate:
            room = float((free - late) * size)
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
            short = held + late + (self._keep if busy else 0)
            if (load - (-rest // size) if whole and take < rest else need) > free - short:
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
                if not request.preemptions:  # a prompt counts once, not what is computed again
                    request.cached = (hit + load) * size
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
        """Let requests decode whose KV cache was computed elsewhere."""
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
        """End a step with prompt tokens, and the requests that are then complete."""
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
        """Allocate blocks of the next step; preempt while they are too few."""
        while (need := self._counts[self._step % self.period]) > self.free:
            self._preempt(self._victim())
        self.free -= need

    def _victim(self) -> Request:
        """Return the request to preempt.

        It is the one admitted last; in SGLang the one with the least output.
        """
        if self._estimate is not None:
            return min(self._running.values(), key=lambda r: (generated(r, self._step), -r.input, r.token))
        partial, last = self._partial, next(reversed(self._running), 0)
        return self._running[last] if partial is None or 0 <= partial.token < last else partial

    def _preempt(self, request: Request) -> None:
        """Drop the computed tokens of a request and queue it first.

        It computes prompt and answer so far again.
        """
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
