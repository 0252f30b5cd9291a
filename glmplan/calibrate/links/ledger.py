"""Read the ledgers of measured transfers and collectives."""

from __future__ import annotations

from functools import lru_cache

from glmplan.facts.files import read_rows
from glmplan.facts.folders import data_folder

__all__ = ["LEDGERS", "read_transfers"]

#: The ledgers, in `calibration/measurements`.
LEDGERS = ("pcie-topologies.csv", "collectives.csv")


@lru_cache(maxsize=4)
def read_transfers(name: str) -> tuple[dict[str, str], ...]:
    """Read a ledger of measured transfers.

    Parameters
    ----------
    name : str
        File name in `calibration/measurements`.

    Returns
    -------
    tuple of dict
        One for each row, column → text.

    Examples
    --------
    >>> len(read_transfers("pcie-topologies.csv"))
    622
    """
    return tuple(read_rows(data_folder("calibration") / "measurements" / name))
