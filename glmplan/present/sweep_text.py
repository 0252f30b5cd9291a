"""Text of `glmplan sweep`: its points, or the machines of an inventory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from glmplan.catalog.tables import frame_of_columns, table_text
from glmplan.purchase.evidence import EVIDENCE_LABELS
from glmplan.purchase.frontier import OBJECTIVE_LABELS
from glmplan.purchase.inventory import SOLVER, Assignment, Inventory, Pair, pair_rows
from glmplan.purchase.sweep import Swept, rows_of
from glmplan.units import counted_unit

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = ["inventory_record", "inventory_text", "sweep_text"]

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
    assumed = front["price_assumed"].dropna().unique() if "price_assumed" in front else ()
    return "\n".join([*lines, *(f"note: {note}" for note in (*filter(None, assumed), *notes))])


def _front(best: pd.DataFrame, objectives: tuple[str, ...], varied: list[str]) -> str:
    names = dict.fromkeys(("model", "checkpoint", "on", *varied, "layout", "cache", "traffic", "users", "input_tokens"))
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


def inventory_record(inventory: Inventory, pairs: tuple[Pair, ...], found: Assignment) -> dict[str, Any]:
    """Return the answer about an inventory as `--format json` prints it."""
    rows = pair_rows(pairs, found)
    models = [
        {"model": model.name, "users": model.users, "served_share": float(share)}
        for model, share in zip(inventory.models, found.served, strict=True)
    ]
    idle = {
        machine.name: machine.count - int(used)
        for machine, used in zip(inventory.machines, found.machines.sum(axis=1), strict=True)
    }
    return {
        "probability": inventory.probability,
        "pairs": rows,
        "assignment": [
            {"machines": row["machines_assigned"], "machine": row["machine"], "model": row["model"]}
            for row in rows
            if row["machines_assigned"]
        ],
        "models": models,
        "idle_machines": idle,
        "solver": SOLVER,
    }


def inventory_text(record: Mapping[str, Any]) -> str:
    """Return the table of machines and models, and the assignment."""
    sure = f"{100 * record['probability']:g} %"
    shown = [
        {
            "machine": row["machine"],
            "model": row["model"],
            "weights": row["weights"],
            "verdict": row["verdict"],
            f"safe users at {sure}": row["safe_users"],
            "wanted": row["users"],
            "tok/s per user": row["user_tokens_per_s"],
            "tok/s": row["output_tokens_per_s"],
            "kW": row["kw"],
        }
        for row in record["pairs"]
    ]
    lines = [table_text(shown), "", f"best assignment ({record['solver']}), one model per machine:"]
    shares = {model["model"]: model for model in record["models"]}
    for name, model in shares.items():
        used = [f"{row['machines']} × {row['machine']}" for row in record["assignment"] if row["model"] == name]
        users = counted_unit(model["users"], "users")
        share = model["served_share"]
        served = f"{users} at {sure}" if share > 1 - 1e-9 else f"{share:.0%} of {users} at {sure}"
        lines.append(f"  {name}: {' + '.join(used)}: {served}" if used else f"  {name}: no machine serves it")
    idle = ", ".join(f"{count} × {name}" for name, count in record["idle_machines"].items() if count)
    lines += [f"  idle: {idle}"] if idle else []
    lines += [f"{row['machine']}, {row['model']}: {row['reason']}" for row in record["pairs"] if row["reason"]]
    return "\n".join(lines)
