"""How far a kernel falls short of the roofline: smooth forms with a few physical parameters, and the fitted values.

A kernel's roofline time is `max(flop / peak, bytes / bandwidth)`. A measured kernel is slower for reasons that can be
named, and each reason is one parameter of `KernelParams`:

====================  ================================================================================================
`floor`               launch, prologue and epilogue: the time of a kernel that does nothing
`bandwidth`           share of the data-sheet bandwidth that a long stream reaches
`flop`                share of the data-sheet FLOP rate that a large product reaches
`rows_half`           a matrix instruction works on whole tiles: with this many rows half of each tile is waste
`tiles_half`          fewer output tiles than the part has cores leave cores idle
`streams_half`        too few or too short streams do not fill the memory system
`side`                bandwidth share of the passes that run before or after (quantising activations, permuting tokens)
`sharpness`           how well compute and memory overlap: 1 one after the other, large: the slower one alone
`group`               time that each expert with a token adds to sorting and scheduling
`cache_gain`          how much faster bytes are read that are still in the part's cache
`cache_bytes`         size up to which they stay there
`block`               rate at which one block of threads reads by itself: what binds a kernel that starts few of them
`block_gain`          how much faster that is for bytes in the cache
`key`                 time that such a block waits for each key, however short it is
====================  ================================================================================================

The parameters come from `calibration/fits/kernels/`, written by `glmplan calibrate kernels`; the forms and their limits
are explained in `docs/physics/kernels.md`. `glmplan.costs.kernels.utilisation` finds them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from glmplan.catalog.files import data_folder, read_text
from glmplan.errors import SpecError
from glmplan.units import BytesArray, BytesPerSecondArray, FlopPerSecondArray, SecondsArray

__all__ = [
    "CollectiveParams",
    "Degrees",
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
    """What one launch of a kernel has to do. Every field is a number or an array; arrays broadcast.

    Attributes
    ----------
    flop : float or array
        Floating-point operations, a multiply-add counts two, [FLOP]
    bytes : float or array
        Bytes moved by the main loop, [B]
    rows : float or array
        Rows that share one operand read: tokens of a GEMM, tokens of an expert, query heads of a KV head, [-]
    tiles : float or array
        Independent output tiles, [-]
    streams : float or array
        Independent or consecutive pieces of the memory stream, [-]
    side_bytes : float or array
        Bytes of passes that do not overlap with the main loop, [B]
    groups : float or array
        Experts that have a token, [-]
    block_bytes, block_keys : float or array
        Bytes and keys that one block of threads reads one after the other; 0 where a kernel cuts its stream for all
        cores, [B], [-]
    """

    flop: Array
    bytes: Array
    rows: Array = np.inf
    tiles: Array = np.inf
    streams: Array = np.inf
    side_bytes: Array = 0.0
    groups: Array = 0.0
    block_bytes: Array = 0.0
    block_keys: Array = 0.0


@dataclass(frozen=True, slots=True)
class KernelParams:
    """How one class of kernel uses one part.

    Attributes
    ----------
    floor : float
        Time of an empty kernel, [s]
    bandwidth : float
        Achieved share of the peak bandwidth, [-]
    flop : float
        Achieved share of the peak FLOP rate, [-]
    rows_half : float
        Rows at which half of the FLOP rate is reached, [-]
    tiles_half : float
        Output tiles at which half of the FLOP rate is reached, [-]
    streams_half : float
        Streams at which half of the bandwidth is reached, [-]
    side : float
        Achieved share of the peak bandwidth in the passes that do not overlap; above 1 when they stay in the cache, [-]
    sharpness : float
        Exponent that joins compute and memory time, at least 1, [-]
    group : float
        Time for each expert that has a token, [s]
    cache_gain : float
        How many times faster bytes are read that are in the part's cache; 1 where no table shows it, [-]
    cache_bytes : float
        Bytes of which half are still found there, [B]
    block : float
        Rate at which one block of threads reads by itself; infinite where no table shows it, [B/s]
    block_gain : float
        How many times faster that is for bytes in the part's cache, [-]
    key : float
        Time that such a block waits for each key on top; 0 where no table shows it, [s]
    """

    floor: float
    bandwidth: float
    flop: float
    rows_half: float = 0.0
    tiles_half: float = 0.0
    streams_half: float = 0.0
    side: float = 1.0
    sharpness: float = 4.0
    group: float = 0.0
    cache_gain: float = 1.0
    cache_bytes: float = 1.0
    block: float = 1e15
    block_gain: float = 1.0
    key: float = 0.0

    def from_cache(self, work: KernelWork, resident: BytesArray, share: Array = 1.0) -> KernelWork:
        """Return a work as it costs when a share of its bytes is found in the part's cache.

        - `share`: Share of the work's bytes that are such readings.
        - Returns: The same with fewer bytes, as many as would take as long from memory.

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

    ``floor + group·groups + side_bytes/(side·B) + (t_flop^s + t_bytes^s)^(1/s)`` with
    ``t_flop = flop·(1 + rows_half/rows)·(1 + tiles_half/tiles)/(flop_share·P)`` and
    ``t_bytes = max(bytes·(1 + streams_half/streams)/(bandwidth_share·B), block_bytes/block + block_keys·key)`` [1]_.
    A higher peak is never slower. More tokens are never faster while `rows_half` is at most a tile, 128 rows.

    Notes
    -----
    Not modelled: which tile a library picks (its steps are smoothed), clocks falling under load, other kernels running
    at the same time, operands that are still in the cache from the kernel before (`KernelParams.from_cache` is for
    bytes that one kernel reads several times).

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
    """Return the time of one kernel in three parts; `kernel_seconds` is their sum.

    Returns: What the kernel takes whatever its size, what bytes cost and what FLOP cost, [s]. Where both overlap, the
      joint time is divided by the powers of each alone that `sharpness` joins. What is computed for the empty rows of
      tiles (`KernelParams.rows_half`) goes with the matrices that are read, and counts with their bytes.

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
    # of the powers that are joined the larger one, divided by itself, is 1
    larger = np.maximum(compute, memory)
    smaller = (np.minimum(compute, memory) / np.maximum(larger, _TINY)) ** p.sharpness
    both = 1.0 + smaller
    joint = larger * both ** (1.0 / p.sharpness)
    useful = joint * np.where(compute >= memory, 1.0, smaller) / (both * padding)
    side = work.side_bytes / (p.side * peak_bandwidth)
    return p.floor + p.group * work.groups, joint - useful + side, useful


@dataclass(frozen=True, slots=True)
class CollectiveParams:
    """How one collective uses one kind of link.

    Attributes
    ----------
    latency : float
        Time for an empty message between two ranks, [s]
    hop : float
        Time that each further rank adds, [s]
    one_shot : float
        Share of the link rate when each rank reads all others at once; 0 if that algorithm is not there, [-]
    two_shot : float
        Share of the link rate of reduce-scatter and all-gather (or a ring), [-]
    two_shot_setup : float
        Time the two-step algorithm adds once, [s]
    crowding : float
        How the ranks share links and root ports: a rank's rate falls as ``(2/n)^crowding``; 0 behind a switch that
        carries all at once, [-]
    """

    latency: float
    hop: float
    one_shot: float
    two_shot: float
    two_shot_setup: float = 0.0
    crowding: float = 0.0


def collective_seconds(
    bytes_: BytesArray, ranks: Array, *, link_bandwidth: BytesPerSecondArray, params: CollectiveParams
) -> SecondsArray:
    """Return the time of one all-reduce as measured on one switch domain.

    The cheaper of two algorithms: one shot, ``(n−1)·bytes/(one_shot·L)``, and two shots, ``setup +
    2(n−1)/n·bytes/(two_shot·L)``, plus ``latency + hop·(n−2)`` [1]_, with ``L = link_bandwidth·(2/n)^crowding``. A
    group of one costs nothing.

    `link_bandwidth`: Peak of one rank's link in one direction.

    Notes
    -----
    Not modelled: contention with other groups, and paths that leave the switch or the root complex.

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
    """Return the time of one all-reduce in two parts; `collective_seconds` is their sum.

    - `link_bandwidth`: Peak of one rank's link in one direction.
    - Returns: Latency, and what the payload adds to it; 0 for a group of one, [s].

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


# The fitted utilisation of kernels: one small file for each part, one of priors for parts that nobody measured.


@dataclass(frozen=True, slots=True)
class KernelFit:
    """One fitted set of parameters and how far it may be trusted.

    Attributes
    ----------
    kernel : str
        Class: ``gemm``, ``experts``, ``decode-attention``, …, ``all-reduce``.
    engine : str
        Engine and version, or ``*`` for a pooled prior.
    precision : str
        Weight format, or KV format for attention.
    backend : str
        The engine's own name of the kernel.
    params : KernelParams or CollectiveParams
        The values.
    log_sd : float
        Spread of single shapes around the form, standard deviation of the logarithm, [-]
    part_log_sd : float
        Further spread when carried to a part that was not measured; 0 for a part's own fit, [-]
    rows_low, rows_high : float
        Range of rows that was fitted, [-]
    median, p90 : float
        Absolute relative error on shapes that were not fitted, [-]
    points : int
        Shapes in the table, [-]
    pooled : bool
        Whether this is a prior from other parts.
    """

    kernel: str
    engine: str
    precision: str
    backend: str
    params: KernelParams | CollectiveParams
    log_sd: float
    part_log_sd: float
    rows_low: float
    rows_high: float
    median: float
    p90: float
    points: int
    pooled: bool

    @property
    def release(self) -> tuple[int, ...]:
        """Version of the engine whose kernels were measured; empty for a prior."""
        return tuple(int(number) for number in re.findall(r"\d+", self.engine.partition(" ")[2]))

    @property
    def carries_all(self) -> bool:
        """Whether an expert kernel moves the rows of pairs of other ranks too; see `carries_all`."""
        return carries_all(self.backend)


def carries_all(backend: str) -> bool:
    """Return whether an expert kernel moves the rows of all pairs, also of those that belong to other ranks.

    Returns: True for Triton and Marlin, which mask foreign pairs; CUTLASS and TensorRT-LLM kernels drop them.

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
    """Return a fit from its row in the file: names, then parameters in the order of their class, then the quality.

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
    """Return the fits of one part; empty for a part whose kernels nobody measured.

    - `accelerator`: Name in the catalogue, or ``priors`` for the pooled values of all parts.
    - Returns: The fits, as they stand in the file.

    Examples
    --------
    >>> kernel_fits("no-such-part")
    ()
    >>> len(kernel_fits("h200-sxm")) > 10
    True
    """
    file = data_folder("calibration") / "fits" / "kernels" / f"{accelerator}.toml"
    if not file.is_file():
        return ()
    # The rows are written so that TOML and JSON read them alike, and JSON is read fifty times faster.
    _, marker, rows = read_text(file).partition("\nfits = ")
    if not marker:
        raise SpecError("has no fits; run `glmplan calibrate kernels`", file=file)
    return tuple(read_fit(row, pooled=accelerator == "priors") for row in json.loads(rows))


def _last(releases: Iterable[tuple[int, ...]], release: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The newest release that is no newer than the one asked for, else the oldest; of no release the newest."""
    found = sorted(set(releases))
    if not found:
        return None
    before = [one for one in found if release is None or one[: len(release)] <= release]
    return before[-1] if before else found[0]


