"""What a part can do at best: the roofline of a step, below which no time can be."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from glmplan.facts.engines.kernels import KernelRule
from glmplan.facts.remembered import remembered
from glmplan.physics.kernels.utilisation import KernelParams
from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.structure import StepWork
from glmplan.physics.step.work import KERNELS, step_work

__all__ = ["BOUND", "ROUTED", "Perfect", "bounded_work", "least_seconds"]

#: kernel times that the data sheet bounds
BOUND: tuple[str, ...] = ("gemm_bytes", "gemm_flop", "expert_bytes", "expert_flop", "cache", "prefill_attention")
#: how many times faster than its memory a part's cache is at most: the largest of the kernel fits [-]
_CACHE = 8.0
#: share of the time of routed experts that remains where tokens are routed unevenly and touch fewer of them [-]
ROUTED = 0.8
_PERFECT = KernelParams(floor=0.0, bandwidth=1.0, flop=1.0, sharpness=32.0, cache_gain=_CACHE, cache_bytes=np.inf)


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
        return _PERFECT

    @classmethod
    def of(cls, given: StepWork) -> Perfect:
        """The same structure with such kernels."""
        # products are those of the model and its formats, whatever runs them: they are not made a second time
        return given.shared_with(cls(**{one.name: getattr(given, one.name) for one in fields(StepWork)}))


class _Beside(StepWork):
    """Kernels as they are and, in a second lane, such as reach the data sheet: what both need is computed once."""

    lanes = (2,)

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Both sets of parameters of a kernel, each a (2, 1) array."""
        return _beside(super().kernel(kernel, form))

    @classmethod
    def of(cls, given: StepWork) -> _Beside:
        """The same structure with such kernels."""
        return given.shared_with(cls(**{one.name: getattr(given, one.name) for one in fields(StepWork)}))


@remembered(most=1024)
def _beside(params: KernelParams) -> KernelParams:
    both: dict[str, Any] = {
        one.name: np.array([[getattr(params, one.name)], [getattr(_PERFECT, one.name)]]) for one in fields(KernelParams)
    }
    return replace(params, **both)


def bounded_work(
    structure: StepWork, *, layout: Layout, points: StepPoints
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The work of steps, and the time that they take at least, in one go.

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
    dict of str to (n,) array
        As `glmplan.physics.step.work.step_work` gives them, [s] or [-]
    (n,) array
        As `least_seconds` gives it, [s]
    """
    if structure.part.is_processor:
        least = least_seconds(structure, layout=layout, points=points)
        return step_work(structure, layout=layout, points=points), least
    both = step_work(_Beside.of(structure), layout=layout, points=points)
    least = _least({slot: both[slot][1] for slot in BOUND}, structure, points)
    return {slot: value[0] if slot in KERNELS else value for slot, value in both.items()}, least


def _least(work: dict[str, np.ndarray], structure: StepWork, points: StepPoints) -> np.ndarray:
    alone = (points.decode_requests <= 1.0) & (points.prefill_tokens == 0.0) & (structure.draft_tokens == 0)
    routed = np.where(alone, 1.0, ROUTED)
    return np.sum([work[slot] * (routed if slot.startswith("expert") else 1.0) for slot in BOUND], axis=0)


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
    return _least(step_work(Perfect.of(structure), layout=layout, points=points), structure, points)
