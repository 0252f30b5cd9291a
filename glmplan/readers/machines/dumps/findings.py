"""What one dump says about a machine, before dumps are put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from glmplan.errors import SpecError

__all__ = [
    "CpuFacts",
    "GpuFacts",
    "Memory",
    "NumaFacts",
    "PciDevice",
    "PciTree",
    "Relations",
    "broken",
    "bus_address",
]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One accelerator as a vendor tool describes it; None where the tool does not say.

    `memory` [B], `memory_clock` [Hz], `power_limit` [W]; `generation` and `lanes` are what both ends allow, not what
    an idle link has fallen back to.
    """

    index: int
    name: str | None = None
    address: str | None = None
    memory: float | None = None
    memory_usable: float | None = None
    generation: int | None = None
    lanes: int | None = None
    memory_clock: float | None = None
    power_limit: float | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Relations:
    """How accelerators reach each other: `cells[i, j]` as the tool prints it; the NUMA node of each where it says."""

    count: int
    cells: dict[tuple[int, int], str]
    numa: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function. `secondary` is the bus behind a bridge; `port` is `root`, `upstream` or `downstream`."""

    address: str
    name: str
    kind: str
    secondary: str | None = None
    port: str | None = None
    generation: int | None = None
    lanes: int | None = None
    numa: int | None = None
    redirect: bool | None = None


@dataclass(frozen=True, slots=True)
class PciTree:
    """All PCI functions of a machine. `described` says whether link rates are known (`-vvv`) or only places (`-tv`)."""

    devices: tuple[PciDevice, ...]
    described: bool


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """Sockets and cores, `numa` the processors of each node, `instructions` those that matter for matrix work."""

    model: str | None
    sockets: int
    cores_per_socket: int | None
    numa: dict[int, str] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NumaFacts:
    """Memory of each NUMA node [B], whether it has processors, and distances."""

    sizes: dict[int, float]
    with_cpus: dict[int, bool]
    distances: dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Memory:
    """Populated memory channels: (socket, channel) → configured transfers, [1/s]; `size` of all modules, [B]."""

    channels: dict[tuple[int, str], float]
    size: float
    kind: str | None


def broken(file: str, line: int, message: str, value: object = None) -> SpecError:
    """Return the error for a line that cannot be read: names file and line.

    Parameters
    ----------
    file : str
        The dump.
    line : int
        Number of the line, from 1, [-]
    message : str
        What is wrong.
    value : object, optional
        What stands there.

    Returns
    -------
    SpecError
        To be raised.

    Examples
    --------
    >>> print(broken("topo.txt", 3, "has 7 cells, the header has 8"))
    topo.txt line 3: has 7 cells, the header has 8
    """
    return SpecError(message, file=f"{file} line {line}", value=value)


def bus_address(text: str) -> str | None:
    """Return a PCI address in one spelling: `dddd:bb:dd.f`, lower case.

    Parameters
    ----------
    text : str
        Address as a tool prints it, with or without a domain.

    Returns
    -------
    str or None
        The address, None if it is none.

    Examples
    --------
    >>> bus_address("00000000:06:00.0"), bus_address("C1:00.0")
    ('0000:06:00.0', '0000:c1:00.0')
    """
    found = re.fullmatch(r"(?:([0-9a-f]*):)?([0-9a-f]{1,2}):([0-9a-f]{1,2}\.[0-9a-f])", text.strip().lower())
    return f"{(found[1] or '')[-4:]:0>4}:{found[2]:0>2}:{found[3]:0>4}" if found else None
