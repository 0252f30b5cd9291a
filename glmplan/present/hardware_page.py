"""Write accelerators, hosts and prices as text.

Pages have values, sources, contradictions and unknowns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_aliases, host_names, load_host, load_machine
from glmplan.catalog.entries.prices import load_prices, quotation
from glmplan.catalog.files import plain_name, read_toml
from glmplan.catalog.schema.accelerator import PRECISIONS, Accelerator
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.price import KINDS, Price
from glmplan.costs.network.links import link_for_group
from glmplan.costs.network.topology import conditions_of, measured_cost
from glmplan.errors import SpecError, UnknownFact, UnknownName
from glmplan.units import format_quantity

__all__ = [
    "accelerator_rows",
    "check_notes",
    "host_rows",
    "list_text",
    "price_list_text",
    "price_rows",
    "prices_of",
    "record_text",
    "resolve_hardware",
]


def resolve_hardware(name: str) -> Accelerator | Host:
    """Return the accelerator or host of a name or file.

    `name`: Accelerator, host, `NxACCELERATOR` or TOML file. A name that is both stands for the accelerator.

    Examples
    --------
    >>> type(resolve_hardware("b200-sxm")).__name__, type(resolve_hardware("hgx-b200-8")).__name__
    ('Accelerator', 'Host')
    """
    if name.endswith(".toml"):
        return load_host(name) if "cards" in read_toml(name) else load_accelerator(Path(name))
    plain = plain_name(name)
    if plain in accelerator_names() or plain in accelerator_aliases():
        return load_accelerator(name)
    return load_machine(name)


def _shown(value: float | None, dimension: str) -> str:
    if value is None:
        return "unknown"
    # data sheets give rates in powers of ten
    unit = ("GB/s" if value < 1e12 else "TB/s") if dimension == "bytes per second" else None
    return format_quantity(value, dimension, 4, unit=unit)


def accelerator_rows() -> list[dict[str, Any]]:
    """Return one row for each accelerator of the catalogue.

    A row has the name and the main values as text with units, None if unknown.

    Examples
    --------
    >>> next(row for row in accelerator_rows() if row["name"] == "b200-sxm")["memory_bandwidth"]
    '8 TB/s'
    """
    rows = []
    for name in accelerator_names():
        part = load_accelerator(name)
        figures: dict[str, tuple[str, float | None]] = {
            "memory": ("bytes", part.memory),
            "memory_bandwidth": ("bytes per second", part.memory_bandwidth),
            "tdp": ("watts", part.tdp),
        }
        figures |= {str(key): ("FLOP per second", part.peak.get(key)) for key in PRECISIONS}
        row: dict[str, Any] = {"name": name, "full_name": part.full_name}
        row |= {
            key: format_quantity(value, unit) if value is not None else None for key, (unit, value) in figures.items()
        }
        rows.append(row)
    return rows


def host_rows() -> list[dict[str, Any]]:
    """Return one row for each host of the catalogue.

    Examples
    --------
    >>> next(row for row in host_rows() if row["name"] == "hgx-b200-8")["accelerators"]
    8
    """
    rows = []
    for name in host_names():
        host = load_host(name)
        links = host.scale_up.kind if host.scale_up else "pcie" if any(card.link for card in host.slots) else "unknown"
        row = {
            "name": name,
            "title": host.title,
            "accelerator": host.accelerator,
            "accelerators": host.accelerator_count,
        }
        rows.append(row | {"links": "unified" if host.unified_memory else links})
    return rows


def list_text(accelerators: list[dict[str, Any]], hosts: list[dict[str, Any]]) -> str:
    """Return `accelerator_rows` and `host_rows` as tables, 100 columns wide.

    An empty list leaves its table out.

    Examples
    --------
    >>> list_text([], host_rows()).splitlines()[0].split()
    ['host', 'n', 'accelerator', 'links', 'machine']
    """
    lines = []
    if accelerators:
        lines.append(f"{'accelerator':24}{'memory':>12}{'bandwidth':>14}{'bf16':>18}{'fp4':>18}{'power':>10}")
        for row in accelerators:
            cells = [row[key] or "unknown" for key in ("memory", "memory_bandwidth", "bf16", "fp4", "tdp")]
            lines.append(f"{row['name']:24}{cells[0]:>12}{cells[1]:>14}{cells[2]:>18}{cells[3]:>18}{cells[4]:>10}")
    if hosts:
        lines += [""] if lines else []
        lines.append(f"{'host':36}{'n':>5}  {'accelerator':22}{'links':9}machine")
        for row in hosts:
            title = row["title"] if len(row["title"]) <= 26 else row["title"][:25] + "…"
            lines.append(f"{row['name']:36}{row['accelerators']:>5}  {row['accelerator']:22}{row['links']:9}{title}")
    return "\n".join(lines)


def record_text(record: Accelerator | Host) -> str:
    """Return the page of an accelerator or a host.

    Examples
    --------
    >>> record_text(load_host("hgx-b200-8")).splitlines()[0]
    'hgx-b200-8: HGX B200: eight B200 SXM on NVLink switches'
    """
    return "\n".join(_host_lines(record) if isinstance(record, Host) else _accelerator_lines(record))


def _wrapped(label: str, text: str) -> list[str]:
    return wrap(text, 98, initial_indent=f"{label:14}", subsequent_indent=" " * 14) if text else []


def _accelerator_lines(part: Accelerator) -> list[str]:
    """Return the lines of an accelerator."""
    pcie = f"Gen{part.pcie_generation} x{part.pcie_lanes}" if part.pcie_generation else "unknown"
    scale_up = f"{part.scaleup or 'unknown'} {_shown(part.scaleup_bandwidth, 'bytes per second')}"
    lines = [
        f"{part.name}: {part.full_name}",
        f"{'memory':14}{_shown(part.memory, 'bytes')}, {_shown(part.memory_bandwidth, 'bytes per second')}",
        f"{'links':14}PCIe {pcie}; between accelerators: {scale_up} each way",
        f"{'power':14}{_shown(part.tdp, 'watts')}" + (f", {part.cooling}" if part.cooling else ""),
    ]
    rates = [f"{key} {_shown(part.peak.get(key), 'FLOP per second')}" for key in PRECISIONS if key in part.peak]
    rates += [f"no {key}" for key in part.unsupported]
    lines += _wrapped("dense peaks", ", ".join(rates) or "unknown")
    for entry in part.measured:
        lines += _wrapped("measured", f"{entry.field} {entry.value} ({entry.conditions}; {entry.source})")
    for contradiction in part.contradictions:
        used = "used" if contradiction.used else "not used"
        text = f"{contradiction.field} {contradiction.value}, {used}: {contradiction.why} ({contradiction.source})"
        lines += _wrapped("sources say", text)
    for implied in part.implied:
        lines += _wrapped("implied", f"{implied.field} {implied.low} or more: {implied.reasoning}")
    for note in part.notes:
        lines += _wrapped("note", note)
    lines += _wrapped("aliases", ", ".join(part.aliases))
    return [*lines, *_wrapped("source", part.source)]


def _host_lines(host: Host) -> list[str]:
    """Return the lines of a host."""
    names = host.accelerator_names
    parts = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    lines = [
        f"{host.name}: {host.title}",
        f"{'accelerators':14}{parts}" + (f" in each of {host.nodes} nodes" if host.nodes > 1 else ""),
    ]
    for socket in host.sockets:
        cores = f", {socket.cores} cores" if socket.cores else ""
        memory = f"{_shown(socket.memory_size, 'bytes')}, {_shown(socket.memory_bandwidth, 'bytes per second')}"
        lines += _wrapped(socket.name, f"{socket.cpu or 'CPU unknown'}{cores}; memory {memory}")
    if host.scale_up:
        rate = _shown(host.scale_up.bandwidth, "bytes per second")
        lines.append(
            f"{host.scale_up.kind:14}{host.scale_up.topology}, {rate} each way, {host.scale_up.domain} in a domain"
        )
    for switch in host.switches:
        uplink = f"Gen{switch.uplink.generation} x{switch.uplink.lanes}" if switch.uplink else "uplink unknown"
        lines.append(f"{switch.name:14}{switch.model or 'switch'}, {uplink} to {switch.parent}")
    if host.fabric:
        rate = _shown(host.fabric.bandwidth, "bytes per second")
        lines.append(f"{'network':14}{host.fabric.kind}, {rate} each way for one rank")
    lines += _group_lines(host)
    for condition in conditions_of(host):
        worst = max(measured_cost(condition), key=lambda cost: max(cost.ratio, 1 / cost.ratio))
        measured = f"{worst.what}: {worst.with_condition:g} against {worst.without:g} {worst.unit}"
        lines += _wrapped(
            "condition", f"{condition.name}: {condition.effect}. Measured: {measured}. {condition.remedy}"
        )
    for label, texts in (
        ("note", (host.note or "",)),
        ("assumed", host.assumptions),
        ("unknown", (", ".join(host.unknown),)),
    ):
        for text in texts:
            lines += _wrapped(label, text)
    for contradiction in host.contradictions:
        says = "; ".join(contradiction.says)
        lines += _wrapped(
            "sources say", f"{contradiction.field}: {says}. Used: {contradiction.used}, {contradiction.why}"
        )
    lines += _wrapped("aliases", ", ".join(host.aliases))
    return [*lines, *_wrapped("source", host.source)]


def _group_lines(host: Host) -> list[str]:
    """Return the collective rate of accelerator groups by size."""
    lines: list[str] = []
    for size in (2, 4, 8, 16, 72):
        if size > host.accelerator_count:
            break
        try:
            link = link_for_group(host, size)
        except UnknownFact as reason:
            return [*lines, *_wrapped(f"group of {size}", str(reason))]
        rate = _shown(link.bandwidth * link.ring.efficiency, "bytes per second")
        doubt = "not tested on other machines" if link.error is None else f"{link.error:.0%} off on machines left out"
        lines.append(f"{f'group of {size}':14}{link.kind}: ring {rate}, {link.basis}, {doubt}")
    return lines


def check_notes(record: Accelerator | Host) -> list[str]:
    """Return notes on a valid entry: unknown values and assumptions.

    Examples
    --------
    >>> check_notes(load_accelerator("nizwo-a1"))[0]
    'unknown: memory'
    """
    if isinstance(record, Accelerator):
        wanted = ("memory", "memory_bandwidth", "tdp", "pcie_generation")
        return [f"unknown: {field}" for field in wanted if getattr(record, field) is None]
    notes = [f"unknown: {item}" for item in record.unknown] + [f"assumed: {item}" for item in record.assumptions]
    for name in dict.fromkeys(record.accelerator_names):
        try:
            load_accelerator(name)
        except UnknownName as error:
            notes.append(str(error))
    shadowed = host_aliases().get(plain_name(record.name))
    return [*notes, f"the name is an alias of {shadowed}"] if shadowed else notes


# Published prices of one item, side by side, with the contents of each.

#: ratio from which prices contradict each other [-]
_FAR_APART = 1.5
#: bounds of a published range
_ENDS = {"": "", "low": "lower end of a range", "high": "upper end of a range"}


def prices_of(name: str) -> tuple[Price, ...]:
    """Return published prices by kind, item and term, the newest first.

    `name` is an accelerator, a machine, a model, a place, or an alias. Prices of an accelerator include its machines;
    those of a machine include its accelerator.

    Examples
    --------
    >>> found = prices_of("h100-sxm")
    >>> {one.kind for one in found} == {"buy", "rent"}, {one.part for one in found} >= {"h100-sxm", "hgx-h100-8"}
    (True, True)
    """
    every = load_prices()
    plain = plain_name(name)
    plain = accelerator_aliases().get(plain, host_aliases().get(plain, plain))
    parts = {one.part for one in every}
    wanted = {plain}
    if plain in host_names():
        wanted |= set(load_host(plain).accelerator_names)
    wanted |= {host for host in parts & set(host_names()) if plain in load_host(host).accelerator_names}
    if not wanted & parts:
        raise SpecError("has no published price", field="NAME", value=name, choices=sorted(parts))
    found = [one for one in every if one.part in wanted]
    newest = sorted(found, key=lambda one: one.date if one.date != "undated" else "", reverse=True)
    order = [(KINDS.index(one.kind), one.part != plain, one.part, one.term or one.contains) for one in newest]
    return tuple(newest[place] for place in sorted(range(len(newest)), key=order.__getitem__))


def price_rows(prices: Iterable[Price], *, today: date) -> list[dict[str, Any]]:
    """Return one row for each price, with its age on a day and its source.

    Examples
    --------
    >>> row = price_rows(prices_of("electricity"), today=date(2026, 11, 22))[0]
    >>> row["per"], row["age"] in ("", "stale", "later")
    ('kWh', True)
    """
    return [
        {
            "kind": one.kind,
            "part": one.part,
            "term": one.term,
            "price": one.price,
            "currency": one.currency,
            "per": one.per,
            "accelerators": one.accelerators,
            "contains": one.contains,
            "bound": one.bound,
            "date": one.date,
            "age": "later" if one.later(today) else "stale" if one.stale(today) else "",
            "seller": one.seller,
            "region": one.region,
            "source": one.source,
        }
        for one in prices
    ]


def price_list_text(prices: Sequence[Price], *, today: date, wide: int = 100) -> str:
    """Return a price list as text: prices used, then all published ones.

    Examples
    --------
    >>> print(price_list_text(prices_of("electricity")[:1], today=date(2026, 11, 22)))
    power electricity, industrial: price used 0.0929 USD per kWh, 2026-01, STALE
      0.0929 USD per kWh, 2026-01, stale, region US
        https://ycharts.com/indicators/us_average_retail_price_of_electricity_industrial_sector (EIA)
    """
    lines = []
    items = groupby(prices, key=lambda price: (price.kind, price.part, price.term or price.contains))
    for (kind, part, term), group in items:
        entries = list(group)
        known = [price for price in entries if not price.later(today)]
        head = f"{kind} {part}, {term}" if term else f"{kind} {part}"
        if not known:
            lines.append(f"{head}: no price published by that day")
        else:
            used = quotation(known, kind, part, today=today)
            apart = f"; sources differ by a factor {used.high / used.low:.1f}" * (used.high > _FAR_APART * used.low)
            lines += wrap(f"{head}: price used {used.words}{apart}", wide, subsequent_indent="  ")
        for price in entries:
            lines += _lines(price, today, wide)
    own = {price.part for price in prices}
    near = {price.part for price in load_prices()} - own
    near = {other for other in near for name in own if other.startswith(f"{name}-") or name.startswith(f"{other}-")}
    lines += [f"see also the prices of {', '.join(sorted(near))}"] if near else []
    return "\n".join(lines)


def _lines(price: Price, today: date, wide: int) -> list[str]:
    """Return the lines of a price and of its source."""
    count = f" for {price.accelerators}" if (price.accelerators or 1) > 1 else ""
    fields = [f"{price.price:,g} {price.currency} per {price.per}{count}", price.date]
    fields.append("later" if price.later(today) else "stale" if price.stale(today) else "")
    fields += [_ENDS[price.bound], price.seller, f"region {price.region}", price.contains]
    text, indent = ", ".join(field for field in fields if field), "    "
    lines = wrap(text, wide, initial_indent="  ", subsequent_indent=indent)
    return [*lines, *wrap(price.source, wide, initial_indent=indent, subsequent_indent=indent, break_long_words=False)]
