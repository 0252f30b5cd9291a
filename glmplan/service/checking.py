"""Compare a record that a person dropped on the page with predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from glmplan.errors import SpecError
from glmplan.io.runs.record import Run
from glmplan.measure.predicted_steps import Compared, consistent

__all__ = ["checked_record"]

#: metrics that are compared, those of a person first
_METRICS = (
    "output_tokens_per_s", "tpot_mean_ms", "ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms", "prefill_tokens_per_s",
    "kv_pool_tokens", "weights_gib_per_accelerator",
)  # fmt: skip


def checked_record(text: str, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runs of a file, each metric beside its prediction.

    A record of `glmplan validate` that holds a comparison keeps it, with its causes; results of other tools, startup
    logs and tables of runs are imported and predicted. `facts` fill empty columns.
    """
    return _own_record(text) or _imported(text, name, facts)


def _own_record(text: str) -> dict[str, Any] | None:
    """Return the comparison in a record of `glmplan validate`."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict) or not {"steps", "facts", "plan"} <= set(record):
        return None
    compared = record.get("compared")
    if not compared:
        message = "is a record without predictions: run glmplan validate with the model and --on"
        raise SpecError(message, field="text")
    figures = [{**one, "run": f"{one['level']:g}"} for one in compared["figures"]]
    judged = _summed(figures, consistent=bool(compared["consistent"]))
    causes = compared.get("causes", [])
    return {"kind": "glmplan validate", "runs": len(record["steps"]), "problems": [], "causes": causes, **judged}


def _imported(text: str, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    import csv
    import io

    import pandas as pd

    from glmplan.io.runs.importers import import_text
    from glmplan.io.runs.ledger import with_known_names
    from glmplan.io.runs.table import runs_of_frame
    from glmplan.prediction.table import predict_runs

    if {"id", "model"} <= set(text.partition("\n")[0].strip().split(",")):
        kind, problems = "table of runs", []
        frame = pd.DataFrame(csv.DictReader(io.StringIO(text), restval=""))
        for column, value in facts.items():
            frame[column] = frame[column].replace("", str(value)) if column in frame else str(value)
    else:
        found = import_text(text, name=name, facts={"campaign": "page", "source": name or "page", **facts})
        kind, problems, frame = found.kind, [str(one) for one in found.problems], pd.DataFrame(found.rows)
    if frame.empty:
        raise SpecError("holds no run that can be compared", field="text")
    for column in ("model", "accelerator"):
        if column not in frame or (frame[column].astype(str).str.strip() == "").any():
            raise SpecError("is not in the file: choose it", field=column)
    rows = list(with_known_names(runs_of_frame(frame)))
    pairs: list[tuple[str, Compared]] = []
    measured = frame.to_dict("records")
    for run, cells, row in zip(rows, measured, predict_runs(rows, measured=True), strict=True):
        if row.error:
            problems.append(f"{run.id}: {row.error}")
        pairs += [(run.id, one) for one in _compared(run, cells, row.figures)]
    judged = _summed([_row(name, one) for name, one in pairs], consistent=consistent([one for _, one in pairs]))
    return {"kind": kind, "runs": len(rows), "problems": problems[:20], "causes": [], **judged}


def _compared(run: Run, cells: Mapping[Any, Any], predicted: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield each metric of a run beside its prediction."""
    for metric in _METRICS:
        one = predicted.get(metric)
        measured = _number(cells.get(metric))
        if one is None or not one.value or measured <= 0:
            continue
        yield Compared(float(run.concurrency or 1), metric, measured, one.value, one.low, one.high)


def _row(run: str, one: Compared) -> dict[str, Any]:
    """Return a metric as a record."""
    names = ("level", "metric", "measured", "predicted", "low", "high", "difference", "verdict", "inside")
    return {"run": run, **{name: getattr(one, name) for name in names}}


def _number(cell: object) -> float:
    """Return a cell as a number; 0 if it has none."""
    try:
        found = float(str(cell))
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def _summed(figures: list[dict[str, Any]], *, consistent: bool) -> dict[str, Any]:
    """Return the compared metrics with the verdict over all of them."""
    outside = [one for one in figures if not one["inside"]]
    if not figures:
        verdict = "nothing_compared"
    elif consistent:
        verdict = "as_predicted"
    else:
        slow = sum(_slower(one) for one in outside)
        verdict = "slower" if slow > len(outside) / 2 else "faster"
    return {"verdict": verdict, "outside": len(outside), "figures": figures}


def _slower(one: Mapping[str, Any]) -> bool:
    """Return True if a measured metric is worse than predicted."""
    rate = not str(one["metric"]).endswith("_ms")
    return bool((one["measured"] < one["predicted"]) == rate)
