"""The joint fit: one hierarchical model of the step time on all measured runs at once.

Maximum a posteriori by Gauss-Newton in the effects, each step solved exactly; outliers are weighted down as under
Student's t. See docs/physics/calibration.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.normal import Normal, cells_of, normal_equations
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.spreads import Spreads, key_spread, noise_class
from glmplan.calibrate.step.spreads import start as start_spreads
from glmplan.errors import GlmplanError
from glmplan.physics.step.time import PARAMETERS, step_time
from glmplan.prediction.effects import COLUMNS, FRONT, LEVELS, SCALE, TTFT_SCALE, log_parameters

__all__ = [
    "FREEDOM",
    "PRIOR_MEAN",
    "NotConverged",
    "Solution",
    "evaluate",
    "guesses_load",
    "linearised",
    "noise_of",
    "prior_deviation",
    "prior_mean",
    "solve",
    "summed",
]

#: where the search starts and where an unmeasured engine stands: latencies in seconds, slow-downs as ratios
PRIOR_MEAN: dict[str, float] = {
    "host_seconds": 0.5e-3,
    "layer_seconds": 6e-6,
    "moe_layer_seconds": 6e-6,
    "state_layer_seconds": 8e-6,
    "request_seconds": 1.0e-7,
    "activation_slowdown": 10.0,
    "gemm_fixed_slowdown": 1.0,
    "gemm_bytes_slowdown": 1.1,
    "gemm_flop_slowdown": 1.1,
    "expert_fixed_slowdown": 1.0,
    "expert_bytes_slowdown": 1.0,
    "expert_flop_slowdown": 1.2,
    "attention_fixed_slowdown": 1.0,
    "cache_slowdown": 1.1,
    "prefill_attention_slowdown": 1.2,
    "collective_slowdown": 1.2,
    "collective_bytes_slowdown": 1.2,
    "arrival_seconds": 3.0e-4,
    "prompt_token_seconds": 2.0e-6,
    "wake_seconds": 1.0e-3,
}
#: Student's degrees of freedom: with four, a row as wild as one in a hundred weighs half
FREEDOM = 4.0
#: the search ends this near to the optimum, in deviations of the posterior over all directions [-]
TOLERANCE = 0.01
#: rounds after which it is said to have failed
_MOST_ROUNDS = 300
#: how often a move that makes the posterior worse is halved
_HALVINGS = 8
#: what a cell says less than this is left to the corrections of the search [-]
_MATTERS = 0.01
#: farthest that a summed effect moves in a step [-]
_FARTHEST = 3.0
#: steps after which the equations are made anew at the latest
_LATER = 15
#: steps of which the search remembers how the gradient changed
_MEMORY = 20


class NotConverged(GlmplanError):
    """The joint fit still moved after its last round."""


@dataclass(frozen=True)
class Solution:
    """Effects that fit best.

    Attributes
    ----------
    effects : tuple of (keys, 22) array
        For each level, one row for each key; the first level holds the prior mean too.
    spreads : Spreads
        Spreads and noise that they were fitted with.
    residual : (m,) array
        Measured minus predicted, in logarithms, [-]
    weight : (m,) array
        Student weight of each observation, [-]
    root : (m,) array
        Square root of the weight over the noise: how much each observation pulls; 0 for those not fitted, [-]
    rounds : int
        Steps that it took, [-]
    distance : float
        How far the optimum still is, in deviations of the posterior, [-]
    """

    effects: tuple[np.ndarray, ...]
    spreads: Spreads
    residual: np.ndarray
    weight: np.ndarray
    root: np.ndarray
    rounds: int
    distance: float


def summed(design: Design, effects: tuple[np.ndarray, ...]) -> np.ndarray:
    """Sum of the effects of each run over the levels.

    Parameters
    ----------
    design : Design
        The runs.
    effects : tuple of (keys, 22) array
        Effects by level, [log s] or [-]

    Returns
    -------
    (runs, 22) array
        [-]
    """
    return sum((effects[level][design.keys[:, level]] for level in range(len(LEVELS))), start=np.zeros(1))


def evaluate(design: Design, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict every observation and its sensitivity.

    Parameters
    ----------
    design : Design
        The runs.
    effects : (runs, 22) array
        Summed effects, [log s] or [-]

    Returns
    -------
    (m,) array, (m, 22) array
        Logarithm of the predicted seconds, and its derivative by each column, [log s]
    """
    step = step_time(design.figure_work, log_parameters(effects)[design.observation_run])
    slope = np.zeros((len(step.seconds), len(COLUMNS)))
    slope[:, : len(PARAMETERS)] = step.shares
    slope[:, SCALE] = step.shares.sum(axis=1) - step.shares[:, list(FRONT)].sum(axis=1)
    slope[:, TTFT_SCALE] = design.waiting
    return np.log(step.seconds) + design.waiting * effects[design.observation_run, TTFT_SCALE], slope


