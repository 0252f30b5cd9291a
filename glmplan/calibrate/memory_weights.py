"""Fit of how far the weights that an engine logs lie from the computed ones, one vote for each source.

Computed weights hold every tensor with its padding and rounding (`glmplan.physics.memory.loaded`); what is left is what
loaders and conversions leave behind. It is no term of its own: it is the interval of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.physics.memory.observed import LoadedShare
from glmplan.prediction.from_row_memory import checkpoint_of, model_of
from glmplan.prediction.start_memory import launched
from glmplan.readers.runs.importers.start_up_table import LoggedStart

__all__ = ["loaded_share", "loaded_shares", "loaded_votes", "logged_over_computed", "share_without"]

#: of the logs, each source with one vote, that the interval holds [-]
_INSIDE = 0.9
#: fewer sources say nothing about tails [-]
_LEAST_SOURCES = 3
#: least share: logs round to 0.01 GiB, and the longest context of a variant may be another [-]
_FLOOR = 0.001


def logged_over_computed(start: LoggedStart) -> float | None:
    """Share by which logged weights exceed the computed ones.

    Parameters
    ----------
    start : LoggedStart
        The log.

    Returns
    -------
    float or None
        [-]; None for logs without weights, for parts with one memory for CPU and accelerator, and for checkpoints of
        which no publisher says the formats.

    Raises
    ------
    GlmplanError
        If the model or the part is not in the catalogue.
    """
    log = start.log
    if start.not_scored or log.weights is None or start.model is None:
        return None
    part = load_accelerator(start.accelerator) if start.accelerator else None
    if part is not None and part.unified_memory:
        return None
    model = model_of(start.model)
    checkpoint = checkpoint_of(model.name, start.weights, None, log.engine, log.model)
    if checkpoint.smaller or checkpoint.larger:
        return None
    memory, _ = launched(log, model, checkpoint, part, graphs=start.graphs)
    computed = memory.weights[0]
    if not memory.settings.rule.draft_in_pool:
        computed = max(float((stage.weight_bytes - stage.weights.get("mtp", 0.0))[0]) for stage in memory.stages)
    return float(log.weights / computed - 1.0)


def loaded_share(by_source: Iterable[Iterable[float]]) -> LoadedShare:
    """The share within which nine of ten logs lie when each source has one vote.

    Parameters
    ----------
    by_source : iterable of iterable of float
        Of each source, the shares by which its logged weights exceed the computed ones, [-]

    Returns
    -------
    LoadedShare
        Half of the interval.

    Examples
    --------
    One source of two is off by 2 %, and by 1 % in one log of four:

    >>> loaded_share([[0.02], [0.0, 0.0, 0.0, 0.01]])
    LoadedShare(share=0.02, count=2)
    """
    sources = [np.abs(np.array(list(one))) for one in by_source]
    off = np.concatenate(sources)
    vote = np.concatenate([np.full(len(one), 1.0 / len(one) / len(sources)) for one in sources])
    order = np.argsort(off)
    reached = np.cumsum(vote[order])
    place = min(int(np.searchsorted(reached, _INSIDE - 1e-9)), len(off) - 1)
    return LoadedShare(max(float(off[order][place]), _FLOOR), len(sources))


def loaded_shares(starts: Iterable[LoggedStart]) -> tuple[dict[str, LoadedShare], dict[str, list[str]]]:
    """Fit the interval of the weights of each engine.

    Parameters
    ----------
    starts : iterable of LoggedStart
        The logs.

    Returns
    -------
    dict of str to LoadedShare
        Engine → its interval; engines with fewer than three sources are left out.
    dict of str to list of str
        Engine → the logs that it rests on.
    """
    votes = loaded_votes(starts)
    found = {engine: share for engine in votes if (share := share_without(votes[engine])) is not None}
    return found, {engine: [one for _, one, _ in votes[engine]] for engine in found}


def share_without(votes: Iterable[tuple[str, str, float]], origin: str = "") -> LoadedShare | None:
    """The interval of the weights of one engine, a source left out.

    Parameters
    ----------
    votes : iterable of (str, str, float)
        Source, log and share [-], as `loaded_votes` finds them.
    origin : str, optional
        The source that is left out.

    Returns
    -------
    LoadedShare or None
        None with fewer than three sources.

    Examples
    --------
    >>> share_without([("a", "1", 0.02), ("b", "2", 0.01), ("c", "3", 0.0)], "a") is None
    True
    """
    by: dict[str, list[float]] = {}
    for source, _, value in votes:
        if source != origin:
            by.setdefault(source, []).append(value)
    return loaded_share(by.values()) if len(by) >= _LEAST_SOURCES else None


def loaded_votes(starts: Iterable[LoggedStart]) -> dict[str, list[tuple[str, str, float]]]:
    """What every log says of loaded weights.

    Parameters
    ----------
    starts : iterable of LoggedStart
        The logs.

    Returns
    -------
    dict of str to list of (str, str, float)
        Engine, sorted → source, log and the share by which its weights exceed the computed ones, [-]
    """
    found: dict[str, list[tuple[str, str, float]]] = {}
    for start in starts:
        try:
            value = logged_over_computed(start)
        except GlmplanError:
            continue
        if value is not None:
            found.setdefault(start.log.engine, []).append((start.origin, start.id, value))
    return dict(sorted(found.items()))
