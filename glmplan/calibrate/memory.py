"""Fit of the memory terms that single lines of logs show: driver, context, CUDA graphs, what engines take beyond.

The observations are lines of engine start-up logs, one row each, with their source
(`calibration/memory/engine-logs.csv`). A term is the mean of its observations; its spread is their standard deviation,
never below a floor for what one observation cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import data_folder, read_rows, write_atomically
from glmplan.costs.memory.activations import tower_is_known
from glmplan.costs.memory.pool import kv_pool, launch_kinds
from glmplan.costs.memory.ranks import RankMemory
from glmplan.costs.memory.settings import LoadedShare, MemoryFit, MemorySettings, PartMemory, Spread, part_memory
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.importers.startup_logs import LoggedStart, start_up_logs
from glmplan.prediction.from_row import checkpoint_of, model_of
from glmplan.prediction.start_memory import launched
from glmplan.units import GIB, Bytes, Ratio

__all__ = [
    "MemoryObservation",
    "Vote",
    "fit_memory",
    "fit_starts",
    "fit_text",
    "launch_terms",
    "left_out_sources",
    "loaded_share",
    "loaded_shares",
    "loaded_votes",
    "logged_over_computed",
    "observations",
    "outside_of",
    "outside_of_row",
    "outside_votes",
    "pool_remainder",
    "row_memory",
    "share_without",
    "spreads_of",
    "write_memory_fit",
]


#: least standard deviation of a term: one launch says nothing about another image, driver or kernel choice [B]
_FLOOR = {"driver": 0.05 * GIB, "context": 0.3 * GIB, "graph": 0.02 * GIB, "remainder": 0.5 * GIB}


@dataclass(frozen=True, slots=True)
class MemoryObservation:
    """One row: text as read, numbers where there are any, [GiB] or [-].

    Attributes
    ----------
    id, kind, source : str
        Name; ``driver``, ``context``, ``graphs``, ``estimate`` (of graphs before they are captured), ``pool`` or
        ``outside`` (what a log says of memory outside torch besides the context); where it is from.
    used : bool
        Whether it is fitted to.
    text : dict of str to str
        Columns of text.
    number : dict of str to float
        Columns of numbers; columns that are empty are not in it.
    """

    id: str
    kind: str
    source: str
    used: bool
    text: dict[str, str]
    number: dict[str, float]


_TEXT = ("model", "checkpoint", "kv", "part", "mtp", "engine", "version", "link", "graphs_taken", "note")


def observations(path: str | Path | None = None) -> list[MemoryObservation]:
    """Read the observations.

    - `path`: A file of the same form; the one in `calibration` if not given.
    - Returns: All rows, also those that are not fitted to.

    Examples
    --------
    >>> sum(row.kind == "pool" for row in observations()) > 5
    True
    """
    file = Path(path) if path is not None else data_folder("calibration") / "memory" / "engine-logs.csv"
    found = []
    for row in read_rows(file):
        if not row.get("source"):
            raise SpecError("has no source", file=file, field=row.get("id"))
        numbers = {}
        for name, value in row.items():
            if value and name not in (*_TEXT, "id", "kind", "source", "used"):
                try:
                    numbers[name] = float(value)
                except ValueError:
                    raise SpecError("is not a number", file=file, field=name, value=value) from None
        text = {name: row[name] for name in _TEXT if row.get(name)}
        found.append(MemoryObservation(row["id"], row["kind"], row["source"], row["used"] == "yes", text, numbers))
    return found


def _spread(values: list[float], floor: float) -> Spread:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return Spread(mean, max(deviation, floor), len(values))


def row_memory(row: MemoryObservation, *, version: str | None = None) -> RankMemory:
    """What the ranks of one row hold.

    `version`: Another version of the engine than the row's.

    Examples
    --------
    >>> row = next(row for row in observations() if row.id == "pool-glm5-sglang")
    >>> round(float(row_memory(row).weights[0]) / 2**30)
    57
    """
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.models import load_model
    from glmplan.costs.blocks.stack import uniform_checkpoint
    from glmplan.costs.memory import MemorySettings, rank_memory

    number, text = row.number, row.text
    model = load_model(text["model"])
    settings = MemorySettings(
        engine=text["engine"],
        version=version or text.get("version"),
        accelerator=text["part"],
        fraction=number["fraction"],
        token_budget=number.get("token_budget"),
        max_requests=number.get("max_requests"),
        graphs=number.get("graphs"),
        longest=number.get("max_model_len"),
        graphs_taken=False if text.get("graphs_taken") == "no" else None,
    )
    checkpoint = model.checkpoint(text["checkpoint"]) or uniform_checkpoint(text["checkpoint"])
    return rank_memory(
        model,
        checkpoint,
        layout=Layout(tp=int(number["tp"]), dcp=int(number.get("dcp", 1))),
        kv=text["kv"],
        settings=settings,
        mtp=text["mtp"] == "yes",
        memory=float(load_accelerator(text["part"]).need("memory")),
    )


def pool_remainder(row: MemoryObservation, fit: MemoryFit) -> Bytes:
    """What the engine of one row took beyond weights, activations, context and, where it counts them, graphs.

    Returns: ; measured weights and pool bytes stand in for computed ones where the row has them.

    Examples
    --------
    >>> from glmplan.costs.memory.settings import load_memory_fit
    >>> row = next(row for row in observations() if row.id == "pool-glm5-sglang")
    >>> abs(pool_remainder(row, load_memory_fit())) < 2**30
    True
    """
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.costs.memory import kv_pool, part_memory

    number, text = row.number, row.text
    part = part_memory(load_accelerator(text["part"]), fit=fit)
    memory = row_memory(row)
    bare = MemoryFit(fit.driver, fit.context, fit.graph, {"pooled": Spread(0.0, 0.0, 0)})
    pool = float(kv_pool(memory, part, fit=bare).bytes[0])
    if "weights_gib" in number:
        pool += float(memory.weights[0]) - number["weights_gib"] * GIB
    if "context_gib" in number:
        # the rule takes the fraction of what is free, so an observed context counts with the fraction
        pool += number["fraction"] * (fit.context[part.link].mean - number["context_gib"] * GIB)
    seen = number["pool_gib"] * GIB if "pool_gib" in number else number["pool_tokens"] * float(memory.per_token[0])
    return pool - seen


def fit_memory(rows: list[MemoryObservation]) -> tuple[MemoryFit, dict[str, list[str]]]:
    """Fit the terms that rest on single lines of logs; `glmplan.calibrate.memory` adds those of whole starts.

    `rows`: Observations; those with ``used`` no are left out.

    Notes
    -----
    An engine with fewer than two pools takes the pooled remainder of all engines, with its spread.

    Examples
    --------
    >>> fitted, used = fit_memory(observations())
    >>> fitted.driver.count == len(used["driver"])
    True
    """
    taken = [row for row in rows if row.used]
    used: dict[str, list[str]] = {}

    def term(name: str, kind: str, chosen: list[tuple[MemoryObservation, float]]) -> Spread:
        if not chosen:
            raise SpecError("has no observation to fit to", field=name)
        used[name] = [row.id for row, _ in chosen]
        return _spread([value for _, value in chosen], _FLOOR[kind])

    driver = [(r, (r.number["listed_gib"] - r.number["total_gib"]) * GIB) for r in taken if r.kind == "driver"]
    contexts = {
        link: [row for row in taken if row.kind == "context" and row.text["link"] == link]
        for link in ("single", "pcie", "nvlink")
    }
    graphs = [(r, r.number["graphs_gib"] / r.number["graphs"] * GIB) for r in taken if r.kind == "graphs"]
    base = MemoryFit(
        driver=term("driver", "driver", driver),
        context={
            link: term(f"context.{link}", "context", [(r, r.number["context_gib"] * GIB) for r in chosen])
            for link, chosen in contexts.items()
        },
        graph=term("graph", "graph", graphs),
        remainder={},
    )
    pools = [(row, pool_remainder(row, base)) for row in taken if row.kind == "pool"]
    remainder = {}
    for engine in sorted({row.text["engine"] for row, _ in pools}):
        chosen = [(row, value) for row, value in pools if row.text["engine"] == engine]
        if len(chosen) > 1:
            remainder[engine] = term(f"remainder.{engine}", "remainder", chosen)
    remainder["pooled"] = term("remainder.pooled", "remainder", pools)
    return MemoryFit(base.driver, base.context, base.graph, remainder), used


def fit_text(fit: MemoryFit, used: dict[str, list[str]]) -> str:
    """Write a fit as TOML.

    Examples
    --------
    >>> print(fit_text(*fit_memory(observations())).splitlines()[0])
    # Written by `glmplan.calibrate.memory`; observations: calibration/memory
    """
    terms = {"driver": fit.driver, "graph": fit.graph}
    terms |= {f"context.{link}": spread for link, spread in fit.context.items()}
    terms |= {f"remainder.{engine}": spread for engine, spread in fit.remainder.items()}
    for name in ("outside", "estimate", "captured"):
        for engine, kinds in getattr(fit, name).items():
            terms |= {f"{name}.{engine}.{kind}": spread for kind, spread in sorted(kinds.items())}
    lines = ["# Written by `glmplan.calibrate.memory`; observations: calibration/memory"]
    for name, spread in terms.items():
        rows = ", ".join(f'"{row}"' for row in used[name])
        lines += ["", f"[{name}]", f'mean = "{spread.mean / GIB:.4f} GiB"', f'sd = "{spread.sd / GIB:.4f} GiB"']
        lines += [f"count = {spread.count}", f"rows = [{rows}]"]
    for engine, share in fit.loaded.items():
        rows = ", ".join(f'"{row}"' for row in used[f"loaded.{engine}"])
        lines += ["", f"[loaded.{engine}]", f"share = {share.share:.4f}"]
        lines += [f"count = {share.count}", f"rows = [{rows}]"]
    return "\n".join(lines) + "\n"


# Fit of how far the weights that an engine logs lie from the computed ones, one vote for each source.
#
# Computed weights hold every tensor with its padding and rounding (`glmplan.costs.memory.weights`); what is left is
# what
# loaders and conversions leave behind. It is no term of its own: it is the interval of the weights.

#: of the logs, each source with one vote, that the interval holds [-]
_INSIDE = 0.9
#: fewer sources say nothing about tails [-]
_LEAST_SOURCES = 3
#: least share: logs round to 0.01 GiB, and the longest context of a variant may be another [-]
_FLOOR_MEMORY_WEIGHTS = 0.001


def logged_over_computed(start: LoggedStart) -> Ratio | None:
    """Share by which logged weights exceed the computed ones.

    Returns: ; None for logs without weights, for parts with one memory for CPU and accelerator, and for checkpoints
      of which no publisher says the formats.
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

    `by_source`: Of each source, the shares by which its logged weights exceed the computed ones.

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
    return LoadedShare(max(float(off[order][place]), _FLOOR_MEMORY_WEIGHTS), len(sources))


