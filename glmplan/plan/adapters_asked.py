"""Low-rank adapters (LoRA) as they are typed: which engines keep them, and of which rank."""

from __future__ import annotations

from dataclasses import replace

from glmplan.errors import SpecError
from glmplan.facts.engines.walls import load_engine
from glmplan.facts.schema.engine_running import Adapters
from glmplan.prediction.settings import Settings
from glmplan.units import whole_number

__all__ = ["adapters_of", "with_adapters"]

#: rank of adapters when none is named, which the answer says: the default of vLLM's --max-lora-rank [-]
_RANK = 16
#: adapters and ranks that are answered at most [-]
_MOST, _HIGHEST = 4096, 4096


def with_adapters(settings: Settings, lora: object, rank: object, engine: str, assumed: list[str]) -> Settings:
    """Settings with the low-rank adapters of a question.

    Parameters
    ----------
    settings : Settings
        What else the engine is told.
    lora, rank : object
        How many adapters lie on the accelerators at once, and the rank of the largest, as typed, [-]
    engine : str
        The engine.
    assumed : list of str
        What is taken, which grows.

    Returns
    -------
    Settings
        The same without adapters; else with the rank that the engine has buffers for.

    Raises
    ------
    SpecError
        If no source shows how the engine keeps adapters, or it has no buffers of such a rank.
    """
    if lora is None and rank is None:
        return settings
    if lora is None:
        raise SpecError("needs --lora with the number of adapters", field="--lora-rank", value=rank)
    many = _bounded(whole_number(lora, "--lora"), "--lora", _MOST)
    facts = adapters_of(engine)
    if facts is None:
        raise SpecError(f"is not answered of {engine}: how it keeps adapters was not read", field="--lora", value=many)
    asked = _RANK if rank is None else _bounded(whole_number(rank, "--lora-rank"), "--lora-rank", _HIGHEST)
    if rank is None:
        assumed.append(f"adapters of rank {_RANK}")
    held = next((one for one in facts.ranks if one >= asked), None) if facts.ranks else asked
    if held is None:
        message = f"is more than {engine} has buffers for: at most {facts.ranks[-1]}"
        raise SpecError(message, field="--lora-rank", value=asked)
    if held != asked:
        assumed.append(f"buffers of rank {held}: {engine} has none of {asked}")
    assumed.append("adapters of every matrix but embedding and head; no run with adapters was measured")
    return replace(settings, adapters=many, adapter_rank=held)


def _bounded(number: int, field: str, most: int) -> int:
    if number > most:
        raise SpecError(f"is more than {most:,}", field=field, value=number)
    return number


def adapters_of(engine: str) -> Adapters | None:
    """How an engine keeps low-rank adapters.

    Parameters
    ----------
    engine : str
        The engine.

    Returns
    -------
    Adapters or None
        None where no source was read.
    """
    running = load_engine(engine).running
    return None if running is None else running.adapters
