"""Stop an overload before it does harm, and watch GPUs through NVML.

The guard states its reason.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from glmplan.measure.client import Outcome, RequestRecord
from glmplan.units import BytesPerSecond, Ratio, Seconds, TokensPerSecond, Watts

__all__ = ["CardSample", "CardWatch", "Guard", "Limits", "throttle_words"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Stop conditions."""

    error_rate: Ratio = 0.2  # faults among the last `window` requests
    window: int = 50
    timeouts: int = 3  # consecutive requests without a token or stalled
    gone: int = 5  # consecutive refused or lost requests
    ttft: Seconds = 60.0  # median of the last requests
    falling: Ratio = 0.7  # throughput of a step over the best so far
    temperature: float = 92.0  # of an accelerator [°C]


class Guard:
    """Watch completed requests against limits.

    `reason` is empty until a limit is exceeded; `by_fault` tells a fault from an overload.
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
        """Forget the last step's requests: its queue does not affect the next."""
        self._last.clear()
        self._ttfts.clear()

    def request(self, record: RequestRecord) -> bool:
        """Add a completed request; return False to stop."""
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

    def step(self, throughput: TokensPerSecond) -> bool:
        """Add the throughput of a step; return False to end the run."""
        if throughput < self.limits.falling * self._best:
            self._stop(
                f"throughput falls: {throughput:.0f} tok/s after {self._best:.0f} tok/s at fewer users", fault=False
            )
        self._best = max(self._best, throughput)
        return not self.reason

    def temperature(self, degrees: float) -> bool:
        """Add the highest temperature [°C]; return False to stop."""
        if degrees > self.limits.temperature:
            self._stop(f"an accelerator is at {degrees:.0f} °C")
        return not self.reason

    def _all_fail(self, faults: int) -> bool:
        return faults == len(self._last) >= 5

    def _stop(self, reason: str, *, fault: bool = True) -> None:
        if not self.reason:
            self.reason, self.by_fault = reason, fault


#: bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h) that slow down a loaded GPU
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def throttle_words(bits: int) -> list[str]:
    """Return the reasons for lowered clocks.

    Examples
    --------
    >>> throttle_words(0x1 | 0x4 | 0x40)
    ['power cap', 'hardware thermal']
    """
    return [words for bit, words in _REASONS.items() if bits & bit]


@dataclass(slots=True)
class CardSample:
    """State of the host's GPUs at one time."""

    temperature: float = 0.0  # highest [°C]
    power: Watts = 0.0  # sum
    throttled: list[str] = field(default_factory=list)  # reasons on any GPU
    pcie: BytesPerSecond = 0.0  # both directions of the busiest GPU


class CardWatch:
    """Watch this host's GPUs; inactive without NVML."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.xids: list[int] = []
        self.samples = 0
        self.hottest = self.power_sum = self.busiest_pcie = 0.0
        self.throttled: dict[str, int] = {}
        self._cards: list[Any] = []
        self._events: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            self.names = [_text(pynvml.nvmlDeviceGetName(card)) for card in self._cards]
            self._events = pynvml.nvmlEventSetCreate()
            for card in self._cards:
                pynvml.nvmlDeviceRegisterEvents(card, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except Exception:  # no package, driver, GPU or permission: no watch
            self._events = None

    def sample(self) -> CardSample | None:
        """Return the state of the GPUs; None without any."""
        if not self._cards:
            return None
        nvml, now = self._nvml, CardSample()
        for card in self._cards:
            now.temperature = max(now.temperature, self._ask(nvml.nvmlDeviceGetTemperature, card, 0))
            now.power += self._ask(nvml.nvmlDeviceGetPowerUsage, card) / 1e3
            for words in throttle_words(int(self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card))):
                if words not in now.throttled:
                    now.throttled.append(words)
            # NVML counts kB over 20 ms in each direction
            traffic = sum(self._ask(nvml.nvmlDeviceGetPcieThroughput, card, way) for way in (0, 1)) * 1e3
            now.pcie = max(now.pcie, traffic)
        if self._events is not None:
            try:
                while True:
                    self.xids.append(int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except Exception:  # a timeout means that there is no event
                pass
        self.samples += 1
        self.hottest = max(self.hottest, now.temperature)
        self.power_sum += now.power
        self.busiest_pcie = max(self.busiest_pcie, now.pcie)
        for words in now.throttled:
            self.throttled[words] = self.throttled.get(words, 0) + 1
        return now

    def summary(self) -> dict[str, Any]:
        """Return the values since the last summary; empty without GPUs."""
        if not self.samples:
            return {}
        values = {
            "temperature_c": self.hottest,
            "power_w": self.power_sum / self.samples,
            "pcie_bytes_per_s": self.busiest_pcie,
            "throttled_share": {words: count / self.samples for words, count in self.throttled.items()},
            "xids": list(self.xids),
        }
        self.samples, self.hottest, self.power_sum, self.busiest_pcie, self.throttled = 0, 0.0, 0.0, 0.0, {}
        return values

    @staticmethod
    def _ask(function: Any, *arguments: Any) -> float:
        try:
            return float(function(*arguments))
        except Exception:  # some GPUs lack single readings ("not supported")
            return 0.0


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
