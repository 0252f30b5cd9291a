"""Results of fleets and of sweeps over rates as text and records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glmplan.present.tables import csv_table, markdown_table

if TYPE_CHECKING:
    from glmplan.simulation.fleets.run import FleetResult
    from glmplan.simulation.goodput import GoodputCurve
    from glmplan.simulation.traffic.slo import Target

__all__ = ["fleet_csv", "fleet_record", "fleet_text", "goodput_csv", "goodput_record", "goodput_text"]

#: events that a text shows
_SHOWN = 12
#: metrics with a range → title
_RANGED = {
    "ttft_p95_ms": "TTFT p95 [ms]", "tpot_p95_ms": "TPOT p95 [ms]", "e2e_p95_ms": "E2E p95 [ms]",
    "goodput_share": "in SLO",
}  # fmt: skip


def _number(value: float, form: str = ",.1f") -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> list[str]:
    if markdown:
        return markdown_table(heads, rows).split("\n")
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in (heads, *rows))
    ]


def fleet_text(
    result: FleetResult,
    targets: Mapping[str, tuple[Target, ...]],
    bases: Mapping[str, str],
    *,
    fixed: Mapping[str, FleetResult] | None = None,
    ranges: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    markdown: bool = False,
) -> str:
    """Return the result of a fleet as lines of text.

    - `targets`: SLO of each tenant.
    - `bases`: Evidence of the step time of each group.
    - `fixed`: The same traffic on fleets of fixed size, by their description.
    - `ranges`: 90 % ranges of metrics over the step time, by tenant.
    """
    lines = _tenants(result, targets, markdown)
    if ranges:
        lines += ["", "90 % of the interval of the step time lie between:", *_ranges(ranges, markdown)]
    lines += ["", *_groups(result, markdown), "", *_summary_lines(result)]
    if fixed:
        lines += ["", *_beside(result, fixed, markdown)]
    shown = [change for change in result.changes if change.what != "start"]
    if shown:
        lines.append("")
        lines += [
            f"{change.at:10,.1f} s  {change.group}: {change.what}, {change.ready} ready, {change.starting} starting"
            for change in shown[:_SHOWN]
        ]
        if len(shown) > _SHOWN:
            lines.append(f"and {len(shown) - _SHOWN} more events (--format json)")
    lines += [f"step time of {name}: {basis}" for name, basis in bases.items() if basis]
    return "\n".join(lines) + "\n"


def _ranges(ranges: Mapping[str, Mapping[str, tuple[float, float]]], markdown: bool) -> list[str]:
    """Return a row of ranges for each tenant."""
    forms = {name: ",.1f" for name in _RANGED} | {"goodput_share": ".1%"}
    rows = [
        [tenant, *(" to ".join(_number(end, forms[name]) for end in found[name]) if name in found else "-"
                   for name in _RANGED)]
        for tenant, found in ranges.items()
    ]  # fmt: skip
    return _table(["tenant", *_RANGED.values()], rows, markdown)


def _tenants(result: FleetResult, targets: Mapping[str, tuple[Target, ...]], markdown: bool) -> list[str]:
    """Return a row for each tenant."""
    heads = ["tenant", "requests", "TTFT p50 [ms]", "p95", "TPOT p50 [ms]", "p95", "E2E p95 [ms]", "in SLO", "SLO"]
    cached = any(found.get("cached_share", 0.0) > 0 for found in result.tenants.values())
    rows = []
    for name, found in result.tenants.items():
        met = [found[one.name] <= one.bound * 1000 for one in targets[name]]
        rows.append(
            [
                name,
                f"{found['requests']:,.0f}",
                *(_number(found[f"{key}_ms"]) for key in ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p95")),
                _number(found.get("goodput_share", math.nan), ".1%"),
                ("met" if all(met) else "MISSED") if met else "-",
                *([_number(found.get("cached_share", math.nan), ".0%")] if cached else []),
            ]
        )
    return _table([*heads, "cached"] if cached else heads, rows, markdown)


def _groups(result: FleetResult, markdown: bool) -> list[str]:
    """Return a row for each group."""
    heads = ["group", "requests", "replicas", "peak", "starts", "deaths", "busy", "batch", "KV pool", "replica-hours"]
    priced = any("usd" in found for found in result.groups.values())
    rows = [
        [
            name,
            f"{found['requests']:,.0f}",
            f"{found['replicas_mean']:.2f}",
            *(f"{found[key]:.0f}" for key in ("replicas_peak", "starts", "deaths")),
            f"{found['utilisation']:.0%}",
            f"{found['batch_mean']:.1f}",
            f"{found['kv_occupancy_mean']:.0%}",
            f"{found['replica_hours']:,.3f}",
            *([_number(found.get("usd", math.nan), ",.2f")] if priced else []),
        ]
        for name, found in result.groups.items()
    ]
    return _table([*heads, "USD"] if priced else heads, rows, markdown)


def _summary_lines(result: FleetResult) -> list[str]:
    summary = result.summary
    lines = [f"{summary['requests']:,.0f} requests over {summary['duration_s']:,.1f} s"]
    if "slo_attainment" in summary:
        lines[0] += (
            f"; {summary['slo_attainment']:.2%} of all that came met their SLO, goodput "
            f"{summary['goodput_requests_per_s']:,.3f} requests/s"
        )
    if summary["lost"]:
        lines.append(f"{summary['lost']:.0f} requests lost by replicas, {summary['retried']:.0f} of them retried")
    if summary["left"]:
        lines.append(f"{summary['left']:.0f} clients left before their first token")
    return lines + [f"{count} requests not served: {reason}" for reason, count in result.rejected.items()]


def _beside(result: FleetResult, fixed: Mapping[str, FleetResult], markdown: bool) -> list[str]:
    """Return replica-hours, cost and SLO beside those of fixed fleets."""
    every = {"with autoscaling": result} | dict(fixed)
    priced = "usd" in result.summary
    rows = [
        [
            name,
            f"{one.summary['replica_hours']:,.3f}",
            *([f"{one.summary['usd']:,.2f}"] if priced else []),
            _number(one.summary.get("slo_attainment", math.nan), ".2%"),
        ]
        for name, one in every.items()
    ]
    return _table(["fleet", "replica-hours", *(["USD"] if priced else []), "in SLO"], rows, markdown)


def fleet_record(
    result: FleetResult,
    targets: Mapping[str, tuple[Target, ...]],
    bases: Mapping[str, str],
    *,
    fixed: Mapping[str, FleetResult] | None = None,
    ranges: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> dict[str, Any]:
    """Return the result of a fleet for JSON; None stands for no value."""
    content: dict[str, Any] = {
        "summary": _clean(result.summary),
        "tenants": {
            name: _clean(found) | {"slo_met": {str(t): bool(found[t.name] <= t.bound * 1000) for t in targets[name]}}
            for name, found in result.tenants.items()
        },
        "groups": {name: _clean(found) | {"basis": bases.get(name, "")} for name, found in result.groups.items()},
        "rejected_by_reason": result.rejected,
        "events": [
            {"at_s": one.at, "group": one.group, "event": one.what, "ready": one.ready, "starting": one.starting}
            for one in result.changes
        ],
    }
    for name, found in (ranges or {}).items():
        content["tenants"][name]["ranges"] = {metric: list(ends) for metric, ends in found.items()}
    if fixed:
        content["fixed"] = {name: _clean(one.summary) for name, one in fixed.items()}
    return content


def fleet_csv(result: FleetResult) -> str:
    """Return one row for each tenant and each group."""
    rows: list[dict[str, Any]] = [{"part": "tenant", "name": name} | found for name, found in result.tenants.items()]
    rows += [{"part": "group", "name": name} | found for name, found in result.groups.items()]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return csv_table([{name: row.get(name) for name in names} for row in rows])


def goodput_text(curve: GoodputCurve, *, markdown: bool = False) -> str:
    """Return goodput over load as a table, its knee and the safe rate."""
    heads = ["requests/s", "goodput/s", "5 %", "95 %", "in SLO", "P(SLO met)"]
    rows = [
        [f"{p.rate:,.4g}", *(f"{x:,.4g}" for x in (p.goodput, p.low, p.high)), f"{p.attainment:.1%}", f"{p.kept:.0%}"]
        for p in curve.points
    ]
    safe = f"{curve.safe:.4g} requests/s" if curve.safe else "below the lowest rate of the sweep"
    knee = f"{curve.knee:.4g} requests/s; beyond it less than half of further requests meet the SLO"
    if curve.knee in (0.0, curve.points[-1].rate):
        knee = "below the lowest rate of the sweep" if not curve.knee else "not below the largest rate of the sweep"
    return "\n".join(
        [
            *_table(heads, rows, markdown),
            "",
            f"knee: {knee}",
            f"safe at 95 % probability: {safe} (largest swept rate; `glmplan safe` searches between them)",
            "5 % and 95 %: quantiles over the interval of the step time and over arrivals",
            "",
        ]
    )


def goodput_record(curve: GoodputCurve) -> dict[str, Any]:
    """Return goodput over load for JSON."""
    return {"knee_requests_per_s": curve.knee, "safe_requests_per_s": curve.safe, "points": _points(curve)}


def goodput_csv(curve: GoodputCurve) -> str:
    """Return one row for each load."""
    return csv_table(_points(curve))


def _points(curve: GoodputCurve) -> list[dict[str, Any]]:
    return [
        {
            "requests_per_s": p.rate,
            "goodput_requests_per_s": p.goodput,
            "goodput_low": p.low,
            "goodput_high": p.high,
            "slo_attainment": p.attainment,
            "probability_slo_met": p.kept,
        }
        for p in curve.points
    ]


def _clean(found: Mapping[str, float]) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
