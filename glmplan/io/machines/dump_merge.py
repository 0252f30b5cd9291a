"""Merge several dumps of one machine into a host description."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names, load_accelerator, short_name
from glmplan.catalog.entries.own_parts import line_of
from glmplan.catalog.files import plain_name
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.validation import validated
from glmplan.errors import SpecError, UnknownName
from glmplan.io.machines.dump_readers import CpuFacts, Dump, GpuFacts, Memory, NumaFacts, PciDevice, PciTree, Relations
from glmplan.io.machines.table_readers import MainMemory, PeerAccess
from glmplan.units import GIB, Bytes

#: bandwidth of one NVLink in one direction by compute capability [B/s]: 14.0625 GB/s on cards of Ampere (GA102), 50 on
#: Blackwell, else 25 (whitepapers of NVIDIA: Volta, Turing, A100, GA102, H100, Blackwell)
_NVLINK = {"7.0": 25e9, "7.5": 25e9, "8.0": 25e9, "8.6": 14.0625e9, "9.0": 25e9, "10.0": 50e9, "10.3": 50e9}
#: distance from which NUMA nodes are on other sockets: a remote node is 20 by default (ACPI specification, SLIT), nodes
#: of one socket are nearer (11 or 12 on EPYC and Xeon)
_OTHER_SOCKET = 20
#: accelerators in a mesh without a source: those of an Open Compute baseboard (OAI UBB)
_MESH = 8
#: difference up to which a printed memory is that of a data sheet: drivers keep up to 4 % of it [-]
_SAME_MEMORY = 0.05

__all__ = ["Places", "accelerator_of", "host_from_dumps", "places_from_pci", "places_from_relations"]


_ALONG = {"display": "display", "nic": "nic", "nvme": "nvme"}


@dataclass(slots=True)
class Places:
    """Parts of a host description, in the form of `catalog.schema.host`.

    `cards` has one entry for each accelerator: parent, link, address, NUMA node.
    """

    roots: list[dict[str, Any]] = field(default_factory=list)
    switches: list[dict[str, Any]] = field(default_factory=list)
    cards: list[dict[str, Any]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    redirect: bool | None = None
    notes: list[str] = field(default_factory=list)


def _bus(address: str) -> str:
    """Return domain and bus of an address."""
    return address.rsplit(":", 1)[0]


def _chain(device: PciDevice, behind: dict[str, PciDevice]) -> list[PciDevice]:
    """Return the bridges above a device, from the root port down."""
    chain: list[PciDevice] = []
    bus = _bus(device.address)
    while bus in behind and behind[bus] not in chain:
        chain.insert(0, behind[bus])
        bus = _bus(behind[bus].address)
    return chain


def _link(*ends: PciDevice) -> dict[str, int] | None:
    """Return the common capability of both ends of a link."""
    generations = [end.generation for end in ends if end.generation]
    lanes = [end.lanes for end in ends if end.lanes]
    return {"generation": min(generations), "lanes": min(lanes)} if generations and lanes else None


def _plain(address: str) -> str:
    """Return a bus for names: without domain 0000."""
    return address.removeprefix("0000:").replace(":", "-")


def places_from_pci(tree: PciTree, sockets_of: dict[int, int]) -> Places:
    """Return roots, switches, cards and devices of a PCI tree.

    Cards are ordered by address, as vendor tools number them. A root complex is a bus without a bridge above it. Below
    its root port, every upstream port is a switch; in a tree without port types every second bridge is one. Virtual
    switches of one chip cannot be distinguished from separate switches.

    Examples
    --------
    >>> devices = (PciDevice("0000:00:01.1", "port", "bridge", "01", "root", 5, 16, 0),
    ...            PciDevice("0000:01:00.0", "NVIDIA card", "gpu", None, None, 5, 16, 0))
    >>> places = places_from_pci(PciTree(devices, True), {0: 0})
    >>> places.roots, places.cards[0]["link"]
    ([{'name': 'root-00', 'socket': 'cpu0', 'address': '0000:00'}], {'generation': 5, 'lanes': 16})
    """
    places = Places()
    behind = {f"{device.address[:5]}{device.secondary}": device for device in tree.devices if device.secondary}
    numa_of_bus = {_bus(device.address): device.numa for device in tree.devices if device.numa is not None}
    made: dict[str, dict[str, Any]] = {}
    redirects: list[bool] = []
    for device in tree.devices:
        if device.kind != "gpu" and device.kind not in _ALONG:
            continue
        if device.kind in _ALONG and not device.address.endswith(".0"):
            continue
        chain = _chain(device, behind)
        top = _bus(chain[0].address if chain else device.address)
        root = f"root-{_plain(top)}"
        if root not in made:
            node = numa_of_bus.get(top, device.numa)
            socket = sockets_of.get(node if node is not None else 0, 0)
            made[root] = {"name": root, "socket": f"cpu{socket}", "address": top}
            places.roots.append(made[root])
        if chain and chain[0].redirect is not None:
            redirects.append(chain[0].redirect)
        parent = root
        for depth, bridge in enumerate(chain):
            upstream = bridge.port == "upstream" if tree.described else depth % 2 == 1  # root, upstream, downstream, …
            if not upstream:
                continue
            name = f"switch-{_plain(_bus(bridge.address))}"
            if name not in made:
                switch: dict[str, Any] = {"name": name, "parent": parent}
                uplink = _link(bridge, *chain[depth - 1 : depth])
                if uplink:
                    switch["uplink"] = uplink
                if tree.described:
                    switch["model"] = bridge.name.partition(" (rev")[0]
                made[name] = switch
                places.switches.append(switch)
            if tree.described and depth + 1 < len(chain) and chain[depth + 1].redirect is not None:
                made[name]["acs_redirect"] = bool(made[name].get("acs_redirect")) or chain[depth + 1].redirect
            parent = name
        entry: dict[str, Any] = {"parent": parent, "address": device.address}
        link = _link(device, *chain[-1:])
        if link:
            entry["link"] = link
        if device.kind == "gpu":
            places.cards.append(entry | {"name": device.name})
        else:
            places.devices.append(
                {"name": f"{device.kind}-{_plain(device.address)}", "kind": _ALONG[device.kind]} | entry
            )
    places.cards.sort(key=lambda card: card["address"])
    places.redirect = any(redirects) if redirects else None
    if tree.described and not places.switches:
        return places
    if tree.described:
        places.notes.append("virtual switches of one chip are listed as switches: `chip` can say that they meet inside")
    return places


def _groups(count: int, together: set[tuple[int, int]]) -> list[list[int]]:
    """Return the connected groups of `count` items, in ascending order."""
    group = list(range(count))
    for one, other in sorted(together):
        low, high = sorted((group[one], group[other]))
        group = [low if value == high else value for value in group]
    return [[index for index in range(count) if group[index] == key] for key in sorted(set(group))]


def places_from_relations(relations: Relations, sockets_of: dict[int, int]) -> Places:
    """Return roots and switches guessed from the paths between pairs.

    PIX: one switch. PXB: switches below a common one. PHB: one root complex. NODE: one socket. SYS: several.

    Examples
    --------
    >>> cells = {(0, 0): "X", (0, 1): "NODE", (1, 0): "NODE", (1, 1): "X"}
    >>> places = places_from_relations(Relations(2, cells), {})
    >>> [card["parent"] for card in places.cards]
    ['root0', 'root1']
    """
    places = Places(notes=list(relations.notes))
    pairs = {
        kind: {pair for pair, cell in relations.cells.items() if cell in kind} for kind in (("PIX",), ("PIX", "PXB"))
    }
    near = {pair for pair, cell in relations.cells.items() if cell in ("PIX", "PXB", "PHB")}
    same_socket = {pair for pair, cell in relations.cells.items() if cell in ("PIX", "PXB", "PHB", "NODE")}
    sockets = _groups(relations.count, same_socket)
    parents: dict[int, str] = {}
    for number, root in enumerate(_groups(relations.count, near)):
        guess = next(index for index, members in enumerate(sockets) if root[0] in members)
        socket = sockets_of.get(relations.numa.get(root[0], -1), guess)
        places.roots.append({"name": f"root{number}", "socket": f"cpu{socket}"})
        for upper in (group for group in _groups(relations.count, pairs["PIX", "PXB"]) if group[0] in root):
            leaves = [group for group in _groups(relations.count, pairs["PIX",]) if group[0] in upper]
            parent = f"root{number}"
            if len(leaves) > 1:
                parent = f"switch{len(places.switches)}"
                places.switches.append({"name": parent, "parent": f"root{number}"})
            for leaf in leaves:
                place = parent
                if len(leaf) > 1:
                    place = f"switch{len(places.switches)}"
                    places.switches.append({"name": place, "parent": parent})
                parents.update({slot: place for slot in leaf})
    places.cards = [{"parent": parents[slot]} for slot in range(relations.count)]
    places.notes.append("roots and switches are inferred from `topo -m`: the rates of uplinks are not in it")
    return places


def accelerator_of(product: str, memory: Bytes | None = None) -> str | None:
    """Return the catalogue name of a product as a tool prints it, or None.

    `memory`: as the tool prints it. It distinguishes boards of one printed name.

    Examples
    --------
    >>> accelerator_of("NVIDIA RTX PRO 6000 Blackwell Server Edition"), accelerator_of("NVIDIA GeForce 256")
    ('rtx-pro-6000-server', None)
    >>> accelerator_of("NVIDIA GeForce RTX 4090", 49140 * 2**20)
    'rtx-4090-48gb'
    """
    plain = _plain_product(product)
    parts = [load_accelerator(name) for name in accelerator_names()]
    full = {plain_name(part.full_name): part.name for part in parts}
    printed = {plain_name(text): part.name for part in parts for text in part.printed_as}
    known = {**full, **printed, **accelerator_aliases(), **{name: name for name in accelerator_names()}}.get(plain)
    if memory is not None:
        sized = re.compile(rf"{re.escape(plain)}-\d+gb\b")
        boards = [part for part in parts if part.name == known or sized.match(plain_name(part.full_name))]
        equal = [part.name for part in boards if part.memory and abs(memory / part.memory - 1.0) < _SAME_MEMORY]
        known = equal[0] if equal else known
    longer = [name for text, name in full.items() if text.startswith(f"{plain}-")]
    return known or (longer[0] if len(longer) == 1 else None)


def _of_cut_name(gpu: GpuFacts) -> str | None:
    """Return the only part of this memory whose name begins so, or None."""
    if gpu.cut_name is None or gpu.memory is None:
        return None
    begun, found = short_name(gpu.cut_name), set()
    aliases = accelerator_aliases()
    for part in map(load_accelerator, accelerator_names()):
        own = (alias for alias, name in aliases.items() if name == part.name)
        equal = part.memory and abs(gpu.memory / part.memory - 1.0) < _SAME_MEMORY
        if equal and any(short_name(name).startswith(begun) for name in (part.full_name, *part.printed_as, *own)):
            found.add(part.name)
    return found.pop() if len(found) == 1 else None


def _plain_product(product: str) -> str:
    """Return a product name without its vendor, for comparison."""
    bracket = re.search(r"\[([^\]]*(?:RTX|Tesla|Instinct|Radeon|GeForce)[^\]]*)\]", product)
    vendors = r"\b(NVIDIA|AMD|Corporation|Advanced Micro Devices,? Inc\.?)\b|\(rev \w+\)"
    return plain_name(re.sub(vendors, "", bracket[1] if bracket else product))


def _of(dumps: Sequence[Dump], kind: type) -> list[tuple[Dump, Any]]:
    return [(dump, dump.content) for dump in dumps if isinstance(dump.content, kind)]


def _merged_gpus(dumps: Sequence[Dump]) -> list[GpuFacts]:
    """Return the accelerators of several dumps, merged by number.

    Later dumps fill gaps of earlier ones.
    """
    joined: dict[int, GpuFacts] = {}
    first: Dump | None = None
    for dump, gpus in _of(dumps, list):
        if first and len(gpus) != len(joined):
            text = f"describes {len(gpus)} accelerators, {first.file} describes {len(joined)}: not one machine"
            raise SpecError(text, file=dump.file)
        first = first or dump
        for gpu in gpus:
            known = joined.get(gpu.index)
            if known is None:
                joined[gpu.index] = gpu
                continue
            if known.name and gpu.name and known.name != gpu.name:
                raise SpecError(
                    f"says {gpu.name!r} for accelerator {gpu.index}, {first.file} {known.name!r}", file=dump.file
                )
            gaps = {
                field.name: getattr(gpu, field.name) for field in fields(known) if getattr(known, field.name) is None
            }
            joined[gpu.index] = replace(known, **gaps)
    return [joined[index] for index in sorted(joined)]


def _sockets(dumps: Sequence[Dump], nodes: set[int]) -> tuple[list[dict[str, Any]], dict[int, int], list[str]]:
    """Return the sockets, NUMA node → socket, and the assumptions."""
    cpus, numas, memories = (_of(dumps, kind) for kind in (CpuFacts, NumaFacts, Memory))
    cpu = cpus[0][1] if cpus else None
    numa = numas[0][1] if numas else None
    with_cpus = {node for node, has in (numa.with_cpus.items() if numa else ()) if has}
    known = sorted(with_cpus or set(cpu.numa if cpu else ()) or nodes or {0})
    assumed = []
    near = _near_nodes(numa, known) if cpu is None and numa is not None else None
    count = cpu.sockets if cpu else len(near or known)
    if near is not None:
        assumed.append("NUMA nodes less than 20 apart are on one socket")
    elif cpu is None and len(known) > 1:
        assumed.append("each NUMA node is a socket")
    share = max(len(known) // count, 1)
    socket_of = {node: min(position // share, count - 1) for position, node in enumerate(known)}
    if near is not None:
        socket_of = {node: index for index, group in enumerate(near) for node in group}
    sockets: list[dict[str, Any]] = []
    for index in range(count):
        mine = [node for node, socket in socket_of.items() if socket == index]
        entry: dict[str, Any] = {"name": f"cpu{index}"}
        if cpu:
            entry |= {"cpu": cpu.model, "cores": cpu.cores_per_socket, "instructions": list(cpu.instructions)}
        if cpu or numa or len(known) > 1:
            entry["numa_nodes"] = mine
        if numa and all(node in numa.sizes for node in mine):
            entry["memory_size"] = f"{sum(numa.sizes[node] for node in mine)!r} B"
        sockets.append({key: value for key, value in entry.items() if value not in (None, [])})
    apart = [node for node, size in (numa.sizes.items() if numa else ()) if size and node not in socket_of]
    if numa and with_cpus and apart:
        listed = ", ".join(f"{node} ({numa.sizes[node] / GIB:,.0f} GiB)" for node in apart)
        assumed.append(f"memory of NUMA nodes without processors is left out: {listed}")
    for _, whole in [] if numa else _of(dumps, MainMemory):
        for entry in sockets:
            entry["memory_size"] = f"{whole.size / count!r} B"
    for _, memory in memories:
        if numa and memory.size < 0.9 * sum(numa.sizes.values()):
            assumed.append("the list of memory modules is not complete: bandwidth left unknown")
            continue
        for index in range(count):
            rates = [rate for (socket, _), rate in memory.channels.items() if socket == index]
            if rates:
                sockets[index]["memory_channels"] = len(rates)
                sockets[index]["memory_bandwidth"] = f"{sum(rates) * 8!r} B/s"
    return sockets, socket_of, assumed


def _near_nodes(numa: NumaFacts, known: list[int]) -> list[list[int]] | None:
    """Return the NUMA nodes of each socket by distance; None: none are near."""
    pairs = {(one, other) for (one, other), apart in numa.distances.items() if one != other and apart < _OTHER_SOCKET}
    place = {node: index for index, node in enumerate(known)}
    together = {(place[one], place[other]) for one, other in pairs if one in place and other in place}
    groups = _groups(len(known), together)
    # every pair of a socket is near: a ring of sockets, each near to the next one, is no socket
    whole = all((one, other) in together for group in groups for one in group for other in group if one != other)
    return [[known[index] for index in group] for group in groups] if together and whole else None


def _domain(linked: set[tuple[int, int]], count: int) -> int | None:
    """Return the size of equal groups of neighbours that links join, or None."""
    for size in (size for size in range(2, count) if count % size == 0):
        groups = (range(first, first + size) for first in range(0, count, size))
        if linked == {(one, other) for group in groups for one in group for other in group if one != other}:
            return size
    return None


def _scale_up(relations: Relations | None, part: str | None, source: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the scale-up network that the pairs show, and its unknown facts."""
    if relations is None:
        return None, []
    linked = {pair for pair, cell in relations.cells.items() if cell.startswith("NV") or cell == "XGMI"}
    if not linked:
        return None, []
    mesh = any(relations.cells[pair] == "XGMI" for pair in linked)
    everyone = len(linked) == relations.count * (relations.count - 1)
    try:
        known = load_accelerator(part) if part else None
    except UnknownName:
        known = None
    rate = known.scaleup_bandwidth if known is not None and known.link_kind != "pcie" else None
    links = {int(relations.cells[pair][2:]) for pair in linked if relations.cells[pair].startswith("NV")}
    if rate is None and known is not None and links:
        each = _NVLINK.get(known.compute_capability or "")
        rate = each * min(links) if each is not None else None
    if rate is None:
        return None, ["rate of the scale-up links"]
    domain = relations.count if everyone else _domain(linked, relations.count)
    if domain is None:
        told = "joined parts can be planned as a machine of their own"
        return None, [f"scale-up links that do not join equal groups of neighbours, planned as PCIe: {told}"]
    topology = "mesh" if mesh else "switch" if domain > 2 else "bridge"
    if mesh and known is not None:  # a pair has its share of the rate, also where the dump shows fewer of the mesh
        domain = max(domain, known.scaleup_domain or _MESH)
    kind = "xgmi" if mesh else "nvlink"
    said = {"kind": kind, "topology": topology, "bandwidth": f"{rate!r} B/s", "domain": domain, "source": source}
    return said, []


