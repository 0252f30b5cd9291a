"""What serving costs: formulas over months, tokens, watts and money, which broadcast.

A month has 730 hours. All money is of one currency.
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
from glmplan.units import Ratio, TokensArray, TokensPerSecondArray, UsdArray, WattsArray, finite_number

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


# What a cost needs besides prices: published defaults, and what the buyer says in their place.

#: terms that are shares, and so at most 1
_SHARES = ("residual_share", "network_share", "power_share", "supply_efficiency", "utilisation")
_POSITIVE = ("horizon_months", "pue", "power_share", "supply_efficiency", "utilisation", "host_slots")


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a cost.

    Attributes
    ----------
    horizon_months : float
        Time over which the purchase is written off, [-]
    residual_share : float
        What the machine is worth at the end over its price, [-]
    capital_rate : float
        Cost of capital for a year, [-]
    network_share : float
        Network between machines over the hardware, [-]
    pue : float
        Power of the site over that of the machines, [-]
    power_share : float
        Draw of an accelerator that serves over its limit, [-]
    rest_watts : float
        Draw of a machine beside its accelerators, [W]
    supply_efficiency : float
        Power of the parts over power at the wall, [-]
    licence_per_accelerator_year : float
        Software, [USD]
    staff_per_month : float
        People, [USD]
    support_share : float
        Support contract of a year over the purchase, [-]
    host_slots : float
        Cards that a workstation host takes, [-]
    utilisation : float
        Mean load of a day over the load it is sized for, [-]
    electricity : float
        [USD/kWh]
    colocation : float
        [USD per kW and month]; 0 on the buyer's own premises
    currency : str
        Of all money.
    notes : tuple of str
        What is not counted, and which prices are stale.
    """

    horizon_months: float
    residual_share: float
    capital_rate: float
    network_share: float
    pue: float
    power_share: float
    rest_watts: float
    supply_efficiency: float
    licence_per_accelerator_year: float
    staff_per_month: float
    support_share: float
    host_slots: float
    utilisation: float
    electricity: float
    colocation: float
    currency: str = "USD"
    notes: tuple[str, ...] = ()

    def but(self, **changes: float) -> Terms:
        """The same terms with something else."""
        return replace(self, **changes)  # type: ignore[arg-type]


def busy_share(profile: Iterable[float]) -> Ratio:
    """Mean load of a day over its peak: what a machine that is sized for the peak is used.

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
    """Complete what a buyer says with the published defaults.

    - `region`: Place of the colocation; without one the machines stand on the buyer's own premises.
    - `profile`: Relative load of equal parts of a day; that of `simulate` by default.

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
    left = []
    for name, term in load_terms().items():
        values[name] = term.value if term.value is not None else 0.0
        if term.value is None and name not in given:
            left.append(f"{term.what} is not counted: give it with --term {name}=NUMBER ({term.note})")
    return Terms(**(values | given), currency=power.currency, notes=(*stale, *left))


def in_usd(what: str, currency: str) -> None:
    """Refuse a price of another currency than that of all figures and of all published prices.

    Examples
    --------
    >>> in_usd("electricity", "USD")
    """
    if currency != "USD":
        raise SpecError(f"is in {currency}: all figures are in USD, convert it", field="--price", value=what)


def _colocation(prices: tuple[Price, ...], region: str, today: date) -> Quotation:
    places = sorted({one.region for one in prices if one.kind == "colocation" and not one.given})
    if region not in places and not any(one.kind == "colocation" and one.given for one in prices):
        raise SpecError("is no place whose colocation is priced", field="--region", value=region, choices=places)
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
    known = {one.name for one in fields(Terms)} - {"currency", "notes"}
    found = {}
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
        found[name] = number
    return found


#: hours of a month: a year of 8,760 hours in twelve parts [h]
HOURS = 730.0
_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Month:
    """What a month costs, line by line.

    Attributes
    ----------
    depreciation, capital, rent, power, colocation, support, licence, staff : float or (n,) array
        Lines, [USD]
    """

    depreciation: ArrayLike = 0.0
    capital: ArrayLike = 0.0
    rent: ArrayLike = 0.0
    power: ArrayLike = 0.0
    colocation: ArrayLike = 0.0
    support: ArrayLike = 0.0
    licence: ArrayLike = 0.0
    staff: ArrayLike = 0.0

    @property
    def total(self) -> np.ndarray:
        """Sum of the lines, [USD]"""
        result: np.ndarray = np.sum(
            np.broadcast_arrays(*(np.asarray(value, dtype=float) for _, value in self.lines)), axis=0
        )
        return result

    @property
    def running(self) -> np.ndarray:
        """What is paid each month whatever the purchase cost, [USD]"""
        result: np.ndarray = self.total - np.asarray(self.depreciation) - np.asarray(self.capital)
        return result

    @property
    def lines(self) -> tuple[tuple[str, ArrayLike], ...]:
        """Name and amount of each line, [USD]"""
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


