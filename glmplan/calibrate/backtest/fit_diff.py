"""Changes of predictions between two fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.observations import asked_of
from glmplan.calibrate.step.write import FILE_LEFT_OUT as FILE
from glmplan.calibrate.step.write import LeftOut, read_left_out
from glmplan.catalog.files import data_folder
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COMPARED
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import effects_in
from glmplan.prediction.from_row import RunCase
from glmplan.prediction.predict import predict_many

__all__ = ["Move", "moved"]

#: smaller changes are rounding [-]
_LEAST = 0.02


@dataclass(frozen=True, slots=True)
class Move:
    """One changed prediction, in the unit of its metric."""

    run: str
    model: str
    accelerator: str
    engine: str
    figure: str  # column of the metric
    measured: float
    old: float
    new: float

    @property
    def change(self) -> float:
        """Return new / old - 1 [-]"""
        return self.new / self.old - 1.0

    @property
    def nearer(self) -> bool:
        """Return True if the new prediction is nearer to the measured value."""
        result: bool = abs(np.log(self.new / self.measured)) < abs(np.log(self.old / self.measured))
        return result


def _folder(old: Path) -> Path:
    folder = old if os.path.isdir(old) else old.parent
    if os.path.isdir(folder / "step"):
        folder = folder / "step"
    if not os.path.exists(folder / "shared.toml") and not os.path.exists(folder / FILE):
        raise SpecError("holds no fit of `glmplan calibrate`", field="--against", value=str(old))
    return folder


def moved(
    old: str | Path,
    new: str | Path | None = None,
    *,
    runs: Iterable[Run] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Move]:
    """Return predictions that changed by more than 2 %, largest change first.

    `old` and `new` (default: shipped) are folders of fits, or a file in one. If the older fit has other levels or
    parameters, the stored held-out predictions are compared.
    """
    before = _folder(Path(old))
    after = _folder(Path(new)) if new is not None else data_folder("calibration") / "fits" / "step"
    cases, _ = asked_of(load_measurements() if runs is None else runs)
    try:
        effects_in(before, "vllm")
    except SpecError:
        moves = _by_errors(cases, read_left_out(before / FILE), read_left_out(after / FILE))
    else:
        moves = _by_fits(cases, before, after, progress)
    return sorted((one for one in moves if abs(one.change) > _LEAST), key=lambda one: -abs(np.log(one.new / one.old)))


def _move(case: RunCase, figure: str, old: float, new: float) -> Move:
    run, d = case.run, case.deployment
    return Move(run.id, d.model.name, d.accelerator.name, d.engine, figure, run.observed[figure], old, new)


def _by_fits(cases: Sequence[RunCase], before: Path, after: Path, progress: Callable[[int, int], None]) -> list[Move]:
    moves = []
    engines = sorted({case.deployment.engine for case in cases})
    for done, engine in enumerate(engines):
        progress(done, len(engines))
        mine = [case for case in cases if case.deployment.engine == engine]
        inputs = [(one.deployment, one.load, one.run.measured_on) for one in mine]
        both = [predict_many(inputs, effects=effects_in(folder, engine)) for folder in (before, after)]
        for case, old, new in zip(mine, *both, strict=True):
            for figure in case.run.observed:
                kind = COMPARED.get(figure)
                if kind is not None and kind.predicted in old.figures and kind.predicted in new.figures:
                    pair = (one.figures[kind.predicted].value / kind.factor for one in (old, new))
                    moves.append(_move(case, figure, *pair))
    return moves


def _by_errors(cases: Iterable[RunCase], before: LeftOut, after: LeftOut) -> list[Move]:
    by_run = {case.run.id: case for case in cases}
    table: dict[tuple[str, str], float] = {}
    for run, figure, error in zip(before.run, before.figure.tolist(), before.errors[0].residual.tolist(), strict=True):
        table[run, figure] = error
    moves = []
    for run, figure, error in zip(after.run, after.figure.tolist(), after.errors[0].residual.tolist(), strict=True):
        was = table.get((run, figure))
        if was is None or run not in by_run or not np.isfinite(was + error):
            continue
        sign = 1.0 if COMPARED[figure].rate else -1.0
        measured = by_run[run].run.observed[figure]
        moves.append(_move(by_run[run], figure, *(measured * float(np.exp(sign * one)) for one in (was, error))))
    return moves
