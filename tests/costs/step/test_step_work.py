"""The work of a step behaves as hardware does: properties, by hand on the model and the part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import load_host
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.formats import WEIGHT_FORMATS
from glmplan.costs.blocks.stack import uniform_checkpoint
from glmplan.costs.network.links import LayoutLinks, link_for_group
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.model import COMPONENTS, PARAMETERS, FrontPoints, front_work, prompt_launches, step_time
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import SLOTS, step_work

H100 = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12, "fp8": 1978e12}, family="9")
SWITCHED = link_for_group(load_host("hgx-h100-8"), 8)
NVLINK = LayoutLinks(SWITCHED, SWITCHED, SWITCHED, SWITCHED)  # whatever the layout
NEUTRAL = np.log([1e-3, 5e-6, 5e-6, 5e-6, 5e-6, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1e-2, 1e-6, 1e-3])


def structure(model: str = "llama-3.1-8b", weights: str = "bf16", **changes: object) -> StepWork:
    return StepWork(load_model(model), uniform_checkpoint(weights), H100, NVLINK, **changes)  # type: ignore[arg-type]


def seconds(what: StepWork, *, layout: Layout | None = None, requests=8.0, context=2000.0, prompt=0.0, keys=0.0):
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(one, float)) for one in (requests, context, prompt, keys)))
    work = step_work(what, layout=layout or Layout(), points=StepPoints(*columns))
    return step_time(work, NEUTRAL).seconds


def test_every_slot_has_its_parameter():
    assert len(SLOTS) == len(PARAMETERS) == len(NEUTRAL)
    assert all(name.startswith(slot) for slot, name in zip(SLOTS, PARAMETERS, strict=True))


def test_a_prompt_launches_every_layer_and_more_where_a_layer_has_more_kernels():
    assert prompt_launches(structure("llama-3.1-8b")) == 32.0
    assert prompt_launches(structure("qwen3-235b-a22b")) == 2 * 94.0
    assert prompt_launches(structure("deepseek-v3")) == 61 + 58 + 61.0


def test_work_of_the_front_end_stands_in_rows_of_its_own():
    points = StepPoints(*(np.full(2, one) for one in (8.0, 2000.0, 512.0, 256.0)))
    work = step_work(structure(), layout=Layout(), points=points)
    table = np.stack([work[slot] for slot in SLOTS], axis=1)
    work = FrontPoints(np.array([0.0, 1.0]), np.array([0.0, 512.0]), wakes=np.array([0.0, 1.0]))
    found = front_work(table, work, launches=32.0)
    np.testing.assert_array_equal(found[0], table[0])
    assert found[1, SLOTS.index("arrival")] == 32.0
    assert found[1, SLOTS.index("prompt_token")] == 512.0
    assert found[1, SLOTS.index("wake")] == 1.0
    assert np.count_nonzero(found[1]) == 3


@pytest.mark.parametrize("busy", [1.0, 2.0, 3.0])
def test_a_dense_model_on_some_data_parallel_ranks_works_as_alone_on_one(busy):
    """Without experts nothing is shared between ranks: what others have or do not have makes no difference."""
    columns = [np.array([one]) for one in (busy, 2000.0, busy * 512.0, 256.0)]
    some = step_work(structure(), layout=Layout(dp=4), points=StepPoints(*columns, busy_ranks=busy))
    one = [np.array([one]) for one in (1.0, 2000.0, 512.0, 256.0)]
    alone = step_work(structure(), layout=Layout(), points=StepPoints(*one))
    for slot in SLOTS:
        assert some[slot][0] == pytest.approx(alone[slot][0]), slot


def test_experts_see_a_prompt_once_however_many_ranks_are_idle():
    """The rank that took a prompt attends to it alone; all ranks hold experts for it."""
    what = structure("deepseek-v3", "fp8")
    prompt = [np.array([one]) for one in (0.0, 0.0, 4096.0, 2048.0)]
    layout = Layout(tp=1, dp=8, ep=8)
    idle, spread = (
        step_work(what, layout=layout, points=StepPoints(*prompt, busy_ranks=busy)) for busy in (1.0, np.inf)
    )
    assert idle["prefill_attention"][0] > 4.0 * spread["prefill_attention"][0]
    assert idle["expert_flop"][0] == spread["expert_flop"][0]


def test_an_empty_step_costs_no_kernels():
    work = step_work(structure(), layout=Layout(), points=StepPoints(*(np.zeros(1) for _ in range(4))))
    for slot in ("gemm_bytes", "gemm_flop", "cache", "prefill_attention", "collective"):
        assert work[slot][0] == 0.0


@settings(max_examples=30, deadline=None)
@given(factor=st.floats(1.01, 4.0), requests=st.integers(1, 256), context=st.integers(1, 30000))
def test_more_bandwidth_is_never_slower(factor, requests, context):
    slow = structure()
    fast = replace(slow, part=replace(H100, bandwidth=H100.bandwidth * factor))
    assert seconds(fast, requests=requests, context=context) <= seconds(slow, requests=requests, context=context)


@settings(max_examples=30, deadline=None)
@given(factor=st.floats(1.01, 4.0), prompt=st.integers(1, 16384))
def test_more_arithmetic_is_never_slower(factor, prompt):
    slow = structure()
    fast = replace(slow, part=replace(H100, peaks={name: rate * factor for name, rate in H100.peaks.items()}))
    case = {"requests": 0.0, "prompt": prompt, "keys": prompt / 2}
    assert seconds(fast, **case) <= seconds(slow, **case)


@settings(max_examples=30, deadline=None)
@given(
    requests=st.integers(1, 500), more=st.integers(1, 100), context=st.integers(1, 50000), longer=st.integers(0, 9999)
)
def test_more_requests_and_longer_contexts_are_never_faster(requests, more, context, longer):
    for model in ("llama-3.1-8b", "gpt-oss-120b", "glm-5.1", "qwen3.5-397b-a17b"):
        what = structure(model)
        base = seconds(what, requests=requests, context=context)
        assert seconds(what, requests=requests + more, context=context + longer) >= base * (1 - 1e-12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9000), st.integers(0, 9000)), min_size=1, max_size=6))
def test_arrays_equal_loops(points):
    requests, context, prompt = (np.array(column, float) for column in zip(*points, strict=True))
    what = structure("qwen3-30b-a3b", "fp8-block")
    layout = Layout(tp=np.full(len(points), 2), ep=np.full(len(points), 2))
    together = seconds(what, layout=layout, requests=requests, context=context, prompt=prompt, keys=prompt / 2 + 1)
    for place in range(len(points)):
        alone = seconds(
            what, layout=Layout(tp=2, ep=2), requests=requests[place], context=context[place], prompt=prompt[place],
            keys=prompt[place] / 2 + 1,
        )  # fmt: skip
        np.testing.assert_allclose(alone[0], together[place], rtol=1e-12)


def test_pipeline_stages_give_a_single_user_nothing():
    one = seconds(structure("glm-5.1", "nvfp4"), layout=Layout(tp=2, pp=1), requests=1.0)
    three = seconds(structure("glm-5.1", "nvfp4"), layout=Layout(tp=2, pp=3), requests=1.0)
    assert three >= one


def test_pipeline_stages_help_many_users():
    what = structure("glm-5.1", "nvfp4")
    assert seconds(what, layout=Layout(tp=2, pp=3), requests=96.0) < seconds(what, layout=Layout(tp=2), requests=96.0)


def test_a_group_of_one_sends_nothing():
    work = step_work(structure(), layout=Layout(tp=1), points=StepPoints(*(np.full(1, 9.0) for _ in range(4))))
    assert work["collective"][0] == work["collective_bytes"][0] == 0.0


def test_replicas_of_a_dense_model_send_nothing_to_each_other():
    points = StepPoints(*(np.full(1, 9.0) for _ in range(4)))
    work = step_work(structure(), layout=Layout(dp=4), points=points)
    assert work["collective"][0] == work["collective_bytes"][0] == 0.0


def test_replicas_hand_tokens_to_shared_experts_and_take_them_back():
    what, points = structure("glm-5.1", "nvfp4"), StepPoints(*(np.full(1, 32.0) for _ in range(4)))
    tensor = step_work(what, layout=Layout(tp=4), points=points)
    replicas = step_work(what, layout=Layout(dp=4), points=points)
    # two reductions a layer over the group against one gather and one scatter in the layers with experts alone
    assert 0.0 < replicas["collective"][0] < tensor["collective"][0]
    assert replicas["collective_bytes"][0] < tensor["collective_bytes"][0]


def test_latent_cache_is_not_split_by_tensor_parallelism():
    """MLA keeps one latent for all heads: every rank reads it whole (DeepSeek-V2, arXiv 2405.04434)."""
    points = StepPoints(np.full(1, 32.0), np.full(1, 20000.0), np.zeros(1), np.zeros(1))
    dense = structure("deepseek-v3", "fp8-block", sparse=False)
    split = structure("llama-3.1-70b", "fp8-block")

    def cache(what: StepWork, tp: int) -> float:
        return float(step_work(what, layout=Layout(tp=tp), points=points)["cache"][0])

    assert cache(dense, 8) > 0.6 * cache(dense, 1)
    assert cache(split, 8) < 0.3 * cache(split, 1)


def test_sparse_attention_reads_less_of_a_long_context_and_no_more_of_a_short_one():
    sparse, dense = structure("glm-5.1", sparse=True), structure("glm-5.1", sparse=False)
    assert seconds(sparse, context=100_000.0) < seconds(dense, context=100_000.0)
    assert seconds(sparse, context=500.0) == pytest.approx(seconds(dense, context=500.0)[0], rel=0.02)


def test_experts_saturate():
    """From one token to 64, GLM-5 visits 8 to 222 of 256 experts: bytes grow 28 times and no more."""
    what = structure("glm-5", "nvfp4")
    points = StepPoints(np.array([1.0, 64.0, 100_000.0]), np.full(3, 10.0), np.zeros(3), np.zeros(3))
    work = step_work(what, layout=Layout(tp=8), points=points)
    one, many, all_ = work["expert_bytes"]
    assert 2.0 < many / one < 30.0  # short streams of single experts reach less of the bandwidth
    assert all_ > many


def test_drafting_costs_less_than_the_tokens_it_verifies():
    plain = seconds(structure("glm-5.1", "nvfp4"), requests=4.0)
    drafted = seconds(structure("glm-5.1", "nvfp4", draft_tokens=3), requests=4.0)
    assert plain < drafted < 4.0 * plain


@pytest.mark.parametrize(("name", "slower"), [("b300-sxm", 153.5 / 2250), ("b200-sxm", 1.0)])
def test_empty_rows_of_a_borrowed_kernel_take_the_time_that_was_measured(name, slower):
    """No INT8 kernel was measured on Blackwell: BF16's stands for it, whose tiles B300 multiplies 15 times as fast."""
    part = load_accelerator(name)
    what = replace(structure("llama-3.1-8b"), part=Part(name, part.memory_bandwidth, dict(part.peak), "10"))
    own, borrowed = (what.kernel("gemm", what.runs_as(WEIGHT_FORMATS[form], "gemm")) for form in ("bf16", "int8"))
    assert own.rows_half > 16 and borrowed.rows_half == pytest.approx(own.rows_half * slower)
    assert replace(borrowed, rows_half=own.rows_half) == own


