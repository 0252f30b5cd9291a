"""Compute steps with a part of the weights in host memory.

The CPU computes offloaded weights, or they are streamed to the accelerators in every step. Step time is the
accelerators' time plus the host's time. Structure is looped over; points are arrays.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from glmplan.catalog.files import fits_folder, read_toml
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.auxiliary import TABLE
from glmplan.costs.blocks.feed_forward import distinct_experts
from glmplan.costs.blocks.kinds import lookup_of, mixer_of, routed_of
from glmplan.costs.blocks.stack import EXPERTS, moved_class, segments, tensor_format, vocabulary_tensors
from glmplan.costs.points import StepPoints
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import (
    BytesArray,
    BytesPerSecond,
    FlopArray,
    FlopPerSecond,
    Ratio,
    Seconds,
    SecondsArray,
    Tokens,
    parse_quantity,
)

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.host import Host

__all__ = [
    "COSTS",
    "HostSide",
    "Mode",
    "OffloadFit",
    "OffloadWork",
    "Placement",
    "Unit",
    "accelerator_seconds",
    "host_seconds",
    "host_side",
    "load_offload_fit",
    "moved_bytes",
    "offload_step_seconds",
    "offload_work",
]


#: unit of offloading: a share of the experts of each layer, whole expert blocks of a share of the layers (the
#: feed-forward blocks of a model without experts), or the leading layers with their attention and cache
Unit = Literal["experts", "expert-layers", "layers"]
#: ``cpu`` computes there; ``stream`` copies all offloaded weights in each step; ``touched`` copies only weights that
#: the step reads (reads of host memory over PCIe, as with unified addressing)
Mode = Literal["cpu", "stream", "touched"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Share of the unit in host memory, 0 to 1, and its use."""

    share: Ratio
    unit: Unit = "experts"
    mode: Mode = "cpu"
    cache: bool = False  # True: with the cache of every layer, on which the CPU attends

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise SpecError("must lie between 0 and 1", field="share", value=self.share)


@dataclass(frozen=True, slots=True, eq=False)
class OffloadWork:
    """Work of a step, split between host and accelerators; arrays are (n,)."""

    host_bytes: BytesArray  # offloaded weights that the step reads
    host_flop: FlopArray  # on them, decoding requests
    host_prompt_flop: FlopArray  # on them, prompts
    held_bytes: np.ndarray  # all offloaded weights [B], 0 where there is no step
    host_layers: float  # layers that involve the host
    own_bytes: BytesArray  # weights that the accelerators read, all of them together
    cache_bytes: BytesArray  # cache that they read
    own_flop: FlopArray
    layers: np.ndarray  # launched layers, 0 where there is no step
    compute: str = "bf16"  # precision of the format of the largest matrices
    #: cache in host memory and attention to it, parts of `host_bytes`, `host_flop` and `host_prompt_flop`: it is
    #: computed by the CPU even where weights are streamed
    attended_bytes: BytesArray | float = 0.0
    attended_flop: FlopArray | float = 0.0
    attended_prompt_flop: FlopArray | float = 0.0


