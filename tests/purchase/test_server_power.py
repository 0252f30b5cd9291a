"""A server draws what its maker states, with fans, processors, network cards and supplies."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.io.machines.resolve import resolve_machine
from glmplan.purchase.money import money_of, server_draw, wall_watts

TODAY = date(2026, 11, 22)


def terms(**said):
    return money_of((), [f"{name}={value}" for name, value in said.items()], today=TODAY).terms


@pytest.mark.parametrize(
    ("machine", "watts"),
    [
        ("8xb200-sxm", 14_300),  # NVIDIA's guide of the DGX B200
        ("hgx-b200-8", 14_300),
        ("8xh200-sxm", 10_200),  # of the DGX H100/H200
        ("16xh200-sxm", 20_400),
        ("8xh100-sxm", 10_200),
        ("8xa100-80gb-sxm", 6_500),
        ("4xb200-sxm", 7_150),  # half of a server
        ("gb200-nvl72", 120_000),
    ],
)
def test_a_server_at_its_rating_draws_what_its_guide_states(machine, watts):
    assert wall_watts(resolve_machine(machine), terms=terms(power_share=1)) == pytest.approx(watts, rel=1e-4)


def test_a_served_load_draws_its_share_of_that():
    """NVIDIA's 10.2 kW are 6.5 to 8.5 kW in use (supercluster.blog)."""
    drawn = wall_watts(resolve_machine("8xh100-sxm"), terms=terms(power_share=0.75))
    assert drawn == pytest.approx(0.75 * 10_200) and 6_500 < drawn < 8_500


def test_a_power_limit_takes_the_difference_of_the_accelerators_away():
    machine = resolve_machine("8xh200-sxm")
    free, limited = (wall_watts(machine, terms=terms(power_share=1), limit=limit) for limit in (None, 500.0))
    assert free - limited == pytest.approx(8 * 200 / 0.92)
    assert wall_watts(machine, terms=terms(), limit=600.0) == wall_watts(machine, terms=terms())  # 525 W under load


def test_a_given_power_of_the_rest_counts_instead():
    said = terms(rest_watts=900, power_share=1)
    assert server_draw(resolve_machine("8xb200-sxm"), terms=said) is None
    assert wall_watts(resolve_machine("8xb200-sxm"), terms=said) == pytest.approx((8000 + 900) / 0.92)


def test_a_machine_without_a_stated_draw_is_the_sum_of_its_parts():
    assert server_draw(resolve_machine("8xrtx-pro-6000-ws"), terms=terms()) is None
    assert wall_watts(resolve_machine("8xrtx-pro-6000-ws"), terms=terms()) == pytest.approx((8 * 450 + 400) / 0.92)


@pytest.mark.parametrize("name", [name for name in host_names() if (p := load_host(name).power) and p.draw])
def test_a_stated_draw_carries_the_accelerators_and_is_carried_by_the_supplies(name):
    host = load_host(name)
    rating = resolve_machine(name).accelerator.tdp * host.accelerators_per_node
    assert host.power.draw > rating
    if host.power.supply is not None:
        assert host.power.draw < host.power.supply * host.power.supplies
    assert host.power.source
