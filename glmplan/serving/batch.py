"""The decoding batch of a replica and the blocks it holds, without touching each request at each step.

All decoding requests gain the same number of tokens in a step, so their contexts are known as one sum, their ends as a
heap of step numbers, and the steps at which they need a further block as counts by residue.
"""

from __future__ import annotations

from heapq import heappop, heappush

from glmplan.serving.admission import block_period, held_blocks
from glmplan.serving.prefixcache import PrefixCache
from glmplan.serving.requests import Request
from glmplan.serving.settings import EngineSettings, KvPool

__all__ = ["DecodingBatch"]


class DecodingBatch:
    """Decoding requests and blocks of one replica.

    Parameters
    ----------
    pool : KvPool
        Room for keys and values.
    settings : EngineSettings
        Scheduler and limits.
    """

    def __init__(self, pool: KvPool, settings: EngineSettings) -> None:
        self.settings, self.pool = settings, pool
        self.growth = round(settings.acceptance.mean * 1024) / 1024 if settings.acceptance else 1.0
        self.period = block_period(pool.block_size, self.growth)
        self.cache = PrefixCache(pool.block_size) if settings.prefix_caching else None
        self.free = pool.blocks
        self._size = pool.block_size
        self._running: dict[int, Request] = {}  # decoding requests in the order of admission
        self._total = 0.0  # sum of their contexts in the next step
        self._step = 0  # decode steps made
        self._counts = [0] * self.period  # requests that need a block at steps of each residue
        self._heap: list[tuple[int, int, Request]] = []  # last step, join number, request
        self._joins = 0
        self._promises = settings.admission == "no-evict"
        self._promised = 0  # blocks that running requests will hold at their ends, under no-evict
        self._changed = True  # whether admission may come out differently than last time

    @property
    def used(self) -> int:
        """Blocks that running requests hold, [-]"""
        free = self.free + self.cache.evictable if self.cache is not None else self.free
        return self.pool.blocks - free

    def _available(self) -> int:
        return self.free + self.cache.evictable if self.cache is not None else self.free

    def _settle(self) -> None:
        """Throw idle content out for the blocks that were taken beyond the free ones; due before the cache is read."""
        if self.free < 0 and self.cache is not None:
            self.cache.evict(-self.free)
            self.free = 0

    def _join(self, request: Request) -> None:
        """Start decoding with the next step."""
        self._joins += 1
        request.token, request.joined = self._joins, self._step
        phase = request.prompt % self._size * self.period // self._size
        request.key = (self._step - phase) % self.period
        self._counts[request.key] += 1
        self._running[request.token] = request
        self._total += request.prompt + 1
        heappush(self._heap, (self._step + request.left, request.token, request))

    def _separate(self, request: Request) -> None:
        """Stop decoding."""
        self._counts[request.key] -= 1
        del self._running[request.token]
        self._total -= request.prompt + 1 + (self._step - request.joined) * self.growth
        request.token = -1

    def _next_end(self) -> int:
        """The step after which the next request is done."""
        heap = self._heap
        while heap[0][2].token != heap[0][1]:
            heappop(heap)
        return heap[0][0]

    def _complete(self, finished: list[Request]) -> None:
        """Take out the requests whose last step has been made."""
        heap, step = self._heap, self._step
        while heap and heap[0][0] <= step:
            _, join, request = heappop(heap)
            if request.token == join:
                blocks = self._blocks(request)
                self._separate(request)
                self._leave(request, blocks, request.input + request.output - 1)
                finished.append(request)

    def _growth(self, start: int, steps: int) -> int:
        """Blocks that the decoding requests need in `steps` steps from step `start`."""
        cycles, rest = divmod(steps, self.period)
        a = start % self.period
        part = sum(self._counts[a : a + rest])
        if a + rest > self.period:
            part += sum(self._counts[: a + rest - self.period])
        return cycles * len(self._running) + part

    def _blocks(self, request: Request) -> int:
        """Blocks a decoding request holds after the steps it has made."""
        return held_blocks(request.prompt, self._step - request.joined, self._size, self.period)

    def _peak(self, request: Request) -> int:
        """Blocks a request holds at its end; counted under no-evict only."""
        return held_blocks(request.input, request.steps, self._size, self.period) if self._promises else 0

    def _leave(self, request: Request, blocks: int, computed: int) -> None:
        """Give back the blocks of a request."""
        self._changed = True
        if self._promises:
            self._promised -= self._peak(request)
        if self.cache is None:
            self.free += blocks
        else:
            self._settle()
            request.private = blocks - request.base
            self.free += self.cache.release(request, computed)
        request.base = 0
