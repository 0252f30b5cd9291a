"""How much of its link a card keeps when it exchanges with several peers at once.

A card that sends to one peer and receives from one keeps nearly all of it; with three peers it was measured to keep
six tenths, with seven less than half, whatever the switches above it. Uplinks that peers share are another matter
(`glmplan.physics.network.tree`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["crowding"]

#: Peers of the exchanges that were measured: pairs, groups of four, groups of eight, [-]
_PEERS = (1.0, 3.0, 7.0)


def crowding(peers: ArrayLike, shares: Mapping[str, float], *, writes: bool = True) -> NDArray[np.float64]:
    """Return what a card keeps each way when it exchanges with peers at once, of what one way reaches alone.

    Parameters
    ----------
    peers : array_like
        Cards that it sends to and receives from at the same time, shape (n,) or scalar, [-]
    shares : mapping
        Fitted shares (`LinkFits.scalars`), [-]
    writes : bool, optional
        Whether senders push or receivers pull.

    Returns
    -------
    ndarray
        Share, shape (n,) or scalar; between the measured numbers of peers on straight lines over their logarithm,
        beyond them as at the nearest, [-]

    Examples
    --------
    >>> measured = {"duplex": 0.98, "mesh_write": 0.62, "mesh_write_8": 0.45}
    >>> crowding([1, 3, 7, 15], measured).tolist()
    [0.98, 0.62, 0.45, 0.45]
    """
    names = ("duplex", "mesh_write", "mesh_write_8") if writes else ("duplex", "mesh_read", "mesh_read_8")
    # one way alone and both ways were measured with different tools: company never makes a card faster
    known = np.minimum([shares[name] for name in names], 1.0)
    count = np.maximum(np.asarray(peers, dtype=np.float64), 1.0)
    return np.asarray(np.interp(np.log(count), np.log(_PEERS), known))
