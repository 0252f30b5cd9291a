"""What was promised beside what was measured: whether the last step of a ladder keeps every target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glmplan.errors import SpecError
from glmplan.measure.ladder import LadderRecord
from glmplan.serving.traffic.promises import Target, parse_slo

__all__ = ["Promised", "promised", "promised_targets"]


@dataclass(frozen=True, slots=True)
class Promised:
    """One target and what was measured of it.

    Parameters
    ----------
    target : str
        The promise.
    level : float
        Users [-] or rate [1/s] at which it is judged: the last step.
    bound : float
        What is promised, [ms]
    measured : float or None
        What was measured; None where the step was not reached, or is not whole, [ms]
    why : str
        Why it is not kept; empty where it is.

    Examples
    --------
    >>> Promised("ttft p95 < 2000 ms", 12.0, 2000.0, 726.0).kept
    True
    """

    target: str
    level: float
    bound: float
    measured: float | None
    why: str = ""

    @property
    def kept(self) -> bool:
        """Whether it is kept."""
        return not self.why

    @property
    def words(self) -> str:
        """The verdict as a line."""
        figure = "not measured" if self.measured is None else f"{self.measured:,.4g} ms measured"
        return f"{self.target} at {self.level:g}: {figure}, {f'not kept: {self.why}' if self.why else 'kept'}"


def promised_targets(slo: str) -> tuple[Target, ...]:
    """Read a promise that a client can measure.

    Parameters
    ----------
    slo : str
        Targets, as `glmplan.serving.traffic.promises.parse_slo` reads them.

    Returns
    -------
    tuple of Target
        The targets.

    Raises
    ------
    SpecError
        If a target cannot be read, or is about what only the server sees.

    Examples
    --------
    >>> [str(one) for one in promised_targets("ttft p95 < 2 s")]
    ['ttft p95 < 2000 ms']
    """
    targets = parse_slo(slo)
    for one in targets:
        if one.metric == "queue":
            raise SpecError("is about what only the server sees: promise ttft", field="--slo", value=str(one))
    return targets


def promised(record: LadderRecord, targets: Sequence[Target]) -> tuple[Promised, ...]:
    """Judge a promise at the last step of a ladder.

    Parameters
    ----------
    record : LadderRecord
        What was measured.
    targets : sequence of Target
        The promise.

    Returns
    -------
    tuple of Promised
        One for each target. A step that was not reached, was cut short, had failed requests or means
        nothing keeps none.
    """
    levels = [float(level) for level in (*record.plan.users, *(rate for rate, _ in record.plan.schedules))]
    level = max(levels)
    step = next((one for one in record.steps if one.level == level), None)
    if step is None:
        return tuple(Promised(str(one), level, 1e3 * one.bound, None, "the step was not reached") for one in targets)
    whole = "" if step.complete else "the step was cut short"
    whole = whole or step.unusable or (f"{step.faults} requests failed" if step.faults else "")
    rows = []
    for one in targets:
        measured = (step.figures | step.quantiles).get(one.name)
        late = "" if measured is None or measured < 1e3 * one.bound else "it is later"
        why = whole or late or ("nothing says it" if measured is None else "")
        rows.append(Promised(str(one), level, 1e3 * one.bound, measured, why))
    return tuple(rows)
