"""Results of clients over their releases: forms and units as their published packages write them."""

from __future__ import annotations

import json

import pytest

from glmplan.errors import SpecError
from glmplan.io.runs.importers import import_text

# genai_perf 0.0.16, export_data/csv_exporter.py and exporter_utils.py: names in title case, numbers with separators
GENAI_CSV = """Metric,avg,min,max,p99,p95,p90,p75,p50,p25,p10,p5,p1
Time To First Token (ms),"1,263.53",250.38,"1,310.29","1,305.11",1.0,1.0,1.0,"1,262.00",1.0,1.0,1.0,1.0
Request Latency (ms),"3,338.53",1.0,1.0,"3,601.00",1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0
Inter Token Latency (ms),20.95,19.00,25.00,24.50,1.0,1.0,1.0,20.90,1.0,1.0,1.0,1.0
Output Sequence Length (tokens),100.00,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0
Input Sequence Length (tokens),"2,048.00",1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0

Metric,Value
Output Token Throughput (tokens/sec),"1,195.55"
Request Throughput (per sec),11.96
"""
GENAI = {"ttft_mean_ms": 1263.53, "ttft_p99_ms": 1305.11, "tpot_mean_ms": 20.95, "e2e_mean_ms": 3338.53,
         "input_tokens": 2048, "output_tokens": 100, "output_tokens_per_s": 1195.55,
         "concurrency": 40}  # fmt: skip
# 40: 11.96 requests/s of 3.33853 s each
_FIRST_COUNTS = (("Output Sequence Length (tokens)", "Num Output Token"),
                 ("Input Sequence Length (tokens)", "Num Input Token"))  # fmt: skip


def _of(value, unit="ms", **more):
    return {"unit": unit, "avg": value, **more}


AIPERF = {
    "request_latency": _of(3338.53), "time_to_first_token": _of(1263.53, p99=1305.11), "request_count": _of(256),
    "inter_token_latency": _of(20.95), "output_token_throughput": _of(1195.55), "output_sequence_length": _of(100),
    "input_sequence_length": _of(2048), "error_request_count": _of(3),
    # aiperf 0.13.0, config/phases.py: the warm-up is a phase with a load of its own
    "input_config": {"phases": [
        {"name": "warmup", "kind": "warmup", "concurrency": 4},
        {"name": "profiling", "kind": "profiling", "concurrency": 64},
    ]},
}  # fmt: skip


@pytest.mark.parametrize("counts", [(), _FIRST_COUNTS])
def test_every_release_of_genai_perf_gives_its_csv(counts):
    text = GENAI_CSV
    for ours, first in counts:
        text = text.replace(ours, first)
    found = import_text(text)
    assert found.problems == []
    assert {name: found.rows[0][name] for name in GENAI} == GENAI
    assert found.rows[0]["notes"].startswith("genai-perf")


def test_the_load_of_a_warm_up_is_not_that_of_the_run():
    row = import_text(json.dumps(AIPERF)).rows[0]
    assert (row["concurrency"], row["num_requests"]) == (64, 259) and "3 failed" in row["notes"]