def offload_work(
    model: ModelSpec,
    checkpoint: Checkpoint,
    placement: Placement,
    points: StepPoints,
    *,
    tokens_per_request: Tokens = 1.0,
    kv: str = "bf16",
) -> OffloadWork:
    """Split the work of a step between host and accelerators.

    `points` without requests and prompt tokens do nothing. `tokens_per_request`: tokens that a decoding request
    computes in a step, speculative ones plus one.

    Notes
    -----
    A step of ``t`` tokens visits the experts that `glmplan.costs.blocks.feed_forward.distinct_experts` expects. The
    prompt tokens of a step count as one prompt. Not modelled: popular experts on the accelerator, sparse latent
    attention (all keys are read), prompts that requests share, the passes of a draft model.

    Examples
    --------
    >>> from glmplan.costs.blocks.stack import uniform_checkpoint
    >>> from glmplan.catalog.entries.models import load_model
    >>> one = np.ones(1)
    >>> work = offload_work(load_model("deepseek-v3"), uniform_checkpoint("int8"), Placement(1.0),
    ...                     StepPoints(one, 0 * one, 0 * one, 0 * one))
    >>> work.host_layers, round(float(work.host_flop[0]) / 1e9, 1)
    (58.0, 40.9)
    """
    columns = (points.decode_requests, points.decode_context, points.prefill_tokens, points.prefill_context)
    requests, context, prompt, keys = np.broadcast_arrays(*(np.asarray(column, dtype=float) for column in columns))
    decode = requests * tokens_per_request
    tokens = decode + prompt
    some, prompts = np.minimum(tokens, 1.0), np.minimum(prompt, 1.0)
    zero = np.zeros(tokens.shape)
    host_bytes, host_flop, host_prompt, own_bytes, own_flop = zero, zero, zero, zero, zero
    held, host_layers, layers = 0.0, 0.0, 0
    stored: dict[str, float] = {}
    moved = moved_class(model) if placement.unit == "expert-layers" else EXPERTS
    whole = placement.unit == "layers"
    leading = model.layer_names[: round(whole * placement.share * len(model.layer_names))]
    for part in segments(model, checkpoint):
        layers += part.count
        here = bisect_left(part.layers, len(leading)) / part.count
        experts = routed_of(part.kind)
        for tensor, form in zip(part.tensors, part.formats, strict=True):
            routed = tensor.shard == "experts" and experts is not None
            size, weights = part.count * tensor.parameters * form.bytes, float(part.count * tensor.parameters)
            stored[form.compute] = stored.get(form.compute, 0.0) + weights
            read = size * some
            if tensor.name == TABLE:  # a token reads some rows of an n-gram table, not the table
                read = part.count * lookup_of(part.kind).read_values * form.bytes * tokens
            elif routed and experts is not None:
                read = size * distinct_experts(experts, tokens) / experts.experts
                weights = weights * experts.topk / experts.experts
            away = here + placement.share * (tensor.tensor_class == moved and not whole)
            flop = 2.0 * weights if tensor.matmul else 0.0
            host_bytes, own_bytes = host_bytes + away * read, own_bytes + (1.0 - away) * read
            host_flop, host_prompt = host_flop + away * flop * decode, host_prompt + away * flop * prompt
            own_flop = own_flop + (1.0 - away) * flop * tokens
            held += away * size
        host_layers += part.count * max(here, float(placement.cache))
        if any(tensor.tensor_class == moved for tensor in part.tensors):
            share = placement.share if placement.unit != "experts" else float(placement.share > 0)
            host_layers += part.count * share * (not whole)
    for tensor in vocabulary_tensors(model):
        if tensor.matmul:
            own_bytes = own_bytes + tensor.parameters * tensor_format(checkpoint, tensor, None).bytes * some
            own_flop = own_flop + 2.0 * tensor.parameters * (decode + prompts)
    cache_bytes, attended_bytes, attended, attended_prompt = zero, zero, zero, zero
    for name, count in model.runs:
        away = max(float(placement.cache), leading.count(name) / count)
        values, seen, read = mixer_of(model.layers[name]).token_core(context, keys)
        # the tokens of a request, or of a prompt, read its cache once together
        cached = count * (requests * values[0] + prompts * values[1]) * kv_format(kv).bytes
        attended_bytes, cache_bytes = attended_bytes + away * cached, cache_bytes + (1.0 - away) * cached
        attended = attended + away * count * seen * decode
        attended_prompt = attended_prompt + away * count * read * prompt
        own_flop = own_flop + (1.0 - away) * count * (seen * decode + read * prompt)
    return OffloadWork(
        host_bytes=host_bytes + attended_bytes,
        host_flop=host_flop + attended,
        host_prompt_flop=host_prompt + attended_prompt,
        held_bytes=held * some,
        host_layers=host_layers,
        own_bytes=own_bytes,
        cache_bytes=cache_bytes,
        own_flop=own_flop,
        layers=layers * some,
        compute=max(stored, key=lambda name: stored[name]),
        attended_bytes=attended_bytes,
        attended_flop=attended,
        attended_prompt_flop=attended_prompt,
    )


@dataclass(frozen=True, slots=True)
class HostSide:
    """Host as the offloaded weights see it."""

    bandwidth: BytesPerSecond  # data-sheet memory bandwidth of all sockets
    sockets: int = 1
    cores: int | None = None  # that compute, all sockets; None ignores the CPU's rate
    link: BytesPerSecond = 0.0  # payload to all accelerators that fetch at once; 0 without accelerators
    kernel: str = "avx512"  # ``amx``, ``avx512`` or ``generic``, see `glmplan.catalog.schema.host.HostKernel`
    numa_aware: bool = True  # True: the engine keeps the weights of each socket's work in its own memory
    prepares: bool = True  # True: the CPU rearranges weights before accelerators fetch them


