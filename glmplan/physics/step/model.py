"""What every model of a step time answers, whatever machine it is for.

Three answer it: `glmplan.physics.step.gpu` (kernels, slowed down by what was learnt),
`glmplan.physics.offload.hosted_steps` (weights in host memory) and `glmplan.physics.offload.one_memory_steps` (one
memory for processor and accelerator). What a run measures is the same weighted sum of step times for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from glmplan.physics.points import StepPoints
from glmplan.physics.step.time import StepTime

__all__ = ["FrontPoints", "StepModel", "step_times"]


@dataclass(frozen=True, slots=True, eq=False)
class FrontPoints:
    """Work of the front end outside of steps; rows with any hold no step.

    Attributes
    ----------
    arrivals : (n,) array
        Requests that arrive, [-]
    prompt : (n,) array
        Prompt tokens that are read, [token]
    pass_tokens : float
        Tokens computed before a first token, which decides whether the pass replays graphs, [token]
    wakes : (n,) array or float
        Requests that find nobody there, [-]
    """

    arrivals: np.ndarray
    prompt: np.ndarray
    pass_tokens: float = 0.0
    wakes: np.ndarray | float = 0.0


@runtime_checkable
class StepModel(Protocol):
    """Seconds of the steps of one deployment, and what they are made of."""

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """What a step is made of: name → columns of `StepTime.shares`."""
        ...

    @property
    def times_prompts(self) -> bool:
        """Whether steps with prompts can be timed; else only decoding is answered."""
        ...

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Time of steps.

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.
        front : FrontPoints, optional
            Work of the front end beside them; none by default.

        Returns
        -------
        StepTime
            (n,) seconds [s] and (n, k) shares [-].
        """
        ...


def step_times(costs: np.ndarray) -> StepTime:
    """Seconds and shares from what takes the time of each step.

    Parameters
    ----------
    costs : (n, k) array
        Time of each part of a step; parts follow each other, [s]

    Returns
    -------
    StepTime
        The sums, and the share of each part; 0 where there is no step.

    Examples
    --------
    >>> found = step_times(np.array([[1.0, 3.0]]))
    >>> found.seconds.tolist(), found.shares.tolist()
    ([4.0], [[0.25, 0.75]])
    """
    seconds = costs.sum(axis=1)
    return StepTime(seconds, costs / np.maximum(seconds, 1e-300)[:, None])
