"""Memory of many layouts at once: the cache pool of each, what it holds, and by how much it falls short."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.facts.remembered import remembered
from glmplan.physics.memory.budget import MemoryBudget, budget_rows
from glmplan.physics.memory.part import PartMemory, part_memory
from glmplan.physics.memory.pool import KvPool, PoolTerms, kv_pool, largest_context, requests_that_fit, stage_pools
from glmplan.physics.memory.ranks import RankMemory, rank_memory
from glmplan.physics.memory.settings import MemorySettings
from glmplan.physics.points import Layout
from glmplan.plan.engine_limits import Terms
from glmplan.plan.question import Asked
from glmplan.units import QUANTILE_90

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator
    from glmplan.facts.schema.model import Checkpoint, ModelSpec

__all__ = ["LOW", "MAY_START", "Holding", "Ranks", "contexts_of", "settings_of", "stage_ranks"]

#: what is said of a plan that lacks no more than what is uncertain of its memory
MAY_START = "but is within the uncertainty of memory (it may start; measure it)"
#: standard deviations from the mean to the low end of a 90 % interval [-]
LOW = -QUANTILE_90


@dataclass(frozen=True, slots=True, repr=False)
class Holding:
    """What one layout holds.

    Attributes
    ----------
    terms : Terms
        The layout and what runs on it.
    memory : RankMemory
        Ranks of several layouts.
    point : int
        Which of them is this one, [-]
    part : PartMemory
        The accelerator's memory.
    pool, pool_low, pool_high : float
        Tokens of the cache pool in requests of the asked length and their 90 % interval, all servers together, [token]
    pool_bytes : float
        Pool of the rank that limits; negative when weights alone are too much, [B]
    stage : int
        Pipeline stage that limits, [-]
    context, context_low : float
        Longest request that the pool holds alone, mean and low end; the model's limit is not applied, [token]
    held, held_low : float
        Requests of the asked length that the pool holds, mean and low end, all servers that decode, [-]
    short : float
        What one full-length request lacks on the rank that limits; 0 or less when it fits, [B]
    short_low : float
        The same at the low end of the pool, [B]
    short_high : float
        The same at the high end of the pool, [B]
    over, over_low : float
        By how much the fullest rank with its pool and what runs beside it holds more than its memory, as where a
        launch is told too large a share, mean and low end; 0 or less where it does not, [B]
    """

    terms: Terms
    memory: RankMemory
    point: int
    part: PartMemory
    pool: float
    pool_low: float
    pool_high: float
    pool_bytes: float
    stage: int
    context: float
    context_low: float
    held: float
    held_low: float
    short: float
    short_low: float
    short_high: float
    over: float = 0.0
    over_low: float = 0.0

    def __repr__(self) -> str:
        return f"<Holding {self.terms.name}: {self.verdict}, pool {self.pool:,.0f} tokens, {self.held:.4g} requests>"

    @property
    def lacking(self) -> float:
        """What the rank that limits lacks, for one full-length request or for what runs beside the pool, [B]"""
        return max(self.short, self.over)

    @property
    def spread(self) -> float:
        """By how much less it may lack: from the mean to the favourable end of the 90 % interval, [B]"""
        return self.lacking - max(self.short_high, self.over_low)

    @property
    def may_start(self) -> bool:
        """Whether it does not fit in the mean, but would at the favourable end of the 90 % interval."""
        return self.terms.blocked is None and self.lacking > 0 >= max(self.short_high, self.over_low)

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` (one full-length request fits only at the mean) or ``does_not_fit``."""
        if self.lacking > 0:
            return "does_not_fit"
        return "tight" if self.short_low > 0 else "fits"

    def printed(self, longest: int) -> tuple[float, float, float]:
        """Tokens that the engine prints as the size of its cache when it starts.

        Parameters
        ----------
        longest : int
            Longest request that it is told, [token]

        Returns
        -------
        tuple of float
            Of one data-parallel rank, and the 90 % interval, [token]
        """
        memory = replace(self.memory, settings=replace(self.memory.settings, longest=float(longest)))
        found = kv_pool(memory, self.part, context=float(longest))
        ends = (found.printed, found.printed_low, found.printed_high)
        value, low, high = (max(float(one[self.point]), 0.0) for one in ends)
        return value, low, high

    def rows(self) -> list[MemoryBudget]:
        """Memory of every rank."""
        return budget_rows(self.memory, self.part, point=self.point)


