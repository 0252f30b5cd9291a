"""`glmplan predict`: one row for each id, every row answered that can be, and a reason for the others."""

from __future__ import annotations

import csv

import pytest

from glmplan.cli import main
from glmplan.io.runs.columns import ANSWERS
from glmplan.io.runs.table import run_from_row
from glmplan.prediction.table import COLUMNS, predict_runs

HEADER = "id,model,weights,accelerator,accelerator_count,tp,engine,phase,concurrency,input_tokens,output_tokens,colour"
GOOD = "a,glm-5,fp8,b200-sxm,8,8,sglang,serving,32,8192,1024,blue"


def predict(tmp_path, *rows, header=HEADER):
    runs, out = tmp_path / "runs.csv", tmp_path / "out.csv"
    runs.write_text("\n".join([header, *rows]) + "\n")
    code = 0
    try:
        main(["predict", "--runs", str(runs), "--out", str(out)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    found = list(csv.DictReader(out.open())) if out.exists() else []
    return code, found


def test_a_row_is_answered_with_all_columns_and_intervals(tmp_path):
    code, (row,) = predict(tmp_path, GOOD)
    assert code == 0 and list(row) == list(COLUMNS) and row["error"] == "" and row["basis"]
    for name in ANSWERS:
        low, value, high = (float(row[f"{name}{end}"]) for end in ("_low", "", "_high"))
        assert 0 < low < value < high, name


def test_throughput_is_users_over_their_time(tmp_path):
    """Little's law: in a long closed loop every user has one request in flight."""
    _, (row,) = predict(tmp_path, GOOD.replace(",32,", ",8,"))
    ttft, tpot, rate = (float(row[name]) / 1e3 for name in ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s"))
    assert rate * 1e3 == pytest.approx(8 * 1024 / (ttft + 1023 * tpot), rel=0.15)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ("b,glm-5,fp8,h20-sxm9,8,8,sglang,serving,32,8192,1024,", "h20"),
        ("b,glm-5000,fp8,b200-sxm,8,8,sglang,serving,32,8192,1024,", "glm-5"),
        ("b,glm-5,fp9,b200-sxm,8,8,sglang,serving,32,8192,1024,", "fp9"),
        ("b,glm-5,fp8,b200-sxm,8,8,sglang,serving,nan,8192,1024,", "concurrency"),
        ("b,glm-5,fp8,b200-sxm,8,8,sglang,serving,32,-1,1024,", "input_tokens"),
        ("b,glm-5,fp8,nizwo-a1,1,1,sglang,serving,32,8192,1024,", "unknown: bandwidth"),
        ("b,glm-5,fp8,b200-sxm,,,sglang,serving,32,8192,1024,", "accelerator_count"),
    ],
)
def test_a_bad_row_says_why_and_the_others_are_answered(tmp_path, bad, word):
    code, rows = predict(tmp_path, GOOD, bad, GOOD.replace("a,", "c,", 1))
    assert code == 0
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert word in rows[1]["error"] and rows[1]["ttft_mean_ms"] == ""
    assert rows[0]["error"] == rows[2]["error"] == "" and rows[2]["tpot_mean_ms"] == rows[0]["tpot_mean_ms"]


def test_a_table_without_models_is_refused_with_the_column(tmp_path, capsys):
    code, rows = predict(tmp_path, "a,b200-sxm", header="id,accelerator")
    assert code == 2 and rows == []
    assert "model" in capsys.readouterr().err


def test_a_missing_table_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["predict", "--runs", str(tmp_path / "none.csv")])
    assert stop.value.code == 2 and "none.csv" in capsys.readouterr().err


