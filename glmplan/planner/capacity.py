"""Memory of many layouts: KV pool, requests held, bytes short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import OPTIONS, conditions_of, host_options, judge, load_engine
from glmplan.costs.blocks.stack import model_features
from glmplan.costs.memory.pool import (
    KvPool,
    MemoryBudget,
    PoolTerms,
    budget_rows,
    kv_pool,
    largest_context,
    requests_that_fit,
    stage_pools,
)
from glmplan.costs.memory.ranks import RankMemory, keeps_index, rank_memory
from glmplan.costs.memory.settings import MemorySettings, PartMemory
from glmplan.costs.memory.shards import Server, SplitBlock, split_block
from glmplan.costs.points import Layout
from glmplan.planner.longest import Launched, launched_context
from glmplan.planner.pool import Pool
from glmplan.planner.question import Asked
from glmplan.planner.stages import best_partition, partitions
from glmplan.prediction.deployment import (
    experts_of,
    experts_problem,
    keeps_experts_on_host,
    keeps_indexer,
    runs_sparse,
    split_problem,
)
from glmplan.units import QUANTILE_90, Bytes, Ratio, TokenCount, Tokens

if TYPE_CHECKING:
    from glmplan.catalog.schema.engine import Conditions, Wall
    from glmplan.catalog.schema.model import Checkpoint, ModelSpec

__all__ = [
    "LOW",
    "MAY_START",
    "Holding",
    "Obstacles",
    "Ranks",
    "Terms",
    "contexts_of",
    "experts_on_host",
    "layout_name",
    "settings_of",
    "split_of",
    "split_wall",
    "stage_ranks",
    "wall_of_split",
]


#: what follows from a split block, with the sentence and severity that `Wall` holds
_STOPS, _SLOWER = "split-quantisation-block", "refined-quantisation-block"


def split_of(asked: Asked, layout: tuple[int, int, int, int, int], mtp: int | None = None) -> SplitBlock | None:
    """Return the tensor whose quantisation blocks a layout splits, or None.

    None if the engine loads every piece without loss. `mtp` are draft tokens, by default those of the request.

    Examples
    --------
    >>> from glmplan.planner.question import read_words
    >>> from glmplan.request.plan import PlanRequest
    >>> asked = read_words(PlanRequest("minimax-m2.7-fp8", "8xh200-sxm", engine="sglang"))
    >>> split_of(asked, (8, 1, 1, 1, 1)).loads, split_of(asked, (8, 1, 1, 8, 1)) is None
    (False, True)
    """
    tp, _, dp, ep, _ = layout
    server = Server.on(asked.machine.accelerator, asked.engine, asked.runs_as)
    drafts = (asked.mtp if mtp is None else mtp) > 0
    found = split_block(asked.model, asked.checkpoint, server, (tp, dp, ep), mtp=drafts)
    return None if found is None or (found.loads and not found.slower) else found


def split_wall(asked: Asked, layout: tuple[int, int, int, int, int], mtp: int | None = None) -> Wall | None:
    """Return the limitation that a layout meets if it splits blocks.

    Severity ``error`` if the engine does not start, ``slow`` if it loads the pieces in another way.
    """
    found = split_of(asked, layout, mtp)
    return None if found is None else wall_of_split(found, asked.engine, layout, _nearest(asked, layout))


def wall_of_split(found: SplitBlock, engine: str, layout: tuple[int, int, int, int, int], do: str) -> Wall:
    """Write a split block as a limitation."""
    from glmplan.catalog.schema.engine import Wall, When

    tp, _, dp, ep, _ = layout
    stops = f"{load_engine(engine).full_name} stops while it loads the weights"
    verb = "does not divide" if found.block == 1 else "splits quantisation blocks of"
    return Wall(
        id=_SLOWER if found.loads else _STOPS,
        title=f"TP{tp}{f' DP{dp}' * (dp > 1)} EP{ep} {verb} {found.words}",
        severity="slow" if found.loads else "error",
        when=When(tp=f"={tp}", ep=f"={ep}"),
        effect=found.slower or stops,
        do=do,
        source=found.source or "no source says that this engine loads a part of a block",
    )


def _nearest(asked: Asked, layout: tuple[int, int, int, int, int]) -> str:
    """Return the options of the nearest layouts that keep blocks whole.

    One candidate uses expert parallelism, the other another tensor-parallel degree.
    """
    tp, pp, dp, ep, dcp = layout
    experts, most = experts_of(asked.model), max(asked.machine.count // (pp * dp), 1)

    def loads(degree: int, dealt: int) -> bool:
        return split_of(asked, (degree, pp, dp, dealt, dcp)) is None

    dealt = tp * dp
    deals = 1 < dealt <= experts and experts_problem(asked.model, dealt, asked.engine) is None
    named = [f"--tp {tp}{f' --dp {dp}' * (dp > 1)} --ep {dealt}"] if ep == 1 and deals and loads(tp, dealt) else []
    for other in sorted(range(1, most + 1), key=lambda one: (abs(one - tp), one)):
        if other != tp and split_problem(asked.model, other, asked.engine) is None and loads(other, 1):
            named.append(f"--tp {other}" + " --ep 1" * (experts > 0))
            if other == 1 and deals:
                named.append(f"--tp 1 --dp {dealt} --ep {dealt}")
            break
    return f"take {' or '.join(named)}" if named else "take a checkpoint in another format"


#: limitations of these severities change the settings; others are advice, which an explicit option overrides
_FORCED = ("error", "fallback")
#: options that follow from the machine and the layout, see `glmplan.catalog.engines.limitations.host_options`
_FROM_HOST = frozenset({"dual-socket", "pcie-switch", "display-on-the-fabric", "force-p2p", "nccl-xml"})
#: judgements of one request that are cached [-]
_REMEMBERED = 10_000
#: numbers of a layout and of its load that a limitation may depend on
_OF_LAYOUT = ("tp", "pp", "dp", "ep", "dcp", "count", "mtp", "users")
_SEVERITIES = ("error", "unknown", "fallback", "quality", "memory", "slow")


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a layout after the engine limitations were applied."""

    #: `tp`, `pp`, `dp`, `ep`, `dcp`: layout of one server, [-]
    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    kv: str  # KV cache format
    graphs: bool  # True if steps run from captured CUDA graphs
    mtp: int  # draft tokens, [-]
    sparse: bool  # True if sparse attention runs
    #: True if the indexer is loaded and its keys are cached; engines that attend densely may keep it or not
    indexer: bool = True
    limitations: tuple[Wall, ...] = ()  # limitations that apply, the most severe first
    blocked: Wall | None = None  # a limitation without a workaround
    replicas: int = 1  # servers of this layout, each with its own accelerators, behind a router, [-]
    prefill: int = 0  # servers among them that only compute prompts and transfer the KV cache, [-]
    layers: tuple[int, ...] = ()  # layers of each pipeline stage, where the stages are on unlike accelerators

    @property
    def decoding(self) -> int:
        """Servers that decode: all servers except those for prefill only, [-]"""
        return self.replicas - self.prefill

    @property
    def server(self) -> int:
        """Accelerators of one server, [-]"""
        return self.tp * self.pp * self.dp

    @property
    def accelerators(self) -> int:
        """Accelerators used, [-]"""
        return self.server * self.replicas

    @property
    def layout(self) -> tuple[int, int, int, int, int]:
        """The degrees of one server, [-]"""
        return self.tp, self.pp, self.dp, self.ep, self.dcp

    @property
    def name(self) -> str:
        """The layout in words."""
        if self.prefill:
            return f"{self.prefill} prefill + {self.decoding} decode × {layout_name(*self.layout)}"
        layers = f" ({'+'.join(map(str, self.layers))} layers)" * bool(self.layers)
        return layout_name(*self.layout, self.replicas) + layers


