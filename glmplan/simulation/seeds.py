"""Seeds of independent random streams, derived from one seed."""

from __future__ import annotations

import numpy as np

__all__ = ["stream_seed"]


def stream_seed(seed: int, *key: int) -> int:
    """Return the seed of one of the independent streams of a question.

    - `*key`: Which stream, such as number of the service and of the arrival sample.
    - Returns: 64 bits. Sums such as ``1000 * seed + number`` give the same stream to neighbouring seeds; these do
      not.

    References
    ----------
    .. [1] NumPy, "Parallel random number generation", `SeedSequence.spawn`: the key is hashed together with the seed.

    Examples
    --------
    >>> stream_seed(0, 1, 2) == stream_seed(0, 1, 2), len({stream_seed(s, w) for s in range(9) for w in range(9)})
    (True, 81)
    """
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0])
