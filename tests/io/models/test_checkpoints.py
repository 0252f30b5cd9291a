"""A word for weights means one checkpoint: published sizes first, then mixtures of like models, then one format."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.files import data_folder, read_toml
from glmplan.catalog.formats import WEIGHT_FORMATS, weight_format
from glmplan.costs.blocks.stack import checkpoint_bytes, uniform_checkpoint
from glmplan.costs.memory import kv_pool, part_memory, rank_memory
from glmplan.costs.memory.settings import load_memory_fit
from glmplan.costs.points import Layout
from glmplan.errors import SpecError
from glmplan.io.models.checkpoints import (
    COMMON_FORMATS,
    checkpoint_for,
    mixtures_of,
    of_repository,
    read_by,
)
from glmplan.io.models.resolve import resolve_model
from glmplan.io.runs.table import run_from_row
from glmplan.planner.make_plan import fit_answer
from glmplan.planner.question import read_words
from glmplan.prediction.from_row import question_of
from glmplan.prediction.table import predict_runs
from glmplan.present.json_answers import fit_record
from glmplan.request.plan import PlanRequest
from glmplan.units import parse_quantity

GIB = 2**30
WORDS = ("fp8", "awq", "gptq", "4bit", "8bit", "fp16", "bf16", "int8", "w4a16", "nvfp4", "q4_k_m", "q4_k", "q4_0",
         "q8_k_xl", "ud-q4_k_xl", "Q5_K_M", "bpw:4.5", "fp8-block", "mxfp4")  # fmt: skip
TABLE = read_toml(data_folder("hardware_db") / "formats" / "mixtures.toml")
MIXTURES = sorted({entry["name"] for entry in TABLE["mixtures"]})


def gib(model, word, **how):
    return checkpoint_bytes(load_model(model), checkpoint_for(load_model(model), word, **how)) / GIB


@pytest.mark.parametrize(
    ("model", "word", "size", "within"),
    [
        # the publisher's own files (model_specs): AesSedai's Q4_K_M and Q5_K_M, ubergarm's Q8_0
        ("glm-5.1", "q4_k_m", 432.80, 1e-3),
        ("glm-5.1", "q5_k_m", 520.08, 1e-3),
        ("glm-5.1", "q8_0", 746.302, 1e-3),
        # llama.cpp's quantize takes Q4_K for Q4_K_M and Q5_K for Q5_K_M
        ("glm-5.1", "q4_k", 432.80, 1e-3),
        ("glm-5.1", "q5_k", 520.08, 1e-3),
        # Llama 3.1 8B: 4.9 GB as Q4_K_M (llama.cpp tools/quantize/README.md), 4.66 GB as Q4_0 and 4.02 GB as Q3_K_M
        # (files of Llama 3 8B, which has the same shapes)
        ("llama-3.1-8b", "q4_k_m", 4.58, 0.01),
        ("llama-3.1-8b", "q4_0", 4.34, 0.02),
        ("llama-3.1-8b", "q3_k_m", 3.74, 0.01),
        # unsloth: DeepSeek-V3 Q4_K_M is 404 GB; the mixture as other mixtures of experts have it
        ("deepseek-v3", "q4_k_m", 404e9 / GIB, 0.02),
        # files that llama-bench measured: 13.6 and 59.0 GB of gpt-oss would be the safetensors; the GGUF files are less
        ("gpt-oss-20b", "mxfp4-gguf", 20.91e9 * 4.63 / 8 / GIB, 0.01),
    ],
)
def test_a_word_gives_the_size_of_the_published_file(model, word, size, within):
    assert gib(model, word) == pytest.approx(size, rel=within)


def test_published_sizes_lie_within_what_the_mixture_says_of_models_that_nobody_has_quantised_yet():
    """Only models that are not in the table for the name count: two recipes under llama.cpp's names lie outside."""
    ratios = []
    for name in model_names():
        model = load_model(name)
        for one in model.checkpoints:
            bare = one.name.replace("-", "_")
            rows = mixtures_of(model, bare) if one.file_bits_per_weight is not None else ()
            if not rows or any(row.model.lower() == name for row in rows):
                continue
            native = tuple(one for one in model.checkpoints if one.file_bits_per_weight is None)
            found = checkpoint_for(model.model_copy(update={"checkpoints": native}), bare)
            ratio = one.file_bits_per_weight / found.file_bits_per_weight
            ratios.append(1.0 - found.smaller <= ratio <= 1.0 + found.larger)
    assert len(ratios) >= 14
    assert sum(ratios) >= 0.85 * len(ratios)


