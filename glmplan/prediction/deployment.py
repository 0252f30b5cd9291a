"""A model on accelerators under an engine: everything that decides memory and step time except the load."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from math import gcd
from typing import TYPE_CHECKING, Any

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.defaults import UNKNOWN_ENGINE, EngineDefaults, engine_defaults, engine_known
from glmplan.catalog.engines.kernels import attention_rule, shared_beside, sparse_capabilities, sparse_since
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import implied_host
from glmplan.catalog.files import data_folder, read_toml
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import cache_layout, is_indexed, mixers_of, model_shape
from glmplan.costs.kernels.utilisation import kernel_release
from glmplan.costs.memory.settings import MemorySettings
from glmplan.costs.network.links import LayoutLinks, links_of_layout
from glmplan.costs.points import Layout
from glmplan.costs.step.acceptance import acceptance_prior
from glmplan.costs.step.structure import Part, StepWork
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.costs.offload.steps import Offload

__all__ = [
    "Deployment",
    "Settings",
    "bulk_format",
    "cache_choice",
    "default_kv",
    "deploy",
    "heads_of",
    "keeps_experts_on_host",
    "keeps_indexer",
    "offload_of",
    "runs_sparse",
    "spanned",
    "usual_ends",
]


# What a launch tells its engine: the settings that decide memory, steps and kernels, in one record.


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """What an engine is told at its start; None leaves its default.

    Attributes
    ----------
    memory_fraction : float or None
        Share of the memory that the engine may use (``gpu_memory_utilization``, ``mem_fraction_static``,
        ``free_gpu_memory_fraction``), [-]
    max_num_seqs : int or None
        Requests that one data-parallel rank may run at once (``max_running_requests``, ``max_batch_size``), [-]
    max_num_batched_tokens : int or None
        Tokens that a step of one data-parallel rank may hold (``chunked_prefill_size``, ``max_num_tokens``), [token]
    max_model_len : int or None
        Longest request that the server accepts (``context_length``, ``max_seq_len``), [token]
    attention_backend : str
        Attention kernels; empty for those that the engine takes on its own.
    moe_backend : str
        First word of what a table calls the kernels of the experts; empty where it is not known.
    graphs : bool
        Whether steps run from captured graphs.
    unstated : frozenset of str
        Fields that somebody may have set and nobody tells: memory spans what is usual, see
        `glmplan.prediction.deployment.spanned`. Empty for a launch that is told here.
    expert_kernels : str
        Kernels of the experts that were switched on, as `hardware_db/kernels.toml` names them; empty for those that the
        engine takes on its own.
    adapters, adapter_rank : int
        Low-rank adapters (LoRA) that lie on the accelerators at once, and the rank that their buffers have, [-]

    Raises
    ------
    SpecError
        If a number is out of range; names the field.

    Examples
    --------
    >>> Settings(memory_fraction=1.2)
    Traceback (most recent call last):
    glmplan.errors.SpecError: memory_fraction: 1.2 must be above 0 and at most 1
    """

    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    attention_backend: str = ""
    moe_backend: str = ""
    graphs: bool = True
    unstated: frozenset[str] = frozenset()
    expert_kernels: str = ""
    adapters: int = 0
    adapter_rank: int = 0

    def __post_init__(self) -> None:
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise SpecError("must be above 0 and at most 1", field="memory_fraction", value=self.memory_fraction)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError("must be at least 1", field=name, value=value)

    def __repr__(self) -> str:
        told = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return f"Settings({', '.join(f'{name}={value!r}' for name, value, usual in told if value != usual)})"

    def packing(self, defaults: EngineDefaults) -> EngineDefaults:
        """How the engine packs steps with these settings.

        Examples
        --------
        >>> found = Settings(max_num_seqs=64).packing(EngineDefaults(8192, False, 1024))
        >>> found.budget, found.places
        (8192, 64)
        """
        told: dict[str, int] = {}
        if self.max_num_batched_tokens is not None:
            told["budget"] = self.max_num_batched_tokens
        if self.max_num_seqs is not None:
            told |= {"max_requests": self.max_num_seqs, "most_requests": 0}
        return replace(defaults, **told) if told else defaults  # type: ignore[arg-type]

    def memory(
        self,
        *,
        engine: str,
        version: str | None = None,
        accelerator: str | None = None,
        indexer: bool = True,
        draft_tokens: int = 0,
    ) -> MemorySettings:
        """The settings that decide memory, as its formulas take them.

        Parameters
        ----------
        engine : str
            The engine.
        version : str, optional
            Its version; the newest by default.
        accelerator : str, optional
            Name of the part, by which some defaults differ.
        indexer : bool, optional
            Whether the indexer of sparse attention is loaded.
        draft_tokens : int, optional
            Tokens drafted for each request and step, [-]

        Returns
        -------
        MemorySettings
            The settings.

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
        )


