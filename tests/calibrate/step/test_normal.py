"""The normal equations against the same as dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.calibrate.step.joint_fit import (
    cells_of,
    evaluate,
    linearised,
    normal_equations,
    prior_deviation,
    prior_mean,
    solve,
    summed,
)
from glmplan.prediction.effects import COLUMNS, LEVELS


@pytest.fixture(scope="module")
def fitted(small_fit):
    design = small_fit[0].design
    return design, solve(design)


def dense(design, solution):
    """Derivative of every figure over its noise by every effect over its spread, and these effects."""
    sigma = prior_deviation(design, solution.spreads.effect)
    first = cells_of(design).first
    slope = evaluate(design, summed(design, solution.effects))[1] * solution.root[:, None]
    rows = np.zeros((len(slope), *sigma.shape))
    for figure, run in enumerate(design.observation_run):
        for level in range(len(LEVELS)):
            key = first[level] + design.keys[run, level]
            rows[figure, key] += slope[figure] * sigma[key]
    z = np.concatenate([solution.effects[0] - prior_mean(), *solution.effects[1:]]) / sigma
    return rows.reshape(len(slope), -1), z.ravel(), slope


def test_the_fit_is_the_ridge_regression_around_the_prior_mean(fitted):
    """Solve [M; I] dz = [r; -z] densely at the optimum: nothing is left to move."""
    design, solution = fitted
    matrix, z, _ = dense(design, solution)
    stacked = np.vstack([matrix, np.eye(len(z))])
    step = np.linalg.lstsq(stacked, np.concatenate([solution.root * solution.residual, -z]), rcond=None)[0]
    # in deviations of the posterior, as the tolerance is stated
    assert np.sqrt(step @ (matrix.T @ matrix + np.eye(len(z))) @ step) < 0.011
    assert np.abs(matrix @ step / solution.root).max() < 2e-3
    assert np.abs(z).max() > 0.5


def test_one_step_from_anywhere_is_the_exact_ridge_step(fitted):
    design, _ = fitted
    there = solve(design, enough=10.0)
    matrix, z, slope = dense(design, there)
    normal = normal_equations(cells_of(design), slope, prior_deviation(design, there.spreads.effect))
    gradient = z - matrix.T @ (there.root * there.residual)
    step = np.linalg.solve(matrix.T @ matrix + np.eye(len(z)), -gradient)
    found = -normal.posterior_times(gradient.reshape(-1, len(COLUMNS)))
    np.testing.assert_allclose(found.ravel(), step, atol=1e-7 * np.abs(step).max() + 1e-9)


def test_leverage_and_transpose_are_those_of_the_dense_matrix(fitted):
    design, solution = fitted
    matrix, z, _ = dense(design, solution)
    normal = linearised(design, solution)
    posterior = np.linalg.inv(matrix.T @ matrix + np.eye(len(z)))
    np.testing.assert_allclose(normal.leverages(), np.einsum("ij,jk,ik->i", matrix, posterior, matrix), atol=1e-5)
    assert 0.0 <= normal.leverages().min() <= normal.leverages().max() <= 1.0
    rng = np.random.default_rng(3)
    effects, pull = rng.normal(size=(len(z) // len(COLUMNS), len(COLUMNS))), rng.normal(size=len(normal.rows))
    assert (normal.backward(pull) * effects).sum() == pytest.approx(normal.forward(effects) @ pull)


def test_figures_of_one_cell_say_no_more_than_its_parameters(fitted):
    normal = linearised(*fitted)
    assert len(normal.rows) < len(fitted[0].log_seconds)
    assert np.bincount(normal.cell).max() <= len(COLUMNS)
