"""Collectives of a step: over PCIe as the network says, elsewhere as kernel tables do; contexts that are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import host_names, implied_host, load_host, load_machine
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import uniform_checkpoint
from glmplan.costs.kernels.utilisation import CollectiveParams, collective_seconds
from glmplan.costs.network.collectives import all_gather_time, all_reduce_time, point_to_point_time
from glmplan.costs.network.links import LayoutLinks, links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import (
    all_gather_seconds,
    all_reduce_seconds,
    context_exchange_seconds,
    hand_over_seconds,
    step_work,
)
from glmplan.errors import GlmplanError

SIZES = np.array([0.0, 8e3, 64e3, 512e3, 4e6])
LARGE = np.array([4096.0, 1e5, 1e6, 1e7, 1e8, 1e9])
PART = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
KIMI = StepWork(
    load_model("kimi-k2.5"), uniform_checkpoint("int4"), PART,
    links_of_layout(load_machine("workstation-2-switches-8"), tp=8, dcp=8),
)  # fmt: skip
SWITCH = replace(
    KIMI, part=Part("h200-sxm", 4.8e12, {"bf16": 989e12}, family="9"),
    link=links_of_layout(load_machine("hgx-h200-8"), tp=8, dcp=8),
)  # fmt: skip


def on(host: str, **layout: int) -> StepWork:
    """The same model on a named machine, or on as many cards as the name says."""
    return replace(KIMI, link=links_of_layout(load_machine(host), **layout))


@pytest.mark.parametrize("structure", [KIMI, SWITCH])
@pytest.mark.parametrize("seconds", [all_reduce_seconds, all_gather_seconds])
def test_nobody_to_talk_to_costs_nothing_and_more_is_never_faster(structure, seconds):
    link = structure.link.tensor
    latency, payload = seconds(structure, link, SIZES, 1.0)
    assert (latency == 0).all() and (payload == 0).all()
    for few, many in ((2.0, 4.0), (4.0, 8.0)):
        for one, other in zip(seconds(structure, link, SIZES, few), seconds(structure, link, SIZES, many), strict=True):
            assert (np.asarray(other) >= np.asarray(one)).all()
    assert (np.diff(seconds(structure, link, SIZES, 8.0)[1]) >= 0).all()


@pytest.mark.parametrize(
    ("host", "ranks", "message", "microseconds"),
    [
        # links.toml as of 2026-11: launch + 14 hops + 1.75 of the message over 63.0 GB/s x efficiency, by hand
        ("workstation-2-switches-8", 8, 12288.0, 19.9),
        ("workstation-2-switches-8", 8, 1e6, 86.7),
        ("workstation-2-switches-8", 8, 1e8, 3689.0),
        ("turin-2s-direct-8-tuned", 8, 1e8, 4501.0),
        ("8xrtx-pro-6000-ws", 8, 1e8, 7720.0),
        ("quad-rtx-5090", 4, 1e8, 4888.0),
    ],
)
def test_a_step_takes_the_links_that_the_network_finds_on_its_host(host, ranks, message, microseconds):
    structure = on(host, tp=ranks)
    link = structure.link.tensor
    step = sum(all_reduce_seconds(structure, link, message, float(ranks)))
    assert step == all_reduce_time(message_bytes=message, ranks=float(ranks), link=link)
    assert step * 1e6 == pytest.approx(microseconds, rel=0.01)


PARTS = ("rtx-pro-6000-ws", "rtx-5090", "l40s", "h100-sxm", "b200-sxm", "mi300x", "gb200", "dgx-spark", "ascend-910c")
MACHINES = [*host_names(), *(f"{n}x{part}" for n in (2, 4, 8, 16) for part in PARTS)]


def layouts(host):
    """Layouts on a machine whose links are known, with the links."""
    for width in (2, 3, 4, 6, 8, 16, 72):
        for degrees in ({"tp": width}, {"tp": 2, "dp": width // 2}, {"tp": width, "dcp": width}, {"pp": width},
                        {"tp": 2, "pp": width // 2}):  # fmt: skip
            try:
                yield degrees, links_of_layout(host, **degrees)
            except GlmplanError:
                continue


@pytest.mark.parametrize("name", MACHINES)
def test_no_bandwidth_in_a_step_exceeds_its_link(name):
    host = load_machine(name)
    cards = {card.link.bandwidth for card in host.slots if card.link}
    inside = host.scale_up.bandwidth if host.scale_up else 0.0
    for degrees, links in layouts(host):
        tp, pp, wide = degrees.get("tp", 1), degrees.get("pp", 1), degrees.get("tp", 1) * degrees.get("dp", 1)
        for algorithm in ("", "best"):  # what runs by itself, and the one-shot kernel where it can run
            for link, n in ((links.tensor, tp), (links.experts, wide), (links.context, degrees.get("dcp", 1))):
                if n == 1:
                    continue
                used = replace(link, algorithm="best") if algorithm and link.one_shot else link
                structure = replace(SWITCH if link.kind in ("nvlink", "xgmi") else KIMI, link=links)
                times = {
                    "all-reduce": (2.0, sum(all_reduce_seconds(structure, used, LARGE, float(n)))),
                    "all-gather": (1.0, sum(all_gather_seconds(structure, used, LARGE, float(n)))),
                }
                for what, (ways, seconds) in times.items():
                    bound = ways * (n - 1) / n * LARGE / link.bandwidth
                    assert (seconds >= bound).all(), (name, degrees, what)
                if link.kind == "pcie":
                    assert link.bandwidth <= min(cards) and link.mesh_bandwidth <= link.bandwidth
                elif link.kind in ("nvlink", "xgmi"):
                    assert link.bandwidth <= inside
        if pp > 1:
            structure = replace(SWITCH if links.hand_over.kind in ("nvlink", "xgmi") else KIMI, link=links)
            seconds = sum(hand_over_seconds(structure, structure.link.hand_over, LARGE, float(pp)))
            assert (seconds >= (pp - 1) * LARGE / links.hand_over.bandwidth).all(), (name, degrees)
            assert links.hand_over.bandwidth <= max([inside, *cards, host.fabric.bandwidth if host.fabric else 0.0])


@pytest.mark.parametrize("name", ["workstation-2-switches-8", "quad-rtx-5090", "8xrtx-pro-6000-ws", "2xdgx-spark"])
def test_gathers_and_hand_overs_of_a_step_are_those_of_the_network(name):
    n = load_machine(name).accelerator_count
    structure = on(name, tp=n, dcp=n)
    link = structure.link.context
    np.testing.assert_allclose(
        sum(all_gather_seconds(structure, link, LARGE, float(n))),
        all_gather_time(message_bytes=LARGE, ranks=n, link=link), rtol=1e-12,
    )  # fmt: skip
    stages = on(name, pp=n)
    np.testing.assert_allclose(
        sum(hand_over_seconds(stages, stages.link.hand_over, LARGE, float(n))),
        point_to_point_time(message_bytes=LARGE, ranks=n, link=stages.link.hand_over), rtol=1e-12,
    )  # fmt: skip


def test_behind_nvlink_it_is_the_collective_of_the_table():
    params = SWITCH.collective()
    assert isinstance(params, CollectiveParams)
    for n in (1.0, 2.0, 4.0, 8.0):
        step = sum(all_reduce_seconds(SWITCH, SWITCH.link.tensor, LARGE, n))
        np.testing.assert_array_equal(step, collective_seconds(LARGE, n, link_bandwidth=450e9, params=params))


def test_half_of_a_mesh_reaches_its_own_links_only():
    whole, half = (links_of_layout(load_host("mi300x-8"), tp=n).tensor for n in (8, 4))
    assert half.bandwidth == pytest.approx(3 / 7 * whole.bandwidth)
    seconds = [all_reduce_seconds(SWITCH, one, 1e8, 4.0)[1] for one in (half, whole)]
    assert seconds[0] / seconds[1] == pytest.approx(7 / 3, rel=0.01)


def test_the_one_shot_kernel_helps_small_messages_and_never_hurts():
    stock, shot = (
        replace(KIMI, link=links_of_layout(implied_host("rtx-pro-6000-ws", 4), tp=4, one_shot=on))
        for on in (False, True)
    )
    ring, best = (np.add(*all_reduce_seconds(one, one.link.tensor, SIZES, 4.0)) for one in (stock, shot))
    assert (best <= ring * (1 + 1e-12)).all()
    # voipmonitor/rtx6kpro optimization/pcie-oneshot-allreduce.md: 9.2 instead of 15.6 us at 32 KB on four cards
    assert np.add(*all_reduce_seconds(shot, shot.link.tensor, 32768.0, 4.0)) == pytest.approx(9.2e-6, rel=0.2)
    assert np.add(*all_reduce_seconds(stock, stock.link.tensor, 32768.0, 4.0)) == pytest.approx(15.6e-6, rel=0.2)


def test_the_link_of_a_group_of_one_serves_no_larger_group():
    alone = on("8xrtx-pro-6000-ws")
    with pytest.raises(ValueError, match="group of one"):
        all_reduce_seconds(alone, alone.link.tensor, 1e6, np.array([1.0, 8.0]))
    with pytest.raises(ValueError, match="group of one"):
        hand_over_seconds(SWITCH, links_of_layout(load_host("hgx-h200-8"), tp=8).hand_over, 1e6, 2.0)


def test_stages_hand_over_on_their_own_link():
    # four cards of each switch send over one uplink at once
    crossing, alone = (on("workstation-2-switches-8", tp=tp, pp=2).link.hand_over for tp in (4, 1))
    assert crossing.bandwidth == pytest.approx(alone.bandwidth / 4)
    # two nodes of eight: groups of eight stay on NVLink, their hand-over takes the network
    pair = load_host("hgx-h100-8").model_copy(update={"nodes": 2})
    links = links_of_layout(pair, tp=8, pp=2)
    assert (links.tensor.kind, links.hand_over.kind) == ("nvlink", "fabric")
    assert links.hand_over.bandwidth == pytest.approx(50e9)  # one port of 400 Gbit/s
    points = StepPoints(np.array([1.0]), 1000.0, np.array([8192.0]), 4096.0, 0.0)
    layout = Layout(tp=8.0, pp=2.0, dp=1.0, ep=1.0, dcp=1.0)
    over = LayoutLinks(links.tensor, links.experts, links.context, links.tensor)
    slow, quick = (
        step_work(replace(SWITCH, link=one), layout=layout, points=points)["collective_bytes"][0]
        for one in (links, over)
    )
    assert slow > quick


def test_dividing_a_context_costs_what_was_measured():
    # Kimi-K2.5 on eight cards, one user: 68 tokens/s with DCP8, 79 without, over 61 layers
    measured = (1 / 68 - 1 / 79) / 61
    latency, payload = context_exchange_seconds(KIMI, KIMI.link.context, 1.0, 64 * 576.0, 64 * 512.0, 8.0)
    assert latency + payload == pytest.approx(measured, rel=0.3)


def test_dividing_a_context_moves_more_the_more_requests_there_are():
    def moved(dcp, requests):
        points = StepPoints(np.array([requests]), 1000.0, 0.0, 0.0, 0.0)
        layout = Layout(tp=8.0, pp=1.0, dp=1.0, ep=1.0, dcp=dcp)
        work = step_work(KIMI, layout=layout, points=points)
        return np.array([work["collective"][0], work["collective_bytes"][0]])

    few, many = (moved(8.0, n) - moved(1.0, n) for n in (1.0, 64.0))
    assert few[0] == pytest.approx(many[0])
    assert many[1] > 30 * few[1] > 0


GLM = replace(KIMI, model=load_model("glm-5.2"), checkpoint=uniform_checkpoint("nvfp4"))


def prompt_payload(structure, dcp, tokens=1000.0):
    """Return the payload time of a prompt in one step, [s]."""
    points = StepPoints(0.0, 0.0, np.array([tokens]), np.array([tokens / 2]), 0.0)
    layout = Layout(tp=8.0, pp=1.0, dp=1.0, ep=1.0, dcp=dcp)
    return step_work(structure, layout=layout, points=points)["collective_bytes"][0]


def test_prompts_of_sparse_latents_exchange_queries_and_results_in_every_layer():
    more = prompt_payload(GLM, 8.0) - prompt_payload(GLM, 1.0)
    _, payload = context_exchange_seconds(GLM, GLM.link.context, 1000.0, 64 * 576.0, 64 * 512.0, 8.0)
    assert more == pytest.approx(len(GLM.model.layer_names) * payload, rel=0.02)


@pytest.mark.parametrize("other", [KIMI, replace(GLM, gathers_latents=True), replace(GLM, sparse=False)])
def test_prompts_of_other_latents_exchange_none(other):
    assert prompt_payload(other, 8.0) == prompt_payload(other, 1.0)
