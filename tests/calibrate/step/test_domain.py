"""Which loads count as measured: what a table leaves out, or cannot say, bounds nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glmplan.calibrate.step.observations import domains_of
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import load_effects
from glmplan.prediction.from_row import question_of
from glmplan.prediction.step_models import with_site

SERVED = Run("one", "kimi-k2.5", "h200-sxm", accelerator_count=8, tp=8, engine="vllm", weights="int4", phase="serving",
             concurrency=4.0, input_tokens=1000.0, output_tokens=500.0)  # fmt: skip


def ranges(*runs):
    [found] = domains_of([question_of(run) for run in runs]).values()
    return found


def test_a_range_holds_all_that_was_measured():
    assert ranges(SERVED, replace(SERVED, concurrency=16.0, input_tokens=8000.0)) == [4, 16, 1000, 8000, 500, 500]


def test_a_prompt_alone_says_nothing_of_answers():
    prompts = replace(SERVED, phase="prefill", concurrency=1.0, input_tokens=64000.0, output_tokens=None)
    assert ranges(prompts) == [1, 1, 64000, 64000, 0, np.inf]
    assert ranges(prompts, SERVED) == [1, 4, 1000, 64000, 500, 500]


def test_a_length_that_is_not_stated_bounds_nothing():
    assert ranges(replace(SERVED, output_tokens=None))[4:] == [0, np.inf]


def test_a_site_widens_what_was_measured_only_by_what_its_rows_say():
    effects = load_effects("vllm")
    shipped = with_site(effects, {}, domain={"g": [4.0, 16.0, 1000.0, 8000.0, 500.0, 500.0]})
    silent = with_site(shipped, {}, domain={"g": [1.0, 8.0, 2000.0, 2000.0, 0.0, np.inf]})
    assert silent.domain["g"] == [1, 16, 1000, 8000, 500, 500]
    spoken = with_site(silent, {}, domain={"g": [2.0, 2.0, 0.0, np.inf, 900.0, 900.0], "h": [1, 1, 0, np.inf, 7, 7]})
    assert spoken.domain["g"] == [1, 16, 1000, 8000, 500, 900] and spoken.domain["h"] == [1, 1, 0, np.inf, 7, 7]
