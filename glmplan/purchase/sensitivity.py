"""Vary one assumption at a time.

An outcome with each assumption at both ends of its range, all others unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from glmplan.catalog.entries.prices import Quotation, load_terms
from glmplan.errors import SpecError, UnknownFact
from glmplan.planner.ask import Deployed, memory, predict
from glmplan.planner.launch import degrees_of, validate_command
from glmplan.planner.ranking import prompts_timed, untimed_words
from glmplan.purchase.cost import HOURS, Terms, owned_month, per_million, rented_month
from glmplan.purchase.money import Money, Purchase, Way, rent_of, wall_watts, ways_of

__all__ = ["OUTCOMES", "Move", "sensitivity"]

#: outcome → its unit
OUTCOMES: dict[str, str] = {
    "usd_per_million_output_tokens": "USD",
    "usd_month": "USD",
    "tpot_mean_ms": "ms",
    "ttft_mean_ms": "ms",
    "output_tokens_per_s": "token/s",
    "requests_held": "requests",
}

#: term → how to find its value
_HOW = {
    "power_share": "glmplan validate measures the power of the GPUs (extra gpu)",
    "pue": "ask the data centre; set --term pue=NUMBER",
}

#: outcomes that need the time of prompts
_OF_PROMPTS = ("usd_per_million_output_tokens", "ttft_mean_ms", "output_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Move:
    """An assumption with its range and the outcome at both ends."""

    #: the assumption
    what: str
    #: outcome in its unit of `OUTCOMES`, at the low and the high end of the assumption
    at_low: float
    at_high: float
    #: both ends with their unit
    low: str
    high: str
    #: command or question that narrows the range
    measure: str

    @property
    def span(self) -> float:
        """Return the range of the outcome in its unit."""
        return abs(self.at_high - self.at_low)


def sensitivity(planned: Deployed, money: Money, *, users: int, outcome: str) -> tuple[float, tuple[Move, ...]]:
    """Return an outcome, and the assumptions that change it.

    The largest change is first. The range of an assumption is that of its published values, or its 90 % prediction
    interval.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.planner.ask import deployment
    >>> from glmplan.purchase.money import money_of
    >>> planned = deployment("llama-3.1-8b", "1xh100-sxm", input=1000, output=200)
    >>> money = money_of(today=date(2026, 11, 22))
    >>> rest, moves = sensitivity(planned, money, users=8, outcome="tpot_mean_ms")
    >>> [one.what for one in moves]
    ['step time']
    """
    if outcome not in OUTCOMES:
        raise SpecError("is not an outcome", field="--of", value=outcome, choices=OUTCOMES)
    if outcome in _OF_PROMPTS and not prompts_timed(planned.asked):
        raise UnknownFact(f"{untimed_words(planned.asked)}, {outcome} is unknown")
    state = _State(planned, money, users)
    if outcome.startswith("usd") and state.way.usd is None:
        raise SpecError(f"needs a price: {state.way.missing}", field="--of", value=outcome)
    rest = state.outcome(outcome)
    moves = [move for move in _moves(state, outcome) if move.span > 1e-6 * abs(rest)]
    return rest, tuple(sorted(moves, key=lambda move: (-move.span, move.what)))


class _State:
    """A plan whose assumptions can be changed one at a time."""

    def __init__(self, planned: Deployed, money: Money, users: int) -> None:
        self.planned, self.money, self.users = planned, money, users
        self.machine = planned.asked.machine
        self.figures = predict(planned, users=users).figures
        self.limit = planned.asked.power_limit
        self.way: Way = ways_of(self.machine, money, limit=self.limit)[0]

    def month(
        self, *, terms: Terms | None = None, purchase: Purchase | None = None, hourly: float | None = None
    ) -> float:
        terms = terms or self.money.terms
        if self.way.purchase is None:
            rent = float(self.way.month.rent) if self.way.month is not None else 0.0
            price = hourly if hourly is not None else rent / self.machine.count / HOURS
            return float(rented_month(price, self.machine.count, terms=terms).total)
        bought = (purchase or self.way.purchase).known
        watts = wall_watts(self.machine, terms=terms, limit=self.limit)
        return float(owned_month(bought, watts, self.machine.count, terms=terms).total)

    def outcome(
        self, name: str, *, end: str = "value", month: float | None = None, terms: Terms | None = None
    ) -> float:
        if name == "requests_held":
            return self.planned.holding.held
        if name in ("tpot_mean_ms", "ttft_mean_ms"):
            return 1000 * float(getattr(self.figures[name.split("_", maxsplit=1)[0]], end))
        rate = float(getattr(self.figures["output_rate"], end))
        if name == "output_tokens_per_s":
            return rate
        usd = month if month is not None else self.month(terms=terms)
        if name == "usd_month":
            return usd
        return float(per_million(usd, rate, (terms or self.money.terms).utilisation))


def _moves(state: _State, outcome: str) -> Iterator[Move]:
    yield from _measured(state, outcome)
    if outcome.startswith("usd"):
        yield from _priced(state, outcome)
        yield from _termed(state, outcome)


def _measured(state: _State, outcome: str) -> Iterator[Move]:
    asked = state.planned.asked
    ladder = validate_command(
        asked.model.name,
        asked.machine.text,
        {"weights": asked.checkpoint.name, "engine": asked.engine, **degrees_of(state.planned.holding.terms)},
        users=sorted({1, state.users}),
        lengths=(asked.input_tokens, asked.output_tokens),
    )
    if outcome == "requests_held":
        pool = memory(state.planned)
        held = state.planned.holding
        low, high = (held.held * end / pool.pool for end in (pool.pool_low, pool.pool_high))
        yield Move("KV pool", low, high, f"{pool.pool_low:,.0f} tokens", f"{pool.pool_high:,.0f} tokens",
                   "glmplan runs import START-UP LOG of the engine")  # fmt: skip
    elif outcome != "usd_month":
        name = "ttft" if outcome == "ttft_mean_ms" else "tpot" if outcome == "tpot_mean_ms" else "output_rate"
        figure = state.figures[name]
        what = "mean TTFT" if name == "ttft" else "step time"
        at_low, at_high = (state.outcome(outcome, end=end) for end in ("low", "high"))
        unit = "token/s" if name == "output_rate" else "s"
        bounds = [f"{getattr(figure, end):.4g} {unit}" for end in ("low", "high")]
        yield Move(what, at_low, at_high, bounds[0], bounds[1], ladder)


def _priced(state: _State, outcome: str) -> Iterator[Move]:
    bought = state.way.purchase
    ask = "a quotation, given with --price"
    if bought is None:
        _, hourly = rent_of(state.machine.accelerator.name, state.money.prices, today=state.money.today,
                            term=state.way.paid.removeprefix("rent "))  # fmt: skip
        yield _move(state, outcome, "rent", hourly, lambda price: state.month(hourly=price), ask)
        return
    for index, line in enumerate(bought.lines):
        if line.quotation is None:
            continue

        def month(price: float, index: int = index) -> float:
            line = bought.lines[index]
            fixed = replace(line, quotation=replace(line.quotation, value=price))  # type: ignore[type-var]
            lines = (*bought.lines[:index], fixed, *bought.lines[index + 1 :])
            return state.month(purchase=Purchase(lines, bought.network_share))

        what = f"price of {line.name}" + ", assumed" * line.assumed
        yield _move(state, outcome, what, line.quotation, month, ask)


def _move(
    state: _State, outcome: str, what: str, quotation: Quotation, month: Callable[[float], float], measure: str
) -> Move:
    prices = (quotation.low, quotation.high)
    at_low, at_high = (state.outcome(outcome, month=month(price)) for price in prices)
    low, high = (f"{price:,g} {quotation.currency}" for price in prices)
    return Move(what, at_low, at_high, low, high, measure)


def _termed(state: _State, outcome: str) -> Iterator[Move]:
    terms = state.money.terms
    for name, term in load_terms().items():
        if term.low is None or term.high is None or not hasattr(terms, name):
            continue
        ends = [state.outcome(outcome, terms=terms.but(**{name: end})) for end in (term.low, term.high)]
        low, high = (f"{end:g} {term.unit}" for end in (term.low, term.high))
        yield Move(term.what, ends[0], ends[1], low, high, _HOW.get(name, f"set --term {name}=NUMBER"))
    if outcome == "usd_per_million_output_tokens":
        ends = [state.outcome(outcome, terms=terms.but(utilisation=end)) for end in (1.0, terms.utilisation / 2)]
        yield Move("utilisation over the day", ends[0], ends[1], "1", f"{terms.utilisation / 2:.2g}",
                   "count the requests of each hour; set --term utilisation=NUMBER")  # fmt: skip
