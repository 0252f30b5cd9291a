"""Plan accelerators of several kinds together.

llama.cpp deals layers by memory. vLLM and SGLang take the number of layers of each pipeline stage from an environment
variable. Stages of one kind get equal numbers. Among these partitions the one that holds most users counts, then the
one with the fastest slowest stage: memory first, then time.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.engines.memory import load_memory_rule, pipeline_layers
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.costs.memory.pool import PoolTerms, kv_pool, requests_that_fit
from glmplan.costs.memory.ranks import RankMemory
from glmplan.costs.memory.settings import load_memory_fit
from glmplan.errors import SpecError
from glmplan.units import QUANTILE_90, TokenCount

if TYPE_CHECKING:
    from glmplan.io.machines.resolve import Machine
    from glmplan.request.plan import PlanRequest

__all__ = ["best_partition", "instead_of", "partitions", "with_all_kinds"]

#: parallel degrees and servers of a request
_DEGREES = ("tp", "pp", "dp", "ep", "dcp", "replicas")
#: kinds of accelerators whose partitions are compared: three make thousands of them [-]
_KINDS = 3


def with_all_kinds(machine: Machine, words: PlanRequest, engine: str) -> tuple[Machine, PlanRequest]:
    """Return the machine with all its kinds where layers are dealt.

    One kind alone where a layout was given, or where the engine splits matrices. A stage on each accelerator is no
    other layout than dealt layers. Engines that take the layers of each stage have one kind in a stage.
    """
    running = load_engine(engine).running
    if running is None or len(machine.kinds) < 2:
        return machine, words
    if running.stage_layers is not None:
        return _in_stages(machine, words, equal_ranks=running.stage_layers.equal_ranks)
    if not running.whole_layers:
        return machine, words
    given = {name: number for name in _DEGREES if (number := getattr(words, name)) is not None}
    if given.pop("pp", None) == sum(count for _, count in machine.kinds) and set(given.values()) <= {1}:
        words = words.model_copy(update={"pp": None})
    elif any(getattr(words, name) for name in ("tp", "pp", "dp", "ep")) or (words.replicas or 1) > 1:
        return machine, words
    beside = load_memory_rule(engine).free_target + load_memory_fit().context["single"].mean
    return machine.one_after_another(beside), words


def _in_stages(machine: Machine, words: PlanRequest, *, equal_ranks: bool) -> tuple[Machine, PlanRequest]:
    """Return the machine with stages of several kinds, and its degrees.

    The same where the stages asked for do not take all accelerators, or need `equal_ranks`.
    """
    cards, pp = sum(count for _, count in machine.kinds), words.pp or 1
    width = cards // pp
    alone = (words.dp or 1) == (words.replicas or 1) == 1 and words.disaggregated is None
    if pp == 1 or cards % pp or words.tp not in (None, width) or not alone or (equal_ranks and width > 1):
        return machine, words
    mixed = machine.in_stages(width)
    return mixed, words.model_copy(update={"tp": width, "dp": 1, "replicas": 1}) if mixed.mixed else words


def instead_of(machine: Machine, engine: str, used: int) -> str:
    """Return what to ask where a layout takes more than one kind has."""
    cards, running = sum(count for _, count in machine.kinds), load_engine(engine).running
    if not machine.left_out or used > cards:
        return "lower --tp, --pp, --dp or --replicas"
    if running is not None and running.stage_layers is not None and machine.in_stages(1).mixed:
        return f"--pp {cards} puts a stage with layers of its own on each: ask that"
    least = min((name for name, _ in machine.kinds), key=lambda name: load_accelerator(name).memory or 0.0)
    held = f"equal stages or servers hold what --on {used}x{least} holds"
    return f"{held}: ask that, or --engine llama.cpp without degrees"


def partitions(layers: int, stages: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the partitions in which stages of one kind have equal layers.

    Examples
    --------
    >>> partitions(5, ("a", "b", "b"))
    ((1, 2, 2), (2, 2, 1), (3, 1, 1))
    """
    counts = [stages.count(kind) for kind in dict.fromkeys(stages)]
    if len(counts) > _KINDS:
        raise SpecError(f"has accelerators of more than {_KINDS} kinds, whose stages are not planned", field="--on")
    found = []
    for cuts in combinations(range(1, layers), len(counts) - 1):
        ends = (0, *cuts, layers)
        shares = [after - before for before, after in zip(ends, ends[1:], strict=False)]
        if all(share >= count for share, count in zip(shares, counts, strict=True)):
            dealt = (pipeline_layers(share, count, "first-first") for share, count in zip(shares, counts, strict=True))
            found.append(tuple(layer for one in dealt for layer in one))
    return tuple(found)


def best_partition(
    machine: Machine, memory: RankMemory, pools: tuple[PoolTerms, ...],
    longest: TokenCount, length: TokenCount, users: int,
) -> int:  # fmt: skip
    """Return the index of the best partition of layers over unlike stages.

    `memory`: a layout for each partition, with its `pools`. The order: the `longest` request fits, or the fewest bytes
    are missing; most `users` with requests of this `length` are within the lower bound of the pool, then within the
    pool; the slowest stage is the fastest; the pool is the largest.

    Notes
    -----
    The time of a stage is its layers over the bandwidth of its accelerator. Not modelled: the embedding and the output
    layer in the time of a stage, layers of different size.
    """
    part = machine.memory
    full, low, held = (
        np.minimum(requests_that_fit(memory, part, float(tokens), quantile=quantile, pools=pools), most)
        for tokens, quantile, most in (
            (longest, 0.0, 1),
            (length, -QUANTILE_90, users),
            (length, 0.0, users),
        )
    )
    rates = [load_accelerator(name).need("memory_bandwidth") for name in machine.stages]
    slowest = np.max([stage.layers / rate for stage, rate in zip(memory.stages, rates, strict=True)], axis=0)
    pool = kv_pool(memory, part, context=float(length), pools=pools)
    lacking = np.where(full > 0, 0.0, -pool.bytes)
    return int(np.lexsort((-pool.tokens, slowest, -held, -low, lacking, -full))[0])
