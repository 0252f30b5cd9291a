"""Steps with a part of the weights in host memory: computed there, or streamed to the accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.costs.offload.work import (
    COSTS,
    HostSide,
    OffloadFit,
    OffloadWork,
    Placement,
    moved_bytes,
    offload_step_seconds,
    offload_work,
)
from glmplan.costs.points import StepPoints
from glmplan.costs.step.model import FrontPoints, StepTime, routed_share, step_times
from glmplan.errors import UnknownFact
from glmplan.units import BytesPerSecond, BytesPerSecondArray, Ratio, Seconds, SecondsArray, Tokens, TokensArray

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.model import Checkpoint, ModelSpec

__all__ = ["HostedSteps", "Offload", "OneMemorySteps", "OneMemoryWork", "one_memory_costs", "one_memory_work"]


_COMPONENTS: dict[str, tuple[int, ...]] = {name: (place,) for place, name in enumerate(COSTS)}


@dataclass(frozen=True, slots=True)
class Offload:
    """What of a deployment stays in host memory, and who computes it.

    Attributes
    ----------
    placement : Placement
        The weights, and who computes them while decoding.
    side : HostSide
        The host.
    streams_above : float
        Prompt tokens of a step above which the weights are streamed and the accelerators compute, [token]
    """

    placement: Placement
    side: HostSide
    streams_above: float = float("inf")


@dataclass(frozen=True, slots=True)
class HostedSteps:
    """Steps of one deployment with weights in host memory.

    Attributes
    ----------
    model, checkpoint : ModelSpec, Checkpoint
        What is served.
    offload : Offload
        What is in host memory.
    part : Accelerator or None
        The accelerator; None for a machine without one.
    count : int
        Accelerators, which share the work evenly, [-]
    fit : OffloadFit, optional
        Constants; those shipped by default.
    kv : str
        KV cache format.
    tokens_per_request : float
        Tokens that a decoding request computes in a step, [token]

    Notes
    -----
    The front end costs nothing of its own: no run with weights in host memory tells its time apart. Not modelled:
    layouts; the accelerators share all work evenly.
    """

    model: ModelSpec
    checkpoint: Checkpoint
    offload: Offload
    part: Accelerator | None
    count: int
    fit: OffloadFit | None = None
    kv: str = "bf16"
    tokens_per_request: float = 1.0

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """What a step is made of."""
        return _COMPONENTS

    @property
    def times_prompts(self) -> bool:
        """Prompts are timed by the rates of the processor or of the links."""
        return True

    def work(self, points: StepPoints) -> OffloadWork:
        """Bytes and FLOP of steps, which no constant changes.

        Returns: (n,) arrays, [B] and [FLOP].
        """
        return offload_work(
            self.model, self.checkpoint, self.offload.placement, points, tokens_per_request=self.tokens_per_request,
            kv=self.kv,
        )  # fmt: skip

    def costs(self, work: OffloadWork, prompt: TokensArray) -> SecondsArray:
        """Time of steps by what takes it."""
        away = self.offload
        given = {"count": self.count, "fit": self.fit}
        found = offload_step_seconds(work, away.side, self.part, mode=away.placement.mode, **given)  # type: ignore[arg-type]
        streams = prompt > away.streams_above
        if np.any(streams):
            streamed = offload_step_seconds(work, away.side, self.part, mode="stream", **given)  # type: ignore[arg-type]
            found = np.where(streams[:, None], streamed, found)
        return found

    def least(self, points: StepPoints) -> SecondsArray:
        """Return the least time of steps: the longer of reading the accelerators' bytes and the processors'.

        Returns: At data-sheet bandwidths; weights that are streamed to the accelerators are left out.
        """
        work, away = self.work(points), self.offload
        routed = routed_share(self.model, points, self.tokens_per_request)
        found: np.ndarray = np.zeros_like(work.own_bytes)
        if self.part is not None:
            read = work.own_bytes * routed + work.cache_bytes
            found = read / (max(self.count, 1) * self.part.need("memory_bandwidth"))
        if away.placement.mode == "cpu":
            computed = np.asarray(points.prefill_tokens) <= away.streams_above
            found = np.maximum(found, computed * work.host_bytes * routed / away.side.bandwidth)
        return found

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Time of steps.

        - `front`: Work of the front end, which costs nothing here.
        - Returns: (n,) seconds [s] and (n, 6) shares [-].
        """
        return step_times(self.costs(self.work(points), np.asarray(points.prefill_tokens, dtype=float)))

    def link_rate(self, points: StepPoints) -> BytesPerSecondArray:
        """Bytes that cross the links of the accelerators during steps.

        Returns: All accelerators together: weights that are streamed, else activations to the host and back.
        """
        work = self.work(points)
        tokens = points.decode_requests * self.tokens_per_request + points.prefill_tokens
        handed = 2.0 * tokens * self.model.hidden * _ACTIVATION * work.host_layers
        streams = (points.prefill_tokens > self.offload.streams_above) | (self.offload.placement.mode == "stream")
        moved = np.where(streams, work.held_bytes, moved_bytes(work, self.offload.placement.mode))
        moved = np.where(moved > 0, moved, handed)
        result: np.ndarray = moved / np.maximum(self.times(points).seconds, 1e-300)
        return result

    def with_fit(self, fit: OffloadFit) -> HostedSteps:
        """The same steps with other constants."""
        return replace(self, fit=fit)


