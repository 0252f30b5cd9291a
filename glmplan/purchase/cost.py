"""Cost formulas: months, tokens, power and break-even.

All broadcast; a month has 730 hours; one currency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date

import numpy as np
from numpy.typing import ArrayLike

from glmplan.catalog.entries.prices import Quotation, load_terms, quotation
from glmplan.catalog.schema.price import Price
from glmplan.errors import SpecError
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, TokensArray, TokensPerSecondArray, Usd, UsdArray, Watts, WattsArray, finite_number

__all__ = [
    "HOURS",
    "Month",
    "Terms",
    "break_even_month",
    "break_even_tokens",
    "busy_share",
    "growth_months",
    "in_usd",
    "joules_per_token",
    "owned_month",
    "per_million",
    "read_terms",
    "rented_month",
    "token_prices",
    "tokens_per_megawatt",
    "written_off",
]


#: terms of at most 1
_SHARES = ("residual_share", "network_share", "power_share", "supply_efficiency", "utilisation")
_POSITIVE = ("horizon_months", "pue", "power_share", "supply_efficiency", "utilisation", "host_slots")


@dataclass(frozen=True, slots=True)
class Terms:
    """Assumptions of a cost besides prices."""

    #: depreciation period
    horizon_months: float
    #: residual value at the end of it over the price
    residual_share: Ratio
    #: cost of capital per year
    capital_rate: Ratio
    #: network between machines over the price of the hardware
    network_share: Ratio
    #: power of the site over that of the machines
    pue: Ratio
    #: power of a serving accelerator over its limit
    power_share: Ratio
    #: host power without accelerators
    rest_watts: Watts
    #: efficiency of the power supply
    supply_efficiency: Ratio
    #: software licence per accelerator and year
    licence_per_accelerator_year: Usd
    staff_per_month: Usd
    #: support contract of a year over the purchase
    support_share: Ratio
    #: accelerators that fit in a workstation host
    host_slots: float
    #: mean load of a day over the peak
    utilisation: Ratio
    #: price per kWh
    electricity: Usd
    #: price per kW and month; 0 on own premises
    colocation: Usd
    currency: str = "USD"
    #: costs that are not counted, and old prices
    notes: tuple[str, ...] = ()
    #: names of the terms that were given
    given: frozenset[str] = frozenset()

    def but(self, **changes: float | frozenset[str]) -> Terms:
        """Return the terms with some replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]


def busy_share(profile: Iterable[float]) -> Ratio:
    """Return the mean load of a day over its peak.

    `profile`: Relative load of equal parts of a day.

    Examples
    --------
    >>> busy_share([1.0, 3.0])
    0.6666666666666666
    """
    day = list(profile)
    return sum(day) / len(day) / max(day)


def read_terms(
    said: Mapping[str, object] | Iterable[str] = (),
    *,
    prices: Iterable[Price],
    today: date,
    region: str | None = None,
    profile: tuple[float, ...] | None = None,
) -> Terms:
    """Return the given terms, completed with published defaults.

    - `region`: Region of the colocation; None for own premises.
    - `profile`: Relative load of equal parts of a day; by default that of `simulate`.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> terms = read_terms(["pue=1.2"], prices=load_prices(), today=date(2026, 11, 22))
    >>> terms.pue, terms.horizon_months, round(terms.utilisation, 2)
    (1.2, 36.0, 0.53)
    """
    prices = tuple(prices)
    given = _given(said)
    power = quotation(prices, "power", "electricity", today=today)
    in_usd("electricity", power.currency)
    stale = [f"electricity: {power.words}"] if power.stale else []
    values: dict[str, float] = {"electricity": power.value, "colocation": 0.0}
    if region is not None:
        rent = _colocation(prices, region, today)
        in_usd("colocation", rent.currency)
        values["colocation"] = rent.value
        stale += [f"colocation in {region}: {rent.words}"] if rent.stale else []
    day = profile or Traffic.model_fields["profile"].default
    values["utilisation"] = busy_share(day)
    uncounted = []
    for name, term in load_terms().items():
        values[name] = term.value if term.value is not None else 0.0
        if term.value is None and name not in given:
            uncounted.append(f"{term.what}: not counted; set --term {name}=NUMBER ({term.note})")
    return Terms(**(values | given), currency=power.currency, notes=(*stale, *uncounted), given=frozenset(given))


def in_usd(what: str, currency: str) -> None:
    """Raise SpecError for a currency other than USD.

    Examples
    --------
    >>> in_usd("electricity", "USD")
    """
    if currency != "USD":
        raise SpecError(
            f"is in {currency}: all amounts are in USD, set --rate {currency}=NUMBER", field="--price", value=what
        )


def _colocation(prices: tuple[Price, ...], region: str, today: date) -> Quotation:
    offers = [price for price in prices if price.kind == "colocation"]
    regions = sorted({price.region for price in offers if not price.given})
    if region not in regions and not any(price.given for price in offers):
        raise SpecError("is not a region with a colocation price", field="--region", value=region, choices=regions)
    return quotation(prices, "colocation", "colocation", today=today, region=region)


