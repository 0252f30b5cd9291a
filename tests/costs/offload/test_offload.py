"""The offloaded part of a step: what it reads, what it takes, and how it behaves."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import load_host
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import model_parameters, uniform_checkpoint
from glmplan.costs.offload.work import (
    COSTS,
    HostSide,
    OffloadFit,
    Placement,
    accelerator_seconds,
    host_seconds,
    host_side,
    load_offload_fit,
    offload_step_seconds,
    offload_work,
)
from glmplan.costs.points import StepPoints
from glmplan.errors import SpecError, UnknownFact

FIT = OffloadFit(
    0.5, 0.5, 1e-4, {"avx512": 5e10, "amx": 5e10}, {"avx512": 5e10, "amx": 2e11}, 0.1, 0.8, 0.4, 0.5, 0.8, 1e-4, {}
)  # fmt: skip
SIDE = HostSide(600e9, 2, 64, 25e9)
DEEPSEEK, INT8 = load_model("deepseek-v3"), uniform_checkpoint("int8")


def work(share=1.0, users=1.0, context=0.0, unit="experts", mode="cpu", model=None):
    one = np.atleast_1d(np.asarray(users, dtype=float))
    points = StepPoints(one, one * 0.0 + context, one * 0.0, one * 0.0)
    return offload_work(model or DEEPSEEK, INT8, Placement(share, unit, mode), points)


def prompt_work(tokens, share=1.0):
    one = np.ones(1)
    return offload_work(DEEPSEEK, INT8, Placement(share), StepPoints(0 * one, 0 * one, one * tokens, one * tokens / 2))


def test_one_token_reads_the_experts_it_visits():
    # 58 layers, 8 of 256 experts, 3 matrices of 7168 x 2048: 20.4e9 weights, one byte each
    expected = 58 * 8 * 3 * 7168 * 2048
    assert work().host_bytes[0] == pytest.approx(expected)
    assert work().host_flop[0] == pytest.approx(2 * expected)
    assert work().held_bytes[0] == pytest.approx(expected * 256 / 8)


def test_host_and_accelerators_together_do_the_whole_step():
    whole, split = work(0.0, context=1000.0), work(0.3, context=1000.0)
    for mine, own in (("host_bytes", "own_bytes"), ("host_flop", "own_flop")):
        assert getattr(split, mine)[0] + getattr(split, own)[0] == pytest.approx(getattr(whole, own)[0])
    assert whole.host_bytes[0] == 0.0
    assert whole.host_layers == 0


def test_whole_layers_take_their_cache_with_them():
    split, whole = work(15 / 61, context=1000.0, unit="layers"), work(0.0, context=1000.0)
    assert split.cache_bytes[0] == pytest.approx(46 / 61 * whole.cache_bytes[0])
    assert split.host_layers == pytest.approx(15)


def test_a_second_user_visits_almost_as_many_experts_again():
    even = type(DEEPSEEK).model_validate_json(
        re.sub(r'"busiest_fifth":[\d.]+', '"busiest_fifth":0.2', DEEPSEEK.model_dump_json())
    )
    one, two, many = work(users=[1.0, 2.0, 4000.0], model=even).host_bytes
    assert two / one == pytest.approx(2 - 8 / 256)
    assert many == pytest.approx(work().held_bytes[0])
    # where some experts are busier the two meet a little more often
    one, less, many = work(users=[1.0, 2.0, 4000.0]).host_bytes
    assert 1.9 * one < less < two
    assert many == pytest.approx(work().held_bytes[0])


def test_decoding_on_the_cpu_is_bound_by_bytes_until_cores_are_few():
    one = work()
    fast = host_seconds(one, SIDE, mode="cpu", fit=FIT)[0].sum()
    # half of 300 GB/s, and half as much again for the second socket
    assert fast == pytest.approx(one.host_bytes[0] / (0.5 * 300e9 * 1.5))
    slow = host_seconds(one, replace(SIDE, cores=4), mode="cpu", fit=FIT)[0].sum()
    assert slow == pytest.approx(one.host_flop[0] / (4 * 5e10))


def test_prompts_multiply_matrices_at_a_rate_of_their_own():
    prompt, few = prompt_work(512.0), replace(SIDE, cores=4, kernel="amx")
    assert prompt.host_flop[0] == 0.0
    # 512 tokens, 8 experts each, at 200 GFLOP/s of a core
    expected = 2 * 512 * 58 * 8 * 3 * 7168 * 2048
    assert prompt.host_prompt_flop[0] == pytest.approx(expected)
    assert host_seconds(prompt, few, mode="cpu", fit=FIT)[0].sum() == pytest.approx(expected / (4 * 2e11))


def test_a_row_that_holds_no_step_takes_no_time():
    nothing = offload_step_seconds(work(users=[0.0]), SIDE, load_accelerator("rtx-4090"), count=1, fit=FIT)
    assert nothing.tolist() == [[0.0] * len(COSTS)]
    streamed = offload_step_seconds(
        work(users=[0.0]), SIDE, load_accelerator("rtx-4090"), count=1, mode="stream", fit=FIT
    )
    assert streamed.sum() == 0.0


def test_decoding_works_on_the_latent_and_prompts_on_expanded_keys():
    # DeepSeek-V3: 128 heads over 61 layers; 512 latent and 64 rotary values, or 192 and 128 of a head
    keys = 1000.0
    decode = work(0.0, context=keys).own_flop[0] - work(0.0).own_flop[0]
    assert decode == pytest.approx(61 * 2 * 128 * (512 + 64 + 512) * keys)
    one = np.ones(1)
    near, far = (offload_work(DEEPSEEK, INT8, Placement(0.0), StepPoints(0 * one, 0 * one, one, one * seen)).own_flop[0]
                 for seen in (0.0, keys))  # fmt: skip
    assert far - near == pytest.approx(61 * 2 * 128 * (192 + 128) * keys)


def test_streaming_moves_everything_and_reading_in_place_only_what_is_touched():
    one = work()
    stream = host_seconds(one, SIDE, mode="stream", fit=FIT)[0]
    touched = host_seconds(one, SIDE, mode="touched", fit=FIT)[0]
    assert stream == pytest.approx([one.held_bytes[0] / 60e9, one.held_bytes[0] / 25e9])
    assert stream / touched == pytest.approx([256 / 8, 256 / 8])


def test_weights_that_are_fetched_as_they_lie_cost_the_links_only():
    one, side = work(), replace(SIDE, prepares=False)
    assert host_seconds(one, side, mode="stream", fit=FIT)[0] == pytest.approx([0.0, one.held_bytes[0] / 25e9])


def test_the_link_of_one_accelerator_carries_what_they_fetch_in_turn():
    host = load_host("quad-rtx-3090")
    sockets = [host.sockets[0].model_copy(update={"memory_bandwidth": 200e9})]
    host = host.model_copy(update={"sockets": tuple(sockets)})
    alone, four = host_side(host, 1), host_side(host, 4, in_turn=True)
    assert four.link == alone.link < host_side(host, 4).link


def test_streaming_without_a_known_link_is_refused():
    with pytest.raises(UnknownFact, match="links"):
        host_seconds(work(), HostSide(600e9), mode="stream", fit=FIT)


def test_a_streamed_prompt_is_computed_on_the_accelerator():
    one, part = work(users=[8192.0]), load_accelerator("rtx-4090")
    alone = accelerator_seconds(one, part, count=1, mode="cpu", fit=FIT)
    streamed = accelerator_seconds(one, part, count=1, mode="stream", fit=FIT)
    assert streamed.sum() > alone.sum()


def test_a_machine_without_accelerators_spends_no_time_on_them():
    assert accelerator_seconds(work(), None, count=0, mode="cpu", fit=FIT).sum() == 0.0


def test_an_accelerator_is_bound_by_bytes_or_by_arithmetic_and_the_longer_is_said():
    part = load_accelerator("rtx-4090")
    few, many = (accelerator_seconds(prompt_work(tokens, 0.0), part, count=1, mode="cpu", fit=FIT)[0]
                 for tokens in (1.0, 8192.0))  # fmt: skip
    assert few[0] > 0 and few[2] == 0.0
    assert many[:2].tolist() == [0.0, 0.0] and many[2] > few.sum()


def test_a_share_outside_zero_and_one_is_refused():
    with pytest.raises(SpecError, match="between 0 and 1"):
        Placement(1.2)


def test_a_machine_with_one_memory_has_nothing_to_offload():
    with pytest.raises(UnknownFact, match="one memory"):
        host_side(load_host("mac-studio-m3-ultra"), 1)


def test_a_host_whose_memory_is_unknown_says_so():
    with pytest.raises(UnknownFact, match="memory bandwidth"):
        host_side(load_host("six-cards-and-display-gpu"), 4)


def step(side=SIDE, **how):
    return offload_step_seconds(work(**how), side, load_accelerator("rtx-4090"), count=1, fit=FIT).sum(axis=1)


@given(share=st.floats(0.0, 1.0), users=st.floats(1.0, 64.0), context=st.floats(0.0, 1e5))
def test_more_users_and_more_context_never_take_less_time(share, users, context):
    base = step(share=share, users=users, context=context)[0]
    assert step(share=share, users=users + 1, context=context)[0] >= base
    assert step(share=share, users=users, context=context + 1e4)[0] >= base


@given(share=st.floats(0.01, 1.0), factor=st.floats(1.0, 4.0))
def test_more_host_bandwidth_is_never_slower(share, factor):
    faster = replace(SIDE, bandwidth=SIDE.bandwidth * factor)
    assert step(faster, share=share)[0] <= step(share=share)[0]


def test_arrays_are_the_same_as_a_loop():
    users = np.array([1.0, 3.0, 17.0])
    together = step(users=users, context=500.0)
    alone = [step(users=user, context=500.0)[0] for user in users]
    np.testing.assert_allclose(together, alone)


def test_the_shipped_constants_are_shares_and_rates_of_the_right_size():
    fit = load_offload_fit()
    for share in (fit.host_bandwidth, fit.next_socket, fit.copy, fit.accelerator_bandwidth, fit.unified_bandwidth):
        assert 0.0 < share < 1.0
    assert 1e-6 < fit.layer_seconds < 1e-3
    assert fit.prefill_core_rate["amx"] > fit.prefill_core_rate["avx512"] > fit.prefill_core_rate["generic"]
    assert all(low < 0 < high for low, high in fit.intervals.values())


def test_a_step_reads_rows_of_an_n_gram_table_and_not_the_table():
    # 320 M rows of 160 values, of which a token reads 16: 51 GB at a byte each, and 2,560 B
    model = load_model("qwen3.8-flash-next")
    one = np.ones(1)
    work = offload_work(model, uniform_checkpoint("int8"), Placement(0.0), StepPoints(one, one, 0 * one, 0 * one))
    # some classes stay in BF16, two bytes a weight
    active = model_parameters(model).active
    assert active < work.own_bytes[0] < 1.25 * active


def test_leading_layers_are_the_first_ones_and_not_a_share_of_each_kind():
    # three dense layers lead
    leading = work(3 / 61, unit="layers")
    dense = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168 + 3 * 7168 * 18432
    assert leading.held_bytes[0] == pytest.approx(3 * dense, rel=1e-3)
    assert leading.host_layers == pytest.approx(3)


def test_the_cpu_attends_to_its_cache_where_weights_are_streamed():
    one = np.ones(1)
    points = StepPoints(0 * one, 0 * one, one * 2048, one * 8192)
    on_host, beside = (
        offload_work(DEEPSEEK, INT8, Placement(0.5, "layers", cache=cache), points) for cache in (True, False)
    )
    assert on_host.cache_bytes[0] == 0.0 < beside.cache_bytes[0] < on_host.attended_bytes[0]
    streamed = host_seconds(on_host, SIDE, mode="stream", fit=FIT)[0, 0]
    least = on_host.attended_prompt_flop[0] / (FIT.prefill_core_rate["avx512"] * SIDE.cores)
    assert streamed == pytest.approx(on_host.held_bytes[0] / (FIT.copy * SIDE.bandwidth) + least)
