"""How much later first tokens come than the steps that make them: prompts that meet others wait longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["AS_STEPS_SAY", "FirstTokens", "waiting_share"]

#: requests in flight from which a prompt always meets others [-]
_CROWD = 16.0


def waiting_share(concurrency: np.ndarray) -> np.ndarray:
    """How far a prompt of a server waits for others: nothing alone, all that was learnt from `_CROWD` on.

    Parameters
    ----------
    concurrency : array
        Requests in flight, [-]

    Returns
    -------
    array
        [-]

    Examples
    --------
    >>> waiting_share(np.array([1.0, 4.0, 64.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.minimum(np.log2(np.maximum(concurrency, 1.0)) / np.log2(_CROWD), 1.0)


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """What was learnt of first tokens beside the schedule of steps.

    Parameters
    ----------
    scale : float, optional
        Logarithm of how many times later they come where prompts always meet others, [-]
    ranks : int, optional
        Replicas of the simulator that are the data-parallel ranks of one server, [-]
    """

    scale: float = 0.0
    ranks: int = 1

    def later(self, in_flight: float, replicas: int = 1) -> float:
        """How many times later first tokens come than their steps alone say.

        Parameters
        ----------
        in_flight : float
            Requests in flight on all replicas together, [-]
        replicas : int, optional
            Replicas of the simulator, [-]

        Returns
        -------
        float
            [-]

        Examples
        --------
        >>> round(FirstTokens(scale=0.2).later(16.0), 4), FirstTokens(scale=0.2).later(1.0)
        (1.2214, 1.0)
        """
        servers = max(min(replicas // self.ranks, in_flight), 1.0)
        return math.exp(float(waiting_share(np.asarray(in_flight / servers))) * self.scale)


#: first tokens that come when their steps end
AS_STEPS_SAY = FirstTokens()