def _places(dumps: Sequence[Dump], socket_of: dict[int, int]) -> Places | None:
    """Return the places of the accelerators from the best dump."""
    trees = sorted(_of(dumps, PciTree), key=lambda item: not item[1].described)
    result = [places_from_pci(tree, socket_of) for _, tree in trees]
    placed = [places for places in result if places.cards]
    if placed:
        return placed[0]
    relations = [content for _, content in _of(dumps, Relations)]
    if relations and not any(cell in ("XGMI", "PCIE") for cell in relations[0].cells.values()):
        return places_from_relations(relations[0], socket_of)
    return None


def host_from_dumps(dumps: Sequence[Dump], *, name: str, accelerator: str | None = None) -> Host:
    """Return the machine of several dumps.

    Missing facts stay unknown and are listed. `accelerator`: catalogue name, for dumps that do not name the
    accelerators.

    Examples
    --------
    >>> gpus = [GpuFacts(0, "NVIDIA L40S", generation=4, lanes=16)]
    >>> host = host_from_dumps([Dump("q.csv", "nvidia-smi --query-gpu", gpus)], name="box")
    >>> host.accelerator, host.slots[0].link.lanes, host.unknown[0]
    ('l40s', 16, 'places of the accelerators')
    """
    gpus = _merged_gpus(dumps)
    relations = next((content for _, content in _of(dumps, Relations)), None)
    pci_nodes = {device.numa for _, tree in _of(dumps, PciTree) for device in tree.devices if (device.numa or 0) >= 0}
    nodes = {node for node in pci_nodes if node is not None} | set(relations.numa.values() if relations else ())
    sockets, socket_of, assumed = _sockets(dumps, nodes)
    places = _places(dumps, socket_of)
    count = (
        len(gpus)
        or (len(places.cards) if places else 0)
        or (relations.count if relations else 0)
        or max((peers.count for _, peers in _of(dumps, PeerAccess)), default=0)
        or int(accelerator is not None)
    )
    _agree(dumps, count)
    if places and len(places.cards) != count:
        places = None
    cards, unknown = _cards(gpus, places, count, accelerator)
    part = cards[0]["accelerator"]
    unified = _unified(part)
    assumed += _assumed_links(cards, places)
    assumed += [*_power_limits(gpus, part), *_conditions_of_gpus(gpus, cards), *_peer_words(dumps)]
    if all("link" in card for card in cards):
        unknown = [item for item in unknown if item != "PCIe generation and lanes"]
    source = "; ".join(f"{dump.tool} ({dump.file.rsplit('/', 1)[-1]})" for dump in dumps)
    scale_up, missing = _scale_up(relations, part, source)
    unknown += missing
    if not any("memory_size" in socket for socket in sockets):
        unknown.append("host memory")
    if not any("cpu" in socket for socket in sockets):
        unknown.append("host CPU")
    notes = [note for _, cpu in _of(dumps, CpuFacts) for note in cpu.notes]
    notes += places.notes if places else relations.notes if relations else []
    needed = max([*(int(root["socket"][3:]) for root in places.roots), 0] if places else [0]) + 1
    sockets += [{"name": f"cpu{index}"} for index in range(len(sockets), needed)]
    content: dict[str, Any] = {
        "name": name,
        "title": f"{count} × {part}" if count else f"{part}",
        "source": source,
        "note": "; ".join(notes) or None,
        "assumptions": assumed,
        "unknown": [*unknown, "power supply"],
        "unified_memory": unified,
        "sockets": sockets,
        "socket_links": [
            {"ends": [one["name"], other["name"]]} for one, other in zip(sockets, sockets[1:], strict=False)
        ],
        "cards": cards,
    }
    if places:
        content |= {"roots": places.roots, "switches": places.switches, "devices": places.devices}
    if conditions := _conditions(dumps, places):
        content["conditions"] = conditions | {"source": source}
    if scale_up:
        content["scale_up"] = scale_up
    return validated(Host, {key: value for key, value in content.items() if value is not None})


