"""Learn how much wider intervals must be of rows that no fit takes, from such rows: one vote for each group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from glmplan.facts.files import write_atomically
from glmplan.prediction.refused_widths import FILE
from glmplan.prediction.table import marked_reasons, predict_runs
from glmplan.readers.runs.figures import ANSWERS
from glmplan.readers.runs.holdout import group_key
from glmplan.readers.runs.record import Run

__all__ = ["needed_stretch", "stretches", "write_refused_widths"]

#: share of the groups that the interval is to hold, and fewest groups that a kind of figure is told by [-]
_HELD, _FEWEST = 0.9, 15


def needed_stretch(needed: Sequence[float], groups: Sequence[str]) -> float:
    """Stretch of intervals that holds nine groups in ten, the vote of the next group counted as a miss.

    Parameters
    ----------
    needed : sequence of float
        For each figure the stretch at which its interval would just hold it, [-]
    groups : sequence of str
        Its group; each has one vote, shared by its figures.

    Returns
    -------
    float
        At least 1; infinite where so few groups say nothing, [-]

    References
    ----------
    .. [1] V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", Springer 2005, section 4.2.

    Examples
    --------
    >>> needed_stretch([0.5] * 17 + [3.0, 3.5, 4.0], [str(one) for one in range(20)])
    3.5
    """
    count = Counter(groups)
    asked = _HELD * (len(count) + 1) / max(len(count), 1)
    order = np.argsort(needed, kind="stable")
    votes = np.cumsum([1.0 / (count[groups[one]] * len(count)) for one in order])
    enough = np.flatnonzero(votes >= asked - 1e-12)
    return max(float(needed[order[enough[0]]]), 1.0) if len(enough) else float("inf")


def stretches(refused: Iterable[tuple[Run, str]]) -> dict[str, tuple[float, int]]:
    """How much wider intervals must be for each kind of figure.

    Parameters
    ----------
    refused : iterable of (Run, str)
        Runs that no fit takes, with the reason.

    Returns
    -------
    dict of str to (float, int)
        Kind of figure → stretch and the groups that it rests on; of a kind with fewer than fifteen groups that of all
        kinds, [-]

    Notes
    -----
    Only runs that a prediction marks before anything is measured: that a row is faster than its part can be is seen in
    what was measured. Repetitions of other rows have no vote.
    """
    rows = [run for run, reason in refused if not reason.startswith("repeats ") and not run.offload]
    needed: dict[str, list[float]] = defaultdict(list)
    groups: dict[str, list[str]] = defaultdict(list)
    marked = marked_reasons(rows)
    for run, answer in zip(rows, predict_runs(rows, as_fitted=True), strict=True):
        for column, figure in answer.figures.items() if marked[run.id] else ():
            kind, measured = ANSWERS[column].interval, run.observed.get(column, 0.0)
            if not kind or measured <= 0.0 or not figure.low < figure.value < figure.high:
                continue
            error, end = np.log(measured / figure.value), figure.high if measured > figure.value else figure.low
            needed[kind].append(float(error / np.log(end / figure.value)))
            groups[kind].append(group_key(run))
    every = needed_stretch(sum(needed.values(), []), sum(groups.values(), []))
    found = {}
    for kind in sorted(needed):
        count = len(set(groups[kind]))
        own = needed_stretch(needed[kind], groups[kind]) if count >= _FEWEST else every
        if np.isfinite(own):
            found[kind] = (own, count)
    return found


def write_refused_widths(found: Mapping[str, tuple[float, int]], folder: Path) -> Path:
    """Write the stretches.

    Parameters
    ----------
    found : mapping
        As `stretches` gives them.
    folder : pathlib.Path
        Folder of the fits.

    Returns
    -------
    pathlib.Path
        The file; the same stretches give the same bytes.
    """
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
