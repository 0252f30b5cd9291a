"""Put several dumps of one machine together into one host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from glmplan.errors import SpecError, UnknownName
from glmplan.facts.catalogue.accelerators import accelerator_aliases, accelerator_names, load_accelerator
from glmplan.facts.folders import plain_name
from glmplan.facts.schema.host import Host
from glmplan.facts.schema.validation import validated
from glmplan.readers.machines.dumps.findings import CpuFacts, GpuFacts, Memory, NumaFacts, PciTree, Relations
from glmplan.readers.machines.dumps.places import Places, places_from_pci, places_from_relations
from glmplan.readers.machines.dumps.recognise import Dump

__all__ = ["accelerator_of", "host_from_dumps"]


def accelerator_of(product: str) -> str | None:
    """Return the catalogue's name of a product as a vendor tool prints it.

    Parameters
    ----------
    product : str
        Product name.

    Returns
    -------
    str or None
        The name, None if the catalogue does not have the part.

    Examples
    --------
    >>> accelerator_of("NVIDIA RTX PRO 6000 Blackwell Server Edition"), accelerator_of("NVIDIA GeForce 256")
    ('rtx-pro-6000-server', None)
    """
    plain = _plain_product(product)
    if plain in accelerator_names():
        return plain
    if plain in accelerator_aliases():
        return accelerator_aliases()[plain]
    parts = [load_accelerator(name) for name in accelerator_names()]
    full = {plain_name(part.full_name): part.name for part in parts}
    printed = {plain_name(text): part.name for part in parts for text in part.printed_as}
    if plain in printed:
        return printed[plain]
    if plain in full:
        return full[plain]
    longer = [name for text, name in full.items() if text.startswith(f"{plain}-")]
    return longer[0] if len(longer) == 1 else None


def _plain_product(product: str) -> str:
    """Return a product name without its vendor, as the catalogue compares names."""
    bracket = re.search(r"\[([^\]]*(?:RTX|Tesla|Instinct|Radeon|GeForce)[^\]]*)\]", product)
    vendors = r"\b(NVIDIA|AMD|Corporation|Advanced Micro Devices,? Inc\.?)\b|\(rev \w+\)"
    return plain_name(re.sub(vendors, "", bracket[1] if bracket else product))


def _of(dumps: Sequence[Dump], kind: type) -> list[tuple[Dump, Any]]:
    return [(dump, dump.content) for dump in dumps if isinstance(dump.content, kind)]


def _merged_gpus(dumps: Sequence[Dump]) -> list[GpuFacts]:
    """Join the accelerators of several dumps by number; later dumps fill what earlier ones leave open."""
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
    """Return the sockets, NUMA node → socket, and what was assumed."""
    cpus, numas, memories = (_of(dumps, kind) for kind in (CpuFacts, NumaFacts, Memory))
    cpu = cpus[0][1] if cpus else None
    numa = numas[0][1] if numas else None
    with_cpus = {node for node, has in (numa.with_cpus.items() if numa else ()) if has}
    known = sorted(with_cpus or set(cpu.numa if cpu else ()) or nodes or {0})
    assumed = []
    count = cpu.sockets if cpu else len(known)
    if cpu is None and len(known) > 1:
        assumed.append("each NUMA node is a socket")
    share = max(len(known) // count, 1)
    socket_of = {node: min(position // share, count - 1) for position, node in enumerate(known)}
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


def _scale_up(relations: Relations | None, part: str | None, source: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the scale-up network that the pairs show, and what is not known of it."""
    if relations is None:
        return None, []
    linked = {pair for pair, cell in relations.cells.items() if cell.startswith("NV") or cell == "XGMI"}
    if not linked:
        return None, []
    mesh = any(relations.cells[pair] == "XGMI" for pair in linked)
    everyone = len(linked) == relations.count * (relations.count - 1)
    try:
        rate = load_accelerator(part).scaleup_bandwidth if part else None
    except UnknownName:
        rate = None
    if rate is None:
        return None, ["rate of the scale-up links"]
    topology = "mesh" if mesh else "switch" if everyone and relations.count > 2 else "bridge"
    domain = relations.count if everyone else 2
    kind = "xgmi" if mesh else "nvlink"
    said = {"kind": kind, "topology": topology, "bandwidth": f"{rate!r} B/s", "domain": domain, "source": source}
    return said, []


def _places(dumps: Sequence[Dump], socket_of: dict[int, int]) -> Places | None:
    """Return where the accelerators sit, from the best dump there is."""
    trees = sorted(_of(dumps, PciTree), key=lambda item: not item[1].described)
    found = [places_from_pci(tree, socket_of) for _, tree in trees]
    placed = [places for places in found if places.cards]
    if placed:
        return placed[0]
    relations = [content for _, content in _of(dumps, Relations)]
    if relations and not any(cell in ("XGMI", "PCIE") for cell in relations[0].cells.values()):
        return places_from_relations(relations[0], socket_of)
    return None


def host_from_dumps(dumps: Sequence[Dump], *, name: str, accelerator: str | None = None) -> Host:
    """Describe the machine that several dumps were made on.

    Parameters
    ----------
    dumps : sequence of Dump
        What `read_dump` returned, in any order.
    name : str
        Name of the host.
    accelerator : str, optional
        Catalogue name of the accelerators, for dumps that do not name them.

    Returns
    -------
    Host
        What the dumps say; what they do not say stays unknown and is listed.

    Raises
    ------
    SpecError
        If the dumps contradict each other on the number or names of the accelerators, or there is no accelerator and no
        name for it.

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
        or int(accelerator is not None)
    )
    _agree(dumps, count)
    if places and len(places.cards) != count:
        places = None
    cards, unknown = _cards(gpus, places, count, accelerator)
    part = cards[0]["accelerator"]
    unified = _unified(part)
    assumed += _assumed_links(cards, places)
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
        if places.redirect is not None:
            content["conditions"] = {"acs_redirect": places.redirect, "source": source}
    if scale_up:
        content["scale_up"] = scale_up
    return validated(Host, {key: value for key, value in content.items() if value is not None})


def _unified(part: str) -> bool:
    """Say whether a part of the catalogue shares its memory with the CPU."""
    try:
        return load_accelerator(part).unified_memory
    except UnknownName:
        return False


def _assumed_links(cards: list[dict[str, Any]], places: Places | None) -> list[str]:
    """Fill links that no dump describes with what the part allows, and uplinks like the links below; say so."""
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
    for dump, relations in _of(dumps, Relations):
        if relations.count != count:
            raise SpecError(f"describes {relations.count} accelerators, the other dumps {count}", file=dump.file)
    for dump, tree in _of(dumps, PciTree):
        listed = sum(device.kind == "gpu" for device in tree.devices)
        if listed not in (0, count) and _of(dumps, list):
            raise SpecError(f"lists {listed} accelerators, the other dumps {count}", file=dump.file)


def _cards(
    gpus: list[GpuFacts], places: Places | None, count: int, accelerator: str | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one card for each accelerator and what is not known of them."""
    cards, unknown = [], []
    for index in range(count):
        gpu = gpus[index] if gpus else GpuFacts(index)
        place = dict(places.cards[index]) if places else {}
        product = gpu.name or place.pop("name", None)
        place.pop("name", None)
        part = accelerator or (accelerator_of(product) if product else None)
        if part is None and product is None:
            raise SpecError("is needed: these dumps do not name the accelerators", field="--accelerator")
        if part is None:
            part = _plain_product(str(product))
            unknown.append(f"accelerator {product!r}: not in the catalogue")
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
