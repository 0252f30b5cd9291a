"""What a cost needs besides prices: published defaults, and what the buyer says in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date

from glmplan.errors import SpecError
from glmplan.facts.catalogue.prices import Price, Quotation, load_terms, quotation
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import finite_number

__all__ = ["Terms", "busy_share", "in_usd", "read_terms"]

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
        """The same terms with something else.

        Parameters
        ----------
        **changes
            Fields and their values.

        Returns
        -------
        Terms
            The other terms.
        """
        return replace(self, **changes)  # type: ignore[arg-type]


def busy_share(profile: Iterable[float]) -> float:
    """Mean load of a day over its peak: what a machine that is sized for the peak is used.

    Parameters
    ----------
    profile : iterable of float
        Relative load of equal parts of a day, [-]

    Returns
    -------
    float
        [-]

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

    Parameters
    ----------
    said : mapping or iterable of str, optional
        Name → value, or ``name=value``.
    prices : iterable of Price
        All prices, for electricity and colocation.
    today : date
        The day of the question.
    region : str, optional
        Place of the colocation; without one the machines stand on the buyer's own premises.
    profile : tuple of float, optional
        Relative load of equal parts of a day, [-]; that of `simulate` by default.

    Returns
    -------
    Terms
        All terms.

    Raises
    ------
    SpecError
        If a name is no term, or a value is none.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
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

    Parameters
    ----------
    what : str
        What is priced.
    currency : str
        Its currency.

    Raises
    ------
    SpecError
        If it is not USD.

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
