"""The forms that turn roofline time into kernel time behave: monotone, bounded by the roofline, arrays like loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.costs.kernels.counts import (
    attention_decode_work,
    exchange_work,
    expert_work,
    gemm_work,
    latent_decode_work,
    recurrent_decode_work,
    recurrent_prefill_work,
    touched_experts,
)
from glmplan.costs.kernels.utilisation import (
    CollectiveParams,
    KernelParams,
    KernelWork,
    add_kernel,
    collective_seconds,
    kernel_seconds,
    kernel_terms,
)

shares = st.floats(0.05, 1.0)
params = st.builds(
    KernelParams,
    floor=st.floats(1e-6, 1e-4),
    bandwidth=shares,
    flop=shares,
    rows_half=st.floats(0.0, 128.0),
    tiles_half=st.floats(0.0, 500.0),
    streams_half=st.floats(0.0, 500.0),
    side=st.floats(0.1, 5.0),
    sharpness=st.floats(1.0, 12.0),
    group=st.floats(0.0, 1e-6),
)
sizes = st.integers(1, 5000).map(float)
peaks = st.floats(1e12, 1e16)
bandwidths = st.floats(1e11, 1e13)


@given(params=params, m=sizes, n=sizes, k=sizes, peak=peaks, bandwidth=bandwidths, factor=st.floats(1.0, 10.0))
def test_a_faster_part_is_never_slower(params, m, n, k, peak, bandwidth, factor):
    work = gemm_work(m, n, k, weight_bytes=1.0, activation_bytes=1.0)
    before = kernel_seconds(work, peak_flop=peak, peak_bandwidth=bandwidth, params=params)
    assert kernel_seconds(work, peak_flop=peak * factor, peak_bandwidth=bandwidth, params=params) <= before * (1 + 1e-9)
    assert kernel_seconds(work, peak_flop=peak, peak_bandwidth=bandwidth * factor, params=params) <= before * (1 + 1e-9)


@given(params=params, m=sizes, n=sizes, k=sizes, peak=peaks, bandwidth=bandwidths)
def test_no_kernel_beats_its_roofline(params, m, n, k, peak, bandwidth):
    work = gemm_work(m, n, k, weight_bytes=2.0)
    roofline = max(work.flop / peak, work.bytes / bandwidth)
    assert kernel_seconds(work, peak_flop=peak, peak_bandwidth=bandwidth, params=params) >= roofline


@given(params=params, m=sizes, n=sizes, k=sizes, peak=peaks, bandwidth=bandwidths)
def test_one_token_more_is_never_faster(params, m, n, k, peak, bandwidth):
    both = gemm_work(np.array([m, m + 1]), n, k, weight_bytes=2.0)
    less, more = kernel_seconds(both, peak_flop=peak, peak_bandwidth=bandwidth, params=params)
    assert more >= less * (1 - 1e-9)


@given(resident=st.floats(1e3, 1e12), more=st.floats(1.0, 100.0), share=st.floats(0.0, 1.0))
def test_the_cache_helps_and_helps_less_the_more_must_fit(resident, more, share):
    cached = KernelParams(1e-6, 0.9, 0.7, cache_gain=4.0, cache_bytes=64e6, block=1e10, block_gain=1.5)
    work = KernelWork(flop=0.0, bytes=1e9, block_bytes=1e6)
    near, far = (cached.from_cache(work, size, share) for size in (resident, resident * more))
    for field in ("bytes", "block_bytes"):
        assert getattr(near, field) <= getattr(far, field) * (1 + 1e-12) <= getattr(work, field) * (1 + 1e-12)
    assert near.bytes >= work.bytes / cached.cache_gain


@given(batch=sizes, context=sizes, splits=st.sampled_from([1.0, 8.0, 16.0]))
def test_a_block_reads_its_share_of_one_request_however_many_there_are(batch, context, splits):
    shape = {"heads": 8.0, "kv_heads": 1.0, "head_dim": 128.0, "kv_bytes": 2.0}
    few = attention_decode_work(batch, context, **shape, splits=splits)
    assert few.block_bytes * splits >= attention_decode_work(1.0, context, **shape).bytes * (1 - 1e-9)
    assert few.block_bytes == attention_decode_work(1.0, context, **shape, splits=splits).block_bytes
    assert attention_decode_work(batch, context, **shape).block_bytes == 0.0


@given(params=params, batch=sizes, context=sizes, peak=peaks, bandwidth=bandwidths)
def test_longer_context_and_larger_batch_are_never_faster(params, batch, context, peak, bandwidth):
    def seconds(batch, context):
        shape = {"heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "kv_bytes": 2.0}
        work = attention_decode_work(batch, context, **shape)
        return kernel_seconds(work, peak_flop=peak, peak_bandwidth=bandwidth, params=params)

    assert seconds(batch, context + 1) >= seconds(batch, context) * (1 - 1e-9)
    assert seconds(batch + 1, context) >= seconds(batch, context) * (1 - 1e-9)


@given(params=params, batches=st.lists(sizes, min_size=1, max_size=8), peak=peaks, bandwidth=bandwidths)
def test_an_array_is_the_same_as_a_loop(params, batches, peak, bandwidth):
    def seconds(batch):
        work = latent_decode_work(batch, 4096.0, heads=8.0, kv_bytes=1.0)
        return kernel_seconds(work, peak_flop=peak, peak_bandwidth=bandwidth, params=params)

    np.testing.assert_allclose(seconds(np.array(batches)), [float(seconds(batch)) for batch in batches], rtol=1e-12)


def test_a_kernel_that_does_nothing_takes_the_floor():
    params = KernelParams(floor=3e-6, bandwidth=0.8, flop=0.7)
    seconds = kernel_seconds(KernelWork(0.0, 0.0), peak_flop=1e15, peak_bandwidth=1e12, params=params)
    assert seconds == pytest.approx(3e-6)


def test_half_of_the_flop_rate_is_reached_at_rows_half():
    params = KernelParams(floor=0.0, bandwidth=1.0, flop=1.0, rows_half=64.0)
    work = KernelWork(flop=1e12, bytes=0.0, rows=64.0)
    assert kernel_seconds(work, peak_flop=1e15, peak_bandwidth=1e12, params=params) == pytest.approx(2e-3)


def test_perfect_overlap_and_none_bound_the_time():
    work = KernelWork(flop=1e12, bytes=1e9)
    one, many = (
        kernel_seconds(
            work, peak_flop=1e15, peak_bandwidth=1e12, params=KernelParams(0.0, 1.0, 1.0, sharpness=sharpness)
        )
        for sharpness in (1.0, 1000.0)
    )
    assert one == pytest.approx(2e-3)
    assert many == pytest.approx(1e-3, rel=1e-3)


def test_distinct_experts_follow_the_published_counts():
    # github.com/voipmonitor/rtx6kpro, GLM-5: 8, 31, 102, 163, 222 experts at 1, 4, 16, 32, 64 tokens
    counts = touched_experts(np.array([1, 4, 16, 32, 64]), 256, 8)
    np.testing.assert_allclose(counts, [8, 31, 102, 163, 222], atol=0.5)


def test_experts_of_one_token_read_each_touched_expert_once():
    counts = {"tokens": 1.0, "experts": 256.0, "assignments": 8.0, "slots": 8.0, "touched": 8.0}
    work = expert_work(**counts, hidden=6144.0, inner=2048.0, weight_bytes=1.0)
    assert work.bytes == pytest.approx(8 * 3 * 6144 * 2048, rel=0.01)
    assert work.flop == 2 * 8 * 3 * 6144 * 2048
    assert work.rows == 1.0


def test_a_recurrent_step_does_not_depend_on_the_context_and_prefill_is_linear_in_it():
    shape = {"key_heads": 16.0, "value_heads": 32.0}
    state = 2 * 4 * 32 * 128 * 128  # read and written in FP32
    assert recurrent_decode_work(64.0, **shape).bytes == pytest.approx(64 * state, rel=0.02)
    short, long = recurrent_prefill_work(1.0, np.array([1024.0, 2048.0]), **shape).flop
    assert long == 2 * short


def test_an_exchange_of_one_rank_sends_nothing_and_of_many_each_token_to_every_expert():
    sent = exchange_work(10.0, ranks=np.array([1.0, 1e6]), hidden=100.0, top_k=8.0, value_bytes=2.0).bytes
    assert sent[0] == 0.0
    assert sent[1] == pytest.approx(10 * 100 * 2 * 8, rel=1e-3)


@given(
    bytes_=st.floats(1.0, 1e9),
    ranks=st.integers(2, 8),
    link=st.floats(1e10, 1e12),
    factor=st.floats(1.0, 10.0),
    one_shot=st.floats(0.0, 1.0),
)
def test_more_bytes_ranks_or_a_slower_link_never_speed_an_all_reduce(bytes_, ranks, link, factor, one_shot):
    params = CollectiveParams(latency=4e-6, hop=1e-7, one_shot=one_shot, two_shot=0.7, two_shot_setup=3e-6)
    time = collective_seconds(bytes_, ranks, link_bandwidth=link, params=params)
    assert collective_seconds(bytes_ * factor, ranks, link_bandwidth=link, params=params) >= time
    assert collective_seconds(bytes_, ranks + 1, link_bandwidth=link, params=params) >= time
    assert collective_seconds(bytes_, ranks, link_bandwidth=link / factor, params=params) >= time


def test_a_group_of_one_costs_nothing():
    params = CollectiveParams(latency=4e-6, hop=1e-7, one_shot=0.5, two_shot=0.7)
    assert collective_seconds(1e6, 1, link_bandwidth=1e11, params=params) == 0.0


def test_a_step_and_a_fit_take_the_same_time_for_a_kernel():
    rng = np.random.default_rng(5)
    n = 200

    def drawn(most: float) -> np.ndarray:
        return 10.0 ** rng.uniform(0, most, n)

    work = KernelWork(1e3 * drawn(9), 1e3 * drawn(9), drawn(4), drawn(4), drawn(4), side_bytes=drawn(9),
                      groups=np.floor(drawn(2)), block_bytes=drawn(6), block_keys=drawn(3))  # fmt: skip
    params = KernelParams(3e-6, 0.7, 0.6, 50.0, 80.0, 4.0, 0.8, 3.0, 2e-7, 1.5, 5e7, 2e10, 2.0, 1e-9)
    names = ("fixed", "bytes", "flop")
    layer = {name: np.zeros(n) for name in names}
    add_kernel(layer, work, params, peak_flop=5e14, bandwidth=2e12, slots=names, active=np.ones(n))
    fitted = kernel_seconds(work, peak_flop=5e14, peak_bandwidth=2e12, params=params)
    np.testing.assert_array_equal(layer["fixed"] + layer["bytes"] + layer["flop"], fitted)
    # the textbook form, which the three parts must add up to
    compute = work.flop * (1 + 50.0 / work.rows) * (1 + 80.0 / work.tiles) / (0.6 * 5e14)
    memory = work.bytes * (1 + 4.0 / work.streams) / (0.7 * 2e12)
    memory = np.maximum(memory, work.block_bytes / 2e10 + work.block_keys * 1e-9)
    joined = (compute**3.0 + memory**3.0) ** (1 / 3.0)
    whole = 3e-6 + 2e-7 * work.groups + work.side_bytes / (0.8 * 2e12) + joined
    np.testing.assert_allclose(fitted, whole, rtol=1e-12)


def test_what_empty_rows_of_tiles_cost_goes_with_the_bytes():
    """A matrix read for one row is multiplied a whole tile high: that time follows the matrix, not the tokens."""
    padded = KernelParams(floor=1e-6, bandwidth=0.9, flop=0.2, rows_half=15.0, sharpness=1.0)
    rows = np.array([1.0, 15.0, 1e6])
    work = KernelWork(flop=2e9 * rows, bytes=np.full(3, 1e9), rows=rows)
    terms = kernel_terms(work, peak_flop=1e15, peak_bandwidth=4e12, params=padded)
    assert sum(terms) == pytest.approx(kernel_seconds(work, peak_flop=1e15, peak_bandwidth=4e12, params=padded))
    # one useful row of sixteen, half of thirty, all of a million
    computed = work.flop * (1 + 15.0 / rows) / 0.2 / 1e15
    assert terms[2] / computed == pytest.approx([1 / 16, 1 / 2, 1.0], rel=1e-4)
