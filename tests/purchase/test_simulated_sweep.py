"""Simulated sweeps say of each load what `simulate` and `kept` say of it, and of what does not work the reason."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace

import pytest

import glmplan
from glmplan.cli import main
from glmplan.errors import SpecError
from glmplan.planner.service import kept_of
from glmplan.planner.traffic_search import described_under
from glmplan.purchase import cluster
from glmplan.purchase.axes import MOST_SIMULATED, STATISTICS, read_sweep
from glmplan.purchase.sweep import Checkpoints, Swept, swept
from glmplan.request.plan import PlanRequest
from glmplan.simulation.load_trial import default_warmup
from glmplan.simulation.simulate import SimulationOptions, simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic

SLO = "ttft p95 < 400 ms, tpot p95 < 30 ms"
AXES = {"model": "llama-3.1-8b", "on": "1xh100-sxm", "input": 500, "output": 60, "requests": 60}


@pytest.mark.parametrize("word", ["poisson:3/s", "closed:6", "sessions:3,turns=3", "gamma:2/s,cv=3"])
def test_a_row_is_what_simulate_and_kept_say_of_the_same_words(word):
    shape = {"think": "1 s"} if word.startswith("closed") else {"jitter": 0.3}
    frame = swept(read_sweep(AXES | {"traffic": word, "slo": SLO, "seed": 5} | shape)).to_frame()
    [row] = frame.to_dict("records")
    traffic = parse_traffic(word, input=500, output=60, **shape)
    described, [arriving] = described_under(PlanRequest("llama-3.1-8b", "1xh100-sxm"), [traffic])
    warmup, options = default_warmup(arriving, parse_slo(SLO), 60), SimulationOptions(targets=parse_slo(SLO))
    summary = simulate(described.service, arriving, requests=60, warmup=warmup, seed=5, options=options).summary
    for name in (*STATISTICS, "ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s", "goodput_share"):
        assert row[name] == pytest.approx(summary[name], rel=1e-12), name
    ends = described.ranges(arriving, summary, requests=60, warmup=warmup, seed=5)
    assert (row["tpot_mean_ms_low"], row["tpot_mean_ms_high"]) == pytest.approx(ends["tpot_mean_ms"])
    assert row["probability"] == kept_of(described, arriving, parse_slo(SLO), seed=5).probability
    assert row["layout"] == described.plan[1].terms.name and row["verdict"] == "fits"


@pytest.mark.parametrize("word", ["closed:6", "sessions:6,turns=3"])
def test_a_row_is_what_the_command_simulate_says_by_default(capsys, word):
    words = ("--on", "1xh100-sxm", "--input", "500", "--output", "60", "--traffic", word, "--slo", SLO)
    with pytest.raises(SystemExit):
        main(["simulate", "llama-3.1-8b", *words, "--no-ranges", "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    axes = {name: value for name, value in AXES.items() if name != "requests"}
    [row] = swept(read_sweep(axes | {"traffic": word, "slo": SLO})).to_frame().to_dict("records")
    for name in ("ttft_mean_ms", "ttft_p95_ms", "tpot_mean_ms", "output_tokens_per_s", "goodput_share"):
        assert row[name] == pytest.approx(told[name], rel=1e-3), name


ROWS = [f"{n / 4},{300 + 40 * (n % 5)},{20 + n % 7}\n" for n in range(40)]
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(ROWS)


def test_a_trace_is_replayed_whole_with_its_own_lengths_as_simulate_does(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    axes = {"model": "llama-3.1-8b", "on": "1xh100-sxm", "slo": SLO}
    frame = swept(read_sweep(axes | {"traffic": f"trace:{file},trace:{file},speed=4"})).to_frame()
    for row, word in zip(frame.to_dict("records"), (f"trace:{file}", f"trace:{file},speed=4"), strict=True):
        described, [arriving] = described_under(PlanRequest("llama-3.1-8b", "1xh100-sxm"), [parse_traffic(word)])
        summary = simulate(
            described.service, arriving, requests=1000, options=SimulationOptions(targets=parse_slo(SLO))
        ).summary
        assert summary["requests"] == 40
        for name in ("ttft_p95_ms", "tpot_p95_ms", "requests_per_s", "output_tokens_per_s", "goodput_share"):
            assert row[name] == pytest.approx(summary[name], rel=1e-12), name
        assert (row["traffic"], row["input_tokens"], row["output_tokens"]) == (word, 380, 23)
        # every request of a recording is judged, of a short one too
        assert row["probability"] == kept_of(described, arriving, parse_slo(SLO)).probability
        assert row["probability"] == pytest.approx(1.0, abs=5e-3)
    with pytest.raises(SpecError, match="their own lengths"):
        read_sweep(axes | {"traffic": f"trace:{file}", "input": 500})


def test_a_recording_goes_with_its_sweep_to_a_worker_that_does_not_have_it(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    sweep = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "traffic": f"trace:{file}"})
    alone = swept(sweep).to_frame()
    given = cluster._itself((sweep, None, False, cluster._files(sweep)))
    kept = Checkpoints(tmp_path / "a.csv", sweep, {})
    kept.start()
    file.write_text(TRACE.replace("0.25,", "0.5,", 1))
    with pytest.raises(SpecError, match="another sweep"):
        Checkpoints(tmp_path / "a.csv", sweep, {}).read()
    file.unlink()
    assert Swept(sweep, tuple(cluster._part(given, [0]))).to_frame().to_csv() == alone.to_csv()


def test_users_of_a_kind_without_a_number_are_an_axis_and_rates_have_none():
    frame = swept(read_sweep(AXES | {"traffic": "closed,poisson:2/s", "users": "1,4", "input": "200,900"})).to_frame()
    assert frame["traffic"].tolist() == ["closed:1", "closed:4", "poisson:2/s"] * 2
    assert frame["users"].tolist()[:2] == [1, 4] and math.isnan(frame["users"][2])
    assert frame["input_tokens"].tolist() == [200] * 3 + [900] * 3
    assert "probability" not in frame


def test_what_cannot_be_simulated_keeps_its_row_with_the_reason():
    axes = AXES | {"model": "llama-3.1-70b-fp8", "on": "1xl4,1xh200-sxm", "traffic": "closed:2", "slo": SLO}
    frame = swept(read_sweep(axes)).to_frame()
    assert frame["verdict"].tolist() == ["not_possible", "fits"]
    assert "does not fit" in frame["reason"][0] and math.isnan(frame["probability"][0])


def test_a_power_limit_is_simulated_too():
    frame = swept(
        read_sweep(AXES | {"on": "1xrtx-pro-6000-ws", "traffic": "closed:16", "power_limit": "300W,600W"})
    ).to_frame()
    # rtx6kpro: 600 W gains 17 % with sixteen requests at once; prompts lose more
    assert frame["tpot_p50_ms"][0] / frame["tpot_p50_ms"][1] == pytest.approx(1.17, rel=0.05)


def test_simulated_loads_are_kept_one_by_one_and_gone_on_with(tmp_path):
    sweep = read_sweep(AXES | {"traffic": "closed:1,closed:2", "slo": SLO})
    whole = swept(sweep).to_frame()
    kept = Checkpoints(tmp_path / "a.csv", sweep, {})
    kept.start()

    def keep(block):
        kept.keep(block)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(sweep, keep=keep)
    done = kept.read()
    assert [one.number for one in done] == [0]
    assert swept(sweep, done=done).to_frame().to_csv() == whole.to_csv()
    with pytest.raises(SpecError, match="another sweep"):
        Checkpoints(
            tmp_path / "a.csv", read_sweep(AXES | {"traffic": "closed:1,closed:2", "slo": SLO, "seed": 1}), {}
        ).read()


@pytest.mark.parametrize("inside", ["glmplan.simulation.safe_load", "glmplan.simulation.load_trial"])
def test_an_interrupted_simulation_is_no_answer(monkeypatch, inside):
    # the simulator hands out what had finished: whoever counts several runs must not take that for one of them
    def stopped(*args, **said):
        return replace(simulate(*args, **said), interrupted=True)

    monkeypatch.setattr(importlib.import_module(inside), "simulate", stopped)
    with pytest.raises(KeyboardInterrupt):
        swept(read_sweep(AXES | {"traffic": "poisson:2/s", "slo": SLO}))


def test_axes_of_a_file_may_be_simulated_too(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'model = "llama-3.1-8b"\non = ["1xh100-sxm"]\ntraffic = ["poisson:1/s", "gamma:2/s,cv=3"]\nslo = "ttft < 1 s"\n'
    )
    sweep = read_sweep({}, file=file)
    assert [one.traffic for one in sweep.axes["load"]] == ["poisson:1/s", "gamma:2/s,cv=3"] and sweep.points == 2


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"slo": SLO}, "add --traffic"),
        ({"think": "1 s"}, "add --traffic"),
        ({"traffic": "closed:4", "users": "2"}, "conflicts with --traffic"),
        ({"traffic": "poissn:4/s"}, "nearest: poisson"),
        ({"traffic": "poisson:4"}, "needs its unit"),
        ({"traffic": "poisson"}, "rate"),
        ({"traffic": "trace:a.csv"}, "a.csv"),
        ({"traffic": "mine.toml"}, "is a file"),
        ({"traffic": ""}, "empty value between commas"),
        ({"traffic": "closed:1", "slo": "soon"}, "--slo"),
        ({"traffic": "closed:1", "requests": 0}, "--requests"),
        ({"traffic": "closed:1", "seed": -1}, "--seed"),
        ({"traffic": "closed", "users": "1..200", "input": "1..200"}, "40,000 points, about 2,000 minutes"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(said, wrong):
    axes = {name: value for name, value in AXES.items() if name != "requests"}
    with pytest.raises(SpecError, match=wrong):
        read_sweep(axes | said)
    assert MOST_SIMULATED == 20_000


def test_a_limit_of_points_can_be_raised():
    axes = {"model": "llama-3.1-8b", "on": "1xh100-sxm", "traffic": "closed", "users": "1..3"}
    with pytest.raises(SpecError, match="makes 3 points"):
        read_sweep(axes, most=2)
    assert read_sweep(axes, most=3).points == 3
    assert glmplan.__name__  # the catalogue is the shipped one
