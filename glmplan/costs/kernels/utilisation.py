"""Return the time of one kernel: a smooth form over the roofline.

Its parameters are fitted. The roofline time of a kernel is `max(flop / peak, bytes / bandwidth)`. Each cause by which a
measured kernel is slower is one parameter of `KernelParams`. The values are in `calibration/fits/kernels/`, written by
`glmplan calibrate kernels`: one file for each measured accelerator and one of priors for the others.
`docs/physics/kernels.md` explains the forms and their limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from glmplan.catalog.files import data_folder, entry_file, read_text
from glmplan.errors import SpecError
from glmplan.units import BytesArray, BytesPerSecondArray, FlopPerSecondArray, Ratio, Seconds, SecondsArray

__all__ = [
    "CollectiveParams",
    "KernelFit",
    "KernelParams",
    "KernelWork",
    "Tokens",
    "add_kernel",
    "carries_all",
    "collective_seconds",
    "collective_terms",
    "find_kernel_fit",
    "fit_row",
    "kernel_fits",
    "kernel_release",
    "kernel_seconds",
    "kernel_terms",
    "read_fit",
]


Array = Any  # a float or an array of floats; arrays broadcast

_TINY = 1e-30


@dataclass(frozen=True, slots=True, eq=False)
class KernelWork:
    """Work of one kernel launch; fields are numbers or arrays."""

    flop: Array  # a multiply-add counts two [FLOP]
    bytes: Array  # moved by the main loop [B]
    rows: Array = np.inf  # that share one operand read: tokens of a GEMM, tokens of an expert, query heads of a KV head
    tiles: Array = np.inf  # independent output tiles
    streams: Array = np.inf  # independent or consecutive pieces of the memory stream
    side_bytes: Array = 0.0  # of passes that do not overlap with the main loop [B]
    groups: Array = 0.0  # experts that have a token
    #: this and the next: read serially by one block of threads; 0 where the stream is cut for all cores [B]
    block_bytes: Array = 0.0
    block_keys: Array = 0.0


@dataclass(frozen=True, slots=True)
class KernelParams:
    """Fitted parameters of one class of kernel on one accelerator."""

    floor: Seconds  # launch, prologue and epilogue: time of an empty kernel
    bandwidth: Ratio  # share of the data-sheet bandwidth that a long stream reaches
    flop: Ratio  # share of the data-sheet FLOP rate that a large product reaches
    rows_half: float = 0.0  # rows at which half of each matrix tile is padding
    tiles_half: float = 0.0  # output tiles at which half of the cores idle
    streams_half: float = 0.0  # streams at which half of the bandwidth is reached
    #: bandwidth share of passes before or after (quantisation, permutation); above 1 when they stay in cache
    side: Ratio = 1.0
    sharpness: float = 4.0  # exponent that joins compute and memory time: 1 serial, large: only the slower one counts
    group: Seconds = 0.0  # for each expert with a token: sorting and scheduling
    cache_gain: Ratio = 1.0  # speed-up of bytes that are still in the cache; 1 where no table shows it
    cache_bytes: float = 1.0  # size of which half is still cached [B]
    block: float = 1e15  # read rate of a single block of threads; in effect infinite where no table shows it [B/s]
    block_gain: Ratio = 1.0  # its speed-up for cached bytes
    key: Seconds = 0.0  # added wait of such a block for each key; 0 where no table shows it

    def from_cache(self, work: KernelWork, resident: BytesArray, share: Array = 1.0) -> KernelWork:
        """Return the equivalent work when the cache holds some of its bytes.

        `resident` bytes compete for the cache; the result has as many bytes as take the same time from memory.

        Examples
        --------
        >>> params = KernelParams(floor=2e-6, bandwidth=0.8, flop=0.7, cache_gain=4.0, cache_bytes=64e6)
        >>> work = KernelWork(flop=0.0, bytes=1e6)
        >>> [round(float(params.from_cache(work, resident).bytes)) for resident in (1e6, 1e9)]
        [250003, 999803]
        """
        held = share / (1 + (resident / self.cache_bytes) ** 3)
        return replace(
            work,
            bytes=work.bytes * (1 - held * (1 - 1 / self.cache_gain)),
            block_bytes=work.block_bytes * (1 - held * (1 - 1 / self.block_gain)),
        )


def kernel_seconds(
    work: KernelWork, *, peak_flop: FlopPerSecondArray, peak_bandwidth: BytesPerSecondArray, params: KernelParams
) -> SecondsArray:
    """Return the time of one kernel.

    ``floor + group·groups + side_bytes/(side·B) + (t_flop^s + t_bytes^s)^(1/s)`` with ``t_flop = flop·(1 +
    rows_half/rows)·(1 + tiles_half/tiles)/(flop_share·P)`` and ``t_bytes = max(bytes·(1 +
    streams_half/streams)/(bandwidth_share·B), block_bytes/block + block_keys·key)`` [1]_. A higher peak is never
    slower. More tokens are never faster while `rows_half` is at most a tile, 128 rows.

    Notes
    -----
    Not modelled: tile choice of a library (its steps are smoothed), clocks that fall under load, concurrent kernels,
    operands left in the cache by the previous kernel (`KernelParams.from_cache` covers bytes that one kernel reads
    several times).

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009; the half-performance length is
       R. W. Hockney's n_1/2, Parallel Computers, 1981.

    Examples
    --------
    A product of one token with a 100 MB matrix is bound by memory:

    >>> params = KernelParams(floor=2e-6, bandwidth=0.8, flop=0.7)
    >>> work = KernelWork(flop=1e8, bytes=1e8)
    >>> round(float(kernel_seconds(work, peak_flop=1e15, peak_bandwidth=4e12, params=params)) * 1e6, 2)
    33.25
    """
    fixed, by_bytes, by_flop = kernel_terms(work, peak_flop=peak_flop, peak_bandwidth=peak_bandwidth, params=params)
    return fixed + by_bytes + by_flop


def kernel_terms(
    work: KernelWork, *, peak_flop: FlopPerSecondArray, peak_bandwidth: BytesPerSecondArray, params: KernelParams
) -> tuple[Array, Array, Array]:
    """Return the fixed, byte and FLOP parts of `kernel_seconds`.

    The joint time of overlapping compute and memory is divided in proportion to their powers of `sharpness`. The
    compute for empty rows of tiles (`KernelParams.rows_half`) goes with the matrices that are read, so it counts with
    the bytes.

    Examples
    --------
    >>> params = KernelParams(floor=2e-6, bandwidth=0.8, flop=0.7)
    >>> work = KernelWork(flop=1e8, bytes=1e8)
    >>> [round(1e6 * float(part), 2) for part in kernel_terms(work, peak_flop=1e15, peak_bandwidth=4e12, params=params)]
    [2.0, 31.25, 0.0]
    """
    p = params
    padding = 1 + p.rows_half / work.rows
    compute = work.flop * padding * (1 + p.tiles_half / work.tiles) / (p.flop * peak_flop)
    memory = work.bytes * (1 + p.streams_half / work.streams) / (p.bandwidth * peak_bandwidth)
    memory = np.maximum(memory, work.block_bytes / p.block + work.block_keys * p.key)
    # the larger of the joined powers, divided by itself, is 1
    larger = np.maximum(compute, memory)
    smaller = (np.minimum(compute, memory) / np.maximum(larger, _TINY)) ** p.sharpness
    both = 1.0 + smaller
    joint = larger * both ** (1.0 / p.sharpness)
    useful = joint * np.where(compute >= memory, 1.0, smaller) / (both * padding)
    side = work.side_bytes / (p.side * peak_bandwidth)
    return p.floor + p.group * work.groups, joint - useful + side, useful


@dataclass(frozen=True, slots=True)
class CollectiveParams:
    """Fitted parameters of one collective on one kind of link."""

    latency: Seconds  # of an empty message between two ranks
    hop: Seconds  # added by each further rank
    one_shot: Ratio  # share of the link rate when each rank reads all others at once; 0: no such algorithm
    two_shot: Ratio  # share of the link rate of reduce-scatter and all-gather, or a ring
    two_shot_setup: Seconds = 0.0  # added once by the two-step algorithm
    #: exponent of shared links and root ports: the rate of a rank is ``(2/n)^crowding``; 0: full switch
    crowding: float = 0.0


def collective_seconds(
    bytes_: BytesArray, ranks: Array, *, link_bandwidth: BytesPerSecondArray, params: CollectiveParams
) -> SecondsArray:
    """Return the time of one all-reduce in one switch domain; 0 for one rank.

    The cheaper of two algorithms: one shot, ``(n−1)·bytes/(one_shot·L)``, and two shots, ``setup +
    2(n−1)/n·bytes/(two_shot·L)``, plus ``latency + hop·(n−2)`` [1]_, with ``L = link_bandwidth·(2/n)^crowding`` and
    `link_bandwidth` the peak of one rank in one direction. Not modelled: contention with other groups, and paths that
    leave the switch or the root complex.

    References
    ----------
    .. [1] R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, 2005.

    Examples
    --------
    >>> params = CollectiveParams(latency=4e-6, hop=1e-7, one_shot=0.4, two_shot=0.8, two_shot_setup=3e-6)
    >>> float(collective_seconds(1e6, 1, link_bandwidth=450e9, params=params))
    0.0
    >>> round(float(collective_seconds(16384.0, 8, link_bandwidth=450e9, params=params)) * 1e6, 2)
    5.24
    """
    latency, payload = collective_terms(bytes_, ranks, link_bandwidth=link_bandwidth, params=params)
    return latency + payload


def collective_terms(
    bytes_: BytesArray, ranks: Array, *, link_bandwidth: BytesPerSecondArray, params: CollectiveParams
) -> tuple[Array, Array]:
    """Return latency and payload time of an all-reduce.

    Their sum is `collective_seconds`.

    Examples
    --------
    >>> params = CollectiveParams(latency=4e-6, hop=1e-7, one_shot=0.4, two_shot=0.8, two_shot_setup=3e-6)
    >>> terms = collective_terms(16384.0, 8.0, link_bandwidth=450e9, params=params)
    >>> [round(1e6 * float(part), 2) for part in terms]
    [4.6, 0.64]
    """
    p = params
    several = np.minimum(ranks - 1.0, 1.0)
    crowded = (2.0 / np.maximum(ranks, 2.0)) ** p.crowding if p.crowding else 1.0
    share = bytes_ / (link_bandwidth * crowded)
    one_shot = (ranks - 1.0) * share / max(p.one_shot, 1e-9)
    two_shot = p.two_shot_setup + 2.0 * (ranks - 1.0) / ranks * share / p.two_shot
    return several * (p.latency + p.hop * np.maximum(ranks - 2.0, 0.0)), several * np.minimum(one_shot, two_shot)


@dataclass(frozen=True, slots=True)
class KernelFit:
    """One fitted set of parameters with its accuracy."""

    kernel: str  # class: ``gemm``, ``experts``, ``decode-attention``, …, ``all-reduce``
    engine: str  # with version, or ``*`` for a pooled prior
    precision: str  # weight format, or KV format for attention
    backend: str  # the engine's own name of the kernel
    params: KernelParams | CollectiveParams
    log_sd: float  # standard deviation of the logarithm over single shapes
    part_log_sd: float  # added for an accelerator that was not measured; 0 for its own fit
    rows_low: float  # this and the next: fitted range of rows
    rows_high: float
    median: Ratio  # this and the next: absolute relative error on shapes that were not fitted
    p90: Ratio
    points: int  # shapes in the table
    pooled: bool  # True: prior from other accelerators

    @property
    def release(self) -> tuple[int, ...]:
        """Return the version of the measured engine; empty for a prior."""
        return tuple(int(number) for number in re.findall(r"\d+", self.engine.partition(" ")[2]))


def carries_all(backend: str) -> bool:
    """Return True if an expert kernel also moves rows of other ranks.

    Triton and Marlin mask foreign pairs; CUTLASS and TensorRT-LLM kernels drop them.

    Examples
    --------
    >>> carries_all("sglang_fused_moe_triton"), carries_all("sglang_flashinfer_trtllm_moe")
    (True, False)
    """
    return "triton" in backend or "marlin" in backend


_PARAMS = {"all-reduce": CollectiveParams}
_HEAD = ("kernel", "engine", "precision", "backend")
_TAIL = ("log_sd", "part_log_sd", "rows_low", "rows_high", "median", "p90", "points")


def read_fit(row: list[Any], *, pooled: bool) -> KernelFit:
    """Return a fit from its row: names, parameters, accuracy.

    Parameters in the order of their class.

    Examples
    --------
    >>> row = ["gemm", "vllm", "bf16", "torch", [3e-6, 0.8, 0.7, 0.0, 5.0, 0.0, 1.0, 3.0, 0.0],
    ...        [0.1, 0.0, 1, 32768, 0.07, 0.2, 35742]]
    >>> read_fit(row, pooled=False).params.bandwidth
    0.8
    """
    kind = _PARAMS.get(row[0], KernelParams)
    head, tail = dict(zip(_HEAD, row[:4], strict=True)), dict(zip(_TAIL, row[5], strict=True))
    return KernelFit(**head, **tail, params=kind(*row[4]), pooled=pooled)


def fit_row(fit: KernelFit) -> list[Any]:
    """Return the row of a file that `read_fit` reads back."""
    values = [getattr(fit.params, field.name) for field in fields(fit.params)]
    return [*(getattr(fit, name) for name in _HEAD), values, [getattr(fit, name) for name in _TAIL]]


@cache
def kernel_fits(accelerator: str) -> tuple[KernelFit, ...]:
    """Return the fits of an accelerator, or ``priors``; empty: not measured.

    Examples
    --------
    >>> kernel_fits("no-such-part")
    ()
    >>> len(kernel_fits("h200-sxm")) > 10
    True
    """
    file = entry_file(data_folder("calibration") / "fits" / "kernels", f"{accelerator}.toml")
    if file is None:
        return ()
    # The rows are valid TOML and JSON, and JSON is read much faster.
    _, marker, rows = read_text(file).partition("\nfits = ")
    if not marker:
        raise SpecError("has no fits; run `glmplan calibrate kernels`", file=file)
    return tuple(read_fit(row, pooled=accelerator == "priors") for row in json.loads(rows))


def _last(releases: Iterable[tuple[int, ...]], release: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the newest release up to `release`, else the oldest.

    The newest for None.
    """
    result = sorted(set(releases))
    if not result:
        return None
    before = [item for item in result if release is None or item[: len(release)] <= release]
    return before[-1] if before else result[0]


