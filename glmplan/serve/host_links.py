"""The links of a machine as plain values: parts with what they hang on, and how full a layout makes each link."""

from __future__ import annotations

from typing import Any

from glmplan.errors import GlmplanError, SpecError
from glmplan.facts.catalogue.hosts import load_machine
from glmplan.facts.schema.host import Host, PcieLink
from glmplan.physics.network.placement import Placement, place, plan_loads
from glmplan.report.host_drawing import network_lines
from glmplan.units import GIB, whole_number

__all__ = ["links_record"]


def links_record(on: str, *, tp: int | None = None, pp: int | None = None) -> dict[str, Any]:
    """Parts and links of one node of a machine.

    Parameters
    ----------
    on : str
        The machine.
    tp, pp : int, optional
        A layout whose transfers load the links, [-]

    Returns
    -------
    dict
        Parts in an order in which each stands after what it hangs on; shares of links that are full in the busiest
        phase [-]; the placement; why there is none.

    Raises
    ------
    SpecError
        If the machine is not known.

    Examples
    --------
    >>> found = links_record("workstation-direct-2", tp=2)
    >>> [part["kind"] for part in found["parts"]]
    ['socket', 'root', 'root', 'accelerator', 'accelerator']
    """
    try:
        host = load_machine(on)
    except SpecError as error:
        raise type(error)(error.message, field="on", value=error.value or on, choices=error.choices) from None
    ranks, stages = (1 if one is None else whole_number(one, name) for one, name in ((tp, "tp"), (pp, "pp")))
    placement, missing = _placed(host, ranks, stages)
    loads: dict[str, list[dict[str, Any]]] = {}
    if placement is not None and ranks * stages > 1:
        for phase, found in plan_loads(host, placement.stages).items():
            loads[phase] = [
                {
                    "start": one.start,
                    "end": one.end,
                    "gb_per_s": one.load / 1e9,
                    "capacity_gb_per_s": one.capacity / 1e9,
                    "share": one.load / one.capacity if one.capacity else 0.0,
                    "transfers": one.flows,
                }
                for one in found
            ]
    return {
        "host": host.name,
        "title": host.title,
        "nodes": host.nodes,
        "parts": _parts(host, placement.stages if placement is not None else ()),
        "between": network_lines(host, joined=" to ", said=": "),
        "loads": loads,
        "missing": missing,
        "stages": [list(stage) for stage in placement.stages] if placement is not None else [],
        "visible_devices": placement.visible_devices if placement is not None else "",
        "gain_over_worst_order": placement.gain if placement is not None else None,
        "orders_tried": placement.tried if placement is not None else 0,
    }


def _placed(host: Host, tp: int, pp: int) -> tuple[Placement | None, str]:
    try:
        return place(host, tp=tp, pp=pp), ""
    except GlmplanError as error:
        return None, str(error)


def _part(key: str, parent: str | None, kind: str, label: str, link: PcieLink | None = None) -> dict[str, Any]:
    words = f"Gen{link.generation} x{link.lanes}" if link is not None else ""
    rate = link.bandwidth / 1e9 if link is not None else None
    return {"key": key, "parent": parent, "kind": kind, "label": label, "link": words, "gb_per_s": rate, "stage": None}


def _parts(host: Host, stages: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    found = []
    for socket in host.sockets:
        memory = f", {socket.memory_size / GIB:,.0f} GiB" if socket.memory_size else ""
        found.append(_part(socket.name, None, "socket", f"{socket.cpu or 'CPU unknown'}{memory}"))
    for root in host.roots:
        found.append(_part(root.name, root.socket, "root", root.address or ""))
    for switch in host.switches:
        found.append(_part(switch.name, switch.parent, "switch", switch.model or "switch", switch.uplink))
    for device in host.devices:
        found.append(_part(device.name, device.parent, device.kind, device.address or "", device.link))
    role = {slot: (stage, rank) for stage, slots in enumerate(stages) for rank, slot in enumerate(slots)}
    for number, card in enumerate(host.slots):
        name = card.accelerator.rsplit("/", 1)[-1].removesuffix(".toml")
        part = _part(f"accelerator {number}", card.parent, "accelerator", name, card.link)
        part["stage"], part["rank"] = role.get(number, (None, None))
        found.append(part)
    return found
