"""Find the longest request of launches that keep a buffer for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.costs.memory.pool import largest_context
from glmplan.costs.memory.ranks import RankMemory, keeps_index, rank_memory
from glmplan.costs.memory.settings import PartMemory
from glmplan.units import Ratio, Tokens, TokensArray

if TYPE_CHECKING:
    from glmplan.catalog.schema.model import Checkpoint, ModelSpec

__all__ = ["Launched", "launched_context"]

#: halvings of the interval of the longest request: 1/64 of it [-]
_HALVINGS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """Layouts of a model, as launched without a ``max_model_len``."""

    model: ModelSpec
    checkpoint: Checkpoint
    memory: RankMemory
    part: PartMemory
    form: tuple[str, bool]  # cache format; True: drafts

    def of_length(self, longest: TokensArray | Tokens) -> RankMemory:
        """Return the memory of the layouts with a ``max_model_len``."""
        settings, layout = replace(self.memory.settings, longest=longest), self.memory.layout
        kv, mtp = self.form
        size = self.part.listed
        return rank_memory(self.model, self.checkpoint, layout=layout, kv=kv, settings=settings, mtp=mtp, memory=size)


def launched_context(launched: Launched, result: TokensArray, quantile: Ratio) -> TokensArray:
    """Return the longest request of each layout, launched for its length.

    `result`: those of a launch with the model's limit. An indexer keeps a buffer for ``max_model_len``, so that a
    shorter one leaves more to the pool: the longest request is the largest that its own pool holds.
    """
    memory, settings = launched.memory, launched.memory.settings
    limit = float(launched.model.max_context)
    if settings.longest is not None or not keeps_index(launched.model, settings) or (result >= limit).all():
        return result

    def held(longest: TokensArray) -> TokensArray:
        return np.minimum(largest_context(launched.of_length(longest), launched.part, quantile=quantile), limit)

    block = max(settings.block(memory.sparse), *(item.page.block for one in memory.stages for item in one.pages), 1)
    low = np.minimum(result, limit)
    high = held(np.maximum(low, block))
    for _ in range(_HALVINGS):
        middle = np.maximum((low + high) / 2.0, block)
        enough = held(middle) >= middle
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.where(result >= limit, result, np.floor(low / block) * block)