@lru_cache(maxsize=1024)
def kernel_release(accelerator: str, engine: str, release: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the measured release for an engine's release; None: none.

    See `_last`. Deployments with the same result have the same kernels.

    Examples
    --------
    >>> kernel_release("b200-sxm", "vllm", (0, 9)) <= kernel_release("b200-sxm", "vllm", None)
    True
    """
    return _last((f.release for f in kernel_fits(accelerator) if f.engine.split()[0] == engine), release)


def find_kernel_fit(
    accelerator: str,
    kernel: str,
    *,
    precision: str,
    engine: str,
    release: tuple[int, ...] | None = None,
    family: str | None = None,
    backend: str = "",
) -> KernelFit | None:
    """Return the accelerator's fit, else its family's, else that of all.

    None: no fit. `precision`: weight format, KV format for attention, or both joined by ``+`` for whole blocks; a block
    measured with another KV format is better than none. `release`: of several measured ones the newest that is not
    newer counts. `family`: compute capability without the minor number (``"9"``), to prefer its prior. `backend`:
    preferred part of the kernel's name (``"triton"``); else the engine's fullest table.

    Examples
    --------
    >>> find_kernel_fit("h200-sxm", "gemm", precision="bf16", engine="vllm").pooled
    False
    >>> find_kernel_fit("rtx-4090", "gemm", precision="bf16", engine="vllm", family="8").pooled
    True
    """
    weights = precision.split("+", maxsplit=1)[0]

    def closeness(fit: KernelFit) -> tuple[bool, bool]:
        return fit.precision != precision, backend not in fit.backend

    def wanted(fits: tuple[KernelFit, ...]) -> list[KernelFit]:
        same = [f for f in fits if f.kernel == kernel and f.precision.split("+")[0] == weights]
        return sorted(same, key=closeness)

    own, priors = wanted(kernel_fits(accelerator)), wanted(kernel_fits("priors"))
    by_engine = [f for f in own if f.engine.split()[0] == engine]
    if by_engine:
        best = closeness(by_engine[0])
        alike = [f for f in by_engine if closeness(f) == best]
        last = _last((f.release for f in alike), release)
        by_engine = [f for f in alike if f.release == last]
    by_family = [f for f in priors if f.engine == f"cc{family}"]
    return next(iter(by_engine + own + by_family + [f for f in priors if f.engine == "*"]), None)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens and requests of a step on the fullest replica."""

    requests: np.ndarray  # decoding requests
    decode: np.ndarray  # their tokens, verified ones included
    prompt: np.ndarray  # prompt tokens
    everywhere: np.ndarray  # tokens of all replicas, input of the experts
    context: np.ndarray  # cached tokens of a decoding request
    keys: np.ndarray  # tokens that a prompt token attends to
    shared: np.ndarray  # part of the context with one copy for all requests


def add_kernel(
    layer: dict[str, np.ndarray],
    work: KernelWork,
    params: KernelParams,
    *,
    peak_flop: float,
    bandwidth: float,
    slots: tuple[str, str, str],
    active: np.ndarray,
) -> None:
    """Add fixed, byte and FLOP time of a kernel to three time components.

    `layer` is changed in place.

    Examples
    --------
    >>> layer = {"a": np.zeros(1), "b": np.zeros(1), "c": np.zeros(1)}
    >>> params = KernelParams(floor=2e-6, bandwidth=0.8, flop=0.7)
    >>> work = KernelWork(flop=np.array([1e8]), bytes=np.array([1e8]))
    >>> add_kernel(layer, work, params, peak_flop=1e15, bandwidth=4e12, slots=("a", "b", "c"), active=np.ones(1))
    >>> [round(1e6 * float(layer[slot][0]), 2) for slot in "abc"]
    [2.0, 31.25, 0.0]
    """
    terms = kernel_terms(work, peak_flop=peak_flop, peak_bandwidth=bandwidth, params=params)
    for slot, seconds in zip(slots, terms, strict=True):
        layer[slot] = layer[slot] + active * seconds
