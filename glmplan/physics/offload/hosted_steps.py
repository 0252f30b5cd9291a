"""Steps with a part of the weights in host memory: computed there, or streamed to the accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.physics.offload.time import (
    COSTS,
    HostSide,
    OffloadFit,
    OffloadWork,
    Placement,
    moved_bytes,
    offload_step_seconds,
    offload_work,
)
from glmplan.physics.points import StepPoints
from glmplan.physics.step.model import FrontPoints, step_times
from glmplan.physics.step.time import StepTime

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator
    from glmplan.facts.schema.model import Checkpoint, ModelSpec

__all__ = ["HostedSteps", "Offload"]

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
    fit : OffloadFit
        Constants.
    kv : str
        KV cache format.
    tokens_per_request : float
        Tokens that a decoding request computes in a step, [token]
    decode_shift, prompt_shift : float
        What steps without and with prompts differ from the model by on this machine, as the logarithm of measured over
        predicted rate, [-]

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
    fit: OffloadFit
    kv: str = "bf16"
    tokens_per_request: float = 1.0
    decode_shift: float = 0.0
    prompt_shift: float = 0.0

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

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.

        Returns
        -------
        OffloadWork
            (n,) arrays, [B] and [FLOP].
        """
        return offload_work(
            self.model, self.checkpoint, self.offload.placement, points, tokens_per_request=self.tokens_per_request,
            kv=self.kv,
        )  # fmt: skip

    def costs(self, work: OffloadWork, prompt: np.ndarray) -> np.ndarray:
        """Time of steps by what takes it.

        Parameters
        ----------
        work : OffloadWork
            Their work, as `work` gives it.
        prompt : (n,) array
            Prompt tokens of each, [token]

        Returns
        -------
        (n, 6) array
            As `glmplan.physics.offload.time.offload_step_seconds`, [s]
        """
        away = self.offload
        given = {"count": self.count, "fit": self.fit}
        found = offload_step_seconds(work, away.side, self.part, mode=away.placement.mode, **given)  # type: ignore[arg-type]
        streams = prompt > away.streams_above
        if np.any(streams):
            streamed = offload_step_seconds(work, away.side, self.part, mode="stream", **given)  # type: ignore[arg-type]
            found = np.where(streams[:, None], streamed, found)
        shift = np.where(prompt > 0, self.prompt_shift, self.decode_shift)
        return found * np.exp(-shift)[:, None]

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Time of steps.

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.
        front : FrontPoints, optional
            Work of the front end, which costs nothing here.

        Returns
        -------
        StepTime
            (n,) seconds [s] and (n, 6) shares [-].
        """
        return step_times(self.costs(self.work(points), np.asarray(points.prefill_tokens, dtype=float)))

    def link_rate(self, points: StepPoints) -> np.ndarray:
        """Bytes that cross the links of the accelerators during steps.

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.

        Returns
        -------
        (n,) array
            All accelerators together: weights that are streamed, else activations to the host and back, [B/s]
        """
        work = self.work(points)
        tokens = points.decode_requests * self.tokens_per_request + points.prefill_tokens
        handed = 2.0 * tokens * self.model.hidden * _ACTIVATION * work.host_layers
        streams = (points.prefill_tokens > self.offload.streams_above) | (self.offload.placement.mode == "stream")
        moved = np.where(streams, work.held_bytes, moved_bytes(work, self.offload.placement.mode))
        moved = np.where(moved > 0, moved, handed)
        return moved / np.maximum(self.times(points).seconds, 1e-300)

    def with_fit(self, fit: OffloadFit) -> HostedSteps:
        """The same steps with other constants.

        Parameters
        ----------
        fit : OffloadFit
            Constants.

        Returns
        -------
        HostedSteps
            The steps.
        """
        return replace(self, fit=fit)


#: bytes of an activation that crosses PCIe to the host and back, BF16 [B]
_ACTIVATION = 2.0
