"""The joint fit finds what was planted, and says less about what it has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step.crossvalidate import cross_validate
from glmplan.calibrate.step.joint_fit import (
    PRIOR_MEAN,
    NotConverged,
    Spreads,
    evaluate,
    initial_spreads,
    noise_class,
    solve,
    summed,
)
from glmplan.calibrate.step.observations import build_design
from glmplan.costs.step.model import PARAMETERS, step_time
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.ledger import load_measurements
from glmplan.prediction.effects import COLUMNS, LEVELS, TTFT_SCALE, keys_of, knowledge_class, log_parameters


@pytest.fixture(scope="module")
def runs():
    wanted = {
        ("vllm", "gpt-oss-120b"),
        ("vllm", "llama-3.1-70b"),
        ("trtllm", "gpt-oss-120b"),
        ("trtllm", "llama-3.1-70b"),
    }
    return [run for run in load_measurements() if (run.engine, run.model) in wanted and run.protocol == "inferencex"][
        ::3
    ]


@pytest.fixture(scope="module")
def design(runs):
    return build_design(runs)


def planted(design, seed=5, noise=0.0):
    rng = np.random.default_rng(seed)
    prior = np.array([np.log(PRIOR_MEAN[name]) for name in PARAMETERS] + [0.0, 0.0])
    spread = initial_spreads().effect
    effects = [
        rng.normal(size=(len(names), len(COLUMNS))) * spread[place] * 0.7
        for place, names in enumerate(design.key_names)
    ]
    effects[0] = effects[0] + prior
    log_seconds, _ = evaluate(design, summed(design, tuple(effects)))
    return replace(design, log_seconds=log_seconds + noise * rng.normal(size=len(log_seconds)))


def with_noise(design, noise):
    return Spreads(initial_spreads().logarithm, dict.fromkeys(noise_class(design).tolist(), noise))


def test_what_was_planted_is_found(design):
    made = planted(design)
    solution = solve(made, with_noise(made, 0.02))
    assert np.median(np.abs(solution.residual)) < 0.02
    assert np.quantile(np.abs(solution.residual), 0.95) < 0.08


def test_an_outlier_does_not_move_the_others(design):
    made = planted(design, noise=0.02)
    clean = solve(made, with_noise(made, 0.02))
    spoiled = made.log_seconds.copy()
    spoiled[7] += np.log(10.0)
    dirty = solve(replace(made, log_seconds=spoiled), with_noise(made, 0.02))
    others = np.arange(len(spoiled)) != 7
    moved = np.abs((spoiled - dirty.residual) - (made.log_seconds - clean.residual))[others]
    assert np.quantile(moved, 0.95) < 0.05


def test_the_slope_is_the_derivative(design):
    made = planted(design)
    prior = np.array([np.log(PRIOR_MEAN[name]) for name in PARAMETERS] + [0.0, 0.0])
    effects = np.repeat(prior[None, :], len(design.cases), axis=0)
    base, slope = evaluate(made, effects)
    for column in range(len(COLUMNS)):
        moved = effects.copy()
        moved[:, column] += 1e-5
        numeric = (evaluate(made, moved)[0] - base) / 1e-5
        np.testing.assert_allclose(numeric, slope[:, column], atol=2e-4)


def test_the_same_input_gives_the_same_fit(design):
    first, second = solve(design), solve(design)
    for one, other in zip(first.effects, second.effects, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sum_of_step_times_is_the_step_time_of_the_summed_work(design):
    effects = summed(design, solve(design).effects)
    steps = step_time(design.work, log_parameters(effects)[design.node_run])
    waiting = design.waiting * effects[design.observation_run, TTFT_SCALE]
    whole, _ = evaluate(design, effects)
    np.testing.assert_allclose(whole, np.log(design.predicted(steps.seconds)) + waiting, rtol=1e-12)


def test_where_the_search_begins_does_not_matter(design):
    first = solve(design)
    # a mile from the optimum and from the prior mean
    far = tuple(part + 0.3 * np.sign(np.sin(np.arange(part.size))).reshape(part.shape) for part in first.effects)
    second = solve(design, start=far)
    np.testing.assert_allclose(first.residual, second.residual, atol=2e-3)
    again = solve(design, start=first.effects)
    assert again.rounds == 0


def test_a_search_that_does_not_arrive_says_so(design, monkeypatch):
    monkeypatch.setattr("glmplan.calibrate.step.joint_fit._MOST_ROUNDS", 2)
    with pytest.raises(NotConverged, match="deviations off"):
        solve(design)


def test_cross_validation_leaves_no_run_in_its_own_fit(design):
    errors = cross_validate(design, "group", solve)
    assert not np.isnan(errors.residual).any()
    assert set(errors.knowledge) <= {"pair", "format", "accelerator", "model", "engine", "nothing"}
    seen = cross_validate(design, "random", solve)
    assert np.median(np.abs(seen.residual)) < np.median(np.abs(errors.residual))


def test_less_knowledge_is_a_lower_class():
    everything = dict.fromkeys(LEVELS, True)
    assert knowledge_class(tuple(everything.values())) == "configuration"
    assert knowledge_class(tuple((everything | {"configuration": False}).values())) == "group"
    without = everything | {"configuration": False, "group": False}
    assert knowledge_class(tuple(without.values())) == "pair"
    assert knowledge_class(tuple((without | {"engine_accelerator_format": False}).values())) == "format"
    assert knowledge_class(tuple((without | {"engine_model": False}).values())) == "accelerator"
    assert knowledge_class((True,) + (False,) * (len(LEVELS) - 1)) == "nothing"


def test_deepseek_r1_and_v3_share_every_key_but_the_release(runs):
    found = build_design([run for run in load_measurements() if run.model in ("deepseek-r1", "deepseek-v3")][:40])
    shapes = {keys_of(case.deployment)[LEVELS.index("model")] for case in found.cases}
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("figure", "kind"), [("ttft_p50_ms", "ttft"), ("prefill_tokens_per_s", "prefill"), ("tpot_mean_ms", "decode")]
)
def test_figures_have_a_kind(figure, kind):
    assert FIGURES[figure].interval == kind


WALL = "sglang-deepseek-prompts-on-b300"


def test_runs_behind_a_wall_of_unknown_price_say_nothing_of_others():
    runs = [run for run in load_measurements() if run.protocol == "inferencex" and run.engine == "sglang"
            and run.model in ("deepseek-r1", "deepseek-v3", "qwen3.5-397b-a17b")]  # fmt: skip
    apart = build_design(runs)
    level = LEVELS.index("engine_wall")
    behind = np.char.endswith(np.array(apart.key_names[level])[apart.keys[:, level]], WALL)
    struck = {(apart.cases[place].run.accelerator, apart.cases[place].run.model) for place in np.flatnonzero(behind)}
    assert struck == {("b300-sxm", "deepseek-v3")}
    usual = apart.key_names[level].index("sglang no wall")
    keys = apart.keys.copy()
    keys[:, level] = usual
    # a part that the fit has not seen: the same with a wall told apart as if its runs had not been there
    unseen = np.array([q.deployment.accelerator.name == "h200-sxm" for q in apart.cases])[apart.observation_run]
    prompts = unseen & np.char.startswith(apart.figure, "ttft")
    without, told, mixed = (
        solve(one, use=use).residual[prompts]
        for one, use in (
            (apart, ~unseen & ~behind[apart.observation_run]),
            (apart, ~unseen),
            (replace(apart, keys=keys), ~unseen),
        )
    )
    assert np.mean(np.abs(told - without)) < 0.5 * np.mean(np.abs(mixed - without))
    # nothing is known of the price of a wall but from those behind it, and the others have none
    found = solve(apart).effects[level]
    prefill = COLUMNS.index("prefill_attention_slowdown")
    assert found[usual] == pytest.approx(0.0, abs=1e-6)
    assert found[apart.key_names[level].index(f"sglang {WALL}"), prefill] > 0.5
