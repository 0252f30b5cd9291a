"""What a part can do at best: the roofline of a step, below which no time can be."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from glmplan.facts.engines.kernels import KernelRule
from glmplan.physics.kernels.utilisation import KernelParams
from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.structure import StepWork
from glmplan.physics.step.work import step_work

__all__ = ["BOUND", "ROUTED", "Perfect", "least_seconds"]

#: kernel times that the data sheet bounds
BOUND: tuple[str, ...] = ("gemm_bytes", "gemm_flop", "expert_bytes", "expert_flop", "cache", "prefill_attention")
#: how many times faster than its memory a part's cache is at most: the largest of the kernel fits [-]
_CACHE = 8.0
#: share of the time of routed experts that remains where tokens are routed unevenly and touch fewer of them [-]
ROUTED = 0.8


class Perfect(StepWork):
    """Kernels that reach the data sheet: no launch, all of the bandwidth and of the FLOP rate; links are left out."""

    counts_links = False

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Parameters of a kernel at its best.

        Parameters
        ----------
        kernel : str
            Class of kernel.
        form : str or KernelRule
            How weights are stored or multiplied.

        Returns
        -------
        KernelParams
            The same for all.
        """
        return KernelParams(floor=0.0, bandwidth=1.0, flop=1.0, sharpness=32.0, cache_gain=_CACHE, cache_bytes=np.inf)

    @classmethod
    def of(cls, given: StepWork) -> Perfect:
        """The same structure with such kernels."""
        # products are those of the model and its formats, whatever runs them: they are not made a second time
        return given.shared_with(cls(**{one.name: getattr(given, one.name) for one in fields(StepWork)}))


def least_seconds(structure: StepWork, *, layout: Layout, points: StepPoints) -> np.ndarray:
    """Time that steps take at least: all bytes at the data-sheet bandwidth, all FLOP at the peak rate.

    Parameters
    ----------
    structure : StepWork
        Model, formats, part.
    layout : Layout
        Parallel degrees, [-]
    points : StepPoints
        What the steps hold, (n,) arrays.

    Returns
    -------
    (n,) array
        [s]

    Notes
    -----
    Launches, links and the front end are left out, caches of the part may be eight times faster than its memory, and
    of routed experts a share of 0.8 is kept, but of a single token, whose experts all differ. For processors it is
    zero: their caches can hold a small model.
    """
    if structure.part.is_processor:
        return np.zeros(np.broadcast(points.decode_requests, points.prefill_tokens).shape)
    work = step_work(Perfect.of(structure), layout=layout, points=points)
    alone = (points.decode_requests <= 1.0) & (points.prefill_tokens == 0.0) & (structure.draft_tokens == 0)
    routed = np.where(alone, 1.0, ROUTED)
    return np.sum([work[slot] * (routed if slot.startswith("expert") else 1.0) for slot in BOUND], axis=0)