def test_nine_tenths_of_the_quantised_checkpoints_lie_between_the_uniform_size_and_what_is_said_to_be_its_end():
    ratios = []
    for name in model_names():
        model = load_model(name)
        for one in model.checkpoints:
            bulk = one.formats.get("routed_experts") or one.default
            if one.file_bits_per_weight is not None or weight_format(bulk).bits >= 16:
                continue
            plain = uniform_checkpoint(bulk).model_copy(update={"includes_mtp": one.includes_mtp})
            ratios.append(checkpoint_bytes(model, one) / checkpoint_bytes(model, plain))
    found = checkpoint_for(load_model("llama-3.1-8b"), "int8")
    assert len(ratios) > 60
    assert min(ratios) > 1.0 - found.smaller - 1e-3  # never smaller than uniform
    inside = sum(ratio <= 1.0 + found.larger for ratio in ratios)
    assert inside >= 0.9 * len(ratios)
    # the least that is promised: 12 % too small at the far end
    assert 1.0 - 1.0 / (1.0 + found.larger) >= 0.12


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "glm-5.1", "qwen3-30b-a3b"])
def test_a_plan_and_a_row_of_a_table_mean_the_same_by_a_word(model, word):
    asked = read_words(PlanRequest(model, "8xh200-sxm", weights=word, engine="vllm"))
    row = {"id": "a", "model": model, "weights": word, "accelerator": "h200-sxm", "accelerator_count": "8",
           "engine": "vllm", "phase": "serving", "concurrency": "1"}  # fmt: skip
    theirs = question_of(run_from_row(row)).deployment.checkpoint
    size = checkpoint_bytes(asked.model, theirs)
    assert size == pytest.approx(checkpoint_bytes(asked.model, asked.checkpoint), rel=1e-12)
    assert theirs.formats.keys() == asked.checkpoint.formats.keys()


def test_every_format_worth_naming_is_understood_for_every_model():
    for name in ("llama-3.1-8b", "glm-5.1", "gpt-oss-120b", "kimi-k2.5"):
        for word in (*COMMON_FORMATS, *WEIGHT_FORMATS, *MIXTURES):
            assert checkpoint_bytes(load_model(name), checkpoint_for(load_model(name), word)) > 0


def test_the_llama_in_fp8_is_what_the_fitted_runs_are_filed_under():
    asked = read_words(PlanRequest("llama-3.1-8b-fp8", "h100-sxm", engine="vllm"))
    row = {"id": "a", "model": "llama-3.1-8b", "weights": "fp8", "accelerator": "h100-sxm", "accelerator_count": "1",
           "engine": "vllm", "phase": "serving", "concurrency": "1"}  # fmt: skip
    assert asked.checkpoint.default == question_of(run_from_row(row)).deployment.weights == "fp8"


def test_what_is_not_published_of_a_model_says_so_and_widens_its_memory():
    model, part = load_model("llama-3.1-8b"), load_accelerator("rtx-4090")
    said = checkpoint_for(model, "int8")
    assert "14% larger" in (said.note or "")
    plain = said.model_copy(update={"smaller": 0.0, "larger": 0.0})
    pools = []
    for checkpoint in (said, plain):
        held = rank_memory(model, checkpoint, layout=Layout(), kv="bf16", memory=part.memory)
        pools.append((kv_pool(held, part_memory(part), context=4096.0), held))
    wide, narrow = pools[0][0], pools[1][0]
    assert wide.tokens[0] == narrow.tokens[0]
    assert wide.tokens_low[0] < narrow.tokens_low[0]
    assert wide.tokens_high[0] == narrow.tokens_high[0]
    # the low end is at least as far away as 14 % of the weights
    lost = (wide.tokens[0] - wide.tokens_low[0]) * float(pools[0][1].per_token[0])
    assert lost >= 0.14 * float(pools[0][1].weights[0])


