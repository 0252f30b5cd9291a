"""The seed systems: bounds by arithmetic, verdicts by rule, and the machine that froze."""

from __future__ import annotations

import math

import pytest
from seed_systems import bandwidth_bound, claim_verdict, crashed_system

from glmplan.io.runs.table import run_from_row
from glmplan.planner.hazards import Hazard
from glmplan.prediction.from_row import question_of
from glmplan.prediction.predict import Figure

ROW = {
    "id": "a", "model": "llama-3.1-8b", "weights": "bf16", "accelerator": "h100-sxm", "accelerator_count": "1",
    "tp": "1", "engine": "vllm",
}  # fmt: skip
DANGER = Hazard("display-starved", "danger", "", "", "", "", "", "")


def test_a_dense_model_in_bf16_reads_two_bytes_for_each_weight():
    # Llama-3.1-8B: 8.03e9 weights less the embedding of 0.525e9, and 3.35 TB/s
    bound = bandwidth_bound(question_of(run_from_row(ROW)).deployment, requests=1.0, context=0.0)
    assert bound == pytest.approx(3.35e12 / (2 * 7.505e9), rel=0.002)


def test_two_users_of_a_dense_model_share_one_reading():
    deployment = question_of(run_from_row(ROW)).deployment
    one, two = (bandwidth_bound(deployment, requests=users, context=0.0) for users in (1.0, 2.0))
    assert two == pytest.approx(2 * one, rel=1e-6)


def test_context_lowers_the_bound():
    deployment = question_of(run_from_row(ROW)).deployment
    short, long = (bandwidth_bound(deployment, requests=1.0, context=context) for context in (0.0, 1e5))
    assert long < short


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (25.0, "agrees"),
        (500.0, "implausible: above the bound"),
        (60.0, "above the interval"),
        (5.0, "below"),
        (40.03, "less than 1% above"),
        (19.99, "less than 1% below"),
        (40.3, "1% above"),
    ],
)
def test_a_claim_is_judged_by_bound_and_interval(measured, words):
    assert words in claim_verdict(measured, Figure(30.0, 20.0, 40.0), 200.0, ())


def test_a_danger_comes_before_every_speed():
    assert claim_verdict(25.0, Figure(30.0, 20.0, 40.0), 200.0, (DANGER,)) == "this would be unsafe: display-starved"


def test_the_run_that_froze_its_machine_is_unsafe_and_slow():
    system = crashed_system()
    assert system.verdict == "this would be unsafe: display-starved"
    assert math.isnan(system.measured)
    # 160 GB over four links of at most 63 GB/s each take 0.6 s a step at least
    assert system.predicted.value < 69 / 0.6
