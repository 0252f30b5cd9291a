"""Results of other tools: real outputs of two small servers, and what the formats say of traps."""

import csv
import gzip
import io
import json
import math
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.importers import KINDS, import_file, import_text, table_csv
from glmplan.io.runs.importers.record import Fields

CLIENTS = Path(__file__).parents[2] / "data" / "clients"
SHARED = Path(__file__).parents[3].parent / "shared"
# one row for each tool that measured the same llama.cpp server: 12 requests of 64 + 32 tokens by 4 users
SAME_SERVER = {
    "vllm_bench_serve__llamacpp.json": "vllm bench serve",
    "sglang_bench_serving__llamacpp.jsonl": "sglang bench_serving",
    "guidellm__llamacpp.json": "guidellm",
    "guidellm__llamacpp.csv": "guidellm csv",
    "aiperf__llamacpp/profile_export_aiperf.json": "aiperf",
    "aiperf__llamacpp/profile_export_aiperf.csv": "aiperf csv",
    "aiperf__llamacpp/profile_export.jsonl": "aiperf requests",
}


def only(name):
    found = import_file(CLIENTS / name)
    assert len(found.rows) == 1 and not found.problems
    return found.rows[0]


@pytest.mark.parametrize(("name", "kind"), SAME_SERVER.items())
def test_the_kind_is_recognised_by_content_and_not_by_name(name, kind, tmp_path):
    hidden = tmp_path / "result.txt"
    hidden.write_bytes((CLIENTS / name).read_bytes())
    assert import_file(hidden).kind == kind


@pytest.mark.parametrize("name", SAME_SERVER)
def test_every_tool_tells_the_same_story_of_one_server(name):
    row = only(name)
    assert row["phase"] == "serving" and row["num_requests"] == 12
    assert row["input_tokens"] == pytest.approx(64) and row["output_tokens"] == pytest.approx(32)
    assert row["tpot_mean_ms"] == pytest.approx(13.9, rel=0.07)
    assert row["ttft_mean_ms"] == pytest.approx(262, rel=0.07)
    assert row["e2e_mean_ms"] == pytest.approx(row["ttft_mean_ms"] + 31 * row["tpot_mean_ms"], rel=0.03)
    assert row["output_tokens_per_s"] == pytest.approx(12 * 32 / row["wall_s"], rel=0.01)


@pytest.mark.parametrize("name", sorted(str(p.relative_to(CLIENTS)) for p in CLIENTS.rglob("*") if p.is_file()))
def test_every_row_uses_only_columns_of_the_tables(name):
    try:
        rows = import_file(CLIENTS / name).rows
    except SpecError as error:
        assert "AIPerf" in str(error)
        return
    assert rows and all(set(row) <= set(COLUMNS) for row in rows)


def test_a_table_of_imported_runs_is_read_back_without_an_error(tmp_path):
    from glmplan.io.runs.table import read_runs

    file = tmp_path / "runs.csv"
    facts = {"model": "llama-46m", "accelerator": "cpu", "engine": "llama.cpp"}
    rows = [r for n in (*SAME_SERVER, "llama-batched-bench__llama-50m-f16.jsonl", "llama-bench__llama-500m-q4_0.json")
            for r in import_file(CLIENTS / n, facts=facts).rows]  # fmt: skip
    file.write_text(table_csv(rows))
    runs = read_runs(file)
    assert [run.error for run in runs] == [None] * len(rows)
    for run, row in zip(runs, rows, strict=True):
        assert run.observed.get("output_tokens_per_s") == row.get("output_tokens_per_s")
        assert run.observed.get("tpot_mean_ms") == row.get("tpot_mean_ms")


def test_tokens_that_a_client_guessed_are_counted_again_from_the_chunks():
    # the file says 462 tokens where the server sent 384 (it put usage where this client does not look)
    row = only("vllm_bench_serve__llamacpp.json")
    assert row["output_tokens"] == 32
    assert row["tpot_mean_ms"] > 13  # the file's own figure, 11.86, is biased low
    assert "462" in row["notes"]


