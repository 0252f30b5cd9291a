"""One sign for errors: predicted too high is positive, whatever command says it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_accuracy import HybridRow

from glmplan.calibrate.backtest.scores import score
from glmplan.cli import main
from glmplan.io.runs.table import run_from_row
from glmplan.measure.memory_comparison import MemoryLine
from glmplan.measure.predicted_steps import Compared as Step
from glmplan.prediction.predict import Figure
from glmplan.prediction.reproduce import Compared, relative_error, verdict_of
from glmplan.present.validation_page import compared_json

POSITIVE = st.floats(min_value=1e-3, max_value=1e6)


@given(POSITIVE, POSITIVE)
def test_every_place_gives_the_error_the_same_sign_and_size(predicted, measured):
    error = float(relative_error(predicted, measured))
    assert (error > 0) == (predicted > measured) or error == 0
    run = run_from_row({"id": "a", "model": "glm-5", "accelerator": "b200-sxm"})
    said = [
        Compared("tpot_mean_ms", measured, Figure(predicted, predicted, predicted), "").difference,
        Step(1.0, "tpot_mean_ms", measured, predicted).difference,
        compared_json([Step(1.0, "tpot_mean_ms", measured, predicted)], [])["figures"][0]["difference"],
        MemoryLine("pool", "GiB", measured, predicted, 0).difference,
        HybridRow(run, "", "", "", "decode", measured, predicted, True, "").error,
    ]
    assert said == [error] * len(said)
    assert score(np.log([predicted / measured])).bias == pytest.approx(error, abs=1e-9, rel=1e-9)


def test_errors_of_arrays_are_those_of_their_elements():
    predicted, measured = np.array([[1.0], [2.0]]), np.array([1.0, 4.0])
    assert relative_error(predicted, measured).tolist() == [[0.0, -0.75], [1.0, -0.5]]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(0.0999, "reproduced"), (-0.0999, "reproduced"), (0.11, "in between"), (-0.19, "in between"),
     (0.21, "different"), (-0.21, "different")],
)  # fmt: skip
def test_the_borders_are_ten_and_twenty_percent_to_both_sides(error, verdict):
    assert verdict_of(error) == verdict


ROW = ("id,model,weights,accelerator,accelerator_count,tp,engine,phase,concurrency,input_tokens,output_tokens,"
       "tpot_mean_ms\nmine,glm-5,fp8,b200-sxm,8,8,sglang,serving,32,8192,1024,{tpot}\n")  # fmt: skip


@pytest.mark.parametrize(("tpot", "sign"), [("1.0", "+"), ("1000", "-")])
def test_reproduce_prints_a_prediction_that_is_too_high_with_a_plus(tmp_path, capsys, tpot, sign):
    file = tmp_path / "runs.csv"
    file.write_text(ROW.format(tpot=tpot))
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit):
            main(["reproduce", "mine", "--runs", str(file), *more])
    out = capsys.readouterr().out
    line, _, rest = out.partition("{")
    percent = next(text for text in line.splitlines() if "tpot_mean_ms" in text).partition(")")[2].split()[0]
    assert percent.startswith(sign)
    (figure,) = json.loads("{" + rest)["figures"]
    assert figure["difference"] == pytest.approx(figure["predicted"] / figure["measured"] - 1.0)
