"""What serving costs: formulas over months, tokens, watts and money, which broadcast.

A month has 730 hours. All money is of one currency.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from glmplan.sizing.terms import Terms

__all__ = [
    "HOURS",
    "Month",
    "break_even_month",
    "break_even_tokens",
    "growth_months",
    "joules_per_token",
    "owned_month",
    "per_million",
    "rented_month",
    "token_prices",
    "tokens_per_megawatt",
    "written_off",
]

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
        return np.sum(np.broadcast_arrays(*(np.asarray(value, dtype=float) for _, value in self.lines)), axis=0)

    @property
    def running(self) -> np.ndarray:
        """What is paid each month whatever the purchase cost, [USD]"""
        return self.total - np.asarray(self.depreciation) - np.asarray(self.capital)

    @property
    def lines(self) -> tuple[tuple[str, ArrayLike], ...]:
        """Name and amount of each line, [USD]"""
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


def written_off(
    purchase: ArrayLike, residual_share: ArrayLike, months: ArrayLike, yearly_rate: ArrayLike = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """What a purchase costs each month until it is sold: loss of value, and interest on what is bound.

    Parameters
    ----------
    purchase : array_like
        Price, [USD]
    residual_share : array_like
        Share of it that the machine is worth at the end, [-]
    months : array_like
        Until then, [-]
    yearly_rate : array_like, optional
        Cost of capital for a year, [-]

    Returns
    -------
    tuple of array
        Depreciation, and cost of capital, each for a month, [USD]

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


def owned_month(purchase: ArrayLike, watts: ArrayLike, accelerators: ArrayLike, *, terms: Terms) -> Month:
    """What a machine costs in a month that belongs to whoever uses it.

    Parameters
    ----------
    purchase : array_like
        Everything that is bought, [USD]
    watts : array_like
        Draw at the wall while it serves, [W]
    accelerators : array_like
        How many, for licences, [-]
    terms : Terms
        Rates and shares.

    Returns
    -------
    Month
        Its lines.

    Notes
    -----
    The machine draws what it draws while it serves at all hours: what it draws when nobody asks is not published for
    most parts. Colocation is paid for that draw, and electricity beside it, as wholesale contracts do.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> from glmplan.sizing.terms import read_terms
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


def rented_month(hourly: ArrayLike, accelerators: ArrayLike, *, terms: Terms) -> Month:
    """What rented accelerators cost in a month in which they are never given back.

    Parameters
    ----------
    hourly : array_like
        Price of an accelerator hour, with host, network and power, [USD]
    accelerators : array_like
        How many, [-]
    terms : Terms
        Licence and staff.

    Returns
    -------
    Month
        Its lines.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> from glmplan.sizing.terms import read_terms
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


def per_million(monthly: ArrayLike, tokens_per_second: ArrayLike, utilisation: ArrayLike = 1.0) -> np.ndarray:
    """Cost of a million tokens.

    Parameters
    ----------
    monthly : array_like
        Cost of a month, [USD]
    tokens_per_second : array_like
        Rate at the load that is promised, [token/s]
    utilisation : array_like, optional
        Mean load over that load, [-]

    Returns
    -------
    ndarray
        [USD]; infinite where no token comes

    Examples
    --------
    >>> round(float(per_million(730 * 3.6, 1000.0)), 6)  # 3.60 USD an hour, 3.6 million tokens an hour
    1.0
    """
    tokens = np.asarray(tokens_per_second, dtype=float) * np.asarray(utilisation, dtype=float) * HOURS * _SECONDS / 1e6
    with np.errstate(divide="ignore"):
        return np.asarray(monthly, dtype=float) / tokens


def token_prices(
    monthly: ArrayLike, input_rate: ArrayLike, output_rate: ArrayLike, prompt_share: ArrayLike, utilisation: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Cost of a million input tokens and of a million output tokens.

    Parameters
    ----------
    monthly : array_like
        Cost of a month, [USD]
    input_rate, output_rate : array_like
        Rates at the load that is promised, [token/s]
    prompt_share : array_like
        Share of the machine's time that prompts take, [-]
    utilisation : array_like
        Mean load over that load, [-]

    Returns
    -------
    tuple of ndarray
        Of input and of output, [USD]

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


def tokens_per_megawatt(tokens_per_second: ArrayLike, watts: ArrayLike, pue: ArrayLike) -> np.ndarray:
    """Tokens per second for each megawatt of the site.

    Parameters
    ----------
    tokens_per_second : array_like
        [token/s]
    watts : array_like
        Draw at the wall, [W]
    pue : array_like
        Power of the site over it, [-]

    Returns
    -------
    ndarray
        [token/s/MW]

    Examples
    --------
    >>> float(tokens_per_megawatt(1000.0, 4000.0, 1.25))
    200000.0
    """
    return np.asarray(tokens_per_second, dtype=float) / (np.asarray(watts, dtype=float) * pue) * 1e6


def joules_per_token(watts: ArrayLike, tokens_per_second: ArrayLike) -> np.ndarray:
    """Energy for each token.

    Parameters
    ----------
    watts : array_like
        Draw: of the accelerators, or at the wall, [W]
    tokens_per_second : array_like
        [token/s]

    Returns
    -------
    ndarray
        [J/token]

    Examples
    --------
    >>> float(joules_per_token(4000.0, 1000.0))
    4.0
    """
    return np.asarray(watts, dtype=float) / np.asarray(tokens_per_second, dtype=float)


def break_even_tokens(monthly: ArrayLike, price_per_million: ArrayLike) -> np.ndarray:
    """Tokens of a month from which paying for a machine is cheaper than paying for each token.

    Parameters
    ----------
    monthly : array_like
        Cost of the machine for a month, [USD]
    price_per_million : array_like
        Price of a million tokens elsewhere, in the mix of input and output that is used, [USD]

    Returns
    -------
    ndarray
        [token]

    Examples
    --------
    >>> float(break_even_tokens(2000.0, 0.5))
    4000000000.0
    """
    return np.asarray(monthly, dtype=float) / np.asarray(price_per_million, dtype=float) * 1e6


def break_even_month(purchase: ArrayLike, running: ArrayLike, elsewhere: ArrayLike) -> np.ndarray:
    """Months after which a purchase has paid for itself.

    Parameters
    ----------
    purchase : array_like
        What is paid at the start, [USD]
    running : array_like
        What is paid each month all the same, [USD]
    elsewhere : array_like
        What rent or an API would cost each month, [USD]

    Returns
    -------
    ndarray
        Months, infinite where it never does; what the machine is still worth is left out, [-]

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

    Parameters
    ----------
    users : array_like
        Load today, [-]
    most : array_like
        Load that is carried, [-]
    monthly_growth : array_like
        Growth of a month, [-]

    Returns
    -------
    ndarray
        Months, 0 where it is too much today, infinite without growth, [-]

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
