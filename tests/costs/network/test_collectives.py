"""Closed forms of collectives: nothing for one rank, arrays as loops, limits known by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.costs.network.collectives import (
    LinkClass,
    Protocol,
    all_gather_time,
    all_reduce_time,
    point_to_point_time,
)

COLLECTIVES = [all_reduce_time, all_gather_time, point_to_point_time]
PCIE = LinkClass("pcie", 63e9, 27e9, Protocol(7e-6, 1e-6, 0.66), one_shot=Protocol(6.8e-6, 1e-7, 0.5))
NVLINK = LinkClass(
    "nvlink", 9e11, 9e11, Protocol(8e-6, 1e-6, 0.8), Protocol(4e-6, 1e-7, 0.3), Protocol(3e-5, 1e-6, 0.5)
)

sizes = st.floats(1, 1e10)
groups = st.integers(1, 72)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("link", [PCIE, NVLINK])
def test_a_group_of_one_costs_nothing(collective, link):
    for algorithm in ("best", "ring", "tree", "one-shot", "two-shot"):
        from dataclasses import replace

        assert float(collective(message_bytes=1e9, ranks=1, link=replace(link, algorithm=algorithm))) == 0.0


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(st.lists(st.tuples(sizes, groups), min_size=1, max_size=8))
def test_an_array_of_points_is_a_loop_over_them(collective, points):
    message, ranks = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    together = collective(message_bytes=message, ranks=ranks, link=NVLINK)
    one_by_one = [float(collective(message_bytes=m, ranks=n, link=NVLINK)) for m, n in points]
    assert np.allclose(together, one_by_one, rtol=1e-12)


@given(sizes, sizes, st.integers(2, 72))
def test_a_larger_message_is_never_faster(one, other, ranks):
    small, large = sorted((one, other))
    for collective in COLLECTIVES:
        assert collective(message_bytes=small, ranks=ranks, link=PCIE) <= collective(
            message_bytes=large, ranks=ranks, link=PCIE
        )


@given(sizes, st.integers(2, 72))
def test_the_best_algorithm_is_never_slower_than_any_other(message, ranks):
    from dataclasses import replace

    best = all_reduce_time(message_bytes=message, ranks=ranks, link=NVLINK)
    for algorithm in ("ring", "one-shot", "two-shot", "switch"):
        assert (
            best
            <= all_reduce_time(message_bytes=message, ranks=ranks, link=replace(NVLINK, algorithm=algorithm)) + 1e-15
        )


def test_an_all_reduce_of_a_large_message_is_a_reduce_scatter_and_an_all_gather():
    message = 1e12
    whole = all_reduce_time(message_bytes=message, ranks=8, link=LinkClass("pcie", 63e9, 63e9, PCIE.ring))
    half = all_gather_time(message_bytes=message, ranks=8, link=PCIE)  # a reduce-scatter is its mirror image
    assert float(whole / (2 * half)) == pytest.approx(1, rel=1e-5)


def test_one_shot_wins_when_small_and_a_ring_when_large():
    from dataclasses import replace

    shot, ring = replace(PCIE, algorithm="one-shot"), replace(PCIE, algorithm="ring")
    assert all_reduce_time(message_bytes=1024, ranks=8, link=shot) < all_reduce_time(
        message_bytes=1024, ranks=8, link=ring
    )
    assert all_reduce_time(message_bytes=1e7, ranks=8, link=shot) > all_reduce_time(
        message_bytes=1e7, ranks=8, link=ring
    )


def test_an_algorithm_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match="switch cannot run on pcie"):
        all_reduce_time(message_bytes=1, ranks=2, link=LinkClass("pcie", 1e9, 1e9, PCIE.ring, algorithm="switch"))


def test_a_chain_of_stages_pays_each_send_in_full():
    one, three = (float(point_to_point_time(message_bytes=1e6, ranks=n, link=PCIE)) for n in (2, 4))
    assert one == pytest.approx(7e-6 + 1e-6 + 1e6 / (63e9 * 0.66))
    assert three == pytest.approx(3 * one)
