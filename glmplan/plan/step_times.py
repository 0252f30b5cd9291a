"""Step times of a planned deployment as one record: seconds and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glmplan.facts.tables import frame_of_columns, table_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["StepTimes"]


@dataclass(frozen=True, repr=False, eq=False)
class StepTimes:
    """Times of engine steps.

    Attributes
    ----------
    seconds : (n,) array
        Time of each step, [s]
    shares : dict of str to (n,) array
        Share of each component in it (launch, weights, compute, cache, links …); they add up to 1, [-]
    """

    seconds: np.ndarray
    shares: dict[str, np.ndarray]

    def _columns(self) -> dict[str, np.ndarray]:
        return {
            "step_ms": self.seconds * 1e3,
            **{f"{name.replace(' ', '_')}_share": share for name, share in self.shares.items()},
        }

    def to_frame(self) -> pd.DataFrame:
        """One row for each step: its milliseconds and the share of each component."""
        return frame_of_columns(self._columns())

    def __repr__(self) -> str:
        if not len(self.seconds):
            return "<StepTimes of no step>"
        low, high = self.seconds.min() * 1e3, self.seconds.max() * 1e3
        return f"<StepTimes of {len(self.seconds)} steps: {low:,.3g} to {high:,.3g} ms>"

    def __str__(self) -> str:
        columns = {name: values.tolist() for name, values in self._columns().items()}
        return table_text(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