def test_shares_add_up_to_the_step():
    columns = [np.array([4.0, 64.0]), np.array([500.0, 9000.0]), np.array([0.0, 2048.0]), np.array([0.0, 1024.0])]
    work = step_work(structure("gpt-oss-120b", "mxfp4"), layout=Layout(tp=2), points=StepPoints(*columns))
    found = step_time(work, NEUTRAL)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0)
    assert sorted(slot for slots in COMPONENTS.values() for slot in slots) == sorted(SLOTS)


def test_the_share_of_a_parameter_is_the_slope_of_the_logarithm():
    columns = [np.array([16.0]), np.array([3000.0]), np.array([512.0]), np.array([256.0])]
    work = step_work(structure("glm-5", "fp8-block"), layout=Layout(tp=8), points=StepPoints(*columns))
    base = step_time(work, NEUTRAL)
    for place in range(len(PARAMETERS)):
        moved = NEUTRAL.copy()
        moved[place] += 1e-5
        slope = (np.log(step_time(work, moved).seconds) - np.log(base.seconds)) / 1e-5
        assert slope[0] == pytest.approx(base.shares[0, place], abs=1e-4)


def processor(model: str = "llama-3.1-8b", engine: str = "llama.cpp", weights: str = "bf16") -> StepWork:
    socket = Part("this-machine", bandwidth=40e9, peaks={"bf16": 80e9}, family="cpu")
    return StepWork(load_model(model), uniform_checkpoint(weights), socket, NVLINK, engine=engine)


