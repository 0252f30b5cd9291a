"""Compare plans: predictions and costs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.errors import DoesNotFit, SpecError, UnknownFact
from glmplan.planner.ask import Deployed, deployment, predict, step_time
from glmplan.planner.moved_experts import moved_words
from glmplan.planner.plan import Safe
from glmplan.planner.ranking import load_of, prompts_timed
from glmplan.planner.slo_layouts import safe_under_limits
from glmplan.prediction.distribution import SHOWN
from glmplan.prediction.effects import COLUMNS, keys_of, load_effects
from glmplan.prediction.evidence import slopes_of
from glmplan.prediction.predict import Prediction
from glmplan.prediction.step_models import runs_on_accelerators, site_calibration
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import Money, watts_of, ways_of
from glmplan.units import Ratio, Seconds, Usd

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = ["Compared", "Side", "beside", "compared", "fitted_apart", "lower_rates", "side_of"]


@dataclass(frozen=True)
class Side:
    """One of the compared plans."""

    planned: Deployed
    #: concurrency of the comparison
    users: int
    #: at that concurrency
    prediction: Prediction
    #: breakdown of one decode step at that concurrency
    parts: dict[str, Seconds]
    #: the cheaper of buying and renting
    usd_month: Usd | None
    #: `Way.paid` of it; empty without a price
    paid: str
    #: power at the wall [kW]
    kw: float | None
    #: reason why the cost is unknown
    price_missing: str = ""
    #: notes of prices that are defaults
    price_assumed: tuple[str, ...] = ()
    #: options of this plan alone, as typed
    options: str = ""
    #: users that meet the SLO of `fit`; None where prompts cannot be timed
    safe: Safe | None = None

    @property
    def name(self) -> str:
        """Return model, weights and machine as text."""
        asked = self.planned.asked
        own = f", {self.options}" if self.options else ""
        return f"{asked.model.name} {asked.checkpoint.name} on {asked.machine.text}{own}"

    def figures(self, utilisation: Ratio) -> dict[str, Any]:
        """Return the compared metrics; None where one is unknown.

        `utilisation`: Mean load of a day over the load of the comparison, for the cost of a token.
        """
        predicted = self.prediction.figures
        # a rate without the time of prompts is a bound that cannot be compared
        timed = prompts_timed(self.planned.asked)
        rate = predicted["output_rate"].value if timed else None

        def of(name: str, column: str, factor: float, known: bool = True) -> dict[str, float | None]:
            ends = {"": "value", "_low": "low", "_high": "high"}
            known = known and name in predicted
            return {
                column + end: getattr(predicted[name], side) * factor if known else None for end, side in ends.items()
            }

        unpriced = self.usd_month is None or rate is None
        output = self.planned.asked.output_tokens
        share = output / (self.planned.asked.input_tokens + output)
        usd = None if unpriced else float(per_million(self.usd_month, rate, utilisation))
        return {
            "layout": self.planned.holding.terms.name,
            "engine": self.planned.asked.engine,
            "cache": self.planned.holding.terms.kv,
            "host_weights": moved_words(self.planned.asked, self.planned.holding),
            **of("ttft", "ttft_mean_ms", 1000.0),
            **of("tpot", "tpot_mean_ms", 1000.0),
            **of("output_rate", "output_tokens_per_s", 1.0, timed),
            "requests_held": self.planned.holding.held,
            "usd_month": self.usd_month,
            "paid": self.paid,
            "price_assumed": list(self.price_assumed),
            "usd_per_million_output_tokens": usd,
            "usd_per_million_tokens": None if usd is None else usd * share,
            "kw": self.kw,
            "probability": None if self.safe is None else self.safe.chance_of(self.users),
            **{f"users_at_{100 * share:g}": self.safe and dict(self.safe.at)[share] for share in SHOWN},
            "evidence_level": self.prediction.knowledge,
        }


@dataclass(frozen=True)
class Compared:
    """Compared plans."""

    #: the first plan is the reference of all others
    sides: tuple[Side, ...]
    #: concurrency
    users: int
    #: term of all rents; None if no machine is rented out
    rent_term: str | None = None
    #: plans that cannot be compared: place in the question, name and reason
    left_out: tuple[tuple[int, str, str], ...] = ()


def side_of(planned: Deployed, users: int, money: Money, options: str = "") -> Side:
    """Predict a plan and price its machine."""
    asked = planned.asked
    prediction = predict(planned, users=users)
    running = min(float(users), max(planned.holding.held, 1.0))
    context = asked.input_tokens + asked.output_tokens / 2
    step = step_time(planned, decode_requests=[running], decode_context=[context])
    parts = {name: float(share[0] * step.seconds[0]) for name, share in step.shares.items()}
    ways = ways_of(asked.machine, money, limit=asked.power_limit)
    watts, _ = watts_of(asked.machine, money, asked.power_limit)
    with site_calibration(asked.calibration):
        safe = None if asked.prefill else safe_under_limits(asked, planned.holding)[0]
    priced = ways[0].usd is not None
    return Side(
        planned, users, prediction, parts, ways[0].usd, ways[0].paid if priced else "",
        None if watts is None else watts / 1000, "" if priced else "; ".join(way.missing for way in ways),
        ways[0].assumed if priced else (), options, safe,
    )  # fmt: skip


def lower_rates(part: Accelerator, than: Accelerator) -> dict[str, tuple[float | None, float]]:
    """Return the data-sheet rates of a part that are below another's.

    ``memory``, ``link`` or a precision → rates of both. A value that is not published for the part counts as smaller.

    Examples
    --------
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> h100, h200, b200, b300 = map(load_accelerator, ("h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm"))
    >>> [list(lower_rates(*pair)) for pair in ((h200, h100), (h100, h200), (b300, b200))]
    [[], ['memory'], ['int8']]
    """
    rates: dict[str, tuple[float | None, float | None]] = {
        "memory": (part.memory_bandwidth, than.memory_bandwidth),
        "link": (part.scaleup_bandwidth, than.scaleup_bandwidth),
        **{name: (part.peak.get(name), rate) for name, rate in than.peak.items()},
    }
    return {
        name: (now, before)
        for name, (now, before) in rates.items()
        if before is not None and (now is None or now < before)
    }


def fitted_apart(first: Side, other: Side) -> list[tuple[tuple[str, str], dict[str, float]]]:
    """Return the log ratio of metrics by the measured effects that differ.

    Keys of both plans on a level of the fit → ``ttft`` and ``tpot`` → logarithm of the other's time over the first
    one's. An effect is a log parameter, and the share of a metric is its slope: the mean slope of both is used. Empty
    without a fit. Both have one engine.
    """
    with site_calibration(first.planned.asked.calibration):
        fit = load_effects(first.planned.asked.engine)
    slopes, keys = [], []
    for side in (first, other):
        planned, servers = side.planned, side.planned.holding.terms.decoding
        if not runs_on_accelerators(planned.deployment) or not prompts_timed(planned.asked):
            return []
        load = load_of(planned.asked, planned.deployment, planned.holding.pool, side.users, servers)
        slopes += slopes_of(planned.deployment, [load], fit)
        keys.append(keys_of(planned.deployment))
    nothing, found = np.zeros(len(COLUMNS)), []
    for names, effects in zip(zip(*keys, strict=True), zip(*map(fit.by_level, keys), strict=True), strict=True):
        before, after = (nothing if effect is None else effect for effect in effects)
        if names[0] != names[1] and (after != before).any():
            means = {name: (row + slopes[1][name]) / 2.0 for name, row in slopes[0].items() if name in slopes[1]}
            found.append((names, {name: float(row @ (after - before)) for name, row in means.items()}))
    return found


#: model, machine and options of one plan alone
Named = tuple[str, str] | tuple[str, str, dict[str, Any]]


def compared(questions: Sequence[Named], money: Money, *, users: int = 1, **said: Any) -> Compared:
    """Plan and compare pairs of model and machine.

    - `questions`: Model, machine and, where they differ, options of that plan.
    - `**said`: Options of all plans, as in `glmplan.fit`.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.purchase.money import money_of
    >>> money = money_of(today=date(2026, 11, 22))
    >>> found = compared([("llama-3.1-8b", "1xh100-sxm"), ("llama-3.1-8b", "1xh200-sxm")], money, users=8)
    >>> found.sides[1].prediction.figures["tpot"].value < found.sides[0].prediction.figures["tpot"].value
    True
    """
    if len(questions) < 2:
        raise SpecError("needs at least two plans to compare", field="--on")
    planned, options, left_out, refused = [], [], [], []
    for place, (model, on, *own) in enumerate(questions):
        alone = own[0] if own else {}
        words = ", ".join(f"{name} {value}" for name, value in alone.items())
        try:
            planned.append(deployment(model, on, users=(users,), **{**said, **alone}))
            options.append(words)
        except (DoesNotFit, UnknownFact, SpecError) as error:
            # a limit that one machine cannot take says nothing of the others; any other mistake ends the comparison
            if isinstance(error, SpecError) and error.field not in ("--power-limit", "power_limit"):
                raise
            left_out.append((place, f"{model} on {on}" + f", {words}" * bool(words), str(error)))
            refused.append(error)
    if not planned:
        raise refused[0]
    return replace(beside(planned, money, users=users, options=options), left_out=tuple(left_out))


def beside(planned: Sequence[Deployed], money: Money, *, users: int, options: Sequence[str] = ()) -> Compared:
    """Compare plans with all rents at one term.

    The default is a term that is offered for every machine.
    """
    money = money.at_one_term(plan.asked.machine for plan in planned)
    named = options or [""] * len(planned)
    sides = tuple(side_of(plan, users, money, words) for plan, words in zip(planned, named, strict=True))
    return Compared(sides, users, money.rent_term)