def layout_name(tp: int, pp: int, dp: int = 1, ep: int = 1, dcp: int = 1, replicas: int = 1) -> str:
    """Return a layout as text: TP and PP always, other degrees above 1.

    Examples
    --------
    >>> layout_name(2, 3), layout_name(1, 1, 8, 8), layout_name(4, 1, replicas=2)
    ('TP2×PP3', 'TP1×PP1×DP8 EP8', '2 × TP4×PP1')
    """
    more = "".join(f"×{word}{degree}" for word, degree in (("DP", dp),) if degree > 1)
    apart = "".join(f" {word}{degree}" for word, degree in (("EP", ep), ("DCP", dcp)) if degree > 1)
    return f"{replicas} × " * (replicas > 1) + f"TP{tp}×PP{pp}{more}{apart}"


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Limitations that apply to every layout, and those a layout decides."""

    always: tuple[Wall, ...]
    sometimes: tuple[tuple[Wall, Callable[[Conditions], object]], ...]
    judged: dict[tuple[str, object], bool]


@lru_cache(maxsize=256)
def _sorted(base: Conditions, options: frozenset[str]) -> _Sorted:
    """Return the limitations of an engine for all layouts of one request.

    Cached: other requests with the same machine and options reuse it.
    """
    every = (*load_engine(base.engine).walls, *load_engine("any").walls)
    loose = replace(base, count=None, options=options)
    # limitations that model, accelerator and version already exclude are dropped for all layouts
    alive = [(wall, _varying(wall)) for wall in every if judge(wall, loose) != "absent"]
    always = tuple(wall for wall, asks in alive if not asks and judge(wall, base) == "stands")
    return _Sorted(always, tuple((wall, attrgetter(*asks)) for wall, asks in alive if asks), {})


class Obstacles:
    """Limitations of one engine for one model on one machine, sorted once.

    - `asked`: The question.
    - `options`: Keys of `glmplan.catalog.engines.limitations.OPTIONS` that hold.
    """

    def __init__(self, asked: Asked, options: frozenset[str] = frozenset()) -> None:
        self.asked = asked
        named = f"{asked.settings.attention_backend.lower()}-attention-backend"
        self.options = options = options | ({named} & set(OPTIONS))
        version = asked.runs_as
        self.kinds: list[tuple[Conditions, _Sorted]] = []
        for host in asked.machine.hosts:
            found = conditions_of(
                host,
                asked.model,
                engine=asked.engine,
                features=model_features(asked.model),
                options=options,
                engine_version=version,
                weights=_weights_name(asked),
                files=asked.checkpoint.form,
                context=asked.full_request if asked.context else None,
            )
            base = replace(found, memory_fraction=asked.settings.memory_fraction)
            self.kinds.append((base, _sorted(base, options)))
        self.known: dict[Conditions, tuple[Wall, ...]] = {}

    def conditions(self, terms: Terms, *, users: int = 1, kind: int = 0) -> Conditions:
        """Return the conditions of a layout, on one kind of accelerator."""
        return replace(
            self.kinds[kind][0],
            options=self.options | host_options(self.asked.machine.host, terms.tp),
            count=terms.server,
            tp=terms.tp,
            pp=terms.pp,
            dp=terms.dp,
            ep=terms.ep,
            dcp=terms.dcp,
            kv=terms.kv,
            graphs=terms.graphs,
            mtp=terms.mtp,
            users=users,
        )

    def standing(self, terms: Terms, *, users: int = 1) -> tuple[Wall, ...]:
        """Return the limitations that apply to a layout, on any accelerator."""
        found = (self._standing(terms, users, kind) for kind in range(len(self.kinds)))
        walls = {wall.id: wall for one in found for wall in one}
        return tuple(sorted(walls.values(), key=lambda wall: _SEVERITIES.index(wall.severity)))

    def _standing(self, terms: Terms, users: int, kind: int) -> tuple[Wall, ...]:
        """Return the limitations that apply on one kind of accelerator."""
        given, rules = self.conditions(terms, users=users, kind=kind), self.kinds[kind][1]
        if given not in self.known:
            found, judged = list(rules.always), rules.judged
            for wall, asks in rules.sometimes:
                key = (wall.id, asks(given))
                if key not in judged:
                    if len(judged) >= _REMEMBERED:
                        judged.clear()
                    judged[key] = judge(wall, given) == "stands"
                if judged[key]:
                    found.append(wall)
            self.known[given] = tuple(found)
        return self.known[given]

    def settle(self, terms: Terms, *, mtp_given: bool = True, ep_given: bool = False) -> Terms:
        """Apply the engine's fallbacks until nothing changes; return the result.

        A recommendation does not override an explicit choice of draft tokens (`mtp_given`) or expert parallelism
        (`ep_given`).
        """
        met: dict[str, Wall] = {}
        for _ in range(4):
            before = terms
            for wall in self.standing(terms):
                met.setdefault(wall.id, wall)
                terms = _instead(wall, terms, mtp_given, ep_given or self._needs_whole_experts(terms))
            if terms == before:
                break
        blocked = next((wall for wall in met.values() if _final(wall)), None)
        if self.asked.kv is not None and terms.kv != self.asked.kv:
            # a cache format that was typed is never computed as another one
            blocked = blocked or next(wall for wall in met.values() if wall.instead.kv == terms.kv)
        split = split_wall(self.asked, terms.layout, terms.mtp)
        if split is not None:
            met[split.id] = split
            blocked = blocked or (split if split.severity == "error" else None)
        ordered = sorted(met.values(), key=lambda wall: _SEVERITIES.index(wall.severity))
        return replace(terms, limitations=tuple(ordered), blocked=blocked)

    def _needs_whole_experts(self, terms: Terms) -> bool:
        """Return True if only expert parallelism keeps quantisation blocks whole.

        The recommendation to drop expert parallelism is then ignored.
        """
        whole = split_of(self.asked, terms.layout, terms.mtp) is None
        return terms.ep > 1 and whole and split_of(self.asked, replace(terms, ep=1).layout, terms.mtp) is not None

    def wanted(self, layout: tuple[int, int, int, int, int], kv: str, replicas: int = 1) -> Terms:
        """Return the settings of a layout without any limitation."""
        asked = self.asked
        patched = "sparse" if "sm120-sparse-mla" in self.options else ""
        backend = f"{asked.settings.attention_backend} {patched}"
        sparse = runs_sparse(asked.machine.accelerator, backend, engine=asked.engine, version=asked.runs_as)
        indexer = keeps_indexer(asked.engine, sparse)
        return Terms(
            *layout,
            kv=kv,
            graphs=asked.settings.graphs,
            mtp=asked.mtp,
            sparse=sparse,
            indexer=indexer,
            replicas=replicas,
            prefill=asked.prefill,
        )


def _instead(wall: Wall, terms: Terms, mtp_given: bool, ep_given: bool) -> Terms:
    say, forced = wall.instead, wall.severity in _FORCED
    if say.attention == "dense":
        terms = replace(terms, sparse=False, indexer=terms.indexer and say.indexer != "dropped")
    if say.graphs is False:
        terms = replace(terms, graphs=False)
    if say.kv is not None and forced:
        terms = replace(terms, kv=say.kv)
    if say.mtp is not None and terms.mtp and (forced or not mtp_given):
        terms = replace(terms, mtp=say.mtp)
    if say.ep is not None and (forced or not ep_given):
        terms = replace(terms, ep=say.ep)
    if say.dcp is not None and forced:
        terms = replace(terms, dcp=say.dcp)
    return terms


def _varying(wall: Wall) -> tuple[str, ...]:
    """Return the condition fields of a limitation that depend on the layout."""
    when = wall.when
    found = [field for field in (*_OF_LAYOUT, "kv", "graphs") if getattr(when, field) not in (None, ())]
    if when.options or set(when.unless) & _FROM_HOST:
        found.append("options")
    return tuple(found)


def _final(wall: Wall) -> bool:
    """Return True if a limitation has no workaround.

    Such an engine never runs the model on this compute capability, or never reads its files, or its release does not
    know the model. A fix ends a limitation only if nothing says which releases lack it.
    """
    when = wall.when
    decided = bool(when.compute_capability or when.accelerators or wall.until or wall.unknown_model)
    of_model = bool(when.models or when.features or when.weights) and decided or bool(when.files)
    # an engine without a backend for a vendor's parts runs no model on them
    of_model = of_model or bool(when.vendors or when.without_vendors or when.kinds)
    lifted = bool(when.unless or when.options or wall.fixed_by and not (wall.until or wall.last_seen))
    return wall.severity == "error" and of_model and not lifted and not wall.instead.model_dump(exclude_none=True)


def _weights_name(asked: Asked) -> str:
    checkpoint = asked.checkpoint
    return checkpoint.name if checkpoint.file_bits_per_weight is not None else checkpoint.bulk


#: verdict of a plan whose missing memory is within the uncertainty
MAY_START = "but borderline: may start, test it"
#: standard deviations from the mean to the low end of a 90 % interval [-]
LOW = -QUANTILE_90


@dataclass(frozen=True, slots=True, repr=False)
class Holding:
    """Memory of one layout: KV pool, requests held, bytes short."""

    terms: Terms  # the layout and its settings
    memory: RankMemory  # ranks of several layouts
    point: int  # index of this layout among them, [-]
    part: PartMemory  # memory of the accelerator
    pool: Pool  # KV pool in requests of the length that counts for each user (`Asked.user_tokens`)
    sent: Pool  # the same pool in requests as they are sent (`Asked.request_tokens`)
    #: pool of the limiting rank in its own memory: 0 if all caches are in host memory, negative if the weights alone
    #: exceed the memory, [B]
    pool_bytes: float
    stage: int  # limiting pipeline stage, [-]
    #: `context`, `context_low`: longest single request that the pool holds, mean and lower bound, without the limit of
    #: the model, [token]
    context: float
    context_low: float
    #: `short`, `short_low`, `short_high`: bytes missing on the limiting rank for one full-length request (0 or less if
    #: it fits): mean, and at the lower and upper bound of the pool, [B]
    short: float
    short_low: float
    short_high: float
    #: `over`, `over_low`: bytes by which pool, graphs and activations of the fullest rank exceed its memory, as with
    #: too large a ``--memory-fraction``: mean and lower bound; 0 or less if they fit, [B]
    over: float = 0.0
    over_low: float = 0.0
    host: float = 0.0  # weights that all servers keep in the memory of a host node, [B]
    host_memory: float | None = None  # memory of that node; None if unknown, [B]
    host_caches: float = np.inf  # memory of that node for caches of layers that lie there, of one server, [B]
    host_servers: float = 0.0  # servers of that node, [-]

    def __repr__(self) -> str:
        pool = f"pool {self.pool.tokens:,.0f} tokens, {self.held:.4g} requests"
        return f"<Holding {self.terms.name}: {self.verdict}, {pool}>"

    @property
    def held(self) -> float:
        """Requests that the pool holds, each of the length of a user, [-]"""
        return self.pool.held

    @property
    def held_low(self) -> float:
        """The same at the lower bound, [-]"""
        return self.pool.held_low

    @property
    def lacking(self) -> float:
        """Missing bytes on the limiting rank, for a request or the pool, [B]"""
        return max(self.short, self.over)

    @property
    def host_short(self) -> float:
        """Missing host memory for weights; 0 if enough or unknown, [B]"""
        return 0.0 if self.host_memory is None else max(self.host - self.host_memory, 0.0)

    @property
    def host_holds(self) -> str:
        """Parts of the plan in host memory, for texts."""
        return "weights" if self.memory.host_cache is None else "weights and the KV cache of one request"

    @property
    def spread(self) -> float:
        """Missing bytes in the mean minus those in the favourable case, [B]"""
        return self.lacking - max(self.short_high, self.over_low)

    @property
    def may_start(self) -> bool:
        """True if only the favourable end of the 90 % interval fits."""
        favourable = max(self.short_high, self.over_low)
        return self.terms.blocked is None and not self.host_short and self.lacking > 0 >= favourable

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` or ``does_not_fit``, for all memories.

        ``tight``: one full-length request fits in the mean, not at the lower bound.
        """
        if self.lacking > 0 or self.host_short > 0:
            return "does_not_fit"
        return "tight" if self.short_low > 0 else "fits"

    def beside(self, longest: TokenCount) -> Ratio:
        """Return how many requests one KV pool holds beside a longer request.

        Requests have the requested length; 0 if the pool does not hold the longer request.

        Notes
        -----
        Requests of two lengths have no common number of tokens where windows, states or compressed caches make a token
        of a short request more expensive: the share of the pool that the longer request takes is a share of bytes.
        """
        if longest > self.context:
            return 0.0
        each = self.held / (self.terms.dp * self.terms.decoding)
        if not np.isfinite(self.context):  # no cache grows: every request takes the same
            return max(each - 1.0, 0.0)
        stages = [stage for stage in self.memory.stages if stage.held[self.point]]
        taken, pool = (
            np.array([float(stage.request_bytes(float(length))[self.point]) for stage in stages])
            for length in (longest, self.context)
        )
        return each * (1.0 - float(np.max(taken[pool > 0] / pool[pool > 0], initial=0.0)))

    def pool_for(self, length: TokenCount) -> Pool:
        """Return the pool in requests of another length."""
        known = next((one for one in (self.pool, self.sent) if one.length == length), None)
        if known is not None:
            return known
        pools = stage_pools(self.memory, self.part)
        found = _pool_of(self.memory, self.part, pools, length)
        return self.with_host(found.at(self.point, self.terms.decoding))

    def host_context(self, requests: float) -> Tokens:
        """Return the longest of equal requests whose caches the host holds."""
        caches = self.memory.host_cache
        if caches is None or not caches.per_token[self.point]:
            return np.inf
        fixed = caches.state + sum((held * window for window, held in caches.windows), np.zeros_like(caches.state))
        return max((self.host_caches / requests - float(fixed[self.point])) / float(caches.per_token[self.point]), 0.0)

    def host_requests(self, requests: float) -> Bytes:
        """Return the caches that requests of all servers have on a host node."""
        caches = self.memory.host_cache
        if caches is None:
            return 0.0
        each = float(caches.request_bytes(float(self.pool.length))[self.point])
        return float(each * requests * self.host_servers / self.terms.replicas)

    @property
    def host_pool(self) -> float:
        """Part of the KV pool in the memory of a host node, [B]"""
        return self.host_requests(self.pool.tokens / self.pool.length)

    @property
    def host_weights(self) -> float:
        """Weights in the memory of a host node, [B]"""
        # `host` has one request of each server beside them
        return self.host - self.host_requests(self.terms.replicas)

    def with_host(self, pool: Pool) -> Pool:
        """Return a pool that caches in host memory limit, too."""
        caches = self.memory.host_cache
        each = 0.0 if caches is None else float(caches.request_bytes(float(pool.length))[self.point])
        if not each:
            return pool
        most = self.terms.decoding * np.floor(max(self.host_caches, 0.0) / each)
        whole = most * pool.length
        # no accelerator has a growing cache where the requests are without limit
        tokens, low, high = (
            whole if np.isinf(pool.held) else min(one, whole) for one in (pool.tokens, pool.low, pool.high)
        )
        return Pool(pool.length, tokens, low, high, min(pool.held, most), min(pool.held_low, most))

    def printed(self, longest: TokenCount) -> tuple[float, float, float]:
        """Return the KV cache size that the engine prints at startup, [token].

        The value of one data-parallel rank, with its 90 % interval.
        """
        memory = replace(self.memory, settings=replace(self.memory.settings, longest=float(longest)))
        found = kv_pool(memory, self.part, context=float(longest))
        ends = (found.printed, found.printed_low, found.printed_high)
        value, low, high = (max(float(one[self.point]), 0.0) for one in ends)
        return value, low, high

    def rows(self) -> list[MemoryBudget]:
        """Return the memory of every rank."""
        return budget_rows(self.memory, self.part, point=self.point)


