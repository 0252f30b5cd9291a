"""Factors on the spreads: scored by what is left out, and chosen where groups are enough to say something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step import spread_factors
from glmplan.calibrate.step.joint_fit import (
    SHARED,
    Spreads,
    evaluate,
    initial_spreads,
    prior_deviation,
    prior_mean,
    solve,
    summed,
    write_spreads,
)
from glmplan.calibrate.step.spread_factors import choose_factors, left_out_score, solve_with_spreads
from glmplan.catalog.files import read_toml
from glmplan.prediction.effects import LEVELS


@pytest.fixture(scope="module")
def fitted(small_fit):
    design = small_fit[0].design
    return design, solve(design)


def test_one_inverse_predicts_each_fold_as_a_ridge_regression_without_it(fitted):
    design, solution = fitted
    spread = replace(solution.spreads, factor={"part": 2.0}).effect
    model = left_out_score(design, solution)
    found = model.residual(spread)
    sigma, first = prior_deviation(design, spread), model.cells.first
    rows = np.zeros((len(model.slope), *sigma.shape))
    for figure, run in enumerate(design.observation_run):
        for level in range(len(LEVELS)):
            key = first[level] + design.keys[run, level]
            rows[figure, key] += model.slope[figure] * sigma[key]
    rows = rows.reshape(len(rows), -1)
    for mode, fold in model.folds.items():
        stays = fold[design.observation_run] < 0
        assert np.isnan(found[mode][stays]).all() and np.isfinite(found[mode][~stays]).all()
        for one in np.unique(fold[fold >= 0]):
            out = fold[design.observation_run] == one
            matrix = rows[~out]
            z = np.linalg.solve(matrix.T @ matrix + np.eye(matrix.shape[1]), matrix.T @ model.target[~out])
            effects = model.cells.split(sigma * z.reshape(sigma.shape))
            log_seconds, _ = evaluate(design, summed(design, effects) + prior_mean())
            # directions that say next to nothing are left out
            np.testing.assert_allclose(found[mode][out], (design.log_seconds - log_seconds)[out], atol=2e-3)


def test_a_linear_fold_is_near_the_fold_that_is_solved_to_the_end(fitted):
    design, solution = fitted
    found = left_out_score(design, solution).residual(solution.spreads.effect)["group"]
    fold = left_out_score(design, solution).folds["group"]
    for one in np.unique(fold):
        out = fold[design.observation_run] == one
        exact = solve(design, use=~out)
        assert np.median(np.abs(found[out] - exact.residual[out])) < 0.05


def test_with_few_groups_nothing_is_chosen(fitted):
    design, solution = fitted
    assert choose_factors(design, solution) is solution.spreads
    assert solve_with_spreads(design).spreads.factor == {}


def test_a_factor_of_a_part_of_the_hierarchy_is_on_all_spreads_of_its_levels():
    ratio = Spreads(initial_spreads().logarithm, factor={"part": 2.0, "model": 0.5}).effect / initial_spreads().effect
    for name, expected in (("part", 2.0), ("model", 0.5), ("engine", 1.0), ("pair", 1.0), ("all", 1.0)):
        np.testing.assert_allclose(ratio[[LEVELS.index(level) for level in SHARED[name]]], expected)
    np.testing.assert_allclose(ratio[LEVELS.index("engine_wall")], 1.0)


def test_every_level_but_those_of_walls_and_plug_ins_has_one_factor():
    free = {"engine_wall", "engine_plugin"}
    assert sorted(level for levels in SHARED.values() for level in levels) == sorted(set(LEVELS) - free)


def test_spreads_that_were_too_narrow_are_widened_and_written_with_their_error(fitted, monkeypatch, tmp_path):
    # of six groups: what is tested is the direction, not how well so few of them know it
    monkeypatch.setattr(spread_factors, "_ENOUGH_GROUPS", 3)
    design, solution = fitted
    narrow = solve(design, replace(solution.spreads, factor={name: np.exp(-5 * 0.35) for name in SHARED}))
    chosen = choose_factors(design, narrow)
    assert np.log([chosen.factor[name] for name in SHARED]).sum() > np.log(list(narrow.spreads.factor.values())).sum()
    assert all(0.0 < chosen.factor_error[name] <= 1.0 for name in SHARED)
    table = read_toml(write_spreads(chosen, tmp_path / "spreads.toml"))["shared"]
    for name in SHARED:
        assert table[name] == pytest.approx([chosen.factor[name], chosen.factor_error[name]], rel=6e-3, abs=6e-3)