def test_a_plan_tells_that_its_weights_are_not_published():
    told = read_words(PlanRequest("llama-3.1-8b", "h100-sxm", weights="int8", engine="vllm")).assumed
    assert any("int8" in text and "larger" in text for text in told)
    assert not any("larger" in text for text in read_words(PlanRequest("glm-5.1-nvfp4", "8xh200-sxm")).assumed)


def test_llama_cpp_reads_gguf_files_only():
    oss = load_model("gpt-oss-20b")
    assert checkpoint_for(oss, "mxfp4", engine="llama.cpp").name == "mxfp4-gguf"
    assert checkpoint_for(oss, "mxfp4", engine="vllm").file_bits_per_weight is None
    whole = load_model("llama-3.1-8b")
    file = read_by(whole, checkpoint_for(whole, "fp8"), "llama.cpp")
    assert checkpoint_bytes(whole, file) == pytest.approx(
        checkpoint_bytes(whole, checkpoint_for(whole, "fp8")), rel=1e-4
    )
    assert file.larger == checkpoint_for(whole, "fp8").larger


def test_rows_of_the_table_of_mixtures_agree_with_what_the_models_say_of_themselves():
    compared = 0
    for name in MIXTURES:
        for model_name in model_names():
            model = load_model(model_name)
            for row in mixtures_of(model, name):
                own = next((one for one in model.checkpoints if one.name.replace("-", "_") == name), None)
                if row.model.lower() == model_name and own is not None and own.bytes_published is not None:
                    published = parse_quantity(own.bytes_published, "bytes")
                    assert row.bits * row.parameters_b * 1e9 / 8 == pytest.approx(published, rel=0.01), (
                        name,
                        model_name,
                    )
                    compared += 1
    assert compared >= 4


@pytest.mark.parametrize("word", ["fp9", "q11_k", "nvfp5", "bpw:99", ""])
def test_a_word_that_is_neither_a_checkpoint_nor_a_format_is_refused_with_the_nearest(word):
    with pytest.raises(SpecError):
        checkpoint_for(load_model("glm-5.1"), word)


def test_a_row_and_the_json_of_a_plan_widen_weights_that_nobody_publishes():
    row = {"id": "a", "model": "llama-3.1-8b", "weights": "int8", "accelerator": "h100-sxm", "accelerator_count": "1",
           "engine": "vllm", "phase": "serving", "concurrency": "1"}  # fmt: skip
    (wide,) = predict_runs([run_from_row(row)])
    (narrow,) = predict_runs([run_from_row({**row, "weights": "bf16"})])
    weights = wide.figures["weights_gib_per_accelerator"]
    assert (
        weights.high / weights.value
        >= 1.14
        > narrow.figures["weights_gib_per_accelerator"].high / narrow.figures["weights_gib_per_accelerator"].value
    )
    assert "14% larger" in wide.basis and "larger" not in narrow.basis
    record = fit_record(fit_answer(PlanRequest("llama-3.1-8b", "h100-sxm", weights="int8", engine="vllm", users="1")))
    rank = record["memory"]["ranks"][0]
    # 14 % by the files and what loading varies by, as squares; towards less only the latter
    loading = load_memory_fit().loaded["vllm"].share
    assert rank["weights_total_gib_high"] == pytest.approx(
        (1.0 + (0.14**2 + loading**2) ** 0.5) * rank["weights_total_gib"], rel=1e-5
    )
    assert rank["weights_total_gib_low"] == pytest.approx((1.0 - loading) * rank["weights_total_gib"], rel=1e-5)
    # a row has the interval of the plan
    assert weights.low == pytest.approx(rank["weights_total_gib_low"], rel=1e-5)
    assert weights.high == pytest.approx(rank["weights_total_gib_high"], rel=1e-5)
    assert any("larger" in text for text in record["assumed"])