class Ranks:
    """Memory of all layouts of a request, cached by KV format and settings.

    - `asked`: The question.
    - `found`: Layouts: tp, pp, dp, ep, dcp, [-]

    Raises
    ------
    UnknownFact
        If the memory of the part is not published.
    """

    def __init__(self, asked: Asked, found: list[tuple[int, int, int, int, int]]) -> None:
        self.asked = asked
        self.found = list(found)
        self._memory: dict[tuple[object, ...], RankMemory] = {}
        self._held: dict[tuple[object, ...], _Arrays] = {}

    def hold(self, terms: Terms) -> Holding:
        """Return the memory of one layout with its settled settings."""
        layout = terms.layout
        if layout not in self.found:
            self.found.append(layout)
            self._memory.clear()
            self._held.clear()
        machine = self.asked.machine
        if machine.stages and not terms.layers:
            terms = _dealt(self.asked, terms)
        form = (terms.kv, terms.mtp > 0, terms.indexer, terms.layers)
        if form not in self._memory:
            self._memory[form] = _ranks(self.asked, self.found, terms)
        key = (*form, terms.graphs)
        if key not in self._held:
            pools = _pools(self._memory[form], machine.memory, settings_of(self.asked, terms))
            self._held[key] = _arrays(self.asked, pools, (terms.kv, terms.mtp > 0))
        return self._on_host(self._held[key].at(self.found.index(layout), terms))

    def _on_host(self, holding: Holding) -> Holding:
        """Return the layout with its weights in host memory, per node."""
        caches = holding.memory.host_cache
        ranks = (
            sum(row.host for row in holding.rows()) if any(stage.host.any() for stage in holding.memory.stages) else 0.0
        )
        if not ranks and caches is None:
            return holding
        terms, host = holding.terms, self.asked.machine.host
        nodes = -(-terms.accelerators // host.accelerators_per_node)
        servers, size = terms.replicas / nodes, host.host_memory
        if caches is None:
            return replace(holding, host=ranks * servers, host_memory=size)
        one = float(caches.request_bytes(float(self.asked.user_tokens))[holding.point])
        room = np.inf if size is None else size / servers - ranks
        found = replace(holding, host=(ranks + one) * servers, host_memory=size, host_caches=room, host_servers=servers)
        context, low = (min(longest, found.host_context(1)) for longest in (holding.context, holding.context_low))
        pool, sent = found.with_host(holding.pool), found.with_host(holding.sent)
        return replace(found, pool=pool, sent=sent, context=context, context_low=low)


def settings_of(asked: Asked, terms: Terms) -> MemorySettings:
    """Return the launch settings of a layout that affect memory."""
    found = replace(asked.settings, graphs=terms.graphs).memory(
        engine=asked.engine,
        version=asked.engine_version,
        accelerator=asked.machine.part,
        indexer=terms.indexer,
        draft_tokens=terms.mtp,
    )
    return replace(found, partitions=(terms.layers,)) if terms.layers else found


def _dealt(asked: Asked, terms: Terms) -> Terms:
    """Return a layout with the layers of its unlike stages."""
    tried = partitions(len(asked.model.layer_names), asked.machine.stages)
    ranks = _ranks(asked, [terms.layout] * len(tried), terms, tried)
    found = _pools(ranks, asked.machine.memory, settings_of(asked, terms))
    wanted = asked.full_request, asked.user_tokens, asked.most_users
    return replace(terms, layers=tried[best_partition(asked.machine, found.memory, found.of, *wanted)])


def _ranks(
    asked: Asked, found: list[tuple[int, int, int, int, int]], terms: Terms, tried: tuple[tuple[int, ...], ...] = ()
) -> RankMemory:
    # CUDA graphs are counted apart from the ranks: capturing them changes nothing here
    settings = settings_of(asked, terms)
    settings = replace(settings, graphs=False, partitions=tried or settings.partitions)
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
    """Return the memory of layouts, cached for requests of other lengths."""
    columns = zip(("tp", "pp", "dp", "ep", "dcp"), np.array(found).T, strict=True)
    layout, (kv, mtp) = Layout(**dict(columns)), form
    return rank_memory(model, checkpoint, layout=layout, kv=kv, settings=settings, mtp=mtp, memory=memory)


@remembered(records=1)
def _pools(held: RankMemory, part: PartMemory, settings: MemorySettings) -> _Pools:
    """Return the KV pool of every stage, independent of the requests."""
    memory = replace(held, settings=settings)
    return _Pools(memory, part, stage_pools(memory, part))


@dataclass(frozen=True, slots=True, eq=False)
class _Pools:
    """Memory of all layouts under the launch settings, and stage pools."""

    memory: RankMemory
    part: PartMemory
    of: tuple[PoolTerms, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _PoolsFor:
    """KV pool of every layout for requests of one length; (n,) arrays."""

    length: TokenCount
    pool: KvPool
    held: np.ndarray
    held_low: np.ndarray

    def at(self, place: int, servers: int) -> Pool:
        """Return the pool of a layout on a number of servers."""
        pool = self.pool
        low, held, least = max(float(pool.tokens_low[place]), 0.0), float(self.held[place]), float(self.held_low[place])
        value, high = float(pool.tokens[place]), float(pool.tokens_high[place])
        return Pool(self.length, servers * value, servers * low, servers * high, servers * held, servers * least)


def _pool_of(memory: RankMemory, part: PartMemory, pools: tuple[PoolTerms, ...], length: TokenCount) -> _PoolsFor:
    """Return the pool of every layout for requests of a length."""
    tokens = float(length)
    held, low = (requests_that_fit(memory, part, tokens, quantile=one, pools=pools) for one in (0.0, LOW))
    return _PoolsFor(length, kv_pool(memory, part, context=tokens, pools=pools), held, low)


@remembered(most=256)
def _pool_for(found: _Pools, length: TokenCount) -> _PoolsFor:
    """Return the same, cached by its length [token]."""
    return _pool_of(found.memory, found.part, found.of, length)


@remembered(records=3, most=512)
def _longest(
    model: ModelSpec, checkpoint: Checkpoint, found: _Pools, form: tuple[str, bool], quantile: float
) -> np.ndarray:
    """Return each layout's longest single request [token] at a quantile."""
    result = largest_context(found.memory, found.part, quantile=quantile, pools=found.of)
    return np.asarray(launched_context(Launched(model, checkpoint, found.memory, found.part, form), result, quantile))


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """`Holding` of every layout; (n,) arrays."""

    memory: RankMemory
    part: PartMemory
    pool: _PoolsFor
    sent: _PoolsFor
    longest: np.ndarray
    longest_low: np.ndarray
    short: np.ndarray
    short_low: np.ndarray
    short_high: np.ndarray

    def at(self, place: int, terms: Terms) -> Holding:
        # servers for prefill only keep no KV cache
        pool, servers = self.pool.pool, terms.decoding
        left, stage = float(pool.bytes[place]), int(pool.stage[place])
        return Holding(
            terms=terms,
            memory=self.memory,
            point=place,
            part=self.part,
            pool=self.pool.at(place, servers),
            sent=self.sent.at(place, servers),
            pool_bytes=left if self.memory.caches_on(self.memory.stages[stage])[place] else min(left, 0.0),
            stage=stage,
            context=float(self.longest[place]),
            context_low=float(self.longest_low[place]),
            short=float(self.short[place]),
            short_low=float(self.short_low[place]),
            short_high=float(self.short_high[place]),
            over=float(pool.over[place]),
            over_low=float(pool.over_low[place]),
        )


def _arrays(asked: Asked, found: _Pools, form: tuple[str, bool]) -> _Arrays:
    memory, part, pools = found.memory, found.part, found.of
    launched = asked.model, asked.checkpoint, found, form
    counted = _pool_for(found, asked.user_tokens)
    pool = counted.pool
    longest, longest_low = _longest(*launched, 0.0), _longest(*launched, LOW)
    full = float(asked.full_request)
    need = np.max([np.where(stage.held, stage.request_bytes(full), 0.0) for stage in memory.stages], axis=0)
    short = _short(need, pool.bytes, longest, asked.full_request)
    short_high = short
    if (short > 0).any():  # the favourable end matters only if something is short
        longest_high = _longest(*launched, -LOW)
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
        pool=counted,
        sent=_pool_for(found, asked.request_tokens),
        longest=longest,
        longest_low=longest_low,
        short=short,
        short_low=_short(need, pool.bytes + LOW * pool.sd, longest_low, asked.full_request),
        short_high=short_high,
    )


def _short(need: np.ndarray, pool: np.ndarray, longest: np.ndarray, length: int) -> np.ndarray:
    """Return the missing bytes of a request, positive if and only if too long."""
    lacking = np.maximum(need - pool, 1.0)
    result: np.ndarray = np.where(longest >= length, np.minimum(need - pool, 0.0), lacking)
    return result


def contexts_of(asked: Asked, holding: Holding, users: tuple[int, ...], *, quantile: Ratio = 0.0) -> list[int]:
    """Return the longest request at each concurrency, [token].

    Users are spread evenly over the servers; the limit of the model applies; 0 if no request fits.
    """
    terms = holding.terms
    alone = _pools(_ranks(asked, [terms.layout], terms), asked.machine.memory, settings_of(asked, terms))
    limit = asked.longest_request
    memory, pools = alone.memory, alone.of
    if keeps_index(asked.model, memory.settings) and memory.settings.longest is None and holding.context < limit:
        launched = Launched(asked.model, asked.checkpoint, memory, holding.part, (terms.kv, terms.mtp > 0))
        memory = launched.of_length(max(holding.context, 1.0))
        pools = stage_pools(memory, holding.part)
    # a set: `np.unique` imports masked arrays, which takes longer than the rest of this function
    grid = np.array(sorted({*np.geomspace(64, limit, 160).astype(int).tolist(), limit}), dtype=float)
    counts = requests_that_fit(memory, holding.part, grid, quantile=quantile, pools=pools)
    found: list[int] = []
    numbers = [-(-count // terms.decoding) for count in users]
    for number in numbers:
        fits = np.flatnonzero(counts >= number)
        if not len(fits):
            found.append(0)
            continue
        last = int(fits[-1])
        if last == len(grid) - 1:
            found.append(limit)
            continue
        fine = np.linspace(grid[last], grid[last + 1], 33)
        held = requests_that_fit(memory, holding.part, fine, quantile=quantile, pools=pools)
        inside = np.flatnonzero(held >= number)
        found.append(int(fine[inside[-1]]) // 64 * 64 if len(inside) else int(grid[last]))
    return [int(min(one, holding.host_context(number))) for one, number in zip(found, numbers, strict=True)]


def stage_ranks(terms: Terms, stage: int) -> tuple[int, ...]:
    """Return the accelerators that hold a pipeline stage.

    Ranks are numbered as by engines: tensor-parallel ranks first, then stages, then data-parallel replicas.
    """
    first = [(replica * terms.pp + stage) * terms.tp for replica in range(terms.dp)]
    return tuple(rank for begin in first for rank in range(begin, begin + terms.tp))


def experts_on_host(asked: Asked) -> bool:
    """Return True if weights or caches lie in host memory."""
    return keeps_experts_on_host(asked.engine) or asked.settings.on_host
