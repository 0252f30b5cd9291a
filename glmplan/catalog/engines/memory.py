"""How each engine deals layers to pipeline stages and sizes its KV cache pool: facts read from `hardware_db`.

What a launch needs beyond weights, cache and computed activations (driver, context, NCCL buffers, work spaces of
kernels) is observed, not derived: see `glmplan.costs.memory.settings`.
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
    "Workspace",
    "load_memory_rule",
    "memory_engines",
    "pipeline_layers",
    "read_loading",
    "stated_fraction",
    "static_fraction",
    "tower_factor",
]


# What engines make of the tensors of a checkpoint when they load them: facts read from `hardware_db/engines/memory`.
#
# Kernels pad experts, tables of rotary positions are added, some tensors are kept wider than the files hold them, and
# the allocator rounds. What it all comes to on a rank is computed in `glmplan.costs.memory.weights`.

#: what "weights" means in an engine's log: ``files`` the tensors themselves, ``allocated`` what PyTorch's allocator
#: gave out for them, ``reserved`` what it took from the driver
Allocator = Literal["files", "allocated", "reserved"]


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """Widths to which one kernel of routed experts pads them.

    Attributes
    ----------
    backend : str
        The kernel as the engine's log names it.
    formats : tuple of str
        Weight formats that it multiplies.
    inner, hidden : int
        The inner width of an expert on a rank, and the width of its input, are padded to a multiple of it, [-]
    source : str
        Where it is from.
    output : int
        The width of what comes out of the second matrix is padded to a multiple of it; 0 as `hidden`, [-]
    silicon : tuple of str
        Compute capabilities, patterns allowed, on which it pads to these widths; empty means everywhere.
    models : tuple of str
        Names of models, patterns allowed, whose experts it pads to these widths; empty means all.
    chosen : bool
        Whether the engine chooses it by itself at all.
    since, until : str or None
        Versions of the engine: from, and up to but not including.
    note : str or None
        What else there is to say.
    """

    backend: str
    formats: tuple[str, ...]
    inner: int
    hidden: int
    source: str
    output: int = 0
    silicon: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    chosen: bool = True
    since: str | None = None
    until: str | None = None
    note: str | None = None

    def pads(self, form: str, *, silicon: str | None, model: str) -> bool:
        """Say whether these widths are those of a weight format, a part (None: any) and a model."""
        if form not in self.formats or (self.models and not any(fnmatchcase(model, one) for one in self.models)):
            return False
        return not self.silicon or not silicon or any(fnmatchcase(silicon, one) for one in self.silicon)


@dataclass(frozen=True, slots=True)
class KeptWide:
    """Tensors that an engine keeps in another format than the files.

    Attributes
    ----------
    models : tuple of str
        Names of models, patterns allowed.
    tensor_class : str
        Class of the tensors.
    format : str
        How they are kept.
    source : str
        Where it is from.
    """

    models: tuple[str, ...]
    tensor_class: str
    format: str
    source: str


@dataclass(frozen=True, slots=True)
class ScaleCopy:
    """A second copy of the scales of routed experts that an engine keeps.

    Attributes
    ----------
    formats : tuple of str
        Weight formats of the experts.
    silicon : tuple of str
        Compute capabilities, patterns allowed.
    bits : float
        What the copy takes for each weight, [bit]
    source : str
        Where it is from.
    certain : bool
        Whether every build of these versions keeps it; otherwise only the interval of the weights knows it.
    since, until : str or None
        Versions of the engine: from, and up to but not including.
    """

    formats: tuple[str, ...]
    silicon: tuple[str, ...]
    bits: float
    source: str
    certain: bool = True
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class PartMultiple:
    """Multiple that the part of a rank must have where an engine does not ask for whole quantisation blocks.

    Attributes
    ----------
    formats : tuple of str
        Weight formats.
    multiple : int
        The part must be a multiple of it; 1 where the engine pads any part, [-]
    source : str
        Where it is from.
    classes : tuple of str
        Classes of tensors; empty means all.
    models, vendors : tuple of str
        Names of models, patterns allowed, and vendors of parts; empty means all.
    since, until : str or None
        Versions of the engine: from, and up to but not including.
    slower : str
        What a part that is no multiple of the block costs; empty where no source names a cost.
    """

    formats: tuple[str, ...]
    multiple: int
    source: str
    classes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    slower: str = ""


@dataclass(frozen=True, slots=True)
class Loading:
    """What one engine makes of the tensors of a checkpoint.

    Attributes
    ----------
    allocator : str
        See `Allocator`.
    rotary_bytes : float
        One value of the table of rotary positions; 0 where there is no table, [B]
    multimodal_positions : int
        How often the longest context the table holds for models with positions in time, height and width, [-]
    expert_kernels : tuple of ExpertKernel
        Kernels of routed experts that pad, in the order in which the engine prefers them.
    kept_wide : tuple of KeptWide
        Tensors kept in another format.
    scale_copies : tuple of ScaleCopy
        Second copies of scales.
    part_multiples : tuple of PartMultiple
        Tensors whose parts need not be whole quantisation blocks, the first that matches counts.
    part_source : str
        Where the engine refuses a part that splits a block.
    tower : bool
        Whether the vision tower is loaded with the model.
    draft_embedding_since : str or None
        From which version on a draft head keeps an embedding of its own whose values are not the model's; None: never.
    source : str
        Where it is from.
    """

    allocator: Allocator = "files"
    rotary_bytes: float = 0.0
    multimodal_positions: int = 1
    expert_kernels: tuple[ExpertKernel, ...] = ()
    kept_wide: tuple[KeptWide, ...] = ()
    scale_copies: tuple[ScaleCopy, ...] = ()
    part_multiples: tuple[PartMultiple, ...] = ()
    part_source: str = ""
    tower: bool = True
    draft_embedding_since: str | None = None
    source: str = ""

    def kernel(
        self, form: str, *, version: str | None, silicon: str | None, backend: str | None, model: str
    ) -> ExpertKernel | None:
        """The kernel that multiplies routed experts of some format, where it pads them.

        - `version`: Version of the engine; None means the newest.
        - `silicon`: Compute capability of the part; None fits every kernel.
        - `backend`: The kernel that the launch asks for or the log names; None means what the engine chooses. A name
          alone says nothing of padding: one name stands for other code on other parts and for other checkpoints.
        - Returns: None when nothing is padded, or when no source knows the kernel.

        Examples
        --------
        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("vllm").loading
        >>> found = rule.kernel("mxfp4", version=None, silicon="12.0", backend=None, model="gpt-oss-20b")
        >>> found.backend, found.inner, found.hidden
        ('marlin', 128, 256)
        """
        for one in self.expert_kernels:
            if not one.pads(form, silicon=silicon, model=model) or not _holds(one, version):
                continue
            if one.chosen if backend is None else backend.lower().startswith(one.backend):
                return one
        return None

    def copied(self, form: str, *, version: str | None, silicon: str | None, certain: bool) -> Bits:
        """What second copies of scales take for each weight of routed experts.

        - `version`: Version of the engine; None means the newest.
        - `silicon`: Compute capability of the part; None has none.
        - `certain`: Whether to tell what is kept for certain, or what may be kept.

        Examples
        --------
        >>> from glmplan.catalog.engines.memory import load_memory_rule
        >>> rule = load_memory_rule("sglang").loading
        >>> [rule.copied("nvfp4", version=None, silicon=one, certain=True) for one in ("9.0", "10.0")]
        [0.5, 0.0]
        """
        for one in self.scale_copies:
            if form not in one.formats or one.certain != certain:
                continue
            if not any(fnmatchcase(silicon or "", each) for each in one.silicon):
                continue
            if _holds(one, version):
                return one.bits
        return 0.0

    def part_multiple(
        self, form: str, tensor_class: str, *, model: str, vendor: str, version: str | None
    ) -> PartMultiple | None:
        """Return the multiple that replaces the quantisation block of a tensor.

        - `version`: Version of the engine; None means the newest.
        - Returns: None where a part must hold whole blocks.

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
        for one in self.part_multiples:
            if form not in one.formats or (one.classes and tensor_class not in one.classes):
                continue
            if one.vendors and vendor not in one.vendors:
                continue
            if one.models and not any(fnmatchcase(model, pattern) for pattern in one.models):
                continue
            if _holds(one, version):
                return one
        return None

    def keeps_draft_embedding(self, head: DraftHead, version: str | None) -> bool:
        """Whether a draft head holds an embedding beside the model's.

        - `version`: Version of the engine; None means the newest.
        - Returns: True where its files hold other values than the model and the engine compares them.

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

    def kept(self, model: str, tensor_class: str) -> WeightFormat | None:
        """Format in which a class of tensors of a model is kept, if not as the files hold it.

        Parameters
        ----------
        model : str
            Canonical name of the model.
        tensor_class : str
            The class.

        Returns
        -------
        WeightFormat or None
            None where it is kept as stored.
        """
        for one in self.kept_wide:
            if one.tensor_class == tensor_class and any(fnmatchcase(model, pattern) for pattern in one.models):
                return weight_format(one.format)
        return None


#: of an engine of which no source says what it adds
AS_STORED = Loading()


def read_loading(content: Mapping[str, Any] | None, *, file: object) -> Loading:
    """Read the section ``loading`` of a memory rule.

    `content`: The section; None where the file has none.
    """
    if content is None:
        return AS_STORED
    rest = dict(content)
    try:
        kernels = tuple(ExpertKernel(**_tuples(one)) for one in rest.pop("expert_kernels", ()))
        wide = tuple(KeptWide(**_tuples(one)) for one in rest.pop("kept_wide", ()))
        copies = tuple(ScaleCopy(**_tuples(one)) for one in rest.pop("scale_copies", ()))
        parts = tuple(PartMultiple(**_tuples(one)) for one in rest.pop("part_multiples", ()))
        rotary = weight_format(rest.pop("rotary")).bytes if "rotary" in rest else 0.0
        found = Loading(
            **rest,
            rotary_bytes=rotary,
            expert_kernels=kernels,
            kept_wide=wide,
            scale_copies=copies,
            part_multiples=parts,
        )
    except TypeError as error:
        raise SpecError(f"has a field that is not known: {error}", file=str(file), field="loading") from None
    entries: tuple[ExpertKernel | PartMultiple, ...] = (*found.expert_kernels, *found.part_multiples)
    listed = {form for one in entries for form in one.formats}
    for name in listed | {one.format for one in found.kept_wide}:
        weight_format(name)
    return found


def _holds(one: ExpertKernel | ScaleCopy | PartMultiple, version: str | None) -> bool:
    """Return True if an entry holds in a version of its engine; None means the newest."""
    from glmplan.catalog.schema.engine import version_key

    if version is None:
        return one.until is None
    key = version_key(version)
    return not (one.since and key < version_key(one.since) or one.until and key >= version_key(one.until))


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


MIB = 2**20

#: ``total`` a fraction of all memory less what is used, ``before_load`` a fraction of what is free before weights,
#: ``after_load`` a fraction of what is free after a trial run, ``rest`` everything but a margin
Pool = Literal["total", "before_load", "after_load", "rest"]


@dataclass(frozen=True, slots=True)
class FractionRule:
    """SGLang's rule for the static fraction when none is given; all in MiB.

    Attributes
    ----------
    constant, for_each_prefill_token, least_prefill_tokens, for_each_graph_request, for_each_accelerator : float
        Terms of the reserve.
    least_on_large_parts, large_part : float
        Least reserve on parts with more memory than `large_part`.
    with_draft : float
        Added when a draft model or MTP is on.
    for_each_replica_graph, for_each_replica_graph_more, many_graphs : float
        With attention in replicas: for each replica and request of the largest graph; and so much more where that graph
        holds more requests than `many_graphs` [-].
    with_tower, tower_layers, tower_width, tower_step, tower_least, tower_most : float
        Factor on the fraction for models with a vision tower, and how it depends on the tower, see `tower_factor`, [-]
    source : str
        Where it is from.
    """

    constant: float
    for_each_prefill_token: float
    least_prefill_tokens: float
    for_each_graph_request: float
    for_each_accelerator: float
    least_on_large_parts: float
    large_part: float
    with_draft: float
    source: str
    for_each_replica_graph: float = 0.0
    for_each_replica_graph_more: float = 0.0
    many_graphs: float = 0.0
    with_tower: float = 1.0
    tower_layers: float = 1.0
    tower_width: float = 1.0
    tower_step: float = 0.0
    tower_least: float = 1.0
    tower_most: float = 1.0


@dataclass(frozen=True, slots=True)
class ProfilingRun:
    """What the trial run holds by which some versions of an engine size their pool.

    Attributes
    ----------
    sampler, drafting : float
        Bytes that live at once for each sampled request and entry of the vocabulary, without and with drafting, [B]
    source : str
        Where it is from.
    since, until : str or None
        Versions that it holds for; `until` is the first that it no longer holds for.
    dense : bool
        Whether it holds only for models without experts and recurrent layers.
    latent_context : float
        Most tokens whose keys and values the trial expands from their latents besides those of the step, [token]
    latent_requests : float
        How many of the longest requests it would expand if that were no more, [-]
    latent_sparse : bool
        Whether it does so for sparse attention, too.
    estimates_graphs : bool
        Whether these versions, where they take an estimate of CUDA graphs from the pool, do so in this trial.
    video_frames : float
        Most frames of the largest image that the trial of a video holds; 0 where it holds no more than one image, [-]
    images : bool
        Whether the image tower is tried.
    state : float
        Bytes for each request and entry of the vocabulary that the sampler keeps and that count as taken, [B]
    models : tuple of str
        Models that it holds for, patterns allowed; empty for all.
    unquantised : bool
        Whether it holds only for checkpoints without quantised weights.
    note : str
        How the bytes are derived.
    """

    sampler: float
    drafting: float
    source: str
    since: str | None = None
    until: str | None = None
    dense: bool = False
    latent_context: float = 0.0
    latent_requests: float = 8.0
    latent_sparse: bool = False
    estimates_graphs: bool = True
    video_frames: float = 0.0
    images: bool = True
    state: float = 0.0
    models: tuple[str, ...] = ()
    unquantised: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class IndexerTrial:
    """What the indexer of sparse attention takes in the trial run.

    Attributes
    ----------
    requests : float
        Longest requests of which it gathers the keys in a buffer that stays, [-]
    source : str
        Where it is from.
    logits : float
        Logits that it holds besides while it runs, [B]
    since, until : str or None
        Versions that it holds for.
    """

    requests: float
    source: str
    logits: float = 0.0
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Paging:
    """How some versions of an engine share a pool of pages between kinds of layers, and what they print of it.

    Attributes
    ----------
    printed : str
        ``blocks``: the tokens of the blocks that one group of layers would get; ``requests``: how many requests of the
        longest length fit, times that length.
    batches : float
        Steps in flight, whose tokens a window layer holds besides its window, [-]
    states : float
        Blocks of a recurrent layer for each request, drafted tokens aside, [-]
    source : str
        Where it is from.
    since, until : str or None
        Versions that it holds for.
    """

    printed: Literal["blocks", "requests"]
    batches: float
    states: float
    source: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class PoolSplit:
    """How some versions of an engine split their pool between layers that keep different things.

    Attributes
    ----------
    states : float
        Memory for states of recurrent layers over memory for keys and values, [-]; 0 where both share one pool, and
        then models with such layers are not split at all
    states_each : float
        States that a request may take, those kept for prefixes included, [-]
    windows : float
        Tokens of window layers over tokens of the others, [-]
    models : tuple of str
        Models whose window layers have a pool of their own, patterns allowed; in others all layers keep all tokens.
    source : str
        Where it is from.
    shared : tuple of str
        Models whose layers share one pool all the same, patterns allowed.
    since, until : str or None
        Versions that it holds for.
    """

    states: float
    states_each: float
    windows: float
    models: tuple[str, ...]
    source: str
    shared: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None

    def window_tokens(self, model: str) -> float:
        """Tokens of window layers over tokens of the others in a model, [-]; 1 where all layers keep all tokens."""
        return self.windows if any(fnmatchcase(model, each) for each in self.models) else 1.0

    def applies(self, model: str, *, recurrent: bool) -> bool:
        """Whether a model's layers have pools of their own, where it has recurrent layers or not."""
        return not any(fnmatchcase(model, each) for each in self.shared) and not (recurrent and not self.states)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Buffers of one kernel of routed experts: two rows for each routed copy of a token of a step.

    One row is as wide as what goes into the experts or into their second matrix, the other as what goes in or what
    comes out of the first, whichever is wider. The engine keeps them from the trial run on.

    Attributes
    ----------
    backend : str
        The kernel as the engine's log names it.
    formats, silicon : tuple of str
        Weight formats of the experts and compute capabilities, patterns allowed, for which the engine chooses it.
    source : str
        Where it is from.
    since, until : str or None
        Versions that it holds for.
    """

    backend: str
    formats: tuple[str, ...]
    silicon: tuple[str, ...]
    source: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class ExpansionReserve:
    """What some versions leave out of the pool for keys and values that a prompt expands from cached latents.

    Attributes
    ----------
    formats : tuple of str
        Formats of the cache in which they do.
    value : float
        Bytes of an expanded value, [B]
    source : str
        Where it is from.
    since, until : str or None
        Versions that it holds for.
    """

    formats: tuple[str, ...]
    value: float
    source: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class StepBuffer:
    """The buffer that some versions of an engine reserve for a step, and what they keep of windows and states.

    Attributes
    ----------
    value : float
        Bytes of a value of activations and logits, [B]
    mask : float
        Bytes for each token of the step and token of the longest request, the mask of attention, [B]
    all_logits : bool
        Whether it holds logits of each token of the step; otherwise of the requests and of what is drafted for them.
    window_multiple : float
        A layer with a window keeps the window and a whole step for each request, in multiples of this, [token]
    draft_states : bool
        Whether a recurrent layer keeps a state of each drafted token besides.
    index_keys : bool
        Whether the keys of a sparse indexer are cached, in the format of the cache; before, such models ran densely.
    source : str
        Where it is from.
    since, until : str or None
        Versions that it holds for.
    """

    value: float
    mask: float
    all_logits: bool
    window_multiple: float
    draft_states: bool
    index_keys: bool
    source: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """The memory rule of one engine.

    Attributes
    ----------
    engine : str
        Its name.
    pool : str
        See `Pool`.
    fraction_rule : FractionRule or None
        Rule for the default fraction.
    defaults : dict of str to str
        Engine settings whose defaults hold for ``fraction``, ``sampled`` (requests of which logits are held at once),
        ``graph_requests`` and ``graphs_in_pool``, see `glmplan.catalog.engines.defaults`.
    defaults_of : str or None
        Engine whose defaults these are, if not its own.
    largest_fraction : float
        Fraction up to which published launches go where the trial run counts everything inside of it; 0 where it does
        not, or no source says, [-]
    free_target : float
        Margin that ``rest`` leaves, [B]
    step : tuple of StepBuffer
        The buffer of a step by version, oldest first; empty for engines with a trial run or a share left free.
    captures_graphs : bool
        Whether steps are captured as graphs that hold memory of their own.
    graphs_before_pool : bool
        Whether they are captured before the engine looks what is free for its pool.
    vocabulary_multiple : int
        The vocabulary is padded to a multiple of it, [-]
    absorbed_copy : bool
        Whether the up-projections of latent attention are held twice, plain and absorbed.
    pipeline : str
        How layers that do not divide are dealt.
    draft_in_pool : bool
        Whether weights of draft layers are counted when the pool is sized.
    draft_cache_in_pool : bool
        Whether the pool also holds the cache of draft layers; otherwise that is a pool of its own.
    host_experts : bool
        Whether routed experts live in host memory.
    loading : Loading
        What the engine makes of the tensors of a checkpoint.
    profiling : tuple of ProfilingRun
        The trial run by version, oldest first; empty where no source says what it holds.
    paging : tuple of Paging
        Pages by version, oldest first; empty where kinds of layers do not share pages.
    workspaces : tuple of Workspace
        Buffers of kernels of routed experts, as far as a source tells them.
    indexer : tuple of IndexerTrial
        What the indexer of sparse attention takes, by version, oldest first.
    split : tuple of PoolSplit
        How the pool is split between kinds of layers, by version, oldest first; empty where they share it.
    expansion : tuple of ExpansionReserve
        What is left out of the pool for expanded latents, by version, oldest first; empty where nothing is.
    source : str
        Where it is from.
    """

    engine: str
    pool: Pool
    vocabulary_multiple: int
    absorbed_copy: bool
    pipeline: str
    draft_in_pool: bool
    draft_cache_in_pool: bool
    source: str
    fraction_rule: FractionRule | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    defaults_of: str | None = None
    largest_fraction: float = 0.0
    free_target: float = 0.0
    step: tuple[StepBuffer, ...] = ()
    captures_graphs: bool = False
    graphs_before_pool: bool = False
    host_experts: bool = False
    loading: Loading = AS_STORED
    profiling: tuple[ProfilingRun, ...] = ()
    paging: tuple[Paging, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    indexer: tuple[IndexerTrial, ...] = ()
    split: tuple[PoolSplit, ...] = ()
    expansion: tuple[ExpansionReserve, ...] = ()

    @property
    def prints_pool(self) -> bool:
        """Whether the engine measures a pool and prints its tokens; others make the slots that they are told."""
        return self.pool != "rest"

    def profiling_of(
        self, version: str | None, *, dense: bool, model: str = "", quantised: bool = True
    ) -> ProfilingRun | None:
        """The trial run of a version.

        - `version`: Version of the engine; None means the newest.
        - `dense`: Whether the model has neither experts nor recurrent layers.
        - `model`: Its canonical name, for versions whose trial differs by model.
        - Returns: The last entry that holds; None when the engine has no such run.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> [rule.profiling_of(one, dense=False).sampler for one in ("0.16.0", "0.17.1", "0.29.0")]
        [38, 14, 2]
        """
        found = [
            one
            for one in self.profiling
            if _in_versions(one, version)
            and (dense or not one.dense)
            and not (quantised and one.unquantised)
            and (not one.models or any(fnmatchcase(model, each) for each in one.models))
        ]
        return found[-1] if found else None

    def indexer_of(self, version: str | None) -> IndexerTrial | None:
        """What the indexer of sparse attention takes in the trial run of a version.

        - `version`: Version of the engine; None means the newest.
        - Returns: The last entry that holds; None where it takes nothing.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> rule.indexer_of("0.11.0") is None, rule.indexer_of("0.18.0").requests
        (True, 40)
        """
        found = [one for one in self.indexer if _in_versions(one, version)]
        return found[-1] if found else None

    def paging_of(self, version: str | None) -> Paging | None:
        """How a version shares pages between kinds of layers.

        - `version`: Version of the engine; None means the newest.
        - Returns: The last entry that holds; None when kinds of layers do not share pages.

        Examples
        --------
        >>> [load_memory_rule("vllm").paging_of(one).printed for one in ("0.19.0", "0.22.1")]
        ['blocks', 'requests']
        """
        found = [one for one in self.paging if _in_versions(one, version)]
        return found[-1] if found else None

    def split_of(self, version: str | None) -> PoolSplit | None:
        """How a version splits its pool between layers that keep different things.

        - `version`: Version of the engine; None means the newest release that evidence covers.
        - Returns: The last entry that holds; None where they share it.

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
        found = [one for one in self.split if _in_versions(one, version)]
        return found[-1] if found else None

    def expansion_of(self, version: str | None, kv: str) -> ExpansionReserve | None:
        """What a version leaves out of its pool for expanded latents.

        - `version`: Version of the engine; None means the newest release that evidence covers.
        - Returns: The last entry that holds; None where nothing is left out.

        Examples
        --------
        >>> rule = load_memory_rule("trtllm")
        >>> [rule.expansion_of(one, "fp8") is None for one in ("1.3.0rc20", "1.3.0rc23")]
        [True, False]
        """
        from glmplan.catalog.engines.limitations import load_engine

        version = version or (load_engine(self.engine).newest if self.expansion else None)
        found = [one for one in self.expansion if kv in one.formats and _in_versions(one, version)]
        return found[-1] if found else None

    def step_of(self, version: str | None) -> StepBuffer | None:
        """What a version reserves for a step.

        - `version`: Version of the engine; None means the newest.
        - Returns: The last entry that holds; None for engines that reserve no such buffer.

        Examples
        --------
        >>> rule = load_memory_rule("llama.cpp")
        >>> [rule.step_of(one).mask for one in ("b9193", None)]
        [6, 2]
        """
        found = [one for one in self.step if _in_versions(one, version)]
        return found[-1] if found else None

    def workspace_of(
        self, form: str, *, version: str | None, silicon: str | None, backend: str | None
    ) -> Workspace | None:
        """Buffers that a version keeps for routed experts of a format.

        - `version`: Version of the engine; None means the newest.
        - `backend`: The kernel that the launch asks for; None means what the engine chooses.
        - Returns: None where no source tells them, or the part is not known.

        Examples
        --------
        >>> rule = load_memory_rule("vllm")
        >>> [rule.workspace_of("bf16", version=one, silicon="8.0", backend=None) is None for one in ("0.11.0", None)]
        [True, False]
        """
        for one in self.workspaces:
            chosen = any(fnmatchcase(silicon or "", each) for each in one.silicon)
            asked = backend is None or backend.lower().startswith(one.backend)
            if form in one.formats and chosen and asked and _in_versions(one, version):
                return one
        return None

    def default(
        self, name: str, *, version: str | None, memory: Bytes | None, accelerator: str | None, tp: int = 1
    ) -> float | None:
        """The engine's own default for one of the names in `defaults`.

        - `version`: Version of the engine; None means the newest.
        - Returns: The default, [unit of the setting]; None when no source says.

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
            found = engine_default(engine, setting, version=version, memory=memory, accelerator=accelerator, tp=tp)
        except UnknownFact:
            return None
        return float(found)


def _in_versions(
    entry: ProfilingRun | Paging | Workspace | IndexerTrial | PoolSplit | StepBuffer | ExpansionReserve,
    version: str | None,
) -> bool:
    """Whether an entry holds for a version; the newest is after every bound."""
    from glmplan.catalog.schema.engine import version_key

    if version is None:
        return entry.until is None
    key = version_key(version)
    return not ((entry.since and key < version_key(entry.since)) or (entry.until and key >= version_key(entry.until)))


@cache
def memory_engines() -> tuple[str, ...]:
    """Engines whose memory rule is known.

    Examples
    --------
    >>> "sglang" in memory_engines()
    True
    """
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
        ProfilingRun(**one | {"models": tuple(one.get("models", ()))}) for one in content.get("profiling", ())
    )
    content["indexer"] = tuple(
        IndexerTrial(**one | {"logits": parse_quantity(one.get("logits", "0 B"), "bytes")})
        for one in content.get("indexer", ())
    )
    content["split"] = tuple(
        PoolSplit(**one | {"models": tuple(one["models"]), "shared": tuple(one.get("shared", ()))})
        for one in content.get("split", ())
    )
    content["expansion"] = tuple(
        ExpansionReserve(**one | {"formats": tuple(one["formats"])}) for one in content.get("expansion", ())
    )
    content["step"] = tuple(StepBuffer(**one) for one in content.get("step", ()))
    content["paging"] = tuple(Paging(**one) for one in content.get("paging", ()))
    content["workspaces"] = tuple(Workspace(**one) for one in content.get("workspaces", ()))
    if "free_target" in content:
        content["free_target"] = parse_quantity(content["free_target"], "bytes")
    unknown = sorted(set(content) - {one.name for one in fields(MemoryRule)})
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
    """SGLang's default static fraction.

    - `draft`: Whether a draft model or MTP is on.
    - Returns: Fraction, rounded to three places as the engine does.

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
    return np.round((part - reserve) / part, 3)


