"""A site's own runs: two points bring the rest, and impossible rows are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.calibrate.step import own_site as site_module
from glmplan.calibrate.step.joint_fit import evaluate
from glmplan.calibrate.step.observations import build_design, fastest_seconds
from glmplan.calibrate.step.own_site import calibrate_site, site_errors, write_site
from glmplan.errors import SpecError
from glmplan.io.runs.ledger import load_measurements
from glmplan.prediction.effects import COLUMNS, LEVELS, Effects, keys_of, load_effects
from glmplan.prediction.from_row import question_of
from glmplan.prediction.predict import predict, predict_many
from glmplan.prediction.step_models import load_site, site_calibration


@pytest.fixture(scope="module")
def six_cards():
    """GLM-5.1 NVFP4 on six RTX PRO 6000: rows of calibration/measurements/field-reports-glm.csv by users."""
    rows = {run.id: run for run in load_measurements()}
    return {users: rows[f"fr-001-c{users}"] for users in (1, 4, 8, 16, 32, 64)}


def errors_of(runs, effects):
    cases = [question_of(run) for run in runs]
    found = predict_many([(one.deployment, one.load, None) for one in cases], effects=effects)
    measured = [run.observed["output_tokens_per_s"] for run in runs]
    return np.abs(np.array([one.figures["output_rate"].value for one in found]) / measured - 1.0)


def unseen(effects, run):
    """The fit without what it knows of this model on this engine and part."""
    case = question_of(run)
    keys = dict(zip(LEVELS, keys_of(case.deployment, measured_on=run.measured_on), strict=True))
    values = {level: dict(table) for level, table in effects.values.items()}
    for level in ("engine_model", "group", "configuration"):
        values[level].pop(keys[level], None)
    start = keys["release"].partition(" 0.")[0]
    values["release"] = {key: row for key, row in values["release"].items() if not key.startswith(start)}
    return Effects(values, effects.spread, effects.intervals, effects.domain, effects.widths)


MISSED = pytest.mark.xfail(reason="5.3 % since the third fit of 2026-11-22", strict=True)


@pytest.mark.parametrize("known", [pytest.param("as shipped", marks=MISSED), "model never seen on this part"])
def test_two_rows_of_the_six_card_report_bring_the_others_within_five_percent(six_cards, known):
    shipped = load_effects("vllm")
    start = shipped if known == "as shipped" else unseen(shipped, six_cards[1])
    found = calibrate_site([six_cards[1], six_cards[8]], effects=lambda engine: start)
    rest = [six_cards[users] for users in (4, 16, 32, 64)]
    assert np.median(errors_of(rest, found.effects["vllm"])) < 0.05
    assert errors_of([six_cards[1], six_cards[8]], found.effects["vllm"]).max() < 0.05


@pytest.mark.parametrize("users", [1, 8, 64])
def test_a_row_ten_times_too_fast_is_refused_with_the_reason(six_cards, users):
    right = six_cards[users]
    wrong = replace(right, id="wrong", observed={"output_tokens_per_s": 10 * right.observed["output_tokens_per_s"]})
    found = calibrate_site([six_cards[4], wrong])
    assert found.used == ("fr-001-c4",)
    [(name, reason)] = found.refused
    assert name == "wrong"
    assert "times faster than the memory bandwidth" in reason


def test_a_table_of_impossible_rows_only_is_an_error_with_the_reason(six_cards):
    wrong = replace(six_cards[1], observed={"output_tokens_per_s": 400.0})
    with pytest.raises(SpecError, match="faster than the memory bandwidth"):
        calibrate_site([wrong])


def test_the_bound_is_below_what_was_measured(six_cards):
    for run in six_cards.values():
        least = fastest_seconds(question_of(run), "output_tokens_per_s")
        # tokens of one burst touch fewer experts than independent ones, hence up to 1.25
        assert 0.05 < least * run.observed["output_tokens_per_s"] < 1.25


def test_the_update_never_explains_its_rows_worse(six_cards):
    found = calibrate_site(list(six_cards.values()))
    assert np.abs(found.after).mean() <= np.abs(found.before).mean()
    assert set(found.values) == set(found.deviation)
    for level, table in found.deviation.items():
        assert level != "release"
        assert all((row >= 0).all() for row in table.values())


def test_what_no_row_depends_on_does_not_move_and_stays_as_open_as_before(six_cards):
    found = calibrate_site([six_cards[1], six_cards[8]])
    first = COLUMNS.index("ttft_scale")  # no row has a time to the first token
    assert all(row[first] == pytest.approx(0.0, abs=1e-9) for table in found.values.values() for row in table.values())
    open_ = site_module.site_spread(load_effects("vllm").spread)
    for level, table in found.deviation.items():
        for row in table.values():
            assert row[first] == pytest.approx(open_[LEVELS.index(level), first], rel=1e-6)
            assert (row <= open_[LEVELS.index(level)] * (1.0 + 1e-9)).all()


def test_more_precise_rows_are_followed_more_closely(six_cards, monkeypatch):
    left = []
    for noise in (0.5, 0.1, 0.02):
        monkeypatch.setitem(site_module.SITE_NOISE, "decode", noise)
        found = calibrate_site([six_cards[1], six_cards[8]])
        left.append(np.abs(found.after).mean())
    assert left == sorted(left, reverse=True)


def test_a_disturbed_row_is_not_followed_by_the_others(six_cards, monkeypatch):
    slow = six_cards[16]
    slow = replace(slow, id="slow", observed={"output_tokens_per_s": 0.5 * slow.observed["output_tokens_per_s"]})
    right = [six_cards[users] for users in (1, 4, 8, 32, 64)]
    robust = errors_of(right, calibrate_site([*right, slow]).effects["vllm"])
    monkeypatch.setattr(site_module, "_FREEDOM", 1e9)
    alike = errors_of(right, calibrate_site([*right, slow]).effects["vllm"])
    assert robust.max() < 0.10
    assert robust.mean() < alike.mean()


def test_two_points_bring_the_rest_of_a_sweep_whose_group_was_not_seen_closer():
    """Sweeps of one part and engine, from a fit of the others."""
    rows = [run for run in load_measurements() if run.protocol == "inferencex" and run.engine == "trtllm"]
    design = build_design([run for run in rows if run.model == "llama-3.1-70b" and run.accelerator == "b200-sxm"])
    start = np.array([
        unseen(load_effects("trtllm"), case.run).sum_of(keys_of(case.deployment))[0]
        for case in design.cases
    ])  # fmt: skip
    errors, sweep = site_errors(design, start, load_effects("trtllm").spread)
    tried = ~np.isnan(errors)
    before = design.log_seconds - evaluate(design, start)[0]
    assert tried.sum() > 50
    assert (sweep[tried] >= 0).all()
    assert np.median(np.abs(errors[tried])) < 0.5 * np.median(np.abs(before[tried]))


def test_a_saved_site_predicts_the_same_and_says_what_it_rests_on(six_cards, tmp_path):
    found = calibrate_site([six_cards[1], six_cards[8]])
    file = write_site(found, tmp_path / "site.toml")
    assert write_site(found, tmp_path / "again.toml").read_bytes() == file.read_bytes()
    run = six_cards[32]
    case = question_of(run)
    loaded = predict(case.deployment, case.load, effects=load_site(file, "vllm"))
    direct = predict(case.deployment, case.load, effects=found.effects["vllm"])
    assert loaded.figures["tpot"].value == pytest.approx(direct.figures["tpot"].value, rel=1e-3)
    before = predict(case.deployment, case.load)
    with site_calibration(file):
        inside = predict(case.deployment, case.load)
    assert inside.figures["tpot"].value == loaded.figures["tpot"].value
    assert predict(case.deployment, case.load).figures["tpot"].value == before.figures["tpot"].value


def test_a_date_adds_nothing_to_what_the_site_measured_itself(six_cards):
    # the site's runs hold what their build differs by; the shipped fit knows it by the release
    run = six_cards[8]
    case = question_of(run)
    site = calibrate_site([six_cards[1], run]).effects["vllm"]
    dated, bare = (
        predict(case.deployment, case.load, effects=site, measured_on=day) for day in (run.measured_on, None)
    )
    assert dated.figures["output_rate"] == bare.figures["output_rate"]
    shipped = [predict(case.deployment, case.load, measured_on=day) for day in (run.measured_on, None)]
    assert shipped[0].figures["output_rate"] == shipped[1].figures["output_rate"]
    unnamed = predict(replace(case.deployment, release=None), case.load)
    assert unnamed.figures["output_rate"] != shipped[1].figures["output_rate"]


def test_a_site_does_not_move_other_engines(six_cards, tmp_path):
    file = write_site(calibrate_site([six_cards[1]]), tmp_path / "site.toml")
    assert load_site(file, "sglang").values == load_effects("sglang").values


def test_a_file_that_is_no_site_calibration_is_refused(tmp_path):
    (tmp_path / "other.toml").write_text('columns = ["a"]\n')
    with pytest.raises(SpecError, match="not a site calibration"), site_calibration(tmp_path / "other.toml"):
        pass