# evalscope 1.14.1, perf/utils/rich_display.py: one row for each load, times of requests in a second table
LOADS = """                 Performance Overview
┃ Conc. ┃ Rate ┃ Num ┃  RPS ┃  Gen/s ┃ Success ┃
│     1 │    - │   5 │ 0.05 │  53.14 │  100.0% │
│    16 │    - │  64 │ 0.53 │ 543.20 │   96.9% │
                        Per-Request Metrics
┃ Conc. ┃ Rate ┃ Metric        ┃    avg ┃    p50 ┃    p99 ┃    max ┃
│     1 │    - │ Latency (s)   │  19.27 │  19.27 │  19.40 │  19.40 │
│       │      │ TTFT (ms)     │ 110.00 │ 110.00 │ 120.00 │ 120.00 │
│       │      │ TPOT (ms)     │  18.70 │  18.70 │  18.90 │  18.90 │
│       │      │ Output Tokens │ 1024.0 │ 1024.0 │ 1024.0 │ 1024.0 │
│    16 │    - │ Latency (s)   │  28.50 │  28.40 │  29.10 │  29.20 │
│       │      │ TTFT (ms)     │ 640.00 │ 620.00 │ 1320.0 │ 1330.0 │
│       │      │ TPOT (ms)     │  27.20 │  27.20 │  28.00 │  28.00 │
│       │      │ Output Tokens │ 1024.0 │ 1024.0 │ 1024.0 │ 1024.0 │
"""
# evalscope 1.0.0: seconds
OLD_LOADS = """                                    Detailed Performance Metrics
┃Conc. ┃  RPS ┃  Lat.(s) ┃  Lat.(s) ┃  toks/s ┃  TTFT(s) ┃ TTFT(s) ┃  TPOT(s) ┃ TPOT(s) ┃      Rate┃
│    1 │ 0.05 │   19.270 │   19.400 │   53.14 │    0.110 │   0.120 │   0.0187 │   0.019 │    100.0%│
│   16 │ 0.53 │   28.500 │   29.100 │  543.20 │    0.640 │   1.320 │   0.0272 │   0.028 │     96.9%│
"""
SUMMARY = """Benchmarking summary:
│ Test Duration (s)         │         62.10 │
│ Concurrency               │            16 │
│ Total / Success / Failed  │   64 / 62 / 2 │
│ Avg TTFT (ms)             │        640.00 │
│ Avg TPOT (ms)             │         27.20 │
│ Avg Latency (s)           │         28.50 │
│ Avg Output Tokens         │       1024.00 │
│ Output Throughput (tok/s) │        543.20 │
"""


@pytest.mark.parametrize(("text", "loads"), [(LOADS, [1, 16]), (OLD_LOADS, [1, 16]), (SUMMARY, [16])])
def test_tables_that_evalscope_prints_are_runs(text, loads):
    rows = import_text(text).rows
    assert [row["concurrency"] for row in rows] == loads
    expected = {"ttft_mean_ms": 640, "tpot_mean_ms": 27.2, "e2e_mean_ms": 28500, "output_tokens_per_s": 543.2}
    assert {name: rows[-1][name] for name in expected} == pytest.approx(expected)


# evalscope 1.14.1, perf/utils/perf_constants.py
EVALSCOPE = {"Concurrency": -1, "Request Rate (req/s)": 2.5, "Total Requests": 64, "Success Requests": 64,
             "Output Throughput (tok/s)": 713.1, "Avg Latency (s)": 22.1, "Avg TTFT (ms)": 420.0, "Avg TPOT (ms)": 21.2,
             "Avg Output Tokens": 1024.0}  # fmt: skip


def test_minus_one_is_no_number_of_requests():
    row = import_text(json.dumps(EVALSCOPE)).rows[0]
    assert "concurrency" not in row and row["request_rate_per_s"] == 2.5


def test_a_run_without_an_answer_is_none():
    failed = dict.fromkeys(EVALSCOPE, -1.0)
    with pytest.raises(SpecError, match="no record of it can be used"):
        import_text(json.dumps(failed))


SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "max_concurrency": 16, "duration": 60.0,
    "completed": 64, "total_input_tokens": 65536, "total_output_tokens": 32768, "output_throughput": 546.1,
    "mean_e2e_latency_ms": 14500.0, "mean_ttft_ms": 14500.0, "median_ttft_ms": 14500.0, "mean_tpot_ms": 0.0,
    "mean_itl_ms": 0.0,
}  # fmt: skip
# guidellm 0.8.1, schemas/base/request_stats.py: without streaming there is no first token, which counts as 0.0
GUIDELLM = {"benchmarks": [{"config": {"strategy": {"type_": "concurrent", "streams": 16}}, "metrics": {
    "request_totals": {"successful": 64}, "output_token_count": {"successful": {"count": 64, "mean": 512.0}},
    "time_to_first_token_ms": {"successful": {"mean": 0.0}}, "inter_token_latency_ms": {"successful": {"mean": 0.0}},
    "request_latency": {"successful": {"mean": 14.5}}, "output_tokens_per_second": {"successful": {"mean": 546.1}},
}}]}  # fmt: skip
WHOLE = EVALSCOPE | {"Avg TTFT (ms)": 22100.0, "Avg TPOT (ms)": 0.0, "Stream Requests": 0}


