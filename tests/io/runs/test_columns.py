"""The columns and figures of a run: one table of each, and nothing of a user's table is ignored in silence."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from glmplan.cli import main
from glmplan.errors import SpecError
from glmplan.io.runs.columns import (
    ALIASES,
    ANSWERS,
    COLUMNS,
    COMPARED,
    FIGURES,
    FITTED,
    INTERVAL_KINDS,
    column_value,
    compared_figures,
    ignored_columns,
    nearest_column,
)
from glmplan.io.runs.importers import import_file, import_text
from glmplan.io.runs.table import read_runs, run_from_row
from glmplan.measure.validation import deployment_facts, ignored_in_plan
from glmplan.prediction.load import Load, metrics_of
from glmplan.units import GIB, parse_quantity

BASE = {"id": "a", "model": "glm-5.1", "accelerator": "b200-sxm"}
#: cells that change what is read, for each kind of column
CELLS = {"text": "words", "count": "3", "amount": "7.5", "flag": "yes"}
#: and for the columns in which any word is not enough
TELLING = {"trust": "D", "phase": "decode", "engine": "vllm", "speculative": "mtp-3", "withheld": "wall_s: not said"}


@pytest.mark.parametrize("name", sorted({*COLUMNS, *ALIASES}))
def test_every_column_that_is_understood_changes_the_record(name):
    column = COLUMNS[ALIASES.get(name, name)]
    cell = {
        "trust": "D",
        "phase": "decode",
        "kv_cache": "fp8",
        "engine": "vllm",
        "speculative": "mtp-3",
        "withheld": "wall_s: not said",
    }.get(name, CELLS[column.kind])
    row = {**BASE, "wall_s": "60"} if name == "withheld" else BASE
    before, after = run_from_row(row), run_from_row({**row, name: cell})
    assert after.error is None
    field = "observed" if column.name in FIGURES else column.field or column.name
    assert getattr(after, field) != getattr(before, field)
    if column.name in FIGURES:
        assert after.observed[column.name] == 7.5


def test_every_numeric_column_tells_a_cell_that_is_no_number():
    for name, column in COLUMNS.items():
        if column.kind in ("count", "amount"):
            assert run_from_row({**BASE, name: "many"}).error == f"{name}: 'many' is not a number"


def test_a_count_and_an_amount_that_may_be_infinite_are_told_apart():
    assert run_from_row({**BASE, "request_rate_per_s": "inf"}).request_rate_per_s == float("inf")
    assert run_from_row({**BASE, "concurrency": "inf"}).error.startswith("concurrency: 'inf'")


@pytest.mark.parametrize("cell", ["yes", "Yes", "true", "1"])
def test_every_flag_is_read_from_the_same_words(cell):
    run = run_from_row({**BASE, "shared_prompt": cell, "prefix_cached": cell, "context_is_label": cell})
    assert (run.shared_prompt, run.prefix_cached, run.context_is_label) == (True, True, True)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("Input_Tokens", "input_tokens"), ("input tokens", "input_tokens"), ("INPUT-TOKENS", "input_tokens"),
     ("ttft_mean_s", "ttft_mean_ms"), ("TTFT ms", "ttft_ms"), ("accelerator count", "accelerator_count"),
     ("num_request", "num_requests"), ("colour", ""), ("mine", "")],
)  # fmt: skip
def test_a_name_is_near_to_the_same_one_in_other_letters_and_to_one_spelled_alike(written, meant):
    assert nearest_column(written) == meant


def test_a_column_that_is_not_known_is_named_with_the_nearest_and_its_unit():
    assert ignored_columns(["id", "ttft_ms", "notes"]) == ""
    assert ignored_columns(["TPOT-mean-ms"]) == "'TPOT-mean-ms' (nearest: tpot_mean_ms [ms])"


def table(tmp_path, text):
    file = tmp_path / "mine.csv"
    file.write_text(text)
    return file


def test_a_table_says_what_of_it_is_ignored(tmp_path):
    text = "id,model,accelerator,Concurrency,ttft_ms,ttft_mean_ms,\na,glm-5,b200-sxm,4,10,11,x\n"
    runs = read_runs(table(tmp_path, text))
    named, unnamed, twice = runs.warnings
    assert "'Concurrency' (nearest: concurrency)" in named and str(runs.path) in named
    assert "without a name" in unnamed and "ttft_ms is another name of ttft_mean_ms" in twice
    assert runs[0].concurrency is None and runs[0].observed == {"ttft_mean_ms": 11.0}


def test_two_names_of_a_figure_are_no_matter_where_no_row_has_both(tmp_path):
    text = "id,model,accelerator,ttft_ms,ttft_mean_ms,\na,glm-5,b200-sxm,10,,\nb,glm-5,b200-sxm,,11,\n"
    runs = read_runs(table(tmp_path, text))
    assert runs.warnings == () and [run.observed["ttft_mean_ms"] for run in runs] == [10.0, 11.0]


def test_a_column_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(SpecError, match="tp: stands twice"):
        read_runs(table(tmp_path, "id,model,accelerator,tp,tp\na,glm-5,b200-sxm,4,8\n"))


def test_a_required_column_in_other_letters_is_the_nearest(tmp_path):
    with pytest.raises(SpecError, match="accelerator: .*nearest column: Accelerator"):
        read_runs(table(tmp_path, "id,model,Accelerator\na,glm-5,b200-sxm\n"))


GOOD = ("id,model,weights,accelerator,accelerator_count,tp,engine,phase,concurrency,input_tokens,output_tokens,"
        "tpot_mean_ms,Max Batch\nmine,glm-5,fp8,b200-sxm,8,8,sglang,serving,32,8192,1024,30,4\n")  # fmt: skip


@pytest.mark.parametrize(
    "words", [["predict", "--runs"], ["reproduce", "mine", "--runs"], ["calibrate", "--from"]], ids=lambda w: w[0]
)
def test_every_command_that_reads_a_table_warns_of_an_unknown_column(tmp_path, capsys, words):
    file = table(tmp_path, GOOD)
    with pytest.raises(SystemExit) as stop:
        main([*words, str(file)])
    out, err = capsys.readouterr()
    assert not stop.value.code
    assert f"warning: {file}: ignored, as no column of a run has this name: 'Max Batch'" in err
    assert "Max Batch" not in out


def test_what_a_plan_holds_beside_known_columns_is_named(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"plans": [{"model": "glm-5.1", "accelerator": "b200-sxm", "TP": 8, "mine": 1}]}))
    assert deployment_facts(plan=file) == {"model": "glm-5.1", "accelerator": "b200-sxm"}
    assert ignored_in_plan(file) == "'TP' (nearest: tp), 'mine'"
    file.write_text(json.dumps({"schema": "glmplan.fit/1", "question": {}, "plan": {}}))
    assert ignored_in_plan(file) == ""


def test_a_fact_that_is_no_column_is_refused_with_the_nearest():
    with pytest.raises(SpecError, match="nearest: input_tokens"):
        column_value("input-tokens=3")
    line = '{"n_kv": 64, "pp": 32, "tg": 32, "pl": 2, "t_pp": 0.1, "t_tg": 0.4}'
    with pytest.raises(SpecError, match="'Engine' is no column of a run; nearest: engine"):
        import_text(line, facts={"Engine": "vllm"})


def test_a_table_of_runs_needs_no_import_and_hears_so(tmp_path):
    with pytest.raises(SpecError, match="is a table of runs already.*'Max Batch'"):
        import_file(table(tmp_path, GOOD))


def test_the_endpoint_of_a_client_is_no_build_of_an_engine():
    text = json.dumps({"backend": "openai", "duration": 2.0, "completed": 2, "total_input_tokens": 20,
                       "total_output_tokens": 20, "request_throughput": 1.0, "num_prompts": 2, "tp": 4})  # fmt: skip
    (row,) = import_text(text).rows
    assert "backend" not in row and row["tp"] == 4


def test_the_unit_of_a_figure_is_that_of_its_name_and_its_factor_that_of_its_unit():
    ends = {"_ms": "ms", "_s": "s", "_tokens_per_s": "tok/s", "_w": "W", "_tokens": "token", "_per_request": "tok/s",
            "_gib_per_accelerator": "GiB"}  # fmt: skip
    for one in FIGURES.values():
        end = max((end for end in ends if one.column.endswith(end)), key=len, default="")
        assert one.unit == ends.get(end, one.unit)
        assert one.rate == (one.unit == "tok/s")
    assert FIGURES["ttft_mean_ms"].factor == parse_quantity("1 ms", "seconds")
    assert FIGURES["weights_gib_per_accelerator"].factor == GIB == parse_quantity("1 GiB", "bytes")


def test_what_is_compared_is_what_loads_are_predicted_to_show():
    """Every figure that a load has in sums of steps is compared with a column, and rates are rates there too."""
    loads = [Load(8, 1000, 100, phase="serving"), Load(8, 1000, 100, phase="decode"), Load(1, 1000, 1, phase="prefill")]
    shown = {name: one.rate for load in loads for name, one in metrics_of(load).figures.items()}
    assert shown == {one.predicted: one.rate for one in COMPARED.values()}
    assert {name: INTERVAL_KINDS[name] for name in ("ttft", "ttft_p50", "prefill_rate", "output_rate", "itl_p50")} == {
        "ttft": "ttft", "ttft_p50": "ttft", "prefill_rate": "prefill", "output_rate": "decode", "itl_p50": "decode",
    }  # fmt: skip


def test_every_statistic_of_a_time_is_compared_with_its_own_and_only_means_and_medians_teach():
    times = [one for one in FIGURES.values() if one.column.startswith(("ttft_", "tpot_", "itl_", "e2e_"))]
    compared = {one.column: one.predicted for one in times if one.predicted}
    assert set(compared) == {one.column for one in times} - {"tpot_incl_ttft_mean_ms"}
    assert len(set(compared.values())) == len(compared)
    assert {one.column for one in times if one.column in FITTED} == {
        "ttft_mean_ms", "ttft_p50_ms", "tpot_mean_ms", "tpot_p50_ms", "itl_p50_ms",
    }  # fmt: skip
    assert set(compared) <= set(ANSWERS)


def test_a_gap_between_chunks_counts_only_for_itself():
    gap = {"itl_p50_ms": 20.0}
    assert [one.column for one, _ in compared_figures(gap, tokens_per_step=1.0)] == ["itl_p50_ms"]
    assert list(compared_figures(gap, tokens_per_step=1.8)) == []
    both = compared_figures({**gap, "tpot_mean_ms": 21.0}, tokens_per_step=1.0)
    assert [one.column for one, _ in both] == ["tpot_mean_ms"]
    assert list(compared_figures({"tpot_mean_ms": 0.0, "wall_s": 3.0}, tokens_per_step=1.0)) == []


def test_an_imported_table_has_the_columns_in_the_order_of_the_shipped_ones(tmp_path):
    out = tmp_path / "runs.csv"
    sample = next((Path(__file__).parents[2] / "data/clients").glob("vllm_bench*.json"))
    with pytest.raises(SystemExit) as stop:
        main(["runs", "import", str(sample), "--on", "2xh100-sxm", "--set", "model=llama-46m", "--out", str(out)])
    assert not stop.value.code
    header = next(csv.reader(out.open()))
    assert header == [name for name in COLUMNS if name in header] and read_runs(out).warnings == ()


def test_a_label_of_kimi_is_counted_and_every_other_one_stays_a_label():
    notes = {"notes": "x; label = 4 chars/token", "phase": "decode"}
    kimi = run_from_row({**BASE, "model": "kimi-k2.6", "input_tokens": "65536", **notes})
    assert (kimi.input_tokens, kimi.context_is_label) == (41505.0, False)
    odd = run_from_row({**BASE, "model": "kimi-k2.6", "input_tokens": "4096", **notes})
    assert (odd.input_tokens, odd.context_is_label) == (4096.0, True)
