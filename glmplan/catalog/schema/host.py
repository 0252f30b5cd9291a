"""A machine as it really is: sockets, root complexes, switches, cards, what else sits on the same links, and power.

What is not known stays None. Quantities are data-sheet figures; what links really achieve is a fit and lives elsewhere.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from glmplan.catalog.schema.validation import Frozen
from glmplan.units import Bytes, BytesPerSecond, Watts

__all__ = [
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


#: PCIe generation → gigatransfers per second on each lane
PCIE_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


class PcieLink(Frozen):
    """One PCIe link: generation and lanes."""

    generation: int = Field(ge=1, le=6)
    lanes: Literal[1, 2, 4, 8, 12, 16, 32]

    @property
    def bandwidth(self) -> float:
        """Payload and headers together, each direction, after line coding, [B/s]

        Examples
        --------
        >>> round(PcieLink(generation=5, lanes=16).bandwidth / 1e9, 1)
        63.0
        """
        coding = {1: 0.8, 2: 0.8, 6: 242 / 256}.get(self.generation, 128 / 130)
        return PCIE_GIGATRANSFERS[self.generation] * 1e9 * self.lanes / 8 * coding


class Socket(Frozen):
    """One CPU package and the memory on it. `memory_bandwidth` is the data-sheet figure of the populated channels."""

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
    """The links between two sockets, `bandwidth` of one link in each direction."""

    ends: tuple[str, str]
    kind: Literal["xgmi", "upi", "c2c", "unknown"] = "unknown"
    count: PositiveInt | None = None
    bandwidth: BytesPerSecond | None = None
    source: str | None = None


class RootComplex(Frozen):
    """A root complex (on AMD: a quadrant of the I/O die) and the socket it belongs to."""

    name: str
    socket: str
    address: str | None = None
    source: str | None = None


class Switch(Frozen):
    """A PCIe switch, or one virtual switch of a chip. Virtual switches of one `chip` reach each other inside it."""

    name: str
    parent: str
    uplink: PcieLink | None = None
    chip: str | None = None
    model: str | None = None
    acs_redirect: bool | None = None
    source: str | None = None


class Card(Frozen):
    """One or several equal accelerators behind the same parent, each on a link of its own.

    `parent` is a switch, a root complex (then each card has a port of its own), or nothing when it is not known.
    """

    accelerator: str
    count: PositiveInt = 1
    parent: str | None = None
    link: PcieLink | None = None
    address: str | None = None
    node: NonNegativeInt = 0
    source: str | None = None


class Device(Frozen):
    """Something else on the same links: display adapter, network card, drive."""

    name: str
    kind: Literal["display", "nic", "nvme", "other"]
    parent: str | None = None
    link: PcieLink | None = None
    address: str | None = None
    source: str | None = None


class ScaleUp(Frozen):
    """The links made for accelerators: NVLink, Infinity Fabric. `bandwidth` of one accelerator, each direction.

    `topology`: a `switch` gives any pair the whole bandwidth; in a `mesh` a pair has its share of it; a `bridge` joins
    the accelerators of a domain in pairs.
    """

    kind: Literal["nvlink", "xgmi", "hccs", "other"]
    topology: Literal["switch", "mesh", "bridge"]
    bandwidth: BytesPerSecond
    domain: PositiveInt
    reduces: bool = False
    source: str | None = None


class Fabric(Frozen):
    """The network between nodes. `bandwidth` of one accelerator, each direction."""

    kind: Literal["infiniband", "roce", "ethernet", "slingshot", "thunderbolt", "unknown"]
    bandwidth: BytesPerSecond
    source: str | None = None


class Power(Frozen):
    """Power supplies and the circuit they hang on."""

    supply: Watts | None = None
    supplies: PositiveInt | None = None
    redundant: bool | None = None
    circuit: Watts | None = None
    cooling: str | None = None
    source: str | None = None


class Conditions(Frozen):
    """How the machine is set up, as far as it is known: what changes the speed of the same links.

    `p2p`: `direct` when cards reach each other's memory, `missing` when every copy goes through host memory.
    `nccl_graph`: `default` when NCCL finds its rings itself, `tuned` with a topology file or a fixed NCCL.
    `posted_write_collapse`: whether writes from one switch to several roots were seen to collapse.
    """

    p2p: Literal["direct", "missing"] | None = None
    acs_redirect: bool | None = None
    iommu: bool | None = None
    nccl_graph: Literal["default", "tuned"] | None = None
    posted_write_collapse: bool | None = None
    source: str | None = None


class Contradiction(Frozen):
    """Figures on which sources disagree: what each says, which one is used, and why."""

    field: str
    says: tuple[str, ...]
    used: str
    why: str


class Host(Frozen):
    """One machine, or one rack of equal nodes that is sold as one.

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
    nodes: PositiveInt = 1
    unified_memory: bool = False
    sockets: tuple[Socket, ...] = ()
    socket_links: tuple[SocketLink, ...] = ()
    roots: tuple[RootComplex, ...] = ()
    switches: tuple[Switch, ...] = ()
    cards: tuple[Card, ...] = Field(min_length=1)
    devices: tuple[Device, ...] = ()
    scale_up: ScaleUp | None = None
    fabric: Fabric | None = None
    power: Power | None = None
    conditions: Conditions = Conditions()
    contradictions: tuple[Contradiction, ...] = ()

    @model_validator(mode="after")
    def _links_lead_somewhere(self) -> Host:
        """Check that names are unique and that every parent, end and socket exists."""
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
        """One entry for each accelerator of one node, in the order of their numbers."""
        return tuple(card.model_copy(update={"count": 1}) for card in self.cards for _ in range(card.count))

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        """Name of each accelerator of one node, in the order of their numbers."""
        return tuple(card.accelerator for card in self.slots)

    @property
    def accelerators_per_node(self) -> int:
        """How many accelerators one node has, [-]"""
        return len(self.slots)

    @property
    def accelerator_count(self) -> int:
        """How many accelerators there are in all nodes, [-]"""
        return len(self.slots) * self.nodes

    @property
    def accelerator(self) -> str:
        """The accelerator that most slots hold."""
        names = self.accelerator_names
        return max(dict.fromkeys(names), key=names.count)

    @property
    def host_memory(self) -> float | None:
        """Memory of all sockets of one node; None when any of them is unknown, [B]"""
        sizes = [socket.memory_size for socket in self.sockets]
        return None if not sizes or None in sizes else float(sum(size for size in sizes if size is not None))

    @property
    def host_memory_bandwidth(self) -> float | None:
        """Data-sheet memory bandwidth of all sockets of one node; None when any is unknown, [B/s]"""
        rates = [socket.memory_bandwidth for socket in self.sockets]
        return None if not rates or None in rates else float(sum(rate for rate in rates if rate is not None))


