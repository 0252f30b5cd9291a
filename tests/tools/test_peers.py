"""The comparison with AISimulate: the same question for both, and errors of the same sign."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from glmplan.calibrate.step import write
from glmplan.calibrate.step.crossvalidate import MODES, Errors
from glmplan.io.runs.record import Run
from glmplan.prediction.from_row import question_of

spec = importlib.util.spec_from_file_location("peers", Path(__file__).resolve().parents[2] / "tools" / "peers.py")
assert spec is not None and spec.loader is not None
peers = importlib.util.module_from_spec(spec)
sys.modules["peers"] = peers
spec.loader.exec_module(peers)


def case_of(**more):
    row = {"model": "qwen3-32b", "accelerator": "h100-sxm", "accelerator_count": 4, "tp": 2, "dp": 2, "engine": "vllm",
           "weights": "fp8-block", "concurrency": 64.0, "input_tokens": 1000.0, "output_tokens": 200.0,
           "length_range": (0.8, 1.0)}  # fmt: skip
    return question_of(Run("a", **(row | more)))


def test_a_run_is_asked_with_its_layout_mean_lengths_and_share_of_each_rank():
    asked = peers.question_for(case_of())
    layout = {"tp_size": 2, "pp_size": 1, "attention_dp_size": 2}
    assert asked["plan"] == {"system_name": "h100_sxm", "backend_name": "vllm"} | layout
    assert asked["load"] == {"isl": 900, "osl": 180, "batch_size": 64 // (2 * asked["replicas"])}


@pytest.mark.parametrize("more", [{"accelerator": "mi355x"}, {"engine": "llama.cpp"}, {"offload": True}])
def test_a_run_without_words_of_the_peer_is_counted_with_its_cause(more):
    assert isinstance(peers.question_for(case_of(**more)), str)


def test_files_of_another_format_than_the_run_are_asked_with_its_format():
    """A table names the model in place of the files that were served."""
    asked = peers.question_for(case_of(checkpoint="Qwen/Qwen3-32B"))
    known = {"qwen3-32b": "Qwen/Qwen3-32B"}
    words, ways = next(peers.attempts(asked, known))
    assert words["model_path"] == "Qwen/Qwen3-32B" and words["gemm_quant_mode"] == "fp8_block"
    assert "other checkpoint" in ways
    words, ways = next(peers.attempts(asked, known | {"qwen3-32b-fp8": "Qwen/Qwen3-32B-FP8"}))
    assert words["model_path"] == "Qwen/Qwen3-32B-FP8" and "gemm_quant_mode" not in words
    assert "other checkpoint" not in ways


def test_measured_tables_come_before_formulas_and_the_own_version_before_another():
    asked = peers.question_for(case_of(engine_version="0.24.0"))
    found = [
        (words["database_mode"], "backend_version" in words) for words, _ in peers.attempts(asked, {"qwen3-32b": "a"})
    ]
    assert found == [(mode, own) for mode in ("SILICON", "HYBRID", "EMPIRICAL") for own in (True, False)]


def test_both_errors_of_a_time_and_of_a_rate_are_predicted_over_measured(monkeypatch):
    """Predicted times are half the measured ones, predicted rates twice."""
    case = case_of(observed={"tpot_mean_ms": 20.0, "output_tokens_per_s": 100.0})
    residual = np.array([math.log(2), math.log(2)])  # of seconds: log(measured / predicted)
    errors = tuple(Errors(mode, residual, np.array(["pair", "pair"])) for mode in MODES)
    columns = np.array(["tpot_mean_ms", "output_tokens_per_s"])
    left_out = write.LeftOut(("a", "a"), columns, errors, np.array([math.nan, math.nan]))
    monkeypatch.setattr(write, "read_left_out", lambda: left_out)
    pairs = peers.pairs_of([case], {"a": {"tpot": 10.0, "ttft": 0.0, "rate": 200.0}})
    assert [one.metric for one in pairs] == ["TPOT", "output rate"]
    assert [one.own for one in pairs] == pytest.approx([-math.log(2), math.log(2)])
    assert [one.peer for one in pairs] == pytest.approx([-math.log(2), math.log(2)])


def test_a_group_has_one_vote_however_many_rows_it_has():
    rows = [("a", 1.1)] * 9 + [("b", 1.5)]
    pairs = [peers.Pair("TPOT", group, "vllm", "h100-sxm", "2026", math.log(error), 0.0) for group, error in rows]
    assert peers.by_group(pairs)[0] == pytest.approx([0.1, 0.5])


def test_the_chart_of_the_page_holds_every_line_of_its_tables_of_groups():
    pytest.importorskip("vl_convert")
    text = peers.PAGE.read_text(encoding="utf-8")
    assert peers.CHART in text
    lines = [part.split("\n\n")[0].splitlines() for part in text.split("\n".join(peers._HEAD) + "\n")[1:]]
    names = [line.split("|")[1:3] for table in lines for line in table]
    shipped = (peers.PAGE.parent / "accuracy" / "peers.svg").read_text(encoding="utf-8")
    for svg in (peers.chart(text).decode(), shipped):
        assert len(names) >= 10 and all(f">{name.strip()} ({groups.strip()})<" in svg for name, groups in names)