def written_off(
    purchase: UsdArray, residual_share: ArrayLike, months: ArrayLike, yearly_rate: ArrayLike = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """What a purchase costs each month until it is sold: loss of value, and interest on what is bound.

    - `residual_share`: Share of it that the machine is worth at the end.
    - Returns: Depreciation, and cost of capital, each for a month, [USD].

    Notes
    -----
    Both together are the annuity of the purchase less the present value of the residual: the capital recovery factor of
    engineering economics, ``r (1 + r)^n / ((1 + r)^n - 1)`` with the monthly rate ``r = (1 + yearly)^(1/12) - 1``.
    Depreciation is the straight line. Not modelled: taxes, leasing, inflation.

    Examples
    --------
    >>> [round(float(one), 2) for one in written_off(36000, 0.3, 36)]
    [700.0, 0.0]
    """
    price, share, count = (np.asarray(one, dtype=float) for one in (purchase, residual_share, months))
    rate = np.expm1(np.log1p(np.asarray(yearly_rate, dtype=float)) / 12.0)
    line = price * (1.0 - share) / count
    charged = rate > 1e-12  # below, the quotient is of numbers that vanish, and the interest is nothing
    safe = np.where(charged, rate, 1.0)
    shrunk = np.exp(-count * np.log1p(safe))
    annuity = np.where(charged, price * (1.0 - share * shrunk) * safe / -np.expm1(-count * np.log1p(safe)), line)
    return line, annuity - line


def owned_month(purchase: UsdArray, watts: WattsArray, accelerators: ArrayLike, *, terms: Terms) -> Month:
    """What a machine costs in a month that belongs to whoever uses it.

    Notes
    -----
    The machine draws what it draws while it serves at all hours: what it draws when nobody asks is not published for
    most parts. Colocation is paid for that draw, and electricity beside it, as wholesale contracts do.

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
    """What rented accelerators cost in a month in which they are never given back.

    `hourly`: Price of an accelerator hour, with host, network and power.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.purchase.cost import read_terms
    >>> terms = read_terms(prices=load_prices(), today=date(2026, 11, 22))
    >>> float(rented_month(2.0, 8, terms=terms).total)
    11680.0
    """
    count = np.asarray(accelerators, dtype=float)
    return Month(
        rent=np.asarray(hourly, dtype=float) * count * HOURS,
        licence=count * terms.licence_per_accelerator_year / 12.0,
        staff=terms.staff_per_month,
    )


def per_million(monthly: UsdArray, tokens_per_second: TokensPerSecondArray, utilisation: ArrayLike = 1.0) -> UsdArray:
    """Cost of a million tokens.

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
) -> tuple[np.ndarray, np.ndarray]:
    """Cost of a million input tokens and of a million output tokens.

    - `prompt_share`: Share of the machine's time that prompts take.
    - Returns: Of input and of output, [USD].

    Notes
    -----
    The month is dealt out by the time that each kind of token takes, so that both together make up the month.

    Examples
    --------
    >>> one, other = token_prices(2628.0, 4000.0, 1000.0, 0.4, 1.0)
    >>> round(float(one), 6), round(float(other), 6)
    (0.1, 0.6)
    """
    share = np.clip(np.asarray(prompt_share, dtype=float), 0.0, 1.0)
    money = np.asarray(monthly, dtype=float)
    return per_million(money * share, input_rate, utilisation), per_million(
        money * (1.0 - share), output_rate, utilisation
    )


def tokens_per_megawatt(tokens_per_second: TokensPerSecondArray, watts: WattsArray, pue: ArrayLike) -> np.ndarray:
    """Tokens per second for each megawatt of the site.

    Returns: [token/s/MW].

    Examples
    --------
    >>> float(tokens_per_megawatt(1000.0, 4000.0, 1.25))
    200000.0
    """
    return np.asarray(tokens_per_second, dtype=float) / (np.asarray(watts, dtype=float) * pue) * 1e6


def joules_per_token(watts: WattsArray, tokens_per_second: TokensPerSecondArray) -> np.ndarray:
    """Energy for each token.

    - `watts`: Draw: of the accelerators, or at the wall.
    - Returns: [J/token].

    Examples
    --------
    >>> float(joules_per_token(4000.0, 1000.0))
    4.0
    """
    result: np.ndarray = np.asarray(watts, dtype=float) / np.asarray(tokens_per_second, dtype=float)
    return result


def break_even_tokens(monthly: UsdArray, price_per_million: UsdArray) -> TokensArray:
    """Tokens of a month from which paying for a machine is cheaper than paying for each token.

    `price_per_million`: Price of a million tokens elsewhere, in the mix of input and output that is used.

    Examples
    --------
    >>> float(break_even_tokens(2000.0, 0.5))
    4000000000.0
    """
    result: np.ndarray = np.asarray(monthly, dtype=float) / np.asarray(price_per_million, dtype=float) * 1e6
    return result


def break_even_month(purchase: UsdArray, running: UsdArray, elsewhere: UsdArray) -> np.ndarray:
    """Months after which a purchase has paid for itself.

    - `running`: What is paid each month all the same.
    - `elsewhere`: What rent or an API would cost each month.
    - Returns: Months, infinite where it never does; what the machine is still worth is left out.

    Examples
    --------
    >>> float(break_even_month(36000.0, 500.0, 2500.0)), float(break_even_month(36000.0, 500.0, 400.0))
    (18.0, inf)
    """
    saved = np.asarray(elsewhere, dtype=float) - np.asarray(running, dtype=float)
    price = np.asarray(purchase, dtype=float)
    return np.where(saved > 0, price / np.where(saved > 0, saved, 1.0), np.inf)


def growth_months(users: ArrayLike, most: ArrayLike, monthly_growth: ArrayLike) -> np.ndarray:
    """Months until a load that grows by the same share each month is more than a machine carries.

    Returns: Months, 0 where it is too much today, infinite without growth.

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
