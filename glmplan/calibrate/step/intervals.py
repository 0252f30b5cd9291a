"""Fit widths of prediction intervals to cross-validation errors.

Other errors check them. Rows of one group err together: each group has one vote. Rows that no fit uses get a wider
interval, fitted to such rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.crossvalidate import PARTS_OF_GROUPS, Errors, folds_of, group_names
from glmplan.catalog.files import write_atomically
from glmplan.io.runs.columns import ANSWERS, FIGURES
from glmplan.io.runs.ledger import group_key
from glmplan.io.runs.record import Run
from glmplan.prediction.distribution import NORMAL, PROBABILITIES
from glmplan.prediction.effects import KNOWLEDGE
from glmplan.prediction.evidence import (
    FILE,
    LIKE,
    MEASURED_FEATURES,
    OTHER_FEATURES,
    STEPS,
    factor_key,
    features_of,
    kind_at,
)
from glmplan.prediction.from_row import RunCase
from glmplan.prediction.table import marked_reasons, predict_runs
from glmplan.units import QUANTILE_90, Ratio

__all__ = [
    "GROUPS_OF_PRIOR",
    "Intervals",
    "Scored",
    "credit_of",
    "fit_intervals",
    "needed_stretch",
    "nested_intervals",
    "scored_of",
    "site_intervals",
    "stretches",
    "vote",
    "write_refused_widths",
]


#: share of the held-out errors inside an interval
_SHARE = 0.90
#: weight, in groups, of the prior factor 1 [-]
GROUPS_OF_PRIOR = 10.0
#: groups that determine a width, at least: with nine the 90 % quantile is the worst row; with fifteen the worst group
#: decides alone only with more than half of its rows [-]
_ENOUGH_GROUPS = 15
#: smaller errors do not scale [-]
_LEAST_ERROR = 0.01
_SWEEPS = 8
_KINDS = ("decode", "decode_unstated", "ttft", "ttft_unstated", "ttft_many", "ttft_many_cached", "prefill", *LIKE)
#: vote of a row of trust C or D, or of a complaint: one report of an unchecked run [-]
_DOUBTED = 0.25
#: levels of what others measured: few groups were measured by several campaigns
_ELSEWHERE = frozenset({"configuration", "group"})
#: levels with strictly more evidence, which are never wider. Measurement of the model on the engine and of the
#: accelerator with this format are independent: neither is more
_MORE_KNOWN: dict[str, tuple[str, ...]] = {
    "layout": ("sweep",),
    "configuration": ("sweep",),
    "group": ("configuration",),
    "pair": ("group",),
    "format": ("pair",),
    "accelerator": ("pair",),
    "model": ("format",),
    "engine": ("accelerator", "model"),
    "nothing": ("engine",),
}


@dataclass(frozen=True)
class Scored:
    """Observations with the features of their intervals."""

    kind: np.ndarray  # see `glmplan.prediction.evidence.kind_at`
    features: dict[str, np.ndarray]  # see `glmplan.prediction.evidence.features_of`
    group: np.ndarray  # number of engine, accelerator, model shape, format
    drafting: np.ndarray  # half-width added for an unstated acceptance length, as in predictions
    credit: np.ndarray  # vote of each row before its group divides it, see `credit_of`


@dataclass(frozen=True)
class Intervals:
    """Fitted intervals."""

    base: dict[
        str, dict[str, tuple[float, float]]
    ]  # evidence level → kind of metric → interval of log(measured / predicted)
    widths: dict[str, float]  # factors by `glmplan.prediction.evidence.factor_key`
    tails: dict[str, tuple[float, ...]]  # kind of metric → quantiles over the ends, `glmplan.prediction.distribution`

    def tails_of(self, scored: Scored, rows: np.ndarray) -> np.ndarray:
        """Return the tails of some observations, (n, 8)."""
        return np.array([self.tails.get(kind, NORMAL) for kind in scored.kind[rows]]).reshape(-1, len(NORMAL))

    def ends(self, scored: Scored, knowledge: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the intervals of some observations."""
        pairs = np.array([self.base[knowledge[row]][scored.kind[row]] for row in rows]).reshape(-1, 2)
        factor = np.ones(len(rows))
        for place, row in enumerate(rows):
            for name in MEASURED_FEATURES if knowledge[row] == "sweep" else OTHER_FEATURES:
                factor[place] *= self.widths.get(factor_key(scored.kind[row], name, scored.features[name][row]), 1.0)
        low, high, drafting = pairs[:, 0] * factor, pairs[:, 1] * factor, scored.drafting[rows]
        guessed = drafting > 0.0
        return np.where(guessed, -np.hypot(low, drafting), low), np.where(guessed, np.hypot(high, drafting), high)


