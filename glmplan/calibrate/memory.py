"""Fit the memory terms, and the interval of the weights.

Driver, context, CUDA graphs and engine remainder. Single log lines (`calibration/memory/engine-logs.csv`, one row each
with its source) give driver, context, graphs and remainder: the mean of the observations, with their standard
deviation, never below a floor for what one launch cannot show.

The interval of the weights is logged over computed weights, one vote per source. Computed weights
(`glmplan.costs.memory.weights`) hold every tensor with padding and rounding; the rest is what loaders and conversions
leave behind. It widens the weights and is no term of its own.

Whole start-up logs of an engine with a known profiling run (vLLM; derived from its source in
`glmplan.costs.memory.activations`) give the memory outside torch: libraries, communicators, work spaces without a
formula. Each source votes with the median of its logs; a term is the median of the votes. Its spread combines that of
the votes, the common spread of all launch kinds where votes are few, and that within a source. A launch kind with a
single source has the spread of all multi-GPU launches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import data_folder, read_rows, read_toml, write_atomically
from glmplan.catalog.schema.accelerator import Accelerator
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
    "is_held_out_setting",
    "later_starts",
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
    "rare_starts",
    "row_memory",
    "setting_of",
    "share_without",
    "spreads_of",
    "starts_to_fit",
    "write_memory_fit",
]


#: minimum standard deviation of a term: one launch does not show another image, driver or kernel choice [B]
_FLOOR = {"driver": 0.05 * GIB, "context": 0.3 * GIB, "graph": 0.02 * GIB, "remainder": 0.5 * GIB}


@dataclass(frozen=True, slots=True)
class MemoryObservation:
    """One row of the ledger; empty number columns are absent."""

    id: str
    kind: str  # driver, context, graphs, estimate (before capture), pool, outside (of torch, with context)
    source: str
    used: bool  # False: not fitted
    text: dict[str, str]
    number: dict[str, float]  # [GiB] or [-]


_TEXT = ("model", "checkpoint", "kv", "part", "mtp", "engine", "version", "link", "graphs_taken", "note")


def observations(path: str | Path | None = None) -> list[MemoryObservation]:
    """Return all rows of a ledger, also those that are not fitted.

    Examples
    --------
    >>> sum(row.kind == "pool" for row in observations()) > 5
    True
    """
    file = Path(path) if path is not None else data_folder("calibration") / "memory" / "engine-logs.csv"
    rows = []
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
        rows.append(MemoryObservation(row["id"], row["kind"], row["source"], row["used"] == "yes", text, numbers))
    return rows


def _spread(values: list[float], floor: float) -> Spread:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return Spread(mean, max(deviation, floor), len(values))


def row_memory(row: MemoryObservation, *, version: str | None = None) -> RankMemory:
    """Return the memory of one row's ranks, optionally for another version.

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
    """Return an engine's memory beyond weights, activations, context, graphs.

    Graphs count only for engines that count them. Measured weights and pool bytes replace computed ones.

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
        # the rule takes the fraction of free memory: an observed context counts with the fraction
        pool += number["fraction"] * (fit.context[part.link].mean - number["context_gib"] * GIB)
    seen = number["pool_gib"] * GIB if "pool_gib" in number else number["pool_tokens"] * float(memory.per_token[0])
    return pool - seen


def fit_memory(rows: list[MemoryObservation]) -> tuple[MemoryFit, dict[str, list[str]]]:
    """Return the terms fitted to single log lines, and their rows.

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
        for link in ("single", "pcie", "nvlink", "unified")
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
    """Return a fit as TOML.

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


#: share of the logs, each source with one vote, inside the interval [-]
_INSIDE = 0.9
#: fewer sources do not determine tails [-]
_LEAST_SOURCES = 3
#: minimum share: logs round to 0.01 GiB, and a variant may have another longest context [-]
_FLOOR_MEMORY_WEIGHTS = 0.001


def logged_over_computed(start: LoggedStart) -> Ratio | None:
    """Return the relative excess of logged over computed weights.

    None for logs without weights, unified memory, and checkpoints of unknown formats.
    """
    log = start.log
    if start.not_scored or log.weights is None or start.model is None:
        return None
    accelerator = load_accelerator(start.accelerator) if start.accelerator else None
    if accelerator is not None and accelerator.unified_memory:
        return None
    model = model_of(start.model)
    checkpoint = checkpoint_of(model.name, start.weights, None, log.engine, log.model)
    if checkpoint.smaller or checkpoint.larger:
        return None
    memory, _ = launched(log, model, checkpoint, accelerator, graphs=start.graphs)
    computed = memory.weights[0]
    if not memory.settings.rule.draft_in_pool:
        computed = max(float((stage.weight_bytes - stage.weights.get("mtp", 0.0))[0]) for stage in memory.stages)
    return float(log.weights / computed - 1.0)


def loaded_share(by_source: Iterable[Iterable[float]]) -> LoadedShare:
    """Return the share that covers nine of ten logs, one vote per source.

    `by_source` holds the relative excess of each log by source.

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
    index = min(int(np.searchsorted(reached, _INSIDE - 1e-9)), len(off) - 1)
    return LoadedShare(max(float(off[order][index]), _FLOOR_MEMORY_WEIGHTS), len(sources))


