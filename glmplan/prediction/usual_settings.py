"""The interval of a cache pool whose launch nobody describes: it spans the settings that are usual."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_toml
from glmplan.facts.folders import data_folder
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["spanned", "usual_ends"]

#: setting of a launch → field of `MemorySettings`
_FIELDS = {"memory_fraction": "fraction", "max_num_seqs": "max_requests", "max_num_batched_tokens": "token_budget"}


@cache
def usual_ends(engine: str, name: str) -> tuple[float, float] | None:
    """Between which values an engine is usually told a setting.

    Parameters
    ----------
    engine : str
        The engine.
    name : str
        ``memory_fraction``, ``max_num_seqs`` or ``max_num_batched_tokens``.

    Returns
    -------
    tuple of float or None
        5 % and 95 % quantile of launches that set it, [unit of the setting]; None of engines that nobody counted.

    Raises
    ------
    SpecError
        If the file has no such pair.

    Examples
    --------
    >>> usual_ends("vllm", "memory_fraction"), usual_ends("mlx", "memory_fraction")
    ((0.8, 0.97), None)
    """
    file = data_folder("calibration") / "usual-settings.toml"
    entry = read_toml(file).get(engine)
    if entry is None:
        return None
    found = entry.get(name)
    if not isinstance(found, list) or len(found) != 2 or not 0 < found[0] < found[1]:
        raise SpecError("is not two rising numbers", file=file, field=f"{engine}.{name}", value=found)
    return float(found[0]), float(found[1])


def spanned(
    pool: Callable[[MemorySettings], tuple[float, float, float]], settings: MemorySettings, unstated: Collection[str]
) -> tuple[float, float, float]:
    """A pool whose interval also spans what nobody tells of the launch.

    Parameters
    ----------
    pool : callable
        Settings → tokens of the pool and the ends of their 90 % interval, [token]
    settings : MemorySettings
        What is told; the rest takes the engine's default.
    unstated : collection of str
        Fields of `glmplan.prediction.settings.Settings` that somebody may have set.

    Returns
    -------
    tuple of float
        Tokens under the defaults, and the wider ends, [token]

    Notes
    -----
    Settings are taken as independent: distances to the ends add as squares, on each side by itself.

    Examples
    --------
    >>> def pool(settings):
    ...     tokens = 1000.0 * (settings.fraction or 0.9)
    ...     return tokens, tokens, tokens
    >>> spanned(pool, MemorySettings(), {"memory_fraction"})
    (900.0, 800.0, 970.0)
    """
    value, low, high = pool(settings)
    below, above = (value - low) ** 2, (high - value) ** 2
    for name in sorted(unstated):
        ends = usual_ends(settings.engine, name)
        if ends is None:
            continue
        told: list[dict[str, Any]] = [{_FIELDS[name]: end} for end in ends]
        moved = [pool(replace(settings, **one))[0] - value for one in told]
        below, above = below + min(0.0, *moved) ** 2, above + max(0.0, *moved) ** 2
    return value, max(value - below**0.5, 0.0), value + above**0.5
