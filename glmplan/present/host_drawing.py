"""Draw a host as text or SVG: its link tree, and link loads of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from glmplan.catalog.schema.host import Host, PcieLink
from glmplan.costs.network.topology import LinkLoad, Placement, plan_loads
from glmplan.errors import printable
from glmplan.extras import wanted
from glmplan.present.page import COLOURS, FULL, SERIES, light
from glmplan.units import format_quantity

__all__ = ["draw_svg", "draw_text", "network_lines", "svg_to_png"]

#: mean width of a letter over its font size, with a margin [-]; sizes of names and details [px]
_LETTER, _NAME, _DETAIL = 0.58, 13, 12
#: padding of a box, gap between boxes, height of a box, and of each line beyond two [px]
_PAD, _GAP, _HIGH, _LINE = 10.0, 14.0, 40.0, 15.0
#: least width of a heading before a line break [px]
_HEADING = 360.0


@dataclass(slots=True)
class _Node:
    """Component in the tree.

    `key` is its name in the link graph. `lines` replace label and detail in its box.
    """

    key: str
    label: str
    detail: str = ""
    lines: tuple[str, ...] = ()
    kind: str = "part"
    link: PcieLink | None = None
    children: list[_Node] = field(default_factory=list)


def _tree(host: Host, stages: tuple[tuple[int, ...], ...]) -> list[_Node]:
    """Return the components of one node as trees, unplaced ones at the top."""
    role = {
        slot: f"stage {stage}, rank {rank}" for stage, slots in enumerate(stages) for rank, slot in enumerate(slots)
    }
    places: dict[str, _Node] = {}
    tops: list[_Node] = []
    for socket in host.sockets:
        memory = format_quantity(socket.memory_size, "bytes", 3) if socket.memory_size else "memory unknown"
        cpu = f"{socket.cpu or 'CPU unknown'}, {memory}"
        places[socket.name] = _Node(socket.name, socket.name, cpu, kind="socket")
        tops.append(places[socket.name])
    for root in host.roots:
        places[root.name] = _Node(root.name, root.name, root.address or "", kind="root")
        places[root.socket].children.append(places[root.name])
    for switch in host.switches:
        model = f"{switch.model or 'switch'}{f', {switch.chip}' if switch.chip else ''}"
        lines = (switch.name, *model.split(", "))
        places[switch.name] = _Node(switch.name, switch.name, model, lines, "switch", switch.uplink)
        places[switch.parent].children.append(places[switch.name])
    for device in host.devices:
        node = _Node(device.name, device.name, device.address or "", kind=device.kind, link=device.link)
        (places[device.parent].children if device.parent else tops).append(node)
    names = [_card_name(card.accelerator) for card in host.slots]
    for number, (card, name) in enumerate(zip(host.slots, names, strict=True)):
        label = f"{number}: {role[number]}" if number in role else f"{number}"
        # narrow boxes: eight cards in a row stay readable on paper; a common name is printed below the drawing
        lines = (f"card {number}", *role[number].split(", ")) if number in role else (f"card {number}",)
        lines += (name,) if len(set(names)) > 1 else ()
        node = _Node(f"accelerator {number}", label, name, lines, "accelerator", card.link)
        (places[card.parent].children if card.parent else tops).append(node)
    return tops


def _card_name(accelerator: str) -> str:
    return accelerator.rsplit("/", 1)[-1].removesuffix(".toml")


def _link_text(link: PcieLink | None) -> str:
    return f"Gen{link.generation} x{link.lanes}" if link else ""


def _both_ways(loads: list[LinkLoad], node: str, parent: str) -> str:
    """Return the load of the link to the parent, up and down; empty if idle."""
    up = max((load.load / load.capacity for load in loads if (load.start, load.end) == (node, parent)), default=0.0)
    down = max((load.load / load.capacity for load in loads if (load.start, load.end) == (parent, node)), default=0.0)
    return f"↑{up:.0%} ↓{down:.0%}" if up or down else ""


def draw_text(host: Host, placement: Placement | None = None) -> str:
    """Return a host as a text tree; one of several equal nodes is drawn.

    A placement adds ranks and link loads. Arrows give the load of the link to the parent, towards the root and away
    from it, in the busiest phase.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
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
    lines += network_lines(host)
    if placement:
        lines += _plan_lines(placement, phases)
    return "\n".join(lines)


