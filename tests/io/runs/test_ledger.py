"""Every measurement that ships: the form, the sources, the totals."""

from __future__ import annotations

import csv
import dataclasses
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from glmplan.catalog.entries.accelerators import accelerator_names
from glmplan.catalog.entries.models import model_aliases
from glmplan.catalog.entries.names import refusal
from glmplan.catalog.files import data_folder
from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.ledger import (
    campaigns,
    day_of,
    load_acceptance,
    load_measurements,
    repeats,
)
from glmplan.io.runs.table import read_runs

FOLDER = data_folder("calibration") / "measurements"
FILES = sorted({entry["file"] for entry in campaigns().values()})
SHARED = Path(__file__).resolve().parents[4] / "shared" / "measurements"


Text = Annotated[str, Field(min_length=1)]


class Source(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(pattern=r"^[a-z0-9.\-]+\.csv$")]
    rows: Annotated[int, Field(ge=1)]
    address: Text
    measured: Text
    licence: Text
    trust: Literal["A", "B", "C", "D", "A-D", "B-D"]
    how: Text
    traps: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _address_is_one(self) -> Source:
        if not self.address.startswith(("https://", "each row")):
            raise ValueError("address must be a URL, or say 'each row' when every row has its own source")
        return self


#: columns that every shipped row must fill
FILLED = ("id", "campaign", "model", "speculative", "phase", "protocol")


def row_faults(row):
    result = [f"{name}: is empty" for name in FILLED if not row.get(name)]
    result += [f"{name}: is no column of a run" for name in row if name not in COLUMNS]
    told = ((name, COLUMNS[name].fault(text)) for name, text in row.items() if text and name in COLUMNS)
    return (*result, *(f"{name}: {fault}" for name, fault in told if fault))


