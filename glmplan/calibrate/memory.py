"""Fit of the memory terms that single lines of logs show: driver, context, CUDA graphs, what engines take beyond.

The observations are lines of engine start-up logs, one row each, with their source
(`calibration/memory/engine-logs.csv`). A term is the mean of its observations; its spread is their standard deviation,
never below a floor for what one observation cannot show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from glmplan.errors import SpecError
from glmplan.facts.files import read_rows
from glmplan.facts.folders import data_folder
from glmplan.physics.memory.observed import MemoryFit, Spread
from glmplan.physics.memory.ranks import RankMemory
from glmplan.physics.points import Layout
from glmplan.units import GIB

__all__ = [
    "MemoryObservation",
    "fit_memory",
    "fit_text",
    "observations",
    "pool_remainder",
    "row_memory",
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

    Parameters
    ----------
    path : path, optional
        A file of the same form; the one in `calibration` if not given.

    Returns
    -------
    list of MemoryObservation
        All rows, also those that are not fitted to.

    Raises
    ------
    SpecError
        If a row has no source or a number cannot be read.

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

    Parameters
    ----------
    row : MemoryObservation
        A row of kind ``pool``.
    version : str, optional
        Another version of the engine than the row's.

    Returns
    -------
    RankMemory
        The ranks.

    Raises
    ------
    SpecError
        If the row names a model or part that is not in the catalogue.

    Examples
    --------
    >>> row = next(row for row in observations() if row.id == "pool-glm5-sglang")
    >>> round(float(row_memory(row).weights[0]) / 2**30)
    57
    """
    from glmplan.facts.catalogue.accelerators import load_accelerator
    from glmplan.facts.catalogue.models import load_model
    from glmplan.physics.blocks.storage import uniform_checkpoint
    from glmplan.physics.memory import MemorySettings, rank_memory

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


def pool_remainder(row: MemoryObservation, fit: MemoryFit) -> float:
    """What the engine of one row took beyond weights, activations, context and, where it counts them, graphs.

    Parameters
    ----------
    row : MemoryObservation
        A row of kind ``pool``.
    fit : MemoryFit
        The other terms.

    Returns
    -------
    float
        [B]; measured weights and pool bytes stand in for computed ones where the row has them.

    Raises
    ------
    SpecError
        If the row names a model or part that is not in the catalogue.

    Examples
    --------
    >>> from glmplan.physics.memory.observed import load_memory_fit
    >>> row = next(row for row in observations() if row.id == "pool-glm5-sglang")
    >>> abs(pool_remainder(row, load_memory_fit())) < 2**30
    True
    """
    from glmplan.facts.catalogue.accelerators import load_accelerator
    from glmplan.physics.memory import kv_pool, part_memory

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
    """Fit the terms that rest on single lines of logs; `glmplan.calibrate.memory_starts` adds those of whole starts.

    Parameters
    ----------
    rows : list of MemoryObservation
        Observations; those with ``used`` no are left out.

    Returns
    -------
    MemoryFit
        The terms.
    dict of str to list of str
        Rows that each term rests on.

    Raises
    ------
    SpecError
        If a term has no observation.

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

    Parameters
    ----------
    fit : MemoryFit
        The terms.
    used : dict of str to list of str
        Rows that each term rests on.

    Returns
    -------
    str
        The file.

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