def test_on_a_processor_one_row_is_a_kernel_of_its_own_and_few_rows_waste_part_of_a_tile():
    def products(rows: float, weights: str = "bf16") -> dict[str, float]:
        one = np.array([rows])
        points = StepPoints(one, one * 100, one * 0, one * 0)
        work = step_work(processor(weights=weights), layout=Layout(), points=points)
        return {slot: float(work[slot][0]) for slot in ("gemm_fixed", "gemm_bytes", "gemm_flop")}

    # 2 bytes a weight at 0.55 of the bandwidth, 2 FLOP at three tenths of the rate, one after the other
    alone, each = 2 * 7.5e9 / (0.55 * 40e9), 2 * 7.5e9 / (0.3 * 80e9)
    one = products(1)
    assert one["gemm_fixed"] == pytest.approx(alone + each, rel=0.05)
    assert one["gemm_bytes"] == one["gemm_flop"] == 0.0
    # tiles of four weights and three rows widen both and multiply each with each: 19 operations for three rows
    for rows, operations in ((2, 14), (3, 19), (4, 28), (8, 52), (64, 408)):
        more = products(rows)
        assert more["gemm_fixed"] < 1e-3
        assert more["gemm_bytes"] == pytest.approx(alone, rel=0.05)
        assert more["gemm_flop"] == pytest.approx(each * operations * 3 / 19, rel=0.05)
    # quantised weights are counted by their rows
    assert products(4, "q8_0")["gemm_flop"] == pytest.approx(2 * products(2, "q8_0")["gemm_flop"], rel=1e-9)
    # between one row and two, where a mean of requests may lie, time goes from the one to the other
    assert sum(one.values()) < sum(products(1.5).values()) < sum(products(2).values())
    # a GPU takes its own measured kernels
    assert structure().kernel("gemm", "bf16") != processor().kernel("gemm", "bf16")


