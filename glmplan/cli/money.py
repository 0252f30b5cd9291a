"""Prices and terms that a command is given."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from glmplan.cli.options import MoneyOptions
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.sizing.money import Money

__all__ = ["day_of", "read_money"]


def day_of(text: str | None) -> date:
    """The day of a question.

    Parameters
    ----------
    text : str or None
        As typed.

    Returns
    -------
    date
        Today if nothing was typed.

    Raises
    ------
    SpecError
        If it is no day.
    """
    if text is None:
        return date.today()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SpecError("is not a day such as 2026-11-22", field="--today", value=text) from None


def read_money(options: MoneyOptions) -> Money:
    """Read prices and terms.

    Parameters
    ----------
    options : MoneyOptions
        As typed.

    Returns
    -------
    Money
        Published ones with the buyer's own.

    Raises
    ------
    SpecError
        If one cannot be read.
    """
    from glmplan.sizing.money import money_of

    return money_of(options.price or (), options.term or (), today=day_of(options.today), region=options.region)