def loaded_shares(starts: Iterable[LoggedStart]) -> tuple[dict[str, LoadedShare], dict[str, list[str]]]:
    """Fit the interval of the weights of each engine.

    - `dict of str to LoadedShare`: Engine → its interval; engines with fewer than three sources are left out.
    - `dict of str to list of str`: Engine → the logs that it rests on.
    """
    votes = loaded_votes(starts)
    found = {engine: share for engine in votes if (share := share_without(votes[engine])) is not None}
    return found, {engine: [one for _, one, _ in votes[engine]] for engine in found}


def share_without(votes: Iterable[tuple[str, str, float]], origin: str = "") -> LoadedShare | None:
    """The interval of the weights of one engine, a source left out.

    `votes`: Source, log and share, as `loaded_votes` finds them.

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

    Returns: Engine, sorted → source, log and the share by which its weights exceed the computed ones.
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


# Fit of what an engine of known trial run (vLLM) takes beside it and its weights, from the start-up logs.
#
# The trial run is derived from the engine's source (`glmplan.costs.memory.activations`); what a log then lacks of its
# share of the memory is outside torch (libraries, communicators) or a work space that no formula gives. Each source has
# one vote, the median of its logs; a term is the median of the votes. Its spread is that of the votes about it, held
# together with the ordinary spread of all kinds of launches where votes are few, and of the logs within one source; a
# kind of launch with a single source has the spread of all launches on several accelerators.

_NOTHING = Spread(0.0, 0.0, 0)
#: versions of which the trial runs differ most [-]
_APART = ("0.16.0", "0.17.0")
#: votes that the spread of all terms counts for in each [-]
_SHARED = 2.0
#: standard deviation of a normal variable over its median absolute deviation [-]
_MAD = 1.4826
#: least standard deviation: two launches of one image on one machine differ by as much [B]
_FLOOR_MEMORY_STARTS = 0.1 * GIB


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

    - `fit`: The memory of parts that does not count as listed, and the estimate of graphs where the log does not tell
      it.
    - Returns: None for other engines, parts that are no CUDA devices, models whose image tower is tried and of
      unknown shapes, and logs that lack the pool, the weights or the engine's estimate of graphs.
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

    - `row`: A row of kind ``outside``, or ``pool`` of an engine whose trial run is known.
    - Returns: None for other rows, for versions that take an estimate of graphs which the row does not tell, and
      where the version is taken by date and the trial run differs between versions.
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

    Returns: Logs of which the model or the part is not known are left out.
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

    Returns: Kind of launch → median of the votes [B], their spread and number.

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
        found[name] = Spread(
            float(np.median(medians[name])), max(math.sqrt(between + within), _FLOOR_MEMORY_STARTS), len(by)
        )
    wide = found.get("several", _NOTHING).sd
    # one source says nothing of how far the next one is
    return {name: replace(one, sd=max(one.sd, wide)) if one.count == 1 else one for name, one in found.items()}


def launch_terms(
    starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit
) -> tuple[MemoryFit, dict[str, list[Vote]]]:
    """Fit all terms of the start of engines whose trial run is known.

    `dict of str to list of Vote`: ``outside``, ``estimate`` and ``captured`` → the logs that each rests on.
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

    Returns: Source → the fit that has not seen it.
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

    - `starts`: Whole start-up logs; those that ship by default.
    - `dict of str to list of str`: Rows and logs that each term rests on.
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
    """Fit and write `calibration/fits/memory.toml`."""
    file = Path(path) if path is not None else data_folder("calibration") / "fits" / "memory.toml"
    write_atomically(file, fit_text(*fit_starts(observations())))
    return file