@pytest.mark.parametrize("result", [SGLANG, GUIDELLM, WHOLE])
def test_answers_that_come_at_once_have_no_time_to_the_first_token(result):
    row = import_text(json.dumps(result)).rows[0]
    assert not [name for name in row if name.startswith(("ttft", "tpot", "itl"))]
    assert row["e2e_mean_ms"] > 0 and row["output_tokens_per_s"] > 0


# inference-perf at 7de5ef29, reportgen/base.py: the rate of a closed loop is the number of its requests
CLOSED = {
    "load_summary": {"count": 64, "send_duration": 58.0, "requested_rate": 64.0, "concurrency": 16},
    "successes": {
        "count": 64, "latency": {"request_latency": {"mean": 14.5}, "time_to_first_token": {"mean": 0.4},
                                 "time_per_output_token": {"mean": 0.0275}},
        "throughput": {"output_tokens_per_sec": 527.0}, "prompt_tokens": {"total": 65536.0, "mean": 1024.0},
        "output_tokens": {"total": 32768.0, "mean": 512.0}, "output_len": {"mean": 511.0},
    },
    "failures": {"count": 0},
}  # fmt: skip


def test_a_closed_loop_of_inference_perf_is_a_concurrency():
    row = import_text(json.dumps(CLOSED)).rows[0]
    assert "request_rate_per_s" not in row
    assert (row["concurrency"], row["input_tokens"], row["output_tokens"]) == (16, 1024, 512)


# tensorrt_llm/bench/dataclasses/reporting.py at 02499765
REPORT = {
    "engine": {"model": "nvidia/DeepSeek-R1-FP4", "version": "1.2.0", "kv_cache_dtype": "FP8", "quantization": "NVFP4"},
    "world_info": {"tp_size": 8, "pp_size": 1, "ep_size": 8},
    "request_info": {"num_requests": 1000, "avg_num_concurrent_requests": 255.2, "avg_input_length": 1024.0,
                     "avg_output_length": 1024.0},
    "performance": {"total_latency_ms": 60000.0, "system_output_throughput_tok_s": 17066.0},
    "streaming_metrics": {"avg_ttft_ms": 600.0, "avg_tpot_ms": 14.1, "tpot_percentiles": {"p99": 15.0}},
    "decoding_stats": {"acceptance_length_percentiles": {"average": 2.1}},
}  # fmt: skip


def test_the_report_of_trtllm_bench_is_read_as_its_print():
    row = import_text(json.dumps(REPORT)).rows[0]
    expected = {"tp": 8, "ep": 8, "concurrency": 255.2, "wall_s": 60, "ttft_mean_ms": 600, "tpot_p99_ms": 15,
                "acceptance_length": 2.1, "output_tokens_per_s": 17066}  # fmt: skip
    assert {name: row[name] for name in expected} == expected


