"""Steps of machines with one memory for processor and accelerator, where no matrix rate is published.

Decoding is decided by bytes there; prompts, which arithmetic decides, cannot be timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import UnknownFact
from glmplan.physics.offload.time import OffloadFit, Placement, offload_work
from glmplan.physics.points import StepPoints
from glmplan.physics.step.model import FrontPoints, step_times
from glmplan.physics.step.time import StepTime

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator
    from glmplan.facts.schema.model import Checkpoint, ModelSpec

__all__ = ["OneMemorySteps", "OneMemoryWork", "one_memory_costs", "one_memory_work"]

_COMPONENTS = {"launch": (0,), "weights": (1,), "cache": (2,)}


@dataclass(frozen=True, slots=True, eq=False)
class OneMemoryWork:
    """What decides the time of steps; fields are (n,) arrays.

    Attributes
    ----------
    layers : array
        Layers that are launched, [-]
    weights, cache : array
        What is read, [B]
    """

    layers: np.ndarray
    weights: np.ndarray
    cache: np.ndarray


def one_memory_work(
    model: ModelSpec, checkpoint: Checkpoint, points: StepPoints, *, tokens_per_request: float = 1.0, kv: str = "bf16"
) -> OneMemoryWork:
    """Bytes and layers of steps.

    Parameters
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How its weights are stored.
    points : StepPoints
        What the steps hold, (n,) arrays.
    tokens_per_request : float, optional
        Tokens that a decoding request computes in a step, [token]
    kv : str, optional
        KV cache format.

    Returns
    -------
    OneMemoryWork
        (n,) arrays, [B] and [-].

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> one = np.ones(1)
    >>> points = StepPoints(one, 1000 * one, 0 * one, 0 * one)
    >>> work = one_memory_work(load_model("llama-3.1-8b"), uniform_checkpoint("int8"), points)
    >>> float(work.layers[0]), round(float(work.weights[0]) / 1e9, 1), round(float(work.cache[0]) / 1e6)
    (32.0, 8.0, 131)
    """
    work = offload_work(model, checkpoint, Placement(0.0), points, tokens_per_request=tokens_per_request, kv=kv)
    return OneMemoryWork(work.layers, work.own_bytes, work.cache_bytes)


def one_memory_costs(work: OneMemoryWork, *, bandwidth: float, share: float, layer_seconds: float) -> np.ndarray:
    """Time of steps by what takes it.

    Parameters
    ----------
    work : OneMemoryWork
        Their work.
    bandwidth : float
        Memory bandwidth of one machine, [B/s]
    share : float
        What of it is reached, [-]
    layer_seconds : float
        Launch of one layer, [s]

    Returns
    -------
    (n, 3) array
        Launch, weights and cache, [s]

    Notes
    -----
    Several machines hold stages of the model, so a single stream reads one memory after the other: their number does
    not change the time. Not modelled: hand-over between machines, tensor parallelism over Thunderbolt.

    Examples
    --------
    >>> work = OneMemoryWork(np.array([60.0]), np.array([99e9]), np.array([1e9]))
    >>> float(one_memory_costs(work, bandwidth=800e9, share=0.5, layer_seconds=1e-4).sum())
    0.256
    """
    reached = share * bandwidth
    return np.stack([work.layers * layer_seconds, work.weights / reached, work.cache / reached], axis=1)


@dataclass(frozen=True, slots=True)
class OneMemorySteps:
    """Steps of one deployment on a machine with one memory.

    Attributes
    ----------
    model, checkpoint : ModelSpec, Checkpoint
        What is served.
    part : Accelerator
        The machine.
    fit : OffloadFit
        Constants.
    kv : str
        KV cache format.
    tokens_per_request : float
        Tokens that a decoding request computes in a step, [token]
    """

    model: ModelSpec
    checkpoint: Checkpoint
    part: Accelerator
    fit: OffloadFit
    kv: str = "bf16"
    tokens_per_request: float = 1.0

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """What a step is made of."""
        return _COMPONENTS

    @property
    def times_prompts(self) -> bool:
        """No matrix rate is published."""
        return False

    def work(self, points: StepPoints) -> OneMemoryWork:
        """Bytes of steps, which no constant changes.

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.

        Returns
        -------
        OneMemoryWork
            (n,) arrays, [B] and [-].
        """
        return one_memory_work(
            self.model, self.checkpoint, points, tokens_per_request=self.tokens_per_request, kv=self.kv
        )

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Time of steps of decoding.

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.
        front : FrontPoints, optional
            Work of the front end, which costs nothing here.

        Returns
        -------
        StepTime
            (n,) seconds [s] and (n, 3) shares [-].

        Raises
        ------
        UnknownFact
            If a step holds prompts.
        """
        if np.any(np.asarray(points.prefill_tokens) > 0):
            raise UnknownFact(f"no matrix rate of {self.part.full_name} is published: prompts cannot be timed")
        return step_times(
            one_memory_costs(
                self.work(points), bandwidth=self.part.need("memory_bandwidth"), share=self.fit.unified_bandwidth,
                layer_seconds=self.fit.unified_layer_seconds,
            )
        )  # fmt: skip
