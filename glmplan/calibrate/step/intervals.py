"""Fit the widths of intervals to the errors of cross-validation, and check them on errors they were not made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.crossvalidate import Errors, folds_of
from glmplan.prediction.effects import KNOWLEDGE
from glmplan.prediction.from_row import Question
from glmplan.prediction.intervals import MEASURED_FEATURES, OTHER_FEATURES, factor_key, features_of
from glmplan.readers.runs.figures import FIGURES
from glmplan.units import QUANTILE_90

__all__ = ["Intervals", "Scored", "fit_intervals", "nested_intervals", "scored_of", "site_intervals"]

#: share of the left-out errors that an interval holds
_SHARE = 0.90
#: rows, or groups of rows, that weigh as much as the prior of a factor of 1 [-]
_ROWS_OF_PRIOR, _GROUPS_OF_PRIOR = 20.0, 10.0
#: fewest errors, and fewest groups, that make an interval of their own: of fewer, ``0.95 (n + 1) / n`` is over one
_ENOUGH_ERRORS, _ENOUGH_GROUPS = 60, 19
#: rows of one group err together: they weigh as this power of their number, so that no large group decides alone [-]
_GROUP_WEIGHT = 0.8
#: smaller errors than this scale nothing [-]
_LEAST_ERROR = 0.01
_SWEEPS = 8
_KINDS = ("decode", "ttft", "prefill")


@dataclass(frozen=True)
class Scored:
    """Observations with what intervals depend on.

    Attributes
    ----------
    kind : (m,) array of str
        Kind of figure.
    features : dict of str to (m,) array of str
        As in `glmplan.prediction.intervals.features_of`.
    group : (m,) array of int
        Number of the (engine, accelerator, model) group, [-]
    drafting : (m,) array
        Half-width that an acceptance length nobody stated adds, as `glmplan.prediction.predict` adds it, [-]
    """

    kind: np.ndarray
    features: dict[str, np.ndarray]
    group: np.ndarray
    drafting: np.ndarray


@dataclass(frozen=True)
class Intervals:
    """Fitted intervals.

    Attributes
    ----------
    base : dict of str to dict of str to (float, float)
        Knowledge class → kind of figure → interval of measured over predicted in logarithms.
    widths : dict of str to float
        Factors on it by `glmplan.prediction.intervals.factor_key`, [-]
    """

    base: dict[str, dict[str, tuple[float, float]]]
    widths: dict[str, float]

    def ends(self, scored: Scored, knowledge: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Intervals of some observations.

        Parameters
        ----------
        scored : Scored
            The observations.
        knowledge : (m,) array of str
            What was known of each.
        rows : (k,) array of int
            Which ones, [-]

        Returns
        -------
        (k,) array, (k,) array
            Low and high end in logarithms, [-]
        """
        pairs = np.array([self.base[knowledge[row]][scored.kind[row]] for row in rows]).reshape(-1, 2)
        factor = np.ones(len(rows))
        for place, row in enumerate(rows):
            for name in MEASURED_FEATURES if knowledge[row] == "configuration" else OTHER_FEATURES:
                factor[place] *= self.widths.get(factor_key(scored.kind[row], name, scored.features[name][row]), 1.0)
        low, high, drafting = pairs[:, 0] * factor, pairs[:, 1] * factor, scored.drafting[rows]
        guessed = drafting > 0.0
        return np.where(guessed, -np.hypot(low, drafting), low), np.where(guessed, np.hypot(high, drafting), high)


def scored_of(questions: Sequence[Question], run: np.ndarray, figure: np.ndarray) -> Scored:
    """Collect what the intervals of observations depend on.

    Parameters
    ----------
    questions : sequence of Question
        The runs.
    run : (m,) array of int
        Run of each observation, [-]
    figure : (m,) array of str
        Its figure.

    Returns
    -------
    Scored
        The table.
    """
    rows = [features_of(one.deployment, one.load) for one in questions]
    features = {name: np.array([row[name] for row in rows])[run] for name in (*MEASURED_FEATURES, *OTHER_FEATURES)}
    groups = np.array([f"{row['engine']} {row['accelerator']} {row['model']}" for row in rows])
    kind = np.array([FIGURES[name].interval for name in figure])
    deviation = np.array([one.deployment.acceptance_deviation for one in questions])[run]
    return Scored(
        kind=kind,
        features=features,
        group=np.unique(groups, return_inverse=True)[1][run],
        drafting=np.where(kind == "decode", QUANTILE_90 * deviation, 0.0),
    )