def network_lines(host: Host, *, joined: str = " ═ ", said: str = "  ") -> list[str]:
    """Return the links outside the PCIe tree as text.

    `joined` separates the ends of a link, `said` the ends and the kind.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> network_lines(load_machine("workstation-2-switches-8"))
    []
    """
    lines = []
    for link in host.socket_links:
        count = f"{link.count} × " if link.count else ""
        kind = link.kind if link.kind != "unknown" else "link of unknown kind"
        lines.append(f"{link.ends[0]}{joined}{link.ends[1]}{said}{count}{kind}")
    if host.scale_up and host.scale_up.domain > 1:
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


def _wide(text: str, size: float) -> float:
    """Return the largest width of a text, [px]."""
    return len(text) * size * _LETTER


def _words(node: _Node) -> tuple[str, ...]:
    """Return the lines in the box of a component."""
    return tuple(line for line in node.lines or (node.label, node.detail) if line)


def _box(node: _Node) -> float:
    """Return the width of a box by its longest text, [px]."""
    name, *details = _words(node)
    return max(_wide(name, _NAME), *(_wide(one, _DETAIL) for one in details), 40.0) + 2 * _PAD


def _high(node: _Node) -> float:
    """Return the height of a box, [px]."""
    return _HIGH + _LINE * max(len(_words(node)) - 2, 0)


def _span(node: _Node) -> float:
    """Return the width of a component and its subtree, [px]."""
    below = sum(_span(child) + _GAP for child in node.children) - _GAP
    return max(_box(node), below)


def _positions(tops: list[_Node]) -> tuple[dict[str, tuple[float, int]], int, float]:
    """Return centre [px] and level of every component, depth and width [px]."""
    at: dict[str, tuple[float, int]] = {}
    lowest = [0]

    def put(node: _Node, left: float, level: int) -> None:
        lowest[0] = max(lowest[0], level)
        at[node.key] = left + _span(node) / 2, level
        start = left + (_span(node) - sum(_span(child) + _GAP for child in node.children) + _GAP) / 2
        for child in node.children:
            put(child, start, level + 1)
            start += _span(child) + _GAP

    edge = 0.0
    for top in tops:
        put(top, edge, 0)
        edge += _span(top) + _GAP
    return at, lowest[0], edge - _GAP


def _colour(share: float, step: float | None) -> str:
    """Return the colour of a link by its load or share of a step."""
    colours = FULL if step is None else zip((0.0, 0.001, 0.1, 0.3), (name for _, name in FULL), strict=True)
    return light([name for least, name in colours if share >= least][-1])


def draw_svg(host: Host, placement: Placement | None = None, step: float | None = None) -> str:
    """Return a host as an SVG element; one of several equal nodes is drawn.

    A placement colours accelerators by stage, and links by their load in the busiest phase; with `step`, the share of
    transfers in a decode step, by their part of it. The width of a line is the rate of the link.
    `glmplan.present.charts.standalone` makes a file of the element.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> draw_svg(load_host("workstation-direct-2")).count("<rect")
    6
    """
    stages = placement.stages if placement else ()
    loads = [load for phase in plan_loads(host, stages).values() for load in phase] if placement else []
    most = max((load.load / load.capacity for load in loads), default=0.0)
    tops = _tree(host, stages)
    at, lowest, wide = _positions(tops)
    stage_of = {f"accelerator {slot}": stage for stage, slots in enumerate(stages) for slot in slots}
    left, gap = 16.0, 104.0
    names = {_card_name(card.accelerator) for card in host.slots}
    said = [f"each card: {name}" for name in names if len(names) == 1] + (
        _plan_notes(placement, tops, step) if placement else []
    )
    notes = network_lines(host) + _flowed(said, max(wide, _HEADING))
    whole = f"{host.name}: {host.title}"
    heading = [whole] if _wide(whole, 14) <= max(wide, _HEADING) else [f"{host.name}:", host.title]
    sizes = [*((text, 14) for text in heading), *((text, 11) for text in notes)]
    width = max(wide, *(_wide(text, size) for text, size in sizes)) + 2 * left
    top = 44.0 + 18 * len(heading)
    below = top + gap * lowest + max(map(_high, _all(tops))) - _HIGH
    height = below + 46 + 18 * len(notes)
    lines: list[str] = []
    boxes: list[str] = []
    texts: list[str] = []

    def place(node: _Node) -> tuple[float, float]:
        middle, level = at[node.key]
        return middle + left, top + gap * (lowest if node.kind == "accelerator" else level)

    def draw(node: _Node, parent: _Node | None) -> None:
        x, y = place(node)
        if parent is not None:
            x0, y0 = place(parent)
            mine = [load for load in loads if {load.start, load.end} == {node.key, parent.key}]
            full = max((load.load / load.capacity for load in mine), default=0.0)
            told = f"{full:.0%} full" if full else ""
            if step is not None and full:
                full *= step / most
                told = f"{full:.0%} of step"
            thick = 1 + (node.link.bandwidth / 16e9 if node.link else 0.5)
            words = [part for part in (_link_text(node.link), told) if part]
            # a vertical end of the line keeps its label apart from the labels of its neighbours
            bend = y - 20 - (_LINE * len(words) + 11 if words else 0)
            lines.append(
                f'<path d="M{x0:.0f} {y0 + 20:.0f}L{x:.0f} {bend:.0f}L{x:.0f} {y - 20:.0f}" fill="none" '
                f'stroke="{_colour(full, step)}" stroke-width="{thick:.1f}" stroke-linejoin="round"/>'
            )
            for line, text in enumerate(words):
                down = y - 31 + 13 * (line - len(words) + 1)
                texts.append(_label(x, down, text, _DETAIL, light("ink"), halo=True))
        boxes.append(_drawn_box(node, x, y - 20, stage_of.get(node.key)))
        for child in node.children:
            draw(child, node)

    for root in tops:
        draw(root, None)
    texts += [_label(left, 26 + 18 * row, text, 14, light("ink"), "start") for row, text in enumerate(heading)]
    texts += [_label(left, below + 48 + 18 * row, note, 11, light("faint"), "start") for row, note in enumerate(notes)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(whole, {chr(34): "&quot;"})}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">'
    )
    paper = f'<rect width="100%" height="100%" fill="{light("paper")}"/>'
    return printable("\n".join([head, paper, *lines, *boxes, *texts, "</svg>", ""]))


