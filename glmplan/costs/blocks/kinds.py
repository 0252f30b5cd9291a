"""Map the record of a block to the class of its kind.

A new kind is a record in `glmplan.catalog.schema.model`, a file beside this one and a line here; the type checker names
a missing line.
"""

from __future__ import annotations

from typing import assert_never

from glmplan.catalog.schema.model import (
    CompressedAttention,
    DenseFfn,
    ExpertsFfn,
    Ffn,
    GroupedQuery,
    LatentAttention,
    LayerKind,
    Recurrent,
)
from glmplan.catalog.schema.model import Mixer as MixerRecord
from glmplan.costs.blocks.auxiliary import HyperBlock, LookupBlock
from glmplan.costs.blocks.compressed import CompressedMixer
from glmplan.costs.blocks.feed_forward import DenseBlock, ExpertsBlock, FeedForward
from glmplan.costs.blocks.grouped_query import GroupedQueryMixer
from glmplan.costs.blocks.latent import LatentMixer
from glmplan.costs.blocks.mixer import Mixer
from glmplan.costs.blocks.recurrent import RecurrentMixer

__all__ = ["feed_forward_of", "feed_forwards_of", "lookup_of", "mixer_of", "routed_of", "streams_of"]


def mixer_of(kind: LayerKind) -> Mixer:
    """Return the token mixer of a layer, an empty one without a record.

    Examples
    --------
    >>> mixer_of(LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128))).words
    '32 heads on 8 of 128'
    """
    record: MixerRecord | None = kind.mixer
    match record:
        case None:
            return Mixer()
        case GroupedQuery():
            return GroupedQueryMixer(record)
        case LatentAttention():
            return LatentMixer(record)
        case CompressedAttention():
            return CompressedMixer(record)
        case Recurrent():
            return RecurrentMixer(record)
        case _:
            assert_never(record)


def feed_forward_of(record: Ffn) -> FeedForward:
    """Return the feed-forward block of a record.

    Examples
    --------
    >>> feed_forward_of(DenseFfn(inner=14336)).words
    'dense 14,336'
    """
    match record:
        case DenseFfn():
            return DenseBlock(record)
        case ExpertsFfn():
            return ExpertsBlock(record)
        case _:
            assert_never(record)


def feed_forwards_of(kind: LayerKind) -> tuple[FeedForward, ...]:
    """Return the feed-forward blocks of a layer."""
    return tuple(feed_forward_of(item) for item in kind.ffn)


def routed_of(kind: LayerKind) -> ExpertsFfn | None:
    """Return the first mixture of experts of a layer, or None."""
    return next((item.routed for item in feed_forwards_of(kind) if item.routed is not None), None)


def streams_of(kind: LayerKind) -> HyperBlock:
    """Return the residual streams of a layer, empty for a single stream.

    Examples
    --------
    >>> streams_of(LayerKind()).streams
    1
    """
    return HyperBlock(kind.streams)


def lookup_of(kind: LayerKind) -> LookupBlock:
    """Return the lookup table of a layer, an empty one without a record.

    Examples
    --------
    >>> lookup_of(LayerKind()).table_values
    0
    """
    return LookupBlock(kind.lookup)
