"""What pages of an answer are written with: widths, wrapped lines, numbers, and the words of verdicts and limits."""

from __future__ import annotations

from functools import lru_cache
from textwrap import TextWrapper
from typing import TYPE_CHECKING

from glmplan.units import Ratio

if TYPE_CHECKING:
    from glmplan.prediction.predict import Figure

__all__ = ["LEAST_WIDTH", "LIMITS", "VERDICTS", "WIDTH", "number", "paragraph", "span", "verdict_words", "wrapped"]

#: columns of a page where nobody says how wide it is [-]
WIDTH = 100
#: columns below which no page is made [-]
LEAST_WIDTH = 60
VERDICTS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT", "unknown": "UNKNOWN"}
LIMITS = {"kv": "KV", "tpot": "TPOT", "queue": "queue", "hazard": "hazard"}


def verdict_words(verdict: str, may_start: bool) -> str:
    """Write a verdict for a cell of a table.

    `may_start`: Whether what is short is within the uncertainty of memory.

    Examples
    --------
    >>> verdict_words("does_not_fit", True), verdict_words("tight", False)
    ('does not fit, may start', 'tight')
    """
    return verdict.replace("_", " ") + ", may start" * may_start


def number(value: Ratio) -> str:
    """Write a number with three significant digits, thousands apart.

    Examples
    --------
    >>> number(0.02871), number(27.08), number(1234.5)
    ('0.0287', '27.1', '1,234')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


def span(figure: Figure) -> str:
    """Write a figure with its interval."""
    return f"{number(figure.value)} ({number(figure.low)} to {number(figure.high)})"


@lru_cache(maxsize=256)
def wrapped(text: str, width: int, first: str = "  ", later: str = "    ") -> tuple[str, ...]:
    """Wrap a text.

    `first`, `later`: What the first line begins with, and each further one.

    Examples
    --------
    >>> wrapped("weights, cache and more", 14)
    ('  weights,', '    cache and', '    more')
    """
    wrapper = TextWrapper(
        width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=True
    )
    return tuple(wrapper.wrap(text))


def paragraph(width: int, text: str, first: str = "  ", later: str = "    ") -> str:
    """Wrap a text into lines with an end each.

    `first`, `later`: What the first line begins with, and each further one.
    """
    return "\n".join(wrapped(text, width, first, later)) + "\n"