def test_what_was_never_measured_is_known_no_better_and_says_so(tmp_path):
    rows = [
        GOOD.replace(",blue", ",0.5.12"),
        "b,glm-5,fp8,b300-sxm,8,8,sglang,serving,32,8192,1024,",
        # the same kinds of layers on an engine that met neither
        "c,kimi-k2.5,fp8,b300-sxm,8,8,trtllm,serving,32,8192,1024,",
        "d,mixtral-8x22b,fp8,b300-sxm,8,8,trtllm,serving,32,8192,1024,",
    ]
    _, found = predict(tmp_path, *rows, header=HEADER.replace("colour", "engine_version"))

    def width(row):
        return float(row["tpot_mean_ms_high"]) / float(row["tpot_mean_ms_low"])

    # a release that is not stated adds the spread of the engine's releases
    assert 1.0 < width(found[1]) / width(found[0]) < 1.1
    assert width(found[1]) <= width(found[2]) * 1.01
    assert "out_of_domain" in found[0] and not found[0]["out_of_domain"] and "measured" in found[3]["out_of_domain"]


def test_more_users_are_never_faster_for_each(tmp_path):
    rows = [GOOD.replace("a,", f"u{n},", 1).replace(",32,", f",{n},") for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    _, found = predict(tmp_path, *rows)
    tpot = [float(row["tpot_mean_ms"]) for row in found]
    assert tpot == sorted(tpot)


MEMORY = ("weights_gib_per_accelerator", "kv_pool_tokens", "kv_pool_tokens_usable")
SPEEDS = [name for name in ANSWERS if name not in MEMORY]


def test_a_row_whose_cache_holds_no_request_has_no_speed_and_says_why(tmp_path):
    # 16 GB of weights and a pool of some 40,000 tokens on a card of 24 GB
    row = "a,llama-3.1-8b,bf16,rtx-4090,1,1,vllm,serving,1,{},256,"
    _, (small,) = predict(tmp_path, row.format(8192))
    value, high = (float(small[f"kv_pool_tokens{end}"]) for end in ("", "_high"))
    perhaps, beyond = (round(tokens) - 256 for tokens in ((value + high) / 2, 1.05 * high))
    _, (may_start, none) = predict(tmp_path, row.format(perhaps), row.format(beyond))
    assert may_start["error"] == "" and float(may_start["tpot_mean_ms"]) > 0.0
    assert [none[name] for name in SPEEDS] == [""] * len(SPEEDS)
    assert "does not fit" in none["error"] and float(none["weights_gib_per_accelerator"]) > 14.0


def test_rows_of_servers_that_ran_are_predicted_whatever_memory_says():
    cells = {"model": "qwen3-235b-a22b", "weights": "fp8", "accelerator": "h200-sxm", "tp": "1", "engine": "vllm"}
    run = run_from_row({"id": "a", "concurrency": "1", "input_tokens": "1024", "output_tokens": "256", **cells})
    (asked,), (ran,) = predict_runs([run]), predict_runs([run], measured=True)
    assert asked.error and "tpot_mean_ms" not in asked.figures
    assert not ran.error and ran.figures["tpot_mean_ms"].value > 0.0
    assert asked.figures["weights_gib_per_accelerator"] == ran.figures["weights_gib_per_accelerator"]


def test_the_name_of_a_backend_does_not_pad_experts_that_it_holds_as_they_are(tmp_path):
    # SGLang 0.5.15 on eight H200 (run b11b-398541dc1a): 69.39 ms a token, 508 tokens a second, so 35 requests decoded
    # together; its pool would hold 180 of them, and its script's limit is not stated
    header = "id,model,weights,accelerator,tp,engine,engine_version,moe_backend,concurrency,num_requests"
    header += ",running_limit,input_tokens,output_tokens"
    row = "a{0},deepseek-v4-pro,fp8,h200-sxm,8,sglang,0.5.15,{0},1024,2048,35,8192,1024"
    named, unnamed = predict(tmp_path, row.format("flashinfer_mxfp4"), row.format(""), header=header)[1]
    for column in ("weights_gib_per_accelerator", "kv_pool_tokens", "tpot_mean_ms"):
        assert float(named[column]) == pytest.approx(float(unnamed[column]), rel=0.01)
    assert float(named["weights_gib_per_accelerator"]) == pytest.approx(102.3, abs=0.5)
    assert float(named["tpot_mean_ms_low"]) < 69.39 < float(named["tpot_mean_ms_high"])
