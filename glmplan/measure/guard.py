"""The guard of a load ladder: it stops before harm is done, and says why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from glmplan.measure.request_result import Outcome, RequestRecord

__all__ = ["Guard", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    Parameters
    ----------
    error_rate : float, optional
        Faults among the last requests, [-]
    window : int, optional
        How many last requests count, [-]
    timeouts : int, optional
        Requests in a row without a token or stalled, [-]
    gone : int, optional
        Refused or lost requests in a row after which the server counts as gone, [-]
    ttft : float, optional
        Bound on the median TTFT of the last requests, [s]
    falling : float, optional
        A step below this share of the best throughput so far ends the ladder, [-]
    temperature : float, optional
        Accelerator temperature, [°C]
    """

    error_rate: float = 0.2
    window: int = 50
    timeouts: int = 3
    gone: int = 5
    ttft: float = 60.0
    falling: float = 0.7
    temperature: float = 92.0


class Guard:
    """Watches requests as they end.

    Parameters
    ----------
    limits : Limits, optional
        When to stop.

    Attributes
    ----------
    reason : str
        Why it stopped; empty as long as all is well.
    by_fault : bool
        Whether it stopped for faults, and not because the load had become too much.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.reason = ""
        self.by_fault = False
        self._last: deque[Outcome] = deque(maxlen=self.limits.window)
        self._ttfts: deque[float] = deque(maxlen=self.limits.window)
        self._late = self._gone = 0
        self._best = 0.0

    def next_step(self) -> None:
        """Forget the requests of the step before: its queue says nothing of the next."""
        self._last.clear()
        self._ttfts.clear()

    def request(self, record: RequestRecord) -> bool:
        """Take a request that ended.

        Parameters
        ----------
        record : RequestRecord
            The request.

        Returns
        -------
        bool
            Whether to go on.
        """
        if record.outcome is Outcome.CANCELLED:
            return not self.reason
        self._last.append(record.outcome)
        if record.outcome is Outcome.DONE:
            self._ttfts.append(record.ttft)
        self._late = self._late + 1 if record.outcome in (Outcome.LATE, Outcome.STALLED) else 0
        self._gone = self._gone + 1 if record.outcome in (Outcome.REFUSED, Outcome.LOST, Outcome.TLS) else 0
        faults = sum(outcome.is_fault for outcome in self._last)
        limits = self.limits
        if self._gone >= limits.gone:
            self._stop(f"the server is gone: {self._gone} requests in a row were {record.outcome}: {record.detail}")
        elif self._late >= limits.timeouts:
            self._stop(f"{self._late} requests in a row timed out: {record.detail}")
        elif faults >= max(3, limits.error_rate * limits.window) or self._all_fail(faults):
            self._stop(f"{faults} of the last {len(self._last)} requests failed, the last: {record.outcome}")
        elif len(self._ttfts) >= 5 and sorted(self._ttfts)[len(self._ttfts) // 2] > limits.ttft:
            self._stop(f"the median TTFT is above {limits.ttft:g} s", fault=False)
        return not self.reason

    def step(self, throughput: float) -> bool:
        """Take the throughput of a finished step.

        Parameters
        ----------
        throughput : float
            Output tokens, [token/s]

        Returns
        -------
        bool
            Whether to go on to a higher step.
        """
        if throughput < self.limits.falling * self._best:
            self._stop(
                f"throughput falls: {throughput:.0f} tok/s after {self._best:.0f} tok/s at fewer users", fault=False
            )
        self._best = max(self._best, throughput)
        return not self.reason

    def temperature(self, degrees: float) -> bool:
        """Take the temperature of the hottest accelerator.

        Parameters
        ----------
        degrees : float
            Temperature, [°C]

        Returns
        -------
        bool
            Whether to go on.
        """
        if degrees > self.limits.temperature:
            self._stop(f"an accelerator is at {degrees:.0f} °C")
        return not self.reason

    def _all_fail(self, faults: int) -> bool:
        return faults == len(self._last) >= 5

    def _stop(self, reason: str, *, fault: bool = True) -> None:
        if not self.reason:
            self.reason, self.by_fault = reason, fault
