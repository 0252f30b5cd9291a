"""Transfers to host memory: measured rates, and agreement with the link graph."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import load_host
from glmplan.costs.network.links import host_transfer_rate
from glmplan.costs.network.topology import HOST, flow_rates
from glmplan.errors import SpecError, UnknownFact

HOSTS = ["wrx90-2-switches-8-two-roots", "wrx90-2-switches-8-one-root", "turin-2s-direct-8", "wrx90-3-switches-8"]


@pytest.mark.parametrize(
    ("host", "count", "together"),
    [
        # github.com/voipmonitor/rtx6kpro @29f3863 hardware/wrx90-cpayne-8gpu-root-topology-comparison.md
        ("wrx90-2-switches-8-two-roots", 1, 55.08),
        ("wrx90-2-switches-8-two-roots", 8, 114.1),
        ("wrx90-2-switches-8-one-root", 8, 73.09),
    ],
)
def test_a_measured_rate_is_met(host, count, together):
    assert count * host_transfer_rate(load_host(host), count=count) / 1e9 == pytest.approx(together, rel=0.1)


@given(st.sampled_from(HOSTS), st.sets(st.integers(0, 7), min_size=1))
def test_the_closed_form_is_the_slowest_transfer_of_the_graph(name, members):
    host, slots = load_host(name), tuple(sorted(members))
    graph = flow_rates(host, [(HOST, slot) for slot in slots]).min()
    assert host_transfer_rate(host, members=slots) == pytest.approx(graph)


def test_more_accelerators_than_a_node_has_are_refused():
    with pytest.raises(SpecError, match="not a number of accelerators"):
        host_transfer_rate(load_host("hgx-b200-8"), count=9)


def test_unified_memory_has_nothing_to_transfer():
    with pytest.raises(UnknownFact, match="one memory"):
        host_transfer_rate(load_host("dgx-spark"))
