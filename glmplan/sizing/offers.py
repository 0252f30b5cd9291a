"""Paying for each token: offers of APIs, and the bill of a month."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.catalogue.prices import GIVEN, Price
from glmplan.sizing.terms import in_usd

__all__ = ["Offer", "cheapest_offer", "offers_of"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a seller takes for a model.

    Attributes
    ----------
    model, seller : str
        Who sells what.
    input, output, cached : float
        A million tokens, [USD]; cached ones cost as much as others where no price of theirs is published
    currency : str
        Of all three.
    date : str
        Of the oldest of the three.
    stale : bool
        Whether any is older than 180 days.
    source : str
        Where the output price was read.
    """

    model: str
    seller: str
    input: float
    output: float
    cached: float
    currency: str
    date: str
    stale: bool
    source: str

    def bill(self, inputs: float, outputs: float, cached: float = 0.0) -> float:
        """What tokens cost.

        Parameters
        ----------
        inputs, outputs : float
            All prompt tokens and all answer tokens, [token]
        cached : float, optional
            Prompt tokens that were seen before, part of `inputs`, [token]

        Returns
        -------
        float
            [USD]

        Raises
        ------
        SpecError
            If more tokens were seen before than there are.

        Examples
        --------
        >>> offer = Offer("glm-5.1", "z.ai", 1.4, 4.4, 0.26, "USD", "2026-11-21", False, "docs.z.ai")
        >>> round(offer.bill(100e6, 20e6), 2), round(offer.bill(100e6, 20e6, cached=50e6), 2)
        (228.0, 171.0)
        """
        if cached > inputs:
            raise SpecError("is more than all prompt tokens", field="cached", value=cached)
        return ((inputs - cached) * self.input + cached * self.cached + outputs * self.output) / 1e6

    def mixed(self, inputs: float, outputs: float, cached: float = 0.0) -> float:
        """Price of a million tokens in a mix.

        Parameters
        ----------
        inputs, outputs, cached : float
            As in `bill`, [token]

        Returns
        -------
        float
            [USD]
        """
        return self.bill(inputs, outputs, cached) / (inputs + outputs) * 1e6


def offers_of(model: str, prices: Iterable[Price], *, today: date) -> tuple[Offer, ...]:
    """Offers for a model; of a seller whose price several people wrote down, the newest.

    Parameters
    ----------
    model : str
        Catalogue name, or the name of the list of prices.
    prices : iterable of Price
        All prices.
    today : date
        The day of the question.

    Returns
    -------
    tuple of Offer
        Sorted by seller; without those that lack a price of input or output.

    Raises
    ------
    UnknownFact
        If nobody is known to sell it.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> found = offers_of("glm-5.1", load_prices(), today=date(2026, 11, 22))
    >>> [(one.input, one.output) for one in found if one.seller == "deepinfra"]
    [(1.05, 3.5)]
    """
    rows = [one for one in prices if one.kind == "api" and one.part == model]
    found = []
    for seller in sorted({one.seller or GIVEN for one in rows}):
        mine = [one for one in rows if (one.seller or GIVEN) == seller]
        by = {term: max((one for one in mine if one.term == term), key=lambda one: one.date, default=None)
              for term in ("input", "output", "cached")}  # fmt: skip
        first, last = by["input"], by["output"]
        if first is None or last is None:
            continue
        used = [one for one in by.values() if one is not None]
        if len({one.currency for one in used}) > 1:
            raise SpecError("is priced in several currencies", field="--price", value=f"{model} of {seller}")
        in_usd(f"{model} of {seller}", first.currency)
        cached = by["cached"] or first
        found.append(
            Offer(model, seller, first.price, last.price, cached.price, first.currency, min(one.date for one in used),
                  any(one.stale(today) for one in used), last.source)
        )  # fmt: skip
    if not found:
        raise UnknownFact(
            f"no API price of {model} is known: give it with --price {model}:input=NUMBER --price {model}:output=NUMBER"
        )
    return tuple(found)


def cheapest_offer(offers: Iterable[Offer], inputs: float, outputs: float, cached: float = 0.0) -> Offer:
    """The offer with the smallest bill.

    Parameters
    ----------
    offers : iterable of Offer
        Offers.
    inputs, outputs, cached : float
        As in `Offer.bill`, [token]

    Returns
    -------
    Offer
        The cheapest.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> offers = offers_of("glm-5.1", load_prices(), today=date(2026, 11, 22))
    >>> cheapest_offer(offers, 100e6, 20e6).seller
    'openrouter'
    """
    return min(offers, key=lambda one: (one.bill(inputs, outputs, cached), one.seller))
