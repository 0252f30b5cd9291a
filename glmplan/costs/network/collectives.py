"""Return the time of a collective on a class of links, in closed form.

Message and group sizes are numbers or arrays. Every form is latency plus bytes over bandwidth (Hockney). A group of one
takes exactly 0,
by formula and not by a branch. The constants (launch, hop, efficiency) are arguments, fitted elsewhere.

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

from glmplan.units import BytesArray, BytesPerSecond, Ratio, Seconds

__all__ = [
    "Algorithm",
    "LinkClass",
    "Protocol",
    "all_gather_time",
    "all_reduce_time",
    "point_to_point_time",
]

Algorithm = Literal["best", "ring", "tree", "one-shot", "two-shot", "switch"]

#: payload share of NCCL's protocol for small messages (LL): every word carries a flag [3]_
FLAGGED_PAYLOAD = 0.5


@dataclass(frozen=True, slots=True)
class Protocol:
    """Constants of one way to run a collective."""

    launch: Seconds  # of any group of more than one, whatever the size
    hop: Seconds  # of each step along the ring, level of the tree, or peer to synchronise with
    efficiency: Ratio  # share of the link's line rate that payload reaches
    #: of each step that waits for a full chunk (NCCL's Simple); then `hop` is that of LL, which moves twice the bytes,
    #: and the faster one runs; None: one protocol only
    bulk_hop: Seconds | None = None


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Links between the ranks of a group, as one rank sees them."""

    kind: str  # family of the slowest link: ``nvlink``, ``xgmi``, ``pcie``, ``fabric`` or ``unified``
    bandwidth: BytesPerSecond  # line rate of one rank towards a neighbour, each direction
    mesh_bandwidth: BytesPerSecond  # the same when all ranks send to all others; lower where uplinks are shared
    ring: Protocol  # also for trees, gathers and point-to-point sends
    one_shot: Protocol | None = None  # every rank reads all its peers at once; None: impossible
    switch: Protocol | None = None  # a switch that reduces; None: there is none
    algorithm: Algorithm = "best"  # of all-reduce; `best` takes the fastest available at each size: a tuned switch-over
    basis: str = ""  # evidence of the constants
    calibrated: bool = True  # measured on this kind of link
    #: median relative error on machines held out of the ring's fit; None: one machine measured
    error: Ratio | None = None


def all_reduce_time(*, message_bytes: BytesArray, ranks: ArrayLike, link: LinkClass) -> NDArray[np.float64]:
    """Return the time of an all-reduce [s]; 0 for a group of one.

    Ring: 2(n-1) hops and 2(n-1)/n of the message over the neighbour link [1]_, by the faster of NCCL's protocols LL
    (short hops, half of the bytes are payload [3]_) and Simple (long hops) where both were measured. Tree: 2 log2 n
    hops, same bytes. One-shot: n-1 peers, the full message from each. Two-shot: a scatter and a gather among all, each
    (n-1)/n of the message. Switch: each rank sends and receives (n+1)/n of the message [2]_. Not modelled: overlap with
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
    """Return the time of one named algorithm [s]."""
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
    """Return the time of ring steps by the faster protocol [s].

    After the launch.
    """
    ring = link.ring
    flow = moved / (link.bandwidth * ring.efficiency)
    if ring.bulk_hop is None:
        return hops * ring.hop + flow
    return np.minimum(hops * ring.hop + flow / FLAGGED_PAYLOAD, hops * ring.bulk_hop + flow)


def all_gather_time(*, message_bytes: BytesArray, ranks: ArrayLike, link: LinkClass) -> NDArray[np.float64]:
    """Return the time of an all-gather around a ring [s].

    0 for a group of one. n-1 hops and (n-1)/n of the result (`message_bytes`) over the neighbour link [1]_. Not
    modelled: gathers that a switch multicasts.

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
    """Return the time of `ranks - 1` sends down a chain [s].

    One send follows the other. Each send takes the launch and one hop. Not modelled: sends hidden behind the
    computation of other batches.

    Examples
    --------
    >>> link = LinkClass("pcie", 50e9, 50e9, Protocol(10e-6, 1e-6, 0.8))
    >>> float(point_to_point_time(message_bytes=4e6, ranks=3, link=link))
    0.000222
    """
    message, count = np.asarray(message_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    return np.asarray((count - 1) * (link.ring.launch + _steps(np.ones_like(count), message, link)))
