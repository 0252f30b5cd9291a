"""How long a collective takes on a class of links: closed forms that broadcast over message sizes and group sizes.

Every form is latency plus bytes over bandwidth (Hockney). A group of one costs exactly nothing, by formula and not by
a branch. Which constants hold (launch, hop, efficiency) is not known here: they are arguments, fitted elsewhere.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
   IJHPCA 19 (2005): ring and tree costs.
.. [2] NVIDIA/nccl-tests issue 212 (2024-05-06): what an NVLink switch that reduces moves over each link.
.. [3] NVIDIA/nccl, src/device/prims_ll.h: protocol LL stores four bytes of data with four bytes of flag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmplan.units import BytesArray

__all__ = [
    "Algorithm",
    "LinkClass",
    "Protocol",
    "all_gather_time",
    "all_reduce_time",
    "point_to_point_time",
]

Algorithm = Literal["best", "ring", "tree", "one-shot", "two-shot", "switch"]

#: Share of what NCCL's protocol for small messages (LL) moves that is payload: every word carries a flag [3]_, [-]
FLAGGED_PAYLOAD = 0.5


@dataclass(frozen=True, slots=True)
class Protocol:
    """The constants of one way to run a collective.

    Parameters
    ----------
    launch : float
        Time that any group of more than one pays, whatever the size, [s]
    hop : float
        Time for each step along the ring, level of the tree, or peer to synchronise with, [s]
    efficiency : float
        Share of the link's line rate that payload reaches, [-]
    bulk_hop : float, optional
        Time for each step where steps wait for whole chunks (NCCL's protocol Simple), [s]. With it, `hop` is that of
        the protocol that flags every word (LL) and moves twice the bytes; the faster of the two runs. None for ways
        that have one protocol only.

    Examples
    --------
    >>> Protocol(launch=5e-6, hop=1e-6, efficiency=0.7).efficiency
    0.7
    """

    launch: float
    hop: float
    efficiency: float
    bulk_hop: float | None = None


@dataclass(frozen=True, slots=True)
class LinkClass:
    """What a group of ranks sees of the links between them.

    Parameters
    ----------
    kind : {'nvlink', 'xgmi', 'pcie', 'fabric', 'unified'}
        Family of the slowest link inside the group.
    bandwidth : float
        Line rate of one rank towards a neighbour, each direction, [B/s]
    mesh_bandwidth : float
        Line rate of one rank when all ranks send to all others at once; lower than `bandwidth` where uplinks are
        shared, [B/s]
    ring : Protocol
        Constants of ring algorithms, also used for trees, gathers and point-to-point sends.
    one_shot : Protocol, optional
        Constants of algorithms in which every rank reads all its peers at once; None where they cannot run.
    switch : Protocol, optional
        Constants of a switch that reduces; None where there is none.
    algorithm : {'best', 'ring', 'tree', 'one-shot', 'two-shot', 'switch'}, optional
        Which all-reduce runs. `best` takes the fastest available at each size: a tuned switch-over.
    basis : str, optional
        What the constants rest on.
    calibrated : bool, optional
        Whether the constants were measured on this kind of link.
    error : float, optional
        Median relative error of times on machines that the constants of its ring had not seen, [-]; None where one
        machine only was measured, so that nothing is known about others.

    Examples
    --------
    >>> link = LinkClass("pcie", 63e9, 63e9, Protocol(5e-6, 1e-6, 0.7))
    >>> link.algorithm
    'best'
    """

    kind: str
    bandwidth: float
    mesh_bandwidth: float
    ring: Protocol
    one_shot: Protocol | None = None
    switch: Protocol | None = None
    algorithm: Algorithm = "best"
    basis: str = ""
    calibrated: bool = True
    error: float | None = None


def all_reduce_time(*, message_bytes: BytesArray, ranks: ArrayLike, link: LinkClass) -> NDArray[np.float64]:
    """Return the time in which every rank gets the sum of all ranks' messages.

    - `message_bytes`: Size of the message that each rank holds, shape (n,) or scalar.
    - `ranks`: Size of the group, shape (n,) or scalar.
    - Returns: Time, shape (n,) or scalar; exactly 0 for a group of one, [s].

    Notes
    -----
    Ring: 2(n-1) hops and 2(n-1)/n of the message over the neighbour link [1]_, by the faster of NCCL's protocols LL
    (short hops, half of what moves is payload [3]_) and Simple (long hops) where both were measured. Tree: 2 log2 n
    hops, same bytes.
    One-shot: n-1 peers, the whole message from each. Two-shot: a scatter and a gather among all, each (n-1)/n of the
    message. Switch: each rank sends and receives (n+1)/n of the message [2]_. Not modelled: overlap with
    computation, several collectives on the same links at once, hierarchical algorithms over several nodes.

    Examples
    --------
    >>> link = LinkClass("pcie", 50e9, 50e9, Protocol(10e-6, 1e-6, 0.8), one_shot=Protocol(5e-6, 0.5e-6, 0.6))
    >>> float(all_reduce_time(message_bytes=8192, ranks=1, link=link))
    0.0
    >>> all_reduce_time(message_bytes=np.array([8192, 32 << 20]), ranks=4, link=link).round(7)
    array([7.3000e-06, 1.2743e-03])
    """
    message, count = np.asarray(message_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    present = ["ring", *(["one-shot", "two-shot"] if link.one_shot else []), *(["switch"] if link.switch else [])]
    if link.algorithm not in ("best", "tree", *present):
        raise ValueError(f"{link.algorithm} cannot run on {link.kind} links here; possible: {', '.join(present)}")
    chosen = present if link.algorithm == "best" else [link.algorithm]
    times = [_all_reduce_by(name, message, count, link) for name in chosen]
    return np.asarray(np.minimum.reduce(np.broadcast_arrays(*times)))


def _all_reduce_by(
    name: str, message: NDArray[np.float64], count: NDArray[np.float64], link: LinkClass
) -> NDArray[np.float64]:
    """Return the time of one named algorithm, [s]."""
    peers = count - 1
    active = np.minimum(peers, 1.0)
    shared = peers / count
    mesh = link.one_shot
    if name in ("ring", "tree"):
        hops = 2 * (peers if name == "ring" else np.log2(count))
        result: NDArray[np.float64] = active * link.ring.launch + _steps(hops, 2 * shared * message, link)
        return result
    if name == "switch" and link.switch is not None:
        moved = active * (count + 1) / count * message
        return active * (link.switch.launch + link.switch.hop) + moved / (link.bandwidth * link.switch.efficiency)
    assert mesh is not None  # all_reduce_time has checked it
    speed = link.mesh_bandwidth * mesh.efficiency
    if name == "one-shot":
        return active * mesh.launch + peers * mesh.hop + peers * message / speed
    return 2 * (active * mesh.launch + peers * mesh.hop) + 2 * shared * message / speed


def _steps(hops: NDArray[np.float64], moved: NDArray[np.float64], link: LinkClass) -> NDArray[np.float64]:
    """Return the time of steps to neighbours after the launch, by the faster protocol, [s]."""
    ring = link.ring
    flow = moved / (link.bandwidth * ring.efficiency)
    if ring.bulk_hop is None:
        return hops * ring.hop + flow
    return np.minimum(hops * ring.hop + flow / FLAGGED_PAYLOAD, hops * ring.bulk_hop + flow)


def all_gather_time(*, message_bytes: BytesArray, ranks: ArrayLike, link: LinkClass) -> NDArray[np.float64]:
    """Return the time in which every rank gets the pieces of all ranks, around a ring.

    - `message_bytes`: Size of the gathered result, shape (n,) or scalar.
    - `ranks`: Size of the group, shape (n,) or scalar.
    - Returns: Time, shape (n,) or scalar; exactly 0 for a group of one, [s].

    Notes
    -----
    n-1 hops and (n-1)/n of the result over the neighbour link [1]_. Not modelled: gathers that a switch multicasts.

    Examples
    --------
    >>> link = LinkClass("pcie", 50e9, 50e9, Protocol(10e-6, 1e-6, 0.8))
    >>> float(all_gather_time(message_bytes=4e6, ranks=4, link=link))
    8.8e-05
    """
    message, count = np.asarray(message_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    peers = count - 1
    return np.asarray(np.minimum(peers, 1.0) * link.ring.launch + _steps(peers, peers / count * message, link))


def point_to_point_time(*, message_bytes: BytesArray, ranks: ArrayLike, link: LinkClass) -> NDArray[np.float64]:
    """Return the time of handing a message down a chain of ranks: `ranks - 1` sends, one after the other.

    - `message_bytes`: Size of the message, shape (n,) or scalar.
    - `ranks`: Length of the chain: 2 for one send, the number of stages for a pipeline, shape (n,) or scalar.
    - Returns: Time, shape (n,) or scalar; exactly 0 for a chain of one, [s].

    Notes
    -----
    Each send pays the launch and one hop. Not modelled: sends hidden behind the computation of other batches.

    Examples
    --------
    >>> link = LinkClass("pcie", 50e9, 50e9, Protocol(10e-6, 1e-6, 0.8))
    >>> float(point_to_point_time(message_bytes=4e6, ranks=3, link=link))
    0.000222
    """
    message, count = np.asarray(message_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    return np.asarray((count - 1) * (link.ring.launch + _steps(np.ones_like(count), message, link)))
