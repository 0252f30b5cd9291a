"""Copies of cached blocks in host memory, behind the cache on the accelerators (hicache, LMCache)."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["HostTier"]


class HostTier:
    """What was computed once and still lies in host memory; the least recently used content goes first, tail first.

    Content is written through: every full block that leaves a request has a copy here, so that what is thrown out of
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

    __slots__ = ("_blocks", "_kept", "_room")

    def __init__(self, blocks: int) -> None:
        self._room = blocks
        self._kept: OrderedDict[object, int] = OrderedDict()
        self._blocks = 0

    def store(self, shares: list[tuple[object, int]]) -> None:
        """Copy the blocks of a request.

        Parameters
        ----------
        shares : list of tuple
            Name of each content and its blocks, in the order of the prompt.
        """
        kept = self._kept
        for name, blocks in reversed(shares):  # the head is the last to be thrown out
            before = kept.get(name, 0)
            if blocks > before:
                kept[name] = blocks
                self._blocks += blocks - before
            if name in kept:
                kept.move_to_end(name)
        while self._blocks > self._room:
            name, blocks = next(iter(kept.items()))
            part = min(self._blocks - self._room, blocks)
            self._blocks -= part
            if part == blocks:
                del kept[name]
            else:
                kept[name] = blocks - part

    def found(self, shares: list[tuple[object, int]], limit: int) -> int:
        """Blocks at the head of a prompt that lie here.

        Parameters
        ----------
        shares : list of tuple
            Name of each content of the prompt and its blocks.
        limit : int
            Blocks that may be found, [-]

        Returns
        -------
        int
            [-]
        """
        total = 0
        for name, blocks in shares:
            part = min(blocks, self._kept.get(name, 0), limit - total)
            total += part
            if part < blocks:
                break
            if name in self._kept:
                self._kept.move_to_end(name)
        return total
