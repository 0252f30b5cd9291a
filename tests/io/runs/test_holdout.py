"""Which groups are held out: fixed, whatever tables call them, and about one in five."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from glmplan.catalog.files import data_folder, read_toml
from glmplan.io.runs.ledger import group_key, held_out, is_held_out, load_measurements, split_held_out
from glmplan.io.runs.record import Run
from glmplan.io.runs.table import run_from_row

#: campaign files of the day on which the rule was fixed
FIRST = ("inferencex", "vendor-sweeps-2025-2026", "rtx6kpro-wiki-2026-05", "mlperf-inference-v5.1",
         "ml.energy-leaderboard", "tensorrt-llm-perf-overview", "gpustack-performance-lab", "sglang-cookbook",
         "kyuz0-strix-halo-toolboxes")  # fmt: skip


def test_the_rule_is_the_one_that_was_written_on_the_first_day():
    rule = read_toml(data_folder("calibration") / "holdout.toml")
    assert (rule["fixed_on"], rule["salt"]) == ("2026-11-22", "glmplan holdout 2026-11-22")
    assert (rule["of"], rule["remainder"]) == (5, 0)


def test_rows_of_the_first_day_fall_as_they_fell():
    out = held_out(run for run in load_measurements() if run.campaign in FIRST)
    assert len(out) == 951
    assert hashlib.sha256("\n".join(sorted(out)).encode()).hexdigest()[:16] == "855268bee1013651"


def test_a_group_is_held_out_as_a_whole_and_about_one_in_five_is():
    runs = load_measurements()
    seen, out = split_held_out(runs)
    assert {run.id for run in out} == held_out(runs)
    assert len(seen) + len(out) == len(runs)
    assert not {group_key(run) for run in seen} & {group_key(run) for run in out}
    groups = {group_key(run) for run in runs}
    assert 0.14 < sum(map(is_held_out, groups)) / len(groups) < 0.26


def test_spelling_changes_no_group():
    cells = {"id": "a", "model": "zai-org/GLM-5.1", "accelerator": "RTX PRO 6000", "engine": "vLLM v0.19.1",
             "weights": "nvfp4"}  # fmt: skip
    others = ({"model": "glm-5"}, {"accelerator": "rtx-pro-6000-server"}, {"engine": "vllm nightly"}, {"engine": ""})
    key = group_key(run_from_row(cells))
    for change in (*others, {"weights": "FP4"}):
        assert group_key(run_from_row({**cells, **change})) == key, change


def test_what_says_how_fast_a_run_was_does_not_decide_where_it_falls():
    run = load_measurements()[0]
    other = replace(run, id="x", observed={}, concurrency=7.0, tp=2, engine_release=(9,), measured_on="2030-01-01")
    assert group_key(other) == group_key(run)


def test_another_engine_part_shape_or_format_is_another_group():
    run = Run("a", "glm-5.1", "b200-sxm", engine="vllm", weights="fp8")
    others = ({"engine": "sglang"}, {"accelerator": "b300-sxm"}, {"model": "deepseek-v3"}, {"weights": "nvfp4"})
    assert len({group_key(run), *(group_key(replace(run, **other)) for other in others)}) == 5
