"""Records of engine facts: running, defaults, limitations and versions.

All are facts of `hardware_db/engines` with a source. Entries hold from version `since` (included) until `until`
(excluded). Names of models, accelerators and compute capabilities may be patterns with `*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property, lru_cache
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import AfterValidator, Field, create_model, field_validator, model_validator

from glmplan.catalog.formats import KV_FORMATS
from glmplan.catalog.schema.accelerator import Accelerator, Precision
from glmplan.catalog.schema.validation import Frozen
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import Bytes, Ratio, TokenCount

__all__ = [
    "Adapters",
    "Apart",
    "AttentionBackends",
    "CacheFormat",
    "CacheLayout",
    "ConditionTest",
    "Conditions",
    "Container",
    "Default",
    "Effect",
    "Engine",
    "EngineDefaults",
    "Family",
    "Instead",
    "MovedExperts",
    "PromptTails",
    "Published",
    "Release",
    "Running",
    "Scheduling",
    "Severity",
    "SharedContext",
    "StageLayers",
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


class MovedExperts(Frozen):
    """Options for experts of some layers, or whole layers, on the CPU."""

    #: with ``{layers}`` for the number of leading layers, ``{experts}`` for that of layers with experts among them
    option: str
    override: str | None = None  # with ``{layers}`` for the numbers of the layers, joined by ``|``; None: leading ones
    dense: str | None = None  # the same for feed-forward matrices of models without experts
    #: with ``{layers}`` for the last layers on accelerators, the output among them; the others and their caches are not
    accelerated: str | None = None
    cache: str | None = None  # caches of all layers in host memory, where the CPU attends
    mapped: bool = False  # True: weights are mapped from the file, which may be larger than host memory
    #: tokens of a prompt in a step above which the accelerators fetch the weights and compute
    streams_above: int
    source: str


class SharedContext(Frozen):
    """Decode context parallelism: TP ranks that divide cached tokens."""

    option: str  # of the launch command
    since: str  # first release that a source shows with latent attention
    keys_since: str  # the same with keys and values of heads
    beside_states_since: str  # the same beside recurrent layers
    source: str


class PromptTails(Frozen):
    """Prompts that leave layers without a cache source out but for their end.

    See `LayerKind.decode_only`.
    """

    since: str  # first release that does so without an option
    makers: tuple[str, ...]  # of the accelerators
    source: str


class Container(Frozen):
    """Published container image of an engine and its HTTP server."""

    #: image with its tag by vendor of the accelerators; ``{version}`` stands for the release
    images: dict[str, str]
    program: str | None = None  # path of the server in the image; None: the first word of the launch command
    cache: str = "HF_HOME"  # environment variable with the folder of downloaded weights
    port: int
    health: str = "/health"
    source: str


class StageLayers(Frozen):
    """Layers of each pipeline stage, as a launch states them."""

    variable: str  # environment variable: the layers of every stage, separated by commas
    equal_ranks: bool = False  # True: stages on several ranks need equal memory everywhere
    source: str


class Running(Frozen):
    """Execution of models by an engine."""

    reads: Literal["safetensors", "gguf", "mlx", "exl3"]  # form of the weight files
    whole_layers: bool = False  # True: assigns whole layers to devices and splits matrices only on request
    one_split: bool = False  # True: splits matrices or layers over ranks, never both; no data or expert parallelism
    #: True: tensor parallelism deals KV heads, blocks of 128 columns and experts whole; the rank with most of them
    #: differs by layer, so that all ranks hold about the same
    unequal_pieces: bool = False
    divided_experts: bool = False  # True: the expert-parallel degree may be a divisor of the ranks
    listens: tuple[str, str] = ("--host", "--port")  # options of the HTTP server for its address
    one_process: bool = False  # True: HTTP server, tokenizer and scheduler are threads of one compiled process
    cells: int = 0  # every request attends to the cells of all requests, a multiple of this [token]; 0: only to its own
    host_tables: str | None = None  # option that keeps n-gram tables in host memory; None: they stay on the devices
    host_cache: str | None = None  # option for copies of cached blocks in host memory; None: there is none
    host_cache_latent: bool = False  # True: also for latent attention
    apart: Apart | None = None  # disaggregated serving; None: no source shows it
    adapters: Adapters | None = None  # None: no source was read
    prompt_tails: PromptTails | None = None  # None: no source shows it
    shared_context: SharedContext | None = None  # None: no source shows it
    stage_layers: StageLayers | None = None  # None: no source shows it
    even_experts: tuple[str, ...] = ()  # models, as patterns, whose expert-parallel degree must divide the experts
    #: option for routed experts on the CPU in the format of the files, by format (`Checkpoint.bulk`)
    host_experts: dict[str, str] = {}
    moved_experts: MovedExperts | None = None  # None: no source shows experts of single layers in host memory
    source: str


#: of a number in a release: dates with the time have fourteen
_MOST_DIGITS = 18


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
    if max(map(len, re.findall(r"\d+", match[0]))) > _MOST_DIGITS:
        raise SpecError(f"has a number of more than {_MOST_DIGITS} digits", field="version", value=version)
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


@dataclass(frozen=True, slots=True)
class ConditionTest:
    """How limitations test one condition of a plan."""

    #: ``names``: patterns with `*`, one must match; ``number``: see `number_test`; ``all``: each must be present
    kind: Literal["names", "number", "equal", "all"]
    values: Any = str  # type of a value
    key: str = ""  # field of the files if it is not called like the condition


def _tested(kind: Literal["names", "number", "equal", "all"], values: Any = str, key: str = "") -> Any:
    """Return a field of `Conditions` that limitations test."""
    return field(default=None, metadata={"test": ConditionTest(kind, values, key)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Hold the known conditions of a plan; None: not stated.

    `When` has one field for each `ConditionTest` here.
    """

    engine: str
    engine_version: str | None = None
    model: str | None = _tested("names", key="models")  # catalogue name
    features: frozenset[str] | None = _tested("all")  # such as ``mla``, ``moe`` and ``mtp``
    weights: str | None = _tested("names")
    #: form of the weight files, as in `Checkpoint.form`
    files: str | None = _tested(
        "names", Literal["safetensors", "gguf", "mlx", "exl3", "bitsandbytes", "torchao", "transformers"]
    )
    kv: str | None = _tested("names")
    accelerator: str | None = _tested("names", key="accelerators")
    same_chip: str | None = None  # accelerator of the catalogue with the same chip; `accelerators` may name it too
    compute_capability: str | None = _tested("names")
    vendor: str | None = _tested("names", key="vendors")  # known for accelerators described by a user, as `part_kind`
    part_kind: str | None = _tested("names", key="kinds")
    lacks: frozenset[str] | None = _tested("all", Precision)  # precisions without matrix hardware
    count: int | None = _tested("number")
    tp: int | None = _tested("number")
    pp: int | None = _tested("number")
    dp: int | None = _tested("number")
    ep: int | None = _tested("number")
    dcp: int | None = _tested("number")
    link: str | None = _tested("equal", Literal["pcie", "nvlink"])  # between the accelerators of a group
    graphs: bool | None = _tested("equal", bool)  # CUDA graphs are used
    mtp: int | None = _tested("number")  # speculative tokens of a step
    context: int | None = _tested("number")  # longest sequence [token]
    users: int | None = _tested("number")  # requests in flight
    memory_fraction: float | None = _tested("number")
    options: frozenset[str] = frozenset()  # keys of `glmplan.catalog.engines.limitations.OPTIONS` that hold


