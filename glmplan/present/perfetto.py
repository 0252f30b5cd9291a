"""Requests of a simulation as a timeline for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.files import write_atomically
from glmplan.errors import SpecError

__all__ = ["check_timeline", "timeline_events", "write_timeline"]

#: requests that a timeline shows at most: Perfetto opens files of some hundred megabytes [-]
_MOST = 200_000
_PHASES = (("queue", "arrival", "started"), ("prefill", "started", "first"), ("decode", "first", "finish"))


def check_timeline(path: str | Path) -> None:
    """Raise if the name of a timeline does not end in .json."""
    if Path(path).suffix != ".json":
        raise SpecError("must end in .json", field="--timeline", value=str(path))


def timeline_events(columns: Mapping[str, np.ndarray], replicas: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the phases of requests as trace events, a process per replica.

    - `columns`: Columns of finished requests, times in [s].
    - `replicas`: Names of the replicas, by number.

    References
    ----------
    .. [1] "Trace Event Format" (Chromium): nestable asynchronous events `b` and `e` with `cat` and `id`, metadata
       `process_name`; times in microseconds.

    Examples
    --------
    >>> one = {"number": [7], "replica": [0], "input_tokens": [9], "output_tokens": [2], "cached": [0]}
    >>> one |= {"arrival": [0.5], "started": [0.5], "first": [0.6], "finish": [0.7], "preemptions": [0]}
    >>> events = timeline_events({name: np.array(column) for name, column in one.items()})
    >>> [(event["ph"], event["name"], event.get("ts")) for event in events][1:4]
    [('b', 'request 7', 500000.0), ('b', 'prefill', 500000.0), ('e', 'prefill', 600000.0)]
    """
    rows = {name: column[:_MOST].tolist() for name, column in columns.items()}
    events: list[dict[str, Any]] = []
    for replica in sorted(set(rows["replica"])):
        name = replicas[replica] if replicas else f"replica {replica}"
        events.append({"ph": "M", "name": "process_name", "pid": replica, "args": {"name": name}})
    for i, number in enumerate(rows["number"]):
        same = {"pid": rows["replica"][i], "tid": 0, "cat": "request", "id": number}
        told = {name: rows[name][i] for name in ("input_tokens", "output_tokens", "cached", "preemptions")}
        name, begin, end = f"request {number}", rows["arrival"][i] * 1e6, rows["finish"][i] * 1e6
        events.append({"ph": "b", "name": name, "ts": begin, "args": told} | same)
        for phase, first, last in _PHASES:
            start, stop = rows[first][i] * 1e6, rows[last][i] * 1e6
            if stop > start:
                events += [
                    {"ph": "b", "name": phase, "ts": start} | same,
                    {"ph": "e", "name": phase, "ts": stop} | same,
                ]
        events.append({"ph": "e", "name": name, "ts": end} | same)
    return events


def write_timeline(columns: Mapping[str, np.ndarray], path: str | Path, replicas: Sequence[str] = ()) -> int:
    """Write requests as a trace; return the number left out."""
    check_timeline(path)
    events = timeline_events(columns, replicas)
    write_atomically(Path(path), json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    return max(len(columns["number"]) - _MOST, 0)
