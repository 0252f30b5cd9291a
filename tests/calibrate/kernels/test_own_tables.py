"""Own kernel tables: they count as predictions do, no row is impossible, and the fits of their parts hold for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from glmplan.calibrate.kernels.own_tables import beside_fits, own_parts, own_rows, own_section, shape_work
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.costs.kernels.utilisation import kernel_fits

ROOT = Path(__file__).parents[3]
#: class, format, measured kernel, engine → median error that today's fits stay below [-]
LIMITS = {
    ("gemm", "bf16", "cublas", "vllm"): 0.08,
    ("gemm", "fp8-block", "cublas-block", "vllm"): 0.2,
    ("experts", "bf16", "triton", "vllm"): 0.1,
    ("experts", "fp8-block", "triton", "vllm"): 0.12,
    ("decode-attention", "bf16", "triton", "vllm"): 0.15,
    ("prefill-attention", "bf16", "torch-cudnn", "sglang"): 0.25,
}


def work_of(row):
    return shape_work(row["kernel"], row["precision"], {k: v for k, v in row.items() if v.isdigit()})


def test_both_hopper_parts_were_measured():
    assert own_parts() == ("h100-sxm", "h200-sxm")


@pytest.mark.parametrize("part", own_parts())
def test_rows_count_flop_and_bytes_as_a_prediction_does(part):
    counted = [(row, work) for row in own_rows(part) if (work := work_of(row)) is not None]
    assert len(counted) > 1000
    for row, work in counted:
        # touched experts are a mean over drawn routings, rounded in the table
        assert float(row["bytes"]) == pytest.approx(float(work.bytes), rel=0.03 if row["kernel"] == "experts" else 1e-9)
        assert float(row["flop"]) == pytest.approx(float(work.flop))


@pytest.mark.parametrize("part", own_parts())
def test_no_row_is_wrong_or_beats_the_data_sheet(part):
    facts = load_accelerator(part)
    for row in own_rows(part):
        if work_of(row) is None:
            continue
        seconds = float(row["time_us"]) * 1e-6
        peak = facts.peak["fp8" if row["precision"] == "fp8-block" else "bf16"]
        assert float(row["error"]) < 0.03, row
        assert float(row["flop"]) / seconds < peak, row
        assert float(row["bytes"]) / seconds < facts.need("memory_bandwidth"), row


@pytest.mark.parametrize("part", own_parts())
def test_fits_hold_for_cold_operands_on_another_machine(part):
    errors = {
        (one.kernel, one.precision, one.backend, one.fit.engine.split()[0]): float(np.median(np.abs(one.ratio - 1)))
        for one in beside_fits(part, kernel_fits(part), own_rows(part))
    }
    assert set(LIMITS) <= set(errors)
    assert {key: errors[key] for key, limit in LIMITS.items() if errors[key] > limit} == {}


@pytest.mark.parametrize("part", own_parts())
def test_fp8_products_slow_down_with_tokens_less_than_the_fit_says(part):
    """cuBLAS grows less from 1 to 256 tokens than DeepGEMM's fit: the sign of a miss that the page tells."""
    rows = own_rows(part)
    chosen = [
        r for r in rows if (r["kernel"], r["backend"], r["n"], r["k"]) == ("gemm", "cublas-block", "6144", "16384")
    ]
    times = {int(row["m"]): float(row["time_us"]) for row in chosen}
    deep = [f for f in kernel_fits(part) if f.kernel == "gemm" and "DeepGemm" in f.backend]
    ends = [row for row in chosen if row["m"] in ("1", "256")]
    one = next(b for b in beside_fits(part, deep, ends) if b.fit.engine.startswith("vllm"))
    grown = dict(zip((int(row["m"]) for row in ends), one.ratio, strict=True))
    assert times[256] / times[1] < 1.5
    assert grown[256] / grown[1] > 1.25


def test_the_page_compares_the_tables_with_the_fits():
    section = own_section({part: kernel_fits(part) for part in own_parts()})
    assert section in (ROOT / "docs/kernels.md").read_text(encoding="utf-8")


def test_a_part_without_fits_has_no_section():
    assert own_section({}) == ""


@pytest.mark.parametrize("part", own_parts())
def test_a_campaign_has_its_card_and_its_log(part):
    for folder in (ROOT / "calibration/kernels" / part).iterdir():
        about = json.loads((folder / "about.json").read_text())
        assert part.split("-")[0].upper() in about["name"]
        assert {row["device"] for row in own_rows(part)} == {about["name"]}
        assert "rows in" in (folder / "log.txt").read_text()
