"""Predict the memory that an engine logs at its start.

Each value has its interval.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from glmplan.catalog.entries.names import kv_name
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.memory import MemorySettings, RankMemory, kv_pool, part_memory, rank_memory
from glmplan.costs.memory.pool import (
    PoolTerms,
    graph_estimate,
    keys_share,
    printed_of_bytes,
    stage_pools,
    weights_interval,
)  # fmt: skip
from glmplan.costs.memory.ranks import StageMemory
from glmplan.costs.memory.settings import MemoryFit, PartMemory, load_memory_fit
from glmplan.costs.points import Layout
from glmplan.io.runs.importers.startup_logs import StartupLog
from glmplan.io.runs.record import read_speculation
from glmplan.prediction.deployment import Settings, default_kv, spanned
from glmplan.units import QUANTILE_90, Bytes, TokenCount, Tokens

__all__ = ["Span", "StartMemory", "drafted_of_log", "launched", "predict_start", "settings_of_log"]

_LAYOUT = ("tp", "pp", "dp", "ep", "dcp")


@dataclass(frozen=True, slots=True)
class Span:
    """A quantity [B] or [token] with its 90 % interval."""

    value: float
    low: float
    high: float

    def holds(self, seen: float) -> bool:
        """Return True if a logged value lies inside the interval."""
        return self.low <= seen <= self.high


@dataclass(frozen=True, slots=True)
class StartMemory:
    """Predicted start-up log; None if the accelerator's memory is unknown."""

    kv: str  # cache format
    weights: Span  # of the fullest rank as logged before the pool [B]
    activations: Bytes  # peak of the profiling run
    pool: Span | None = None  # keys and values on the rank with least memory, without a split pool's states [B]
    graphs: Span | None = None  # captured CUDA graphs [B]
    tokens: Span | None = None  # logged cache size [token]
    tokens_of_pool: Tokens | None = None  # cache size that the engine logs for the logged bytes of its pool
    estimate: Span | None = None  # expected graph memory before capture, subtracted from the pool or not [B]
    parts: dict[str, float] = field(
        default_factory=dict
    )  # signed terms of the pool: share, weights, activations, graph_estimate, outside_torch, rest
    left: float = 1.0  # share of the free memory that becomes the pool; scales all parts
    asked: Tokens | None = None  # cache size limit of the launch


def settings_of_log(log: StartupLog, *, graphs: bool = True) -> Settings:
    """Return the launch settings of a log; engines print what is set.

    Examples
    --------
    >>> settings_of_log(StartupLog("vllm", max_sequences=64.0)).max_num_seqs
    64
    """

    def whole(value: float | None) -> int | None:
        return None if value is None else int(value)

    return Settings(
        memory_fraction=log.memory_utilization,
        max_num_seqs=whole(log.max_sequences),
        max_num_batched_tokens=whole(log.max_batched_tokens),
        max_model_len=whole(log.max_context),
        attention_backend=log.attention_backend or "",
        moe_backend=log.moe_backend or "",
        graphs=graphs,
    )


def drafted_of_log(log: StartupLog) -> TokenCount:
    """Return the draft tokens per step; 0 without, or if not logged.

    Examples
    --------
    >>> drafted_of_log(StartupLog("vllm", speculative="mtp 3")), drafted_of_log(StartupLog("vllm"))
    (3, 0)
    """
    return read_speculation(log.speculative or "none", "", None, None).draft_tokens or 0


def launched(
    log: StartupLog, model: ModelSpec, checkpoint: Checkpoint, part: Accelerator | None, *, graphs: bool = True
) -> tuple[RankMemory, str]:
    """Return the memory of the ranks of a logged launch, and its cache format.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> launched(StartupLog("vllm"), llama, llama.checkpoint("bf16"), None)[1]
    'bf16'
    """
    settings = settings_of_log(log, graphs=graphs).memory(
        engine=log.engine,
        version=log.version,
        accelerator=part.name if part is not None else None,
        draft_tokens=drafted_of_log(log),
    )
    settings = replace(settings, graphs_taken=log.graphs_taken, whole_tower=bool(log.whole_tower))
    if graphs:
        settings = replace(settings, graphs=log.graph_count)
    kv = kv_name(log.kv_cache or "") or default_kv(checkpoint, log.engine, model=model, accelerator=part)
    return _ranks(log, model, checkpoint, part, settings, kv), kv


def _ranks(
    log: StartupLog,
    model: ModelSpec,
    checkpoint: Checkpoint,
    part: Accelerator | None,
    settings: MemorySettings,
    kv: str,
) -> RankMemory:
    return rank_memory(
        model,
        checkpoint,
        layout=Layout(**{name: np.array([getattr(log, name) or 1]) for name in _LAYOUT}),
        kv=kv,
        settings=settings,
        mtp=log.speculative is not None,
        memory=None if part is None else float(part.need("memory")),
    )