#: condition → its test
TESTS: dict[str, ConditionTest] = {one.name: one.metadata["test"] for one in fields(Conditions) if one.metadata}


class _When(Frozen):
    """Conditions of a limitation; all that are given must hold."""

    without: tuple[str, ...] = ()  # features of which none may be present
    without_vendors: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # all must be switched on
    unless: tuple[str, ...] = ()  # any of these options lifts the limitation

    @cached_property
    def tests(self) -> tuple[tuple[str, str, Any], ...]:
        """Return condition, kind and value of each given test.

        Tests of options are not among them.
        """
        every: list[tuple[str, str, Any]]
        every = [(name, test.kind, getattr(self, test.key or name)) for name, test in TESTS.items()]
        every += [("features", "none", self.without), ("vendor", "no names", self.without_vendors)]
        return tuple(one for one in every if one[2] not in (None, ()))

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_defaults=True):
            raise SpecError("must hold at least one condition", field="when")
        return self


def _number_test(text: str) -> str:
    number_test(text, 0)
    return text


def _test_field(test: ConditionTest) -> tuple[Any, Any]:
    """Return type and default of the field of `When` for a test."""
    if test.kind == "number":
        return Annotated[str, AfterValidator(_number_test)] | None, None
    values = test.values
    return (values | None, None) if test.kind == "equal" else (GenericAlias(tuple, (values, ...)), ())


