"""What a search for the largest safe load answers, and why more is not safe, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.facts.tables import frame_of
from glmplan.serving.load_trial import OVERLOAD
from glmplan.serving.service import Service
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import counted_unit

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LoadPoint", "SafeLoad", "unit_of", "why_broken"]


def unit_of(traffic: Traffic) -> str:
    """What loads of a kind of traffic are counted in.

    Parameters
    ----------
    traffic : Traffic
        What arrives.

    Returns
    -------
    str
        In words.

    Examples
    --------
    >>> unit_of(Traffic(kind="poisson", rate=1.0))
    'requests/s'
    """
    if traffic.users is not None:
        return "users"
    if traffic.kind == "trace":
        return "times the recorded speed"
    return "sessions/s" if traffic.kind == "sessions" else "requests/s"


@dataclass(frozen=True, slots=True, repr=False)
class LoadPoint:
    """What one load does.

    Parameters
    ----------
    load : float
        Users, [-], or rate, [1/s]
    safe : bool
        Whether the promise holds.
    summary : dict
        Statistics of the last simulation at this load.
    broken : str
        The first target that fails, or `kv thrash`; empty if none.
    """

    load: float
    safe: bool
    summary: dict[str, float]
    broken: str = ""

    def __repr__(self) -> str:
        return f"<LoadPoint {self.load:g}: {'safe' if self.safe else self.broken or 'not safe'}>"


@dataclass(frozen=True, slots=True, repr=False)
class SafeLoad:
    """The answer.

    Parameters
    ----------
    load : float
        Largest safe load; 0 if even the smallest is not, [-] or [1/s]
    unit : str
        `users` or `requests/s`.
    breaks_first : str
        What fails at the next load; empty if nothing does up to the largest load looked at.
    reason : str
        Why, in words.
    points : tuple of LoadPoint
        Every load that was looked at, rising.
    """

    load: float
    unit: str
    breaks_first: str
    reason: str
    points: tuple[LoadPoint, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row for each load that was looked at, with its statistics in the units of their names."""
        return frame_of(
            {"load": one.load, "safe": one.safe, "broken": one.broken, **one.summary} for one in self.points
        )

    def __repr__(self) -> str:
        return f"<SafeLoad {self.load:.4g} {self.unit}: {self.reason}>"

    def __str__(self) -> str:
        return f"{self.load:.4g} {self.unit}: {self.reason}"


def why_broken(point: LoadPoint, service: Service, unit: str) -> str:
    """Say in words what fails first.

    Parameters
    ----------
    point : LoadPoint
        The least load that is not safe.
    service : Service
        The service as predicted.
    unit : str
        What loads are counted in.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(1000), EngineSettings())
    >>> why_broken(LoadPoint(1.0, False, {}, "requests do not fit"), service, "users")
    'at 1 user no request fits the KV pool or the context'
    """
    summary, load = point.summary, "1 user" if (point.load, unit) == (1, "users") else f"{point.load:.4g} {unit}"
    if point.broken == "requests do not fit":
        return f"at {load} no request fits the KV pool or the context"
    if point.broken == OVERLOAD:
        return f"at {load} more arrives than can be served: the queue grows without end"
    if point.broken == "kv thrash":
        share = summary["preemptions"] / summary["requests"]
        return f"at {load} the KV pool runs over: {share:.2g} preemptions for each request"
    if point.broken == "clients leave":
        left = summary["left"] / (summary["requests"] + summary["left"])
        return f"at {load} {left:.0%} of the clients leave before their first token"
    metric, statistic = point.broken.split()[:2]
    value = summary[f"{metric}_{statistic}_ms"]
    text = f"at {load} {metric} {statistic} reaches {value:,.0f} ms"
    if metric in ("tpot", "itl"):
        most = counted_unit(round(summary["batch_max"]), "requests")
        return f"{text}: steps of up to {most} and the prompts beside them take too long"
    if summary["queue_mean_ms"] > 0.5 * summary["ttft_mean_ms"]:
        if summary["batch_max"] >= service.settings.max_num_seqs:
            return f"{text}: requests wait for one of the {service.settings.max_num_seqs} places (max_num_seqs)"
        if summary["kv_occupancy_max"] > 0.85:
            return f"{text}: requests wait for room in the KV pool"
        return f"{text}: requests wait for their turn to be prefilled"
    return f"{text}: prompts take too long"
