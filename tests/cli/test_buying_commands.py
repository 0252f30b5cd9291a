"""The commands of a buyer: what they print in each form, and one clear line for what is wrong."""

from __future__ import annotations

import csv
import json

import pytest

from glmplan.cli import main

DAY = ("--today", "2026-11-22")
SWEEP = ("sweep", "--model", "llama-3.1-8b", "--on", "1xh100-sxm,1xrtx-5090", "--users", "1,9", "--input", "500", *DAY)
ASKED = (
    "--model",
    "llama-3.1-8b-bf16",
    "--users",
    "3",
    "--slo",
    "tpot p95 < 50 ms",
    "--input",
    "500",
    "--output",
    "100",
    *DAY,
)


def said(capsys, *words, code=0):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    found = capsys.readouterr()
    assert ended.value.code == code, found.err
    return found.out if code == 0 else found.err


def test_a_sweep_prints_its_frontier_and_writes_every_point(capsys, tmp_path):
    out = tmp_path / "a.csv"
    page = said(capsys, *SWEEP, "--out", str(out), "--plot", str(tmp_path / "a.html"))
    assert "4 points, 4 feasible" in page
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 4 and float(rows[0]["tpot_mean_ms"]) > 0
    assert "<svg " in (tmp_path / "a.html").read_text()
    assert not (tmp_path / "a.csv.parts").exists()


def test_options_of_a_sweep_that_are_said_again_add_to_their_lists(capsys):
    once = ("--model", "llama-3.1-8b,gpt-oss-120b", "--on", "1xh100-sxm,1xh200-sxm", "--users", "1,4..5", "--tp", "1")
    pairs = list(zip(once[::2], once[1::2], strict=True))
    words = [word for one, many in pairs for part in many.split(",") for word in (one, part)]
    rows = json.loads(said(capsys, "sweep", *words, "--format", "json", *DAY))
    assert rows == json.loads(said(capsys, "sweep", *once, "--format", "json", *DAY))
    assert {row["model"] for row in rows} == {"llama-3.1-8b", "gpt-oss-120b"} and len(rows) == 12
    page = said(capsys, *SWEEP, "--frontier", "tpot_mean_ms", "--frontier", "ttft_mean_ms")
    assert "(mean TPOT, mean TTFT)" in page


def test_a_size_of_two_models_has_both_answers_and_a_table_with_the_cheapest_first(capsys):
    more = (*ASKED[2:], "--only", "1xrtx-5090,1xh100-sxm", "--answers", "1", "--buy")
    one = json.loads(said(capsys, "size", *ASKED[:2], *more, "--format", "json"))
    both = ("size", "--model", "qwen3-30b-a3b-bf16,llama-3.1-8b-bf16", *more)
    found = json.loads(said(capsys, *both, "--format", "json"))["models"]
    assert [content["model"] for content in found] == ["qwen3-30b-a3b", "llama-3.1-8b"] and found[1] == one
    assert {row["model"] for row in csv.DictReader(said(capsys, *both, "--format", "csv").splitlines())} == {
        "qwen3-30b-a3b",
        "llama-3.1-8b",
    }
    months = [content["options"][0]["usd_month"] for content in found]
    rows = said(capsys, *both).splitlines()[1:3]
    assert [row.split()[0] for row in rows] == [
        content["model"] for _, content in sorted(zip(months, found, strict=True), key=lambda pair: pair[0])
    ]


def test_machines_and_engines_of_a_size_that_are_said_again_are_both_looked_at(capsys):
    once = said(capsys, "size", *ASKED, "--only", "1xrtx-5090,1xl40s", "--engine", "vllm,sglang", "--format", "json")
    again = ("--only", "1xrtx-5090", "--only", "1xl40s", "--engine", "vllm", "--engine", "sglang")
    assert said(capsys, "size", *ASKED, *again, "--format", "json") == once


def test_a_simulated_sweep_has_percentiles_and_the_probability_of_a_promise(capsys):
    words = (*SWEEP[:5], "--input", "500", "--output", "50", "--requests", "50", "--traffic", "closed:2,poisson:1/s")
    promise = ("--slo", "ttft p95 < 2 s", "--frontier", "probability,user_tokens_per_s")
    rows = json.loads(said(capsys, *words, *promise, "--format", "json", *DAY))
    assert [row["traffic"] for row in rows] == ["closed:2", "poisson:1/s"] * 2
    assert all(0 < row["ttft_p50_ms"] <= row["ttft_p95_ms"] and 0 <= row["probability"] <= 1 for row in rows)
    assert rows[1]["users"] is None and rows[0]["users"] == 2
    page = said(capsys, *words, *promise, *DAY)
    assert "4 points, 4 feasible" in page and "ttft_p95_ms" in page and "probability" in page


@pytest.mark.parametrize("form", ["json", "csv", "md"])
def test_a_sweep_prints_all_its_points_in_other_forms(capsys, form):
    page = said(capsys, *SWEEP, "--format", form)
    if form == "json":
        assert [row["users"] for row in json.loads(page)] == [1, 9, 1, 9]
    else:
        assert page.count("1xrtx-5090") == 2