def _given(said: Mapping[str, object] | Iterable[str]) -> dict[str, float]:
    pairs: list[tuple[str, object]] = []
    if isinstance(said, Mapping):
        pairs = list(said.items())
    else:
        for word in said:
            name, equals, text = word.partition("=")
            if not equals:
                raise SpecError("is not a term such as pue=1.2", field="--term", value=word)
            pairs.append((name.strip(), text.strip()))
    known = {field.name for field in fields(Terms)} - {"currency", "notes", "given"}
    terms = {}
    for name, value in pairs:
        if name not in known:
            raise SpecError("is not a term of a cost", field="--term", value=name, choices=known)
        number = finite_number(value, f"--term {name}")
        if number < 0 or (number == 0 and name in _POSITIVE):
            raise SpecError("must be more than 0" if name in _POSITIVE else "must not be negative",
                            field=f"--term {name}", value=value)  # fmt: skip
        if name in _SHARES and number > 1:
            raise SpecError("is a share, and so at most 1", field=f"--term {name}", value=value)
        if name == "pue" and number < 1:
            raise SpecError("is at least 1", field="--term pue", value=value)
        terms[name] = number
    return terms


#: hours of a month, a twelfth of 8,760 [h]
HOURS = 730.0
_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Month:
    """Cost of a month, line by line."""

    depreciation: UsdArray = 0.0
    capital: UsdArray = 0.0
    rent: UsdArray = 0.0
    power: UsdArray = 0.0
    colocation: UsdArray = 0.0
    support: UsdArray = 0.0
    licence: UsdArray = 0.0
    staff: UsdArray = 0.0

    @property
    def total(self) -> UsdArray:
        """Return the sum of the lines."""
        result: np.ndarray = np.sum(
            np.broadcast_arrays(*(np.asarray(value, dtype=float) for _, value in self.lines)), axis=0
        )
        return result

    @property
    def running(self) -> UsdArray:
        """Return the operating cost: all lines but depreciation and capital."""
        result: np.ndarray = self.total - np.asarray(self.depreciation) - np.asarray(self.capital)
        return result

    @property
    def lines(self) -> tuple[tuple[str, UsdArray], ...]:
        """Return name and amount of each line."""
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


def written_off(
    purchase: UsdArray, residual_share: ArrayLike, months: ArrayLike, yearly_rate: ArrayLike = 0.0
) -> tuple[UsdArray, UsdArray]:
    """Return depreciation and cost of capital of a purchase for a month.

    - `residual_share`: Residual value over the purchase.

    Notes
    -----
    The sum is the annuity of the purchase less the present value of the residual: the capital recovery factor
    ``r (1 + r)^n / ((1 + r)^n - 1)`` with the monthly rate ``r = (1 + yearly)^(1/12) - 1``. Depreciation is linear.
    Not modelled: taxes, leasing, inflation.

    Examples
    --------
    >>> [round(float(usd), 2) for usd in written_off(36000, 0.3, 36)]
    [700.0, 0.0]
    """
    price, share, count = (np.asarray(value, dtype=float) for value in (purchase, residual_share, months))
    rate = np.expm1(np.log1p(np.asarray(yearly_rate, dtype=float)) / 12.0)
    linear = price * (1.0 - share) / count
    charged = rate > 1e-12  # at lower rates the quotient is 0/0 and the interest is zero
    safe = np.where(charged, rate, 1.0)
    discount = np.exp(-count * np.log1p(safe))
    annuity = np.where(charged, price * (1.0 - share * discount) * safe / -np.expm1(-count * np.log1p(safe)), linear)
    return linear, annuity - linear


def owned_month(purchase: UsdArray, watts: WattsArray, accelerators: ArrayLike, *, terms: Terms) -> Month:
    """Return the monthly cost of an owned machine.

    The power is that under load at all hours: idle power is not published for most accelerators. Colocation is paid
    per kW, and electricity separately, as in wholesale contracts.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.purchase.cost import read_terms
    >>> said = {"electricity": 0.1, "pue": 1.5}
    >>> terms = read_terms(said, prices=load_prices(), today=date(2026, 11, 22))
    >>> round(float(owned_month(36000, 1000, 4, terms=terms).total), 2)  # 700 + 1 kW x 1.5 x 730 h x 0.1
    809.5
    """
    price, draw = np.asarray(purchase, dtype=float), np.asarray(watts, dtype=float)
    depreciation, capital = written_off(price, terms.residual_share, terms.horizon_months, terms.capital_rate)
    return Month(
        depreciation=depreciation,
        capital=capital,
        power=draw / 1000.0 * terms.pue * HOURS * terms.electricity,
        colocation=draw / 1000.0 * terms.colocation,
        support=price * terms.support_share / 12.0,
        licence=np.asarray(accelerators, dtype=float) * terms.licence_per_accelerator_year / 12.0,
        staff=terms.staff_per_month,
    )


