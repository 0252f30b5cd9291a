"""Write answers as JSON.

The schema of `glmplan fit` is versioned and described in `docs/reference/fit-json.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glmplan.costs.memory.pool import weights_interval
from glmplan.costs.memory.settings import load_memory_fit
from glmplan.io.json_names import FIT_SCHEMA
from glmplan.planner.plan import Safe
from glmplan.planner.ranking import unstated_of
from glmplan.prediction.distribution import SHOWN
from glmplan.present.compare_text import differences
from glmplan.units import GIB, Ratio

if TYPE_CHECKING:
    from glmplan.planner.make_plan import FitAnswer
    from glmplan.planner.plan import Change, RunnerUp, TrafficRun, UserRow, Warn
    from glmplan.planner.ranking import Narrowing
    from glmplan.prediction.predict import Figure
    from glmplan.purchase.compare import Compared
    from glmplan.simulation.safe_load import SafeLoad
    from glmplan.simulation.simulate import Outcome
    from glmplan.simulation.traffic.slo import Target

__all__ = [
    "SCHEMA",
    "compare_record",
    "fit_json",
    "fit_record",
    "safe_record",
    "safe_row",
    "simulate_record",
    "users_at",
]


#: name and version of the schema; a field that goes or changes its meaning makes a new version
SCHEMA = FIT_SCHEMA


def fit_json(answer: FitAnswer) -> str:
    """Write the answer as JSON."""
    return json.dumps(fit_record(answer), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _count(value: float) -> int:
    """Return a number of tokens or requests, at most 2^53 if unlimited."""
    return int(min(value, 2.0**53))


def _tokens(ends: Sequence[float]) -> dict[str, int] | None:
    """Return a number of tokens with its interval, None without one."""
    return dict(zip(("value", "low", "high"), map(_count, ends), strict=True)) if ends else None


def _figure(figure: Figure | None, factor: float = 1.0) -> dict[str, float] | None:
    if figure is None:
        return None
    return {
        "value": _rounded(figure.value * factor),
        "low": _rounded(figure.low * factor),
        "high": _rounded(figure.high * factor),
        "inner_low": _rounded(figure.inner[0] * factor),
        "inner_high": _rounded(figure.inner[1] * factor),
    }


def fit_record(answer: FitAnswer) -> dict[str, Any]:
    """Return the answer as plain values, with units in the field names."""
    asked = answer.asked
    return {
        "schema": SCHEMA,
        "verdict": answer.verdict,
        "answer": {
            "verdict": answer.reply.name,
            "text": answer.reply.words,
            "users": answer.reply.users,
            "probability": answer.reply.probability,
        },
        "may_start": answer.may_start,
        "headline": answer.headline,
        "reasons": list(answer.reasons),
        "unknown": list(answer.unknown),
        "question": _question(answer),
        "plan": _plan(answer),
        "memory": _memory(answer),
        "context": {
            "one_request_tokens": answer.context,
            "one_request_tokens_low": answer.context_low,
            "model_max_tokens": asked.model.max_context,
        },
        "users": [_user(row) for row in answer.users],
        "traffic": answer.traffic or None,
        "traffic_runs": [_run(one) for one in answer.runs],
        "safe": _safe(answer),
        "bottleneck": answer.binding,
        "alternative_layouts": [_runner(one) for one in answer.runners],
        "skipped_layouts": list(answer.left_out),
        "changes": [_change(one) for one in answer.changes],
        "warnings": [_warning(one) for one in answer.warnings],
        "command": " ".join(answer.command),
        "command_notes": list(answer.command_notes),
        "assumed": list(asked.assumed),
        "unstated": list(unstated_of(asked)),
        "stating": [
            {"setting": name, **{kind: _rounded(ratio) for kind, ratio in found.items()}}
            for name, found in answer.stating.items()
        ],
        "basis": answer.basis,
        "evidence_level": answer.knowledge,
        "evidence": answer.evidence,
        "recommended_benchmark": _narrowing(answer.narrowing),
        "fits": list(answer.fits),
    }


def _narrowing(found: Narrowing | None) -> dict[str, Any] | None:
    if found is None:
        return None
    figures = [
        {
            "users": one.users,
            "metric": f"{one.metric}_mean_ms",
            "interval_factor": _rounded(math.exp(one.before)),
            "interval_factor_after": _rounded(math.exp(one.after)),
        }
        for one in found.figures
    ]
    return {"users": found.users, "metrics": figures, "command": found.command}


def _question(answer: FitAnswer) -> dict[str, Any]:
    asked = answer.asked
    return {
        "model": asked.model.name,
        "checkpoint": asked.checkpoint.name,
        "repository": asked.checkpoint.repository,
        "source": asked.checkpoint.source,
        "on": asked.machine.text,
        "host": asked.machine.host.name,
        "accelerator": asked.machine.accelerator.name,
        "accelerator_count": asked.machine.count,
        "power_limit_w": asked.power_limit,
        "engine": asked.engine,
        "engine_version": asked.runs_as,
        "context_tokens": asked.context,
        "input_tokens": asked.input_tokens,
        "output_tokens": asked.output_tokens,
        "users": list(asked.users),
    }


def _runner(one: RunnerUp) -> dict[str, Any]:
    return {
        "layout": one.layout,
        "accelerators": one.accelerators,
        "verdict": one.verdict,
        "kv_pool_tokens": _count(one.pool_tokens),
        "one_user_tokens_per_s": _rounded(one.user_rate),
        "total_tokens_per_s": _rounded(one.total_rate),
        "reason": one.why,
    }


def _change(one: Change) -> dict[str, Any]:
    return {
        "name": one.name,
        "description": one.what,
        "verdict": one.verdict,
        "layout": one.layout,
        "kv_pool_tokens": _count(one.pool_tokens),
        "kv_pool_tokens_low": _count(one.pool_low),
        "requests_held_low": _count(one.held),
        "one_user_tokens_per_s": _rounded(one.user_rate),
        "total_tokens_per_s": _rounded(one.total_rate),
        "note": one.note,
        "options": one.ask,
        "evidence_level": one.knowledge,
    }


def _warning(one: Warn) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "severity": one.severity,
        "name": one.name,
        "title": one.title,
        "effect": one.effect,
        "action": one.do,
        "applied": one.applied,
        "source": one.source,
    }


def _plan(answer: FitAnswer) -> dict[str, Any] | None:
    holding = answer.holding
    if holding is None:
        return None
    terms = holding.terms
    return {
        "layout": terms.name,
        "tp": terms.tp,
        "pp": terms.pp,
        "dp": terms.dp,
        "ep": terms.ep,
        "dcp": terms.dcp,
        "replicas": terms.replicas,
        "prefill_replicas": terms.prefill,
        "accelerators": terms.accelerators,
        "kv": terms.kv,
        "kv_reason": answer.kv_why,
        "cuda_graphs": terms.graphs,
        "mtp": terms.mtp,
        "sparse_attention": terms.sparse,
        "max_model_len": answer.launch_context,
        "memory_fraction": answer.asked.settings.memory_fraction,
        "max_num_seqs": answer.asked.defaults.places,
        "max_num_batched_tokens": answer.asked.defaults.budget,
        "attention_backend": answer.asked.settings.attention_backend or None,
        "supported": terms.blocked is None,
    }


def _memory(answer: FitAnswer) -> dict[str, Any] | None:
    holding = answer.holding
    if holding is None:
        return None
    smaller, larger = weights_interval(holding.memory, load_memory_fit())
    return {
        "limiting_stage": holding.stage,
        "kv_pool_tokens": _tokens((holding.pool.tokens, holding.pool.low, holding.pool.high)),
        "kv_pool_gib": _rounded(holding.pool_bytes / GIB),
        "kv_pool_host_gib": _rounded(holding.host_pool / GIB),
        "engine_reported_tokens": _tokens(answer.printed),
        "requests_held": _count(holding.held),
        "requests_held_low": _count(holding.held_low),
        "short_gib": _rounded(max(holding.lacking, 0.0) / GIB),
        "short_gib_low": _rounded(max(holding.short_low, holding.over, 0.0) / GIB),
        "host_gib": _rounded(holding.host / GIB),
        "host_capacity_gib": None if holding.host_memory is None else _rounded(holding.host_memory / GIB),
        "host_short_gib": _rounded(holding.host_short / GIB),
        "ranks": [
            {
                "rank": number,
                "label": row.label,
                "weights_gib": {name: _rounded(size / GIB) for name, size in row.weights.items()},
                "weights_total_gib": _rounded(sum(row.weights.values()) / GIB),
                "weights_total_gib_low": _rounded(sum(row.weights.values()) * (1.0 - smaller) / GIB),
                "weights_total_gib_high": _rounded(sum(row.weights.values()) * (1.0 + larger) / GIB),
                "activation_gib": _rounded(row.activation / GIB),
                "graphs_gib": _rounded(row.graphs / GIB),
                "graph_estimate_gib": _rounded(row.graph_estimate / GIB),
                "communication_gib": _rounded(row.communication / GIB),
                "reserve_gib": _rounded(row.reserve / GIB),
                "cache_gib": _rounded(row.cache / GIB),
                "cache_bytes_per_token": _rounded(row.per_token),
                "state_bytes_per_sequence": _rounded(row.state),
                "host_gib": _rounded(row.host / GIB),
                "total_gib": _rounded(row.total / GIB),
                "usable_gib": _rounded(row.usable / GIB),
                "capacity_gib": _rounded(row.capacity / GIB),
            }
            for number, row in enumerate(answer.ranks)
        ],
    }


def _user(row: UserRow) -> dict[str, Any]:
    return {
        "users": row.users,
        "running": row.running,
        **{column: _figure(one) for column, one in row.figures().items()},
        "context_each_tokens": row.context,
        "step_time_breakdown": {name: _rounded(share) for name, share in row.shares.items()},
        "out_of_domain": row.outside,
        "simulated": row.simulated,
        "preemptions_per_request": _rounded(row.preempted),
    }


def _run(one: TrafficRun) -> dict[str, Any]:
    return {
        "description": one.what,
        "options": one.ask,
        "layout": one.layout,
        "kv": one.kv,
        "requests": one.requests,
        "rejected": one.rejected,
        "left": one.left,
        "max_served_per_s": one.most_rate,
        "ttft_mean_ms": _figure(one.ttft, 1e3),
        "ttft_p95_ms": _rounded(one.ttft_p95 * 1e3),
        "tpot_mean_ms": _figure(one.tpot, 1e3),
        "e2e_mean_ms": _figure(one.e2e, 1e3),
        "output_tokens_per_s": _figure(one.total_rate),
        "cached_share": None if one.cached is None else _rounded(one.cached),
        "cached_share_low": _rounded(one.cached_low),
        "preemptions_per_request": _rounded(one.preempted),
        "kv_occupancy_max": _rounded(one.full),
        "evidence_level": one.knowledge,
        "kv_offload_unavailable": one.no_copies,
    }


def users_at(safe: Safe) -> dict[str, int]:
    """Return the users that meet the SLO at 95, 80 and 50 %.

    Examples
    --------
    >>> users_at(Safe(5, 30, "tpot", (), 0.1, 0.95, ((0.95, 5), (0.8, 12), (0.5, 30))))
    {'users_at_95': 5, 'users_at_80': 12, 'users_at_50': 30}
    """
    at = dict(safe.at)
    return {f"users_at_{100 * share:.0f}": at[share] for share in SHOWN if share in at}


def _safe(answer: FitAnswer) -> dict[str, Any] | None:
    safe = answer.safe
    if safe is None:
        return None
    return {
        "users": safe.users,
        "expected": safe.expected,
        "probability": safe.probability,
        **users_at(safe),
        "curve": [{"users": users, "probability": _rounded(chance)} for users, chance in safe.curve],
        "limit": safe.limit,
        "target_tpot_ms": safe.target_tpot * 1e3,
        "target_ttft_ms": None if safe.target_ttft is None else safe.target_ttft * 1e3,
        "limits": {one.name: {"users": one.users, "reason": one.words} for one in safe.limits},
    }


# Answers of `simulate`, `safe` and `compare` as plain values, for `--format json` and the service.


def _clean(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def simulate_record(
    outcome: Outcome,
    *,
    targets: Sequence[Target] = (),
    basis: str = "",
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Return statistics of a simulation by name, and the SLO targets met.

    A statistic without a value is None.
    """
    summary = outcome.summary
    content: dict[str, Any] = {name: _clean(value) for name, value in summary.items()}
    if outcome.intervals:
        content["intervals"] = {name: [_clean(x) for x in pair] for name, pair in outcome.intervals.items()}
    if ranges:
        content["ranges"] = {name: [_clean(x) for x in pair] for name, pair in ranges.items()}
    content |= {"rejected_by_reason": outcome.rejected, "basis": basis, "interrupted": outcome.interrupted}
    if targets:
        content["slo_met"] = {str(t): bool(summary[t.name] <= t.bound * 1000) for t in targets}
    return content


