"""Replicas with another order than first come, first served.

These are priorities, several prompts side by side, and slots.

Both try admission at every step while a request waits and one more may run, since a later request may go before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from glmplan.simulation.engine.admission import in_order_again
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds

__all__ = ["InOrderEngine", "Slots", "SlotsEngine", "UrgentFirstEngine", "engine_of"]


# Which slot of llama.cpp a request gets, what it holds of the prompt, and in which order slots are gone through.

#: share of a prompt that a slot has to hold more than to be chosen for it: `--slot-prompt-similarity` [-]
_ALIKE = 0.1
#: share of what a slot holds that a prompt goes on from, below which it is copied to host memory before [-]
_LOST = 0.5
#: least share of a copy that comes back with it [-]
_WORTH = 0.25


@dataclass(frozen=True, slots=True)
class _Content:
    """Computed tokens; tokens after the last of the runs belong to it.

    `runs`: names of contents, and their tokens; `tokens`: how many in all [token]
    """

    runs: tuple[tuple[object, int], ...] = ()
    tokens: int = 0

    def common(self, other: _Content) -> int:
        """Tokens at the head of both, [token]"""
        if not self.runs or not other.runs or self.runs[0][0] != other.runs[0][0]:
            return 0  # most pairs: the loop below takes several times as long
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
    """Slots of one server.

    Prompts are computed in the order of the slots, not of arrival.

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
       slots, then prompts, each in the order of the slots, up to the batch size, from what the slot holds on;
       release calls back for one deferred task), `tools/server/server-queue.cpp` (pop_deferred_task puts it in front of
       the queue, so that the last of the requests that follow ends in one step is placed first),
       `tools/server/server-task.cpp` (server_prompt_cache: what a slot loses is kept, the oldest evicted first, and
       comes back where more of it fits the prompt), `common/common.h` (cache_prompt, slot_prompt_similarity).

    Notes
    -----
    Not modelled: the time of copies to and from host memory; checkpoints of recurrent states, whose last tokens are
    computed again.

    Examples
    --------
    >>> slots, waiting = Slots(2), deque(Request(number, 0.0, 10, 1) for number in range(3))
    >>> [one.number for one in slots.in_order(slots.assign(waiting))], len(waiting)
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
        self._deferred = 0  # requests that were deferred

    @classmethod
    def of(cls, settings: EngineSettings, pool: KvPool) -> Slots:
        """Return the slots of an engine with these settings.

        `pool`: Its pool, which says what a token takes.
        """
        kept = 0.0
        if settings.kept_bytes:  # if the bytes of a token are unknown, as much as the pool holds
            kept = settings.kept_bytes / pool.bytes_per_token if pool.bytes_per_token else float(pool.tokens)
        return cls(settings.max_num_seqs, settings.prefix_caching, kept)

    def assign(self, waiting: deque[Request]) -> list[Request]:
        """Give free slots to waiting requests, with the content that fits.

        `waiting`: The queue, in order; requests that get a slot are taken out.
        """
        seated: list[Request] = []
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
        """Return kept content that fits a prompt better than that of the slot."""
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
        """Those who have slots, in the order of the slots."""
        return sorted(requests, key=lambda request: self._of[request.number])

    def leave(self, requests: Iterable[Request], waiting: deque[Request]) -> None:
        """Free the slots of requests that end in one step.

        `waiting`: The queue: as many requests as slots become free come forward, the last of them first.
        """
        ended = self.in_order(requests)
        for request in ended:
            slot = self._of.pop(request.number)
            self._used[slot] = self._released = self._released + 1
            computed = request.input + request.output - 1 if request.finish >= 0 else request.done
            # no request can ask again for content without a name
            self._held[slot] = _Content(request.runs, computed) if request.runs else _Content()
            self._free.add(slot)
        forward = min(len(ended), self._deferred, len(waiting))
        waiting.extendleft([waiting.popleft() for _ in range(forward)])
        self._deferred -= forward


