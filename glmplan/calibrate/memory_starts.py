"""Fit of what an engine of known trial run (vLLM) takes beside it and its weights, from the start-up logs.

The trial run is derived from the engine's source (`glmplan.physics.memory.profiling`); what a log then lacks of its
share of the memory is outside torch (libraries, communicators) or a work space that no formula gives. Each source has
one vote, the median of its logs; a term is the median of the votes. Its spread is that of the votes about it, held
together with the ordinary spread of all kinds of launches where votes are few, and of the logs within one source; a
kind of launch with a single source has the spread of all launches on several accelerators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glmplan.calibrate.memory import (
    MemoryObservation,
    fit_memory,
    fit_text,
    observations,
    pool_remainder,
    row_memory,
)
from glmplan.calibrate.memory_weights import loaded_shares, loaded_votes, share_without
from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.engines.memory import load_memory_rule, memory_engines
from glmplan.facts.files import write_atomically
from glmplan.facts.folders import data_folder
from glmplan.physics.memory.encoder import tower_is_known
from glmplan.physics.memory.observed import MemoryFit, Spread
from glmplan.physics.memory.part import PartMemory, part_memory
from glmplan.physics.memory.pool import kv_pool, launch_kinds
from glmplan.physics.memory.settings import MemorySettings
from glmplan.prediction.from_row_memory import checkpoint_of, model_of
from glmplan.prediction.start_memory import launched
from glmplan.readers.runs.importers.start_up_table import LoggedStart, start_up_logs
from glmplan.units import GIB

__all__ = [
    "Vote",
    "fit_starts",
    "launch_terms",
    "left_out_sources",
    "outside_of",
    "outside_of_row",
    "outside_votes",
    "spreads_of",
    "write_memory_fit",
]

_NOTHING = Spread(0.0, 0.0, 0)
#: versions of which the trial runs differ most [-]
_APART = ("0.16.0", "0.17.0")
#: votes that the spread of all terms counts for in each [-]
_SHARED = 2.0
#: standard deviation of a normal variable over its median absolute deviation [-]
_MAD = 1.4826
#: least standard deviation: two launches of one image on one machine differ by as much [B]
_FLOOR = 0.1 * GIB


@dataclass(frozen=True, slots=True)
class Vote:
    """What one log says of a term.

    Attributes
    ----------
    id, origin, engine : str
        The log, the source it is from and the engine.
    classes : tuple of str
        Kinds of launches it counts for, the narrowest first.
    value : float
        [B]
    """

    id: str
    origin: str
    engine: str
    classes: tuple[str, ...]
    value: float


def _tried(engine: str) -> bool:
    """Whether the trial run of an engine is known."""
    return engine in memory_engines() and bool(load_memory_rule(engine).profiling)


def outside_of(start: LoggedStart, fit: MemoryFit) -> Vote | None:
    """What one launch took beside weights, trial run and, where it takes one, its estimate of graphs.

    Parameters
    ----------
    start : LoggedStart
        The log.
    fit : MemoryFit
        The memory of parts that does not count as listed, and the estimate of graphs where the log does not tell it.

    Returns
    -------
    Vote or None
        None for other engines, parts that are no CUDA devices, models whose image tower is tried and of unknown
        shapes, and logs that lack the pool, the weights or the engine's estimate of graphs.

    Raises
    ------
    GlmplanError
        If the model or the part is not in the catalogue.
    """
    log = start.log
    told = start.model and start.accelerator and log.kv_pool is not None and log.weights is not None
    if not _tried(log.engine) or start.not_scored or not told or log.version is None:
        return None
    part, model = load_accelerator(start.accelerator or ""), model_of(start.model or "")
    cuda = (part.compute_capability or "")[:1].isdigit()
    if not cuda or (model.extra_parameters and start.multimodal and not tower_is_known(model)):
        return None
    checkpoint = checkpoint_of(model.name, start.weights, None, log.engine, log.model)
    memory, _ = launched(log, model, checkpoint, part, graphs=start.graphs)
    taken = memory.settings.graphs_in_pool and memory.estimates_graphs and start.graphs
    if memory.settings.rule.profiling_of(log.version, dense=False) is None or (taken and start.graph_estimate is None):
        return None
    estimate = Spread(start.graph_estimate or 0.0, 0.0, 1)
    bare = replace(
        fit,
        outside={log.engine: {"single": _NOTHING, "several": _NOTHING}},
        estimate={log.engine: {"single": estimate, "several": estimate}},
    )
    seen = part_memory(part, fit=fit)
    if start.total is not None:
        seen = replace(seen, total=start.total)
    computed = float(kv_pool(memory, seen, fit=bare).bytes[0]) + float(memory.weights[0]) - float(log.weights or 0.0)
    several = int(np.atleast_1d(memory.layout.accelerators)[0]) > 1
    kinds = _counted(seen, several=several, indexed=memory.indexed)
    return Vote(start.id, start.origin, log.engine, kinds, computed - float(log.kv_pool or 0.0))


def _counted(part: PartMemory, *, several: bool, indexed: bool) -> tuple[str, ...]:
    """Kinds of launches that a log counts for: its own, and for several accelerators also what others fall back on."""
    own = launch_kinds(part, several=several, indexed=indexed)[0]
    return (own, "several") if several else (own,)


def outside_of_row(row: MemoryObservation, fit: MemoryFit) -> Vote | None:
    """What one older row says of the memory outside the trial run.

    Parameters
    ----------
    row : MemoryObservation
        A row of kind ``outside``, or ``pool`` of an engine whose trial run is known.
    fit : MemoryFit
        The other terms.

    Returns
    -------
    Vote or None
        None for other rows, for versions that take an estimate of graphs which the row does not tell, and where the
        version is taken by date and the trial run differs between versions.

    Raises
    ------
    GlmplanError
        If the row names a model or part that is not in the catalogue.
    """
    text, number = row.text, row.number
    origin = _origin(row)
    seen = part_memory(load_accelerator(text["part"]), fit=fit) if "part" in text else None
    if row.kind == "outside" and seen is not None:
        kinds = _counted(seen, several=True, indexed=False)
        return Vote(row.id, origin, text["engine"], kinds, number["context_gib"] * GIB)
    if row.kind != "pool" or seen is None or not _tried(text["engine"]) or not row.used:
        return None
    memory = row_memory(row)
    trial = memory.settings.rule.profiling_of(memory.settings.version, dense=False)
    if trial is None or (memory.settings.graphs_in_pool and number.get("graphs") != 0.0):
        return None
    if "by date" in text.get("note", ""):
        peaks = [row_memory(row, version=one).stages[0].activation[0] for one in _APART]
        if peaks[0] != peaks[1]:
            return None
    several = int(number["tp"]) > 1
    # the remainder of a row is what its context leaves, which an engine of known trial run does not count apart
    context = fit.context[seen.link if several else "single"].mean
    kinds = _counted(seen, several=several, indexed=memory.indexed)
    return Vote(row.id, origin, text["engine"], kinds, pool_remainder(row, fit) + context)


def outside_votes(starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit) -> list[Vote]:
    """What every launch that says so took beside weights and trial run.

    Parameters
    ----------
    starts : iterable of LoggedStart
        The logs.
    rows : iterable of MemoryObservation
        Older rows.
    fit : MemoryFit
        The other terms.

    Returns
    -------
    list of Vote
        Logs of which the model or the part is not known are left out.
    """
    found: list[Vote | None] = [outside_of_row(row, fit) for row in rows]
    for start in starts:
        try:
            found.append(outside_of(start, fit))
        except GlmplanError:
            continue
    return [vote for vote in found if vote is not None]


def _graph_votes(
    starts: Iterable[LoggedStart], told: Callable[[LoggedStart], float | None], *, taken: bool
) -> list[Vote]:
    """What launches say of their graphs; a negative figure is memory given back meanwhile and says nothing.

    ``taken``: only of releases that take their estimate from the pool, for what older ones print is another reckoning.
    """
    found = []
    for start in starts:
        value, log = told(start), start.log
        if not _tried(log.engine) or value is None or value <= 0.0 or not start.graphs:
            continue
        if taken and not MemorySettings(engine=log.engine, version=log.version).graphs_in_pool:
            continue
        several = (log.tp or 1) * (log.pp or 1) * (log.dp or 1) > 1
        kinds: tuple[str, ...] = ("several",) if several else ("single",)
        if start.accelerator:
            kinds = _counted(part_memory(load_accelerator(start.accelerator)), several=several, indexed=False)
        found.append(Vote(start.id, start.origin, log.engine, kinds, value))
    return found


def _origin(row: MemoryObservation) -> str:
    """The repository or thread that a row is from."""
    return row.source.split(" ")[0] if row.source.startswith("http") else row.source


def spreads_of(votes: Iterable[Vote]) -> dict[str, Spread]:
    """Median and spread of each kind of launch, one vote for each source.

    Parameters
    ----------
    votes : iterable of Vote
        What the logs say.

    Returns
    -------
    dict of str to Spread
        Kind of launch → median of the votes [B], their spread and number.

    Examples
    --------
    >>> votes = [Vote(str(n), origin, "vllm", ("single",), n * 2.0**30) for n, origin in enumerate("aabbc")]
    >>> found = spreads_of(votes)["single"]
    >>> found.mean / 2**30, found.count
    (2.5, 3)
    """
    by_class: dict[str, dict[str, list[float]]] = {}
    for vote in votes:
        for name in vote.classes:
            by_class.setdefault(name, {}).setdefault(vote.origin, []).append(vote.value)
    medians = {name: np.array([np.median(one) for one in by.values()]) for name, by in by_class.items()}
    off = {name: values - np.median(values) for name, values in medians.items()}
    apart = [off[name] for name in off if len(off[name]) > 1 and (name != "several" or len(off) <= 2)]
    shared = _MAD * float(np.median(np.abs(np.concatenate(apart)))) if apart else 0.0
    found = {}
    for name, by in by_class.items():
        within = float(np.mean([np.mean((np.array(one) - np.median(one)) ** 2) for one in by.values()]))
        between = (float((off[name] ** 2).sum()) + _SHARED * shared**2) / (len(by) - 1 + _SHARED)
        found[name] = Spread(float(np.median(medians[name])), max(math.sqrt(between + within), _FLOOR), len(by))
    wide = found.get("several", _NOTHING).sd
    # one source says nothing of how far the next one is
    return {name: replace(one, sd=max(one.sd, wide)) if one.count == 1 else one for name, one in found.items()}


def launch_terms(
    starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit
) -> tuple[MemoryFit, dict[str, list[Vote]]]:
    """Fit all terms of the start of engines whose trial run is known.

    Parameters
    ----------
    starts : iterable of LoggedStart
        The logs.
    rows : iterable of MemoryObservation
        Older rows.
    fit : MemoryFit
        The other terms.

    Returns
    -------
    MemoryFit
        With these terms.
    dict of str to list of Vote
        ``outside``, ``estimate`` and ``captured`` → the logs that each rests on.
    """
    logs = list(starts)
    votes = {
        "outside": outside_votes(logs, rows, fit),
        "estimate": _graph_votes(logs, lambda start: start.graph_estimate, taken=True),
        "captured": _graph_votes(logs, lambda start: start.log.graphs, taken=False),
    }
    terms = {name: _by_engine(chosen) for name, chosen in votes.items()}
    found = replace(fit, outside=terms["outside"], estimate=terms["estimate"], captured=terms["captured"])
    return found, votes


def _by_engine(votes: list[Vote]) -> dict[str, dict[str, Spread]]:
    engines = sorted({vote.engine for vote in votes})
    return {engine: spreads_of(vote for vote in votes if vote.engine == engine) for engine in engines}


def left_out_sources(
    starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit
) -> dict[str, MemoryFit]:
    """Fit these terms and the interval of the weights without each source in turn, older rows of it included.

    Parameters
    ----------
    starts : iterable of LoggedStart
        The logs.
    rows : iterable of MemoryObservation
        Older rows.
    fit : MemoryFit
        The other terms.

    Returns
    -------
    dict of str to MemoryFit
        Source → the fit that has not seen it.
    """
    logs = list(starts)
    _, votes = launch_terms(logs, rows, fit)
    loads = loaded_votes(logs)
    found = {}
    for origin in sorted({one.origin for one in logs}):
        terms = {name: _by_engine([vote for vote in chosen if vote.origin != origin]) for name, chosen in votes.items()}
        loaded = {engine: share_without(chosen, origin) for engine, chosen in loads.items()}
        found[origin] = replace(
            fit,
            outside=terms["outside"],
            estimate=terms["estimate"],
            captured=terms["captured"],
            loaded={engine: share for engine, share in loaded.items() if share is not None},
        )
    return found


def fit_starts(
    rows: list[MemoryObservation], starts: Iterable[LoggedStart] | None = None
) -> tuple[MemoryFit, dict[str, list[str]]]:
    """Fit all memory terms.

    Parameters
    ----------
    rows : list of MemoryObservation
        Single lines of logs.
    starts : iterable of LoggedStart, optional
        Whole start-up logs; those that ship by default.

    Returns
    -------
    MemoryFit
        The terms.
    dict of str to list of str
        Rows and logs that each term rests on.

    Raises
    ------
    SpecError
        If a term has no observation.
    """
    base, used = fit_memory(rows)
    logs = start_up_logs() if starts is None else list(starts)
    loaded, loads = loaded_shares(logs)
    used |= {f"loaded.{engine}": ids for engine, ids in loads.items()}
    fitted, votes = launch_terms(logs, [row for row in rows if row.used], replace(base, loaded=loaded))
    for name, chosen in votes.items():
        for engine, kinds in getattr(fitted, name).items():
            for kind in kinds:
                counted = (vote for vote in chosen if vote.engine == engine and kind in vote.classes)
                used[f"{name}.{engine}.{kind}"] = [vote.id for vote in counted]
    return fitted, used


def write_memory_fit(path: str | Path | None = None) -> Path:
    """Fit and write `calibration/fits/memory.toml`.

    Parameters
    ----------
    path : path, optional
        Another file.

    Returns
    -------
    Path
        The file written.
    """
    file = Path(path) if path is not None else data_folder("calibration") / "fits" / "memory.toml"
    write_atomically(file, fit_text(*fit_starts(observations())))
    return file