def loaded_shares(starts: Iterable[LoggedStart]) -> tuple[dict[str, LoadedShare], dict[str, list[str]]]:
    """Return the weights interval of each engine, and its logs.

    Engines with fewer than three sources are left out.
    """
    votes = loaded_votes(starts)
    shares = {engine: share for engine in votes if (share := share_without(votes[engine])) is not None}
    return shares, {engine: [one for _, one, _ in votes[engine]] for engine in shares}


def share_without(votes: Iterable[tuple[str, str, float]], origin: str = "") -> LoadedShare | None:
    """Return the weights interval of one engine without one source.

    `votes` are source, log and share, as in `loaded_votes`.

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
    """Return engine → source, log and relative excess of its weights, sorted."""
    votes: dict[str, list[tuple[str, str, float]]] = {}
    for start in starts:
        try:
            value = logged_over_computed(start)
        except GlmplanError:
            continue
        if value is not None:
            votes.setdefault(start.log.engine, []).append((start.origin, start.id, value))
    return dict(sorted(votes.items()))


_NOTHING = Spread(0.0, 0.0, 0)
#: the two versions whose profiling runs differ most
_APART = ("0.16.0", "0.17.0")
#: weight, in votes, of the common spread in the spread of each term [-]
_SHARED = 2.0
#: standard deviation of a normal variable over its median absolute deviation [-]
_MAD = 1.4826
#: minimum standard deviation: two launches of one image on one machine differ by as much [B]
_FLOOR_MEMORY_STARTS = 0.1 * GIB


@dataclass(frozen=True, slots=True)
class Vote:
    """Value of one log for a memory term."""

    id: str
    origin: str  # source of the log
    engine: str
    classes: tuple[str, ...]  # launch kinds, the narrowest first
    value: Bytes
    apart: bool = False  # True: votes on its own kind alone, and on no common spread


def _tried(engine: str) -> bool:
    """Return True if the engine's profiling run is known."""
    return engine in memory_engines() and bool(load_memory_rule(engine).profiling)


def outside_of(start: LoggedStart, fit: MemoryFit) -> Vote | None:
    """Return a launch's memory outside weights, profiling run and graphs.

    `fit` gives the part of the memory that does not count as listed, and the graph estimate if the log has none. None
    for other engines, accelerators without CUDA or ROCm, unknown shapes, models that profile an image encoder, and logs
    without pool or weights, or without a graph estimate on CUDA.
    """
    log = start.log
    complete = start.model and start.accelerator and log.kv_pool is not None and log.weights is not None
    if not _tried(log.engine) or start.not_scored or not complete or log.version is None:
        return None
    part, model = load_accelerator(start.accelerator or ""), model_of(start.model or "")
    rocm = _on_rocm(part)
    cuda = (part.compute_capability or "")[:1].isdigit()
    if not (cuda or rocm) or (model.extra_parameters and start.multimodal and not tower_is_known(model)):
        return None
    checkpoint = checkpoint_of(model.name, start.weights, None, log.engine, log.model)
    memory, _ = launched(log, model, checkpoint, part, graphs=start.graphs)
    taken = memory.settings.graphs_in_pool and memory.estimates_graphs and start.graphs
    untold = taken and start.graph_estimate is None
    if memory.settings.rule.profiling_of(log.version, dense=False) is None or (untold and not rocm):
        return None
    bare = replace(fit, outside={log.engine: {"single": _NOTHING, "several": _NOTHING}})
    if not untold:  # no log on ROCm prints the estimate: the one of other launches counts, there and in predictions
        estimate = Spread(start.graph_estimate or 0.0, 0.0, 1)
        bare = replace(bare, estimate={log.engine: {"single": estimate, "several": estimate}})
    seen = part_memory(part, fit=fit)
    if start.total is not None:
        seen = replace(seen, total=start.total)
    computed = float(kv_pool(memory, seen, fit=bare).bytes[0]) + float(memory.weights[0]) - float(log.weights or 0.0)
    several = int(np.atleast_1d(memory.layout.accelerators)[0]) > 1
    kinds = _counted(seen, several=several, indexed=memory.indexed)
    # libraries and communicators of ROCm say nothing of those of CUDA
    return Vote(
        start.id, setting_of(start) if rocm else start.origin, log.engine, kinds[:1] if rocm else kinds,
        computed - float(log.kv_pool or 0.0), apart=rocm,
    )  # fmt: skip


