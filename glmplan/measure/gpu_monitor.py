"""The accelerators of this host while it is under load: temperature, power, throttling, Xid, PCIe; through NVML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CardSample", "CardWatch", "throttle_words"]

#: Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h); those that slow a loaded card.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def throttle_words(bits: int) -> list[str]:
    """Name the reasons for which a card clocks down.

    Parameters
    ----------
    bits : int
        NVML's bit mask, [-]

    Returns
    -------
    list of str
        Reasons; idle and application clocks are none.

    Examples
    --------
    >>> throttle_words(0x1 | 0x4 | 0x40)
    ['power cap', 'hardware thermal']
    """
    return [words for bit, words in _REASONS.items() if bits & bit]


@dataclass(slots=True)
class CardSample:
    """The cards of the host at one moment.

    Parameters
    ----------
    temperature : float
        The hottest, [°C]
    power : float
        Of all cards, [W]
    throttled : list of str
        Reasons on any card.
    pcie : float
        Traffic of the busiest card in both directions, [B/s]
    """

    temperature: float = 0.0
    power: float = 0.0
    throttled: list[str] = field(default_factory=list)
    pcie: float = 0.0


class CardWatch:
    """Watches the cards of this host; does nothing where there is no NVML.

    Attributes
    ----------
    names : list of str
        The cards; empty if there are none.
    xids : list of int
        Xid errors seen so far.
    """

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
        except Exception:  # no package, no driver, no card, or no right to register: any of them means no watch
            self._events = None

    def sample(self) -> CardSample | None:
        """Look at the cards once.

        Returns
        -------
        CardSample or None
            What they show; None without cards.
        """
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
            except Exception:  # a timeout says that there is no event
                pass
        self.samples += 1
        self.hottest = max(self.hottest, now.temperature)
        self.power_sum += now.power
        self.busiest_pcie = max(self.busiest_pcie, now.pcie)
        for words in now.throttled:
            self.throttled[words] = self.throttled.get(words, 0) + 1
        return now

    def summary(self) -> dict[str, Any]:
        """Return what was seen since the last summary, and begin anew; empty without cards."""
        if not self.samples:
            return {}
        found = {
            "temperature_c": self.hottest,
            "power_w": self.power_sum / self.samples,
            "pcie_bytes_per_s": self.busiest_pcie,
            "throttled_share": {words: count / self.samples for words, count in self.throttled.items()},
            "xids": list(self.xids),
        }
        self.samples, self.hottest, self.power_sum, self.busiest_pcie, self.throttled = 0, 0.0, 0.0, 0.0, {}
        return found

    @staticmethod
    def _ask(function: Any, *arguments: Any) -> float:
        try:
            return float(function(*arguments))
        except Exception:  # parts leave out single readings ("not supported")
            return 0.0


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