#: bytes of an activation that crosses PCIe to the host and back, BF16 [B]
_ACTIVATION = 2.0


# Steps of machines with one memory for processor and accelerator, where no matrix rate is published.
#
# Decoding is decided by bytes there; prompts, which arithmetic decides, cannot be timed.

_COMPONENTS_ONE_MEMORY_STEPS = {"launch": (0,), "weights": (1,), "cache": (2,)}


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
    model: ModelSpec, checkpoint: Checkpoint, points: StepPoints, *, tokens_per_request: Tokens = 1.0, kv: str = "bf16"
) -> OneMemoryWork:
    """Bytes and layers of steps.

    - `tokens_per_request`: Tokens that a decoding request computes in a step.
    - Returns: (n,) arrays, [B] and [-].

    Examples
    --------
    >>> from glmplan.costs.blocks.stack import uniform_checkpoint
    >>> from glmplan.catalog.entries.models import load_model
    >>> one = np.ones(1)
    >>> points = StepPoints(one, 1000 * one, 0 * one, 0 * one)
    >>> work = one_memory_work(load_model("llama-3.1-8b"), uniform_checkpoint("int8"), points)
    >>> float(work.layers[0]), round(float(work.weights[0]) / 1e9, 1), round(float(work.cache[0]) / 1e6)
    (32.0, 8.0, 131)
    """
    work = offload_work(model, checkpoint, Placement(0.0), points, tokens_per_request=tokens_per_request, kv=kv)
    return OneMemoryWork(work.layers, work.own_bytes, work.cache_bytes)


def one_memory_costs(
    work: OneMemoryWork, *, bandwidth: BytesPerSecond, share: Ratio, layer_seconds: Seconds
) -> SecondsArray:
    """Time of steps by what takes it.

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
        return _COMPONENTS_ONE_MEMORY_STEPS

    @property
    def times_prompts(self) -> bool:
        """No matrix rate is published."""
        return False

    def work(self, points: StepPoints) -> OneMemoryWork:
        """Bytes of steps, which no constant changes.

        Returns: (n,) arrays, [B] and [-].
        """
        return one_memory_work(
            self.model, self.checkpoint, points, tokens_per_request=self.tokens_per_request, kv=self.kv
        )

    def least(self, points: StepPoints) -> SecondsArray:
        """Return the least time of steps: their bytes at the data-sheet bandwidth."""
        work = self.work(points)
        read = work.weights * routed_share(self.model, points, self.tokens_per_request) + work.cache
        least: np.ndarray = read / self.part.need("memory_bandwidth")
        return least

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Time of steps of decoding.

        - `front`: Work of the front end, which costs nothing here.
        - Returns: (n,) seconds [s] and (n, 3) shares [-].
        """
        if np.any(np.asarray(points.prefill_tokens) > 0):
            raise UnknownFact(f"no matrix rate of {self.part.full_name} is published: prompts cannot be timed")
        return step_times(
            one_memory_costs(
                self.work(points), bandwidth=self.part.need("memory_bandwidth"), share=self.fit.unified_bandwidth,
                layer_seconds=self.fit.unified_layer_seconds,
            )
        )  # fmt: skip
