"""Widths of intervals: how deployments alike scattered, how far a load lies outside, what nobody knows of drafting."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from glmplan import deployment as planned_for
from glmplan.errors import GlmplanError
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run, Speculation
from glmplan.prediction.assumptions import assumed_kinds
from glmplan.prediction.effects import COLUMNS, LEVELS, Effects, keys_of, load_effects
from glmplan.prediction.evidence import evidence_from_fit, features_of, interval_of
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import Load
from glmplan.prediction.predict import predict

SERVED = Run("one", "deepseek-v3", "h200-sxm", accelerator_count=8, tp=8, engine="vllm", weights="fp8-block",
             phase="serving", concurrency=16.0, input_tokens=1000.0, output_tokens=500.0)  # fmt: skip
#: standard normal quantile of a 90 % interval: 5 % lie beyond it [-]
Z = 1.644854
FEATURES = {
    "engine": "vllm", "accelerator": "x", "model": "y", "format": "fp8", "load of engine": "vllm 1",
    "model of engine": "vllm y", "load": "1", "prompt": "to 300", "link": "none", "blocks": "latent", "drafting": "no",
    "cached": "no", "stated": "yes",
}  # fmt: skip


def half_widths(deployment, load, effects, figure="tpot"):
    found = predict(deployment, load, effects=effects).figures[figure]
    return np.log([found.value / found.low, found.high / found.value])


def test_an_interval_is_wider_by_the_product_of_the_factors_of_its_like():
    ends = {"decode": (-0.1, 0.2), "ttft": (-0.3, 0.4)}
    widths = {"decode engine: vllm": 2.0, "decode format: fp8": 3.0, "decode load: 1": 5.0,
              "decode blocks: latent": 0.5, "ttft engine: vllm": 7.0, "decode engine: other": 11.0}  # fmt: skip
    known = {name: ends for name in ("site", "sweep", "configuration", "group", "nothing")}
    fit = Effects({}, np.zeros((len(LEVELS), 22)), known, {}, widths)
    # another load of a measured sweep knows its engine and format, all others only their load and their blocks
    assert interval_of(fit, "sweep", "decode", FEATURES) == pytest.approx((-0.1 * 6, 0.2 * 6))
    assert interval_of(fit, "sweep", "ttft", FEATURES) == pytest.approx((-0.3 * 7, 0.4 * 7))
    for knowledge in ("configuration", "group", "nothing"):
        assert interval_of(fit, knowledge, "decode", FEATURES) == pytest.approx((-0.1 * 2.5, 0.2 * 2.5))
    # a site has seen its own scatter
    assert interval_of(fit, "site", "decode", FEATURES) == (-0.1, 0.2)


def test_first_tokens_among_many_requests_take_the_ends_and_factors_of_their_kind():
    ends = {"ttft": (-0.1, 0.2), "ttft_many": (-0.3, 0.9), "ttft_many_cached": (-3.0, 3.0)}
    widths = {"ttft load: 17-64": 1.1, "ttft_many link: none": 2.0, "ttft link: none": 5.0}
    fit = Effects({}, np.zeros((len(LEVELS), 22)), {"pair": ends}, {}, widths)
    busy = {**FEATURES, "load": "65-256"}
    assert interval_of(fit, "pair", "ttft", FEATURES) == pytest.approx((-0.5, 1.0))
    assert interval_of(fit, "pair", "ttft", busy) == pytest.approx((-0.6, 1.8))
    assert interval_of(fit, "pair", "ttft", {**busy, "cached": "yes"}) == (-3.0, 3.0)


@pytest.mark.parametrize("figure", ["tpot", "ttft", "output_rate"])
def test_a_load_beyond_the_measured_widens_the_interval_by_how_far_it_is_beyond(figure):
    asked = question_of(SERVED)
    deployment, group = asked.deployment, keys_of(asked.deployment)[LEVELS.index("group")]
    fit = load_effects("vllm")
    # what is measured of a group is never wider than a group that nobody measured: here that is wide
    wide = {kind: (-9.0, 9.0) for kind in ("decode", "ttft", "prefill")}
    own = {name: ends if name in ("configuration", "group") else wide for name, ends in fit.intervals.items()}
    fit = replace(fit, intervals=own, later={})
    unbounded = replace(fit, domain={})
    base = half_widths(deployment, asked.load, unbounded, figure)

    def wider(*domain):
        bounded = replace(fit, domain={group: list(domain)})
        grown = half_widths(deployment, asked.load, bounded, figure) - base
        assert grown[0] == pytest.approx(grown[1])
        return grown[0]

    assert wider(1.0, 64.0, 100.0, 8000.0, 100.0, 1000.0) == pytest.approx(0.0)
    # 0.15 for each e-fold between 16 requests and the 4 that were measured, on either side, and for each direction
    assert wider(1.0, 4.0, 100.0, 8000.0, 100.0, 1000.0) == pytest.approx(0.15 * np.log(4.0))
    assert wider(64.0, 256.0, 100.0, 8000.0, 100.0, 1000.0) == pytest.approx(0.15 * np.log(4.0))
    assert wider(1.0, 4.0, 8000.0, 8000.0, 100.0, 1000.0) == pytest.approx(0.15 * np.log(4.0 * 8.0))
    assert wider(1.0, 64.0, 100.0, 8000.0, 10.0, 50.0) == pytest.approx(0.15 * np.log(10.0))


def test_what_nobody_knows_of_drafting_stands_in_the_interval_of_decoding():
    asked = question_of(SERVED)
    unknown = replace(asked.deployment, draft_tokens=3, acceptance=None)
    length, spread = unknown.acceptance_prior
    given, fit = replace(unknown, acceptance=length), load_effects("vllm")
    assert spread > 0.05
    for figure in ("tpot", "itl_p50", "output_rate"):
        narrow, wide = (half_widths(one, asked.load, fit, figure) for one in (given, unknown))
        # independent errors add as squares: those of the fit, and those of the tokens that a step yields
        np.testing.assert_allclose(wide**2 - narrow**2, (Z * spread) ** 2, rtol=1e-3)
    np.testing.assert_allclose(
        half_widths(unknown, asked.load, fit, "ttft"), half_widths(given, asked.load, fit, "ttft")
    )


def test_what_others_measured_has_its_own_width_and_another_release_adds_to_its_faster_side():
    fit = replace(load_effects("vllm"), later={"decode": [0.3, 0.1]})
    asked = {"measured": "0.19.1", "named": "0.33.0", "newest": None}
    classes = {"measured": ("configuration", "group"), "named": ("release", "group_release")}
    classes["newest"] = classes["named"]
    for name, version in asked.items():
        for tp, known in zip((1, 8), classes[name], strict=True):
            planned = planned_for("llama-3.1-8b", f"{tp}xh100-sxm", tp=tp, engine="vllm", engine_version=version)
            deployment, load = planned.deployment, Load(8.0, 2048.0, 512.0, phase="serving")
            keys = keys_of(deployment)
            found = evidence_from_fit(deployment, load, keys, fit.sum_of(keys)[1], 0.0, fit)
            assert found.knowledge == known
            level = "configuration" if tp == 1 else "group"
            low, high = interval_of(fit, level, "decode", features_of(deployment, load))
            if name != "measured":
                low, high = -np.hypot(low, 0.3), np.hypot(high, 0.1)
            assert found.ends["decode"] == pytest.approx((low, high))


@pytest.mark.parametrize(("version", "known"), [("0.19.1", True), ("0.33.0", False), (None, False)])
def test_a_release_that_is_not_stated_or_never_measured_adds_the_spread_of_releases(version, known):
    fit = load_effects("vllm")
    spread = np.zeros_like(fit.spread)
    spread[LEVELS.index("engine_release"), COLUMNS.index("gemm_bytes_slowdown")] = 0.2
    fit = replace(fit, spread=spread)
    # the model was measured on other parts, the part with other models
    planned = planned_for("llama-3.1-8b", "1xb300-sxm", tp=1, engine="vllm", engine_version=version)
    deployment, load = planned.deployment, Load(8.0, 2048.0, 512.0, phase="serving")
    keys = keys_of(deployment)
    found = evidence_from_fit(deployment, load, keys, fit.sum_of(keys)[1], 0.0, fit)
    assert found.knowledge == "pair"
    low, high = interval_of(fit, found.knowledge, "decode", features_of(deployment, load))
    more = 0.0 if known else Z * 0.2
    assert found.ends["decode"] == pytest.approx((-np.hypot(low, more), np.hypot(high, more)))


def test_a_row_that_leaves_a_setting_open_has_the_interval_of_such_rows():
    ends = {"decode": (-0.1, 0.2), "decode_unstated": (-0.5, 0.7), "ttft": (-0.3, 0.4)}
    fit = Effects({}, np.zeros((len(LEVELS), 22)), {"pair": ends}, {})
    assert interval_of(fit, "pair", "decode", FEATURES) == (-0.1, 0.2)
    assert interval_of(fit, "pair", "decode", {**FEATURES, "stated": "no"}) == (-0.5, 0.7)
    # a fit without a kind of its own for them has one for all
    assert interval_of(fit, "pair", "ttft", {**FEATURES, "stated": "no"}) == (-0.3, 0.4)
    stated = replace(SERVED, kv_cache="bf16", engine_version="0.19.1", speculation=Speculation("none"))
    assert question_of(SERVED).deployment.assumed == ("cache format", "drafting")
    assert question_of(stated).deployment.assumed == ()


def test_the_quantiles_of_a_figure_are_those_of_its_tail_between_its_bounds():
    found = predict(question_of(SERVED).deployment, question_of(SERVED).load)
    for figure in found.figures.values():
        assert figure.quantile(0.05) == pytest.approx(figure.low) and figure.quantile(0.95) == pytest.approx(
            figure.high
        )
        shares = [figure.quantile(share) for share in np.linspace(0.01, 0.99, 99)]
        assert shares == sorted(shares) and figure.quantile(0.5) == figure.value
        assert figure.low < figure.inner[0] < figure.value < figure.inner[1] < figure.high
    # of the slow end of a time and the low end of a rate
    tpot, rate = found.figures["tpot"], found.figures["user_rate"]
    assert tpot.quantile(0.75) * rate.quantile(0.25) == pytest.approx(1.0)


def test_every_assumption_of_a_measured_row_has_a_kind():
    kinds = set()
    for run in load_measurements()[::9]:
        try:
            case = question_of(run)
        except GlmplanError:
            continue
        for text in case.assumed:
            mine = assumed_kinds([text])
            # a label that the source states otherwise: a counted length, the launch script where the layout cannot load
            assert mine or re.match(r"a label of|ep \d+ of the script", text), text
            kinds.update(mine)
    assert kinds >= {"cache format", "weights", "lengths", "drafting", "launch settings"}