def scored_of(cases: Sequence[RunCase], run: np.ndarray, figure: np.ndarray) -> Scored:
    """Return the features on which the intervals of observations depend."""
    rows = [features_of(one.deployment, one.load) for one in cases]
    features = {name: np.array([row[name] for row in rows])[run] for name in (*MEASURED_FEATURES, *OTHER_FEATURES)}
    loads = [(rows[n]["load"], rows[n]["cached"], rows[n]["stated"]) for n in run]
    kind = np.array([kind_at(FIGURES[name].interval, *load) for name, load in zip(figure, loads, strict=True)])
    deviation = np.array([one.deployment.acceptance_deviation for one in cases])[run]
    return Scored(
        kind=kind,
        features=features,
        group=np.unique(group_names(cases), return_inverse=True)[1][run],
        drafting=np.where(np.isin(np.char.replace(kind, "_unstated", ""), STEPS), QUANTILE_90 * deviation, 0.0),
        credit=np.array([credit_of(one.run) for one in cases])[run],
    )


def credit_of(run: Run) -> Ratio:
    """Return the vote of a row before its group divides it.

    A row of trust C or D, or one from a complaint, has a quarter. The rule looks at the source, never at the error.

    Examples
    --------
    >>> [credit_of(Run("a", "glm-5", "h200-sxm", trust=trust)) for trust in "ABC"]
    [1.0, 1.0, 0.25]
    """
    doubted = run.trust in ("C", "D") or "/issues/" in (run.source or "")
    return _DOUBTED if doubted else 1.0


def vote(group: np.ndarray, credit: np.ndarray | None = None) -> np.ndarray:
    """Return the weight of each row.

    A group has one vote, less if all of its rows are doubted.

    Examples
    --------
    >>> vote(np.array([0, 0, 1])).tolist()
    [0.5, 0.5, 1.0]
    >>> vote(np.array([0, 0, 1]), np.array([1.0, 0.25, 0.25])).tolist()
    [0.8, 0.2, 0.25]
    """
    credit = np.ones(len(group)) if credit is None else credit
    _, place = np.unique(group, return_inverse=True)
    most = np.zeros(int(place.max(initial=-1)) + 1)
    np.maximum.at(most, place, credit)
    result: np.ndarray = credit * (most / np.maximum(np.bincount(place, credit), 1e-300))[place]
    return result


def _factors(
    size: np.ndarray, cell: np.ndarray, places: dict[str, tuple[list[str], np.ndarray]], weight: np.ndarray
) -> tuple[np.ndarray, dict[str, float]]:
    """Fit log error sizes as cell means plus effects, shrunk by group count.

    `places` are the keys of each feature and the key of each row.
    """
    value = np.log(np.maximum(size, _LEAST_ERROR))
    total = np.zeros(len(value))
    effect = {name: np.zeros(len(keys)) for name, (keys, _) in places.items()}
    _, inside = np.unique(cell, return_inverse=True)
    for _ in range(_SWEEPS):
        mean = (np.bincount(inside, weight * (value - total)) / np.bincount(inside, weight))[inside]
        for name, (_, place) in places.items():
            votes = np.bincount(place, weight)
            found = np.bincount(place, weight * (value - mean - total + effect[name][place])) / votes
            moved = found * votes / (votes + GROUPS_OF_PRIOR)
            total = total + (moved - effect[name])[place]
            effect[name] = moved
    names = {key: float(x) for name, (keys, _) in places.items() for key, x in zip(keys, effect[name], strict=True)}
    return total, names


