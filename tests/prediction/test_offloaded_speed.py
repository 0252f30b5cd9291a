"""Decode and prompt speed of a deployment with weights in host memory, and what it asks of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.errors import UnknownFact
from glmplan.facts.catalogue.hosts import load_host
from glmplan.facts.schema.host import Host
from glmplan.physics.offload.time import Placement
from glmplan.plan.hazards import PlanFacts, hazards_for, is_safe
from glmplan.prediction.from_row import question_of
from glmplan.prediction.offloaded_speed import OffloadLoad, offload_speed, share_for
from glmplan.readers.runs.table import run_from_row

# the machine of the ktransformers tutorial: 2 x Xeon Gold 6454S, eight channels of DDR5-4800 each, one RTX 4090
XEON = Host(
    name="xeon",
    title="two sockets",
    source="https://github.com/kvcache-ai/ktransformers doc/en/DeepseekR1_V3_tutorial.md",
    sockets=[
        {"name": f"cpu{n}", "cores": 32, "memory_bandwidth": "307.2 GB/s", "memory_size": "512 GB"} for n in (0, 1)
    ],
    roots=[{"name": "r0", "socket": "cpu0"}],
    cards=[{"accelerator": "rtx-4090", "parent": "r0", "link": {"generation": 4, "lanes": 16}}],
)


def deployment(model, weights, part, count):
    cells = {"id": "a", "model": model, "weights": weights, "accelerator": part, "accelerator_count": str(count)}
    return question_of(run_from_row({**cells, "engine": "sglang"})).deployment


DEEPSEEK = deployment("deepseek-v3", "q4_k_m", "rtx-4090", 1)
GLM = deployment("glm-5.1", "nvfp4", "rtx-pro-6000-ws", 4)


def test_the_tutorial_machine_decodes_as_it_was_measured():
    # 8 experts, V0.2.1: 13.5 tok/s after 969 tokens
    found = offload_speed(DEEPSEEK, XEON, Placement(1.0), OffloadLoad(context=969.0, prompt_tokens=969.0))
    assert found.user_rate.value == pytest.approx(13.5, rel=0.2)
    assert found.user_rate.low < 13.5 < found.user_rate.high
    assert found.shares["host"] > 0.5
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_a_long_prompt_is_streamed_and_a_short_one_is_not():
    short, long = (
        offload_speed(DEEPSEEK, XEON, Placement(1.0), OffloadLoad(prompt_tokens=tokens, chunk=65536.0))
        for tokens in (16.0, 32768.0)
    )
    assert (short.prompt_mode, long.prompt_mode) == ("cpu", "stream")
    assert long.prefill_rate.value > short.prefill_rate.value


def test_experts_computed_on_the_cpu_leave_the_links_idle():
    found = offload_speed(DEEPSEEK, XEON, Placement(1.0), OffloadLoad())
    assert found.links_busy < 0.01


def test_streamed_experts_fill_the_links_and_end_in_the_hazard_of_the_seed_report():
    host = load_host("six-cards-and-display-gpu")
    away = replace(share_for(GLM, 160e9), mode="stream")
    found = offload_speed(GLM, host, away, OffloadLoad(requests=64.0))
    assert found.links_busy > 0.9
    assert found.host_bytes == pytest.approx(160e9)
    facts = PlanFacts(members=(0, 1, 2, 3), tp=4, host_transfer=found.host_transfer, pinned=found.host_bytes)
    assert not is_safe(hazards_for(host, facts))
    assert "not known" in found.note


def test_the_cpu_cannot_compute_on_a_host_whose_memory_is_unknown():
    with pytest.raises(UnknownFact, match="memory bandwidth"):
        offload_speed(GLM, load_host("six-cards-and-display-gpu"), Placement(0.3), OffloadLoad())


def test_nothing_in_host_memory_costs_the_host_nothing():
    found = offload_speed(DEEPSEEK, XEON, Placement(0.0), OffloadLoad())
    assert (found.host_bytes, found.host_transfer, found.shares["host"]) == (0.0, 0.0, 0.0)


@given(share=st.floats(0.0, 0.9), more=st.floats(0.0, 0.1), unit=st.sampled_from(["experts", "expert-layers"]))
def test_more_in_host_memory_is_never_faster(share, more, unit):
    one, other = (
        offload_speed(DEEPSEEK, XEON, Placement(part, unit), OffloadLoad()).decode_rate.value
        for part in (share, share + more)
    )
    assert other <= one * (1 + 1e-9)


def test_a_wish_for_more_than_the_experts_takes_all_of_them():
    assert share_for(GLM, 1e15).share == 1.0
