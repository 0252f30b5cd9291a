"""The trial run of an image tower, by its source and against the logs of a model that has one."""

from __future__ import annotations

import numpy as np
import pytest
from start_up_errors import score_starts

from glmplan.catalog.entries.models import load_model, model_names
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.memory.activations import encoder_peak, with_encoder
from glmplan.costs.points import Layout

GIB = 2.0**30
ONE = np.ones(1)


@pytest.mark.parametrize(("tp", "widest"), [(1.0, 2 * 1152 + 2 * 4304), (4.0, 7 * 1152)])
def test_a_tower_peaks_in_a_layer_on_one_rank_and_at_its_positions_on_four(tp, widest):
    # an image of 4096 x 4096 pixels in patches of 16 x 16, each of 3 colours in 2 frames
    peak, kept = encoder_peak(load_model("qwen3.5-27b"), tokens=2048 * ONE, tp=tp * ONE)
    assert peak[0] == 2 * 256 * 256 * (3 * 2 * 16 * 16 + widest)
    assert kept[0] == 2 * 128 * 128 * 5120


def test_a_step_of_more_tokens_tries_more_images():
    model = load_model("qwen3-vl-30b-a3b")
    tokens = np.array([2048.0, 16384.0, 32767.0, 32768.0])
    peak, kept = encoder_peak(model, tokens=tokens, tp=np.ones(4))
    assert (peak / peak[0]).tolist() == (kept / kept[0]).tolist() == [1.0, 1.0, 1.0, 2.0]
    # what leaves the tower and three layers of it
    assert kept[0] == 2 * 16384 * 4 * 2048


def test_the_largest_image_of_kimi_makes_4096_tokens():
    # 3,000 x 3,000 pixels are 45,796 patches of 14 x 14, more than the 16,384 of its processor; four make a token
    tokens = np.array([2048.0, 8191.0, 8192.0])
    _, kept = encoder_peak(load_model("kimi-k2.5"), tokens=tokens, tp=np.ones(3))
    assert (kept / (2 * 7168)).tolist() == [4096.0, 4096.0, 8192.0]


def test_the_first_release_tries_a_video_as_long_as_the_longest_request_holds():
    model = load_model("qwen3-vl-30b-a3b")

    def peak(version: str, longest: float) -> float:
        told = MemorySettings(version=version, max_requests=1, token_budget=2048, longest=longest)
        held = rank_memory(model, model.checkpoint("bf16"), layout=Layout(tp=2), kv="bf16", settings=told)
        return float(held.stages[0].activation[0])

    image = peak("0.13.0", 65536.0)
    # an image and the video share the request; seven images are 14 frames, and more are not tried
    assert [peak("0.11.0", 16384.0 * n) / image for n in (1, 2, 3, 4, 16)] == [1.0, 1.0, 2.0, 3.0, 7.0]
    assert peak("0.19.0", 262144.0) == image
    # 12,288 embeddings of a video and a copy of 12.5 times as many beside the pass, whatever the longest request
    kept = 13.5 * 12288 * model.tower_output * 2
    assert peak("0.12.0", 65536.0) == peak("0.11.1", 16384.0)
    assert kept < peak("0.12.0", 65536.0) < kept + image


def test_pass_and_sampler_run_beside_what_the_tower_left():
    model = load_model("qwen3.5-27b")
    peak, kept = encoder_peak(model, tokens=2048 * ONE, tp=4 * ONE)
    assert with_encoder(model, 0 * ONE, tokens=2048 * ONE, tp=4 * ONE)[0] == peak[0]
    assert with_encoder(model, 5 * GIB * ONE, tokens=2048 * ONE, tp=4 * ONE)[0] == 5 * GIB + kept[0]


def test_only_the_first_stage_of_an_engine_that_tries_the_tower_holds_it():
    model = load_model("qwen3.5-27b")
    stored = model.checkpoint("bf16")
    settings = MemorySettings(engine="vllm", version="0.19.0", max_requests=1, token_budget=2048)
    held = rank_memory(model, stored, layout=Layout(tp=4, pp=2), kv="bf16", settings=settings)
    peak, _ = encoder_peak(model, tokens=2048 * ONE, tp=4 * ONE)
    assert held.stages[0].activation[0] == peak[0] > held.stages[1].activation[0]
    other = rank_memory(model, stored, layout=Layout(tp=4, pp=2), kv="bf16", settings=MemorySettings(engine="sglang"))
    bare = model.model_copy(update={"tower_patches": 0})
    plain = rank_memory(bare, stored, layout=Layout(tp=4, pp=2), kv="bf16", settings=MemorySettings(engine="sglang"))
    assert other.stages[0].activation[0] == plain.stages[0].activation[0]


def test_every_tower_of_known_shapes_is_told_whole():
    for name in model_names():
        model = load_model(name)
        told = [model.tower_inner, model.tower_patch_values, model.tower_patches, model.tower_output]
        assert all(told) or not any(told), name
        assert not any(told) or (model.extra_parameters and model.tower_width), name


def test_pools_of_a_model_with_a_tower_close_within_a_quarter_of_a_gibibyte():
    # Qwen3.5-27B on four RTX 3090 under vLLM 0.19.0: 7.0, 7.56 and 7.47 GiB, the second with one request at a time
    found = [one for one in score_starts().errors if one.origin.endswith("LAMBO") and one.quantity == "pool"]
    assert len(found) == 3 and all(abs(one.error) < 0.25 and one.inside for one in found)


@pytest.mark.parametrize(("name", "hidden"), [("gemma-4-26b-a4b", 2816), ("gemma-4-31b", 5376)])
def test_the_largest_item_of_gemma_4_is_a_video_of_32_frames(name, hidden):
    # vllm/model_executor/models/gemma4_mm.py of 0.25.1: 32 frames of 70 tokens (and 8 marks: 2,496, a step in
    # https://github.com/sostrowsk/dgx-spark-local-llm), each of 3 x 3 patches of 16 x 16 RGB pixels
    model = load_model(name)
    assert model.tower_patches == 32 * 70 * 9 and model.tower_patch_values == 3 * 16 * 16
    peak, kept = encoder_peak(model, tokens=2496 * ONE, tp=ONE)
    assert kept[0] == 32 * 70 * hidden * 2
    assert peak[0] == 32 * 70 * 9 * (768 + 2 * 1152 + 2 * 4304) * 2  # less than 0.5 GiB, as two logs leave


def test_whole_towers_deal_the_images_over_the_ranks():
    # vllm/model_executor/models/vision.py (run_dp_sharded_vision_model): every rank takes whole images
    model, tokens = load_model("qwen3.5-27b"), np.array([2048.0, 65536.0])
    alone, kept = encoder_peak(model, tokens=tokens, tp=np.ones(2))
    dealt, same = encoder_peak(model, tokens=tokens, tp=4 * np.ones(2), whole=True)
    assert (alone / alone[0]).tolist() == [1.0, 4.0] and (dealt / alone[0]).tolist() == [1.0, 1.0]
    assert same.tolist() == kept.tolist()
