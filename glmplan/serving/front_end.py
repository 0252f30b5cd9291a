"""What users see beside the clock of the engines: the time of the front end, engines that wake, late first tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glmplan.serving.traffic.request import apart

if TYPE_CHECKING:
    from glmplan.serving.service import Service
    from glmplan.serving.traffic.spec import Traffic

__all__ = ["aside", "lateness", "shifted", "travel"]

#: of a time that is written as two others' difference [s]
_AT_ONCE = 1e-9


def travel(front_end: float, traffic: Traffic) -> float:
    """When an engine sees a request after it was sent.

    Parameters
    ----------
    front_end : float
        Its time for a request, [s]
    traffic : Traffic
        What arrives.

    Returns
    -------
    float
        [s]

    Notes
    -----
    The front end takes its time before. Of users who send the next request as soon as they have the last answer this
    time is counted aside, and the engine sees them during the step that follows the answer: so `closed_loop_mix`
    counts, with which the times of steps and of the front end were learnt.
    """
    return apart(front_end) if _in_step(traffic) else front_end


def aside(service: Service, traffic: Traffic, counted: int) -> float:
    """Time of the front end that passed beside the clock, between the requests of a user.

    Parameters
    ----------
    service : Service
        What serves.
    traffic : Traffic
        What arrives.
    counted : int
        Requests of all users, [-]

    Returns
    -------
    float
        [s]
    """
    front_end = service.front_end
    beside = front_end - travel(front_end, traffic) + (service.wake if _alone(service, traffic) else 0.0)
    return beside * max(counted / (traffic.users or 1) - 1.0, 0.0)


def lateness(service: Service, traffic: Traffic, records: dict[str, np.ndarray]) -> np.ndarray | float:
    """What first tokens come later by than the steps of the engine's clock say.

    Parameters
    ----------
    service : Service
        What serves.
    traffic : Traffic
        What arrives.
    records : dict of ndarray
        Columns of finished requests with the time of the front end in them, times in [s]

    Returns
    -------
    ndarray or float
        Of each request; 0 where nothing was learnt, [s]

    Notes
    -----
    Who finds nobody there waits for the engine to wake. How much later first tokens come for so many in flight was
    learnt from users who send the next request with the last answer, against the steps that `closed_loop_mix` counts
    for users in step with each other; it holds for such users only. Of any other traffic the simulation knows who
    comes when and what is in the way.
    """
    if not len(records["first"]):
        return 0.0
    if _in_step(traffic):
        waits, servers = records["first"] - records["arrival"], service.settings.replicas
        later: np.ndarray = (service.first.later(float(traffic.users or 1), servers) - 1.0) * waits
        return later + service.wake if _alone(service, traffic) else later
    if not service.wake:
        return 0.0
    # a replica at work begins with a prompt as a step ends, an idle one as it comes
    idle = records["started"] - (records["arrival"] + service.front_end) <= _AT_ONCE
    return np.where(idle, service.wake, 0.0)


def _in_step(traffic: Traffic) -> bool:
    """Whether users send the next request with the last answer."""
    return traffic.kind == "closed" and not traffic.think


def _alone(service: Service, traffic: Traffic) -> bool:
    """Whether every user has a server of his own, as predictions count it."""
    servers = service.settings.replicas // service.first.ranks
    return _in_step(traffic) and (traffic.users or 1) <= max(servers, 1)


def shifted(records: dict[str, np.ndarray], late: np.ndarray | float) -> dict[str, np.ndarray]:
    """Records with first tokens, and so ends, as late as users see them.

    Parameters
    ----------
    records : dict of ndarray
        Columns of finished requests, times in [s]
    late : ndarray or float
        What each comes later by, [s]

    Returns
    -------
    dict of ndarray
        The columns, times in [s]
    """
    if not np.any(late):
        return records
    return {**records, "first": records["first"] + late, "finish": records["finish"] + late}
