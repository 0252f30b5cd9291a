"""Fit one hierarchical model of the step time to all measured runs.

The effects maximise the posterior density (Gauss-Newton, each step solved exactly); outliers are weighted down as under
Student's t. Noise scales and spreads are estimated too. See docs/physics/calibration.md.

Runs of one cell (the same key on every level) share their effects: all their observations reduce to a triangle of at
most 22 rows. With n such rows the posterior of tens of thousands of effects needs one n × n matrix (matrix inversion
lemma); its Cholesky factor gives the best effects and their covariance. Effects are one table (keys, 22), the levels
one after the other.

A spread is the standard deviation of the effects of one level in one column: a factor of the level times a factor of
the column; a factor on whole steps has a spread of its own on every level. Levels in `SHARED` have one more common
factor, estimated by `glmplan.calibrate.step.spread_factors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.calibrate.step.observations import Design
from glmplan.catalog.files import read_toml, write_atomically
from glmplan.costs.step.model import PARAMETERS, step_time
from glmplan.errors import GlmplanError
from glmplan.prediction.effects import COLUMNS, FRONT, LEVELS, REFERENCES, SCALE, TTFT_SCALE, log_parameters
from glmplan.prediction.from_row import drafting_unstated
from glmplan.units import Ratio

__all__ = [
    "FACTORS",
    "FREEDOM",
    "PRIOR_MEAN",
    "SHARED",
    "Cells",
    "Factor",
    "Normal",
    "NotConverged",
    "Solution",
    "Spreads",
    "cells_of",
    "evaluate",
    "factor_table",
    "guesses_load",
    "initial_spreads",
    "key_spread",
    "linearised",
    "noise_class",
    "noise_of",
    "normal_equations",
    "prior_deviation",
    "prior_mean",
    "read_spreads",
    "solve",
    "solve_with_noise",
    "spread_of_effects",
    "summed",
    "write_spreads",
]


#: singular value of a cell (prior deviations over noise deviations) below which a direction is dropped: the prior is
#: then more precise by a factor of 10⁹ [-]
_SAYS_NOTHING = 3e-5


@dataclass(frozen=True)
class Cells:
    """Observations grouped by cell: the same key on every level."""

    keys: np.ndarray  # (cells, levels): rows of the effect table that add up to each cell
    of_figure: np.ndarray  # (m,): cell of each observation
    first: np.ndarray  # (levels + 1,): first row of each level

    @cached_property
    def _shared(self) -> Any:
        """Return the cells × keys matrix, 1 where a cell has the key."""
        from scipy.sparse import csr_matrix

        cells, levels = self.keys.shape
        ones, ends = np.ones(self.keys.size), np.arange(0, self.keys.size + 1, levels)
        return csr_matrix((ones, self.keys.ravel(), ends), shape=(cells, int(self.first[-1])))

    @cached_property
    def _by_cell(self) -> Any:
        """Return the cells × observations matrix, 1 where a cell has it."""
        from scipy.sparse import csr_matrix

        count = len(self.of_figure)
        return csr_matrix((np.ones(count), (self.of_figure, np.arange(count))), shape=(len(self.keys), count))

    def added(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of observation values for each cell."""
        return np.asarray(self._by_cell @ values)

    @cached_property
    def members(self) -> tuple[np.ndarray, ...]:
        """Return the observations of each cell."""
        order = np.argsort(self.of_figure, kind="stable")
        return tuple(np.split(order, np.searchsorted(self.of_figure[order], np.arange(1, len(self.keys)))))

    def sums(self, table: np.ndarray) -> np.ndarray:
        """Return the summed effects of each cell."""
        return np.asarray(self._shared @ table)

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of cell values for each key: the transpose of `sums`."""
        return np.asarray(self._shared.T @ values)

    def split(self, table: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return one table for each level."""
        return tuple(table[low:high] for low, high in zip(self.first[:-1], self.first[1:], strict=True))


def cells_of(design: Design) -> Cells:
    """Return the cells of a design."""
    first = np.concatenate([[0], np.cumsum([len(names) for names in design.key_names])]).astype(int)
    keys, inside = np.unique((design.keys + first[:-1])[design.observation_run], axis=0, return_inverse=True)
    return Cells(keys, inside.ravel(), first)


