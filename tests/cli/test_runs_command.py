"""`glmplan runs import` from the shell: tables, JSON, CSV, predicted beside logged, what is wrong with which file."""

import csv
import io
import json
from pathlib import Path

import pytest

from glmplan.cli import main

CLIENTS = Path(__file__).parents[1] / "data" / "clients"
LOG = """(Worker_TP0 pid=1) INFO [gpu_model_runner.py:1] Model loading took 55.67 GiB memory and 44.5 seconds
(EngineCore pid=9) INFO [core.py:1] Initializing a V1 LLM engine (v0.20.2) with config: model='x/GLM-5.1-NVFP4-MTP', \
speculative_config=None, max_seq_len=202752, tensor_parallel_size=8, quantization=modelopt_fp4, kv_cache_dtype=fp8,
(APIServer pid=1) INFO [utils.py:1] non-default args: {'gpu_memory_utilization': 0.865, 'max_num_seqs': 64}
(Worker_TP0 pid=1) INFO [gpu_worker.py:1] Available KV cache memory: 19.55 GiB
(EngineCore pid=9) INFO [kv_cache_utils.py:1] GPU KV cache size: 341,504 tokens
"""


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["runs", "import", *map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_files_of_several_tools_become_one_table(capsys, tmp_path):
    out = tmp_path / "runs.csv"
    names = ["vllm_bench_serve__vllm-cpu.json", "guidellm__llamacpp.json", "llama-bench__llama-500m-q4_0.json"]
    code, shown, _ = run(capsys, *(CLIENTS / name for name in names), "--model", "tiny", "--out", out)
    assert code == 0 and "TPOT" in shown
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(rows) == 6 and {row["model"] for row in rows} == {"tiny"}
    assert {row["campaign"] for row in rows} == {Path(name).stem for name in names}


def test_json_and_csv_hold_the_same_runs(capsys):
    file = CLIENTS / "sglang_bench_serving__vllm-cpu.jsonl"
    _, as_json, _ = run(capsys, file, "--format", "json", "--engine", "vllm", "--set", "tp=1")
    _, as_csv, _ = run(capsys, file, "--format", "csv", "--engine", "vllm", "--set", "tp=1")
    (row,) = json.loads(as_json)["runs"]
    (line,) = csv.DictReader(io.StringIO(as_csv))
    assert row["engine"] == line["engine"] == "vllm" and line["tp"] == "1"
    assert float(line["ttft_mean_ms"]) == row["ttft_mean_ms"]


def test_a_startup_log_is_printed_beside_its_prediction(capsys, tmp_path):
    log = tmp_path / "start.log"
    log.write_text(LOG)
    code, shown, _ = run(capsys, log, "--on", "8xrtx-pro-6000-ws", "--format", "json")
    found = json.loads(shown)
    assert code == 0 and found["runs"][0]["accelerator"] == "rtx-pro-6000-ws"
    lines = {line["what"]: line for line in found["memory"][0]["lines"]}
    # the published start of eight cards: weights within 1 %, the bytes of a token's cache within 0.1 %
    assert lines["weights on a rank"]["difference"] == pytest.approx(0, abs=0.01)
    assert lines["KV cache of a token on a rank"]["difference"] == pytest.approx(0, abs=0.001)
    assert lines["weights on a rank"]["line"] == 1
    _, table, _ = run(capsys, log, "--on", "8xrtx-pro-6000-ws")
    assert "weights on a rank [GiB]" in table and "predicted for glm-5.1" in table
    # the cause of each difference is told below the table, also where the log leaves settings out
    assert "weights on a rank: within the variation of loaded weights" in table
    assert "KV pool of a rank: +" in table or "KV pool of a rank: -" in table
    assert "not logged, taken as the engine's default" in table and "tokens of a step" in table


def test_without_a_machine_it_says_what_to_give(capsys, tmp_path):
    log = tmp_path / "start.log"
    log.write_text(LOG)
    _, shown, _ = run(capsys, log)
    assert "give --on" in shown and "55.67" in shown
    _, shown, _ = run(capsys, log, "--model", "glm-77", "--on", "8xrtx-pro-6000-ws")
    assert "no prediction" in shown and "glm-77" in shown


def test_a_bad_file_does_not_cost_the_good_ones(capsys, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    out = tmp_path / "runs.csv"
    code, _, said = run(capsys, bad, CLIENTS / "vllm_bench_serve__vllm-cpu.json", tmp_path / "none", "--out", out)
    assert code == 2 and "bad.json" in said and "cannot be read" in said and "Traceback" not in said
    assert len(out.read_text().splitlines()) == 2


def test_a_broken_record_is_named_with_file_and_line(capsys, tmp_path):
    line = (CLIENTS / "sglang_bench_serving__vllm-cpu.jsonl").read_text().strip()
    file = tmp_path / "two.jsonl"
    file.write_text(f"{line}\n{line[:500]}\n")
    code, _, said = run(capsys, file)
    assert code == 0 and "two.jsonl: line 2" in said


@pytest.mark.parametrize("words", [["--set", "tpp=3"], ["--set", "tp"], ["--on", "h300x"]])
def test_a_wrong_fact_is_refused_with_the_nearest(capsys, words):
    code, _, said = run(capsys, CLIENTS / "vllm_bench_serve__vllm-cpu.json", *words)
    assert code == 2 and "nearest" in said or "choices" in said or "not a known" in said


def test_predictions_come_as_csv_json_and_markdown(capsys, tmp_path):
    table = tmp_path / "runs.csv"
    table.write_text(
        "id,model,weights,accelerator,tp,engine,concurrency,input_tokens,output_tokens\n"
        "a,llama-3.1-8b,bf16,h100-sxm,1,vllm,8,1024,256\nb,nobody,bf16,h100-sxm,1,vllm,8,1024,256\n"
    )

    def predicted(form):
        with pytest.raises(SystemExit) as ended:
            main(["predict", "--runs", str(table), "--format", form])
        assert ended.value.code == 0
        return capsys.readouterr().out

    lines = list(csv.DictReader(io.StringIO(predicted("csv"))))
    records = json.loads(predicted("json"))
    marked = [[cell.strip() for cell in line.split("|")[1:-1]] for line in predicted("md").splitlines()]
    assert list(records[0]) == list(lines[0]) == marked[0]
    for name in ("tpot_mean_ms", "tpot_mean_ms_high"):
        value = float(lines[0][name])
        assert value == pytest.approx(records[0][name], rel=1e-5) == float(marked[2][marked[0].index(name)])
    # what cannot be answered is an empty cell and a reason in every form
    assert lines[1]["tpot_mean_ms"] == "" and records[1]["tpot_mean_ms"] is None and marked[3][4] == ""
    assert "nobody" in lines[1]["error"] and lines[1]["error"] == records[1]["error"]


ARGUMENTS = """(APIServer pid=1) INFO 08-04 09:11:02 [api_utils.py:339]  version 0.25.0
(APIServer pid=1) INFO 08-04 09:11:02 [api_utils.py:273] non-default args: \
{'model_tag': 'deepseek-ai/DeepSeek-V4-Flash', 'model': 'deepseek-ai/DeepSeek-V4-Flash', 'max_model_len': 912128, \
'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.95, 'kv_cache_dtype': 'fp8', \
'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 1}}
(EngineCore pid=120) INFO 08-04 09:15:17 [gpu_worker.py:460] Available KV cache memory: 7.01 GiB
(EngineCore pid=120) INFO 08-04 09:15:17 [kv_cache_utils.py:2146] GPU KV cache size: 1,009,661 tokens
"""


def predicted_pool(capsys, file, *words):
    code, out, _ = run(capsys, file, "--on", "2xh20-96gb", "--format", "json", *words)
    [memory] = json.loads(out)["memory"]
    assert code == 0
    return next(line["predicted"] for line in memory["lines"] if (line["what"], line["unit"]) == ("KV pool", "token"))


def test_a_log_whose_model_stands_in_its_arguments_alone_is_predicted(capsys, tmp_path):
    """https://github.com/vllm-project/vllm/issues/51041, and the two steps in flight from release 0.26 on."""
    file = tmp_path / "vllm.log"
    file.write_text(ARGUMENTS)
    of_log = predicted_pool(capsys, file)
    assert predicted_pool(capsys, file, "--set", "engine_version=0.25.0") == of_log
    assert predicted_pool(capsys, file, "--set", "engine_version=0.26.0") < 0.98 * of_log
    assert predicted_pool(capsys, file, "--set", "memory_fraction=0.9") < 0.6 * of_log
