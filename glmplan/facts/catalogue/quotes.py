"""What quotes call things: part numbers instead of names, and the words over their columns."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from glmplan.errors import SpecError
from glmplan.facts.files import read_entries, read_toml
from glmplan.facts.folders import data_folder

__all__ = ["HeaderWords", "header_words", "part_numbers", "plain_words"]


@dataclass(frozen=True, slots=True)
class HeaderWords:
    """Words over columns.

    Attributes
    ----------
    columns : dict of str to tuple of str
        What a column holds → phrases over it, the longest first.
    totals : frozenset of str
        Phrases that begin a line of sums.
    taxes : frozenset of str
        Words that stand in a line of taxes.
    """

    columns: dict[str, tuple[str, ...]]
    totals: frozenset[str]
    taxes: frozenset[str]


def plain_words(text: object) -> str:
    """A text in small letters without accents, signs and double spaces.

    Parameters
    ----------
    text : object
        Any.

    Returns
    -------
    str
        Words with one space between.

    Examples
    --------
    >>> plain_words("Délai (jours) – Stück")
    'delai jours stuck'
    """
    return _plain(str(text))


@lru_cache(maxsize=20_000)
def _plain(text: str) -> str:
    bare = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    letters = "".join(one if one.isalnum() else " " for one in bare if not unicodedata.combining(one))
    return " ".join(letters.lower().split())


@lru_cache(maxsize=1)
def part_numbers() -> dict[str, str]:
    """Part numbers of cards and of nodes with their accelerators.

    Returns
    -------
    dict of str to str
        Number without signs, in small letters → name of an accelerator, or a machine as ``--on`` takes it.

    Raises
    ------
    SpecError
        If an entry names neither, or both.

    Examples
    --------
    >>> part_numbers()["9002g1330080000"], part_numbers()["sysa22ganbrt"]
    ('l40s', '8xb200-sxm')
    """
    path = data_folder("hardware_db") / "quotes" / "skus.toml"
    found = {}
    for one in read_entries(path, "skus", {"number", "accelerator", "on"}):
        named = [one[kind] for kind in ("accelerator", "on") if kind in one]
        if len(named) != 1:
            raise SpecError("names one accelerator or one machine", file=path, field="skus", value=one["number"])
        found[plain_words(one["number"]).replace(" ", "")] = named[0]
    return found


@lru_cache(maxsize=1)
def header_words() -> HeaderWords:
    """Words over the columns of quotes.

    Returns
    -------
    HeaderWords
        The words.

    Examples
    --------
    >>> "lieferzeit" in header_words().columns["delivery"]
    True
    """
    content = read_toml(data_folder("hardware_db") / "quotes" / "headers.toml")
    columns = {name: tuple(sorted(words, key=len, reverse=True)) for name, words in content["columns"].items()}
    return HeaderWords(columns, frozenset(content["totals"]["words"]), frozenset(content["totals"]["taxes"]))