def test_on_a_processor_requests_of_one_cache_attend_to_the_cells_of_all():
    def attention(requests: float, context: float, engine: str = "llama.cpp") -> float:
        one = np.array([1.0])
        points = StepPoints(one * requests, one * context, one * 0, one * 0)
        work = step_work(processor(engine=engine), layout=Layout(), points=points)
        return float(sum(work[slot][0] for slot in ("attention_fixed", "cache")))

    # multiples of 256 cells
    assert attention(1, 1) == attention(1, 256) < attention(1, 257) == attention(1, 512)
    # four requests each attend to the cells of all four, in another engine to their own
    assert attention(4, 256) == pytest.approx(4 * attention(1, 1024), rel=0.05)
    # few cells are found in a cache by all but the first
    assert 2 * attention(1, 256) < attention(4, 64) < 3.8 * attention(1, 256)
    assert attention(4, 256, "vllm") == pytest.approx(4 * attention(1, 256, "vllm"), rel=0.05)
    assert (
        StepWork(
            load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), structure().part, NVLINK, engine="llama.cpp"
        ).cells
        == 0
    )


@settings(max_examples=30, deadline=None)
@given(requests=st.integers(1, 256), context=st.integers(1, 200_000), share=st.floats(0.0, 1.0))
def test_shared_keys_are_never_slower_than_keys_of_ones_own(requests, context, share):
    n, keys = np.full(1, float(requests)), np.full(1, float(context))

    def cache(shared):
        points = StepPoints(n, keys, n * 0, n * 0, keys * shared)
        return float(step_work(structure(), layout=Layout(), points=points)["cache"][0])

    # more shared keys may fit the cache of the part less well, but keys of one's own never fit it
    assert max(cache(share), cache(1.0)) <= cache(0.0) * (1 + 1e-9)
    if requests == 1:
        assert cache(1.0) == cache(0.0)


def test_ranks_that_divide_a_context_attend_for_all_their_heads():
    """DCP divides the bytes of a latent cache, not the FLOP: each rank holds all query heads for its share of keys."""
    what = structure("glm-5", "fp8-block", sparse=False)
    n, keys = np.full(1, 64.0), np.full(1, 60_000.0)

    def cache(dcp):
        layout = Layout(tp=np.full(1, 8.0), dcp=np.full(1, dcp))
        return float(step_work(what, layout=layout, points=StepPoints(n, keys, n * 0, n * 0))["cache"][0])

    assert cache(8.0) < cache(1.0)
    # eight heads of eight ranks, or 64 heads over an eighth of the keys: a tensor core's rows are better filled
    assert cache(8.0) > cache(1.0) / 8.0


