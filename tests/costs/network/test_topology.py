"""Simultaneous transfers on link graphs: conservation, fairness, and the measured patterns of real machines."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.costs.network.topology import (
    HOST,
    conditions_of,
    flow_rates,
    link_graph,
    link_loads,
    measured_cost,
    named_conditions,
)
from glmplan.errors import SpecError, UnknownFact

ends = st.integers(0, 7)
flows = st.lists(st.tuples(ends, ends).filter(lambda flow: flow[0] != flow[1]), min_size=1, max_size=12)


def alone(host, start, end):
    """What one transfer reaches when nothing else moves, [B/s]"""
    return float(flow_rates(host, [(start, end)])[0])


def gigabytes(host, *transfers, writes=True):
    return float(flow_rates(load_host(host), list(transfers), writes=writes).sum()) / 1e9


@pytest.mark.parametrize(
    ("host", "transfers", "measured"),
    [
        # github.com/voipmonitor/rtx6kpro @29f3863; row in calibration/measurements/pcie-topologies.csv
        ("wrx90-2-switches-8", [(0, 1)], 53.4),  # t0344
        ("wrx90-2-switches-8", [(0, 1), (2, 3)], 107.5),  # t0345
        ("wrx90-2-switches-8", [(0, 4), (1, 5)], 53.8),  # t0347
        ("wrx90-2-switches-8", [(0, 4), (1, 5), (2, 6), (3, 7)], 53.3),  # t0348
        ("wrx90-3-switches-8", [(0, 4), (1, 5), (2, 6), (3, 7)], 108.6),  # t0392
        ("wrx90-3-switches-8", [(i, (i + 3) % 8) for i in range(8)], 8 * 32.84),  # t0365
        ("wrx90-2-switches-8", [(i, (i + 2) % 8) for i in range(8)], 8 * 37.89),  # t0328
        ("asus-esc8000a-e13p", [(0, 2)], 53.9),  # t0182: virtual switches of one chip
        ("asus-esc8000a-e13p", [(0, 4)], 39.6),  # t0177: across sockets
        ("asus-esc8000a-e13p", [(0, 4), (2, 6)], 79.0),  # t0179
        ("asus-esc8000a-e13p", [(0, 4), (1, 5)], 43.3),  # t0180
        ("asus-esc8000a-e13p", [(0, 4), (1, 6)], 2.7),  # t0178: collapse
        ("wrx90-4-switches-16-collapsing", [(0, 4), (1, 8)], 13.5),  # t0187: collapse
        ("wrx90-4-switches-16-four-roots", [(0, 4), (1, 8)], 52.2),  # t0244: no collapse
        ("wrx90-2-switches-8-two-roots", [(HOST, i) for i in range(8)], 114.1),  # t0436
        ("wrx90-2-switches-8-one-root", [(HOST, i) for i in range(8)], 73.09),  # t0437
    ],
)
def test_a_measured_pattern_is_met(host, transfers, measured):
    assert gigabytes(host, *transfers) == pytest.approx(measured, rel=0.15)


def test_reads_do_not_collapse():
    assert gigabytes("asus-esc8000a-e13p", (4, 0), (6, 1), writes=False) > 10 * gigabytes(
        "asus-esc8000a-e13p", (0, 4), (1, 6)
    )


def test_acs_redirection_makes_both_directions_share_the_root_port():
    host = load_host("asus-esc8000a-e13p")
    redirected = host.model_copy(
        update={"switches": tuple(switch.model_copy(update={"acs_redirect": True}) for switch in host.switches)}
    )
    both = [(0, 1), (1, 0)]
    assert flow_rates(host, both).sum() / 1e9 == pytest.approx(103, rel=0.1)  # t0052
    assert flow_rates(redirected, both).sum() / 1e9 == pytest.approx(50, rel=0.1)  # t0051


@settings(max_examples=40, deadline=None)
@given(flows)
def test_no_link_carries_more_than_it_can(transfers):
    for host in ("wrx90-2-switches-8", "turin-2s-direct-8"):
        assert all(load.load <= load.capacity * (1 + 1e-9) for load in link_loads(load_host(host), transfers))


@settings(max_examples=40, deadline=None)
@given(flows)
def test_every_transfer_gets_something_and_one_link_is_full(transfers):
    host = load_host("wrx90-2-switches-8")
    rates = flow_rates(host, transfers)
    assert (rates > 0).all()
    assert link_loads(host, transfers)[0].load == pytest.approx(link_loads(host, transfers)[0].capacity)


@settings(max_examples=30, deadline=None)
@given(ends, ends, flows)
def test_company_never_makes_a_transfer_faster(one, other, others):
    if one == other:
        return
    host = load_host("wrx90-2-switches-8")
    assert flow_rates(host, [(one, other), *others])[0] <= alone(host, one, other) * (1 + 1e-9)


def test_nvlink_is_preferred_to_pcie():
    host = load_host("hgx-b200-8")
    assert alone(host, 0, 7) > 600e9
    assert "scale-up switch" in link_graph(host)


def test_a_pair_of_a_mesh_has_one_link():
    # github.com/ROCm/rccl/issues/1210: 48 of 64 GB/s for each of the seven links of an MI300X
    assert alone(load_host("mi300x-8"), 0, 1) / 1e9 == pytest.approx(48, rel=0.1)


def test_an_accelerator_that_does_not_exist_is_refused():
    with pytest.raises(SpecError, match="which has 8"):
        alone(load_host("hgx-b200-8"), 0, 8)


def test_a_machine_without_known_links_says_so():
    with pytest.raises(UnknownFact, match="unknown"):
        alone(load_host("nizwo-a1"), 0, HOST)


@pytest.mark.parametrize("name", host_names())
def test_every_host_builds_a_graph_with_its_accelerators(name):
    host = load_host(name)
    kinds = [data["kind"] for _, data in link_graph(host).nodes(data=True)]
    assert kinds.count("accelerator") == host.accelerator_count


def test_every_named_condition_has_a_measured_cost():
    for condition in named_conditions():
        costs = measured_cost(condition)
        assert costs and all(abs(cost.ratio - 1) > 0.1 for cost in costs)


def test_the_seed_machine_shows_its_display_on_the_root_of_its_last_cards():
    host = load_host("six-cards-and-display-gpu")
    display = next(device for device in host.devices if device.kind == "display")
    assert {number for number, card in enumerate(host.slots) if card.parent == display.parent} == {3, 4, 5}


def test_conditions_are_read_off_the_description():
    names = {condition.name for condition in conditions_of(load_host("wrx90-2-switches-8-one-root"))}
    assert names == {"shared-root-complex"}


def test_links_for_a_plan_need_no_graph_library():
    code = (
        "import sys; from glmplan.catalog.entries.hosts import load_machine; "
        "from glmplan.costs.network.links import links_of_layout;"
        "links_of_layout(load_machine('6xrtx-pro-6000-ws'), tp=2, pp=3);"
        "print('networkx' in sys.modules, 'scipy' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        == ["False"] * 2
    )


def test_nodes_meet_over_their_network_and_share_nothing_else():
    pair = load_host("hgx-h100-8").model_copy(update={"nodes": 2})
    inside, across = alone(pair, 8, 15), alone(pair, 0, 8)
    assert inside > 300e9
    assert 30e9 < across < 50e9  # one port of 400 Gbit/s
    assert flow_rates(pair, [(0, 8), (1, 9)]) == pytest.approx([across, across])


def test_a_rack_is_one_domain_through_all_its_nodes():
    rack = load_host("gb200-nvl72")
    assert alone(rack, 0, 71) == pytest.approx(alone(rack, 0, 1))


def test_cards_of_one_socket_do_not_meet_in_its_memory():
    from glmplan.costs.network.topology import route

    crossed = {node for edge in route(load_host("wrx90-2-switches-8"), 0, 4) for node in edge}
    assert not any(node.startswith("memory") for node in crossed)