def _shape(errors: np.ndarray, group: np.ndarray, credit: np.ndarray) -> tuple[float, float]:
    """Return the 5 % and 95 % quantile of the votes: the interval's asymmetry."""
    order = np.argsort(errors, kind="stable")
    weight = vote(group, credit)[order]
    below = (np.cumsum(weight) - weight / 2.0) / weight.sum()
    low, high = np.interp([(1.0 - _SHARE) / 2.0, (1.0 + _SHARE) / 2.0], below, errors[order])
    return min(float(low), -_LEAST_ERROR), max(float(high), _LEAST_ERROR)


def _stretch(errors: np.ndarray, group: np.ndarray, credit: np.ndarray, shape: tuple[float, float]) -> float:
    """Return the stretch that covers the next group's rows in 90 % of cases.

    The next group's vote counts as a miss if there are enough groups; with fewer, the 90 % quantile of the votes is
    taken, which gives the size of errors but not their tails.
    """
    needed = np.maximum(errors / shape[1], errors / shape[0])
    order = np.argsort(needed, kind="stable")
    weight = vote(group, credit)[order]
    groups, votes = len(np.unique(group)), float(weight.sum())
    misses = 1.0 if groups >= _ENOUGH_GROUPS else 0.0
    index = int(np.searchsorted(np.cumsum(weight), _SHARE * (votes + misses) - 1e-9))
    return float(needed[order][min(index, len(order) - 1)])


def _groups(mine: np.ndarray, group: np.ndarray) -> int:
    return len(np.unique(group[mine]))


@dataclass(frozen=True)
class _Left:
    """Held-out errors: residual over the factors, level, kind, group, credit."""

    scaled: np.ndarray
    known: np.ndarray
    kind: np.ndarray
    group: np.ndarray
    credit: np.ndarray

    def shape(self, rows: np.ndarray) -> tuple[float, float]:
        """Return the asymmetry of some errors."""
        return _shape(self.scaled[rows], self.group[rows], self.credit[rows])

    def stretch(self, rows: np.ndarray, shape: tuple[float, float]) -> float:
        """Return the stretch that covers some errors."""
        return _stretch(self.scaled[rows], self.group[rows], self.credit[rows], shape)


def _bases(left: _Left) -> dict[str, dict[str, tuple[float, float]]]:
    """Return base intervals by level and kind.

    One shape for other loads of a measured sweep and one for all others, stretched for each level.
    """
    base: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in KNOWLEDGE}
    measured, fitted = left.known == "sweep", ~np.isin(left.kind, list(LIKE))
    for one in _KINDS:
        alike = left.kind == one
        shapes, wide = {}, {}
        for name, of in (("sweep", measured), ("others", ~measured)):
            # few groups use the shape of all kinds, else of all rows
            choices = (alike & of, of & fitted, np.ones(len(alike), dtype=bool))
            mine = next(rows for rows in choices if _groups(rows, left.group) >= _ENOUGH_GROUPS or rows.all())
            shapes[name] = left.shape(mine)
            own = alike & of if (alike & of).any() else mine
            wide[name] = max(left.stretch(rows, shapes[name]) for rows in (own, mine))
        low, high = (wide["sweep"] * end for end in shapes["sweep"])
        base["sweep"][one] = (round(low, 4), round(high, 4))
        for name, stretch in _stretches(left, alike, shapes["others"], wide["others"]).items():
            ends = (round(stretch * end, 4) for end in shapes["others"])
            base[name][one] = (min(next(ends), base["sweep"][one][0]),
                               max(next(ends), base["sweep"][one][1]))  # fmt: skip
    for one in ("decode", "ttft"):
        for name in set(_MORE_KNOWN) - set(_ELSEWHERE):
            # few groups do not say that stated settings help at this level
            if _groups((left.kind == one) & (left.known == name), left.group) < _ENOUGH_GROUPS:
                (own_low, own_high), (low, high) = base[name][one], base[name][f"{one}_unstated"]
                base[name][one] = (min(own_low, low), max(own_high, high))
    return base


