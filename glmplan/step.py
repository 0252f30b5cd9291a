"""The time of one engine step: work at peak rates, turned into seconds by fitted efficiencies and latencies.

This is the one step-time function. `fit`, `predict`, `simulate` and `calibrate` all call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glmplan.work import SLOTS

__all__ = ["COMPONENTS", "EXPONENT", "PARAMETERS", "StepTime", "step_time"]

#: parameters of the step time; each multiplies one column of the work table.
#: Counts are multiplied by seconds, peak times by a slow-down (1 / utilisation) [-].
PARAMETERS: tuple[str, ...] = tuple(f"{slot}_{'seconds' if counted else 'slowdown'}" for slot, counted in (
    ("host", True), ("layer", True), ("moe_layer", True), ("state_layer", True), ("request", True),
    ("activation", False), ("wide_bytes", False), ("wide_flop", False), ("quantised_bytes", False),
    ("quantised_flop", False), ("expert_bytes", False), ("expert_flop", False), ("cache_bytes", False),
    ("cache_flop", False), ("prefill_attention", False), ("collective", True), ("collective_bytes", False),
    ("arrival", True), ("prompt_token", True),
))  # fmt: skip

#: bytes and FLOP of one class overlap almost wholly: the time is their p-norm with this exponent, a smooth maximum [-]
EXPONENT = 3.0
_PAIRS = (("wide_bytes", "wide_flop"), ("quantised_bytes", "quantised_flop"), ("expert_bytes", "expert_flop"),
          ("cache_bytes", "cache_flop"))  # fmt: skip
_INDEX = {slot: place for place, slot in enumerate(SLOTS)}

#: what binds: group of parameters → words for people
COMPONENTS: dict[str, tuple[str, ...]] = {
    "launch": ("host", "layer", "moe_layer", "state_layer", "request"),
    "weights": ("wide_bytes", "quantised_bytes", "expert_bytes"),
    "compute": ("wide_flop", "quantised_flop", "expert_flop", "prefill_attention", "activation"),
    "cache": ("cache_bytes", "cache_flop"),
    "links": ("collective", "collective_bytes"),
    "front end": ("arrival", "prompt_token"),
}


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step time and what it is made of.

    Attributes
    ----------
    seconds : (n,) array
        Time of the step, [s]
    shares : (n, 19) array
        Share of each parameter in it, in the order of `PARAMETERS`; rows add up to 1, [-]. Also the derivative of
        the logarithm of the time by the logarithm of the parameter.
    """

    seconds: np.ndarray
    shares: np.ndarray

    def share_of(self, component: str) -> np.ndarray:
        """Share of a group of parameters.

        Parameters
        ----------
        component : str
            One of `COMPONENTS`.

        Returns
        -------
        (n,) array
            [-]
        """
        return self.shares[:, [_INDEX[slot] for slot in COMPONENTS[component]]].sum(axis=1)


def step_time(work: Mapping[str, np.ndarray] | np.ndarray, log_parameters: np.ndarray) -> StepTime:
    """Time of each step.

    Parameters
    ----------
    work : dict of (n,) arrays, or (n, 19) array
        Work at peak rates, as `glmplan.work.step_work` gives it, [s] or [-]
    log_parameters : (19,) or (n, 19) array
        Natural logarithms of `PARAMETERS`, [log s] or [-]

    Returns
    -------
    StepTime
        Seconds and shares.

    Notes
    -----
    ``t = Σ counts·latency + Σ_class ((bytes/BW·a)^p + (FLOP/peak·b)^p)^(1/p) + activation + prefill attention +
    collectives``; the p-norm is the smooth roofline of [1]_. Classes follow each other; nothing else overlaps.

    References
    ----------
    .. [1] Williams, Waterman, Patterson, "Roofline", CACM 52 (2009).

    Examples
    --------
    >>> work = np.zeros((1, 19))
    >>> work[0, 0] = 1.0                  # one engine step
    >>> float(step_time(work, np.full(19, np.log(2e-3))).seconds[0])
    0.002
    """
    table = (
        work if isinstance(work, np.ndarray) else np.stack([np.asarray(work[slot], float) for slot in SLOTS], axis=1)
    )
    scaled = table * np.exp(log_parameters)
    seconds = np.zeros(len(table))
    paired = set()
    shares = scaled.copy()
    for first, second in _PAIRS:
        a, b = scaled[:, _INDEX[first]], scaled[:, _INDEX[second]]
        paired |= {first, second}
        top = np.maximum(np.maximum(a, b), 1e-300)
        x, y = (a / top) ** EXPONENT, (b / top) ** EXPONENT
        norm = x + y
        joint = top * norm ** (1.0 / EXPONENT)
        joint = np.where(a + b > 0, joint, 0.0)
        split = np.maximum(norm, 1e-300)
        shares[:, _INDEX[first]] = joint * x / split
        shares[:, _INDEX[second]] = joint * y / split
        seconds = seconds + joint
    for slot in SLOTS:
        if slot not in paired:
            seconds = seconds + scaled[:, _INDEX[slot]]
    return StepTime(seconds, shares / np.maximum(seconds, 1e-300)[:, None])
