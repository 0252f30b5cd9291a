"""What an engine cannot do where ("walls"), what it does when nobody says otherwise ("defaults"), and how it runs.

All are facts with a source. A wall says when it stands (`when`), from which version until which, what happens, what it
costs as far as somebody measured it, and what to do.
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


# How an engine runs a model and keeps its KV cache: facts of `hardware_db/engines`, each with a source.


class AttentionBackends(Frozen):
    """Names that an engine's option for its attention backend takes.

    `since`: the first version that was read; the list holds until the next one. None is a build of others, whose names
    hold in any version.
    """

    since: str | None = None
    names: tuple[str, ...]
    note: str | None = None
    source: str


class CacheFormat(Frozen):
    """A format in which an engine can keep the KV cache.

    The first of an engine is what it takes when nobody says. `written` is how the engine's own option names it; None
    needs no option; `named`, since `named_since`, is the name of such a format for where the engine would by itself
    take another. `packed` is its name for sparse latents and compressed entries. `when_short`: a plan that lacks
    room takes it, on a part that multiplies in `silicon`.
    `quantised`: weights that are stored in fewer than 16 bits bring it with them where their checkpoint does not say.
    `indexed_on`: compute capabilities, patterns allowed, on which models with an indexer take it, whatever their
    checkpoint says.
    """

    format: str
    written: str | None = None
    named: str | None = None
    named_since: str | None = None
    packed: str | None = None
    since: str | None = None
    silicon: Precision | None = None
    when_short: bool = False
    quantised: bool = False
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
    """How an engine lays out its cache.

    `packed_latent`: FP8 latents of sparse attention are stored as ``fp8_ds_mla``; `packed_rotary`: rotary values that
    the packed form has room for whether a model has them or not. `index_keys`: the keys of the sparse
    indexer are cached. `dense_drops_indexer`: attending densely for want of kernels leaves the indexer out: its
    weights, its keys and the packed form of the latent. `united_pages`: in models with recurrent layers, blocks of
    attention grow until their page is as large as a recurrent state. `convolution`: bytes of a value of the windows of
    convolutions, which a recurrent state keeps besides. `plain_index_keys`: keys of the indexer of latent attention are
    cached in the format of the cache.
    """

    packed_latent: bool
    packed_rotary: int = 0
    index_keys: bool
    dense_drops_indexer: bool = False
    united_pages: bool = False
    convolution: float = 2.0
    plain_index_keys: bool = False
    source: str

    def without_indexer(self) -> CacheLayout:
        """The layout of a model whose indexer was left out: that of ordinary latent attention."""
        return self.model_copy(update={"packed_latent": False, "index_keys": False, "plain_index_keys": False})


class Apart(Frozen):
    """How an engine computes prompts on servers of their own and hands keys and values over (disaggregation).

    `since`: the first release that a source shows serving so. `prefill`, `decode`: what each kind of server is told
    beside its layout. `router`: what stands before them.
    """

    since: str
    prefill: str
    decode: str
    router: str
    source: str


class Adapters(Frozen):
    """How an engine keeps low-rank adapters (LoRA) beside the weights.

    `told`: its options, with ``{adapters}`` for how many lie on the accelerator at once and ``{rank}``. `ranks`: those
    that it has buffers for, the next larger one is taken; empty where any rank has its own. `experts_since`: the first
    release with adapters of routed experts; None where no source shows it. `deals_experts`: whether such adapters go
    with experts that are dealt over ranks.
    """

    told: str
    ranks: tuple[int, ...] = ()
    experts_since: str | None = None
    deals_experts: bool = False
    source: str


class Running(Frozen):
    """How an engine runs a model.

    `reads`: the form of the weight files it starts from. `whole_layers`: it deals whole layers to its devices and
    splits matrices only when told to. `one_split`: it splits matrices or layers over its ranks, never both, and has
    neither data nor expert parallelism. `divided_experts`: the experts may be dealt over a divisor of the ranks, else
    over all of them. `one_process`: HTTP server, tokenizer and scheduler are threads of one compiled process.
    `cells`: requests attend to the cells of all, of which there are multiples of this [token]; 0 where to their own.
    `host_tables`: the option with which tables of n-grams lie in host memory; None keeps them on the devices.
    `host_cache`: the option with which copies of cached blocks lie in host memory; None where it has none;
    `host_cache_latent`: whether also those of latent attention. `apart`: how prompts are computed on servers of their
    own; None where no source shows it. `adapters`: how it keeps low-rank adapters; None where no source was read.
    `host_experts`: the option with which the processors compute routed experts in the format of the files, for each
    format of theirs that they read, as `Checkpoint.bulk` names it.
    """

    reads: Literal["safetensors", "gguf", "mlx"]
    whole_layers: bool = False
    one_split: bool = False
    divided_experts: bool = False
    one_process: bool = False
    cells: int = 0
    host_tables: str | None = None
    host_cache: str | None = None
    host_cache_latent: bool = False
    apart: Apart | None = None
    adapters: Adapters | None = None
    host_experts: dict[str, str] = {}
    source: str


# Versions of engines: how they are ordered, which were published, and which evidence covers.


@lru_cache(maxsize=1024)
def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Return a key that orders versions: `0.5.10rc0` < `0.5.10` < `0.5.10.post1` < `0.5.11`.

    Examples
    --------
    >>> version_key("0.5.10rc0") < version_key("0.5.10") < version_key("0.5.10.post1") < version_key("0.19.0")
    True
    """
    found = re.match(r"\s*[vVbB]?(\d+(?:\.\d+)*)(?:[-.]?(a|b|rc)(\d+))?(?:[-.]?post(\d+))?(?:[-.]?dev(\d+))?", version)
    if found is None:
        raise SpecError("is not a version, as in '0.19.0'", value=version)
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    if found[2]:
        stage, count = {"a": -3, "b": -2, "rc": -1}[found[2]], int(found[3])
    elif found[4] is None and found[5] is not None:
        stage, count = -4, int(found[5])
    else:
        stage, count = 0, 0
    return tuple(numbers), stage, count * 1000 + int(found[4] or 0)