def safe_row(answer: SafeLoad) -> dict[str, Any]:
    """Return a safe load with its limiting target and the reason."""
    name = "safe_users" if answer.unit == "users" else f"safe_{answer.unit.replace('/', '_per_').replace(' ', '_')}"
    return {name: answer.load, "limited_by": answer.breaks_first, "reason": answer.reason}


def safe_record(found: Sequence[SafeLoad], slo: str, basis: str) -> dict[str, Any]:
    """Return the safe load of each kind of traffic, and all tested loads."""
    content: dict[str, Any] = {"slo": slo, "basis": basis}
    content |= {"probability": found[0].probability} if found else {}
    for answer in found:
        row = safe_row(answer)
        name = next(iter(row))
        points = [
            {"load": point.load, "safe": point.safe, "violated": point.broken}
            | {k: v if math.isfinite(v) else None for k, v in point.summary.items()}
            for point in answer.points
        ]
        content[name] = row[name]
        content |= {f"{name.removeprefix('safe_')}_at_{100 * share:g}": load for share, load in answer.at}
        content[name.removeprefix("safe_") + "_search"] = {
            "limited_by": answer.breaks_first,
            "reason": answer.reason,
            "points": points,
        }
    return content


def compare_record(found: Compared, utilisation: Ratio) -> dict[str, Any]:
    """Return the metrics of each plan, and causes of differences to the first.

    `utilisation` is the mean load over the peak load, for the cost of a token.
    """
    sides = [{"plan": side.name, **side.figures(utilisation)} for side in found.sides]
    causes = {name: list(lines) for name, lines in differences(found)}
    left_out = [{"place": place, "plan": name, "reason": why} for place, name, why in found.left_out]
    return {"users": found.users, "rent_term": found.rent_term, "plans": sides, "left_out": left_out, "causes": causes}
