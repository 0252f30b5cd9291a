"""When a machine comes, and on whom it depends: as far as somebody publishes it."""

from __future__ import annotations

from typing import Any

from glmplan.facts.catalogue.deliveries import deliveries_of
from glmplan.sizing.size_answer import Option, Sized

__all__ = ["supply_of"]

#: sellers of the price lists that stand for many
_MANY = ("market survey", "owner at large volume", "hyperscaler", "specialty", "long-tail", "marketplaces")


def supply_of(option: Option, found: Sized) -> dict[str, Any]:
    """Delivery and single sources of an option.

    Parameters
    ----------
    option : Option
        The option.
    found : Sized
        The answer that it is from.

    Returns
    -------
    dict
        ``delivery_weeks_low`` and ``_high`` over all published times of the part, None where nobody publishes one and
        of what is rented; ``delivery``, the same in words with source; ``single_source``, on whom alone the purchase
        or its price depends, in words.

    Notes
    -----
    A time is that of the accelerators: what a host needs is a question to its seller. Not modelled: how it depends on
    the number that is ordered.
    """
    part = option.planned.asked.machine.accelerator
    bought = option.way.purchase is not None
    times = deliveries_of(part.name) if bought else ()
    words = "; ".join(f"{one.low:g} to {one.high:g} {one.unit} ({one.date}, {one.source})" for one in times)
    unknown = f"nobody whom we read publishes when {part.name} comes: ask for it with the quotation" if bought else ""
    return {
        "delivery_weeks_low": min((one.weeks[0] for one in times), default=None),
        "delivery_weeks_high": max((one.weeks[1] for one in times), default=None),
        "delivery": words or unknown,
        "vendor": part.vendor,
        "single_source": _single(option, found),
    }


def _single(option: Option, found: Sized) -> list[str]:
    part = option.planned.asked.machine.accelerator
    other = next((one for one in found.options if one.planned.asked.machine.accelerator.vendor != part.vendor), None)
    second = "nothing of another maker is among the answers"
    if other is not None:
        second = f"{other.name} of {other.planned.asked.machine.accelerator.vendor} keeps the promise too"
    lines = [f"{part.name} is made by {part.vendor} alone; {second}"]
    if option.way.purchase is not None:
        for line in option.way.purchase.lines:
            if line.quotation is not None and not line.quotation.given:
                sources = {one.source for one in line.quotation.entries}
                lines += [f"one source alone for the price of {line.name}"] if len(sources) == 1 else []
        return lines
    rows = [one for one in found.money.prices if one.kind == "rent" and one.part == part.name and not one.given]
    sellers = {one.seller for one in rows if one.seller}
    if len(sellers) == 1 and not sellers & set(_MANY):
        lines.append(f"{sellers.pop()} alone is known to rent {part.name}")
    return lines
