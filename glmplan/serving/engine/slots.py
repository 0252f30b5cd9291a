"""Which slot of llama.cpp a request gets, and in which order slots are gone through."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from glmplan.serving.traffic.request import Request

__all__ = ["Slots"]


class Slots:
    """Slots of one server; prompts are computed in their order, whoever came first.

    Parameters
    ----------
    count : int
        Slots, [-]

    References
    ----------
    .. [1] llama.cpp b9193, `tools/server/server-context.cpp` (get_available_slot: the slot that was used longest ago;
       update_slots: decoding slots, then prompts, each in the order of the slots, while the batch has room; release
       calls back for one deferred task), `tools/server/server-queue.cpp` (pop_deferred_task puts it in front of the
       queue, so that of those who follow requests which end in one step the last is placed first).

    Notes
    -----
    Not modelled: slots that are chosen because they hold the head of a prompt (`--slot-prompt-similarity`).

    Examples
    --------
    >>> slots, waiting = Slots(2), deque(Request(number, 0.0, 10, 1) for number in range(3))
    >>> [one.number for one in slots.in_order(slots.seat(waiting))], len(waiting)
    ([1, 0], 1)
    """

    __slots__ = ("_deferred", "_free", "_of", "_released", "_used")

    def __init__(self, count: int) -> None:
        # no slot was used yet: of several that were used equally long ago the last is taken
        self._used = [0] * count
        self._free = set(range(count))
        self._of: dict[int, int] = {}  # slot by request number
        self._released = 0
        self._deferred = 0  # requests that were told to wait

    def seat(self, waiting: deque[Request]) -> list[Request]:
        """Give slots to those who wait, as long as there are any.

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
            slot = min(self._free, key=lambda one: (self._used[one], -one))
            self._free.remove(slot)
            self._of[waiting[0].number] = slot
            seated.append(waiting.popleft())
        self._deferred = len(waiting)
        return seated

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
            self._free.add(slot)
        forward = min(len(ended), self._deferred, len(waiting))
        waiting.extendleft([waiting.popleft() for _ in range(forward)])
        self._deferred -= forward