def _tails(left: _Left, base: dict[str, dict[str, tuple[float, float]]]) -> dict[str, tuple[float, ...]]:
    """Return the quantiles of errors over the ends of their interval, by kind.

    Each side is scaled by its own end, so that 5 and 95 % are 1 by definition; the others are quantiles of the votes,
    never inside of those nearer to the median.
    """
    tails = {}
    for kind in _KINDS:
        mine = left.kind == kind
        if _groups(mine, left.group) < _ENOUGH_GROUPS:
            continue
        ends = np.array([base[known][kind] for known in left.known[mine]])
        scaled = np.where(left.scaled[mine] < 0.0, -left.scaled[mine] / ends[:, 0], left.scaled[mine] / ends[:, 1])
        order = np.argsort(scaled, kind="stable")
        weight = vote(left.group[mine], left.credit[mine])[order]
        below = (np.cumsum(weight) - weight / 2.0) / weight.sum()
        values = np.interp(PROBABILITIES, below, scaled[order])
        half = len(values) // 2
        # from the median outwards: 25, 10, 5, 1 % and 75, 90, 95, 99 %
        sides = [np.maximum.accumulate(np.maximum(side, 0.0)) for side in (-values[:half][::-1], values[half:])]
        for side in sides:
            side[:2], side[2], side[3] = np.minimum(side[:2], 1.0), 1.0, max(side[3], 1.0)
        tails[kind] = tuple(round(float(value), 3) for value in (*sides[0][::-1], *sides[1]))
    return tails


def _stretches(left: _Left, alike: np.ndarray, shape: tuple[float, float], of_all: float) -> dict[str, float]:
    """Return the stretch of each level, never above that of less evidence.

    Violating neighbours are pooled (pool-adjacent-violators), so that few groups of a level do not outweigh many.
    """
    pools = {name: frozenset({name}) for name in _MORE_KNOWN}
    stretches_found = {name: _class_stretch(left, alike, one, shape, of_all) for name, one in pools.items()}
    pairs = [(more, name) for name, better in _MORE_KNOWN.items() for more in better if more in pools]
    while wrong := [
        (stretches_found[more] - stretches_found[name], more, name)
        for more, name in pairs
        if stretches_found[more] > stretches_found[name]
    ]:
        _, more, name = max(wrong)
        pool = pools[more] | pools[name]
        stretch = _class_stretch(left, alike, pool, shape, of_all)
        for one in pool:
            pools[one], stretches_found[one] = pool, stretch
    return stretches_found


def _class_stretch(
    left: _Left, alike: np.ndarray, names: frozenset[str], shape: tuple[float, float], of_all: float
) -> float:
    """Return the stretch of levels by their groups; few can only widen."""
    mine = alike & np.isin(left.known, list(names))
    groups = _groups(mine, left.group)
    if groups < _ENOUGH_GROUPS and len(names) == 1 and names <= _ELSEWHERE:
        # few groups were measured by several campaigns: what others measured has at least the evidence of a pair
        return _class_stretch(left, alike, frozenset({"pair"}), shape, of_all)
    own = left.stretch(mine, shape) if groups else 0.0
    return own if groups >= _ENOUGH_GROUPS else max(own, of_all)


