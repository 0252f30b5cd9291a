"""Parts that split a quantisation block: field reports, the catalogue and the measured runs agree with the rule."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.files import data_folder
from glmplan.catalog.formats import WEIGHT_FORMATS, weight_format
from glmplan.costs.memory.shards import Server, split_block
from glmplan.errors import GlmplanError
from glmplan.io.models.resolve import resolve_model
from glmplan.io.runs.table import read_runs
from glmplan.prediction.from_row import files_of

#: rows that state EP 1 and a layout that cannot load. InferenceX of March 2026 started vLLM with
#: --enable-expert-parallel for EP_SIZE >= 1 (benchmarks/single_node/minimaxm2.5_fp8_h200.sh @53605e0), and labels 72
#: GPUs of a disaggregated rack as one TP
MISLABELLED = {
    ("inferencex", "minimax-m2.5", "h200-sxm", "vllm", 8): 26,
    ("inferencex", "deepseek-r1", "gb200", "sglang", 72): 17,
}


@pytest.mark.parametrize(
    ("words", "engine", "version", "degrees", "part"),
    [
        # https://github.com/sgl-project/sglang/issues/23265, https://github.com/vllm-project/vllm/pull/48173
        ("minimax-m2.7-fp8", "sglang", None, (8, 1, 1), ("mlp.experts", 1536, 8, 128)),
        ("minimax-m2.7-fp8", "sglang", None, (8, 1, 8), None),
        ("minimax-m2.7-fp8", "sglang", None, (4, 1, 1), None),
        ("minimax-m2.5-fp8", "vllm", "0.25.0", (8, 1, 1), ("mlp.experts", 1536, 8, 128)),
        # https://github.com/NVIDIA/TensorRT-LLM/pull/14613
        ("minimax-m2.5-fp8", "trtllm", None, (8, 1, 1), ("mlp.experts", 1536, 8, 128)),
        ("minimax-m2.5-fp8", "trtllm", None, (8, 1, 8), None),
        # https://github.com/QwenLM/Qwen3/issues/1485, https://github.com/vllm-project/vllm/issues/17569
        ("qwen3-235b-a22b-fp8", "vllm", "0.9.0", (8, 1, 1), ("mlp.experts", 1536, 8, 128)),
        # https://github.com/vllm-project/vllm/issues/52997: the shared expert, so EP is no cure
        ("qwen3.6-35b-a3b-fp8", "vllm", None, (8, 1, 1), ("mlp.shared_experts", 512, 8, 128)),
        ("qwen3.6-35b-a3b-fp8", "vllm", None, (8, 1, 8), ("mlp.shared_experts", 512, 8, 128)),
        ("qwen3.6-35b-a3b-fp8", "vllm", None, (4, 1, 1), None),
        ("qwen3-30b-a3b-fp8", "vllm", "0.28.0", (4, 1, 1), ("mlp.experts", 768, 4, 128)),
        # https://github.com/vllm-project/vllm/issues/17604
        ("qwen3-30b-a3b-awq-int4", "vllm", "0.9.1", (4, 1, 1), ("mlp.experts", 768, 4, 128)),
        ("qwen3-30b-a3b-awq-int4", "vllm", None, (8, 1, 1), ("mlp.experts", 768, 8, 128)),
        ("qwen3-30b-a3b-awq-int4", "vllm", None, (8, 1, 8), None),
        # the files of Qwen2.5-72B-AWQ are padded from 29,568 to 29,696
        ("qwen2.5-72b-awq-int4", "vllm", None, (8, 1, 1), None),
        # SGLang halves the groups of experts in AWQ, not in GPTQ: 1,536 / 8 = 192
        ("glm-4.7-awq-int4", "sglang", "0.4.9", (8, 1, 1), ("mlp.experts", 1536, 8, 128)),
        ("qwen3-235b-a22b-gptq-int4", "sglang", None, (8, 1, 1), ("mlp.experts", 1536, 8, 128)),
        # widths without blocks: data-parallel ranks divide the experts too, an EP of all ranks leaves them whole
        ("qwen3-30b-a3b-bf16", "vllm", None, (1, 5, 1), ("mlp.experts", 768, 5, 1)),
        ("qwen3-30b-a3b-bf16", "vllm", None, (1, 5, 5), None),
        ("gpt-oss-120b-mxfp4", "vllm", None, (1, 7, 1), ("mlp.experts", 2880, 7, 32)),
        ("glm-4.7-flash-bf16", "sglang", None, (5, 1, 1), ("mlp.experts", 1536, 5, 1)),
        # 10,944 columns are no whole groups of 128, so a file keeps that layer wide
        ("glm-4.5-air-awq-int4", "vllm", None, (2, 1, 2), ("mlp.shared_experts", 1408, 2, 128)),
        # a dense model: 9,728 / 8 = 1,216 = 9.5 blocks
        ("qwen3-4b-fp8", "vllm", None, (8, 1, 1), ("mlp", 9728, 8, 128)),
        ("qwen3-4b-fp8", "vllm", None, (4, 1, 1), None),
    ],
)
def test_a_part_of_a_fraction_of_a_block_does_not_load(words, engine, version, degrees, part):
    chosen = resolve_model(words)
    found = split_block(chosen.model, chosen.checkpoint, Server(engine, version, "nvidia"), degrees)
    if part is None:
        assert found is None
        return
    assert not found.loads and found.source
    assert (found.tensor.rpartition(".")[0], found.width, found.ranks, found.block) == part


@pytest.mark.parametrize(
    ("words", "engine", "version", "vendor", "degrees"),
    [
        # wheel of vllm 0.29.0: blocks of 128 are refined to 64, of which 192 is a multiple
        ("minimax-m2.7-fp8", "vllm", "0.29.0", "nvidia", (8, 1, 1)),
        # wheel of vllm 0.13.0: groups of 128 are halved for parts of 192 (GLM-4.6-AWQ in pull request 30210)
        ("qwen3-30b-a3b-awq-int4", "vllm", "0.13.0", "nvidia", (4, 1, 1)),
        # AITER pads experts to 128
        ("minimax-m2.7-fp8", "sglang", None, "amd", (8, 1, 1)),
        # 2,880 / 8 = 360 is no multiple of 32; 26 rows of such runs stand in calibration/measurements
        ("gpt-oss-120b", "vllm", "0.18.0", "nvidia", (8, 1, 1)),
        ("gpt-oss-120b", "trtllm", None, "nvidia", (8, 1, 1)),
        ("gpt-oss-120b", "sglang", None, "nvidia", (8, 1, 1)),
    ],
)
def test_an_engine_that_pads_or_refines_loads_the_part(words, engine, version, vendor, degrees):
    chosen = resolve_model(words)
    assert split_block(chosen.model, chosen.checkpoint, Server(engine, version, vendor), degrees).loads


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_one_rank_splits_nothing_and_a_part_of_a_whole_number_of_blocks_loads(engine):
    server, split = Server(engine, None, "nvidia"), 0
    for name in model_names():
        model = load_model(name)
        for checkpoint in model.checkpoints:
            assert split_block(model, checkpoint, server, (1, 1, 1)) is None
            found = split_block(model, checkpoint, server, (8, 1, 1))
            split += found is not None
            assert found is None or found.width % (found.ranks * found.block)
    assert split > 10


def test_blocks_of_formats_follow_from_their_bits():
    """One scale of 32 bits for 128 x 128 values, one of 8 for 16 or 32, and 16 or 20 bits for a group."""
    scales = {"fp8-block": 32, "fp8-block32": 8, "nvfp4": 8, "mxfp4": 8, "mxfp8": 8, "int4-g32": 16, "int4-g64": 20,
              "int4-g128": 16, "int4": 20, "awq-int4": 20, "gptq-int4": 20, "w4afp8": 16}  # fmt: skip
    assert scales.keys() == {name for name, form in WEIGHT_FORMATS.items() if form.block != (1, 1)}
    for name, scale in scales.items():
        form = weight_format(name)
        rows, columns = form.block
        assert form.bits % 4 == pytest.approx(scale / (rows * columns))


def test_measured_runs_that_state_their_degrees_load():
    refused = Counter()
    looked = 0
    for path in sorted((data_folder("calibration") / "measurements").glob("*.csv")):
        if path.stem in ("acceptance", "collectives", "pcie-topologies"):
            continue
        for run in read_runs(path):
            if not (run.tp and run.ep) or run.unusable:
                continue
            try:
                model, part = load_model(run.model), load_accelerator(run.accelerator)
                checkpoint = files_of(run.model, run.weights, run.weights_bits, run.checkpoint, run.engine)
            except GlmplanError:
                continue
            looked += 1
            if run.engine is None or not re.match(r"[bv]?\d|$", run.engine_version or ""):
                continue  # builds of others carry names instead of versions, and pad in their own way
            server = Server.on(part, run.engine, run.engine_version)
            found = split_block(model, checkpoint, server, (run.tp, run.dp or 1, run.ep))
            if found is not None and not found.loads:
                refused[path.stem, run.model, run.accelerator, run.engine, run.tp] += 1
    assert looked > 1000
    assert refused == MISLABELLED


def test_an_engine_that_pads_any_part_loads_uneven_widths():
    model = load_model("qwen3-30b-a3b")
    found = split_block(model, model.checkpoint("bf16"), Server("lmdeploy", None, "nvidia"), (1, 5, 1))
    assert found.loads and not found.slower
