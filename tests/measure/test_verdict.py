"""Measured beside predicted: verdicts, causes, the report, and a calibration on two steps."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.measure.client import Endpoint
from glmplan.measure.explanations import likely_causes
from glmplan.measure.ladder import LadderPlan, LadderRecord, StepResult
from glmplan.measure.load import Lengths
from glmplan.measure.overhead import Overhead
from glmplan.measure.predicted_steps import Compared, PredictedStep, compare, consistent, worst
from glmplan.measure.server_facts import ServerFacts
from glmplan.measure.validation import deployment_facts, ladder_plan, parse_share, parse_users
from glmplan.present.validation_page import compared_json, first_outside, html_page
from glmplan.simulation.traffic.spec import parse_traffic


def step(level, tpot=10.0, ttft=100.0, rate=100.0, **more):
    figures = {"ttft_mean_ms": ttft, "tpot_mean_ms": tpot, "output_tokens_per_s": rate, "num_requests": 50}
    return StepResult(level, figures | {"concurrency": level}, {"done": 50}, **more)


def record(*steps, **more):
    plan = LadderPlan(Lengths(64, 32), users=tuple(int(s.level) for s in steps))
    return LadderRecord(Endpoint("http://127.0.0.1/v1", "m"), plan, steps=list(steps), started="2026-01-01", **more)


def predicted(level, tpot=10.0, ttft=100.0, rate=100.0, width=0.1):
    middle = {"ttft_mean_ms": ttft, "tpot_mean_ms": tpot, "output_tokens_per_s": rate}
    low, high = ({m: v * f for m, v in middle.items()} for f in (1 - width, 1 + width))
    return PredictedStep(level, middle, low, high)


def test_only_levels_and_figures_of_both_sides_are_compared():
    found = compare([step(1), step(2)], [predicted(2), predicted(4)])
    assert {one.level for one in found} == {2} and len(found) == 3


def test_the_first_step_outside_the_interval_is_named():
    steps = [step(1), step(2, tpot=12.0), step(4, tpot=13.0)]
    found = compare(steps, [predicted(level) for level in (1, 2, 4)])
    assert first_outside(found) == 2 and worst(found) == pytest.approx(3 / 13)
    assert first_outside(found[:3]) is None and worst([]) == 0.0


def test_without_an_interval_what_is_reproduced_is_inside():
    assert Compared(1, "tpot_mean_ms", 10.0, 10.5).inside and not Compared(1, "tpot_mean_ms", 10.0, 11.5).inside


def test_one_figure_in_ten_may_miss_a_right_interval_but_none_by_far():
    near, out, far = (Compared(1, "tpot_mean_ms", x, 10.0, 8.0, 12.5) for x in (10.1, 13.0, 15.7))
    assert consistent([near] * 9 + [out]) and not out.inside
    assert consistent([near] * 14 + [out] * 4) and not consistent([near] * 13 + [out] * 5)
    assert not consistent([near] * 17 + [far]) and far.distance > 2
    assert not consistent([])


def test_a_measured_value_counts_within_its_own_error():
    assert not Compared(1, "tpot_mean_ms", 12.0, 10.0, 9.0, 11.0).inside
    assert Compared(1, "tpot_mean_ms", 12.0, 10.0, 9.0, 11.0, error=1.2).inside
    # two errors that do not know of each other rarely point the same way: not the sum of both counts
    assert not Compared(1, "tpot_mean_ms", 12.0, 10.0, 9.0, 11.0, error=0.6).inside


def causes(one, other=(), **more):
    return [cause.what for cause in likely_causes(one, compare(one.steps, other), **more)]


def test_where_all_is_well_there_is_no_cause():
    assert causes(record(step(1), step(4)), [predicted(1), predicted(4)]) == []


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (record(step(1), step(8, server={"preemptions": 3.0})), "preempted"),
        (record(step(8), facts=ServerFacts(max_sequences=4.0)), "fewer requests than the concurrency"),
        (record(step(1, notes=["31% of the prompts came from the prefix cache"])), "prefix cache"),
        (record(step(1, notes=["2.40 tokens in a chunk: speculation or bundling"])), "speculative decoding"),
        (record(step(1, cards={"throttled_share": {"power cap": 0.9}, "xids": []})), "lowered their clocks"),
        (record(step(1, cards={"throttled_share": {}, "xids": [79]})), "errors"),
        (record(step(1), overhead=Overhead(8, 0.05, 0.001, 0.2, 0)), "client"),
        (record(step(1, steady=False)), "steady"),
        (record(replace(step(1), outcomes={"done": 40, "lost": 10})), "failed"),
    ],
)
def test_evidence_becomes_a_cause_with_something_to_try(made, word):
    found = likely_causes(made, [])
    assert any(word in cause.what for cause in found)
    assert all(cause.evidence and cause.to_try for cause in found)


def test_a_smaller_pool_than_predicted_is_a_cause():
    made = record(step(1), facts=ServerFacts(kv_tokens=200_000.0))
    assert "KV pool" in causes(made, predicted_pool=(300_000.0, 280_000.0, 320_000.0))[0]
    assert causes(made, predicted_pool=(205_000.0, 190_000.0, 220_000.0)) == []


def test_an_error_of_a_card_outranks_everything():
    odd = step(1, server={"preemptions": 3.0}, cards={"throttled_share": {}, "xids": [79]})
    assert "accelerator reported errors" in causes(record(odd))[0]


def test_the_shape_of_the_differences_is_read():
    slow = record(step(1, tpot=15.0), step(8, tpot=15.0))
    assert any("every step" in what for what in causes(slow, [predicted(1), predicted(8)]))
    growing = record(step(1), step(8, tpot=20.0))
    assert any("differently with concurrency" in what for what in causes(growing, [predicted(1), predicted(8)]))
    late = record(step(1), step(8, ttft=300.0))
    assert any("prefill or the queue" in what for what in causes(late, [predicted(1), predicted(8)]))


def test_the_page_shows_every_step_and_escapes_what_others_wrote():
    made = record(step(1, notes=["<script>alert(1)</script>"]), step(4, tpot=20.0), facts=ServerFacts(engine="vllm"))
    found = compare(made.steps, [predicted(1), predicted(4)])
    page = html_page(made, found, likely_causes(made, found), "predicted for <b>")
    assert "<p class='faint'>Predicted for &lt;b&gt;.</p>" in page
    # a verdict has its colour
    assert re.search("<td role='cell' class='t[a-z ]* bad' data-head='verdict'>different, outside", page)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert page.count("<svg ") == 3 and "outside the 90 % interval, the first at 4" in page
    assert "Likely causes" in page and page.rstrip().endswith("</html>")


@pytest.mark.parametrize("plots", [0, 1, 3])
def test_after_a_signal_no_plot_begins_when_the_time_is_over(plots):
    """Three plots took 5 s on a machine that left 8 % of a core."""
    made = record(step(1), step(4, tpot=20.0))
    left = iter([True] * plots + [False] * 3)
    page = html_page(made, compare(made.steps, [predicted(1), predicted(4)]), [], in_time=lambda: next(left))
    assert page.count("<svg ") == plots and page.count("<table") == 3
    assert ("plots were left out" in page) == (plots < 3)


def test_a_page_without_the_extra_keeps_its_tables_and_says_what_is_missing(monkeypatch):
    made = record(step(1), step(4, tpot=20.0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    page = html_page(made, compare(made.steps, [predicted(1), predicted(4)]), [])
    assert "<svg" not in page and page.count("<table") == 3 and "needs the extra png" in page


def test_the_comparison_is_json():
    found = compare([step(1)], [predicted(1)])
    value = json.loads(json.dumps(compared_json(found, [])))
    assert value["first_outside"] is None and value["figures"][0]["verdict"] == "reproduced"


@pytest.mark.parametrize("text", ["0", "a", "1,,2", "-4", "4-", ""])
def test_levels_that_are_none_are_refused(text):
    with pytest.raises(SpecError, match="--users"):
        parse_users(text)


@pytest.mark.parametrize("text", ["-1%", "x", "inf", ""])
def test_shares_that_are_none_are_refused(text):
    with pytest.raises(SpecError):
        parse_share(text)


def test_traffic_means_the_same_as_in_simulate(tmp_path):
    plan = ladder_plan(parse_traffic("poisson:4/s", input=100, output=10, jitter=0.2), levels=(2.0, 4.0), seconds=30)
    assert [rate for rate, _ in plan.schedules] == [2.0, 4.0]
    for rate, arrivals in plan.schedules:
        assert len(arrivals) == rate * 30
        assert arrivals[-1].at == pytest.approx(30, rel=0.5)
        assert all(80 <= one.input_tokens <= 100 for one in arrivals)
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n2,20,6\n8,30,7\n")
    (level,) = ladder_plan(parse_traffic(f"trace:{trace}", speed=2.0), seconds=3).schedules
    assert [(one.at, one.input_tokens, one.output_tokens) for one in level[1]] == [(0, 10, 5), (1, 20, 6)]
    with pytest.raises(SpecError, match="sessions"):
        ladder_plan(parse_traffic("sessions:4"))
    with pytest.raises(SpecError, match="pauses"):
        ladder_plan(parse_traffic("closed:4", think=2.0))


def test_recorded_conversations_are_not_offered_to_live_servers(tmp_path):
    file = tmp_path / "chats.json"
    file.write_text('[{"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi there"}]}]')
    with pytest.raises(SpecError, match=r"chats.json: --traffic: holds conversations \(ShareGPT\)"):
        ladder_plan(parse_traffic(f"trace:{file}"))


def test_a_plan_names_the_deployment(tmp_path):
    file = tmp_path / "plan.json"
    inner = {"model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "tp": 8, "other": [1]}
    file.write_text(json.dumps({"chosen": [{"x": 1}, inner]}))
    assert deployment_facts(plan=file) == {"model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "tp": 8}
    file.write_text("{}")
    with pytest.raises(SpecError, match="names no model"):
        deployment_facts(plan=file)
    file.write_text("{")
    with pytest.raises(SpecError, match="not JSON"):
        deployment_facts(plan=file)
    with pytest.raises(SpecError, match="--set"):
        deployment_facts(pairs=["tpp=3"])


def test_the_answer_of_fit_is_a_plan(tmp_path):
    file = tmp_path / "fit.json"
    asked = {"model": "glm-5.1", "checkpoint": "nvfp4", "accelerator": "rtx-pro-6000-ws", "accelerator_count": 8,
             "engine": "vllm", "engine_version": None}  # fmt: skip
    plan = {"layout": "tp8", "tp": 8, "pp": 1, "dp": 1, "ep": 1, "dcp": 1, "accelerators": 8, "kv": "fp8",
            "cuda_graphs": True, "mtp": 2}  # fmt: skip
    file.write_text(json.dumps({"schema": "glmplan.fit/1", "question": asked, "plan": plan}))
    facts = deployment_facts(plan=file)
    assert (facts["model"], facts["weights"], facts["tp"], facts["kv_cache"]) == ("glm-5.1", "nvfp4", 8, "fp8")
    assert facts["speculative"] == "mtp-2" and "engine_version" not in facts
    file.write_text(json.dumps({"schema": "glmplan.fit/1", "question": asked, "plan": None, "headline": "too small"}))
    with pytest.raises(SpecError, match="too small"):
        deployment_facts(plan=file)


def cases_of(users):
    from glmplan.measure.predicted_steps import ladder_cases

    facts = {"model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "accelerator_count": 8, "tp": 8, "engine": "vllm",
             "weights": "nvfp4", "kv_cache": "fp8"}  # fmt: skip
    served = ServerFacts(engine="vllm", kv_tokens=341504.0, max_sequences=64.0)
    return ladder_cases(LadderPlan(Lengths(2048, 256), users=users), facts, served=served)[0]


def test_a_calibration_on_two_steps_finds_a_planted_site_and_narrows_the_interval():
    from glmplan.measure.predicted_steps import fit_site, predicted_steps
    from glmplan.prediction.effects import COLUMNS, LEVELS, keys_of, load_effects
    from glmplan.prediction.predict import predict
    from glmplan.prediction.step_models import with_site

    cases = cases_of((1, 4, 8, 16))
    planted = np.zeros(len(COLUMNS))
    planted[COLUMNS.index("scale")], planted[COLUMNS.index("ttft_scale")] = 0.3, 0.2
    key = keys_of(cases[0].deployment)[LEVELS.index("configuration")]
    truth = with_site(load_effects("vllm"), {"configuration": {key: planted}})
    names = {"ttft_mean_ms": ("ttft", 1e3), "tpot_mean_ms": ("tpot", 1e3), "output_tokens_per_s": ("output_rate", 1.0)}
    real = {one.level: predict(one.deployment, one.load, effects=truth).figures for one in cases}
    measured = {
        level: {name: found[figure].value * unit for name, (figure, unit) in names.items()}
        for level, found in real.items()
    }
    fitted = fit_site([cases[0], cases[2]], [measured[1], measured[8]])
    before = {one.level: one for one in predicted_steps(cases)[0]}
    after = {one.level: one for one in predicted_steps(cases, site=fitted)[0]}
    for level in (4, 16):
        for metric, value in measured[level].items():
            assert after[level].low[metric] <= value <= after[level].high[metric]
            left, was = (abs(np.log(one[level].middle[metric] / value)) for one in (after, before))
            assert left < (0.8 if metric == "ttft_mean_ms" else 0.6) * was
        wide = before[level].high["tpot_mean_ms"] / before[level].low["tpot_mean_ms"]
        assert after[level].high["tpot_mean_ms"] / after[level].low["tpot_mean_ms"] < wide


def test_a_step_without_figures_cannot_calibrate():
    from glmplan.measure.predicted_steps import fit_site

    with pytest.raises(SpecError, match="--calibrate-on"):
        fit_site(cases_of((1,)), [{}])


#: steps of llama.cpp servers on two cores, as runs of `make validate-demo` measured them: layers and tokens of an
#: answer, what a copy moves [GB/s] and a product computes [GFLOP/s], and users -> TTFT [ms], TPOT [ms], tokens/s
_WITH_AVX512 = (8, 64, 41.2, 74.7, {
    1: (18.87, 1.943, 449.8), 2: (21.95, 5.314, 357.5), 4: (26.23, 8.454, 457.5), 8: (36.02, 14.39, 541.8),
})  # fmt: skip
_WITH_AVX2 = (8, 64, 25.2, 55.0, {
    1: (81.11, 10.46, 85.33), 2: (85.68, 15.74, 118.5), 4: (109.9, 28.63, 134.5), 8: (153.9, 54.28, 140.5),
})  # fmt: skip
_ON_XEON = (32, 32, 32.0, 350.0, {
    1: (91.68, 19.87, 45.1), 2: (114.9, 35.60, 52.6), 4: (146.4, 49.34, 76.8), 8: (186.8, 78.17, 96.9),
})  # fmt: skip
#: the server compiled on that Xeon, whose tiles are others
_BUILT_THERE = (32, 32, 32.0, 350.0, {
    1: (69.85, 23.78, 39.7), 2: (101.3, 29.75, 62.6), 4: (114.2, 40.75, 92.7), 8: (157.3, 69.23, 110.5),
})  # fmt: skip


@pytest.mark.parametrize(
    "machine",
    [_WITH_AVX512, _WITH_AVX2, _ON_XEON, _BUILT_THERE],
    ids=["avx512", "avx2", "xeon", "built there"],
)
def test_a_ladder_on_a_processor_is_calibrated_from_the_rates_of_the_probe(tmp_path, machine):
    """One row of a product is a kernel of its own: what it tells of more rows differs."""
    from random_gguf import write
    from validate_demo import SHAPES

    from glmplan.measure.predicted_steps import fit_site, ladder_cases, predicted_steps

    layers, answered, copied, computed, measured = machine
    write(tmp_path / "dense.gguf", replace(SHAPES["dense"], layers=layers))
    part = tmp_path / "socket.toml"
    part.write_text(
        'full_name = "two cores"\nvendor = "AMD"\nkind = "cpu-socket"\nmemory = "24 GB"\n'
        f'memory_bandwidth = "{copied} GB/s"\nsource = "measured"\n[peak]\nbf16 = "{computed} GFLOP/s"\n'
    )
    names = ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
    rows = {level: dict(zip(names, values, strict=True)) for level, values in measured.items()}
    facts = {"model": str(tmp_path / "dense.gguf"), "accelerator": str(part), "engine": "llama.cpp"}
    served = ServerFacts(engine="llama.cpp", kv_tokens=32768.0, max_sequences=8.0)
    cases = ladder_cases(LadderPlan(Lengths(16, answered), users=(1, 2, 4, 8)), facts, served=served)[0]
    site = fit_site([cases[0], cases[2]], [rows[1], rows[4]])
    for step in predicted_steps([cases[1], cases[3]], site=site)[0]:
        for name in names:
            assert step.middle[name] == pytest.approx(rows[int(step.level)][name], rel=0.2)
            assert step.low[name] < rows[int(step.level)][name] < step.high[name] < 1.4 * step.middle[name]