def fit_intervals(errors: Sequence[Errors], scored: Scored, *, use: np.ndarray | None = None) -> Intervals:
    """Return base intervals and width factors.

    A level with less evidence is never narrower, and a factor narrows only if the groups concerned stay covered.

    References
    ----------
    .. [1] R. Dunn, L. Wasserman, A. Ramdas, "Distribution-Free Prediction Sets for Two-Layer Hierarchical Models", JASA
           118 (2023); Y. Lee, R. F. Barber, R. Willett, "Distribution-free inference with hierarchical data", arXiv
           2306.06342, section 3: rows of one group share a vote, and the vote of the next group is a miss.
    .. [2] J. Lei et al., "Distribution-Free Predictive Inference for Regression", JASA 113 (2018), section 5.2: errors
           scaled by how widely their like scatter.
    """
    used = np.ones(len(scored.kind), dtype=bool) if use is None else use
    residual = np.concatenate([one.residual[used] for one in errors])
    known = np.concatenate([one.knowledge[used] for one in errors])
    rows = np.tile(np.flatnonzero(used), len(errors))
    # guessed acceptance lengths add their own spread to the interval of the others
    ok = ~np.isnan(residual) & (known != "") & (scored.drafting[rows] == 0.0)
    residual, known, rows = residual[ok], known[ok], rows[ok]
    kind, credit = scored.kind[rows], scored.credit[rows]
    _, group = np.unique(scored.group[rows], return_inverse=True)  # numbers sort faster than names
    kinds, of_kind = np.unique(scored.kind, return_inverse=True)
    values = {name: np.unique(one, return_inverse=True) for name, one in scored.features.items()}
    of_kind, levels = of_kind[rows], sorted(KNOWLEDGE)
    cell = of_kind * len(levels) + np.searchsorted(levels, known)
    factor = np.zeros(len(rows))
    effects: dict[str, float] = {}
    members: dict[str, np.ndarray] = {}
    for measured in (True, False):
        mine = np.flatnonzero((known == "sweep") == measured)
        if not len(mine):
            continue
        places = {}
        for name in MEASURED_FEATURES if measured else OTHER_FEATURES:
            found, of_row = values[name]
            both, place = np.unique(of_kind[mine] * len(found) + of_row[rows[mine]], return_inverse=True)
            keys = [f"{kinds[one // len(found)]} {name}: {found[one % len(found)]}" for one in both]
            places[name] = keys, place
            parts = np.split(mine[np.argsort(place, kind="stable")], np.cumsum(np.bincount(place))[:-1])
            members |= dict(zip(keys, parts, strict=True))
        factor[mine], sizes = _factors(np.abs(residual[mine]), cell[mine], places, vote(group[mine], credit[mine]))
        effects |= sizes
    left = _Left(residual / np.exp(factor), known, kind, group, credit)
    base = _bases(left)
    for key, effect in effects.items():
        if effect < 0.0 and not _covered(left, base, members[key]):
            effects[key] = 0.0
    widths = {key: round(float(np.exp(x)), 3) for key, x in effects.items() if abs(x) >= 0.02}
    return Intervals(base, dict(sorted(widths.items())), _tails(left, base))


def _covered(left: _Left, base: dict[str, dict[str, tuple[float, float]]], rows: np.ndarray) -> bool:
    """Return True if groups are covered, the next one counted as a miss."""
    group = left.group[rows]
    if len(np.unique(group)) < _ENOUGH_GROUPS:
        return False
    ends = np.array([base[known][kind] for known, kind in zip(left.known[rows], left.kind[rows], strict=True)])
    inside = (left.scaled[rows] >= ends[:, 0]) & (left.scaled[rows] <= ends[:, 1])
    weight = vote(group, left.credit[rows])
    return bool((weight * inside).sum() >= _SHARE * (weight.sum() + 1.0))


