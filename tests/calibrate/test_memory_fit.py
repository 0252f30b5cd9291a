"""The observed memory terms: reproducible from the rows, with a spread that covers them."""

from __future__ import annotations

from pathlib import Path

import pytest
from same_text import same_to_rounding

from glmplan.calibrate.memory import fit_memory, fit_starts, fit_text, observations, pool_remainder, write_memory_fit
from glmplan.catalog.files import data_folder
from glmplan.costs.memory.settings import load_memory_fit
from glmplan.errors import SpecError

GIB = 2.0**30


def test_the_committed_fit_is_what_the_observations_give() -> None:
    committed = (data_folder("calibration") / "fits" / "memory.toml").read_text(encoding="utf-8")
    # another processor may round the last digit the other way: docs/decisions/processors.md
    assert same_to_rounding(committed, fit_text(*fit_starts(observations())))


def test_sglang_pools_close_within_half_a_gibibyte_on_three_machines() -> None:
    fit = load_memory_fit()
    rows = [row for row in observations() if row.kind == "pool" and row.used and row.text["engine"] == "sglang"]
    assert len({row.text["part"] for row in rows}) == 3
    for row in rows:
        assert pool_remainder(row, fit) == pytest.approx(0.0, abs=0.5 * GIB)


def test_rows_that_are_not_used_do_not_move_the_fit() -> None:
    rows = observations()
    everything, _ = fit_memory(rows)
    kept, used = fit_memory([row for row in rows if row.used])
    assert kept == everything
    assert "pool-glm51-sglang-082" not in used["remainder.sglang"]


def test_a_row_without_a_source_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "logs.csv"
    file.write_text("id,kind,listed_gib,total_gib,used,source\nx,driver,96,95,yes,\n")
    with pytest.raises(SpecError, match="has no source"):
        observations(file)


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "logs.csv"
    file.write_text("id,kind,listed_gib,total_gib,used,source\nx,driver,many,95,yes,here\n")
    with pytest.raises(SpecError, match="listed_gib: 'many' is not a number"):
        observations(file)


def test_a_term_without_observations_is_refused() -> None:
    with pytest.raises(SpecError, match="driver: has no observation"):
        fit_memory([row for row in observations() if row.kind != "driver"])


def test_a_fit_can_be_written_elsewhere(tmp_path: Path) -> None:
    written = write_memory_fit(tmp_path / "memory.toml").read_text(encoding="utf-8")
    assert written.count("rows = [") == written.count("\n[") > 15
