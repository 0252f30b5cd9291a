"""Records of engine facts: running, defaults, limitations and versions.

All are facts of `hardware_db/engines` with a source. Entries hold from version `since` (included) until `until`
(excluded). Names of models, accelerators and compute capabilities may be patterns with `*`.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from glmplan.catalog.formats import KV_FORMATS
from glmplan.catalog.schema.accelerator import Accelerator, Precision
from glmplan.catalog.schema.validation import Frozen
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import Bytes, Ratio

__all__ = [
    "Adapters",
    "Apart",
    "AttentionBackends",
    "CacheFormat",
    "CacheLayout",
    "Default",
    "Effect",
    "Engine",
    "Instead",
    "Published",
    "Release",
    "Running",
    "Scheduling",
    "Severity",
    "UnnamedVersion",
    "Wall",
    "When",
    "number_test",
    "version_key",
]


class AttentionBackends(Frozen):
    """Values of an engine's option for its attention backend.

    `since` is the first version that was read; the list holds until the next one. None: a build of others, whose names
    hold in any version.
    """

    since: str | None = None
    names: tuple[str, ...]
    note: str | None = None
    source: str


class CacheFormat(Frozen):
    """Format of the KV cache; the first one of an engine is its default."""

    format: str
    written: str | None = None  # value of the engine's option; None: no option needed
    named: str | None = None  # value since `named_since` where the engine would choose another format by itself
    named_since: str | None = None
    packed: str | None = None  # value for sparse latents and compressed entries
    since: str | None = None
    silicon: Precision | None = None  # with `when_short`: precision that the accelerator must multiply in
    when_short: bool = False  # True: a plan that is short of memory takes it
    quantised: bool = False  # True: default for weights below 16 bits whose checkpoint names no format
    #: compute capabilities on which models with an indexer take it, whatever their checkpoint says
    indexed_on: tuple[str, ...] = ()
    note: str | None = None
    source: str

    @field_validator("format")
    @classmethod
    def _is_a_format(cls, name: str) -> str:
        if name not in KV_FORMATS:
            raise SpecError("is not a KV cache format", field="format", value=name, choices=KV_FORMATS)
        return name


class CacheLayout(Frozen):
    """Layout of an engine's cache."""

    packed_latent: bool  # True: FP8 latents of sparse attention are stored as ``fp8_ds_mla``
    packed_rotary: int = 0  # rotary values that the packed form stores in every model
    index_keys: bool  # True: keys of the sparse indexer are cached
    #: True: attending densely without sparse kernels drops the indexer's weights, its keys and the packed form
    dense_drops_indexer: bool = False
    #: True: with recurrent layers, attention blocks grow until their page is as large as a recurrent state
    united_pages: bool = False
    convolution: float = 2.0  # bytes of a value of the convolution windows in a recurrent state
    plain_index_keys: bool = False  # True: index keys of latent attention are in the format of the cache
    expanded_latent: int = 0  # values of a head for which keys and values are cached instead of latents; 0: latents
    plain_latent: bool = False  # True: FP8 latents of sparse attention are plain values, as `plain_latent_on` says
    plain_latent_on: tuple[str, ...] = ()  # compute capabilities on which FP8 latents are not packed
    source: str

    def without_indexer(self) -> CacheLayout:
        """Return a model's layout without indexer: ordinary latent attention."""
        return self.model_copy(update={"packed_latent": False, "index_keys": False, "plain_index_keys": False})


class Apart(Frozen):
    """Disaggregated serving: prefill servers that hand over the cache."""

    since: str  # first release that a source shows
    prefill: str  # options of a prompt server besides its layout
    decode: str  # options of a decode server
    router: str  # program in front of them
    source: str


class Adapters(Frozen):
    """LoRA adapters of an engine."""

    told: str  # options, with ``{adapters}`` for the number on the accelerator at once and ``{rank}``
    ranks: tuple[int, ...] = ()  # ranks with buffers, the next larger one is taken; empty: any rank
    experts_since: str | None = None  # first release with adapters of routed experts; None: no source shows it
    deals_experts: bool = False  # True: such adapters work with expert parallelism
    source: str


