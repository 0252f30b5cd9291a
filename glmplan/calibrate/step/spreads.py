"""Spreads of the effects and noise of the figures: what the joint fit estimates before the effects themselves.

A spread is the standard deviation of the effects of one level in one column. It is a product of a factor of the level
and one of the column; a factor on whole steps has a spread of its own on every level. Levels that stand for the same
thing share one more factor, estimated by `glmplan.calibrate.step.spread_factors`. Noise is a scale for each kind of
figure and protocol, estimated by `glmplan.calibrate.step.noise`.
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
    "SHARED",
    "Factor",
    "Spreads",
    "factor_table",
    "key_spread",
    "noise_class",
    "spread_of_effects",
    "start",
    "write_spreads",
]

#: centres of the hyperprior: values set by hand for an earlier search, which the factors of `SHARED` correct. Estimates
#: of each from the runs predicted groups left out worse (docs/physics/calibration.md) [-]
_LEVEL = {
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
_SCALE = {
    "engine": 0.08,
    "engine_draft": 0.08,
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
#: how far off they may be: a factor of `e` for levels, of two for columns [-]
_OPEN, _COLUMN_OPEN = 1.0, 0.7
#: one key cannot tell the spread of its level: left free it grows until the fit no longer ends. Of what a wall costs
#: nothing is known but its order
_FIXED = ("all", "engine_wall")
#: levels whose spreads are estimated by one factor: they say how far engines, parts, models, and a model on a part
#: differ. How far a wall reaches is free
SHARED: dict[str, tuple[str, ...]] = {
    "all": ("all",),
    "engine": ("engine", "engine_draft", "engine_experts", "engine_attention", "engine_kind", "engine_format"),
    "part": ("engine_silicon", "engine_accelerator", "engine_silicon_kind", "engine_accelerator_format"),
    "model": ("model", "engine_model"),
    "pair": ("engine_campaign", "group", "configuration", "release"),
}
#: levels that stand for a part of the engine only: what they can change
_LEVEL_COLUMNS = {
    "engine_experts": ("moe_layer_seconds", "activation_slowdown", "expert_fixed_slowdown", "expert_bytes_slowdown",
                       "expert_flop_slowdown"),
    "engine_wall": tuple(name for name in PARAMETERS if name.endswith("_slowdown")),
    "engine_attention": ("attention_fixed_slowdown", "cache_slowdown", "prefill_attention_slowdown"),
}  # fmt: skip
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
    levels = [Factor("level", name, float(np.log(_LEVEL[name])), 0.0 if name in _FIXED else _OPEN) for name in LEVELS]
    columns = [
        Factor("column", name, float(np.log(_COLUMN[name])), _COLUMN_OPEN) for name in COLUMNS if name in _COLUMN
    ]
    scales = [Factor("scale", name, float(np.log(value)), _OPEN) for name, value in _SCALE.items()]
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
    factor : mapping of str to float
        Factor on the spreads of the levels of each of `SHARED`; 1 where none is given, [-]
    factor_error : mapping of str to float
        Standard error of its logarithm; none where nothing was estimated, [-]
    """

    logarithm: np.ndarray
    noise: Mapping[str, float] = field(default_factory=dict)
    guessed_load: float = _GUESSED_LOAD
    error: np.ndarray = field(default_factory=lambda: np.array([factor.open for factor in FACTORS]))
    noise_error: Mapping[str, float] = field(default_factory=dict)
    factor: Mapping[str, float] = field(default_factory=dict)
    factor_error: Mapping[str, float] = field(default_factory=dict)

    @property
    def effect(self) -> np.ndarray:
        """Prior standard deviation of an effect, (levels, columns), [-]"""
        shared = {level: self.factor.get(name, 1.0) for name, levels in SHARED.items() for level in levels}
        return spread_of_effects(self.logarithm) * np.array([[shared.get(level, 1.0)] for level in LEVELS])

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
        Of every level and column.

    Examples
    --------
    >>> round(float(start().effect[LEVELS.index("engine"), 0]), 3)
    0.168
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
