"""The joint fit: one hierarchical model of the step time on all measured runs at once.

Maximum a posteriori by Gauss-Newton in the effects, each step a sparse damped least squares (LSMR); outliers are
weighted down as under Student's t. See docs/physics/calibration.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.observations import Design
from glmplan.physics.step.time import PARAMETERS, step_time
from glmplan.prediction.effects import COLUMNS, LEVELS, REFERENCES, SCALE, TTFT_SCALE, log_parameters

__all__ = ["PRIOR_MEAN", "Solution", "evaluate", "key_spread", "noise_class", "prior_spread", "solve", "summed"]

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
}
#: prior standard deviation of an effect by level; of what a wall costs nothing is known but its order, [-]
_LEVEL_SPREAD = {
    "all": 0.6,
    "engine": 0.2,
    "engine_draft": 0.2,
    "engine_experts": 0.2,
    "engine_wall": 1.0,
    "engine_attention": 0.2,
    "engine_campaign": 0.01,
    "engine_silicon": 0.18,
    "engine_accelerator": 0.12,
    "engine_kind": 0.12,
    "engine_silicon_kind": 0.12,
    "engine_format": 0.25,
    "engine_accelerator_format": 0.25,
    "model": 0.15,
    "engine_model": 0.25,
    "group": 0.125,
    "configuration": 0.15,
    "release": 0.15,
}
#: the same for a factor on whole steps: what engines share says little about it; campaigns differ by it,
#: which tune their servers and load them from another machine or the same
_SCALE_SPREAD = {
    "all": 1e-3,
    "engine": 0.08,
    "engine_draft": 0.08,
    "engine_experts": 0.0,
    "engine_wall": 0.0,
    "engine_attention": 0.0,
    "engine_campaign": 0.1,
    "engine_silicon": 0.02,
    "engine_accelerator": 0.015,
    "engine_kind": 0.05,
    "engine_silicon_kind": 0.05,
    "engine_format": 0.03,
    "engine_accelerator_format": 0.03,
    "model": 0.03,
    "engine_model": 0.05,
    "group": 0.05,
    "configuration": 0.18,
    "release": 0.18,
}
#: how much wider or narrower the spread of a column is: what a data sheet says of bytes is nearly what is reached,
#: latencies and kernels for products differ more between engines
_COLUMN_SPREAD = {
    "host_seconds": 0.84, "layer_seconds": 0.7, "moe_layer_seconds": 1.0, "state_layer_seconds": 1.0,
    "request_seconds": 1.05, "activation_slowdown": 0.4, "gemm_fixed_slowdown": 0.4, "gemm_bytes_slowdown": 0.4,
    "gemm_flop_slowdown": 0.6, "expert_fixed_slowdown": 0.4, "expert_bytes_slowdown": 0.5,
    "expert_flop_slowdown": 0.7, "attention_fixed_slowdown": 0.4, "cache_slowdown": 0.7,
    "prefill_attention_slowdown": 0.8, "collective_slowdown": 0.4, "collective_bytes_slowdown": 0.4,
    "arrival_seconds": 1.5, "prompt_token_seconds": 1.5, "scale": 0.4, "ttft_scale": 0.8,
}  # fmt: skip
#: levels that stand for a part of the engine only: what they can change
_LEVEL_COLUMNS = {
    "engine_experts": ("moe_layer_seconds", "activation_slowdown", "expert_fixed_slowdown", "expert_bytes_slowdown",
                       "expert_flop_slowdown"),
    "engine_wall": tuple(name for name in PARAMETERS if name.endswith("_slowdown")),
    "engine_attention": ("attention_fixed_slowdown", "cache_slowdown", "prefill_attention_slowdown"),
}  # fmt: skip
#: spread of what is not there [-]
_NOTHING = 1e-9
#: Student's degrees of freedom
_FREEDOM = 4.0
_LEAST_NOISE = 0.10
#: a table that does not state lengths or requests in flight says little of a step time [-]
_GUESSED_LOAD = 0.5


def prior_spread() -> np.ndarray:
    """Prior standard deviation of every effect.

    Returns
    -------
    (levels, columns) array
        [-]
    """
    spread = np.repeat(np.array([_LEVEL_SPREAD[level] for level in LEVELS])[:, None], len(COLUMNS), axis=1)
    spread = spread * np.array([_COLUMN_SPREAD[name] for name in COLUMNS])
    spread[:, SCALE] = [_SCALE_SPREAD[level] for level in LEVELS]
    for level, names in _LEVEL_COLUMNS.items():
        spread[LEVELS.index(level), [name not in names for name in COLUMNS]] = _NOTHING
    return spread


def key_spread(names: Sequence[str], spread: np.ndarray) -> np.ndarray:
    """Prior standard deviation of the effects of one level by key.

    Parameters
    ----------
    names : sequence of str
        Its keys.
    spread : (columns,) array
        Spread of the level, [-]

    Returns
    -------
    (keys, columns) array
        The same for every key, next to nothing for what the others are compared with, [-]

    Examples
    --------
    >>> key_spread(["vllm plain", "vllm drafting"], np.array([0.2])).ravel().round(3).tolist()
    [0.0, 0.2]
    """
    usual = np.array([name.endswith(REFERENCES) for name in names])
    return np.where(usual[:, None], _NOTHING, spread)


@dataclass(frozen=True)
class Solution:
    """Effects that fit best.

    Attributes
    ----------
    effects : tuple of (keys, 21) array
        For each level, one row for each key; the first level holds the prior mean too.
    noise : dict of str to float
        Standard deviation of what the model leaves, by figure and protocol, in logarithms, [-]
    residual : (m,) array
        Measured minus predicted, in logarithms, [-]
    weight : (m,) array
        Student weight of each observation, [-]
    root : (m,) array
        Square root of the weight over the noise: how much each observation pulls; 0 for those not fitted, [-]
    """

    effects: tuple[np.ndarray, ...]
    noise: dict[str, float]
    residual: np.ndarray
    weight: np.ndarray
    root: np.ndarray


def summed(design: Design, effects: tuple[np.ndarray, ...]) -> np.ndarray:
    """Sum of the effects of each run over the levels.

    Parameters
    ----------
    design : Design
        The runs.
    effects : tuple of (keys, 21) array
        Effects by level, [log s] or [-]

    Returns
    -------
    (runs, 21) array
        [-]
    """
    return sum((effects[level][design.keys[:, level]] for level in range(len(LEVELS))), start=np.zeros(1))


def evaluate(design: Design, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict every observation and its sensitivity.

    Parameters
    ----------
    design : Design
        The runs.
    effects : (runs, 21) array
        Summed effects, [log s] or [-]

    Returns
    -------
    (m,) array, (m, 21) array
        Logarithm of the predicted seconds, and its derivative by each column, [log s]
    """
    parameters = log_parameters(effects)[design.node_run]
    step = step_time(design.work, parameters)
    terms = design.entry_weight * step.seconds[design.entry_node]
    count = len(design.log_seconds)
    seconds = np.bincount(design.entry_observation, weights=terms, minlength=count)
    slope = np.zeros((count, len(COLUMNS)))
    share = step.shares[design.entry_node] * terms[:, None]
    for column in range(len(PARAMETERS)):
        slope[:, column] = np.bincount(design.entry_observation, weights=share[:, column], minlength=count)
    slope[:, : len(PARAMETERS)] /= seconds[:, None]
    slope[:, SCALE] = slope[:, : len(PARAMETERS) - 2].sum(axis=1)
    slope[:, TTFT_SCALE] = design.waiting
    return np.log(seconds) + design.waiting * effects[design.observation_run, TTFT_SCALE], slope