def engine_of(settings: EngineSettings) -> type[SkippingEngine]:
    """The skipping form of a replica that follows these settings.

    Examples
    --------
    >>> engine_of(EngineSettings()).__name__, engine_of(EngineSettings(order="priority")).__name__
    ('SkippingEngine', 'InOrderEngine')
    """
    if settings.in_slots:
        return SlotsEngine
    if settings.prefill_first:
        return UrgentFirstEngine if settings.order == "priority" else SkippingEngine
    return InOrderEngine if settings.order == "priority" or settings.long_prefill_token_threshold else SkippingEngine


class _ByPriority(SkippingEngine):
    """Base of both engines with priorities: it keeps the queue in order.

    New requests pay for it.
    """

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings, replica)
        self._last: Request | None = None  # the request up to which the queue is in order
        self._ordered_at = 0  # preemptions when it was put in order: each moved a request

    def _order(self, queued: bool) -> None:
        last = self._last if self.preemptions == self._ordered_at else None
        self.waiting = waiting = in_order_again(self.waiting, last, queued)
        self._last, self._ordered_at = waiting[-1] if waiting else None, self.preemptions


class UrgentFirstEngine(_ByPriority):
    """SGLang with `--enable-priority-scheduling`.

    The queue is sorted, and tried anew before every step.

    References
    ----------
    .. [1] SGLang 0.5.9, `srt/managers/scheduler.py` (get_new_batch_prefill: try_preemption clears batch_is_full),
       `srt/managers/schedule_policy.py` (_sort_by_priority_and_fcfs).

    Notes
    -----
    Not modelled: running requests that are preempted because priorities are further apart than
    `--priority-scheduling-preemption-threshold`.
    """

    def _fill(self, budget: int) -> None:
        self._order(queued=True)
        self._full, self._changed = False, True
        super()._fill(budget)

    def _plan_run(self) -> None:
        if self.waiting and self._busy < self._most:
            self._full, self._changed = False, True
        super()._plan_run()