def test_a_size_names_its_figures_in_json_and_writes_the_acceptance_test(capsys, tmp_path):
    page = said(capsys, "size", *ASKED, "--only", "1xrtx-5090", "--format", "json")
    [first] = json.loads(page)["options"]
    assert first["usd_purchase"] > 0 and 0 <= first["probability"] <= 1
    out = tmp_path / "test.md"
    with pytest.raises(SystemExit):
        main(["size", *ASKED, "--only", "1xrtx-5090", "--acceptance-test", str(out), "--format", "json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["options"] and f"acceptance test: {out}" in printed.err
    contract = out.read_text()
    assert "glmplan validate llama-3.1-8b" in contract and "--slo 'tpot p95 < 50 ms'" in contract


def test_an_acceptance_test_of_a_load_that_its_client_does_not_make_is_refused(capsys, tmp_path):
    words = ("--input-cv", "0.5", "--acceptance-test", str(tmp_path / "a.md"))
    assert "drop --input-cv" in said(capsys, "size", *ASKED, "--only", "1xrtx-5090", *words, code=2)


@pytest.mark.parametrize(("users", "words"), [("1", "1 user"), ("4", "4 users")])
def test_one_user_is_said_in_the_singular(capsys, tmp_path, users, words):
    page = said(capsys, "compare", "llama-3.1-8b@1xh100-sxm", "llama-3.1-8b@1xl40s", "--users", users, *DAY)
    assert page.splitlines()[0] == f"concurrency: {words}"
    moved = said(
        capsys, "sensitivity", "llama-3.1-8b", "--on", "1xrtx-5090", "--users", users, "--of", "tpot_mean_ms", *DAY
    )
    assert f"1xrtx-5090, {words}: " in moved
    asked = ("--users", users, *ASKED[:2], *ASKED[4:], "--only", "1xrtx-5090")
    sized = said(capsys, "size", *asked, "--acceptance-test", str(tmp_path / "a.md"))
    assert f" for {words} of 500 + 100 tokens" in sized
    assert f"serves {words}, prompts" in (tmp_path / "a.md").read_text()


def test_comparisons_and_sensitivities_are_printed_as_json(capsys):
    plans = ("llama-3.1-8b@1xh100-sxm", "llama-3.1-8b@1xl40s")
    found = json.loads(said(capsys, "compare", *plans, "--users", "4", "--format", "json", *DAY))
    assert len(found["plans"]) == 2 and len(found["causes"]) == 1
    words = ("sensitivity", "llama-3.1-8b", "--on", "1xrtx-5090", "--of", "usd_month", "--format", "json", *DAY)
    assert json.loads(said(capsys, *words))["moves"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((*SWEEP, "--resume"), "needs --out"),
        ((*SWEEP, "--out", "a.xlsx"), ".csv"),
        ((*SWEEP, "--plot", "a.gif"), ".svg"),
        ((*SWEEP, "--frontier", "speed"), "user_tokens_per_s"),
        ((*SWEEP, "--most", "3"), "makes 4 points"),
        ((*SWEEP, "--slo", "ttft < 1 s"), "add --traffic"),
        ((*SWEEP[:5], "--traffic", "closed:1", "--exact", *DAY), "--exact"),
        ((*SWEEP, "--power-limit", "hot"), "--power-limit"),
        (("size", *ASKED, "--power-limit", "450"), "--power-limit"),
        ((*SWEEP, "--cluster", "tcp:/nowhere"), "cluster"),
        (("sweep", "nowhere.toml"), "nowhere.toml"),
        (("sweep", "--model", "llama-3.1-8b"), "--on"),
        ((*SWEEP[:-1], "yesterday"), "--today"),
        (("size", *ASKED, "--buy", "--rent"), "--kind any"),
        (("size", *ASKED, "--price", "rtx-5090=cheap"), "not a number"),
        (("size", *ASKED, "--term", "pu=1"), "nearest: pue"),
        (("size", *ASKED, "--region", "dalas"), "nearest: dallas"),
        (("compare", "1xh100-sxm", "1xl40s", *DAY), "MODEL@MACHINE"),
        (("hybrid", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(capsys, words, wrong):
    text = said(capsys, *words, code=2)
    assert wrong in text and "Traceback" not in text


@pytest.mark.parametrize(
    "words", [(*SWEEP[:5], "--users", ""), ("size", *ASKED, "--only", ""), ("sweep", "--model", "")]
)
def test_a_list_that_is_said_and_empty_is_not_as_if_it_were_not_said(capsys, words):
    assert f"{words[-2]}: ''" in said(capsys, *words, code=2)


def test_a_sweep_without_what_reaches_a_cluster_leaves_nothing_behind(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("glmplan.extras.at_hand", lambda module: module != "distributed")
    text = said(capsys, *SWEEP, "--cluster", "local", "--out", str(tmp_path / "a.csv"), code=2)
    assert text.strip() == "glmplan: --cluster: needs the extra cluster: pip install 'glmplan[cluster]'"
    assert not list(tmp_path.iterdir())
