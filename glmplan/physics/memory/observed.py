"""Memory that no formula gives: driver, context, CUDA graphs and what engines take beyond, with their spread.

The terms are fitted to lines of engine start-up logs by `glmplan.calibrate.memory` and read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from glmplan.facts.files import read_toml
from glmplan.facts.folders import fits_folder
from glmplan.units import parse_quantity

__all__ = ["LoadedShare", "MemoryFit", "Spread", "load_memory_fit"]


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
class LoadedShare:
    """Share by which the weights that an engine logs may differ from the computed ones.

    Attributes
    ----------
    share : float
        Half of a 90 % interval, [-]
    count : int
        Sources, [-]
    """

    share: float
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
    outside : dict of str to dict of str to Spread
        What an engine whose trial run is known takes beside it, in place of context and remainder, by engine and then
        kind of launch (`glmplan.physics.memory.pool.launch_kinds`), [B]
    estimate : dict of str to dict of str to Spread
        What an engine takes from its pool for CUDA graphs before it captures them, likewise, [B]
    captured : dict of str to dict of str to Spread
        What its captured graphs take, likewise, [B]
    loaded : dict of str to LoadedShare
        The interval of the weights, by engine.
    """

    driver: Spread
    context: dict[str, Spread]
    graph: Spread
    remainder: dict[str, Spread]
    outside: dict[str, dict[str, Spread]] = field(default_factory=dict)
    estimate: dict[str, dict[str, Spread]] = field(default_factory=dict)
    captured: dict[str, dict[str, Spread]] = field(default_factory=dict)
    loaded: dict[str, LoadedShare] = field(default_factory=dict)


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

    def spreads(name: str) -> dict[str, dict[str, Spread]]:
        return {
            engine: {where: spread(entry) for where, entry in entries.items()}
            for engine, entries in content.get(name, {}).items()
        }

    return MemoryFit(
        driver=spread(content["driver"]),
        context={name: spread(entry) for name, entry in content["context"].items()},
        graph=spread(content["graph"]),
        remainder={name: spread(entry) for name, entry in content["remainder"].items()},
        outside=spreads("outside"),
        estimate=spreads("estimate"),
        captured=spreads("captured"),
        loaded={
            engine: LoadedShare(float(entry["share"]), entry["count"])
            for engine, entry in content.get("loaded", {}).items()
        },
    )