def _ordered(version: str) -> str:
    version_key(version)
    return version


#: a version that can be ordered
_Version = Annotated[str, AfterValidator(_ordered)]


class Release(Frozen):
    """A release of an engine that evidence covers: a wheel that was read, a recipe, a start-up log, measured runs."""

    version: _Version
    date: str | None = Field(None, pattern=r"^20\d\d-\d\d(-\d\d)?$")
    note: str | None = None
    source: str


class Published(Frozen):
    """Versions of an engine that were published, or whole lines of them (`1.3`), without what came before a release.

    `source` says which list was read and when.
    """

    versions: tuple[str, ...] = Field(min_length=1)
    source: str

    @field_validator("versions")
    @classmethod
    def _are_ordered(cls, versions: tuple[str, ...]) -> tuple[str, ...]:
        keys = [version_key(one) for one in versions]
        if keys != sorted(set(keys)):
            raise SpecError("are not ordered, oldest first, each once", field="published.versions")
        return versions

    def holds(self, version: str) -> bool:
        """Whether a version was published: one of the list, all of a line, or something built before or after one.

        - `version`: As `version_key` reads it. A candidate or build of a day (`0.19.2rc1.dev5`) may be of a version
          that never came, so its line decides.
        - Returns: True for the beginning of a version too (`0.24`).
        """
        found = re.match(r"\s*[vV]?(\d+(?:\.\d+)*)(.*)", version)
        if found is None:
            return False
        numbers, rest = found[1].split("."), found[2].lstrip(".-")
        if re.match(r"(a|b|rc|dev)\d|\+", rest):
            numbers = numbers[:2]
        listed = (one.split(".") for one in self.versions)
        return any(one[: len(numbers)] == numbers[: len(one)] for one in listed)


class UnnamedVersion(Frozen):
    """The version that a server counts as which was measured before a day and whose version nobody wrote down."""

    before: str = Field(pattern=r"^20\d\d-\d\d(-\d\d)?$")
    version: _Version
    note: str | None = None
    source: str


#: ``unknown``: nobody published whether it works
Severity = Literal["error", "fallback", "slow", "quality", "memory", "unknown"]

#: fields of `When` that hold a condition on a number
_NUMBERS = ("tp", "pp", "dp", "ep", "dcp", "count", "mtp", "context", "users", "memory_fraction")
_NUMBER_TEST = re.compile(r"(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)|in\s+(\d+(?:\s*,\s*\d+)*)|not in\s+(\d+(?:\s*,\s*\d+)*)")


