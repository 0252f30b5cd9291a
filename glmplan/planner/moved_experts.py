"""Experts of some layers in host memory, where a model is too large.

llama.cpp (``--n-cpu-moe``, ``--override-tensor``) and ExLlamaV3 compute the routed experts of chosen layers on the CPU.
Everything else stays on the accelerators: attention, shared experts and the cache are read for every token, a routed
expert for few. A model without experts moves the feed-forward matrices of layers instead, with llama.cpp. A plan moves
as few layers as the requests need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.engines.limitations import engines_on, load_engine
from glmplan.catalog.engines.memory import pipeline_layers
from glmplan.costs.blocks.stack import EXPERTS, layer_tensors, moved_class
from glmplan.costs.offload.work import OffloadWork, Placement, offload_work
from glmplan.costs.points import StepPoints
from glmplan.units import GIB, Bytes, BytesPerSecond, TokensPerSecond

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.engine import MovedExperts
    from glmplan.catalog.schema.model import Checkpoint, ModelSpec
    from glmplan.planner.capacity import Holding
    from glmplan.planner.question import Asked

__all__ = [
    "DISK_RATE",
    "all_moved",
    "disk_bound",
    "may_move",
    "movable_layers",
    "movable_words",
    "moved_options",
    "moved_words",
    "moves",
]

#: payload of PCIe 5.0 x4, the fastest link of an NVMe drive: 32 GT/s in each of four lanes, 128b/130b [B/s]
DISK_RATE: BytesPerSecond = 4 * 32e9 / 8 * 128 / 130


def movable_layers(model: ModelSpec) -> tuple[int, ...]:
    """Return the numbers of the layers with routed experts.

    Without experts those of the layers with a feed-forward block.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> movable_layers(load_model("glm-5.1"))[:3], len(movable_layers(load_model("llama-3.1-70b")))
    ((3, 4, 5), 80)
    """
    moved = moved_class(model)
    with_them = {
        name
        for name, kind in model.layers.items()
        if any(tensor.tensor_class == moved for tensor in layer_tensors(kind, model.hidden))
    }
    return tuple(n for n, name in enumerate(model.layer_names) if name in with_them)


def _matrices(model: ModelSpec) -> str:
    return "experts" if moved_class(model) == EXPERTS else "feed-forward matrices"


def moves(asked: Asked) -> MovedExperts | None:
    """Return the options that move experts of layers, or None."""
    running = load_engine(asked.engine).running
    found = None if running is None else running.moved_experts
    dense = moved_class(asked.model) != EXPERTS
    return None if found is None or (dense and found.dense is None) else found


def may_move(asked: Asked) -> bool:
    """Return True if the engine can leave weights to the CPU of this host."""
    host, options = asked.machine.host, moves(asked)
    if options is None or not movable_layers(asked.model) or asked.settings.on_host:
        return False
    if options.override is None and (asked.tp or 1) > 1:  # leading layers move only where layers are dealt
        return False
    return not host.unified_memory and host.host_memory_bandwidth is not None


def all_moved(model: ModelSpec, checkpoint: Checkpoint) -> OffloadWork:
    """Return the work of a decode step of one token with all experts moved."""
    one, none = np.ones(1), np.zeros(1)
    return offload_work(model, checkpoint, Placement(1.0, "expert-layers"), StepPoints(one, none, none, none))


def _count(asked: Asked) -> tuple[int, int]:
    layers = len(movable_layers(asked.model))
    return round(asked.settings.host_experts * layers), layers


def moved_words(asked: Asked, held: Holding) -> str:
    """Return the experts or layers in host memory as text; empty without."""
    (moved, layers), leading = _count(asked), asked.settings.host_layers
    if not (moved or leading) or moves(asked) is None:
        return ""
    what = (
        f"{_matrices(asked.model)} of {moved} of {layers}" if moved else f"{leading} of {len(asked.model.layer_names)}"
    )
    words = f"{what} layers in host memory"
    return f"{words} ({held.host_weights / GIB:,.0f} GiB), computed by the CPU"


def _mover(part: Accelerator) -> str:
    """Return the engine of a part that computes experts on the CPU."""
    for name in engines_on(vendor=part.vendor, kind=part.kind):
        running = load_engine(name).running
        if running is not None and running.moved_experts is not None and running.reads == "gguf":
            return name
    return ""


def movable_words(asked: Asked) -> tuple[str, str]:
    """Return how much could move to host memory, and the missing options.

    Empty where the plan says more, or where nothing can move. Experts only if a typed engine does not exclude it.
    """
    host, work = asked.machine.host, all_moved(asked.model, asked.checkpoint)
    if host.unified_memory or not movable_layers(asked.model) or asked.settings.on_host:
        return "", ""
    options = {"--host-memory 512GB": host.host_memory, "--host-memory-bandwidth 460GB/s": host.host_memory_bandwidth}
    told = () if host.host_memory_bandwidth else tuple(option for option, value in options.items() if not value)
    missing = [" ".join(told)] if told else []
    engine = asked.engine
    if moves(asked) is None:
        typed = asked.request.weights or asked.request.model != asked.model.name
        engine = (
            "" if asked.request.engine or moved_class(asked.model) != EXPERTS else _mover(asked.machine.accelerator)
        )
        if not engine:
            return "", ""
        if typed or all(one.form != "gguf" for one in asked.model.checkpoints):
            missing.insert(0, "--weights q4_k_m")
    if not missing:
        return "", ""
    size = f"{float(work.held_bytes[0]) / GIB:,.0f} GiB of " if moves(asked) else ""
    return f"{engine} can compute the {size}{_matrices(asked.model)} from host memory", " ".join(missing)


def moved_options(asked: Asked, held: Holding) -> tuple[str, ...]:
    """Return the launch options of what the accelerators hold.

    Experts of the leading layers with one accelerator; with several of the leading ones of each, so that all hold the
    same share.
    """
    options, (moved, layers) = moves(asked), _count(asked)
    if options is None:
        return ()
    given = asked.request.gpu_layers
    words = [] if options.accelerated is None else [options.accelerated.format(layers=999 if given is None else given)]
    words += [options.cache] if options.cache and asked.settings.host_cache else []
    return (*words, *_moved_options(asked, held, options, moved, layers)) if moved else tuple(words)


def _moved_options(asked: Asked, held: Holding, options: MovedExperts, moved: int, layers: int) -> tuple[str, ...]:
    numbers = movable_layers(asked.model)
    dense = options.dense if moved_class(asked.model) != EXPERTS else None
    one = held.terms.accelerators == 1 and not asked.machine.shares
    if dense and (moved == layers or one):
        some = r"\d+" if moved == layers else "|".join(map(str, numbers[:moved]))
        return (dense.format(layers=some),)
    if moved == layers or one or options.override is None:
        return (options.option.format(layers=numbers[moved - 1] + 1, experts=moved),)
    chosen: list[int] = []
    edges = _first_layers(asked, held)
    left = moved
    for first, end in zip(edges, edges[1:], strict=False):
        own = [n for n in numbers if first <= n < end]
        after = sum(1 for n in numbers if n >= end)
        part = min(len(own), round(left * len(own) / max(len(own) + after, 1)))
        chosen += own[:part]
        left -= part
    override = dense or options.override
    return (override.format(layers="|".join(map(str, chosen))),)


def _first_layers(asked: Asked, held: Holding) -> list[int]:
    """Return the first layer of each accelerator, and the number of layers.

    Unlike accelerators have shares of the layers and of the output layer: layer i goes to the first accelerator whose
    shares, summed up to it, exceed i / (layers + 1) [1]_.

    References
    ----------
    .. [1] https://github.com/ggml-org/llama.cpp, `src/llama-model.cpp` (`load_tensors`: `get_layer_buft_list`)
    """
    layers = len(asked.model.layer_names)
    if not asked.machine.shares:
        dealt = pipeline_layers(layers, held.terms.pp, held.memory.settings.rule.pipeline)
        return [0, *map(int, np.cumsum(dealt))]
    ends = np.ceil(np.cumsum(asked.machine.shares) * (layers + 1)).astype(int)
    return [0, *map(int, ends[:-1]), layers]


def disk_bound(asked: Asked, held: Holding) -> tuple[TokensPerSecond, str] | None:
    """Return the highest decode rate where weights are read from a drive.

    A mapped file that is larger than host memory is read again for each token: at most the rate of the drive over the
    bytes of a token that do not fit. With the bytes and the rate as text; None where all fit, and for engines that pin
    the weights. The rate is that of the host's fastest drive, `DISK_RATE` where it states none.
    """
    placement = asked.settings.placement(len(asked.model.layer_names))
    if not held.host_short or placement is None or placement.cache:  # a cache is no mapped file
        return None
    if not (options := moves(asked)) or not options.mapped:
        return None
    one, none = np.ones(1), np.zeros(1)
    work = offload_work(asked.model, asked.checkpoint, placement, StepPoints(one, none, none, none))
    touched: Bytes = float(work.host_bytes[0]) * held.host_short / held.host
    drives = [drive.bandwidth for drive in asked.machine.host.devices if drive.kind == "nvme" and drive.bandwidth]
    rate = max(drives, default=DISK_RATE)
    name = "the drive" if drives else "PCIe 5.0 x4, the fastest link of a drive"
    return rate / touched, f"{touched / 1e9:.3g} GB of each token at the {rate / 1e9:.3g} GB/s of {name}"
