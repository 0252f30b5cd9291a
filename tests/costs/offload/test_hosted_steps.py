"""Decode and prompt speed of a deployment with weights in host memory, and what it asks of the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seed_systems import share_of_bytes

from glmplan.catalog.entries.hosts import load_host
from glmplan.catalog.schema.host import Host
from glmplan.costs.network.links import host_transfer_rate
from glmplan.costs.offload.steps import HostedSteps, Offload
from glmplan.costs.offload.work import HostSide, Placement, host_side, load_offload_fit
from glmplan.costs.points import StepPoints
from glmplan.errors import UnknownFact
from glmplan.io.runs.table import run_from_row
from glmplan.planner.hazards import PlanFacts, hazards_for, is_safe
from glmplan.prediction.evidence import evidence_of_offloading
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import Load
from glmplan.prediction.predict import predict, predict_steps, step_seconds
from glmplan.prediction.step_models import step_model_of

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
ONE = np.ones(1)
DECODE = StepPoints(ONE, ONE * 969.0, 0 * ONE, 0 * ONE)


def on_xeon(share=1.0, unit="experts", streams_above=float("inf")):
    return replace(DEEPSEEK, offload=Offload(Placement(share, unit), host_side(XEON, 1), streams_above))


def seed_report():
    host, cards = load_host("six-cards-and-display-gpu"), 4
    side = HostSide(float("inf"), link=cards * host_transfer_rate(host, count=cards))
    share = share_of_bytes(GLM.model, GLM.checkpoint, 160e9)
    return replace(GLM, offload=Offload(Placement(share, mode="stream"), side)), host


def test_the_tutorial_machine_decodes_as_it_was_measured():
    # 8 experts, V0.2.1: 13.5 tok/s after 969 tokens
    found = predict(on_xeon(), Load(1.0, 969.0, 0.0, phase="decode"))
    rate = found.figures["user_rate"]
    assert rate.value == pytest.approx(13.5, rel=0.2)
    assert rate.low < 13.5 < rate.high
    assert found.shares["host"] > 0.5
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_a_long_prompt_is_streamed_and_a_short_one_is_not():
    slow, quick = on_xeon(), on_xeon(streams_above=400.0)
    for tokens, streamed in ((300.0, False), (32768.0, True)):
        load = Load(1.0, tokens, 0.0, budget=65536, phase="prefill")
        cpu, either = (predict(one, load) for one in (slow, quick))
        assert (either.shares["links"] > 0.1) is streamed
        assert (either.figures["ttft"].value < cpu.figures["ttft"].value) is streamed


def test_experts_computed_on_the_cpu_leave_the_links_idle():
    steps = step_model_of(on_xeon())
    assert isinstance(steps, HostedSteps)
    assert steps.link_rate(DECODE)[0] < 0.01 * steps.offload.side.link


def test_streamed_experts_fill_the_links_and_end_in_the_hazard_of_the_seed_report():
    away, host = seed_report()
    steps = step_model_of(away)
    points = StepPoints(ONE * 64.0, ONE * 512.0, 0 * ONE, 0 * ONE)
    passed, held = float(steps.link_rate(points)[0]), float(steps.work(points).held_bytes[0])
    assert passed > 0.9 * steps.offload.side.link
    assert held == pytest.approx(160e9)
    facts = PlanFacts(members=(0, 1, 2, 3), tp=4, host_transfer=passed / 4, pinned=held)
    assert not is_safe(hazards_for(host, facts))


def test_the_cpu_cannot_compute_on_a_host_whose_memory_is_unknown():
    with pytest.raises(UnknownFact, match="memory bandwidth"):
        host_side(load_host("six-cards-and-display-gpu"), 4)


def test_nothing_in_host_memory_costs_the_host_nothing():
    found = predict(on_xeon(0.0), Load(1.0, 969.0, 0.0, phase="decode"))
    assert found.shares["host"] == found.shares["links"] == 0.0


@given(share=st.floats(0.0, 0.9), more=st.floats(0.0, 0.1), unit=st.sampled_from(["experts", "expert-layers"]))
def test_more_in_host_memory_is_never_faster(share, more, unit):
    one, other = (float(step_model_of(on_xeon(part, unit)).times(DECODE).seconds[0]) for part in (share, share + more))
    assert other >= one * (1 - 1e-9)


def test_a_wish_for_more_than_the_experts_takes_all_of_them():
    assert share_of_bytes(GLM.model, GLM.checkpoint, 1e15) == 1.0


def test_what_runs_of_a_machine_taught_scales_its_figures_and_narrows_their_intervals():
    fit, steps = load_offload_fit(), step_model_of(on_xeon())
    taught = replace(fit, machines={"xeon": {"decode": (np.log(1.5), 0.1), "prefill": (-np.log(4.0), 0.1)}})
    load = Load(1.0, 969.0, 64.0, phase="serving")
    plain, sure, unsure = (
        predict_steps(steps, load, evidence_of_offloading(name, certain=certain, fit=taught)).figures
        for name, certain in (("", True), ("xeon", True), ("xeon", False))
    )
    assert sure["tpot"].value == pytest.approx(plain["tpot"].value / 1.5)
    assert sure["ttft"].value == pytest.approx(plain["ttft"].value * 4.0)
    assert sure["tpot"].high / sure["tpot"].low == pytest.approx(np.exp(0.2))
    # a machine that may be this one is shifted alike, but not as sure
    assert unsure["tpot"].value == sure["tpot"].value
    assert unsure["tpot"].high / unsure["tpot"].low == pytest.approx(plain["tpot"].high / plain["tpot"].low)


def test_no_end_of_an_interval_reads_host_memory_faster_than_it_can_be_read():
    steps = step_model_of(on_xeon())
    taught = replace(load_offload_fit(), machines={"xeon": {"decode": (np.log(2.5), 0.1)}})
    load = Load(1.0, 969.0, 0.0, phase="decode")
    found = predict_steps(steps, load, evidence_of_offloading("xeon", certain=False, fit=taught)).figures["tpot"]
    work = steps.work(StepPoints(ONE, ONE * 969.0, 0 * ONE, 0 * ONE))
    assert found.low >= float(work.host_bytes[0]) / steps.offload.side.bandwidth * (1 - 1e-9)
    assert found.low == found.best and found.low < found.value < found.high


def test_drafted_tokens_visit_experts_of_their_own():
    # three tokens of a request are verified in a step: it reads more experts, but fewer than three steps do
    alone, drafted = (step_seconds(replace(on_xeon(), draft_tokens=number)) for number in (0, 2))
    step = {
        "decode_requests": ONE,
        "decode_context": ONE * 969.0,
        "prefill_tokens": 0 * ONE,
        "prefill_context": 0 * ONE,
    }
    assert 1.5 < drafted(**step)[0] / alone(**step)[0] < 3.0
