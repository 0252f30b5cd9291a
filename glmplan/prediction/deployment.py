"""Deployments: all that decides memory and step time but the load.

Model, accelerators, engine and launch settings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from math import gcd, inf
from typing import TYPE_CHECKING, Any

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.defaults import UNKNOWN_ENGINE, drafting_limit, engine_defaults, engine_known
from glmplan.catalog.engines.kernels import attention_rule, shared_beside, sparse_capabilities, sparse_since
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import implied_host
from glmplan.catalog.entries.names import engine_release
from glmplan.catalog.files import data_folder, read_toml
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.engine import EngineDefaults
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import cache_layout, is_indexed, mixers_of, model_shape, routed_blocks
from glmplan.costs.kernels.utilisation import kernel_release
from glmplan.costs.memory.settings import MemorySettings
from glmplan.costs.network.links import LayoutLinks, links_of_layout
from glmplan.costs.points import Layout
from glmplan.costs.step.acceptance import acceptance_prior
from glmplan.costs.step.structure import Part, StepWork
from glmplan.errors import SpecError
from glmplan.units import Ratio

if TYPE_CHECKING:
    from glmplan.costs.offload.steps import Offload
    from glmplan.costs.offload.work import Placement

__all__ = [
    "Deployment",
    "Settings",
    "bulk_format",
    "cache_choice",
    "context_problem",
    "default_kv",
    "deploy",
    "experts_of",
    "experts_problem",
    "heads_of",
    "keeps_experts_on_host",
    "keeps_indexer",
    "offload_of",
    "runs_sparse",
    "spanned",
    "split_problem",
    "usual_ends",
]


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """Hold the launch settings of an engine; None leaves the engine's default.

    Counts and token numbers are those of one data-parallel rank. A number out of range raises `SpecError`.

    Examples
    --------
    >>> Settings(memory_fraction=1.2)
    Traceback (most recent call last):
    glmplan.errors.SpecError: memory_fraction: 1.2 must be above 0 and at most 1
    """

    memory_fraction: float | None = None  # gpu_memory_utilization, mem_fraction_static, free_gpu_memory_fraction
    max_num_seqs: int | None = None  # or max_running_requests, max_batch_size
    max_num_batched_tokens: int | None = None  # or chunked_prefill_size, max_num_tokens
    max_model_len: int | None = None  # or context_length, max_seq_len
    attention_backend: str = ""  # empty: chosen by the engine
    moe_backend: str = ""  # first word of the table's entry; empty: unknown
    graphs: bool = True
    gathers_latents: bool = False  # of a build: see `glmplan.catalog.engines.kernels.gathers_latents`
    unstated: frozenset[str] = (
        frozenset()
    )  # fields that may have been set but are not recorded: `spanned` covers their usual values
    expert_kernels: str = ""  # name in hardware_db/kernels.toml; empty: chosen by the engine
    adapters: int = 0  # LoRA adapters loaded at the same time
    adapter_rank: int = 0
    host_experts: Ratio = 0.0  # layers whose experts lie in host memory, of those with experts (``--n-cpu-moe``)
    host_layers: int = 0  # leading layers in host memory with their caches (``-ngl``)
    host_cache: bool = False  # caches of all layers in host memory (``--no-kv-offload``)

    def __post_init__(self) -> None:
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise SpecError("must be above 0 and at most 1", field="memory_fraction", value=self.memory_fraction)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError("must be at least 1", field=name, value=value)

    def __repr__(self) -> str:
        fields_set = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return f"Settings({', '.join(f'{name}={value!r}' for name, value, usual in fields_set if value != usual)})"

    def packing(self, defaults: EngineDefaults) -> EngineDefaults:
        """Return the scheduler settings of an engine with these settings applied.

        Examples
        --------
        >>> found = Settings(max_num_seqs=64).packing(EngineDefaults(8192, False, 1024))
        >>> found.budget, found.places
        (8192, 64)
        """
        changes: dict[str, int] = {}
        if self.max_num_batched_tokens is not None:
            changes["budget"] = self.max_num_batched_tokens
        if self.max_num_seqs is not None:
            changes |= {"max_requests": self.max_num_seqs, "most_requests": 0}
        return replace(defaults, **changes) if changes else defaults  # type: ignore[arg-type]

    def memory(
        self,
        *,
        engine: str,
        version: str | None = None,
        accelerator: str | None = None,
        indexer: bool = True,
        draft_tokens: int = 0,
    ) -> MemorySettings:
        """Return the settings that decide memory; no version means the newest.

        Examples
        --------
        >>> Settings(max_num_seqs=64, graphs=False).memory(engine="vllm").graphs
        0.0
        """
        return MemorySettings(
            engine=engine,
            version=version,
            accelerator=accelerator,
            fraction=self.memory_fraction,
            token_budget=self.max_num_batched_tokens,
            max_requests=self.max_num_seqs,
            graphs=None if self.graphs else 0.0,
            indexer=indexer,
            experts_backend=self.moe_backend or None,
            draft_tokens=draft_tokens or None,
            longest=self.max_model_len,
            adapters=self.adapters,
            adapter_rank=self.adapter_rank,
            offloaded=self.host_experts or None,
            host_layers=self.host_layers,
            host_cache=self.host_cache,
        )

    @property
    def on_host(self) -> bool:
        """Return True if weights or caches lie in host memory on request."""
        return bool(self.host_experts or self.host_layers or self.host_cache)

    def placement(self, layers: int) -> Placement | None:
        """Return what lies in host memory, of a model's layers; None if nothing."""
        if not self.on_host:
            return None
        from glmplan.costs.offload.work import Placement

        if self.host_layers or self.host_cache:
            return Placement(self.host_layers / layers, "layers", cache=self.host_cache)
        return Placement(self.host_experts, "expert-layers")