@dataclass(frozen=True)
class Normal:
    """Normal equations: observations combined to rows, covariance factored."""

    cells: Cells
    cell: np.ndarray  # (n,): cell of each row, ascending
    turns: tuple[np.ndarray, ...]  # (k, r) for each cell: orthogonal, from its observations to its rows
    rows: np.ndarray  # (n, 22): derivative by the summed effects, over the noise
    blocks: dict[int, tuple[np.ndarray, np.ndarray]]  # key → its rows (k,), and these times its prior deviation (k, 22)
    sigma: np.ndarray  # (keys, 22): prior standard deviations
    factor: np.ndarray  # (n, n): lower Cholesky factor of the row covariance, in noise units

    def turned(self, values: np.ndarray) -> np.ndarray:
        """Return observation values (over their noise) combined like the rows."""
        parts = [turn.T @ values[members] for members, turn in zip(self.cells.members, self.turns, strict=True)]
        return np.concatenate(parts)

    def forward(self, z: np.ndarray) -> np.ndarray:
        """Return the row values of effects."""
        return np.asarray((self.rows * self.cells.sums(self.sigma * z)[self.cell]).sum(axis=1))

    def backward(self, pull: np.ndarray) -> np.ndarray:
        """Return the transpose of `forward`."""
        by_cell = np.zeros((len(self.cells.keys), len(COLUMNS)))
        starts = np.flatnonzero(np.diff(self.cell, prepend=-1))
        if len(starts):
            by_cell[self.cell[starts]] = np.add.reduceat(self.rows * pull[:, None], starts)
        result: np.ndarray = self.sigma * self.cells.gathered(by_cell)
        return result

    def solve(self, values: np.ndarray) -> np.ndarray:
        """Return the inverse row covariance times values."""
        from scipy.linalg import cho_solve

        return np.asarray(cho_solve((self.factor, True), values, check_finite=False))

    def posterior_times(self, gradient: np.ndarray) -> np.ndarray:
        """Return the posterior covariance times a gradient.

        `(I + MᵀM)⁻¹ gradient`, effects in units of their spread, without forming the matrix.
        """
        result: np.ndarray = gradient - self.backward(self.solve(self.forward(gradient)))
        return result

    @cached_property
    def inverse(self) -> np.ndarray:
        """Return the inverse row covariance, (n, n) [-]"""
        from scipy.linalg.lapack import dpotri

        found, failed = dpotri(self.factor, lower=1)
        assert not failed  # identity plus squares is positive definite
        lower = np.tril(found)
        return np.asarray(lower + np.tril(lower, -1).T)

    def leverages(self) -> np.ndarray:
        """Return posterior variance over noise variance of each prediction."""
        leverage = np.zeros(len(self.cells.of_figure))
        for number, (members, turn) in enumerate(zip(self.cells.members, self.turns, strict=True)):
            low, high = np.searchsorted(self.cell, [number, number + 1])
            posterior = np.eye(high - low) - self.inverse[low:high, low:high]
            leverage[members] = np.einsum("ij,jk,ik->i", turn, posterior, turn)
        return leverage

    def covariance(self, one: int, two: int) -> np.ndarray:
        """Return the posterior covariance of the effects of two keys."""
        wide = np.outer(self.sigma[one], self.sigma[two])
        unit = float(one == two) * np.eye(len(COLUMNS))
        if one not in self.blocks or two not in self.blocks:
            return unit * wide
        (first, left), (second, right) = self.blocks[one], self.blocks[two]
        return np.asarray((unit - left.T @ self.inverse[np.ix_(first, second)] @ right) * wide)


def normal_equations(cells: Cells, slope: np.ndarray, sigma: np.ndarray, *, least: Ratio = 0.0) -> Normal:
    """Return the factored normal equations.

    `slope` is the derivative of each observation by its summed effects, over its noise; zero for those not fitted.
    Directions below `least` are dropped: a search that starts from the equations needs only what matters.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1
           and equation A.9.
    """
    wide = np.maximum(np.sqrt(cells.sums(sigma**2)), 1e-12)
    turns, parts = [], []
    for members, own in zip(cells.members, wide, strict=True):
        left, size, right = np.linalg.svd(slope[members] * own, full_matrices=False)
        says = size > max(least, _SAYS_NOTHING)
        turns.append(left[:, says])
        parts.append(size[says, None] * right[says] / own)
    cell = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return _factored(cells, cell, tuple(turns), np.concatenate(parts), sigma)


