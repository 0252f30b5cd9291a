"""Machines with accelerators of several kinds.

Engines that split matrices need equal accelerators; an engine that deals whole layers takes different ones. Shares of
the layers run one accelerator after the other, so their times add: all together are one accelerator whose rates are the
harmonic means, weighted by the shares. llama.cpp deals in proportion to memory; stages of vLLM and SGLang have the
layers that `glmplan.planner.stages` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.costs.memory.settings import part_memory
from glmplan.units import Bytes

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.host import Host

__all__ = ["by_kind", "in_sequence", "kinds_of", "of_stages", "only_kind", "together"]


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


def by_kind(host: Host, kinds: Sequence[str]) -> Host:
    """Return a host with its accelerators in the order of some kinds."""
    cards = sorted(host.slots, key=lambda card: kinds.index(card.accelerator))
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
    memory = {
        "memory": sum(part.need("memory") for part in parts),
        "memory_usable": sum(sizes) - (len(parts) - 1) * beside,
        "tdp": None if any(part.tdp is None for part in parts) else sum(part.tdp or 0.0 for part in parts),
    }
    return together(largest, parts, shares).model_copy(update=memory), shares


def together(first: Accelerator, parts: Sequence[Accelerator], shares: Sequence[float]) -> Accelerator:
    """Return an accelerator with the mean rates of parts in sequence.

    All else is that of `first`. `shares` of the work add to 1.
    """
    bandwidth = 1.0 / sum(share / part.need("memory_bandwidth") for share, part in zip(shares, parts, strict=True))
    common = set.intersection(*(set(part.peak) for part in parts))
    peak = {
        name: 1.0 / sum(share / part.peak[name] for share, part in zip(shares, parts, strict=True)) for name in common
    }
    name = " + ".join(part.full_name for part in parts)
    return first.model_copy(update={"full_name": name, "memory_bandwidth": bandwidth, "peak": peak})


@lru_cache(maxsize=256)
def of_stages(stages: tuple[tuple[str, int], ...]) -> Accelerator:
    """Return the accelerators of unlike pipeline stages as one.

    `stages`: accelerator and layers of each stage. Memory and kernels are those of the first, the power is the mean.
    """
    parts = [load_accelerator(name) for name, _ in stages]
    layers = sum(count for _, count in stages)
    ratings = [part.tdp for part in parts]
    mean = None if None in ratings else sum(rating or 0.0 for rating in ratings) / len(parts)
    mixed = together(parts[0], parts, [count / layers for _, count in stages])
    return mixed.model_copy(update={"tdp": mean})