def test_counts_with_usage_are_left_alone():
    row = only("vllm_bench_serve__vllm-cpu.json")
    assert row["tpot_mean_ms"] == pytest.approx(22.7662, abs=1e-3) and "usage" not in row["notes"]


def test_guidellm_time_per_output_token_includes_the_first_token():
    row = only("guidellm__llamacpp.json")
    assert row["tpot_incl_ttft_mean_ms"] == pytest.approx(row["e2e_mean_ms"] / 32, rel=0.01)
    assert "itl_p99_ms" not in row  # its inter-token latency is one figure for each request


def test_sglang_random_lengths_come_from_totals():
    record = json.loads((CLIENTS / "sglang_bench_serving__llamacpp.jsonl").read_text())
    record |= {"random_range_ratio": 0.0, "random_input_len": 1000, "random_output_len": 1000, "completed": 10}
    record |= {"total_input_tokens": 6101, "total_output_tokens": 4210}
    row = import_text(json.dumps(record)).rows[0]
    assert (row["input_tokens"], row["output_tokens"]) == (610.1, 421)
    assert row["protocol"] == "sglang-bench-random" and "prefer medians" in row["notes"]


def test_sglang_server_info_names_the_engine_and_its_layout():
    record = json.loads((CLIENTS / "sglang_bench_serving__llamacpp.jsonl").read_text())
    record["server_info"] = {"version": "0.5.6", "tp_size": 8, "dp_size": 4, "enable_dp_attention": True,
                             "max_total_num_tokens": 314304}  # fmt: skip
    row = import_text(json.dumps(record)).rows[0]
    assert (row["engine"], row["engine_version"], row["tp"], row["dp"]) == ("sglang", "0.5.6", 2, 4)
    assert row["kv_pool_tokens"] == 314304


def test_metadata_of_vllm_bench_fills_the_columns_it_names():
    record = json.loads((CLIENTS / "vllm_bench_serve__vllm-cpu.json").read_text()) | {"tp": "8", "engine": "vllm"}
    row = import_text(json.dumps(record)).rows[0]
    assert (row["tp"], row["engine"]) == ("8", "vllm")


def test_without_a_limit_all_prompts_are_in_flight_at_once():
    record = json.loads((CLIENTS / "vllm_bench_serve__vllm-cpu.json").read_text())
    assert import_text(json.dumps(record | {"max_concurrency": None})).rows[0]["concurrency"] == 12
    paced = import_text(json.dumps(record | {"max_concurrency": None, "request_rate": 2.5})).rows[0]
    assert "concurrency" not in paced and paced["request_rate_per_s"] == 2.5


def test_appended_runs_are_all_read():
    text = (CLIENTS / "vllm_bench_serve__vllm-cpu.json").read_text()
    found = import_text(text + "\n" + text)
    assert len(found.rows) == 2 and found.rows[0]["id"] != found.rows[1]["id"]


def test_one_broken_line_costs_one_record_and_says_which():
    line = (CLIENTS / "sglang_bench_serving__llamacpp.jsonl").read_text().strip()
    found = import_text("\n".join([line, line[:2000], line, '{"completed": 3, "mean_e2e_latency_ms": "x"}', line]))
    assert len(found.rows) == 3
    assert [problem.line for problem in found.problems if problem.field == ""] == [2]
    missing = [problem for problem in found.problems if problem.line == 4]
    assert missing and "missing" in missing[-1].message


def test_a_field_of_the_wrong_type_is_named_with_its_line():
    line = json.loads((CLIENTS / "sglang_bench_serving__llamacpp.jsonl").read_text())
    found = import_text("\n" + json.dumps(line | {"mean_ttft_ms": "fast"}))
    assert "ttft_mean_ms" not in found.rows[0]
    assert str(found.problems[0]) == "line 2: mean_ttft_ms: expected a number, got 'fast'"


def test_a_truncated_guidellm_report_keeps_its_whole_benchmarks():
    report = json.loads((CLIENTS / "guidellm__llamacpp.json").read_text())
    report["benchmarks"] *= 2
    text = json.dumps(report)
    found = import_text(text[: int(len(text) * 0.8)])
    assert len(found.rows) == 1 and "cut off" in found.problems[0].message


