"""Sums of effects become parameters of the step time: what moves whole steps leaves the front end alone."""

from __future__ import annotations

import numpy as np

from glmplan.physics.step.time import PARAMETERS
from glmplan.prediction.effects import COLUMNS, SCALE, TTFT_SCALE, log_parameters

FRONT = ("arrival_seconds", "prompt_token_seconds")


def test_a_factor_on_whole_steps_leaves_the_front_end_as_it_is():
    effects = np.zeros((1, len(COLUMNS)))
    effects[0, SCALE] = np.log(2.0)
    doubled = dict(zip(PARAMETERS, np.exp(log_parameters(effects)[0]), strict=True))
    assert {doubled[name] for name in FRONT} == {1.0}
    assert {round(value, 12) for name, value in doubled.items() if name not in FRONT} == {2.0}


def test_a_factor_on_first_tokens_moves_no_parameter_of_a_step():
    effects = np.zeros((1, len(COLUMNS)))
    effects[0, TTFT_SCALE] = 1.0
    assert (log_parameters(effects) == 0.0).all()
