"""`glmplan simulate --fleet` and `--sweep-rate`, typed as users type them."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from glmplan.cli import main
from glmplan.cli.fleet import read_case
from glmplan.present.fleet_charts import _history
from glmplan.simulation.fleets.run import FleetOptions
from glmplan.simulation.goodput import goodput_curve

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/guide/examples/fleet.toml"
STEP = "base=12 ms,request=0.1 ms,context=13 ns,prompt=17 us"
FLEET = f"""
slo = "ttft p95 < 1 s, tpot p95 < 40 ms"
duration = "60 s"
[router]
routing = "least-requests"
retries = 1
[[group]]
name = "own"
step-time = "{STEP}"
kv-tokens = 300000
replicas = 2
usd-per-hour = 2.0
[group.autoscaler]
metric = "concurrency"
target = 20
max = 4
[[tenant]]
name = "chat"
traffic = "poisson:10/s"
input = 500
output = 100
[[fault]]
kind = "crash"
group = "own"
at = "20 s"
"""


def typed(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(list(words))
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()


def glmplan(*words: str) -> str:
    code, out, err = typed(*words)
    assert code == 0, err
    return out


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def test_a_fleet_file_gives_tenants_groups_and_events(fleet):
    found = json.loads(glmplan("simulate", "--fleet", fleet, "--format", "json"))
    assert found["tenants"]["chat"]["requests"] == found["summary"]["requests"] == found["groups"]["own"]["requests"]
    assert [one["event"] for one in found["events"]][:3] == ["crash", "start", "ready"]
    assert found["groups"]["own"]["usd"] == pytest.approx(2 * found["summary"]["replica_hours"])
    assert len(found["fixed"]) >= 1 and set(found["tenants"]["chat"]["slo_met"]) == {
        "ttft p95 < 1000 ms", "tpot p95 < 40 ms"}  # fmt: skip


PLANNED = """
slo = "ttft p95 < 1 s, tpot p95 < 20 ms"
duration = "60 s"
[[group]]
name = "h100"
model = "llama-3.1-8b"
on = "1xh100-sxm"
[[tenant]]
name = "chat"
traffic = "poisson:6/s"
input = 500
output = 100
shared_prefix = 200
"""


def test_the_range_of_a_tenant_is_that_of_slower_and_faster_steps(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(PLANNED)
    found = json.loads(glmplan("simulate", "--fleet", str(path), "--format", "json"))["tenants"]["chat"]
    assert set(found["ranges"]) == {"ttft_p95_ms", "tpot_p95_ms", "e2e_p95_ms", "goodput_share"}
    for metric, (low, high) in found["ranges"].items():
        assert low <= found[metric] <= high, metric
    low, high = found["ranges"]["tpot_p95_ms"]
    assert low < 0.9 * found["tpot_p95_ms"] and high > 1.1 * found["tpot_p95_ms"]
    assert found["cached_share"] > 0.2
    text = glmplan("simulate", "--fleet", str(path))
    assert "90 % of the interval of the step time" in text and f"{low:,.1f} to {high:,.1f}" in text and "cached" in text
    plain = json.loads(glmplan("simulate", "--fleet", str(path), "--format", "json", "--no-ranges"))["tenants"]["chat"]
    assert "ranges" not in plain


def test_measured_step_times_have_no_range(fleet):
    found = json.loads(glmplan("simulate", "--fleet", fleet, "--format", "json"))
    assert "ranges" not in found["tenants"]["chat"]


def test_an_interrupt_keeps_the_requests_that_had_finished(tmp_path, interrupted):
    path, records = tmp_path / "fleet.toml", tmp_path / "records.csv"
    path.write_text(FLEET.replace('duration = "60 s"', 'duration = "900 h"'))
    out, err = interrupted(["simulate", "--fleet", str(path)], records)
    assert "interrupted: these are the requests" in err
    served = re.search(r"^([\d,]+) requests over", out, re.MULTILINE)
    assert served is not None and int(served[1].replace(",", "")) == len(records.read_text().splitlines()) - 1


def test_an_interrupted_sweep_has_the_rates_before():
    def run(rate: float, share: float, which: int) -> tuple[float, float, bool]:
        if rate > 2:
            raise KeyboardInterrupt
        return rate, 1.0, True

    curve = goodput_curve(run, (1.0, 2.0, 3.0), (0.5,))
    assert [point.rate for point in curve.points] == [1.0, 2.0] and curve.interrupted
    with pytest.raises(KeyboardInterrupt):
        goodput_curve(run, (3.0,), (0.5,))


def test_replicas_are_drawn_from_the_start_to_the_end(fleet):
    case, size = read_case(Path(fleet), None, None)
    result = case.run(FleetOptions(**size))
    rows = _history(result, "own", 2, 99.0)
    assert rows[0] == (0.0, 2, 0) and rows[-1] == (99.0, *rows[-2][1:])
    assert [row[0] for row in rows] == sorted(row[0] for row in rows) and len(rows) == 2 + len(result.changes)


def test_a_timeline_names_groups(fleet, tmp_path):
    timeline = tmp_path / "t.json"
    glmplan("simulate", "--fleet", fleet, "--no-ranges", "--timeline", str(timeline))
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {"own 0", "own 1"} <= {event["args"]["name"] for event in events if event["ph"] == "M"}


def test_a_knee_that_the_sweep_does_not_reach_is_none():
    words = ("--step-time", STEP, "--kv-tokens", "300000", "--traffic", "poisson:1/s", "--slo", "ttft p95 < 1 s")
    text = glmplan("simulate", *words, "--sweep-rate", "1,2", "--input", "500", "--output", "20")
    assert "knee: not below the largest rate of the sweep" in text


def test_all_forms_have_the_same_numbers(fleet):
    found = json.loads(glmplan("simulate", "--fleet", fleet, "--format", "json", "--no-ranges"))
    rows = list(csv.DictReader(io.StringIO(glmplan("simulate", "--fleet", fleet, "--format", "csv", "--no-ranges"))))
    assert [(row["part"], row["name"], int(float(row["requests"]))) for row in rows] == [
        ("tenant", "chat", found["summary"]["requests"]), ("group", "own", found["summary"]["requests"])]  # fmt: skip
    for form in ("text", "md"):
        text = glmplan("simulate", "--fleet", fleet, "--format", form, "--no-ranges")
        assert f"{found['summary']['requests']:,}" in text and f"{found['summary']['slo_attainment']:.2%}" in text


def test_records_timeline_and_plot_are_written(fleet, tmp_path):
    records, timeline, plot = tmp_path / "r.csv", tmp_path / "t.json", tmp_path / "p.html"
    words = ("--records", str(records), "--timeline", str(timeline), "--plot", str(plot), "--format", "json")
    found = json.loads(glmplan("simulate", "--fleet", fleet, "--no-ranges", *words))
    assert len(records.read_text().splitlines()) == found["summary"]["requests"] + 1
    events = json.loads(timeline.read_text())["traceEvents"]
    opened = sum(event["ph"] == "b" and event["name"].startswith("request") for event in events)
    assert opened == found["summary"]["requests"]
    assert sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events)
    assert "<svg" in plot.read_text()


def test_goodput_rises_to_the_knee_and_falls(fleet, tmp_path):
    words = (
        "--step-time",
        STEP,
        "--kv-tokens",
        "300000",
        "--traffic",
        "poisson:1/s",
        "--input",
        "500",
        "--output",
        "100",
    )
    slo = ("--slo", "ttft p95 < 1 s, tpot p95 < 40 ms", "--format", "json")
    plot = tmp_path / "p.svg"
    one = json.loads(glmplan("simulate", *words, "--sweep-rate", "5:45:5", *slo, "--plot", str(plot)))
    rates = [point["requests_per_s"] for point in one["points"]]
    assert rates == [5, 15, 25, 35, 45] and plot.read_text().startswith("<svg")
    assert 5 <= one["safe_requests_per_s"] <= one["knee_requests_per_s"] < 45
    kept = [point["probability_slo_met"] for point in one["points"]]
    assert kept == sorted(kept, reverse=True) and kept[0] == 1.0 and kept[-1] == 0.0
    for point in one["points"]:
        assert point["goodput_low"] <= point["goodput_requests_per_s"] <= point["goodput_high"]
    swept = json.loads(
        glmplan("simulate", "--fleet", fleet, "--sweep-rate", "5,300", "--requests", "1500", "--format", "json")
    )
    assert [point["probability_slo_met"] for point in swept["points"]] == [1.0, 0.0]


def test_the_example_of_the_guide_runs():
    found = json.loads(
        glmplan("simulate", "--fleet", str(EXAMPLE), "--format", "json", "--no-ranges", "--requests", "300")
    )
    assert set(found["groups"]) == {"h100", "a100"} and found["summary"]["requests"] > 250


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sweep-rate", "5:1"), "rising"),
        (("--sweep-rate", "1:5:1"), "2 to 200"),
        (("--timeline", "x.txt"), ".json"),
        (("--format", "json"), "--traffic"),
    ],
)
def test_wrong_options_are_refused_by_name(words, message):
    given = () if words[0] == "--format" else ("--traffic", "poisson:1/s")
    slo = ("--slo", "ttft < 1 s") if words[0] == "--sweep-rate" else ()
    code, out, err = typed("simulate", "--step-time", STEP, "--kv-tokens", "9999", *given, *slo, *words)
    assert code != 0 and not out and message in err


def test_an_unknown_option_of_a_group_is_refused(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.replace("kv-tokens = 300000", "kv-tokens = 300000\ntpp = 2"))
    code, _, err = typed("simulate", "--fleet", str(path))
    assert code != 0 and "tpp" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("kv-tokens = 300000", 'kv-tokens = 300000\nimage-time = "60 ms"'), "--image-time"),
        (("input = 500", "input = 500\nimages = 0.5"), "--image-time"),
        (("kv-tokens = 300000", 'kv-tokens = 300000\norder = "priority"'), "--order"),
        (("kv-tokens = 300000", 'kv-tokens = 300000\nrouting = "least-kv"'), "[router]"),
        (("kv-tokens = 300000", "kv-tokens = 300000\ntp = 2"), "--tp"),
        (("input = 500", "input = 500\nturns = 3"), "tenant chat: --traffic: turns"),
        (("input = 500", "inptu = 500"), "fleet.toml: tenant chat: --traffic: 'inptu' is not a field; nearest: input"),
        (("poisson:10/s", "posson:10/s"), "fleet.toml: tenant chat: --traffic: 'posson'"),
        (("ttft p95 < 1 s", "ttft p95 1 s"), "fleet.toml: tenant chat: --slo"),
        (("kv-tokens = 300000", "kv-tokens = 300000\ntpp = 2"), "nearest: tp"),
    ],
)
def test_options_of_a_file_without_what_they_modify_are_refused(tmp_path, change, message):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.replace(*change))
    code, out, err = typed("simulate", "--fleet", str(path))
    assert code == 2 and not out and message in err


def test_options_of_a_group_take_effect_with_a_tenant_that_needs_them(tmp_path):
    path = tmp_path / "fleet.toml"
    group = 'kv-tokens = 300000\nimage-time = "60 ms"\norder = "priority"'
    second = '[[tenant]]\nname = "later"\ntraffic = "poisson:1/s"\npriority = 1\nimages = 0.5'
    path.write_text(FLEET.replace("kv-tokens = 300000", group) + second)
    assert "later" in glmplan("simulate", "--fleet", str(path), "--no-ranges")
