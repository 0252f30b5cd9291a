"""Compare predicted memory with a start-up log, line by line."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.io.runs.importers.startup_logs import StartupLog
from glmplan.prediction.reproduce import relative_error
from glmplan.prediction.start_memory import StartMemory
from glmplan.units import GIB

__all__ = ["MemoryLine", "StartupComparison", "beside", "parts_of", "predict_startup"]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One quantity of the comparison."""

    what: str
    unit: str
    logged: float | None
    predicted: float | None
    line: int  # of the log; 0 if not logged
    low: float | None = None  # 90 % interval of the prediction
    high: float | None = None
    cause: str = ""  # of the difference, as far as the log shows it

    @property
    def difference(self) -> float | None:
        """Return predicted / logged - 1; None if one is missing or logged is 0 [-]"""
        return None if not self.logged or self.predicted is None else float(relative_error(self.predicted, self.logged))


#: field of the log → quantity, unit, size of the unit, field of the prediction
_QUANTITIES = (
    ("weights", "weights on a rank", "GiB", GIB, "weights"),
    ("activations", "activations", "GiB", GIB, "activations"),
    ("outside_torch", "memory outside torch", "GiB", GIB, ""),
    ("graph_estimate", "estimated graphs", "GiB", GIB, "estimate"),
    ("graphs", "captured graphs", "GiB", GIB, "graphs"),
    ("kv_pool", "KV pool of a rank", "GiB", GIB, "pool"),
    ("draft_pool", "KV pool of the draft model", "GiB", GIB, ""),
    ("kv_tokens", "KV pool", "token", 1.0, "tokens"),
    ("max_concurrency", "requests of maximum length", "", 1.0, ""),
)
_WORDS = {
    "share": "memory of the accelerator",
    "weights": "weights",
    "activations": "activations",
    "graph_estimate": "estimate of graphs",
    "outside_torch": "memory outside torch",
    "rest": "not logged",
}


