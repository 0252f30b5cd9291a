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
are explained in `docs/physics/kernels.md`. `glmplan.physics.kernels.fits` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = [
    "CollectiveParams",
    "KernelParams",
    "KernelWork",
    "collective_seconds",
    "collective_terms",
    "kernel_seconds",
    "kernel_terms",
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

    def from_cache(self, work: KernelWork, resident: Array, share: Array = 1.0) -> KernelWork:
        """Return a work as it costs when a share of its bytes is found in the part's cache.

        Parameters
        ----------
        work : KernelWork
            The work with every byte from memory.
        resident : float or array
            Bytes that are read again and again, [B]
        share : float or array, optional
            Share of the work's bytes that are such readings, [-]

        Returns
        -------
        KernelWork
            The same with fewer bytes, as many as would take as long from memory.

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


def kernel_seconds(work: KernelWork, *, peak_flop: Array, peak_bandwidth: Array, params: KernelParams) -> Array:
    """Return the time of one kernel.

    ``floor + group·groups + side_bytes/(side·B) + (t_flop^s + t_bytes^s)^(1/s)`` with
    ``t_flop = flop·(1 + rows_half/rows)·(1 + tiles_half/tiles)/(flop_share·P)`` and
    ``t_bytes = max(bytes·(1 + streams_half/streams)/(bandwidth_share·B), block_bytes/block + block_keys·key)`` [1]_.
    A higher peak is never slower. More tokens are never faster while `rows_half` is at most a tile, 128 rows.

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
    work: KernelWork, *, peak_flop: Array, peak_bandwidth: Array, params: KernelParams
) -> tuple[Array, Array, Array]:
    """Return the time of one kernel in three parts; `kernel_seconds` is their sum.

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
    tuple of float or array
        What the kernel takes whatever its size, what bytes cost and what FLOP cost, [s]. Where both overlap, the joint
        time is divided by the powers of each alone that `sharpness` joins. What is computed for the empty rows of tiles
        (`KernelParams.rows_half`) goes with the matrices that are read, and counts with their bytes.

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


def collective_seconds(bytes_: Array, ranks: Array, *, link_bandwidth: Array, params: CollectiveParams) -> Array:
    """Return the time of one all-reduce as measured on one switch domain.

    The cheaper of two algorithms: one shot, ``(n−1)·bytes/(one_shot·L)``, and two shots, ``setup +
    2(n−1)/n·bytes/(two_shot·L)``, plus ``latency + hop·(n−2)`` [1]_, with ``L = link_bandwidth·(2/n)^crowding``. A
    group of one costs nothing.

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
    latency, payload = collective_terms(bytes_, ranks, link_bandwidth=link_bandwidth, params=params)
    return latency + payload


def collective_terms(
    bytes_: Array, ranks: Array, *, link_bandwidth: Array, params: CollectiveParams
) -> tuple[Array, Array]:
    """Return the time of one all-reduce in two parts; `collective_seconds` is their sum.

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
    tuple of float or array
        Latency, and what the payload adds to it; 0 for a group of one, [s]

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