class Running(Frozen):
    """Execution of models by an engine."""

    reads: Literal["safetensors", "gguf", "mlx"]  # form of the weight files
    whole_layers: bool = False  # True: assigns whole layers to devices and splits matrices only on request
    one_split: bool = False  # True: splits matrices or layers over ranks, never both; no data or expert parallelism
    divided_experts: bool = False  # True: the expert-parallel degree may be a divisor of the ranks
    one_process: bool = False  # True: HTTP server, tokenizer and scheduler are threads of one compiled process
    cells: int = 0  # every request attends to the cells of all requests, a multiple of this [token]; 0: only to its own
    host_tables: str | None = None  # option that keeps n-gram tables in host memory; None: they stay on the devices
    host_cache: str | None = None  # option for copies of cached blocks in host memory; None: there is none
    host_cache_latent: bool = False  # True: also for latent attention
    apart: Apart | None = None  # disaggregated serving; None: no source shows it
    adapters: Adapters | None = None  # None: no source was read
    #: option for routed experts on the CPU in the format of the files, by format (`Checkpoint.bulk`)
    host_experts: dict[str, str] = {}
    source: str


@lru_cache(maxsize=1024)
def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Return a key that orders versions.

    `0.5.10rc0` < `0.5.10` < `0.5.10.post1` < `0.5.11`.

    Examples
    --------
    >>> version_key("0.5.10rc0") < version_key("0.5.10") < version_key("0.5.10.post1") < version_key("0.19.0")
    True
    """
    match = re.match(r"\s*[vVbB]?(\d+(?:\.\d+)*)(?:[-.]?(a|b|rc)(\d+))?(?:[-.]?post(\d+))?(?:[-.]?dev(\d+))?", version)
    if match is None:
        raise SpecError("is not a version, as in '0.19.0'", value=version)
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    if match[2]:
        stage, count = {"a": -3, "b": -2, "rc": -1}[match[2]], int(match[3])
    elif match[4] is None and match[5] is not None:
        stage, count = -4, int(match[5])
    else:
        stage, count = 0, 0
    return tuple(numbers), stage, count * 1000 + int(match[4] or 0)


def _ordered(version: str) -> str:
    version_key(version)
    return version


#: a version that can be ordered
_Version = Annotated[str, AfterValidator(_ordered)]


class Release(Frozen):
    """Release of an engine with evidence.

    A wheel that was read, a recipe, a start-up log or measured runs.
    """

    version: _Version
    date: str | None = Field(None, pattern=r"^20\d\d-\d\d(-\d\d)?$")
    note: str | None = None
    source: str


class Published(Frozen):
    """Published versions of an engine without pre-releases.

    An entry may be a whole line (`1.3`). `source` says which list was read and when.
    """

    versions: tuple[str, ...] = Field(min_length=1)
    source: str

    @field_validator("versions")
    @classmethod
    def _are_ordered(cls, versions: tuple[str, ...]) -> tuple[str, ...]:
        keys = [version_key(version) for version in versions]
        if keys != sorted(set(keys)):
            raise SpecError("are not ordered, oldest first, each once", field="published.versions")
        return versions

    def holds(self, version: str) -> bool:
        """Return True if a version was published.

        It is listed, of a listed line, or built before or after a listed version. A candidate or daily build
        (`0.19.2rc1.dev5`) may belong to a version that was never released, so its line decides. True for the beginning
        of a version too (`0.24`).
        """
        match = re.match(r"\s*[vV]?(\d+(?:\.\d+)*)(.*)", version)
        if match is None:
            return False
        numbers, rest = match[1].split("."), match[2].lstrip(".-")
        if re.match(r"(a|b|rc|dev)\d|\+", rest):
            numbers = numbers[:2]
        listed = (item.split(".") for item in self.versions)
        return any(item[: len(numbers)] == numbers[: len(item)] for item in listed)


class UnnamedVersion(Frozen):
    """Version assumed for a server measured before a day, if none is stated."""

    before: str = Field(pattern=r"^20\d\d-\d\d(-\d\d)?$")
    version: _Version
    note: str | None = None
    source: str


#: ``unknown``: no source says if it works
Severity = Literal["error", "fallback", "slow", "quality", "memory", "unknown"]

#: fields of `When` with a condition on a number
_NUMBERS = ("tp", "pp", "dp", "ep", "dcp", "count", "mtp", "context", "users", "memory_fraction")
_NUMBER_TEST = re.compile(r"(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)|in\s+(\d+(?:\s*,\s*\d+)*)|not in\s+(\d+(?:\s*,\s*\d+)*)")


@lru_cache(maxsize=4096)
def number_test(text: str, number: Ratio) -> bool:
    """Return True if a number meets a condition of the data files.

    `text`: `">1"`, `">=2"`, `"=4"`, `"in 2,4,8"` or `"not in 2,4,8"`.

    Examples
    --------
    >>> number_test(">1", 2), number_test("in 2,4,8", 6), number_test("not in 2,4,6,8", 3)
    (True, False, True)
    """
    match = _NUMBER_TEST.fullmatch(text.strip())
    if match is None:
        raise SpecError("is not a condition on a number, as in '>1' or 'in 2,4,8'", value=text)
    sign, bound, inside, outside = match.groups()
    if inside or outside:
        listed = number in {int(part) for part in (inside or outside).split(",")}
        return listed if inside else not listed
    limit = float(bound)
    return bool(
        {">": number > limit, ">=": number >= limit, "<": number < limit, "<=": number <= limit}.get(
            sign, number == limit
        )
    )


class When(Frozen):
    """Conditions of a limitation; all that are given must hold."""

    models: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # all must be present
    without: tuple[str, ...] = ()  # none may be present
    weights: tuple[str, ...] = ()
    #: forms of weight files, as in `Checkpoint.form`
    files: tuple[Literal["safetensors", "gguf", "mlx", "exl3"], ...] = ()
    kv: tuple[str, ...] = ()
    compute_capability: tuple[str, ...] = ()
    #: conditions on a product: its name, or that of the accelerator with the same chip
    accelerators: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()  # this, `without_vendors` and `kinds` also hold for accelerators described by a user
    without_vendors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    lacks: tuple[Precision, ...] = ()  # precisions that the hardware is known not to have
    link: Literal["pcie", "nvlink"] | None = None
    graphs: bool | None = None
    tp: str | None = None
    pp: str | None = None
    dp: str | None = None
    ep: str | None = None
    dcp: str | None = None
    count: str | None = None
    mtp: str | None = None
    context: str | None = None
    users: str | None = None
    memory_fraction: str | None = None
    options: tuple[str, ...] = ()  # all must be switched on
    unless: tuple[str, ...] = ()  # any of these options lifts the limitation

    @field_validator(*_NUMBERS)
    @classmethod
    def _is_a_condition(cls, text: str | None) -> str | None:
        if text is not None:
            number_test(text, 0)
        return text

    @cached_property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """Return field and condition of each condition on a number."""
        return tuple((field, test) for field in _NUMBERS if (test := getattr(self, field)) is not None)

    @model_validator(mode="after")
    def _says_something(self) -> When:
        if not self.model_dump(exclude_defaults=True):
            raise SpecError("must hold at least one condition", field="when")
        return self


class Effect(Frozen):
    """Measured cost of a limitation: one quantity with it and without it."""

    what: str
    behind_wall: str
    free: str | None = None


class Instead(Frozen):
    """Behaviour under a limitation, in terms that a plan can compute.

    `indexer`: the sparse indexer is left out with its weights and cached keys; not set for an engine that attends
    densely and keeps it.
    """

    attention: Literal["dense"] | None = None
    indexer: Literal["dropped"] | None = None
    kv: Literal["bf16", "fp8", "nvfp4"] | None = None
    graphs: Literal[False] | None = None
    mtp: int | None = Field(default=None, ge=0)
    ep: Literal[1] | None = None
    dcp: Literal[1] | None = None
    compute: Literal["bf16", "fp8"] | None = None


class Wall(Frozen):
    """Limitation: something fails or differs on some hardware and versions."""

    id: str
    #: number in the list of SM120 limitations from which the catalogue started
    ledger: int | None = Field(default=None, ge=1)
    title: str
    severity: Severity
    when: When
    engines: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    last_seen: str | None = None  # newest version with a report, where no source says which version ends it
    seen: str | None = None
    fixed_by: str | None = None
    effect: str
    note: str | None = None
    measured: tuple[Effect, ...] = ()
    fallback: str | None = None
    instead: Instead = Instead()
    #: True: its cost is in no formula or kernel table, so runs under it are fitted with an effect of their own
    apart: bool = False
    in_view: tuple[str, ...] = ()  # groups of runs that were looked at for it (`glmplan.catalog.rule_provenance`)
    do: str
    told: tuple[str, ...] = ()  # options of the start command under the limitation
    environment: tuple[str, ...] = ()  # variables as ``NAME=value``
    #: program that serves instead of the engine; runs and commands of the engine do not apply
    another_program: str | None = None
    #: owner of the kernels, such as a plug-in, where the engine's own command starts them; runs with the engine's own
    #: kernels do not apply, runs on hardware under the same limitation do
    kernels_of: str | None = None
    trust: Literal["vendor", "documented", "report", "chat summary"] = "documented"
    source: str

    @field_validator("environment")
    @classmethod
    def _are_variables(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for item in given:
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*=\S+", item):
                raise SpecError("is not a variable with a value, as in NAME=1", field="environment", value=item)
        return given

    @model_validator(mode="after")
    def _versions_are_ordered(self) -> Wall:
        for version in (self.since, self.until, self.last_seen):
            if version is not None:
                version_key(version)
        if self.since and self.until and version_key(self.since) >= version_key(self.until):
            raise SpecError("must be before `until`", field="since", value=self.since)
        return self


class Default(Frozen):
    """Engine default of a setting.

    Memory and TP bounds and name patterns select accelerators. `sparse`: models whose sparse attention keeps an
    indexer's keys; `recurrent`: models with layers that keep a state; False selects the others.
    """

    setting: str
    value: int | float | str | bool
    since: str | None = None
    until: str | None = None
    memory_from: Bytes | None = None
    memory_below: Bytes | None = None
    tp: str | None = None
    sparse: bool | None = None
    recurrent: bool | None = None
    accelerators: tuple[str, ...] = ()
    without_accelerators: tuple[str, ...] = ()
    note: str | None = None
    source: str

    @field_validator("tp")
    @classmethod
    def _is_a_condition(cls, text: str | None) -> str | None:
        if text is not None:
            number_test(text, 0)
        return text


class Scheduling(Frozen):
    """Packing of requests into steps, and the settings behind it.

    Text fields name settings of `defaults` (of the engine `defaults_of`, where this one starts it); None: no such
    feature.
    """

    scheduler: Literal["vllm", "sglang", "trtllm", "llama.cpp"]
    admission: Literal["chunk", "no-evict", "max-utilization", "estimate", "slot"]
    tokens_per_step: str
    requests: str
    block_tokens: str
    graph_tokens: str | None = None
    defaults_of: str | None = None
    prefill_first: bool = False  # True: prompts run in steps of their own
    whole_prompts: bool = False  # True: prompts are never split over steps
    #: share of the output that must fit in the cache before a request is admitted
    reserve: float = Field(default=0.5, gt=0, le=1)
    late: int = Field(default=1, ge=0)  # steps that have begun when the next prompt of a closed loop arrives
    most_requests: int | None = Field(default=None, ge=1)  # most requests at once that a launch can ask for
    prefix_caching: str | None = None  # prefix-cache hits
    ahead: str | None = None  # a step is formed while the one before it runs
    whole_prompt: str | None = None  # a whole prompt must fit before its first chunk is computed
    routing: str | None = None  # choice of the data-parallel rank of a request
    kept_prompts: str | None = None  # host memory for prompts that lost their slot [MiB]
    divided: bool = False  # True: token budget and request limit are those of all attention ranks together
    rank_conservativeness: float = Field(default=1.0, gt=0)  # factor on the admission reserve with several ranks
    source: str


class Engine(Frozen):
    """Facts of an engine; `any` holds limitations of several engines."""

    name: str
    full_name: str
    scheduling: Scheduling | None = None
    walls: tuple[Wall, ...] = ()
    defaults: tuple[Default, ...] = ()
    running: Running | None = None
    cache: CacheLayout | None = None
    cache_formats: tuple[CacheFormat, ...] = ()
    unnamed_versions: tuple[UnnamedVersion, ...] = ()
    releases: tuple[Release, ...] = ()
    published: Published | None = None
    attention_backends: tuple[AttentionBackends, ...] = ()
    called: tuple[str, ...] = ()  # further names in use

    @model_validator(mode="after")
    def _releases_are_ordered(self) -> Engine:
        keys = [version_key(release.version) for release in self.releases]
        if keys != sorted(keys):
            raise SpecError("are not ordered, oldest first", field="releases")
        if self.published is not None:
            never = [release.version for release in self.releases if not self.published.holds(release.version)]
            if never:
                raise SpecError("is not among the published versions", field="releases.version", value=never[0])
        return self

    @property
    def newest(self) -> str | None:
        """Return the newest release with evidence, or None."""
        return self.releases[-1].version if self.releases else None

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Engine:
        seen: set[str] = set()
        for wall in self.walls:
            if wall.id in seen:
                raise SpecError("appears twice", field="walls.id", value=wall.id)
            seen.add(wall.id)
        return self

    @model_validator(mode="after")
    def _a_cache_has_formats_and_one_for_short_memory(self) -> Engine:
        names = [cache_format.format for cache_format in self.cache_formats]
        for item in self.cache_formats:
            if item.since is not None:
                version_key(item.since)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise SpecError("appears twice", field="cache_formats.format", value=twice[0])
        if (self.cache is None) != (not names):
            raise SpecError("and `cache_formats` need each other", field="cache")
        if sum(cache_format.when_short for cache_format in self.cache_formats) > 1:
            raise SpecError("can hold for one format only", field="cache_formats.when_short")
        return self

    def attention_names(self, version: str | None) -> tuple[str, ...]:
        """Return the values of the attention backend option.

        Empty where no source lists them.

        Examples
        --------
        >>> from glmplan.catalog.engines.limitations import load_engine
        >>> ["TREE_ATTN" in load_engine("vllm").attention_names(one) for one in ("0.19.0", "0.24.0", None)]
        [True, False, False]
        """
        key = None if version is None else version_key(version)
        stock = [
            attention_backend.names
            for attention_backend in self.attention_backends
            if attention_backend.since and (not key or version_key(attention_backend.since) <= key)
        ]
        builds = [
            name
            for attention_backend in self.attention_backends
            if not attention_backend.since
            for name in attention_backend.names
        ]
        return (*stock[-1], *builds) if stock else ()

    @property
    def default_cache(self) -> str:
        """Return the default format of the KV cache."""
        if not self.cache_formats:
            raise UnknownFact(f"{self.name}: no source says in which format the KV cache is kept")
        return self.cache_formats[0].format

    def cache_format(self, name: str) -> CacheFormat:
        """Return the KV cache format of a name.

        Examples
        --------
        >>> from glmplan.catalog.engines.limitations import load_engine
        >>> load_engine("sglang").cache_format("fp8").written
        'fp8_e4m3'
        """
        for one in self.cache_formats:
            if one.format == name:
                return one
        known = [item.format for item in self.cache_formats]
        raise SpecError(f"is not a format in which {self.full_name} keeps its KV cache", value=name, choices=known)

    def small_cache(self, part: Accelerator) -> str:
        """Return the KV cache format of a plan that is short of memory.

        Empty: none on this accelerator.

        Examples
        --------
        >>> from glmplan.catalog.entries.accelerators import load_accelerator
        >>> from glmplan.catalog.engines.limitations import load_engine
        >>> [load_engine("vllm").small_cache(load_accelerator(part)) for part in ("h100-sxm", "a100-80gb-sxm")]
        ['fp8', '']
        """
        for cache_format in self.cache_formats:
            if cache_format.when_short and (cache_format.silicon is None or part.supports(cache_format.silicon)):
                return cache_format.format
        return ""
