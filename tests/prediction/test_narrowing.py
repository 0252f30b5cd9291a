"""How far a run would narrow a plan's intervals: the posterior of a site's calibration, before the run is made."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glmplan.measure.predicted_steps import Case, fit_site, predicted_steps
from glmplan.planner.ask import deployment
from glmplan.planner.ranking import load_of
from glmplan.prediction.effects import load_effects, site_spread
from glmplan.prediction.evidence import narrowed, site_deviation
from glmplan.prediction.predict import predict
from glmplan.prediction.step_models import runs_on_accelerators

COUNTS = (1, 8, 32)


@pytest.fixture(scope="module", params=["gpt-oss-120b", "llama-3.1-8b-fp8"])
def planned(request):
    found = deployment(request.param, "1xrtx-pro-6000-ws", input=2048, output=512)
    loads = [load_of(found.asked, found.deployment, found.holding.pool, users, 1) for users in COUNTS]
    return found.deployment, loads


def test_what_a_run_would_leave_open_is_what_the_calibration_on_it_leaves_open(planned):
    """The run comes out as predicted; then `validate --calibrate-on` computes the same from the run itself."""
    one, loads = planned
    said = narrowed(one, loads)
    cases = [Case(users, one, load) for users, load in zip(COUNTS, loads, strict=True)]
    for place, case in enumerate(cases):
        figures = predict(one, case.load).figures
        measured = {"ttft_mean_ms": 1e3 * figures["ttft"].value, "tpot_mean_ms": 1e3 * figures["tpot"].value}
        steps, _ = predicted_steps(cases, site=fit_site([case], [measured]))
        for asked, step in zip(said[place], steps, strict=True):
            for name in ("ttft", "tpot"):
                column = f"{name}_mean_ms"
                half = 0.5 * math.log(step.high[column] / step.low[column])
                # the calibration trusts a row that goes with the fit 1.25 times, as under Student's t
                assert asked[name] == pytest.approx(half, rel=0.032)


def test_a_load_that_is_measured_itself_stays_open_least(planned):
    one, loads = planned
    found = narrowed(one, loads)
    for place in range(len(loads)):
        assert min(row[place]["tpot"] for row in found) == pytest.approx(found[place][place]["tpot"], rel=0.02)


def test_a_machine_may_differ_by_every_level_that_nobody_measured_and_by_its_own():
    one = deployment("gpt-oss-120b", "1xb300-sxm").deployment
    fit = load_effects(one.engine)
    own = site_spread(fit.spread)[-2]  # the configuration
    assert np.all(site_deviation(one, fit) >= own)
    known = deployment("gpt-oss-120b", "1xh100-sxm").deployment
    assert site_deviation(known, fit)[0] < site_deviation(one, fit)[0]


def test_a_run_of_a_plan_with_experts_on_the_processors_moves_nothing():
    one = deployment("glm-5.1-fp8", "genoa-2s-direct-8", engine="ktransformers")
    assert not runs_on_accelerators(one.deployment)
    load = load_of(one.asked, one.deployment, one.holding.pool, 1, 1)
    assert narrowed(one.deployment, [load]) == []
