"""The answer of `size`: machines that carry a load, paying for each token, and what both rest on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glmplan.plan.ask import Deployed, predict
from glmplan.prediction.predict import Prediction
from glmplan.serving.safe_load import Kept
from glmplan.serving.traffic.spec import Traffic
from glmplan.sizing.cost import HOURS
from glmplan.sizing.money import Money, Way, watts_of
from glmplan.sizing.offers import Offer
from glmplan.sizing.size_question import SizeQuestion

__all__ = [
    "MOST_USERS",
    "Flow",
    "Option",
    "Paid",
    "Sized",
    "busy_of",
    "flow_of",
    "month_tokens",
    "most_tokens",
    "share_of",
    "watts_at",
]

#: users of one machine that the engine is planned for at most when nobody says [-]
MOST_USERS = 4096


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
        What fails at more than `carried`; empty where nothing failed of what was looked at.
    prediction : Prediction
        Of one machine at its share of the load.
    beyond : bool
        Whether more than `carried` may be carried: nothing failed up to the largest load that was looked at.
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
    cached : float
        Prompt tokens that were seen before, part of `inputs`, [token]
    usd : float
        The bill of a month, [USD]
    """

    offer: Offer
    inputs: float
    outputs: float
    usd: float
    cached: float = 0.0


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


@dataclass(frozen=True, slots=True)
class Flow:
    """What a load brings in a second, on all machines.

    Attributes
    ----------
    inputs, cached, outputs : float
        Prompt tokens, those of them that were seen before, and answer tokens, [token/s]
    busy : float
        Share of the time in which a machine computes, of a day as many tokens cost in its busiest part, [-]
    """

    inputs: float
    cached: float
    outputs: float
    busy: float = 1.0


def flow_of(option: Option, found: Sized) -> Flow:
    """Tokens that the load brings: of users who never pause what the machines can do, of all others what they ask for.

    Parameters
    ----------
    option : Option
        The option.
    found : Sized
        The answer: its load.

    Returns
    -------
    Flow
        Tokens of a second. Pauses, turns of sessions, tokens seen before and lengths that vary are those of the
        simulated load; a rate is the rate itself.
    """
    asked, summary = found.asked, option.sure.summary
    traffic = asked.traffic
    # the machine with the largest share was predicted and simulated; the others have the rest
    largest = share_of(traffic, option.machines)
    share = asked.load / (float(largest.users or largest.rate or 0.0) * option.machines)
    outputs = option.machines * option.prediction.figures["output_rate"].value * share
    if _steady(traffic) or not summary.get("requests_per_s"):
        return Flow(outputs * traffic.input / traffic.output, 0.0, outputs)
    if traffic.users is None:
        arriving = asked.load * (traffic.turns if traffic.kind == "sessions" else 1)
    else:
        arriving = summary["requests_per_s"] * option.machines * share
    each = arriving / summary["requests_per_s"]
    outputs = summary["output_tokens_per_s"] * each
    inputs = summary["total_tokens_per_s"] * each - outputs
    # of a day its busiest part was simulated, and the tokens are those of its mean
    return Flow(inputs, inputs * summary["cached_share"], outputs, summary["utilisation"] / traffic.peak)


def share_of(traffic: Traffic, machines: int) -> Traffic:
    """The load of one of several machines: of users the largest share.

    Parameters
    ----------
    traffic : Traffic
        The load of all.
    machines : int
        How many, [-]

    Returns
    -------
    Traffic
        Its share.

    Examples
    --------
    >>> share_of(Traffic(kind="closed", users=20), 3).users
    7
    """
    if traffic.users is not None:
        return traffic.at_load(math.ceil(traffic.users / machines))
    return traffic.at_load((traffic.rate or 0.0) / machines)


def _steady(traffic: Traffic) -> bool:
    """Whether as many requests as there are users are always at work, all alike, and nothing was seen before."""
    vary = traffic.jitter or traffic.input_cv or traffic.output_cv or traffic.lengths
    return traffic.kind == "closed" and traffic.plain and not vary


def busy_of(found: Sized) -> float:
    """Mean load of a day over the load that was asked for: the rate of daily traffic is the mean itself.

    Parameters
    ----------
    found : Sized
        The answer.

    Returns
    -------
    float
        [-]
    """
    return 1.0 if found.asked.traffic.kind == "daily" else found.money.terms.utilisation


def month_tokens(option: Option, found: Sized) -> tuple[float, float, float]:
    """Tokens of a month at the load that is promised, times the share of the day that it is there.

    Parameters
    ----------
    option : Option
        The option.
    found : Sized
        The answer: its load and its terms.

    Returns
    -------
    tuple of (float, float, float)
        Prompt tokens, those of them that were seen before, and answer tokens, [token]
    """
    flow, seconds = flow_of(option, found), busy_of(found) * HOURS * 3600
    return flow.inputs * seconds, flow.cached * seconds, flow.outputs * seconds


def most_tokens(option: Option, found: Sized) -> float:
    """Tokens of a month, prompts and answers, at the largest load that is carried as surely as asked.

    Parameters
    ----------
    option : Option
        The option.
    found : Sized
        The answer: its load and its terms.

    Returns
    -------
    float
        What steady users make together then; of all other loads as many more as more of them are carried, which users
        who wait for each other do not quite reach, [token]
    """
    inputs, _, outputs = month_tokens(option, found)
    traffic, more = found.asked.traffic, option.carried / found.asked.load
    if more not in (0.0, 1.0) and _steady(traffic):
        users = min(share_of(traffic.at_load(option.carried), option.machines).users or 1, MOST_USERS)
        rates = [one.figures["output_rate"].value for one in (predict(option.planned, users=users), option.prediction)]
        more = rates[0] / rates[1]
    return (inputs + outputs) * more


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