def test_a_repository_is_that_very_one_and_its_publisher_counts():
    assert resolve_model("lukealonso/GLM-5.1-NVFP4").checkpoint.name == "nvfp4-lukealonso"
    assert resolve_model("nvidia/GLM-5.1-NVFP4").checkpoint.kv_default == "fp8"
    # undescribed files of a publisher: no cache format of another publisher, and a range of sizes
    other = resolve_model("RedHatAI/gemma-4-26B-A4B-it-NVFP4").checkpoint
    own = resolve_model("nvidia/Gemma-4-26B-A4B-NVFP4").checkpoint
    assert other.repository == "RedHatAI/gemma-4-26B-A4B-it-NVFP4"
    assert (other.kv_default, own.kv_default) == (None, "fp8")
    assert other.smaller > own.smaller == 0.0 and "not described" in str(other.note)
    # 15.88 GiB loaded: https://github.com/sostrowsk/dgx-spark-local-llm @4b548646 gemma4-nvfp4.log
    held = checkpoint_bytes(load_model("gemma-4-26b-a4b"), other) / 2**30
    assert held * (1 - other.smaller) < 15.88 < held


def test_a_name_of_the_same_shapes_starts_its_own_files():
    choice = resolve_model("meta-llama/Llama-3.3-70B-Instruct")
    assert (choice.model.name, choice.checkpoint.repository, choice.stated) == (
        "llama-3.1-70b", "meta-llama/Llama-3.3-70B-Instruct", False,
    )  # fmt: skip
    # quantised when it is loaded: the format that was asked for, not that of the files
    assert (
        of_repository(choice.model, checkpoint_for(choice.model, "int4"), "meta-llama/Llama-3.1-70B").default == "int4"
    )


def test_a_label_of_several_formats_is_the_checkpoint_with_these_formats_or_refused():
    flash = load_model("deepseek-v4-flash")
    assert checkpoint_for(flash, "mxfp4/fp8 mixed").name == "fp8"
    assert checkpoint_for(flash, "nvfp4 + fp8").name == "nvfp4"
    with pytest.raises(SpecError, match="names 3 formats and not which tensors are in which"):
        checkpoint_for(flash, "mxfp8/nvfp4/nf3 hybrid")


def test_a_published_two_bit_file_is_as_large_as_its_classes_of_tensors():
    """antirez/ds4 pull request 723 prints 80.76 GiB for IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8."""
    flash = load_model("deepseek-v4-flash")
    assert checkpoint_bytes(flash, checkpoint_for(flash, "q2_k")) / 2**30 == pytest.approx(80.76, abs=0.01)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("glm-5.1-reap-192", "w4a16"),
        ("glm-5.3-flash", "awq-int4"),
        ("qwen3.8-flash-next", "autoround-int4"),
        ("qwen3.8-27b", "autoround-int4"),
    ],
)
def test_four_bits_in_safetensors_are_no_file_of_llama_cpp(model, name):
    whole = load_model(model)
    checkpoint = whole.checkpoint(name)
    assert checkpoint.form == "safetensors" and read_by(whole, checkpoint, "vllm") is checkpoint
    assert "as a GGUF file of the same size" in read_by(whole, checkpoint, "llama.cpp").note
    assert read_words(PlanRequest(f"{model}-{name}", "8xh100-sxm")).engine == "vllm"


@pytest.mark.parametrize(
    ("word", "same"),
    [("AWQ-4bit", "awq-int4"), ("GPTQ-Int4", "gptq-int4"), ("awq-w4a16", "awq-int4"), ("INT4-AWQ", "awq-int4"),
     ("quantized.w4a16-gptq", "gptq-int4"), ("gptq-4bit-g128", "gptq-int4")],
)  # fmt: skip
def test_endings_of_repositories_name_a_method(word, same):
    for name in ("qwen3.6-35b-a3b", "qwen3-32b", "llama-3.1-8b"):
        model = load_model(name)
        assert checkpoint_for(model, word) == checkpoint_for(model, same)
    assert resolve_model(f"some/Qwen3.6-35B-A3B-{word}").model.name == "qwen3.6-35b-a3b"