#: vLLM stores a sparse-attention latent in FP8 as 512 values, four FP32 scales and 64 rotary values in BF16 [B]
#: (vllm `fp8_ds_mla`, vllm/v1/attention/backends/mla; checked against two servers in models.md section 3)
DS_MLA_BYTES = 656.0
#: formats that are stored and multiplied alike, whatever tool made them
_ONE_KERNEL = {"awq-int4": "int4", "gptq-int4": "int4"}


@dataclass(frozen=True, repr=False)
class Deployment:
    """A model on accelerators under an engine.

    Attributes
    ----------
    model, checkpoint : ModelSpec, Checkpoint
        What is served.
    accelerator : Accelerator
        The part.
    count : int
        Accelerators, [-]
    tp, pp, dp, ep, dcp : int
        Layout, [-]
    kv : str
        Format of the KV cache.
    engine : str
        ``vllm``, ``sglang``, ``trtllm``, ``llama.cpp``, ``ktransformers``, ``mlx`` or another name.
    release : tuple of int or None
        Engine version.
    draft_tokens : int
        Tokens drafted for each request and step, [-]
    acceptance : float or None
        Tokens a step gains with drafting, [-]; None takes the prior
    sparse : bool
        Whether sparse attention kernels run.
    link : LayoutLinks
        The links that the groups of the layout cross.
    draft_method : str
        ``mtp``, ``eagle3`` or another; empty takes the model's own MTP layer, or its draft head.
    draft_depth : int
        Length of the drafted chain where a tree is verified, [token]; 0 means `draft_tokens`
    text : str
        Kind of text, see `glmplan.costs.step.acceptance.text_kind`; of a measured run its protocol, by which the fit
        knows the campaign; empty when it is not known.
    settings : Settings
        What the engine is told at its start.
    offload : Offload or None
        What stays in host memory; None where the accelerators hold everything.
    power_limit : float or None
        Power limit of each accelerator, [W]; None is its rating.
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

    def __repr__(self) -> str:
        form = f"{self.kv} cache" + f", {self.draft_tokens} speculative tokens" * bool(self.draft_tokens)
        return (
            f"<Deployment {self.model.name} {self.checkpoint.name} on {self.count} × {self.accelerator.name}, "
            f"TP{self.tp} PP{self.pp} DP{self.dp} EP{self.ep}, {self.engine}, {form}>"
        )

    def remembered(self) -> Deployment:
        """Take the deployment of the same records and settings that was asked for before, with what was made of it."""
        return _remembered(*(getattr(self, name) for name in (*_RECORDS, *_VALUES)))

    @property
    def layout(self) -> Layout:
        """The parallel degrees."""
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep, dcp=self.dcp)

    @property
    def graph_tokens(self) -> int:
        """Tokens up to which the engine replays a pass with prompts from piecewise graphs, [token]"""
        return self.defaults.graph_tokens if self.settings.graphs else 0

    @property
    def defaults(self) -> EngineDefaults:
        """How the engine packs steps on this part with what it is told; assumed for an unknown engine."""
        if not engine_known(self.engine):
            return self.settings.packing(UNKNOWN_ENGINE)
        part = self.accelerator
        found = engine_defaults(self.engine, version=self.version, accelerator=part.name, memory=part.memory)
        # batches that fill the stages of a pipeline are not formed ahead of each other
        return self.settings.packing(replace(found, ahead=False) if self.pp > 1 and found.ahead else found)

    @cached_property
    def rated(self) -> tuple[Accelerator, float | None]:
        """The part whose kernels and runs answer, and its power limit [W]; None is none.

        A part without published rates that is another part under a lower power limit (RTX PRO 6000 Max-Q) is answered
        as that other part under the limit.
        """
        if self.accelerator.rated is None:
            return self.accelerator, self.power_limit
        limit = self.accelerator.tdp if self.power_limit is None else self.power_limit
        return load_accelerator(self.accelerator.rated), limit

    @property
    def version(self) -> str | None:
        """Engine version as text; None where it is not known."""
        return ".".join(map(str, self.release)) if self.release else None

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gains in a step, [-]"""
        if not self.draft_tokens:
            return 1.0
        return self.acceptance_prior[0] if self.acceptance is None else max(self.acceptance, 1.0)

    @property
    def acceptance_prior(self) -> tuple[float, float]:
        """Tokens a step gains with this drafting by the fit [token], and the deviation of their logarithm [-]"""
        return acceptance_prior(
            self.model.family,
            self.draft_method or ("eagle3" if self.model.draft_head else "mtp" if self.model.mtp else ""),
            self.draft_depth or self.draft_tokens,
            self.text,
            verify_tokens=self.draft_tokens + 1,
        )

    @property
    def acceptance_deviation(self) -> float:
        """Deviation of the logarithm of the tokens a step gains; 0 when they were given, [-]"""
        return self.acceptance_prior[1] if self.draft_tokens and self.acceptance is None else 0.0

    @cached_property
    def shape(self) -> str:
        """Name of the model's shape: models that differ in their weights only are the same to an engine."""
        return model_shape(self.model)

    @cached_property
    def mixers(self) -> str:
        """Names of the model's kinds of mixer."""
        return "+".join(sorted({one.name for one in mixers_of(self.model) if one.name}))

    @property
    def weights(self) -> str:
        """Format of the bulk of the weights: of the routed experts, or of the dense layers."""
        return bulk_format(self.checkpoint)

    @cached_property
    def structure(self) -> StepWork:
        """What the step-time function needs."""
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
            verify_only=self.model.draft_layers is None,
            attention=attention_rule(self.engine, self.settings.attention_backend, part.family, self.kv),
            release=self.kernel_release,
            expert_kernels=self.settings.expert_kernels,
            adapters=self.settings.adapters,
            adapter_rank=self.settings.adapter_rank,
            shared_beside=shared_beside(self.engine, part.family, self.release),
        ).remembered()

    @property
    def kernel_release(self) -> tuple[int, ...] | None:
        """Release of the engine whose measured kernels stand for the one that runs."""
        return kernel_release(self.accelerator.same_chip or self.accelerator.name, self.engine, self.release)

    @property
    def indexer(self) -> bool:
        """Whether the indexer of sparse attention is loaded and its keys are cached."""
        return keeps_indexer(self.engine, self.sparse)

    def with_layout(
        self, link: LayoutLinks, *, tp: int, pp: int = 1, dp: int = 1, ep: int = 1, dcp: int = 1
    ) -> Deployment:
        """The same deployment in another layout.

        - `link`: The links that the groups of that layout cross.
        - Returns: With as many accelerators as the layout takes.
        """
        return replace(self, link=link, tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, count=tp * pp * dp)


