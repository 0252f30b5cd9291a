"""Fits of links: planted constants come back, one odd machine does not pull the rest, shares are shares."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.calibrate.links.fit import fit_links, fit_protocol
from glmplan.calibrate.links.observations import Observation, all_reduce_observations, fit_shares, measured_transfers


def ring(ranks, message, launch, hop, efficiency, host="planted"):
    seconds = launch + 2 * (ranks - 1) * hop + 2 * (ranks - 1) / ranks * message / (50e9 * efficiency)
    return Observation("x", host, ("pcie", "ring", "direct"), ranks, message, seconds, 50e9, 50e9, "planted")


POINTS = [(n, m) for n in (2, 4, 8) for m in (1e3, 3e4, 1e6, 3e7)]


@settings(max_examples=15, deadline=None)
@given(st.floats(2e-6, 5e-5), st.floats(3e-7, 5e-6), st.floats(0.2, 0.95))
def test_planted_constants_are_found(launch, hop, efficiency):
    found = fit_protocol([ring(n, m, launch, hop, efficiency) for n, m in POINTS]).protocol
    assert found.launch == pytest.approx(launch, rel=0.02)
    assert found.hop == pytest.approx(hop, rel=0.02)
    assert found.efficiency == pytest.approx(efficiency, rel=0.02)


def test_one_machine_that_is_ten_times_off_hardly_pulls_the_others():
    honest = [ring(n, m, 8e-6, 1e-6, 0.7) for n, m in POINTS]
    odd = [ring(4, m, 8e-5, 1e-5, 0.07, "odd") for m in (1e3, 1e6)]
    found = fit_protocol(honest + odd).protocol
    assert found.efficiency == pytest.approx(0.7, rel=0.15)
    assert found.launch == pytest.approx(8e-6, rel=0.4)


def test_planted_constants_of_both_speeds_are_found():
    def row(ranks, message):
        hops, flow = 2 * (ranks - 1), 2 * (ranks - 1) / ranks * message / (50e9 * 0.7)
        seconds = 6e-6 + min(hops * 1e-6 + 2 * flow, hops * 4e-6 + flow)
        return Observation("x", "planted", ("pcie", "ring", "direct"), ranks, message, seconds, 50e9, 50e9, "planted")

    points = [(n, m) for n in (2, 4, 8) for m in (1e3, 3e4, 1e5, 3e5, 1e6, 3e7)]
    found = fit_protocol([row(n, m) for n, m in points], two_speeds=True).protocol
    assert (found.launch, found.hop, found.bulk_hop) == pytest.approx((6e-6, 1e-6, 4e-6), rel=0.05)
    assert found.efficiency == pytest.approx(0.7, rel=0.02)


def test_a_hop_that_one_group_size_cannot_show_is_kept_as_given():
    fit = fit_protocol([ring(8, m, 8e-6, 1e-6, 0.7) for m in (1e3, 1e5, 1e7)], fixed={"hop": 1e-6})
    assert fit.protocol.hop == 1e-6
    assert "hop" not in fit.errors


def test_every_all_reduce_with_a_size_is_used_or_left_out_for_a_reason():
    assert len(all_reduce_observations()) > 290
    assert all(
        row.seconds > 0 and row.mesh_rate <= row.ring_rate * 1.0001 or row.key[0] == "fabric"
        for row in all_reduce_observations()
    )


def test_fits_cover_what_plans_ask_for():
    keys = {fit.key for fit in fit_links()}
    assert {("pcie", "ring", name) for name in ("direct", "staged", "two-sockets", "two-sockets-tuned")} <= keys
    assert {("nvlink", "ring", "direct"), ("nvlink", "switch", "direct"), ("fabric", "ring", "direct")} <= keys
    assert {("pcie", "one-shot", "direct"), ("nvlink", "one-shot", "direct"), ("xgmi", "ring", "direct")} <= keys


def test_shares_rest_on_rows_and_lie_within_them():
    for share in fit_shares():
        assert share.rows
        assert share.low <= share.value <= share.high


def test_reads_are_turned_around():
    reads = [transfer for transfer in measured_transfers() if transfer.row["id"] == "t0066"]
    assert reads[0].reads and all(start > end for start, end in reads[0].flows)