def _all(nodes: list[_Node]) -> list[_Node]:
    """Return components with their subtrees."""
    return [one for node in nodes for one in (node, *_all(node.children))]


def _drawn_box(node: _Node, x: float, top: float, stage: int | None) -> str:
    """Return the box of a component, with a border in the stage colour.

    The fill keeps texts readable in light and dark mode.
    """
    half, high, words = _box(node) / 2, _high(node), _words(node)
    fill = light(node.kind if node.kind in COLOURS else "part")
    edge, thick = (light("faint"), 1) if stage is None else (light(SERIES[stage % len(SERIES)]), 4)
    first = top + (high - _LINE * (len(words) - 1)) / 2 + 4
    return (
        f'<rect x="{x - half:.0f}" y="{top:.0f}" width="{2 * half:.0f}" height="{high:.0f}" rx="4" fill="{fill}" '
        f'stroke="{edge}" stroke-width="{thick}"/>'
    ) + "".join(
        _label(x, first + _LINE * row, text, _DETAIL if row else _NAME, light("ink")) for row, text in enumerate(words)
    )


def _plan_notes(placement: Placement, tops: list[_Node], step: float | None) -> list[str]:
    """Return the legend below the drawing of a plan."""
    said = [f"order of the cards: {placement.visible_devices}", "edges of the cards: stages"]
    if any(top.children for top in tops):
        said += ["links: grey idle, yellow in use"]
        said += [
            "orange from 50 %, red from 90 % full" if step is None else "orange from 10 %, red from 30 % of a step"
        ]
    return said


def _flowed(parts: list[str], wide: float) -> list[str]:
    """Return notes on as few lines of a width [px] as possible."""
    lines: list[str] = []
    for part in parts:
        if lines and _wide(f"{lines[-1]}; {part}", 11) <= wide:
            lines[-1] += f"; {part}"
        else:
            lines.append(part)
    return lines


def _label(x: float, y: float, text: str, size: int, ink: str, anchor: str = "middle", *, halo: bool = False) -> str:
    """Return a text element; a halo keeps it readable across a line."""
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"'
    paper = light("paper")
    below = (
        f'<text {place} fill="{paper}" stroke="{paper}" stroke-width="6" stroke-linejoin="round">{escape(text)}</text>'
        if halo
        else ""
    )
    return f'{below}<text {place} fill="{ink}">{escape(text)}</text>' if text else ""


def svg_to_png(svg: str) -> bytes:
    """Return an SVG drawing as PNG."""
    return bytes(wanted("vl_convert", field="--format png").svg_to_png(svg, scale=2.0))
