"""Single values of an answer of `fit` for the cells of a spreadsheet."""

from __future__ import annotations

from typing import Any

__all__ = ["VALUES", "values_of"]

#: figures of the largest number of users that was asked for: name here → field of the row
_FIGURES = {
    "tokens_per_s": "output_tokens_per_s",
    "user_tokens_per_s": "output_tokens_per_s_per_request",
    "ttft_ms": "ttft_mean_ms",
    "tpot_ms": "tpot_mean_ms",
}
#: name → what it is, with its unit
VALUES: dict[str, str] = {
    "verdict": "fits, tight, does_not_fit or unknown",
    "headline": "The verdict in one sentence",
    "layout": "Layout, such as TP2×PP3",
    "tokens_per_s": "Answer tokens of all users together in a second, at the largest number of users asked for",
    "user_tokens_per_s": "Answer tokens of one of them in a second",
    "ttft_ms": "Mean time to the first token [ms]",
    "tpot_ms": "Mean time of each further token [ms]",
    **{f"{name}_{end}": f"{end} end of the 90 % interval of {name}" for name in _FIGURES for end in ("low", "high")},
    "safe_users": "Users for whom every limit holds at the bad end of its interval",
    "expected_users": "The same in the mean",
    "limit": "What limits them",
    "context_tokens": "Longest single request that fits",
    "kv_pool_tokens": "Tokens of the KV cache pool",
    "requests_held": "Requests of the asked length that the pool holds",
    "weights_gib": "Weights on the fullest rank [GiB]",
    "engine": "Engine",
    "knowledge": "What the figures rest on",
    "command": "Command that starts the engine",
}


def values_of(record: dict[str, Any]) -> dict[str, Any]:
    """Take single values out of an answer.

    Parameters
    ----------
    record : dict
        An answer of `glmplan.report.fit_json.fit_record`.

    Returns
    -------
    dict
        Each of `VALUES`; None where the answer has none.
    """
    plan, memory, safe = record["plan"] or {}, record["memory"] or {}, record["safe"] or {}
    found: dict[str, Any] = {name: record[name] for name in ("verdict", "headline", "knowledge", "command")}
    found |= {"layout": plan.get("layout"), "engine": record["question"]["engine"]}
    row: dict[str, Any] = max(record["users"], key=lambda one: one["users"], default={})
    for name, field in _FIGURES.items():
        figure = row.get(field) or {}
        found |= {name: figure.get("value"), f"{name}_low": figure.get("low"), f"{name}_high": figure.get("high")}
    ranks = memory.get("ranks", ())
    found |= {
        "safe_users": safe.get("users"),
        "expected_users": safe.get("expected"),
        "limit": safe.get("limit"),
        "context_tokens": record["context"]["one_request_tokens"],
        "kv_pool_tokens": memory.get("kv_pool_tokens", {}).get("value"),
        "requests_held": memory.get("requests_held"),
        "weights_gib": max((rank["weights_total_gib"] for rank in ranks), default=None),
    }
    return {name: found[name] for name in VALUES}