# sglang/bench_one_batch.py: a first round warms up
ENGINE_BATCH = """Warmup ...
Prefill. latency: 0.37333 s, throughput:  21943.23 token/s
Decode.  median latency: 0.00976 s, median throughput:   3280.16 token/s
Total. latency:  0.446 s, throughput:  18928.16 token/s
Benchmark ...
Prefill. latency: 0.25074 s, throughput:  32671.13 token/s
Decode.  median latency: 0.00973 s, median throughput:   3289.81 token/s
Total. latency:  0.553 s, throughput:  16665.96 token/s
"""
SERVER_BATCH = """batch size: 16
input_len: 1024
output_len: 101
latency: 2.60 s
input throughput: 27306.67 tok/s
output throughput: 808.00 tok/s
last_ttft: 0.60 s
"""
# lmdeploy/profiler.py at 0c6b1883: seconds
LMDEPLOY = """=================== Profile Throughput ===================
Benchmark duration                          62.310
Total requests                                1000
Successful requests                            990
Concurrency                                     64
Total input tokens                          990000
Total generated tokens                      495000
Output throughput (tok/s)                 7944.000
----------------------------------------------------------
                                              mean       P50       P75       P95       P99
End-to-end Latency                           3.860     3.210     5.410    10.120    12.900
Time to First Token (TTFT)                   0.210     0.180     0.240     0.460     0.800
Time per Output Token (TPOT)                 0.016     0.015     0.017     0.021     0.030
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENGINE_BATCH, {"concurrency": 32, "input_tokens": 256, "output_tokens": 32, "tpot_mean_ms": 9.73}),
        (SERVER_BATCH, {"concurrency": 16, "input_tokens": 1024, "output_tokens": 101, "tpot_mean_ms": 20}),
        (LMDEPLOY, {"engine": "lmdeploy", "concurrency": 64, "num_requests": 1000, "input_tokens": 1000,
                    "output_tokens": 500, "ttft_p99_ms": 800, "tpot_p50_ms": 15, "e2e_mean_ms": 3860}),
    ],
)  # fmt: skip
def test_results_on_the_screen_are_read(text, expected):
    row = import_text(text).rows[0]
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_what_the_user_states_precedes_the_file_and_the_difference_is_told():
    found = import_text(json.dumps(REPORT), facts={"tp": 4, "engine": "trtllm", "campaign": "mine"})
    assert (found.rows[0]["tp"], [problem.field for problem in found.problems]) == (4, ["tp"])
    # an empty field of a form states nothing
    assert import_text(json.dumps(REPORT), facts={"tp": ""}).rows[0]["tp"] == 8


# genai_bench/metrics/metrics.py at 252dca79
GENAI_BENCH = {"_time_unit": "s", "aggregated_metrics": {
    "scenario": "D(1024,256)", "num_concurrency": 64, "run_duration": 180.0, "num_completed_requests": 2000,
    "num_error_requests": 3, "mean_output_throughput_tokens_per_s": 2915.0,
    "stats": {"ttft": {"mean": 0.5, "p99": 0.9}, "tpot": {"mean": 0.02}, "e2e_latency": {"mean": 5.6},
              "num_input_tokens": {"mean": 1024.0}, "num_output_tokens": {"mean": 256.0}},
}}  # fmt: skip


@pytest.mark.parametrize(("unit", "scale"), [("s", 1.0), ("ms", 1e3)])
def test_genai_bench_names_its_unit_of_time(unit, scale):
    text = json.loads(json.dumps(GENAI_BENCH))
    text["_time_unit"] = unit
    for name in ("ttft", "tpot", "e2e_latency"):
        part = text["aggregated_metrics"]["stats"][name]
        part.update({what: value * scale for what, value in part.items()})
    row = import_text(json.dumps(text)).rows[0]
    expected = {"concurrency": 64, "num_requests": 2003, "ttft_mean_ms": 500, "ttft_p99_ms": 900, "tpot_mean_ms": 20,
                "e2e_mean_ms": 5600, "output_tokens": 256}  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_failed_requests_of_llmperf_are_told():
    row = import_text(json.dumps({
        "num_concurrent_requests": 8, "results_num_completed_requests": 60, "results_number_errors": 4,
        "results_mean_output_throughput_token_per_s": 268.2,
    })).rows[0]  # fmt: skip
    assert row["num_requests"] == 64 and "4 failed" in row["notes"]


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ('[{"Percentiles": "50%", "TTFT (ms)": 1}]', "benchmark_summary.json"),
        ('[{"request_output_throughput_token_per_s": 3.1, "ttft_s": 1}]', "summary.json"),
        ("benchmarks:\n- metrics:\n    time_to_first_token_ms:\n      successful: {}\n", "JSON or CSV"),
        ("Timeslice,Start_NS,End_NS,Metric,Unit,Stat,Value\n0,1,2,TTFT,ms,avg,1\n", "whole run"),
    ],
)
def test_a_file_beside_the_result_names_the_result(text, instead):
    with pytest.raises(SpecError, match=instead):
        import_text(text)
