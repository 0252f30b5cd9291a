"""Read the memory rules of the engines from `hardware_db/engines/memory`.

A rule states how an engine loads the tensors of a checkpoint (`Loading`), how it assigns layers to pipeline stages and
how it sizes its KV pool (`MemoryRule`). Entries that depend on the engine version have `since` (included) and `until`
(excluded); `source` says where an entry is from. Names of models and compute capabilities may be patterns, and an empty
tuple matches everything.

Driver context, NCCL buffers and kernel workspaces are observed, not derived: see `glmplan.costs.memory.settings`. The
weights of a rank are computed in `glmplan.costs.memory.weights`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from glmplan.catalog.files import data_folder, read_toml
from glmplan.catalog.formats import WeightFormat, weight_format
from glmplan.errors import SpecError, UnknownFact, UnknownName
from glmplan.units import Bits, Bytes, BytesArray, Ratio, Tokens, TokensArray, parse_quantity

if TYPE_CHECKING:
    from glmplan.catalog.schema.model import DraftHead

__all__ = [
    "AS_STORED",
    "MIB",
    "CompressedTrial",
    "ExpansionReserve",
    "ExpertKernel",
    "FractionRule",
    "IndexerTrial",
    "KeptWide",
    "Loading",
    "MemoryRule",
    "Paging",
    "PartMultiple",
    "PoolSplit",
    "ProfilingRun",
    "ScaleCopy",
    "StepBuffer",
    "StreamBuffer",
    "WholePrompts",
    "Workspace",
    "load_memory_rule",
    "memory_engines",
    "pipeline_layers",
    "read_loading",
    "stated_fraction",
    "static_fraction",
    "tower_factor",
]


#: meaning of "weights" in an engine's log: ``files`` the tensors themselves, ``allocated`` memory that PyTorch's
#: allocator gave out for them, ``reserved`` memory that it took from the driver
Allocator = Literal["files", "allocated", "reserved"]


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """Padding of one kernel for routed experts."""

    backend: str  # name in the engine's log
    formats: tuple[str, ...]
    inner: int  # the inner width of an expert on a rank is padded to a multiple of it
    hidden: int  # the same for the input width
    source: str
    output: int = 0  # the same for the output width of the second matrix; 0: as `hidden`
    silicon: tuple[str, ...] = ()  # compute capabilities
    models: tuple[str, ...] = ()
    chosen: bool = True  # False: only on request, never the engine's own choice
    since: str | None = None
    until: str | None = None
    note: str | None = None

    def pads(self, form: str, *, silicon: str | None, model: str) -> bool:
        """Return True if the kernel pads experts of this format and model.

        `capability` None: on any compute capability.
        """
        if form not in self.formats or (self.models and not any(fnmatchcase(model, item) for item in self.models)):
            return False
        return not self.silicon or not silicon or any(fnmatchcase(silicon, item) for item in self.silicon)


@dataclass(frozen=True, slots=True)
class KeptWide:
    """Class of tensors that an engine keeps in another format than the files."""

    models: tuple[str, ...]
    tensor_class: str
    format: str
    source: str
    tensors: tuple[str, ...] = ()  # patterns of names; empty: the whole class


@dataclass(frozen=True, slots=True)
class StreamBuffer:
    """Buffer for the residual streams of a whole step, made with the weights."""

    models: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class ScaleCopy:
    """Second copy of the scales of routed experts that an engine keeps."""

    formats: tuple[str, ...]
    silicon: tuple[str, ...]
    bits: Bits  # for each weight
    source: str
    certain: bool = True  # False: not in every build; widens only the interval of the weights
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class PartMultiple:
    """Multiple required of a rank's share instead of quantisation blocks."""

    formats: tuple[str, ...]
    multiple: int  # 1: any whole columns; 0: the engine pads or copies any width
    source: str
    classes: tuple[str, ...] = ()  # classes of tensors
    models: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    slower: str = ""  # cost of a share that is no multiple of the block; empty: no source names one