@dataclass(frozen=True, slots=True)
class OffloadFit:
    """Fitted constants of offloading."""

    host_bandwidth: Ratio  # share of the data-sheet bandwidth of one socket in decode
    next_socket: Ratio  # gain of each further socket, relative to the first
    layer_seconds: Seconds  # launch, hand-over and wait of one layer
    core_rate: dict[str, FlopPerSecond]  # of a core in decode, by kernel
    prefill_core_rate: dict[str, FlopPerSecond]  # of a core on many tokens, by kernel
    copy: Ratio  # share of the host's data-sheet bandwidth at which weights are prepared for streaming
    accelerator_bandwidth: Ratio  # share of the accelerator's peak for weights
    accelerator_cache: Ratio  # for the KV cache
    accelerator_flop: Ratio
    unified_bandwidth: Ratio  # share of the bandwidth in decode on a machine with one memory
    unified_layer_seconds: Seconds  # launch of one layer there
    #: ``decode``, ``prefill``, ``unified``: 90 % interval of log(measured / predicted) on held-out machines
    intervals: dict[str, tuple[float, float]]
    #: by machine and kind: mean log(measured / predicted), half-width of its 90 % interval; only measured machines
    machines: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    def of_machine(self, name: str, kind: str) -> tuple[float, float, float]:
        """Return the correction of log(measured / predicted), and its bounds."""
        known = self.machines.get(name, {}).get(kind)
        if known is None:
            return 0.0, *self.intervals[kind]
        return known[0], -known[1], known[1]


@cache
def load_offload_fit() -> OffloadFit:
    """Read `calibration/fits/offload.toml`.

    Examples
    --------
    >>> 0.1 < load_offload_fit().host_bandwidth < 1.0
    True
    """
    path = fits_folder() / "offload.toml"
    content = read_toml(path)
    try:
        constants = {name: entry["value"] for name, entry in content["constants"].items()}
        rates = {name: parse_quantity(text, "FLOP per second") for name, text in constants.items() if "_rate." in name}
        return OffloadFit(
            host_bandwidth=float(constants["host_bandwidth"]),
            next_socket=float(constants["next_socket"]),
            layer_seconds=parse_quantity(constants["layer_seconds"], "seconds"),
            core_rate={n.partition(".")[2]: r for n, r in rates.items() if n.startswith("core_rate.")},
            prefill_core_rate={n.partition(".")[2]: r for n, r in rates.items() if n.startswith("prefill_core_rate.")},
            copy=float(constants["copy"]),
            accelerator_bandwidth=float(constants["accelerator_bandwidth"]),
            accelerator_cache=float(constants["accelerator_cache"]),
            accelerator_flop=float(constants["accelerator_flop"]),
            unified_bandwidth=float(constants["unified_bandwidth"]),
            unified_layer_seconds=parse_quantity(constants["unified_layer_seconds"], "seconds"),
            intervals={name: (pair[0], pair[1]) for name, pair in content["intervals"].items()},
            machines={
                name: {kind: (pair[0], pair[1]) for kind, pair in kinds.items()}
                for name, kinds in content["machines"].items()
            },
        )
    except KeyError as error:
        raise SpecError("lacks this constant", file=path, field=str(error.args[0])) from None


def host_side(host: Host, count: int, *, kernel: str = "avx512", in_turn: bool = False) -> HostSide:
    """Return the host side of a machine.

    A machine with one memory for CPU and accelerator has nothing to offload. `in_turn`: one accelerator after the other
    fetches weights, at the slowest of their rates.

    Examples
    --------
    >>> from glmplan.catalog.schema.host import Host
    >>> host = Host(name="one", title="one card", source="an example", roots=[{"name": "r0", "socket": "cpu0"}],
    ...             sockets=[{"name": "cpu0", "memory_bandwidth": "460.8 GB/s", "cores": 64}],
    ...             cards=[{"accelerator": "l40s", "parent": "r0", "link": {"generation": 4, "lanes": 16}}])
    >>> side = host_side(host, 1)
    >>> side.cores, round(side.link / 1e9) < 32
    (64, True)
    """
    from glmplan.costs.network.links import host_transfer_rate

    if host.unified_memory:
        raise UnknownFact(f"{host.name} has one memory for CPU and accelerator: nothing is offloaded there")
    bandwidth = host.host_memory_bandwidth
    if bandwidth is None:
        unknown = "unknown: memory bandwidth of the host, which offloading needs"
        raise UnknownFact(f"{host.name}: {unknown}; the file of the machine states it (--on FILE, --set host=FILE)")
    if in_turn:
        link = min(host_transfer_rate(host, members=(slot,)) for slot in range(count))
    else:
        link = count * host_transfer_rate(host, count=count)
    return HostSide(bandwidth, len(host.sockets), host.cores, link, kernel)


#: components of the step time, in the order of the columns of `offload_step_seconds`
COSTS: tuple[str, ...] = ("launch", "weights", "cache", "compute", "host", "links")


