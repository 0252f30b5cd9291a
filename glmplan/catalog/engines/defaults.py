"""Return engine defaults, and how an engine packs requests into steps.

Defaults depend on version and accelerator. Memory, step time, simulator, plans and calibration all use these; the facts
are in `hardware_db/engines`. Rules with a formula, such as SGLang's memory fraction, are in
`glmplan.catalog.engines.memory`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.files import plain_name
from glmplan.catalog.schema.engine import EngineDefaults, number_test, version_key
from glmplan.errors import UnknownFact
from glmplan.units import GIB, Bytes, TokenCount

if TYPE_CHECKING:
    from glmplan.catalog.schema.engine import Default

__all__ = [
    "UNKNOWN_ENGINE",
    "block_tokens",
    "drafting_limit",
    "engine_default",
    "engine_defaults",
    "engine_known",
    "free_slots",
]

#: memory of a data-centre accelerator where none is given [B]
_LARGE = 80.0 * GIB


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


#: slots below which no prompt waits for further free ones [-]
_FEW_SLOTS = 8
#: setting that limits requests while an engine drafts
_DRAFTING = "max_running_requests_drafting"


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

    def default_of(setting: str) -> int | float | str | bool:
        source = rule.defaults_of or engine
        return engine_default(
            source, setting, version=version, memory=room, accelerator=accelerator, recurrent=recurrent
        )

    return rule.packing(default_of)


@lru_cache(maxsize=64)
def drafting_limit(engine: str) -> int | None:
    """Return the most requests that an engine runs while it drafts.

    The limit holds for all ranks together. None if drafting changes no limit.

    Examples
    --------
    >>> drafting_limit("sglang"), drafting_limit("vllm")
    (48, None)
    """
    found = (entry.value for entry in load_engine(engine).defaults if entry.setting == _DRAFTING)
    return next((int(value) for value in found if isinstance(value, int)), None)


def free_slots(engine: str, method: str, slots: int, *, version: str | None = None) -> int:
    """Return the slots that are free before prompts begin beside requests.

    `method`: Kind of the draft head; empty without. A server of few slots waits for fewer, one of less than eight for
    none. Source: the default `min_free_slots_dflash` of `hardware_db/engines/sglang.toml`.

    Examples
    --------
    >>> [free_slots("sglang", "dflash", slots) for slots in (7, 8, 48)], free_slots("sglang", "eagle3", 48)
    ([0, 2, 4], 0)
    """
    found = (
        int(entry.value)
        for entry in load_engine(engine).defaults
        if entry.setting == f"min_free_slots_{method}" and _holds(entry, version, None, None, 1)
    )
    return min(next(found, 0), max(2, (slots + 5) // 6)) if slots >= _FEW_SLOTS else 0


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
