"""What a launch is told that decides memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.engines.defaults import block_tokens, engine_defaults
from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.engines.memory import ExpertKernel, MemoryRule, Workspace, load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import fits_folder, read_toml
from glmplan.catalog.schema.engine import CacheLayout
from glmplan.costs.blocks.stack import cache_layout
from glmplan.units import GIB, parse_quantity

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = ["LoadedShare", "MemoryFit", "MemorySettings", "PartMemory", "Spread", "load_memory_fit", "part_memory"]


@cache
def _silicon(accelerator: str) -> str | None:
    """Compute capability of a part, which is asked for every kind of layer."""
    return load_accelerator(accelerator).compute_capability


@cache
def _called(accelerator: str) -> str:
    """What the catalogue calls a part that a file describes: the one with the same chip, else by the file's name."""
    if not accelerator.endswith(".toml"):
        return accelerator
    part = load_accelerator(accelerator)
    return part.same_chip or part.name


#: stands for a data-centre part where the memory is not given [B]
_LARGE = 80.0 * GIB


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Settings of a launch that decide memory; None takes the engine's default.

    Attributes
    ----------
    engine : str
        Engine, see `memory_engines`.
    version : str or None
        Its version; None means the newest.
    accelerator : str or None
        Name of the part, by which some defaults differ, or the file that describes it.
    fraction : numeric or None
        ``gpu_memory_utilization``, ``mem_fraction_static`` or ``free_gpu_memory_fraction``, [-]
    token_budget : numeric or None
        Tokens of a step (``max_num_batched_tokens``, ``chunked_prefill_size``, ``ubatch``), [token]
    max_requests : numeric or None
        Requests sampled together (``max_num_seqs``), [-]
    graphs : numeric or None
        CUDA graphs captured, [-]; None takes vLLM's default of 51 sizes, 0 means eager.
    offloaded : float or None
        Share of the routed experts that stays in host memory, [-]
    draft_tokens : float or None
        Tokens drafted for each step (``num_speculative_tokens``), [token]; None is one where a draft head is loaded.
    longest : numeric or None
        Longest request (``max_model_len``), [token]; None takes the length that is asked about.
    indexer : bool
        Whether the indexer of sparse attention is loaded and its keys are cached; False where an engine patched to
        attend densely leaves it out.
    graphs_taken : bool or None
        Whether the launch takes its estimate of CUDA graphs from the pool; None means what its version does. Builds
        between releases carry the number of the release before.
    experts_backend : str or None
        Kernel of the routed experts (``--moe-backend``), as the log names it; None takes what the engine chooses.
    adapters, adapter_rank : int
        Low-rank adapters (LoRA) for which buffers are kept, and the rank of the buffers, [-]
    whole_tower : bool
        Whether every tensor-parallel rank holds the whole image tower and takes images of its own
        (``--mm-encoder-tp-mode data``, ``--mm-enable-dp-encoder``).
    """

    engine: str = "vllm"
    version: str | None = None
    accelerator: str | None = None
    fraction: np.ndarray | float | None = None
    token_budget: np.ndarray | float | None = None
    max_requests: np.ndarray | float | None = None
    graphs: np.ndarray | float | None = None
    offloaded: float | None = None
    indexer: bool = True
    experts_backend: str | None = None
    draft_tokens: float | None = None
    longest: np.ndarray | float | None = None
    graphs_taken: bool | None = None
    adapters: int = 0
    adapter_rank: int = 0
    whole_tower: bool = False

    @property
    def layout(self) -> CacheLayout:
        """How the engine lays out its cache."""
        found = cache_layout(self.engine)
        if not self.indexer:
            return found.without_indexer()
        buffer = self.rule.step_of(self.version) if self.engine in memory_engines() else None
        if buffer is None or not buffer.index_keys:
            return found
        return found.model_copy(update={"plain_index_keys": True})

    @property
    def rule(self) -> MemoryRule:
        """The engine's memory rule."""
        return load_memory_rule(self.engine)

    @property
    def tables_on_host(self) -> bool:
        """Whether tables of n-grams lie in host memory: where the engine has an option for it, plans take it."""
        if self.engine not in memory_engines():
            return False
        running = load_engine(self.engine).running
        return running is not None and running.host_tables is not None

    def default(self, name: str, memory: float | None, tp: int = 1) -> float | None:
        """The engine's default for one of the names in `MemoryRule.defaults`, on a part with some memory [B]."""
        called = self.accelerator and _called(self.accelerator)
        return self.rule.default(name, version=self.version, memory=memory, accelerator=called, tp=tp)

    def budget(self, memory: float | None) -> np.ndarray:
        """Tokens of a step, [token], on a part with some memory [B]; unknown memory counts as large."""
        if self.token_budget is not None:
            return np.asarray(self.token_budget, dtype=float)
        called = _called(self.accelerator or "")
        found = engine_defaults(self.engine, version=self.version, accelerator=called, memory=memory)
        return np.asarray(found.budget, dtype=float)

    def requests(self, memory: float | None, tp: np.ndarray | float = 1.0) -> np.ndarray:
        """Requests of which logits are held at once, [-], on a part with some memory [B]; unknown memory is large."""
        if self.max_requests is not None:
            return np.asarray(self.max_requests, dtype=float)
        return self._by_degree("sampled", _LARGE if memory is None else memory, tp)

    def graph_requests(self, memory: float | None, tp: np.ndarray) -> np.ndarray:
        """Largest batch with a CUDA graph, [-]; SGLang chooses it by memory [B] and by `tp` below 4 or not."""
        found = self._by_degree("graph_requests", memory, tp)
        return found if self.max_requests is None else np.minimum(found, self.max_requests)

    def _by_degree(self, name: str, memory: float | None, tp: np.ndarray | float) -> np.ndarray:
        """A default that may depend on whether four ranks or more share the work, [-]"""
        few, many = (self.default(name, memory, degree) or 512.0 for degree in (1, 4))
        return np.where(np.asarray(tp) < 4, few, many)

    def drafted(self, drafts: bool) -> float:
        """Tokens drafted for each step, [token]; 0 without a draft head."""
        if not drafts:
            return 0.0
        return 1.0 if self.draft_tokens is None else self.draft_tokens

    def block(self, sparse: bool) -> float:
        """Tokens of a block of the cache, [token], where keys of an indexer are cached or not."""
        return float(block_tokens(self.engine, sparse=sparse))

    def expert_kernel(self, form: str, model: str) -> ExpertKernel | None:
        """The kernel that pads a model's routed experts of a weight format, by version and part; None: none pads."""
        silicon = None if self.accelerator is None else _silicon(self.accelerator)
        backend = self.experts_backend
        return self.rule.loading.kernel(form, version=self.version, silicon=silicon, backend=backend, model=model)

    def workspace(self, form: str) -> Workspace | None:
        """Buffers that the kernel of routed experts of a weight format keeps; None where no source tells them."""
        rule = self.rule
        if not rule.workspaces or self.accelerator is None:
            return None
        silicon = _silicon(self.accelerator)
        return rule.workspace_of(form, version=self.version, silicon=silicon, backend=self.experts_backend)

    def copied_scales(self, form: str, *, certain: bool = True) -> float:
        """What second copies of the scales of routed experts take for each weight, for certain or perhaps, [bit]"""
        loading = self.rule.loading
        if not loading.scale_copies or self.accelerator is None:
            return 0.0
        silicon = _silicon(self.accelerator)
        return loading.copied(form, version=self.version, silicon=silicon, certain=certain)

    def possible_kernels(self, form: str, model: str) -> tuple[ExpertKernel, ...]:
        """Kernels of routed experts that may pad a weight format where no source says which one runs.

        Returns: Empty where the kernel is known, where no engine pads the format, and for engines that keep the
          experts of their own files; those of other engines where nobody says how this one pads. Kernels that pad
          nothing are not among them.

        Examples
        --------
        >>> MemorySettings(engine="vllm", accelerator="h100-sxm").possible_kernels("mxfp4", "gpt-oss-20b")
        ()
        >>> found = MemorySettings(engine="sglang", accelerator="h100-sxm").possible_kernels("mxfp4", "gpt-oss-20b")
        >>> sorted({one.backend for one in found})
        ['cutlass', 'flashinfer_cutlass', 'marlin', 'triton']
        """
        silicon = self.accelerator and _silicon(self.accelerator)
        if self.expert_kernel(form, model) is not None and (self.experts_backend is not None or silicon):
            return ()
        running = load_engine(self.engine).running
        if running is None or running.reads != "safetensors":
            return ()

        def fitting(engines: tuple[str, ...]) -> tuple[ExpertKernel, ...]:
            return tuple(
                one
                for engine in engines
                for one in load_memory_rule(engine).loading.expert_kernels
                if one.pads(form, silicon=silicon, model=model) and one.inner * one.hidden > 1
            )

        return fitting((self.engine,)) or fitting(memory_engines())

    @property
    def graphs_in_pool(self) -> bool:
        """Whether this launch takes its estimate of CUDA graphs from the pool."""
        if self.graphs_taken is not None:
            return self.graphs_taken
        return bool(self.default("graphs_in_pool", None))


