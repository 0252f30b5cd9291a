"""Text of answers: widths, wrapped lines, numbers, verdicts, limits."""

from __future__ import annotations

from functools import lru_cache
from textwrap import TextWrapper
from typing import TYPE_CHECKING

from glmplan.units import MINUTE, Ratio, TokenCount, number

if TYPE_CHECKING:
    from glmplan.prediction.predict import Figure

__all__ = [
    "EVIDENCE_LABELS",
    "LEAST_WIDTH",
    "LIMITS",
    "VERDICTS",
    "WIDTH",
    "count_of",
    "halves",
    "paragraph",
    "span",
    "spans",
    "time_span",
    "verdict_words",
    "wrapped",
]

#: default width of a page [-]
WIDTH = 100
#: minimum width of a page [-]
LEAST_WIDTH = 60
#: class of `glmplan.prediction.effects.KNOWN_AS` → label of at most 25 characters
EVIDENCE_LABELS: dict[str, str] = {
    "site": "measured here",
    "configuration": "measured",
    "release": "other version",
    "group": "other layout",
    "group_release": "other layout and version",
    "pair": "model and GPU separately",
    "adapters": "without LoRA adapters",
    "unlike": "GPUs never together",
    "apart": "not disaggregated",
    "format": "other quantization",
    "accelerator": "GPU only",
    "model": "model only",
    "engine": "engine only",
    "nothing": "none",
}
VERDICTS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT", "unknown": "UNKNOWN"}
LIMITS = {"kv": "KV pool", "tpot": "decode speed", "queue": "queueing", "hazard": "hazard"}


def verdict_words(verdict: str, may_start: bool) -> str:
    """Return a verdict for a table cell.

    `may_start`: True if the shortfall is within the memory uncertainty.

    Examples
    --------
    >>> verdict_words("does_not_fit", True), verdict_words("tight", False)
    ('does not fit, borderline', 'tight')
    """
    return verdict.replace("_", " ") + ", borderline" * may_start


def span(figure: Figure, scale: Ratio = 1.0) -> str:
    """Return a value with its interval."""
    value, low, high = (number(end * scale) for end in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


def spans(figure: Figure) -> str:
    """Return a value with its 50 % and its 90 % interval.

    Examples
    --------
    >>> from glmplan.prediction.predict import Figure
    >>> spans(Figure(10.0, 5.0, 20.0))
    '10.0 (50 %: 7.53 to 13.3; 90 %: 5.00 to 20.0)'
    """
    low, high, least, most = (number(end) for end in (*figure.inner, figure.low, figure.high))
    return f"{number(figure.value)} (50 %: {low} to {high}; 90 %: {least} to {most})"


def halves(figure: Figure, scale: Ratio = 1.0) -> str:
    """Return the 50 % and the 90 % interval of a value.

    Examples
    --------
    >>> from glmplan.prediction.predict import Figure
    >>> halves(Figure(10.0, 5.0, 20.0))
    '7.53 to 13.3 (50 %), 5.00 to 20.0 (90 %)'
    """
    low, high = (number(end * scale) for end in figure.inner)
    return f"{low} to {high} (50 %), {number(figure.low * scale)} to {number(figure.high * scale)} (90 %)"


def time_span(figure: Figure) -> str:
    """Return a time with its interval: seconds, or minutes above 60 s.

    Examples
    --------
    >>> from glmplan.prediction.predict import Figure
    >>> time_span(Figure(0.75, 0.2, 4.34)), time_span(Figure(360.4, 120.0, 600.0))
    ('0.75 (0.20 to 4.34) s', '6.01 (2.00 to 10.0) min')
    """
    return f"{span(figure)} s" if figure.value <= MINUTE else f"{span(figure, 1.0 / MINUTE)} min"


def count_of(count: TokenCount, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> count_of(1, "user"), count_of(1200, "user")
    ('1 user', '1,200 users')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


@lru_cache(maxsize=256)
def wrapped(text: str, width: int, first: str = "  ", later: str = "    ") -> tuple[str, ...]:
    """Return the wrapped lines of a text.

    `first` and `later` are the indents of the first line and of each further line.

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
    """Return a wrapped text, each line with its newline.

    `first` and `later` are the indents of the first line and of each further line.
    """
    return "\n".join(wrapped(text, width, first, later)) + "\n"
