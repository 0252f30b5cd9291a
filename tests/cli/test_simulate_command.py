"""`glmplan simulate` and `glmplan safe` as a user runs them."""

from __future__ import annotations

import csv
import json

import pytest

from glmplan.units import number

_DRAFTING_OVER_STAGES = [
    *("glm-5.1", "--weights", "fp8", "--on", "8xh200-sxm", "--tp", "4", "--pp", "2", "--mtp", "1"),
    *("--traffic", "closed:4"),
]
OWN = ["--step-time", "base=12 ms,request=0.11 ms,context=13 ns,prompt=17 us,pair=1.9 ns", "--kv-tokens", "400000"]


@pytest.fixture(scope="module")
def glmplan():
    """Run the command in this process: starting it is tested elsewhere."""
    from glmplan.cli import main

    def run(capsys, *words):
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        output = capsys.readouterr()
        return stop.value.code or 0, output.out, output.err

    return run


def test_json_carries_every_statistic_by_name(glmplan, capsys):
    words = ("simulate", "--traffic", "closed:16", *OWN, "--slo", "ttft p95 < 2 s", "--format", "json")
    code, out, _ = glmplan(capsys, *words)
    found = json.loads(out)
    assert code == 0
    for name in ("ttft", "tpot", "itl", "e2e", "queue"):
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            assert found[f"{name}_{statistic}_ms"] >= 0
    assert found["requests"] == 160 - 16  # under an SLO, the first request of each user does not count
    assert json.loads(glmplan(capsys, *words, "--warmup", "0")[1])["requests"] == 160
    assert found["slo_met"] == {"ttft p95 < 2000 ms": True}
    assert glmplan(capsys, *words)[1] == out


def test_every_format_says_the_same(glmplan, capsys):
    words = ("simulate", "--traffic", "poisson:2/s", *OWN, "--requests", "200", "--replications", "3", "--format")
    found = json.loads(glmplan(capsys, *words, "json")[1])
    assert found["intervals"]["ttft_mean_ms"][0] < found["ttft_mean_ms"] < found["intervals"]["ttft_mean_ms"][1]
    (row,) = csv.DictReader(glmplan(capsys, *words, "csv")[1].splitlines())
    assert float(row["tpot_p95_ms"]) == found["tpot_p95_ms"]
    assert f"{found['tpot_p95_ms']:,.1f}" in glmplan(capsys, *words, "text")[1]
    assert "| tpot | " in glmplan(capsys, *words, "md")[1]


def test_records_and_charts_are_written(glmplan, capsys, tmp_path):
    records, plot = tmp_path / "r.csv", tmp_path / "p.html"
    code, out, _ = glmplan(
        capsys, "simulate", "--traffic", "sessions:4", *OWN, "--prefix-caching", "--records", str(records),
        "--requests", "60", "--plot", str(plot),
    )  # fmt: skip
    assert code == 0
    assert "prefix cache" in out
    assert len(records.read_text().splitlines()) == 61
    assert "time to first token" in plot.read_text()


def test_safe_answers_users_and_rate_and_what_breaks_first(glmplan, capsys, tmp_path):
    plot = tmp_path / "s.html"
    words = ("safe", "--slo", "ttft p95 < 2 s, tpot p95 < 30 ms", *OWN, "--jitter", "0.2")
    code, out, _ = glmplan(capsys, *words, "--format", "json", "--plot", str(plot))
    found = json.loads(out)
    assert code == 0
    assert 80 < found["safe_users"] < 150
    assert found["safe_requests_per_s"] > 1
    assert found["users_search"]["limited_by"] == "tpot p95 < 30 ms"
    assert "users" in plot.read_text()
    assert f"{found['safe_users']} users" in glmplan(capsys, *words)[1]
    assert "| safe load |" in glmplan(capsys, *words, "--format", "md")[1]
    assert glmplan(capsys, *words, "--format", "csv")[1].startswith("unit,safe,")


