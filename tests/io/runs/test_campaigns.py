"""Settings and sessions of campaigns: what protocols and tables of launches say of a row."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.files import data_folder
from glmplan.errors import SpecError
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run
from glmplan.io.runs.settings import Asked, CampaignSettings, campaign_session, campaign_settings, read_sessions
from glmplan.prediction.from_row import question_of


def settings(engine="trtllm", model="deepseek-r1", weights="nvfp4", **changes):
    load = {"concurrency": 64.0, "input_tokens": 1024.0, "output_tokens": 1024.0}
    return campaign_settings(Asked(engine, model, weights, **{"protocol": "inferencex", **load, **changes}))


def test_steps_of_a_vendor_sweep_hold_one_prompt_beside_all_who_decode():
    asked = {"protocol": "vendor-sweep", "input_tokens": 4000.0}
    sweep = settings(engine="vllm", **asked)
    assert (sweep.budget, sweep.lengths, sweep.requests_per_user) == (64 + 4000 + 1500, None, 10)
    assert sweep.prefill_first is None
    mixed = settings(engine="sglang", release=(0, 5, 6), **asked)
    assert (mixed.budget, mixed.prefill_first) == (64 + 4000 + 1500, False)
    # the template of an older version has a flag that the server does not know, so nothing says how it was launched
    for release in ((0, 5, 1), ()):
        waves = settings(engine="sglang", release=release, **asked)
        assert (waves.budget, waves.prefill_first, waves.requests_per_user) == (None, None, 10)
    assert settings(protocol="vllm-bench-random") == CampaignSettings()


def test_rows_called_by_another_name_have_the_settings_of_the_model_that_was_served():
    day = {"accelerator": "b200-sxm", "tp": 8, "measured_on": "2026-02-03"}
    assert settings(model="deepseek-v3", **day) == settings(**day)
    assert not settings(**day).open


def test_a_recipe_that_is_named_comes_before_the_protocol():
    day = {"accelerator": "b200-sxm", "tp": 8, "measured_on": "2026-06-01"}
    assert settings(engine="vllm", recipe="vllm-recipes", **day).source.startswith("vllm-project/recipes")
    with pytest.raises(SpecError, match="is no campaign or recipe"):
        settings(recipe="vllm-recipe", **day)


def _load(dp, weights="nvfp4", concurrency=64.0):
    run = Run(
        "one", "deepseek-r1", "b200-sxm", engine="trtllm", weights=weights, accelerator_count=8, tp=8 // dp, dp=dp,
        ep=8 if dp > 1 else 1, phase="serving", protocol="inferencex", concurrency=concurrency, input_tokens=1024.0,
        output_tokens=1024.0, measured_on="2026-02-03",
    )  # fmt: skip
    return question_of(run).load


def test_only_ranks_with_requests_of_their_own_wait_for_each_other():
    assert _load(dp=8, concurrency=256.0).gather_steps == 60
    assert _load(dp=1).gather_steps == 0
    assert _load(dp=1).whole_prompts


def test_ranks_that_wait_for_each_other_do_not_wait_for_a_full_step_too():
    # dsr1_fp8_b200_trt.sh: from 64 requests of 1,024 and 1,024 tokens on, 40 steps or 0.8 of the budget
    one = _load(dp=1, weights="fp8")
    assert (one.gather_steps, one.gather_tokens) == (40, round(0.8 * 8192))
    assert _load(dp=8, weights="fp8", concurrency=256.0).gather_tokens == 1 << 60


@pytest.fixture(scope="module")
def rows():
    return {run.id: run for run in load_measurements() if run.protocol == "inferencex"}


def _only(rows, **wanted):
    return [run for run in rows.values() if all(getattr(run, name) == value for name, value in wanted.items())]


def _drafted(runs):
    """Return what is known of the rows: (method, draft passes, verified tokens), or a state."""
    said = {question_of(run).speculation for run in runs}
    return {(one.method, one.draft_tokens, one.verify_tokens) if one.state == "yes" else one.state for one in said}


def test_the_build_of_tensorrt_llm_tells_whether_deepseek_drafts(rows):
    # nvidia-master.yaml at 06596136: dsr1-*-trt has rc6.post2, dsr1-*-trt-mtp has rc6.post3
    assert _drafted(_only(rows, engine_version="1.2.0rc6.post2")) == {"none"}
    assert _drafted(_only(rows, engine_version="1.2.0rc6.post3", dp=1)) == {("mtp", 3, 4)}
    assert _drafted(_only(rows, engine_version="1.2.0rc6.post3", dp=8)) == {("mtp", 1, 2)}


def test_the_day_tells_it_where_the_build_does_not(rows):
    # perf-changelog.yaml at 10b8ea2e knows no key with MTP; pull 392 adds them with the image of a month before
    build = {"engine_version": "1.1.0rc2.post2"}
    assert _drafted(_only(rows, measured_on="2025-12-15", **build)) == {"none"}
    assert _drafted(_only(rows, measured_on="2026-01-14", dp=1, **build)) == {("mtp", 3, 4)}
    assert _drafted(_only(rows, measured_on="2026-01-28", dp=8, **build)) == {("mtp", 1, 2)}
    assert _drafted(_only(rows, measured_on="2026-01-28", dp=1, **build)) == {"unknown"}


def test_the_layout_tells_it_where_two_lists_differ(rows):
    # qwen3.5-fp8-b200-sglang-mtp: four accelerators without expert parallelism; without MTP with it, or eight
    qwen = {"model": "qwen3.5-397b-a17b", "weights": "fp8", "accelerator": "b200-sxm"}
    assert _drafted(_only(rows, tp=4, ep=1, **qwen)) == {("mtp", 3, 4)}
    assert _drafted(_only(rows, tp=4, ep=4, **qwen)) == {"none"}
    assert _drafted(_only(rows, tp=8, ep=1, **qwen)) == {"none"}
    # dsr1_fp8_b200_mtp.sh refuses all but eight accelerators; only its key lists more than 64 requests
    deepseek = {"model": "deepseek-r1", "weights": "fp8", "accelerator": "b200-sxm", "engine_version": "0.5.9"}
    assert _drafted(_only(rows, tp=4, **deepseek)) == {"none"}
    assert _drafted(_only(rows, concurrency=512.0, **deepseek)) == {("mtp", 2, 3)}


def test_of_two_rows_of_one_layout_and_load_the_faster_one_drafts(rows):
    pair = _only(rows, model="deepseek-r1", weights="fp8", engine_version="0.5.9", accelerator="b200-sxm", tp=8,
                 concurrency=4.0, input_tokens=1024.0, output_tokens=8192.0)  # fmt: skip
    fast, slow = sorted(pair, key=lambda run: run.observed["tpot_mean_ms"])
    assert slow.observed["tpot_mean_ms"] > 1.3 * fast.observed["tpot_mean_ms"]
    assert (_drafted([fast]), _drafted([slow])) == ({("mtp", 2, 3)}, {"none"})


def test_what_was_run_both_ways_stays_unknown_and_drafts_nothing(rows):
    questions = [question_of(run) for run in _only(rows, model="qwen3.5-397b-a17b", accelerator="b300-sxm")]
    assert len(questions) == 34
    assert all(question.run_both_ways and question.deployment.draft_tokens == 0 for question in questions)


def test_the_shipped_acceptance_prior_answers_for_runs_that_are_known_to_draft(rows):
    (run, *_) = _only(rows, engine_version="1.2.0rc6.post3", dp=1)
    question = question_of(run)
    mean, deviation = question.deployment.acceptance_prior
    assert question.load.tokens_per_step == pytest.approx(mean)
    assert 2.2 < mean < 3.2
    assert deviation > 0.05


def test_what_a_row_states_is_not_overruled(rows):
    run = rows["ix-d0ab22c929"]
    assert run.speculation.state == "unknown"
    assert campaign_session(run, model="deepseek-r1", experts_format="fp8-block") is not None
    other = Run(run.id, "deepseek-r1", "b200-sxm", engine="trtllm", protocol="other", tp=8)
    assert campaign_session(other, model="deepseek-r1", experts_format="fp8-block") is None


def test_every_session_decides_a_row(rows, monkeypatch):
    sessions = read_sessions(data_folder("calibration") / "sessions.toml")
    left = list(range(len(sessions)))
    shapes = [(run, question_of(run).deployment) for run in rows.values()]
    for place in list(left):
        monkeypatch.setattr("glmplan.io.runs.settings._sessions", lambda place=place: (sessions[place],))
        for run, d in shapes:
            experts = d.checkpoint.formats.get("routed_experts") or d.checkpoint.default
            if campaign_session(run, model=d.model.name, experts_format=experts) is not None:
                left.remove(place)
                break
    assert left == []
    assert all(name in rows for session in sessions for name in session.get("runs", []))


_GOOD = 'protocol = "p"\nspeculative = "none"\nsource = "s"\n'


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('speculative = "none"\nsource = "s"\n', "belongs to a campaign"),
        ('protocol = "p"\nspeculative = "none"\n', "has no source"),
        ('protocol = "p"\nsource = "s"\n', "neither none, unknown"),
        ('protocol = "p"\nspeculative = "mtp"\nsource = "s"\n', "neither none, unknown"),
        (_GOOD + 'day = "2026-01-14"\n', "is not a field"),
        (_GOOD + 'measured_from = "14.1.2026"\n', "is not a date"),
        (_GOOD + 'measured_from = "2026-02-01"\nmeasured_to = "2026-01-01"\n', "is after measured_to"),
        (_GOOD + "concurrency_from = 64\nconcurrency_to = 4\n", "is after concurrency_to"),
        (_GOOD + 'tp = "8"\n', "is not a whole number"),
        (_GOOD + 'data_parallel = "yes"\n', "neither true nor false"),
        (_GOOD + "runs = [1]\n", "neither a name"),
    ],
)
def test_a_session_with_a_mistake_is_refused(tmp_path, lines, what):
    path = tmp_path / "sessions.toml"
    path.write_text(f"[[sessions]]\n{lines}")
    with pytest.raises(SpecError, match=what):
        read_sessions(path)


def _waits_for_one_more(model):
    """Median over servers and prompts of how TTFT grows with the time between two answers that end, [-]."""
    servers = {}
    for run in load_measurements():
        if run.protocol == "vendor-sweep" and run.engine == "trtllm" and run.model == model and run.concurrency <= 64:
            key = (run.tp, run.input_tokens, run.concurrency)
            gap = run.output_tokens * run.observed["tpot_mean_ms"] / run.concurrency
            servers.setdefault(key, []).append((gap, run.observed["ttft_mean_ms"]))
    longest = [(min(points), max(points)) for points in servers.values() if len(points) > 1]
    assert len(longest) >= 8
    return float(np.median([(high[1] - low[1]) / (high[0] - low[0]) for low, high in longest]))


def test_the_vendor_sweep_of_llama_has_one_request_more_in_flight_than_the_server_ran():
    assert _waits_for_one_more("llama-3.1-8b") == pytest.approx(1.0, abs=0.15)
    assert _waits_for_one_more("qwen3-32b") == pytest.approx(0.0, abs=0.1)
    assert _waits_for_one_more("qwen3-235b-a22b") == pytest.approx(0.0, abs=0.1)
    # no source says so, and it is not played: what is read off a table would be scored on it
    rows = [run for run in load_measurements() if run.protocol == "vendor-sweep" and run.engine == "trtllm"]
    for run in rows[::20]:
        load = question_of(run).load
        assert load.max_requests >= load.concurrency