#: fields that are too deep to be compared, and the others
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
    """Make a deployment; what is left out follows from the part, the engine and the checkpoint.

    - `kv`: Format of the KV cache; what the engine takes for this checkpoint by default.
    - `sparse`: Whether sparse attention kernels run; as the part has them by default.
    - `link`: The links of its groups; those of the machine that the number of accelerators implies by default.
    - Returns: The deployment, on as many accelerators as the layout has.

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
    """Format of the KV cache when nobody names one, and why.

    - `engine`: The engine; of one that no file describes only the checkpoint is asked.
    - `model`: The model, of which some engines choose otherwise if it has an indexer.
    - `accelerator`: The part, by whose compute capability they do.
    - Returns: What the engine takes for models with an indexer on such a part, else what the checkpoint says if the
      engine has it, else what quantised weights bring with them, else the engine's first format; the reason in words.

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
    """Format of the KV cache when nobody names one, see `cache_choice`.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> default_kv(load_model("glm-5.1").checkpoint("nvfp4"), "vllm")
    'fp8'
    """
    return cache_choice(checkpoint, engine, model=model, accelerator=accelerator)[0]


def _packs_latents(engine: str) -> bool:
    """Whether an engine stores FP8 latents in packed form, as its memory is counted; of unknown ones nobody knows."""
    return engine_known(engine) and cache_layout(engine).packed_latent


def _family(silicon: str) -> str:
    return silicon.partition(".")[0] if silicon[:1].isdigit() else ""


