"""Low-rank adapters (LoRA) of a question: which engines keep them, of which rank, and in which layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.facts.catalogue.names import engine_release
from glmplan.facts.engines.walls import load_engine
from glmplan.facts.schema.engine_running import Adapters
from glmplan.physics.blocks.features import routed_blocks
from glmplan.prediction.settings import Settings
from glmplan.units import whole_number

if TYPE_CHECKING:
    from glmplan.plan.question import Asked

__all__ = ["adapter_words", "check_adapters", "layout_takes_adapters", "with_adapters"]

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
    facts = _facts(engine)
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


def _facts(engine: str) -> Adapters | None:
    running = load_engine(engine).running
    return None if running is None else running.adapters


def check_adapters(asked: Asked) -> None:
    """Refuse adapters where a release has none of the model's matrices, and beside drafting.

    Parameters
    ----------
    asked : Asked
        The question.

    Raises
    ------
    SpecError
        If the release has no adapters of routed experts, or tokens are drafted.
    """
    many = asked.settings.adapters
    if not many:
        return
    facts = _facts(asked.engine)
    if facts is None:
        message = f"is not answered of {asked.engine}: how it keeps adapters was not read"
        raise SpecError(message, field="--lora", value=many)
    if asked.mtp:
        raise SpecError(
            "is not answered with --mtp: no source shows adapters beside drafting", field="--lora", value=many
        )
    if routed_blocks(asked.model):
        release, first = engine_release(asked.runs_as), engine_release(facts.experts_since)
        if first is None or (release is not None and release < first):
            message = f"of a mixture of experts is shown of {asked.engine} from {facts.experts_since} on"
            raise SpecError(message, field="--lora", value=many)


def layout_takes_adapters(asked: Asked, dp: int, ep: int) -> bool:
    """Whether a layout goes with the adapters of a question.

    Parameters
    ----------
    asked : Asked
        The question.
    dp, ep : int
        Degrees of the layout, [-]

    Returns
    -------
    bool
        False where experts are dealt over ranks and the engine has no adapters of such.
    """
    if not asked.settings.adapters or not routed_blocks(asked.model):
        return True
    facts = _facts(asked.engine)
    return facts is None or facts.deals_experts or dp == ep == 1


def adapter_words(asked: Asked) -> Sequence[str]:
    """What an engine is told of adapters when it starts.

    Parameters
    ----------
    asked : Asked
        The question.

    Returns
    -------
    sequence of str
        Its options; empty without adapters.
    """
    said, facts = asked.settings, _facts(asked.engine)
    if not said.adapters or facts is None:
        return ()
    return (facts.told.format(adapters=said.adapters, rank=said.adapter_rank),)
