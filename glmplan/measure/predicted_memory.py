"""From a startup log to the prediction of the same start, as far as model and machine are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmplan.measure.beside import MemoryLine, MemoryPrediction, beside
from glmplan.measure.importers.startup import StartupLog

__all__ = ["StartupComparison", "parts_of", "predict_startup"]

_LAYOUT = ("tp", "pp", "dp", "ep", "dcp")


@dataclass(frozen=True, slots=True)
class StartupComparison:
    """What an engine logged beside what is predicted.

    Parameters
    ----------
    lines : list of MemoryLine
        Quantities.
    notes : list of str
        What was assumed, and the layout and backends the log names.
    why_not : str
        Why there is no prediction; empty if there is one.
    """

    lines: list[MemoryLine]
    notes: list[str] = field(default_factory=list)
    why_not: str = ""


def parts_of(on: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that naming a machine fills.

    Parameters
    ----------
    on : str
        A name such as `8x rtx-pro-6000-ws`, or a host's name.
    row : mapping
        The run; what it knows wins.

    Returns
    -------
    dict
        `accelerator`, and `accelerator_count` where the name says it.

    Examples
    --------
    >>> parts_of("8x rtx-pro-6000-ws", {})
    {'accelerator': 'rtx-pro-6000-ws', 'accelerator_count': 8}
    """
    count, times, name = on.partition("x")
    if times and count.strip().isdigit():
        return {"accelerator": name.strip(" :-"), "accelerator_count": int(count)}
    return {"accelerator": on}


def predict_startup(log: StartupLog, *, model: str | None = None, on: str | None = None) -> StartupComparison:
    """Predict the memory of an engine start and put it beside the log.

    Parameters
    ----------
    log : StartupLog
        What the engine said.
    model : str, optional
        The model; by default the one the log names.
    on : str, optional
        The machine; by default the device the log names.

    Returns
    -------
    StartupComparison
        Lines with both sides, or the logged side and why there is no other.
    """
    said = [
        f"{what}: {value}"
        for what, value in (
            ("engine", " ".join(filter(None, (log.engine, log.version)))),
            ("model", log.model),
            ("layout", " ".join(f"{n}{getattr(log, n)}" for n in _LAYOUT if getattr(log, n))),
            ("KV cache", log.kv_cache),
            ("attention", log.attention_backend),
            ("experts", log.moe_backend),
        )
        if value
    ]
    name, part = model or log.model, on or log.accelerator
    if name is None or part is None:
        missing = " and ".join(w for w, v in (("--model", name), ("--on", part)) if v is None)
        return StartupComparison(beside(log, MemoryPrediction()), said, f"the log does not tell; give {missing}")
    return StartupComparison(beside(log, MemoryPrediction()), said, "")