def _conditions(dumps: Sequence[Dump], places: Places | None) -> dict[str, Any]:
    """Return the conditions of a machine that its dumps tell."""
    result: dict[str, Any] = {}
    if places and places.redirect is not None:
        result["acs_redirect"] = places.redirect
    access = next((peers.direct for _, peers in _of(dumps, PeerAccess)), None)
    if access is not None:
        result["p2p"] = "direct" if access else "missing"
    return result


def _unified(part: str) -> bool:
    """Return True if an accelerator shares its memory with the CPU.

    The catalogue says so.
    """
    try:
        return load_accelerator(part).unified_memory
    except UnknownName:
        return False


def _power_limits(gpus: list[GpuFacts], part: str) -> list[str]:
    """Return a note for a power limit below that of the data sheet."""
    limits = [gpu.power_limit for gpu in gpus if gpu.power_limit]
    try:
        own = load_accelerator(part).tdp
    except UnknownName:
        own = None
    if not limits or own is None or min(limits) >= own:
        return []
    least = f"{min(limits):g} W"
    return [f"the power limit of {least} (of {own:g} W) is no part of a host: plan with --power-limit '{least}'"]


def _conditions_of_gpus(gpus: list[GpuFacts], cards: list[dict[str, Any]]) -> list[str]:
    """Return notes on instances, narrow links and other sizes of memory."""
    said = []
    divided = [str(gpu.index) for gpu in gpus if gpu.divided]
    if divided:
        said.append(f"MIG is on for accelerator {', '.join(divided)}: planned whole, as after nvidia-smi -mig 0")
    for gpu, card in zip(gpus, cards, strict=False):  # none are listed where a topology alone counts them
        lanes = card.get("link", {}).get("lanes", 0)
        if gpu.lanes_now and gpu.lanes_now < lanes:
            now = f"{gpu.lanes_now} lanes now, {lanes} are planned"
            said.append(f"accelerator {gpu.index}: {now}: read under load, an idle link can be narrower")
        said += _other_memory(gpu, card["accelerator"])
    return said