def streams_of_a_layer(name: str, tokens: float, *, engine: str, release: tuple[int, ...] | None = None):
    """What the streams of a layer of DeepSeek-V4-Flash take by their kernels alone, and the passes of other kernels."""
    sheet = load_accelerator(name)
    part = Part(name, sheet.need("memory_bandwidth"), sheet.peak, family=sheet.compute_capability.split(".")[0])
    mixed = replace(structure("deepseek-v4-flash"), part=part, engine=engine, release=release)
    layers = {key: kind.model_copy(update={"streams": None}) for key, kind in mixed.model.layers.items()}
    plain = replace(mixed, model=mixed.model.model_copy(update={"layers": layers}))
    points = StepPoints(*(np.array([value]) for value in (0.0, 0.0, tokens, tokens)))
    found, without = (step_work(one, layout=Layout(), points=points) for one in (mixed, plain))
    more = sum(found[slot][0] - without[slot][0] for slot in ("gemm_fixed", "gemm_bytes", "gemm_flop"))
    return more / len(mixed.model.layer_names), found["activation"][0] / without["activation"][0]


# mhc_module of aisimulate 0.13.0.dev202610270000000085: both sites of a layer of width 4096, reading and writing [s]
@pytest.mark.parametrize(("name", "engine", "release", "tokens", "measured"), [
    ("b200-sxm", "sglang", (0, 5, 14), 1.0, 18.9e-6 + 8.4e-6),
    ("b200-sxm", "sglang", (0, 5, 14), 4096.0, 119.4e-6 + 97.2e-6),
    ("h200-sxm", "vllm", (0, 25), 1.0, 17.7e-6 + 6.1e-6),
    ("h200-sxm", "vllm", (0, 25), 4096.0, 172.3e-6 + 150.6e-6),
    # written and read for the next block by one kernel
    ("h200-sxm", "vllm", (0, 31), 1.0, 17.1e-6),
    ("h200-sxm", "vllm", (0, 31), 4096.0, 330.1e-6),
    # PyTorch's own operators: no kernel for this silicon
    ("rtx-pro-6000-server", "sglang", (0, 5, 14), 4096.0, 3411.5e-6 + 412.3e-6),
])  # fmt: skip
def test_residual_streams_take_what_their_kernels_were_measured_to_take(name, engine, release, tokens, measured):
    found, passes = streams_of_a_layer(name, tokens, engine=engine, release=release)
    assert found == pytest.approx(measured, rel=0.2)
    # the kernels pass over the streams; what else a layer does passes over one
    assert passes == pytest.approx(1.0)


def test_an_engine_whose_mix_nobody_measured_on_the_part_multiplies_and_passes_over_every_stream():
    found, passes = streams_of_a_layer("rtx-pro-6000-server", 1.0, engine="vllm")
    # two products with 24 rows, far from the 41 us that PyTorch's operators take with SGLang
    assert 2 * 2e-6 < found < 2 * 8e-6
    assert passes == pytest.approx(4.0)


def test_the_rank_with_most_pieces_of_a_layer_sets_its_time():
    """Eight KV heads over three ranks take as long as over 8/3: three heads each."""
    points = StepPoints(*(np.array([one]) for one in (8.0, 2000.0, 0.0, 0.0)))

    def slot(name: str, tp: float, engine: str = "exllamav3") -> float:
        return float(step_work(structure(engine=engine), layout=Layout(tp=tp), points=points)[name][0])

    assert slot("cache", 3.0) == pytest.approx(slot("cache", 8.0 / 3.0, "lmdeploy"))
    assert slot("cache", 4.0) == slot("cache", 4.0, "lmdeploy")
    assert slot("cache", 16.0) == slot("cache", 8.0)


def test_an_expert_of_whole_pieces_is_read_by_one_rank():
    points = StepPoints(*(np.array([one]) for one in (1.0, 2000.0, 0.0, 0.0)))
    moe = structure("qwen3-235b-a22b", engine="exllamav3")
    whole, dealt = (step_work(moe, layout=Layout(tp=4.0, ep=ep), points=points)["expert_bytes"] for ep in (1.0, 4.0))
    even = step_work(replace(moe, engine="vllm"), layout=Layout(tp=4.0), points=points)["expert_bytes"]
    assert whole == dealt > even
