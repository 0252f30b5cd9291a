"""Load a machine of `hardware_db/hosts`, or an implied one.

The text is a name, alias or file, or a count such as `6xrtx-pro-6000-ws`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmplan.catalog.caching import remembered
from glmplan.catalog.entries.accelerators import (
    accelerator_aliases,
    accelerator_names,
    in_one_line,
    load_accelerator,
    nearest_accelerators,
    short_name,
    split_count,
)
from glmplan.catalog.entries.catalog import Catalog
from glmplan.catalog.files import plain_name, read_toml
from glmplan.errors import SpecError, UnknownName, nearest

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.host import Host

__all__ = ["host_aliases", "host_names", "implied_host", "load_host", "load_machine"]

#: accelerators in a scale-up network without a source: those of an Open Compute baseboard (OAI UBB)
_DOMAIN = 8
#: characters of a name that a hint repeats
_LONG_NAME = 80
_SCALE_UP = {"nvlink": ("nvlink", "switch"), "infinity-fabric": ("xgmi", "mesh"), "hccs": ("hccs", "mesh")}


def _read(file: Path) -> Host:
    content = {"name": file.stem, **read_toml(file)}
    cards = content.get("cards")
    if isinstance(cards, list):
        # an accelerator outside the catalogue is a TOML file beside the host's
        for card in cards:
            part = card.get("accelerator") if isinstance(card, dict) else None
            if isinstance(part, str) and part.endswith(".toml"):
                card["accelerator"] = str(file.parent.absolute() / part)
    return _host(content, file)


_CATALOG = Catalog("hardware_db/hosts", _read)


def host_names() -> tuple[str, ...]:
    """Return the names of all hosts, sorted.

    Examples
    --------
    >>> "hgx-b200-8" in host_names()
    True
    """
    return _CATALOG.names


def host_aliases() -> dict[str, str]:
    """Return alias → name.

    Examples
    --------
    >>> host_aliases()["dgx-h100"]
    'hgx-h100-8'
    """
    return _CATALOG.aliases


def load_host(name: str | Path) -> Host:
    """Load one host.

    Parameters
    ----------
    name : str or path
        Name, alias, or a TOML file of the same form.

    Returns
    -------
    Host
        The machine.

    Raises
    ------
    UnknownName
        If there is no such host; lists the nearest.
    SpecError
        If the file is not a correct entry.

    Examples
    --------
    >>> load_host("hgx-b200-8").accelerator_count
    8
    >>> load_host("hgx-b100-8")
    Traceback (most recent call last):
    glmplan.errors.UnknownName: 'hgx-b100-8' is not a known host; nearest: ...
    """
    host = _CATALOG.find(name)
    if host is None:
        raise UnknownName("is not a known host", value=str(name), choices=host_names())
    return host


def _host(content: dict[str, Any], file: Path | None = None) -> Host:
    from glmplan.catalog.schema.host import Host
    from glmplan.catalog.schema.validation import validated

    return validated(Host, content, file)


def load_machine(text: str | Path) -> Host:
    """Load a machine from a host name, a file or a count of accelerators.

    Parameters
    ----------
    text : str or path
        Host name or alias (`hgx-b200-8`), a TOML file of a host or of an accelerator, `NxACCELERATOR`
        (`6xrtx-pro-6000-ws`, `2xmy-card.toml`; without a number, one), or several of them with a plus sign between
        (`2xrtx-pro-6000-ws+1xrtx-5090`).

    Returns
    -------
    Host
        The machine; for `NxACCELERATOR` the one that `implied_host` describes.

    Raises
    ------
    UnknownName
        If it is neither; lists the nearest names of both kinds.
    SpecError
        If a file is not a correct entry.

    Examples
    --------
    >>> load_machine("6xrtx-pro-6000-ws").accelerator_count
    6
    >>> load_machine("dgx-h200").name
    'hgx-h200-8'
    >>> load_machine("1xgb200-nvl72").accelerator_count  # one rack
    72
    """
    name = str(text)
    if name.endswith(".toml"):
        return _of_file(name)
    count, part = split_count(name)
    if in_one_line(part):
        return implied_host(load_accelerator(part), count, file=part)
    if "+" in name:
        return _of_several(name)
    plain = plain_name(name)
    # an accelerator of the catalogue with a count is no host: found without reading every host for its aliases
    counted = part != name and plain_name(part) in accelerator_names()
    if plain in host_names() or (not counted and plain in host_aliases()):
        return load_host(name)
    if part != name and not counted and plain_name(part) in (*host_names(), *host_aliases()):
        # a single unit of a host is the host, also where its accelerator has the same name: a rack of 72 is no single
        # card
        if count == 1:
            return load_host(part)
        raise _not_found(name, part, count)
    try:
        return implied_host(load_accelerator(part), count)
    except UnknownName as error:
        if "refused" in str(error):
            raise
        raise _not_found(name, part, count) from None


def _of_file(name: str) -> Host:
    """Return the machine of a host file or of an accelerator file."""
    count, file = (1, name) if os.path.exists(name) else split_count(name)
    if "cards" not in read_toml(file):
        return implied_host(load_accelerator(file), count, file=file)
    if file != name:
        raise SpecError("counts a host, and only parts are counted", value=name)
    return load_host(file)


def _of_several(name: str) -> Host:
    """Return the generic machine with PCIe accelerators of several kinds."""
    kinds: dict[str, int] = {}
    for text in name.split("+"):
        count, part = split_count(text)
        try:
            kind = load_accelerator(part)
        except UnknownName:
            raise _not_found(text, part, count) from None
        if kind.kind != "gpu" or kind.scaleup in _SCALE_UP or kind.unified_memory:
            raise SpecError("is no card of a machine with several kinds: only PCIe cards are mixed", value=text)
        kinds[kind.name] = kinds.get(kind.name, 0) + count
    parts = [load_accelerator(kind) for kind, count in kinds.items() for _ in range(count)]
    if len(kinds) == 1:
        return implied_host(parts[0], len(parts))
    # copies go through host memory if one of the cards has no peer-to-peer access
    host = implied_host(min(parts, key=lambda part: part.peer_to_peer is not False), len(parts))
    cards = [
        card.model_copy(update={"accelerator": part.name, "link": implied_host(part, 1).cards[0].link})
        for card, part in zip(host.cards, parts, strict=True)
    ]
    sources = "; ".join(dict.fromkeys(part.source for part in parts))
    title = " + ".join(f"{count} × {load_accelerator(kind).full_name}" for kind, count in kinds.items())
    said = ("each GPU in a dedicated PCIe slot of its generation and width", *host.assumptions[1:])
    text = "+".join(f"{count}x{kind}" for kind, count in kinds.items())
    return host.model_copy(
        update={
            "name": text,
            "title": f"{title}, host not named",
            "source": sources,
            "cards": tuple(cards),
            "assumptions": said,
        }
    )


def _not_found(name: str, part: str, count: int) -> UnknownName:
    """Return the error of an unknown machine, with the nearest names."""
    plain = plain_name(part)
    if count > 1 and plain in (*host_names(), *host_aliases()):
        host = load_host(part)
        meant = f"{count * host.accelerator_count}x{host.accelerator}"
        also = f"; {count} of its parts: {count}x{host.accelerator}" if plain in accelerator_aliases() else ""
        return UnknownName(
            f"counts a host, and only parts are counted; the parts of {count}: {meant}{also}", value=name
        )
    each, one = split_count(part)
    if one != part and plain_name(one) in accelerator_names():
        return UnknownName(f"counts servers; one machine of all: {count * each}x{one}", value=name)
    parts = nearest_accelerators(plain)
    if part != name:
        # with a count, an accelerator was meant
        close = [f"{count}x{item}" if count > 1 else item for item in parts]
        hint = f"nearest: {', '.join(close)}" if close else "see `glmplan hardware list`"
        return UnknownName(f"is not a known accelerator; {hint}; {_own_part(plain)}", value=part)
    hosts = [host_aliases().get(item, item) for item in nearest(plain, [*host_names(), *host_aliases()])]
    alike = nearest(plain, [*parts, *hosts], len(parts) + len(hosts) or 1, alike=0.0)
    begun = [item for item in parts if item.startswith(f"{plain}-") or short_name(item).startswith(short_name(plain))]
    close = list(dict.fromkeys([*begun, *alike]))[:5]
    hint = f"nearest: {', '.join(close)}" if close else "see `glmplan hardware list`"
    return UnknownName(f"is not a known host or accelerator; {hint}; {_own_part(plain)}", value=name)


def _own_part(name: str) -> str:
    """Return the hint how to plan with a part outside the catalogue."""
    from glmplan.catalog.entries.own_parts import blank_line

    line = blank_line(name if 0 < len(name) <= _LONG_NAME else "part")
    return f"or give its data sheet: --part {line} with its values for ? (more in a file: docs/guide/hardware.md)"


def implied_host(accelerator: Accelerator | str, count: int, *, file: str = "") -> Host:
    """Return the generic machine for a number of accelerators.

    `assumptions` lists everything that is assumed. `file` describes an accelerator that the catalogue does not have.

    Notes
    -----
    PCIe accelerators: each on an x16 port of its own, on two sockets beyond seven; there NCCL finds its rings by
    itself, which it does badly, so a plan for a real machine of eight cards should name it. Accelerators with a
    scale-up network: as many in one domain as the data sheet says; more than that are several nodes, and the network
    between them stays unknown. Cards without peer to peer (`peer_to_peer`: GeForce) copy through host memory, as their
    stock driver does.

    Examples
    --------
    >>> host = implied_host("rtx-pro-6000-ws", 6)
    >>> host.name, len(host.roots), host.conditions.p2p
    ('6xrtx-pro-6000-ws', 6, 'direct')
    >>> implied_host("b200-sxm", 16).nodes
    2
    """
    host = _implied(load_accelerator(accelerator) if isinstance(accelerator, str) else accelerator, count)
    if not file:
        return host
    cards = tuple(card.model_copy(update={"accelerator": file}) for card in host.cards)
    return host.model_copy(update={"cards": cards})


#: accelerators of a generic machine: more are a cluster of machines [-]
_MOST = 10_000


@remembered(most=512)
def _implied(part: Accelerator, count: int) -> Host:
    if count < 1:
        raise SpecError("must be at least 1", field="count", value=count)
    if count > _MOST:
        raise SpecError(f"must be at most {_MOST:,}", field="count", value=count)
    content: dict[str, Any] = {
        "name": f"{count}x{part.name}",
        "title": f"{count} × {part.full_name}, host not named",
        "source": part.source,
        "unified_memory": part.unified_memory,
    }
    unknown = ["host CPU", "host memory", "power supply"]
    if part.scaleup in _SCALE_UP and part.scaleup_bandwidth is not None:
        content |= _with_scale_up(part, count)
    elif part.unified_memory or part.kind in ("soc", "system", "cpu-socket"):
        content |= {"cards": [{"accelerator": part.name}], "nodes": count}
        if part.scaleup in ("ethernet", "thunderbolt") and part.scaleup_bandwidth is not None and count > 1:
            kind = "roce" if part.scaleup == "ethernet" else "thunderbolt"
            rate = f"{part.scaleup_bandwidth!r} B/s"
            content["fabric"] = {"kind": kind, "bandwidth": rate, "source": part.sources.get("scaleup", part.source)}
            content["assumptions"] = ["the machines are joined by the network port of the part"]
        unknown = ["power supply"]
    else:
        content |= _on_root_ports(part, count)
    content["unknown"] = unknown + (
        [] if content.get("fabric") or content.get("nodes", 1) == 1 else ["network between nodes"]
    )
    return _host(content)


def _with_scale_up(part: Accelerator, count: int) -> dict[str, Any]:
    """Return the description of a machine around a scale-up network."""
    kind, topology = _SCALE_UP[str(part.scaleup)]
    domain = part.scaleup_domain or _DOMAIN
    # equal nodes that are at least half full, as 100 accelerators are twenty nodes of five
    inside = max(cards for cards in range(1, domain + 1) if count % cards == 0) if count > domain else count
    if count > domain > 2 * inside:
        raise SpecError(
            f"{part.full_name} comes in domains of {domain}: more than that must be a multiple", value=count
        )
    nodes = count // inside
    said = [f"all {inside} share one scale-up network at the part's data-sheet rate"] if inside > 1 else []
    if part.scaleup_domain is None:
        said.append(f"at most {domain} share one, as on other parts: how many is not in a source")
    if nodes > 1:
        said.append(f"{nodes} equal nodes")
    return {
        "nodes": nodes,
        "cards": [{"accelerator": part.name, "count": inside, **_link(part)}],
        "assumptions": said,
        "scale_up": {
            "kind": kind,
            "topology": topology,
            "bandwidth": f"{part.scaleup_bandwidth!r} B/s",
            "domain": domain if topology == "mesh" else max(inside, 1),
            "reduces": bool(part.scaleup_reduces),
            "source": part.sources.get("scaleup_bandwidth", part.source),
        },
    }


def _on_root_ports(part: Accelerator, count: int) -> dict[str, Any]:
    """Return a machine with each card on a root port of its own."""
    apart = part.peer_to_peer is False
    sockets = 1 if count <= 7 else 2
    on_each = -(-count // sockets)
    width = f"PCIe Gen{part.pcie_generation} x{part.pcie_lanes}" if part.pcie_generation else "PCIe"
    said = [f"each GPU in a dedicated {width} slot"]
    said.append(
        "all GPUs on one CPU socket"
        if sockets == 1
        else f"two CPU sockets, {on_each} GPUs on the first; PCIe switches or a tuned NCCL are faster: name such a host"
    )
    said.append(
        "copies between GPUs through host memory, as with the stock driver"
        if apart
        else "peer-to-peer between GPUs; NCCL detects its rings"
    )
    return {
        "assumptions": said,
        "sockets": [{"name": f"cpu{index}"} for index in range(sockets)],
        "socket_links": [{"ends": ["cpu0", "cpu1"]}] if sockets == 2 else [],
        "roots": [{"name": f"root{index}", "socket": f"cpu{index // on_each}"} for index in range(count)],
        "cards": [{"accelerator": part.name, "parent": f"root{index}", **_link(part)} for index in range(count)],
        "conditions": {"p2p": "missing" if apart else "direct", "nccl_graph": "default"},
    }


def _link(part: Accelerator) -> dict[str, Any]:
    """Return the PCIe link of an accelerator, empty where it is not published."""
    if part.pcie_generation is None or part.pcie_lanes is None:
        return {}
    return {"link": {"generation": min(part.pcie_generation, 6), "lanes": min(part.pcie_lanes, 16)}}
