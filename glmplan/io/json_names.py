"""Names of JSON fields: those of `glmplan.fit/1` → `glmplan.fit/2`."""

from __future__ import annotations

from typing import Any

__all__ = ["FIT_NAMES", "FIT_SCHEMA", "LIMITATION", "renamed", "upgrade_fit"]

#: name and version of the schema of `glmplan fit --format json`
FIT_SCHEMA = "glmplan.fit/2"
#: the schema whose plans are still read; its support ends with the release after this one
_OLD_SCHEMA = "glmplan.fit/1"
#: `warnings[].kind` of an engine limitation
LIMITATION = "limitation"
#: old path → new name of its last field; `[]` marks the rows of a list, `*` any name
FIT_NAMES: dict[str, str] = {
    "binding": "bottleneck",
    "knowledge": "evidence_level",
    "left_out": "skipped_layouts",
    "narrowing": "recommended_benchmark",
    "narrowing.figures": "metrics",
    "narrowing.figures[].figure": "metric",
    "narrowing.figures[].factor": "interval_factor",
    "narrowing.figures[].factor_after": "interval_factor_after",
    "runners_up": "alternative_layouts",
    "runners_up[].why": "reason",
    "plan.kv_why": "kv_reason",
    "plan.runs": "supported",
    "memory.printed_tokens": "engine_reported_tokens",
    "users[].step_shares": "step_time_breakdown",
    "safe.limits.*.why": "reason",
    "runs": "traffic_runs",
    "runs[].what": "description",
    "runs[].ask": "options",
    "runs[].served_at_most_per_s": "max_served_per_s",
    "runs[].no_copies": "kv_offload_unavailable",
    "runs[].knowledge": "evidence_level",
    "changes[].what": "description",
    "changes[].ask": "options",
    "changes[].knowledge": "evidence_level",
    "warnings[].do": "action",
}


def renamed(value: Any, names: dict[str, str], path: str = "") -> Any:
    """Return a record with the old names of a table replaced.

    Examples
    --------
    >>> renamed({"runs": [{"what": "", "kv": "fp8"}]}, FIT_NAMES)
    {'traffic_runs': [{'description': '', 'kv': 'fp8'}]}
    """
    if isinstance(value, list):
        return [renamed(item, names, f"{path}[]") for item in value]
    if not isinstance(value, dict):
        return value
    record = {}
    for name, item in value.items():
        below = f"{path}.{name}".lstrip(".")
        any_name = f"{path}.*"
        inner = any_name if any(old.startswith(f"{any_name}.") for old in names) else below
        record[names.get(below, name)] = renamed(item, names, inner)
    return record


def upgrade_fit(record: Any) -> Any:
    """Return a plan of `glmplan.fit/1` in the names of `glmplan.fit/2`.

    Anything else is unchanged.

    Examples
    --------
    >>> upgrade_fit({"schema": "glmplan.fit/1", "knowledge": "group"})
    {'schema': 'glmplan.fit/2', 'evidence_level': 'group'}
    """
    if not isinstance(record, dict) or record.get("schema") != _OLD_SCHEMA:
        return record
    upgraded: dict[str, Any] = renamed(record, FIT_NAMES) | {"schema": FIT_SCHEMA}
    for warning in upgraded.get("warnings") or ():
        if isinstance(warning, dict) and warning.get("kind") == "wall":
            warning["kind"] = LIMITATION
    return upgraded