def runs_sparse(
    accelerator: Accelerator, backend: str | None, *, engine: str = "", version: str | tuple[int, ...] | None = None
) -> bool:
    """Whether an indexed model attends sparsely on a part.

    - `backend`: Attention backend where it is known; a community sparse kernel names itself ``nsa`` or ``sparse``.
    - `engine`: The engine, which may bring kernels of its own.
    - `version`: Its version; where it is not said, or cannot be ordered, it brings none.
    - Returns: False means dense attention: correct, but all keys are read.

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
    """Whether a version is at least another; one that cannot be ordered is not."""
    from glmplan.catalog.schema.engine import version_key

    try:
        text = version if isinstance(version, str) else ".".join(str(number) for number in version or ())
        return version_key(text) >= version_key(since)
    except SpecError:
        return False


def keeps_indexer(engine: str, sparse: bool) -> bool:
    """Whether the indexer of sparse attention takes memory, even if attention is dense for want of kernels.

    Returns: False where dense attention comes from a patch that leaves the indexer out, see
      `glmplan.costs.blocks.stack`; of an engine that is not known nothing is taken out.

    Examples
    --------
    >>> keeps_indexer("vllm", True), keeps_indexer("vllm", False), keeps_indexer("sglang", False)
    (True, False, True)
    """
    return sparse or engine.lower() not in engine_names() or not cache_layout(engine).dense_drops_indexer


def heads_of(model: ModelSpec) -> int:
    """Attention heads that tensor parallelism must divide.

    Returns: Greatest common divisor of the heads of its layers; 1 without attention.
    """
    return gcd(*(one.heads for one in mixers_of(model))) or 1


def bulk_format(checkpoint: Checkpoint) -> str:
    """Return the format of the bulk of the weights: of the routed experts, or of the dense layers.

    Returns: Formats that are multiplied alike have one name; files of mixed formats are ``gguf``.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> [bulk_format(load_model("glm-5.1").checkpoint(name)) for name in ("fp8", "nvfp4")]
    ['fp8-block', 'nvfp4']
    """
    if checkpoint.file_bits_per_weight is not None:
        return "gguf"
    found = checkpoint.formats.get("routed_experts") or checkpoint.default
    return _ONE_KERNEL.get(found, found)


# What an engine keeps in the memory of the host that a deployment runs on: of plans and of rows alike.


def keeps_experts_on_host(engine: str) -> bool:
    """Whether an engine keeps routed experts in host memory.

    Examples
    --------
    >>> keeps_experts_on_host("ktransformers"), keeps_experts_on_host("vllm")
    (True, False)
    """
    return engine in memory_engines() and load_memory_rule(engine).host_experts


def offload_of(engine: str, host: Host, cards: int) -> Offload | None:
    """What a deployment keeps in host memory.

    Returns: All routed experts, computed there; None where the engine keeps nothing in host memory.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> offload_of("ktransformers", load_host("genoa-2s-direct-8"), 8).placement.unit
    'experts'
    """
    if not keeps_experts_on_host(engine):
        return None
    from glmplan.costs.offload.steps import Offload
    from glmplan.costs.offload.work import Placement, host_side

    return Offload(Placement(1.0, "experts"), host_side(host, min(cards, host.accelerators_per_node)))


# The interval of a cache pool whose launch nobody describes: it spans the settings that are usual.

#: setting of a launch → field of `MemorySettings`
_FIELDS = {"memory_fraction": "fraction", "max_num_seqs": "max_requests", "max_num_batched_tokens": "token_budget"}


@cache
def usual_ends(engine: str, name: str) -> tuple[float, float] | None:
    """Between which values an engine is usually told a setting.

    Returns: 5 % and 95 % quantile of launches that set it, [unit of the setting]; None of engines that nobody
      counted.

    Examples
    --------
    >>> usual_ends("vllm", "memory_fraction"), usual_ends("mlx", "memory_fraction")
    ((0.8, 0.97), None)
    """
    file = data_folder("calibration") / "usual-settings.toml"
    entry = read_toml(file).get(engine)
    if entry is None:
        return None
    found = entry.get(name)
    if not isinstance(found, list) or len(found) != 2 or not 0 < found[0] < found[1]:
        raise SpecError("is not two rising numbers", file=file, field=f"{engine}.{name}", value=found)
    return float(found[0]), float(found[1])


def spanned(
    pool: Callable[[MemorySettings], tuple[float, float, float]], settings: MemorySettings, unstated: Collection[str]
) -> tuple[float, float, float]:
    """A pool whose interval also spans what nobody tells of the launch.

    - `pool`: Settings → tokens of the pool and the ends of their 90 % interval, [token].
    - `settings`: What is told; the rest takes the engine's default.
    - `unstated`: Fields of `glmplan.prediction.deployment.Settings` that somebody may have set.
    - Returns: Tokens under the defaults, and the wider ends, [token].

    Notes
    -----
    Settings are taken as independent: distances to the ends add as squares, on each side by itself.

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
        ends = usual_ends(settings.engine, name)
        if ends is None:
            continue
        told: list[dict[str, Any]] = [{_FIELDS[name]: end} for end in ends]
        moved = [pool(replace(settings, **one))[0] - value for one in told]
        below, above = below + min(0.0, *moved) ** 2, above + max(0.0, *moved) ** 2
    return value, max(value - below**0.5, 0.0), value + above**0.5