#: vLLM stores a sparse-attention latent in FP8 as 512 values, four FP32 scales and 64 rotary values in BF16 [B]
#: (vllm `fp8_ds_mla`, vllm/v1/attention/backends/mla; checked against two servers in models.md section 3)
DS_MLA_BYTES = 656.0
#: formats with the same storage and kernels, whichever tool made them
_ONE_KERNEL = {"awq-int4": "int4", "gptq-int4": "int4"}


@dataclass(frozen=True, repr=False)
class Deployment:
    """Describe a model on accelerators under an engine.

    Attributes
    ----------
    model, checkpoint : ModelSpec, Checkpoint
        Model and its files.
    accelerator : Accelerator
        The GPU.
    count : int
        Accelerators, [-]
    tp, pp, dp, ep, dcp : int
        Parallel degrees, [-]
    kv : str
        Format of the KV cache.
    engine : str
        ``vllm``, ``sglang``, ``trtllm``, ``llama.cpp``, ``ktransformers``, ``mlx`` or another name.
    sparse : bool
        True if sparse attention kernels run.
    link : LayoutLinks
        Links that the parallel groups use.
    release : tuple of int or None
        Engine version.
    settings : Settings
        Launch settings.
    draft_tokens : int
        Speculative tokens for each request and step, [-]
    acceptance : float or None
        Tokens per step with speculative decoding, [-]; None takes the prior
    draft_method : str
        ``mtp``, ``eagle3`` or another; empty takes the model's own MTP layer or draft head.
    draft_depth : int
        Length of the draft chain if a tree is verified, [token]; 0 means `draft_tokens`
    text : str
        Kind of text, see `glmplan.costs.step.acceptance.text_kind`; for a measured run its protocol, which identifies
        the campaign in the fit; empty if unknown.
    offload : Offload or None
        Weights in host memory; None if the accelerators hold all weights.
    power_limit : float or None
        Power limit of each accelerator, [W]; None is the rating.
    assumed : tuple of str
        Kinds of settings that are not stated, see `glmplan.prediction.assumptions`; empty for a launch command.
    stages : tuple of (str, int)
        Accelerator and layers of each pipeline stage, where they are of several kinds; `accelerator` has the mean
        rates.
    """

    model: ModelSpec
    checkpoint: Checkpoint
    accelerator: Accelerator
    count: int
    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    kv: str
    engine: str
    sparse: bool
    link: LayoutLinks
    release: tuple[int, ...] | None = None
    settings: Settings = Settings()
    draft_tokens: int = 0
    acceptance: float | None = None
    draft_method: str = ""
    draft_depth: int = 0
    text: str = ""
    offload: Offload | None = None
    power_limit: float | None = None
    assumed: tuple[str, ...] = ()
    stages: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        form = f"{self.kv} cache" + f", {self.draft_tokens} speculative tokens" * bool(self.draft_tokens)
        return (
            f"<Deployment {self.model.name} {self.checkpoint.name} on {self.count} × {self.accelerator.name}, "
            f"TP{self.tp} PP{self.pp} DP{self.dp} EP{self.ep}, {self.engine}, {form}>"
        )

    def remembered(self) -> Deployment:
        """Return the cached deployment of the same records and settings."""
        return _remembered(*(getattr(self, name) for name in (*_RECORDS, *_VALUES)))

    @property
    def layout(self) -> Layout:
        """Return the parallel degrees."""
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep, dcp=self.dcp)

    @property
    def graph_tokens(self) -> int:
        """Return the largest prompt step replayed from piecewise graphs [token]"""
        return self.defaults.graph_tokens if self.settings.graphs else 0

    @cached_property
    def defaults(self) -> EngineDefaults:
        """Return the scheduler settings; assumed values for an unknown engine."""
        if not engine_known(self.engine):
            return self.settings.packing(UNKNOWN_ENGINE)
        accelerator = self.accelerator
        defaults = engine_defaults(
            self.engine, version=self.version, accelerator=accelerator.name, memory=accelerator.memory
        )
        limit = drafting_limit(self.engine) if self.draft_tokens else None
        if limit is not None:
            defaults = replace(defaults, max_requests=max(limit // self.dp, 1), most_requests=0)
        # async scheduling is off with pipeline stages
        return self.settings.packing(replace(defaults, ahead=False) if self.pp > 1 and defaults.ahead else defaults)

    @cached_property
    def rated(self) -> tuple[Accelerator, float | None]:
        """Return the accelerator that has measurements, and its power limit [W].

        An accelerator without published rates that is another one at a lower power limit (RTX PRO 6000 Max-Q) is
        predicted as that other one under the limit. None is no limit.
        """
        if self.accelerator.rated is None:
            return self.accelerator, self.power_limit
        limit = self.accelerator.tdp if self.power_limit is None else self.power_limit
        return load_accelerator(self.accelerator.rated), limit

    @property
    def version(self) -> str | None:
        """Return the engine version as text; None if unknown."""
        return ".".join(map(str, self.release)) if self.release else None

    @property
    def tokens_per_step(self) -> float:
        """Return the tokens that a request gains in a step [-]"""
        if not self.draft_tokens:
            return 1.0
        return self.acceptance_prior[0] if self.acceptance is None else max(self.acceptance, 1.0)

    @property
    def draft_chain(self) -> int:
        """Return the tokens that are drafted one after the other [-]"""
        return self.draft_depth or self.draft_tokens

    @property
    def acceptance_prior(self) -> tuple[float, float]:
        """Return the fitted tokens per step [token] and its log deviation [-]"""
        return acceptance_prior(
            self.model.family,
            self.draft_method
            or (self.model.draft_head.method if self.model.draft_head else "mtp" if self.model.mtp else ""),
            self.draft_chain,
            self.text,
            verify_tokens=self.draft_tokens + 1,
        )

    @property
    def acceptance_deviation(self) -> float:
        """Return the log deviation of the tokens per step; 0 if given [-]"""
        return self.acceptance_prior[1] if self.draft_tokens and self.acceptance is None else 0.0

    @cached_property
    def shape(self) -> str:
        """Return the name of the model's shape; weights do not matter."""
        return model_shape(self.model)

    @cached_property
    def mixers(self) -> str:
        """Return the names of the model's attention kinds."""
        return "+".join(sorted({one.name for one in mixers_of(self.model) if one.name}))

    @property
    def weights(self) -> str:
        """Return the format of the routed experts, or of the dense layers."""
        return bulk_format(self.checkpoint)

    @cached_property
    def structure(self) -> StepWork:
        """Return the input of the step-time function."""
        rated, _ = self.rated
        silicon = rated.compute_capability or ""
        part = Part(
            name=rated.name,
            family="cpu" if rated.kind == "cpu-socket" else _family(silicon),
            bandwidth=rated.need("memory_bandwidth"),
            peaks={str(name): rate for name, rate in rated.peak.items()},
            same_chip=rated.same_chip or "",
            multiprocessors=rated.multiprocessors or 0,
        )
        packs = any(one.packed_fp8 for one in mixers_of(self.model))
        latent_fp8 = self.kv == "fp8" and packs and self.indexer and _packs_latents(self.engine)
        return StepWork(
            model=self.model,
            checkpoint=self.checkpoint,
            part=part,
            link=self.link,
            engine=self.engine,
            kv_bytes=kv_format(self.kv).bytes,
            latent_bytes=DS_MLA_BYTES if latent_fp8 else 0.0,
            sparse=self.sparse,
            draft_tokens=self.draft_tokens,
            verify_only=not self.model.draft_runs,
            attention=attention_rule(self.engine, self.settings.attention_backend, part.family, self.kv),
            release=self.kernel_release,
            expert_kernels=self.settings.expert_kernels,
            adapters=self.settings.adapters,
            adapter_rank=self.settings.adapter_rank,
            shared_beside=shared_beside(self.engine, part.family, self.release),
            gathers_latents=self.settings.gathers_latents,
            prompt_tail=self.prompt_tail,
        ).remembered()

    @property
    def kernel_release(self) -> tuple[int, ...] | None:
        """Return the engine release whose measured kernels are used."""
        return kernel_release(self.accelerator.same_chip or self.accelerator.name, self.engine, self.release)

    @property
    def prompt_tail(self) -> float:
        """Return the last prompt tokens that decode-only layers compute.

        The number holds for each step. It is infinite where the engine runs such layers on all of a prompt, where no
        source shows that it does not, and where several ranks share the tokens of each data-parallel replica.
        """
        apart = [kind.mixer for kind in self.model.layers.values() if kind.decode_only]
        running = load_engine(self.engine).running if apart and self.engine in engine_names() else None
        facts = running.prompt_tails if running is not None else None
        if facts is None or self.accelerator.vendor not in facts.makers:
            return inf
        if self.release is not None and self.release < (engine_release(facts.since) or ()):
            return inf
        if min(self.tp, self.dp) > 1:
            return inf
        return float(max(getattr(mixer, "window", None) or 1 for mixer in apart))

    @property
    def indexer(self) -> bool:
        """Return True if the sparse-attention indexer is loaded and cached."""
        return keeps_indexer(self.engine, self.sparse)

    @property
    def kinds(self) -> dict[str, Deployment]:
        """Return the deployment on each kind of accelerator alone, by name."""
        names = dict.fromkeys(name for name, _ in self.stages)
        return {name: replace(self, accelerator=load_accelerator(name), stages=()).remembered() for name in names}

    def with_layout(
        self, link: LayoutLinks, *, tp: int, pp: int = 1, dp: int = 1, ep: int = 1, dcp: int = 1
    ) -> Deployment:
        """Return this deployment in another layout, on as many accelerators."""
        return replace(self, link=link, tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, count=tp * pp * dp)


#: fields that are too deep to compare; then all others
_RECORDS = ("model", "checkpoint", "accelerator", "link", "offload")
_VALUES = tuple(one.name for one in fields(Deployment) if one.name not in _RECORDS)


@remembered(records=len(_RECORDS), most=256)
def _remembered(*given: Any) -> Deployment:
    return Deployment(**dict(zip((*_RECORDS, *_VALUES), given, strict=True)))


def deploy(
    model: ModelSpec,
    checkpoint: Checkpoint,
    accelerator: Accelerator,
    *,
    engine: str,
    layout: Layout = Layout(),  # noqa: B008
    kv: str | None = None,
    sparse: bool | None = None,
    link: LayoutLinks | None = None,
    **details: object,
) -> Deployment:
    """Return a deployment with the defaults of engine and checkpoint.

    By default `kv` is the engine's choice for the checkpoint, `sparse` follows the accelerator's kernels, and `link` is
    that of the machine with as many accelerators as the layout has.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> glm, part = load_model("glm-5.1"), load_accelerator("b200-sxm")
    >>> found = deploy(glm, glm.checkpoint("nvfp4"), part, engine="vllm", layout=Layout(tp=8))
    >>> found.count, found.kv, found.sparse, found.link.tensor.kind
    (8, 'fp8', True, 'nvlink')
    """
    tp, pp, dp, ep, dcp = (int(getattr(layout, name)) for name in ("tp", "pp", "dp", "ep", "dcp"))
    if link is None:
        link = links_of_layout(implied_host(accelerator, tp * pp * dp), tp=tp, pp=pp, dp=dp, dcp=dcp)
    return Deployment(
        model=model,
        checkpoint=checkpoint,
        accelerator=accelerator,
        count=tp * pp * dp,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        dcp=dcp,
        kv=default_kv(checkpoint, engine, model=model, accelerator=accelerator) if kv is None else kv,
        engine=engine,
        sparse=runs_sparse(accelerator, None) if sparse is None else sparse,
        link=link,
        **details,  # type: ignore[arg-type]
    )


def cache_choice(
    checkpoint: Checkpoint, engine: str, *, model: ModelSpec | None = None, accelerator: Accelerator | None = None
) -> tuple[str, str]:
    """Return the default format of the KV cache and the reason.

    In this order: the engine's choice for models with an indexer on this compute capability; the checkpoint's format if
    the engine has it (an unknown engine has all); the engine's format for quantised weights; the engine's first format.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> cache_choice(glm.checkpoint("nvfp4"), "vllm")
    ('fp8', 'stated by the checkpoint')
    >>> cache_choice(glm.checkpoint("fp8"), "vllm"), cache_choice(glm.checkpoint("fp8"), "trtllm")
    (('bf16', 'the default of vllm'), ('fp8', 'trtllm uses it with quantised weights'))
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> cache_choice(glm.checkpoint("fp8"), "sglang", model=glm, accelerator=load_accelerator("b200-sxm"))
    ('fp8', 'sglang requires it for sparse attention on compute capability 10.0')
    """
    formats = load_engine(engine).cache_formats if engine_known(engine) else ()
    silicon = (accelerator.compute_capability if accelerator is not None else None) or ""
    if silicon and model is not None and is_indexed(model):
        for one in formats:
            if any(fnmatchcase(silicon, pattern) for pattern in one.indexed_on):
                return one.format, f"{engine} requires it for sparse attention on compute capability {silicon}"
    stated = checkpoint.kv_default
    if stated and (not formats or any(one.format == stated for one in formats)):
        return stated, "stated by the checkpoint"
    quantised = checkpoint.default != "bf16"
    brought = next((one.format for one in formats if one.quantised and quantised), None)
    if brought is not None:
        return brought, f"{engine} uses it with quantised weights"
    return (formats[0].format, f"the default of {engine}") if formats else ("bf16", "no source names another")


def default_kv(
    checkpoint: Checkpoint, engine: str, *, model: ModelSpec | None = None, accelerator: Accelerator | None = None
) -> str:
    """Return the default format of the KV cache, see `cache_choice`."""
    return cache_choice(checkpoint, engine, model=model, accelerator=accelerator)[0]


def _packs_latents(engine: str) -> bool:
    """Return True if the engine is known to store FP8 latents packed."""
    return engine_known(engine) and cache_layout(engine).packed_latent


def _family(silicon: str) -> str:
    return silicon.partition(".")[0] if silicon[:1].isdigit() else ""


def runs_sparse(
    accelerator: Accelerator, backend: str | None, *, engine: str = "", version: str | tuple[int, ...] | None = None
) -> bool:
    """Return True if an indexed model attends sparsely on an accelerator.

    Sparse kernels come with the accelerator, from a community backend named ``nsa`` or ``sparse``, or with an engine
    from some version on; an unknown version has none. False means dense attention: correct, but all keys are read.

    Examples
    --------
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> part = load_accelerator("rtx-pro-6000-ws")
    >>> [runs_sparse(part, None, engine="vllm", version=one) for one in ("0.19.0", "0.33.0", None)]
    [False, True, False]
    """
    said, capability = (backend or "").lower(), accelerator.compute_capability
    if "dense" in said or "off" in said:
        return False
    if "nsa" in said or "sparse" in said or capability in sparse_capabilities():
        return True
    since = sparse_since(engine, capability) if capability and version else None
    return since is not None and _reaches(version, since)


def _reaches(version: str | tuple[int, ...] | None, since: str) -> bool:
    """Return True if a version is known and at least `since`."""
    from glmplan.catalog.schema.engine import version_key

    try:
        text = version if isinstance(version, str) else ".".join(str(number) for number in version or ())
        return version_key(text) >= version_key(since)
    except SpecError:
        return False


def keeps_indexer(engine: str, sparse: bool) -> bool:
    """Return True if the sparse-attention indexer takes memory.

    It does so even with dense attention, except where a patch for dense attention removes it, see
    `glmplan.costs.blocks.stack`. Unknown engines keep it.

    Examples
    --------
    >>> keeps_indexer("vllm", True), keeps_indexer("vllm", False), keeps_indexer("sglang", False)
    (True, False, True)
    """
    return sparse or engine.lower() not in engine_names() or not cache_layout(engine).dense_drops_indexer


def heads_of(model: ModelSpec) -> int:
    """Return the greatest common divisor of all attention heads; 1 if none.

    Tensor parallelism must divide it.
    """
    return gcd(*(one.heads for one in mixers_of(model))) or 1


def split_problem(model: ModelSpec, tp: int, engine: str) -> str | None:
    """Return why an engine does not split a model over a TP degree, or None.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> split_problem(load_model("glm-5.1"), 3, "vllm")
    'does not divide the 64 attention heads of glm-5.1'
    >>> split_problem(load_model("kimi-k3"), 3, "vllm")
    'does not divide the vocabulary of kimi-k3, 163,840 rows with padding'
    >>> split_problem(load_model("glm-5.1"), 4, "vllm"), split_problem(load_model("kimi-k3"), 3, "trtllm")
    (None, None)
    """
    running, heads = load_engine(engine).running, heads_of(model)
    if running is not None and running.unequal_pieces:
        return None
    if heads > 1 and heads % tp:
        return f"does not divide the {heads} attention heads of {model.name}"
    problems = (one.cut_problem(tp, model.name) for one in mixers_of(model))
    rows = load_memory_rule(engine).vocabulary_problem(model.name, model.vocabulary, tp)
    return next((why for why in (*problems, rows) if why is not None), None)


def experts_problem(model: ModelSpec, ep: int, engine: str) -> str | None:
    """Return why an engine does not deal the experts over ranks, or None.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> experts_problem(load_model("glm-4.7"), 6, "sglang")
    'does not divide the 160 experts of glm-4.7'
    >>> experts_problem(load_model("glm-4.7"), 6, "vllm"), experts_problem(load_model("glm-4.7"), 8, "sglang")
    (None, None)
    """
    running, experts = load_engine(engine).running, experts_of(model)
    even = () if running is None else running.even_experts
    if experts % ep == 0 or not any(fnmatchcase(model.name, pattern) for pattern in even):
        return None
    return f"does not divide the {experts} experts of {model.name}"


def context_problem(model: ModelSpec, tp: int, dcp: int, engine: str, version: str | None) -> str | None:
    """Return why an engine does not divide cached tokens, or None.

    `version` None is the newest.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> context_problem(load_model("llama-3.1-70b"), 8, 2, "vllm", None)
    'needs TP 16 or more: the ranks that divide tokens hold the same of 8 KV heads'
    >>> context_problem(load_model("qwen3-235b-a22b"), 8, 2, "vllm", None)
    >>> context_problem(load_model("deepseek-v3.1"), 8, 2, "trtllm", None)
    'is not supported with TensorRT-LLM: no source shows it; leave it out'
    """
    if dcp == 1:
        return None
    entry = load_engine(engine)
    facts = None if entry.running is None else entry.running.shared_context
    if facts is None:
        return f"is not supported with {entry.full_name}: no source shows it; leave it out"
    release, mixers = engine_release(version) if version else None, mixers_of(model)
    features = frozenset().union(*(mixer.features for mixer in mixers))
    needed = {"": facts.since, "gqa": facts.keys_since, "recurrent": facts.beside_states_since}
    for feature, first in needed.items():
        least = engine_release(first)
        if (not feature or feature in features) and release is not None and least is not None and release < least:
            return f"needs {entry.full_name} {first} or newer for {model.name}"
    problems = (mixer.shared_context_problem(tp, dcp, model.name) for mixer in mixers)
    return next((problem for problem in problems if problem is not None), None)


def experts_of(model: ModelSpec) -> int:
    """Return the largest number of routed experts of a layer; 0 if dense."""
    return max((block.experts for block in routed_blocks(model)), default=0)


def bulk_format(checkpoint: Checkpoint) -> str:
    """Return the format of the routed experts, or of the dense layers.

    Formats with the same kernels have one name; files of mixed formats are ``gguf``.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> [bulk_format(load_model("glm-5.1").checkpoint(name)) for name in ("fp8", "nvfp4")]
    ['fp8-block', 'nvfp4']
    """
    if checkpoint.file_bits_per_weight is not None:
        return "gguf"
    weights = checkpoint.formats.get("routed_experts") or checkpoint.default
    return _ONE_KERNEL.get(weights, weights)


def keeps_experts_on_host(engine: str) -> bool:
    """Return True if the engine keeps routed experts in host memory."""
    return engine in memory_engines() and load_memory_rule(engine).host_experts


def offload_of(engine: str, host: Host, cards: int, placement: Placement | None = None) -> Offload | None:
    """Return the weights in host memory, or None.

    All routed experts where the engine keeps them there, else those of `placement`.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> offload_of("ktransformers", load_host("genoa-2s-direct-8"), 8).placement.unit
    'experts'
    """
    whole = keeps_experts_on_host(engine)
    if not whole and placement is None:
        return None
    from glmplan.costs.offload.steps import Offload
    from glmplan.costs.offload.work import Placement, host_side

    cards = min(cards, host.accelerators_per_node)
    if whole:
        return Offload(Placement(1.0, "experts"), host_side(host, cards))
    running = load_engine(engine).running
    moved = running.moved_experts if running is not None else None
    if moved is None:
        raise SpecError("keeps no experts in host memory by layers", field="engine", value=engine)
    # weights are fetched as they lie in host memory, those of a layer by the accelerator that computes it
    side = replace(host_side(host, cards, kernel="generic", in_turn=True), numa_aware=False, prepares=False)
    assert placement is not None
    return Offload(placement, side, moved.streams_above)


#: launch setting → field of `MemorySettings`
_FIELDS = {"memory_fraction": "fraction", "max_num_seqs": "max_requests", "max_num_batched_tokens": "token_budget"}


@cache
def usual_ends(engine: str, name: str) -> tuple[float, float] | None:
    """Return the 5 % and 95 % quantile of a setting over counted launches.

    None for engines whose launches were not counted.

    Examples
    --------
    >>> usual_ends("vllm", "memory_fraction"), usual_ends("mlx", "memory_fraction")
    ((0.8, 0.97), None)
    """
    file = data_folder("calibration") / "usual-settings.toml"
    entry = read_toml(file).get(engine)
    if entry is None:
        return None
    quantiles = entry.get(name)
    if not isinstance(quantiles, list) or len(quantiles) != 2 or not 0 < quantiles[0] < quantiles[1]:
        raise SpecError("is not two rising numbers", file=file, field=f"{engine}.{name}", value=quantiles)
    return float(quantiles[0]), float(quantiles[1])


def spanned(
    pool: Callable[[MemorySettings], tuple[float, float, float]], settings: MemorySettings, unstated: Collection[str]
) -> tuple[float, float, float]:
    """Return a KV pool whose interval also covers unrecorded settings.

    `pool` maps settings to tokens and the bounds of their 90 % interval; `unstated` names fields of `Settings`.
    Settings are taken as independent: distances to the bounds add as squares, each side by itself.

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
        bounds = usual_ends(settings.engine, name)
        if bounds is None:
            continue
        variants: list[dict[str, Any]] = [{_FIELDS[name]: end} for end in bounds]
        moved = [pool(replace(settings, **one))[0] - value for one in variants]
        below, above = below + min(0.0, *moved) ** 2, above + max(0.0, *moved) ** 2
    return value, max(value - below**0.5, 0.0), value + above**0.5