def _counted(part: PartMemory, *, several: bool, indexed: bool) -> tuple[str, ...]:
    """Return the launch kinds of a log: its own, then the multi-GPU fallbacks."""
    own = launch_kinds(part, several=several, indexed=indexed)[0]
    return (own, "several") if several and part.link != "unified" else (own,)


def outside_of_row(row: MemoryObservation, fit: MemoryFit) -> Vote | None:
    """Return the memory of an older ledger row outside the profiling run.

    Only rows of kind ``outside``, or ``pool`` of an engine with a known profiling run. None for versions that subtract
    a graph estimate that the row lacks, and for versions known by date only whose profiling runs differ.
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
    # the remainder of a row excludes its context, which the engine does not count separately
    context = fit.context[seen.link if several else "single"].mean
    kinds = _counted(seen, several=several, indexed=memory.indexed)
    return Vote(row.id, origin, text["engine"], kinds, pool_remainder(row, fit) + context)


def outside_votes(starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit) -> list[Vote]:
    """Return the votes of all launches with known model and accelerator."""
    votes: list[Vote | None] = [outside_of_row(row, fit) for row in rows]
    for start in starts:
        try:
            votes.append(outside_of(start, fit))
        except GlmplanError:
            continue
    return [vote for vote in votes if vote is not None]


def _graph_votes(
    starts: Iterable[LoggedStart], told: Callable[[LoggedStart], float | None], *, taken: bool
) -> list[Vote]:
    """Return the votes on graph memory; negative values are ignored.

    A negative value is memory freed during capture. With ``taken`` only releases count that subtract their estimate
    from the pool: older ones print another quantity.
    """
    votes = []
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
        votes.append(Vote(start.id, start.origin, log.engine, kinds, value, apart=taken and kinds[0] == "unified"))
    return votes


def _origin(row: MemoryObservation) -> str:
    """Return the repository or thread of a row."""
    return row.source.split(" ")[0] if row.source.startswith("http") else row.source


def spreads_of(votes: Iterable[Vote]) -> dict[str, Spread]:
    """Return median and spread of each launch kind, one vote per source [B]

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
    spreads = {}
    for name, by in by_class.items():
        within = float(np.mean([np.mean((np.array(one) - np.median(one)) ** 2) for one in by.values()]))
        between = (float((off[name] ** 2).sum()) + _SHARED * shared**2) / (len(by) - 1 + _SHARED)
        spreads[name] = Spread(
            float(np.median(medians[name])), max(math.sqrt(between + within), _FLOOR_MEMORY_STARTS), len(by)
        )
    wide = spreads.get("several", _NOTHING).sd
    # one source does not determine the spread between sources
    return {name: replace(one, sd=max(one.sd, wide)) if one.count == 1 else one for name, one in spreads.items()}


def launch_terms(
    starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit
) -> tuple[MemoryFit, dict[str, list[Vote]]]:
    """Return the fit with all start-up terms, and their votes.

    Votes are by ``outside``, ``estimate`` and ``captured``.
    """
    logs, rare = list(starts), rare_starts()
    settings = {start.id: setting_of(start) for start in rare}

    def apart(votes: Iterable[Vote]) -> list[Vote]:
        return [replace(one, origin=settings[one.id], classes=one.classes[:1], apart=True) for one in votes]

    def estimates(starts: Iterable[LoggedStart]) -> list[Vote]:
        return _graph_votes(starts, lambda start: start.graph_estimate, taken=True)

    votes = {
        "outside": outside_votes(logs, rows, fit),
        "estimate": estimates(logs) + apart(estimates(rare)),
        "captured": _graph_votes(logs, lambda start: start.log.graphs, taken=False),
    }
    fitted = replace(fit, estimate=_kinds_apart(votes["estimate"]), captured=_kinds_apart(votes["captured"]))
    votes["outside"] += apart(outside_votes(rare, (), fitted))
    return replace(fitted, outside=_kinds_apart(votes["outside"])), votes


def _kinds_apart(votes: list[Vote]) -> dict[str, dict[str, Spread]]:
    """Return the terms of a quantity; votes apart count in their kind alone."""
    common = _by_engine([vote for vote in votes if not vote.apart])
    rare = {(vote.engine, vote.classes[0]) for vote in votes if vote.apart}
    return {
        engine: common.get(engine, {}) | {kind: one for kind, one in kinds.items() if (engine, kind) in rare}
        for engine, kinds in _by_engine(votes).items()
    }