@dataclass(frozen=True, slots=True)
class Loading:
    """Effect of loading on the tensors of a checkpoint, for one engine."""

    allocator: Allocator = "files"
    rotary_bytes: Bytes = 0.0  # of one value of the rotary table; 0: no table
    multimodal_positions: int = 1  # longest contexts in the table for models with 3-D positions
    expert_kernels: tuple[ExpertKernel, ...] = ()  # in the engine's order of preference
    kept_wide: tuple[KeptWide, ...] = ()
    stream_buffers: tuple[StreamBuffer, ...] = ()
    scale_copies: tuple[ScaleCopy, ...] = ()
    part_multiples: tuple[PartMultiple, ...] = ()  # the first match counts
    part_source: str = ""  # source that the engine refuses a share that splits a block
    tower: bool = True  # True: the vision tower is loaded with the model
    #: first version in which a draft head keeps an embedding that differs from the model's; None: never
    draft_embedding_since: str | None = None
    source: str = ""

    def kernel(
        self, form: str, *, version: str | None, silicon: str | None, backend: str | None, model: str
    ) -> ExpertKernel | None:
        """Return the kernel that pads routed experts of a format, or None.

        `version` None means the newest, `silicon` None any part, `backend` None the engine's own choice. A backend name
        does not decide alone: the same name stands for other code on other parts and for other checkpoints. None also
        where no source describes the kernel.

        Examples
        --------
        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("vllm").loading
        >>> found = rule.kernel("mxfp4", version=None, silicon="12.0", backend=None, model="gpt-oss-20b")
        >>> found.backend, found.inner, found.hidden
        ('marlin', 128, 256)
        """
        for expert_kernel in self.expert_kernels:
            if not expert_kernel.pads(form, silicon=silicon, model=model) or not _holds(expert_kernel, version):
                continue
            if expert_kernel.chosen if backend is None else backend.lower().startswith(expert_kernel.backend):
                return expert_kernel
        return None

    def copied(self, form: str, *, version: str | None, silicon: str | None, certain: bool) -> Bits:
        """Return the bits for each expert weight of second copies of scales.

        `certain` selects copies that every build keeps, or those that some builds keep.

        Examples
        --------
        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("sglang").loading
        >>> [rule.copied("nvfp4", version=None, silicon=one, certain=True) for one in ("9.0", "10.0")]
        [0.5, 0.0]
        """
        for scale_copy in self.scale_copies:
            if form not in scale_copy.formats or scale_copy.certain != certain:
                continue
            if not any(fnmatchcase(silicon or "", each) for each in scale_copy.silicon):
                continue
            if _holds(scale_copy, version):
                return scale_copy.bits
        return 0.0

    def part_multiple(
        self, form: str, tensor_class: str, *, model: str, vendor: str, version: str | None
    ) -> PartMultiple | None:
        """Return the entry that replaces a tensor's quantisation block, or None.

        Examples
        --------
        vLLM refines the blocks of FP8 experts since 0.29.0, and of nothing else:

        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("vllm").loading
        >>> told = {"model": "minimax-m2.7", "vendor": "nvidia"}
        >>> rule.part_multiple("fp8-block", "routed_experts", version="0.29.0", **told).multiple
        32
        >>> rule.part_multiple("fp8-block", "routed_experts", version="0.28.0", **told) is None
        True
        """
        for item in self.part_multiples:
            if form not in item.formats or (item.classes and tensor_class not in item.classes):
                continue
            if item.vendors and vendor not in item.vendors:
                continue
            if item.models and not any(fnmatchcase(model, pattern) for pattern in item.models):
                continue
            if _holds(item, version):
                return item
        return None

    def keeps_draft_embedding(self, head: DraftHead, version: str | None) -> bool:
        """Return True if a draft head holds an embedding beside the model's.

        True where its files hold other values than the model and the engine compares them.

        Examples
        --------
        >>> from glmplan.catalog.entries.models import load_model
        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> head = load_model("kimi-k2.6").draft_head
        >>> [load_memory_rule(one).loading.keeps_draft_embedding(head, None) for one in ("vllm", "sglang")]
        [True, False]
        """
        from glmplan.catalog.schema.engine import version_key

        first = self.draft_embedding_since
        return (
            head.own_embedding and first is not None and (version is None or version_key(version) >= version_key(first))
        )

    def kept(self, model: str, tensor_class: str, name: str) -> WeightFormat | None:
        """Return the kept format of a tensor; None: as stored.

        Examples
        --------
        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> kept = load_memory_rule("vllm").loading.kept
        >>> kept("deepseek-v4-flash", "latent_down", "self_attn.compressor.kv_proj").name
        'bf16'
        >>> kept("deepseek-v4-flash", "latent_down", "self_attn.q_a_proj") is None
        True
        """
        for item in self.kept_wide:
            named = not item.tensors or any(fnmatchcase(name, pattern) for pattern in item.tensors)
            if named and item.tensor_class == tensor_class and _any_match(model, item.models):
                return weight_format(item.format)
        return None

    def buffers_streams(self, model: str) -> bool:
        """Return True if the engine keeps a buffer of a model's streams."""
        return any(_any_match(model, item.models) for item in self.stream_buffers)


