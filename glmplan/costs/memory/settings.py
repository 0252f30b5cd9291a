"""Launch settings that decide memory, and observed memory terms.

The memory of an accelerator is here, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.engines.defaults import block_tokens, engine_defaults
from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.engines.memory import (
    CompressedTrial,
    ExpertKernel,
    MemoryRule,
    Workspace,
    load_memory_rule,
    memory_engines,
)
from glmplan.catalog.entries.accelerators import load_accelerator, outside_catalog
from glmplan.catalog.files import fits_folder, read_toml
from glmplan.catalog.schema.engine import CacheLayout, Running
from glmplan.costs.blocks.stack import cache_layout
from glmplan.units import GIB, Bytes, Ratio, parse_quantity

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = ["LoadedShare", "MemoryFit", "MemorySettings", "PartMemory", "Spread", "load_memory_fit", "part_memory"]


@cache
def _silicon(accelerator: str) -> str | None:
    """Return the compute capability; cached, as each kind of layer asks."""
    return load_accelerator(accelerator).compute_capability


@cache
def _called(accelerator: str) -> str:
    """Return the catalogue name of the same chip, else the file's name."""
    if not outside_catalog(accelerator):
        return accelerator
    part = load_accelerator(accelerator)
    return part.same_chip or part.name


#: memory of a data-centre accelerator where none is given [B]
_LARGE = 80.0 * GIB


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Launch settings that decide memory; None takes the engine's default."""

    engine: str = "vllm"  # see `memory_engines`
    version: str | None = None  # None: the newest
    accelerator: str | None = None  # name, or file that describes it; some defaults differ by it
    #: ``gpu_memory_utilization``, ``mem_fraction_static`` or ``free_gpu_memory_fraction``
    fraction: np.ndarray | float | None = None
    #: of a step: ``max_num_batched_tokens``, ``chunked_prefill_size``, ``ubatch`` [token]
    token_budget: np.ndarray | float | None = None
    max_requests: np.ndarray | float | None = None  # sampled together: ``max_num_seqs``
    graphs: np.ndarray | float | None = None  # captured CUDA graphs; None: vLLM's 51 sizes, 0: eager
    offloaded: float | None = None  # share of the matrices of `moved_class` in host memory
    host_layers: int = 0  # leading layers in host memory, with their caches
    host_cache: bool = False  # True: the caches of all layers are in host memory
    indexer: bool = True  # False: an engine patched to attend densely drops the indexer and its keys
    experts_backend: str | None = None  # kernel of the routed experts (``--moe-backend``), as the log names it
    draft_tokens: float | None = None  # ``num_speculative_tokens``; None: one where a draft head is loaded
    longest: np.ndarray | float | None = None  # ``max_model_len``; None: the requested length [token]
    #: takes the estimate of CUDA graphs from the pool; None: as its version (builds between releases carry the previous
    #: number)
    graphs_taken: bool | None = None
    adapters: int = 0  # LoRA adapters with buffers
    adapter_rank: int = 0  # rank of the buffers
    #: every TP rank holds the full image tower (``--mm-encoder-tp-mode data``, ``--mm-enable-dp-encoder``)
    whole_tower: bool = False
    #: layers of each pipeline stage, for all layouts or for each; empty: those of the engine
    partitions: tuple[tuple[int, ...], ...] = ()

    @property
    def layout(self) -> CacheLayout:
        """Return the cache layout of the engine."""
        result = cache_layout(self.engine)
        silicon = _silicon(self.accelerator) if self.accelerator else None
        if silicon and any(fnmatchcase(silicon, each) for each in result.plain_latent_on):
            result = result.model_copy(update={"plain_latent": True})
        if self.engine in memory_engines() and not self.rule.caches_latents(self.version):
            result = result.model_copy(update={"expanded_latent": self.rule.expanded_latent})
        if not self.indexer:
            return result.without_indexer()
        buffer = self.rule.step_of(self.version) if self.engine in memory_engines() else None
        if buffer is None or not buffer.index_keys:
            return result
        return result.model_copy(update={"plain_index_keys": True})

    @property
    def rule(self) -> MemoryRule:
        """Return the engine's memory rule."""
        return load_memory_rule(self.engine)

    @property
    def _running(self) -> Running | None:
        return load_engine(self.engine).running if self.engine in memory_engines() else None

    @property
    def unequal_pieces(self) -> bool:
        """Return True if tensor parallelism deals whole pieces."""
        return self._running is not None and self._running.unequal_pieces

    @property
    def tables_on_host(self) -> bool:
        """Return True if n-gram tables are in host memory.

        Plans use the option of the engine for it.
        """
        return self._running is not None and self._running.host_tables is not None

    def default(self, name: str, memory: float | None, tp: int = 1) -> float | None:
        """Return the engine's default for a name, by accelerator memory [B]."""
        called = self.accelerator and _called(self.accelerator)
        return self.rule.default(name, version=self.version, memory=memory, accelerator=called, tp=tp)

    def budget(self, memory: float | None) -> np.ndarray:
        """Return the tokens of a step, by memory [B].

        Unknown memory counts as large.
        """
        if self.token_budget is not None:
            return np.asarray(self.token_budget, dtype=float)
        whole = self.rule.whole_prompts
        tokens: np.ndarray | None = None if whole is None else whole.tokens(self.version, self.longest)
        if tokens is not None:
            return np.asarray(tokens, dtype=float)
        called = _called(self.accelerator or "")
        result = engine_defaults(self.engine, version=self.version, accelerator=called, memory=memory)
        return np.asarray(result.budget, dtype=float)

    def requests(self, memory: float | None, tp: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the requests with logits at once, by memory [B].

        Unknown memory counts as large.
        """
        if self.max_requests is not None:
            return np.asarray(self.max_requests, dtype=float)
        return self._by_degree("sampled", _LARGE if memory is None else memory, tp)

    def graph_requests(self, memory: float | None, tp: np.ndarray) -> np.ndarray:
        """Return the largest batch with a CUDA graph.

        SGLang's depends on memory [B] and on `tp` below 4.
        """
        result = self._by_degree("graph_requests", memory, tp)
        return result if self.max_requests is None else np.minimum(result, self.max_requests)

    def _by_degree(self, name: str, memory: float | None, tp: np.ndarray | float) -> np.ndarray:
        """Return a default that may depend on four or more ranks sharing the work."""
        few, many = (self.default(name, memory, degree) or 512.0 for degree in (1, 4))
        return np.where(np.asarray(tp) < 4, few, many)

    def drafted(self, drafts: bool) -> float:
        """Return the speculative tokens of a step; 0 without a draft head."""
        if not drafts:
            return 0.0
        return 1.0 if self.draft_tokens is None else self.draft_tokens

    def block(self, sparse: bool) -> float:
        """Return the tokens of a cache block, `sparse` with index keys."""
        return float(block_tokens(self.engine, sparse=sparse))

    def expert_kernel(self, form: str, model: str) -> ExpertKernel | None:
        """Return the kernel that pads a model's routed experts, or None."""
        silicon = None if self.accelerator is None else _silicon(self.accelerator)
        backend = self.experts_backend
        return self.rule.loading.kernel(form, version=self.version, silicon=silicon, backend=backend, model=model)

    def compressed_trial(self) -> CompressedTrial | None:
        """Return the trial of compressed attention; None without a source."""
        rule = self.rule
        if not rule.compressed or self.accelerator is None:
            return None
        return rule.compressed_of(self.version, _silicon(self.accelerator))

    def workspace(self, form: str, model: str) -> Workspace | None:
        """Return the kept buffers of the expert kernel; None without a source."""
        rule = self.rule
        if not rule.workspaces or self.accelerator is None:
            return None
        silicon = _silicon(self.accelerator)
        return rule.workspace_of(form, version=self.version, silicon=silicon, backend=self.experts_backend, model=model)

    def copied_scales(self, form: str, *, certain: bool = True) -> float:
        """Return the bits of each weight in second copies of expert scales.

        `certain` counts only copies with a source.
        """
        loading = self.rule.loading
        if not loading.scale_copies or self.accelerator is None:
            return 0.0
        silicon = _silicon(self.accelerator)
        return loading.copied(form, version=self.version, silicon=silicon, certain=certain)

    def possible_kernels(self, form: str, model: str) -> tuple[ExpertKernel, ...]:
        """Return expert kernels that may pad a format, where none is documented.

        Empty where the kernel is known, where no engine pads the format, and for engines that keep the experts of their
        own files. Without any source on this engine, kernels of other engines. Kernels without padding are not
        included.

        Examples
        --------
        >>> MemorySettings(engine="vllm", accelerator="h100-sxm").possible_kernels("mxfp4", "gpt-oss-20b")
        ()
        >>> found = MemorySettings(engine="sglang", accelerator="h100-sxm").possible_kernels("mxfp4", "gpt-oss-20b")
        >>> sorted({one.backend for one in found})
        ['cutlass', 'flashinfer_cutlass', 'marlin', 'triton', 'turbomind']
        """
        silicon = self.accelerator and _silicon(self.accelerator)
        if self.expert_kernel(form, model) is not None and (self.experts_backend is not None or silicon):
            return ()
        running = load_engine(self.engine).running
        if running is None or running.reads != "safetensors":
            return ()

        def fitting(engines: tuple[str, ...]) -> tuple[ExpertKernel, ...]:
            return tuple(
                expert_kernel
                for engine in engines
                for expert_kernel in load_memory_rule(engine).loading.expert_kernels
                if expert_kernel.pads(form, silicon=silicon, model=model)
                and expert_kernel.inner * expert_kernel.hidden > 1
            )

        return fitting((self.engine,)) or fitting(memory_engines())

    @property
    def graphs_in_pool(self) -> bool:
        """Return True if this launch takes the graph estimate from the pool."""
        if self.graphs_taken is not None:
            return self.graphs_taken
        return bool(self.default("graphs_in_pool", None))


@dataclass(frozen=True, slots=True)
class Spread:
    """Observed quantity: mean and standard deviation [B], and observations.

    0 observations: a prior.
    """

    mean: Bytes
    sd: Bytes
    count: int


@dataclass(frozen=True, slots=True)
class LoadedShare:
    """Half width of a 90 % interval of logged over computed weights."""

    share: Ratio
    count: int


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Observed memory without a formula, fitted to start-up logs.

    `glmplan.calibrate.memory` is the fit.
    """

    driver: Spread  # listed by nvidia-smi, but invisible to an engine
    context: dict[str, Spread]  # taken before weights are loaded, by link (``pcie``, ``nvlink``, ``single``)
    graph: Spread  # one captured CUDA graph
    remainder: dict[str, Spread]  # beyond weights, activations and context, by engine; ``pooled`` for others
    #: beside a known trial run, instead of context and remainder, by engine and kind of launch
    #: (`glmplan.costs.memory.pool.launch_kinds`)
    outside: dict[str, dict[str, Spread]] = field(default_factory=dict)
    #: taken from the pool for CUDA graphs before capture, likewise
    estimate: dict[str, dict[str, Spread]] = field(default_factory=dict)
    captured: dict[str, dict[str, Spread]] = field(default_factory=dict)  # captured graphs, likewise
    loaded: dict[str, LoadedShare] = field(default_factory=dict)  # interval of the weights, by engine


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


@dataclass(frozen=True, slots=True)
class PartMemory:
    """Memory of one accelerator as an engine sees it."""

    listed: Bytes  # by the driver
    total: Bytes  # addressable by an engine
    total_sd: Bytes  # standard deviation of `total`; 0: published
    link: str  # ``pcie``, ``nvlink`` or ``unified``
    free_before_load: Bytes | None = None  # measured, instead of the observed mean
    capability: str = ""  # compute capability, which decides the communicators; empty: unknown
    peer_to_peer: bool = True  # False only where a source says that peers cannot reach each other's memory
    stages: tuple[PartMemory, ...] = ()  # of each pipeline stage, where they are on unlike accelerators

    def on(self, stage: int) -> PartMemory:
        """Return the memory of an accelerator of a pipeline stage."""
        return self.stages[stage] if self.stages else self


def part_memory(part: Accelerator, *, fit: MemoryFit | None = None) -> PartMemory:
    """Return an accelerator's memory without the driver's own use.

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