def noise_class(design: Design) -> np.ndarray:
    """Name of the noise class of each observation: kind of figure and protocol.

    Parameters
    ----------
    design : Design
        The runs.

    Returns
    -------
    (m,) array of str
        Names.
    """
    protocol = np.array([question.run.protocol for question in design.questions])[design.observation_run]
    kind = np.char.partition(design.figure, "_")[:, 0]
    return np.char.add(np.char.add(kind, " "), protocol)


def _guessed_load(design: Design) -> np.ndarray:
    """What an unstated load adds to the noise of each observation of whole requests, [-]"""
    words = ("in flight", "input tokens", "output tokens")
    open_ = [
        # a burst of short prompts is nearly all decoding: its lengths do not matter much
        question.load.phase == "serving"
        and question.run.protocol != "burst"
        and any(text.endswith(words) for text in question.assumed)
        for question in design.questions
    ]
    return np.where(np.array(open_)[design.observation_run], _GUESSED_LOAD, 0.0)


def _cost(scaled: np.ndarray, z: np.ndarray) -> float:
    """Minus twice the logarithm of the posterior, up to a constant."""
    return float(((_FREEDOM + 1.0) * np.log1p(scaled**2 / _FREEDOM)).sum() + z @ z)


def _places_of(design: Design, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Places of the effects that add up to each observation: those of its key in every level, [-]"""
    first = offsets[:-1][None, :] + design.keys[design.observation_run[rows]]
    return (first[:, :, None] * len(COLUMNS) + np.arange(len(COLUMNS))[None, None, :]).reshape(len(rows), -1)


def _step_length(change: np.ndarray) -> float:
    """Share of a step that is taken, [-]: a logarithm that runs to minus infinity never comes back."""
    return min(1.0, 0.7 / max(float(np.quantile(np.abs(change), 0.999)), 1e-9))


def _learn_noise(noise: np.ndarray, residual: np.ndarray, class_of: np.ndarray) -> None:
    """Set the noise of each class with observations enough to their median deviation, in place."""
    for one in range(len(noise)):
        mine = residual[class_of == one]
        if len(mine) >= 5:
            noise[one] = max(1.4826 * float(np.median(np.abs(mine))), _LEAST_NOISE)


def solve(
    design: Design,
    *,
    use: np.ndarray | None = None,
    start: tuple[np.ndarray, ...] | None = None,
    spread: np.ndarray | None = None,
    rounds: int = 12,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Fit the effects.

    Parameters
    ----------
    design : Design
        The runs.
    use : (m,) array of bool, optional
        Observations to fit; all by default.
    start : tuple of (keys, 21) array, optional
        Where to begin; the prior mean by default, [log s] or [-]
    spread : (levels, columns) array, optional
        Prior standard deviations, [-]
    rounds : int, optional
        Gauss-Newton steps, [-]
    progress : callable, optional
        Called with the step and the median absolute residual.

    Returns
    -------
    Solution
        The effects and what they leave.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import lsmr

    spread = prior_spread() if spread is None else spread
    use = np.ones(len(design.log_seconds), dtype=bool) if use is None else use
    rows = np.flatnonzero(use)
    offsets = np.concatenate([[0], np.cumsum([len(names) for names in design.key_names])])
    size = int(offsets[-1]) * len(COLUMNS)
    prior = np.array([np.log(PRIOR_MEAN[name]) for name in PARAMETERS] + [0.0, 0.0])
    sigma = np.concatenate([key_spread(names, spread[level]).ravel() for level, names in enumerate(design.key_names)])
    z = np.zeros(size)
    if start is not None:
        flat = np.concatenate([part.ravel() for part in start])
        flat[: len(COLUMNS)] -= prior
        z = flat / sigma
    columns = _places_of(design, rows, offsets)
    pointer = np.arange(len(rows) + 1) * columns.shape[1]
    classes, class_of = np.unique(noise_class(design), return_inverse=True)
    noise = np.full(len(classes), 0.2)
    guessed = _guessed_load(design)

    def spread_of(places: np.ndarray | slice = slice(None)) -> np.ndarray:
        return np.hypot(noise[class_of], guessed)[places]

    def split(flat: np.ndarray) -> tuple[np.ndarray, ...]:
        table = flat.reshape(-1, len(COLUMNS))
        return tuple(table[offsets[level] : offsets[level + 1]] for level in range(len(LEVELS)))

    def unpack(z: np.ndarray) -> tuple[np.ndarray, ...]:
        parts = split(z * sigma)
        return (parts[0] + prior, *parts[1:])

    effects = unpack(z)
    log_seconds, slope = evaluate(design, summed(design, effects))
    residual = design.log_seconds - log_seconds
    weight = np.ones(len(residual))
    for round_ in range(rounds):
        scaled = residual / spread_of()
        weight = (_FREEDOM + 1.0) / (_FREEDOM + scaled**2)
        root = np.sqrt(weight[rows]) / spread_of(rows)
        values = np.repeat((slope[rows] * root[:, None])[:, None, :], len(LEVELS), axis=1).reshape(len(rows), -1)
        matrix = csr_matrix(((values * sigma[columns]).ravel(), columns.ravel(), pointer), shape=(len(rows), size))
        target = residual[rows] * root + matrix @ z
        best = lsmr(matrix, target, damp=1.0, maxiter=120, atol=1e-7, btol=1e-7, x0=z)[0]
        move = best - z
        length = _step_length(summed(design, split(move * sigma)))
        cost = _cost(residual[rows] / spread_of(rows), z)
        for _ in range(6):
            tried = z + length * move
            effects = unpack(tried)
            log_seconds, slope = evaluate(design, summed(design, effects))
            residual = design.log_seconds - log_seconds
            if _cost(residual[rows] / spread_of(rows), tried) < cost:
                break
            length /= 2
        z = tried
        if round_ >= 3:
            _learn_noise(noise, residual[use], class_of[use])
        if progress is not None:
            progress(round_, float(np.median(np.abs(residual[rows]))))
    weight = (_FREEDOM + 1.0) / (_FREEDOM + (residual / spread_of()) ** 2)
    root = np.where(use, np.sqrt(weight) / spread_of(), 0.0)
    return Solution(effects, dict(zip(classes.tolist(), noise.tolist(), strict=True)), residual, weight, root)