if TYPE_CHECKING:

    class When(_When):
        """As at run time; its further fields are those of `TESTS`."""

        def __init__(self, **tests: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
else:
    When = create_model(
        "When",
        __base__=_When,
        __doc__=_When.__doc__,
        __module__=__name__,
        **{test.key or name: _test_field(test) for name, test in TESTS.items()},
    )


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
    unknown_model: bool = False  # the releases do not know the architecture of the model
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


def _setting(default: Any, key: str = "") -> Any:
    """Return a field whose value is the default of a setting."""
    return field(default=default, metadata={"setting": key})


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Hold how an engine packs requests into steps.

    `Scheduling` has the same fields, as the files of engines state them.
    """

    budget: TokenCount = field(metadata={"setting": "tokens_per_step"})  # of a step
    prefill_first: bool = field(metadata={"stated": False})  # prompts run in steps of their own and decode waits
    max_requests: int = field(metadata={"setting": "requests"})  # running at once
    #: of the output, the part that must fit in the KV cache before a request is admitted
    reserve: Annotated[Ratio, Field(gt=0, le=1)] = 0.5
    whole_prompts: bool = False  # prompts are never split over steps
    #: steps begun when the next prompt of a closed loop arrives, after the client's round trip
    late: Annotated[int, Field(ge=0)] = 1
    graph_tokens: TokenCount = _setting(0)  # most tokens of a pass with prompts from piecewise graphs
    #: most requests at once that a launch may ask for; 0: no such setting
    most_requests: Annotated[int, Field(ge=0)] = 0
    #: nearest of the simulator, see `glmplan.simulation.engine.settings`
    scheduler: Literal["vllm", "sglang", "trtllm", "llama.cpp"] = field(default="vllm", metadata={"stated": ...})
    #: the same for the admission rule
    admission: Literal["chunk", "no-evict", "max-utilization", "estimate", "slot"] = field(
        default="chunk", metadata={"stated": ...}
    )
    prefix_caching: bool = _setting(False)  # blocks of earlier requests are reused
    ahead: bool = _setting(False)  # a step is formed while the one before it runs
    whole_prompt: bool = _setting(False)  # a full prompt must fit in the cache before its first chunk
    routing: str = _setting("round-robin")  # choice of the data-parallel rank of a request
    kept_mib: int = _setting(0, "kept_prompts")  # host memory for prompts that lost their slot [MiB]
    divided: bool = False  # `budget` and a given request limit are those of all attention ranks together
    #: factor on the admission reserve with several attention ranks
    rank_conservativeness: Annotated[float, Field(gt=0)] = 1.0

    @property
    def places(self) -> int:
        """Return `max_num_seqs` of an engine launched for the requested load."""
        return self.most_requests or self.max_requests

    @property
    def kept_bytes(self) -> Bytes:
        """Return the host memory for the cache of prompts that lost their slot."""
        return self.kept_mib * 2.0**20

    @property
    def steps_late(self) -> int:
        """Return the steps that a prompt misses which follows the end of a step.

        Asynchronous scheduling adds one.
        """
        return self.late + self.ahead

    def budget_of(self, ranks: int) -> TokenCount:
        """Return the tokens of a step of data-parallel ranks."""
        return max(self.budget // ranks, 1) * ranks if self.divided else self.budget * ranks


class _Scheduling(Frozen):
    """State the fields of `EngineDefaults` as values or as settings.

    Settings are those of `defaults`, of the engine `defaults_of` where this one starts it; None: no such feature.
    """

    block_tokens: str
    defaults_of: str | None = None
    source: str

    def packing(self, default_of: Callable[[str], Any]) -> EngineDefaults:
        """Return the packing; `default_of` returns the default of a setting."""
        values = {}
        for one in fields(EngineDefaults):
            stated = getattr(self, one.metadata.get("setting") or one.name)
            if "setting" not in one.metadata:
                values[one.name] = stated
            elif stated is not None:
                values[one.name] = default_of(stated)
        return EngineDefaults(**values)


def _scheduling_fields() -> dict[str, tuple[Any, Any]]:
    """Return type and default of the derived fields of `Scheduling`."""
    types, stated = get_type_hints(EngineDefaults, include_extras=True), {}
    for one in fields(EngineDefaults):
        if "setting" not in one.metadata:
            stated[one.name] = (types[one.name], one.metadata.get("stated", one.default))
        else:
            name = one.metadata["setting"] or one.name
            stated[name] = (str, ...) if one.default is MISSING else (str | None, None)
    return stated


if TYPE_CHECKING:

    class Scheduling(_Scheduling):
        """As at run time, with the fields of `_scheduling_fields`."""

else:
    Scheduling = create_model(
        "Scheduling", __base__=_Scheduling, __doc__=_Scheduling.__doc__, __module__=__name__, **_scheduling_fields()
    )


class Family(Frozen):
    """Releases of an engine that know the architecture of models.

    Without `since` and `until`, no release up to `read` does.
    """

    models: tuple[str, ...] = ()  # patterns of names; the first one names the family
    features: tuple[str, ...] = ()  # of the model, in place of names: all must hold, and the first one names the family
    since: str | None = None  # first release that knows it
    until: str | None = None  # first release that no longer knows it
    read: str | None = None
    source: str

    def limitation(self, engine: str, name: str) -> dict[str, Any]:
        """Return the limitation of the releases that do not know it."""
        id_of = f"{engine}-{(self.models + self.features)[0].rstrip('*-')}"
        more: dict[str, str | None]
        if self.until:
            more = {"id": f"{id_of}-until", "title": f"{name} from {self.until} on does not support this model",
                    "since": self.until, "do": f"a release of {name} before {self.until}"}  # fmt: skip
        elif self.since:
            more = {"id": f"{id_of}-since", "title": f"{name} before {self.since} does not support this model",
                    "until": self.since, "do": f"{name} {self.since} or later"}  # fmt: skip
        else:
            more = {"id": f"{id_of}-unknown", "title": f"{name} up to {self.read} does not support this model",
                    "last_seen": self.read, "do": "an engine that supports the model"}  # fmt: skip
        when = {"models": self.models} if self.models else {"features": self.features}
        effect = "the server stops: it does not know the architecture, or lacks a part that the model needs"
        return {**more, "severity": "error", "effect": effect, "source": self.source, "when": when,
                "unknown_model": True}  # fmt: skip


class Engine(Frozen):
    """Facts of an engine; `any` holds limitations of several engines."""

    name: str
    full_name: str
    scheduling: Scheduling | None = None
    walls: tuple[Wall, ...] = ()
    families: tuple[Family, ...] = ()
    defaults: tuple[Default, ...] = ()
    running: Running | None = None
    container: Container | None = None  # None: no image is published
    cache: CacheLayout | None = None
    cache_formats: tuple[CacheFormat, ...] = ()
    unnamed_versions: tuple[UnnamedVersion, ...] = ()
    releases: tuple[Release, ...] = ()
    published: Published | None = None
    attention_backends: tuple[AttentionBackends, ...] = ()
    called: tuple[str, ...] = ()  # further names in use

    @model_validator(mode="before")
    @classmethod
    def _families_are_limitations(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Add a limitation of the releases that do not know a family."""
        families = [Family.model_validate(family) for family in given.get("families", ())]
        added = [family.limitation(given["name"], given["full_name"]) for family in families]
        return given | {"walls": [*given.get("walls", ()), *added]}

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
