"""Measured figures that the step time is fitted to."""

from __future__ import annotations

__all__ = ["FIGURES"]

#: measured figure → (sum over steps, seconds for each unit of the figure; None marks a rate)
FIGURES: dict[str, tuple[str, float | None]] = {
    "ttft_mean_ms": ("ttft", 1e-3),
    "ttft_p50_ms": ("ttft_p50", 1e-3),
    "tpot_mean_ms": ("tpot", 1e-3),
    "tpot_p50_ms": ("tpot", 1e-3),
    "itl_p50_ms": ("itl_p50", 1e-3),
    "output_tokens_per_s": ("output_rate", None),
    "output_tokens_per_s_per_request": ("request_rate", None),
    "prefill_tokens_per_s": ("prefill_rate", None),
    "total_tokens_per_s": ("total_rate", None),
}
