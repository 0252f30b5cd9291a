"""Collectives of a step: over PCIe as the network says, elsewhere as kernel tables do; contexts that are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.facts.catalogue.models import load_model
from glmplan.physics.blocks.storage import uniform_checkpoint
from glmplan.physics.network.collectives import all_reduce_time
from glmplan.physics.network.links import load_link_fits
from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.collectives import all_gather_seconds, all_reduce_seconds, context_exchange_seconds
from glmplan.physics.step.structure import LinkPeak, Part, StepWork
from glmplan.physics.step.work import step_work

SIZES = np.array([0.0, 8e3, 64e3, 512e3, 4e6])
PART = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
CARDS = StepWork(load_model("kimi-k2.5"), uniform_checkpoint("int4"), PART, LinkPeak("pcie", 63e9))
SWITCH = StepWork(
    load_model("kimi-k2.5"), uniform_checkpoint("int4"), Part("h200-sxm", 4.8e12, {"bf16": 989e12}, family="9"),
    LinkPeak("nvlink", 450e9),
)  # fmt: skip


@pytest.mark.parametrize("structure", [CARDS, SWITCH])
@pytest.mark.parametrize("seconds", [all_reduce_seconds, all_gather_seconds])
def test_nobody_to_talk_to_costs_nothing_and_more_is_never_faster(structure, seconds):
    latency, payload = seconds(structure, SIZES, 1.0)
    assert (latency == 0).all() and (payload == 0).all()
    for few, many in ((2.0, 4.0), (4.0, 8.0)):
        for one, other in zip(seconds(structure, SIZES, few), seconds(structure, SIZES, many), strict=True):
            assert (np.asarray(other) >= np.asarray(one)).all()
    assert (np.diff(seconds(structure, SIZES, 8.0)[1]) >= 0).all()


def test_over_pcie_it_is_the_ring_that_several_machines_measured():
    ring = load_link_fits().protocols["pcie", "ring", "direct"]
    link = replace(CARDS.cards(4.0), ring=ring)
    latency, payload = all_reduce_seconds(CARDS, SIZES, 4.0)
    np.testing.assert_allclose(latency + payload, all_reduce_time(message_bytes=SIZES, ranks=4.0, link=link))


def test_the_one_shot_kernel_helps_small_messages_and_never_hurts():
    shot = replace(CARDS, link=replace(CARDS.link, one_shot=True))
    ring, best = (np.add(*all_reduce_seconds(one, SIZES, 4.0)) for one in (CARDS, shot))
    assert (best <= ring * (1 + 1e-12)).all()
    # voipmonitor/rtx6kpro optimization/pcie-oneshot-allreduce.md: 9.2 instead of 15.6 us at 32 KB on four cards
    assert np.add(*all_reduce_seconds(shot, 32768.0, 4.0)) == pytest.approx(9.2e-6, rel=0.2)
    assert np.add(*all_reduce_seconds(CARDS, 32768.0, 4.0)) == pytest.approx(15.6e-6, rel=0.2)


def test_dividing_a_context_costs_what_was_measured():
    # Kimi-K2.5 on eight cards, one user: 68 tokens/s with DCP8, 79 without, over 61 layers
    measured = (1 / 68 - 1 / 79) / 61
    latency, payload = context_exchange_seconds(CARDS, 1.0, 64 * 576.0, 64 * 512.0, 8.0)
    assert latency + payload == pytest.approx(measured, rel=0.3)


def test_dividing_a_context_moves_more_the_more_requests_there_are():
    def moved(dcp, requests):
        points = StepPoints(np.array([requests]), 1000.0, 0.0, 0.0, 0.0)
        layout = Layout(tp=8.0, pp=1.0, dp=1.0, ep=1.0, dcp=dcp)
        work = step_work(CARDS, layout=layout, points=points)
        return np.array([work["collective"][0], work["collective_bytes"][0]])

    few, many = (moved(8.0, n) - moved(1.0, n) for n in (1.0, 64.0))
    assert few[0] == pytest.approx(many[0])
    assert many[1] > 30 * few[1] > 0
