"""Start-up logs of engines that ship with glmplan: what each launch was told, and what it said of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glmplan.errors import SpecError
from glmplan.facts.files import read_rows
from glmplan.facts.folders import data_folder
from glmplan.readers.runs.importers.startup import StartupLog
from glmplan.units import GIB

__all__ = ["LoggedStart", "start_up_logs"]


@dataclass(frozen=True, slots=True)
class LoggedStart:
    """One engine start of `calibration/memory/start-up-logs.csv`.

    Attributes
    ----------
    id, source : str
        Name of the row; address of the log, with the commit and the file.
    log : StartupLog
        What the engine was told and what it said, as a reader of the log itself fills it.
    model, weights, accelerator : str or None
        Names of the catalogue; None where it has no such model, or the source does not name the part.
    measured_on : str
        Date of the log; empty where it has none.
    multimodal : bool
        Whether the launch served images; False where it was told not to.
    graphs : bool
        Whether decode steps ran from captured graphs.
    graph_requests : float or None
        Largest batch with a graph, as told (SGLang's ``cuda_graph_max_bs``), [-]
    draft, outside_torch, graph_estimate, total, free : float or None
        Weights of a draft model that the log gives apart; memory outside torch; the engine's estimate of graphs;
        memory of the part; free before weights, [B]
    unstated : frozenset of str
        Settings that somebody may have set and the source does not tell, as in `glmplan.prediction.settings.Settings`;
        what is empty in a whole log was left to the engine, for engines print what they are told.
    not_scored : str
        Why no prediction is held against it; empty where one is.
    note : str
        Anything else.
    """

    id: str
    source: str
    log: StartupLog
    model: str | None
    weights: str | None
    accelerator: str | None
    measured_on: str
    multimodal: bool
    graphs: bool
    graph_requests: float | None
    draft: float | None
    outside_torch: float | None
    graph_estimate: float | None
    total: float | None
    free: float | None
    unstated: frozenset[str]
    not_scored: str
    note: str

    @property
    def origin(self) -> str:
        """The repository or thread: all logs of one origin have one vote together."""
        return self.source.split(" ")[0]


#: column → field of `StartupLog`, numbers [-] and [token]
_NUMBERS = {
    "memory_fraction": "memory_utilization",
    "max_model_len": "max_context",
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "max_batched_tokens",
    "pool_tokens": "kv_tokens",
}
#: column [GiB] → field of `StartupLog` [B]
_BYTES = {"weights_gib": "weights", "pool_gib": "kv_pool", "graphs_gib": "graphs", "activation_gib": "activations"}
#: column → field of `StartupLog`, text
_TEXT = {"engine_version": "version", "checkpoint": "model", "kv_cache": "kv_cache", "moe_backend": "moe_backend"}
_LAYOUT = ("tp", "pp", "dp", "ep", "dcp")


def start_up_logs(path: str | Path | None = None) -> list[LoggedStart]:
    """Read the start-up logs.

    Parameters
    ----------
    path : path, optional
        A file of the same form; the one in `calibration` by default.

    Returns
    -------
    list of LoggedStart
        All rows, also those that are not scored.

    Raises
    ------
    SpecError
        If a row has no source or a number cannot be read: names file, row, column and value.

    Examples
    --------
    >>> found = start_up_logs()
    >>> len(found), {one.log.engine for one in found} == {"vllm", "sglang"}
    (99, True)
    """
    file = Path(path) if path is not None else data_folder("calibration") / "memory" / "start-up-logs.csv"
    return [_start(row, file) for row in read_rows(file)]


def _start(row: dict[str, str], file: Path) -> LoggedStart:
    if not row["source"]:
        raise SpecError("has no source", file=file, field=row["id"])

    def number(column: str) -> float | None:
        try:
            return float(row[column]) if row[column] else None
        except ValueError:
            raise SpecError("is not a number", file=file, field=f"{row['id']}, {column}", value=row[column]) from None

    def size(column: str) -> float | None:
        found = number(column)
        return None if found is None else found * GIB

    log = StartupLog(row["engine"], speculative=None if row["speculative"] in ("", "none") else row["speculative"])
    for column, name in _TEXT.items():
        setattr(log, name, row[column] or None)
    for name in _LAYOUT:
        degree = number(name)
        setattr(log, name, None if degree is None else int(degree))
    for column, name in _NUMBERS.items():
        setattr(log, name, number(column))
    for column, name in _BYTES.items():
        setattr(log, name, size(column))
    log.accelerator = row["accelerator"] or None
    return LoggedStart(
        id=row["id"],
        source=row["source"],
        log=log,
        model=row["model"] or None,
        weights=row["weights"] or None,
        accelerator=row["accelerator"] or None,
        measured_on=row["measured_on"],
        multimodal=row["multimodal"] != "off",
        graphs=row["cuda_graphs"] != "no",
        graph_requests=number("graph_requests"),
        draft=size("draft_gib"),
        outside_torch=size("outside_torch_gib"),
        graph_estimate=size("graph_estimate_gib"),
        total=size("total_gib"),
        free=size("free_gib"),
        unstated=frozenset(row["unstated"].split()),
        not_scored=row["not_scored"],
        note=row["note"],
    )
