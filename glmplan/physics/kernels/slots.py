"""What the parts of a layer's work share: tokens, degrees, and how a kernel's time is divided among slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.physics.kernels.utilisation import KernelParams, KernelWork, kernel_terms

__all__ = ["Degrees", "Tokens", "add_kernel"]


@dataclass(frozen=True, slots=True, eq=False)
class Degrees:
    """How many ranks share what.

    Attributes
    ----------
    tp, pp, dp, ep, dcp : array
        Degrees of the layout, [-]
    expert_ranks : array
        Ranks over which the experts lie, [-]
    """

    tp: np.ndarray
    pp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray
    expert_ranks: np.ndarray
    dcp: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What a step computes.

    Attributes
    ----------
    requests : array
        Decoding on the fullest replica, [-]
    decode : array
        Their tokens, verified ones included, [token]
    prompt : array
        Prompt tokens on the replica, [token]
    everywhere : array
        Tokens of all replicas, which the experts see, [token]
    context, keys : array
        Tokens in the cache of a decoding request, and that a prompt token attends to, [token]
    shared : array
        Part of the context that lies in one copy for all requests, [token]
    """

    requests: np.ndarray
    decode: np.ndarray
    prompt: np.ndarray
    everywhere: np.ndarray
    context: np.ndarray
    keys: np.ndarray
    shared: np.ndarray


def add_kernel(
    layer: dict[str, np.ndarray],
    work: KernelWork,
    params: KernelParams,
    *,
    peak_flop: float,
    bandwidth: float,
    slots: tuple[str, str, str],
    active: np.ndarray,
) -> None:
    """Add a kernel's time to three slots: fixed, bytes, FLOP, as `glmplan.physics.kernels.utilisation.kernel_terms`
    divides it.

    Parameters
    ----------
    layer : dict of str to (n,) array
        Slots of a layer, changed in place, [s] or [-]
    work : KernelWork
        What the kernel does.
    params : KernelParams
        How it uses the part.
    peak_flop, bandwidth : float
        Peaks of the part, [FLOP/s], [B/s]
    slots : tuple of str
        Names of the three slots.
    active : (n,) array
        Whether the kernel runs, [-]

    Examples
    --------
    >>> layer = {"a": np.zeros(1), "b": np.zeros(1), "c": np.zeros(1)}
    >>> params = KernelParams(floor=2e-6, bandwidth=0.8, flop=0.7)
    >>> work = KernelWork(flop=np.array([1e8]), bytes=np.array([1e8]))
    >>> add_kernel(layer, work, params, peak_flop=1e15, bandwidth=4e12, slots=("a", "b", "c"), active=np.ones(1))
    >>> [round(1e6 * float(layer[slot][0]), 2) for slot in "abc"]
    [2.0, 31.25, 0.0]
    """
    terms = kernel_terms(work, peak_flop=peak_flop, peak_bandwidth=bandwidth, params=params)
    for slot, seconds in zip(slots, terms, strict=True):
        layer[slot] = layer[slot] + active * seconds