def _other_memory(gpu: GpuFacts, name: str) -> list[str]:
    """Return a note for an Apple part with other memory than the catalogue's."""
    try:
        part = load_accelerator(name)
    except UnknownName:
        return []
    if part.vendor != "Apple" or gpu.memory is None or part.memory is None or gpu.memory == part.memory:
        return []
    own = line_of(part.model_copy(update={"memory": gpu.memory}))
    return [f"{name} has {part.memory / GIB:.0f} GiB in the catalogue, this machine {gpu.memory / GIB:.0f} GiB: "
            f"plan with --on '{own.removesuffix(',bf16=?T')}'"]  # fmt: skip


def _peer_words(dumps: Sequence[Dump]) -> list[str]:
    """Return the assumption on a matrix of peer access, which names no kind."""
    known = any(peers.direct is not None for _, peers in _of(dumps, PeerAccess))
    return ["the matrix of peer access is that of topo -p2p r or w: -p2p n and a tell other facts"] if known else []


def _assumed_links(cards: list[dict[str, Any]], places: Places | None) -> list[str]:
    """Fill links without a description by limits; return notes.

    Accelerators limit links; uplinks are like the links below them.
    """
    said = []
    for card in cards:
        if "link" in card:
            continue
        try:
            part = load_accelerator(card["accelerator"])
        except UnknownName:
            continue
        if part.pcie_generation and part.pcie_lanes and not part.unified_memory:
            card["link"] = {"generation": min(part.pcie_generation, 6), "lanes": min(part.pcie_lanes, 16)}
            said.append("the accelerators' links are as wide and fast as their data sheet says")
    switches = places.switches if places else []
    for switch in reversed(switches):
        below = [card["link"] for card in cards if card.get("parent") == switch["name"] and "link" in card]
        below += [other["uplink"] for other in switches if other["parent"] == switch["name"] and "uplink" in other]
        if "uplink" not in switch and below:
            switch["uplink"] = below[0]
            said.append("each switch has one uplink like the links below it")
    return list(dict.fromkeys(said))


