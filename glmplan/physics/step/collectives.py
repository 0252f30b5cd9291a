"""Latency and payload of the collectives of a step, before the engine slows them down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmplan.physics.kernels.utilisation import collective_terms
from glmplan.physics.network.collectives import LinkClass, all_gather_time, all_reduce_time, point_to_point_time
from glmplan.physics.network.links import ALONE
from glmplan.physics.step.structure import StepWork

__all__ = ["all_gather_seconds", "all_reduce_seconds", "context_exchange_seconds", "hand_over_seconds", "over_links"]

_BF16 = 2.0
#: links inside one scale-up domain, whose collectives a part's table of kernels holds as its engine runs them
_TABLED = ("nvlink", "xgmi")

_Times = tuple[NDArray[np.float64], NDArray[np.float64]]


def over_links(structure: StepWork, group: str, seconds: Callable[..., _Times], *sizes: ArrayLike) -> _Times:
    """Return the time of a collective of points each of which crosses the link of its own layout.

    Parameters
    ----------
    structure : StepWork
        Part, engine and links.
    group : str
        Kind of group, a field of `glmplan.physics.network.groups.LayoutLinks`.
    seconds : callable
        One of this module's, which takes the structure, a link and `sizes`.
    *sizes : array_like
        Numbers or (n,) arrays, [-] or [B]

    Returns
    -------
    (n,) array, (n,) array
        Latency and payload, [s]
    """
    classes = structure.link.classes(group)
    if len(classes) == 1:
        return seconds(structure, classes[0][0], *sizes)
    arrays = np.broadcast_arrays(*(np.asarray(one, dtype=np.float64) for one in sizes))
    latency, payload = np.zeros_like(arrays[0]), np.zeros_like(arrays[0])
    for link, points in classes:
        latency[points], payload[points] = seconds(structure, link, *(one[points] for one in arrays))
    return latency, payload


def all_reduce_seconds(structure: StepWork, link: LinkClass, message: ArrayLike, ranks: ArrayLike) -> _Times:
    """Return the time of one all-reduce.

    Parameters
    ----------
    structure : StepWork
        Part and engine.
    link : LinkClass
        What the group crosses.
    message : array_like
        Size of what each rank holds, [B]
    ranks : array_like
        Size of the group, [-]

    Returns
    -------
    ndarray, ndarray
        Latency, and what the payload adds to it; 0 for a group of one, [s]

    Raises
    ------
    ValueError
        If a group of several is given the link of a group of one.

    Notes
    -----
    Over PCIe and between machines the network's own constants hold, which several machines measured
    (`glmplan.physics.network`); inside a scale-up domain the collective of the part's table of kernels. Not modelled:
    contention with other groups.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> from glmplan.physics.network.groups import links_of_layout
    >>> from glmplan.physics.step.structure import Part
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> links = links_of_layout(load_machine("4xrtx-pro-6000-ws"), tp=4)
    >>> cards = StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, links)
    >>> latency, payload = all_reduce_seconds(cards, links.tensor, 8192.0, [1.0, 4.0])
    >>> (1e6 * latency).round(1).tolist(), (1e6 * payload).round(1).tolist()
    ([0.0, 11.1], [0.0, 0.5])
    """
    bytes_, count = np.asarray(message, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if not _tabled(link, count):
        return _over_network(all_reduce_time, bytes_, count, link)
    return collective_terms(bytes_, count, link_bandwidth=link.bandwidth, params=structure.collective())


def all_gather_seconds(structure: StepWork, link: LinkClass, gathered: ArrayLike, ranks: ArrayLike) -> _Times:
    """Return the time of one all-gather, or of one reduce-scatter, its mirror image.

    Parameters
    ----------
    structure : StepWork
        Part and engine.
    link : LinkClass
        What the group crosses.
    gathered : array_like
        Size of the gathered result, [B]
    ranks : array_like
        Size of the group, [-]

    Returns
    -------
    ndarray, ndarray
        Latency, and what the payload adds to it; 0 for a group of one, [s]

    Notes
    -----
    Where only all-reduces were measured, a gather is as late as one of them and moves half of it.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> from glmplan.physics.network.groups import links_of_layout
    >>> from glmplan.physics.step.structure import Part
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> links = links_of_layout(load_machine("workstation-2-switches-8"), tp=8)
    >>> cards = StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, links)
    >>> [round(1e6 * float(time), 1) for time in all_gather_seconds(cards, links.tensor, 1e6, 8.0)]
    [12.1, 33.8]
    """
    bytes_, count = np.asarray(gathered, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if not _tabled(link, count):
        return _over_network(all_gather_time, bytes_, count, link)
    p = structure.collective()
    latency, _ = collective_terms(0.0, count, link_bandwidth=link.bandwidth, params=p)
    rate = link.bandwidth * (2.0 / np.maximum(count, 2.0)) ** p.crowding
    return latency, (count - 1.0) / count * bytes_ / rate / p.two_shot


def hand_over_seconds(structure: StepWork, link: LinkClass, message: ArrayLike, stages: ArrayLike) -> _Times:
    """Return the time in which a micro-batch is handed from stage to stage of a pipeline.

    Parameters
    ----------
    structure : StepWork
        Part and engine.
    link : LinkClass
        What a stage crosses to the next.
    message : array_like
        Hidden states that a rank sends to its successor, [B]
    stages : array_like
        Number of stages, [-]

    Returns
    -------
    ndarray, ndarray
        Latency and payload of all hand-overs one after the other; 0 for one stage, [s]

    Notes
    -----
    Every hand-over is taken as slow as the slowest. Inside a scale-up domain it is as late as a collective of two ranks
    and moves at the rate of the link. Not modelled: sends that other micro-batches hide.

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> from glmplan.physics.network.groups import links_of_layout
    >>> from glmplan.physics.step.structure import Part
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> links = links_of_layout(load_machine("6xrtx-pro-6000-ws"), tp=2, pp=3)
    >>> cards = StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, links)
    >>> [round(1e6 * float(time), 1) for time in hand_over_seconds(cards, links.hand_over, 8192.0, 3.0)]
    [12.3, 0.7]
    """
    bytes_, count = np.asarray(message, dtype=np.float64), np.asarray(stages, dtype=np.float64)
    if not _tabled(link, count):
        return _over_network(point_to_point_time, bytes_, count, link)
    latency, _ = collective_terms(0.0, 2.0, link_bandwidth=link.bandwidth, params=structure.collective())
    return (count - 1.0) * latency, (count - 1.0) * bytes_ / link.bandwidth


def context_exchange_seconds(
    structure: StepWork, link: LinkClass, tokens: ArrayLike, query: ArrayLike, out: ArrayLike, ranks: ArrayLike
) -> _Times:
    """Return the time of what ranks exchange in one layer that each hold a part of every context.

    Parameters
    ----------
    structure : StepWork
        Part and engine.
    link : LinkClass
        What the ranks cross.
    tokens : array_like
        Tokens of decoding requests, [-]
    query, out : array_like
        Values of a token's queries and of what attention gives for them, heads of all ranks, [-]
    ranks : array_like
        Size of the group, [-]

    Returns
    -------
    ndarray, ndarray
        Latency and payload of three collectives: queries are gathered, the sums of their weights too, and what each
        rank has read is reduced and scattered [1]_, [s]

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/attention/backends/mla/common.py (`forward`, `dcp_world_size > 1`) and
       vllm/v1/attention/ops/common.py (`cp_lse_ag_out_rs`).

    Notes
    -----
    Measured: 34 µs a layer more with eight ranks than with one (Kimi-K2.5 on eight RTX PRO 6000, 68 and 79 tokens/s);
    three gathers over the ring are 36 µs, 41 with what they carry. Not modelled: prompts, whose ranks gather keys.

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> from glmplan.physics.network.groups import links_of_layout
    >>> from glmplan.physics.step.structure import Part
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> links = links_of_layout(load_machine("workstation-2-switches-8"), tp=8, dcp=8)
    >>> cards = StepWork(load_model("kimi-k2.5"), uniform_checkpoint("int4"), part, links)
    >>> latency, payload = context_exchange_seconds(cards, links.context, 1.0, 64 * 576.0, 64 * 512.0, 8.0)
    >>> round(1e6 * float(latency), 1)
    36.3
    """
    latency, payload = all_gather_seconds(structure, link, 0.0, ranks)
    for values in (query, out):
        one = all_gather_seconds(structure, link, np.asarray(tokens) * np.asarray(values) * _BF16, ranks)
        latency, payload = latency + one[0], payload + one[1]
    return latency, payload


def _tabled(link: LinkClass, ranks: NDArray[np.float64]) -> bool:
    """Whether the part's table of kernels holds the collectives of a link."""
    if link.basis == ALONE and (ranks > 1.0).any():
        raise ValueError("the link of a group of one was given for a group of several")
    return link.kind in _TABLED


def _over_network(
    time: Callable[..., NDArray[np.float64]],
    message: NDArray[np.float64],
    ranks: NDArray[np.float64],
    link: LinkClass,
) -> _Times:
    """Latency of a collective as the network has it, and what its payload adds."""
    latency = time(message_bytes=0.0, ranks=ranks, link=link)
    return latency, time(message_bytes=message, ranks=ranks, link=link) - latency
