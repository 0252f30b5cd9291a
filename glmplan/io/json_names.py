"""Map old names of JSON fields, which are still read, to new ones."""

from __future__ import annotations

from typing import Any

__all__ = [
    "FIT_NAMES",
    "FIT_SCHEMA",
    "LIMITATION",
    "LIMITATIONS_NAMES",
    "LIMITATIONS_SCHEMA",
    "SWEEP_NAMES",
    "renamed",
    "upgrade",
]

#: name and version of the schema of `glmplan fit --format json`
FIT_SCHEMA = "glmplan.fit/2"
#: name and version of the schema of `glmplan walls --format json`
LIMITATIONS_SCHEMA = "glmplan.walls/2"
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
#: the same for `glmplan walls --format json`
LIMITATIONS_NAMES: dict[str, str] = {"walls": "limitations"}
#: the same for the columns of `glmplan sweep` in a checkpoint
SWEEP_NAMES: dict[str, str] = {"knowledge": "evidence"}
#: schema that is still read, up to the release after this one → its new version and names
_OLD_SCHEMAS: dict[str, tuple[str, dict[str, str]]] = {
    "glmplan.fit/1": (FIT_SCHEMA, FIT_NAMES),
    "glmplan.walls/1": (LIMITATIONS_SCHEMA, LIMITATIONS_NAMES),
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


def upgrade(record: Any) -> Any:
    """Return a record of an old schema with the names of the new one.

    Records of other schemas are returned unchanged.

    Examples
    --------
    >>> upgrade({"schema": "glmplan.fit/1", "knowledge": "group"})
    {'schema': 'glmplan.fit/2', 'evidence_level': 'group'}
    >>> upgrade({"schema": "glmplan.walls/1", "walls": []})
    {'schema': 'glmplan.walls/2', 'limitations': []}
    """
    if not isinstance(record, dict) or str(record.get("schema")) not in _OLD_SCHEMAS:
        return record
    schema, names = _OLD_SCHEMAS[str(record["schema"])]
    upgraded: dict[str, Any] = renamed(record, names) | {"schema": schema}
    for warning in upgraded.get("warnings") or ():
        if isinstance(warning, dict) and warning.get("kind") == "wall":
            warning["kind"] = LIMITATION
    return upgraded
