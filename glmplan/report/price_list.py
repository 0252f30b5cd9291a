"""All published prices of one thing, side by side: what contradicts stands together, with what each contains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import groupby
from textwrap import wrap
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.catalogue.accelerators import accelerator_aliases
from glmplan.facts.catalogue.hosts import host_aliases, host_names, load_host
from glmplan.facts.catalogue.prices import load_prices, quotation
from glmplan.facts.folders import plain_name
from glmplan.facts.schema.price import KINDS, Price

__all__ = ["price_list_text", "price_rows", "prices_of"]

#: prices that are further apart than this are said to contradict each other [-]
_FAR_APART = 1.5
#: what an end of a published range is called
_ENDS = {"": "", "low": "lower end of a range", "high": "upper end of a range"}


def prices_of(name: str) -> tuple[Price, ...]:
    """Published prices of a part, with those of machines that hold it; of a machine, with those of its part; of a model
    or of a place.

    Parameters
    ----------
    name : str
        As a price names it, or an alias.

    Returns
    -------
    tuple of Price
        By kind, thing and term, the newest first.

    Raises
    ------
    SpecError
        If nothing of that name has a published price; names the nearest.

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
    """One row for each price.

    Parameters
    ----------
    prices : iterable of Price
        The prices.
    today : date
        The day on which they are looked at.

    Returns
    -------
    list of dict
        What it is for, the price, where and when, whether it is stale, and the source.

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
    """Prices in words, what contradicts together.

    Parameters
    ----------
    prices : sequence of Price
        As `prices_of` sorts them.
    today : date
        The day on which they are looked at.
    wide : int, optional
        Columns of the screen, [-]

    Returns
    -------
    str
        For each thing and term what a question takes, and each published price under it.

    Examples
    --------
    >>> print(price_list_text(prices_of("electricity")[:1], today=date(2026, 11, 22)))
    power electricity, industrial: a question takes 0.0929 USD per kWh, 2026-01, STALE
      0.0929 USD per kWh, 2026-01, stale, region US
        https://ycharts.com/indicators/us_average_retail_price_of_electricity_industrial_sector (EIA)
    """
    lines = []
    for (kind, part, term), group in groupby(prices, key=lambda one: (one.kind, one.part, one.term or one.contains)):
        mine = list(group)
        known = [one for one in mine if not one.later(today)]
        head = f"{kind} {part}, {term}" if term else f"{kind} {part}"
        if not known:
            lines.append(f"{head}: nothing was published by then")
        else:
            taken = quotation(known, kind, part, today=today)
            apart = f"; they differ by {taken.high / taken.low:.1f} times" * (taken.high > _FAR_APART * taken.low)
            lines += wrap(f"{head}: a question takes {taken.words}{apart}", wide, subsequent_indent="  ")
        for one in mine:
            lines += _lines(one, today, wide)
    own = {one.part for one in prices}
    near = {one.part for one in load_prices()} - own
    near = {other for other in near for one in own if other.startswith(f"{one}-") or one.startswith(f"{other}-")}
    lines += [f"priced under other names: {', '.join(sorted(near))}"] if near else []
    return "\n".join(lines)


def _lines(one: Price, today: date, wide: int) -> list[str]:
    """One price, and its source under it."""
    count = f" for {one.accelerators}" if (one.accelerators or 1) > 1 else ""
    said = [f"{one.price:,g} {one.currency} per {one.per}{count}", one.date]
    said.append("later" if one.later(today) else "stale" if one.stale(today) else "")
    said += [_ENDS[one.bound], one.seller, f"region {one.region}", one.contains]
    text = ", ".join(word for word in said if word)
    lines = wrap(text, wide, initial_indent="  ", subsequent_indent="    ")
    return [*lines, *wrap(one.source, wide, initial_indent="    ", subsequent_indent="    ", break_long_words=False)]
