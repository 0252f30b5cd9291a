"""Return how a run was measured, and its misleading metrics.

Phase and protocol; a misleading metric differs from its column's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from glmplan.io.runs.columns import COLUMNS
from glmplan.units import Tokens

__all__ = ["LENGTHS", "TOTAL_IN_REQUEST_COLUMN", "phase_of", "prefix_cached", "protocol_of", "unusable", "withheld"]

#: protocols whose `output_tokens_per_s_per_request` column holds the total of all sequences
TOTAL_IN_REQUEST_COLUMN = frozenset({"llama-batched-bench", "llama-benchy"})

#: prompt and output lengths are uniform between these shares of the stated length (a mean for SGLang)
LENGTHS: dict[str, tuple[float, float]] = {"inferencex": (0.8, 1.0), "sglang-bench-random": (0.0, 2.0)}

#: protocol by the beginning of the scenario, first match; None: only the campaign decides
_SCENARIOS = (
    ("llama-benchy", "llama-benchy"),
    ("llama-batched-bench", "llama-batched-bench"),
    ("llama-bench", "llama-bench"),
    ("mlperf-offline", "mlperf-offline"),
    ("mlperf-server", "mlperf-server"),
    ("mlperf-interactive", "mlperf-interactive"),
    ("offline max throughput (trtllm-bench)", "trtllm-bench-offline"),
    ("serving lm arena chat", "ml-energy"),
    ("hybrid", "hybrid"),
    ("serving-random", "sglang-bench-random"),
    ("serving-sharegpt", "sharegpt"),
    ("serving random", "vllm-bench-random"),
    ("serving", "vllm-bench-random"),
    ("150 requests", "vllm-bench-random"),
    ("sharegpt", "sharegpt"),
    ("sonnet", "vllm-bench-sonnet"),
    ("single", "single-stream"),
    ("decode bs1", "single-stream"),
    ("mlx_lm.benchmark", "single-stream"),
    ("decode", "single-stream"),
)
#: protocol by the campaign; stronger than the scenario
_CAMPAIGNS = {
    "rtx6kpro-wiki-2026-05": "decode-grid",
    "gpustack-performance-lab": "gpustack",
    "ml.energy-leaderboard": "ml-energy",
    "ktransformers-docs": "hybrid",
}


def protocol_of(row: Mapping[str, str]) -> str:
    """Return the measuring protocol of a row.

    ``other``: neither campaign nor scenario tells.

    Examples
    --------
    >>> protocol_of({"scenario": "llama-bench tg32 @ d32768"})
    'llama-bench'
    >>> protocol_of({"notes": "InferenceX"})
    'inferencex'
    """
    given = row.get("protocol", "")
    if given:
        return given
    notes, campaign = row.get("notes", ""), row.get("campaign", "")
    if notes.startswith("InferenceX") or campaign == "inferencex":
        return "inferencex"
    if notes.startswith("vendor sweep") and row.get("model", "").startswith(("qwen3.5-397b", "kimi-k2.5")):
        return "inferencex"  # 81 such rows repeat InferenceX rows to the last digit but one
    if notes.startswith("vendor sweep") or campaign.startswith(("vendor-sweep", "inferencex-and-vendor")):
        return "vendor-sweep"
    if campaign in _CAMPAIGNS:
        return _CAMPAIGNS[campaign]
    scenario = row.get("scenario", "").lower()
    for start, protocol in _SCENARIOS:
        if scenario.startswith(start):
            return protocol
    if row.get("id", "").startswith("rtx-"):
        return "decode-grid"
    if row.get("phase") == "serving":
        return "burst" if row.get("num_requests", "no") == row.get("concurrency") else "closed-loop"
    return "single-stream" if row.get("phase") == "decode" and row.get("concurrency") in ("1", "1.0") else "other"


_COLD = re.compile(r"§ prefill|Prefill Speed|prefill expectations|prefill-only")
_DECODE = re.compile(r"tg\d|decode|single|approx|llama-batched-bench|\d experts|spicyneuron|mlx_lm|hybrid|p/d dis")
_PREFILL = re.compile(r"llama-bench pp\d+( @| at|$)|prefill only|prefill bench|^hybrid prefill|measured per-gpu")


def phase_of(row: Mapping[str, str]) -> str:
    """Return the phase of a row, from its column, scenario and metrics.

    ``serving`` (full run, prefill included), ``decode``, ``prefill`` or ``memory``.

    Examples
    --------
    >>> phase_of({"scenario": "llama-bench pp512"}), phase_of({"scenario": "mlperf-server"})
    ('prefill', 'serving')
    """
    given = row.get("phase", "")
    if given:
        # a cold prompt timed alone is a prefill, whatever the table's heading
        alone = row.get("ttft_ms") and not row.get("output_tokens_per_s") and _COLD.search(row.get("notes", ""))
        return "prefill" if given == "decode" and alone else given
    scenario = row.get("scenario", "").lower()
    figures = {name for name in ("output_tokens_per_s", "output_tokens_per_s_per_request") if row.get(name)}
    if _PREFILL.search(scenario):
        return "prefill"
    if row.get("prefill_tokens_per_s") and not figures:
        return "prefill"
    if _DECODE.search(scenario) and not scenario.startswith(("serving", "mlperf")):
        return "decode"
    return "serving"


def prefix_cached(row: Mapping[str, str]) -> bool:
    """Return True if a row's prompt was cached, so TTFT has no prefill.

    Examples
    --------
    >>> prefix_cached({"notes": "C=1 cells are cold (uncached) for ctx>0; C>=2 prefix-cached", "concurrency": "4"})
    True
    """
    if given := row.get("prefix_cached"):
        return COLUMNS["prefix_cached"].flag(given) is True
    notes = row.get("notes", "")
    if _COLD.search(notes) or "cold" in notes.partition("C>=2")[0] and row.get("concurrency") in ("1", "1.0"):
        return False
    return "prefix-cached" in notes or "prefix-shared" in notes or row.get("shared_prompt", "") == "yes"


#: largest difference of metrics with two digits [-]
_AS_ROUNDED = 0.02
_UNUSABLE = (
    (re.compile(r"\b6 of 8 experts activated"), "only 6 of 8 experts were active"),
    (re.compile(r"bug report: abnormally slow"), "a bug report of an abnormally slow run"),
    (re.compile(r"synthetic acceptance"), "speculative acceptance was forced to 100 %"),
    (re.compile(r"P/D disaggregated|decode GPUs only|prefill GPUs"), "prefill and decode on separate accelerators"),
    (re.compile(r"looks serialized"), "requests ran one after another"),
    (
        re.compile(r"GPU not stated next to the log|GPU see post|GPU type not unambiguous"),
        "the accelerator is not stated",
    ),
    (re.compile(r"page heading says"), "page heading and server command name different models"),
    (re.compile(r"before/after variant as quoted"), "values before and after a change are mixed"),
    (re.compile(r"open division"), "MLPerf open division: model or quality may differ"),
    (re.compile(r"overclocked"), "overclocked memory"),
)


def unusable(row: Mapping[str, str]) -> str | None:
    """Return why no metric of a row may be fitted or compared, or None.

    Examples
    --------
    >>> unusable({"trust": "D"})
    'trust D: a claim'
    """
    if row.get("trust", "").upper() == "D":
        return "trust D: a claim"
    if row.get("accelerator", "") == "mixed":
        return "several kinds of accelerator in one value"
    text = f"{row.get('notes', '')} {row.get('speculative', '')} {row.get('scenario', '')}"
    for pattern, reason in _UNUSABLE:
        if pattern.search(text):
            return reason
    if re.match(r"(?:dual socket |single socket )?6 experts", row.get("scenario", "")):
        return "only 6 of 8 experts were active"
    return None


def _is_share_of_total(row: Mapping[str, str], observed: Mapping[str, float]) -> bool:
    """Return True if the request speed is a share of the total, as rounded.

    The share is `output_tokens_per_s` over the concurrency.
    """
    each, total = (observed.get(name) for name in ("output_tokens_per_s_per_request", "output_tokens_per_s"))
    if not each or not total or phase_of(row) != "serving" or not (users := row.get("concurrency")):
        return False
    return abs(each * COLUMNS["concurrency"].number(users) / total - 1.0) < _AS_ROUNDED


def withheld(row: Mapping[str, str], observed: Mapping[str, float], output: Tokens | None = None) -> dict[str, str]:
    """Return misleading metrics of a row, each with the reason.

    Their meaning differs from that of their column.

    Examples
    --------
    >>> withheld({"notes": "mean TTFT dominated by a cold first request"}, {"ttft_mean_ms": 4500.0})
    {'ttft_mean_ms': 'mean dominated by a cold first request; use the median'}
    """
    notes, out = row.get("notes", ""), {}
    if "NOMINAL" in notes:
        out["prefill_tokens_per_s"] = "nominal label tokens divided by time: too high by an unknown factor"
    if "use ratios only" in notes:
        out["prefill_tokens_per_s"] = "implausibly high: client token accounting"
    if "mean TTFT dominated" in notes:
        out["ttft_mean_ms"] = "mean dominated by a cold first request; use the median"
    if "weights ~440 GB total" in notes:
        out["weights_gib_per_accelerator"] = "total of the checkpoint in GB, not GiB on one accelerator"
    if "kind not stated" in notes:
        out["total_tokens_per_s"] = "the source does not say which tokens it counts"
    if "reported" in notes and "incl prefill" in notes or "includes the wait" in notes:
        out["output_tokens_per_s_per_request"] = "wall clock, prefill included"
    elif _is_share_of_total(row, observed):
        out["output_tokens_per_s_per_request"] = "the total over the users: prompts and waiting are included"
    e2e, ttft = observed.get("e2e_mean_ms"), observed.get("ttft_mean_ms")
    for name in ("tpot_mean_ms", "itl_mean_ms"):
        stated = observed.get(name)
        if stated is None:
            continue
        if stated == 0:
            out[name] = "zero"
        elif name == "tpot_mean_ms" and e2e and ttft and output and output > 1:
            implied = (e2e - ttft) / (output - 1)
            if row.get("campaign") == "gpustack-performance-lab" and not 0.95 <= stated / implied <= 1.05:
                out[name] = f"contradicts its own latency: (e2e - ttft)/(output - 1) = {implied:.2f} ms"
    if "tpot_mean_ms" in out and out["tpot_mean_ms"] != "zero":
        for name in ("tpot_p50_ms", "tpot_p99_ms", "itl_mean_ms", "itl_p50_ms", "itl_p99_ms"):
            if name in observed:
                out[name] = "from the same broken token stream as tpot_mean_ms"
    for name in ("itl_p50_ms", "itl_p99_ms"):
        if observed.get(name) == 0:
            out.setdefault(name, "zero")
    return out