def tower_factor(rule: FractionRule, layers: int | None, width: int | None) -> Ratio:
    """Factor by which SGLang lowers its fraction for a model with a vision tower.

    `layers`, `width`: Layers and width of the tower as the config names them; None takes those of the tower the rule
      starts from.

    Notes
    -----
    A constant, times one less `tower_step` for each time that layers × width² are larger than those of ViT-L/14.

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
    """Layers of each pipeline stage.

    - `layers`: Layers of the model, MTP layers not included.
    - `pipeline`: ``middle-first`` gives layers that do not divide to the stages from the last but one backwards
      (vLLM, SGLang), ``first-first`` to the first stages (TensorRT-LLM), ``with-output`` deals layers and the output
      layer in equal shares (llama.cpp).

    References
    ----------
    .. [1] vllm-project/vllm, vllm/distributed/utils.py, get_pp_indices.

    Examples
    --------
    >>> pipeline_layers(78, 4, "middle-first")
    (19, 20, 20, 19)
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
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[extra if pipeline == "first-first" else -2 - extra] += 1
    return tuple(counts)


def stated_fraction(notes: str) -> Ratio | None:
    """Fraction that the notes of a measured run state.

    Examples
    --------
    >>> stated_fraction("Step 3; KV size 29.32 GB per GPU, mem-fraction 0.92"), stated_fraction("gpu-util 0.93")
    (0.92, 0.93)
    >>> stated_fraction("MMLU 0.873")
    """
    found = re.search(r"(?:mem(?:ory)?[- _]?(?:fraction|util\w*)|gpu[- _](?:memory[- _])?util)\S*[ =]+(0\.\d+)", notes)
    return float(found[1]) if found else None
