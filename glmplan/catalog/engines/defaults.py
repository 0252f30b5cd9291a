"""What an engine takes for a setting that nobody gives, by version and part, and how it packs requests into steps.

The one home of these answers: the facts stand in `hardware_db/engines`, and memory, step time, simulator, plans and
calibration ask here. Rules that are formulas, such as the share of memory SGLang chooses, stand in
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
from glmplan.units import GIB, Bytes, TokenCount

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

#: stands for a data-centre part where its memory is not given [B]
_LARGE = 80.0 * GIB


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """How an engine packs steps unless it is told otherwise.

    Attributes
    ----------
    budget : int
        Tokens that a step may hold, [token]
    prefill_first : bool
        Prompts run in steps of their own and decoding waits.
    max_requests : int
        Requests that may run at once, [-]
    reserve : float
        Share of the answer that must fit in the KV cache before a request is admitted, [-]
    whole_prompts : bool
        Prompts are never split over steps.
    late : int
        Steps that have begun when the next prompt of a closed loop arrives: the engine goes on at once, the client
        needs a round trip, [-]
    graph_tokens : int
        Tokens up to which a pass with prompts is replayed from piecewise graphs, [token]
    most_requests : int
        Requests that a launch may ask for, of an engine that is told how many to run at once; 0 of others, [-]
    scheduler, admission : str
        Schedulers and admission rules of the simulator that come nearest, see `glmplan.simulation.engine.settings`.
    prefix_caching : bool
        Whether blocks of earlier requests are found again.
    ahead : bool
        Whether a step is formed while the one before it runs.
    whole_prompt : bool
        Whether a whole prompt must fit in the cache before its first chunk is computed.
    routing : str
        Which data-parallel rank takes a request.
    kept_bytes : float
        Keys and values of prompts that lost their slot which are kept in host memory, [B]
    divided : bool
        Whether `budget`, and a number of requests that is told, are those of all attention ranks together.
    rank_conservativeness : float
        By what the reserve of admission is multiplied with several attention ranks, [-]
    """

    budget: int
    prefill_first: bool
    max_requests: int
    reserve: float = 0.5
    whole_prompts: bool = False
    late: int = 1
    graph_tokens: int = 0
    most_requests: int = 0
    scheduler: str = "vllm"
    admission: str = "chunk"
    prefix_caching: bool = False
    ahead: bool = False
    whole_prompt: bool = False
    routing: str = "round-robin"
    kept_bytes: float = 0.0
    divided: bool = False
    rank_conservativeness: float = 1.0

    @property
    def places(self) -> int:
        """Requests that run at once when the engine is launched for as many as are asked for, [-]"""
        return self.most_requests or self.max_requests

    @property
    def steps_late(self) -> int:
        """Steps that a prompt misses which answers the end of a step: one more where they are formed ahead, [-]"""
        return self.late + self.ahead

    def budget_of(self, ranks: int) -> TokenCount:
        """Tokens that a step of data-parallel ranks may hold."""
        return max(self.budget // ranks, 1) * ranks if self.divided else self.budget * ranks


#: how an engine that no file describes is taken to pack steps: nobody's default, so whoever uses it must tell. Prompts
#: in chunks beside decoding, without graphs for them; the fewest tokens and requests that any described server takes on
#: a data-centre part
UNKNOWN_ENGINE = EngineDefaults(8192, False, 1024)


def engine_known(engine: str) -> bool:
    """Whether a file of `hardware_db/engines` describes an engine.

    Returns: False for names that only tables of runs know.

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
    """How an engine packs requests into steps on a part.

    - `memory`: Memory of the part; a large one by default.
    - `recurrent`: Whether the model has layers that keep a state.

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
    """Tokens of a block of an engine's KV cache.

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
    """Return the default of a setting.

    - `version`: Version of the engine; the newest by default.
    - `sparse`: Whether the model keeps the keys of an indexer.
    - `recurrent`: Whether the model has layers that keep a state.
    - Returns: The default, [token] or [-] as the setting says.

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
    """Whether a default holds; `model` says whether its attention is sparse and whether layers keep a state."""
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
