"""What can break a machine: the rule, the case that taught it, how bad it is, and what to change."""

from __future__ import annotations

from typing import Literal

from glmplan.facts.schema.validation import Frozen
from glmplan.units import Watts

__all__ = ["Applies", "HazardRule", "HazardSeverity"]

#: ``danger`` stops or damages the service or the machine; ``warning`` degrades it; ``note`` is to be known
HazardSeverity = Literal["danger", "warning", "note"]


class Applies(Frozen):
    """Where a hazard was seen: patterns of compute capabilities, and words in the description of a machine."""

    compute_capability: tuple[str, ...] = ()
    boards: tuple[str, ...] = ()


class HazardRule(Frozen):
    """One entry of `hardware_db/hazards`; the file's name is its id.

    `thresholds` are shares [-] or quantities with their unit; `thresholds_from` says who set them. `ratings` are the
    ordinary kinds of what a machine hangs on, by name, rising [W].
    """

    name: str
    title: str
    severity: HazardSeverity
    rule: str
    effect: str
    case: str
    source: str
    change: str
    thresholds: dict[str, float | str] = {}
    thresholds_from: str | None = None
    ratings: dict[str, Watts] = {}
    applies: Applies = Applies()