def test_one_safe_user_is_said_in_the_singular(glmplan, capsys):
    code, out, _ = glmplan(capsys, "safe", "--slo", "tpot p95 < 12.2 ms", *OWN, "--traffic", "closed")
    assert code == 0 and out.startswith("1 user (1 at 80 %, 1 at 50 %): ") and "steps of up to 2 requests" in out


_TEXT_ONLY = ["llama-3.1-8b", "--on", "1xh100-sxm"]
#: options without what they modify, with a measured step time
_IDLE = (
    ["--image-time", "60 ms"], ["--encoder-cards", "2"], ["--urgent", "0.2"], ["--order", "priority"],
    ["--order", "lpm"], ["--kv-tiers", "drive=1000@1 GB/s"], ["--host-bandwidth", "50 GB/s"],
    ["--transfer", "50 GB/s"], ["--kv-bytes-per-token", "1 kB"], ["--routing", "least-loaded"],
    ["--prefill-max-requests", "2"], ["--schedule-conservativeness", "0.5"], ["--experts-apart", "8@50 GB/s"],
    ["--acceptance", "0.7"], ["--tp", "2"], ["--kv", "fp8"], ["--eager"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "--traffic", "closed:0", *OWN], "users"),
        (["simulate", "--traffic", "closd:1", *OWN], "nearest: closed"),
        (["simulate", "--traffic", "closed:1", "--step-time", "base=12 ms"], "--kv-tokens"),
        (["simulate", "--traffic", "closed:1", "--step-time", "bas=12 ms", "--kv-tokens", "1000"], "nearest: base"),
        (["simulate", "--traffic", "closed:1", "--step-time", "base=12 apples", "--kv-tokens", "1000"], "apples"),
        (["simulate", "--traffic", "closed:1"], "MODEL"),
        (["simulate", "--traffic", "closed:1", *OWN, "--slo", "ttft p97 < 1 s"], "p97"),
        (["simulate", "--traffic", "closed:1", *OWN, "--requests", "0"], "--requests"),
        (["simulate", "--traffic", "closed:1", *OWN, "--records", "r.xlsx"], ".parquet"),
        (["simulate", "--traffic", "closed:1", *OWN, "--kv-tokens", "8"], "block"),
        (["simulate", "--traffic", "trace:none.csv", *OWN], "none.csv"),
        (["simulate", "--traffic", "closed:1", *OWN, "--engine", "vlm"], "nearest: vllm"),
        (["simulate", "--traffic", "closed:1", *OWN, "--mtp", "3"], "--acceptance"),
        (["safe", "--slo", "ttft < 0 s", *OWN], "zero"),
        *(
            ([*command, *OWN, *words], words[0])
            for command in (["simulate", "--traffic", "closed:2"], ["safe", "--slo", "ttft < 1 s"])
            for words in _IDLE
        ),
        (["simulate", *_TEXT_ONLY, "--traffic", "closed:1", "--images", "1", "--image-time", "60 ms"], "llama-4-scout"),
        (["safe", *_TEXT_ONLY, "--images", "1", "--image-time", "60 ms"], "--images"),
        (["fit", *_TEXT_ONLY, "--traffic", "poisson:1/s,images=1"], "--images"),
        (["sweep", "--model", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic", "poisson:1/s,urgent=0.3"], "--urgent"),
        (["size", "--model", "llama-3.1-8b", "--slo", "ttft < 1 s", "--traffic", "poisson:1/s,urgent=0.3"], "--urgent"),
        (
            ["simulate", "--fleet", "f.toml", "--traffic", "closed:1"],
            "--traffic: 'closed:1' has no effect with --fleet",
        ),
        (["simulate", "--fleet", "f.toml", "--tp", "2"], "--tp: 2 has no effect with --fleet: write it into the file"),
        (["simulate", "--fleet", "f.toml", "--warmup", "2"], "--warmup: 2 has no effect with --fleet"),
        *(
            (["simulate", "--traffic", "poisson:1/s", "--sweep-rate", "1:2:2", *OWN, name, value], name)
            for name, value in (
                ("--requests", "9"),
                ("--warmup", "2"),
                ("--replications", "2"),
                ("--records", "r.csv"),
                ("--timeline", "t.json"),
            )
        ),
        *(
            ([one, *_DRAFTING_OVER_STAGES], "--mtp: 1 speculative decoding does not work over pipeline stages")
            for one in ("simulate", "safe")
        ),
    ],
)
def test_bad_input_ends_with_one_message_and_code_two(glmplan, capsys, words, said):
    code, out, err = glmplan(capsys, *words)
    assert code == 2
    assert said in err
    assert out == ""
    assert "Traceback" not in err


