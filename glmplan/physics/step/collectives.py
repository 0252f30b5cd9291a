"""Latency and payload of the collectives of a step, before the engine slows them down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmplan.physics.kernels.utilisation import CollectiveParams
from glmplan.physics.network.collectives import LinkClass, all_gather_time, all_reduce_time
from glmplan.physics.step.structure import StepWork

__all__ = ["all_gather_seconds", "all_reduce_seconds", "context_exchange_seconds"]

_BF16 = 2.0

_Times = tuple[NDArray[np.float64], NDArray[np.float64]]


def all_reduce_seconds(structure: StepWork, message: ArrayLike, ranks: ArrayLike) -> _Times:
    """Return the time of one all-reduce.

    Parameters
    ----------
    structure : StepWork
        Part and link.
    message : array_like
        Size of what each rank holds, [B]
    ranks : array_like
        Size of the group, [-]

    Returns
    -------
    ndarray, ndarray
        Latency, and what the payload adds to it; 0 for a group of one, [s]

    Notes
    -----
    Cards on PCIe run the ring, or the faster of ring and one-shot, as it was measured on several machines
    (`glmplan.physics.network`); other parts the collective of their table of kernels. Not modelled: contention with
    other groups.

    Examples
    --------
    >>> from glmplan.physics.step.structure import LinkPeak, Part
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> cards = StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, LinkPeak("pcie", 63e9))
    >>> latency, payload = all_reduce_seconds(cards, 8192.0, [1.0, 4.0])
    >>> (1e6 * latency).round(1).tolist(), (1e6 * payload).round(1).tolist()
    ([0.0, 11.1], [0.0, 0.5])
    """
    bytes_, count = np.asarray(message, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if (cards := structure.cards(count)) is not None:
        return _between_cards(structure, all_reduce_time, bytes_, count, cards)
    p, several = structure.collective(), np.minimum(count - 1.0, 1.0)
    share = bytes_ / _rate(structure, count, p)
    one_shot = (count - 1.0) * share / max(p.one_shot, 1e-9)
    two_shot = p.two_shot_setup + 2.0 * (count - 1.0) / count * share / p.two_shot
    return structure.link.latency * _latency(count, p), several * np.minimum(one_shot, two_shot)


def all_gather_seconds(structure: StepWork, gathered: ArrayLike, ranks: ArrayLike) -> _Times:
    """Return the time of one all-gather, or of one reduce-scatter, its mirror image.

    Parameters
    ----------
    structure : StepWork
        Part and link.
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
    >>> from glmplan.physics.step.structure import LinkPeak, Part
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> cards = StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, LinkPeak("pcie", 63e9))
    >>> [round(1e6 * float(time), 1) for time in all_gather_seconds(cards, 1e6, 8.0)]
    [12.1, 33.8]
    """
    bytes_, count = np.asarray(gathered, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if (cards := structure.cards(count)) is not None:
        return _between_cards(structure, all_gather_time, bytes_, count, cards)
    p = structure.collective()
    payload = (count - 1.0) / count * bytes_ / _rate(structure, count, p) / p.two_shot
    return structure.link.latency * _latency(count, p), payload


def context_exchange_seconds(
    structure: StepWork, tokens: ArrayLike, query: ArrayLike, out: ArrayLike, ranks: ArrayLike
) -> _Times:
    """Return the time of what ranks exchange in one layer that each hold a part of every context.

    Parameters
    ----------
    structure : StepWork
        Part and link.
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
    >>> from glmplan.physics.step.structure import LinkPeak, Part
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> cards = StepWork(load_model("kimi-k2.5"), uniform_checkpoint("bf16"), part, LinkPeak("pcie", 63e9))
    >>> latency, payload = context_exchange_seconds(cards, 1.0, 64 * 576.0, 64 * 512.0, 8.0)
    >>> round(1e6 * float(latency), 1)
    36.3
    """
    latency, payload = all_gather_seconds(structure, 0.0, ranks)
    for values in (query, out):
        one = all_gather_seconds(structure, np.asarray(tokens) * np.asarray(values) * _BF16, ranks)
        latency, payload = latency + one[0], payload + one[1]
    return latency, payload


def _between_cards(
    structure: StepWork,
    time: Callable[..., NDArray[np.float64]],
    message: NDArray[np.float64],
    ranks: NDArray[np.float64],
    link: LinkClass,
) -> _Times:
    """Latency of a collective over PCIe, as late as on this host, and what its payload adds."""
    latency = time(message_bytes=0.0, ranks=ranks, link=link)
    return structure.link.latency * latency, time(message_bytes=message, ranks=ranks, link=link) - latency


def _latency(ranks: NDArray[np.float64], params: CollectiveParams) -> NDArray[np.float64]:
    return np.minimum(ranks - 1.0, 1.0) * (params.latency + params.hop * np.maximum(ranks - 2.0, 0.0))


def _rate(structure: StepWork, ranks: NDArray[np.float64], params: CollectiveParams) -> NDArray[np.float64]:
    return np.asarray(structure.link.bandwidth * (2.0 / np.maximum(ranks, 2.0)) ** params.crowding)