class Ranks:
    """Memory of all layouts of a question, computed once for each cache format, drafting and use of graphs.

    Parameters
    ----------
    asked : Asked
        The question.
    found : list of tuple of int
        Layouts: tp, pp, dp, ep, dcp, [-]

    Raises
    ------
    UnknownFact
        If the memory of the part is not published.
    """

    def __init__(self, asked: Asked, found: list[tuple[int, int, int, int, int]]) -> None:
        self.asked = asked
        self.found = list(found)
        self.part = part_memory(asked.machine.accelerator)
        self._memory: dict[tuple[str, bool, bool], RankMemory] = {}
        self._held: dict[tuple[str, bool, bool, bool], _Arrays] = {}

    def hold(self, terms: Terms) -> Holding:
        """What one layout holds.

        Parameters
        ----------
        terms : Terms
            The layout; its cache format and graphs may differ from what was wanted.

        Returns
        -------
        Holding
            Its memory.
        """
        layout = terms.layout
        if layout not in self.found:
            self.found.append(layout)
            self._memory.clear()
            self._held.clear()
        form = (terms.kv, terms.mtp > 0, terms.indexer)
        if form not in self._memory:
            self._memory[form] = _ranks(self.asked, self.found, terms)
        key = (*form, terms.graphs)
        if key not in self._held:
            pools = _pools(self._memory[form], self.asked.machine.accelerator, settings_of(self.asked, terms))
            self._held[key] = _arrays(self.asked, pools)
        return self._held[key].at(self.found.index(layout), terms)


def settings_of(asked: Asked, terms: Terms) -> MemorySettings:
    """Settings of a launch that decide memory.

    Parameters
    ----------
    asked : Asked
        The question.
    terms : Terms
        What the layout runs with: whether graphs are captured and an indexer is kept.

    Returns
    -------
    MemorySettings
        The settings.
    """
    return replace(asked.settings, graphs=terms.graphs).memory(
        engine=asked.engine,
        version=asked.engine_version,
        accelerator=asked.machine.part,
        indexer=terms.indexer,
        draft_tokens=terms.mtp,
    )


def _ranks(asked: Asked, found: list[tuple[int, int, int, int, int]], terms: Terms) -> RankMemory:
    # graphs lie beside what ranks hold: whether any are captured changes nothing here
    settings = replace(settings_of(asked, terms), graphs=False)
    form, memory = (terms.kv, terms.mtp > 0), asked.machine.accelerator.memory
    return _held_by_ranks(asked.model, asked.checkpoint, tuple(found), form, settings, memory)


@remembered(records=2)
def _held_by_ranks(
    model: ModelSpec,
    checkpoint: Checkpoint,
    found: tuple[tuple[int, int, int, int, int], ...],
    form: tuple[str, bool],
    settings: MemorySettings,
    memory: float | None,
) -> RankMemory:
    """Memory of layouts: questions that differ in their lengths, and changes of a plan, have it in common."""
    columns = zip(("tp", "pp", "dp", "ep", "dcp"), np.array(found).T, strict=True)
    layout, (kv, mtp) = Layout(**dict(columns)), form
    return rank_memory(model, checkpoint, layout=layout, kv=kv, settings=settings, mtp=mtp, memory=memory)


@remembered(records=2)
def _pools(held: RankMemory, accelerator: Accelerator, settings: MemorySettings) -> _Pools:
    """What the settings of a launch leave for the cache of every stage, whatever the requests."""
    memory, part = replace(held, settings=settings), part_memory(accelerator)
    return _Pools(memory, part, stage_pools(memory, part))


@dataclass(frozen=True, slots=True, eq=False)
class _Pools:
    """Memory of all layouts under the settings of a launch, and the pool of each stage."""

    memory: RankMemory
    part: PartMemory
    of: tuple[PoolTerms, ...]


@remembered(most=256)
def _pool_for(found: _Pools, length: float) -> KvPool:
    """The pool in requests of a length [token]; any length where it does not matter."""
    return kv_pool(found.memory, found.part, context=length, pools=found.of)


@remembered(most=512)
def _longest(found: _Pools, quantile: float) -> np.ndarray:
    """The longest request that each layout's pool holds alone [token], `quantile` deviations from the mean."""
    return largest_context(found.memory, found.part, quantile=quantile, pools=found.of)


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """`Holding` of every layout; (n,) arrays."""

    memory: RankMemory
    part: PartMemory
    pool: KvPool
    longest: np.ndarray
    longest_low: np.ndarray
    held: np.ndarray
    held_low: np.ndarray
    short: np.ndarray
    short_low: np.ndarray
    short_high: np.ndarray

    def at(self, place: int, terms: Terms) -> Holding:
        # servers for prompts alone hold no conversation
        pool, servers = self.pool, terms.decoding
        return Holding(
            terms=terms,
            memory=self.memory,
            point=place,
            part=self.part,
            pool=servers * float(pool.tokens[place]),
            pool_low=servers * max(float(pool.tokens_low[place]), 0.0),
            pool_high=servers * float(pool.tokens_high[place]),
            pool_bytes=float(pool.bytes[place]),
            stage=int(pool.stage[place]),
            context=float(self.longest[place]),
            context_low=float(self.longest_low[place]),
            held=servers * float(self.held[place]),
            held_low=servers * float(self.held_low[place]),
            short=float(self.short[place]),
            short_low=float(self.short_low[place]),
            short_high=float(self.short_high[place]),
            over=float(pool.over[place]),
            over_low=float(pool.over_low[place]),
        )


