"""The fit of the step time on a small set of runs: the same bytes twice, honest errors, sensible intervals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from glmplan.calibrate.all_fits import calibrate_steps
from glmplan.calibrate.step.crossvalidate import FILE as BEYOND
from glmplan.calibrate.step.crossvalidate import (
    MODES,
    PARTS_OF_GROUPS,
    AsFitted,
    Errors,
    cross_validate,
    folds_of,
    levels_left_out,
)
from glmplan.calibrate.step.intervals import Scored, fit_intervals, nested_intervals, scored_of
from glmplan.calibrate.step.joint_fit import initial_spreads
from glmplan.calibrate.step.observations import build_design
from glmplan.calibrate.step.write import FILE_LEFT_OUT as FILE
from glmplan.calibrate.step.write import left_out_of, read_left_out, write_left_out, write_widths
from glmplan.errors import SpecError
from glmplan.io.runs.ledger import group_key, load_measurements
from glmplan.prediction.distribution import NORMAL
from glmplan.prediction.effects import KNOWLEDGE, effects_in, keys_of
from glmplan.prediction.evidence import features_of, interval_of
from glmplan.prediction.predict import predict_many

#: model, part, engine and weights that three campaigns measured
SEVERAL = "qwen3-14b", "h100-sxm", "vllm", "bf16"


def test_the_same_runs_give_the_same_bytes(small_runs, small_fit, tmp_path):
    _, folder, written = small_fit
    _, again = calibrate_steps(small_runs, tmp_path)
    assert [file.name for file in again] == [file.name for file in written]
    for file in again:
        assert file.read_bytes() == (folder / file.name).read_bytes(), file.name


def test_the_fit_explains_the_runs_it_was_made_from(small_fit):
    found, _, _ = small_fit
    tpot = np.char.startswith(found.design.figure, "tpot")
    assert np.median(np.abs(found.solution.residual[tpot])) < 0.05


def test_what_was_written_predicts_what_was_fitted(small_fit):
    found, folder, _ = small_fit
    residual = []
    for place, case in enumerate(found.design.cases):
        effects = effects_in(folder, case.deployment.engine)
        one = predict_many([(case.deployment, case.load, case.run.measured_on)], effects=effects)[0]
        rows = np.flatnonzero((found.design.observation_run == place) & (found.design.figure == "tpot_mean_ms"))
        residual += [found.design.log_seconds[row] - np.log(one.figures["tpot"].value) - found.solution.residual[row]
                     for row in rows]  # fmt: skip
    assert np.abs(residual).max() < 0.02  # effects are written with three digits


def test_errors_come_from_fits_that_had_not_seen_the_run(small_fit):
    found, _, _ = small_fit
    for one in found.errors:
        left_out = ~np.isnan(one.residual)
        # the only layout of a group is not left out as a layout, and all of these runs are one campaign's
        assert left_out.all() or one.mode in PARTS_OF_GROUPS
        if one.mode == "campaign":
            assert not left_out.any()
            continue
        assert np.median(np.abs(one.residual[left_out])) > np.median(np.abs(found.solution.residual[left_out]))
    models = next(one for one in found.errors if one.mode == "model")
    assert set(models.knowledge) <= {"accelerator", "engine", "nothing"}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "random"])
def test_no_group_is_split_over_folds(small_fit, mode):
    found, _, _ = small_fit
    fold = folds_of(found.design.cases, mode)
    name = {"model": lambda one: one.deployment.model.name, "accelerator": lambda one: one.deployment.accelerator.name,
            "group": lambda one: group_key(one.run), "layout": _layout_of,
            "campaign": lambda one: (group_key(one.run), one.run.campaign)}[mode]  # fmt: skip
    places = {}
    for case, number in zip(found.design.cases, fold.tolist(), strict=True):
        assert places.setdefault(name(case), number) == number


def _layout_of(case):
    one = case.deployment
    return group_key(case.run), (one.tp, one.pp, one.dp, one.ep, one.dcp)


def test_a_layout_is_predicted_by_the_other_layouts_of_its_group(small_fit):
    found, _, _ = small_fit
    fold = folds_of(found.design.cases, "layout")
    layouts = {}
    for case, number in zip(found.design.cases, fold.tolist(), strict=True):
        group, layout = _layout_of(case)
        layouts.setdefault(group, {})[layout] = number
    several = [one for one in layouts.values() if len(one) > 1]
    assert several
    # no two layouts of a group are left out together, and the only one of a group never is
    assert all(len(set(one.values())) == len(one) and min(one.values()) >= 0 for one in several)
    assert all(set(one.values()) == {-1} for one in layouts.values() if len(one) == 1)
    [errors] = [one for one in found.errors if one.mode == "layout"]
    left_out = fold[found.design.observation_run] >= 0
    assert (np.isnan(errors.residual) == ~left_out).all()
    # its group is known by the others, itself is not
    assert set(errors.knowledge[left_out]) == {"layout"}
    assert set(errors.knowledge[~left_out]) <= {""}


def test_what_a_campaign_measured_is_predicted_by_others_and_has_the_level_of_what_they_measured():
    runs = [run for run in load_measurements() if (run.model, run.accelerator, run.engine, run.weights) == SEVERAL]
    found = build_design(runs)
    fold = folds_of(found.cases, "campaign")
    campaign = np.array([one.run.campaign for one in found.cases])
    assert len(set(campaign)) > 1 and min(fold) == 0
    assert len({(name, number) for name, number in zip(campaign, fold, strict=True)}) == len(set(campaign))
    errors = cross_validate(found, "campaign", AsFitted(initial_spreads()))
    assert np.isfinite(errors.residual).all() and set(errors.knowledge) == {"configuration"}
    # stored errors get the same levels without a fit
    assert (levels_left_out(found.cases, "campaign")[found.observation_run] == errors.knowledge).all()


def test_other_layouts_of_a_group_set_no_width_for_the_one_that_is_scored(small_fit):
    found, _, _ = small_fit
    cases, run = found.design.cases, found.design.observation_run
    scored = scored_of(cases, run, found.design.figure)
    place = [one.mode for one in found.errors].index("layout")
    before = nested_intervals(found.errors, scored, cases, run)[place]
    mine = folds_of(cases, "group")[run] == 0
    moved = [replace(one, residual=np.where(mine, one.residual + 5.0, one.residual)) for one in found.errors]
    after = nested_intervals(moved, scored, cases, run)[place]
    assert np.allclose(before[0][mine], after[0][mine], equal_nan=True)


def test_first_tokens_among_many_requests_have_a_width_of_their_own():
    # 200 groups of each load, of which those with many requests in flight scatter five times as much
    rng = np.random.default_rng(8)
    scored, _, _ = _planted(rng, 4000, 1.0)
    many = np.arange(4000) % 2 == 0
    kinds = replace(scored, kind=np.where(many, "ttft_many", "ttft"))
    error = rng.normal(0, np.where(many, 0.5, 0.1))
    both = [Errors("random", error, np.full(4000, "sweep")), Errors("group", error, np.full(4000, "pair"))]
    base = fit_intervals(both, kinds).base["pair"]
    assert base["ttft"] == pytest.approx((-0.165, 0.165), rel=0.15)
    assert base["ttft_many"] == pytest.approx((-0.82, 0.82), rel=0.15)


def test_the_errors_read_back_as_they_were(small_fit):
    found, folder, _ = small_fit
    read = read_left_out(folder / FILE)
    assert read.run == left_out_of(found).run
    for one, other in zip(read.errors, found.errors, strict=True):
        assert np.allclose(one.residual, other.residual, atol=6e-5, equal_nan=True)
        assert (one.knowledge == other.knowledge).all()
    assert np.allclose(read.site, found.site, atol=6e-5, equal_nan=True)


def test_errors_are_written_the_same_twice(small_fit, tmp_path):
    found, folder, _ = small_fit
    assert write_left_out(left_out_of(found), tmp_path / FILE).read_bytes() == (folder / FILE).read_bytes()


def test_a_file_that_holds_no_errors_is_refused(tmp_path):
    with pytest.raises(SpecError, match="cannot be read.*`glmplan calibrate` writes it"):
        read_left_out(tmp_path / "none.csv.gz")
    (tmp_path / "plain.csv.gz").write_text("run,figure\n")
    with pytest.raises(SpecError):
        read_left_out(tmp_path / "plain.csv.gz")


def _planted(rng, count, engine_scale):
    """Errors of two engines, one of which scatters more."""
    engine = np.where(np.arange(count) % 2 == 0, "vllm", "sglang")
    scale = np.where(engine == "vllm", 1.0, engine_scale) * 0.05
    features = {"engine": engine, **{name: np.full(count, "x") for name in
                ("accelerator", "model", "format", "load of engine", "model of engine", "load", "link",
                 "blocks", "drafting", "prompt")}}  # fmt: skip
    scored = Scored(np.full(count, "decode"), features, np.arange(count) // 4, np.zeros(count), np.ones(count))
    errors = [Errors("random", rng.normal(0, scale), np.full(count, "sweep"))]
    return scored, errors, engine


def test_an_engine_that_scatters_more_gets_a_wider_interval():
    scored, errors, engine = _planted(np.random.default_rng(1), 4000, 4.0)
    found = fit_intervals(errors, scored)
    fresh_scored, fresh, _ = _planted(np.random.default_rng(2), 4000, 4.0)
    low, high = found.ends(fresh_scored, fresh[0].knowledge, np.arange(4000))
    inside = (fresh[0].residual >= low) & (fresh[0].residual <= high)
    for name in ("vllm", "sglang"):
        assert 0.87 < inside[engine == name].mean() < 0.93
    widths = high - low
    assert 3.0 < widths[engine == "sglang"].mean() / widths[engine == "vllm"].mean() < 5.0


def test_each_group_has_one_vote_however_many_rows_it_has():
    rng = np.random.default_rng(3)
    scored, _, _ = _planted(rng, 4000, 1.0)
    group = np.where(np.arange(4000) < 3000, 0, np.arange(4000) // 10)  # one of 3000 rows, a hundred of ten
    error = np.where(group == 0, rng.normal(0, 0.05, 4000), rng.normal(0, 0.5, 4000))
    found = fit_intervals([Errors("group", error, np.full(4000, "pair"))], replace(scored, group=group))
    low, high = found.base["pair"]["decode"]
    by_groups = np.quantile(error[group > 0], [0.05, 0.95])
    assert (low, high) == pytest.approx(by_groups, rel=0.1)  # of all rows together they would be five times narrower


def test_the_next_group_is_covered_though_groups_differ_more_than_their_rows():
    # a hundred trials of 40 groups, whose biases scatter three times as much as the rows in them
    rng = np.random.default_rng(5)
    covered = []
    for _ in range(100):
        sizes = rng.integers(1, 30, size=41)
        group = np.repeat(np.arange(41), sizes)
        error = rng.normal(0, 0.3, 41)[group] + rng.normal(0, 0.1, len(group))
        scored, _, _ = _planted(rng, len(group), 1.0)
        scored = replace(scored, group=group, features={name: np.full(len(group), "x") for name in scored.features})
        errors = [Errors("group", error, np.full(len(group), "pair"))]
        found = fit_intervals(errors, scored, use=group < 40)
        low, high = found.ends(scored, errors[0].knowledge, np.flatnonzero(group == 40))
        mine = error[group == 40]
        covered.append(((mine >= low) & (mine <= high)).mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=0.06)  # two standard errors of a hundred trials


def test_a_factor_narrows_only_where_enough_groups_stay_covered():
    rng = np.random.default_rng(6)
    scored, _, _ = _planted(rng, 4000, 1.0)
    group = np.arange(4000) // 40
    quiet = {"few": group < 8, "many": group < 50}
    for name, mine in quiet.items():
        error = rng.normal(0, np.where(mine, 0.02, 0.2))
        load = np.where(mine, "quiet", "loud")
        trial = replace(scored, group=group, features={**scored.features, "load": load})
        found = fit_intervals([Errors("group", error, np.full(4000, "pair"))], trial)
        narrowed = found.widths.get("decode load: quiet", 1.0) < 1.0
        assert narrowed == (name == "many")


def test_a_kind_of_figure_with_few_groups_takes_the_shape_of_all_and_its_own_size():
    rng = np.random.default_rng(4)
    scored, _, _ = _planted(rng, 4240, 1.0)
    few = np.arange(4240) >= 4000
    kinds = replace(scored, kind=np.where(few, "prefill", "decode"),
                    group=np.where(few, 2000 + np.arange(4240) // 40, np.arange(4240) // 4))  # fmt: skip
    error = rng.normal(0, np.where(few, 0.5, 0.1))
    found = fit_intervals([Errors("group", error, np.full(4240, "pair"))], kinds)
    for kind, size in (("decode", 0.1), ("prefill", 0.5)):
        # six groups alone would stretch to their 0.5 % and 99.5 % quantiles, 2.6 times the deviation
        assert found.base["pair"][kind] == pytest.approx((-1.645 * size, 1.645 * size), rel=0.2)


def test_few_groups_of_a_class_do_not_decide_over_the_many_of_one_that_knows_less():
    # fifteen groups, two of them far off, beside two hundred; both classes are counted together
    rng = np.random.default_rng(7)
    scored, _, _ = _planted(rng, 4300, 1.0)
    group = np.arange(4300) // 20
    error = rng.normal(0, np.where(group < 2, 2.0, 0.1))
    known = np.where(group < 15, "group", "pair")
    found = fit_intervals([Errors("group", error, known)], replace(scored, group=group)).base
    assert found["group"] == found["pair"]
    assert found["pair"]["decode"] == pytest.approx((-0.165, 0.165), rel=0.2)


def test_a_guessed_acceptance_length_widens_the_interval_of_its_row_alone():
    scored, errors, _ = _planted(np.random.default_rng(1), 4000, 1.0)
    guessed = replace(scored, drafting=np.where(np.arange(4000) % 5 == 0, 0.3, 0.0))
    noisy = [replace(errors[0], residual=np.where(guessed.drafting > 0, 10.0, errors[0].residual))]
    plain, found = fit_intervals(errors, scored), fit_intervals(noisy, guessed)
    assert found.base["sweep"]["decode"] == pytest.approx(plain.base["sweep"]["decode"], abs=0.01)
    low, high = found.ends(guessed, errors[0].knowledge, np.arange(4000))
    stated = guessed.drafting == 0
    assert np.ptp(high[stated]) < 1e-9
    assert high[~stated] == pytest.approx(np.hypot(high[stated][0], 0.3))
    assert low[~stated] == pytest.approx(-np.hypot(low[stated][0], 0.3))


def test_less_knowledge_never_narrows_the_base_interval(small_fit):
    base = small_fit[0].intervals.base
    # whether the model was measured and whether the part was in this format are two things
    chains = ("sweep configuration group pair format model engine nothing", "pair accelerator engine", "sweep layout")
    order = [pair for chain in chains for pair in pairwise(chain.split())]
    assert {name for pair in order for name in pair} == set(KNOWLEDGE)
    for kind in ("decode", "ttft", "prefill"):
        for more, less in order:
            assert base[less][kind][0] <= base[more][kind][0] <= base[more][kind][1] <= base[less][kind][1]


def test_intervals_are_made_without_the_rows_they_are_scored_on(small_fit):
    found, _, _ = small_fit
    scored = scored_of(found.design.cases, found.design.observation_run, found.design.figure)
    before = nested_intervals(found.errors, scored, found.design.cases, found.design.observation_run)
    # shift the errors of one fold of the random mode: intervals of that fold must not notice
    fold = folds_of(found.design.cases, "random")[found.design.observation_run]
    mine = fold == 0
    moved = []
    for one in found.errors:
        residual = one.residual.copy()
        residual[mine] += 5.0
        moved.append(type(one)(one.mode, residual, one.knowledge))
    after = nested_intervals(moved, scored, found.design.cases, found.design.observation_run)
    assert np.allclose(before[0][0][mine], after[0][0][mine])
    assert not np.allclose(before[0][1][~mine], after[0][1][~mine])


def test_the_written_intervals_are_those_of_the_predictions(small_fit):
    found, folder, _ = small_fit
    case = found.design.cases[0]
    effects = effects_in(folder, case.deployment.engine)
    one = predict_many([(case.deployment, case.load, case.run.measured_on)], effects=effects)[0]
    low, high = interval_of(effects, one.knowledge, "decode", features_of(case.deployment, case.load))
    assert one.figures["tpot"].low / one.figures["tpot"].value == pytest.approx(np.exp(low), rel=1e-6)
    assert one.figures["tpot"].high / one.figures["tpot"].value == pytest.approx(np.exp(high), rel=1e-6)
    assert keys_of(case.deployment)[0] == "all"


@pytest.mark.parametrize("mode", MODES)
def test_stored_errors_have_the_levels_of_the_fits_that_made_them(small_fit, mode):
    found, _, _ = small_fit
    [errors] = [one for one in found.errors if one.mode == mode]
    levels = levels_left_out(found.design.cases, mode)[found.design.observation_run]
    there = errors.knowledge != ""
    assert (levels[there] == errors.knowledge[there]).all()


def test_widths_made_from_stored_errors_are_those_of_the_fit(small_runs, small_fit, tmp_path):
    _, folder, _ = small_fit
    for name in ("shared.toml", FILE, BEYOND):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    write_widths(tmp_path, runs=small_runs)
    made, fitted = effects_in(tmp_path, "vllm"), effects_in(folder, "vllm")
    assert made.values["all"]["all"].tolist() == fitted.values["all"]["all"].tolist()
    for level, kinds in fitted.intervals.items():
        for kind, ends in kinds.items():
            # stored errors have four digits
            assert made.intervals[level][kind] == pytest.approx(ends, rel=0.02, abs=0.002), (level, kind)


def test_rows_that_leave_settings_open_have_wider_intervals_than_rows_that_state_all():
    # two hundred groups of each, of which those with an open setting scatter three times as much
    rng = np.random.default_rng(9)
    scored, _, _ = _planted(rng, 4000, 1.0)
    unstated = np.arange(4000) % 2 == 0
    kinds = replace(scored, kind=np.where(unstated, "decode_unstated", "decode"))
    error = rng.normal(0, np.where(unstated, 0.3, 0.1))
    errors = [Errors(mode, error, np.full(4000, level)) for mode, level in (("random", "sweep"), ("group", "pair"))]
    base = fit_intervals(errors, kinds).base["pair"]
    assert base["decode"] == pytest.approx((-0.165, 0.165), rel=0.15)
    assert base["decode_unstated"] == pytest.approx((-0.49, 0.49), rel=0.15)


def test_a_row_of_doubted_source_has_a_quarter_of_a_vote():
    # one complaint far off in a hundred groups moves no end by a whole vote
    rng = np.random.default_rng(10)
    scored, _, _ = _planted(rng, 400, 1.0)
    group = np.arange(400) // 4
    error = np.where(group < 8, 2.0, rng.normal(0, 0.1, 400))
    trial = replace(scored, group=group, features={**scored.features, "load": np.full(400, "x")})
    doubted = replace(trial, credit=np.where(group < 8, 0.25, 1.0))
    whole, part = (fit_intervals([Errors("group", error, np.full(400, "pair"))], one).base["pair"]["decode"][1]
                   for one in (trial, doubted))  # fmt: skip
    assert whole > 1.5 and part < 0.3


def test_the_tail_of_normal_errors_is_that_of_a_normal_distribution():
    rng = np.random.default_rng(11)
    scored, _, _ = _planted(rng, 40000, 1.0)
    error = rng.normal(0, 0.1, 40000)
    found = fit_intervals([Errors("group", error, np.full(40000, "pair"))], scored)
    assert found.tails["decode"] == pytest.approx(NORMAL, rel=0.06)
