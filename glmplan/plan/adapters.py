"""Low-rank adapters (LoRA) of a plan: in which releases and layouts, and what the engine is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.facts.catalogue.names import engine_release
from glmplan.physics.blocks.features import routed_blocks
from glmplan.plan.adapters_asked import adapters_of

if TYPE_CHECKING:
    from glmplan.plan.question import Asked

__all__ = ["adapter_words", "check_adapters", "layout_takes_adapters"]


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
    facts = adapters_of(asked.engine)
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
    facts = adapters_of(asked.engine)
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
    said, facts = asked.settings, adapters_of(asked.engine)
    if not said.adapters or facts is None:
        return ()
    return (facts.told.format(adapters=said.adapters, rank=said.adapter_rank),)