def _any_match(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


#: of an engine for which no source describes loading
AS_STORED = Loading()


def read_loading(content: Mapping[str, Any] | None, *, file: object) -> Loading:
    """Read section ``loading`` of a memory rule; None without one."""
    if content is None:
        return AS_STORED
    rest = dict(content)
    try:
        kernels = tuple(ExpertKernel(**_tuples(item)) for item in rest.pop("expert_kernels", ()))
        wide = tuple(KeptWide(**_tuples(item)) for item in rest.pop("kept_wide", ()))
        streams = tuple(StreamBuffer(**_tuples(item)) for item in rest.pop("stream_buffers", ()))
        copies = tuple(ScaleCopy(**_tuples(item)) for item in rest.pop("scale_copies", ()))
        parts = tuple(PartMultiple(**_tuples(item)) for item in rest.pop("part_multiples", ()))
        rotary = weight_format(rest.pop("rotary")).bytes if "rotary" in rest else 0.0
        result = Loading(
            **rest,
            rotary_bytes=rotary,
            expert_kernels=kernels,
            kept_wide=wide,
            stream_buffers=streams,
            scale_copies=copies,
            part_multiples=parts,
        )
    except TypeError as error:
        raise SpecError(f"has a field that is not known: {error}", file=str(file), field="loading") from None
    entries: tuple[ExpertKernel | PartMultiple, ...] = (*result.expert_kernels, *result.part_multiples)
    listed = {form for entry in entries for form in entry.formats}
    for name in listed | {item.format for item in result.kept_wide}:
        weight_format(name)
    return result


def _holds(one: Any, version: str | None) -> bool:
    """Return True if an entry holds in a version; None means the newest."""
    from glmplan.catalog.schema.engine import version_key

    if version is None:
        return one.until is None
    key = version_key(version)
    return not (one.since and key < version_key(one.since) or one.until and key >= version_key(one.until))


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


MIB = 2**20

#: basis of the pool: ``total`` a fraction of all memory minus use, ``before_load`` a fraction of the memory free
#: before weights, ``after_load`` a fraction of the memory free after a trial run, ``after_weights`` a fraction of the
#: memory free after the weights, before any pass, ``rest`` all free memory minus a margin
Pool = Literal["total", "before_load", "after_load", "after_weights", "rest"]


@dataclass(frozen=True, slots=True)
class FractionRule:
    """SGLang's rule for the default static fraction; memory in MiB."""

    constant: float
    for_each_prefill_token: float
    least_prefill_tokens: float
    for_each_graph_request: float
    for_each_accelerator: float
    least_on_large_parts: float  # least reserve on accelerators with more memory than `large_part`
    large_part: float
    with_draft: float  # added with a draft model or MTP
    source: str
    for_each_replica_graph: float = 0.0  # with attention replicas: for each replica and request of the largest graph
    for_each_replica_graph_more: float = 0.0  # added to it where that graph holds more than `many_graphs` requests
    many_graphs: float = 0.0
    with_tower: Ratio = 1.0  # this and the next: factor for models with a vision tower, see `tower_factor`
    tower_layers: float = 1.0
    tower_width: float = 1.0
    tower_step: float = 0.0
    tower_least: float = 1.0
    tower_most: float = 1.0


@dataclass(frozen=True, slots=True)
class ProfilingRun:
    """Trial run by which an engine sizes its pool."""

    sampler: Bytes  # live at once for each sampled request and vocabulary entry
    drafting: Bytes  # the same with drafting
    source: str
    since: str | None = None
    until: str | None = None
    dense: bool = False  # True: only for models without experts and recurrent layers
    #: most tokens whose keys and values are expanded from latents besides those of the step
    latent_context: Tokens = 0.0
    latent_requests: float = 8.0  # longest requests expanded if they hold fewer tokens than that
    latent_sparse: bool = False  # True: sparse attention, too
    estimates_graphs: bool = True  # True: an estimate of CUDA graphs that is taken from the pool is made in this trial
    video_frames: float = 0.0  # most frames of the largest image in the trial of a video; 0: at most one image
    video_tokens: Tokens = 0.0  # embeddings of a video that stay beside the pass; 0: those of the images stay
    images: bool = True  # True: the image tower is tried
    state: Bytes = 0.0  # kept by the sampler for each request and vocabulary entry
    models: tuple[str, ...] = ()
    unquantised: bool = False  # True: only for checkpoints without quantised weights
    note: str = ""  # derivation of the bytes


@dataclass(frozen=True, slots=True)
class WholePrompts:
    """Steps of old releases that hold a prompt of the longest length."""

    until: str  # first release that cuts prompts of any length
    least: Tokens  # tokens of a step with shorter prompts
    most: Tokens  # longest prompts that are not cut
    source: str

    def tokens(self, version: str | None, longest: TokensArray | Tokens | None) -> TokensArray | None:
        """Return the tokens of a step; None where prompts are cut.

        Examples
        --------
        >>> import numpy as np
        >>> rule = load_memory_rule("vllm").whole_prompts
        >>> [rule.tokens("0.6.4", np.array([length])) for length in (20_000, 35_000)], rule.tokens("0.8.5", 20_000)
        ([array([20000.]), None], None)
        """
        from glmplan.catalog.schema.engine import version_key

        if version is None or longest is None or version_key(version) >= version_key(self.until):
            return None
        result: TokensArray = np.maximum(np.asarray(longest, dtype=float), self.least)
        return None if np.any(result > self.most) else result


@dataclass(frozen=True, slots=True)
class IndexerTrial:
    """Memory of the indexer of sparse attention in the trial run."""

    requests: float  # longest requests whose keys are gathered in a buffer that stays
    source: str
    logits: Bytes = 0.0  # held only while the indexer runs
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Paging:
    """Pages shared by kinds of layers, and the pool size that is printed."""

    #: ``blocks``: tokens of the blocks of one group of layers; ``requests``: longest requests that fit, times their
    #: length
    printed: Literal["blocks", "requests"]
    batches: float  # steps in flight whose tokens a window layer holds besides its window
    states: float  # blocks of a recurrent layer for each request, without speculative tokens
    source: str
    #: blocks of layers whose caches differ in page size, see `glmplan.costs.memory.pages`: equally many slots of every
    #: size, as many as a group needs of each (a request counted by its bytes or by its pages), or the largest group
    packing: Literal["tuples", "slots by bytes", "slots", "widest group"] = "tuples"
    null_block: bool = False  # True: the check of ``max_model_len`` leaves out the block that the pool never gives out
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class PoolSplit:
    """Split of the pool between full-attention, window and recurrent layers."""

    states: Ratio  # memory of recurrent states over memory of keys and values; 0: one shared pool
    states_each: float  # states that a request may take, those kept for prefixes included
    windows: Ratio  # tokens of window layers over tokens of the others
    models: tuple[str, ...]  # models whose window layers have a pool of their own; in others all layers keep all tokens
    source: str
    shared: tuple[str, ...] = ()  # models whose layers share one pool all the same
    only: tuple[str, ...] = ()  # models of the entry; empty: all
    compressed: Ratio = 0.1  # tokens of the windows of compressed attention over tokens of the pool
    late_states_each: bool = False  # True: compressors of many tokens keep states of every request that may run
    tracked: float = 0.0  # further states of a request, in which the engine writes the next one to keep
    tracked_models: tuple[str, ...] = ()  # models that have them
    since: str | None = None
    until: str | None = None

    def states_of(self, model: str) -> float:
        """Return the states that a request of a model may take.

        Examples
        --------
        >>> split = PoolSplit(0.9, 3.0, 1.0, (), "", tracked=2.0, tracked_models=("qwen3.5-*",))
        >>> split.states_of("qwen3.5-9b"), split.states_of("kimi-k3")
        (5.0, 3.0)
        """
        return self.states_each + self.tracked * any(fnmatchcase(model, each) for each in self.tracked_models)

    def window_tokens(self, model: str) -> float:
        """Return the window layers' tokens relative to the other layers'.

        1 where all layers keep all tokens.
        """
        return self.windows if any(fnmatchcase(model, each) for each in self.models) else 1.0

    def applies(self, model: str, *, recurrent: bool) -> bool:
        """Return True if the kinds of layers of a model have pools of their own."""
        other = bool(self.only) and not any(fnmatchcase(model, each) for each in self.only)
        shared = other or any(fnmatchcase(model, each) for each in self.shared)
        return not shared and not (recurrent and not self.states)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Buffers of one kernel for routed experts, kept from the trial run on.

    Two rows for each routed copy of a token of a step. One row is as wide as the input of the experts or of their
    second matrix, the other as the input or output of the first, whichever is wider.
    """

    backend: str
    formats: tuple[str, ...]
    silicon: tuple[str, ...]
    source: str
    since: str | None = None
    until: str | None = None
    models: tuple[str, ...] = ()  # empty: all


@dataclass(frozen=True, slots=True)
class CompressedTrial:
    """Trial of compressed attention: queries and results of a rank in memory."""

    silicon: tuple[str, ...]
    heads: tuple[int, ...]  # heads of a rank that kernels take; queries and results are padded to the next
    source: str
    since: str | None = None
    until: str | None = None
    #: layers whose states and residual streams live at once: 2 where the caller of a layer keeps those before it
    states: int = 1

    def padded(self, heads: np.ndarray) -> np.ndarray:
        """Return the heads with padding.

        Examples
        --------
        >>> CompressedTrial(("9.0",), (64, 128), "example").padded(np.array([8.0, 64.0, 65.0])).tolist()
        [64.0, 64.0, 128.0]
        """
        taken = np.asarray(self.heads, dtype=float)
        result: np.ndarray = np.maximum(taken[np.minimum(np.searchsorted(taken, heads), len(taken) - 1)], heads)
        return result


@dataclass(frozen=True, slots=True)
class ExpansionReserve:
    """Memory kept outside the pool for keys expanded from latents."""

    formats: tuple[str, ...]  # formats of the cache
    value: Bytes  # of an expanded value
    source: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class StepBuffer:
    """Buffer that an engine reserves for a step."""

    value: Bytes  # of a value of activations and logits
    mask: Bytes  # attention mask, for each token of the step and token of the longest request
    all_logits: bool  # True: logits of each token of the step; False: of the requests and their speculative tokens
    window_multiple: Tokens  # a window layer keeps window + step for each request, rounded up to this
    draft_states: bool  # True: a recurrent layer also keeps a state of each speculative token
    index_keys: bool  # True: keys of a sparse indexer are cached in the cache format; False: such models run densely
    source: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """Memory rule of one engine; entries by version are sorted, oldest first."""

    engine: str
    pool: Pool
    vocabulary_multiple: int  # the vocabulary is padded to a multiple of it
    absorbed_copy: bool  # True: up-projections of latent attention are held twice, plain and absorbed
    pipeline: str  # assignment of layers that do not divide, see `pipeline_layers`
    draft_in_pool: bool  # True: weights of draft layers count when the pool is sized
    draft_cache_in_pool: bool  # False: the cache of draft layers is a pool of its own
    source: str
    even_vocabulary: bool = False  # True: the padded vocabulary must divide by the tensor-parallel degree
    fraction_rule: FractionRule | None = None
    #: settings behind ``fraction``, ``sampled`` (requests with logits at once), ``graph_requests``, ``graphs_in_pool``,
    #: see `glmplan.catalog.engines.defaults`
    defaults: Mapping[str, str] = field(default_factory=dict)
    defaults_of: str | None = None  # engine whose defaults these are, if not its own
    #: largest published fraction where the trial run counts all memory; 0: it does not, or no source
    largest_fraction: Ratio = 0.0
    checks_free: bool = False  # True: refuses to start where less than the fraction of the memory is free
    free_target: Bytes = 0.0  # margin that ``rest`` leaves
    #: bytes of a logit that ``after_weights`` reserves for each token of a step, and twice for each request
    reserved_logits: Bytes = 0.0
    step: tuple[StepBuffer, ...] = ()  # empty: engine with a trial run or a share left free
    captures_graphs: bool = False  # True: captured graphs hold memory of their own
    graphs_before_pool: bool = False  # True: captured before the pool is sized
    host_experts: bool = False  # True: routed experts live in host memory
    loading: Loading = AS_STORED
    profiling: tuple[ProfilingRun, ...] = ()
    paging: tuple[Paging, ...] = ()  # empty: kinds of layers share no pages
    workspaces: tuple[Workspace, ...] = ()
    indexer: tuple[IndexerTrial, ...] = ()
    compressed: tuple[CompressedTrial, ...] = ()
    split: tuple[PoolSplit, ...] = ()  # empty: kinds of layers share the pool
    expansion: tuple[ExpansionReserve, ...] = ()
    whole_prompts: WholePrompts | None = None  # None: every release cuts prompts
    latent_since: str | None = None  # first version that caches latents; None: all do
    expanded_latent: int = 0  # values of a head of which older versions cache key and value
    #: first version whose first look at the memory finds the communicators already made; None: no version counts them
    communicators_first_since: str | None = None

    @property
    def prints_pool(self) -> bool:
        """Return True if the engine measures and prints a pool of tokens.

        Other engines take a number of slots or of bytes.
        """
        return self.pool not in ("rest", "after_weights")

    def vocabulary_rows(self, vocabulary: int) -> int:
        """Return the rows of a vocabulary with padding.

        Examples
        --------
        >>> load_memory_rule("vllm").vocabulary_rows(151_552), load_memory_rule("vllm").vocabulary_rows(32_001)
        (151552, 32064)
        """
        return -(-vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    def vocabulary_problem(self, model: str, vocabulary: int, tp: int) -> str | None:
        """Return why a vocabulary does not split over a TP degree, or None.

        Examples
        --------
        >>> load_memory_rule("vllm").vocabulary_problem("phi-4", 100_352, 5)
        'does not divide the vocabulary of phi-4, 100,352 rows with padding'
        """
        rows = self.vocabulary_rows(vocabulary)
        if not self.even_vocabulary or rows % tp == 0:
            return None
        return f"does not divide the vocabulary of {model}, {rows:,} rows with padding"

    def caches_latents(self, version: str | None) -> bool:
        """Return True if a version caches latents, not keys and values.

        Examples
        --------
        >>> [load_memory_rule("vllm").caches_latents(one) for one in ("0.5.4", "0.7.1", None)]
        [False, True, True]
        """
        from glmplan.catalog.schema.engine import version_key

        first = self.latent_since
        return first is None or version is None or version_key(version) >= version_key(first)

    def counts_communicators(self, version: str | None) -> bool:
        """Return True if a version counts its communicators in the pool.

        Examples
        --------
        >>> [load_memory_rule("vllm").counts_communicators(one) for one in ("0.10.2", "0.11.0", None)]
        [True, False, False]
        """
        from glmplan.catalog.schema.engine import version_key

        first = self.communicators_first_since
        return first is not None and version is not None and version_key(version) < version_key(first)

    def profiling_of(
        self, version: str | None, *, dense: bool, model: str = "", quantised: bool = True
    ) -> ProfilingRun | None:
        """Return the trial run of a version (None: the newest); None without one.

        `dense`: the model has neither experts nor recurrent layers. The last entry that holds counts.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> [rule.profiling_of(one, dense=False).sampler for one in ("0.16.0", "0.17.1", "0.29.0")]
        [38, 14, 2]
        """
        result = [
            item
            for item in self.profiling
            if _holds(item, version)
            and (dense or not item.dense)
            and not (quantised and item.unquantised)
            and (not item.models or any(fnmatchcase(model, each) for each in item.models))
        ]
        return result[-1] if result else None

    def indexer_of(self, version: str | None) -> IndexerTrial | None:
        """Return the trial-run memory of a version's sparse indexer, or None.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> rule.indexer_of("0.11.0") is None, rule.indexer_of("0.18.0").requests
        (True, 40)
        """
        result = [item for item in self.indexer if _holds(item, version)]
        return result[-1] if result else None

    def compressed_of(self, version: str | None, silicon: str | None) -> CompressedTrial | None:
        """Return the trial of compressed attention, None without a source.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> [rule.compressed_of(one, "9.0").states for one in ("0.22.0", "0.26.0")]
        [1, 2]
        """
        chosen = [item for item in self.compressed if _any_match(silicon or "", item.silicon)]
        result = [item for item in chosen if _holds(item, version)]
        return result[-1] if result else None

    def paging_of(self, version: str | None) -> Paging | None:
        """Return the paging of a version; None: kinds of layers share no page.

        Examples
        --------
        >>> [load_memory_rule("vllm").paging_of(one).printed for one in ("0.19.0", "0.22.1")]
        ['blocks', 'requests']
        """
        result = [item for item in self.paging if _holds(item, version)]
        return result[-1] if result else None

    def split_of(self, version: str | None) -> PoolSplit | None:
        """Return the pool split of a version; None: kinds share one pool.

        Examples
        --------
        >>> load_memory_rule("vllm").split_of(None) is None
        True
        >>> found = load_memory_rule("sglang").split_of("0.5.9")
        >>> found.window_tokens("gpt-oss-120b"), found.window_tokens("gemma-3-27b"), found.states
        (0.8, 1.0, 0.9)
        """
        from glmplan.catalog.engines.limitations import load_engine

        version = version or (load_engine(self.engine).newest if self.split else None)
        result = [item for item in self.split if _holds(item, version)]
        return result[-1] if result else None

    def expansion_of(self, version: str | None, kv: str) -> ExpansionReserve | None:
        """Return the reserve of a version for expanded latents; None without one.

        Examples
        --------
        >>> rule = load_memory_rule("trtllm")
        >>> [rule.expansion_of(one, "fp8") is None for one in ("1.3.0rc20", "1.3.0rc23")]
        [True, False]
        """
        from glmplan.catalog.engines.limitations import load_engine

        version = version or (load_engine(self.engine).newest if self.expansion else None)
        result = [item for item in self.expansion if kv in item.formats and _holds(item, version)]
        return result[-1] if result else None

    def step_of(self, version: str | None) -> StepBuffer | None:
        """Return the step buffer of a version; None for engines without one.

        Examples
        --------
        >>> rule = load_memory_rule("llama.cpp")
        >>> [rule.step_of(one).mask for one in ("b9193", None)]
        [6, 2]
        """
        result = [item for item in self.step if _holds(item, version)]
        return result[-1] if result else None

    def workspace_of(
        self, form: str, *, version: str | None, silicon: str | None, backend: str | None, model: str = ""
    ) -> Workspace | None:
        """Return the expert workspace of a version; None without a source.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> [rule.workspace_of("bf16", version=one, silicon="8.0", backend=None) is None for one in ("0.11.0", None)]
        [True, False]
        """
        for workspace in self.workspaces:
            chosen = any(fnmatchcase(silicon or "", each) for each in workspace.silicon)
            asked = backend is None or backend.lower().startswith(workspace.backend)
            asked = asked and (not workspace.models or _any_match(model, workspace.models))
            if form in workspace.formats and chosen and asked and _holds(workspace, version):
                return workspace
        return None

    def default(
        self, name: str, *, version: str | None, memory: Bytes | None, accelerator: str | None, tp: int = 1
    ) -> float | None:
        """Return the engine's default for a name in `defaults`; None: unknown.

        The unit is that of the setting.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> [rule.default("fraction", version=one, memory=None, accelerator=None) for one in ("0.19.0", None)]
        [0.9, 0.92]
        """
        from glmplan.catalog.engines.defaults import engine_default

        if name not in self.defaults:
            return None
        engine, setting = self.defaults_of or self.engine, self.defaults[name]
        try:
            result = engine_default(engine, setting, version=version, memory=memory, accelerator=accelerator, tp=tp)
        except UnknownFact:
            return None
        return float(result)


@cache
def memory_engines() -> tuple[str, ...]:
    """Return the engines with a memory rule."""
    folder = data_folder("hardware_db") / "engines" / "memory"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.glob("*.toml")))


@cache
def load_memory_rule(engine: str) -> MemoryRule:
    """Read the memory rule of an engine.

    Examples
    --------
    >>> load_memory_rule("vllm").pool
    'total'
    """
    if engine not in memory_engines():
        raise UnknownName("has no known memory rule", field="engine", value=engine, choices=memory_engines())
    file = data_folder("hardware_db") / "engines" / "memory" / f"{engine}.toml"
    content: dict[str, Any] = {"engine": engine, **read_toml(file)}
    for documentation in ("notes", "sources"):
        content.pop(documentation, None)
    if "fraction_rule" in content:
        content["fraction_rule"] = FractionRule(**content["fraction_rule"])
    content["loading"] = read_loading(content.get("loading"), file=file)
    content["profiling"] = tuple(
        ProfilingRun(**item | {"models": tuple(item.get("models", ()))}) for item in content.get("profiling", ())
    )
    content["indexer"] = tuple(
        IndexerTrial(**item | {"logits": parse_quantity(item.get("logits", "0 B"), "bytes")})
        for item in content.get("indexer", ())
    )
    content["compressed"] = tuple(CompressedTrial(**_tuples(item)) for item in content.get("compressed", ()))
    content["split"] = tuple(
        PoolSplit(**item | {name: tuple(item.get(name, ())) for name in ("models", "shared", "only")})
        for item in content.get("split", ())
    )
    content["expansion"] = tuple(
        ExpansionReserve(**item | {"formats": tuple(item["formats"])}) for item in content.get("expansion", ())
    )
    content["step"] = tuple(StepBuffer(**item) for item in content.get("step", ()))
    content["paging"] = tuple(Paging(**item) for item in content.get("paging", ()))
    if "whole_prompts" in content:
        content["whole_prompts"] = WholePrompts(**content["whole_prompts"])
    content["workspaces"] = tuple(Workspace(**_tuples(item)) for item in content.get("workspaces", ()))
    if "free_target" in content:
        content["free_target"] = parse_quantity(content["free_target"], "bytes")
    unknown = sorted(set(content) - {item.name for item in fields(MemoryRule)})
    if unknown:
        raise SpecError("is not a field of a memory rule", file=file, field=unknown[0])
    return MemoryRule(**content)


def static_fraction(
    rule: FractionRule,
    *,
    memory: BytesArray | Bytes,
    accelerators: np.ndarray | float,
    token_budget: TokensArray | Tokens,
    graph_requests: np.ndarray | float,
    draft: bool,
    replicas: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Return SGLang's default static fraction, rounded to three places.

    `draft`: a draft model or MTP is on.

    Examples
    --------
    >>> rule, part = load_memory_rule("sglang").fraction_rule, 80 * 2**30
    >>> float(static_fraction(rule, memory=part, accelerators=8, token_budget=8192, graph_requests=512, draft=False))
    0.82
    """
    part = np.asarray(memory, dtype=float) / MIB
    reserve = (
        rule.constant
        + np.maximum(token_budget, rule.least_prefill_tokens) * rule.for_each_prefill_token
        + np.asarray(graph_requests, dtype=float) * rule.for_each_graph_request
        + np.asarray(accelerators, dtype=float) * rule.for_each_accelerator
    )
    largest, many = np.asarray(graph_requests, dtype=float), np.asarray(replicas, dtype=float)
    each = rule.for_each_replica_graph + rule.for_each_replica_graph_more * (largest > rule.many_graphs)
    reserve = reserve + np.where(many > 1, largest * many * each, 0.0)
    reserve = np.where(part > rule.large_part, np.maximum(reserve, rule.least_on_large_parts), reserve)
    reserve = reserve + rule.with_draft * draft
    fraction: np.ndarray = np.round((part - reserve) / part, 3)
    return fraction


def tower_factor(rule: FractionRule, layers: int | None, width: int | None) -> Ratio:
    """Return the factor by which a vision tower lowers SGLang's fraction.

    A constant, times 1 minus `tower_step` for each time that layers × width² exceed those of ViT-L/14, the default
    where the config names no size [1]_.

    References
    ----------
    .. [1] sgl-project/sglang, python/sglang/srt/server_args.py, adjust_mem_fraction_for_vlm.

    Examples
    --------
    Kimi-K2.5 on four GB300: 0.909 becomes 0.82695, as its log says.

    >>> rule = load_memory_rule("sglang").fraction_rule
    >>> round(0.909 * tower_factor(rule, 27, 1152), 5)
    0.82695
    """
    ratio = (layers or rule.tower_layers) * (width or rule.tower_width) ** 2 / (rule.tower_layers * rule.tower_width**2)
    return rule.with_tower * float(np.clip(1.0 - rule.tower_step * (ratio - 1.0), rule.tower_least, rule.tower_most))


def pipeline_layers(layers: int, stages: int, pipeline: str) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; MTP layers are not included.

    `pipeline`: ``middle-first`` assigns extra layers from the last but one stage backwards (vLLM [1]_), ``last-first``
    to the last stages (SGLang [2]_), ``first-first`` to the first stages (TensorRT-LLM), ``with-output`` assigns layers
    and the output layer in equal shares (llama.cpp).

    References
    ----------
    .. [1] vllm-project/vllm, vllm/distributed/utils.py, get_pp_indices.
    .. [2] sgl-project/sglang at 1107be11, python/sglang/srt/distributed/utils.py, get_pp_indices.

    Examples
    --------
    >>> pipeline_layers(78, 4, "middle-first"), pipeline_layers(78, 4, "last-first")
    ((19, 20, 20, 19), (19, 19, 20, 20))
    >>> pipeline_layers(78, 3, "middle-first")
    (26, 26, 26)
    >>> pipeline_layers(61, 4, "first-first"), pipeline_layers(61, 4, "with-output")
    ((16, 15, 15, 15), (16, 15, 16, 14))
    """
    if not 1 <= stages <= layers:
        raise SpecError(f"is not between 1 and the {layers} layers of the model", field="pp", value=stages)
    if pipeline == "with-output":
        owner = [layer * stages // (layers + 1) for layer in range(layers)]
        return tuple(owner.count(stage) for stage in range(stages))
    counts, extra = [layers // stages] * stages, layers % stages
    first = {"first-first": 0, "last-first": stages - extra}.get(pipeline, stages - 1 - extra)
    for stage in range(first, first + extra):
        counts[stage] += 1
    return tuple(counts)


def stated_fraction(notes: str) -> Ratio | None:
    """Return the memory fraction that the notes of a measured run state.

    Examples
    --------
    >>> stated_fraction("Step 3; KV size 29.32 GB per GPU, mem-fraction 0.92"), stated_fraction("gpu-util 0.93")
    (0.92, 0.93)
    >>> stated_fraction("MMLU 0.873")
    """
    match = re.search(r"(?:mem(?:ory)?[- _]?(?:fraction|util\w*)|gpu[- _](?:memory[- _])?util)\S*[ =]+(0\.\d+)", notes)
    return float(match[1]) if match else None
