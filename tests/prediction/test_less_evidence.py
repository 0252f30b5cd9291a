"""An engine that was never measured on a part has no narrower interval than one that was, for the same question."""

from __future__ import annotations

import itertools

import pytest

from glmplan.catalog.engines.limitations import engine_names
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.costs.points import Layout
from glmplan.prediction.deployment import deploy
from glmplan.prediction.effects import LEVELS, keys_of, load_effects
from glmplan.prediction.evidence import KINDS, evidence_from_fit
from glmplan.prediction.load import Load

PARTS = ("h100-sxm", "b200-sxm", "mi300x", "rtx-pro-6000-ws", "rtx-4090", "rtx-3090", "dgx-spark", "a100-80gb-sxm")
MODELS = (("glm-5.1", "nvfp4"), ("llama-3.1-8b", "bf16"), ("qwen3-235b-a22b", "fp8"), ("gpt-oss-120b", "mxfp4"))
LOADS = tuple(
    Load(float(concurrency), float(prompt), 512.0, phase="serving")
    for concurrency, prompt in itertools.product((1, 32, 512, 4096), (128, 2048, 100_000))
)


def _known(engine, model, checkpoint, part, load):
    found = deploy(model, checkpoint, part, engine=engine, layout=Layout(tp=2))
    fit, keys = load_effects(engine), keys_of(found)
    levels = fit.sum_of(keys)[1]
    return levels[LEVELS.index("engine_accelerator")], evidence_from_fit(found, load, keys, levels, 0.0, fit)


@pytest.mark.parametrize("name", PARTS)
def test_an_engine_never_measured_on_a_part_has_no_narrower_interval_than_one_that_was(name):
    part, compared = load_accelerator(name), 0
    for (model, weights), load in itertools.product(MODELS, LOADS):
        spec = load_model(model)
        found = [_known(engine, spec, spec.checkpoint(weights), part, load) for engine in engine_names()]
        for measured, unmeasured in itertools.product(found, found):
            if not measured[0] or unmeasured[0]:
                continue
            for kind in KINDS:
                (low, high), (lowest, highest) = measured[1].ends[kind], unmeasured[1].ends[kind]
                assert lowest <= low and highest >= high, (kind, measured[1].knowledge, unmeasured[1].knowledge)
                compared += 1
    assert compared > 0
