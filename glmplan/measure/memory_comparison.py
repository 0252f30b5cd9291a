"""Predicted memory beside what an engine logged of it, line by line."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.prediction.comparison import relative_error
from glmplan.prediction.start_memory import StartMemory
from glmplan.readers.runs.importers.startup import StartupLog
from glmplan.units import GIB

__all__ = ["MemoryLine", "beside"]


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
    low, high : float or None
        90 % interval of the prediction, in its unit; None where it has none.
    cause : str
        What the difference comes from, as far as the log shows it; empty where a side is missing.
    """

    what: str
    unit: str
    logged: float | None
    predicted: float | None
    line: int
    low: float | None = None
    high: float | None = None
    cause: str = ""

    @property
    def difference(self) -> float | None:
        """Predicted over logged less one; None where a side is missing or logged is zero, [-]"""
        return None if not self.logged or self.predicted is None else float(relative_error(self.predicted, self.logged))


#: field of the log → what it is, unit, size of the unit, field of the prediction
_QUANTITIES = (
    ("weights", "weights on a rank", "GiB", GIB, "weights"),
    ("activations", "activations", "GiB", GIB, "activations"),
    ("outside_torch", "memory outside torch", "GiB", GIB, ""),
    ("graph_estimate", "graphs as estimated", "GiB", GIB, "estimate"),
    ("graphs", "captured graphs", "GiB", GIB, "graphs"),
    ("kv_pool", "KV pool of a rank", "GiB", GIB, "pool"),
    ("kv_tokens", "KV pool", "token", 1.0, "tokens"),
    ("max_concurrency", "longest requests at once", "", 1.0, ""),
)
_WORDS = {
    "share": "memory of the part",
    "weights": "weights",
    "activations": "activations",
    "graph_estimate": "estimate of graphs",
    "outside_torch": "memory outside torch",
    "rest": "what the log does not tell",
}


def beside(logged: StartupLog, predicted: StartMemory | None) -> list[MemoryLine]:
    """Put what was predicted beside what was logged.

    Parameters
    ----------
    logged : StartupLog
        The engine's own words.
    predicted : StartMemory or None
        The prediction for the same model, machine and settings; None where there is none.

    Returns
    -------
    list of MemoryLine
        One line for each quantity that either side names, bytes in GiB; also the bytes of a token's cache. Each line
        that has both sides says what the difference comes from.

    Examples
    --------
    >>> from glmplan.prediction.start_memory import Span
    >>> log = StartupLog("vllm", weights=50 * 2.0**30, lines={"weights": 7})
    >>> half = 2.0**29
    >>> found = StartMemory("bf16", Span(55 * 2 * half, 54 * 2 * half, 56 * 2 * half), half)
    >>> [(x.what, x.logged, x.difference, x.line) for x in beside(log, found)][0]
    ('weights on a rank', 50.0, 0.1, 7)
    """
    lines = []
    for name, what, unit, size, field in _QUANTITIES:
        said, span = getattr(logged, name), _span(logged, predicted, name, field)
        if said is None and span is None:
            continue
        value, low, high = (None if one is None else one / size for one in span or (None, None, None))
        cause = _cause(logged, predicted, name) if said is not None and value is not None and predicted else ""
        shown = None if said is None else said / size
        lines.append(MemoryLine(what, unit, shown, value, logged.lines.get(name, 0), low, high, cause))
    pool = predicted.pool.value if predicted and predicted.pool else None
    tokens = predicted.tokens.value if predicted and predicted.tokens else None
    each = _each(logged.kv_pool, logged.kv_tokens), _each(pool, tokens)
    if any(value is not None for value in each):
        lines.append(MemoryLine("KV cache of a token on a rank", "B", *each, 0))
    return lines


def _span(
    log: StartupLog, found: StartMemory | None, name: str, field: str
) -> tuple[float, float | None, float | None] | None:
    """Predicted value and interval of a quantity; the ends are missing where nothing says how sure it is."""
    if found is None:
        return None
    if field == "activations":
        return found.activations, None, None
    if name == "outside_torch":
        return (-found.parts[name] / found.left, None, None) if name in found.parts else None
    if name == "graph_estimate" and log.graph_estimate is None and not found.parts.get(name):
        return None  # neither made nor taken
    if name == "max_concurrency":
        return (found.tokens.value / log.max_context, None, None) if found.tokens and log.max_context else None
    span = getattr(found, field)
    return None if span is None else (span.value, span.low, span.high)


def _cause(log: StartupLog, found: StartMemory, name: str) -> str:
    """What the difference of one quantity comes from."""
    if name == "kv_pool" and found.pool is not None:
        return _pool_cause(log, found)
    if name == "kv_tokens" and found.tokens is not None and found.pool is not None:
        if found.asked is not None:
            made = "as many as" if found.tokens.value == found.asked else "as many of those as have room that"
            return f"{made} the launch asks for"
        pool = relative_error(found.pool.value, log.kv_pool) if log.kv_pool else None
        whole = float(relative_error(found.tokens.value, log.kv_tokens or 1.0))
        if pool is None:
            return "the log does not tell the bytes of the pool"
        each = (1.0 + whole) / (1.0 + float(pool)) - 1.0
        return f"{float(pool):+.1%} by the bytes of the pool, {each:+.1%} by the bytes that a token takes"
    if name == "activations":
        asked = (("--max-num-seqs", log.max_sequences), ("--max-num-batched-tokens", log.max_batched_tokens))
        silent = [option for option, said in asked if said is None]
        return f"the log does not tell {' and '.join(silent)}: the engine's defaults" if silent else ""
    if name in ("outside_torch", "graph_estimate", "graphs"):
        untaken = name == "graph_estimate" and not found.parts.get(name)
        why = "the launch" if log.graphs_taken is False else "this version"
        return "the mean of other launches: no formula gives it" + f"; {why} does not take it from the pool" * untaken
    if name == "weights":
        inside = found.weights.holds(log.weights or 0.0)
        drafting = f"; it drafts ({log.speculative}), and the draft counts as the catalogue has it"
        said = "within what loading varies by" if inside else "outside of what loading varies by"
        said += "; each rank holds the whole image tower, as the log says" * bool(log.whole_tower)
        return said + drafting * (log.speculative is not None and not inside)
    return ""


def _pool_cause(log: StartupLog, found: StartMemory) -> str:
    """By how much each part of the pool differs; what is left belongs to parts that the log does not tell."""
    assert found.pool is not None and log.kv_pool is not None
    said = {
        "weights": log.weights,
        "activations": log.activations,
        "graph_estimate": log.graph_estimate,
        "outside_torch": log.outside_torch,
    }
    told = {name: -found.left * size for name, size in said.items() if size is not None and found.parts.get(name)}
    # an engine that takes its share of what is free counts no activations, and the log's total is not what it shares
    if log.total and log.memory_utilization and "activations" in found.parts:
        told["share"] = log.total * log.memory_utilization
    whole = found.pool.value - log.kv_pool
    if found.asked is not None:
        return f"{whole / GIB:+.2f} GiB: the launch asks for {found.asked:,.0f} tokens"
    parts = {name: found.parts[name] - size for name, size in told.items()}
    parts["rest"] = whole - sum(parts.values())
    words = [f"{size / GIB:+.2f} {_WORDS[name]}" for name, size in parts.items() if abs(size) >= _SHOWN]
    return f"{whole / GIB:+.2f} GiB: " + (", ".join(words) or "nothing above 0.01")


#: least part of a difference that is named [B]
_SHOWN = 0.005 * GIB


def _each(pool: float | None, tokens: float | None) -> float | None:
    return pool / tokens if pool is not None and tokens else None