def test_a_truncated_array_of_llama_bench_keeps_its_whole_tests():
    text = (CLIENTS / "llama-bench__llama-500m-q4_0.json").read_text()
    found = import_text(text[: text.rindex('"avg_ts"')])
    assert len(found.rows) == 3 and found.problems


def test_a_file_without_any_usable_record_says_what_it_lacks():
    with pytest.raises(SpecError, match=r"looks like vllm bench serve.*line 1.*completed"):
        import_text('{"total_output_tokens": 1, "request_throughput": 2}')
    with pytest.raises(SpecError, match="no finished run|got 0"):
        import_text('{"total_output_tokens": 0, "request_throughput": 0, "completed": 0}')


@pytest.mark.parametrize("text", ["", " \n", "hello", "{}", "[1, 2]", "a,b\n1,2\n", '{"payloads": []}'])
def test_what_is_no_result_is_refused_with_a_reason(text):
    with pytest.raises(SpecError):
        import_text(text, name="x.json")


def test_a_compressed_file_is_read_and_a_broken_one_refused(tmp_path):
    data = gzip.compress((CLIENTS / "vllm_bench_serve__vllm-cpu.json").read_bytes())
    (tmp_path / "a.gz").write_bytes(data)
    assert import_file(tmp_path / "a.gz").rows
    (tmp_path / "b.gz").write_bytes(data[:100])
    with pytest.raises(SpecError, match="gzip"):
        import_file(tmp_path / "b.gz")
    with pytest.raises(SpecError, match="cannot be read"):
        import_file(tmp_path / "none")


@given(cut=st.integers(0, 12000), name=st.sampled_from(sorted(SAME_SERVER)))
def test_no_cut_of_a_file_ends_in_anything_but_rows_or_a_reason(cut, name):
    text = (CLIENTS / name).read_text()[:cut]
    try:
        found = import_text(text)
    except SpecError:
        return
    assert found.rows


@given(st.text(max_size=200))
def test_arbitrary_text_is_refused_and_never_crashes(text):
    with pytest.raises(SpecError):
        import_text(text)


def test_llama_bench_speaks_of_one_stream():
    rows = import_file(CLIENTS / "llama-bench__llama-500m-q4_0.json").rows
    assert [row["scenario"] for row in rows[:1]] == ["llama-bench pp128"]
    decode = next(row for row in rows if row["phase"] == "decode")
    assert decode["concurrency"] == 1 and decode["tpot_mean_ms"] == pytest.approx(1e3 / decode["output_tokens_per_s"])
    assert decode["weights"] == "Q4_0" and decode["engine_version"] == "b11434" and decode["uncertainty_pct"] < 20


