"""Draw a host: the tree of its links as text or SVG, with the transfers of a plan and how full they make each link."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from glmplan.extras import wanted
from glmplan.facts.schema.host import Host, PcieLink
from glmplan.physics.network.placement import Placement, plan_loads
from glmplan.physics.network.topology import LinkLoad
from glmplan.units import format_quantity

__all__ = ["draw_svg", "draw_text", "svg_to_png"]

#: Colours of pipeline stages, told apart also in grey.
_STAGES = ("#4878a8", "#e49444", "#6a9f58", "#a87c9f", "#d1615d", "#85b6b2", "#967662", "#b8b0ac")


@dataclass(slots=True)
class _Node:
    """A part in the tree; `key` is its name in the link graph."""

    key: str
    label: str
    detail: str = ""
    kind: str = "part"
    link: PcieLink | None = None
    children: list[_Node] = field(default_factory=list)


def _tree(host: Host, stages: tuple[tuple[int, ...], ...]) -> list[_Node]:
    """Return the parts of one node of a host as trees; parts whose place is not known stand at the top."""
    role = {
        slot: f"stage {stage}, rank {rank}" for stage, slots in enumerate(stages) for rank, slot in enumerate(slots)
    }
    places: dict[str, _Node] = {}
    tops: list[_Node] = []
    for socket in host.sockets:
        memory = format_quantity(socket.memory_size, "bytes", 3) if socket.memory_size else "memory unknown"
        places[socket.name] = _Node(socket.name, socket.name, f"{socket.cpu or 'CPU unknown'}, {memory}", "socket")
        tops.append(places[socket.name])
    for root in host.roots:
        places[root.name] = _Node(root.name, root.name, root.address or "", "root")
        places[root.socket].children.append(places[root.name])
    for switch in host.switches:
        model = f"{switch.model or 'switch'}{f', {switch.chip}' if switch.chip else ''}"
        places[switch.name] = _Node(switch.name, switch.name, model, "switch", switch.uplink)
        places[switch.parent].children.append(places[switch.name])
    for device in host.devices:
        node = _Node(device.name, device.name, device.address or "", device.kind, device.link)
        (places[device.parent].children if device.parent else tops).append(node)
    for number, card in enumerate(host.slots):
        name = card.accelerator.rsplit("/", 1)[-1].removesuffix(".toml")
        label = f"{number}: {role[number]}" if number in role else f"{number}"
        node = _Node(f"accelerator {number}", label, name, "accelerator", card.link)
        (places[card.parent].children if card.parent else tops).append(node)
    return tops


def _link_text(link: PcieLink | None) -> str:
    return f"Gen{link.generation} x{link.lanes}" if link else ""


def _both_ways(loads: list[LinkLoad], node: str, parent: str) -> str:
    """Return how full the link above a part is, up and down, where anything crosses it."""
    up = max((load.load / load.capacity for load in loads if (load.start, load.end) == (node, parent)), default=0.0)
    down = max((load.load / load.capacity for load in loads if (load.start, load.end) == (parent, node)), default=0.0)
    return f"↑{up:.0%} ↓{down:.0%}" if up or down else ""


def draw_text(host: Host, placement: Placement | None = None) -> str:
    """Draw a host as a text tree.

    Parameters
    ----------
    host : Host
        The machine; of several equal nodes one is drawn.
    placement : Placement, optional
        A plan, whose ranks and loads are written beside the parts.

    Returns
    -------
    str
        Text; arrows say how full the link above a part is, towards the root and away from it, in the busiest phase.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> print(draw_text(load_host("workstation-direct-2")))
    workstation-direct-2: One socket, 2 RTX PRO 6000 Workstation on x16 root ports
    cpu0  CPU unknown, memory unknown
    ├─ root0
    │  └─ 0  rtx-pro-6000-ws  Gen5 x16
    └─ root1
       └─ 1  rtx-pro-6000-ws  Gen5 x16
    """
    stages = placement.stages if placement else ()
    phases = plan_loads(host, stages) if placement else {}
    loads = [load for phase in phases.values() for load in phase]
    lines = [f"{host.name}: {host.title}" + (f" (one of {host.nodes} equal nodes)" if host.nodes > 1 else "")]

    def write(node: _Node, parent: str, before: str, turn: str, after: str) -> None:
        parts = [node.label, node.detail, _link_text(node.link), _both_ways(loads, node.key, parent)]
        lines.append(before + turn + "  ".join(part for part in parts if part))
        for index, child in enumerate(node.children):
            last = index == len(node.children) - 1
            write(child, node.key, before + after, "└─ " if last else "├─ ", "   " if last else "│  ")

    for top in _tree(host, stages):
        write(top, "", "", "", "")
    lines += _network_lines(host)
    if placement:
        lines += _plan_lines(placement, phases)
    return "\n".join(lines)


def _network_lines(host: Host) -> list[str]:
    """Return the links that are no part of the PCIe tree."""
    lines = []
    for link in host.socket_links:
        count = f"{link.count} × " if link.count else ""
        lines.append(f"{link.ends[0]} ═ {link.ends[1]}  {count}{link.kind}")
    if host.scale_up:
        inside = host.scale_up
        rate = format_quantity(inside.bandwidth, "bytes per second", 3, unit="GB/s")
        lines.append(f"{inside.kind} {inside.topology}: {inside.domain} accelerators, {rate} each way for each")
    if host.fabric:
        rate = format_quantity(host.fabric.bandwidth, "bytes per second", 3, unit="GB/s")
        lines.append(f"{host.fabric.kind} between nodes: {rate} each way for each accelerator")
    return lines


def _plan_lines(placement: Placement, phases: dict[str, list[LinkLoad]]) -> list[str]:
    """Return order, gain and the fullest links of a plan."""
    lines = ["", f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={placement.visible_devices}"]
    best, worst = placement.score, placement.worst_score
    lines.append(
        f"all-reduce {best.all_reduce * 1e6:.1f} us; worst of {placement.tried} orders "
        f"{worst.all_reduce * 1e6:.1f} us ({placement.gain:.2f}×): "
        + " | ".join(",".join(map(str, stage)) for stage in placement.worst)
    )
    for phase, loads in phases.items():
        lines.append(f"fullest links in the {phase}:")
        for load in loads[:4]:
            rates = f"{load.load / 1e9:.1f} of {load.capacity / 1e9:.1f} GB/s"
            transfers = f"{load.flows} transfer{'s' if load.flows > 1 else ''}"
            lines.append(f"  {load.start} → {load.end}  {rates} ({load.load / load.capacity:.0%}), {transfers}")
    return lines


def _positions(tops: list[_Node], step: float) -> tuple[dict[str, tuple[float, int]], int, float]:
    """Return column and level of every part, the lowest level, and the width."""
    at: dict[str, tuple[float, int]] = {}
    cursor = [0.0]
    lowest = [0]

    def put(node: _Node, level: int) -> float:
        lowest[0] = max(lowest[0], level)
        if node.children:
            columns = [put(child, level + 1) for child in node.children]
            column = (columns[0] + columns[-1]) / 2
        else:
            column = cursor[0]
            cursor[0] += step
        at[node.key] = column, level
        return column

    for top in tops:
        put(top, 0)
    return at, lowest[0], cursor[0]


def _colour(share: float) -> str:
    """Return grey for an idle link, then yellow to red as it fills."""
    if share <= 0:
        return "#9a9a9a"
    mix = min(share, 1.0)
    return f"#{int(230 - 30 * mix):02x}{int(190 - 160 * mix):02x}28"


def draw_svg(host: Host, placement: Placement | None = None) -> str:
    """Draw a host as SVG.

    Parameters
    ----------
    host : Host
        The machine; of several equal nodes one is drawn.
    placement : Placement, optional
        A plan: stages colour the accelerators, loads colour the links.

    Returns
    -------
    str
        An SVG document. A link is as thick as its rate and as red as it is full in the busiest phase.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> draw_svg(load_host("workstation-direct-2")).count("<rect")
    6
    """
    stages = placement.stages if placement else ()
    loads = [load for phase in plan_loads(host, stages).values() for load in phase] if placement else []
    tops = _tree(host, stages)
    at, lowest, width = _positions(tops, 132.0)
    stage_of = {f"accelerator {slot}": stage for stage, slots in enumerate(stages) for slot in slots}
    width, top, gap = max(width, 560.0) + 24, 56.0, 84.0
    notes = _network_lines(host) + ([f"order {placement.visible_devices}"] if placement else [])
    height = top + gap * lowest + 60 + 18 * len(notes) + 12
    lines, boxes, texts = [], [], []

    def place(node: _Node) -> tuple[float, float]:
        column, level = at[node.key]
        return column + 72, top + gap * (lowest if node.kind == "accelerator" else level)

    def draw(node: _Node, parent: _Node | None) -> None:
        x, y = place(node)
        if parent is not None:
            x0, y0 = place(parent)
            mine = [load for load in loads if {load.start, load.end} == {node.key, parent.key}]
            full = max((load.load / load.capacity for load in mine), default=0.0)
            thick = 1 + (node.link.bandwidth / 16e9 if node.link else 0.5)
            lines.append(
                f'<line x1="{x0:.0f}" y1="{y0 + 18:.0f}" x2="{x:.0f}" y2="{y - 18:.0f}" '
                f'stroke="{_colour(full)}" stroke-width="{thick:.1f}"/>'
            )
            text = " ".join(part for part in (_link_text(node.link), f"{full:.0%}" if full else "") if part)
            if text:
                texts.append(_label((x0 + x) / 2, (y0 + y) / 2 + 4, text, 9, "#111", halo=True))
        fill = {"socket": "#dfe6ee", "root": "#eef1e4", "switch": "#f4e8d8", "display": "#f6d5d5"}.get(
            node.kind, "#f2f2f2"
        )
        ink = "#111"
        if node.key in stage_of:
            fill, ink = _STAGES[stage_of[node.key] % len(_STAGES)], "#fff"
        boxes.append(
            f'<rect x="{x - 62:.0f}" y="{y - 18:.0f}" width="124" height="36" rx="4" fill="{fill}" stroke="#666"/>'
            + _label(x, y - 3, node.label, 12, ink)
            + _label(x, y + 11, node.detail if len(node.detail) < 27 else node.detail[:25] + "…", 8, ink)
        )
        for child in node.children:
            draw(child, node)

    for root in tops:
        draw(root, None)
    texts.append(_label(12, 24, f"{host.name}: {host.title}", 14, "#111", "start"))
    for index, note in enumerate(notes):
        texts.append(_label(12, top + gap * lowest + 46 + 18 * index, note, 11, "#333", "start"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *lines, *boxes, *texts, "</svg>", ""])


def _label(x: float, y: float, text: str, size: int, ink: str, anchor: str = "middle", *, halo: bool = False) -> str:
    """Return a text; with a halo it can be read across a line."""
    edge = ' stroke="#fff" stroke-width="3" paint-order="stroke"' if halo else ""
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{ink}" text-anchor="{anchor}"{edge}'
    return f"<text {place}>{escape(text)}</text>"


def svg_to_png(svg: str) -> bytes:
    """Return an SVG drawing as PNG.

    Parameters
    ----------
    svg : str
        The drawing.

    Returns
    -------
    bytes
        The picture.

    Raises
    ------
    SpecError
        If the `png` extra is not installed.
    """
    return bytes(wanted("vl_convert", field="--format png").svg_to_png(svg, scale=2.0))
