"""How much wider the interval of a row is that no fit takes: such rows lie outside more often than others."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from glmplan.facts.files import read_toml
from glmplan.facts.folders import fits_folder

__all__ = ["FILE", "refused_widths"]

#: name of the file in the folder of the fits
FILE = "refused.toml"


def refused_widths() -> dict[str, float]:
    """By how much the ends of an interval are stretched where a row is marked with a reason why no fit takes it.

    Returns
    -------
    dict of str to float
        Kind of figure (``ttft``, ``prefill``, ``decode``) → factor on the logarithms of both ends over the value, at
        least 1; kinds that the file lacks keep their ends, and all do beside fits that were made without it, [-]

    Raises
    ------
    SpecError
        If the file cannot be read.

    Examples
    --------
    >>> refused_widths()["decode"] > 1.5
    True
    """
    return _read(fits_folder())


@lru_cache(maxsize=8)
def _read(folder: Path) -> dict[str, float]:
    if not (folder / FILE).exists():
        return {}
    return {kind: max(float(row[0]), 1.0) for kind, row in read_toml(folder / FILE)["stretch"].items()}