def test_llama_bench_csv_and_jsonl_say_what_its_json_says():
    records = json.loads((CLIENTS / "llama-bench__llama-500m-q4_0.json").read_text())
    out = io.StringIO()
    flat = [{k: v for k, v in r.items() if not isinstance(v, list)} for r in records]
    writer = csv.DictWriter(out, list(flat[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(flat)

    def figures(text):
        return [{k: v for k, v in row.items() if k != "id"} for row in import_text(text).rows]

    assert figures(out.getvalue()) == figures(json.dumps(records)) == figures("\n".join(map(json.dumps, records)))


def test_llama_bench_tables_in_an_issue_are_found():
    text = """Some words | and a bar
| model                 |      size |  params | backend | ngl | fa | test            |            t/s |
| --------------------- | --------: | ------: | ------- | --: | -: | --------------: | -------------: |
| qwen3moe 30B.A3B Q4_K - Medium | 17.28 GiB | 30.53 B | CUDA | 99 | 1 | pp512 | 2000.00 ± 20.00 |
| qwen3moe 30B.A3B Q4_K - Medium | 17.28 GiB | 30.53 B | CUDA | 99 | 1 | tg32 @ d32768 | 80.00 ± 0.40 |
| qwen3moe 30B.A3B Q4_K - Medium | 17.28 GiB | 30.53 B | CUDA | 99 | 1 | tg | ? |

build: 1234
"""
    found = import_text(text)
    assert [(row["phase"], row["weights"]) for row in found.rows] == [("prefill", "Q4_K"), ("decode", "Q4_K")]
    assert found.rows[1]["context_depth"] == 32768 and found.rows[1]["uncertainty_pct"] == 0.5
    assert found.problems[0].line == 6 and found.problems[0].field == "test"


def test_batched_bench_is_the_sum_over_its_sequences():
    rows = import_file(CLIENTS / "llama-batched-bench__llama-50m-f16.jsonl").rows
    sixteen = [row for row in rows if row["concurrency"] == 16]
    decode, prefill = sixteen
    assert decode["output_tokens_per_s"] == pytest.approx(439.956665, rel=1e-5)
    assert decode["tpot_mean_ms"] == pytest.approx(1163.751 / 32, rel=1e-5)
    assert prefill["prefill_tokens_per_s"] == pytest.approx(793.376526, rel=1e-5)


def test_a_shared_prompt_is_prefilled_once_and_a_false_speed_is_told():
    line = {"pp": 512, "tg": 32, "pl": 8, "n_kv": 768, "is_pp_shared": 1, "t_pp": 0.5, "t_tg": 1.0, "speed_tg": 32.0}
    found = import_text(json.dumps(line))
    assert found.rows[1]["prefill_tokens_per_s"] == 1024 and found.rows[1]["shared_prompt"] == "yes"
    assert found.problems[0].field == "speed_tg"


def test_a_sweep_bench_line_decodes_on_top_of_its_depth():
    line = {"pp": 512, "tg": 128, "n_kv": 4096, "t_pp": 0.5, "speed_pp": 1024, "t_tg": 2.0, "speed_tg": 64}
    decode, prefill = import_text(json.dumps(line)).rows
    assert decode["context_depth"] == prefill["context_depth"] == 4096 and decode["concurrency"] == 1


def test_the_table_of_batched_bench_is_read():
    text = """|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   128 |    128 |    4 |   1024 |    0.500 |  1024.00 |    2.000 |   256.00 |    2.500 |   409.60 |
|   128 |    128 |    x |   1024 |    0.500 |  1024.00 |    2.000 |   256.00 |    2.500 |   409.60 |
"""
    found = import_text(text)
    assert [row["phase"] for row in found.rows] == ["decode", "prefill"]
    assert found.rows[0]["output_tokens_per_s"] == 256
    assert (found.problems[0].line, found.problems[0].field) == (4, "pl")


INFERENCEX = {
    "hw": "b200-trt", "conc": 64, "image": "nvcr.io/trtllm:1.2.0rc6", "model": "deepseek-ai/DeepSeek-R1",
    "infmax_model_prefix": "dsr1", "framework": "trt", "precision": "fp4", "spec_decoding": "none", "disagg": False,
    "isl": 1024, "osl": 1024, "is_multinode": False, "tp": 8, "ep": 8, "pp": 1, "dp_attention": "true",
    "tput_per_gpu": 500.0, "output_tput_per_gpu": 250.0, "input_tput_per_gpu": 250.0, "mean_ttft": 0.4,
    "median_ttft": 0.3, "mean_tpot": 0.02, "mean_intvty": 50.0,
}  # fmt: skip


def test_inferencex_is_for_each_gpu_and_in_seconds():
    row = import_text(json.dumps([INFERENCEX])).rows[0]
    assert (row["output_tokens_per_s"], row["total_tokens_per_s"]) == (2000, 4000)
    assert (row["ttft_mean_ms"], row["ttft_p50_ms"], row["tpot_mean_ms"]) == (400, 300, 20)
    assert (row["tp"], row["dp"], row["accelerator_count"]) == (1, 8, 8)
    assert (row["accelerator"], row["weights"], row["engine"]) == ("b200-sxm", "nvfp4", "trtllm")


def test_disaggregated_output_is_for_each_decode_gpu():
    apart = INFERENCEX | {"disagg": True, "num_prefill_gpu": 4, "num_decode_gpu": 12}
    row = import_text(json.dumps(apart)).rows[0]
    assert row["output_tokens_per_s"] == 250 * 12 and row["total_tokens_per_s"] == 500 * 16
    assert "12 decode GPUs" in row["notes"]


def test_amd_four_bits_are_mxfp4():
    assert import_text(json.dumps(INFERENCEX | {"hw": "mi355x"})).rows[0]["weights"] == "mxfp4"


MLPERF = {
    "ID": "5.1-0024", "Submitter": "X", "Availability": "available", "System": "S", "Model": "llama2-70b-99",
    "Scenario": "Offline", "Nodes": 11, "a#": 8, "Accelerator": "GPU (x87)", "Software": "TensorRT 10.11",
    "weight_data_types": "fp4", "Performance_Result": 1000.5, "Performance_Units": "Tokens/s",
}  # fmt: skip


def test_mlperf_keeps_tokens_and_doubts_an_entry_that_contradicts_itself():
    images = MLPERF | {"Performance_Units": "Samples/s"}
    found = import_text(json.dumps([MLPERF, images, MLPERF | {"Accelerator": ""}]))
    assert len(found.rows) == 1 and found.problems[0].field == "Accelerator"
    row = found.rows[0]
    assert row["accelerator_count"] == 87 and "88" in row["notes"]
    assert (row["output_tokens_per_s"], row["scenario"], row["accelerator"]) == (1000.5, "mlperf-offline", "GPU")


def test_mlperf_total_accelerators_count_where_they_are_given():
    newer = MLPERF | {"Total Accelerators": 16, "Accelerator": "GPU", "Nodes": 2}
    assert import_text(json.dumps([newer])).rows[0]["accelerator_count"] == 16


def lifecycle(**load):
    def spread(mean, median):
        return {"mean": mean, "median": median, "p99": 2 * mean}

    latency = {
        "request_latency": spread(0.7, 0.7), "time_to_first_token": spread(0.04, 0.04),
        "time_per_output_token": spread(0.006, 0.006), "normalized_time_per_output_token": spread(0.0115, 0.011),
        "inter_token_latency": spread(0.006, 0.00004),
    }  # fmt: skip
    throughput = {"requests_per_sec": 1.0, "output_tokens_per_sec": 60.0, "total_tokens_per_sec": 260.0}
    done = {"count": 60, "latency": latency, "throughput": throughput}
    done |= {"prompt_len": {"mean": 200}, "output_len": {"mean": 60}}
    return json.dumps({"load_summary": {"count": 60, **load}, "successes": done, "failures": {"count": 2}})


def test_inference_perf_counts_in_seconds_and_its_summary_is_no_load_level():
    stage = import_text(lifecycle(requested_rate=1.0)).rows[0]
    assert (stage["ttft_mean_ms"], stage["tpot_mean_ms"], stage["tpot_incl_ttft_mean_ms"]) == (40, 6, 11.5)
    assert stage["concurrency_effective"] == 0.7 and stage["num_requests"] == 62
    assert "bursts" in stage["notes"] and "2 failed" in stage["notes"]
    assert "not one load level" in import_text(lifecycle()).rows[0]["notes"]


@pytest.mark.skipif(not SHARED.exists(), reason="the published samples of inference-perf are not at hand")
def test_the_published_samples_of_inference_perf_are_read():
    for name in ("stage_0", "summary"):
        found = import_file(SHARED / "samples" / "machines" / f"inference-perf_{name}_lifecycle_metrics.json")
        assert found.kind == "inference-perf" and found.rows and not found.problems


def test_the_block_that_blogs_paste_is_read():
    text = """
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 16
Successful requests:                     80
Benchmark duration (s):                  20.00
Total input tokens:                      8000
Total generated tokens:                  4000
Output token throughput (tok/s):         200.00
Concurrency:                             15.5
Mean E2E Latency (ms):                   3900.0
---------------Time to First Token----------------
Mean TTFT (ms):                          120.00
Median TTFT (ms):                        100.00
P99 TTFT (ms):                           400.00
Mean TPOT (ms):                          70.00
==================================================
"""
    row = import_text("a page\n" + text + "\nmore\n").rows[0]
    assert (row["concurrency"], row["num_requests"], row["input_tokens"]) == (16, 80, 100)
    assert (row["ttft_mean_ms"], row["ttft_p50_ms"], row["ttft_p99_ms"], row["e2e_mean_ms"]) == (120, 100, 400, 3900)


def test_every_kind_has_a_name_of_its_own():
    assert len(set(KINDS)) == len(KINDS) == 41


def test_genai_perf_names_its_model_and_its_users_elsewhere():
    def figure(value, unit="ms"):
        return {"unit": unit, "avg": value, "p50": value, "p99": 2 * value}

    text = json.dumps(
        {
            "request_count": figure(100, "requests"),
            "request_throughput": figure(2.0, "requests/sec"),
            "request_latency": figure(4000.0),
            "time_to_first_token": figure(500_000.0, "us"),
            "inter_token_latency": figure(25.0),
            "output_token_throughput": figure(300.0, "tokens/sec"),
            "output_sequence_length": figure(150.0, "tokens"),
            "input_sequence_length": figure(500.0, "tokens"),
            "input_config": {"model_names": ["org/m"], "perf_analyzer": {"stimulus": {"concurrency": 8}}},
        }
    )
    row = import_text(text).rows[0]
    assert (row["checkpoint"], row["concurrency"], row["num_requests"]) == ("org/m", 8, 100)
    assert (row["ttft_mean_ms"], row["tpot_mean_ms"], row["tpot_p99_ms"]) == (500, 25, 50)
    wrong = import_text(text.replace('"us"', '"fortnights"'))
    assert "ttft_mean_ms" not in wrong.rows[0] and "fortnights" in str(wrong.problems[0])


def test_fmperf_has_the_time_of_every_token():
    """fmperf-project/fmperf, fmperf/loadgen/run.py: a record a token, and one that ends the answer."""
    records, usual = [], {"exp_num_users": 2, "exp_duration": 30.0, "exclude": False, "sample_idx": 0}
    for worker in (0, 1):
        now = 10**12 + worker
        for number in range(3):
            for place in range(6):
                ms = (100.0, 20.0, 20.0, 20.0, 20.0, 0.0)[place]
                now += int(ms * 1e6)
                ends = place == 5
                where = {"worker_idx": worker, "request_idx": number, "response_idx": place, "timestamp": now}
                records.append(
                    usual
                    | where
                    | {"duration_ms": ms, "ok": not ends, "error": "" if ends else "None", "n_tokens": 1 - ends}
                )
    records[-6]["error"], records[-6]["ok"] = "refused", False  # the last request breaks at its first token
    (row,) = import_text(json.dumps({"results": records, "energy": {}})).rows
    assert (row["concurrency"], row["output_tokens"], row["ttft_mean_ms"], row["tpot_mean_ms"]) == (2, 5, 100, 20)
    assert row["output_tokens_per_s"] == pytest.approx(25 / 0.54, rel=1e-3)
    assert row["num_requests"] == 6 and "1 failed" in row["notes"]


@pytest.mark.parametrize("name", SAME_SERVER)
def test_no_number_without_end_reaches_a_row_or_a_mean(name):
    text = (CLIENTS / name).read_text()
    numbers = list(re.finditer(r"(?<![\w.])\d+\.?\d*(?![\w.])", text))
    for found in numbers[:: max(len(numbers) // 12, 1)]:
        for value in ("1e999", "Infinity", "-2e456", "1e308", "1e29"):
            broken = text[: found.start()] + value + text[found.end() :]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    rows = import_text(broken).rows
            except GlmplanError:
                continue
            assert all(math.isfinite(one) for row in rows for one in row.values() if isinstance(one, float))


def test_a_rate_without_limit_is_none_and_a_unit_that_is_none_of_time_is_named():
    fields = Fields({"free": "inf", "slow": 3, "past": "1e999"}, 1, [])
    assert [fields.rate(name) for name in ("free", "slow", "past")] == [None, 3, None]
    assert fields.number("free") is None
    assert [one.field for one in fields.problems] == ["past", "free"]
    text = (CLIENTS / "aiperf__llamacpp/profile_export.jsonl").read_text()
    problems = import_text(text.replace('"unit":"ms"', '"unit":"MB"')).problems
    assert any("metrics.time_to_first_token.unit" in one.field for one in problems)
