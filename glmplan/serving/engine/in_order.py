"""Replicas that do not simply take who came first: urgent requests before others, several prompts side by side, slots.

Both try admission at every step while somebody waits and there is a place, since whoever comes may go before.
"""

from __future__ import annotations

from glmplan.serving.engine.admission import in_order_again
from glmplan.serving.engine.engine import SkippingEngine
from glmplan.serving.engine.settings import EngineSettings, KvPool
from glmplan.serving.engine.slots import Slots
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.traffic.request import Request

__all__ = ["InOrderEngine", "SlotsEngine", "UrgentFirstEngine", "engine_of"]


def engine_of(settings: EngineSettings) -> type[SkippingEngine]:
    """The skipping form of a replica that follows these settings.

    Parameters
    ----------
    settings : EngineSettings
        Its settings.

    Returns
    -------
    type
        A class of engine.

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
    """What both engines with priorities do: keep the queue in order, at the price of those who came since."""

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings, replica)
        self._last: Request | None = None  # up to whom the queue is in order
        self._ordered_at = 0  # preemptions when it was put in order: each put somebody elsewhere

    def _order(self, queued: bool) -> None:
        last = self._last if self.preemptions == self._ordered_at else None
        self.waiting = waiting = in_order_again(self.waiting, last, queued)
        self._last, self._ordered_at = waiting[-1] if waiting else None, self.preemptions


class UrgentFirstEngine(_ByPriority):
    """SGLang with `--enable-priority-scheduling`: the queue is sorted, and tried anew before every step.

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
    """vLLM with `--scheduling-policy priority` or `--long-prefill-token-threshold`.

    What runs is gone through before what waits: decoding requests, and every prompt that was begun with at most as many
    tokens as the threshold allows. While blocks are too few the request admitted last is preempted, or the least urgent
    one, and then nobody is admitted.

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
        self._cap = self._threshold if self._threshold and self._busy + len(self.waiting) > 1 else 1 << 60
        takes, budget = self._make_room()
        decoding, begun = len(self._running), len(takes)
        self.free -= self._counts[self._step % self.period] if decoding else 0
        self.free -= sum(self._more_blocks(request, take) for request, take in takes)
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

    def _make_room(self) -> tuple[list[tuple[Request, int]], int]:
        """Preempt until blocks suffice for what runs; prompts that go on with their tokens, and the budget left."""
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
                return takes, budget
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
    """llama.cpp: whoever comes gets a slot while there is one, and prompts are computed in the order of the slots.

    So a prompt that was begun waits for a later one in a slot before its own.

    References
    ----------
    .. [1] llama.cpp b11434, `tools/server/server-context.cpp` (update_slots); see `glmplan.serving.engine.slots.Slots`.
    """

    def __init__(self, table: StepTable, pool: KvPool, settings: EngineSettings, replica: int = 0) -> None:
        super().__init__(table, pool, settings, replica)
        self._slots = Slots.of(settings, pool)

    def commit(self) -> list[Request]:
        """Make what was planned happen.

        Returns
        -------
        list of Request
            Requests that finished, at `now`.
        """
        finished = super().commit()
        if finished:
            self._slots.leave(finished, self.waiting)
        return finished

    def _make_room(self) -> tuple[list[tuple[Request, int]], int]:
        for request in self._slots.seat(self.waiting):
            request.token = self._joins = self._joins + 1
            self._started.append(request)
            self.free += -request.done // self._size  # what its slot holds of it
        self._started = self._slots.in_order(self._started)
        takes, budget = super()._make_room()
        for request, _ in takes:
            if request.started < 0:
                request.started = self.now
        return takes, budget

    def _preempt(self, request: Request) -> None:
        self._slots.leave([request], self.waiting)
        super()._preempt(request)

    def _drop(self, request: Request) -> None:
        self._slots.leave([request], self.waiting)
        super()._drop(request)
