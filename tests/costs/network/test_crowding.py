"""Cards that exchange with several peers at once: measured shares come back, company never helps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import load_host
from glmplan.costs.network.collectives import Protocol, all_gather_time, all_reduce_time
from glmplan.costs.network.links import across_nodes, crowding, link_for_group, load_link_fits

SHARES = {"duplex": 0.98, "mesh_write": 0.62, "mesh_write_8": 0.45, "mesh_read": 0.31, "mesh_read_8": 0.17}


def test_what_was_measured_comes_back():
    assert crowding([1, 3, 7], SHARES).tolist() == [0.98, 0.62, 0.45]
    assert crowding([3, 7], SHARES, writes=False).tolist() == [0.31, 0.17]


@given(st.floats(0, 100), st.floats(0, 100))
def test_more_peers_never_leave_more(one, other):
    few, many = sorted((one, other))
    assert crowding(few, SHARES) >= crowding(many, SHARES)


def test_tools_that_differ_do_not_make_a_card_faster_than_alone():
    assert crowding(1, {**SHARES, "duplex": 1.03}) == 1.0


def test_a_one_shot_kernel_moves_what_copies_among_all_cards_move():
    # Two sources of one quantity: the efficiency is fitted to kernels, the crowding to copies.
    fits = load_link_fits()
    shot = fits.protocols["pcie", "one-shot", "direct"].efficiency / fits.scalars["payload"]
    assert shot == pytest.approx(1.0, abs=0.1)


def test_a_ring_takes_the_faster_of_its_two_speeds():
    link = link_for_group(load_host("trpro-3-switches-8"), 8)
    both = link.ring
    assert both.bulk_hop is not None and both.bulk_hop > both.hop
    message = np.array([1e3, 1e5, 1e6, 1e8])
    # all bytes twice with short hops, or once with long ones
    flagged = replace(link, ring=Protocol(both.launch, both.hop, both.efficiency / 2))
    whole = replace(link, ring=Protocol(both.launch, both.bulk_hop, both.efficiency))
    for collective in (all_reduce_time, all_gather_time):
        times = [collective(message_bytes=message, ranks=8, link=one) for one in (link, flagged, whole)]
        assert np.allclose(times[0], np.minimum(times[1], times[2]))
        assert times[1][0] < times[2][0] and times[1][-1] > times[2][-1]


def test_a_ring_with_one_rank_on_each_node_only_crosses():
    between, inside = Protocol(8e-6, 20e-6, 0.8), Protocol(8e-6, 1e-6, 0.8)
    assert across_nodes(between, inside, 1) == between
    assert across_nodes(between, inside, np.array([1.0, 4.0])).hop.tolist() == pytest.approx([20e-6, 5.75e-6])


def test_links_say_how_far_off_machines_were_that_nobody_measured():
    assert 0.05 < link_for_group(load_host("trpro-3-switches-8"), 8).error < 0.2
    assert link_for_group(load_host("hgx-h100-8"), 8).error is None  # rings over NVLink were measured on one machine
