"""What glmplan says of a machine that a quote offers: the cells of its new columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glmplan.errors import GlmplanError, SpecError
from glmplan.plan.answer import FitAnswer
from glmplan.plan.ask import fit, predict
from glmplan.plan.text import verdict_words
from glmplan.prediction.predict import Prediction
from glmplan.readers.machines.resolve import resolve_machine
from glmplan.sheets.quote_cells import Named, machine_in
from glmplan.sheets.quote_table import Line, Mapped
from glmplan.sizing.cost import owned_month, per_million
from glmplan.sizing.money import Money, watts_of

__all__ = ["Answered", "Quoted", "columns_for"]

_COLUMNS = (
    *(
        "read as",
        "fits",
        "tokens/s",
        "tokens/s (90 % from)",
        "tokens/s (90 % to)",
        "safe users",
        "{} per million tokens",
    ),
    *("kW at the wall", "hazards", "evidence", "remark"),
)

#: texts of rows whose machines are remembered [-]
_REMEMBERED = 10_000


def columns_for(money: Money) -> tuple[str, ...]:
    """Headers of the new columns.

    Parameters
    ----------
    money : Money
        The currency.

    Returns
    -------
    tuple of str
        From the left.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.sizing.money import money_of
    >>> columns_for(money_of(today=date(2026, 11, 22)))[0]
    'glmplan: read as'
    """
    return tuple(f"glmplan: {one.format(money.terms.currency)}" for one in _COLUMNS)


@dataclass(frozen=True)
class Answered:
    """What was worked out for a machine under its share of the load.

    Attributes
    ----------
    answer : FitAnswer or None
        The plan; None if it cannot be made.
    prediction : Prediction or None
        At the share of the load.
    reason : str
        Why there is no plan.
    """

    answer: FitAnswer | None
    prediction: Prediction | None
    reason: str = ""


class Quoted:
    """Answers the rows of a quote; each machine is planned once.

    Parameters
    ----------
    model : str
        The model.
    users : int
        Users at once, [-]
    money : Money
        Prices and terms.
    mapped : Mapped
        What the buyer says of the quote.
    said : mapping
        Arguments of `glmplan.fit` for every machine.
    """

    def __init__(self, model: str, users: int, money: Money, mapped: Mapped, said: Mapping[str, Any]) -> None:
        self.model, self.users, self.money, self.mapped, self.said = model, users, money, mapped, dict(said)
        self._known: dict[tuple[str, int], Answered] = {}
        self._named: dict[tuple[Any, ...], Named | SpecError] = {}
        self._months: dict[Named, tuple[float, float] | None] = {}
        self._plans: dict[Named, tuple[dict[int, Any], tuple[str, ...]]] = {}

    def cells(self, line: Line) -> tuple[dict[int, Any], str]:
        """Cells of a row.

        Parameters
        ----------
        line : Line
            The row.

        Returns
        -------
        tuple of (dict of int to object, str)
            Number of a new column → number or text [unit of the column]; and why the row cannot be read, empty if it
            can.
        """
        try:
            if line.trouble:
                raise SpecError(line.trouble)
            named = self._machine(line)
            answered = self._answered(named)
        except GlmplanError as error:
            return {len(_COLUMNS) - 1: f"not read: {error}"}, str(error)
        found: dict[int, Any] = {0: f"{named.machines} × {named.on}"}
        remarks: list[str] = []
        if answered.answer is None:
            return found | {len(_COLUMNS) - 1: f"no plan: {answered.reason}"}, ""
        if named not in self._plans:
            cells = self._of_plan(named, answered, remarks)
            self._plans[named] = (cells, tuple(remarks))
        cells, told = self._plans[named]
        remarks = list(told)
        found |= cells | self._of_money(named, answered, line, remarks)
        if remarks:
            found[len(_COLUMNS) - 1] = "; ".join(remarks)
        return found, ""

    def _machine(self, line: Line) -> Named:
        """The machine of a row; rows that say the same are read once, as far as they fit into a table of some size."""
        key = (line.hardware, line.part_number, line.count)
        if key not in self._named:
            if len(self._named) >= _REMEMBERED:
                self._named.clear()
            try:
                self._named[key] = machine_in(*key, dict(self.mapped.hardware))
            except SpecError as error:
                self._named[key] = error
        found = self._named[key]
        if isinstance(found, SpecError):
            raise found
        return found

    def _answered(self, named: Named) -> Answered:
        share = -(-self.users // named.machines)
        key = (named.on, share)
        if key not in self._known:
            try:
                answer = fit(self.model, named.on, users=(share,), **self.said)
                asked = answer.verdict != "does_not_fit" and answer.deployment is not None
                self._known[key] = Answered(answer, predict(answer, users=share) if asked else None)
            except SpecError as error:
                if error.field == "--on" or error.file is not None:
                    raise
                self._known[key] = Answered(None, None, str(error))
            except GlmplanError as error:
                self._known[key] = Answered(None, None, str(error))
        return self._known[key]

    def _of_plan(self, named: Named, answered: Answered, remarks: list[str]) -> dict[int, Any]:
        answer = answered.answer
        assert answer is not None
        found: dict[int, Any] = {1: verdict_words(answer.verdict, answer.may_start)}
        if answer.verdict == "does_not_fit":
            remarks.append(answer.headline)
        share = -(-self.users // named.machines)
        if answered.prediction is not None and answer.holding is not None:
            if answer.holding.held < share:
                remarks.append(
                    f"the cache holds {named.machines * int(answer.holding.held)} of {self.users} users at once"
                )
                found[1] = "tight"
            rate = answered.prediction.figures["output_rate"]
            found |= {place: _plain(named.machines * end)
                      for place, end in ((2, rate.value), (3, rate.low), (4, rate.high))}  # fmt: skip
            found[9] = answered.prediction.basis
        if answer.safe is not None:
            found[5] = float(named.machines * answer.safe.users)
        warned = [one.title for one in answer.warnings if one.kind == "hazard"]
        found[8] = "; ".join(warned) if warned else "none known"
        watts, _ = watts_of(resolve_machine(named.on), self.money)
        if watts is None:
            remarks.append("the power of the card is not published")
        else:
            found[7] = _plain(named.machines * watts / 1000)
        return found

    def _of_money(self, named: Named, answered: Answered, line: Line, remarks: list[str]) -> dict[int, Any]:
        terms = self.money.terms
        if line.price is None or line.price <= 0:
            remarks.append("no price in the row")
            return {}
        currency = line.currency or terms.currency
        if not line.currency:
            remarks.append(f"the price names no currency: taken as {terms.currency}")
        rate = 1.0 if currency == terms.currency else self.mapped.rates.get(currency)
        if rate is None:
            remarks.append(f"the price is in {currency}: say --rate {currency}=NUMBER to compare in {terms.currency}")
            return {}
        if named not in self._months:
            self._months[named] = self._million(named, answered)
        million = self._months[named]
        return {} if million is None else {6: _plain(million[0] + million[1] * line.price * rate)}

    def _million(self, named: Named, answered: Answered) -> tuple[float, float] | None:
        """Cost of a million tokens without a purchase, and for each unit of money of one: it is a line in the price."""
        terms, machine = self.money.terms, resolve_machine(named.on)
        watts, _ = watts_of(machine, self.money)
        if answered.prediction is None or watts is None or answered.answer is None:
            return None
        months = owned_month(np.array([0.0, 1e6]), named.machines * watts, named.machines * machine.count, terms=terms)
        asked = answered.answer.asked
        outputs = named.machines * answered.prediction.figures["output_rate"].value
        both = outputs * (1 + asked.input_tokens / asked.output_tokens)
        none, bought = (float(one) for one in per_million(months.total, both, terms.utilisation))
        return none, (bought - none) / 1e6


def _plain(value: float) -> float:
    """A figure to four digits."""
    return float(f"{value:.4g}")
