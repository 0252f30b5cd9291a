"""Spreads and noise by marginal likelihood: its slope, and that planted ones are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step.joint_fit import (
    NotConverged,
    evaluate,
    linearised,
    prior_deviation,
    prior_mean,
    solve,
    summed,
)
from glmplan.calibrate.step.marginal import estimate, evidence, factor_slope
from glmplan.calibrate.step.observations import build_design
from glmplan.calibrate.step.spreads import FACTORS, Spreads, factor_table, noise_class, spread_of_effects, start
from glmplan.facts.files import read_toml
from glmplan.prediction.effects import COLUMNS, LEVELS
from glmplan.readers.runs.ledger import load_measurements


@pytest.fixture(scope="module")
def design():
    """Sweeps of many models on many parts, every third row."""
    rows = [run for run in load_measurements() if run.protocol == "inferencex" and run.engine in ("vllm", "trtllm")]
    return build_design(rows[::3])


def drawn(design, spreads, seed=1):
    """The same runs, measured where effects and noise are drawn from given spreads."""
    rng = np.random.default_rng(seed)
    sigma = prior_deviation(design, spreads.effect)
    first = np.concatenate([[0], np.cumsum([len(names) for names in design.key_names])])
    table = rng.normal(size=sigma.shape) * sigma
    effects = tuple(table[low:high] for low, high in zip(first[:-1], first[1:], strict=True))
    log_seconds, _ = evaluate(design, summed(design, (effects[0] + prior_mean(), *effects[1:])))
    noise = spreads.noise_of(noise_class(design)) * rng.standard_t(4.0, size=len(log_seconds))
    return replace(design, log_seconds=log_seconds + noise)


def test_the_slope_is_that_of_the_likelihood_with_the_effects_integrated_out(design):
    """Frozen at one linearisation the figures are Gaussian: -½ ln|K| - ½ y'K⁻¹y, by differences."""
    solution = solve(design)
    normal = linearised(design, solution)
    sigma = prior_deviation(design, solution.spreads.effect)
    z = np.concatenate([solution.effects[0] - prior_mean(), *solution.effects[1:]]) / sigma
    seen = normal.turned(solution.root * solution.residual) + normal.forward(z)
    slope, information = factor_slope(design, solution, normal)

    def likelihood(wide):
        matrix = np.eye(len(normal.rows))
        for key, (places, scaled) in normal.blocks.items():
            other = scaled * wide[int(np.searchsorted(normal.cells.first, key, side="right")) - 1]
            matrix[np.ix_(places, places)] += other @ other.T
        return -0.5 * np.linalg.slogdet(matrix)[1] - 0.5 * seen @ np.linalg.solve(matrix, seen)

    for level, column in (("engine_model", "gemm_bytes_slowdown"), ("configuration", "scale"), ("all", "host_seconds")):
        at = LEVELS.index(level), COLUMNS.index(column)
        more, less = np.ones(slope.shape), np.ones(slope.shape)
        more[at], less[at] = np.exp(1e-4), np.exp(-1e-4)
        assert slope[at] == pytest.approx((likelihood(more) - likelihood(less)) / 2e-4, rel=1e-3, abs=1e-3)
    np.testing.assert_allclose(information, information.T, atol=1e-9)
    assert np.linalg.eigvalsh(information).min() > -1e-9


def test_planted_spreads_and_noise_are_found(design):
    logarithm = start().logarithm.copy()
    rng = np.random.default_rng(11)
    free = np.array([factor.open > 0.0 for factor in FACTORS])
    logarithm[free] += rng.uniform(-0.7, 0.7, size=free.sum())
    planted = Spreads(logarithm, dict.fromkeys(noise_class(design).tolist(), 0.05))
    found = estimate(drawn(design, planted)).spreads
    off = ((found.logarithm - logarithm) / np.maximum(found.error, 1e-9))[free]
    assert np.sqrt(np.mean(off**2)) < 1.3
    # far from where it began, towards what was planted
    assert np.abs(found.logarithm - logarithm)[free].mean() < 0.8 * np.abs(start().logarithm - logarithm)[free].mean()
    for value in found.noise.values():
        assert value == pytest.approx(0.05, rel=0.15)


def test_estimated_spreads_are_more_likely_than_the_start(small_fit):
    design = small_fit[0].design
    assert evidence(design, estimate(design)) > evidence(design, solve(design))


def test_an_estimate_that_does_not_arrive_says_so(small_fit, monkeypatch):
    monkeypatch.setattr("glmplan.calibrate.step.marginal._MOST_ROUNDS", 1)
    with pytest.raises(NotConverged, match="spreads still move"):
        estimate(small_fit[0].design)


def test_a_spread_is_a_product_of_its_level_and_its_column():
    names = [(factor.kind, factor.name) for factor in FACTORS]
    more = start().logarithm.copy()
    more[names.index(("level", "engine"))] += np.log(2.0)
    more[names.index(("column", "host_seconds"))] += np.log(3.0)
    ratio = spread_of_effects(more) / start().effect
    host, engine = COLUMNS.index("host_seconds"), LEVELS.index("engine")
    assert ratio[engine, host] == pytest.approx(6.0)
    assert ratio[LEVELS.index("model"), host] == pytest.approx(3.0)
    assert ratio[engine, COLUMNS.index("cache_slowdown")] == pytest.approx(2.0)
    assert ratio[engine, COLUMNS.index("scale")] == pytest.approx(1.0)
    assert factor_table().sum(axis=2).max() == 2.0


def test_spreads_are_written_with_their_errors(small_fit):
    found, folder, written = small_fit
    assert folder / "spreads.toml" in written
    table = read_toml(folder / "spreads.toml")
    assert {kind: set(table[kind]) for kind in ("level", "column", "scale")} == {
        kind: {factor.name for factor in FACTORS if factor.kind == kind} for kind in ("level", "column", "scale")
    }
    for factor, value, error in zip(
        FACTORS, found.solution.spreads.logarithm, found.solution.spreads.error, strict=True
    ):
        assert table[factor.kind][factor.name] == pytest.approx([np.exp(value), error], rel=6e-3, abs=6e-3)
    assert set(table["noise"]) == set(noise_class(found.design).tolist())


def test_rows_left_out_say_nothing_of_the_spreads(small_fit):
    design = small_fit[0].design
    use = np.arange(len(design.figure)) % 2 == 0
    wild = replace(design, log_seconds=np.where(use, design.log_seconds, design.log_seconds + 1.0))
    first, second = estimate(design, use=use), estimate(wild, use=use)
    np.testing.assert_allclose(first.spreads.logarithm, second.spreads.logarithm, atol=1e-9)
