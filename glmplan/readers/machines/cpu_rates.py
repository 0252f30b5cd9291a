"""Measure what a CPU reaches: memory bandwidth of all cores together, and the rate of a matrix product."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

__all__ = ["CpuRates", "matrix_rate", "measure_cpu", "memory_bandwidth"]


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Measured rates of a CPU.

    Parameters
    ----------
    memory_bandwidth : float
        The higher of copying and reading with all cores, [B/s]
    copy_bandwidth, read_bandwidth : float
        Bytes read and written by a copy; bytes read by a dot product, [B/s]
    matrix_rate : float
        FP32 matrix product, [FLOP/s]
    threads : int
        How many cores took part, [-]
    how : str
        In words.
    """

    memory_bandwidth: float
    copy_bandwidth: float
    read_bandwidth: float
    matrix_rate: float
    threads: int
    how: str


def _threads() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _best(act: Callable[[], object], work: float, seconds: float) -> float:
    """Return work over the shortest of the runs that fit into a time."""
    act()  # pages are touched and caches filled before the clock runs
    best, until = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() >= until:
            return work / best


def memory_bandwidth(*, seconds: float = 1.0, megabytes: int = 256) -> tuple[float, float]:
    """Measure copying and reading with all cores.

    Parameters
    ----------
    seconds : float, optional
        Time for each of the two, [s]
    megabytes : int, optional
        Size of all arrays together, which must not fit any cache, [MB]

    Returns
    -------
    tuple of (float, float)
        Bytes read and written by a copy, bytes read by a dot product, both for each second, [B/s]

    Notes
    -----
    Each thread works on memory it touched first, so that it lies on its own NUMA node. A copy moves a third more than
    is counted where stores first read the line.

    Examples
    --------
    >>> copy, read = memory_bandwidth(seconds=0.01, megabytes=16)
    >>> copy > 0 and read > 0
    True
    """
    threads = _threads()
    count = max(megabytes * 10**6 // 4 // 2 // threads, 1024)
    with ThreadPoolExecutor(threads) as pool:
        pairs = list(pool.map(lambda _: (np.ones(count, np.float32), np.zeros(count, np.float32)), range(threads)))
        size = float(count * 4 * threads)

        def copy() -> None:
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))

        def read() -> None:
            list(pool.map(lambda pair: (pair[0].max(), pair[1].max()), pairs))

        return _best(copy, 2 * size, seconds), _best(read, 2 * size, seconds)


def matrix_rate(*, seconds: float = 1.0, size: int = 1536) -> float:
    """Measure an FP32 matrix product with numpy's BLAS on all cores.

    Parameters
    ----------
    seconds : float, optional
        Time, [s]
    size : int, optional
        Rows and columns of both matrices, [-]

    Returns
    -------
    float
        Rate, [FLOP/s]

    Examples
    --------
    >>> matrix_rate(seconds=0.01, size=256) > 0
    True
    """
    generator = np.random.default_rng(0)
    one, other = (generator.random((size, size), dtype=np.float32) for _ in range(2))
    out = np.empty_like(one)
    return _best(lambda: np.matmul(one, other, out=out), 2.0 * size**3, seconds)


def measure_cpu(*, seconds: float = 1.0, progress: Callable[[str], None] | None = None) -> CpuRates:
    """Measure memory bandwidth and matrix rate of this machine's CPU.

    Parameters
    ----------
    seconds : float, optional
        Time for each of the three measurements, [s]
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    CpuRates
        The rates.

    Examples
    --------
    >>> measure_cpu(seconds=0.01).threads >= 1
    True
    """
    say = progress or (lambda _: None)
    say("measuring memory bandwidth")
    copy, read = memory_bandwidth(seconds=seconds)
    say("measuring the matrix rate")
    rate = matrix_rate(seconds=seconds)
    threads = _threads()
    how = f"numpy copy {copy / 1e9:.1f} GB/s and read {read / 1e9:.1f} GB/s, FP32 product, {threads} threads"
    return CpuRates(max(copy, read), copy, read, rate, threads, how)