# Memory that no formula gives: driver, context, CUDA graphs and what engines take beyond, with their spread.
#
# The terms are fitted to lines of engine start-up logs by `glmplan.calibrate.memory` and read here.


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
        kind of launch (`glmplan.costs.memory.pool.launch_kinds`), [B]
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


# Memory of one accelerator as an engine sees it: what the driver lists less what the driver keeps.


@dataclass(frozen=True, slots=True)
class PartMemory:
    """Memory of one accelerator as an engine sees it.

    Attributes
    ----------
    listed : float
        What the driver lists, [B]
    total : float
        What an engine can address, [B]
    total_sd : float
        Its standard deviation; 0 when it is published, [B]
    link : str
        ``pcie``, ``nvlink`` or ``unified``.
    free_before_load : float or None
        Measured free memory before weights are loaded, in place of the observed mean, [B]
    capability : str
        Compute capability, empty where none is known: engines choose communicators by it.
    peer_to_peer : bool
        Whether accelerators can reach each other's memory; False only where a source says that they cannot.
    """

    listed: float
    total: float
    total_sd: float
    link: str
    free_before_load: float | None = None
    capability: str = ""
    peer_to_peer: bool = True


def part_memory(part: Accelerator, *, fit: MemoryFit | None = None) -> PartMemory:
    """Memory of an accelerator as an engine sees it.

    `fit`: Observed terms; those in `calibration` if not given.

    Examples
    --------
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> found = part_memory(load_accelerator("rtx-pro-6000-server"))
    >>> round(found.total / 2**30, 2), found.total_sd
    (94.97, 0.0)
    """
    listed = float(part.need("memory"))
    fit = fit or load_memory_fit()
    link = "unified" if part.unified_memory else (part.link_kind or "pcie")
    if part.memory_usable is not None:
        usable, sd = float(part.memory_usable), 0.0
    elif part.unified_memory:
        usable, sd = listed, 0.0
    else:
        usable, sd = listed - fit.driver.mean, fit.driver.sd
    peers = part.peer_to_peer is not False
    return PartMemory(listed, usable, sd, link, capability=part.compute_capability or "", peer_to_peer=peers)