def _factored(
    cells: Cells, cell: np.ndarray, turns: tuple[np.ndarray, ...], rows: np.ndarray, sigma: np.ndarray
) -> Normal:
    """Return the normal equations of combined rows, covariance factored."""
    from scipy.linalg.lapack import dpotrf

    matrix = np.eye(len(rows))
    blocks = {}
    for level in range(len(LEVELS)):
        keys = cells.keys[cell, level]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for places in np.split(order, starts[1:]) if len(order) else []:
            key = int(keys[places[0]])
            scaled = rows[places] * sigma[key]
            blocks[key] = places, scaled
            there = slice(None) if len(places) == len(rows) else np.ix_(places, places)
            matrix[there] += scaled @ scaled.T
    factor, failed = dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    assert not failed  # identity plus squares is positive definite
    return Normal(cells, cell, turns, rows, blocks, sigma, factor)


#: hyperprior centres, set by hand for an earlier search and corrected by the factors of `SHARED`: separate estimates
#: from the runs predicted held-out groups worse (docs/physics/calibration.md) [-]
_LEVEL = {
    "all": 0.6,
    "engine": 0.2,
    "engine_draft": 0.2,
    "engine_experts": 0.2,
    "engine_wall": 1.0,
    "engine_plugin": 4.3,
    "engine_attention": 0.2,
    "engine_protocol": 0.01,
    "engine_release": 0.5,
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
_SCALE = {
    "engine": 0.08,
    "engine_draft": 0.08,
    "engine_protocol": 0.1,
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
_COLUMN = {
    "host_seconds": 0.84,
    "layer_seconds": 0.7,
    "moe_layer_seconds": 1.0,
    "state_layer_seconds": 1.0,
    "request_seconds": 1.05,
    "activation_slowdown": 0.4,
    "gemm_fixed_slowdown": 0.4,
    "gemm_bytes_slowdown": 0.4,
    "gemm_flop_slowdown": 0.6,
    "expert_fixed_slowdown": 0.4,
    "expert_bytes_slowdown": 0.5,
    "expert_flop_slowdown": 0.7,
    "attention_fixed_slowdown": 0.4,
    "cache_slowdown": 0.7,
    "prefill_attention_slowdown": 0.8,
    "collective_slowdown": 0.4,
    "collective_bytes_slowdown": 0.4,
    "arrival_seconds": 1.5,
    "prompt_token_seconds": 1.5,
    "wake_seconds": 2.0,
    "ttft_scale": 0.8,
}
#: hyperprior deviations: a factor of `e` for levels, of two for columns [-]
_OPEN, _COLUMN_OPEN = 1.0, 0.7
#: a single key cannot determine the spread of its level: free, it grows and the fit does not end; limitation prices are
#: known in order of magnitude only
_FIXED = ("all", "engine_wall", "engine_plugin")
#: levels whose spreads share an estimated factor: engines, accelerators, models, releases, and a model on an
#: accelerator; the reach of a limitation is free, and so is that of a plug-in's layers
SHARED: dict[str, tuple[str, ...]] = {
    "all": ("all",),
    "engine": ("engine", "engine_draft", "engine_experts", "engine_attention", "engine_kind", "engine_format"),
    "part": ("engine_silicon", "engine_accelerator", "engine_silicon_kind", "engine_accelerator_format"),
    "model": ("model", "engine_model"),
    "release": ("engine_release",),
    "pair": ("engine_protocol", "group", "configuration", "release"),
}
#: levels that stand for a component of the engine: columns they can change
_LEVEL_COLUMNS = {
    "engine_experts": ("moe_layer_seconds", "activation_slowdown", "expert_fixed_slowdown", "expert_bytes_slowdown",
                       "expert_flop_slowdown"),
    "engine_wall": tuple(name for name in PARAMETERS if name.endswith("_slowdown")),
    "engine_release": tuple(name for name in PARAMETERS if name.endswith("_slowdown")),
    "engine_plugin": ("layer_seconds",),
    "engine_attention": ("attention_fixed_slowdown", "cache_slowdown", "prefill_attention_slowdown"),
}  # fmt: skip
#: spread of an effect that cannot occur [-]
_NOTHING = 1e-9
#: noise of a class before its rows determine it [-]
_NOISE = 0.2
#: added noise for a load that the table does not state, before rows determine it [-]
_GUESSED_LOAD = 0.5


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of the spreads, with its log hyperprior."""

    kind: str  # level, column or scale
    name: str  # of LEVELS or COLUMNS
    centre: float
    open: float  # standard deviation; 0 if fixed


def _factors() -> tuple[Factor, ...]:
    levels = [Factor("level", name, float(np.log(_LEVEL[name])), 0.0 if name in _FIXED else _OPEN) for name in LEVELS]
    columns = [
        Factor("column", name, float(np.log(_COLUMN[name])), _COLUMN_OPEN) for name in COLUMNS if name in _COLUMN
    ]
    scales = [Factor("scale", name, float(np.log(value)), _OPEN) for name, value in _SCALE.items()]
    return (*levels, *columns, *scales)


FACTORS: tuple[Factor, ...] = _factors()


def factor_table() -> np.ndarray:
    """Return 1 where a factor is part of the spread of a level and column."""
    table = np.zeros((len(LEVELS), len(COLUMNS), len(FACTORS)))
    for place, factor in enumerate(FACTORS):
        if factor.kind == "level":
            table[LEVELS.index(factor.name), :, place] = 1.0
        elif factor.kind == "column":
            table[:, COLUMNS.index(factor.name), place] = 1.0
    for level, names in _LEVEL_COLUMNS.items():
        table[LEVELS.index(level), [name not in names for name in COLUMNS]] = 0.0
    table[:, SCALE] = 0.0
    for place, factor in enumerate(FACTORS):
        if factor.kind == "scale":
            table[LEVELS.index(factor.name), SCALE, place] = 1.0
    return table


def spread_of_effects(logarithm: np.ndarray) -> np.ndarray:
    """Return the prior standard deviations from the log factors."""
    table = factor_table()
    return np.where(table.any(axis=2), np.exp(table @ logarithm), _NOTHING)


@dataclass(frozen=True)
class Spreads:
    """Spreads of the effects and noise of the observations."""

    logarithm: np.ndarray  # (factors,): log of each of FACTORS
    noise: Mapping[str, float] = field(
        default_factory=dict
    )  # metric and protocol → scale of Student's t of the log residual
    guessed_load: float = _GUESSED_LOAD  # added for a load that the table does not state
    error: np.ndarray = field(default_factory=lambda: np.array([factor.open for factor in FACTORS]))
    noise_error: Mapping[str, float] = field(default_factory=dict)  # standard error of the log noise
    factor: Mapping[str, float] = field(default_factory=dict)  # factor on the spreads of each of SHARED; 1 if absent
    factor_error: Mapping[str, float] = field(default_factory=dict)  # standard error of its logarithm

    @property
    def effect(self) -> np.ndarray:
        """Return the prior deviation of an effect, (levels, columns) [-]"""
        shared = {level: self.factor.get(name, 1.0) for name, levels in SHARED.items() for level in levels}
        result: np.ndarray = spread_of_effects(self.logarithm) * np.array(
            [[shared.get(level, 1.0)] for level in LEVELS]
        )
        return result

    def noise_of(self, names: np.ndarray) -> np.ndarray:
        """Return the noise by class; the start value for one without rows."""
        classes, inside = np.unique(names, return_inverse=True)
        return np.array([self.noise.get(str(name), _NOISE) for name in classes])[inside]


def initial_spreads() -> Spreads:
    """Return the spreads at the centre of the hyperprior.

    Examples
    --------
    >>> round(float(initial_spreads().effect[LEVELS.index("engine"), 0]), 3)
    0.168
    """
    return Spreads(np.array([factor.centre for factor in FACTORS]))


def key_spread(names: Sequence[str], spread: np.ndarray) -> np.ndarray:
    """Return the prior deviation of the effects of one level by key.

    The same for every key; almost zero for the reference key.

    Examples
    --------
    >>> key_spread(["vllm plain", "vllm drafting"], np.array([0.2])).ravel().round(3).tolist()
    [0.0, 0.2]
    """
    usual = np.array([name.endswith(REFERENCES) for name in names])
    return np.where(usual[:, None], _NOTHING, spread)


def noise_class(design: Design) -> np.ndarray:
    """Return the noise class (metric and protocol) of each observation.

    Statistics that are not fitted have classes of their own, which no fit has.
    """
    protocol = np.array([case.run.protocol for case in design.cases])[design.observation_run]
    kind = np.where(design.fitted, np.char.partition(design.figure, "_")[:, 0], design.figure)
    return np.char.add(np.char.add(kind, " "), protocol)


def write_spreads(spreads: Spreads, file: str | Path, *, head: Iterable[str] = ()) -> Path:
    """Write spreads with their errors, reproducible byte for byte."""
    lines = [
        *head,
        "# Spread of an effect: factor of its level times that of its column; of a factor on whole steps, `scale` of",
        "# its level; all times `shared` of its levels. Each as [value, standard error of its logarithm]. Shared",
        "# factors are estimated from what is left out; all others are chosen, and how far off they may be is a",
        "# judgement (0: fixed), see docs/physics/calibration.md.",
        "",
        "# What a load that a table does not state adds to the noise, [-]",
        f"guessed_load = {spreads.guessed_load:.3g}",
    ]
    for kind in ("level", "column", "scale"):
        lines += ["", f"[{kind}]"]
        for factor, value, error in zip(FACTORS, spreads.logarithm, spreads.error, strict=True):
            if factor.kind == kind:
                lines.append(f"{factor.name} = [{np.exp(value):.3g}, {error:.2f}]")
    lines += [
        "",
        "# Of all engines together, of what differs by engine, by part, by model, by model and part",
        "[shared]",
    ]
    for name in SHARED:
        lines.append(f"{name} = [{spreads.factor.get(name, 1.0):.3g}, {spreads.factor_error.get(name, _OPEN):.2f}]")
    lines += ["", "# Scale of Student's t, [-]", "[noise]"]
    for name, value in sorted(spreads.noise.items()):
        lines.append(f'"{name}" = [{value:.3g}, {spreads.noise_error.get(name, 0.0):.2f}]')
    path = Path(file)
    write_atomically(path, "\n".join([*lines, ""]))
    return path


def read_spreads(file: str | Path) -> Spreads:
    """Return the spreads of a file, without their errors."""
    content = read_toml(Path(file))
    values = [content[factor.kind][factor.name][0] for factor in FACTORS]
    return Spreads(
        np.log(values),
        noise={name: float(pair[0]) for name, pair in content["noise"].items()},
        guessed_load=float(content["guessed_load"]),
        factor={name: float(pair[0]) for name, pair in content["shared"].items()},
    )


#: start of the search and value of an unmeasured engine: latencies in seconds, slow-downs as ratios
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
#: Student's degrees of freedom: with four, a one-in-a-hundred residual has half the weight
FREEDOM = 4.0
#: distance to the optimum at which the search ends, in posterior deviations over all directions [-]
TOLERANCE = 0.01
_MOST_ROUNDS = 300
#: halvings of a step that lowers the posterior
_HALVINGS = 8
#: cell directions below this are left to the BFGS corrections [-]
_MATTERS = 0.01
#: largest change of a summed effect in a step [-]
_FARTHEST = 3.0
#: steps after which the equations are renewed at the latest
_LATER = 15
#: gradient changes kept for BFGS
_MEMORY = 20


class NotConverged(GlmplanError):
    """The joint fit still moved after its last round."""


@dataclass(frozen=True)
class Solution:
    """Effects of the highest posterior density."""

    effects: tuple[np.ndarray, ...]  # (keys, 22) for each level; the first one includes the prior mean
    spreads: Spreads
    residual: np.ndarray  # (m,): log(measured / predicted)
    weight: np.ndarray  # (m,): Student weight of each observation
    root: np.ndarray  # (m,): sqrt(weight) / noise; 0 for those not fitted
    rounds: int
    distance: float  # to the optimum, in posterior deviations


def summed(design: Design, effects: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the sum of the effects of each run over the levels."""
    return sum((effects[level][design.keys[:, level]] for level in range(len(LEVELS))), start=np.zeros(1))


def evaluate(design: Design, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log predicted seconds and their derivatives by column."""
    step = step_time(design.figure_work, log_parameters(effects)[design.observation_run])
    slope = np.zeros((len(step.seconds), len(COLUMNS)))
    slope[:, : len(PARAMETERS)] = step.shares
    slope[:, SCALE] = step.shares.sum(axis=1) - step.shares[:, list(FRONT)].sum(axis=1)
    slope[:, TTFT_SCALE] = design.waiting
    scale, seconds = effects[design.observation_run, TTFT_SCALE], step.seconds
    if (stays := np.flatnonzero(design.stays)).size:
        # of the time to the last token only the part up to the first one waits for other prompts
        first = step_time(design.first_work[stays], log_parameters(effects)[design.observation_run[stays]]).seconds
        seconds = seconds.copy()
        seconds[stays] += first * np.expm1(design.stays[stays] * scale[stays])
    return np.log(seconds) + design.waiting * scale, slope


def guesses_load(design: Design) -> np.ndarray:
    """Return True for runs whose table does not state what their steps held.

    Serving runs of unstated lengths or concurrency, and runs of a model that can draft where nothing tells if it did:
    steps of both differ 1.4 to 2.3 times (`calibration/sources.toml`). Such a table says little about a step time.
    """
    endings = ("in flight", "input tokens", "output tokens")
    open_ = [
        # a burst of short prompts is nearly all decoding: its lengths matter little
        drafting_unstated(case)
        or (
            case.load.phase == "serving"
            and case.run.protocol != "burst"
            and any(text.endswith(endings) for text in case.assumed)
        )
        for case in design.cases
    ]
    result: np.ndarray = np.array(open_)[design.observation_run]
    return result


def noise_of(design: Design, spreads: Spreads) -> np.ndarray:
    """Return the noise of each observation."""
    result: np.ndarray = np.hypot(spreads.noise_of(noise_class(design)), spreads.guessed_load * guesses_load(design))
    return result


def prior_mean() -> np.ndarray:
    """Return the effects of an unmeasured engine [log s] or [-]"""
    return np.array([np.log(PRIOR_MEAN[name]) for name in PARAMETERS] + [0.0, 0.0])


def prior_deviation(design: Design, spread: np.ndarray) -> np.ndarray:
    """Return the prior deviation of every effect, level after level."""
    return np.concatenate([key_spread(names, spread[level]) for level, names in enumerate(design.key_names)])


def linearised(design: Design, solution: Solution, *, spread: np.ndarray | None = None, least: Ratio = 0.0) -> Normal:
    """Return the normal equations at a solution, with its Student weights.

    Their inverse is the posterior of Laplace's approximation.
    """
    slope = evaluate(design, summed(design, solution.effects))[1] * solution.root[:, None]
    wide = prior_deviation(design, solution.spreads.effect if spread is None else spread)
    return normal_equations(cells_of(design), slope, wide, least=least)


@dataclass(frozen=True)
class _Point:
    """A point of the search: effects over their spread, and values there."""

    z: np.ndarray
    residual: np.ndarray
    root: np.ndarray
    slope: np.ndarray
    cost: float
    gradient: np.ndarray


class _Posterior:
    """-2 log posterior density of effects over their spread, with gradient."""

    def __init__(self, design: Design, spreads: Spreads, use: np.ndarray) -> None:
        self.design, self.use = design, use
        self.cells = cells_of(design)
        self.sigma = prior_deviation(design, spreads.effect)
        self.noise = noise_of(design, spreads)
        self.run_cell = np.zeros(len(design.cases), dtype=int)
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
        """Return the change of the summed effects of every cell."""
        return self.cells.sums(self.sigma * change)


def _step_length(change: np.ndarray) -> float:
    """Return the step length; a logarithm at minus infinity never recovers [-]"""
    return min(1.0, _FARTHEST / max(float(np.quantile(np.abs(change), 0.999)), 1e-9))


def _direction(normal: Normal, gradient: np.ndarray, past: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the L-BFGS step from the factored posterior, (keys, 22)."""
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
    enough: Ratio = TOLERANCE,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Return the effects of the highest posterior density.

    `start` are the effects to begin with (default: prior mean), `enough` the distance to the optimum at which to end,
    in posterior deviations. `progress` gets the step and the median absolute residual.

    Notes
    -----
    The first steps are Gauss-Newton: each solves ``[M; I] dz = [r; -z]`` exactly, ``z`` being effects over their
    spreads, ``M`` and ``r`` slopes and residuals over the noise, weighted as under Student's t. Near the optimum the
    equations are kept for several steps and corrected from gradients (L-BFGS): factoring costs more than many steps.

    References
    ----------
    .. [1] J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd ed., Springer 2006, algorithm 7.4 and section 10.3.
    """
    spreads = initial_spreads() if spreads is None else spreads
    search = _Posterior(design, spreads, design.fitted if use is None else use)
    z = np.zeros_like(search.sigma)
    if start is not None:
        z = np.concatenate([start[0] - search.prior, *start[1:]]) / search.sigma
    here, past = search.at(z), list[tuple[np.ndarray, np.ndarray]]()
    normal, due, round_ = search.normal(here), 1 if start is None else 4, 0
    distance = _distance(normal, here)
    while distance > enough and round_ < _MOST_ROUNDS:
        if round_ == due:
            # often at the start, less often later
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
    """Return the distance to the optimum in posterior deviations [-]"""
    return float(np.sqrt(max((here.gradient * normal.posterior_times(here.gradient)).sum(), 0.0)))


def _next(search: _Posterior, normal: Normal, here: _Point, past: list[tuple[np.ndarray, np.ndarray]]) -> _Point:
    """Return the next point, which has a higher posterior density."""
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


#: the noise has converged when no class changes by more in logarithms [-]
_ENOUGH = 0.02
#: largest number of rounds; distance of the effects to their optimum in each, in posterior deviations
_MOST_ROUNDS_NOISE, _NEAR = 60, 0.5
#: weight, in rows, of the metric's common noise in the noise of a class [-]
_ROWS_OF_PRIOR = 5.0
#: error of the step model itself within a curve: rows of a curve err together but are counted separately, so without
#: this bound they would count as independent evidence [-]
_FORM = 0.10


def solve_with_noise(
    design: Design,
    spreads: Spreads | None = None,
    *,
    start: tuple[np.ndarray, ...] | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Return the effects, fitted together with the noise of each class.

    `progress` gets the round and the largest change of log noise.

    References
    ----------
    .. [1] K. L. Lange, R. J. A. Little, J. M. G. Taylor, "Robust Statistical Modeling Using the t Distribution", JASA
           84 (1989): the scale of Student's t by expectation and maximisation.
    """
    spreads, names = initial_spreads() if spreads is None else spreads, noise_class(design)
    classes = np.unique(names[design.fitted])
    spreads = replace(spreads, noise=dict(zip(classes.tolist(), spreads.noise_of(classes).tolist(), strict=True)))
    moved = np.inf
    for round_ in range(_MOST_ROUNDS_NOISE):
        solution = solve(design, spreads, start=start, enough=_NEAR)
        start = solution.effects
        updated = _moved(design, solution, linearised(design, solution, least=_MATTERS), names)
        moved = max(abs(float(np.log(updated.noise[name] / spreads.noise[name]))) for name in updated.noise)
        spreads = updated
        if progress is not None:
            progress(round_ + 1, moved)
        if moved < _ENOUGH:
            return solve(design, spreads, start=start)
    raise NotConverged(f"the noise of a class still moves by {moved:.2g} after {_MOST_ROUNDS} rounds")


def _moved(design: Design, solution: Solution, normal: Normal, names: np.ndarray) -> Spreads:
    """Return the spreads after one expectation-maximisation step of the noise."""
    spreads = solution.spreads
    variance = noise_of(design, spreads) ** 2
    # remaining squares plus posterior variance, over the noise
    leverage = normal.leverages()
    squares = (solution.root * solution.residual) ** 2 + leverage
    noise, errors = {}, {}
    kinds = {name: name.partition(" ")[0] for name in spreads.noise}
    own = {name: names == name for name in spreads.noise}
    rows = {name: float((spreads.noise[name] ** 2 / variance[mine]).sum()) for name, mine in own.items()}
    for name, mine in own.items():
        now = spreads.noise[name] ** 2
        alike = [other for other in kinds if kinds[other] == kinds[name]]
        pooled = np.average([np.log(spreads.noise[other]) for other in alike], weights=[rows[other] for other in alike])
        found = now * float((squares * now / variance)[mine].sum()) + _ROWS_OF_PRIOR * np.exp(2.0 * pooled)
        noise[name] = max(float(np.sqrt(found / (rows[name] + _ROWS_OF_PRIOR))), _FORM)
        # Fisher information on the log scale of Student's t, less the degrees of freedom used by the effects
        told = max(rows[name] - float(leverage[mine].sum()), 0.0) + _ROWS_OF_PRIOR
        errors[name] = float(np.sqrt((FREEDOM + 3.0) / (2.0 * FREEDOM * told)))
    return replace(spreads, noise=noise, noise_error=errors)
