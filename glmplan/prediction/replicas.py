"""Split users over replicas into whole users on each, and add up what the replicas do.

Three users of two replicas are two on one and one on the other: no replica serves one and a half. Replicas whose load
is the same are one part of the split. Rates of the parts add up; the mean time of a request weighs each part by the
requests that it completes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from glmplan.prediction.load import Load

__all__ = ["Split", "added", "split_users", "whole_loads"]

_WHOLE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Loads split into parts of replicas with equal numbers of users.

    Attributes
    ----------
    load : (k,) array of int
        Load that each part belongs to; the parts of a load follow each other, the fullest replicas first, [-]
    users : (k,) array of int
        Users of each replica of the part, [-]
    replicas : (k,) array of int
        Replicas of the part, [-]
    """

    load: np.ndarray
    users: np.ndarray
    replicas: np.ndarray


def split_users(users: np.ndarray, replicas: int) -> Split:
    """Split the users of each load over replicas, as evenly as whole users allow.

    - `replicas`: Replicas; of fewer users only as many serve any.
    - Returns: One part of each load whose users divide evenly, two of any other.

    Examples
    --------
    >>> found = split_users(np.array([4, 3, 1]), 2)
    >>> found.load.tolist(), found.users.tolist(), found.replicas.tolist()
    ([0, 1, 1, 2], [2, 2, 1, 1], [2, 1, 1, 1])
    """
    users = np.asarray(users, dtype=np.int64)
    busy = np.minimum(replicas, users)
    fewer, fuller = users // busy, users % busy
    parts = np.stack([fewer + 1, fewer], axis=1), np.stack([fuller, busy - fuller], axis=1)
    loads = np.broadcast_to(np.arange(len(users))[:, None], (len(users), 2))
    there = parts[1] > 0
    return Split(loads[there], parts[0][there], parts[1][there])


def whole_loads(load: Load) -> tuple[Load, ...]:
    """Split a load whose replicas do not have a whole number of users each.

    - `load`: The load of one replica in the mean.
    - Returns: The load itself where each replica has the same; else those of the fuller replicas and of the others.

    Examples
    --------
    >>> [(one.concurrency, one.replicas) for one in whole_loads(Load("serving", 1.5, 100, 10, replicas=2))]
    [(2.0, 1), (1.0, 1)]
    """
    users = load.concurrency * load.replicas
    whole = round(users)
    if load.replicas == 1 or whole % load.replicas == 0 or abs(users - whole) > _WHOLE * users:
        return (load,)
    found = split_users(np.array([whole]), load.replicas)
    return tuple(
        replace(load, concurrency=float(each), replicas=int(count))
        for each, count in zip(found.users, found.replicas, strict=True)
    )


def added(
    load: np.ndarray, rates: Mapping[str, np.ndarray], times: Mapping[str, np.ndarray], requests: np.ndarray
) -> dict[str, np.ndarray]:
    """Add up the parts of each load.

    - `rates`: Rates of each part, of all its replicas together, [token/s].
    - `times`: Mean times of a request of each part, [s].
    - `requests`: What the requests that each part completes are proportional to.
    - Returns: Sums of rates, and means of times over all requests.

    Examples
    --------
    >>> rates, times = {"rate": np.array([3.0, 1.0])}, {"time": np.array([2.0, 6.0])}
    >>> found = added(np.array([0, 0]), rates, times, np.array([3, 1]))
    >>> found["rate"].tolist(), found["time"].tolist()
    ([4.0], [3.0])
    """
    first = np.flatnonzero(np.diff(load, prepend=-1))
    if len(first) == len(load):
        return {**rates, **times}
    whole = np.add.reduceat(requests, first)
    means = {name: np.add.reduceat(one * requests, first) / whole for name, one in times.items()}
    return {name: np.add.reduceat(one, first) for name, one in rates.items()} | means
