"""The memory of every rank of one layout, part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glmplan.physics.memory.observed import MemoryFit
from glmplan.physics.memory.part import PartMemory
from glmplan.physics.memory.pool import stage_pools
from glmplan.physics.memory.ranks import RankMemory, StageMemory
from glmplan.units import GIB

__all__ = ["MemoryBudget", "budget_rows"]


@dataclass(frozen=True, slots=True, repr=False)
class MemoryBudget:
    """Memory of one rank, part by part, [B].

    Attributes
    ----------
    label : str
        Which rank.
    weights : dict of str to float
        Weights by tensor class.
    activation, graphs, communication, reserve : float
        Peak of activations; CUDA graphs; context and communication buffers; what engines take beyond.
    graph_estimate : float
        What the engine leaves out of the pool for graphs before it captures them; no part of the sum.
    pool : float
        What the engine's rule leaves for the cache; negative where nothing is left.
    cache : float
        KV cache pool, 0 when nothing is left.
    per_token, state : float
        Cache for a token and for a sequence.
    host : float
        Weights of this rank in host memory.
    total, usable : float
        What is used, pool included; what the engine's rule lets it use.
    capacity : float
        Memory that an engine can address.
    """

    label: str
    weights: dict[str, float]
    activation: float
    graphs: float
    communication: float
    reserve: float
    graph_estimate: float
    pool: float
    cache: float
    per_token: float
    state: float
    host: float
    total: float
    usable: float
    capacity: float

    def __repr__(self) -> str:
        weights = sum(self.weights.values()) / GIB
        held = f"weights {weights:.1f} + cache {self.cache / GIB:.1f} of {self.capacity / GIB:.1f} GiB"
        return f"<MemoryBudget {self.label}: {held}>"

    @property
    def parts(self) -> dict[str, float]:
        """All parts by name, in the order of a bar, [B]"""
        return {
            **self.weights,
            "activation": self.activation,
            "graphs": self.graphs,
            "communication": self.communication,
            "reserve": self.reserve,
            "cache": self.cache,
        }

    @property
    def free(self) -> float:
        """What is left of the capacity; negative when the rank does not fit, [B]"""
        return self.capacity - self.total


def budget_rows(
    memory: RankMemory, part: PartMemory, *, fit: MemoryFit | None = None, point: int = 0
) -> list[MemoryBudget]:
    """Budget of every rank of one layout.

    Parameters
    ----------
    memory : RankMemory
        What the ranks hold.
    part : PartMemory
        The accelerator's memory.
    fit : MemoryFit, optional
        Observed terms.
    point : int, optional
        Which layout of `memory`, [-]

    Returns
    -------
    list of MemoryBudget
        Data-parallel ranks, then stages, then tensor-parallel ranks.

    Notes
    -----
    Experts that do not divide over the expert-parallel ranks are dealt one more to the first ranks.

    Examples
    --------
    >>> from glmplan.physics.memory.ranks import rank_memory
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.physics.points import Layout
    >>> from glmplan.facts.schema.model import DenseFfn, GroupedQuery, LayerKind, ModelSpec
    >>> layer = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> llama = ModelSpec(name="8b", family="llama", hidden=4096, vocabulary=128256, max_context=8192,
    ...                   layers={"full": layer}, stack="full*32", source="example")
    >>> held = rank_memory(llama, uniform_checkpoint("bf16"), layout=Layout(tp=1, pp=2), kv="bf16")
    >>> [row.label for row in budget_rows(held, PartMemory(80 * 2**30, 79.2 * 2**30, 0.0, "pcie"))]
    ['stage 0', 'stage 1']
    """
    tp, pp, dp, ep = (int(np.atleast_1d(getattr(memory.layout, name))[point]) for name in ("tp", "pp", "dp", "ep"))
    rows = []
    for stage, terms in zip(memory.stages[:pp], stage_pools(memory, part, fit)[:pp], strict=True):
        weights = {name: float(size[point]) for name, size in stage.weights.items() if size[point] > 0}
        used = {
            "activation": float(stage.activation[point]),
            "graphs": float(terms.graphs[point]),
            "communication": float(terms.context[point]),
            "reserve": max(float(terms.remainder[point]), 0.0),
        }
        cache = max(float(terms.pool[point]), 0.0)
        total = sum(weights.values()) + sum(used.values()) + cache
        rows.append(
            MemoryBudget(
                label="",
                weights=weights,
                **used,
                graph_estimate=float(terms.estimate[point]),
                pool=float(terms.pool[point]),
                cache=cache,
                per_token=float(_each(memory, stage)[point]),
                state=float(stage.state[point]),
                host=float(stage.host[point]),
                total=total,
                usable=float(terms.limit[point]),
                capacity=part.total,
            )
        )
    shares = _expert_shares(memory, tp * dp, ep)
    return [
        _named(rows[stage], shares[replica * tp + rank], replica, stage, rank, (tp, pp, dp))
        for replica in range(dp)
        for stage in range(pp)
        for rank in range(tp)
    ]


def _each(memory: RankMemory, stage: StageMemory) -> np.ndarray:
    """Cache for a token; where window layers have a pool of their own, with what they hold for it, [B]"""
    windows = 0.0 if memory.split is None else memory.split[2]
    return stage.per_token + windows * sum((held for _, held in stage.windows), np.zeros_like(stage.per_token))


def _expert_shares(memory: RankMemory, ranks: int, ep: int) -> list[float]:
    """Experts of each rank against the fullest rank."""
    experts = memory.experts
    fullest = -(-experts // ep) if experts else 1
    group = ranks // ep
    return [((experts // ep + (rank // group < experts % ep)) / fullest if experts else 1.0) for rank in range(ranks)]


def _named(
    row: MemoryBudget, share: float, replica: int, stage: int, rank: int, degrees: tuple[int, int, int]
) -> MemoryBudget:
    tp, pp, dp = degrees
    words = [f"replica {replica}"] * (dp > 1) + [f"stage {stage}"] * (pp > 1) + [f"rank {rank}"] * (tp > 1)
    weights = dict(row.weights)
    less = 0.0
    if "routed_experts" in weights:
        less = weights["routed_experts"] * (1.0 - share)
        weights["routed_experts"] -= less
    return replace(row, label=", ".join(words) or "the only rank", weights=weights, total=row.total - less)
