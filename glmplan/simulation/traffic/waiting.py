"""The share of the fitted waiting time that a load has."""

from __future__ import annotations

import numpy as np

__all__ = ["waiting_share"]

#: concurrency from which a prompt always waits for others [-]
_BUSY = 16.0


def waiting_share(concurrency: np.ndarray) -> np.ndarray:
    """Return the share of the fitted effect on TTFT at a concurrency.

    The factor on TTFT is fitted to busy servers: a prompt that waits for no other one does not need it.

    Examples
    --------
    >>> waiting_share(np.array([1.0, 4.0, 64.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    result: np.ndarray = np.minimum(np.log2(np.maximum(concurrency, 1.0)) / np.log2(_BUSY), 1.0)
    return result
