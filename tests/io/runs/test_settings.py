"""Launch settings of campaigns and recipes: the table, the look-up, what stays open, and what it means for a row."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from glmplan.catalog.engines.kernels import KERNEL_FORMATS, kernel_rule
from glmplan.catalog.entries.accelerators import accelerator_names
from glmplan.catalog.entries.models import model_names
from glmplan.catalog.files import data_folder
from glmplan.catalog.formats import KV_FORMATS, WEIGHT_FORMATS
from glmplan.errors import SpecError
from glmplan.io.runs import settings as table
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run
from glmplan.io.runs.settings import COLUMNS, SETTINGS, Asked, alternatives, launched, read_launches
from glmplan.prediction.from_row import alternatives_of, question_of
from glmplan.prediction.predict import Figure
from glmplan.prediction.table import predict_runs


@pytest.fixture(scope="module")
def launches():
    return read_launches(data_folder("calibration") / "settings.csv")


def test_every_launch_names_what_the_catalogue_holds(launches):
    assert {one.cells["model"] for one in launches} <= set(model_names())
    assert {one.cells["accelerator"] for one in launches} <= set(accelerator_names())
    assert {one.cells["weights"] for one in launches} <= set(WEIGHT_FORMATS)
    assert {one.cells["kv_cache"] for one in launches} <= {"", *KV_FORMATS}
    assert len(launches) > 5000


def test_every_kernel_of_experts_that_a_launch_switches_on_has_a_rule(launches):
    asked = {one.cells["expert_kernels"] for one in launches} - {""}
    known = {
        name
        for name in asked
        for weights in ("mxfp4", "int4-g32")
        for silicon in ("9", "10")
        if kernel_rule("vllm", silicon, WEIGHT_FORMATS[weights], "experts", name)
        != kernel_rule("vllm", silicon, WEIGHT_FORMATS[weights], "experts")
    }
    assert asked == known == {"flashinfer-mxfp8", "flashinfer-int4", "marlin"}
    assert kernel_rule("vllm", "10", WEIGHT_FORMATS["mxfp4"], "experts", "flashinfer-mxfp8").form in KERNEL_FORMATS


_CELLS = {"campaign": "c", "recipe": "r", "model": "glm-5", "accelerator": "b200-sxm", "engine": "vllm",
          "image": "vllm:v0.19.0", "weights": "nvfp4", "valid_from": "2026-03-01", "tp": "8", "pp": "1", "dp": "1",
          "ep": "1", "loads": "1024/1024:4,8", "draft_tokens": "0", "source": "s"}  # fmt: skip


def _table(monkeypatch, tmp_path, *rows):
    path = tmp_path / "settings.csv"
    lines = [",".join(COLUMNS)]
    for row in rows:
        lines.append(",".join(f'"{({**_CELLS, **row}).get(name, "")}"' for name in COLUMNS))
    path.write_text("\n".join(lines) + "\n")
    if monkeypatch is not None:
        monkeypatch.setattr(table, "_file", lambda: path)
        for cached in (table._table, table._of):
            monkeypatch.setattr(table, cached.__name__, cached.__wrapped__)
    return path


def _asked(**changes):
    load = {"concurrency": 4.0, "input_tokens": 1024.0, "output_tokens": 1024.0}
    return Asked(
        "vllm", "glm-5", "nvfp4", accelerator="b200-sxm", **{"tp": 8, "measured_on": "2026-04-01", **load, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source": ""}, "is empty"),
        ({"tp": "8.5"}, "is no number"),
        ({"memory_fraction": "95"}, "is no share"),
        ({"valid_from": "March"}, "is not a date"),
        ({"cuda_graphs": "false"}, "is neither yes"),
        ({"loads": "1024/1024 conc 4"}, "is no list"),
    ],
)
def test_a_launch_with_a_mistake_is_refused(tmp_path, changes, what):
    with pytest.raises(SpecError, match=what):
        read_launches(_table(None, tmp_path, changes))


def test_a_table_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "settings.csv"
    path.write_text("campaign,model\na,b\n")
    with pytest.raises(SpecError, match="other columns"):
        read_launches(path)


def test_the_most_special_launch_wins_and_formulas_follow_the_load(monkeypatch, tmp_path):
    _table(
        monkeypatch,
        tmp_path,
        {"tp": "4", "memory_fraction": "0.7"},
        {"loads": "8192/1024:4", "memory_fraction": "0.8"},
        {"loads": "1024/1024:64", "memory_fraction": "0.85"},
        {"memory_fraction": "0.9", "budget_tokens": "64", "budget_per_input": "2", "running_limit_per_user": "2"},
    )
    found = launched("c", _asked()).values
    assert (found["fraction"], found["budget"], found["running_limit"]) == (0.9, 2 * 1024 + 64, 8)
    assert launched("c", _asked(input_tokens=8192.0)).values["fraction"] == 0.8
    assert launched("c", _asked(concurrency=64.0)).values["fraction"] == 0.85
    assert launched("c", _asked(tp=4)).values["fraction"] == 0.7


def test_the_launch_of_the_day_is_taken_and_none_that_is_younger_than_the_run(monkeypatch, tmp_path):
    _table(
        monkeypatch,
        tmp_path,
        {"valid_until": "2026-03-20", "memory_fraction": "0.7"},
        {"valid_from": "2026-03-20", "valid_until": "2026-04-10", "memory_fraction": "0.8"},
        {"valid_from": "2026-05-01", "memory_fraction": "0.9"},
    )
    days = {"2026-03-19": 0.7, "2026-03-20": 0.8, "2026-04-10": 0.8, "2026-04-20": 0.8, "2026-05-01": 0.9, "": 0.9}
    assert {day: launched("c", _asked(measured_on=day)).values["fraction"] for day in days} == days
    assert launched("c", _asked(measured_on="2026-02-28")).open == SETTINGS
    # of a month nobody knows which of the two it was
    assert launched("c", _asked(measured_on="2026-03")).open == ("fraction",)


def test_of_launches_in_force_that_of_the_version_is_taken_and_alone_says_what_an_undated_row_ran(
    monkeypatch, tmp_path
):
    _table(
        monkeypatch,
        tmp_path,
        {"memory_fraction": "0.7", "image": "vllm:v0.19.0"},
        {"memory_fraction": "0.8", "image": "vllm:v0.19.0rc1"},
        {"memory_fraction": "0.9", "image": "vllm:v0.20.1", "valid_from": "2026-05-01"},
    )
    assert launched("c", _asked(version="0.19.0")).values["fraction"] == 0.7
    assert launched("c", _asked(version="0.19.0rc1")).values["fraction"] == 0.8
    assert launched("c", _asked(version="0.20.1", measured_on="")).values["fraction"] == 0.9


def test_launches_that_fit_equally_well_leave_open_what_they_disagree_about(monkeypatch, tmp_path):
    rows = ({"memory_fraction": "0.8", "kv_cache": "fp8"}, {"memory_fraction": "0.9", "kv_cache": "fp8"})
    _table(monkeypatch, tmp_path, *rows)
    found = launched("c", _asked())
    assert (found.open, found.values["kv"]) == (("fraction",), "fp8")
    assert {one["fraction"] for one in alternatives("c", _asked())} == {0.8, 0.9}


def test_model_part_engine_format_and_drafting_are_never_stretched(monkeypatch, tmp_path):
    _table(monkeypatch, tmp_path, {"memory_fraction": "0.8"}, {"engine": "sglang", "memory_fraction": "0.5"})
    others = ({"model": "glm-5.1"}, {"accelerator": "b300-sxm"}, {"weights": "fp8-block"}, {"draft_tokens": 3})
    for changes in others:
        asked = replace(_asked(), **changes)
        assert launched("c", asked).open == SETTINGS
        # what the campaign set elsewhere with this engine is how it may have been
        assert [one["fraction"] for one in alternatives("c", asked)] == [0.8]


def test_a_number_of_another_load_is_no_limit(monkeypatch, tmp_path):
    _table(monkeypatch, tmp_path, {"loads": "1024/1024:4", "running_limit": "4"})
    assert launched("c", _asked()).values["running_limit"] == 4
    assert launched("c", _asked(concurrency=64.0)).values["running_limit"] is None


def _row(model, part, engine, weights, day, **changes):
    load = {"concurrency": 64.0, "input_tokens": 1024.0, "output_tokens": 1024.0, "tp": 8}
    return Run(
        "a", model, part, engine=engine, weights=weights, measured_on=day, protocol="inferencex", **{**load, **changes}
    )


# what `benchmarks/*.sh` of SemiAnalysisAI/InferenceX set on the day, by hand from the scripts of these settings
SCRIPTS = [
    (("llama-3.1-70b", "h200-sxm", "trtllm", "fp8", "2025-10-29"), {}, {"budget": 16384}),
    (("llama-3.1-70b", "b200-sxm", "vllm", "nvfp4", "2025-10-29"), {"tp": 4}, {"kv": "fp8"}),
    (("kimi-k2.5", "b200-sxm", "vllm", "int4", "2026-03-24"), {}, {"fraction": 0.95}),
    (("minimax-m2.5", "h200-sxm", "vllm", "fp8", "2026-03-27"), {}, {"fraction": 0.95}),
    (("qwen3.5-397b-a17b", "b200-sxm", "sglang", "nvfp4", "2026-04-08"), {"tp": 4, "concurrency": 4.0},
     {"poll_interval": 10}),
    (("qwen3.5-397b-a17b", "b200-sxm", "sglang", "nvfp4", "2026-04-08"), {"tp": 4}, {"poll_interval": 30}),
    (("qwen3.5-397b-a17b", "h100-sxm", "sglang", "fp8", "2026-06-10"), {"concurrency": 8.0}, {"poll_interval": 60}),
    (("glm-5", "b200-sxm", "sglang", "nvfp4", "2026-04-20"), {"tp": 4},
     {"fraction": 0.9, "budget": 32768, "poll_interval": 10}),
    (("kimi-k2.5", "b200-sxm", "vllm", "nvfp4", "2026-04-25"), {"tp": 4}, {"budget": 2048}),
    (("kimi-k2.5", "b200-sxm", "vllm", "nvfp4", "2026-04-25"), {"tp": 4, "input_tokens": 8192.0}, {"budget": 16384}),
    (("gpt-oss-120b", "b200-sxm", "vllm", "mxfp4", "2026-02-25"), {"tp": 1},
     {"kv": "fp8", "expert_kernels": "flashinfer-mxfp8"}),
    (("gpt-oss-120b", "h200-sxm", "vllm", "mxfp4", "2026-02-01"), {}, {"expert_kernels": "marlin"}),
    (("deepseek-r1", "mi355x", "sglang", "fp8", "2026-02-10"), {}, {"budget": 196608}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "changes", "said"), SCRIPTS, ids=lambda one: one[0] if isinstance(one, tuple) else None
)
def test_rows_are_launched_as_the_script_of_their_day_says(row, changes, said):
    question = question_of(_row(*row, **changes))
    assert {name: getattr(question.campaign, name) for name in said} == said
    served = {"kv": question.deployment.kv, "expert_kernels": question.deployment.settings.expert_kernels,
              "poll_interval": question.load.poll_interval, "budget": question.load.budget}  # fmt: skip
    assert {name: served[name] for name in said if name in served} == {n: v for n, v in said.items() if n in served}


def test_experts_that_take_fp8_activations_run_the_kernels_that_the_script_switched_on():
    row = ("gpt-oss-120b", "b200-sxm", "vllm", "mxfp4")
    structure = question_of(_row(*row, "2026-02-25", tp=1)).deployment.structure
    plain = question_of(replace(_row(*row, "2026-02-25", tp=1), protocol="other")).deployment.structure
    form = WEIGHT_FORMATS["mxfp4"]
    assert (structure.runs_as(form, "experts").form, plain.runs_as(form, "experts").form) == ("mxfp4-a8", "mxfp4")


def test_what_a_row_states_is_believed_and_the_contradiction_told():
    row = _row("gpt-oss-120b", "b200-sxm", "vllm", "mxfp4", "2026-02-25", tp=1)
    question = question_of(replace(row, kv_cache="bf16"))
    assert (question.deployment.kv, question.contradicted) == ("bf16", ("kv",))
    assert question_of(replace(row, kv_cache="fp8")).contradicted == ()
    told = question_of(replace(row, memory_fraction=0.7))
    assert (told.deployment.settings.memory_fraction, told.contradicted) == (0.7, ("fraction",))


def test_of_the_shipped_rows_those_before_the_first_script_of_their_day_are_open_and_none_contradicts_its_script():
    questions = [question_of(run) for run in load_measurements() if run.protocol == "inferencex" and not run.error]
    without = [q.run for q in questions if q.campaign.open == SETTINGS]
    open_ = Counter(run.measured_on for run in without if run.campaign == "inferencex")
    # two layouts over 72 accelerators, which no single server has, and pull requests of the third of April
    assert open_ == {"2025-11-16": 3, "2025-11-17": 14, "2026-04-03": 39}
    # medians over all dates, another client, a branch of its own, and days and parts without a script
    assert {run.campaign for run in without} <= {
        "inferencex", "inferencex-dump-2026-07", "inferencex-glm47-gaudi3", "inferencex-blog-dsv4-mi355x-2026",
        "inferencex-dsr1-2025-2026", "vendor-sweeps-2025-2026",
    }  # fmt: skip
    assert [q.run.id for q in questions if q.contradicted] == []


def test_an_unknown_launch_is_told_and_its_interval_holds_what_other_scripts_set():
    known = _row("kimi-k2.5", "b300-sxm", "vllm", "nvfp4", "2026-04-25", concurrency=64.0)
    unknown = replace(known, id="b", measured_on="2026-04-03")
    assert not alternatives_of(question_of(known))
    others = alternatives_of(question_of(unknown))
    assert len(others) > 0 and {one.campaign.fraction for one in others} <= {0.9, 0.95}
    [answer] = predict_runs([unknown])
    assert "launch settings by default, for want of a script" in answer.basis
    pools = [
        predict_runs([replace(unknown, notes=f"gpu-memory-utilization {one.campaign.fraction}")])[0] for one in others
    ]
    figure = answer.figures["kv_pool_tokens"]
    assert figure.high >= max(one.figures["kv_pool_tokens"].value for one in pools)


def test_an_interval_reaches_as_far_as_the_old_one_and_the_unknown_together():
    found = Figure(10.0, 8.0, 11.0).reaching([12.0, 9.5, 10.5])
    assert found.value == 10.0
    assert found.low < 8.0 and found.high > 12.0
    same = Figure(10.0, 8.0, 11.0).reaching([])
    assert (same.low, same.high) == pytest.approx((8.0, 11.0))


def test_a_row_that_the_campaign_ran_both_ways_is_predicted_both_ways():
    run = next(run for run in load_measurements() if run.accelerator == "b300-sxm" and run.model == "qwen3.5-397b-a17b")
    question = question_of(run)
    assert question.run_both_ways
    assert {one.deployment.draft_tokens > 0 for one in alternatives_of(question)} == {True}
