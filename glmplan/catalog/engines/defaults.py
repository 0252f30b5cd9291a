"""Return engine defaults, and how an engine packs requests into steps.

Defaults depend on version and accelerator. Memory, step time, simulator, plans and calibration all use these; the facts
are in `hardware_db/engines`. Rules with a formula, such as SGLang's memory fraction, are in
`glmplan.catalog.engines.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.files import plain_name
from glmplan.errors import UnknownFact
from glmplan.units import GIB, Bytes, Ratio, TokenCount

if TYPE_CHECKING:
    from glmplan.catalog.schema.engine import Default

__all__ = [
    "UNKNOWN_ENGINE",
    "EngineDefaults",
    "block_tokens",
    "engine_default",
    "engine_defaults",
    "engine_known",
]

#: memory of a data-centre accelerator where none is given [B]
_LARGE = 80.0 * GIB


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Default packing of steps of an engine."""

    budget: TokenCount  # of a step
    prefill_first: bool  # prompts run in steps of their own and decode waits
    max_requests: int  # running at once
    reserve: Ratio = 0.5  # of the output that must fit in the KV cache before a request is admitted
    whole_prompts: bool = False  # prompts are never split over steps
    late: int = 1  # steps begun when the next prompt of a closed loop arrives, after the client's round trip
    graph_tokens: TokenCount = 0  # most tokens of a pass with prompts that is replayed from piecewise graphs
    most_requests: int = 0  # most requests at once that a launch may ask for; 0: no such setting
    scheduler: str = "vllm"  # nearest of the simulator, see `glmplan.simulation.engine.settings`
    admission: str = "chunk"  # the same for the admission rule
    prefix_caching: bool = False  # blocks of earlier requests are reused
    ahead: bool = False  # a step is formed while the one before it runs
    whole_prompt: bool = False  # a full prompt must fit in the cache before its first chunk is computed
    routing: str = "round-robin"  # choice of the data-parallel rank of a request
    kept_bytes: Bytes = 0.0  # host memory for the cache of prompts that lost their slot
    divided: bool = False  # `budget` and a given request limit are those of all attention ranks together
    rank_conservativeness: float = 1.0  # factor on the admission reserve with several attention ranks

    @property
    def places(self) -> int:
        """Return `max_num_seqs` of an engine launched for the requested load."""
        return self.most_requests or self.max_requests

    @property
    def steps_late(self) -> int:
        """Return the steps that a prompt misses which follows the end of a step.

        Asynchronous scheduling adds one.
        """
        return self.late + self.ahead

    def budget_of(self, ranks: int) -> TokenCount:
        """Return the tokens of a step of data-parallel ranks."""
        return max(self.budget // ranks, 1) * ranks if self.divided else self.budget * ranks


#: assumed packing of an engine without a file, of which the caller must inform the user: prompts in chunks beside
#: decode, without graphs for them; the fewest tokens and requests of any described server on a data-centre accelerator
UNKNOWN_ENGINE = EngineDefaults(8192, False, 1024)


def engine_known(engine: str) -> bool:
    """Return True if a file of `hardware_db/engines` describes the engine.

    Tables of runs name other engines, too.

    Examples
    --------
    >>> engine_known("sglang"), engine_known("llmboost")
    (True, False)
    """
    return engine in engine_names()


@lru_cache(maxsize=1024)
def engine_defaults(
    engine: str,
    *,
    version: str | None = None,
    accelerator: str = "",
    memory: Bytes | None = None,
    recurrent: bool = False,
) -> EngineDefaults:
    """Return how an engine packs requests into steps on an accelerator.

    `memory` defaults to a large one. `recurrent`: the model has layers that keep a state.

    Examples
    --------
    >>> engine_defaults("sglang", accelerator="h200-sxm", memory=141e9).budget
    8192
    >>> engine_defaults("sglang", accelerator="b200-sxm", memory=192e9).budget
    16384
    >>> engine_defaults("vllm", accelerator="rtx-4090", memory=24 * 2**30).max_requests
    256
    """
    rule = load_engine(engine).scheduling
    if rule is None:
        raise UnknownFact(f"{engine}: no source says how it packs requests into steps")
    room = _LARGE if memory is None else memory

    def found(setting: str) -> int | float | str | bool:
        source = rule.defaults_of or engine
        return engine_default(
            source, setting, version=version, memory=room, accelerator=accelerator, recurrent=recurrent
        )

    def number(setting: str | None) -> int:
        return 0 if setting is None else int(found(setting))

    def switch(setting: str | None) -> bool:
        return setting is not None and bool(found(setting))

    return EngineDefaults(
        budget=number(rule.tokens_per_step),
        prefill_first=rule.prefill_first,
        max_requests=number(rule.requests),
        reserve=rule.reserve,
        whole_prompts=rule.whole_prompts,
        late=rule.late,
        graph_tokens=number(rule.graph_tokens),
        most_requests=rule.most_requests or 0,
        scheduler=rule.scheduler,
        admission=rule.admission,
        prefix_caching=switch(rule.prefix_caching),
        ahead=switch(rule.ahead),
        whole_prompt=switch(rule.whole_prompt),
        routing=str(found(rule.routing)) if rule.routing else "round-robin",
        kept_bytes=number(rule.kept_prompts) * 2.0**20,
        divided=rule.divided,
        rank_conservativeness=rule.rank_conservativeness,
    )


@lru_cache(maxsize=256)
def block_tokens(engine: str, *, sparse: bool = False) -> TokenCount:
    """Return the tokens of a block of an engine's KV cache.

    Examples
    --------
    >>> block_tokens("vllm"), block_tokens("vllm", sparse=True), block_tokens("trtllm")
    (16, 64, 32)
    """
    rule = load_engine(engine).scheduling
    if rule is None:
        raise UnknownFact(f"{engine}: no source says how many tokens a block of its cache holds")
    return int(engine_default(rule.defaults_of or engine, rule.block_tokens, sparse=sparse))


def engine_default(
    engine: str,
    setting: str,
    *,
    version: str | None = None,
    memory: Bytes | None = None,
    accelerator: str | None = None,
    tp: int = 1,
    sparse: bool = False,
    recurrent: bool = False,
) -> int | float | str | bool:
    """Return the default of a setting, in its unit.

    `version` defaults to the newest. `sparse`: the model keeps the keys of an indexer. `recurrent`: it has layers that
    keep a state.

    Examples
    --------
    >>> engine_default("vllm", "gpu_memory_utilization", version="0.19.0")
    0.9
    >>> engine_default("vllm", "max_num_seqs", memory=96 * 2**30, accelerator="rtx-pro-6000-ws")
    1024
    >>> engine_default("sglang", "cuda_graph_max_bs", memory=96 * 2**30, tp=8)
    512
    """
    for entry in load_engine(engine).defaults:
        if entry.setting == setting and _holds(entry, version, memory, accelerator, tp, (sparse, recurrent)):
            return entry.value
    raise UnknownFact(f"{engine}: no source says what {setting} is when it is not given")


def _holds(
    entry: Default,
    version: str | None,
    memory: float | None,
    accelerator: str | None,
    tp: int,
    model: tuple[bool, bool] = (False, False),
) -> bool:
    """Return True if a default holds.

    `model` states sparse attention and recurrent layers.
    """
    from glmplan.catalog.schema.engine import number_test, version_key

    if version is None:
        if entry.until:
            return False
    elif (entry.since and version_key(version) < version_key(entry.since)) or (
        entry.until and version_key(version) >= version_key(entry.until)
    ):
        return False
    if entry.memory_from is not None and (memory is None or memory < entry.memory_from):
        return False
    if entry.memory_below is not None and (memory is None or memory >= entry.memory_below):
        return False
    if entry.tp is not None and not number_test(entry.tp, tp):
        return False
    sparse, recurrent = model
    if entry.sparse is not None and entry.sparse != sparse:
        return False
    if entry.recurrent is not None and entry.recurrent != recurrent:
        return False
    name = plain_name(accelerator or "")
    if entry.accelerators and not any(fnmatchcase(name, pattern) for pattern in entry.accelerators):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in entry.without_accelerators)
