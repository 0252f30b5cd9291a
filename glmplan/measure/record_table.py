"""The record of a ladder as rows of the measurement tables, as JSON, and back from a journal."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from glmplan.measure.ladder import LadderRecord
from glmplan.measure.promised import Promised
from glmplan.readers.runs.columns import COLUMNS
from glmplan.readers.runs.importers import table_csv

__all__ = ["record_csv", "record_json", "record_rows"]


def record_rows(record: LadderRecord, facts: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the steps of a ladder as measured runs.

    Parameters
    ----------
    record : LadderRecord
        The record.
    facts : mapping, optional
        Columns that neither server nor client knows: `model`, `accelerator`, `weights`, layout.

    Returns
    -------
    list of dict
        One row for each step with at least one finished request; `glmplan predict --runs` and `calibrate --from`
        read them.
    """
    served = record.facts
    about: dict[str, Any] = {
        "campaign": f"validate-{record.started[:10]}",
        "measured_on": record.started[:10] or None,
        "model": record.endpoint.model,
        "checkpoint": served.model,
        "engine": served.engine,
        "engine_version": served.version,
        **served.layout,
        **{key: value for key, value in (facts or {}).items() if value is not None},
    }
    lengths = record.plan.lengths
    rows = []
    outside = record.endpoint.outside
    for step in record.steps:
        if not step.figures.get("num_requests"):
            continue
        name = hashlib.sha256(f"{record.started}{record.endpoint.url}{step.level}".encode()).hexdigest()[:10]
        row = {
            **about,
            **{key: _rounded(value) for key, value in step.figures.items() if key in COLUMNS},
            "id": f"val-{name}",
            "phase": "serving",
            # counted in the steady state: no start-up burst is in these figures
            "protocol": None if record.plan.requests is not None or record.plan.schedules else "steady-closed-loop",
            "shared_prompt": "yes" if lengths.shared >= lengths.input_tokens else None,
            "kv_pool_tokens": None if served.kv_tokens is None else _rounded(served.kv_tokens),
            "running_limit": None if served.max_sequences is None else _rounded(served.max_sequences),
            "trust": "B",
            "unusable": step.unusable or None,
            "source": "glmplan validate",
            "notes": _notes(record, step),
        }
        rows.append({column: outside.plain(row[column]) for column in COLUMNS if row.get(column) is not None})
    return rows


def record_csv(record: LadderRecord, facts: Mapping[str, Any] | None = None) -> str:
    """Return the record as CSV in the column form of the measurement tables.

    Parameters
    ----------
    record : LadderRecord
        The record.
    facts : mapping, optional
        Columns that neither server nor client knows.

    Returns
    -------
    str
        CSV with a header.
    """
    return table_csv(record_rows(record, facts))


def record_json(record: LadderRecord, compared: Any = None, promise: Sequence[Promised] = ()) -> str:
    """Return everything in a record as JSON.

    Parameters
    ----------
    record : LadderRecord
        The record.
    compared : object, optional
        The comparison with a prediction, JSON-ready.
    promise : sequence of Promised, optional
        What was promised, and whether it was kept.

    Returns
    -------
    str
        JSON. It holds no key, no NaN and no infinity.
    """
    value = {
        "started": record.started,
        "endpoint": record.endpoint.told(),
        "plan": record.plan.settings(),
        "facts": dataclasses.asdict(record.facts),
        "overhead": None if record.overhead is None else dataclasses.asdict(record.overhead),
        "prompts": record.prompts,
        "stopped": record.stopped,
        "journal_faults": record.journal_faults,
        "steps": [dataclasses.asdict(step) for step in record.steps],
        "compared": compared,
        "promise": [dataclasses.asdict(one) | {"kept": one.kept} for one in promise],
    }
    return json.dumps(record.endpoint.outside.plain(value), indent=2, allow_nan=False) + "\n"


def _notes(record: LadderRecord, step: Any) -> str:
    faults = ", ".join(f"{count} {name}" for name, count in step.outcomes.items() if name != "done")
    limit = record.facts.max_sequences
    parts = [
        f"max-running {limit:.0f}" if limit and step.level > limit and not record.plan.schedules else "",
        f"steady after {step.transient:.1f} s" if step.transient else "",
        f"not counted as done: {faults}" if faults else "",
        f"prompt lengths by {record.prompts}" if record.prompts else "",
        "cut short" if not step.complete else "",
        *step.notes,
    ]
    return "; ".join(part for part in parts if part)


def _rounded(value: float) -> float | int:
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short
