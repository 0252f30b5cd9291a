"""Steps of accelerators that hold all weights: kernel times and counts, times what was learnt of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.front_end import front_work, prompt_launches
from glmplan.physics.step.model import FrontPoints
from glmplan.physics.step.structure import StepWork
from glmplan.physics.step.time import COMPONENTS, StepTime, step_time
from glmplan.physics.step.work import SLOTS, step_work

__all__ = ["GPU_COMPONENTS", "GpuSteps"]

#: parts of a step → columns of the work table; the front end stands outside of steps
GPU_COMPONENTS: dict[str, tuple[int, ...]] = {
    name: tuple(SLOTS.index(slot) for slot in slots) for name, slots in COMPONENTS.items() if name != "front end"
}


@dataclass(frozen=True, slots=True, eq=False)
class GpuSteps:
    """Steps of one deployment on accelerators.

    Attributes
    ----------
    structure : StepWork
        Model, formats, part, link.
    layout : Layout
        Parallel degrees, [-]
    log_parameters : (20,) array
        Natural logarithms of `glmplan.physics.step.time.PARAMETERS`, [log s] or [-]
    graph_tokens : int
        Tokens up to which a pass with prompts is replayed from graphs, [token]

    Notes
    -----
    Many deployments at once are computed by `glmplan.prediction.step_table.step_tables`, with the same formulas.
    """

    structure: StepWork
    layout: Layout
    log_parameters: np.ndarray
    graph_tokens: int = 0

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """What a step is made of."""
        return GPU_COMPONENTS

    @property
    def times_prompts(self) -> bool:
        """Prompts are timed by their arithmetic."""
        return True

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Time of steps.

        Parameters
        ----------
        points : StepPoints
            What the steps hold, (n,) arrays.
        front : FrontPoints, optional
            Work of the front end beside them; none by default.

        Returns
        -------
        StepTime
            (n,) seconds [s] and (n, 20) shares [-].
        """
        work = step_work(self.structure, layout=self.layout, points=points)
        if front is None:
            return step_time(work, self.log_parameters)
        table = np.stack([work[slot] for slot in SLOTS], axis=1)
        launches = prompt_launches(self.structure, replayed=front.pass_tokens <= self.graph_tokens)
        return step_time(front_work(table, front, launches), self.log_parameters)
