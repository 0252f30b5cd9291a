"""`fit --calibration`: a site's own runs move its plan."""

from __future__ import annotations

import csv
import io

import pytest

from glmplan.cli import main

HEADER = (
    "id,model,weights,kv_cache,accelerator,accelerator_count,tp,pp,engine,engine_version,cuda_graphs,phase,"
    "concurrency,input_tokens,output_tokens,tpot_mean_ms"
)


def run(words):
    try:
        main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def plan(capsys, *more):
    words = ["fit", "llama-3.1-70b-fp8", "--on", "4xh100-sxm", "--tp", "4", "--engine", "vllm", "--users", "8"]
    assert run([*words, "--input", "1024", "--output", "256", "--format", "csv", *more]) == 0
    return next(iter(csv.DictReader(io.StringIO(capsys.readouterr().out))))  # users come before ranks


def test_a_site_that_is_slower_gets_a_slower_plan(tmp_path, capsys):
    before = float(plan(capsys)["tpot_mean_ms"])
    runs, site = tmp_path / "runs.csv", tmp_path / "site.toml"
    rows = [
        f"mine-{users},llama-3.1-70b,fp8,,h100-sxm,4,4,1,vllm,,,serving,{users},1024,256,{1.4 * before * factor:.3f}"
        for users, factor in ((4, 0.9), (8, 1.0))
    ]
    runs.write_text("\n".join([HEADER, *rows]) + "\n")
    assert run(["calibrate", "--from", str(runs), "--save", str(site)]) == 0
    capsys.readouterr()
    after = float(plan(capsys, "--calibration", str(site))["tpot_mean_ms"])
    assert after == pytest.approx(1.4 * before, rel=0.12)
    # a plan that the site's runs are not of says so, and which they are
    words = ["fit", "llama-3.1-70b-fp8", "--on", "4xh100-sxm", "--tp", "4", "--calibration", str(site)]
    assert run(words) == 0
    assert capsys.readouterr().err == ""
    assert run([*words, "--eager"]) == 0
    note = capsys.readouterr().err
    assert note.startswith("note: this plan is `vllm h100-sxm llama 8192x80 fp8 tp4 pp1 dp1 ep1 dcp1 eager`")
    assert note.endswith("nearest: `vllm h100-sxm llama 8192x80 fp8 tp4 pp1 dp1 ep1 dcp1`\n")


def test_a_file_that_is_no_calibration_is_refused(tmp_path, capsys):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('name = "no"\n')
    assert run(["fit", "qwen3-8b", "--on", "1xh100-sxm", "--calibration", str(wrong)]) == 2
    assert "wrong.toml" in capsys.readouterr().err
