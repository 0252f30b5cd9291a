"""Sums of effects become parameters of the step time: what moves whole steps leaves the front end alone."""

from __future__ import annotations

import numpy as np

from glmplan.costs.step.model import PARAMETERS
from glmplan.prediction.effects import (
    COLUMNS,
    LEVELS,
    SCALE,
    TTFT_SCALE,
    Effects,
    log_parameters,
    measured_build,
    of_machine,
)

FRONT = ("arrival_seconds", "prompt_token_seconds", "wake_seconds")


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


def test_a_release_that_is_named_without_a_month_is_what_it_was_in_the_mean_over_its_months():
    rows = {"0.9.0 2025-06": 1.0, "0.9.0 2025-08": 2.0, "0.9.0 2025-08 eager": 4.0, "unstated 2025-08": 8.0}
    effects = {f"vllm a llama 8x2 bf16 {key}": np.full(len(COLUMNS), one) for key, one in rows.items()}
    fit = Effects({"release": effects}, np.zeros(0), {}, {})

    def of(key):
        total, known = fit.sum_of((*("",) * (len(LEVELS) - 1), key))
        assert known[-1] == (total != 0).any()
        return total[0]

    assert of("vllm a llama 8x2 bf16 0.9.0 ") == 1.5 and of("vllm a llama 8x2 bf16 0.9.0 2025-08") == 2.0
    assert of("vllm a llama 8x2 bf16 0.9.0  eager") == 4.0
    assert of("vllm a llama 8x2 bf16 0.9.0 2025-07") == 1.5  # a month in which nobody measured it
    assert of("vllm a llama 8x2 bf16 unstated ") == of("vllm a llama 8x2 bf16 unstated 2025-07") == 0.0
    assert of("vllm a llama 8x2 bf16 0.9.1 ") == of("vllm b llama 8x2 bf16 0.9.0 ") == 0.0


def test_what_a_site_measured_holds_its_build():
    keys = tuple(f"vllm {level}" for level in LEVELS)
    effects = {level: {key: np.ones(len(COLUMNS))} for level, key in zip(LEVELS, keys, strict=True)}
    shipped = Effects(effects, np.zeros(0), {}, {})
    site = Effects(effects, np.zeros(0), {}, {}, site=frozenset({"vllm configuration"}))
    assert shipped.sum_of(keys)[0][0] == len(LEVELS) and site.sum_of(keys)[0][0] == len(LEVELS) - 2


def test_a_machine_has_effects_of_its_own_where_nothing_was_measured_but_of_no_build_and_no_reference():
    keys = tuple("vllm plain" if level == "engine_draft" else f"vllm {level}" for level in LEVELS)
    found = {LEVELS[place] for place in of_machine(keys, (False,) * len(LEVELS))}
    assert found == set(LEVELS) - {"engine_draft", "engine_release", "release"}
    assert [LEVELS[place] for place in of_machine(keys, (True,) * len(LEVELS))] == ["configuration"]


def test_a_build_is_measured_where_it_is_or_releases_around_it_are():
    rows = ["vllm a llama 8x2 bf16 0.9.0 2025-06", "vllm a llama 8x2 bf16 0.11.2  draft 1",
            "vllm a llama 8x2 fp8 unstated 2026-03", "vllm b llama 8x2 bf16 0.12.0 2026"]  # fmt: skip
    fit = Effects({"release": dict.fromkeys(rows, np.zeros(1))}, np.zeros(0), {}, {})
    asked = {f"vllm a llama 8x2 bf16 {release}": expected for release, expected in {
        "0.9.0 ": True, "0.10.1 ": True, "0.11.2 2026-01 eager": True, "0.12.0 ": False, "0.8.5 ": False,
        "unstated ": False}.items()}  # fmt: skip
    asked |= {"vllm a llama 8x2 fp8 unstated 2026-03": True, "vllm a llama 8x2 fp8 unstated 2026-04": False,
              "vllm a llama 8x2 fp8 0.9.0 ": False, "vllm c llama 8x2 bf16 0.9.0 ": False}  # fmt: skip
    assert {key: measured_build(fit, key) for key in asked} == asked