def _arrays(asked: Asked, found: _Pools) -> _Arrays:
    length = float(asked.user_tokens)
    memory, part, pools = found.memory, found.part, found.of
    pool = _pool_for(found, length if memory.by_length else 1.0)
    longest, longest_low = _longest(found, 0.0), _longest(found, LOW)
    full = float(asked.full_request)
    need = np.max([np.where(stage.held, stage.request_bytes(full), 0.0) for stage in memory.stages], axis=0)
    short = _short(need, pool.bytes, longest, asked.full_request)
    short_high = short
    if (short > 0).any():  # only then anybody asks for the favourable end
        longest_high = _longest(found, -LOW)
        most = np.min(
            [
                np.where(stage.held, terms.pool - LOW * terms.deviation(1.0), np.inf)
                for stage, terms in zip(memory.stages, pools, strict=True)
            ],
            axis=0,
        )
        short_high = _short(need, most, longest_high, asked.full_request)
    return _Arrays(
        memory=memory,
        part=part,
        pool=pool,
        longest=longest,
        longest_low=longest_low,
        held=requests_that_fit(memory, part, length, pools=pools),
        held_low=requests_that_fit(memory, part, length, quantile=LOW, pools=pools),
        short=short,
        short_low=_short(need, pool.bytes + LOW * pool.sd, longest_low, asked.full_request),
        short_high=short_high,
    )


def _short(need: np.ndarray, pool: np.ndarray, longest: np.ndarray, length: int) -> np.ndarray:
    """Bytes that a request lacks: positive exactly when it is longer than the longest that fits."""
    lacking = np.maximum(need - pool, 1.0)
    return np.where(longest >= length, np.minimum(need - pool, 0.0), lacking)


def contexts_of(asked: Asked, holding: Holding, users: tuple[int, ...], *, quantile: float = 0.0) -> list[int]:
    """Longest request that each of some numbers of users may have at once; the model's limit applies.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    users : tuple of int
        Numbers of users, spread evenly over the servers, [-]
    quantile : float, optional
        Standard deviations to add to the pool, [-]

    Returns
    -------
    list of int
        Tokens, 0 when not even the shortest fits, [token]
    """
    terms = holding.terms
    alone = _pools(_ranks(asked, [terms.layout], terms), asked.machine.accelerator, settings_of(asked, terms))
    limit = asked.longest_request
    # a set, because `np.unique` imports the masked arrays of numpy, which takes longer than the rest of this function
    grid = np.array(sorted({*np.geomspace(64, limit, 160).astype(int).tolist(), limit}), dtype=float)
    counts = requests_that_fit(alone.memory, holding.part, grid, quantile=quantile, pools=alone.of)
    found = []
    for number in (-(-one // terms.decoding) for one in users):
        fits = np.flatnonzero(counts >= number)
        if not len(fits):
            found.append(0)
            continue
        last = int(fits[-1])
        if last == len(grid) - 1:
            found.append(limit)
            continue
        fine = np.linspace(grid[last], grid[last + 1], 33)
        held = requests_that_fit(alone.memory, holding.part, fine, quantile=quantile, pools=alone.of)
        inside = np.flatnonzero(held >= number)
        found.append(int(fine[inside[-1]]) // 64 * 64 if len(inside) else int(grid[last]))
    return found


def stage_ranks(terms: Terms, stage: int) -> tuple[int, ...]:
    """Numbers of the accelerators that hold a pipeline stage.

    Parameters
    ----------
    terms : Terms
        The layout.
    stage : int
        Stage, from 0, [-]

    Returns
    -------
    tuple of int
        Ranks of a server as engines count them: tensor-parallel ranks are neighbours, then stages, then attention in
        data parallel, [-]
    """
    first = [(replica * terms.pp + stage) * terms.tp for replica in range(terms.dp)]
    return tuple(rank for begin in first for rank in range(begin, begin + terms.tp))
