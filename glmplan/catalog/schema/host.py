"""Record of a machine: sockets, root complexes, switches, cards, power.

Unknown facts are None. Quantities are data-sheet values; achieved rates of links are fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from glmplan.catalog.schema.validation import Frozen
from glmplan.units import Bytes, BytesPerSecond, Watts

__all__ = [
    "MOST_SOCKETS",
    "PCIE_GIGATRANSFERS",
    "Applies",
    "Card",
    "Conditions",
    "Contradiction",
    "Device",
    "Fabric",
    "HazardRule",
    "HazardSeverity",
    "Host",
    "HostKernel",
    "HybridMatch",
    "HybridSystem",
    "PcieLink",
    "Power",
    "RootComplex",
    "ScaleUp",
    "Socket",
    "SocketLink",
    "Switch",
]


#: largest counts of one machine that are read: x86 servers have up to 32 sockets, the largest rack in the catalogue 72
#: accelerators, and no machine of more than 1,024 nodes is sold as one
MOST_SOCKETS, MOST_CARDS, MOST_NODES = 64, 1024, 1024
#: PCIe generation → gigatransfers per second on each lane
PCIE_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


class PcieLink(Frozen):
    """PCIe link: generation and lanes."""

    generation: int = Field(ge=1, le=6)
    lanes: Literal[1, 2, 4, 8, 12, 16, 32]

    @property
    def bandwidth(self) -> float:
        """Return the rate after line coding, each direction [B/s].

        Examples
        --------
        >>> round(PcieLink(generation=5, lanes=16).bandwidth / 1e9, 1)
        63.0
        """
        coding = {1: 0.8, 2: 0.8, 6: 242 / 256}.get(self.generation, 128 / 130)
        return PCIE_GIGATRANSFERS[self.generation] * 1e9 * self.lanes / 8 * coding


class Socket(Frozen):
    """CPU package and its memory.

    `memory_bandwidth` is the data-sheet value of the populated channels.
    """

    name: str
    cpu: str | None = None
    cores: PositiveInt | None = None
    numa_nodes: tuple[NonNegativeInt, ...] = ()
    memory_channels: PositiveInt | None = None
    memory_size: Bytes | None = None
    memory_bandwidth: BytesPerSecond | None = None
    instructions: tuple[str, ...] = ()
    source: str | None = None


class SocketLink(Frozen):
    """Links between two sockets; `bandwidth` of one link in each direction."""

    ends: tuple[str, str]
    kind: Literal["xgmi", "upi", "c2c", "unknown"] = "unknown"
    count: PositiveInt | None = None
    bandwidth: BytesPerSecond | None = None
    source: str | None = None


class RootComplex(Frozen):
    """Root complex (on AMD: a quadrant of the I/O die) and its socket."""

    name: str
    socket: str
    address: str | None = None
    source: str | None = None


class Switch(Frozen):
    """PCIe switch, or a virtual switch of a `chip`.

    Virtual switches of one chip reach each other inside it.
    """

    name: str
    parent: str
    uplink: PcieLink | None = None
    chip: str | None = None
    model: str | None = None
    acs_redirect: bool | None = None
    source: str | None = None


class Card(Frozen):
    """Equal accelerators behind one parent, each on a link of its own.

    `parent`: a switch, a root complex (then each card has a port of its own), or None when unknown.
    """

    accelerator: str
    count: int = Field(1, ge=1, le=MOST_CARDS)
    parent: str | None = None
    link: PcieLink | None = None
    address: str | None = None
    node: NonNegativeInt = 0
    source: str | None = None


class Device(Frozen):
    """Other device on the same links: display adapter, network card, drive."""

    name: str
    kind: Literal["display", "nic", "nvme", "other"]
    bandwidth: BytesPerSecond | None = None  # sequential reads of a drive
    parent: str | None = None
    link: PcieLink | None = None
    address: str | None = None
    source: str | None = None


class ScaleUp(Frozen):
    """Scale-up network such as NVLink.

    `bandwidth` is that of one accelerator in each direction. `topology`: a `switch` gives any pair the full bandwidth;
    in a `mesh` a pair has its share of it; a `bridge` joins pairs of a domain.
    """

    kind: Literal["nvlink", "xgmi", "hccs", "other"]
    topology: Literal["switch", "mesh", "bridge"]
    bandwidth: BytesPerSecond
    domain: PositiveInt
    reduces: bool = False
    source: str | None = None


class Fabric(Frozen):
    """Network between nodes; `bandwidth` of one accelerator, each direction."""

    kind: Literal["infiniband", "roce", "ethernet", "slingshot", "thunderbolt", "unknown"]
    bandwidth: BytesPerSecond
    source: str | None = None


class Power(Frozen):
    """Power supplies of a node, their circuit, and the draw of the node."""

    #: most that a node draws at the wall with all accelerators at their rating, fans included; a rack: over its nodes
    draw: Watts | None = None
    rack_units: PositiveInt | None = None
    supply: Watts | None = None
    supplies: PositiveInt | None = None
    redundant: bool | None = None
    circuit: Watts | None = None
    cooling: str | None = None
    source: str | None = None


class Conditions(Frozen):
    """Known settings of the machine that change the speed of its links."""

    p2p: Literal["direct", "missing"] | None = None  # ``missing``: every copy between cards goes through host memory
    acs_redirect: bool | None = None
    iommu: bool | None = None
    #: ``default``: NCCL finds its rings itself; ``tuned``: with a topology file or a fixed NCCL
    nccl_graph: Literal["default", "tuned"] | None = None
    posted_write_collapse: bool | None = None  # writes from one switch to several roots were seen to collapse
    source: str | None = None


class Contradiction(Frozen):
    """Values on which sources disagree: each one, the one used, and why."""

    field: str
    says: tuple[str, ...]
    used: str
    why: str


class Host(Frozen):
    """Machine, or one rack of equal nodes that is sold as one.

    Examples
    --------
    >>> host = Host(name="pair", title="two cards", source="an example",
    ...             sockets=[{"name": "cpu0"}], roots=[{"name": "r0", "socket": "cpu0"}],
    ...             cards=[{"accelerator": "rtx-pro-6000-ws", "count": 2, "parent": "r0",
    ...                     "link": {"generation": 5, "lanes": 16}}])
    >>> host.accelerator_count, host.accelerator_names
    (2, ('rtx-pro-6000-ws', 'rtx-pro-6000-ws'))
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    source: str
    note: str | None = None
    assumptions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    nodes: int = Field(1, ge=1, le=MOST_NODES)
    unified_memory: bool = False
    sockets: tuple[Socket, ...] = Field((), max_length=MOST_SOCKETS)
    socket_links: tuple[SocketLink, ...] = ()
    roots: tuple[RootComplex, ...] = ()
    switches: tuple[Switch, ...] = ()
    cards: tuple[Card, ...] = Field(min_length=1, max_length=MOST_CARDS)
    devices: tuple[Device, ...] = ()
    scale_up: ScaleUp | None = None
    fabric: Fabric | None = None
    power: Power | None = None
    conditions: Conditions = Conditions()
    contradictions: tuple[Contradiction, ...] = ()

    @model_validator(mode="after")
    def _links_lead_somewhere(self) -> Host:
        """Check that names are unique and that parents, ends and sockets exist."""
        names = [socket.name for socket in self.sockets] + [root.name for root in self.roots]
        names += [switch.name for switch in self.switches] + [device.name for device in self.devices]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the name {twice[0]!r} is used twice")
        sockets = {socket.name for socket in self.sockets}
        for root in self.roots:
            if root.socket not in sockets:
                raise ValueError(f"root {root.name!r} names the socket {root.socket!r}, which is not in [[sockets]]")
        for link in self.socket_links:
            for end in link.ends:
                if end not in sockets:
                    raise ValueError(f"a socket link names {end!r}, which is not in [[sockets]]")
        parents = {root.name for root in self.roots}
        for switch in self.switches:
            if switch.parent not in parents:
                raise ValueError(
                    f"switch {switch.name!r} names the parent {switch.parent!r}, which is no root or earlier switch"
                )
            parents.add(switch.name)
        hung = [(card.accelerator, card.parent) for card in self.cards]
        hung += [(device.name, device.parent) for device in self.devices]
        for what, parent in hung:
            if parent is not None and parent not in parents:
                raise ValueError(f"{what!r} names the parent {parent!r}, which is no root and no switch")
        return self

    @cached_property
    def slots(self) -> tuple[Card, ...]:
        """Return an entry for each accelerator of one node, by its number."""
        return tuple(card.model_copy(update={"count": 1}) for card in self.cards for _ in range(card.count))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a changed host, whose properties are computed again."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("slots", "slot_sockets", "accelerator_names", "accelerator"):
            copied.__dict__.pop(name, None)
        return copied

    @cached_property
    def slot_sockets(self) -> tuple[str | None, ...]:
        """Return the socket of each accelerator of a node, None: unknown."""
        parents = {switch.name: switch.parent for switch in self.switches}
        sockets = {root.name: root.socket for root in self.roots}
        found = []
        for slot in self.slots:
            parent = slot.parent
            while parent in parents:
                parent = parents[parent]
            found.append(sockets.get(parent or ""))
        return tuple(found)

    @cached_property
    def accelerator_names(self) -> tuple[str, ...]:
        """Return the accelerator names of one node, by number."""
        return tuple(card.accelerator for card in self.slots)

    @property
    def accelerators_per_node(self) -> int:
        """Return the accelerators of one node."""
        return len(self.slots)

    @property
    def accelerator_count(self) -> int:
        """Return the accelerators of all nodes."""
        return len(self.slots) * self.nodes

    @cached_property
    def accelerator(self) -> str:
        """Return the accelerator that most slots hold."""
        names = self.accelerator_names
        return max(dict.fromkeys(names), key=names.count)

    @property
    def host_memory(self) -> float | None:
        """Return the memory of all sockets of a node, None: unknown [B]."""
        sizes = [socket.memory_size for socket in self.sockets]
        return None if not sizes or None in sizes else float(sum(size for size in sizes if size is not None))

    @property
    def host_memory_bandwidth(self) -> float | None:
        """Return the data-sheet bandwidth of all sockets of a node, or None."""
        rates = [socket.memory_bandwidth for socket in self.sockets]
        return None if not rates or None in rates else float(sum(rate for rate in rates if rate is not None))

    @property
    def cores(self) -> int | None:
        """Return the cores of all sockets of a node, None: unknown."""
        known = [socket.cores for socket in self.sockets]
        return None if not known or None in known else sum(number for number in known if number is not None)


