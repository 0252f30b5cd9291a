"""Parts of which not everything is published: what is known is answered, the rest is said to be unknown."""

from __future__ import annotations

import pytest

from glmplan.planner import fit_answer
from glmplan.present.answer_text import fit_text, missing_words
from glmplan.present.first_screen import first_screen
from glmplan.present.json_answers import fit_record
from glmplan.request.plan import PlanRequest


def test_a_part_without_memory_and_bandwidth_is_unknown_with_what_its_speeds_imply():
    answer = fit_answer(PlanRequest("glm-5.1-int4", "nizwo-a1"))
    assert answer.verdict == "unknown"
    assert answer.headline.startswith("unknown: memory, bandwidth")
    text = fit_text(answer)
    assert "unknown: memory, bandwidth" in text
    assert "1 TB/s to 1.4 TB/s" in text and "at least 400 GB" in text
    assert fit_record(answer)["unknown"] == ["memory", "memory_bandwidth"]


def test_a_part_without_matrix_rates_gives_decode_figures_only():
    answer = fit_answer(PlanRequest("glm-5.1-mlx-3.645bpw", "m3-ultra"))
    assert answer.asked.engine == "mlx"
    assert answer.unknown == ("matrix rate",)
    assert all(row.ttft is None and row.tpot.value > 0 for row in answer.users)
    users = fit_record(answer)["users"]
    assert users and all(row["ttft_mean_ms"] is None and "TTFT" in row["out_of_domain"] for row in users)
    assert "TTFT unknown" in missing_words(answer) and "first token, s" not in fit_text(answer)


def without_a_speed(answer):
    """Check that record and text have memory, but no speed."""
    record = fit_record(answer)
    assert record["memory"]["kv_pool_tokens"]["value"] > 0 and record["unknown"] == list(answer.unknown)
    assert record["users"] == [] and record["safe"] is None and not answer.user_rate and not answer.total_rate
    assert missing_words(answer).startswith("no speed")
    assert missing_words(answer) in " ".join(fit_text(answer).split())


def test_a_part_without_bandwidth_still_says_what_fits():
    answer = fit_answer(PlanRequest("llama-3.1-8b", "rtx-pro-6000d"))
    assert answer.verdict == "fits"
    assert answer.users == () and "memory_bandwidth" in answer.unknown
    without_a_speed(answer)


def test_experts_computed_by_processors_of_unknown_rates_have_no_invented_speed():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "2xrtx-pro-6000-ws", engine="ktransformers"))
    assert sum(row.host for row in answer.ranks) > 300 * 2**30
    assert answer.users == () and answer.unknown == ("memory bandwidth of the host",)


HOST = """
title = "two cards on one socket"
source = "an example"
[[sockets]]
name = "cpu0"
cores = 64
memory_size = "{size}"
memory_bandwidth = "460.8 GB/s"
[[roots]]
name = "r0"
socket = "cpu0"
[[cards]]
accelerator = "rtx-pro-6000-ws"
count = 2
parent = "r0"
link = {{ generation = 5, lanes = 16 }}
"""


def hosted(tmp_path, size):
    path = tmp_path / "machine.toml"
    path.write_text(HOST.format(size=size))
    return fit_answer(PlanRequest("glm-5.1-nvfp4", str(path), engine="ktransformers", users="1,8"))


def test_experts_on_a_known_host_are_bound_by_its_memory(tmp_path):
    answer = hosted(tmp_path, "768 GiB")
    one, eight = answer.users
    # about 16 GB of NVFP4 experts are read for a token: 460.8 GB/s allow fewer than 30 a second
    assert 3 < one.user_rate.value < 30
    assert one.shares["host"] > 0.4 and eight.shares["host"] > one.shares["host"]
    assert eight.user_rate.value < one.user_rate.value and eight.total_rate.value > one.total_rate.value
    assert "--kt-method" in " ".join(answer.command)
    assert answer.fits[0].endswith("offload.toml")


def test_a_plan_that_pins_more_memory_than_the_host_has_does_not_fit(tmp_path):
    answer = hosted(tmp_path, "256 GiB")
    assert answer.verdict == "does_not_fit" and answer.safe is None and not answer.users


def test_a_layout_over_nodes_of_unknown_network_fits_without_a_speed():
    answer = fit_answer(PlanRequest("glm-5.1-bf16", "16xh200-sxm"))  # 1,400 GiB of weights: no node of eight holds them
    assert answer.verdict == "fits" and answer.holding.terms.name == "TP8×PP2"
    assert answer.users == ()
    assert "network between nodes" in answer.unknown[0] and "[fabric]" in answer.unknown[0]
    without_a_speed(answer)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (PlanRequest("glm-5.1-nvfp4", "2xrtx-pro-6000-ws", engine="ktransformers"), "--host-memory-bandwidth"),
        (PlanRequest("qwen3-8b", "1xgh200-96gb"), "--on '1xgh200-96gb-own:memory=96GB,bandwidth=?GB/s,"),
    ],
)
def test_an_answer_without_a_speed_names_the_option_that_states_the_missing_fact(words, option):
    answer = fit_answer(words)
    without_a_speed(answer)
    assert option in first_screen(answer, 200).split("Ask next: ")[1]
