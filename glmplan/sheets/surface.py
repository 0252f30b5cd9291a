"""What is predicted over a grid of users and lengths, so that a sheet can read between the points of the grid.

Three times are tabulated for each point: of a whole request, of its further tokens, and until its first. The first two
are nearly linear in users and lengths (a decoding step costs some for each request, a prompt some for each token), so
straight lines between points of doubled values stay within 5 %. No cache pool limits what is tabulated: a
sheet compares users with what the pool holds by itself, and shows no speed beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from glmplan.plan.ask import Deployed
from glmplan.plan.ranking import load_of
from glmplan.prediction.effects import LEVELS, keys_of, load_effects
from glmplan.prediction.intervals import BANDS, PROMPTS
from glmplan.prediction.known import known_of_points
from glmplan.prediction.load import Load
from glmplan.prediction.observables import observables
from glmplan.prediction.step_models import runs_on_accelerators
from glmplan.prediction.step_table import least_of
from glmplan.prediction.user_load import ENDLESS
from glmplan.readers.runs.figures import INTERVAL_KINDS
from glmplan.sizing.mixes import Mixes, mixes_of, packing_key
from glmplan.sizing.points import Columns, columns_of, exact_columns

__all__ = ["Axes", "Spreads", "Surface", "Surfaces", "axes_of"]

#: least and most users of one machine that are tabulated, [-]
_LEAST_USERS, _MOST_USERS = 64, 512
#: few users share steps in ways that bend most between powers of two [-]
_FEW = (3, 6)
#: how often lengths are halved and doubled from those that were asked for, [-]
_PROMPT_OCTAVES, _ANSWER_OCTAVES = (-3, 3), (-2, 2)
_RATES = ("output_rate", "tpot")
#: shortest prompt and answer of a grid [token]
_SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Axes:
    """The points of the grid.

    Attributes
    ----------
    users, inputs, outputs : tuple of int
        Rising: users of one machine [-], prompt and answer [token]
    """

    users: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Users, inputs and outputs of every point; inputs first, then outputs, then users, [-] and [token]"""
        inputs, outputs, users = np.meshgrid(self.inputs, self.outputs, self.users, indexing="ij")
        return users.ravel(), inputs.ravel(), outputs.ravel()


