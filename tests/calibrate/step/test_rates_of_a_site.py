"""A site's rows that give a rate instead of users are used, by the requests in flight that their times imply."""

from __future__ import annotations

from glmplan.calibrate.step.own_site import calibrate_site
from glmplan.io.runs.table import run_from_row

ROW = {
    "model": "llama-3.1-8b", "accelerator": "h100-sxm", "tp": "1", "engine": "vllm", "weights": "bf16",
    "input_tokens": "1024", "output_tokens": "256", "ttft_mean_ms": "60", "tpot_mean_ms": "9", "phase": "serving",
}  # fmt: skip


def test_a_rate_with_its_times_is_as_good_as_users():
    """4 requests/s that stay 60 ms + 255 x 9 ms = 2.355 s are 9.42 in flight (Little's law)."""
    rate = run_from_row(ROW | {"id": "rate", "request_rate_per_s": "4"})
    users = run_from_row(ROW | {"id": "users", "concurrency": "9"})
    by_rate, by_users = calibrate_site([rate]), calibrate_site([users])
    assert by_rate.used == ("rate",) and not by_rate.refused
    key = next(iter(by_users.values["configuration"]))
    assert key in by_rate.values["configuration"]


def test_a_server_that_falls_behind_is_counted_by_what_it_answered():
    from glmplan.calibrate.step.own_site import _in_flight

    behind = run_from_row(ROW | {"id": "a", "request_rate_per_s": "40", "output_tokens_per_s": "1024"})
    # 1,024 tokens/s are 4 requests/s, whatever arrives
    assert _in_flight(behind).observed["concurrency_effective"] == 4 * 2.355
