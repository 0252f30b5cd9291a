"""What a group of ranks sees of a host: kinds, rates, and the measured times that they lead to."""

from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import implied_host, load_host, load_machine
from glmplan.costs.network.collectives import all_reduce_time
from glmplan.costs.network.links import link_for_group, load_link_fits, pcie_rates
from glmplan.errors import SpecError, UnknownFact


def microseconds(host, ranks, message, algorithm=None):
    link = link_for_group(load_host(host), ranks)
    link = replace(link, algorithm=algorithm) if algorithm else link
    return float(all_reduce_time(message_bytes=message, ranks=ranks, link=link)) * 1e6


@pytest.mark.parametrize(
    ("host", "ranks", "message", "algorithm", "measured", "within"),
    [
        # github.com/voipmonitor/rtx6kpro @29f3863, hardware/pcie-bandwidth.md and the pages named in the ledger
        ("trpro-3-switches-8", 8, 8192, None, 24.2, 0.2),
        ("trpro-3-switches-8", 8, 8192, "one-shot", 9.2, 0.2),
        ("asus-esc8000a-e13p", 4, 4096, "one-shot", 6.2, 0.25),
        ("asus-esc8000a-e13p", 4, 32 << 20, None, 1277, 0.18),
        # @3634b44, hardware/epyc9124-direct-attach.md
        ("genoa-2s-direct-8-four-channels", 8, 1 << 20, "one-shot", 288.6, 0.1),
        ("genoa-2s-direct-8-four-channels", 8, 1 << 15, None, 24.9, 0.2),
        ("turin-2s-direct-8", 8, 65536, None, 48.69, 0.15),
        ("turin-2s-direct-8-tuned", 8, 65536, None, 25.59, 0.2),
        ("wrx90-2-switches-8-two-roots", 8, 4 << 20, None, 182.5, 0.15),
        # ai-dynamo/aiconfigurator, vLLM 0.20 all-reduce in a CUDA graph
        ("hgx-h200-8", 8, 8192, None, 5.27, 0.2),
        ("hgx-b200-8", 4, 8192, None, 7.57, 0.2),
    ],
)
def test_a_measured_all_reduce_is_met(host, ranks, message, algorithm, measured, within):
    assert microseconds(host, ranks, message, algorithm) == pytest.approx(measured, rel=within)


def test_cards_of_a_pipeline_stage_pair_meet_over_pcie():
    link = link_for_group(load_machine("6xrtx-pro-6000-ws"), 2)
    assert (link.kind, link.algorithm) == ("pcie", "ring")
    assert link.bandwidth == pytest.approx(63.0e9, rel=1e-3)  # 32 GT/s x 16 lanes, 128b/130b


def test_shared_uplinks_lower_the_mesh_but_not_the_ring():
    ring, mesh, crosses = pcie_rates(load_host("wrx90-2-switches-8"), tuple(range(8)))
    # 16 transfers leave each switch over one x16 link, seven leave each card.
    assert mesh == pytest.approx(ring * 7 / 16)
    assert not crosses


def test_a_ring_in_a_bad_order_shares_the_uplinks():
    host = load_host("wrx90-2-switches-8")
    good, _, _ = pcie_rates(host, (0, 1, 2, 3, 4, 5, 6, 7))
    bad, _, _ = pcie_rates(host, (0, 4, 1, 5, 2, 6, 3, 7))
    assert bad == pytest.approx(good / 4)


def test_the_slowest_of_equal_groups_counts():
    host = load_host("turin-2s-direct-6-mixed")
    assert link_for_group(host, 2).basis == "pcie/ring/two-sockets"  # cards 2 and 3 sit on different sockets
    assert link_for_group(host, 3).basis == "pcie/ring/direct"


def test_a_mesh_gives_a_small_group_only_its_own_links():
    host = load_host("mi300x-8")
    assert link_for_group(host, 8).bandwidth == pytest.approx(448e9)
    assert link_for_group(host, 2).bandwidth == pytest.approx(64e9)


