"""Where things stand in the workbook: columns of the sheets, so that formulas of one sheet find cells of another."""

from __future__ import annotations

from glmplan.sheets.calculate import address
from glmplan.sheets.option import Option

__all__ = ["FIRST", "SHEETS", "Grid", "blocks", "cell", "columns_of", "span"]

#: the sheets in their order; the last holds what is predicted over the grid
SHEETS: tuple[str, ...] = (
    *("Summary", "Options", "Assumptions", "Results", "Memory per card"),
    *("Calculation", "Sensitivity", "Sources", "Surface"),
)
#: first row with an option on Options, Results and Calculation, from 0 [-]
FIRST = 5

_OPTIONS = (
    *("number", "name", "machine", "accelerators", "weights", "engine", "layout", "machines", "cache", "way"),
    *("price", "price_low", "price_high", "rent", "rent_low", "rent_high", "rating", "hosts", "rest", "evidence"),
    *("prices_from", "note"),
)
_CALCULATION = (
    *("name", "share", "format", "block", "inside", "input_cell", "input_part", "output_cell", "output_part", "corner"),
    *("user_cell", "user_part", "user_band", "prompt_band", "widen_lengths", "widen", "held", "held_low", "longest"),
    *("longest_low", "seats", "state", "request", "further", "first", "log_low", "log_high", "gap_low", "gap_high"),
    *(
        "least_request",
        "least_further",
        "served",
        "first_least",
        "further_most",
        "wait_high",
        "safe_gap",
        "safe_gap_high",
        "safe_wait",
        "safe_wait_high",
        "most_users",
    ),
)
_RESULTS = (
    *("name", "fit", "held", "held_low", "rate", "rate_low", "rate_high", "each", "each_low", "each_high", "wait"),
    *("gap", "safe", "limit", "kw", "purchase", "write_off", "power", "rent", "other", "month", "tokens"),
    *("per_million", "per_million_low", "per_million_high", "per_output", "api_month", "break_even"),
    *("paid_back", "outgrown", "why"),
)
_OF = {"Options": _OPTIONS, "Calculation": _CALCULATION, "Results": _RESULTS}


def columns_of(sheet: str) -> tuple[str, ...]:
    """Names of the columns of a sheet.

    Parameters
    ----------
    sheet : str
        Options, Calculation or Results.

    Returns
    -------
    tuple of str
        From the left.
    """
    return _OF[sheet]


def cell(sheet: str, column: str, option: int) -> str:
    """Address of a cell of an option.

    Parameters
    ----------
    sheet : str
        Options, Calculation or Results.
    column : str
        Its column.
    option : int
        Number of the option, from 0, [-]

    Returns
    -------
    str
        The address.

    Examples
    --------
    >>> cell("Options", "machines", 0)
    'Options!$H$6'
    """
    return address(FIRST + option, _OF[sheet].index(column), sheet)


def span(sheet: str, column: str, count: int) -> str:
    """Address of a column over all options.

    Parameters
    ----------
    sheet : str
        Options, Calculation or Results.
    column : str
        Its column.
    count : int
        Options, [-]

    Returns
    -------
    str
        The range.

    Examples
    --------
    >>> span("Results", "month", 2)
    'Results!$U$6:$U$7'
    """
    return f"{cell(sheet, column, 0)}:{cell(sheet, column, count - 1).partition('!')[2]}"


def blocks(options: tuple[Option, ...]) -> list[int]:
    """Number of the first block of each option, from 1: a block is an option with its cache in one format.

    Parameters
    ----------
    options : tuple of Option
        The options.

    Returns
    -------
    list of int
        [-]
    """
    found, count = [], 1
    for one in options:
        found.append(count)
        count += len(one.cached)
    return found


class Grid:
    """Addresses on the sheet of the surface.

    Parameters
    ----------
    options : tuple of Option
        The options, whose grids have the same axes.
    """

    #: rows of the axes, and of the first block of points, from 0 [-]
    AXES, POINTS = 4, 12
    #: column of the first quantity of a point [-]
    LEFT = 4

    def __init__(self, options: tuple[Option, ...]) -> None:
        self.axes = options[0].cached[0].surface.axes
        self.blocks = sum(len(one.cached) for one in options)
        self.rows = len(self.axes.inputs) * len(self.axes.outputs)
        self.last = self.POINTS + self.blocks * self.rows - 1
        #: first row of measured domains, and of the bands of intervals
        self.domains = self.last + 4
        self.bands = self.domains + self.blocks + 3

    def axis(self, row: int, count: int) -> str:
        """Range of one of the axes.

        Parameters
        ----------
        row : int
            Which: 0 users, 1 prompts, 2 answers, 3 bands of users, 4 bands of prompts, [-]
        count : int
            Its points, [-]

        Returns
        -------
        str
            The range.
        """
        first = address(self.AXES + row, 1, "Surface")
        return f"{first}:{address(self.AXES + row, count)}"

    @property
    def users(self) -> str:
        """Range of the points of users."""
        return self.axis(0, len(self.axes.users))

    @property
    def inputs(self) -> str:
        """Range of the points of prompts."""
        return self.axis(1, len(self.axes.inputs))

    @property
    def outputs(self) -> str:
        """Range of the points of answers."""
        return self.axis(2, len(self.axes.outputs))

    def quantity(self, kind: int, user: int) -> str:
        """Range of a quantity over all points with one number of users.

        Parameters
        ----------
        kind : int
            0 whole request, 1 served, 2 first token at least, 3 further tokens at most, 4 and 5 what requests and
            further tokens take at least, [-]
        user : int
            Which number of users, from 0, [-]

        Returns
        -------
        str
            The range.
        """
        column = self.LEFT + kind * len(self.axes.users) + user
        return f"{address(self.POINTS, column, 'Surface')}:{address(self.last, column)}"

    def domain(self, column: int) -> str:
        """Range of an end of what was measured, over all blocks.

        Parameters
        ----------
        column : int
            0 to 5, [-]

        Returns
        -------
        str
            The range.
        """
        first = address(self.domains, 1 + column, "Surface")
        return f"{first}:{address(self.domains + self.blocks - 1, 1 + column)}"

    def band(self, column: int, size: int) -> str:
        """Range of an end of an interval, over all blocks and bands.

        Parameters
        ----------
        column : int
            0 and 1 first token, 2 and 3 further tokens, 4 and 5 whole request, [-]
        size : int
            Bands of a block, [-]

        Returns
        -------
        str
            The range.
        """
        first = address(self.bands, 3 + column, "Surface")
        return f"{first}:{address(self.bands + self.blocks * size - 1, 3 + column)}"
