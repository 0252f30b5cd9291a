"""Waiting in front of servers in closed form: Erlang C, one and many servers, processor sharing. Arrays throughout.

References
----------
.. [1] L. Kleinrock, "Queueing Systems", vol. 1, Wiley 1975 (M/M/1, M/M/c, M/G/1, processor sharing).
.. [2] T. Kimura, "Approximations for multi-server queues: system interpolations", Queueing Systems 17, 1994 (M/G/k from
   the number of servers and the variability of service).
"""

from __future__ import annotations

import numpy as np

__all__ = ["erlang_c", "mean_wait", "processor_sharing_time", "wait_quantile"]


def erlang_c(*, load: np.ndarray, servers: np.ndarray | int) -> np.ndarray:
    """Probability that an arrival has to wait for one of several servers.

    Parameters
    ----------
    load : ndarray
        Offered load: arrivals per second times mean service time, [-]
    servers : ndarray
        Servers, [-]

    Returns
    -------
    ndarray
        Probability; 1 where the load is not below the servers, [-]

    Notes
    -----
    The recursion of Erlang B is run to the largest number of servers and each point takes its value where it belongs.

    Examples
    --------
    >>> erlang_c(load=np.array([0.5, 8.0]), servers=np.array([1, 10])).round(4).tolist()
    [0.5, 0.4092]
    """
    load, servers = np.broadcast_arrays(np.asarray(load, dtype=float), np.asarray(servers))
    blocked = np.ones(load.shape)
    for server in range(1, int(servers.max(initial=1)) + 1):
        step = load * blocked / (server + load * blocked)
        blocked = np.where(server <= servers, step, blocked)
    share = load / servers
    waits = blocked / np.maximum(1 - share * (1 - blocked), 1e-300)
    return np.where(share < 1, np.minimum(waits, 1.0), 1.0)


def mean_wait(
    *, rate: np.ndarray, service: np.ndarray, service_cv: np.ndarray | float = 1.0, servers: np.ndarray | int = 1
) -> np.ndarray:
    """Mean time in the queue of M/G/k: exact for one server and for exponential service, close elsewhere.

    Parameters
    ----------
    rate : ndarray
        Arrivals, [1/s]
    service : ndarray
        Mean service time, [s]
    service_cv : ndarray, optional
        Its standard deviation over its mean; 0 for equal times, 1 for exponential ones, [-]
    servers : ndarray, optional
        Servers, [-]

    Returns
    -------
    ndarray
        Mean wait; infinite where arrivals exceed what the servers can do, [s]

    Notes
    -----
    Lee and Longton: the exact wait of M/M/k times (1 + cv²)/2.

    Examples
    --------
    >>> mean_wait(rate=np.array([0.5]), service=np.array([1.0]), service_cv=np.array([0.0])).tolist()
    [0.5]
    """
    load = rate * service
    spare = servers - load
    waits = erlang_c(load=load, servers=servers) * service / np.where(spare > 0, spare, 1.0)
    return np.where(spare > 0, waits * (1 + service_cv**2) / 2, np.inf)


def wait_quantile(
    *,
    rate: np.ndarray,
    service: np.ndarray,
    percent: float,
    service_cv: np.ndarray | float = 1.0,
    servers: np.ndarray | int = 1,
) -> np.ndarray:
    """Time in the queue that a share of arrivals does not exceed: exact for M/M/k, scaled for other service times.

    Parameters
    ----------
    rate : ndarray
        Arrivals, [1/s]
    service : ndarray
        Mean service time, [s]
    percent : float
        The share, [%]
    service_cv : ndarray, optional
        Its standard deviation over its mean, [-]
    servers : ndarray, optional
        Servers, [-]

    Returns
    -------
    ndarray
        Wait, [s]

    Examples
    --------
    >>> wait_quantile(rate=np.array([0.5]), service=np.array([1.0]), percent=50).tolist()
    [0.0]
    """
    waiting = erlang_c(load=rate * service, servers=servers)
    mean = mean_wait(rate=rate, service=service, service_cv=service_cv, servers=servers)
    late = 1 - percent / 100
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = mean / waiting * np.log(np.maximum(waiting / late, 1.0))
    return np.where(np.isinf(mean), np.inf, np.where(waiting > late, tail, 0.0))


def processor_sharing_time(*, rate: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Mean time in a system that shares its capacity equally among all that are in it (M/G/1-PS).

    Parameters
    ----------
    rate : ndarray
        Arrivals, [1/s]
    service : ndarray
        Mean time a request takes alone, [s]

    Returns
    -------
    ndarray
        Mean time; it depends on the mean of the service time only; infinite from full load on, [s]

    Examples
    --------
    >>> processor_sharing_time(rate=np.array([0.5]), service=np.array([1.0])).tolist()
    [2.0]
    """
    load = rate * service
    return np.where(load < 1, service / np.maximum(1 - load, 1e-300), np.inf)
