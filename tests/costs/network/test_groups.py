"""Links of the groups of a layout: each group its own, shared ways divided, what is not known raised."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import host_names, implied_host, load_host
from glmplan.costs.network.links import (
    ALONE,
    hand_over_link,
    host_transfer_rate,
    link_for_group,
    links_of_layout,
    load_link_fits,
    path_to_root,
    transfer_rate,
)
from glmplan.costs.network.topology import flow_rates
from glmplan.errors import GlmplanError, SpecError, UnknownFact


def test_each_kind_of_group_gets_the_link_that_it_crosses():
    host = load_host("turin-2s-direct-8")
    links = links_of_layout(host, tp=4, dp=2, dcp=2)
    assert links.tensor == link_for_group(host, 4)  # on one socket
    assert links.experts == link_for_group(host, 8)  # over both
    assert links.context == link_for_group(host, 2)
    assert links.experts.basis == "pcie/ring/two-sockets" != links.tensor.basis
    assert links.hand_over.basis == ALONE


def test_the_same_layout_on_the_same_machine_is_looked_up_once():
    host = implied_host("rtx-pro-6000-ws", 8)
    assert links_of_layout(host, tp=4, pp=2) is links_of_layout(implied_host("rtx-pro-6000-ws", 8), tp=4, pp=2)
    assert hash(links_of_layout(host, tp=4)) != hash(links_of_layout(host, tp=8))


def test_a_one_shot_kernel_runs_only_where_peers_reach_each_other():
    assert links_of_layout(load_host("trpro-3-switches-8"), tp=8, one_shot=True).tensor.algorithm == "best"
    assert links_of_layout(load_host("trpro-3-switches-8"), tp=8).tensor.algorithm == "ring"
    assert links_of_layout(load_host("quad-rtx-4090"), tp=4, one_shot=True).tensor.algorithm == "ring"


def test_more_ranks_than_accelerators_are_refused():
    with pytest.raises(SpecError, match="has 8"):
        links_of_layout(load_host("hgx-b200-8"), tp=8, pp=2)


def test_stages_on_other_machines_need_a_known_network():
    with pytest.raises(UnknownFact, match="network between nodes"):
        links_of_layout(implied_host("b200-sxm", 16), tp=8, pp=2)
    assert links_of_layout(implied_host("gb200", 72), tp=8, pp=9).hand_over.kind == "nvlink"  # one domain


def test_a_part_whose_links_nobody_published_has_no_link_but_to_itself():
    host = implied_host("ascend-910b", 2)
    assert links_of_layout(host).tensor.basis == ALONE
    with pytest.raises(UnknownFact, match="unknown"):
        links_of_layout(host, tp=2)


@pytest.mark.parametrize(
    ("host", "width", "stages", "of_the_card"),
    [
        ("wrx90-2-switches-8", 4, 2, 1 / 4),  # four senders behind one uplink
        ("wrx90-2-switches-8", 2, 4, 1 / 2),  # the second hand-over crosses
        ("wrx90-2-switches-8", 1, 4, 1.0),  # inside one switch
        ("asus-esc8000a-e13p", 2, 2, 1.0),  # virtual switches of one chip
        ("workstation-direct-6", 3, 2, 1.0),  # each card has a port of its own
    ],
)
def test_senders_of_a_stage_share_what_they_share(host, width, stages, of_the_card):
    link = hand_over_link(load_host(host), width, stages)
    assert link.bandwidth == pytest.approx(of_the_card * 63.0e9, rel=1e-3)


def test_a_redirecting_switch_sends_neighbours_over_its_uplink():
    host = load_host("asus-esc8000a-e13p")
    redirected = host.model_copy(
        update={"switches": tuple(one.model_copy(update={"acs_redirect": True}) for one in host.switches)}
    )
    assert transfer_rate(redirected, [(0, 1), (1, 0)])[0] == pytest.approx(transfer_rate(host, [(0, 1), (1, 0)])[0] / 2)


slots = st.integers(0, 7)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["wrx90-2-switches-8", "trpro-3-switches-8", "wrx90-4-virtual-switches-8-v1"]),
    st.lists(slots, min_size=2, max_size=8, unique=True),
)
def test_the_tree_says_what_the_graph_says(name, cards):
    pairs = list(zip(cards[::2], cards[1::2], strict=False))  # nobody sends and receives
    host, share = load_host(name), load_link_fits().scalars["payload"]
    assert transfer_rate(host, pairs)[0] * share == pytest.approx(min(flow_rates(host, pairs, writes=False)))


@pytest.mark.parametrize("name", host_names())
def test_no_transfer_to_or_from_host_memory_exceeds_its_links(name):
    host = load_host(name)
    for count in range(1, host.accelerators_per_node + 1):
        try:
            rate = host_transfer_rate(host, count=count)
        except GlmplanError:
            continue
        ways = [path_to_root(host, slot) for slot in range(count)]
        for way in ways:
            for link, line in way:
                users = sum(link in [other for other, _ in one] for one in ways)
                assert rate * users <= line, (name, count, link)
