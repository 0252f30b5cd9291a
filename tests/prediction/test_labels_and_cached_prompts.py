"""Lengths that are labels, prompts that are cached, and what a table says of the kernels that ran."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.calibrate.step.observations import asked_of
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import computed_again, hybrid_block
from glmplan.io.runs.record import Run
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import metrics_of

QWEN = load_model("qwen3.5-397b-a17b")
GRID = {"engine": "vllm", "tp": 4, "accelerator_count": 4, "protocol": "decode-grid", "phase": "decode"}


def cell(name="a", **fields):
    return Run(name, "qwen3.5-397b-a17b", "rtx-pro-6000-server", **{**GRID, **fields})


def test_a_label_is_turned_into_tokens_and_says_so():
    question = question_of(cell(input_tokens=131072.0, context_depth=131072.0, context_is_label=True, concurrency=1.0))
    # 82,845 tokens of Kimi's vocabulary and 83,742 of Qwen's public one carry this label, question and frame included
    assert 82_845 < question.load.input_tokens < 83_742
    assert question.load.context == 0.0
    assert any(text.startswith("a label of 131072 stands for") for text in question.assumed)


def test_a_count_stays_what_it_is():
    load = question_of(cell(input_tokens=131072.0, context_depth=131072.0, concurrency=1.0)).load
    assert load.input_tokens == 131072.0


def test_a_limit_that_is_never_reached_is_no_length():
    assert question_of(cell(input_tokens=0.0, output_tokens=8192.0, concurrency=128.0)).load.output_tokens == 1000.0
    other = question_of(
        cell(input_tokens=10.0, output_tokens=8192.0, concurrency=128.0, protocol="closed-loop", phase="")
    )
    assert other.load.output_tokens == 8192.0


# First tokens of Qwen3.5-397B on four RTX PRO 6000 behind cached prompts, 64 users, vLLM 0.17.0rc1: mean TTFT in ms by
# label, format of the cache and drafted tokens (voipmonitor/rtx6kpro benchmarks/inference-throughput/vllm_*.json)
MEASURED = [
    (16384, 1.0, 0, 932.0),
    (32768, 1.0, 0, 6888.0),
    (16384, 1.0, 2, 12227.0),
    (32768, 1.0, 2, 12611.0),
    (16384, 2.0, 0, 3530.0),
    (16384, 2.0, 2, 6624.0),
]


def test_what_is_read_again_explains_the_first_tokens_behind_cached_prompts():
    again = [
        computed_again(QWEN, engine="vllm", prompt=0.635 * label + 130, tp=4, kv_bytes=size, draft_tokens=draft)
        for label, size, draft, _ in MEASURED
    ]
    seconds = [0.5e-3 * ttft for *_, ttft in MEASURED]
    # prompts of 64 users wait for half of each other: tokens a second that the part reads
    rate = [32.5 * tokens / (2 * one) for tokens, one in zip(again[1:], seconds[1:], strict=True)]
    assert max(rate) / min(rate) < 1.5
    # where next to nothing is left, the front end is what is seen
    assert again[0] < 100 and seconds[0] < min(seconds[1:]) / 3


def test_only_hybrid_models_on_vllm_read_whole_blocks_again():
    dense = load_model("llama-3.1-8b")
    assert hybrid_block(dense, tp=1, kv_bytes=2.0) == 0
    assert computed_again(dense, engine="vllm", prompt=5000.0, tp=1, kv_bytes=2.0) == 64.0
    assert computed_again(QWEN, engine="sglang", prompt=5000.0, tp=4, kv_bytes=2.0) == 64.0
    assert computed_again(QWEN, engine="vllm", prompt=40.0, tp=4, kv_bytes=2.0) == 40.0


@pytest.mark.parametrize("draft", [0, 2])
def test_no_more_is_read_again_than_there_is(draft):
    prompts = np.arange(1.0, 9000.0, 97.0)
    again = [computed_again(QWEN, engine="vllm", prompt=one, tp=4, kv_bytes=1.0, draft_tokens=draft) for one in prompts]
    assert (np.array(again) <= prompts).all()


@pytest.mark.parametrize(("host", "notes", "runs"), [
    ("4 GPU NODE same NUMA; pcie-oneshot AR on", "", True),
    ("dual Turin, patched NCCL 2.29.7 + XML, custom AR", "", True),
    ("2 switches", "--enable-pcie-oneshot-allreduce; mem-fraction-static 0.85", True),
    ("4 GPU TP4, custom AR disabled", "", False),
    ("one chip", "allreduce=NCCL only; 30 s cells", False),
    ("ForceP2P ON; custom AR off, NCCL P2P on/default", "", False),
    ("4x c-payne switches, 16 GPU, NCCL AR (custom AR unsupported at ws=16), no XML", "", False),
    ("4 GPU same NUMA", "", False),
])  # fmt: skip
def test_the_one_shot_all_reduce_runs_where_the_table_says_so(host, notes, runs):
    link = question_of(cell(host=host, notes=notes, concurrency=1.0)).deployment.link.tensor
    assert link.algorithm == ("best" if runs else "ring")
    assert link.one_shot is not None  # it could run


def test_a_row_whose_command_serves_another_model_is_refused():
    fields = {"engine": "vllm", "accelerator_count": 1, "protocol": "closed-loop", "concurrency": 4.0,
              "input_tokens": 100.0, "output_tokens": 100.0, "observed": {"tpot_mean_ms": 10.0}}  # fmt: skip
    runs = [
        Run("other", "qwen3-30b-a3b", "h100-sxm", notes="cmd: vllm serve Qwen/Qwen3-8B", **fields),
        Run("same", "qwen3-8b", "h100-sxm", notes="cmd: vllm serve Qwen/Qwen3-8B", **fields),
        Run("unknown", "qwen3-14b", "h100-sxm", notes="cmd: vllm serve someone/tuned-14b", **fields),
        # another release with the same shapes
        Run("release", "qwen3-235b-a22b", "b200-sxm", notes="cmd: vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507",
            **fields | {"accelerator_count": 8}),
    ]  # fmt: skip
    asked, refused = asked_of(runs)
    assert [question.run.id for question in asked] == ["same", "unknown", "release"]
    assert [(run.id, why) for run, why in refused] == [("other", "the command in its notes serves qwen3-8b")]


def test_images_of_others_may_set_what_the_engine_leaves_fixed():
    kimi = {"engine": "vllm", "tp": 8, "accelerator_count": 8, "attention_backend": "TRITON_MLA", "concurrency": 1.0}
    stock = question_of(Run("a", "kimi-k2.5", "rtx-pro-6000-ws", **kimi))
    image = question_of(Run("b", "kimi-k2.5", "rtx-pro-6000-ws", engine_version="voipmonitor/vllm:kimi", **kimi))
    assert stock.deployment.structure.attention.splits == 4
    assert image.deployment.structure.attention.splits == np.inf


def test_kernels_of_experts_are_named_by_their_first_word():
    words = {said: question_of(cell(moe_backend=said)).deployment.settings.moe_backend
             for said in ("b12x", "b12x (0.7.0, flashinfer attn)", "default", None)}  # fmt: skip
    assert words == {"b12x": "b12x", "b12x (0.7.0, flashinfer attn)": "b12x", "default": "", None: ""}


def _wave(**fields):
    given = {"engine": "vllm", "accelerator_count": 1, "phase": "serving", "protocol": "burst", "concurrency": 200.0,
             "num_requests": 200, "input_tokens": 10000.0, "output_tokens": 800.0}  # fmt: skip
    return question_of(Run("wave", "qwen3-14b", "rtx-pro-6000-server", weights="fp8", **{**given, **fields})).load


def test_one_cached_prompt_of_all_requests_takes_room_once():
    own, shared = _wave(), _wave(shared_prompt=True, prefix_cached=True)
    # 160 KiB a token in 96 GB: some 40 prompts of their own, but the answers of 200 beside one prompt
    assert 20 < own.pool_tokens / 10800 < 60
    assert shared.pool_tokens == own.pool_tokens - 10000
    running = metrics_of(shared)
    assert metrics_of(own).running == pytest.approx(own.pool_tokens / 10800, rel=0.1)
    assert running.running == 200
    # all of them read the same 10,000 tokens
    assert set(running.decode_shared) == {0.0, 10000.0}
    assert not _wave(shared_prompt=True).shared_prompt


def test_weights_that_no_part_holds_are_refused_and_those_that_fit_are_not():
    fields = {"engine": "vllm", "concurrency": 4.0, "input_tokens": 100.0, "output_tokens": 100.0,
              "protocol": "closed-loop", "observed": {"tpot_mean_ms": 10.0}}  # fmt: skip
    runs = [
        Run(f"on {count}", "qwen3-235b-a22b", "h200-sxm", weights="fp8", tp=count, accelerator_count=count, **fields)
        for count in (1, 2)
    ]
    asked, refused = asked_of(runs)
    assert [question.run.id for question in asked] == ["on 2"]
    # 235 billion weights of a byte: 219 GiB and the embedding in two bytes
    assert [why.partition(" GiB on")[0] for _, why in refused] == ["weights do not fit: 220"]