def rented_month(hourly: UsdArray, accelerators: ArrayLike, *, terms: Terms) -> Month:
    """Return the monthly cost of accelerators that are rented at all hours.

    `hourly`: Price of an accelerator hour, with host, network and power.
    """
    count = np.asarray(accelerators, dtype=float)
    return Month(
        rent=np.asarray(hourly, dtype=float) * count * HOURS,
        licence=count * terms.licence_per_accelerator_year / 12.0,
        staff=terms.staff_per_month,
    )


def per_million(monthly: UsdArray, tokens_per_second: TokensPerSecondArray, utilisation: ArrayLike = 1.0) -> UsdArray:
    """Return the cost of a million tokens.

    Examples
    --------
    >>> round(float(per_million(730 * 3.6, 1000.0)), 6)  # 3.60 USD an hour, 3.6 million tokens an hour
    1.0
    """
    tokens = np.asarray(tokens_per_second, dtype=float) * np.asarray(utilisation, dtype=float) * HOURS * _SECONDS / 1e6
    with np.errstate(divide="ignore"):
        result: np.ndarray = np.asarray(monthly, dtype=float) / tokens
        return result


def token_prices(
    monthly: UsdArray,
    input_rate: TokensPerSecondArray,
    output_rate: TokensPerSecondArray,
    prompt_share: ArrayLike,
    utilisation: ArrayLike,
) -> tuple[UsdArray, UsdArray]:
    """Return the cost of a million input tokens and of output tokens.

    The monthly cost is split by compute time; `prompt_share` is the share of prefill.

    Examples
    --------
    >>> input_usd, output_usd = token_prices(2628.0, 4000.0, 1000.0, 0.4, 1.0)
    >>> round(float(input_usd), 6), round(float(output_usd), 6)
    (0.1, 0.6)
    """
    share = np.clip(np.asarray(prompt_share, dtype=float), 0.0, 1.0)
    usd = np.asarray(monthly, dtype=float)
    inputs = per_million(usd * share, input_rate, utilisation)
    return inputs, per_million(usd * (1.0 - share), output_rate, utilisation)


def tokens_per_megawatt(tokens_per_second: TokensPerSecondArray, watts: WattsArray, pue: ArrayLike) -> np.ndarray:
    """Return the tokens per second for each megawatt of the site [token/s/MW].

    Examples
    --------
    >>> float(tokens_per_megawatt(1000.0, 4000.0, 1.25))
    200000.0
    """
    return np.asarray(tokens_per_second, dtype=float) / (np.asarray(watts, dtype=float) * pue) * 1e6


def joules_per_token(watts: WattsArray, tokens_per_second: TokensPerSecondArray) -> np.ndarray:
    """Return the energy per token [J/token].

    Examples
    --------
    >>> float(joules_per_token(4000.0, 1000.0))
    4.0
    """
    result: np.ndarray = np.asarray(watts, dtype=float) / np.asarray(tokens_per_second, dtype=float)
    return result


def break_even_tokens(monthly: UsdArray, price_per_million: UsdArray) -> TokensArray:
    """Return the monthly tokens above which a machine beats an API.

    `price_per_million`: API price of a million tokens at the same ratio of input and output.

    Examples
    --------
    >>> float(break_even_tokens(2000.0, 0.5))
    4000000000.0
    """
    result: np.ndarray = np.asarray(monthly, dtype=float) / np.asarray(price_per_million, dtype=float) * 1e6
    return result


def break_even_month(purchase: UsdArray, running: UsdArray, elsewhere: UsdArray) -> np.ndarray:
    """Return the months after which a purchase breaks even.

    Infinity: never. The residual value is not counted.

    - `running`: Operating cost of a month.
    - `elsewhere`: Rent or API cost of a month.

    Examples
    --------
    >>> float(break_even_month(36000.0, 500.0, 2500.0)), float(break_even_month(36000.0, 500.0, 400.0))
    (18.0, inf)
    """
    saved = np.asarray(elsewhere, dtype=float) - np.asarray(running, dtype=float)
    price = np.asarray(purchase, dtype=float)
    return np.where(saved > 0, price / np.where(saved > 0, saved, 1.0), np.inf)


def growth_months(users: ArrayLike, most: ArrayLike, monthly_growth: ArrayLike) -> np.ndarray:
    """Return the months until a growing load exceeds the capacity.

    Growth is relative and constant; infinity without growth.

    Examples
    --------
    >>> round(float(growth_months(20, 40, 0.05)), 1)  # ln 2 / ln 1.05
    14.2
    """
    ratio = np.asarray(most, dtype=float) / np.asarray(users, dtype=float)
    growth = np.asarray(monthly_growth, dtype=float)
    rising = growth > 0
    with np.errstate(divide="ignore"):
        months = np.log(np.maximum(ratio, 1e-300)) / np.log1p(np.where(rising, growth, 1.0))
    return np.where(ratio < 1.0, 0.0, np.where(rising, months, np.inf))
