"""Hosts: every file of the catalogue, links that lead somewhere, and what a bare number of cards implies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_aliases, host_names, implied_host, load_host, load_machine
from glmplan.catalog.schema.host import Host, PcieLink
from glmplan.catalog.schema.validation import validated
from glmplan.errors import SpecError, UnknownName


@pytest.mark.parametrize("name", host_names())
def test_every_host_is_correct_and_names_known_parts_and_a_source(name):
    host = load_host(name)
    assert host.source
    for part in set(host.accelerator_names):
        assert load_accelerator(part).name == part


def test_the_hosts_that_were_asked_for_are_there():
    asked = {"hgx-b200-8", "hgx-h200-8", "hgx-h100-8", "dgx-b300-8", "gb200-nvl72", "mi300x-8", "mi355x-8", "dgx-spark"}
    asked |= {
        "strix-halo",
        "mac-studio-m3-ultra",
        "nizwo-a1",
        "six-cards-and-display-gpu",
        "quad-rtx-3090",
        "quad-rtx-5090",
    }
    asked |= {f"workstation-direct-{count}" for count in range(1, 8)} | {
        "workstation-2-switches-8",
        "workstation-4-switches-8",
    }
    assert asked <= set(host_names())


def test_aliases_are_unique_and_shadow_no_name():
    assert not set(host_aliases()) & set(host_names())


@given(st.sampled_from([1, 2, 3, 4, 5, 6]), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_link_with_twice_the_lanes_or_the_next_generation_is_faster(generation, lanes):
    link = PcieLink(generation=generation, lanes=lanes)
    assert PcieLink(generation=generation, lanes=2 * lanes).bandwidth == pytest.approx(2 * link.bandwidth)
    if generation < 6:
        assert PcieLink(generation=generation + 1, lanes=lanes).bandwidth > 1.5 * link.bandwidth


@pytest.mark.parametrize("part", accelerator_names())
def test_any_part_implies_a_machine(part):
    assert implied_host(part, 1).accelerator_count == 1
    assert implied_host(part, 8).accelerator_count == 8


def test_six_cards_imply_six_root_ports_on_one_socket():
    host = load_machine("6xrtx-pro-6000-ws")
    assert (len(host.roots), len(host.sockets), host.conditions.p2p) == (6, 1, "direct")
    assert len(host.assumptions) == 3


def test_eight_cards_imply_two_sockets():
    assert len(implied_host("rtx-pro-6000-ws", 8).sockets) == 2


def test_an_unknown_machine_lists_the_nearest_names():
    with pytest.raises(UnknownName, match="hgx-b200-8"):
        load_machine("hgx-b200-9")
    with pytest.raises(UnknownName, match="rtx-pro-6000-ws"):
        load_machine("6xrtx-pro-6000-wx")


MINIMAL = {
    "name": "x",
    "title": "x",
    "source": "x",
    "sockets": [{"name": "cpu0"}],
    "roots": [{"name": "r0", "socket": "cpu0"}],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cards": []}, "cards"),
        ({"cards": [{"accelerator": "l40s", "parent": "nowhere"}]}, "no root and no switch"),
        ({"cards": [{"accelerator": "l40s"}], "roots": [{"name": "r0", "socket": "cpu9"}]}, "cpu9"),
        ({"cards": [{"accelerator": "l40s"}], "switches": [{"name": "r0", "parent": "r0"}]}, "used twice"),
        ({"cards": [{"accelerator": "l40s", "link": {"generation": 7, "lanes": 16}}]}, "generation"),
        ({"cards": [{"accelerator": "l40s"}], "speed": "fast"}, "is not a field"),
    ],
)
def test_a_wrong_description_is_refused_with_the_reason(change, message):
    with pytest.raises(SpecError, match=message):
        validated(Host, MINIMAL | change, "x.toml")


def test_one_of_a_host_is_the_host_also_where_its_part_has_the_same_name():
    assert load_machine("1xgb200-nvl72").accelerator_count == 72
    assert load_machine("1xhgx-h200-8").name == "hgx-h200-8"
    with pytest.raises(UnknownName, match="the parts of 2: 144xgb200; 2 of its parts: 2xgb200"):
        load_machine("2xgb200-nvl72")
    assert load_machine("2xdgx-spark").accelerator_count == 2  # a part and a host have the name: a number is of parts


@pytest.mark.parametrize(("count", "nodes"), [(8, 1), (16, 2), (12, 2), (20, 4), (100, 20)])
def test_more_accelerators_than_a_domain_holds_are_equal_nodes(count, nodes):
    host = implied_host("h100-sxm", count)
    assert host.nodes == nodes and sum(group.count for group in host.cards) * nodes == count


@pytest.mark.parametrize("count", [9, 11, 87, 94])
def test_nodes_less_than_half_full_are_refused(count):
    with pytest.raises(SpecError, match="domains of 8"):
        implied_host("h100-sxm", count)


@pytest.mark.parametrize("count", [0, 10_001, 6_000_000_000])
def test_a_machine_of_no_card_or_too_many_is_refused(count):
    with pytest.raises(SpecError, match="must be at"):
        implied_host("rtx-pro-6000-ws", count)


def test_cards_of_several_kinds_have_their_own_links_and_no_peer_to_peer_beside_geforce():
    host = load_machine("2xrtx-pro-6000-ws+1xrtx-3090")
    assert host.accelerator_names == ("rtx-pro-6000-ws", "rtx-pro-6000-ws", "rtx-3090")
    assert [card.link.generation for card in host.cards] == [5, 5, 4]
    assert host.conditions.p2p == "missing" == load_machine("1xrtx-3090+2xrtx-pro-6000-ws").conditions.p2p
    assert load_machine("rtx-3090+rtx-3090") == load_machine("2xrtx-3090")
    with pytest.raises(SpecError, match="only PCIe cards"):
        load_machine("rtx-3090+h100-sxm")
    with pytest.raises(SpecError, match="v99"):
        load_machine("rtx-3090+2xv99")


def test_a_changed_host_computes_its_properties_again():
    host = load_machine("2xrtx-pro-6000-ws")
    assert (host.accelerator, host.accelerator_names, host.slot_sockets) == (
        "rtx-pro-6000-ws", ("rtx-pro-6000-ws",) * 2, ("cpu0", "cpu0")
    )  # fmt: skip
    other = host.model_copy(update={"cards": (host.cards[0].model_copy(update={"accelerator": "rtx-5090"}),)})
    assert (other.accelerator, other.accelerator_names, other.slot_sockets) == ("rtx-5090", ("rtx-5090",), ("cpu0",))


def test_servers_that_are_counted_are_named_as_one_machine():
    for text, machine in (("2x8xh200-sxm", "16xh200-sxm"), ("3x4xrtx-3090", "12xrtx-3090")):
        with pytest.raises(UnknownName, match=f"one machine of all: {machine}"):
            load_machine(text)
