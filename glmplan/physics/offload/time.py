"""Weights in host memory: computed there by the CPU, or streamed to the accelerators in every step.

The step is the accelerators' part plus the host's part. Structure is looped over; points are arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import UnknownFact
from glmplan.physics.offload.host import HostSide, OffloadFit, host_side, load_offload_fit
from glmplan.physics.offload.work import Mode, OffloadWork, Placement, Unit, offload_work

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator

__all__ = [
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
    "offload_step_seconds",
    "offload_work",
]


def host_seconds(work: OffloadWork, side: HostSide, *, mode: Mode, prompt: bool, fit: OffloadFit) -> np.ndarray:
    """Time that the offloaded part takes.

    Parameters
    ----------
    work : OffloadWork
        Work of the steps.
    side : HostSide
        The host.
    mode : {'cpu', 'stream', 'touched'}
        Who computes.
    prompt : bool
        Whether the steps hold prompts: then the CPU multiplies matrices instead of vectors.
    fit : OffloadFit
        Constants.

    Returns
    -------
    (n,) array
        [s]

    Raises
    ------
    UnknownFact
        If weights are streamed over a link that is not known.

    Notes
    -----
    On the CPU: bytes over the reached bandwidth or FLOP over the cores' rate, whichever takes longer. Streamed: the
    host makes the weights ready, then the accelerators fetch them over their links, all at once. Not modelled: a second
    copy of the weights in another socket's memory, pageable memory.

    Examples
    --------
    >>> work = OffloadWork(np.array([12.5e9]), np.array([41e9]), 400e9, 58, *3 * [np.zeros(1)], 61)
    >>> fit = OffloadFit(0.5, 0.5, 1e-4, {"amx": 1e11}, {"amx": 1e11}, 0.1, 0.8, 0.3, 0.5, 0.8, 1e-4, {})
    >>> float(host_seconds(work, HostSide(500e9, 1, 64, 25e9, "amx"), mode="cpu", prompt=False, fit=fit)[0])
    0.05
    """
    reached = fit.host_bandwidth * side.bandwidth / side.sockets
    if side.numa_aware:
        reached *= 1.0 + fit.next_socket * (side.sockets - 1)
    if mode == "cpu":
        rates = fit.prefill_core_rate if prompt else fit.core_rate
        rate = rates[side.kernel] * side.cores if side.cores else np.inf
        return np.maximum(work.host_bytes / reached, work.host_flop / rate)
    if side.link <= 0:
        raise UnknownFact("streaming needs the PCIe links of the accelerators, which are not known")
    moved = work.host_bytes * 0.0 + work.held_bytes if mode == "stream" else work.host_bytes
    return moved / side.link + moved / (fit.copy * side.bandwidth)


def accelerator_seconds(
    work: OffloadWork, part: Accelerator | None, *, count: int, mode: Mode, fit: OffloadFit
) -> np.ndarray:
    """Time that the accelerators take for what they hold, and for what is streamed to them.

    Parameters
    ----------
    work : OffloadWork
        Work of the steps.
    part : Accelerator or None
        The part; None for a machine without one, 0 s then.
    count : int
        How many share the work, [-]
    mode : {'cpu', 'stream', 'touched'}
        Who computes the offloaded part.
    fit : OffloadFit
        Constants.

    Returns
    -------
    (n,) array
        [s]

    Notes
    -----
    A roofline with one share for each peak: this part of a hybrid step is small, and the parts that hybrid machines
    use were not measured kernel by kernel. A part without a published matrix rate counts bytes only.
    """
    if part is None:
        return np.zeros_like(work.own_bytes)
    streamed = float(mode != "cpu")
    weights = work.own_bytes + streamed * work.host_bytes
    bandwidth = max(count, 1) * part.need("memory_bandwidth")
    memory = weights / (fit.accelerator_bandwidth * bandwidth) + work.cache_bytes / (fit.accelerator_cache * bandwidth)
    peaks = {str(name): rate for name, rate in part.peak.items()}
    peak = peaks.get(work.compute) or peaks.get("bf16")
    if not peak:
        return memory
    flop = work.own_flop + streamed * work.host_flop
    return np.maximum(memory, flop / (max(count, 1) * fit.accelerator_flop * peak))


def offload_step_seconds(
    work: OffloadWork,
    side: HostSide,
    part: Accelerator | None,
    *,
    count: int,
    mode: Mode = "cpu",
    prompt: bool = False,
    fit: OffloadFit | None = None,
) -> np.ndarray:
    """Time of steps with a part of the weights in host memory.

    Parameters
    ----------
    work : OffloadWork
        Work of the steps.
    side : HostSide
        The host.
    part : Accelerator or None
        The accelerator; None for a machine without one.
    count : int
        Accelerators, [-]
    mode : {'cpu', 'stream', 'touched'}, optional
        Who computes the offloaded part.
    prompt : bool, optional
        Whether the steps hold prompts.
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    (n,) array
        [s]

    Notes
    -----
    Layers follow each other, so host and accelerators take turns and the times add up. Streaming with a prompt behind
    it overlaps in part; the measured runs fit a sum better than a maximum.

    References
    ----------
    .. [1] H. Chen et al., "KTransformers", SOSP 2025, doi 10.1145/3731569.3764843.

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> users = np.array([1.0, 4.0])
    >>> work = offload_work(load_model("deepseek-v3"), uniform_checkpoint("int4"), Placement(1.0),
    ...                     tokens=users, sequences=users, context=np.full(2, 1000.0))
    >>> step = offload_step_seconds(work, HostSide(614.4e9, 2, 64), load_accelerator("rtx-4090"), count=1)
    >>> bool(step[1] > step[0])
    True
    """
    fit = fit or load_offload_fit()
    step = accelerator_seconds(work, part, count=count, mode=mode, fit=fit) + work.layers * fit.layer_seconds
    if work.held_bytes > 0:
        step = step + host_seconds(work, side, mode=mode, prompt=prompt, fit=fit)
    return step
