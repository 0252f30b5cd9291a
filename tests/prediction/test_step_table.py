"""Fitting and predicting read the same table of work, and a table gives what each deployment gives alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step import observations as design
from glmplan.catalog.entries.hosts import implied_host
from glmplan.catalog.files import data_folder
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.step.model import ROUTED, FrontPoints, GpuSteps
from glmplan.costs.step.work import KERNELS, SLOTS
from glmplan.errors import GlmplanError
from glmplan.io.runs.table import read_runs
from glmplan.prediction import predict as predicting
from glmplan.prediction.effects import keys_of, load_effects
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import metrics_of
from glmplan.prediction.predict import predict_many
from glmplan.prediction.step_models import bounded_tables, least_of, step_model_of, step_parameters, step_tables


@pytest.fixture(scope="module")
def questions():
    found = []
    for name in ("rtx6kpro-wiki.csv", "llama-cpp-strix-halo.csv", "trtllm-perf-overview.csv", "field-reports-glm.csv"):
        for run in list(read_runs(data_folder("calibration") / "measurements" / name))[::23][:12]:
            try:
                question = question_of(run)
                question.deployment.structure.part.rate("bf16")
            except GlmplanError:
                continue
            found.append(question)
    assert len(found) > 20
    # layouts and drafting that one group mixes, and another part
    first = found[0].deployment
    links = links_of_layout(implied_host(first.accelerator, 4), tp=2, pp=2)
    found.append(replace(found[0], deployment=first.with_layout(links, tp=2, pp=2)))
    return found


def test_what_is_fitted_is_what_is_predicted(questions, monkeypatch):
    """Both callers get the rows of the one function; a power of two lanes may be rounded otherwise than that of one."""
    seen = [metrics_of(one.load) for one in questions]
    fitted = design.work_table(questions, seen)
    given = {}

    def kept(*arguments):
        for members, table, least in bounded_tables(*arguments):
            given.update({tuple(members): table})
            yield members, table, least

    monkeypatch.setattr(predicting, "bounded_tables", kept)
    predict_many([(one.deployment, one.load, None) for one in questions])
    starts = np.concatenate([[0], np.cumsum([len(one.decode_requests) for one in seen])])
    assert sorted(m for members in given for m in members) == list(range(len(questions)))
    for members, table in given.items():
        rows = np.concatenate([np.arange(starts[m], starts[m + 1]) for m in members])
        np.testing.assert_allclose(table, fitted[rows], rtol=1e-14)
    assert len(given) < len(questions), "no group holds two deployments"


def test_a_table_of_many_deployments_gives_what_each_gives_alone(questions):
    """Kinds of step, front end and layouts of one deployment do not leak into the rows of another."""
    effects = load_effects("vllm")
    seen = [metrics_of(one.load) for one in questions]
    fronts = [FrontPoints(o.arrivals, o.prompt, q.load.pass_tokens) for o, q in zip(seen, questions, strict=True)]
    tables = step_tables([one.deployment for one in questions], [one.points for one in seen], fronts)
    for members, table in tables:
        start = 0
        for member in members:
            alone = step_model_of(questions[member].deployment, effects=effects)
            assert isinstance(alone, GpuSteps)
            total, _ = effects.sum_of(keys_of(questions[member].deployment))
            rows = table[start : start + len(seen[member].decode_requests)]
            start += len(rows)
            bounded = step_parameters(questions[member].deployment, total)
            together = (rows * np.exp(bounded)).sum(axis=1)
            times = alone.times(seen[member].points, fronts[member])
            np.testing.assert_allclose(times.seconds, together, rtol=1e-12)
        assert start == len(table)


def test_a_bound_computed_beside_its_work_is_the_bound_alone(questions):
    """What reaches the data sheet stands in a lane of its own: it takes nothing from the kernels as they are."""
    seen = [metrics_of(one.load) for one in questions]
    fronts = [FrontPoints(o.arrivals, o.prompt, q.load.pass_tokens) for o, q in zip(seen, questions, strict=True)]
    given = [one.deployment for one in questions], [one.points for one in seen]
    alone = least_of(*given)
    for members, table, least in bounded_tables(*given, fronts):
        np.testing.assert_allclose(least, np.concatenate([alone[m] for m in members]), rtol=1e-12)
        steps = table[:, SLOTS.index("host")] > 0
        assert steps.any() and (least[steps] > 0).all()
        kernels = table[:, [SLOTS.index(one) for one in KERNELS]].sum(axis=1)
        assert (ROUTED * least[steps] <= kernels[steps]).all()
