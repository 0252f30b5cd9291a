"""The time of one engine step: kernel times and counts, turned into seconds by what the engine adds to them.

This is the one step-time function of accelerators that hold all weights. `fit`, `predict`, `simulate` and `calibrate`
all call it; `glmplan.physics.step.model` says what other machines answer in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glmplan.physics.step.work import SLOTS

__all__ = ["COMPONENTS", "PARAMETERS", "StepTime", "step_time"]

#: parameters of the step time; each multiplies one column of the work table.
#: Counts are multiplied by seconds, kernel times by a slow-down against the kernel measured alone [-].
PARAMETERS: tuple[str, ...] = tuple(f"{slot}_{'seconds' if counted else 'slowdown'}" for slot, counted in (
    ("host", True), ("layer", True), ("moe_layer", True), ("state_layer", True), ("request", True),
    ("activation", False), ("gemm_fixed", False), ("gemm_bytes", False), ("gemm_flop", False),
    ("expert_fixed", False), ("expert_bytes", False), ("expert_flop", False), ("attention_fixed", False),
    ("cache", False), ("prefill_attention", False), ("collective", False), ("collective_bytes", False),
    ("arrival", True), ("prompt_token", True), ("wake", True),
))  # fmt: skip

#: what binds: group of parameters → words for people
COMPONENTS: dict[str, tuple[str, ...]] = {
    "launch": ("host", "layer", "moe_layer", "state_layer", "request", "gemm_fixed", "expert_fixed", "attention_fixed"),
    "weights": ("gemm_bytes", "expert_bytes"),
    "compute": ("gemm_flop", "expert_flop", "prefill_attention", "activation"),
    "cache": ("cache",),
    "links": ("collective", "collective_bytes"),
    "front end": ("arrival", "prompt_token", "wake"),
}


@dataclass(frozen=True, slots=True, eq=False)
class StepTime:
    """A step time and what it is made of.

    Attributes
    ----------
    seconds : (n,) array
        Time of the step, [s]
    shares : (n, k) array
        Share of each part in it; rows add up to 1, [-]. Of accelerators the parts are the 20 `PARAMETERS`, and their
        shares are also the derivative of the logarithm of the time by the logarithm of the parameter.
    """

    seconds: np.ndarray
    shares: np.ndarray


def step_time(work: Mapping[str, np.ndarray] | np.ndarray, log_parameters: np.ndarray) -> StepTime:
    """Time of each step.

    Parameters
    ----------
    work : dict of (n,) arrays, or (n, 20) array
        Kernel times and counts, as `glmplan.physics.step.work.step_work` gives them, [s] or [-]
    log_parameters : (20,) or (n, 20) array
        Natural logarithms of `PARAMETERS`, [log s] or [-]

    Returns
    -------
    StepTime
        Seconds and shares.

    Notes
    -----
    ``t = Σ counts · latency + Σ kernel times · slow-down``: kernels follow each other; within a kernel bytes and FLOP
    overlap as its own fit says. Not modelled: two streams at once, clocks that fall under load.

    Examples
    --------
    >>> work = np.zeros((1, 20))
    >>> work[0, 0] = 1.0                  # one engine step
    >>> float(step_time(work, np.full(20, np.log(2e-3))).seconds[0])
    0.002
    """
    table = (
        work if isinstance(work, np.ndarray) else np.stack([np.asarray(work[slot], float) for slot in SLOTS], axis=1)
    )
    scaled = table * np.exp(log_parameters)
    seconds = scaled.sum(axis=1)
    return StepTime(seconds, scaled / np.maximum(seconds, 1e-300)[:, None])
