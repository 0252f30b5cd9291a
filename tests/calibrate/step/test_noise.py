"""The noise of figures: what was planted is found, and spreads are written with how far off they may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step.joint_fit import (
    FACTORS,
    NotConverged,
    Spreads,
    evaluate,
    factor_table,
    initial_spreads,
    noise_class,
    prior_deviation,
    prior_mean,
    solve_with_noise,
    spread_of_effects,
    summed,
)
from glmplan.calibrate.step.observations import build_design
from glmplan.catalog.files import read_toml
from glmplan.io.runs.ledger import load_measurements
from glmplan.prediction.effects import COLUMNS, LEVELS


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


def test_planted_noise_is_found(design):
    planted = Spreads(
        initial_spreads().logarithm,
        {name: 0.3 if "ttft" in name else 0.15 for name in set(noise_class(design).tolist())},
    )
    found = solve_with_noise(drawn(design, planted)).spreads
    for name, value in found.noise.items():
        assert value == pytest.approx(planted.noise[name], rel=0.25), name


def test_noise_is_not_below_what_the_form_is_off_by(design):
    planted = Spreads(initial_spreads().logarithm, dict.fromkeys(noise_class(design).tolist(), 0.02))
    assert set(solve_with_noise(drawn(design, planted)).spreads.noise.values()) == {0.1}


def test_noise_that_still_moves_is_said(small_fit, monkeypatch):
    monkeypatch.setattr("glmplan.calibrate.step.joint_fit._MOST_ROUNDS_NOISE", 1)
    with pytest.raises(NotConverged, match="noise of a class still moves"):
        solve_with_noise(small_fit[0].design)


def test_a_spread_is_a_product_of_its_level_and_its_column():
    names = [(factor.kind, factor.name) for factor in FACTORS]
    more = initial_spreads().logarithm.copy()
    more[names.index(("level", "engine"))] += np.log(2.0)
    more[names.index(("column", "host_seconds"))] += np.log(3.0)
    ratio = spread_of_effects(more) / initial_spreads().effect
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
