"""Return quotations from `hardware_db/prices/` and a buyer's own prices.

Sources contradict each other. A quotation is the median of the entries that are not stale, with the lowest and the
highest; it is marked stale when there are only stale ones, and never mixes currencies.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names
from glmplan.catalog.entries.hosts import host_aliases, host_names, load_machine
from glmplan.catalog.entries.models import model_names
from glmplan.catalog.files import data_folder, plain_name, read_table, read_toml
from glmplan.catalog.schema.price import KINDS, PER, Delivery, Price, Term, first_day
from glmplan.catalog.schema.validation import validated
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import amount_number

__all__ = [
    "GIVEN",
    "Quotation",
    "deliveries_of",
    "given_prices",
    "load_deliveries",
    "load_prices",
    "load_terms",
    "prices_with",
    "quotation",
]


#: source of a buyer's own price
GIVEN = "given with the question"
#: words of an override → kind and term
_WORDS = {
    "buy": ("buy", "new"),
    "rent": ("rent", "on demand"),
    "input": ("api", "input"),
    "output": ("api", "output"),
    "cached": ("api", "cached"),
}
_PLACES = {"electricity": "power", "colocation": "colocation"}


@dataclass(frozen=True, slots=True)
class Quotation:
    """Price of one thing."""

    value: float  # median of the entries, in `currency`
    low: float
    high: float
    currency: str
    stale: bool  # all entries are older than 180 days
    entries: tuple[Price, ...]  # as published

    @property
    def given(self) -> bool:
        """Return True for a buyer's own price."""
        return all(entry.given for entry in self.entries)

    @property
    def dates(self) -> tuple[str, str]:
        """Return the dates of the oldest and the newest entry."""
        result = sorted(entry.date for entry in self.entries)
        return result[0], result[-1]

    @property
    def words(self) -> str:
        """Return the quotation as text."""
        span = f" ({self.low:,g} to {self.high:,g})" if self.high > self.low else ""
        when = " to ".join(dict.fromkeys(self.dates))
        old = ", STALE" if self.stale else ""
        return f"{self.value:,g} {self.currency}{span} per {self.entries[0].per}, {when}{old}"


@lru_cache(maxsize=4)
def load_prices(folder: Path | None = None) -> tuple[Price, ...]:
    """Read all published prices; `folder` has a CSV file for each kind.

    Examples
    --------
    >>> {one.kind for one in load_prices()} == set(KINDS)
    True
    """
    where = folder or data_folder("hardware_db") / "prices"
    return tuple(price for kind in KINDS for price in _rows(where / f"{kind}.csv", kind))


@lru_cache(maxsize=1)
def load_terms() -> dict[str, Term]:
    """Read the further terms of a cost.

    Examples
    --------
    >>> load_terms()["pue"].value
    1.54
    """
    file = data_folder("hardware_db") / "prices" / "terms.toml"
    result = [validated(Term, entry, file) for entry in read_toml(file)["terms"]]
    return {item.name: item for item in result}


def _rows(path: Path, kind: str | None = None, given: bool = False) -> list[Price]:
    header, *lines = read_table(path) or [[]]
    by_unit = {per: kind for kind, per in PER.items()}
    result = []
    for number, line in enumerate(lines, start=2):
        place = f"{path}:{number}"
        if len(line) > len(header):
            raise SpecError("has more cells than columns", file=place)
        row = {name: text for name, text in zip(header, line, strict=False) if text}
        row.setdefault("kind", kind or by_unit.get(row.get("per", ""), ""))
        result.append(validated(Price, row | {"given": given}, place))
    return result


def given_prices(words: Iterable[str], today: date) -> list[Price]:
    """Read prices that a buyer gives.

    ``PART=8500`` to buy, ``PART:rent=2.10`` for an accelerator hour, ``MODEL:input=0.6`` (``output``, ``cached``) for a
    million tokens of an API, ``electricity=0.25`` for a kWh, ``colocation=180`` for a kW and month, each with a
    currency where it is not USD (``"PART=8500 EUR"``), or a CSV file with the columns of `hardware_db/prices/`. `today`
    is the date of prices without one.

    Examples
    --------
    >>> [one] = given_prices(["rtx-pro-6000-ws=8500"], date(2026, 11, 22))
    >>> one.part, one.price, one.kind, one.currency
    ('rtx-pro-6000-ws', 8500.0, 'buy', 'USD')
    """
    result = []
    for word in words:
        if "=" not in word and word.lower().endswith(".csv"):
            result += _rows(Path(word), given=True)
        else:
            result.append(_given(word, today))
    return result


def _given(word: str, today: date) -> Price:
    name, equals, amount = word.partition("=")
    part, _, kind_word = name.strip().partition(":")
    part, kind_word = plain_name(part), kind_word.strip().lower() or "buy"
    split = re.fullmatch(r"(.*?\d[\d.,_]*)\s*([A-Za-z]*)", amount.strip())
    number, currency = split.groups() if split else (amount.strip(), "")
    if not equals or not part or not number:
        raise SpecError("is not a price such as rtx-pro-6000-ws=8500", field="--price", value=word)
    if part in _PLACES:
        kind, term = _PLACES[part], ""
    elif kind_word in _WORDS:
        kind, term = _WORDS[kind_word]
    else:
        raise SpecError("is not what a price can be for", field="--price", value=kind_word, choices=_WORDS)
    price = amount_number(number, "--price", large=kind == "buy")
    if "+" in part and kind != "buy":
        raise SpecError("is a machine with several kinds, which has a purchase price only", field="--price", value=word)
    part = _full_name(part)
    of = "place" if part in _PLACES else "model" if kind == "api" else "host"
    if of == "host" and part in accelerator_names():
        of = "accelerator"
    row = {"kind": kind, "part": part, "of": of, "price": price, "currency": (currency or "USD").upper(),
           "per": PER[kind], "accelerators": 1, "contains": "as given", "term": term, "region": "the buyer's",
           "date": today.isoformat(), "source": GIVEN, "given": True}  # fmt: skip
    return validated(Price, row, "--price")


