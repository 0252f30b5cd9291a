"""Answers of `simulate`, `safe` and `compare` as plain values: what `--format json` and the service write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmplan.serving.safe_load import SafeLoad
    from glmplan.serving.simulate import Outcome
    from glmplan.serving.traffic.promises import Target
    from glmplan.sizing.compare import Compared

__all__ = ["compare_record", "safe_record", "safe_row", "simulate_record"]


def _clean(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def simulate_record(
    outcome: Outcome,
    *,
    targets: Sequence[Target] = (),
    basis: str = "",
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """The outcome of a simulation.

    Parameters
    ----------
    outcome : Outcome
        What was found.
    targets : sequence of Target, optional
        The promise.
    basis : str, optional
        What the step time rests on.
    ranges : mapping, optional
        90 % range of each statistic.

    Returns
    -------
    dict
        Statistics by name, None where one has no value; whether each part of the promise was kept.
    """
    summary = outcome.summary
    content: dict[str, Any] = {name: _clean(value) for name, value in summary.items()}
    if outcome.intervals:
        content["intervals"] = {name: [_clean(x) for x in pair] for name, pair in outcome.intervals.items()}
    if ranges:
        content["ranges"] = {name: [_clean(x) for x in pair] for name, pair in ranges.items()}
    content |= {"rejected_because": outcome.rejected, "basis": basis, "interrupted": outcome.interrupted}
    if targets:
        content["slo"] = {str(t): bool(summary[t.name] <= t.bound * 1000) for t in targets}
    return content


def safe_row(answer: SafeLoad) -> dict[str, Any]:
    """One safe load.

    Parameters
    ----------
    answer : SafeLoad
        What was found.

    Returns
    -------
    dict
        The load under a name that says its unit, what breaks first and why.
    """
    name = "safe_users" if answer.unit == "users" else f"safe_{answer.unit.replace('/', '_per_').replace(' ', '_')}"
    return {name: answer.load, "breaks_first": answer.breaks_first, "reason": answer.reason}


def safe_record(found: Sequence[SafeLoad], slo: str, basis: str) -> dict[str, Any]:
    """Safe loads of one or several kinds of traffic.

    Parameters
    ----------
    found : sequence of SafeLoad
        What was found.
    slo : str
        The promise.
    basis : str
        What the step time rests on.

    Returns
    -------
    dict
        Each safe load, and every load that was looked at.
    """
    content: dict[str, Any] = {"slo": slo, "basis": basis}
    for answer in found:
        row = safe_row(answer)
        name = next(iter(row))
        points = [
            {"load": point.load, "safe": point.safe, "broken": point.broken}
            | {k: v if math.isfinite(v) else None for k, v in point.summary.items()}
            for point in answer.points
        ]
        content[name] = row[name]
        content[name.removeprefix("safe_") + "_search"] = {
            "breaks_first": answer.breaks_first,
            "reason": answer.reason,
            "points": points,
        }
    return content


def compare_record(found: Compared, utilisation: float) -> dict[str, Any]:
    """Plans side by side.

    Parameters
    ----------
    found : Compared
        The plans.
    utilisation : float
        Mean load over the load, for the cost of a token, [-]

    Returns
    -------
    dict
        Users, figures of each plan, and what makes each of the others differ from the first.
    """
    sides = [{"plan": side.name, **side.figures(utilisation)} for side in found.sides]
    causes = {side.name: list(why) for side, why in zip(found.sides[1:], found.causes, strict=True)}
    return {"users": found.users, "plans": sides, "causes": causes}