def _factors(
    size: np.ndarray, cell: np.ndarray, columns: dict[str, np.ndarray], group: np.ndarray | None
) -> tuple[np.ndarray, dict[str, float]]:
    """Fit log-sizes of errors as the mean of a cell plus shrunk effects; returns the sum of the effects and them."""
    value = np.log(np.maximum(size, _LEAST_ERROR))
    total, mean = np.zeros(len(value)), np.zeros(len(value))
    places = {name: np.unique(keys, return_inverse=True) for name, keys in columns.items()}
    effect = {name: np.zeros(len(keys)) for name, (keys, _) in places.items()}
    _, inside = np.unique(cell, return_inverse=True)
    for _ in range(_SWEEPS):
        mean = (np.bincount(inside, value - total) / np.bincount(inside))[inside]
        for name, (_, place) in places.items():
            count = np.bincount(place).astype(float)
            found = np.bincount(place, value - mean - total + effect[name][place]) / count
            if group is None:
                weight = count / (count + _ROWS_OF_PRIOR)
            else:
                # rows of one group err together: what counts is how many groups there are
                pairs = np.unique(np.stack([place, group]), axis=1)
                groups = np.bincount(pairs[0], minlength=len(count)).astype(float)
                weight = groups / (groups + _GROUPS_OF_PRIOR)
            moved = found * weight
            total = total + (moved - effect[name])[place]
            effect[name] = moved
    names = {key: float(x) for name, (keys, _) in places.items() for key, x in zip(keys, effect[name], strict=True)}
    return total, names


def _quantiles(errors: np.ndarray, count: int, group: np.ndarray | None = None) -> tuple[float, float]:
    """Ends that hold 90 % of the next error when so many independent ones are known."""
    side = min((1.0 + _SHARE) / 2.0 * (count + 1.0) / count, 0.995)
    if group is None:
        low, high = np.quantile(errors, [1.0 - side, side])
        return float(low), float(high)
    _, place, size = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(errors, kind="stable")
    weight = size[place[order]] ** (_GROUP_WEIGHT - 1.0)
    below = np.cumsum(weight) - weight / 2.0
    low, high = np.interp([1.0 - side, side], below / weight.sum(), errors[order])
    return float(low), float(high)