@lru_cache(maxsize=4096)
def number_test(text: str, number: Ratio) -> bool:
    """Compare a number with a condition as the data files write it.

    `text`: `">1"`, `">=2"`, `"=4"`, `"in 2,4,8"` or `"not in 2,4,8"`.

    Examples
    --------
    >>> number_test(">1", 2), number_test("in 2,4,8", 6), number_test("not in 2,4,6,8", 3)
    (True, False, True)
    """
    found = _NUMBER_TEST.fullmatch(text.strip())
    if found is None:
        raise SpecError("is not a condition on a number, as in '>1' or 'in 2,4,8'", value=text)
    sign, bound, inside, outside = found.groups()
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
    """When a wall stands: every condition that is written must hold.

    `models` and `compute_capability` are patterns with `*`; `files` are forms of weight files, as in
    `Checkpoint.form`; `features` must all be there and none of `without`;
    what holds for a vendor or a kind of part is said by `vendors`, `without_vendors` (none of them) and `kinds`, which
    a part that somebody describes has too, and `lacks` are precisions that the silicon is known not to have;
    `accelerators` are for what holds for a product: names of parts, or of the part whose chip it has;
    numbers are conditions such as `">1"`; `options` are things switched on (all needed), `unless` lifts the wall.
    """

    models: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    files: tuple[Literal["safetensors", "gguf", "mlx", "exl3"], ...] = ()
    kv: tuple[str, ...] = ()
    compute_capability: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    without_vendors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    lacks: tuple[Precision, ...] = ()
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
    options: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    @field_validator(*_NUMBERS)
    @classmethod
    def _is_a_condition(cls, text: str | None) -> str | None:
        if text is not None:
            number_test(text, 0)
        return text

    @cached_property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """The conditions on numbers that are written: field and condition."""
        return tuple((field, test) for field in _NUMBERS if (test := getattr(self, field)) is not None)

    @model_validator(mode="after")
    def _says_something(self) -> When:
        if not self.model_dump(exclude_defaults=True):
            raise SpecError("must hold at least one condition", field="when")
        return self


class Effect(Frozen):
    """One measured cost of a wall: the same thing with and without it, with units."""

    what: str
    behind_wall: str
    free: str | None = None


class Instead(Frozen):
    """What the engine does instead, in terms a plan can be computed with.

    `indexer` says that sparse attention's indexer is left out with its weights and cached keys; an engine that attends
    densely but keeps it says nothing.
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
    """Something that does not run, or not as one would think, on some silicon in some versions.

    It stands from version `since` (included) until `until` (excluded). `last_seen` is the newest version in which
    somebody hit it, where nobody said which version ends it. `ledger` is its number in the list of walls on SM120 that
    the catalogue was started from. `apart` says that its price is in no formula and no table of kernels: runs behind it
    are fitted with an effect of their own, so that they say nothing of runs that are not; `in_view` names the groups of
    runs that were looked at then (`glmplan.catalog.rule_provenance`). `told` and `environment` are what the engine is
    started
    with behind it: options of its command, and variables as ``NAME=value``. `another_program` serves there in place of
    the engine: nobody's run of the engine says anything of it, and no command of the engine starts it. `kernels_of` is
    whose kernels compute there, where the engine's own command starts them: a plug-in's, say. Runs with the engine's
    own kernels say nothing of them; runs on parts behind the same wall do.

    Examples
    --------
    >>> from glmplan.catalog.engines.limitations import load_engine
    >>> wall = next(wall for wall in load_engine("vllm").walls if wall.id == "vllm-no-sparse-mla-on-sm120")
    >>> wall.severity, wall.instead.attention
    ('error', 'dense')
    """

    id: str
    ledger: int | None = Field(default=None, ge=1)
    title: str
    severity: Severity
    when: When
    engines: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    last_seen: str | None = None
    seen: str | None = None
    fixed_by: str | None = None
    effect: str
    note: str | None = None
    measured: tuple[Effect, ...] = ()
    fallback: str | None = None
    instead: Instead = Instead()
    apart: bool = False
    in_view: tuple[str, ...] = ()
    do: str
    told: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    another_program: str | None = None
    kernels_of: str | None = None
    trust: Literal["vendor", "documented", "report", "chat summary"] = "documented"
    source: str

    @field_validator("environment")
    @classmethod
    def _are_variables(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*=\S+", one):
                raise SpecError("is not a variable with a value, as in NAME=1", field="environment", value=one)
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
    """What an engine takes for a setting that nobody gives.

    The memory and TP bounds and the patterns of names say on which parts; `sparse` whether it holds for models whose
    sparse attention keeps an indexer's keys, `recurrent` for those with layers that keep a state, or for the others.
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
    """How an engine packs requests into steps, and by which of its settings.

    `tokens_per_step`, `requests`, `block_tokens` and `graph_tokens` name settings of `defaults`; where the engine
    starts another one (`defaults_of`) they are that engine's. `whole_prompts` are never split over steps,
    `prefill_first` prompts run in steps of their own, `reserve` is the share of the answer that must fit in the cache
    before a request is admitted [-], `late` the steps that have begun when the next prompt of a closed loop arrives
    [-]. `most_requests` is the most that a launch can ask for, of an engine that is always told how many requests to
    run at once [-].

    `prefix_caching`, `ahead`, `whole_prompt`, `routing` and `kept_prompts` name settings too: whether blocks are found
    again, whether a step is formed while the one before it runs, whether a whole prompt must fit before its first chunk
    is computed, which data-parallel rank takes a request, and how much of prompts that lost their slot is kept in host
    memory [MiB]. Without a name there is no such thing. `divided` says that
    the tokens of a step, and requests that a launch tells, are those of all attention ranks together, and
    `rank_conservativeness` by what the
    reserve of admission is multiplied with several ranks [-].
    """

    scheduler: Literal["vllm", "sglang", "trtllm", "llama.cpp"]
    admission: Literal["chunk", "no-evict", "max-utilization", "estimate", "slot"]
    tokens_per_step: str
    requests: str
    block_tokens: str
    graph_tokens: str | None = None
    defaults_of: str | None = None
    prefill_first: bool = False
    whole_prompts: bool = False
    reserve: float = Field(default=0.5, gt=0, le=1)
    late: int = Field(default=1, ge=0)
    most_requests: int | None = Field(default=None, ge=1)
    prefix_caching: str | None = None
    ahead: str | None = None
    whole_prompt: str | None = None
    routing: str | None = None
    kept_prompts: str | None = None
    divided: bool = False
    rank_conservativeness: float = Field(default=1.0, gt=0)
    source: str


