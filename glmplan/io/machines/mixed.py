"""Machines with accelerators of several kinds.

Engines that split matrices need equal accelerators; an engine that deals whole layers takes different ones. Layers are
dealt in proportion to memory and run one accelerator after the other, so the times of the shares add: all together are
one accelerator whose rates are the harmonic means, weighted by the shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.costs.memory.settings import part_memory
from glmplan.units import Bytes

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.host import Host

__all__ = ["in_sequence", "kinds_of", "only_kind"]


def kinds_of(host: Host) -> dict[str, int]:
    """Return the accelerators of a node by kind, the largest memory first.

    The order in the file does not matter.
    """
    names = host.accelerator_names

    def rank(name: str) -> tuple[float, float, str]:
        part = load_accelerator(name)
        return -names.count(name) * (part.memory or 0.0), -(part.memory_bandwidth or 0.0), name

    return {name: names.count(name) for name in sorted(set(names), key=rank)}


def only_kind(host: Host, name: str, most: int | None = None) -> Host:
    """Return a host with the accelerators of one kind, at most so many."""
    cards = [card for card in host.slots if card.accelerator == name][:most]
    return host.model_copy(update={"cards": tuple(cards)})


def in_sequence(parts: Sequence[Accelerator], beside: Bytes) -> tuple[Accelerator, tuple[float, ...]]:
    """Return accelerators that run one after the other as one, and the shares.

    `beside`: memory that each but one needs for itself, as the engine's context and margin.

    Notes
    -----
    Not modelled: layers are whole, so that each accelerator may hold one layer less than its share; the hand-over of
    activations; prompts of which several pieces are computed at once.

    Examples
    --------
    >>> pair = [load_accelerator(name) for name in ("rtx-5090", "rtx-5080")]
    >>> one, shares = in_sequence(pair, 1.5 * 2**30)
    >>> [round(share, 2) for share in shares], round(one.memory_bandwidth / 1e9)
    ([0.68, 0.32], 1404)
    """
    largest = max(parts, key=lambda part: part_memory(part).total)
    sizes = [part_memory(part).total for part in parts]
    holds = [max(size - beside, 0.0) for size in sizes]
    shares = tuple(size / sum(holds) for size in holds)
    rates = zip(shares, (part.need("memory_bandwidth") for part in parts), strict=True)
    bandwidth = 1.0 / sum(share / rate for share, rate in rates)
    common = set.intersection(*(set(part.peak) for part in parts))
    peak = {
        name: 1.0 / sum(share / part.peak[name] for share, part in zip(shares, parts, strict=True)) for name in common
    }
    usable = sum(sizes) - (len(parts) - 1) * beside
    together = largest.model_copy(
        update={
            "full_name": " + ".join(part.full_name for part in parts),
            "memory": sum(part.need("memory") for part in parts),
            "memory_usable": usable,
            "memory_bandwidth": bandwidth,
            "peak": peak,
            "tdp": None if any(part.tdp is None for part in parts) else sum(part.tdp or 0.0 for part in parts),
        }
    )
    return together, shares