def predict_start(
    log: StartupLog,
    model: ModelSpec,
    checkpoint: Checkpoint,
    part: Accelerator | None,
    *,
    graphs: bool = True,
    unstated: Collection[str] = (),
    fit: MemoryFit | None = None,
) -> StartMemory:
    """Return the predicted memory of a start; logged memory is not used.

    Without an accelerator only weights are predicted. Intervals cover the usual values of `unstated` settings. `fit`
    defaults to the shipped terms.

    Notes
    -----
    Weights of a draft model count where the engine counts them: before the pool in vLLM, separately in SGLang.
    """
    fit = fit or load_memory_fit()
    held, kv = launched(log, model, checkpoint, part, graphs=graphs)
    rule = held.settings.rule
    first = held.weights[0]
    if not rule.draft_in_pool:
        first = max(float((stage.weight_bytes - stage.weights.get("mtp", 0.0))[0]) for stage in held.stages)
    smaller, larger = weights_interval(held, fit)
    weights = Span(float(first), float(first * (1.0 - smaller)), float(first * (1.0 + larger)))
    peak = max(float(stage.activation[0]) for stage in held.stages)
    if part is None:
        return StartMemory(kv, weights, peak)
    seen = part_memory(part, fit=fit)
    if log.total is not None:  # the machine's own memory, independent of the launch
        seen = replace(seen, total=log.total, total_sd=0.0)
    longest = log.max_context or float(model.max_context)
    requested = log.cells if rule.pool == "rest" else None
    pool = kv_pool(held, seen, context=longest, fit=fit)
    stage = held.stages[int(pool.stage[0])]
    terms, keys = stage_pools(held, seen, fit)[stage.index], keys_share(held, stage)

    def sizes(settings: MemorySettings) -> tuple[float, float, float]:
        told = kv_pool(_ranks(log, model, checkpoint, part, settings, kv), seen, context=longest, fit=fit)
        value = keys * float(told.bytes[0])
        low, high = (keys * QUANTILE_90 * float(terms.deviation(side)[0]) for side in (-1.0, 1.0))
        bounds = value, value - low, value + high
        if requested is None:
            return bounds
        made = _made(stage, requested, longest)
        return min(made, bounds[0]), min(made, bounds[1]), min(made, bounds[2])

    def tokens(settings: MemorySettings) -> tuple[float, float, float]:
        told = kv_pool(_ranks(log, model, checkpoint, part, settings, kv), seen, context=longest, fit=fit)
        bounds = float(told.printed[0]), float(told.printed_low[0]), float(told.printed_high[0])
        most = np.inf if requested is None else requested
        return min(most, bounds[0]), min(most, bounds[1]), min(most, bounds[2])

    captured = float(terms.graphs[0])
    sure = QUANTILE_90 * float(terms.graphs_sd[0])
    return StartMemory(
        kv,
        weights,
        peak,
        pool=Span(*spanned(sizes, held.settings, unstated)),
        graphs=Span(captured, max(captured - sure, 0.0), captured + sure),
        tokens=Span(*spanned(tokens, held.settings, unstated)),
        tokens_of_pool=None if log.kv_pool is None else printed_of_bytes(held, stage, log.kv_pool / keys, longest),
        estimate=_estimate(held, seen, fit) if graphs else None,
        parts=_parts(terms, weights.value, peak, float(pool.bytes[0]), rule.pool),
        left=float(terms.share[0]),
        asked=requested,
    )


def _made(stage: StageMemory, tokens: float, context: float) -> float:
    """Return the cache of a rank for tokens in requests of some context [B]"""
    growing_only = not stage.windows and not stage.state.any()
    each = stage.per_token if growing_only else stage.request_bytes(context) / context
    return float(each[0]) * tokens


def _estimate(held: RankMemory, part: PartMemory, fit: MemoryFit) -> Span | None:
    """Return the engine's graph estimate; None if it makes none."""
    if held.settings.engine not in fit.estimate:
        return None
    mean, sd = (float(one[0]) for one in graph_estimate(held, part, fit))
    return Span(mean, max(mean - QUANTILE_90 * sd, 0.0), mean + QUANTILE_90 * sd)


def _parts(terms: PoolTerms, weights: float, peak: float, pool: float, kind: str) -> dict[str, float]:
    """Return the terms of a pool; SGLang's omits activations and graphs."""
    terms_of_pool = {"share": float(terms.limit[0]), "weights": -weights}
    if kind in ("after_load", "after_weights"):  # the pool is a share of the free memory, so each term is scaled
        peak = peak if kind == "after_load" else 0.0
        outside = float((terms.context + terms.remainder + terms.graphs)[0])
        terms_of_pool |= {
            "share": float((terms.limit + terms.context)[0]),
            "activations": -peak,
            "outside_torch": -outside,
        }
        terms_of_pool = {name: float(terms.share[0]) * size for name, size in terms_of_pool.items()}
        return terms_of_pool | {"graph_estimate": 0.0, "rest": pool - sum(terms_of_pool.values())}
    if kind != "before_load":
        terms_of_pool["activations"] = -peak
        terms_of_pool["outside_torch"] = -float((terms.context + terms.remainder)[0])
    terms_of_pool["graph_estimate"] = -float(terms.estimate[0])
    return terms_of_pool | {"rest": pool - sum(terms_of_pool.values())}
