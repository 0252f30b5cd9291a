"""Text of a simulation: latencies, throughput, batch, KV pool and SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from glmplan.present.tables import markdown_table

if TYPE_CHECKING:
    from glmplan.simulation.simulate import Outcome
    from glmplan.simulation.traffic.slo import Target

__all__ = ["outcome_text"]

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_INTERVALS = ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
_RANGED = {
    "ttft_mean_ms": "ttft mean [ms]",
    "ttft_p95_ms": "ttft p95 [ms]",
    "tpot_mean_ms": "tpot mean [ms]",
    "tpot_p95_ms": "tpot p95 [ms]",
    "e2e_mean_ms": "e2e mean [ms]",
    "output_tokens_per_s": "output tokens/s",
    "cached_share": "found in the prefix cache",
}


def outcome_text(
    outcome: Outcome,
    *,
    targets: tuple[Target, ...] = (),
    basis: str = "",
    markdown: bool = False,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """Return latencies, load, rejected requests and the SLO as lines of text.

    `ranges`: 90 % ranges over the prediction interval of the step time and over seeds.
    """
    summary = outcome.summary
    rows = [
        [name, *(f"{summary[f'{name}_{s}_ms']:,.1f}" for s in _STATISTICS)]
        for name in ("ttft", "tpot", "itl", "e2e", "queue")
    ]
    head = ["ms", *_STATISTICS]
    if markdown:
        lines = markdown_table(head, rows).split("\n")
    else:
        lines = [f"{row[0]:<6}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in (head, *rows)]
    lines += ["", *_load(summary)]
    lines += _apart(summary)
    lines += [f"{count} requests rejected: {reason}" for reason, count in outcome.rejected.items()]
    lines += _slo_lines(summary, targets)
    for name in _INTERVALS:
        if name in outcome.intervals:
            low, high = outcome.intervals[name]
            lines.append(f"{name} between {low:,.2f} and {high:,.2f} (95 % over replications)")
    if ranges:
        lines += ["", "90 % of the interval of the step time and of seeds lie between:"]
        for name, title in _RANGED.items():
            if name in ranges and math.isfinite(summary.get(name, math.nan)):
                lines.append(f"  {title:<26}" + "".join(f"{_metric(name, end):>13}" for end in ranges[name]))
        if any(math.isinf(end) for _, end in ranges.values()):
            lines.append("no answer: the lower bound of the KV pool holds no request, so none is answered there")
    if basis:
        lines.append(f"step time: {basis}")
    return "\n".join(lines) + "\n"


def _metric(name: str, value: float) -> str:
    if math.isinf(value):
        return "no answer"
    return f"{value:.0%}" if name.endswith("_share") else f"{value:,.1f}"


def _load(summary: Mapping[str, float]) -> list[str]:
    lines = [
        f"{summary['output_tokens_per_s']:,.1f} output tokens/s, {summary['total_tokens_per_s']:,.1f} tokens/s, "
        f"{summary['requests_per_s']:,.3f} requests/s over {summary['duration_s']:,.1f} s",
        f"batch {summary['batch_mean']:.1f} mean, {summary['batch_max']:.0f} largest; KV pool "
        f"{summary['kv_occupancy_mean']:.0%} mean, {summary['kv_occupancy_max']:.0%} at most; busy "
        f"{summary['utilisation']:.0%}; {summary['preemptions']:.0f} preemptions",
    ]
    if math.isfinite(summary.get("cached_share", math.nan)):
        lines.append(f"{summary['cached_share']:.0%} of prompt tokens found in the prefix cache")
    return lines


def _apart(summary: Mapping[str, float]) -> list[str]:
    """Return lines on urgent requests and on clients that cancelled."""
    lines = [
        f"urgent requests: {name} {summary[f'urgent_{name}_mean_ms']:,.1f} ms mean, "
        f"{summary[f'urgent_{name}_p95_ms']:,.1f} p95"
        for name in ("ttft", "e2e")
        if f"urgent_{name}_mean_ms" in summary
    ]
    if "left" in summary:
        lines.append(
            f"{summary['left']:.0f} clients left before their first token: they are not in the metrics above, but in "
            "the share of goodput"
        )
    return lines


def _slo_lines(summary: Mapping[str, float], targets: tuple[Target, ...]) -> list[str]:
    lines = []
    for target in targets:
        value = summary[target.name]
        lines.append(f"{target}: {value:,.1f} ms, {'kept' if value <= target.bound * 1000 else 'BROKEN'}")
    if targets:
        lines.append(
            f"goodput {summary['goodput_requests_per_s']:,.3f} requests/s ({summary['goodput_share']:.0%} of requests)"
        )
    return lines
