"""The service says what the command line says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import httpx
import numpy as np
import pytest

from glmplan.cli import main
from glmplan.prediction.effects import COLUMNS

PLAN = {"model": "llama-3.1-8b", "on": "1xh100-sxm"}
SHORT = {"input": 256, "output": 32}
DAY = "2026-11-22"


@pytest.fixture
def printed(capsys):
    """What a command prints as JSON."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)

    return run


def asked(client, address, question):
    answer = client.post(f"/v1/{address}", json=question)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_fit_is_that_of_the_command_line(client, printed):
    found = asked(client, "fit", {"model": "glm-5.1-nvfp4", "on": "6xrtx-pro-6000-ws", "users": [1, 8], "tp": 2})
    words = ("fit", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws", "--users", "1,8", "--tp", 2, "--format", "json")
    assert found == printed(*words)


def test_deployment_files_are_those_of_the_command_line(client, printed, tmp_path):
    found = asked(client, "fit", PLAN | {"deploy": ["compose", "slurm"]})
    files = found.pop("deployment_files")
    words = ("fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--deploy", "compose,slurm", "--out", tmp_path)
    assert found == printed(*words, "--format", "json")
    assert files == {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} and len(files) == 2


def test_simulate_is_that_of_the_command_line(client, printed):
    load = {"traffic": "poisson:2/s", "requests": 60, "seed": 3, "slo": "ttft p95 < 2 s", "turns": None}
    found = asked(client, "simulate", PLAN | SHORT | load)
    words = (
        "simulate",
        "llama-3.1-8b",
        "--on",
        "1xh100-sxm",
        "--traffic",
        "poisson:2/s",
        "--input",
        256,
        "--output",
        32,
    )
    assert found == printed(*words, "--requests", 60, "--seed", 3, "--slo", "ttft p95 < 2 s", "--format", "json")


def test_sessions_are_planned_for_as_the_command_line_does(client, printed):
    found = asked(client, "simulate", PLAN | {"traffic": "sessions:3", "requests": 30, "turns": 4, "ranges": False})
    words = ("simulate", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic", "sessions:3", "--requests", 30)
    assert found == printed(*words, "--turns", 4, "--no-ranges", "--format", "json")


def test_safe_is_that_of_the_command_line(client, printed):
    slo = "tpot p95 < 50 ms"
    found = asked(client, "safe", PLAN | SHORT | {"slo": slo, "traffic": "closed:1", "most": 4})
    words = ("safe", "llama-3.1-8b", "--on", "1xh100-sxm", "--slo", slo, "--traffic", "closed:1", "--most", 4)
    assert found == printed(*words, "--input", 256, "--output", 32, "--format", "json")


def test_sweep_is_that_of_the_command_line(client, printed):
    axes = {"model": "llama-3.1-8b", "on": "1..2xh100-sxm", "users": "1,8", "input": 500}
    found = asked(client, "sweep", axes | {"today": DAY})
    words = ("sweep", "--model", "llama-3.1-8b", "--on", "1..2xh100-sxm", "--users", "1,8", "--input", 500)
    assert found["rows"] == printed(*words, "--today", DAY, "--format", "json")
    assert found["points"] == 4


@pytest.mark.parametrize("models", [["llama-3.1-8b"], ["qwen3-8b", "llama-3.1-8b", "qwen3-8b"]])
def test_size_is_that_of_the_command_line(client, printed, models):
    slo = "tpot p95 < 50 ms"
    question = {"slo": slo, "users": 4, "only": "rtx-5090,l40s", **SHORT, "answers": 1, "today": DAY}
    found = [asked(client, "size", question | {"model": one}) for one in (models, ", ".join(models))]
    words = ("size", "--slo", slo, "--users", 4, "--only", "rtx-5090,l40s", "--answers", 1, "--model", ",".join(models))
    said = printed(*words, "--input", 256, "--output", 32, "--today", DAY, "--format", "json")
    assert found == [said, said]
    assert [one["model"] for one in said.get("models", [said])] == list(dict.fromkeys(models))


def test_size_takes_lists_and_numbers_where_the_command_line_takes_text(client):
    words = {"only": "rtx-5090,l40s", "weights": "bf16,fp8", "power_limit": "350W,400W", "spare": "1"}
    plain = {"only": ["rtx-5090", "l40s"], "weights": ["bf16", "fp8"], "power_limit": [350, 400], "spare": 1}
    question = {"model": "llama-3.1-8b", "slo": "tpot p95 < 50 ms", "users": 4, **SHORT, "answers": 1, "today": DAY}
    first, second = (asked(client, "size", question | said) for said in (words, plain))
    assert first == second and first["spare_machines"] == 1


def test_fit_takes_traffic_as_words_or_as_fields(client, printed):
    question = PLAN | SHORT | {"traffic": "closed:4", "think": "2s", "ramp": "5s", "changes": False}
    found = asked(client, "fit", question)
    assert found == asked(client, "fit", PLAN | SHORT | {"traffic": "closed:4,think=2s,ramp=5s", "changes": False})
    refused = client.post("/v1/fit", json=PLAN | {"think": "2s"})
    assert refused.status_code == 422
    assert "give traffic too" in refused.text


def test_compare_is_that_of_the_command_line(client, printed):
    plans = [PLAN, {"model": "llama-3.1-8b", "on": "1xh200-sxm"}]
    found = asked(client, "compare", {"plans": plans, "users": 8, "today": DAY})
    words = ("compare", "1xh100-sxm", "1xh200-sxm", "--model", "llama-3.1-8b", "--users", 8, "--today", DAY)
    assert found == printed(*words, "--format", "json")


def test_compare_goes_on_without_a_plan_that_does_not_fit(client, printed):
    on = ("1xh100-sxm", "1xl40s", "1xh200-sxm")
    plans = [{"model": "qwen3-32b", "weights": "bf16", "on": one} for one in on]
    plans[2]["kv"] = "fp8"
    found = asked(client, "compare", {"plans": plans, "today": DAY})
    assert [one["plan"] for one in found["left_out"]] == ["qwen3-32b on 1xl40s"]
    words = ("compare", *on[:2], on[2] + ",kv=fp8", "--model", "qwen3-32b", "--weights", "bf16", "--today", DAY)
    assert found == printed(*words, "--format", "json")


def test_predict_table_is_that_of_the_command_line(client, tmp_path, capsys):
    import csv
    import io

    row = {"id": "a", "model": "llama-3.1-8b", "accelerator": "h100-sxm", "accelerator_count": 1, "engine": "vllm"}
    row |= {"concurrency": 8, "input_tokens": 1024, "output_tokens": 256}
    file = tmp_path / "runs.csv"
    file.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["predict", "--runs", str(file)])
    [printed] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    [found] = asked(client, "predict-table", {"rows": [row]})["rows"]
    assert {
        name: "" if value is None else str(value) for name, value in found.items() if not isinstance(value, float)
    } == {name: printed[name] for name in found if not isinstance(found[name], float)}
    assert all(float(printed[name]) == value for name, value in found.items() if isinstance(value, float))
    assert found["tpot_mean_ms"] > 0


def test_predict_is_that_of_python(client):
    import glmplan

    planned = glmplan.deployment("llama-3.1-8b", on="1xh100-sxm", **SHORT)
    figure = glmplan.predict(planned, users=8).figures["tpot"]
    found = asked(client, "predict", PLAN | SHORT | {"users": 8})
    assert found["users"][0]["figures"]["tpot"] == json.loads(json.dumps(asdict(figure)))


def test_single_values_are_those_of_fit(client, printed):
    whole = printed("fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--users", 8, "--format", "json")
    get = "tokens_per_s,ttft_ms_low,safe_users,verdict"
    cells = client.get("/v1/value", params=PLAN | {"users": 8, "get": get}).text.splitlines()
    row = whole["users"][0]
    assert cells[0] == get
    assert cells[1].split(",") == [
        repr(row["output_tokens_per_s"]["value"]),
        repr(row["ttft_mean_ms"]["low"]),
        repr(whole["safe"]["users"]),
        "fits",
    ]
    alone = client.get("/v1/value", params=PLAN | {"users": 8, "get": "tokens_per_s"})
    assert alone.text == cells[1].split(",")[0]
    assert alone.headers["content-type"].startswith("text/plain")


def test_single_values_of_money_are_those_of_the_costs(client):
    """Without users the answer is for one; the format is the one that `fit` chose."""
    plan = {"model": "glm-5.1", "on": "6xrtx-pro-6000-ws"}
    fit = asked(client, "fit", plan | {"users": 1, "changes": False})["question"]
    found = asked(client, "cost", plan | {"weights": fit["checkpoint"], "users": 1})
    get = "weights,usd_month_buy,usd_month_api,usd_per_million_tokens_buy,usd_purchase,usd_month_rent"
    cells = client.get("/v1/value", params=plan | {"get": get}).text.splitlines()[1].split(",")
    ways = {one["paid"].split(" ")[0]: one for one in found["ways"] if one["usd_month"] is not None}
    assert cells[:5] == [
        fit["checkpoint"],
        repr(ways["buy"]["usd_month"]),
        repr(found["api"]["usd_month"]),
        repr(ways["buy"]["usd_per_million_tokens"]),
        repr(ways["buy"]["usd_purchase"]),
    ]
    assert cells[5] == (repr(ways["rent"]["usd_month"]) if "rent" in ways else "unknown")
    small = {"model": "glm-5.1-bf16", "on": "1xh100-sxm", "get": "usd_month_buy"}
    assert client.get("/v1/value", params=small).text == "does_not_fit"


def test_a_plan_costs_what_compare_says(client):
    plans = [PLAN, {"model": "llama-3.1-8b", "on": "1xh200-sxm"}]
    compared = asked(client, "compare", {"plans": plans, "users": 8, "today": DAY})["plans"][0]
    prices = ["llama-3.1-8b:input=0.05", "llama-3.1-8b:output=0.1"]
    found = asked(client, "cost", PLAN | {"users": 8, "today": DAY, "price": prices})
    first = found["ways"][0]
    for name in ("usd_month", "paid", "usd_per_million_output_tokens"):
        assert first[name] == pytest.approx(compared[name])
    # even with the API: the tokens at which its bill is the month of the machine
    tokens = found["million_input_tokens_month"] + found["million_output_tokens_month"]
    bill = found["api"]["usd_month"] * first["break_even_million_tokens"] / tokens
    assert bill == pytest.approx(first["usd_month"])
    # an API at a hundredth of the price is even at more than the machine carries
    few = {"price": ["llama-3.1-8b:input=0.0005", "llama-3.1-8b:output=0.001"], "today": DAY}
    cheap = asked(client, "cost", PLAN | {"users": 8} | few)
    assert tokens < cheap["million_tokens_month_most"] < cheap["ways"][0]["break_even_million_tokens"]


def test_links_are_as_full_as_the_placement_says(client):
    from glmplan.catalog.entries.hosts import load_machine
    from glmplan.costs.network.topology import place, plan_loads

    found = asked(client, "links", {"on": "6xrtx-pro-6000-ws", "tp": 2, "pp": 3})
    host = load_machine("6xrtx-pro-6000-ws")
    placement = place(host, tp=2, pp=3)
    assert found["stages"] == [list(stage) for stage in placement.stages]
    loads = plan_loads(host, placement.stages)["all-reduce"]
    assert [one["share"] for one in found["loads"]["all-reduce"]] == [one.load / one.capacity for one in loads]


def test_a_service_with_a_calibration_of_a_site_answers_as_the_command_line_with_it(
    serving, patient, printed, tmp_path
):
    site = tmp_path / "site.toml"
    rows = np.full(len(COLUMNS), 0.3)
    site.write_text(f"columns = {json.dumps(list(COLUMNS))}\n[effects.engine]\nvllm = {json.dumps(rows.tolist())}\n")
    question = PLAN | SHORT | {"engine": "vllm", "users": [1, 8]}
    words = ["fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--input", 256, "--output", 32, "--engine", "vllm", "--users",
             "1,8", "--format", "json"]  # fmt: skip
    plain, moved = printed(*words), printed(*words, "--calibration", site)
    with (
        serving(replace(patient, calibration=str(site))) as there,
        httpx.Client(base_url=there, timeout=600, trust_env=False) as client,
    ):
        found = asked(client, "fit", question)
        values = asked(client, "predict", question)["users"]
    assert found == moved
    slower = [one["tpot_mean_ms"]["value"] for one in moved["users"]]
    assert all(now > 1.1 * one["tpot_mean_ms"]["value"] for now, one in zip(slower, plain["users"], strict=True))
    assert [1000 * one["figures"]["tpot"]["value"] for one in values] == pytest.approx(slower, rel=1e-4)


@pytest.mark.parametrize("users", [1, 3, 8, 11])
def test_a_single_value_of_several_servers_is_the_sum_over_servers(client, users):
    """Three users on two servers are two and one of them, in a cell as on the command line."""
    one = {"model": "llama-3.1-8b", "on": "1xl40s", "tp": 1, "input": 900, "output": 200, "get": "tokens_per_s"}
    two = one | {"on": "2xl40s", "replicas": 2, "users": users}
    each = [client.get("/v1/value", params=one | {"users": part}) for part in (users // 2, users - users // 2) if part]
    together = client.get("/v1/value", params=two)
    assert together.status_code == 200, together.text
    assert float(together.text) == pytest.approx(sum(float(part.text) for part in each), rel=1e-3)
