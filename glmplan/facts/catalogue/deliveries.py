"""Delivery times that somebody published, of `hardware_db/prices/delivery.csv`."""

from __future__ import annotations

from functools import lru_cache

from glmplan.facts.files import read_table
from glmplan.facts.folders import data_folder
from glmplan.facts.schema.price import Delivery
from glmplan.facts.schema.validation import validated

__all__ = ["deliveries_of", "load_deliveries"]


@lru_cache(maxsize=1)
def load_deliveries() -> tuple[Delivery, ...]:
    """Read all published delivery times.

    Returns
    -------
    tuple of Delivery
        In the order of the file.

    Raises
    ------
    SpecError
        If a line is wrong; names it.

    Examples
    --------
    >>> all(one.low <= one.high for one in load_deliveries())
    True
    """
    path = data_folder("hardware_db") / "prices" / "delivery.csv"
    header, *lines = read_table(path)
    return tuple(
        validated(Delivery, dict(zip(header, line, strict=True)), f"{path}:{number}")
        for number, line in enumerate(lines, start=2)
    )


def deliveries_of(part: str) -> tuple[Delivery, ...]:
    """What is published of a part; sources may contradict each other.

    Parameters
    ----------
    part : str
        Catalogue name.

    Returns
    -------
    tuple of Delivery
        Empty where nobody whom we read publishes a time.

    Examples
    --------
    >>> len(deliveries_of("b200-sxm")) > 1, deliveries_of("rtx-3090")
    (True, ())
    """
    return tuple(one for one in load_deliveries() if one.part == part)
