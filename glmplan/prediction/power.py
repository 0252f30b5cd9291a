"""What a power limit of the accelerators costs: as it was measured on the part, and unknown where nobody measured.

Two things are measured: the matrix rate under limits, and how fast a served model decodes under them with so many
requests at once. A limit lowers the clock of everything but the memory, so that serving loses more than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.schema.accelerator import Accelerator
from glmplan.physics.points import StepPoints
from glmplan.physics.step.model import FrontPoints, StepModel
from glmplan.physics.step.time import StepTime

__all__ = ["LimitedSteps", "check_limit", "decoding_slowdown", "limited", "matrix_slowdown"]


def check_limit(part: Accelerator, limit: float | None) -> None:
    """Refuse a power limit that the part does not have, or under which nobody measured it.

    Parameters
    ----------
    part : Accelerator
        The part.
    limit : float or None
        Power limit, [W]; None is none.

    Raises
    ------
    SpecError
        If the limit is above the rating.
    UnknownFact
        If nobody measured the part under that limit.

    Examples
    --------
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> check_limit(load_accelerator("rtx-pro-6000-ws"), 450.0)
    """
    if limit is None or part.tdp is None or limit == part.tdp:
        return
    if limit > part.tdp:
        raise SpecError(f"is above the {part.tdp:g} W of {part.name}", field="--power-limit", value=limit)
    powers = sorted(one.power for one in part.power_sweep)
    if not powers or limit < powers[0] or part.tdp > powers[-1]:
        raise UnknownFact(f"nobody measured {part.name} under a limit of {limit:g} W")


def matrix_slowdown(part: Accelerator, limit: float | None) -> float:
    """What arithmetic takes longer by under a power limit.

    Parameters
    ----------
    part : Accelerator
        The part.
    limit : float or None
        Power limit, [W]

    Returns
    -------
    float
        Matrix rate at the rating over that under the limit, between measured limits in straight lines, [-]

    Raises
    ------
    UnknownFact
        If nobody measured the part under that limit.
    SpecError
        If the limit is above the rating.

    Examples
    --------
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> part = load_accelerator("rtx-pro-6000-ws")
    >>> round(matrix_slowdown(part, 300.0), 3), matrix_slowdown(part, None)
    (1.813, 1.0)
    """
    check_limit(part, limit)
    if limit is None or part.tdp is None or limit == part.tdp:
        return 1.0
    sweep = sorted(part.power_sweep, key=lambda one: one.power)
    powers, rates = [one.power for one in sweep], [one.rate for one in sweep]
    return float(np.interp(part.tdp, powers, rates) / np.interp(limit, powers, rates))


def decoding_slowdown(part: Accelerator, limit: float | None, requests: np.ndarray) -> np.ndarray:
    """What steps that decode take longer by under a power limit, as serving was measured.

    Parameters
    ----------
    part : Accelerator
        The part.
    limit : float or None
        Power limit, [W]
    requests : (n,) array
        Requests that decode in a step, [-]

    Returns
    -------
    (n,) array
        Time over that at the rating: between measured limits and logarithms of requests in straight lines, beyond them
        that of the nearest; 1 without a request, and on parts of which nobody measured it, [-]

    Raises
    ------
    UnknownFact
        If nobody measured the part under that limit.
    SpecError
        If the limit is above the rating.

    Notes
    -----
    Measured with one model on one number of cards (the source of the part says which) and taken for all: not modelled
    is how the loss depends on the model.

    Examples
    --------
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> part = load_accelerator("rtx-pro-6000-ws")
    >>> decoding_slowdown(part, 300.0, np.array([0.0, 1.0, 4.0, 64.0])).round(3).tolist()
    [1.0, 1.04, 1.04, 1.3]
    >>> decoding_slowdown(part, 500.0, np.array([64.0])).round(3).tolist()
    [1.008]
    """
    check_limit(part, limit)
    amounts = np.asarray(requests, dtype=float)
    if limit is None or part.tdp is None or limit == part.tdp or not part.power_served:
        return np.ones_like(amounts)
    many = sorted({one.requests for one in part.power_served})
    slower = []
    for count in many:
        rows = sorted((one.power, one.speed) for one in part.power_served if one.requests == count)
        powers, speeds = zip(*rows, strict=True)
        slower.append(np.interp(part.tdp, powers, speeds) / np.interp(limit, powers, speeds))
    found = np.interp(np.log2(np.maximum(amounts, 1.0)), np.log2(many), slower)
    return np.where(amounts > 0, np.maximum(found, 1.0), 1.0)


def limited(
    timed: StepTime, arithmetic: tuple[int, ...], requests: np.ndarray, part: Accelerator, limit: float | None
) -> StepTime:
    """Times of steps under a power limit.

    Parameters
    ----------
    timed : StepTime
        Steps at the rating.
    arithmetic : tuple of int
        Columns of its shares that are arithmetic, [-]
    requests : (n,) array
        Requests that decode in each step, [-]
    part : Accelerator
        The part.
    limit : float or None
        Power limit, [W]

    Returns
    -------
    StepTime
        A step takes as much longer as its arithmetic does, or as serving so many requests was measured to, whichever is
        more; the shares are those at the rating.

    Examples
    --------
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> part, steps = load_accelerator("rtx-pro-6000-ws"), StepTime(np.ones(2), np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> limited(steps, (0,), np.array([4.0, 0.0]), part, 300.0).seconds.round(3).tolist()
    [1.04, 1.813]
    """
    if limit is None:
        return timed
    share = timed.shares[:, list(arithmetic)].sum(axis=1)
    by_flop = 1.0 + share * (matrix_slowdown(part, limit) - 1.0)
    return StepTime(timed.seconds * np.maximum(by_flop, decoding_slowdown(part, limit, requests)), timed.shares)


@dataclass(frozen=True, slots=True, eq=False)
class LimitedSteps:
    """Steps of a deployment whose accelerators run under a power limit.

    Attributes
    ----------
    rated : StepModel
        The steps at the rating.
    part : Accelerator
        The part.
    limit : float
        Power limit of each, [W]
    """

    rated: StepModel
    part: Accelerator
    limit: float

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """What a step is made of."""
        return self.rated.components

    @property
    def times_prompts(self) -> bool:
        """Whether steps with prompts can be timed."""
        return self.rated.times_prompts

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
            (n,) seconds [s] and (n, k) shares [-].
        """
        timed = self.rated.times(points, front)
        arithmetic = tuple(self.components.get("compute", ()))
        return limited(timed, arithmetic, np.broadcast_to(points.decode_requests, timed.seconds.shape), self.part,
                       self.limit)  # fmt: skip
