"""The answer of `size`: machines that carry a load, paying for each token, and what both rest on."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.plan.ask import Deployed
from glmplan.prediction.predict import Prediction
from glmplan.serving.safe_load import Kept
from glmplan.sizing.cost import HOURS
from glmplan.sizing.money import Money, Way, watts_of
from glmplan.sizing.offers import Offer
from glmplan.sizing.size_question import SizeQuestion

__all__ = ["Option", "Paid", "Sized", "month_tokens", "token_rate", "watts_at"]


@dataclass(frozen=True)
class Option:
    """Machines that carry the load, or that are the next cheaper ones and do not.

    Attributes
    ----------
    planned : Deployed
        One of the machines, with its layout.
    machines : int
        How many of it, each with a share of the load, [-]
    way : Way
        Bought or rented, and the month of all of them [USD].
    watts : float or None
        Draw of all of them at the wall, [W]
    carried : float
        Load that all of them carry with the probability that was asked for: users [-] or rate [1/s]
    sure : Kept
        Probability at the load that was asked for, and what breaks first.
    breaks_first : str
        What fails at more than `carried`; empty if nothing was found.
    prediction : Prediction
        Of one machine at its share of the load.
    beyond : bool
        Whether more than what was looked at may be carried.
    """

    planned: Deployed
    machines: int
    way: Way
    watts: float | None
    carried: float
    sure: Kept
    breaks_first: str
    prediction: Prediction
    beyond: bool = False

    @property
    def accelerators(self) -> int:
        """All accelerators, [-]"""
        return self.machines * self.planned.asked.machine.count

    @property
    def name(self) -> str:
        """Machines in words."""
        return f"{self.machines} × {self.planned.asked.machine.text}"


@dataclass(frozen=True)
class Paid:
    """Paying for each token instead.

    Attributes
    ----------
    offer : Offer
        The cheapest offer.
    inputs, outputs : float
        Tokens of a month, [token]
    usd : float
        The bill of a month, [USD]
    """

    offer: Offer
    inputs: float
    outputs: float
    usd: float


@dataclass(frozen=True)
class Sized:
    """The answer.

    Attributes
    ----------
    asked : SizeQuestion
        The question.
    money : Money
        Prices and terms.
    options : tuple of Option
        What keeps the promise, the cheapest first.
    unpriced : tuple of Option
        What keeps it and lacks a price, the fewest accelerators first; only machines that were named.
    cheaper : Option or None
        The next cheaper machines that do not keep it.
    per_token : Paid or None
        Paying for each token; None when nobody is known to sell the model.
    per_token_missing : str
        Why not.
    left_out : dict of str to int
        Why machines were left out → how many.
    looked_at : int
        Machines and formats that were planned, [-]
    no_price : tuple of str
        Machines of the catalogue that nobody is known to sell or rent.
    """

    asked: SizeQuestion
    money: Money
    options: tuple[Option, ...]
    unpriced: tuple[Option, ...] = ()
    cheaper: Option | None = None
    per_token: Paid | None = None
    per_token_missing: str = ""
    left_out: dict[str, int] | None = None
    looked_at: int = 0
    no_price: tuple[str, ...] = ()


def month_tokens(option: Option, found: Sized) -> tuple[float, float]:
    """Tokens of a month at the load that is promised, times the share of the day that it is there.

    Parameters
    ----------
    option : Option
        The option.
    found : Sized
        The answer: its terms.

    Returns
    -------
    tuple of (float, float)
        Prompt tokens and answer tokens, [token]
    """
    outputs = token_rate(option) * found.money.terms.utilisation * HOURS * 3600
    traffic = found.asked.traffic
    return outputs * traffic.input / traffic.output, outputs


def token_rate(option: Option) -> float:
    """Answer tokens of all machines in a second.

    Parameters
    ----------
    option : Option
        The option.

    Returns
    -------
    float
        [token/s]
    """
    return option.machines * option.prediction.figures["output_rate"].value


def watts_at(option: Option, money: Money) -> tuple[float | None, float | None]:
    """Draw of all machines of an option.

    Parameters
    ----------
    option : Option
        The option.
    money : Money
        Terms.

    Returns
    -------
    tuple of (float or None, float or None)
        At the wall, and of the accelerators alone, [W]
    """
    wall, cards = watts_of(option.planned.asked.machine, money, option.planned.asked.power_limit)
    return tuple(None if one is None else one * option.machines for one in (wall, cards))  # type: ignore[return-value]
