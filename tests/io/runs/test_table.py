"""Reading tables of runs: names, traps of each source, bad cells, bad files."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.models import model_names
from glmplan.catalog.entries.names import (
    accelerator_name,
    engine_name,
    engine_release,
    kv_name,
    model_name,
    refusal,
    weights_name,
)
from glmplan.errors import SpecError
from glmplan.io.runs.columns import ALIASES, COLUMNS
from glmplan.io.runs.record import Run, read_speculation
from glmplan.io.runs.table import read_runs, run_from_row
from glmplan.prediction.from_row import question_of
from glmplan.prediction.predict import predict

BASE = {"id": "a", "model": "glm-5.1", "accelerator": "b200-sxm"}


def run(**cells):
    return run_from_row({**BASE, **cells})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("bfloat16", "bf16"),
        ("FP8 (native)", "fp8"),
        ("FP8 native", "fp8"),
        ("fp4", "nvfp4"),
        ("MXFP4 GGUF", "mxfp4"),
        ("int4 (native W4A16 Marlin)", "int4"),
        ("awq-int4", "int4"),
        ("GPTQ-INT4", "int4"),
        ("UINT4", "int4"),
        ("INT8 CPU (AMX) + INT4 GPU", "int8"),
        ("Q8_K_XL", "q8_k_xl"),
        ("Q4_0", "q4_0"),
        ("GGUF IQ2_M", "iq2_m"),
        ("Ollama default (Q4_K_M/MXFP4)", "q4_k_m"),
        ("MLX 3.110 bpw (baa-ai RAM-270GB)", "bpw:3.110"),
        ("MLX MXFP4-Q8 (378 GB)", "mxfp4"),
        ("mxfp8/nvfp4/nf3 hybrid", "mxfp8/nvfp4/nf3 hybrid"),
        ("4-bit/8-bit MLX", "4-bit/8-bit mlx"),
        ("UNSET", None),
        ("", None),
    ],
)
def test_a_weight_format_is_found_behind_every_spelling_of_the_tables(written, meant):
    assert weights_name(written) == meant


@pytest.mark.parametrize(
    ("written", "engine", "release"),
    [
        ("vLLM v0.9.2", "vllm", (0, 9, 2)),
        ("TensorRT 10.11, CUDA 12.9", "trtllm", None),
        ("TensorRT-LLM", "trtllm", None),
        ("Ollama/llama.cpp", "llama.cpp", None),
        ("SGLang+kt-kernel", "ktransformers", None),
        ("vLLM-Ascend", "vllm", None),
        ("MindIE", "mindie", None),
        ("first engine", None, None),
    ],
)
def test_engine_and_release_are_read_from_the_engine_cell(written, engine, release):
    read = run(engine=written)
    assert (read.engine, read.engine_release) == (engine, release)
    assert engine_name(written) == engine


@pytest.mark.parametrize(
    ("version", "release"),
    [("1.2.0rc6.post2", (1, 2, 0)), ("V0.2.1", (0, 2, 1)), ("b6918", (6918,)), ("0.1.dev12777 image", None),
     ("voipmonitor/sglang:cu130, b12x 0.7.2", None), ("nightly-dev", None), (None, None)],
)  # fmt: skip
def test_only_a_version_that_begins_with_numbers_has_a_release(version, release):
    assert engine_release(version) == release


def test_an_amd_part_reads_fp4_as_mxfp4():
    assert run(accelerator="mi355x", weights="fp4").weights == "mxfp4"
    assert run(accelerator="b200-sxm", weights="fp4").weights == "nvfp4"


def test_aliases_resolve_and_unresolvable_names_have_a_reason():
    assert model_name("Llama-3.2:3b") == "llama-3.2-3b"
    assert accelerator_name("rtx-pro-6000-server (tuning JSON device name)") == "rtx-pro-6000-server"
    assert refusal("models", "glyph") and refusal("accelerators", "mixed")
    assert refusal("models", "glm-5.1") is None


def test_no_model_of_the_catalogue_is_refused():
    assert {name for name in model_names() if refusal("models", name) is not None} == set()


def test_auto_leaves_the_cache_format_to_the_engine():
    assert [kv_name(text) for text in ("auto", "FP8", "f16 (default)", "")] == [None, "fp8", "f16", None]


def test_a_count_written_as_a_float_is_a_count():
    assert run(accelerator_count="4.0", tp="4.0").tp == 4


@pytest.mark.parametrize(
    ("cells", "field"),
    [({"tp": "2.5"}, "tp"), ({"tp": "0"}, "tp"), ({"concurrency": "-3"}, "concurrency"),
     ({"concurrency": "0"}, "concurrency"),
     ({"input_tokens": "nan"}, "input_tokens"), ({"output_tokens": "inf"}, "output_tokens"), ({"pp": "two"}, "pp"),
     ({"ttft_ms": "1,2"}, "ttft_ms"), ({"model": ""}, "model"), ({"phase": "decodin"}, "phase"),
     ({"kv_cache": "fb8"}, "kv_cache")],
)  # fmt: skip
def test_a_bad_cell_is_told_with_its_column(cells, field):
    assert run(**cells).error.startswith(f"{field}: ")


def test_a_word_that_is_not_known_is_told_with_the_nearest_that_is():
    assert run(phase="decodin").error.endswith("nearest: decode")
    assert run(kv_cache="fb8").error.endswith("nearest: fp8")


@given(st.dictionaries(st.sampled_from([*COLUMNS, *ALIASES]), st.text(max_size=12)))
def test_no_row_whatever_it_holds_raises(cells):
    read = run_from_row(cells)
    assert read.error is None or read.error


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_an_observed_figure_comes_back_unchanged(value):
    assert run(tpot_ms=repr(value)).observed["tpot_mean_ms"] == value


def test_llama_batched_bench_prints_the_total_of_all_sequences():
    read = run(scenario="llama-batched-bench (aggregate)", output_tokens_per_s_per_request="60.35", concurrency="2")
    assert read.observed == {"output_tokens_per_s": 60.35} and read.total_in_request_column


def test_mlperf_figures_are_output_tokens_of_the_whole_system():
    read = run(scenario="mlperf-server", mlperf_tokens_per_s="13913.3")
    assert read.observed == {"output_tokens_per_s": 13913.3} and read.protocol == "mlperf-server"


def test_a_mixed_system_is_unusable():
    assert "several kinds" in run(accelerator="mixed").unusable


def test_ten_prompts_for_each_user_are_sent_in_the_inferencex_protocol():
    read = run(notes="InferenceX", concurrency="16")
    assert (read.num_requests, read.length_range) == (160, (0.8, 1.0))


def test_a_kimi_label_of_128k_is_82845_tokens():
    note = "models/kimi-k26.md @git 4e59b3a § DCP=4 decode expectations; pre-0.4.3 llm_decode_bench"
    read = run(model="kimi-k2.5", phase="decode", input_tokens="131072", notes=note)
    assert read.context_depth == 82845 and not read.context_is_label


def test_an_unmeasured_label_stays_a_label():
    read = run(model="qwen3.5-397b-a17b", phase="decode", input_tokens="16384", notes="x; ctx label = 4 chars/token so")
    assert read.context_depth == 16384 and read.context_is_label


def test_drafting_stops_above_the_limit_of_the_server():
    cell = "eagle3-3 (disabled above 7000 tok)"
    assert read_speculation(cell, "", None, 0.0).draft_tokens == 3
    assert read_speculation(cell, "", None, 10480.0).state == "none"


def test_a_table_headed_mtp_but_launched_without_is_none():
    assert (
        run(speculative="none? (heading says MTP but launch cmd has NO --speculative flags)").speculation.state
        == "none"
    )


def test_a_simulated_acceptance_keeps_the_requests_of_a_batch_in_step():
    run = Run(
        "a", "glm-5.2", "h200-sxm", accelerator_count=8, weights="fp8", engine="sglang", phase="serving",
        concurrency=16.0, input_tokens=8192.0, output_tokens=1024.0,
        speculation=read_speculation("mtp steps=5 draft=6 simulated", "", 3.5, None),
    )  # fmt: skip
    drawn = replace(run, speculation=read_speculation("mtp steps=5 draft=6", "", 3.5, None))
    cases = [question_of(one) for one in (run, drawn)]
    assert [case.load.draft_tokens for case in cases] == [0, 5]
    together, apart = (predict(case.deployment, case.load).figures["ttft_p50"].value for case in cases)
    assert together > 3.0 * apart


def test_a_server_command_without_draft_options_is_none_and_silence_is_unknown():
    assert read_speculation("", "cmd: vllm serve zai-org/GLM-4.6 -tp 8", None, None).state == "none"
    assert read_speculation("", "InferenceX", None, None).state == "unknown"


def test_the_low_end_of_a_page_is_not_the_acceptance_of_a_cell():
    cell = "mtp NEXTN steps=4 draft=6 topk=1 (page launch cmd); page accept len 2.19-2.80, accept rate 0.55-0.94"
    spec = run(speculative=cell, acceptance_length="2.19").speculation
    assert spec.acceptance_length is None and spec.acceptance_range == (2.19, 2.8)


def test_sglang_prints_accepted_length_over_draft_tokens():
    spec = run(speculative="mtp NEXTN steps=5 draft=6", notes="results; accept_rate=0.5").speculation
    assert spec.acceptance_length == pytest.approx(3.0)


def test_a_reading_of_whole_steps_carries_its_error():
    assert run(notes="QUANTISED: median of 1-s samples = whole engine steps/s, +/-4.2%").uncertainty_pct == 4.2


def test_a_tpot_that_contradicts_its_own_latency_is_withheld():
    # GPUStack, Qwen3.5-35B-A3B on one H200: 100 tokens in 47.26 s after 31.98 s, printed as 319.79 ms
    cells = {"campaign": "gpustack-performance-lab", "output_tokens": "100", "ttft_mean_ms": "31979.13",
             "e2e_mean_ms": "47260", "tpot_mean_ms": "319.79"}  # fmt: skip
    read = run(**cells)
    assert "tpot_mean_ms" not in read.observed and "154.35" in read.withheld["tpot_mean_ms"]


def test_a_total_over_the_users_is_no_decode_speed():
    # GLM-5.1 NVFP4 on six RTX PRO 6000: 32 answers of 256 tokens in 21.4 s, printed as 384 and as 12 for each
    cells = {"phase": "serving", "concurrency": "32", "output_tokens_per_s": "384"}
    read = run(**cells, output_tokens_per_s_per_request="12")
    assert read.observed == {"output_tokens_per_s": 384.0} and list(read.withheld) == [
        "output_tokens_per_s_per_request"
    ]
    assert run(**cells, output_tokens_per_s_per_request="14").observed["output_tokens_per_s_per_request"] == 14.0
    decoding = run(**cells | {"phase": "decode"}, output_tokens_per_s_per_request="12")
    assert decoding.observed["output_tokens_per_s_per_request"] == 12.0


def test_the_burst_of_128_users_ran_64_at_once():
    read = run(concurrency="128", notes="51.1 s is two waves of 64: the server admits 64 at once")
    assert read.running_limit == 64


def test_a_cached_prompt_is_told_from_a_cold_one():
    note = "C=1 cells are cold (uncached) for ctx>0; C>=2 prefix-cached"
    assert run(concurrency="4", notes=note).prefix_cached and not run(concurrency="1", notes=note).prefix_cached


def test_columns_become_arrays_with_nan_where_nothing_is_said(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("id,model,accelerator,tp,tpot_ms\na,m,x,8,1.5\nb,m,x,,\n")
    table = read_runs(file)
    assert table.column("tp")[0] == 8 and table.column("tpot_mean_ms")[0] == 1.5
    assert math.isnan(table.column("tp")[1]) and math.isnan(table.column("tpot_mean_ms")[1])


def test_a_missing_column_names_the_nearest_one(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("id,modell,accelerator\na,b,c\n")
    with pytest.raises(SpecError, match=r"model: .*nearest column: modell"):
        read_runs(file)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00id"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    file = tmp_path / "runs.csv"
    file.write_bytes(content)
    with pytest.raises(SpecError):
        read_runs(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        read_runs(tmp_path / "none.csv")


def test_a_bad_row_leaves_the_others_alone(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("id,model,accelerator,tp,mine\na,m,x,minus,1\nb,m,x,8,2\nc,m,x\nd,m,x,8,2,3\n")
    runs = read_runs(file)
    assert [r.error is None for r in runs] == [False, True, True, False]
    assert runs[1].cells["mine"] == "2"