def test_an_interrupt_keeps_the_records_and_ends_with_130(tmp_path, interrupted):
    records = tmp_path / "r.csv"
    words = ["simulate", "--traffic", "closed:64", *OWN, "--prefix-caching", "--ramp", "10s", "--requests", "5000000"]
    out, err = interrupted(words, records)
    assert "interrupted" in err
    assert "output tokens/s" in out
    assert len(records.read_text().splitlines()) > 1000


def test_a_model_on_a_machine_is_simulated_with_the_step_time_of_fit(glmplan, capsys):
    words = ("glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws", "--engine-version", "0.19.0")
    words += ("--input", "2048", "--output", "256")
    code, out, _ = glmplan(capsys, "simulate", *words, "--traffic", "closed:8", "--requests", "400", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert "TP2×PP3" in found["basis"]
    # the same step time under the same closed loop: fit's table gives the rate of all users together
    fit = json.loads(glmplan(capsys, "fit", *words, "--users", "8", "--format", "json")[1])
    (row,) = fit["users"]
    assert found["output_tokens_per_s"] == pytest.approx(row["output_tokens_per_s"]["value"], rel=0.1)
    safe = json.loads(glmplan(capsys, "safe", *words, "--slo", "tpot p95 < 80 ms", "--format", "json")[1])
    assert 1 <= safe["safe_users"] < 40


def test_what_does_not_fit_is_an_answer(glmplan, capsys):
    code, out, err = glmplan(capsys, "simulate", "glm-5.1-nvfp4", "--on", "4xrtx-pro-6000-ws", "--traffic", "closed:8")
    assert code == 0
    assert "does not fit" in out + err


def test_a_trace_is_replayed_whole_and_in_its_own_time(glmplan, capsys, tmp_path):
    trace = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:{minute:02d}:46.6805900,374,44" for minute in range(0, 60, 2)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    code, out, _ = glmplan(capsys, "simulate", "--traffic", f"trace:{trace}", *OWN, "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["requests"] == 30
    assert found["duration_s"] == pytest.approx(58 * 60, abs=2)


def test_a_hand_over_takes_the_time_of_its_bytes(glmplan, capsys):
    words = (
        "simulate",
        "--traffic",
        "closed:1",
        *OWN,
        "--replicas",
        "2",
        "--prefill-replicas",
        "1",
        "--format",
        "json",
    )
    slow, fast = (
        json.loads(glmplan(capsys, *words, "--transfer", speed, "--kv-bytes-per-token", "100 kB")[1])
        for speed in ("1 GB/s", "1000 GB/s")
    )
    assert slow["ttft_mean_ms"] - fast["ttft_mean_ms"] == pytest.approx(102.4, abs=0.2)
    assert glmplan(capsys, *words, "--transfer", "1 GB/s")[0] == 2


def test_a_small_budget_alone_lowers_the_requests_at_once(glmplan, capsys):
    code, out, _ = glmplan(
        capsys, "simulate", "--traffic", "closed:150", *OWN, "--max-batched-tokens", "100", "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["batch_max"] <= 100


def test_a_simulation_says_its_range_over_step_times_and_seeds(glmplan, capsys):
    words = ("simulate", "llama-3.1-8b", "--on", "h200-sxm", "--traffic", "closed:8", "--output", "64")
    found = json.loads(glmplan(capsys, *words, "--format", "json")[1])
    low, high = found["ranges"]["tpot_mean_ms"]
    assert low < found["tpot_mean_ms"] < high
    own = json.loads(glmplan(capsys, "simulate", "--traffic", "poisson:2/s", *OWN, "--format", "json")[1])
    narrow = own["ranges"]["tpot_mean_ms"]
    # a step time that is told leaves the seeds, the predicted one has its interval besides
    assert 1 < narrow[1] / narrow[0] < high / low
    out = glmplan(capsys, *words)[1]
    assert "90 %" in out and f"{low:,.1f}" in out
    assert "ranges" not in json.loads(glmplan(capsys, *words, "--no-ranges", "--format", "json")[1])


@pytest.mark.parametrize(
    "words", [["--traffic", "closed:1000000000"], ["--traffic", "poisson:1/s", "--requests", "1000000000"]]
)
def test_a_billion_is_refused_with_the_count(glmplan, capsys, words):
    code, out, err = glmplan(capsys, "simulate", *words, *OWN)
    assert code == 2 and out == ""
    assert "1000000000" in err.replace(",", "").replace("_", "")


def test_more_than_is_served_is_said_to_be_where_times_hang_on_the_length_of_the_run(glmplan, capsys):
    """Steps of 10 ms for 4 requests of 100 tokens: 4 a second are served; a queue of 5 a second has no mean."""
    own = ["--step-time", "base=10 ms", "--kv-tokens", "100000", "--max-num-seqs", "4", "--requests", "400"]
    words = ["simulate", *own, "--input", "16", "--output", "100", "--no-ranges", "--traffic"]
    for rate, most in (("3", None), ("5", "4"), ("500", "4")):
        code, _, err = glmplan(capsys, *words, f"poisson:{rate}/s")
        assert code == 0
        assert (f"{rate} requests/s arrive and no more than {most} are served" in err) == (most is not None)
        assert "note" in err or most is None
    asked = ["fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic", "poisson:1000/s"]
    plan = json.loads(glmplan(capsys, *asked, "--format", "json")[1])["traffic_runs"][0]
    assert 0 < plan["max_served_per_s"] < 1000
    text = " ".join(glmplan(capsys, *asked)[1].split())
    assert f"at most {number(plan['max_served_per_s'])} requests/s are served: the queue grows" in text


@pytest.mark.parametrize("traffic", ["closed:8", "poisson:2/s", "sessions:3,turns=4"])
@pytest.mark.parametrize("slo", ["", "ttft p95 < 2 s, tpot p95 < 60 ms"])
def test_python_simulates_as_many_requests_as_the_command(glmplan, capsys, traffic, slo):
    """It was always 1,000 of them, with the start in which all users begin together."""
    import glmplan as package

    words = ("llama-3.1-8b", "--on", "1xh100-sxm", "--input", "500", "--output", "50", "--traffic", traffic)
    words += ("--slo", slo) if slo else ()
    said = json.loads(glmplan(capsys, "simulate", *words, "--no-ranges", "--format", "json")[1])
    planned = package.deployment("llama-3.1-8b", on="1xh100-sxm", input=500, output=50)
    found = package.simulate(planned, traffic, slo=slo).summary
    # the command plans for the context of the sessions, which a deployment is not told
    same = ("requests",) if "sessions" in traffic else ("requests", "ttft_p95_ms", "tpot_mean_ms")
    assert [found[name] for name in same] == pytest.approx([said[name] for name in same])


@pytest.mark.parametrize(("traffic", "short"), [("sessions:5,turns=30", 100), ("closed:40", 40), ("closed:40", 90)])
def test_a_run_that_judges_its_start_says_so(glmplan, capsys, traffic, short):
    words = ("simulate", *OWN, "--traffic", traffic, "--requests", str(short), "--no-ranges")
    _, _, judged = glmplan(capsys, *words, "--slo", "ttft p95 < 2 s")
    assert ("of the start" in judged) == (short <= 40 or "sessions" in traffic)
    assert "of the start" not in glmplan(capsys, *words)[2]