def guesses_load(design: Design) -> np.ndarray:
    """Which observations are of whole requests whose lengths or requests in flight the table does not state.

    Parameters
    ----------
    design : Design
        The runs.

    Returns
    -------
    (m,) array of bool
        Such a table says little of a step time.
    """
    words = ("in flight", "input tokens", "output tokens")
    open_ = [
        # a burst of short prompts is nearly all decoding: its lengths do not matter much
        question.load.phase == "serving"
        and question.run.protocol != "burst"
        and any(text.endswith(words) for text in question.assumed)
        for question in design.questions
    ]
    return np.array(open_)[design.observation_run]


def noise_of(design: Design, spreads: Spreads) -> np.ndarray:
    """Noise of each observation.

    Parameters
    ----------
    design : Design
        The runs.
    spreads : Spreads
        Noise of their classes.

    Returns
    -------
    (m,) array
        [-]
    """
    return np.hypot(spreads.noise_of(noise_class(design)), spreads.guessed_load * guesses_load(design))


def prior_mean() -> np.ndarray:
    """Where an unmeasured engine stands.

    Returns
    -------
    (22,) array
        [log s] or [-]
    """
    return np.array([np.log(PRIOR_MEAN[name]) for name in PARAMETERS] + [0.0, 0.0])


def prior_deviation(design: Design, spread: np.ndarray) -> np.ndarray:
    """Prior standard deviation of every effect of a design.

    Parameters
    ----------
    design : Design
        The runs.
    spread : (levels, columns) array
        Spread of each level, [-]

    Returns
    -------
    (keys, 22) array
        The keys of all levels one after the other, [-]
    """
    return np.concatenate([key_spread(names, spread[level]) for level, names in enumerate(design.key_names)])


def linearised(design: Design, solution: Solution, *, spread: np.ndarray | None = None, least: float = 0.0) -> Normal:
    """Normal equations around a solution, with Student's weights as they ended.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects.
    spread : (levels, columns) array, optional
        Prior standard deviations; those of the fit by default, [-]
    least : float, optional
        As in `glmplan.calibrate.step.normal.normal_equations`, [-]

    Returns
    -------
    Normal
        The equations: their inverse is the posterior of Laplace's approximation.
    """
    slope = evaluate(design, summed(design, solution.effects))[1] * solution.root[:, None]
    wide = prior_deviation(design, solution.spreads.effect if spread is None else spread)
    return normal_equations(cells_of(design), slope, wide, least=least)


@dataclass(frozen=True)
class _Point:
    """A place of the search: effects over their spread, and what is known there."""

    z: np.ndarray
    residual: np.ndarray
    root: np.ndarray
    slope: np.ndarray
    cost: float
    gradient: np.ndarray


class _Posterior:
    """Minus twice the logarithm of the posterior density, with its gradient, of effects over their spread."""

    def __init__(self, design: Design, spreads: Spreads, use: np.ndarray) -> None:
        self.design, self.use = design, use
        self.cells = cells_of(design)
        self.sigma = prior_deviation(design, spreads.effect)
        self.noise = noise_of(design, spreads)
        self.run_cell = np.zeros(len(design.questions), dtype=int)
        self.run_cell[design.observation_run] = self.cells.of_figure
        self.prior = prior_mean()

    def at(self, z: np.ndarray) -> _Point:
        design = self.design
        log_seconds, slope = evaluate(design, self.cells.sums(self.sigma * z)[self.run_cell] + self.prior)
        residual = design.log_seconds - log_seconds
        scaled = np.where(self.use, residual / self.noise, 0.0)
        cost = float(((FREEDOM + 1.0) * np.log1p(scaled**2 / FREEDOM)).sum() + (z**2).sum())
        root = np.where(self.use, np.sqrt((FREEDOM + 1.0) / (FREEDOM + scaled**2)) / self.noise, 0.0)
        pull = self.cells.added(slope * (root**2 * residual)[:, None])
        gradient = z - self.sigma * self.cells.gathered(pull)
        return _Point(z, residual, root, slope, cost, gradient)

    def normal(self, here: _Point) -> Normal:
        return normal_equations(self.cells, here.slope * here.root[:, None], self.sigma, least=_MATTERS)

    def moves(self, change: np.ndarray) -> np.ndarray:
        """Change of the summed effects of every cell."""
        return self.cells.sums(self.sigma * change)


