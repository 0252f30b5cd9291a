"""What an engine cannot do where ("walls"), what it does when nobody says otherwise ("defaults"), and how it runs.

All are facts with a source. A wall says when it stands (`when`), from which version until which, what happens, what it
costs as far as somebody measured it, and what to do.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Literal

from pydantic import Field, field_validator, model_validator

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.schema.accelerator import Accelerator, Precision
from glmplan.facts.schema.engine_running import AttentionBackends, CacheFormat, CacheLayout, Running
from glmplan.facts.schema.validation import Frozen
from glmplan.facts.schema.versions import Published, Release, UnnamedVersion, version_key
from glmplan.units import Bytes

__all__ = [
    "Default",
    "Effect",
    "Engine",
    "Instead",
    "Scheduling",
    "Severity",
    "Wall",
    "When",
    "number_test",
]

#: ``unknown``: nobody published whether it works
Severity = Literal["error", "fallback", "slow", "quality", "memory", "unknown"]

#: fields of `When` that hold a condition on a number
_NUMBERS = ("tp", "pp", "dp", "ep", "dcp", "count", "mtp", "context", "users", "memory_fraction")
_NUMBER_TEST = re.compile(r"(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)|in\s+(\d+(?:\s*,\s*\d+)*)|not in\s+(\d+(?:\s*,\s*\d+)*)")


@lru_cache(maxsize=4096)
def number_test(text: str, number: float) -> bool:
    """Compare a number with a condition as the data files write it.

    Parameters
    ----------
    text : str
        `">1"`, `">=2"`, `"=4"`, `"in 2,4,8"` or `"not in 2,4,8"`.
    number : float
        The number, [-]

    Returns
    -------
    bool
        Whether the condition holds.

    Raises
    ------
    SpecError
        If the condition is not of this form.

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
    runs that were looked at then (`glmplan.facts.in_view`). `told` and `environment` are what the engine is started
    with behind it: options of its command, and variables as ``NAME=value``. `another_program` serves there in place of
    the engine: nobody's run of the engine says anything of it, and no command of the engine starts it. `kernels_of` is
    whose kernels compute there, where the engine's own command starts them: a plug-in's, say. Runs with the engine's
    own kernels say nothing of them; runs on parts behind the same wall do.

    Examples
    --------
    >>> from glmplan.facts.engines.walls import load_engine
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

        Parameters
        ----------
        version : str or None
            Version of the engine; None means the newest.

        Returns
        -------
        tuple of str
            As the engine writes them; empty where no source lists them.

        Examples
        --------
        >>> from glmplan.facts.engines.walls import load_engine
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
        """Format of the KV cache when nobody says.

        Raises
        ------
        UnknownFact
            If no source says.
        """
        if not self.cache_formats:
            raise UnknownFact(f"{self.name}: no source says in which format the KV cache is kept")
        return self.cache_formats[0].format

    def cache_format(self, name: str) -> CacheFormat:
        """Return one of the formats in which the KV cache can be kept.

        Parameters
        ----------
        name : str
            Name of the format.

        Returns
        -------
        CacheFormat
            The format.

        Raises
        ------
        SpecError
            If the engine has no such format.

        Examples
        --------
        >>> from glmplan.facts.engines.walls import load_engine
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

        Parameters
        ----------
        part : Accelerator
            The part.

        Returns
        -------
        str
            Its name; empty where the engine has none on this part.

        Examples
        --------
        >>> from glmplan.facts.catalogue.accelerators import load_accelerator
        >>> from glmplan.facts.engines.walls import load_engine
        >>> [load_engine("vllm").small_cache(load_accelerator(part)) for part in ("h100-sxm", "a100-80gb-sxm")]
        ['fp8', '']
        """
        for one in self.cache_formats:
            if one.when_short and (one.silicon is None or part.supports(one.silicon)):
                return one.format
        return ""
