"""Memory that no formula gives: driver, context, CUDA graphs and what engines take beyond, with their spread.

The terms are fitted to lines of engine start-up logs by `glmplan.calibrate.memory` and read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.facts.files import read_toml
from glmplan.facts.folders import fits_folder
from glmplan.units import parse_quantity

__all__ = ["MemoryFit", "Spread", "load_memory_fit"]


@dataclass(frozen=True, slots=True)
class Spread:
    """An observed quantity: its mean, standard deviation and the number of observations.

    Attributes
    ----------
    mean, sd : float
        [B]
    count : int
        Observations; 0 means a prior, [-]
    """

    mean: float
    sd: float
    count: int


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """What was observed of memory that no formula gives.

    Attributes
    ----------
    driver : Spread
        Memory that nvidia-smi lists but an engine cannot see, [B]
    context : dict of str to Spread
        Taken before weights are loaded, by link (``pcie``, ``nvlink``, ``single``), [B]
    graph : Spread
        One captured CUDA graph, [B]
    remainder : dict of str to Spread
        What an engine takes beyond weights, activations and context, by engine; ``pooled`` for others, [B]
    """

    driver: Spread
    context: dict[str, Spread]
    graph: Spread
    remainder: dict[str, Spread]


@cache
def load_memory_fit() -> MemoryFit:
    """Read the fitted memory terms.

    Returns
    -------
    MemoryFit
        The terms.

    Examples
    --------
    >>> load_memory_fit().driver.mean > 0
    True
    """
    content = read_toml(fits_folder() / "memory.toml")

    def spread(entry: dict[str, Any]) -> Spread:
        mean = parse_quantity(entry["mean"], "bytes", signed=True)
        return Spread(mean, parse_quantity(entry["sd"], "bytes"), entry["count"])

    return MemoryFit(
        driver=spread(content["driver"]),
        context={name: spread(entry) for name, entry in content["context"].items()},
        graph=spread(content["graph"]),
        remainder={name: spread(entry) for name, entry in content["remainder"].items()},
    )
