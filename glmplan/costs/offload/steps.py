"""Step models with weights in host memory, or with one memory.

One memory serves processor and accelerator.
"""

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
from glmplan.units import (
    BytesArray,
    BytesPerSecond,
    BytesPerSecondArray,
    Ratio,
    Seconds,
    SecondsArray,
    Tokens,
    TokensArray,
)

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.model import Checkpoint, ModelSpec

__all__ = ["HostedSteps", "Offload", "OneMemorySteps", "OneMemoryWork", "one_memory_costs", "one_memory_work"]


_COMPONENTS: dict[str, tuple[int, ...]] = {name: (place,) for place, name in enumerate(COSTS)}


@dataclass(frozen=True, slots=True)
class Offload:
    """Offloaded weights of a deployment, and their use."""

    placement: Placement  # with the use in decode
    side: HostSide
    #: of prompts in a step, above which weights are streamed and the accelerators compute
    streams_above: Tokens = float("inf")


@dataclass(frozen=True, slots=True)
class HostedSteps:
    """Steps of one deployment with weights in host memory.

    The front end has no cost of its own: no run with weights in host memory shows its time. Not modelled: layouts; the
    accelerators share all work evenly.
    """

    model: ModelSpec
    checkpoint: Checkpoint
    offload: Offload
    part: Accelerator | None  # accelerator; None: a machine without one
    count: int  # accelerators
    fit: OffloadFit | None = None  # None: the shipped constants
    kv: str = "bf16"  # KV cache format
    tokens_per_request: Tokens = 1.0  # computed by a decoding request in a step

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """Return the components of a step."""
        return _COMPONENTS

    @property
    def times_prompts(self) -> bool:
        """Return True: the rates of processor or links time prompts."""
        return True

    def work(self, points: StepPoints) -> OffloadWork:
        """Return bytes and FLOP of steps, which no constant changes."""
        return offload_work(
            self.model, self.checkpoint, self.offload.placement, points, tokens_per_request=self.tokens_per_request,
            kv=self.kv,
        )  # fmt: skip

    def costs(self, work: OffloadWork, prompt: TokensArray) -> SecondsArray:
        """Return the time of each component of steps."""
        away = self.offload
        given = {"count": self.count, "fit": self.fit}
        result = offload_step_seconds(work, away.side, self.part, mode=away.placement.mode, **given)  # type: ignore[arg-type]
        streams = prompt > away.streams_above
        if np.any(streams):
            streamed = offload_step_seconds(work, away.side, self.part, mode="stream", **given)  # type: ignore[arg-type]
            result = np.where(streams[:, None], streamed, result)
        return result

    def least(self, points: StepPoints) -> SecondsArray:
        """Return the lower bound of steps, of accelerators or processors.

        The longer of reading the bytes of both. At data-sheet bandwidths, without weights that are streamed.
        """
        work, away = self.work(points), self.offload
        routed = routed_share(self.model, points, self.tokens_per_request)
        result: np.ndarray = np.zeros_like(work.own_bytes)
        if self.part is not None:
            read = work.own_bytes * routed + work.cache_bytes
            result = read / (max(self.count, 1) * self.part.need("memory_bandwidth"))
        if away.placement.mode == "cpu":
            computed = np.asarray(points.prefill_tokens) <= away.streams_above
            result = np.maximum(result, computed * work.host_bytes * routed / away.side.bandwidth)
        return result

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Return the time of steps; the front end costs nothing here."""
        return step_times(self.costs(self.work(points), np.asarray(points.prefill_tokens, dtype=float)))

    def link_rate(self, points: StepPoints) -> BytesPerSecondArray:
        """Return the bytes over the links in steps, all accelerators together.

        Weights that are streamed, else activations to the host and back.
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
        """Return the same steps with other constants."""
        return replace(self, fit=fit)


#: bytes of an activation that crosses PCIe to the host and back, BF16
_ACTIVATION = 2.0


# One memory for processor and accelerator, no published matrix rate: bytes decide decode; prompts, decided by
# arithmetic, have no time.

_COMPONENTS_ONE_MEMORY_STEPS = {"launch": (0,), "weights": (1,), "cache": (2,)}


@dataclass(frozen=True, slots=True, eq=False)
class OneMemoryWork:
    """Work that decides the time of steps."""

    layers: np.ndarray  # launched
    weights: BytesArray  # read
    cache: BytesArray  # read


def one_memory_work(
    model: ModelSpec, checkpoint: Checkpoint, points: StepPoints, *, tokens_per_request: Tokens = 1.0, kv: str = "bf16"
) -> OneMemoryWork:
    """Return bytes and layers of steps.

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
    """Return the time of each component of steps.

    With stages on several machines a single stream reads one memory after the other: their number does not change the
    time. Not modelled: hand-over between machines, tensor parallelism over Thunderbolt.

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
    """Steps on a machine with one memory; `part` is the machine."""

    model: ModelSpec
    checkpoint: Checkpoint
    part: Accelerator
    fit: OffloadFit
    kv: str = "bf16"
    tokens_per_request: Tokens = 1.0  # computed by a decoding request in a step

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """Return the components of a step."""
        return _COMPONENTS_ONE_MEMORY_STEPS

    @property
    def times_prompts(self) -> bool:
        """Return False: no matrix rate is published."""
        return False

    def work(self, points: StepPoints) -> OneMemoryWork:
        """Return the bytes of steps, which no constant changes."""
        return one_memory_work(
            self.model, self.checkpoint, points, tokens_per_request=self.tokens_per_request, kv=self.kv
        )

    def least(self, points: StepPoints) -> SecondsArray:
        """Return the lower bound of steps: bytes at the data-sheet bandwidth."""
        work = self.work(points)
        read = work.weights * routed_share(self.model, points, self.tokens_per_request) + work.cache
        least: np.ndarray = read / self.part.need("memory_bandwidth")
        return least

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Return the time of decode steps; the front end costs nothing here."""
        if np.any(np.asarray(points.prefill_tokens) > 0):
            raise UnknownFact(f"no matrix rate of {self.part.full_name} is published: prompts cannot be timed")
        return step_times(
            one_memory_costs(
                self.work(points), bandwidth=self.part.need("memory_bandwidth"), share=self.fit.unified_bandwidth,
                layer_seconds=self.fit.unified_layer_seconds,
            )
        )  # fmt: skip
