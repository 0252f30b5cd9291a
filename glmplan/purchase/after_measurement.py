"""Find the machines that one named benchmark would save."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from glmplan.planner.ranking import Narrowed, narrowing_of, predicted
from glmplan.planner.service import Described, safe_of
from glmplan.prediction.predict import Figure
from glmplan.prediction.step_models import site_calibration
from glmplan.purchase.size_answer import MOST_USERS, Measured, Option, share_of
from glmplan.purchase.size_question import SizeQuestion
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.units import Ratio

__all__ = ["after_measurement", "measured_machines"]


class _Row(NamedTuple):
    users: int
    tpot: Figure | None
    ttft: Figure | None


def after_measurement(option: Option, asked: SizeQuestion, described: Described) -> Measured | None:
    """Return the benchmark that narrows an answer most, or None.

    Notes
    -----
    Ignorance of a machine, a release or a model is the same in every copy and does not average out over them. After
    the benchmark the intervals are those of a site that measured this plan; the prediction stays. Not modelled: the
    benchmark may find another speed than predicted.
    """
    planned = option.planned
    share = share_of(asked.traffic, option.machines)
    users = min(share.users or max(round(option.attainment.summary.get("batch_mean", 1.0)), 1), MOST_USERS)
    with site_calibration(planned.asked.calibration):
        counts = tuple(sorted({1, users}))
        found = predicted(planned.asked, [(planned.holding, one) for one in counts])
        figures = [one.figures for one in found]
        rows = tuple(_Row(count, one.get("tpot"), one.get("ttft")) for count, one in zip(counts, figures, strict=True))
        best = narrowing_of(planned.asked, planned.holding, planned.deployment, found[-1].knowledge, rows)
        if best is None:
            return None
        narrower = _narrowed(described, [one for one in best.figures if one.users == users])
        targets = parse_slo(asked.slo)
        load = safe_of(narrower, asked.traffic, targets, probability=asked.probability, most=asked.load).load
    return Measured(best.users, best.command, option.machines, measured_machines(asked.load, load, option.machines))


def measured_machines(load: float, each: float, machines: int) -> int:
    """Return the machines after a benchmark, never more than before.

    Examples
    --------
    >>> measured_machines(500.0, 120.0, 9), measured_machines(500.0, 0.0, 9)
    (5, 9)
    """
    return min(math.ceil(load / each - 1e-9), machines) if each > 0 else machines


def _narrowed(described: Described, figures: list[Narrowed]) -> Described:
    """Return the service with the intervals after the benchmark."""
    ratio = {one.metric: one.after / one.before if one.before else 1.0 for one in figures}
    step, first = ratio.get("tpot", ratio.get("ttft", 1.0)), ratio.get("ttft", 1.0)
    before = described.by_users

    def by_users(users: float, share: Ratio) -> tuple[Ratio, Ratio]:
        assert before is not None
        slow, late = before(users, share)
        return slow**step, late**first

    low, high = described.first
    return replace(
        described, low=described.low**step, high=described.high**step, first=(low**first, high**first), plan=None,
        by_users=None if before is None else by_users, tries={},
    )  # fmt: skip
