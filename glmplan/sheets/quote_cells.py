"""What a cell of a quote says: a number, an amount of money, a machine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from glmplan.errors import SpecError
from glmplan.facts.catalogue.accelerators import accelerator_aliases, accelerator_names, load_accelerator
from glmplan.facts.catalogue.hosts import host_names
from glmplan.facts.catalogue.quotes import part_numbers, plain_words
from glmplan.facts.folders import plain_name

__all__ = ["Named", "currency_in", "machine_in", "number_in"]

_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "us$": "USD", "chf": "CHF", "fr.": "CHF"}
_CODES = (
    "USD",
    "EUR",
    "GBP",
    "CHF",
    "JPY",
    "CNY",
    "SEK",
    "NOK",
    "DKK",
    "PLN",
    "CZK",
    "AUD",
    "CAD",
    "INR",
    "SGD",
    "KRW",
)
_DIGITS = re.compile(r"[-+]?\d[\d.,'’\s\u00a0\u202f]*")
_TIMES = re.compile(r"(?<![\w.])(\d{1,3})\s*(?:[x×*]|pcs\.?|stk\.?|units? of)\s*(?=\D)", re.IGNORECASE)
#: words that say nothing about which card it is
_NOISE = frozenset(
    (
        *("nvidia", "amd", "intel", "geforce", "tesla", "quadro", "radeon", "instinct", "gpu", "gpus", "card", "cards"),
        *("edition", "graphics", "accelerator", "the", "with", "tensor", "core", "generation", "gddr6", "gddr7"),
        *("hbm2e", "hbm3", "hbm3e"),
    )
)
#: cards of a machine that a bare number of cards is taken to stand in [-]
_IN_ONE = 8


def currency_in(text: object) -> str:
    """Currency that a text names.

    Parameters
    ----------
    text : object
        A cell, a header or a number format.

    Returns
    -------
    str
        Its code; empty if it names none.

    Examples
    --------
    >>> currency_in("Preis [€]"), currency_in("12 USD"), currency_in("Menge")
    ('EUR', 'USD', '')
    """
    words = str(text)
    for code in _CODES:
        if re.search(rf"(?<![A-Za-z]){code}(?![A-Za-z])", words, re.IGNORECASE):
            return code
    return next((code for sign, code in _SIGNS.items() if sign in words.lower()), "")


def number_in(value: object) -> float | None:
    """A number as people write it, whichever signs part thousands and decimals.

    Parameters
    ----------
    value : object
        A number, or text.

    Returns
    -------
    float or None
        The number; None if the text holds none, [unit of the cell]

    Examples
    --------
    >>> number_in("12.345,60 €"), number_in("$ 8,500"), number_in("1 234 567"), number_in("on request")
    (12345.6, 8500.0, 1234567.0, None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _DIGITS.search(str(value or ""))
    if found is None:
        return None
    digits = re.sub(r"[\s\u00a0\u202f'’]", "", found[0]).rstrip(".,")
    for decimal, thousands in ((",", "."), (".", ",")):
        if decimal in digits and thousands in digits and digits.rfind(decimal) > digits.rfind(thousands):
            digits = digits.replace(thousands, "").replace(decimal, ".")
            break
    else:
        sign = "," if "," in digits else "."
        groups = digits.split(sign)
        # three digits behind each sign are thousands; anything else behind a single sign are decimals
        if len(groups) > 1 and all(len(one) == 3 for one in groups[1:]) and groups[0].lstrip("+-0"):
            digits = "".join(groups)
        else:
            digits = digits.replace(",", ".")
    factor = 1000.0 if re.match(r"\s*k\b", str(value)[found.end() :], re.IGNORECASE) else 1.0
    try:
        return factor * float(digits)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """A machine that a row names.

    Attributes
    ----------
    on : str
        As `glmplan.fit` takes it.
    machines : int
        How many, [-]
    """

    on: str
    machines: int


@lru_cache(maxsize=1)
def _cards() -> tuple[tuple[frozenset[str], str], ...]:
    """Words that all have to stand in a text for it to name a card."""
    found = []
    for name in accelerator_names():
        part = load_accelerator(name)
        for text in (name, part.full_name, *(alias for alias, of in accelerator_aliases().items() if of == name)):
            words = frozenset(_words(text))
            if words:
                found.append((words, name))
    return tuple(found)


def _words(text: object) -> list[str]:
    # 80 GB and 80GB, SXM5 and SXM are the same
    joined = re.sub(r"\b(\d+) g[bi]b?\b", r"\1gb", plain_words(text))
    joined = re.sub(r"\b(\d+)gib\b", r"\1gb", joined)
    joined = re.sub(r"\bsxm\d\b", "sxm", joined).replace("workstation", "ws")
    return [one for one in joined.split() if one not in _NOISE]


def machine_in(text: object, part_number: object, count: float | None, known: dict[str, str]) -> Named:
    """The machine that a row of a quote offers.

    Parameters
    ----------
    text : object
        What the row calls it.
    part_number : object
        Its part number, if there is one.
    count : float or None
        How many, [-]
    known : dict of str to str
        Names of the buyer → machines.

    Returns
    -------
    Named
        The machine. A bare card makes one machine of up to eight; ``8x`` in the text, or a host, is a machine of its
        own, of which there are as many as the row says.

    Raises
    ------
    SpecError
        If it cannot be told which it is: says why in one line.

    Examples
    --------
    >>> machine_in("NVIDIA RTX PRO 6000 Blackwell Server Edition 96 GB", None, 4, {})
    Named(on='4xrtx-pro-6000-server', machines=1)
    >>> machine_in("Server, 8x H200 SXM5 141GB", None, 2, {})
    Named(on='8xh200-sxm', machines=2)
    """
    number = 1 if count is None else round(count) if math.isfinite(count) else 0
    if number < 1 or (count is not None and abs(count - number) > 1e-9):
        raise SpecError(f"the count {count:g} is no number of machines")
    said = known.get(plain_words(text)) or known.get(plain_words(part_number or ""))
    if said is not None:
        return _of(said, number)
    whole = plain_name(str(text)) if text else ""
    if whole in host_names():
        return Named(whole, number)
    host = _host_by_words(text)
    if host is not None:
        return Named(host, number)
    part = _by_number(part_number) or _by_number_in(text)
    part = part or _by_words(text)
    if re.match(r"\d+x", part) or part in host_names():  # a node; its number says what is in it
        return Named(part, number)
    times = _TIMES.search(str(text or ""))
    if times is not None and int(times[1]) > 0:
        return Named(f"{int(times[1])}x{part}", number)
    return _of(part, number)


def _of(part: str, number: int) -> Named:
    if re.match(r"\d+x", part) or part in host_names():
        return Named(part, number)
    if number <= _IN_ONE:
        return Named(f"{number}x{part}", 1)
    if number % _IN_ONE:
        raise SpecError(f"{number} cards do not fill machines of {_IN_ONE}: write 8x in the name, or map it")
    return Named(f"{_IN_ONE}x{part}", number // _IN_ONE)


def _by_number(number: object) -> str | None:
    return part_numbers().get(plain_words(number or "").replace(" ", ""))


def _by_number_in(text: object) -> str | None:
    return next((found for one in str(text or "").split() if (found := _by_number(one.strip("(),;")))), None)


def _host_by_words(text: object) -> str | None:
    """A host of which all words stand in the text; how many cards it holds may be left out."""
    words, found = set(_words(text)), {}
    for name in host_names():
        named = name.split("-")
        needed = set(_words(" ".join(named[:-1] if named[-1].isdigit() else named)))
        if len(needed) > 1 and needed <= words and not any(one.isdigit() for one in needed):
            found[name] = (len(needed), -len(named))
    best = [name for name, size in found.items() if size == max(found.values())]
    return best[0] if len(best) == 1 else None


def _by_words(text: object) -> str:
    if not str(text or "").strip():
        raise SpecError("the row names no hardware")
    words = set(_words(text))
    found: dict[str, int] = {}
    for needed, name in _cards():
        if needed <= words:
            found[name] = max(found.get(name, 0), len(needed))
    best = [name for name, size in found.items() if size == max(found.values())]
    if len(best) == 1:
        return best[0]
    shown = " ".join(str(text).split())[:60]
    if best:
        raise SpecError(f"“{shown}” may be {' or '.join(sorted(best))}: say which")
    near = sorted({name for needed, name in _cards() if needed & words & _telling()})
    if near and len(near) <= 6:
        raise SpecError(f"“{shown}” may be {' or '.join(near)}: say which")
    raise SpecError(f"“{shown}” names no accelerator that is known: map it, or see glmplan hardware list")


@lru_cache(maxsize=1)
def _telling() -> frozenset[str]:
    """Words with a letter and a digit, as in H100, that stand in names of cards."""
    words = {one for needed, _ in _cards() for one in needed}
    return frozenset(one for one in words if re.search(r"[a-z]", one) and re.search(r"\d", one) and "gb" not in one)