@lru_cache(maxsize=1024)
def kernel_release(accelerator: str, engine: str, release: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the release whose kernels stand for one of an engine: deployments with the same have the same kernels.

    Returns: The newest measured release that is no newer, else the oldest; of no release the newest; None where none
      was measured.

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
    """Return the best fit there is: the part's own, by this engine or another, then its family's, then all parts'.

    - `precision`: Weight format, KV format for attention, or both joined by ``+`` for whole blocks; a block measured
      with another KV format is better than none.
    - `release`: Its release: of several measured, the newest that is no newer than this; the newest of all when not
      given.
    - `family`: Compute capability without the minor number (``"9"``, ``"10"``, ``"12"``), to prefer its prior.
    - `backend`: Part of the kernel's name that is preferred (``"triton"``, ``"deepep_ll"``); else the engine's
      fullest table.
    - Returns: The fit; `pooled` says that it is a prior. None if nothing like it was ever measured.

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


# What the parts of a layer's work share: tokens, degrees, and how a kernel's time is divided among slots.


@dataclass(frozen=True, slots=True, eq=False)
class Degrees:
    """How many ranks share what.

    Attributes
    ----------
    tp, pp, dp, ep, dcp : array
        Degrees of the layout, [-]
    expert_ranks : array
        Ranks over which the experts lie, [-]
    """

    tp: np.ndarray
    pp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray
    expert_ranks: np.ndarray
    dcp: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What a step computes.

    Attributes
    ----------
    requests : array
        Decoding on the fullest replica, [-]
    decode : array
        Their tokens, verified ones included, [token]
    prompt : array
        Prompt tokens on the replica, [token]
    everywhere : array
        Tokens of all replicas, which the experts see, [token]
    context, keys : array
        Tokens in the cache of a decoding request, and that a prompt token attends to, [token]
    shared : array
        Part of the context that lies in one copy for all requests, [token]
    """

    requests: np.ndarray
    decode: np.ndarray
    prompt: np.ndarray
    everywhere: np.ndarray
    context: np.ndarray
    keys: np.ndarray
    shared: np.ndarray


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
    """Add a kernel's time to three slots: fixed, bytes, FLOP, as `glmplan.costs.kernels.utilisation.kernel_terms`
    divides it.

    - `layer`: Slots of a layer, changed in place, [s] or [-].
    - `peak_flop`, `bandwidth`: Peaks of the part, [FLOP/s], [B/s].

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
