"""Spreads by what is predicted of runs left out: the score against fits without them, its derivative by differences."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.calibrate.step.joint_fit import linearised, prior_deviation, prior_mean, solve
from glmplan.calibrate.step.normal import normal_equations, reweighted
from glmplan.calibrate.step.predictive import blocks_of, learn_spreads, score_left_out
from glmplan.prediction.effects import COLUMNS, LEVELS


@pytest.fixture(scope="module")
def fitted(small_fit):
    design = small_fit[0].design
    solution = solve(design)
    normal = linearised(design, solution)
    z = np.concatenate([solution.effects[0] - prior_mean(), *solution.effects[1:]]) / normal.sigma
    scaled = solution.root * solution.residual
    return design, solution, normal, scaled, normal.turned(scaled) + normal.forward(z)


def models(design):
    return np.array([question.deployment.model.name for question in design.questions])[design.observation_run]


def test_a_block_is_predicted_as_by_the_fit_without_it(fitted):
    """Student's density of each figure of one model, from normal equations that do not hold its rows."""
    design, solution, normal, scaled, target = fitted
    name = models(design)
    out = name == name[0]
    blocks = blocks_of(name, np.ones(len(name), dtype=bool))
    only = type(blocks)(blocks.of_figure, np.where(out, 1.0, 0.0))
    score, _ = score_left_out(normal, scaled, target, [only])
    slope = np.zeros((len(scaled), len(COLUMNS)))
    for cell, members in enumerate(normal.cells.members):
        low, high = np.searchsorted(normal.cell, [cell, cell + 1])
        slope[members] = normal.turns[cell] @ normal.rows[low:high]
    others = normal_equations(normal.cells, np.where(out[:, None], 0.0, slope), normal.sigma)
    z = np.concatenate([solution.effects[0] - prior_mean(), *solution.effects[1:]]) / normal.sigma
    wanted = scaled + (slope * normal.cells.sums(normal.sigma * z)[normal.cells.of_figure]).sum(axis=1)
    effects = others.backward(others.solve(others.turned(np.where(out, 0.0, wanted))))
    expected = 0.0
    for figure in np.flatnonzero(out):
        # its derivative by all effects over their spread
        rows = np.zeros((len(normal.cells.keys), len(COLUMNS)))
        rows[normal.cells.of_figure[figure]] = slope[figure]
        derivative = normal.sigma * normal.cells.gathered(rows)
        error = wanted[figure] - (derivative * effects).sum()
        variance = 1.0 + (derivative * others.posterior_times(derivative)).sum()
        expected -= 0.5 * np.log(variance) + 2.5 * np.log1p(error**2 / variance / 4.0)
    assert score == pytest.approx(expected, rel=1e-4)


def test_the_slope_is_that_of_the_score(fitted):
    design, solution, normal, scaled, target = fitted
    ways = [blocks_of(models(design), np.ones(len(scaled), dtype=bool))]
    _, slope = score_left_out(normal, scaled, target, ways)
    for level, column in (("all", "host_seconds"), ("engine_model", "gemm_bytes_slowdown"), ("release", "scale")):
        at = LEVELS.index(level), COLUMNS.index(column)
        around = []
        for step in (1e-4, -1e-4):
            spread = solution.spreads.effect.copy()
            spread[at] *= np.exp(step)
            there = reweighted(normal, prior_deviation(design, spread))
            around.append(score_left_out(there, scaled, target, ways)[0])
        assert slope[at] == pytest.approx((around[0] - around[1]) / 2e-4, rel=1e-3, abs=1e-5)


def test_learnt_spreads_predict_what_is_left_out_better(fitted):
    design, solution, normal, scaled, target = fitted
    ways = [blocks_of(models(design), np.ones(len(scaled), dtype=bool))]
    found = learn_spreads(design, solution, ways)
    there = reweighted(normal, prior_deviation(design, found.spreads.effect))
    assert score_left_out(there, scaled, target, ways)[0] > score_left_out(normal, scaled, target, ways)[0]
    assert found.distance < 0.01


def test_rows_of_a_large_block_weigh_less_each_and_more_together():
    blocks = blocks_of(np.array(["a"] * 9 + ["b"]), np.ones(10, dtype=bool))
    assert blocks.weight[0] == pytest.approx(1.0 / 3.0)
    assert blocks.weight[:9].sum() > blocks.weight[9] == 1.0