# Machines that keep weights in host memory, as the pages that report on them describe them.

#: instructions that the CPU's expert kernels use: AMX tiles, AVX-512 (or AVX2 of the same generation), plain loops
HostKernel = Literal["amx", "avx512", "generic"]


class HybridMatch(Frozen):
    """Which rows of a ledger ran on a machine: part of their source address, a pattern on their scenario, or ids."""

    page: str
    scenario: str | None = None
    rows: tuple[str, ...] = ()


class HybridSystem(Frozen):
    """One machine with its settings.

    `memory_bandwidth` is the data sheet's figure of all sockets; `on_accelerator` are experts of each layer that stay
    on the accelerators, for one, two, four and eight of them (or one figure for any count); with `fills_accelerators`
    as many as fit; `host_layers` the expert layers in host memory; prompts longer than `streams_above` are computed on
    the accelerator from streamed weights.
    """

    name: str
    title: str
    accelerator: str | None = None
    sockets: PositiveInt
    cores: PositiveInt | None = None
    memory_bandwidth: BytesPerSecond
    memory: Bytes | None = None
    link: PcieLink | None = None
    kernel: HostKernel
    numa_aware: bool = True
    streams_above: PositiveInt | None = None
    chunk: PositiveInt = 8192
    on_accelerator: tuple[int, ...] = ()
    host_layers: int | None = Field(default=None, ge=1)
    fills_accelerators: bool = False
    weights: str | None = None
    weights_bits: float | None = None
    host_weights: str | None = None
    source: str
    assumptions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    match: HybridMatch

    @property
    def cpu(self) -> str:
        """The CPU by name: entries with one CPU are settings of like machines, and are left out together."""
        return self.title.split(",")[0].split("×")[-1].strip()


# What can break a machine: the rule, the case that taught it, how bad it is, and what to change.

#: ``danger`` stops or damages the service or the machine; ``warning`` degrades it; ``note`` is to be known
HazardSeverity = Literal["danger", "warning", "note"]


class Applies(Frozen):
    """Where a hazard was seen: patterns of compute capabilities, and words in the description of a machine."""

    compute_capability: tuple[str, ...] = ()
    boards: tuple[str, ...] = ()


class HazardRule(Frozen):
    """One entry of `hardware_db/hazards`; the file's name is its id.

    `thresholds` are shares [-] or quantities with their unit; `thresholds_from` says who set them. `ratings` are the
    ordinary kinds of what a machine hangs on, by name, rising [W].
    """

    name: str
    title: str
    severity: HazardSeverity
    rule: str
    effect: str
    case: str
    source: str
    change: str
    thresholds: dict[str, float | str] = {}
    thresholds_from: str | None = None
    ratings: dict[str, Watts] = {}
    applies: Applies = Applies()
