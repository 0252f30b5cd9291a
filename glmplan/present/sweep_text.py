"""Text of `glmplan sweep`: its points, or the machines of an inventory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glmplan.catalog.tables import frame_of_columns, table_text
from glmplan.present.tables import markdown_rows
from glmplan.present.text import EVIDENCE_LABELS
from glmplan.purchase.frontier import OBJECTIVE_LABELS
from glmplan.purchase.hybrid import SCALES, Mix, Portfolio, one_more, owns_at
from glmplan.purchase.inventory import SOLVER, Assignment, Inventory, Pair, pair_rows
from glmplan.purchase.sweep import Swept, rows_of
from glmplan.units import counted_unit

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = [
    "break_even_line",
    "four_digits",
    "inventory_record",
    "inventory_text",
    "mix_rows",
    "mix_text",
    "sensitivity_markdown",
    "sensitivity_text",
    "sweep_text",
]

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


# Tables of `glmplan sensitivity`: the outcome at each assumption's ends.

#: field of the JSON → title of the column
_LABELS = {
    "what": "assumption",
    "low": "result at low",
    "high": "result at high",
    "from": "low value",
    "to": "high value",
    "know it by": "how to find out",
}


def sensitivity_text(rows: Sequence[dict[str, Any]], title: str) -> str:
    """Return the assumptions as columns of text below a title."""
    return f"{title}\n{table_text(_labelled(rows)) if rows else 'no assumption with a known range changes it'}"


def sensitivity_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the assumptions as a Markdown table."""
    table = _labelled(rows) or [dict.fromkeys(_LABELS.values())]
    text = markdown_rows(table, lambda value: four_digits(value) if isinstance(value, float) else str(value))
    return text if rows else "\n".join(text.split("\n")[:2])


def _labelled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{label: row[name] for name, label in _LABELS.items()} for row in rows]


def four_digits(value: float) -> str:
    """Return a number with four digits, and all before the point.

    Examples
    --------
    >>> four_digits(12345.6), four_digits(0.123456)
    ('12,346', '0.1235')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# Text of `glmplan hybrid`: machines and APIs, value of one more machine.


def mix_rows(mix: Mix) -> list[dict[str, Any]]:
    """Return the share of each server in each class of requests."""
    return [
        {"class": name, "server": server, "share": share}
        for name, servers in mix.shares.items()
        for server, share in servers.items()
    ]


def mix_text(read: Portfolio, mix: Mix) -> str:
    """Return cost, shares, refused APIs, capacity and load of machines."""
    saved = one_more(read, mix)
    owned = ", ".join(f"{count} × {name}" for name, count in mix.machines.items() if count) or "no machine"
    api = sum(mix.usd_api.values())
    lines = [f"{mix.usd_month:,.0f} USD/month: {owned} {mix.usd_local:,.0f} USD, APIs {api:,.0f} USD"]
    for name, servers in mix.shares.items():
        lines.append(f"  {name}: " + ", ".join(f"{share:.0%} {server}" for server, share in servers.items()))
    for seller in read.sellers:
        lines += [f"  {name} is not sent to {seller.name}: {why}" for name, why in seller.refused.items()]
    for local in read.locals:
        carried = ", ".join(f"{rate:.3g}/s of {name}" for name, rate in local.carries.items() if rate > 0) or "none"
        missed = ", ".join(name for name, rate in local.carries.items() if rate <= 0)
        missed = f"; SLO of {missed} not met at any rate" if missed else ""
        used = mix.used[local.name]
        busy = f"; utilisation {max(used):.0%} at the peak, {sum(used) / len(used):.0%} mean" if any(used) else ""
        lines.append(
            f"  {local.name}: {local.usd_month:,.0f} USD/month ({local.paid}), capacity {carried}{missed}{busy}"
        )
        worth = saved[local.name]
        if round(worth) > 0:
            allowed = "" if mix.machines[local.name] < local.most else f"; at most {local.most} are allowed"
            cost = "more than it costs" if worth > local.usd_month else "not more than it costs"
            lines.append(f"    one more machine would save {worth:,.0f} USD/month of API cost, {cost}{allowed}")
    return "\n".join([*lines, *(f"  note: {text}" for local in read.locals for text in local.assumed)])


def break_even_line(free: Portfolio, scale: float | None) -> str:
    """Return the volume from which a machine pays off, as text."""
    low, high = SCALES
    if scale is not None:
        text = f"a machine pays off from {scale:.3g} times today's volume"
    elif owns_at(free, low):
        text = f"a machine pays off even at {low:g} times today's volume"
    else:
        text = f"the API stays cheaper even at {high:,g} times today's volume"
    return f"  requests that may go to an API: {text}"
