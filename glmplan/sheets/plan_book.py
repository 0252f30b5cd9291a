"""A plan as a workbook with live formulas."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from glmplan.facts.files import read_bytes
from glmplan.facts.folders import data_folder
from glmplan.plan.question import DEFAULT_INPUT, DEFAULT_OUTPUT
from glmplan.sheets.assumptions_page import Load, assumptions_of, write_assumptions
from glmplan.sheets.book import Book
from glmplan.sheets.calculation_page import write_calculation
from glmplan.sheets.option import Option, Wanted, options_of
from glmplan.sheets.places import SHEETS, Grid
from glmplan.sheets.results_page import write_options, write_results
from glmplan.sheets.sensitivity_page import write_sensitivity
from glmplan.sheets.sources_page import write_sources
from glmplan.sheets.summary_page import Edition, write_summary
from glmplan.sheets.surface_page import write_memory, write_surface
from glmplan.sizing.money import Money
from glmplan.units import whole_number

__all__ = ["calibration_mark", "load_of_words", "plan_book", "workbook_of"]


def load_of_words(
    users: int, input_tokens: int | None, output_tokens: int | None, context: int | None, **shares: float
) -> Load:
    """Complete a load with what a plan takes when lengths are left out.

    Parameters
    ----------
    users : int
        Users at once, [-]
    input_tokens, output_tokens : int or None
        Prompt and answer, [token]
    context : int or None
        Longest request that must fit; prompt and answer if left out, [token]
    **shares : float
        ``reuse`` and ``growth``, [-]

    Returns
    -------
    Load
        The load.

    Raises
    ------
    SpecError
        If answers have one token: the promise of a workbook is of later tokens too.

    Examples
    --------
    >>> load_of_words(8, None, None, None).context
    2560
    """
    inputs = DEFAULT_INPUT if input_tokens is None else whole_number(input_tokens, "--input")
    outputs = DEFAULT_OUTPUT if output_tokens is None else whole_number(output_tokens, "--output", least=2)
    longest = inputs + outputs if context is None else whole_number(context, "--context")
    return Load(whole_number(users, "--users"), longest, inputs, outputs, **shares)


def calibration_mark() -> str:
    """A short mark of the fits: the same fits give the same mark.

    Returns
    -------
    str
        Ten hexadecimal digits.

    Examples
    --------
    >>> len(calibration_mark())
    10
    """
    folder = data_folder("calibration") / "fits"
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.toml")):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + read_bytes(path))
    return found.hexdigest()[:10]


def plan_book(
    model: str,
    wanted: Sequence[Wanted],
    load: Load,
    money: Money,
    *,
    said: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Book:
    """Plan options and write them into a workbook.

    Parameters
    ----------
    model : str
        The model.
    wanted : sequence of Wanted
        The options.
    load : Load
        For which load.
    money : Money
        Prices and terms.
    said : mapping, optional
        Arguments of `glmplan.deployment` for all options.
    progress : callable, optional
        Called with how many surfaces are done and how many there will be, [-]

    Returns
    -------
    Book
        The workbook; ``content()`` makes the file.

    Raises
    ------
    GlmplanError
        If an option cannot be planned.
    """
    numbers = (load.users, load.input, load.output)
    options = options_of(model, wanted, money, load=numbers, said=said or {}, progress=progress)
    return workbook_of(options, load, money)


def workbook_of(options: tuple[Option, ...], load: Load, money: Money) -> Book:
    """Write planned options into a workbook.

    Parameters
    ----------
    options : tuple of Option
        The options.
    load : Load
        For which load.
    money : Money
        Prices and terms.

    Returns
    -------
    Book
        The workbook.
    """
    asked = options[0].planned.asked
    book, grid = Book(SHEETS), Grid(options)
    rows = assumptions_of(load, money, asked.model.name)
    edition = Edition(
        title=f"{asked.model.name}: what to buy or rent",
        version=_version(),
        calibration=calibration_mark(),
        date=money.today.isoformat(),
        currency=money.terms.currency,
    )
    book.properties = {"title": edition.title, "comments": edition.words, "author": "glmplan"}
    write_options(book, options, money.terms)
    write_assumptions(book, options, rows)
    write_surface(book, options, grid)
    write_calculation(book, options, grid, write_memory(book, options))
    write_results(book, options, money.terms)
    write_sensitivity(book, options, rows, edition.currency)
    write_sources(book, options, edition, (load.users, load.input, load.output))
    write_summary(book, options, rows, edition, grid)
    return book


def _version() -> str:
    try:
        return version("glmplan")
    except PackageNotFoundError:
        return "from a checkout"
