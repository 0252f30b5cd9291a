"""The posterior covariance of the joint fit, against the whole matrix inverted and against what it must obey."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.calibrate.step.joint_fit import evaluate, prior_deviation, solve, summed
from glmplan.calibrate.step.write import FILE, posterior, read_constants, write_covariance
from glmplan.catalog.files import read_toml
from glmplan.errors import SpecError
from glmplan.prediction.effects import COLUMNS, LEVELS


@pytest.fixture(scope="module")
def known(small_fit):
    return posterior(small_fit[0].design, small_fit[0].solution)


def whole(design, solution):
    """Covariance of all effects at once: prior and curvature added and inverted."""
    sigma = prior_deviation(design, solution.spreads.effect).ravel()
    start = np.concatenate([[0], np.cumsum([len(names) for names in design.key_names])])
    slope = evaluate(design, summed(design, solution.effects))[1] * solution.root[:, None]
    rows = np.zeros((len(slope), len(sigma)))
    for figure, run in enumerate(design.observation_run):
        for level in range(len(LEVELS)):
            at = (start[level] + design.keys[run, level]) * len(COLUMNS)
            rows[figure, at : at + len(COLUMNS)] += slope[figure]
    return np.linalg.inv(rows.T @ rows + np.diag(sigma**-2)), start


def test_it_is_the_inverse_of_prior_and_curvature(small_fit, known):
    design, solution = small_fit[0].design, small_fit[0].solution
    matrix, start = whole(design, solution)
    deviation = np.sqrt(np.diag(matrix)).reshape(-1, len(COLUMNS))
    for level, rows in enumerate(known.deviation):
        np.testing.assert_allclose(rows, deviation[start[level] : start[level + 1]], rtol=1e-6)
    for one in known.engines:
        path = [("all", "all"), ("engine", one.engine)]
        keys = [start[LEVELS.index(level)] + design.key_names[LEVELS.index(level)].index(key) for level, key in path]
        pick = np.zeros((len(COLUMNS), len(matrix)))
        for key in keys:
            pick[:, key * len(COLUMNS) : (key + 1) * len(COLUMNS)] = np.eye(len(COLUMNS))
        np.testing.assert_allclose(one.covariance, pick @ matrix @ pick.T, rtol=1e-6, atol=1e-9)


def test_runs_narrow_the_prior_and_never_widen_it(small_fit, known):
    spread = small_fit[0].solution.spreads.effect
    for level, rows in enumerate(known.deviation):
        assert (rows <= spread[level] * (1 + 1e-9)).all()
        assert (rows > 0).all()
    assert (known.deviation[0] / spread[0]).min() < 0.9


def test_half_of_the_figures_say_less(small_fit, known):
    design = small_fit[0].design
    half = np.arange(len(design.figure)) % 2 == 0
    solution = small_fit[0].solution
    fewer = posterior(design, type(solution)(**{**vars(solution), "root": np.where(half, solution.root, 0.0)}))
    for less, more in zip(fewer.deviation, known.deviation, strict=True):
        assert (less >= more - 1e-9).all()
    assert fewer.deviation[0].mean() > known.deviation[0].mean()


def test_figures_that_were_not_fitted_say_nothing(small_fit):
    design = small_fit[0].design
    use = np.arange(len(design.figure)) % 2 == 0
    found = solve(design, use=use)
    assert (found.root[~use] == 0).all()
    assert (found.root[use] > 0).all()


def test_it_is_written_with_the_fit_and_read_back(small_fit, known, tmp_path):
    _, folder, written = small_fit
    assert folder / FILE in written
    table = read_toml(folder / FILE)
    names = small_fit[0].design.key_names
    assert {level: set(rows) for level, rows in table["deviation"].items()} == {
        level: set(names[place]) for place, level in enumerate(LEVELS)
    }
    for one, fresh in zip(read_constants(folder), known.engines, strict=True):
        assert one.engine == fresh.engine
        np.testing.assert_allclose(one.covariance, fresh.covariance, rtol=6e-3)
        np.testing.assert_allclose(one.value, fresh.value, rtol=6e-3)
    assert write_covariance(known, small_fit[0].design, tmp_path / FILE).read_bytes() in (folder / FILE).read_bytes()


def test_the_shipped_constants_are_a_covariance():
    for one in read_constants():
        assert np.linalg.eigvalsh(one.covariance).min() > -1e-3 * np.diag(one.covariance).max()
        assert (np.diag(one.covariance) > 0).all()
        np.testing.assert_array_equal(one.covariance, one.covariance.T)


def test_a_file_of_another_version_is_refused(tmp_path):
    (tmp_path / FILE).write_text('columns = ["host_seconds"]\n')
    with pytest.raises(SpecError, match="glmplan calibrate"):
        read_constants(tmp_path)
