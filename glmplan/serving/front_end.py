"""What users see beside the clock of the engines: the time of the front end, and first tokens that come late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glmplan.serving.traffic.request import apart

if TYPE_CHECKING:
    from glmplan.serving.engine.first_tokens import FirstTokens
    from glmplan.serving.engine.settings import EngineSettings
    from glmplan.serving.traffic.spec import Traffic

__all__ = ["aside", "lateness", "shifted", "travel"]


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
    at_once = traffic.kind == "closed" and not traffic.think
    return apart(front_end) if at_once else front_end


def aside(front_end: float, traffic: Traffic, counted: int) -> float:
    """Time of the front end that passed beside the clock, between the requests of a user.

    Parameters
    ----------
    front_end : float
        Its time for a request, [s]
    traffic : Traffic
        What arrives.
    counted : int
        Requests of all users, [-]

    Returns
    -------
    float
        [s]
    """
    return (front_end - travel(front_end, traffic)) * max(counted / (traffic.users or 1) - 1.0, 0.0)


def lateness(
    first: FirstTokens, settings: EngineSettings, front_end: float, traffic: Traffic, records: dict[str, np.ndarray]
) -> np.ndarray | float:
    """What first tokens come later by than their steps say, as a prediction has it for so many in flight.

    Parameters
    ----------
    first : FirstTokens
        How much later first tokens come than their steps say.
    settings : EngineSettings
        Of the engine, for its replicas.
    front_end : float
        Time of the front end that stands in the records, [s]
    traffic : Traffic
        What arrives.
    records : dict of ndarray
        Columns of finished requests, times in [s]

    Returns
    -------
    ndarray or float
        Of each request; 0 where nothing was learnt, [s]

    Notes
    -----
    It was learnt from users who send the next request with the last answer, and holds for their whole wait as
    `closed_loop_mix` counts it. Of any other traffic the wait for a place is no such thing: the simulation knows who
    comes when and what is in the way, and a first token cannot come before its prompt is begun, so that only the time
    of the front end and from the first step of a prompt to its last are stretched.
    """
    if not first.scale or not len(records["first"]):
        return 0.0
    waits = records["first"] - records["arrival"]
    if traffic.kind == "closed" and not traffic.think:
        in_flight = float(traffic.users or 1)
    else:
        together = records["finish"].max() - records["arrival"].min()
        in_flight = float((records["finish"] - records["arrival"]).sum() / together) if together > 0 else 1.0
        waits = records["first"] - records["started"] + front_end
    later: np.ndarray = (first.later(in_flight, settings.replicas) - 1.0) * waits
    return later


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