def nested_intervals(
    errors: Sequence[Errors], scored: Scored, cases: Sequence[RunCase], run: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return log intervals of held-out runs from errors of other folds only.

    Low, high and tails for each way of leaving out. A subset of a group is scored without the other subsets of the
    group.
    """
    intervals = []
    for one in errors:
        fold = folds_of(cases, "group" if one.mode in PARTS_OF_GROUPS else one.mode)[run]
        low, high, tails = np.full(len(run), np.nan), np.full(len(run), np.nan), np.ones((len(run), len(NORMAL)))
        for number in np.unique(fold):
            rows = np.flatnonzero((fold == number) & (one.knowledge != ""))
            fitted = fit_intervals(errors, scored, use=fold != number)
            low[rows], high[rows] = fitted.ends(scored, one.knowledge, rows)
            tails[rows] = fitted.tails_of(scored, rows)
        intervals.append((low, high, tails))
    return intervals


def site_intervals(
    errors: np.ndarray, sweep: np.ndarray, kinds: np.ndarray, configuration: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return intervals of deployments that a site measured at two loads.

    `errors` are those after the update (NaN if not tried), `sweep` their sweep; kinds that were not tried take the
    intervals of a measured `configuration`. A site's own points leave nothing unstated.
    """
    kinds = np.char.replace(kinds, "_unstated", "")
    intervals = {kind: ends for kind, ends in configuration.items() if not kind.endswith("_unstated")}
    for kind in intervals:
        mine = ~np.isnan(errors) & (kinds == kind)
        if _groups(mine, sweep) >= _ENOUGH_GROUPS:
            credit = np.ones(int(mine.sum()))
            shape = _shape(errors[mine], sweep[mine], credit)
            wide = _stretch(errors[mine], sweep[mine], credit, shape)
            intervals[kind] = (round(wide * shape[0], 4), round(wide * shape[1], 4))
    return intervals


#: share of groups inside the interval, and fewest groups of a kind [-]
_HELD, _FEWEST = 0.9, 15


def needed_stretch(needed: Sequence[float], groups: Sequence[str]) -> Ratio:
    """Return the stretch that covers nine groups in ten.

    `needed` is the stretch that just covers each value. Groups have one vote each, and the next group counts as a miss.
    At least 1; infinite for too few groups.

    References
    ----------
    .. [1] V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", Springer 2005, section 4.2.

    Examples
    --------
    >>> needed_stretch([0.5] * 17 + [3.0, 3.5, 4.0], [str(one) for one in range(20)])
    3.5
    """
    count = Counter(groups)
    wanted = _HELD * (len(count) + 1) / max(len(count), 1)
    order = np.argsort(needed, kind="stable")
    votes = np.cumsum([1.0 / (count[groups[one]] * len(count)) for one in order])
    enough = np.flatnonzero(votes >= wanted - 1e-12)
    return max(float(needed[order[enough[0]]]), 1.0) if len(enough) else float("inf")


def stretches(refused: Iterable[tuple[Run, str]]) -> dict[str, tuple[float, int]]:
    """Return kind of metric → stretch and groups for refused rows.

    Kinds with fewer than fifteen groups take the stretch of all kinds.

    Notes
    -----
    Only runs that a prediction marks before measurement; a row that is faster than possible is not known before.
    Repetitions of other rows have no vote.
    """
    rows = [run for run, reason in refused if not reason.startswith("repeats ") and not run.offload]
    needed: dict[str, list[float]] = defaultdict(list)
    groups: dict[str, list[str]] = defaultdict(list)
    marked = marked_reasons(rows)
    for run, answer in zip(rows, predict_runs(rows, as_fitted=True, measured=True), strict=True):
        for column, figure in answer.figures.items() if marked[run.id] else ():
            kind, measured = ANSWERS[column].interval, run.observed.get(column, 0.0)
            if not kind or measured <= 0.0 or not figure.low < figure.value < figure.high:
                continue
            error, end = np.log(measured / figure.value), figure.high if measured > figure.value else figure.low
            needed[kind].append(float(error / np.log(end / figure.value)))
            groups[kind].append(group_key(run))
    every = needed_stretch(sum(needed.values(), []), sum(groups.values(), []))
    by_kind = {}
    for kind in sorted(needed):
        count = len(set(groups[kind]))
        own = needed_stretch(needed[kind], groups[kind]) if count >= _FEWEST else every
        if np.isfinite(own):
            by_kind[kind] = (own, count)
    return by_kind


def write_refused_widths(found: Mapping[str, tuple[float, int]], folder: Path) -> Path:
    """Write the stretches, reproducible byte for byte, and return the path."""
    lines = [
        "# Written by `glmplan calibrate`; do not edit.",
        "# Intervals of rows that no fit takes: factor on the logarithms of both ends over the value, so that nine",
        "# groups of such rows in ten lie inside, and groups that it rests on. See docs/physics/calibration.md.",
        "",
        "[stretch]",
        *(f"{kind} = [{factor:.3g}, {groups}]" for kind, (factor, groups) in sorted(found.items())),
    ]
    path = Path(folder) / FILE
    write_atomically(path, "\n".join([*lines, ""]))
    return path