@pytest.mark.parametrize("file", FILES)
def test_every_row_of_every_campaign_file_has_the_form_of_the_schema(file):
    with open(FOLDER / file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            assert row_faults(row) == ()


@pytest.mark.parametrize(
    ("column", "cell", "word"),
    [("phase", "decoding", "none of serving"), ("tp", "2.5", "whole number"), ("power_limit_w", "0", "more than 0"),
     ("acceptance_length", "0.9", "less than 1"), ("measured_on", "yesterday", "form"), ("cuda_graphs", "maybe", "yes"),
     ("ttft_mean_ms", "-1", "zero or more"), ("protocol", "", "empty"), ("request_rate_per_s", "0", "more than 0"),
     ("mine", "1", "no column")],
)  # fmt: skip
def test_a_row_that_may_not_ship_says_which_column_is_wrong(column, cell, word):
    good = {"id": "a", "campaign": "b", "model": "glm-5", "speculative": "none", "phase": "decode", "protocol": "other",
            "request_rate_per_s": "inf", "measured_on": "2026-01", "trust": "A"}  # fmt: skip
    assert row_faults(good) == ()
    (said,) = row_faults({**good, column: cell})
    assert said.startswith(f"{column}: ") and word in said


@pytest.mark.parametrize("file", FILES)
def test_the_columns_of_a_campaign_file_stand_in_the_one_order_and_none_is_ignored(file):
    table = read_runs(FOLDER / file)
    assert list(table.columns) == [name for name in COLUMNS if name in table.columns]
    assert table.warnings == ()


@pytest.mark.parametrize("file", FILES)
def test_no_campaign_file_is_larger_than_a_megabyte_or_carries_an_empty_column(file):
    path = FOLDER / file
    assert path.stat().st_size < 1_000_000
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert all(any(row[name] for row in rows) for name in rows[0])


def test_every_entry_of_the_sources_has_the_form_of_the_schema():
    for entry in campaigns().values():
        Source.model_validate(entry)


def test_every_campaign_has_as_many_rows_as_its_source_says():
    counted = Counter(run.campaign for run in load_measurements())
    assert counted == {name: entry["rows"] for name, entry in campaigns().items()}


def test_all_14620_cited_runs_are_there_once():
    runs = load_measurements()
    assert len({run.id for run in runs}) == len(runs) == 14620
    first = {"ix": 2161, "rtx": 1309, "pub": 2122, "fr": 20}
    later = {"ix": 171, "rtx": 923, "anl": 504, "lotto3090": 468, "rtxmay": 424, "rtxjun": 255, "vilsol": 75,
             "misc2": 61, "cookbook26": 31}  # fmt: skip
    # the second collection of November 2026; 54 of its 6,101 rows name a model or part that the catalogue lacks (578
    # when it shipped: 524 came in with their models)
    second = {"b11b": 3608, "pub": 907, "rtxjun": 755, "rtxmay": 232, "ixslo": 169, "rtxv20": 144, "cookbook26": 82,
              "loswald": 78, "cookbooknew": 21, "isim": 20, "lotto3090": 15, "kernelore": 12, "small": 4}  # fmt: skip
    own = {"replay": 41, "gaudi": 8}
    assert (sum(first.values()), sum(later.values()), sum(second.values())) == (5612, 2912, 6101 - 54)
    counted = Counter(first) + Counter(later) + Counter(second) + Counter(own)
    assert Counter(run.id.split("-")[0] for run in runs) == counted


def test_rows_that_their_collectors_keep_apart_are_used_by_nothing():
    rows = [run for run in load_measurements() if run.campaign == "inferencex-dsr1-2025-2026-disagg"]
    assert len(rows) == 387 and {run.unusable for run in rows} == {"disaggregated prefill and decode"}
    mixed = [run for run in load_measurements() if run.campaign == "rtx6kpro-glm51-v8-2026-06-06"]
    assert Counter(run.unusable for run in mixed) == {"v8 without full graphs": 395, None: 100}


def test_a_median_over_all_dates_has_no_release():
    rows = [run for run in load_measurements() if run.campaign == "inferencex-dump-2026-07"]
    assert {(run.engine_version, run.measured_on) for run in rows} == {(None, None)}
    assert {day_of(run) for run in rows} == {"2026-07-20"}


def test_a_common_prefix_in_the_cache_is_context_and_prompts_drawn_again_are_set_apart():
    rows = [run for run in load_measurements() if run.campaign == "loswald-sm120-2026-09" and run.phase == "serving"]
    again = [run for run in rows if run.unusable and "one seed" in run.unusable]
    # one to four waves of gpt-oss-120b by Marlin on two hosts, and no run with eight prompts for each user
    assert len(again) == 28 and all((run.num_requests or 0) <= 4 * (run.concurrency or 0) for run in again)
    prefix = [run for run in rows if "a prefix common to all requests" in run.notes and run not in again]
    kept = {run.model for run in prefix if (run.input_tokens, run.context_depth) == (512.0, 3072.0)}
    whole = {run.model for run in prefix if (run.input_tokens, run.context_depth) == (3584.0, None)}
    assert kept == {"gpt-oss-20b", "gpt-oss-120b", "gemma-4-26b-a4b"}
    # layers with states keep no prefix
    assert whole == {"glm-5.3-flash", "nemotron-3.5-lightning-30b-a3b", "qwen3.6-35b-a3b"}


def test_every_run_has_a_source_and_a_trust():
    assert all(run.source and run.trust for run in load_measurements())


def test_only_rows_without_an_accelerator_cannot_be_read():
    assert Counter(run.error for run in load_measurements() if run.error) == {"accelerator: is empty": 21}


def test_claims_are_never_usable():
    runs = load_measurements()
    assert all(run.unusable for run in runs if run.cells.get("trust") == "D")
    assert sum(run.cells.get("trust") == "D" for run in runs) == 5


def test_a_repeated_run_has_the_figures_of_the_first():
    runs = {run.id: run for run in load_measurements()}
    for twice, first in repeats(runs.values()).items():
        assert runs[twice].observed == pytest.approx(runs[first].observed, rel=0.0021)


def test_the_deepseek_runs_published_under_two_names_are_told():
    runs = {run.id: run for run in load_measurements()}
    pairs = [(runs[twice].model, runs[first].model) for twice, first in repeats(runs.values()).items()]
    assert pairs.count(("deepseek-v3", "deepseek-r1")) + pairs.count(("deepseek-r1", "deepseek-v3")) == 110


def test_every_accepted_length_has_a_source_and_a_possible_value():
    rows = load_acceptance()
    assert len(rows) > 40
    for row in rows:
        assert row.source.startswith("https://") and row.text and row.basis
        assert row.acceptance_length >= 1
        assert row.draft_tokens is None or row.acceptance_length <= row.draft_tokens + 1


def test_an_acceptance_that_cites_a_run_cites_one_that_ships():
    ids = {run.id for run in load_measurements()}
    assert {row.run for row in load_acceptance() if row.run} <= ids


def test_the_names_that_are_refused_say_why_and_are_no_aliases():
    with open(data_folder("calibration") / "names.toml", "rb") as stream:
        names = tomllib.load(stream)
    refused, aliases = names["refused"]["models"], names["models"]
    assert all(len(reason) > 10 for reason in refused.values())
    assert not set(refused) & set(aliases)
    assert not set(aliases) & set(aliases.values()), "an alias of an alias"


def test_every_accelerator_of_the_measurements_resolves_or_is_refused_with_the_reason():
    for run in load_measurements():
        if run.accelerator:
            assert run.accelerator in accelerator_names() or refusal("accelerators", run.accelerator)


def test_the_names_file_and_the_model_catalogue_do_not_contradict():
    aliases = model_aliases()
    with open(data_folder("calibration") / "names.toml", "rb") as stream:
        ours = tomllib.load(stream)["models"]
    assert {alias: name for alias, name in ours.items() if aliases.get(alias, name) != name} == {}


@pytest.mark.skipif(not SHARED.exists(), reason="the tables the measurements were made from are not here")
def test_the_shipped_rows_read_the_same_as_the_tables_they_came_from():
    said = {
        "notes",
        "cells",
        "model_given",
        "accelerator_given",
        "campaign",
        "source",
        "trust",
        "total_in_request_column",
    }
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))  # where the rules of each source are told
    from import_measurements import DS4_BENCH, LATER, PARTS, runs_of

    theirs = {run.id: run for path in SHARED.glob("*.csv") for run in runs_of(path)}
    assert {path.stem for path in SHARED.glob("*.csv")} >= LATER
    fields = [field.name for field in dataclasses.fields(read_runs(FOLDER / FILES[0])[0]) if field.name not in said]
    # the pages of this campaign say what the tables leave out: prompts, and that nominal lengths are the longest
    more = {"protocol", "num_requests", "request_rate_per_s", "input_tokens", "output_tokens", "length_range"}
    for run in load_measurements():
        if run.id not in theirs and run.id.startswith(("replay-", "gaudi-")):  # the project's own, and a page's table
            continue
        same = [name for name in fields if run.campaign != "sglang-docs-benchmark-snippets" or name not in more]
        if run.campaign == DS4_BENCH:  # the table names no format, the file that was measured does
            assert (run.weights, theirs[run.id].weights) == ("q2_k", None)
            same.remove("weights")
        if (part := PARTS.get((run.campaign, theirs[run.id].accelerator))) is not None:  # the bench says which it was
            assert run.accelerator == part
            same = [name for name in same if name != "accelerator"]
        if "running_limit" not in theirs[run.id].cells:  # notes say how many ran, not what the engine was told
            same = [name for name in same if name != "max_num_seqs"]
        assert {name: getattr(run, name) for name in same} == {name: getattr(theirs[run.id], name) for name in same}


def test_rows_of_the_documentation_snippets_have_the_prompts_and_lengths_of_their_pages():
    rows = [run for run in load_measurements() if run.campaign == "sglang-docs-benchmark-snippets"]
    assert len(rows) == 8
    assert {run.num_requests for run in rows} == {10, 80, 64, 256, 512, 1024, 2048, 4096}
    for run in rows:
        # uniform from 1 to 1000
        assert (run.input_tokens, run.output_tokens, run.length_range) == (500.5, 500.5, (0.0, 2.0))


def test_every_model_of_the_ledger_is_known_or_refused_with_the_reason():
    from glmplan.catalog.entries.models import load_model
    from glmplan.catalog.entries.names import refusal

    for name in {run.model for run in load_measurements()}:
        if refusal("models", name) is None:
            assert load_model(name).name
