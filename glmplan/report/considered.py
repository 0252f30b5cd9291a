"""Plans that a report compares: the record of `glmplan fit`, its machine, and what the machine costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.files import read_json
from glmplan.readers.machines.resolve import Machine, resolve_machine
from glmplan.report.fit_json import SCHEMA
from glmplan.sizing.cost import per_million
from glmplan.sizing.money import Money, Way, watts_of, ways_of

__all__ = ["Considered", "considered", "is_plan", "month_lines", "read_plan", "row_at"]


@dataclass(frozen=True)
class Considered:
    """One of the plans.

    Attributes
    ----------
    record : dict
        What `glmplan fit --format json` wrote.
    machine : Machine or None
        Its machine; None where it is not known here.
    ways : tuple of Way
        What the machine costs, the cheapest first.
    kw : float or None
        Draw at the wall, [kW]
    utilisation : float
        Mean load over the load that is served, [-]
    currency : str
        Of all money.
    """

    record: Mapping[str, Any]
    machine: Machine | None
    ways: tuple[Way, ...]
    kw: float | None
    utilisation: float
    currency: str = "USD"

    @property
    def name(self) -> str:
        """Model, checkpoint and machine."""
        asked = self.record["question"]
        return f"{asked['model']} {asked['checkpoint']} on {asked['on']}"

    @property
    def paid(self) -> Way | None:
        """The cheapest way whose price is known."""
        return next((way for way in self.ways if way.usd is not None), None)

    @property
    def works(self) -> bool:
        """Whether the plan can be served."""
        return self.record["verdict"] in ("fits", "tight") and bool(self.record["users"])

    def per_million(self, users: int) -> float | None:
        """Cost of a million output tokens.

        Parameters
        ----------
        users : int
            Users at once, a row of the table, [-]

        Returns
        -------
        float or None
            None where no price or no rate is known, [USD]
        """
        row = row_at(self.record, users)
        if self.paid is None or self.paid.usd is None or row is None:
            return None
        return float(per_million(self.paid.usd, row["output_tokens_per_s"]["value"], self.utilisation))


def row_at(record: Mapping[str, Any], users: int) -> Mapping[str, Any] | None:
    """The row of a number of users.

    Parameters
    ----------
    record : mapping
        A plan.
    users : int
        Users at once, [-]

    Returns
    -------
    mapping or None
        None where the table has no such row.
    """
    return next((row for row in record["users"] if row["users"] == users), None)


def considered(record: Mapping[str, Any], money: Money) -> Considered:
    """Price the machine of a plan.

    Parameters
    ----------
    record : mapping
        What `glmplan fit --format json` wrote.
    money : Money
        Prices and terms.

    Returns
    -------
    Considered
        The plan with its costs; without them where the machine is not known here.

    Raises
    ------
    SpecError
        If prices are in different currencies.
    """
    try:
        machine = resolve_machine(str(record["question"]["on"]))
    except SpecError:
        return Considered(record, None, (), None, money.terms.utilisation, money.terms.currency)
    watts, _ = watts_of(machine, money)
    kw = None if watts is None else watts / 1000.0
    return Considered(record, machine, ways_of(machine, money), kw, money.terms.utilisation, money.terms.currency)


def month_lines(way: Way) -> list[tuple[str, float]]:
    """What a month is made of.

    Parameters
    ----------
    way : Way
        A way to come by a machine.

    Returns
    -------
    list of (str, float)
        Name and amount of each line that costs something, [unit of money]
    """
    lines = () if way.month is None else way.month.lines
    return [(name, float(np.asarray(amount))) for name, amount in lines if np.asarray(amount) > 0]


def is_plan(path: str) -> bool:
    """Whether a word names a file with a plan, and not a model.

    Parameters
    ----------
    path : str
        As typed.

    Returns
    -------
    bool
        True for a file of JSON that names a schema.

    Raises
    ------
    SpecError
        If the file is no JSON.
    """
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    content = read_json(file)
    return isinstance(content, dict) and "schema" in content


def read_plan(path: str | Path) -> dict[str, Any]:
    """Read what `glmplan fit --format json` wrote.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    dict
        The record.

    Raises
    ------
    SpecError
        If it cannot be read or is no such record; names the field.
    """
    content = read_json(path)
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise SpecError(f"is no plan of glmplan fit --format json: its schema must be {SCHEMA}", file=path, value=found)
    for name in ("question", "users", "warnings", "changes", "assumed"):
        if not isinstance(content.get(name), dict if name == "question" else list):
            raise SpecError("is missing or of another kind than in a plan", file=path, field=name)
    return dict(content)
