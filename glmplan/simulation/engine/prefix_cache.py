"""Blocks of earlier requests, kept until blocks are needed.

The least recently used content goes first, its tail first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from glmplan.simulation.engine.settings import CacheTier, KvPool
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds, TokenCount

__all__ = ["FarTiers", "HostTier", "PrefixCache"]


# Copies of cached blocks in host memory, behind the cache on the accelerators (hicache, LMCache).


class HostTier:
    """Cached blocks in host memory.

    The least recently used content goes first, its tail first.

    Content is written through: every full block that leaves a request has a copy here, so that content evicted from
    the accelerators' pool is not lost.

    Parameters
    ----------
    blocks : int
        Blocks that it holds, [-]

    References
    ----------
    .. [1] SGLang 0.5.9, `srt/mem_cache/hiradix_cache.py` (write_through, load_back), `srt/managers/schedule_policy.py`
       (host_hit_length: admission counts what is loaded as no tokens to compute, and gives it device blocks).

    Examples
    --------
    >>> tier = HostTier(8)
    >>> tier.store([("a", 5)])
    >>> tier.store([("b", 5)])
    >>> tier.found([("a", 5)], 5), tier.found([("b", 5)], 5)
    (3, 5)
    """

    __slots__ = ("_blocks", "_kept", "_room", "capacity")

    def __init__(self, blocks: int) -> None:
        self._room = self.capacity = blocks
        self._kept: OrderedDict[object, int] = OrderedDict()
        self._blocks = 0

    def store(self, shares: list[tuple[object, int]]) -> None:
        """Copy the blocks of a request.

        `shares`: Name of each content and its blocks, in the order of the prompt.
        """
        kept = self._kept
        for name, blocks in reversed(shares):  # the head is evicted last
            before = kept.get(name, 0)
            if blocks > before:
                kept[name] = blocks
                self._blocks += blocks - before
            if name in kept:
                kept.move_to_end(name)
        self._shrink()

    def reserve(self, blocks: int) -> bool:
        """Keep memory for blocks on their way; return False if too little is free."""
        if blocks > self._room:
            return False
        self._room -= blocks
        self._shrink()
        return True

    def give_back(self, blocks: int) -> None:
        """Release reserved memory."""
        self._room += blocks

    def _shrink(self) -> None:
        kept = self._kept
        while self._blocks > self._room:
            name, blocks = next(iter(kept.items()))
            part = min(self._blocks - self._room, blocks)
            self._blocks -= part
            if part == blocks:
                del kept[name]
            else:
                kept[name] = blocks - part

    def found(self, shares: list[tuple[object, int]], limit: int, use: bool = True) -> int:
        """Blocks at the head of a prompt that lie here.

        - `shares`: Name of each content of the prompt and its blocks.
        - `use`: False for a look that does not count as a use.
        """
        total = 0
        for name, blocks in shares:
            part = min(blocks, self._kept.get(name, 0), limit - total)
            total += part
            if part < blocks:
                break
            if use and name in self._kept:
                self._kept.move_to_end(name)
        return total


class PrefixCache:
    """Which content is cached, how much of it, and who holds it.

    A prompt is a chain of runs (name of the content, tokens). Equal names stand for equal tokens after equal heads,
    which is what chained block hashes express, so a run stands for many hashes at the cost of one. Content that a
    running request uses is kept whole.

    Parameters
    ----------
    block_size : int
        Tokens of a block; only full blocks are cached, [token]
    tier : HostTier, optional
        Copies in host memory.

    Attributes
    ----------
    tier : HostTier or None
        Copies in host memory.
    lower : list of HostTier
        Copies beyond host memory, which are written with those in host memory.

    Examples
    --------
    >>> cache = PrefixCache(16)
    >>> first = Request(0, 0.0, 160, 1, runs=(("system", 160),))
    >>> first.private = 10
    >>> cache.release(first, 160)
    0
    >>> cache.match(Request(1, 0.0, 170, 1, runs=(("system", 160), ("user", 10))))
    (10, [('system', 10)])
    """

    __slots__ = ("_block", "_entries", "_idle", "_nameless", "blocks", "evictable", "lower", "tier")

    def __init__(self, block_size: int, tier: HostTier | None = None) -> None:
        self._block, self.tier = block_size, tier
        self.lower: list[HostTier] = []
        self._entries: dict[object, list[int]] = {}  # name → [blocks, of them held, holders]
        self._idle: OrderedDict[object, None] = OrderedDict()  # content whose blocks no request holds, oldest use first
        self._nameless: list[int] | None = None  # the entry that `keep` adds to, while it is the newest
        self.evictable = 0
        self.blocks = 0

    def match(self, request: Request) -> tuple[int, list[tuple[object, int]]]:
        """Return the cached blocks at the head of a prompt.

        The last token of a prompt is always computed.

        Returns: Blocks found, and (name of the content, blocks of it) for each part.
        """
        found, parts, limit = 0, [], min(request.prompt - 1, request.shareable) // self._block
        for name, blocks in self._shares(request, request.prompt):
            entry = self._entries.get(name)
            if entry is not None:
                part = min(blocks, entry[0], limit - found)
                parts.append((name, part))
                found += part
                if part == blocks:
                    continue
            if blocks:
                break
        return found, parts

    def loadable(self, request: Request, found: int) -> int:
        """Blocks behind those that were found that can be loaded from host memory."""
        if self.tier is None:
            return 0
        shares, limit = self.wanted(request)
        return max(self.tier.found(shares, limit), request.staged, found) - found if found < limit else 0

    def wanted(self, request: Request) -> tuple[list[tuple[object, int]], int]:
        """Return the whole blocks of a prompt by content, and how many to find."""
        limit = min(request.prompt - 1, request.shareable) // self._block
        return self._shares(request, request.prompt), limit

    def unstage(self, request: Request) -> None:
        """Release the host memory with blocks that were fetched for a request."""
        if self.tier is not None:
            self.tier.give_back(request.staged)
        request.staged = 0

    def idle_blocks(self, parts: list[tuple[object, int]]) -> int:
        """Blocks that would stop being evictable if these parts were held."""
        return sum(max(0, part - self._entries[name][1]) for name, part in parts)

    def hold(self, request: Request, parts: list[tuple[object, int]]) -> None:
        """Keep content for a request."""
        if request.staged:
            self.unstage(request)
        request.pins = dict(parts)
        for name, part in parts:
            self._hold(name, self._entries[name], part)

    def evict(self, blocks: int) -> None:
        """Throw out what was used least recently.

        `blocks`: How many blocks to free, at most `evictable`
        """
        self.evictable -= blocks
        self.blocks -= blocks
        newest = self._nameless
        if newest is not None and newest[0] > blocks and len(self._idle) == 1:  # it is the oldest as well
            newest[0] -= blocks
            return
        while blocks:
            name = next(iter(self._idle))
            entry = self._entries[name]
            part = entry[0] - entry[1]
            if part > blocks:
                entry[0] -= blocks
                return
            blocks -= part
            entry[0] = entry[1]
            del self._idle[name]
            if entry is self._nameless:
                self._nameless = None
            if not entry[2]:
                del self._entries[name]

    def keep(self, blocks: int) -> None:
        """Keep content that no request can ask for again, until it is the oldest."""
        newest = self._nameless
        if newest is None:
            newest = self._nameless = [0, 0, 0]
            name = object()
            self._entries[name], self._idle[name] = newest, None
        newest[0] += blocks
        self.blocks += blocks
        self.evictable += blocks

    def publish(self, request: Request) -> None:
        """Share the head of a computed prompt while the request still runs.

        Its last run stays private.

        `request`: A request whose prompt has just been computed.
        """
        for name, blocks in self._shares(request, request.prompt)[:-1]:
            entry, own = self._entries.setdefault(name, [0, 0, 0]), request.pins.get(name, 0)
            added = min(blocks - own, request.private)
            if entry[0] == own and added > 0:  # otherwise another request computed the same at the same time
                entry[0] += added
                self.blocks += added
                self.evictable += added
                request.private -= added
                self._hold(name, entry, own + added, again=name in request.pins)
                request.pins = {**request.pins, name: own + added}
            elif entry[0] == 0 and entry[2] == 0:
                del self._entries[name]

    def release(self, request: Request, tokens: TokenCount) -> int:
        """Let go of everything a request holds; its full blocks stay cached."""
        private, pins = request.private, dict(request.pins)
        request.pins, request.private = {}, 0
        self._nameless = None
        shares = self._shares(request, tokens)
        if self.tier is not None:
            self.tier.store(shares)
            for tier in self.lower:
                tier.store(shares)
        for name, blocks in reversed(shares):
            entry = self._entries.get(name)
            added = min(blocks - (entry[0] if entry else 0), private)
            if added > 0:
                private -= added
                if entry is None:
                    entry = self._entries[name] = [0, 0, 0]
                entry[0] += added
                self.blocks += added
                self.evictable += added
            if name in pins:
                del pins[name]
                self._let_go(name)
            elif entry is not None and entry[0] > entry[1]:
                self._idle[name] = None
                self._idle.move_to_end(name)
        for name in pins:
            self._let_go(name)
        return private

    def _hold(self, name: object, entry: list[int], part: int, again: bool = False) -> None:
        more = max(0, part - entry[1])
        entry[1] += more
        entry[2] += not again
        self.evictable -= more
        if entry[0] == entry[1]:
            self._idle.pop(name, None)

    def _let_go(self, name: object) -> None:
        entry = self._entries[name]
        entry[2] -= 1
        if entry[2] == 0:
            self.evictable += entry[1]
            entry[1] = 0
        if entry[0] > entry[1]:
            self._idle[name] = None
            self._idle.move_to_end(name)
        elif entry[0] == 0 and entry[2] == 0:
            del self._entries[name]

    def _shares(self, request: Request, tokens: int) -> list[tuple[object, int]]:
        """Return the whole blocks of each run among the first tokens.

        Tokens after the prompt belong to the last run.
        """
        runs, block = request.runs, self._block
        if len(runs) < 2:
            return [(runs[0][0] if runs else ("request", request.number), tokens // block)]
        shares, start, end = [], 0, 0
        for name, length in runs[:-1]:
            end = min(end + length, tokens)
            shares.append((name, end // block - start))
            start = end // block
        shares.append((runs[-1][0], tokens // block - start))
        return shares


class FarTiers:
    """Copies of cached blocks beyond host memory, and the links to them.

    A request that finds more of its prompt here than on its replica waits until enough host memory is free, and until
    it lies there; the engine loads it from there. Transfers queue on both ends of a link, those of different tiers run
    at the same time.

    Parameters
    ----------
    tiers : sequence of CacheTier
        The tiers, nearest first.
    pool : KvPool
        KV pool of each replica.
    caches : list of PrefixCache
        Caches of the replicas of the group.
    least : int, optional
        Fewest tokens that are worth a transfer, [token]

    References
    ----------
    .. [1] SGLang 0.5.23, `srt/managers/scheduler.py` (_prefetch_kvcache as a request comes; _get_new_batch_prefill
       skips requests whose prefetch is not done), `srt/mem_cache/unified_cache` (prefetch_threshold 256).
    .. [2] vLLM 0.33.0, `vllm/v1/kv_offload/tiering/manager.py` (lookup: RETRY while blocks of a secondary tier are
       promoted to host memory), `tiering/fs`, `tiering/obj`, `tiering/p2p`.

    Notes
    -----
    Not modelled: the time of writing copies, and SGLang's `timeout`, which gives up a transfer that takes too long.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import TransferLink
    >>> cache = PrefixCache(16, HostTier(12))
    >>> far = FarTiers([CacheTier("drive", 160, TransferLink(1e6))], KvPool(1000, 16, bytes_per_token=1e3), [cache])
    >>> first, second = (Request(i, 0.0, 161, 1, runs=(("document", 161),)) for i in range(2))
    >>> first.private = 10
    >>> cache.release(first, 161), cache.tier.store([("other", 8)]), cache.tier.found([("document", 10)], 10)
    (0, None, 4)
    >>> round(far.fetched(0, second, 0, 5.0), 3), second.staged
    (5.096, 10)
    """

    __slots__ = ("_busy", "_caches", "_least", "_pool", "_tiers")

    def __init__(
        self, tiers: Sequence[CacheTier], pool: KvPool, caches: list[PrefixCache], least: TokenCount = 1
    ) -> None:
        self._tiers, self._pool, self._caches, self._least = list(tiers), pool, caches, least
        # when each link is free: of the tiers, then the network of the replicas, then their drives
        self._busy = [0.0] * (len(tiers) + 2 * len(caches))
        shared = [HostTier(one.tokens // pool.block_size) for one in tiers]
        for cache in caches:
            self._connect(cache, shared)

    def _connect(self, cache: PrefixCache, shared: list[HostTier]) -> None:
        """Give a cache its tiers; in place of peers one that holds nothing."""
        size = self._pool.block_size
        cache.lower = [
            HostTier(one.tokens // size) if one.kind == "drive" else also
            for one, also in zip(self._tiers, shared, strict=True)
        ]

    def replace(self, place: int, cache: PrefixCache) -> None:
        """Connect the cache of a replica that begins anew."""
        self._connect(cache, self._caches[place].lower)
        self._caches[place] = cache

    def fetched(self, place: int, request: Request, near: int, now: Seconds) -> Seconds:
        """Fetch what is found of a prompt into the memory of its host.

        - `place`: Place of the replica in the group.
        - `near`: Blocks that its KV pool has.
        - Returns: When it is there, which is now if nothing is fetched; infinite while too little host memory is free.
        """
        cache, count = self._caches[place], len(self._caches)
        shares, limit = cache.wanted(request)
        assert cache.tier is not None
        total = max(near, cache.tier.found(shares, limit))
        sent: list[tuple[int, int, int, int]] = []  # tier, both links and blocks
        for number, tier in enumerate(self._tiers):
            own, other = len(self._tiers) + place, number
            if tier.kind == "drive":
                own = other = own + count
            if tier.kind == "peers":
                found, other = self._richest(place, shares, limit)
                other += len(self._tiers)
            else:
                found = cache.lower[number].found(shares, limit)
            if (found - total) * self._pool.block_size >= self._least:
                sent.append((number, own, other, found - total))
                total = found
        if not sent or total > cache.tier.capacity:
            return now
        if not cache.tier.reserve(total):
            return math.inf
        request.staged, done = total, now
        for number, own, other, blocks in sent:
            link = self._tiers[number].link
            end = max(now, self._busy[own], self._busy[other])
            end += blocks * self._pool.block_size * self._pool.bytes_per_token / link.bandwidth
            self._busy[own] = self._busy[other] = end
            done = max(done, end + link.latency)
        return done

    def _richest(self, place: int, shares: list[tuple[object, int]], limit: int) -> tuple[int, int]:
        """Return the most blocks that another host holds, and its place."""
        best, where = 0, place
        for other, cache in enumerate(self._caches):
            found = cache.tier.found(shares, limit, False) if other != place and cache.tier is not None else 0
            if found > best:
                best, where = found, other
        return best, where
