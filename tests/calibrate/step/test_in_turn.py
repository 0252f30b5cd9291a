"""What groups share is learnt first, what is a group's own after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step.crossvalidate import folds_of
from glmplan.calibrate.step.in_turn import solve_in_turn
from glmplan.calibrate.step.joint_fit import FREEDOM, OWN, noise_of, solve
from glmplan.calibrate.step.solved_folds import SolvedFolds
from glmplan.calibrate.step.spreads import start, write_spreads
from glmplan.calibrate.step.unseen import alone, unseen
from glmplan.facts.files import read_toml
from glmplan.prediction.effects import LEVELS


@pytest.fixture(scope="module")
def design(small_fit):
    return small_fit[0].design


def test_without_noise_between_groups_all_is_learnt_at_once(design):
    for one, other in zip(solve_in_turn(design, start()).effects, solve(design, start()).effects, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_groups_share_is_that_of_the_noise_between_them_and_stays_while_their_own_is_learnt(design):
    spreads = replace(start(), noise={"tpot closed-loop": 0.1, "ttft closed-loop": 0.15}, between=0.4, own=2.0)
    assert spreads.of_shared.noise == {"tpot closed-loop": 0.4, "ttft closed-loop": 0.15}
    found, shared = solve_in_turn(design, spreads), solve(design, spreads.of_shared)
    for level, (one, other) in enumerate(zip(found.effects, shared.effects, strict=True)):
        assert np.array_equal(one, other) == (level < OWN or not len(one))
    assert found.spreads is spreads
    # with the noise that its own rows have, a group is told better than by what was learnt of it with more
    noise = noise_of(design, spreads)
    told = [float(np.log1p((one.residual / noise) ** 2 / FREEDOM).sum()) for one in (found, shared)]
    assert told[0] < told[1]


def test_a_factor_on_what_is_a_groups_own_is_on_the_levels_of_a_model_on_a_part():
    ratio = replace(start(), own=3.0).of_own.effect / start().effect
    np.testing.assert_allclose(ratio[OWN:], 3.0)
    np.testing.assert_allclose(np.delete(ratio, [*range(OWN, len(LEVELS)), LEVELS.index("engine_campaign")], 0), 1.0)


def test_folds_that_begin_at_the_fit_of_all_runs_end_where_those_from_the_prior_do(design):
    spreads = replace(start(), between=0.3, own=1.5)
    whole = solve(design, spreads)
    for mode, own in (("group", False), ("random", True)):
        fold = folds_of(design.questions, mode)
        with SolvedFolds(design, whole, {mode: fold}, own=own) as folds:
            found = folds.residual(spreads)[mode]
        for one in range(int(fold.max()) + 1):
            out = np.flatnonzero(fold == one)
            seen = alone(design, np.flatnonzero(fold != one))
            exact = unseen(seen, solve_in_turn(seen, spreads), alone(design, out)).residual
            np.testing.assert_allclose(found[np.isin(design.observation_run, out)], exact, atol=0.02)


def test_both_are_written(tmp_path):
    table = read_toml(write_spreads(replace(start(), between=0.2, own=2.8), tmp_path / "spreads.toml"))
    assert table["between"] == 0.2 and table["own"] == 2.8