def _step_length(change: np.ndarray) -> float:
    """Share of a step that is taken, [-]: a logarithm that runs to minus infinity never comes back."""
    return min(1.0, _FARTHEST / max(float(np.quantile(np.abs(change), 0.999)), 1e-9))


def _direction(normal: Normal, gradient: np.ndarray, past: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Step of limited-memory BFGS that starts from the factored posterior, (keys, 22)."""
    rest, shares = gradient, []
    for step, change in reversed(past):
        shares.append(float((step * rest).sum()) / float((step * change).sum()))
        rest = rest - shares[-1] * change
    rest = normal.posterior_times(rest)
    for (step, change), share in zip(past, reversed(shares), strict=True):
        rest = rest + (share - float((change * rest).sum()) / float((step * change).sum())) * step
    return -rest


def solve(
    design: Design,
    spreads: Spreads | None = None,
    *,
    use: np.ndarray | None = None,
    start: tuple[np.ndarray, ...] | None = None,
    enough: float = TOLERANCE,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Find the effects of the highest posterior density.

    Parameters
    ----------
    design : Design
        The runs.
    spreads : Spreads, optional
        Spreads of the effects and noise of the figures; by default those before anything was estimated.
    use : (m,) array of bool, optional
        Observations to fit; all by default.
    start : tuple of (keys, 22) array, optional
        Where to begin; the prior mean by default, [log s] or [-]
    enough : float, optional
        How near to the optimum to end, in deviations of the posterior over all directions, [-]
    progress : callable, optional
        Called with the step and the median absolute residual.

    Returns
    -------
    Solution
        The effects and what they leave.

    Raises
    ------
    NotConverged
        If the optimum is farther than a hundredth of a posterior deviation after 300 rounds.

    Notes
    -----
    The first steps are those of Gauss-Newton: each solves ``[M; I] dz = [r; -z]`` exactly, ``z`` being effects over
    their spreads, ``M`` and ``r`` slopes and residuals over the noise, weighted as under Student's t. Near the optimum
    the equations are kept for a while and corrected by what gradients show, since a factor costs more than many steps.

    References
    ----------
    .. [1] J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd ed., Springer 2006, algorithm 7.4 and section 10.3.
    """
    spreads = start_spreads() if spreads is None else spreads
    search = _Posterior(design, spreads, np.ones(len(design.log_seconds), dtype=bool) if use is None else use)
    z = np.zeros_like(search.sigma)
    if start is not None:
        z = np.concatenate([start[0] - search.prior, *start[1:]]) / search.sigma
    here, past = search.at(z), list[tuple[np.ndarray, np.ndarray]]()
    normal, due, round_ = search.normal(here), 1 if start is None else 4, 0
    distance = _distance(normal, here)
    while distance > enough and round_ < _MOST_ROUNDS:
        if round_ == due:
            # soon after the start often, later seldom
            normal, past, due = search.normal(here), [], due + min(1 + due // 2, _LATER)
        before = here
        here = _next(search, normal, here, past)
        distance = _distance(normal, here)
        change = here.z - before.z, here.gradient - before.gradient
        if float((change[0] * change[1]).sum()) > 0.0:
            past = [*past[-_MEMORY:], change]
        round_ += 1
        if progress is not None:
            progress(round_, float(np.median(np.abs(here.residual[search.use]))))
    if distance > enough:
        raise NotConverged(f"the joint fit is still {distance:.2g} deviations off after {_MOST_ROUNDS} rounds")
    parts = search.cells.split(search.sigma * here.z)
    weight = (FREEDOM + 1.0) / (FREEDOM + (here.residual / search.noise) ** 2)
    return Solution((parts[0] + search.prior, *parts[1:]), spreads, here.residual, weight, here.root, round_, distance)


def _distance(normal: Normal, here: _Point) -> float:
    """How far the optimum is, in deviations of the posterior, [-]"""
    return float(np.sqrt(max((here.gradient * normal.posterior_times(here.gradient)).sum(), 0.0)))


def _next(search: _Posterior, normal: Normal, here: _Point, past: list[tuple[np.ndarray, np.ndarray]]) -> _Point:
    """Take a step that makes the posterior better."""
    move = _direction(normal, here.gradient, past)
    length = _step_length(search.moves(move))
    slope = float((here.gradient * move).sum())
    there = here
    for _ in range(_HALVINGS):
        there = search.at(here.z + length * move)
        if there.cost <= here.cost + 1e-4 * length * 2.0 * slope:
            return there
        length /= 2.0
    return there