class Engine(Frozen):
    """An engine: its walls, its defaults and how it runs. The engine `any` holds walls in front of several.

    `called`: what people call it besides its name and its full name.
    """

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
    called: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _releases_are_ordered(self) -> Engine:
        keys = [version_key(one.version) for one in self.releases]
        if keys != sorted(keys):
            raise SpecError("are not ordered, oldest first", field="releases")
        if self.published is not None:
            never = [one.version for one in self.releases if not self.published.holds(one.version)]
            if never:
                raise SpecError("is not among the published versions", field="releases.version", value=never[0])
        return self

    @property
    def newest(self) -> str | None:
        """Newest release that evidence covers; None where the engine names none."""
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
        names = [one.format for one in self.cache_formats]
        for one in self.cache_formats:
            if one.since is not None:
                version_key(one.since)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise SpecError("appears twice", field="cache_formats.format", value=twice[0])
        if (self.cache is None) != (not names):
            raise SpecError("and `cache_formats` need each other", field="cache")
        if sum(one.when_short for one in self.cache_formats) > 1:
            raise SpecError("can hold for one format only", field="cache_formats.when_short")
        return self

    def attention_names(self, version: str | None) -> tuple[str, ...]:
        """Names that the option for the attention backend takes.

        - `version`: Version of the engine; None means the newest.
        - Returns: As the engine writes them; empty where no source lists them.

        Examples
        --------
        >>> from glmplan.catalog.engines.limitations import load_engine
        >>> ["TREE_ATTN" in load_engine("vllm").attention_names(one) for one in ("0.19.0", "0.24.0", None)]
        [True, False, False]
        """
        key = None if version is None else version_key(version)
        stock = [
            one.names for one in self.attention_backends if one.since and (not key or version_key(one.since) <= key)
        ]
        builds = [name for one in self.attention_backends if not one.since for name in one.names]
        return (*stock[-1], *builds) if stock else ()

    @property
    def default_cache(self) -> str:
        """Format of the KV cache when nobody says."""
        if not self.cache_formats:
            raise UnknownFact(f"{self.name}: no source says in which format the KV cache is kept")
        return self.cache_formats[0].format

    def cache_format(self, name: str) -> CacheFormat:
        """Return one of the formats in which the KV cache can be kept.

        Examples
        --------
        >>> from glmplan.catalog.engines.limitations import load_engine
        >>> load_engine("sglang").cache_format("fp8").written
        'fp8_e4m3'
        """
        for one in self.cache_formats:
            if one.format == name:
                return one
        known = [one.format for one in self.cache_formats]
        raise SpecError(f"is not a format in which {self.full_name} keeps its KV cache", value=name, choices=known)

    def small_cache(self, part: Accelerator) -> str:
        """Format of the KV cache that a plan takes where memory is short.

        Returns: Its name; empty where the engine has none on this part.

        Examples
        --------
        >>> from glmplan.catalog.entries.accelerators import load_accelerator
        >>> from glmplan.catalog.engines.limitations import load_engine
        >>> [load_engine("vllm").small_cache(load_accelerator(part)) for part in ("h100-sxm", "a100-80gb-sxm")]
        ['fp8', '']
        """
        for one in self.cache_formats:
            if one.when_short and (one.silicon is None or part.supports(one.silicon)):
                return one.format
        return ""