#: instructions of the CPU's expert kernels: AMX tiles, AVX-512 (or AVX2 of the same generation), plain loops
HostKernel = Literal["amx", "avx512", "generic"]


class HybridMatch(Frozen):
    """Rows of a ledger that ran on a machine.

    Part of their source address, a pattern on their scenario, or ids select them.
    """

    page: str
    scenario: str | None = None
    rows: tuple[str, ...] = ()


class HybridSystem(Frozen):
    """Machine with weights in host memory, as a page describes it.

    The settings of its launch are included.
    """

    name: str
    title: str
    accelerator: str | None = None
    sockets: PositiveInt
    cores: PositiveInt | None = None
    memory_bandwidth: BytesPerSecond  # data sheet, all sockets
    memory: Bytes | None = None
    link: PcieLink | None = None
    kernel: HostKernel
    numa_aware: bool = True
    #: prompts longer than this are computed on the accelerator from streamed weights [token]
    streams_above: PositiveInt | None = None
    chunk: PositiveInt = 8192
    #: experts of each layer on one, two, four and eight accelerators, or one number for any count
    on_accelerator: tuple[int, ...] = ()
    host_layers: int | None = Field(default=None, ge=1)  # expert layers in host memory
    fills_accelerators: bool = False  # as many experts as fit stay on the accelerators
    weights: str | None = None
    weights_bits: float | None = None
    host_weights: str | None = None
    source: str
    assumptions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    match: HybridMatch

    @property
    def cpu(self) -> str:
        """Return the name of the CPU.

        Entries with one CPU are settings of similar machines and are held out together.
        """
        return self.title.split(",")[0].split("×")[-1].strip()


#: ``danger`` stops or damages the service or the machine; ``warning`` degrades it; ``note`` is to be known
HazardSeverity = Literal["danger", "warning", "note"]


class Applies(Frozen):
    """Scope of a hazard: compute capabilities and words of a description."""

    compute_capability: tuple[str, ...] = ()
    boards: tuple[str, ...] = ()


class HazardRule(Frozen):
    """Entry of `hardware_db/hazards`; the name of the file is its id."""

    name: str
    title: str
    severity: HazardSeverity
    rule: str
    effect: str
    case: str
    source: str
    change: str
    thresholds: dict[str, float | str] = {}  # shares, or quantities with their unit
    thresholds_from: str | None = None  # source of the thresholds
    ratings: dict[str, Watts] = {}  # usual ratings of circuits and supplies, by name, rising
    applies: Applies = Applies()