class InOrderEngine(_ByPriority):
    """vLLM with priorities or `--long-prefill-token-threshold`.

    Running requests are visited before waiting ones: decoding requests, and every prompt that was begun with at most as
    many tokens as the threshold allows. While blocks are too few the request admitted last is preempted, or the least
    urgent one, and then no request is admitted.

    References
    ----------
    .. [1] vLLM 0.33.0, `vllm/v1/core/sched/scheduler.py` (schedule: long_prefill_token_threshold,
       SchedulingPolicy.PRIORITY), `vllm/config/scheduler.py`. Earlier releases limit a request that is alone as well;
       `max_num_partial_prefills` and `max_long_partial_prefills`, which 0.18 still takes, are not read by its
       scheduler.

    Notes
    -----
    Not modelled: `long_prefill_token_threshold_adaptive`; that a prompt which was begun before a request that decodes
    may leave it no token of the budget.
    """

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings, replica)
        self._started: list[Request] = []  # prompts that were begun, in the order of admission
        self._urgent_first, self._threshold = settings.order == "priority", settings.long_prefill_token_threshold

    @property
    def _busy(self) -> int:
        return len(self._running) + len(self._started)

    def _inside(self) -> list[Request]:
        """Requests that were admitted."""
        return [*self._running.values(), *self._started]

    def plan(self) -> Seconds:
        """Decide what happens next.

        Returns: When it ends; infinite if there is nothing to do.
        """
        self._steps, preemptions = 0, self.preemptions
        if self._gone:
            self._let_go()
        if self._ahead:
            self._look()
        self._cap = self._threshold if self._threshold and self._busy + len(self.waiting) > 1 else 1 << 60
        takes, budget, need = self._make_room()
        decoding, begun = len(self._running), len(takes)
        self.free -= need
        self._chunks, self._tokens, self._weight, self._loading = takes, 0, 0.0, 0
        if self.waiting and self.preemptions == preemptions:
            if self._urgent_first:
                self._order(queued=False)
            self._changed, self._partial = True, None
            self._fill(budget)
        for request, take in self._chunks[:begun]:
            self._tokens += take
            self._weight += take * (request.done + (take + 1) / 2)
        for request, _ in self._chunks[begun:]:
            request.token = self._joins = self._joins + 1
            self._started.append(request)
        self._follow_started()
        self._late_places = self._late_blocks = 0
        if self._chunks:
            self._beside = decoding
            self.end = self.now + self._step_seconds(decoding)
        elif self._running:
            self._plan_run()
        else:
            self.end = float("inf")
            if self.waiting and self.preemptions > preemptions:
                self.plan()
        return self.end

    def _more_blocks(self, request: Request, take: int) -> int:
        return -(-(request.done + take) // self._size) - (-(-request.done // self._size))

    def _make_room(self) -> tuple[list[tuple[Request, int]], int, int]:
        """Preempt until blocks suffice.

        It returns the prompts that go on with their tokens, the budget left, and the blocks that the step takes.
        """
        while True:
            need = self._counts[self._step % self.period] if self._running else 0
            budget = self._budget - len(self._running) * self._each
            takes = []
            for request in self._started:
                take = min(request.prompt - request.done, self._cap, budget)
                if take > 0:
                    takes.append((request, take))
                    need += self._more_blocks(request, take)
                    budget -= take
            if need <= self.free:
                return takes, budget, need
            self._preempt(self._victim())

    def _follow_started(self) -> None:
        """Let the form for one prompt know that some are under way."""
        self._partial = self._started[-1] if self._started else None

    def _victim(self) -> Request:
        among = [*self._running.values(), *self._started]
        if self._urgent_first:
            return max(among, key=lambda request: (request.priority, request.arrival, request.number))
        return max(among, key=lambda request: request.token)

    def _preempt(self, request: Request) -> None:
        if request in self._started:
            self._started.remove(request)
            self._partial = request
        super()._preempt(request)
        self._follow_started()

    def _drop(self, request: Request) -> None:
        if request in self._started:
            self._started.remove(request)
        super()._drop(request)
        self._follow_started()

    def _commit_step(self, finished: list[Request]) -> None:
        super()._commit_step(finished)
        self._started = [request for request in self._started if request.done < request.prompt]
        self._follow_started()

    def _plan_run(self) -> None:
        if self.waiting and self._busy < self._most:
            self._full, self._changed = False, True
        super()._plan_run()


class SlotsEngine(InOrderEngine):
    """llama.cpp: a request gets a slot while one is free.

    Prompts are computed in the order of the slots.

    So a prompt that was begun waits for a later one in a slot before its own.

    References
    ----------
    .. [1] llama.cpp b11434, `tools/server/server-context.cpp` (update_slots); see
       `glmplan.simulation.engine.in_order.Slots`.
    """

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings, replica)
        self._slots = Slots.of(settings, pool)

    def commit(self) -> list[Request]:
        """Make what was planned happen."""
        finished = super().commit()
        if finished:
            self._slots.leave(finished, self.waiting)
        return finished

    def _make_room(self) -> tuple[list[tuple[Request, int]], int, int]:
        for request in self._slots.assign(self.waiting):
            request.token = self._joins = self._joins + 1
            self._started.append(request)
            self.free += -request.done // self._size  # what its slot holds of it
        if len(self._started) > 1:
            self._started = self._slots.in_order(self._started)
        found = super()._make_room()
        for request, _ in found[0]:
            if request.started < 0:
                request.started = self.now
        return found

    def _preempt(self, request: Request) -> None:
        self._slots.leave([request], self.waiting)
        super()._preempt(request)

    def _drop(self, request: Request) -> None:
        self._slots.leave([request], self.waiting)
        super()._drop(request)