def _full_name(part: str) -> str:
    """Return the catalogue's name of a part, with its number if it has one.

    Examples
    --------
    >>> _full_name("8xh200-141gb-sxm"), _full_name("2xrtx-5090+rtx-4090")
    ('8xh200-sxm', '2xrtx-5090+1xrtx-4090')
    """
    if "+" in part:
        return load_machine(part).name
    number, plain = re.fullmatch(r"(\d+x)?(.*)", part).groups()  # type: ignore[union-attr]
    aliases = accelerator_aliases() if number else {**host_aliases(), **accelerator_aliases()}
    return (number or "") + aliases.get(plain, plain)


def prices_with(words: Sequence[str] = (), *, today: date) -> tuple[Price, ...]:
    """Return published prices, replaced by a buyer's own where given.

    Examples
    --------
    >>> mine = prices_with(["electricity=0.25"], today=date(2026, 11, 22))
    >>> quotation(mine, "power", "electricity", today=date(2026, 11, 22)).value
    0.25
    >>> [len(prices_with(today=date(2026, month, 30))) for month in (6, 11)] == [len(mine), len(mine)]
    False
    """
    given = given_prices(words, today)
    everything = load_prices()
    _check_names(given, {item.part for item in everything})
    published = [item for item in everything if not item.later(today)]
    later = [item.date for item in everything if item.later(today)]
    # a folder of prices without days holds for any day
    if later and all(first_day(item.date) is None for item in published):
        message = f"is before the first published price, of {min(later)}"
        raise SpecError(message, field="--today", value=today.isoformat())
    # one API price of a buyer is a full offer: the other prices of the model are not added
    replaced = {(item.kind, item.part) for item in given}
    return (*given, *(item for item in published if (item.kind, item.part) not in replaced))


def _check_names(given: Iterable[Price], published: set[str]) -> None:
    """Refuse a price that is never looked up.

    A typing error would leave the published price in effect.
    """
    known = {*published, *accelerator_names(), *host_names(), *host_aliases(), *model_names(), *_PLACES}
    for item in given:
        part = re.sub(r"^\d+x", "", item.part)
        if part not in known and "+" not in part and accelerator_aliases().get(part) is None:
            message = "is neither a part, a machine nor a model whose price is asked for"
            raise SpecError(message, field="--price", value=item.part, choices=sorted(known))


def quotation(
    prices: Iterable[Price],
    kind: str,
    part: str,
    *,
    today: date,
    terms: Collection[str] = (),
    region: str | None = None,
) -> Quotation:
    """Return the quotation of a part from all prices.

    `terms` that count, by default all; a buyer's own price counts under any. Prices of several accelerators are divided
    by their number; stale ones count only where there are no others.

    Examples
    --------
    >>> found = quotation(load_prices(), "buy", "rtx-pro-6000-ws", terms=("new",), today=date(2026, 6, 1))
    >>> found.low, found.high, found.stale
    (8000.0, 10000.0, False)
    """
    rows = [price for price in prices if price.kind == kind and price.part == part]
    rows = [row for row in rows if row.given or not terms or row.term in terms]
    rows = [row for row in rows if row.given or region is None or row.region == region]
    if not rows:
        said = {"rent": ":rent", "api": ":input"}.get(kind, "")
        which = f" ({', '.join(terms)})" if terms else ""
        raise UnknownFact(f"no price to {kind} {part}{which} is known: give one with --price {part}{said}=NUMBER")
    fresh = [row for row in rows if not row.stale(today)]
    used = fresh or rows
    money = {item.currency for item in used}
    if len(money) > 1:
        raise SpecError(
            f"prices are in {', '.join(sorted(money))}: give them in one currency", field="--price", value=part
        )
    each = [item.each if kind in ("buy", "rent") and item.of == "accelerator" else item.price for item in used]
    return Quotation(statistics.median(each), min(each), max(each), money.pop(), not fresh, tuple(used))


@lru_cache(maxsize=1)
def load_deliveries() -> tuple[Delivery, ...]:
    """Read all published delivery times (`hardware_db/prices/delivery.csv`).

    Examples
    --------
    >>> all(one.low <= one.high for one in load_deliveries())
    True
    """
    path = data_folder("hardware_db") / "prices" / "delivery.csv"
    header, *lines = read_table(path)
    return tuple(
        validated(Delivery, dict(zip(header, line, strict=True)), f"{path}:{number}")
        for number, line in enumerate(lines, start=2)
    )


def deliveries_of(part: str) -> tuple[Delivery, ...]:
    """Return the published delivery times of an accelerator.

    Sources may contradict each other.

    Examples
    --------
    >>> len(deliveries_of("b200-sxm")) > 1, deliveries_of("rtx-3090")
    (True, ())
    """
    return tuple(delivery for delivery in load_deliveries() if delivery.part == part)