def beside(logged: StartupLog, predicted: StartMemory | None) -> list[MemoryLine]:
    """Return one line per quantity that log or prediction has, bytes in GiB.

    The cache bytes of a token are included. Lines with both values have the cause of the difference.

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
    for name, what, unit, size, attribute in _QUANTITIES:
        said, span = getattr(logged, name), _span(logged, predicted, name, attribute)
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
    """Return predicted value and bounds; bounds are None without an interval."""
    if found is None:
        return None
    if field == "activations":
        return found.activations, None, None
    if name == "outside_torch":
        return (-found.parts[name] / found.left, None, None) if name in found.parts else None
    if name == "graph_estimate" and log.graph_estimate is None and not found.parts.get(name):
        return None  # neither captured nor subtracted
    if name == "max_concurrency":
        return (found.tokens.value / log.max_context, None, None) if found.tokens and log.max_context else None
    span = getattr(found, field) if field else None
    return None if span is None else (span.value, span.low, span.high)


def _cause(log: StartupLog, found: StartMemory, name: str) -> str:
    """Return the cause of the difference of one quantity."""
    if name == "kv_pool" and found.pool is not None:
        return _pool_cause(log, found)
    if name == "kv_tokens" and found.tokens is not None and found.pool is not None:
        if found.asked is not None:
            return "the size requested at launch" + ", reduced to the free memory" * (found.tokens.value != found.asked)
        pool = relative_error(found.pool.value, log.kv_pool) if log.kv_pool else None
        relative = float(relative_error(found.tokens.value, log.kv_tokens or 1.0))
        if pool is None:
            return "the bytes of the pool are not logged"
        each = (1.0 + relative) / (1.0 + float(pool)) - 1.0
        return f"{float(pool):+.1%} from the bytes of the pool, {each:+.1%} from the bytes of a token"
    if name == "activations":
        options = (("--max-num-seqs", log.max_sequences), ("--max-num-batched-tokens", log.max_batched_tokens))
        silent = [option for option, value in options if value is None]
        return f"{' and '.join(silent)} not logged: the engine's defaults" if silent else ""
    if name in ("outside_torch", "graph_estimate", "graphs"):
        untaken = name == "graph_estimate" and not found.parts.get(name)
        why = "the launch" if log.graphs_taken is False else "this version"
        return "mean of other launches, no formula exists" + f"; {why} does not subtract it from the pool" * untaken
    if name == "weights":
        inside = found.weights.holds(log.weights or 0.0)
        drafting = f"; speculative decoding ({log.speculative}) with the draft weights of the catalog"
        verdict = "within the variation of loaded weights" if inside else "outside the variation of loaded weights"
        verdict += "; each rank holds the whole image encoder, as logged" * bool(log.whole_tower)
        return verdict + drafting * (log.speculative is not None and not inside)
    return ""


def _pool_cause(log: StartupLog, found: StartMemory) -> str:
    """Return the difference of each term of the pool, and the unlogged rest."""
    assert found.pool is not None and log.kv_pool is not None
    logged = {
        "weights": log.weights,
        "activations": log.activations,
        "graph_estimate": log.graph_estimate,
        "outside_torch": log.outside_torch,
    }
    terms = {name: -found.left * size for name, size in logged.items() if size is not None and found.parts.get(name)}
    # an engine that takes a share of the free memory counts no activations, and the logged total is not its base
    if log.total and log.memory_utilization and "activations" in found.parts:
        terms["share"] = log.total * log.memory_utilization
    difference = found.pool.value - log.kv_pool
    if found.asked is not None:
        return f"{difference / GIB:+.2f} GiB: the launch requests {found.asked:,.0f} tokens"
    parts = {name: found.parts[name] - size for name, size in terms.items()}
    parts["rest"] = difference - sum(parts.values())
    texts = [f"{size / GIB:+.2f} {_WORDS[name]}" for name, size in parts.items() if abs(size) >= _SHOWN]
    return f"{difference / GIB:+.2f} GiB: " + (", ".join(texts) or "nothing above 0.01")


#: smallest named term of a difference [B]
_SHOWN = 0.005 * GIB


def _each(pool: float | None, tokens: float | None) -> float | None:
    return pool / tokens if pool is not None and tokens else None


_LAYOUT = ("tp", "pp", "dp", "ep", "dcp")


@dataclass(frozen=True, slots=True)
class StartupComparison:
    """A start-up log compared with its prediction."""

    lines: list[MemoryLine]
    notes: list[str] = field(default_factory=list)  # assumptions, and the logged layout and backends
    why_not: str = ""  # reason of a missing prediction


def parts_of(on: str) -> dict[str, Any]:
    """Return the columns `accelerator` and `accelerator_count` of a machine.

    A name outside the catalog is kept.

    Examples
    --------
    >>> parts_of("8x rtx-pro-6000-ws")
    {'accelerator': 'rtx-pro-6000-ws', 'accelerator_count': 8}
    """
    from glmplan.catalog.entries.hosts import load_machine

    machine = load_machine(on.replace(" ", ""))
    return {"accelerator": machine.accelerator, "accelerator_count": machine.accelerator_count}


def predict_startup(log: StartupLog, *, model: str | None = None, on: str | None = None) -> StartupComparison:
    """Return the comparison of a start-up log with its prediction.

    Model and machine default to those in the log. Without a prediction the lines are the logged values, with the
    reason.
    """
    notes_of_log = [
        f"{what}: {value}"
        for what, value in (
            ("engine", " ".join(filter(None, (log.engine, log.version)))),
            ("model", log.model),
            ("layout", " ".join(f"{n}{getattr(log, n)}" for n in _LAYOUT if getattr(log, n))),
            ("KV cache", log.kv_cache),
            ("attention", log.attention_backend),
            ("experts", log.moe_backend),
        )
        if value
    ]
    name, machine = model or log.model, on or log.accelerator
    if name is None or machine is None:
        missing = " and ".join(w for w, v in (("--model", name), ("--on", machine)) if v is None)
        return StartupComparison(beside(log, None), notes_of_log, f"not logged: give {missing}")
    try:
        predicted, assumed = _predicted(log, name, machine)
    except (GlmplanError, KeyError) as error:
        return StartupComparison(beside(log, None), notes_of_log, str(error))
    return StartupComparison(beside(log, predicted), [*notes_of_log, *assumed])


def _predicted(log: StartupLog, name: str, machine: str) -> tuple[StartMemory, list[str]]:
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.hosts import load_machine
    from glmplan.prediction.start_memory import predict_start

    choice = _model(name, log.quantization)
    accelerator = load_accelerator(load_machine(machine).accelerator)
    prediction = predict_start(log, choice.model, choice.checkpoint, accelerator)
    assumed = [
        f"predicted for {choice.model.name}, checkpoint {choice.checkpoint.name}, on {accelerator.name}, "
        f"KV cache {prediction.kv}" + (", with draft layers" if log.speculative is not None else "")
    ]
    if prediction.tokens is not None:
        assumed.append(f"90 % of the KV pool: {prediction.tokens.low:,.0f} to {prediction.tokens.high:,.0f} tokens")
    silent = [words for field, words in _SETTINGS.items() if getattr(log, field) is None]
    if silent:
        assumed.append(f"not logged, taken as the engine's default: {', '.join(silent)}")
    return prediction, assumed


#: settings that decide memory: field of the log → text
_SETTINGS = {
    "memory_utilization": "memory share",
    "max_sequences": "running requests",
    "max_batched_tokens": "tokens of a step",
    "max_context": "longest request",
}
#: name endings of a repository that do not change the shapes of the weights
_WITHOUT_MEANING = ("mtp", "instruct", "chat", "it", "hf", "base", "thinking")


def _model(name: str, quantization: str | None) -> Any:
    """Return the model of a log by its name without owner and neutral endings."""
    from dataclasses import replace

    from glmplan.errors import UnknownName
    from glmplan.io.models.checkpoints import checkpoint_for
    from glmplan.io.models.resolve import resolve_model
    from glmplan.io.runs.importers.startup_logs import weights_of_method

    text = name.strip().rstrip("/").rpartition("/")[2] if not os.path.exists(name) else name
    # GGUF names have spaces: Qwen3 30B A3B Instruct 2507
    tried = [text if os.path.exists(name) else text.replace(" ", "-")]
    while (cut := tried[-1].rpartition("-"))[2].lower() in _WITHOUT_MEANING and cut[0]:
        tried.append(cut[0])
    failed: UnknownName | None = None
    for one in tried:
        try:
            choice = resolve_model(one)
        except UnknownName as error:
            failed = failed or error
            continue
        stored = weights_of_method(quantization)
        if stored is not None and not choice.stated:
            return replace(choice, checkpoint=checkpoint_for(choice.model, stored))
        return choice
    assert failed is not None
    raise failed
