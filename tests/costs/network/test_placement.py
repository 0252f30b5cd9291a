"""Placement: groups stay close, the order of a ring counts, and the worst order is beaten by as much as links say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import load_host, load_machine
from glmplan.costs.network.topology import place, plan_flows, plan_loads, score_placement
from glmplan.errors import SpecError


def test_groups_stay_on_their_switch():
    found = place(load_host("wrx90-2-switches-8"), tp=4, pp=2)
    assert {frozenset(stage) for stage in found.stages} == {frozenset(range(4)), frozenset(range(4, 8))}
    assert found.gain > 2


def test_groups_stay_on_their_socket():
    found = place(load_host("turin-2s-direct-6-mixed"), tp=3, pp=2)
    assert {frozenset(stage) for stage in found.stages} == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}


def test_a_group_of_four_avoids_the_other_socket():
    found = place(load_host("turin-2s-direct-8"), tp=4)
    assert set(found.order) in ({0, 1, 2, 3}, {4, 5, 6, 7})


def test_equal_links_leave_the_order_of_the_numbers():
    found = place(load_machine("6xrtx-pro-6000-ws"), tp=2, pp=3)
    assert found.visible_devices == "0,1,2,3,4,5"
    assert found.gain == pytest.approx(1)


def test_rings_of_two_groups_that_share_an_uplink_slow_each_other():
    host = load_host("wrx90-2-switches-8")
    apart = score_placement(host, ((0, 1, 2, 3), (4, 5, 6, 7)), message_bytes=1e7)
    mixed = score_placement(host, ((0, 1, 4, 5), (2, 3, 6, 7)), message_bytes=1e7)
    assert mixed.all_reduce > 1.8 * apart.all_reduce


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["wrx90-2-switches-8", "asus-esc8000a-e13p", "hgx-b200-8"]),
    st.sampled_from([1, 2, 4, 8]),
    st.data(),
)
def test_a_placement_uses_each_card_once_and_is_never_worse_than_the_worst(name, tp, data):
    pp = data.draw(st.sampled_from([size for size in (1, 2, 4, 8) if tp * size <= 8]))
    found = place(load_host(name), tp=tp, pp=pp)
    assert len(set(found.order)) == tp * pp == len(found.order)
    assert found.score.all_reduce <= found.worst_score.all_reduce
    assert found.gain >= 1


def test_a_single_card_has_no_transfers():
    assert plan_flows(((0,),)) == {}
    assert place(load_host("workstation-direct-1"), tp=1).score.all_reduce == 0


def test_the_loads_of_a_plan_name_the_uplinks_that_its_stages_cross():
    loads = plan_loads(load_host("wrx90-2-switches-8"), ((0, 1, 2, 3), (4, 5, 6, 7)))["hand-over"]
    assert (loads[0].start, loads[0].end, loads[0].flows) == ("root1", "switch1", 4)


def test_a_layout_that_is_too_large_is_refused():
    with pytest.raises(SpecError, match="needs 16 accelerators, hgx-b200-8 has 8 in a node"):
        place(load_host("hgx-b200-8"), tp=8, pp=2)
