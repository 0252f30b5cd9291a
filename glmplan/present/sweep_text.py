"""Text of `glmplan sweep`: Pareto-optimal points, infeasible points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from glmplan.catalog.tables import frame_of_columns, table_text
from glmplan.purchase.evidence import EVIDENCE_LABELS
from glmplan.purchase.frontier import OBJECTIVE_LABELS
from glmplan.purchase.sweep import Swept, rows_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = ["sweep_text"]

_LISTED = 20


def sweep_text(
    columns: Mapping[str, Any], found: Swept, best: np.ndarray, objectives: tuple[str, ...], notes: Iterable[str]
) -> str:
    """Return counts, the Pareto front `best`, reasons and notes on prices."""
    works = found.possible
    labels = ", ".join(OBJECTIVE_LABELS.get(name, name) for name in objectives)
    lines = [f"{len(works):,} points, {int(works.sum()):,} feasible; {int(best.sum()):,} Pareto-optimal ({labels})"]
    varied = [name for name, values in found.sweep.axes.items() if len(values) > 1]
    front = frame_of_columns({name: rows_of(column, best) for name, column in columns.items()})
    lines.append(_front(front, objectives, varied))
    wrong = frame_of_columns({"reason": rows_of(columns["reason"], ~works)})["reason"].value_counts()
    lines += [f"  {count:,} infeasible: {reason}" for reason, count in list(wrong.items())[:_LISTED]]
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def _front(best: pd.DataFrame, objectives: tuple[str, ...], varied: list[str]) -> str:
    names = dict.fromkeys(("model", "on", *varied, "layout", "cache", "traffic", "users", "input_tokens"))
    shown = [name for name in names if name in best]
    rows = best.sort_values(list(objectives), ascending=False).head(_LISTED)
    metrics = ("tpot_mean_ms", "ttft_mean_ms", "tpot_p95_ms", "ttft_p95_ms", "probability", *objectives, "evidence")
    columns = [name for name in dict.fromkeys([*shown, *metrics]) if name in best]
    if "evidence" in columns:
        rows = rows.assign(evidence=[EVIDENCE_LABELS.get(level, level) for level in rows["evidence"]])
    text = table_text({name: _plain(row[name]) for name in columns} for row in rows.to_dict("records"))
    return text + f"\n… and {len(best) - _LISTED:,} more" * (len(best) > _LISTED)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
