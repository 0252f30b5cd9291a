"""Records of `hardware_db/prices/`: prices, lead times, terms of a cost."""

from __future__ import annotations

import datetime as dt
import re
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from glmplan.catalog.schema.validation import Frozen

__all__ = ["KINDS", "PER", "STALE_DAYS", "Delivery", "Price", "Term", "first_day"]

#: largest price in any currency; sums of it stay numbers
_DEAREST = 1e12
#: days after which a price is stale
STALE_DAYS = 180
#: kinds of prices, which are also names of files
KINDS: tuple[str, ...] = ("buy", "rent", "api", "power", "colocation")
#: kind → unit of a price
PER = {
    "buy": "piece",
    "rent": "accelerator hour",
    "api": "1M tokens",
    "power": "kWh",
    "colocation": "kW month",
}
_TERMS = {
    "buy": ("new", "refurbished", "used"),
    "rent": ("on demand", "marketplace", "spot", "1 year", "3 years", "owning"),
    "api": ("input", "output", "cached"),
}
_DATE = re.compile(r"20\d\d(-\d\d(-\d\d)?)?|undated")


def first_day(text: str) -> dt.date | None:
    """Return the first day that a date may mean; None: no date.

    A date without day thus counts as old.

    Examples
    --------
    >>> first_day("2026-05")
    datetime.date(2026, 5, 1)
    """
    if text == "undated":
        return None
    parts = [int(part) for part in text.split("-")]
    return dt.date(*(parts + [1, 1])[:3])


class Price(Frozen):
    """Published or given price, with its date and source.

    `part` is a catalogue name where `of` says accelerator, host or model, and text of the source otherwise.
    """

    kind: Literal["buy", "rent", "api", "power", "colocation"]
    part: str = Field(min_length=1)
    of: Literal["accelerator", "host", "host part", "model", "place", "other"]
    price: PositiveFloat = Field(le=_DEAREST, allow_inf_nan=False)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    per: str
    accelerators: int | None = Field(default=None, ge=0)
    contains: str = ""
    term: str = ""
    seller: str = ""
    region: str = Field(min_length=1)
    date: str
    bound: Literal["", "low", "high"] = ""
    source: str = Field(min_length=1)
    given: bool = False

    @field_validator("date")
    @classmethod
    def _is_a_date(cls, value: str) -> str:
        if not _DATE.fullmatch(value):
            raise ValueError("is not a date such as 2026, 2026-05 or 2026-05-18")
        first_day(value)
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Price:
        if self.per != PER[self.kind]:
            raise ValueError(f"a price to {self.kind} is per {PER[self.kind]}")
        known = _TERMS.get(self.kind)
        if known is not None and self.term not in known:
            raise ValueError(f"term {self.term!r} is none of {', '.join(known)}")
        if self.kind == "buy" and not self.contains:
            raise ValueError("a price to buy says what it contains")
        if self.kind in ("buy", "rent") and self.of in ("accelerator", "host") and not self.accelerators:
            raise ValueError("says how many accelerators it is for")
        return self

    @property
    def each(self) -> float:
        """Return the price of one accelerator where the price is of several."""
        return self.price / (self.accelerators or 1)

    @property
    def whole_machine(self) -> bool:
        """Return True for the price of a machine that runs as delivered."""
        return self.contains.startswith("whole machine")

    def stale(self, today: dt.date) -> bool:
        """Return True for a price older than `STALE_DAYS`."""
        first = first_day(self.date)
        return first is None or (today - first).days > STALE_DAYS

    def later(self, today: dt.date) -> bool:
        """Return True for a price after `today`; a month is its first day."""
        first = first_day(self.date)
        return first is not None and first > today


class Delivery(Frozen):
    """Published delivery time."""

    part: str = Field(min_length=1)
    low: PositiveFloat = Field(allow_inf_nan=False)
    high: PositiveFloat = Field(allow_inf_nan=False)
    unit: Literal["weeks", "months"]
    region: str = Field(min_length=1)
    date: str
    source: str = Field(min_length=1)
    note: str = ""

    @model_validator(mode="after")
    def _is_a_range(self) -> Delivery:
        if self.low > self.high:
            raise ValueError("ends before it begins")
        if not _DATE.fullmatch(self.date):
            raise ValueError("has no date such as 2026, 2026-05 or 2026-05-18")
        return self

    @property
    def weeks(self) -> tuple[float, float]:
        """Return the range in weeks; a month is a twelfth of a year."""
        each = 365 / 12 / 7 if self.unit == "months" else 1.0
        return self.low * each, self.high * each


class Term(Frozen):
    """Further term of a cost; without a value it is not counted."""

    name: str
    unit: str
    what: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    date: str = ""
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _has_a_source(self) -> Term:
        if self.value is None:
            if not self.note:
                raise ValueError("a term without a value says why in a note")
            return self
        if not self.source or not _DATE.fullmatch(self.date):
            raise ValueError("a value has a source and a date")
        low, high = self.low, self.high
        if (low is not None and low > self.value) or (high is not None and high < self.value):
            raise ValueError("low, value and high are not in order")
        return self
