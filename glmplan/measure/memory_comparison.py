"""Predicted memory beside what an engine logged of it, line by line."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.prediction.comparison import relative_error
from glmplan.readers.runs.importers.startup import StartupLog
from glmplan.units import GIB

__all__ = ["MemoryLine", "MemoryPrediction", "beside"]


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """What glmplan predicts of one rank's memory; None where it predicts nothing.

    Parameters
    ----------
    weights : float or None
        Weights on the fullest rank, [B]
    kv_pool : float or None
        Memory left for the KV cache on the poorest rank, [B]
    kv_tokens : float or None
        Tokens the pool holds, [token]
    graphs : float or None
        Captured graphs, [B]
    activations : float or None
        Peak of activations, [B]
    max_concurrency : float or None
        Requests of the longest length that fit, [-]
    """

    weights: float | None = None
    kv_pool: float | None = None
    kv_tokens: float | None = None
    graphs: float | None = None
    activations: float | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line of the comparison.

    Parameters
    ----------
    what : str
        The quantity.
    unit : str
        Unit of both values.
    logged, predicted : float or None
        The two values; None where a side says nothing.
    line : int
        Line of the log; 0 if it does not say, [-]
    """

    what: str
    unit: str
    logged: float | None
    predicted: float | None
    line: int

    @property
    def difference(self) -> float | None:
        """Predicted over logged less one; None where a side is missing or logged is zero, [-]"""
        return None if not self.logged or self.predicted is None else float(relative_error(self.predicted, self.logged))


_QUANTITIES = (
    ("weights", "weights on a rank", "GiB", GIB),
    ("activations", "activations", "GiB", GIB),
    ("graphs", "captured graphs", "GiB", GIB),
    ("kv_pool", "KV pool of a rank", "GiB", GIB),
    ("kv_tokens", "KV pool", "token", 1.0),
    ("max_concurrency", "longest requests at once", "", 1.0),
)


def beside(logged: StartupLog, predicted: MemoryPrediction) -> list[MemoryLine]:
    """Put what was predicted beside what was logged.

    Parameters
    ----------
    logged : StartupLog
        The engine's own words.
    predicted : MemoryPrediction
        The prediction for the same model, machine and settings.

    Returns
    -------
    list of MemoryLine
        One line for each quantity that either side names, bytes in GiB; also the bytes of a token's cache.

    Examples
    --------
    >>> log = StartupLog("vllm", weights=50 * 2.0**30, lines={"weights": 7})
    >>> [(x.what, x.logged, x.difference, x.line) for x in beside(log, MemoryPrediction(weights=55 * 2.0**30))]
    [('weights on a rank', 50.0, 0.1, 7)]
    """
    lines = []
    for name, what, unit, size in _QUANTITIES:
        said, computed = getattr(logged, name), getattr(predicted, name)
        if said is not None or computed is not None:
            shown = (None if said is None else said / size, None if computed is None else computed / size)
            lines.append(MemoryLine(what, unit, *shown, logged.lines.get(name, 0)))
    each = _each(logged.kv_pool, logged.kv_tokens), _each(predicted.kv_pool, predicted.kv_tokens)
    if any(value is not None for value in each):
        lines.append(MemoryLine("KV cache of a token on a rank", "B", *each, 0))
    return lines


def _each(pool: float | None, tokens: float | None) -> float | None:
    return pool / tokens if pool is not None and tokens else None
