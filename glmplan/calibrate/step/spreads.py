"""Spreads of the effects and noise of the figures: what the joint fit estimates before the effects themselves.

A spread is the standard deviation of the effects of one level in one column. It is a product of a factor of the level
and one of the column; a factor on whole steps has a spread of its own on every level. Noise is a scale for each kind of
figure and protocol. All of them are estimated by `glmplan.calibrate.step.marginal`; what stands here is the same weak
hyperprior for all of them, and where a spread is not free, why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.observations import Design
from glmplan.facts.files import write_atomically
from glmplan.physics.step.time import PARAMETERS
from glmplan.prediction.effects import COLUMNS, LEVELS, REFERENCES, SCALE

__all__ = [
    "FACTORS",
    "Factor",
    "Spreads",
    "factor_table",
    "key_spread",
    "noise_class",
    "spread_of_effects",
    "start",
    "write_spreads",
]

#: an effect on one parameter is some ten to thirty percent, one on whole steps some percent; both may be off by a
#: factor of ``e``, columns among each other by two. The same for all levels and columns: nothing is chosen here
_LEVEL, _SCALE, _OPEN, _COLUMN_OPEN = float(np.log(0.15)), float(np.log(0.05)), 1.0, 0.7
#: `PRIOR_MEAN` holds orders of magnitude: what all engines share is known to a factor of about two. That level has one
#: key, which cannot tell its own spread: left free it grows until the fit no longer ends
_ALL = float(np.log(0.6))
#: of what a wall costs nothing is known but its order; four walls cannot tell it [-]
_WALL = 0.0
#: levels that stand for a part of the engine only: what they can change
_LEVEL_COLUMNS = {
    "engine_experts": ("moe_layer_seconds", "activation_slowdown", "expert_fixed_slowdown", "expert_bytes_slowdown",
                       "expert_flop_slowdown"),
    "engine_wall": tuple(name for name in PARAMETERS if name.endswith("_slowdown")),
    "engine_attention": ("attention_fixed_slowdown", "cache_slowdown", "prefill_attention_slowdown"),
}  # fmt: skip
#: what all engines share on whole steps is in their slow-downs
_NO_SCALE = ("all", *_LEVEL_COLUMNS)
#: spread of what is not there [-]
_NOTHING = 1e-9
#: noise of a class before its rows say more [-]
_NOISE = 0.2
#: what a load that a table does not state adds to the noise, before rows say more [-]
_GUESSED_LOAD = 0.5


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of the spreads.

    Attributes
    ----------
    kind : str
        `level`, `column` or `scale`.
    name : str
        Of `LEVELS` or `COLUMNS`.
    centre : float
        Centre of its hyperprior, as a logarithm, [-]
    open : float
        Standard deviation of its hyperprior; 0 if it is not free, [-]
    """

    kind: str
    name: str
    centre: float
    open: float


def _factors() -> tuple[Factor, ...]:
    levels = []
    for name in LEVELS:
        if name == "all":
            levels.append(Factor("level", name, _ALL, 0.0))
        elif name == "engine_wall":
            levels.append(Factor("level", name, _WALL, 0.0))
        else:
            levels.append(Factor("level", name, _LEVEL, _OPEN))
    columns = [Factor("column", name, 0.0, _COLUMN_OPEN) for place, name in enumerate(COLUMNS) if place != SCALE]
    scales = [Factor("scale", name, _SCALE, _OPEN) for name in LEVELS if name not in _NO_SCALE]
    return (*levels, *columns, *scales)


#: all factors of the spreads with their hyperprior
FACTORS: tuple[Factor, ...] = _factors()


def factor_table() -> np.ndarray:
    """Which factors make up the spread of each level and column.

    Returns
    -------
    (levels, columns, factors) array
        1 where the logarithm of the factor is added; nothing at all where an effect cannot be, [-]
    """
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
    """Prior standard deviations from the factors.

    Parameters
    ----------
    logarithm : (factors,) array
        Logarithm of each of `FACTORS`, [-]

    Returns
    -------
    (levels, columns) array
        [-]
    """
    table = factor_table()
    return np.where(table.any(axis=2), np.exp(table @ logarithm), _NOTHING)


@dataclass(frozen=True)
class Spreads:
    """Spreads of the effects and noise of the figures.

    Attributes
    ----------
    logarithm : (factors,) array
        Logarithm of each of `FACTORS`, [-]
    noise : mapping of str to float
        Scale of Student's t of what the model leaves, by figure and protocol, in logarithms, [-]
    guessed_load : float
        What a load that a table does not state adds to it, [-]
    error : (factors,) array
        Standard error of the logarithms; of the hyperprior where nothing was estimated, [-]
    noise_error : mapping of str to float
        Standard error of the logarithm of each noise, [-]
    """

    logarithm: np.ndarray
    noise: Mapping[str, float] = field(default_factory=dict)
    guessed_load: float = _GUESSED_LOAD
    error: np.ndarray = field(default_factory=lambda: np.array([factor.open for factor in FACTORS]))
    noise_error: Mapping[str, float] = field(default_factory=dict)

    @property
    def effect(self) -> np.ndarray:
        """Prior standard deviation of an effect, (levels, columns), [-]"""
        return spread_of_effects(self.logarithm)

    def noise_of(self, names: np.ndarray) -> np.ndarray:
        """Noise of figures by the name of their class.

        Parameters
        ----------
        names : (m,) array of str
            Names as of `noise_class`.

        Returns
        -------
        (m,) array
            That of a class that was never seen is the start's, [-]
        """
        classes, inside = np.unique(names, return_inverse=True)
        return np.array([self.noise.get(str(name), _NOISE) for name in classes])[inside]


def start() -> Spreads:
    """Spreads before anything was estimated: the centre of the hyperprior.

    Returns
    -------
    Spreads
        The same for every level and column, but for what all engines share and for walls.

    Examples
    --------
    >>> round(float(start().effect[LEVELS.index("engine"), 0]), 3)
    0.15
    """
    return Spreads(np.array([factor.centre for factor in FACTORS]))


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


def write_spreads(spreads: Spreads, file: str | Path, *, head: Iterable[str] = ()) -> Path:
    """Write spreads with their errors; the same spreads give the same bytes.

    Parameters
    ----------
    spreads : Spreads
        Spreads and noise.
    file : path
        Where to; TOML.
    head : iterable of str, optional
        First lines.

    Returns
    -------
    pathlib.Path
        The file.
    """
    lines = [
        *head,
        "# Spread of an effect: factor of its level times that of its column; of a factor on whole steps, `scale` of",
        "# its level. Each as [value, standard error of its logarithm]; docs/physics/calibration.md says which are",
        "# chosen (error 0) and what all others are drawn towards.",
        "",
        "# What a load that a table does not state adds to the noise, [-]",
        f"guessed_load = {spreads.guessed_load:.3g}",
    ]
    for kind in ("level", "column", "scale"):
        lines += ["", f"[{kind}]"]
        for factor, value, error in zip(FACTORS, spreads.logarithm, spreads.error, strict=True):
            if factor.kind == kind:
                lines.append(f"{factor.name} = [{np.exp(value):.3g}, {error:.2f}]")
    lines += ["", "# Scale of Student's t, [-]", "[noise]"]
    for name, value in sorted(spreads.noise.items()):
        lines.append(f'"{name}" = [{value:.3g}, {spreads.noise_error.get(name, 0.0):.2f}]')
    path = Path(file)
    write_atomically(path, "\n".join([*lines, ""]))
    return path
