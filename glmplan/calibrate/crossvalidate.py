"""How far off a fit is on runs it has never seen, and the intervals that follow from it.

Runs are left out four ways: at random, by whole (engine, accelerator, model) groups, by whole models and by whole
accelerators. What was known of a left-out run when it was predicted is its knowledge class; the errors of a class
give the interval of every later prediction of that class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.design import Design
from glmplan.calibrate.solve import solve
from glmplan.hierarchy import KNOWLEDGE, LEVELS, knowledge_class

__all__ = ["MODES", "Errors", "cross_validate", "figure_kind", "interval_table"]

#: ways to leave runs out
MODES: tuple[str, ...] = ("random", "group", "model", "accelerator")
_FOLDS = 5
#: quantiles of the 90 % interval
_LOW, _HIGH = 0.05, 0.95
#: fewest errors that make quantiles of their own
_ENOUGH = 60


@dataclass(frozen=True)
class Errors:
    """Errors on left-out runs.

    Attributes
    ----------
    mode : str
        How runs were left out.
    residual : (m,) array
        Measured minus predicted in logarithms, one for each observation of the design, [-]
    knowledge : (m,) array of str
        What was known of its run.
    """

    mode: str
    residual: np.ndarray
    knowledge: np.ndarray


def figure_kind(figure: str) -> str:
    """Kind of a figure: ``ttft``, ``prefill`` or ``decode`` (TPOT and throughput).

    Parameters
    ----------
    figure : str
        Its name.

    Returns
    -------
    str
        The kind.

    Examples
    --------
    >>> figure_kind("tpot_mean_ms")
    'decode'
    """
    return next((kind for kind in ("ttft", "prefill") if figure.startswith(kind)), "decode")


def _folds(design: Design, mode: str) -> np.ndarray:
    rows = []
    for question in design.questions:
        d = question.deployment
        rows.append({
            "random": question.run.id,
            "group": f"{d.engine} {d.accelerator.name} {d.model.family} {d.model.hidden} {len(d.model.layer_names)}",
            "model": f"{d.model.family} {d.model.hidden} {len(d.model.layer_names)}",
            "accelerator": d.accelerator.name,
        }[mode])  # fmt: skip
    names, place = np.unique(np.array(rows), return_inverse=True)
    # whole groups are dealt out by size, so that folds are alike; random rows by a seeded shuffle
    if mode == "random":
        return np.random.default_rng(7).permutation(len(names))[place] % _FOLDS
    sizes = np.bincount(place)
    fold, load = np.zeros(len(names), dtype=int), np.zeros(_FOLDS)
    for one in np.argsort(-sizes, kind="stable"):
        fold[one] = int(np.argmin(load))
        load[fold[one]] += sizes[one]
    return fold[place]


def cross_validate(
    design: Design, mode: str, *, rounds: int = 10, progress: Callable[[str, int, int], None] | None = None
) -> Errors:
    """Predict every run from a fit that has not seen it.

    Parameters
    ----------
    design : Design
        The runs.
    mode : str
        One of `MODES`.
    rounds : int, optional
        Gauss-Newton steps of each fit, [-]
    progress : callable, optional
        Called with the mode, the fold and the number of folds.

    Returns
    -------
    Errors
        Errors of all observations.
    """
    fold = _folds(design, mode)
    of_observation = fold[design.observation_run]
    residual = np.full(len(design.log_seconds), np.nan)
    knowledge = np.full(len(design.log_seconds), "", dtype="<U16")
    for one in range(_FOLDS):
        out = of_observation == one
        solution = solve(design, use=~out, rounds=rounds)
        residual[out] = solution.residual[out]
        seen = [np.zeros(len(names), dtype=bool) for names in design.key_names]
        for level in range(len(LEVELS)):
            seen[level][design.keys[fold != one, level]] = True
        known = np.stack([seen[level][design.keys[:, level]] for level in range(len(LEVELS))], axis=1)
        classes = np.array([knowledge_class(tuple(row)) for row in known.tolist()])
        knowledge[out] = classes[design.observation_run[out]]
        if progress is not None:
            progress(mode, one + 1, _FOLDS)
    return Errors(mode, residual, knowledge)


def interval_table(design: Design, errors: list[Errors]) -> dict[str, dict[str, tuple[float, float]]]:
    """Quantiles of the errors by what was known and by kind of figure.

    Parameters
    ----------
    design : Design
        The runs.
    errors : list of Errors
        Errors of some ways to leave out.

    Returns
    -------
    dict of str to dict of str to (float, float)
        Knowledge class → kind of figure → 5 % and 95 % quantile of measured over predicted, in logarithms, [-].
        Less knowledge never gives a narrower interval.
    """
    kinds = np.array([figure_kind(name) for name in design.figure])
    found: dict[str, dict[str, tuple[float, float]]] = {}
    last: dict[str, tuple[float, float]] = {}
    for name in KNOWLEDGE:
        found[name] = {}
        for kind in ("decode", "ttft", "prefill"):
            parts = [one.residual[(one.knowledge == name) & (kinds == kind)] for one in errors]
            pool = np.concatenate(parts)
            pool = pool[~np.isnan(pool)]
            before = last.get(kind, (-0.1, 0.1))
            if len(pool) >= _ENOUGH:
                low, high = np.quantile(pool, [_LOW, _HIGH])
            else:
                low, high = 1.15 * before[0], 1.15 * before[1]
            last[kind] = (min(float(low), before[0]), max(float(high), before[1]))
            found[name][kind] = (round(last[kind][0], 4), round(last[kind][1], 4))
    return found