def host_seconds(work: OffloadWork, side: HostSide, *, mode: Mode, fit: OffloadFit) -> SecondsArray:
    """Return the time of offloaded weights on the host, and on the links.

    Links of the accelerators. On the CPU: bytes over the reached bandwidth or FLOP over the cores' rate, whichever is
    longer; prompts multiply matrices instead of vectors and have a rate of their own. Streamed: the host prepares the
    weights where the engine needs it, then the accelerators fetch them over their links. Not modelled: a second copy of
    the weights in another socket's memory, pageable memory.

    Examples
    --------
    >>> none = np.zeros(1)
    >>> work = OffloadWork(np.array([12.5e9]), np.array([41e9]), none, np.array([400e9]), 58, none, none, none, none)
    >>> fit = OffloadFit(0.5, 0.5, 1e-4, {"amx": 1e11}, {"amx": 1e11}, 0.1, 0.8, 0.3, 0.5, 0.8, 1e-4, {})
    >>> host_seconds(work, HostSide(500e9, 1, 64, 25e9, "amx"), mode="cpu", fit=fit).tolist()
    [[0.05, 0.0]]
    """
    reached = fit.host_bandwidth * side.bandwidth / side.sockets
    if side.numa_aware:
        reached *= 1.0 + fit.next_socket * (side.sockets - 1)
    cores = float(side.cores) if side.cores else np.inf
    rates = fit.core_rate[side.kernel] * cores, fit.prefill_core_rate[side.kernel] * cores
    if mode == "cpu":
        computed = np.maximum(work.host_bytes / reached, work.host_flop / rates[0] + work.host_prompt_flop / rates[1])
        return np.stack([computed, np.zeros_like(computed)], axis=1)
    if side.link <= 0 and np.any(work.held_bytes > 0):
        raise UnknownFact("streaming needs the PCIe links of the accelerators, which are not known")
    moved = moved_bytes(work, mode)
    prepared = moved / (fit.copy * side.bandwidth) if side.prepares else 0.0
    flop = work.attended_flop / rates[0] + work.attended_prompt_flop / rates[1]
    attention = np.maximum(work.attended_bytes / reached, flop)
    return np.stack([prepared + attention, moved / max(side.link, 1e-300)], axis=1)


def moved_bytes(work: OffloadWork, mode: Mode) -> BytesArray:
    """Return the weights that cross the links in a step."""
    touched = work.host_bytes - work.attended_bytes
    return {"cpu": 0.0 * touched, "stream": work.held_bytes, "touched": touched}[mode]


def accelerator_seconds(
    work: OffloadWork, part: Accelerator | None, *, count: int, mode: Mode, fit: OffloadFit
) -> SecondsArray:
    """Return the accelerators' time for weights, cache and arithmetic.

    0 without accelerator. Where arithmetic takes longer it hides the other two, which are then 0. A roofline with one
    share for each peak: this component of a hybrid step is small, and the accelerators of hybrid machines were not
    measured kernel by kernel. Without a published matrix rate only bytes count.
    """
    nothing = np.zeros_like(work.own_bytes)
    if part is None:
        return np.stack([nothing, nothing, nothing], axis=1)
    streamed = float(mode != "cpu")
    bandwidth = max(count, 1) * part.need("memory_bandwidth")
    fetched = work.host_bytes - work.attended_bytes
    weights = (work.own_bytes + streamed * fetched) / (fit.accelerator_bandwidth * bandwidth)
    cache = work.cache_bytes / (fit.accelerator_cache * bandwidth)
    peaks = {str(name): rate for name, rate in part.peak.items()}
    peak = peaks.get(work.compute) or peaks.get("bf16")
    if not peak:
        return np.stack([weights, cache, nothing], axis=1)
    attended = work.attended_flop + work.attended_prompt_flop
    flop = work.own_flop + streamed * (work.host_flop + work.host_prompt_flop - attended)
    arithmetic = flop / (max(count, 1) * fit.accelerator_flop * peak)
    hidden = arithmetic > weights + cache
    return np.stack([np.where(hidden, 0.0, item) for item in (weights, cache)] + [np.where(hidden, arithmetic, 0.0)], 1)


def offload_step_seconds(
    work: OffloadWork,
    side: HostSide,
    part: Accelerator | None,
    *,
    count: int,
    mode: Mode = "cpu",
    fit: OffloadFit | None = None,
) -> SecondsArray:
    """Return the time of steps with offloaded weights, by `COSTS`.

    One column each; the sum is the step. Layers follow each other, so host and accelerators alternate and the times add
    up [1]_. Streaming with a prompt behind it overlaps in part; the measured runs fit a sum better than a maximum.

    References
    ----------
    .. [1] H. Chen et al., "KTransformers", SOSP 2025, doi 10.1145/3731569.3764843.
    """
    fit = fit or load_offload_fit()
    own = accelerator_seconds(work, part, count=count, mode=mode, fit=fit)
    launch = work.layers * fit.layer_seconds
    return np.concatenate([launch[:, None], own, host_seconds(work, side, mode=mode, fit=fit)], axis=1)