def _agree(dumps: Sequence[Dump], count: int) -> None:
    """Check that every dump that counts accelerators counts the same."""
    if count == 0:
        raise SpecError(
            "list no accelerator: say what computes with --accelerator", file=", ".join(dump.file for dump in dumps)
        )
    for dump, relations in (*_of(dumps, Relations), *_of(dumps, PeerAccess)):
        if relations.count != count:
            raise SpecError(f"describes {relations.count} accelerators, the other dumps {count}", file=dump.file)
    for dump, tree in _of(dumps, PciTree):
        listed = sum(device.kind == "gpu" for device in tree.devices)
        if listed not in (0, count) and _of(dumps, list):
            raise SpecError(f"lists {listed} accelerators, the other dumps {count}", file=dump.file)


def _cards(
    gpus: list[GpuFacts], places: Places | None, count: int, accelerator: str | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one card for each accelerator and its unknown facts."""
    cards, unknown = [], []
    for index in range(count):
        gpu = gpus[index] if gpus else GpuFacts(index)
        place = dict(places.cards[index]) if places else {}
        product = gpu.name or place.pop("name", None)
        place.pop("name", None)
        part = accelerator or (accelerator_of(product, gpu.memory) if product else _of_cut_name(gpu))
        if part is None and gpu.cut_name:
            message = f"is needed: the table cuts the name {gpu.cut_name!r}; add nvidia-smi -L to the dumps"
            raise SpecError(message, field="--accelerator")
        if part is None and product is None:
            raise SpecError("is needed: these dumps do not name the accelerators", field="--accelerator")
        if part is None:
            part = _plain_product(str(product))
            unknown.append(f"accelerator {product!r}: not in the catalogue; name a file of its data sheet in [[cards]]")
        card = {"accelerator": part, **place}
        if gpu.generation and gpu.lanes:
            mine = {"generation": gpu.generation, "lanes": gpu.lanes}
            there = card.get("link", mine)
            card["link"] = {key: min(mine[key], there[key]) for key in mine}
        if gpu.address:
            card["address"] = gpu.address
        cards.append(card)
    if not places and not _unified(cards[0]["accelerator"]):
        unknown.insert(0, "places of the accelerators")
    if any("link" not in card for card in cards) and not _unified(cards[0]["accelerator"]):
        unknown.append("PCIe generation and lanes")
    return cards, list(dict.fromkeys(unknown))
