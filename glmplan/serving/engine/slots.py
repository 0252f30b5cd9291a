"""Which slot of llama.cpp a request gets, what it holds of the prompt, and in which order slots are gone through."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from glmplan.serving.engine.settings import EngineSettings, KvPool
from glmplan.serving.traffic.request import Request

__all__ = ["Slots"]

#: share of a prompt that a slot has to hold more than to be chosen for it: `--slot-prompt-similarity` [-]
_ALIKE = 0.1
#: share of what a slot holds that a prompt goes on from, below which it is copied to host memory before [-]
_LOST = 0.5
#: least share of a copy that comes back with it [-]
_WORTH = 0.25


@dataclass(frozen=True, slots=True)
class _Content:
    """Tokens whose keys and values are there; what follows the last of its runs belongs to it.

    `runs`: names of contents, and their tokens; `tokens`: how many in all [token]
    """

    runs: tuple[tuple[object, int], ...] = ()
    tokens: int = 0

    def common(self, other: _Content) -> int:
        """Tokens at the head of both, [token]"""
        found = 0
        for place, ((name, mine), (its, theirs)) in enumerate(zip(self.runs, other.runs, strict=False), start=1):
            if name != its:
                break
            here = self.tokens - found if place == len(self.runs) else min(mine, self.tokens - found)
            there = other.tokens - found if place == len(other.runs) else min(theirs, other.tokens - found)
            found += min(here, there)
            if here != there:
                break
        return found


class Slots:
    """Slots of one server; prompts are computed in their order, whoever came first.

    Parameters
    ----------
    count : int
        Slots, [-]
    reuse : bool, optional
        Whether the head of a prompt that a slot holds is not computed again (`--cache-prompt`).
    kept : float, optional
        Tokens of prompts that lost their slot which are kept in host memory (`--cache-ram`), [token]

    References
    ----------
    .. [1] llama.cpp b11434, `tools/server/server-context.cpp` (get_available_slot: of free slots that which holds most
       of the prompt, if that is more than a tenth of it, else that which was used longest ago; update_slots: decoding
       slots, then prompts, each in the order of the slots, while the batch has room, from what the slot holds on;
       release calls back for one deferred task), `tools/server/server-queue.cpp` (pop_deferred_task puts it in front of
       the queue, so that of those who follow requests which end in one step the last is placed first),
       `tools/server/server-task.cpp` (server_prompt_cache: what a slot loses is kept, oldest first thrown out, and
       comes back where more of it fits the prompt), `common/common.h` (cache_prompt, slot_prompt_similarity).

    Notes
    -----
    Not modelled: the time of copies to and from host memory; checkpoints of recurrent states, whose last tokens are
    computed again.

    Examples
    --------
    >>> slots, waiting = Slots(2), deque(Request(number, 0.0, 10, 1) for number in range(3))
    >>> [one.number for one in slots.in_order(slots.seat(waiting))], len(waiting)
    ([1, 0], 1)
    """

    __slots__ = ("_deferred", "_free", "_held", "_kept", "_of", "_released", "_reuse", "_room", "_used")

    def __init__(self, count: int, reuse: bool = False, kept: float = 0.0) -> None:
        # no slot was used yet: of several that were used equally long ago the last is taken
        self._used = [0] * count
        self._free = set(range(count))
        self._held = [_Content()] * count
        self._kept: list[_Content] = []  # in host memory, oldest first
        self._room = kept
        self._of: dict[int, int] = {}  # slot by request number
        self._reuse = reuse
        self._released = 0
        self._deferred = 0  # requests that were told to wait

    @classmethod
    def of(cls, settings: EngineSettings, pool: KvPool) -> Slots:
        """Slots as an engine is told.

        Parameters
        ----------
        settings : EngineSettings
            Its settings.
        pool : KvPool
            Its pool, which says what a token takes.

        Returns
        -------
        Slots
            All free.
        """
        kept = 0.0
        if settings.kept_bytes:  # where nobody says what a token takes, as much as the pool holds
            kept = settings.kept_bytes / pool.bytes_per_token if pool.bytes_per_token else float(pool.tokens)
        return cls(settings.max_num_seqs, settings.prefix_caching, kept)

    def seat(self, waiting: deque[Request]) -> list[Request]:
        """Give slots to those who wait, as long as there are any, and what these hold of their prompts.

        Parameters
        ----------
        waiting : deque of Request
            Who waits, in order; those who get a slot are taken out.

        Returns
        -------
        list of Request
            Who got one.
        """
        seated = []
        while waiting and self._free:
            request = waiting.popleft()
            slot = self._place(request)
            self._free.remove(slot)
            self._of[request.number] = slot
            seated.append(request)
        self._deferred = len(waiting)
        return seated

    def _place(self, request: Request) -> int:
        """The slot for a request, which finds there what it holds of its prompt."""
        oldest = min(self._free, key=lambda one: (self._used[one], -one))
        if not self._reuse:
            return oldest
        wanted = _Content(request.runs, request.prompt)
        alike = {slot: self._held[slot].common(wanted) for slot in sorted(self._free)} if request.runs else {oldest: 0}
        slot = max(alike, key=alike.__getitem__)
        chosen = alike[slot] > _ALIKE * request.prompt
        slot = slot if chosen else oldest
        if not chosen or alike[slot] < _LOST * self._held[slot].tokens:
            self._keep(self._held[slot])
            self._held[slot] = self._restored(self._held[slot], wanted)
        found = min(self._held[slot].common(wanted), request.prompt - 1, request.shareable)
        request.done = found
        request.cached += found
        return slot

    def _keep(self, content: _Content) -> None:
        """Copy what a slot is about to lose to host memory, unless it is there."""
        if not content.tokens or content.tokens > self._room:
            return
        if any(one.common(content) == content.tokens for one in self._kept):
            return
        self._kept = [one for one in self._kept if one.common(content) < one.tokens]
        while self._kept and sum(one.tokens for one in self._kept) + content.tokens > self._room:
            del self._kept[0]
        self._kept.append(content)

    def _restored(self, held: _Content, wanted: _Content) -> _Content:
        """What is kept and fits a prompt better than what the slot holds, and loses less of it; else that."""
        best, common = held, held.common(wanted)
        share = common / held.tokens if held.tokens else -1.0
        for one in self._kept:
            here = one.common(wanted)
            part = here / one.tokens
            if part >= _WORTH and part > share and here > common:
                best, common, share = one, here, part
        if best is not held:
            self._kept.remove(best)
        return best

    def in_order(self, requests: Iterable[Request]) -> list[Request]:
        """Those who have slots, in the order of the slots.

        Parameters
        ----------
        requests : iterable of Request
            In any order.

        Returns
        -------
        list of Request
            The same.
        """
        return sorted(requests, key=lambda request: self._of[request.number])

    def leave(self, requests: Iterable[Request], waiting: deque[Request]) -> None:
        """Free the slots of requests that end in one step.

        Parameters
        ----------
        requests : iterable of Request
            Who ends, in any order.
        waiting : deque of Request
            Who waits: as many as slots become free come forward, the last of them first.
        """
        ended = self.in_order(requests)
        for request in ended:
            slot = self._of.pop(request.number)
            self._used[slot] = self._released = self._released + 1
            computed = request.input + request.output - 1 if request.finish >= 0 else request.done
            # nobody can ask again for what has no name
            self._held[slot] = _Content(request.runs, computed) if request.runs else _Content()
            self._free.add(slot)
        forward = min(len(ended), self._deferred, len(waiting))
        waiting.extendleft([waiting.popleft() for _ in range(forward)])
        self._deferred -= forward
