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
====================  ================================================================================================

The parameters come from `calibration/fits/kernels/`, written by `glmplan calibrate kernels`; the forms and their limits
are explained in `docs/physics/kernels.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from glmplan.datafolders import data_folder
from glmplan.files import read_toml

__all__ = [
    "CollectiveParams",
    "KernelFit",
    "KernelParams",
    "KernelWork",
    "collective_seconds",
    "find_kernel_fit",
    "kernel_fits",
    "kernel_seconds",
]

Array = Any  # a float or an array of floats; arrays broadcast

_TINY = 1e-30


@dataclass(frozen=True, slots=True)
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
    """

    flop: Array
    bytes: Array
    rows: Array = np.inf
    tiles: Array = np.inf
    streams: Array = np.inf
    side_bytes: Array = 0.0


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
    """

    floor: float
    bandwidth: float
    flop: float
    rows_half: float = 0.0
    tiles_half: float = 0.0
    streams_half: float = 0.0
    side: float = 1.0
    sharpness: float = 4.0


def kernel_seconds(work: KernelWork, *, peak_flop: Array, peak_bandwidth: Array, params: KernelParams) -> Array:
    """Return the time of one kernel.

    ``floor + side_bytes/(side·B) + (t_flop^s + t_bytes^s)^(1/s)`` with ``t_flop = flop·(1 + rows_half/rows)·(1 +
    tiles_half/tiles)/(flop_share·P)`` and ``t_bytes = bytes·(1 + streams_half/streams)/(bandwidth_share·B)`` [1]_.
    A higher peak is never slower.

    Parameters
    ----------
    work : KernelWork
        FLOP, bytes and shape.
    peak_flop : float or array
        Dense peak of the precision that computes, [FLOP/s]
    peak_bandwidth : float or array
        Peak memory bandwidth, [B/s]
    params : KernelParams
        How the part is used.

    Returns
    -------
    float or array
        Time, [s]

    Notes
    -----
    Not modelled: which tile a library picks (its steps are smoothed), clocks falling under load, other kernels running
    at the same time, operands that are still in the cache from the kernel before.

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
    p = params
    compute = work.flop * (1 + p.rows_half / work.rows) * (1 + p.tiles_half / work.tiles) / (p.flop * peak_flop)
    memory = work.bytes * (1 + p.streams_half / work.streams) / (p.bandwidth * peak_bandwidth)
    slow = np.maximum(np.maximum(compute, memory), _TINY)
    fast = np.minimum(compute, memory)
    joined = slow * (1 + (fast / slow) ** p.sharpness) ** (1 / p.sharpness)
    return p.floor + work.side_bytes / (p.side * peak_bandwidth) + joined


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
    """

    latency: float
    hop: float
    one_shot: float
    two_shot: float
    two_shot_setup: float = 0.0


def collective_seconds(bytes_: Array, ranks: Array, *, link_bandwidth: Array, params: CollectiveParams) -> Array:
    """Return the time of one all-reduce as measured on one switch domain.

    The cheaper of two algorithms: one shot, ``(n−1)·bytes/(one_shot·L)``, and two shots, ``setup +
    2(n−1)/n·bytes/(two_shot·L)``, plus ``latency + hop·(n−2)`` [1]_. A group of one costs nothing.

    Parameters
    ----------
    bytes_ : float or array
        Size of the tensor that is reduced, [B]
    ranks : float or array
        Ranks in the group, [-]
    link_bandwidth : float or array
        Peak of one rank's link in one direction, [B/s]
    params : CollectiveParams
        How the link is used.

    Returns
    -------
    float or array
        Time, [s]

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
    p = params
    one = (ranks - 1) * bytes_ / (max(p.one_shot, 1e-9) * link_bandwidth)
    two = p.two_shot_setup + 2 * (ranks - 1) / ranks * bytes_ / (p.two_shot * link_bandwidth)
    return np.where(ranks > 1, p.latency + p.hop * (ranks - 2) + np.minimum(one, two), 0.0)


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


_PARAMS = {"all-reduce": CollectiveParams}
_HEAD = ("kernel", "engine", "precision", "backend")
_TAIL = ("log_sd", "part_log_sd", "rows_low", "rows_high", "median", "p90", "points")


def read_fit(row: list[Any], *, pooled: bool) -> KernelFit:
    """Return a fit from its row in the file: names, then parameters in the order of their class, then the quality.

    Parameters
    ----------
    row : list
        A row of `fits`.
    pooled : bool
        Whether the file holds priors.

    Returns
    -------
    KernelFit
        The fit.

    Examples
    --------
    >>> row = ["gemm", "vllm", "bf16", "torch", [3e-6, 0.8, 0.7, 0.0, 5.0, 0.0, 1.0, 3.0],
    ...        [0.1, 0.0, 1, 32768, 0.07, 0.2, 35742]]
    >>> read_fit(row, pooled=False).params.bandwidth
    0.8
    """
    kind = _PARAMS.get(row[0], KernelParams)
    head, tail = dict(zip(_HEAD, row[:4], strict=True)), dict(zip(_TAIL, row[5], strict=True))
    return KernelFit(**head, **tail, params=kind(*row[4]), pooled=pooled)


def fit_row(fit: KernelFit) -> list[Any]:
    """Return the row of a file that `read_fit` reads back.

    Parameters
    ----------
    fit : KernelFit
        The fit.

    Returns
    -------
    list
        The row.
    """
    values = [getattr(fit.params, field.name) for field in fields(fit.params)]
    return [*(getattr(fit, name) for name in _HEAD), values, [getattr(fit, name) for name in _TAIL]]


@cache
def kernel_fits(accelerator: str) -> tuple[KernelFit, ...]:
    """Return the fits of one part; empty for a part whose kernels nobody measured.

    Parameters
    ----------
    accelerator : str
        Name in the catalogue, or ``priors`` for the pooled values of all parts.

    Returns
    -------
    tuple of KernelFit
        The fits, as they stand in the file.

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
    table: Mapping[str, Any] = read_toml(file)
    return tuple(read_fit(row, pooled=accelerator == "priors") for row in table["fits"])


def find_kernel_fit(
    accelerator: str, kernel: str, *, precision: str, engine: str, family: str | None = None
) -> KernelFit | None:
    """Return the best fit there is: the part's own, by this engine or another, then its family's, then all parts'.

    Parameters
    ----------
    accelerator : str
        Name in the catalogue.
    kernel : str
        Class of kernel.
    precision : str
        Weight format, or KV format for attention.
    engine : str
        ``vllm``, ``sglang`` or ``trtllm``.
    family : str, optional
        Compute capability without the minor number (``"9"``, ``"10"``, ``"12"``), to prefer its prior.

    Returns
    -------
    KernelFit or None
        The fit; `pooled` says that it is a prior. None if nothing like it was ever measured.

    Examples
    --------
    >>> find_kernel_fit("h200-sxm", "gemm", precision="bf16", engine="vllm").pooled
    False
    >>> find_kernel_fit("rtx-4090", "gemm", precision="bf16", engine="vllm", family="8").pooled
    True
    """
    own = [f for f in kernel_fits(accelerator) if f.kernel == kernel and f.precision == precision]
    by_engine = [f for f in own if f.engine.split()[0] == engine]
    priors = [f for f in kernel_fits("priors") if f.kernel == kernel and f.precision == precision]
    by_family = [f for f in priors if f.engine == f"cc{family}"]
    return next(iter(by_engine + own + by_family + [f for f in priors if f.engine == "*"]), None)