def _sizes(errors: np.ndarray, known: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Typical size of an error by what was known; few groups say little of their own."""
    value = np.log(np.maximum(np.abs(errors), _LEAST_ERROR))
    sizes = {}
    for name in KNOWLEDGE:
        mine = known == name
        groups = len(np.unique(group[mine]))
        own = float(value[mine].mean()) if groups else 0.0
        share = groups / (groups + _GROUPS_OF_PRIOR)
        sizes[name] = float(np.exp(share * own + (1.0 - share) * value.mean()))
    return sizes


def _enough(mine: np.ndarray, group: np.ndarray) -> bool:
    return bool(mine.sum() >= _ENOUGH_ERRORS) and len(np.unique(group[mine])) >= _ENOUGH_GROUPS


def fit_intervals(errors: Sequence[Errors], scored: Scored, *, use: np.ndarray | None = None) -> Intervals:
    """Fit the intervals.

    Parameters
    ----------
    errors : sequence of Errors
        Errors of some ways to leave out.
    scored : Scored
        What the intervals depend on.
    use : (m,) array of bool, optional
        Observations to use; all by default.

    Returns
    -------
    Intervals
        Base intervals and factors. Less knowledge never gives a narrower base.

    References
    ----------
    .. [1] J. Lei et al., "Distribution-Free Predictive Inference for Regression", JASA 113 (2018), section 5.2: errors
       scaled by how widely their like scatter. The quantiles carry the correction ``(n + 1) / n`` with n groups.
    """
    used = np.ones(len(scored.kind), dtype=bool) if use is None else use
    residual = np.concatenate([one.residual[used] for one in errors])
    known = np.concatenate([one.knowledge[used] for one in errors])
    rows = np.tile(np.flatnonzero(used), len(errors))
    # where the acceptance length is a guess, its own spread is added to the interval of the others
    ok = ~np.isnan(residual) & (known != "") & (scored.drafting[rows] == 0.0)
    residual, known, rows = residual[ok], known[ok], rows[ok]
    kind, group = scored.kind[rows], scored.group[rows]
    factor = np.zeros(len(rows))
    widths: dict[str, float] = {}
    for measured in (True, False):
        mine = (known == "configuration") == measured
        if not mine.any():
            continue
        names = MEASURED_FEATURES if measured else OTHER_FEATURES
        columns = {}
        for name in names:
            pairs = zip(kind[mine], scored.features[name][rows[mine]], strict=True)
            columns[name] = np.array([factor_key(k, name, value) for k, value in pairs])
        cell = np.char.add(np.char.add(kind[mine], "|"), known[mine])
        factor[mine], found = _factors(np.abs(residual[mine]), cell, columns, None if measured else group[mine])
        widths |= {key: round(float(np.exp(x)), 3) for key, x in found.items() if abs(x) >= 0.02}
    scaled = residual / np.exp(factor)
    base: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in KNOWLEDGE}
    sizes: dict[str, dict[str, float]] = {}
    shape = scaled.copy()
    for one in _KINDS:
        alike = kind == one
        others = alike & (known != "configuration")
        mine = others if others.any() else np.ones(len(kind), dtype=bool)
        sizes[one] = _sizes(scaled[mine], known[mine], group[mine])
        shape[alike] /= np.array([sizes[one][name] for name in known[alike]])
    for one in _KINDS:
        alike = kind == one
        mine = alike & (known == "configuration")
        mine = mine if _enough(mine, group) else alike if alike.any() else np.ones(len(kind), dtype=bool)
        last = _quantiles(scaled[mine], int(mine.sum()))
        others = known != "configuration"
        # too few groups have no quantile of their own: the errors of all kinds have one shape, each kind its size
        if _enough(others & alike, group):
            others &= alike
        elif not others.any():
            others[:] = True
        ends = _quantiles(shape[others], len(np.unique(group[others])), group[others])
        for name in KNOWLEDGE:
            if name != "configuration":
                # another layout of a measured group is seldom left out alone: it is at least as well known as a pair
                wide = sizes[one]["pair" if name == "group" else name]
                last = (min(wide * ends[0], last[0]), max(wide * ends[1], last[1]))
            base[name][one] = (round(last[0], 4), round(last[1], 4))
    return Intervals(base, dict(sorted(widths.items())))


def nested_intervals(
    errors: Sequence[Errors], scored: Scored, questions: Sequence[Question], run: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Intervals of left-out runs, made only from errors of other folds than their own.

    Parameters
    ----------
    errors : sequence of Errors
        Errors of each way to leave out.
    scored : Scored
        What the intervals depend on.
    questions : sequence of Question
        The runs.
    run : (m,) array of int
        Run of each observation, [-]

    Returns
    -------
    list of ((m,) array, (m,) array)
        For each way, low and high ends in logarithms, [-]
    """
    found = []
    for one in errors:
        fold = folds_of(questions, one.mode)[run]
        low, high = np.full(len(run), np.nan), np.full(len(run), np.nan)
        for number in np.unique(fold):
            rows = np.flatnonzero((fold == number) & (one.knowledge != ""))
            low[rows], high[rows] = fit_intervals(errors, scored, use=fold != number).ends(scored, one.knowledge, rows)
        found.append((low, high))
    return found


def site_intervals(
    errors: np.ndarray, sweep: np.ndarray, kinds: np.ndarray, configuration: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Intervals of a deployment that a site has measured at two loads.

    Parameters
    ----------
    errors : (m,) array
        Errors after the site's update, NaN where it was not tried, [-]
    sweep : (m,) array of int
        Sweep of each, which is what was updated, [-]
    kinds : (m,) array of str
        Its kind of figure.
    configuration : dict of str to (float, float)
        Intervals of a measured configuration, for kinds of figure that were not tried.

    Returns
    -------
    dict of str to (float, float)
        Kind of figure → interval of measured over predicted in logarithms, [-]
    """
    found = dict(configuration)
    for kind in _KINDS:
        mine = ~np.isnan(errors) & (kinds == kind)
        if _enough(mine, sweep):
            low, high = _quantiles(errors[mine], len(np.unique(sweep[mine])))
            found[kind] = (round(min(low, 0.0), 4), round(max(high, 0.0), 4))
    return found
