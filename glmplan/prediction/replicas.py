"""Distribute users over replicas, and add the replicas' metrics.

Three users on two replicas are two on one and one on the other, not one and a half on each. Equal replicas are one part
of the split. Rates add up; mean times of requests weigh each part by its completed requests.
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
    """Loads split into parts of equally loaded replicas, the fullest first."""

    load: np.ndarray  # (k,): load of each part
    users: np.ndarray  # (k,): users of each replica
    replicas: np.ndarray  # (k,)


def split_users(users: np.ndarray, replicas: int) -> Split:
    """Return the users of each load split evenly over replicas.

    The result has one part if users divide evenly, else two. With fewer users than replicas, the others stay idle.

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
    """Return the loads of replicas with whole numbers of users.

    `load` is the mean over replicas; it is returned if its concurrency is whole. Data-parallel ranks on which requests
    wait are split too: a load where all ranks are as full as the fuller ones, and one where none is, each with the
    share of its ranks as replicas.

    Examples
    --------
    >>> [(one.concurrency, one.replicas) for one in whole_loads(Load(1.5, 100, 10, replicas=2, phase="serving"))]
    [(2.0, 1), (1.0, 1)]
    >>> [(one.concurrency, one.replicas) for one in whole_loads(Load(5.0, 100, 10, max_requests=4, ranks=4))]
    [(8.0, 0.25), (4.0, 0.75)]
    """
    return tuple(part for one in _of_replicas(load) for part in _of_ranks(one))


def _of_ranks(load: Load) -> tuple[Load, ...]:
    whole = load.concurrency.is_integer()  # a mean over a run is no number of users
    few, more = divmod(int(load.concurrency), load.ranks) if whole else (0, 0)
    if load.phase != "serving" or not (few and more) or few + 1 <= load.max_requests // load.ranks:
        return (load,)
    share = more / load.ranks
    return (
        replace(load, concurrency=float((few + 1) * load.ranks), replicas=load.replicas * share),
        replace(load, concurrency=float(few * load.ranks), replicas=load.replicas * (1.0 - share)),
    )


def _of_replicas(load: Load) -> tuple[Load, ...]:
    users = load.concurrency * load.replicas
    total = round(users)
    if load.replicas == 1 or total % load.replicas == 0 or abs(users - total) > _WHOLE * users:
        return (load,)
    parts = split_users(np.array([total]), int(load.replicas))
    return tuple(
        replace(load, concurrency=float(each), replicas=int(count))
        for each, count in zip(parts.users, parts.replicas, strict=True)
    )


def added(
    load: np.ndarray, rates: Mapping[str, np.ndarray], times: Mapping[str, np.ndarray], requests: np.ndarray
) -> dict[str, np.ndarray]:
    """Return summed rates and mean times of the parts of each load.

    `rates` are of all replicas of a part; `requests` is proportional to the completed requests of a part.

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