def _by_engine(votes: list[Vote]) -> dict[str, dict[str, Spread]]:
    engines = sorted({vote.engine for vote in votes})
    return {engine: spreads_of(vote for vote in votes if vote.engine == engine) for engine in engines}


def left_out_sources(
    starts: Iterable[LoggedStart], rows: Iterable[MemoryObservation], fit: MemoryFit
) -> dict[str, MemoryFit]:
    """Return source → fit of these terms and the weights without that source.

    Older rows of the source are left out, too.
    """
    logs = list(starts)
    _, votes = launch_terms(logs, rows, fit)
    loads = loaded_votes(logs)
    fits = {}
    voted = {vote.origin for chosen in votes.values() for vote in chosen}
    for origin in sorted({one.origin for one in logs} | voted):
        left = {name: [vote for vote in chosen if vote.origin != origin] for name, chosen in votes.items()}
        terms = {name: _kinds_apart(chosen) for name, chosen in left.items()}
        loaded = {engine: share_without(chosen, origin) for engine, chosen in loads.items()}
        fits[origin] = replace(
            fit,
            outside=terms["outside"],
            estimate=terms["estimate"],
            captured=terms["captured"],
            loaded={engine: share for engine, share in loaded.items() if share is not None},
        )
    return fits


def rare_starts() -> list[LoggedStart]:
    """Return the later logs on ROCm and unified memory, not the held out.

    The first table has none on several accelerators of the one, and two sources on the other.

    Examples
    --------
    >>> len(rare_starts()) > 77
    True
    """
    later = ((start, load_accelerator(start.accelerator)) for start in starts_to_fit() if start.accelerator)
    return [start for start, part in later if _on_rocm(part) or part.unified_memory]


def _on_rocm(part: Accelerator) -> bool:
    return (part.compute_capability or "").startswith("gfx")


def fit_starts(rows: list[MemoryObservation]) -> tuple[MemoryFit, dict[str, list[str]]]:
    """Return the fit of all memory terms, and rows and logs of each."""
    base, used = fit_memory(rows)
    logs = start_up_logs()
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
    """Fit, write `calibration/fits/memory.toml` and return its path."""
    file = Path(path) if path is not None else data_folder("calibration") / "fits" / "memory.toml"
    write_atomically(file, fit_text(*fit_starts(observations())))
    return file


# Start-up logs collected after the fit of memory, and their settings.
# `calibration/memory/start-up-logs-later.csv` holds many launches of few settings, so each setting (engine, version,
# model, format, accelerator, layout and cache format) has one vote. `held-out.toml` leaves settings out of development
# and of every fit by their hash.


def later_starts() -> list[LoggedStart]:
    """Return the start-up logs of the later table.

    Examples
    --------
    >>> len(later_starts())
    159
    """
    return start_up_logs(data_folder("calibration") / "memory" / "start-up-logs-later.csv")


def starts_to_fit() -> list[LoggedStart]:
    """Return the logs of the later table whose settings are not held out.

    Examples
    --------
    >>> len(starts_to_fit())
    139
    """
    return [start for start in later_starts() if not is_held_out_setting(setting_of(start))]


def setting_of(start: LoggedStart) -> str:
    """Return the setting of a launch, which has one vote.

    Examples
    --------
    >>> setting_of(later_starts()[0])
    'vllm|0.21.0|kimi-k2.5|mxfp4|mi355x|tp4 pp1 dp1 ep1 dcp1|fp8'
    """
    log = start.log
    model = start.model or (log.model or "").rsplit("/", 1)[-1].lower()
    layout = " ".join(f"{name}{getattr(log, name) or 1}" for name in ("tp", "pp", "dp", "ep", "dcp"))
    parts = (log.engine, log.version, model, start.weights, start.accelerator, layout, log.kv_cache or "auto")
    return "|".join(part or "" for part in parts)


@cache
def _held_rule() -> tuple[str, int, int]:
    content = read_toml(data_folder("calibration") / "memory" / "held-out.toml")
    return content["salt"], content["of"], content["remainder"]


def is_held_out_setting(setting: str) -> bool:
    """Return True if a setting is held out of development, by its hash.

    Examples
    --------
    >>> sum(is_held_out_setting(one) for one in {setting_of(start) for start in later_starts()})
    6
    """
    salt, of, remainder = _held_rule()
    digest = hashlib.sha256(f"{salt}|{setting}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % of == remainder