def axes_of(users: int, input_tokens: int, output_tokens: int, longest: int, budgets: Iterable[float] = ()) -> Axes:
    """A grid around a load.

    Parameters
    ----------
    users : int
        Users at once, [-]
    input_tokens, output_tokens : int
        Prompt and answer, [token]
    longest : int
        Longest request that every model reads, [token]
    budgets : iterable of float, optional
        Tokens of a step: a prompt that is one token longer takes one more, which a straight line would smear, [token]

    Returns
    -------
    Axes
        Users in powers of two, and finer where they are few, to four times those asked for (64 to 512); prompts from an
        eighth to eight times, answers from a quarter to four times what was asked for.

    Examples
    --------
    >>> axes_of(8, 2048, 512, 131072).outputs
    (128, 256, 512, 1024, 2048)
    """
    most = min(max(_LEAST_USERS, 4 * users), _MOST_USERS)
    count = sorted({*_FEW, *(1 << bit for bit in range(most.bit_length()))})
    outputs = _octaves(output_tokens, _ANSWER_OCTAVES, longest // 2)
    inputs = _octaves(input_tokens, _PROMPT_OCTAVES, longest - outputs[-1])
    steps = {int(one) + more for one in budgets for more in (0, 1) if inputs[0] <= one < inputs[-1]}
    inputs = tuple(sorted(steps.union(inputs)))
    return Axes(tuple(count), inputs, outputs)


def _octaves(middle: int, octaves: tuple[int, int], most: int) -> tuple[int, ...]:
    found = {round(middle * 2.0**power) for power in range(octaves[0], octaves[1] + 1)}
    inside = sorted(one for one in found if _SHORTEST <= one <= most)
    return tuple(inside if len(inside) > 1 else (middle, 2 * middle))


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """Ends of the 90 % intervals: by bands of users and prompts, and wider outside of what was measured.

    Attributes
    ----------
    bands : dict of str to (6, 5, 2) array
        ``ttft``, ``tpot``, ``output_rate`` → for each band of users and of prompts the logarithm of measured over
        predicted time at both ends, [-]
    domain : tuple of float or None
        Least and most of users [-], prompts and answers [token] that were measured; None where nothing is widened
    """

    bands: dict[str, np.ndarray]
    domain: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Predicted times of one deployment.

    Attributes
    ----------
    axes : Axes
        The grid.
    request, further, first : (inputs, outputs, users) array
        Time of a whole request, of all tokens after the first, and until the first, [s]
    least_request, least_further : (inputs, outputs, users) array
        What no end of an interval beats: the published rates of the machine allow no less, [s]
    spreads : Spreads
        Ends of their intervals.
    knowledge, basis : str
        What they rest on.
    """

    axes: Axes
    request: np.ndarray
    further: np.ndarray
    first: np.ndarray
    least_request: np.ndarray
    least_further: np.ndarray
    spreads: Spreads
    knowledge: str
    basis: str


class Surfaces:
    """Surfaces of several deployments; loads are packed into steps once for all that pack them alike.

    Parameters
    ----------
    axes : Axes
        The grid of all.
    progress : callable, optional
        Called with how many surfaces are done and how many there will be, [-]
    """

    def __init__(self, axes: Axes, progress: Callable[[int, int], None] | None = None) -> None:
        self.axes = axes
        self._mixes: dict[object, Mixes] = {}
        self._progress, self._done = progress, 0

    def of(self, planned: Deployed, left: int = 0) -> Surface:
        """Tabulate a deployment.

        Parameters
        ----------
        planned : Deployed
            The deployment.
        left : int, optional
            Surfaces that are still to come, [-]

        Returns
        -------
        Surface
            Its times and intervals.

        Raises
        ------
        UnknownFact
            If a rate of the machine is not known.
        """
        users, inputs, outputs = self.axes.points
        found = self._columns(planned)
        shape = (len(self.axes.inputs), len(self.axes.outputs), len(self.axes.users))
        figures = found.figures
        whole, token = self._least(planned, found)
        least_request, least_further = (users * outputs * whole).reshape(shape), (token * (outputs - 1)).reshape(shape)
        request = (users * outputs / figures["output_rate"]).reshape(shape)
        further = (np.nan_to_num(figures["tpot"]) * (outputs - 1)).reshape(shape)
        surface = Surface(
            axes=self.axes,
            request=np.maximum(request, least_request),
            further=np.maximum(further, least_further),
            first=figures["ttft"].reshape(shape),
            least_request=least_request,
            least_further=least_further,
            spreads=_spreads(planned, found),
            knowledge=found.knowledge,
            basis=found.basis,
        )
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._done + left)
        return surface

    def _columns(self, planned: Deployed) -> Columns:
        users, inputs, outputs = self.axes.points
        deployed, replicas = planned.deployment, planned.holding.terms.replicas
        if replicas == 1 and runs_on_accelerators(deployed):
            key = packing_key(deployed.defaults, ranks=deployed.dp, tokens_per_step=deployed.tokens_per_step)
            if key not in self._mixes:
                self._mixes[key] = mixes_of(users, inputs, outputs, key)
            return columns_of(deployed, self._mixes[key])
        return exact_columns(deployed, self._loads(planned))

    def _loads(self, planned: Deployed) -> list[Load]:
        """Loads of all points where servers share the users, or weights stay in host memory."""
        asked, replicas = planned.asked, planned.holding.terms.replicas
        return [
            load_of(asked.but(input_tokens=int(i), output_tokens=int(o)), planned.deployment, ENDLESS, int(u), replicas)
            for u, i, o in zip(*self.axes.points, strict=True)
        ]

    def _least(self, planned: Deployed, found: Columns) -> tuple[np.ndarray, np.ndarray]:
        """Least time of an answer token of all users, and of one user's further token, at every point, [s]"""
        deployed = planned.deployment
        if not runs_on_accelerators(deployed):
            return np.zeros(len(found.figures["tpot"])), np.zeros(len(found.figures["tpot"]))
        if planned.holding.terms.replicas > 1:
            seen = [observables(load) for load in self._loads(planned)]
            least = least_of([deployed] * len(seen), [one.points for one in seen])
            times = [
                [float(one.figures[name].weights @ seconds) if name in one.figures else 0.0 for name in _RATES]
                for one, seconds in zip(seen, least, strict=True)
            ]
            whole, token = np.array(times).T
            return whole / np.array([one.figures["output_rate"].scale for one in seen]), token
        key = packing_key(deployed.defaults, ranks=deployed.dp, tokens_per_step=deployed.tokens_per_step)
        mixes = self._mixes[key]
        column = mixes.table.values(least_of([deployed], [mixes.table.points])[0])
        return mixes.matrices["output_rate"] @ column / mixes.tokens, mixes.matrices["tpot"] @ column


def _band_points() -> tuple[np.ndarray, np.ndarray]:
    """A number of users in each band, and a prompt length in each band."""
    users = np.ceil([1.0, *(end + 0.5 for end in BANDS)])
    return users, np.array([1.0, *(end + 1.0 for end in PROMPTS)])


def _spreads(planned: Deployed, found: Columns) -> Spreads:
    deployed = planned.deployment
    users, prompts = _band_points()
    if not runs_on_accelerators(deployed):
        # intervals of these depend little on the load: the widest of the grid
        widest = {}
        for name in INTERVAL_KINDS.keys() & {"ttft", "tpot", "output_rate"}:
            ends = [found.figures[name + end] / found.figures[name] for end in ("_low", "_high")]
            logs = np.log(ends if name != "output_rate" else [1 / ends[1], 1 / ends[0]])
            pair = (np.nanmin(logs[0]), np.nanmax(logs[1]))
            widest[name] = np.broadcast_to(pair, (len(users), len(prompts), 2)).copy()
        return Spreads(widest, None)
    fit = load_effects(deployed.engine)
    domain = fit.domain.get(keys_of(deployed)[LEVELS.index("group")])
    of_users, of_prompts = (one.ravel() for one in np.meshgrid(users, prompts, indexing="ij"))
    known = known_of_points(deployed, of_users, of_prompts, np.ones(len(of_users)), fit=replace(fit, domain={}))
    bands = {}
    for name in ("ttft", "tpot", "output_rate"):
        pairs = np.stack(known.ends[INTERVAL_KINDS[name]], axis=-1)
        bands[name] = pairs.reshape(len(users), len(prompts), 2)
    return Spreads(bands, None if not domain else tuple(float(one) for one in domain))
