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

#: what takes the time of a step, in the order of the columns of `offload_step_seconds`
COSTS: tuple[str, ...] = ("launch", "weights", "cache", "compute", "host", "links")


def host_seconds(work: OffloadWork, side: HostSide, *, mode: Mode, fit: OffloadFit) -> np.ndarray:
    """Time that the offloaded part takes on the host, and on the links of the accelerators.

    Parameters
    ----------
    work : OffloadWork
        Work of the steps.
    side : HostSide
        The host.
    mode : {'cpu', 'stream', 'touched'}
        Who computes.
    fit : OffloadFit
        Constants.

    Returns
    -------
    (n, 2) array
        On the host, and on the links, [s]

    Raises
    ------
    UnknownFact
        If weights are streamed over a link that is not known.

    Notes
    -----
    On the CPU: bytes over the reached bandwidth or FLOP over the cores' rate, whichever takes longer; prompts multiply
    matrices instead of vectors and have a rate of their own. Streamed: the host makes the weights ready, then the
    accelerators fetch them over their links, all at once. Not modelled: a second copy of the weights in another
    socket's memory, pageable memory.

    Examples
    --------
    >>> none = np.zeros(1)
    >>> work = OffloadWork(np.array([12.5e9]), np.array([41e9]), none, np.array([400e9]), 58, none, none, none, none)
    >>> fit = OffloadFit(0.5, 0.5, 1e-4, {"amx": 1e11}, {"amx": 1e11}, 0.1, 0.8, 0.3, 0.5, 0.8, 1e-4, {})
    >>> host_seconds(work, HostSide(500e9, 1, 64, 25e9, "amx"), mode="cpu", fit=fit).tolist()
    [[0.05, 0.0]]
    """
    if mode == "cpu":
        reached = fit.host_bandwidth * side.bandwidth / side.sockets
        if side.numa_aware:
            reached *= 1.0 + fit.next_socket * (side.sockets - 1)
        cores = float(side.cores) if side.cores else np.inf
        flop = work.host_flop / (fit.core_rate[side.kernel] * cores)
        flop = flop + work.host_prompt_flop / (fit.prefill_core_rate[side.kernel] * cores)
        computed = np.maximum(work.host_bytes / reached, flop)
        return np.stack([computed, np.zeros_like(computed)], axis=1)
    if side.link <= 0 and np.any(work.held_bytes > 0):
        raise UnknownFact("streaming needs the PCIe links of the accelerators, which are not known")
    moved = moved_bytes(work, mode)
    return np.stack([moved / (fit.copy * side.bandwidth), moved / max(side.link, 1e-300)], axis=1)


def moved_bytes(work: OffloadWork, mode: Mode) -> np.ndarray:
    """Weights that cross the links in a step.

    Parameters
    ----------
    work : OffloadWork
        Work of the steps.
    mode : {'cpu', 'stream', 'touched'}
        Who computes.

    Returns
    -------
    (n,) array
        All accelerators together, [B]
    """
    return {"cpu": 0.0 * work.host_bytes, "stream": work.held_bytes, "touched": work.host_bytes}[mode]


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
    (n, 3) array
        For weights, for the cache and for arithmetic; where arithmetic takes longer than reading it hides the other
        two, which are then 0, [s]

    Notes
    -----
    A roofline with one share for each peak: this part of a hybrid step is small, and the parts that hybrid machines
    use were not measured kernel by kernel. A part without a published matrix rate counts bytes only.
    """
    nothing = np.zeros_like(work.own_bytes)
    if part is None:
        return np.stack([nothing, nothing, nothing], axis=1)
    streamed = float(mode != "cpu")
    bandwidth = max(count, 1) * part.need("memory_bandwidth")
    weights = (work.own_bytes + streamed * work.host_bytes) / (fit.accelerator_bandwidth * bandwidth)
    cache = work.cache_bytes / (fit.accelerator_cache * bandwidth)
    peaks = {str(name): rate for name, rate in part.peak.items()}
    peak = peaks.get(work.compute) or peaks.get("bf16")
    if not peak:
        return np.stack([weights, cache, nothing], axis=1)
    flop = work.own_flop + streamed * (work.host_flop + work.host_prompt_flop)
    arithmetic = flop / (max(count, 1) * fit.accelerator_flop * peak)
    hidden = arithmetic > weights + cache
    return np.stack([np.where(hidden, 0.0, one) for one in (weights, cache)] + [np.where(hidden, arithmetic, 0.0)], 1)


def offload_step_seconds(
    work: OffloadWork,
    side: HostSide,
    part: Accelerator | None,
    *,
    count: int,
    mode: Mode = "cpu",
    fit: OffloadFit | None = None,
) -> np.ndarray:
    """Time of steps with a part of the weights in host memory, by what takes it.

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
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    (n, 6) array
        One column for each of `COSTS`; the step takes their sum, [s]

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
    >>> from glmplan.physics.points import StepPoints
    >>> users, none = np.array([1.0, 4.0]), np.zeros(2)
    >>> work = offload_work(load_model("deepseek-v3"), uniform_checkpoint("int4"), Placement(1.0),
    ...                     StepPoints(users, none + 1000.0, none, none))
    >>> step = offload_step_seconds(work, HostSide(614.4e9, 2, 64), load_accelerator("rtx-4090"), count=1).sum(axis=1)
    >>> bool(step[1] > step[0])
    True
    """
    fit = fit or load_offload_fit()
    own = accelerator_seconds(work, part, count=count, mode=mode, fit=fit)
    launch = work.layers * fit.layer_seconds
    return np.concatenate([launch[:, None], own, host_seconds(work, side, mode=mode, fit=fit)], axis=1)