def test_geforce_cards_copy_through_host_memory():
    assert link_for_group(load_machine("4xrtx-4090"), 4).basis == "pcie/ring/staged"
    assert link_for_group(load_machine("4xrtx-4090"), 4).one_shot is None


def test_vllm_custom_kernels_do_not_run_on_three_ranks():
    assert link_for_group(implied_host("rtx-pro-6000-ws", 3), 3).one_shot is None


def test_a_network_that_is_not_known_is_not_made_up():
    with pytest.raises(UnknownFact, match="network between nodes"):
        link_for_group(implied_host("b200-sxm", 16), 16)


def test_a_rack_is_one_domain():
    link = link_for_group(load_host("gb200-nvl72"), 72)
    assert (link.kind, link.bandwidth) == ("nvlink", 900e9)


def test_nodes_use_all_their_ports_together():
    link = link_for_group(load_host("hgx-h100-8").model_copy(update={"nodes": 2}), 16)
    assert link.kind == "fabric"
    assert link.bandwidth == pytest.approx(400e9)  # eight ports of 400 Gbit/s


@pytest.mark.parametrize("size", [0, 9])
def test_a_group_that_the_machine_cannot_hold_is_refused(size):
    with pytest.raises(SpecError, match="has 8"):
        link_for_group(load_host("hgx-b200-8"), size)


def test_the_fitted_record_is_what_the_ledgers_give_today():
    from same_text import same_to_rounding

    from glmplan.calibrate.links.fit import link_record
    from glmplan.catalog.files import data_folder

    # before they are written with four digits, constants differ by less than 1e-9 between processors with AVX-512,
    # with AVX2 and with neither: docs/decisions/processors.md
    shipped = (data_folder("calibration") / "fits" / "links.toml").read_text(encoding="utf-8")
    assert same_to_rounding(shipped, link_record())


def test_every_fitted_efficiency_is_a_share():
    fits = load_link_fits()
    assert all(0 < protocol.efficiency <= 1 for protocol in fits.protocols.values())
    assert np.all([0 < value < 1.3 for value in fits.scalars.values()])


@pytest.mark.parametrize(
    ("host", "ranks", "crossover"),
    # github.com/voipmonitor/rtx6kpro @29f3863 optimization/pcie-oneshot-allreduce.md "Auto Crossover Thresholds"
    [("asus-esc8000a-e13p", 4, 122880), ("trpro-3-switches-8", 8, 49152)],
)
def test_one_shot_kernels_lose_where_they_were_seen_to_lose(host, ranks, crossover):
    link = link_for_group(load_host(host), ranks)
    shot, ring = replace(link, algorithm="one-shot"), replace(link, algorithm="ring")
    faster = [
        bool(all_reduce_time(message_bytes=crossover * factor, ranks=ranks, link=shot)
             < all_reduce_time(message_bytes=crossover * factor, ranks=ranks, link=ring))
        for factor in (0.5, 2.0)  # the crossover is met within a factor of two
    ]  # fmt: skip
    assert faster == [True, False]


def test_acs_redirection_halves_a_ring_of_two():
    host = load_host("asus-esc8000a-e13p")
    redirected = host.model_copy(
        update={"switches": tuple(switch.model_copy(update={"acs_redirect": True}) for switch in host.switches)}
    )
    # rows t0051 and t0052 of pcie-topologies.csv: 50 against 103 GB/s both ways
    assert pcie_rates(redirected, (0, 1))[0] / pcie_rates(host, (0, 1))[0] == pytest.approx(50 / 103, rel=0.05)


def test_one_shot_kernels_are_not_offered_where_writes_collapse():
    assert link_for_group(load_host("wrx90-4-switches-16-collapsing"), 8).one_shot is None
    assert link_for_group(load_host("wrx90-4-switches-16-collapsing"), 4).one_shot is not None
    assert link_for_group(load_host("wrx90-4-switches-16-four-roots"), 8).one_shot is not None
